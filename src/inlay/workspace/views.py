"""The published views of datasets: tables of Delta Lake or Apache Iceberg over their data files.

The metadata of a view is inside the directory of the dataset, and names the data files there. So no file is copied or
linked, on a disk and in an object store, and the view disappears with the dataset. A view is derived: a commit never
fails because of it, and maintenance adds the versions that a failed update left out.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import posixpath
import threading
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import BinaryIO

from inlay.catalog import Catalog, DataFile, View
from inlay.errors import EngineNotInstalledError, InlayError, NotFoundError, SchemaMismatchError
from inlay.storage import LocalStore, Location
from inlay.views import DataFile as ViewFile
from inlay.views import Version, open_view
from inlay.workspace.storage import ServiceStorage

__all__ = ["DIRECTORIES", "Publisher"]

log = logging.getLogger("inlay.views")
DIRECTORIES = {
    "delta": "_delta_log",
    "iceberg": "metadata",
}  # of the metadata of each format, in the directory of the dataset


_PACKAGES = {"iceberg": "pyiceberg"}


class Publisher:
    """Publishes the versions of all datasets in some formats."""

    def __init__(self, catalog: Catalog, storage: ServiceStorage, formats: Sequence[str]) -> None:
        self.formats = formats
        for format_, package in _PACKAGES.items():
            if format_ in formats and importlib.util.find_spec(package) is None:
                raise EngineNotInstalledError(
                    f"INLAY_PUBLISH={format_} requires the package {package}.",
                    hint=f"Run: pip install 'inlay[{format_}]'",
                )
        self._catalog, self._storage = catalog, storage
        self._locks: dict[str, threading.Lock] = {}  # by dataset; one thread at a time changes its views

    def address(self, dataset_id: str) -> str:
        """Return the address of the table, which is that of the directory of the dataset."""
        return self._storage.address(self._storage.in_storage(dataset_id, "")).rstrip("/")

    def views(self, dataset_id: str) -> Sequence[View]:
        """Return the state of the views of a dataset."""
        if not self.formats:
            return ()
        return [view for view in self._catalog.views.list(dataset_id) if view.format in self.formats]

    def owns(self, path: str) -> bool:
        """Return whether a file in the storage belongs to a view."""
        directory = path.split("/")[2:3]
        return any(directory == [DIRECTORIES[format_]] for format_ in self.formats)

    def update(self, dataset_id: str) -> None:
        """Add the committed versions to the views of a dataset. Log errors instead of raising them."""
        lock = self._locks.setdefault(dataset_id, threading.Lock())
        for format_ in self.formats:
            with lock:
                try:
                    self._update(dataset_id, format_)
                except NotFoundError:  # The dataset is deleted by now.
                    return
                except Exception as error:  # noqa: BLE001  (a view is derived, so no error of it may stop a job)
                    text = error.message if isinstance(error, InlayError) else f"{type(error).__name__}: {error}"
                    log.warning("the %s view of %s is not up to date: %s", format_, dataset_id, text)

    def _update(self, dataset_id: str, format_: str) -> None:
        versions = ManagedVersions(self._catalog, self._storage, dataset_id)
        if not versions.numbers:
            raise NotFoundError(f"The dataset {dataset_id!r} does not exist.")
        view = open_view(format_, StorageFolder(self._storage, dataset_id))
        problem = None
        if (last := view.newest()) is not None and last < versions.numbers[0]:
            self._remove(dataset_id, format_)  # All versions in the view have expired.
        try:
            view.publish(versions, exact=True)
        except SchemaMismatchError as error:
            problem = error.message
        oldest, newest = versions.numbers[0], versions.numbers[-1]
        self._catalog.views.record(View(dataset_id, format_, view.newest(), oldest, newest, problem))

    def catch_up(self) -> None:
        """Update the views that lack a version or show expired ones, and remove those that are no longer published."""
        for dataset_id in self._catalog.views.outdated(self.formats) if self.formats else ():
            self.update(dataset_id)
        for view in self._catalog.views.others(self.formats):
            self._remove(view.dataset_id, view.format)
            self._catalog.views.forget(view)

    def _remove(self, dataset_id: str, format_: str) -> None:
        self._storage.remove(self._storage.in_storage(dataset_id, DIRECTORIES[format_]))


class ManagedVersions:
    """The versions of a managed dataset, as far as a view shows them."""

    def __init__(self, catalog: Catalog, storage: ServiceStorage, dataset_id: str) -> None:
        self._catalog, self._storage, self._id = catalog, storage, dataset_id
        self.location: Location = storage.dataset(dataset_id)
        self.numbers: Sequence[int] = sorted(catalog.versions.key_columns(dataset_id))
        self.files = cache(self._files)  # A version is read as itself, and as the one before the next.

    def read(self, number: int) -> Version:
        version = self._catalog.versions.get(self._id, number)
        before = [] if number == self.numbers[0] else self.files(number - 1)
        after = self.files(number)
        paths = [{file.path for file in each} for each in (before, after)]
        added = [file for file in after if file.path not in paths[0]]
        removed = [file for file in before if file.path not in paths[1]]
        at = version.created_at.isoformat()
        return Version(number, version.job_id, at, version.operation, added, removed)

    def _files(self, number: int) -> Sequence[ViewFile]:
        snapshot = self._catalog.versions.snapshot(self._id, number)
        at = int(snapshot.version.created_at.timestamp() * 1e9)
        return [self._file(file, at) for file in snapshot.files]

    def _file(self, file: DataFile, at: int) -> ViewFile:
        path = self._storage.in_dataset(self._id, file.path)
        return ViewFile(path, path, file.bytes, at)


@dataclass(frozen=True, slots=True)
class StorageFolder:
    """The directory of a dataset in the storage as the folder of a view. Its data files are there already."""

    storage: ServiceStorage
    dataset_id: str

    @property
    def path(self) -> str:
        return self.storage.address(self._in_storage("")).rstrip("/")

    def _in_storage(self, name: str) -> str:
        return self.storage.in_storage(self.dataset_id, name)

    def full(self, file: ViewFile, directory: str) -> str:  # noqa: ARG002  (data files are in those of versions)
        return f"{self.path}/{file.name}"

    def names(self, directory: str) -> list[str]:
        found = self.storage.files_below(self._in_storage(directory)).paths
        return sorted({path.partition("/")[0] for path in found})

    def open(self, name: str) -> BinaryIO:
        root = self.storage.root
        return io.BytesIO(root.store.read_bytes(root.full(self._in_storage(name))))

    def write(self, name: str, content: bytes, at: str | None = None) -> None:
        """Create or replace a file atomically. Raise if another process creates it at the same time with other content.

        Two services can publish the same version. Then one of them repeats the update later.
        """
        root, path = self.storage.root, self._in_storage(name)
        is_new = root.store.stat(root.full(path)) is None
        if isinstance(root.store, LocalStore):
            self._write_locally(path, content, at, is_new=is_new)
        elif is_new:
            self.storage.create(path, content)
        else:
            with root.store.open_write(root.full(path)) as file:
                file.write(content)

    def _write_locally(self, path: str, content: bytes, at: str | None, *, is_new: bool) -> None:
        draft = f"scratch/view-{uuid.uuid4().hex}/draft"  # Maintenance deletes it after a crash.
        self.storage.create(draft, content)
        full, target = self.storage.root.full(draft), self.storage.root.full(path)
        try:
            if at is not None:
                time = datetime.fromisoformat(at).timestamp()
                os.utime(full, (time, time))
            self.storage.make_directory(posixpath.dirname(path))
            (os.link if is_new else os.rename)(full, target)
            self.storage.make_durable(path)
        finally:
            self.storage.remove(posixpath.dirname(draft))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.storage.remove(self._in_storage(name))

    def add(self, files: Sequence[ViewFile], directory: str = "") -> None:
        """Do nothing, because the view names the data files in the directory of the dataset."""

    def release(self, files: Iterable[ViewFile], directory: str = "") -> None:
        """Expired files are removed by maintenance."""

    def retain(self, files: Iterable[ViewFile], directory: str = "", *, beside: str = "") -> None:
        """Expired files are removed by maintenance."""
