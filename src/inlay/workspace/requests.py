"""Requests to create and load datasets, and their validation before a job starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from email.message import Message
from typing import Any, get_args

import pyarrow as pa

from inlay.constants import FORMATS, InlineFormat, OnError
from inlay.errors import InvalidArgumentError, did_you_mean, unknown
from inlay.incremental import STRATEGIES
from inlay.incremental.validate import MissingColumns, check_max_deleted, check_scope
from inlay.pipeline import ColumnMapping, ReadOptions
from inlay.type_grammar import parse_column

__all__ = [
    "Deletion",
    "Inline",
    "Load",
    "NewColumn",
    "NewDataset",
    "Source",
    "charset",
    "column_mapping",
    "column_overrides",
    "has_known_type",
    "read_options",
]

KEYLESS_STRATEGIES = ("append", "replace")
_CONTENT_TYPES = {
    "text/csv": "csv",
    "application/csv": "csv",
    "text/tab-separated-values": "csv",
    "application/json": "json",
    "text/json": "json",
    "application/x-ndjson": "json",
    "application/ndjson": "json",
    "application/jsonl": "json",
    "application/x-jsonlines": "json",
    "application/json-lines": "json",
    "application/vnd.apache.parquet": "parquet",
    "application/x-parquet": "parquet",
    "application/parquet": "parquet",
}


@dataclass(frozen=True, slots=True)
class Inline:
    """Data inside a request."""

    format: str
    content: str

    def check(self, max_bytes: int) -> None:
        if self.format.lower() not in get_args(InlineFormat):
            raise InvalidArgumentError(f"Inline data must be csv or json, not {self.format!r}.")
        size = len(self.content.encode("utf-8", "surrogatepass"))
        if size > max_bytes:
            raise InvalidArgumentError(
                f"The inline data has {size:,} bytes, which exceeds the limit of {max_bytes:,} bytes.",
                hint="Upload the data with POST /v1/files and send its upload_id.",
            )


@dataclass(frozen=True, slots=True)
class Source:
    """The rows to load: exactly one of an upload, inline data and a query."""

    upload_id: str | None = None
    inline: Inline | None = None
    sql: str | None = None
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def type(self) -> str:
        return "upload" if self.upload_id is not None else "inline" if self.inline is not None else "query"

    def check(self, max_inline_bytes: int) -> None:
        present = [name for name in ("upload_id", "inline", "sql") if getattr(self, name) is not None]
        if len(present) != 1:
            raise InvalidArgumentError(
                f"The source has {' and '.join(present) or 'no rows'}, but it must have exactly one of upload_id, "
                "inline and sql."
            )
        if self.format is not None and self.format.lower() not in FORMATS:
            raise unknown("format", self.format, FORMATS)
        if self.inline is not None:
            self.inline.check(max_inline_bytes)


@dataclass(frozen=True, slots=True)
class NewDataset:
    label: str
    source: Source
    table_name: str | None = None
    columns: Sequence[tuple[str, str]] = ()  # (name, type) of columns whose types are not inferred
    on_error: OnError = "fail"

    def as_json(self) -> dict[str, Any]:
        return _without_content(asdict(self))


@dataclass(frozen=True, slots=True)
class NewColumn:
    """A column that a load adds to its dataset."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Load:
    source: Source
    strategy: str
    key_columns: Sequence[str] = ()
    dedup_order_by: Sequence[str] = ()
    dry_run: bool = False
    on_error: OnError = "fail"
    columns: Mapping[str, str | NewColumn | None] = field(default_factory=dict)  # by the names in the file
    missing_columns: MissingColumns = "error"
    operation_column: str | None = None
    newer_by: str | None = None
    max_deleted: float | None = None  # an int is a number of rows, a float is a share
    scope: Mapping[str, Sequence[Any]] | None = None

    def check(self) -> None:
        known = (*KEYLESS_STRATEGIES, *STRATEGIES)
        if self.strategy not in known:
            raise unknown("strategy", self.strategy, known)
        if self.is_keyless and (names := self._options_of_merges()):
            raise InvalidArgumentError(
                f"Strategy {self.strategy!r} does not accept {' or '.join(names)}.",
                hint="Omit these fields, or choose a strategy that matches rows by key.",
            )
        check_max_deleted(self.max_deleted)
        if not self.is_keyless and not self.key_columns:
            raise InvalidArgumentError(
                f"Strategy {self.strategy!r} requires key_columns.", hint="Name the columns that identify a row."
            )
        check_scope(self.scope, self.strategy)

    @property
    def is_keyless(self) -> bool:
        return self.strategy in KEYLESS_STRATEGIES

    def _options_of_merges(self) -> list[str]:
        names = ["key_columns", "dedup_order_by", "operation_column", "newer_by"]
        chosen = [name for name in names if getattr(self, name)]
        changed = {
            "missing_columns": self.missing_columns != "error",
            "max_deleted": self.max_deleted is not None,
            "scope": self.scope is not None,
        }
        return [*chosen, *(name for name, is_changed in changed.items() if is_changed)]

    @property
    def allows_absence(self) -> bool:
        """Return whether source rows may lack fields of the dataset."""
        return self.missing_columns == "keep" or self.operation_column is not None

    @property
    def requires_fields(self) -> bool:
        """Return whether a JSON record that lacks a field is invalid: it would set a stored value to NULL."""
        replaces = not self.is_keyless and STRATEGIES[self.strategy].replaces
        return replaces and self.missing_columns == "error" and not self.allows_absence

    def as_json(self) -> dict[str, Any]:
        return _without_content(asdict(self))


