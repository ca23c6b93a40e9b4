"""Removes the directories of data files from texts, which must not show where the storage is."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["FilePaths"]


class FilePaths:
    """The paths of the files that queries have opened."""

    def __init__(self) -> None:
        self._directories: set[str] = set()
        self._spellings: list[str] = []  # of directories, longest first

    def add(self, files: Iterable[str]) -> None:
        added = {posixpath.dirname(file) for file in files} - self._directories
        if added:
            self._directories |= added
            spellings = {spelling for directory in self._directories for spelling in _spell(directory)}
            self._spellings = sorted(spellings, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """Return a text with the names of files instead of their paths."""
        for directory in self._spellings:
            text = text.replace(directory, "")
        return text

    def hide_in(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch whose texts have the names of files instead of their paths."""
        return pa.RecordBatch.from_arrays(
            [self._hide_in_column(column) for column in batch.columns], batch.schema.names
        )

    def _hide_in_column(self, column: pa.Array) -> pa.Array:
        if not pa.types.is_string(column.type):
            return column
        for directory in self._spellings:
            column = pc.replace_substring(column, directory, "")
        return column


def _spell(directory: str) -> set[str]:
    """Return the ways in which DataFusion writes a directory: as a path, as a URL, and as the key of an object."""
    key = (urlsplit(directory).path if "://" in directory else directory).strip("/")
    spellings = {f"file:///{key}", f"/{key}", directory, key}
    return {f"{each}/" for spelling in spellings if key for each in (spelling, quote(spelling, safe="/:"))}
