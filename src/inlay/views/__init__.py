"""Views: the versions of a dataset as a read-only table of Delta Lake or Apache Iceberg, over the same data files.

A view knows nothing about how versions are stored: it gets them as a `Versions`, and its files as a `Folder`. Each
module of a format has a class with the methods of `View`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, NamedTuple, Protocol

from inlay.errors import InvalidArgumentError, SchemaMismatchError
from inlay.storage import Location

__all__ = [
    "FORMATS",
    "DataFile",
    "Folder",
    "Version",
    "Versions",
    "View",
    "can_continue",
    "inexpressible_error",
    "open_view",
    "unknown_format_error",
]

#: The module and the class of each format.
FORMATS = {"delta": ("inlay.views.delta", "DeltaView"), "iceberg": ("inlay.views.iceberg", "IcebergView")}


class DataFile(NamedTuple):
    """A data file of a version, which never changes."""

    path: str  # in the dataset: its Hive directories contain the partition values
    name: str  # in the view, and in the location of the versions
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a dataset, and the files that differ from those of the version before."""

    number: int
    id: str
    at: str  # in UTC, as ISO 8601 text
    operation: str
    added: Sequence[DataFile]
    removed: Sequence[DataFile]


class Versions(Protocol):
    """The versions that a view shows."""

    location: Location  # opens each data file by its name
    numbers: Sequence[int]  # of consecutive versions, oldest first

    def read(self, number: int) -> Version: ...
    def files(self, number: int) -> Sequence[DataFile]:
        """Return all files of a version."""


def can_continue(versions: Versions, published: int) -> bool:
    """Return whether a view of version `published` can add the versions after it.

    A view subtracts what a version removes. After that of the oldest version has been deleted, the view begins again.
    """
    oldest = versions.numbers[0]
    if published != oldest - 1:
        return published >= oldest
    location = versions.location
    return all(location.store.stat(location.full(file.name)) for file in versions.read(oldest).removed)


class Folder(Protocol):
    """The directory of a view. Names are relative to it, and each format chooses a directory for data files."""

    @property
    def path(self) -> str: ...

    def full(self, file: DataFile, directory: str) -> str:
        """Return the address of a data file in a directory, for formats that name files by their address."""

    def names(self, directory: str) -> list[str]:
        """List the names in a directory. A missing directory has none."""

    def open(self, name: str) -> BinaryIO: ...
    def write(self, name: str, content: bytes, at: str | None = None) -> None:
        """Create or replace a file atomically and durably, as if it was written at a time."""

    def delete(self, names: Iterable[str]) -> None: ...
    def add(self, files: Sequence[DataFile], directory: str = "") -> None:
        """Make data files readable under their names in a directory, durably. They may be there already."""

    def release(self, files: Iterable[DataFile], directory: str = "") -> None:
        """Remove data files that no version of the view needs."""

    def retain(self, files: Iterable[DataFile], directory: str = "", *, beside: str = "") -> None:
        """Remove all data files except these from a directory, in which `beside` is no data."""


class View(Protocol):
    """A table over the versions of a dataset. One process at a time changes it."""

    data: ClassVar[str]  # the directory of the data files in the folder, or ""

    def __init__(self, folder: Folder) -> None: ...
    def newest(self) -> int | None:
        """Return the number of the newest version in the view, or None before the first."""

    def publish(self, versions: Versions, *, exact: bool = False) -> None:
        """Add the versions that the view lacks. Readers see each version completely or not at all.

        With `exact`, also remove all that belongs to dropped versions, or that another program left in the view, and
        begin again if the view shows the versions of another history. Otherwise, the cost depends on the change only.

        Raises:
            SchemaMismatchError: The format has no type for a column. The view is unchanged.
            InvalidArgumentError: Another program wrote to the view.
        """


def open_view(format_: str, folder: Folder) -> View:
    if format_ not in FORMATS:  # A later version of inlay can publish more formats.
        raise unknown_format_error(format_)
    module, name = FORMATS[format_]
    view: View = getattr(importlib.import_module(module), name)(folder)
    return view


def unknown_format_error(format_: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"There is no view format {format_!r}.", hint=f"Choose one of {', '.join(map(repr, FORMATS))}."
    )


def inexpressible_error(format_: str, column: str, reason: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"{format_} cannot express the column {column!r}: {reason}.",
        hint=f"Store the column in a type that {format_} has, or publish no {format_} view of this dataset.",
    )
