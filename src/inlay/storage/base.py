"""The protocol of stores, and the identity of the files in them."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, overload

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Content", "FileStat", "Listing", "Store"]


class FileStat(NamedTuple):
    """The identity of a file's content: if all four values are equal, the bytes are equal."""

    path: str
    size: int
    mtime_ns: int
    tag: int | str  # inode or ETag


class Listing(Sequence[FileStat]):
    """Files as columns instead of an object per file, because a dataset may have a million files."""

    def __init__(
        self, paths: Iterable[str], sizes: Iterable[int], mtimes_ns: Iterable[int], tags: Iterable[int | str]
    ) -> None:
        self.columns: tuple[list[Any], ...] = list(paths), list(sizes), list(mtimes_ns), list(tags)

    @classmethod
    def of(cls, files: Iterable[FileStat]) -> Listing:
        return files if isinstance(files, Listing) else cls(*(list(zip(*files, strict=True)) or [()] * 4))

    @property
    def paths(self) -> list[str]:
        return self.columns[0]

    @property
    def sizes(self) -> list[int]:
        return self.columns[1]

    @functools.cached_property
    def directories(self) -> list[str]:
        """The directory of each file."""
        return [path.rpartition("/")[0] for path in self.paths]

    def sorted(self) -> Listing:
        """Return the files sorted by path."""
        if all(map(operator.lt, self.paths, itertools.islice(self.paths, 1, None))):
            return self
        order = sorted(range(len(self)), key=self.paths.__getitem__)
        return Listing(*([column[at] for at in order] for column in self.columns))

    def filter(self, kept: Sequence[bool]) -> Listing:
        return self if all(kept) else Listing(*(list(itertools.compress(column, kept)) for column in self.columns))

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[FileStat]:
        return map(FileStat, *self.columns)

    @overload
    def __getitem__(self, at: int) -> FileStat: ...
    @overload
    def __getitem__(self, at: slice) -> list[FileStat]: ...
    def __getitem__(self, at: int | slice) -> FileStat | list[FileStat]:
        found: list[Any] = [column[at] for column in self.columns]
        return list(map(FileStat, *found)) if isinstance(at, slice) else FileStat(*found)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Listing):
            return self.columns == other.columns
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Content(NamedTuple):
    """The size and CRC-32 of a file."""

    size: int
    crc32: int


class Store(Protocol):
    """The operations that a dataset needs. Paths are absolute within the store."""

    is_local: bool

    def __hash__(self) -> int: ...

    def walk(self, root: str, keep: Callable[[str], bool]) -> Listing: ...
    def stat(self, path: str) -> FileStat | None: ...
    def read_ahead(self, files: Sequence[FileStat]) -> None: ...  # prepares to read the footers of files
    def open_read(self, path: str) -> BinaryIO: ...
    def open_arrow(self, path: str, size: int | None = None) -> pa.NativeFile: ...  # A known size saves a request.
    def open_footer(self, path: str) -> pa.NativeFile: ...  # of a Parquet file; other parts may be missing
    def open_write(self, path: str) -> BinaryIO: ...
    def read_bytes(self, path: str) -> bytes: ...
    def read_range(self, path: str, offset: int, length: int) -> bytes: ...
    def create(self, path: str, data: bytes) -> None: ...
    def move(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...  # A missing directory is not an error.
    def is_directory(self, path: str) -> bool: ...
