"""What people ask the service for, checked before any work begins."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

import pyarrow as pa

from inlay.choices import FORMATS, InlineFormat, OnError
from inlay.errors import InvalidArgumentError, unknown
from inlay.incremental import STRATEGIES
from inlay.type_grammar import parse_column

__all__ = ["Inline", "Load", "NewDataset", "Source", "format_of", "is_known_type", "overrides_of"]

WHOLE = ("append", "replace")  # loads that need no keys
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
    """A small payload that comes with the request itself."""

    format: str
    content: str

    def check(self, most: int) -> None:
        if self.format not in get_args(InlineFormat):
            raise InvalidArgumentError(f"Inline data is csv or json, not {self.format!r}.")
        size = len(self.content.encode("utf-8", "surrogatepass"))
        if size > most:
            raise InvalidArgumentError(
                f"The inline data has {size:,} bytes; {most:,} are allowed.",
                hint="Upload it with POST /v1/files and refer to it by upload_id.",
            )


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from: exactly one of an upload, inline data and a query."""

    upload_id: str | None = None
    inline: Inline | None = None
    sql: str | None = None
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def type(self) -> str:
        return "upload" if self.upload_id is not None else "inline" if self.inline is not None else "query"

    def check(self, most_inline: int) -> None:
        given = [name for name in ("upload_id", "inline", "sql") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidArgumentError(
                f"A source has exactly one of upload_id, inline and sql, not {' and '.join(given) or 'none of them'}."
            )
        if self.format is not None and self.format not in FORMATS:
            raise unknown("format", self.format, FORMATS)
        if self.inline is not None:
            self.inline.check(most_inline)


@dataclass(frozen=True, slots=True)
class NewDataset:
    label: str
    source: Source
    table_name: str | None = None
    columns: Sequence[tuple[str, str]] = ()  # name and type of those that are not to be inferred
    on_error: OnError = "fail"

    def as_json(self) -> dict[str, Any]:
        return _without_content(asdict(self))


@dataclass(frozen=True, slots=True)
class Load:
    source: Source
    strategy: str
    key_columns: Sequence[str] = ()
    dedup_order_by: Sequence[str] = ()
    dry_run: bool = False
    on_error: OnError = "fail"

    def check(self) -> None:
        known = (*WHOLE, *STRATEGIES)
        if self.strategy not in known:
            raise unknown("strategy", self.strategy, known)
        if self.is_whole and (self.key_columns or self.dedup_order_by):
            raise InvalidArgumentError(f"Strategy {self.strategy!r} takes no key_columns and no dedup_order_by.")
        if not self.is_whole and not self.key_columns:
            raise InvalidArgumentError(
                f"Strategy {self.strategy!r} needs key_columns.", hint="Name the columns that identify a row."
            )

    @property
    def is_whole(self) -> bool:
        return self.strategy in WHOLE

    def as_json(self) -> dict[str, Any]:
        return _without_content(asdict(self))


def _without_content(request: dict[str, Any]) -> dict[str, Any]:
    """Inline data stays out of the catalog; its digest still tells two requests apart."""
    inline = request["source"]["inline"]
    if inline is not None:
        content = inline.pop("content").encode("utf-8", "surrogatepass")
        inline |= {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return request


def format_of(explicit: str | None, content_type: str | None) -> str:
    """Explicit, else by the content type, else an error: a format is never guessed."""
    found = explicit or _CONTENT_TYPES.get(_bare(content_type))
    if found is None:
        said = f"its content type {content_type!r} does not say" if content_type else "it has no content type"
        raise InvalidArgumentError(
            f"The format of the upload is not known: {said}.", hint=f"Give source.format: {', '.join(FORMATS)}."
        )
    return found


def is_known_type(content_type: str | None) -> bool:
    """Whether a content type says what the format is."""
    return _bare(content_type) in _CONTENT_TYPES


def _bare(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def overrides_of(columns: Sequence[tuple[str, str]]) -> dict[str, pa.Field]:
    fields: dict[str, pa.Field] = {}
    for name, text in columns:
        if name in fields:
            raise InvalidArgumentError(f"The schema names column {name!r} twice.")
        fields[name] = parse_column(name, text)
    return fields
