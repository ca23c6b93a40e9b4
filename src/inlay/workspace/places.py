"""Where the service keeps its files, on a local disk or in an object store; one layout on both.

uploads/{upload}/raw        the bytes of an upload
datasets/{dataset}/v{n}/    files that version n added; they never change
scratch/{job}/              what a job needs while it runs
owner/{catalog}             whose storage this is
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import uuid
from collections.abc import Iterable
from typing import BinaryIO

from inlay.catalog import DataFile, dataset_directory, upload_directory
from inlay.errors import InlayError, StorageUnavailableError
from inlay.storage import FileStat, LocalStore, Location, locate

__all__ = ["Places"]

_BLOCK = 1 << 20


class Places:
    def __init__(self, url: str) -> None:
        self.root = locate(url)

    def prepare(self) -> None:
        """Make sure that something can be kept here."""
        place = f"scratch/probe-{uuid.uuid4().hex}"  # of our own: others may be asking too; a crash leaves an orphan
        try:
            self.make_directory(place)
            self.root.store.create(self.root.full(f"{place}/probe"), b"inlay")
            self.remove(place)
        except (OSError, InlayError) as error:
            raise StorageUnavailableError(
                f"Nothing can be stored at {self.root.given!r}: {error}",
                hint="Check the address, the permissions, and for S3 the AWS_* variables.",
            ) from error

    def claim(self, catalog: str) -> None:
        """Make the storage that of a catalog, unless it is another one's: what one does not know it would remove."""
        if not self._owners():
            with contextlib.suppress(FileExistsError):
                self.create(f"owner/{catalog}", b"")
        if self._owners() != {catalog}:
            raise StorageUnavailableError(
                f"The storage at {self.root.given!r} belongs to another catalog.",
                hint="Use the catalog that it was filled with (INLAY_CATALOG_URL, or INLAY_DATA_DIR for SQLite), or "
                "another INLAY_STORAGE_URL.",
            )

    def _owners(self) -> set[str]:
        return {file.path for file in self.files_below("owner")}

    # ------------------------------------------------------------------------------------------------------- places
    def upload(self, upload_id: str) -> str:
        return f"{upload_directory(upload_id)}/raw"

    def dataset(self, dataset_id: str) -> Location:
        return self.below(dataset_directory(dataset_id))

    def scratch(self, job_id: str) -> Location:
        return self.below(f"scratch/{job_id}")

    def below(self, path: str) -> Location:
        return Location(self.root.store, self.root.full(path), self.root.shown(path))

    def in_storage(self, dataset_id: str, path: str) -> str:
        """The catalog's name of a file in a dataset's directory: relative to the root of the storage."""
        return f"{dataset_directory(dataset_id)}/{path}"

    def in_dataset(self, dataset_id: str, path: str) -> str:
        return path.removeprefix(f"{dataset_directory(dataset_id)}/")

    def address(self, path: str) -> str:
        """What other programs open: an absolute path, or the store's URL."""
        return self.root.full(path) if self.root.store.is_local else self.root.shown(path)

    def addresses(self, files: Iterable[DataFile]) -> list[str]:
        return [self.address(file.path) for file in files]

    # -------------------------------------------------------------------------------------------------------- files
    def make_directory(self, path: str) -> None:
        """Durable where directories are things of their own."""
        store = self.root.store
        if isinstance(store, LocalStore):
            store.make_durable_directories(self.root.full(path))

    def open_write(self, path: str) -> BinaryIO:
        self.make_directory(posixpath.dirname(path))
        return self.root.store.open_write(self.root.full(path))

    def make_durable(self, path: str) -> None:
        store = self.root.store
        if isinstance(store, LocalStore):
            store.sync_file(self.root.full(path))
            store.sync_directory(posixpath.dirname(self.root.full(path)))

    def create(self, path: str, content: bytes) -> None:
        self.make_directory(posixpath.dirname(path))
        self.root.store.create(self.root.full(path), content)
        self.make_durable(path)

    def copy(self, source: str, target: str) -> None:
        with self.root.store.open_read(self.root.full(source)) as original, self.open_write(target) as copy:
            while block := original.read(_BLOCK):
                copy.write(block)
        self.make_durable(target)

    def remove(self, path: str) -> None:
        """A file or a whole directory; nothing there is fine."""
        store, full = self.root.store, self.root.full(path)
        if store.is_directory(full):
            store.remove_tree(full)
        else:
            store.remove(full)

    def files_below(self, path: str) -> list[FileStat]:
        return self.root.store.walk(self.root.full(path), lambda _: True)

    def hollow_directories(self, path: str, before_ns: int) -> list[str]:
        """Those that hold no file and have not changed since, the innermost first. Object stores have none."""
        if not isinstance(self.root.store, LocalStore):
            return []
        top, hollow = self.root.full(path), dict[str, None]()
        for directory, inner, files in os.walk(top, topdown=False):
            is_empty = not files and all(f"{directory}/{name}" in hollow for name in inner)
            with contextlib.suppress(FileNotFoundError):
                if is_empty and directory != top and os.stat(directory).st_mtime_ns < before_ns:
                    hollow[directory] = None
        return [path + directory.removeprefix(top) for directory in hollow]

    def remove_hollow(self, path: str) -> None:
        """Unless something was put there meanwhile."""
        store = self.root.store
        if isinstance(store, LocalStore):
            store.remove_empty_directory(self.root.full(path))
