"""A view of an object store in which an object can be read after a writer has moved it to its other path."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from fsspec import AbstractFileSystem

from inlay.storage.base import FileStat
from inlay.storage.objects import SMALL_OBJECT, ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FallbackStore"]

T = TypeVar("T")
_READ_AHEAD = 4 << 20  # bytes


class FallbackStore(ObjectStore):
    """Read objects of known sizes. If one no longer exists, read it at its other path: each request decides anew."""

    def __init__(self, store: ObjectStore, sizes: Mapping[str, int], others: Mapping[str, str]) -> None:
        super().__init__(store.filesystem, single_writer=store.single_writer)
        self._store, self._sizes, self._others = store, sizes, others
        self.filesystem = _Filesystem(self)

    def __reduce__(self) -> Any:
        return FallbackStore, (self._store, self._sizes, self._others)

    def _either(self, path: str, read: Callable[[str], T]) -> T:
        try:
            return read(path)
        except FileNotFoundError:
            if path not in self._others:
                raise
            return read(self._others[path])

    def stat(self, path: str) -> FileStat | None:
        found = self._store.stat(path)
        return found if found is not None or path not in self._others else self._store.stat(self._others[path])

    def read_bytes(self, path: str) -> bytes:
        return self._either(path, self._store.read_bytes)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return self._either(path, lambda each: self._store.read_range(each, offset, length))

    def open_read(self, path: str) -> BinaryIO:
        size = self._sizes[path]
        if size <= SMALL_OBJECT:
            return io.BytesIO(self.read_range(path, 0, size))
        return cast(BinaryIO, io.BufferedReader(_Ranges(self, path, size), _READ_AHEAD))

    def open_arrow(self, path: str, size: int | None = None) -> pa.NativeFile:  # noqa: ARG002  (sizes are known)
        import pyarrow as pa

        return pa.PythonFile(self.open_read(path), mode="r")

    def copy_all(self, copies: Sequence[tuple[str, str, int]]) -> list[bool]:
        found = self._store.copy_all(copies)
        if not all(found):
            others = [(self._others.get(source, source), target, size) for source, target, size in copies]
            return self._store.copy_all(others)
        return found

    def size(self, path: str) -> int:
        return self._sizes[path]


class _Ranges(io.RawIOBase):
    """A file that reads each part with a request of its own."""

    def __init__(self, store: FallbackStore, path: str, size: int) -> None:
        self._store, self._path, self._size = store, path, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(self._size - self._at, 0))
        buffer[:length] = self._store.read_range(self._path, self._at, length) if length else b""
        self._at += length
        return length


class _Filesystem(AbstractFileSystem):  # type: ignore[misc]
    """The store for readers such as pyarrow that take a filesystem."""

    protocol = "inlay"
    cachable = False

    def __init__(self, store: FallbackStore) -> None:
        super().__init__()
        self._store = store

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": self._store.size(path), "type": "file"}

    def open(self, path: str, mode: str = "rb", **_: Any) -> BinaryIO:
        if mode != "rb":
            raise io.UnsupportedOperation("A version of a dataset cannot be changed.")
        return self._store.open_read(path)
