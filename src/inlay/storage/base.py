"""The protocol of stores, and the identity of the files in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FileStat", "Store"]


class FileStat(NamedTuple):
    """The identity of a file's content: if all four values are equal, the bytes are equal."""

    path: str
    size: int
    mtime_ns: int
    tag: int | str  # inode or ETag


class Store(Protocol):
    """The operations that a dataset needs. Paths are absolute within the store."""

    is_local: bool

    def __hash__(self) -> int: ...

    def walk(self, root: str, keep: Callable[[str], bool]) -> list[FileStat]: ...
    def stat(self, path: str) -> FileStat | None: ...
    def open_read(self, path: str) -> BinaryIO: ...
    def open_arrow(self, path: str, size: int | None = None) -> pa.NativeFile: ...  # A known size saves a request.
    def open_write(self, path: str) -> BinaryIO: ...
    def read_bytes(self, path: str) -> bytes: ...
    def read_range(self, path: str, offset: int, length: int) -> bytes: ...
    def create(self, path: str, data: bytes) -> None: ...
    def move(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...  # A missing directory is not an error.
    def is_directory(self, path: str) -> bool: ...
