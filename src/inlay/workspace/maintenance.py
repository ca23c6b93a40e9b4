"""In the background: old versions are forgotten, files that nobody needs removed, what crashes left collected."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

from inlay.catalog import is_id, upload_directory
from inlay.errors import InlayError
from inlay.parquet.sidecar import owner_of
from inlay.workspace.services import Services

__all__ = ["Maintenance"]

log = logging.getLogger("inlay.maintenance")
_PAUSE_SECONDS = 5.0
_ORPHANS_EVERY = 600.0
_AGAIN_AFTER = timedelta(minutes=10)
_TOPS = ("uploads", "datasets", "scratch")


class Maintenance:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._closing = threading.Event()
        self._orphans_looked_for = 0.0
        self._unknown_since: dict[str, float] = {}
        self._thread = threading.Thread(target=self._loop, name="inlay-maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        pause = min(_PAUSE_SECONDS, max(self._services.settings.delete_grace_seconds / 2, 0.1))
        while not self._closing.wait(pause):
            try:
                self.run()
            except (InlayError, OSError) as error:
                log.warning("maintenance will be tried again: %s", error)
            except Exception:
                log.exception("maintenance will be tried again")  # nobody else would do it

    def run(self) -> None:
        """One round: everything that is due. What cannot be removed keeps nothing else from being removed."""
        settings, catalog = self._services.settings, self._services.catalog
        catalog.jobs.release_expired()
        catalog.versions.expire(keep_versions=settings.keep_versions, keep_days=settings.keep_days)
        self.remove_garbage()
        every = min(_ORPHANS_EVERY, max(settings.orphan_grace_seconds, 1.0))
        if time.monotonic() - self._orphans_looked_for >= every or not self._orphans_looked_for:
            self.collect_orphans()
            catalog.jobs.expire()
            self._orphans_looked_for = time.monotonic()

    def remove_garbage(self) -> None:
        catalog, places = self._services.catalog, self._services.places
        for item in catalog.garbage.due():
            if _removed(places.remove, item.path):
                catalog.garbage.done(item.path)
            else:
                catalog.garbage.postpone(item.path, _AGAIN_AFTER)

    # ------------------------------------------------------------------------------------------------------ orphans
    def collect_orphans(self) -> list[str]:
        """Remove what no catalog entry and no job knows, once it is too old to be work in progress."""
        # In this order: what a job makes true meanwhile is either still its own, or found among the live files.
        places, before = self._services.places, self._too_old()
        old = [path for top in _TOPS for path in self._old(top, before)]
        hollow = [path for top in _TOPS for path in places.hollow_directories(top, before)]
        jobs = self._services.catalog.jobs.active()
        stray, whole = self._datasets(old, {job.dataset_id for job in jobs})
        orphans = stray | self._long_unknown(whole | self._uploads(old))
        orphans |= {f"scratch/{job_id}" for job_id in _second_parts(old, "scratch") - {job.id for job in jobs}}
        garbage = self._services.catalog.garbage.paths()  # with a time of its own, also what lies in it
        orphans = {path for path in orphans if path not in garbage and _top_of(path) not in garbage}
        for path in sorted(orphans):
            log.info("removing %s, which belongs to nothing", path)
            _removed(places.remove, path)
        busy = {name for job in jobs for name in (job.id, job.dataset_id)}
        for path in hollow:
            if (_dataset_of(path) or path.split("/")[1]) not in busy:
                _removed(places.remove_hollow, path)
        return sorted(orphans)

    def _too_old(self) -> int:
        return time.time_ns() - int(self._services.settings.orphan_grace_seconds * 1e9)

    def _old(self, top: str, before: int) -> list[str]:
        return [f"{top}/{file.path}" for file in self._services.places.files_below(top) if file.mtime_ns < before]

    def _uploads(self, old: Iterable[str]) -> set[str]:
        unknown = self._services.catalog.uploads.unknown(_second_parts(old, "uploads"))
        return {upload_directory(upload_id) for upload_id in unknown}

    def _datasets(self, old: Iterable[str], busy: set[str | None]) -> tuple[set[str], set[str]]:
        """Files that no version of their dataset has, and directories of datasets that are not there."""
        catalog = self._services.catalog
        theirs: dict[str, set[str]] = {}
        for path in old:
            if (dataset_id := _dataset_of(path)) is not None and dataset_id not in busy:
                theirs.setdefault(dataset_id, set()).add(path)
        unknown = catalog.datasets.unknown(theirs)
        whole = {_top_of(path) for dataset_id in unknown for path in theirs[dataset_id]}
        known = theirs.keys() - unknown
        stray = {path for dataset_id in known for path in theirs[dataset_id] - catalog.versions.live_paths(dataset_id)}
        return stray, whole

    def _long_unknown(self, paths: set[str]) -> set[str]:
        """Those that have been unknown for so long: who restored an older catalog has time to notice."""
        now, grace = time.monotonic(), self._services.settings.orphan_grace_seconds
        self._unknown_since = {path: self._unknown_since.get(path, now) for path in paths}
        return {path for path, since in self._unknown_since.items() if now - since >= grace}


def _removed(remove: Callable[[str], None], path: str) -> bool:
    try:
        remove(path)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error)
        return False
    return True


def _dataset_of(path: str) -> str | None:
    """Whose a path is: it lies in a dataset's directory, or in the one beside it where a merge keeps its work."""
    top, name, *_ = path.split("/")
    owner = owner_of(name) or name
    return owner if top == "datasets" and is_id("dataset", owner) else None


def _top_of(path: str) -> str:
    return "/".join(path.split("/")[:2])


def _second_parts(paths: Iterable[str], top: str) -> set[str]:
    return {path.split("/")[1] for path in paths if path.startswith(f"{top}/") and path.count("/") > 1}
