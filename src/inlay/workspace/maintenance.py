"""Background maintenance: expires uploads and versions, and removes garbage and orphaned files."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from inlay.catalog import dataset_directory, is_id, upload_directory
from inlay.commit.sidecar import sidecar_owner
from inlay.errors import InlayError
from inlay.storage import Listing
from inlay.workspace.services import Services

__all__ = ["Maintenance"]

log = logging.getLogger("inlay.maintenance")
_PAUSE_SECONDS = 5.0
_ORPHAN_INTERVAL_SECONDS = 600.0
_RETRY_AFTER = timedelta(minutes=10)
_TOP_DIRECTORIES = ("uploads", "datasets", "scratch")


class Maintenance:
    """The maintenance thread of a workspace."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._closing = threading.Event()
        self._work: Callable[[], None] = self.run
        self._orphans_collected_at = 0.0
        self._unknown_since: dict[str, float] = {}
        self._thread = threading.Thread(target=self._loop, name="inlay-maintenance", daemon=True)

    def start(self, *, queries_only: bool = False) -> None:
        """Start the thread. With `queries_only`, another process maintains the catalog and the storage."""
        if queries_only:
            self._work = self._services.query.drop_unused_copies
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        pause = min(_PAUSE_SECONDS, max(self._services.settings.delete_grace_seconds / 2, 0.1))
        while not self._closing.wait(pause):
            try:
                self._work()
            except (InlayError, OSError) as error:
                log.warning("maintenance failed and will run again: %s", error)
            except Exception:
                log.exception("maintenance failed and will run again")

    def run(self) -> None:
        """Run all maintenance that is due. A file that cannot be removed blocks no other file."""
        settings, catalog = self._services.settings, self._services.catalog
        catalog.jobs.release_expired()
        catalog.uploads.expire(datetime.now(UTC) - timedelta(seconds=settings.upload_expiry_seconds))
        catalog.versions.expire(keep_versions=settings.keep_versions, keep_days=settings.keep_days)
        self.remove_garbage()
        self._services.publisher.catch_up()
        self._services.query.drop_unused_copies()
        interval = min(_ORPHAN_INTERVAL_SECONDS, max(settings.orphan_grace_seconds, 1.0))
        if time.monotonic() - self._orphans_collected_at >= interval or not self._orphans_collected_at:
            self.collect_orphans()
            catalog.jobs.expire()
            self._orphans_collected_at = time.monotonic()

    def remove_garbage(self) -> None:
        catalog, storage = self._services.catalog, self._services.storage
        for item in catalog.garbage.due():
            if _try_remove(storage.remove, item.path):
                catalog.garbage.mark_removed(item.path)
            else:
                catalog.garbage.postpone(item.path, _RETRY_AFTER)

    # ------------------------------------------------------------------------------------------------------ orphans
    def collect_orphans(self) -> list[str]:
        """Remove old files that neither the catalog nor a job refers to. Returns their paths.

        The same listing tells which versions are damaged.
        """
        storage = self._services.storage
        listed_at, listings = datetime.now(UTC), {top: storage.files_below(top) for top in _TOP_DIRECTORIES}
        before = time.time_ns() - int(self._services.settings.orphan_grace_seconds * 1e9)
        # Files are listed before jobs and versions are read: a file that a job commits meanwhile belongs either to
        # the active job or to a version.
        old = [f"{top}/{file.path}" for top, each in listings.items() for file in each if file.mtime_ns < before]
        self._mark_damaged(listings["datasets"], listed_at)
        empty = [path for top in _TOP_DIRECTORIES for path in storage.empty_directories(top, before)]
        jobs = self._services.catalog.jobs.active()
        files, datasets = self._unknown_in_datasets(old, {job.dataset_id for job in jobs})
        orphans = files | self._long_unknown(datasets | self._unknown_uploads(old))
        orphans |= {f"scratch/{job_id}" for job_id in _second_parts(old, "scratch") - {job.id for job in jobs}}
        garbage = self._services.catalog.garbage.paths()  # garbage has its own grace period
        orphans = {path for path in orphans if path not in garbage and _directory_of(path) not in garbage}
        for path in sorted(orphans):
            log.info("removing orphan %s", path)
            _try_remove(storage.remove, path)
        busy = {name for job in jobs for name in (job.id, job.dataset_id)}
        for path in empty:
            if (_dataset_of(path) or path.split("/")[1]) not in busy:
                _try_remove(storage.remove_empty_directory, path)
        return sorted(orphans)

    def _mark_damaged(self, listing: Listing, listed_at: datetime) -> None:
        """Mark the versions that lack a file. A file of another size was changed by another program."""
        if not listing:  # the disk may not be mounted
            return
        sizes: dict[str, dict[str, int]] = {}
        for file in listing:
            path = f"datasets/{file.path}"
            sizes.setdefault(_directory_of(path), {})[path] = file.size
        versions = self._services.catalog.versions
        for dataset_id in self._services.catalog.datasets.ids():
            versions.mark_damaged(dataset_id, sizes.get(dataset_directory(dataset_id), {}), listed_at)

    def _unknown_uploads(self, old: Iterable[str]) -> set[str]:
        unknown = self._services.catalog.uploads.unknown(_second_parts(old, "uploads"))
        return {upload_directory(upload_id) for upload_id in unknown}

    def _unknown_in_datasets(self, old: Iterable[str], busy: set[str | None]) -> tuple[set[str], set[str]]:
        """Return files that belong to no version, and directories of unknown datasets."""
        catalog = self._services.catalog
        by_dataset: dict[str, set[str]] = {}
        for path in old:
            if (dataset_id := _dataset_of(path)) is not None and dataset_id not in busy:
                by_dataset.setdefault(dataset_id, set()).add(path)
        unknown = catalog.datasets.unknown(by_dataset)
        directories = {_directory_of(path) for dataset_id in unknown for path in by_dataset[dataset_id]}
        known = by_dataset.keys() - unknown
        is_view = self._services.publisher.owns
        dead = (path for each in known for path in by_dataset[each] - catalog.versions.live_paths(each))
        files = {path for path in dead if not is_view(path)}
        return files, directories

    def _long_unknown(self, paths: set[str]) -> set[str]:
        """Return paths unknown for the grace period. A restored catalog may lack recent files."""
        now, grace = time.monotonic(), self._services.settings.orphan_grace_seconds
        self._unknown_since = {path: self._unknown_since.get(path, now) for path in paths}
        return {path for path, since in self._unknown_since.items() if now - since >= grace}


def _try_remove(remove: Callable[[str], None], path: str) -> bool:
    try:
        remove(path)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error)
        return False
    return True


def _dataset_of(path: str) -> str | None:
    """Return the dataset that a file in its directory, or in its sidecar, belongs to."""
    top, name, *_ = path.split("/")
    owner = sidecar_owner(name) or name
    return owner if top == "datasets" and is_id("dataset", owner) else None


def _directory_of(path: str) -> str:
    return "/".join(path.split("/")[:2])


def _second_parts(paths: Iterable[str], top: str) -> set[str]:
    return {path.split("/")[1] for path in paths if path.startswith(f"{top}/") and path.count("/") > 1}
