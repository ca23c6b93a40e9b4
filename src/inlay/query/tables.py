"""The tables of queries: what a catalog tells the query engine, and what the engine tells a worker."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import orjson
import pyarrow as pa

from inlay.schema import contains_type

__all__ = ["Table", "Tables"]


@dataclass(frozen=True)
class Table:
    """One immutable version of a table. A column that a file lacks is NULL."""

    schema: pa.Schema
    files: Sequence[str]  # absolute paths or s3:// URLs
    # Whether the files' statistics count NaN, as those of files that inlay writes do. If not, no row group of a
    # table with floats is skipped, because `v <> 3.25` would miss rows with NaN.
    exact_float_bounds: bool = False

    @property
    def key(self) -> str:
        """An id that differs between any two tables."""
        return str(self.description["key"])

    @cached_property
    def is_remote(self) -> bool:
        """Whether files are in an object store."""
        return any("://" in file for file in self.files)

    @cached_property
    def description(self) -> dict[str, Any]:
        """What a worker needs to read the table."""
        description = {
            "schema": base64.b64encode(self.schema.serialize()).decode(),
            "files": list(self.files),
            "prune": self.exact_float_bounds
            or not any(contains_type(field.type, pa.types.is_floating) for field in self.schema),
        }
        return description | {"key": hashlib.sha256(orjson.dumps(description)).hexdigest()}


class Tables(Protocol):
    """Finds tables by name, ignoring case. Every query calls it again."""

    def find(self, name: str, version: int | None) -> Table | None: ...
    def names(self) -> list[str]: ...
    def schemas(self) -> Iterable[tuple[str, pa.Schema]]:
        """Return the name and the schema of each table, without opening files."""
