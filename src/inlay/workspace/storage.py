"""The files of the service on a local disk or in an object store, and uploads to it.

uploads/{upload}/raw        the bytes of an upload
datasets/{dataset}/v{n}/    the files that version n added; they never change
scratch/{job}/              the temporary files of a running job
owner/{catalog}             the identity of the catalog that the storage belongs to
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import BinaryIO

from inlay.catalog import Catalog, DataFile, Upload, dataset_directory, new_id, upload_directory
from inlay.errors import (
    CommitStateUnknownError,
    InlayError,
    InvalidArgumentError,
    StorageUnavailableError,
    UploadTooLargeError,
)
from inlay.storage import Listing, LocalStore, Location, locate

__all__ = ["ServiceStorage", "UploadWriter", "require_size"]

_BLOCK_BYTES = 1 << 20
_ENCODINGS = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd", "identity": None, "": None}


class ServiceStorage:
    """Reads and writes files by their paths relative to the storage root."""

    def __init__(self, url: str, timeout_seconds: float = 30.0) -> None:
        self.options = {"timeout_seconds": timeout_seconds}  # for `locate`
        self.root = locate(url, storage_options=self.options)

    def prepare(self) -> None:
        """Raise if no file can be created in the storage."""
        # A unique directory allows concurrent probes. Maintenance removes it after a crash.
        directory = f"scratch/probe-{uuid.uuid4().hex}"
        try:
            self.create(f"{directory}/probe", b"inlay")
            self.remove(directory)
        except (OSError, InlayError) as error:
            raise StorageUnavailableError(
                f"Cannot write to the storage at {self.root.uri!r}: {error}",
                hint="Check the address, the permissions, and for S3 the AWS_* environment variables.",
            ) from error

    def require_readable(self) -> None:
        """Raise if the storage cannot be read."""
        try:
            owners = self._owners()
        except OSError as error:
            raise StorageUnavailableError(
                f"Cannot read the storage at {self.root.uri!r}: {error}", hint="Try again later."
            ) from error
        if not owners:
            raise StorageUnavailableError(
                f"The storage at {self.root.uri!r} lacks the files of this service.",
                hint="Check that the disk or the bucket is available.",
            )

    def claim(self, catalog: str) -> None:
        """Assign the storage to a catalog, or raise if it belongs to another catalog.

        Two catalogs must not share a storage: each would remove the files that it does not know.
        """
        if not self._owners():
            with contextlib.suppress(FileExistsError):
                self.create(f"owner/{catalog}", b"")
        if self._owners() != {catalog}:
            raise StorageUnavailableError(
                f"The storage at {self.root.uri!r} belongs to another catalog.",
                hint="Use the catalog of this storage (INLAY_CATALOG_URL, or INLAY_DATA_DIR for SQLite), or set "
                "another INLAY_STORAGE_URL.",
            )

    def _owners(self) -> set[str]:
        return {file.path for file in self.files_below("owner")}

    # -------------------------------------------------------------------------------------------------------- paths
    def upload(self, upload_id: str) -> str:
        return f"{upload_directory(upload_id)}/raw"

    def dataset(self, dataset_id: str) -> Location:
        return self._location(dataset_directory(dataset_id))

    def scratch(self, job_id: str) -> Location:
        return self._location(f"scratch/{job_id}")

    def _location(self, path: str) -> Location:
        return Location(self.root.store, self.root.full(path), self.root.display(path))

    def in_storage(self, dataset_id: str, path: str) -> str:
        """Convert a path in the directory of a dataset to a path in the storage."""
        return f"{dataset_directory(dataset_id)}/{path}"

    def in_dataset(self, dataset_id: str, path: str) -> str:
        """Convert a path in the storage to a path in the directory of a dataset."""
        return path.removeprefix(f"{dataset_directory(dataset_id)}/")

    def address(self, path: str) -> str:
        """Return the absolute path or store URL with which other programs open a file."""
        return self.root.full(path) if self.root.store.is_local else self.root.display(path)

    def addresses(self, files: Iterable[DataFile]) -> list[str]:
        return [self.address(file.path) for file in files]

    # -------------------------------------------------------------------------------------------------------- files
    def make_directory(self, path: str) -> None:
        """Create a directory durably. Object stores have no directories."""
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
        """Create a file, or raise FileExistsError if it exists with other content.

        An object with the same content may be this call's own: the response to its creation can be lost.
        """
        store, full = self.root.store, self.root.full(path)
        self.make_directory(posixpath.dirname(path))
        try:
            store.create(full, content)
        except FileExistsError:
            if store.read_bytes(full) != content:
                raise
        self.make_durable(path)

    def copy(self, source: str, target: str) -> None:
        with self.root.store.open_read(self.root.full(source)) as original, self.open_write(target) as copy:
            while block := original.read(_BLOCK_BYTES):
                copy.write(block)
        self.make_durable(target)

    def remove(self, path: str) -> None:
        """Remove a file or a directory tree, if it exists."""
        store, full = self.root.store, self.root.full(path)
        if store.is_directory(full):
            store.remove_tree(full)
        else:
            store.remove(full)

    def files_below(self, path: str) -> Listing:
        return self.root.store.walk(self.root.full(path), lambda _: True)

    def empty_directories(self, path: str, before_ns: int) -> list[str]:
        """List local directories without files, unchanged since `before_ns`, innermost first."""
        if not isinstance(self.root.store, LocalStore):
            return []
        top, found = self.root.full(path), dict[str, None]()
        for directory, inner, files in os.walk(top, topdown=False):
            is_empty = not files and all(f"{directory}/{name}" in found for name in inner)
            with contextlib.suppress(FileNotFoundError):
                if is_empty and directory != top and os.stat(directory).st_mtime_ns < before_ns:
                    found[directory] = None
        return [path + directory.removeprefix(top) for directory in found]

    def remove_empty_directory(self, path: str) -> None:
        """Remove a local directory, unless it contains a file by now."""
        store = self.root.store
        if isinstance(store, LocalStore):
            store.remove_empty_directory(self.root.full(path))


# -------------------------------------------------------------------------------------------------------------- uploads
class UploadWriter:
    """Writes the bytes of one upload. Leaving the block without calling `finish` removes them."""

    def __init__(
        self,
        catalog: Catalog,
        storage: ServiceStorage,
        max_bytes: int,
        content_type: str | None,
        content_encoding: str | None,
        guard: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """Prepare a writer. `guard` is entered for each operation on the storage."""
        self._catalog, self._storage, self._max_bytes = catalog, storage, max_bytes
        self._guard = guard
        self._content_type = content_type or None
        self._encoding = _parse_encoding(content_encoding)
        self.id = new_id("upload")
        self._path = storage.upload(self.id)
        self._size = 0
        self._is_finished = False

    def __enter__(self) -> UploadWriter:
        with self._guard():
            self._file = self._storage.open_write(self._path)
        return self

    def write(self, data: bytes) -> None:
        self._size += len(data)
        require_size(self._size, self._max_bytes)
        with self._guard():
            self._file.write(data)

    def finish(self) -> Upload:
        """Register the upload in the catalog after all its bytes are durable."""
        if not self._size:
            raise InvalidArgumentError(
                "The upload is empty.", hint="Send the bytes of the file as the body of the request."
            )
        with self._guard():
            self._file.close()
            self._storage.make_durable(self._path)
        upload = self._catalog.uploads.create(
            self.id,
            storage_url=self._storage.address(self._path),
            size_bytes=self._size,
            content_type=self._content_type,
            content_encoding=self._encoding,
        )
        self._is_finished = True
        return upload

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a commit with an unknown outcome, the catalog may refer to the file.
        if not self._is_finished and not isinstance(error, CommitStateUnknownError):
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):  # maintenance removes what is left
                self._storage.remove(self._path.rpartition("/")[0])


def require_size(size: int, max_bytes: int) -> None:
    """Raise if an upload of this size exceeds the limit."""
    if size > max_bytes:
        raise UploadTooLargeError(
            f"The upload exceeds the limit of {max_bytes:,} bytes.",
            hint="Split the file, or raise INLAY_MAX_UPLOAD_BYTES.",
        )


def _parse_encoding(content_encoding: str | None) -> str | None:
    name = (content_encoding or "").strip().lower()
    if name not in _ENCODINGS:
        raise InvalidArgumentError(
            f"Unknown Content-Encoding {content_encoding!r}.", hint="Use gzip, zstd or identity."
        )
    return _ENCODINGS[name]