@dataclass(frozen=True, slots=True)
class Deletion:
    """Rows to delete: those with one of the keys, or those for which a condition is true."""

    keys: Sequence[Mapping[str, Any]] = ()
    where: str | None = None
    dry_run: bool = False
    max_deleted: float | None = None

    def check(self) -> None:
        check_max_deleted(self.max_deleted)
        if bool(self.keys) == (self.where is not None):
            raise InvalidArgumentError(
                "A deletion needs exactly one of keys and where.",
                hint="Send a list of keys, or a condition such as: day < '2025-01-01'.",
            )
        if not all(self.keys):
            number = next(number for number, key in enumerate(self.keys, 1) if not key)
            raise InvalidArgumentError(f"Key {number:,} is empty.", hint='Send the key columns, such as {"id": 7}.')
        for number, key in enumerate(self.keys, 1):
            if set(key) != set(self.keys[0]):
                raise InvalidArgumentError(
                    f"Key {number:,} has the columns {', '.join(key)}, but the first key has"
                    f" {', '.join(self.keys[0])}.",
                    hint="Send the same columns in every key.",
                )

    @property
    def load_by_key(self) -> Load:
        """The load that deletes the rows with the keys."""
        content = json.dumps(list(self.keys))
        source = Source(inline=Inline("json", content))
        return Load(source, "delete", list(self.keys[0]), dry_run=self.dry_run, max_deleted=self.max_deleted)

    def as_json(self) -> dict[str, Any]:
        if self.keys:
            return self.load_by_key.as_json()
        return {name: getattr(self, name) for name in ("where", "dry_run", "max_deleted")} | {"strategy": "delete"}


def _without_content(request: dict[str, Any]) -> dict[str, Any]:
    """Replace inline data with its digest, because the catalog stores no data."""
    inline = request["source"]["inline"]
    if inline is not None:
        content = inline.pop("content").encode("utf-8", "surrogatepass")
        inline |= {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return request


def read_options(source: Source, content_type: str | None) -> ReadOptions:
    """Return the options to read an upload with. Explicit options override the content type."""
    options = dict(source.options)
    format_ = _upload_format(source.format, content_type)
    if format_.lower() != "parquet" and "encoding" not in options:
        options["encoding"] = charset(content_type)
    return ReadOptions.of(format_, options)


def charset(content_type: str | None) -> str | None:
    """Return the encoding that a content type names, or None for UTF-8, the default."""
    header = Message()
    header["Content-Type"] = content_type or ""
    name = header.get_content_charset()
    if name is None:
        return None
    try:
        encoding = ReadOptions.of("csv", {"encoding": name}).encoding
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"Unknown charset {name!r} in the content type of the upload.",
            hint="Set the option `encoding` to the encoding of the file, such as utf-8 or cp1252.",
        ) from error
    return None if encoding == "utf-8" else encoding


def _upload_format(explicit: str | None, content_type: str | None) -> str:
    """Return the explicit format, or the format of the content type. Never guess."""
    found = explicit or _CONTENT_TYPES.get(_media_type(content_type))
    if found is None:
        reason = f"content type {content_type!r} is not a known format" if content_type else "it has no content type"
        raise InvalidArgumentError(
            f"The format of the upload is unknown: {reason}.", hint=f"Set source.format to one of {', '.join(FORMATS)}."
        )
    return found


def has_known_type(content_type: str | None) -> bool:
    """Return whether a content type determines the format."""
    return _media_type(content_type) in _CONTENT_TYPES


def _media_type(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def column_mapping(columns: Mapping[str, str | NewColumn | None], schema: pa.Schema) -> ColumnMapping:
    """Return the mapping of a file's columns to a dataset with a schema."""
    names = {source: to.name if isinstance(to, NewColumn) else to for source, to in columns.items()}
    added = [parse_column(to.name, to.type) for to in columns.values() if isinstance(to, NewColumn)]
    known = {name.casefold(): name for name in schema.names}
    for field_ in added:
        if (existing := known.get(field_.name.casefold())) is not None:
            raise InvalidArgumentError(
                f"The dataset already has the column {existing!r}.",
                hint=f"Map the column of the file to {existing!r}, or add it with another name.",
            )
        known[field_.name.casefold()] = field_.name
    targets = [name for name in names.values() if name is not None]
    for name in targets:
        if name not in known.values():
            hint = did_you_mean(name, schema.names) or f"To add the column, map to its name and type: {name!r}."
            raise InvalidArgumentError(f"The dataset has no column {name!r}.", hint=hint)
        if targets.count(name) > 1:
            raise InvalidArgumentError(f"The mapping maps two columns of the file to the column {name!r}.")
    return ColumnMapping(names, tuple(added))


def column_overrides(columns: Sequence[tuple[str, str]]) -> dict[str, pa.Field]:
    fields: dict[str, pa.Field] = {}
    for name, text in columns:
        if name in fields:
            raise InvalidArgumentError(f"The schema contains column {name!r} twice.", hint="Remove one of them.")
        fields[name] = parse_column(name, text)
    return fields
