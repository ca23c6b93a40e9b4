"""`inlay inspect`: what lies in a dataset, and what about it costs time or needs attention. It changes nothing."""

from __future__ import annotations

import functools
import itertools
import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from inlay.cli import output
from inlay.cli.output import plain
from inlay.errors import NotFoundError, SchemaMismatchError, UnreadableFileError
from inlay.incremental.local_commit import LocalJournal
from inlay.incremental.object_commit import ObjectJournal
from inlay.incremental.validate import require_columns
from inlay.parquet.footers import ColumnRange, open_parquet, python_range, ranges_in, whole_range
from inlay.parquet.layout import data_files, parse_hive_partition_path
from inlay.schema import unify
from inlay.storage import FileStat, Location, locate

__all__ = ["Hint", "InspectedFile", "Inspection", "inspect", "show"]

_SMALL_FILE = 16_000_000
_TINY_ROW_GROUP = 10_000
_READERS = 8


@dataclass(frozen=True, slots=True)
class Hint:
    """Something about a dataset that somebody may want to know, and what to do about it."""

    code: str
    severity: Literal["info", "warning", "error"]
    message: str
    hint: str


@dataclass(slots=True)
class InspectedFile:
    path: str
    row_count: int
    row_group_count: int
    size_bytes: int
    codecs: list[str]
    partition: dict[str, Any]
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)  # column -> min, max, null_count, exactness
    error: str | None = None


@dataclass(slots=True)
class Inspection:
    path: str
    file_count: int
    row_count: int
    row_group_count: int
    size_bytes: int
    codecs: list[str]
    partition_columns: list[str]
    partition_count: int
    columns: list[dict[str, Any]]
    files: list[InspectedFile]
    hints: list[Hint]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Look:
    """One file as its footer shows it, with comparable key ranges."""

    file: FileStat
    metadata: pq.FileMetaData | None = None
    schema: pa.Schema | None = None
    ranges: dict[str, ColumnRange] = field(default_factory=dict)
    error: str | None = None

    @property
    def rows(self) -> int:
        return 0 if self.metadata is None else int(self.metadata.num_rows)

    @property
    def groups(self) -> int:
        return 0 if self.metadata is None else int(self.metadata.num_row_groups)

    @property
    def codecs(self) -> list[str]:
        if self.metadata is None or not self.groups:
            return []
        group = self.metadata.row_group(0)
        return sorted({group.column(i).compression.lower() for i in range(group.num_columns)})


# --------------------------------------------------------------------------------------------------------- looking
def inspect(path: str, keys: Sequence[str], storage_options: dict[str, Any] | None) -> Inspection:
    location = locate(path, None, storage_options)
    journal = LocalJournal(location) if location.store.is_local else ObjectJournal(location)
    with journal.reading():
        pending = journal.pending()
        files = data_files(location)
        if not files and not pending:
            raise NotFoundError(f"There is no Parquet file in {path!r}.")
        with ThreadPoolExecutor(_READERS, "inlay-inspect") as pool:
            looks = list(pool.map(functools.partial(_look, location, keys), files))
    _require_keys(keys, looks)
    hints = [*_pending_hints(pending), *_hints(location, looks, keys)]
    return _summary(location, looks, keys, hints)


def _look(location: Location, keys: Sequence[str], file: FileStat) -> _Look:
    try:
        with open_parquet(location, file.path) as parquet:
            metadata, schema = parquet.metadata, parquet.schema_arrow
            ranges = {key: whole_range(ranges_in(metadata, schema, key)) for key in keys}
            return _Look(file, metadata, schema, ranges)
    except UnreadableFileError as error:
        return _Look(file, error=error.message)


def _require_keys(keys: Sequence[str], looks: Sequence[_Look]) -> None:
    for look in looks:
        if look.schema is not None:
            inside = [key for key in keys if key not in parse_hive_partition_path(look.file.path)]
            require_columns(inside, look.schema, "the dataset", "key column")
            return


def _summary(location: Location, looks: Sequence[_Look], keys: Sequence[str], hints: list[Hint]) -> Inspection:
    files = [_inspected(location, look, keys) for look in looks]
    partitions = [file.partition for file in files]
    return Inspection(
        path=location.given,
        file_count=len(files),
        row_count=sum(file.row_count for file in files),
        row_group_count=sum(file.row_group_count for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        codecs=sorted({codec for file in files for codec in file.codecs}),
        partition_columns=list(dict.fromkeys(itertools.chain.from_iterable(partitions))),
        partition_count=len({tuple(values.items()) for values in partitions if values}),
        columns=_columns(looks),
        files=files,
        hints=hints,
    )


def _columns(looks: Sequence[_Look]) -> list[dict[str, Any]]:
    schema = next((look.schema for look in looks if look.schema is not None), pa.schema([]))
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]


def _inspected(location: Location, look: _Look, keys: Sequence[str]) -> InspectedFile:
    schema = look.schema or pa.schema([])
    shown = {key: python_range(look.ranges[key], schema.field(key).type) for key in keys if key in schema.names}
    return InspectedFile(
        location.shown(look.file.path),
        look.rows,
        look.groups,
        look.file.size,
        look.codecs,
        parse_hive_partition_path(look.file.path),
        {key: {name: _plain(value) for name, value in found.items()} for key, found in shown.items()},
        look.error,
    )


def _plain(value: Any) -> Any:
    """A bound as JSON and tables can show it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


# ---------------------------------------------------------------------------------------------------------- health
def _pending_hints(pending: bool) -> Iterator[Hint]:
    if pending:
        yield Hint(
            "pending_commit",
            "warning",
            "A commit is not complete: it is just being made, or a crash interrupted it.",
            "`inlay recover` completes it, as does any other command that reads or writes.",
        )


def _hints(location: Location, looks: Sequence[_Look], keys: Sequence[str]) -> Iterator[Hint]:
    checks: tuple[Callable[[], Iterator[Hint]], ...] = (
        lambda: _unreadable(location, looks),
        lambda: _schemas(location, looks),
        lambda: _small_files(looks),
        lambda: _tiny_groups(looks),
        lambda: _key_ranges(looks, keys),
    )
    for check in checks:
        yield from check()


def _unreadable(location: Location, looks: Sequence[_Look]) -> Iterator[Hint]:
    for look in looks:
        if look.error is not None:
            yield Hint(
                "unreadable_file",
                "error",
                look.error,
                f"Restore {location.shown(look.file.path)!r} from a copy, or move it out of the dataset.",
            )


def _schemas(location: Location, looks: Sequence[_Look]) -> Iterator[Hint]:
    distinct: dict[bytes, _Look] = {}
    for look in looks:
        if look.schema is not None:
            distinct.setdefault(look.schema.remove_metadata().serialize().to_pybytes(), look)
    if len(distinct) < 2:
        return
    shown = [look.file.path for look in itertools.islice(distinct.values(), 2)]
    message = f"The files have {len(distinct):,} different schemas; {shown[0]!r} and {shown[1]!r} differ."
    try:
        unify([look.schema for look in distinct.values()], [location.shown(x.file.path) for x in distinct.values()])
    except SchemaMismatchError as error:
        yield Hint("incompatible_schemas", "error", error.message, "Merges are refused until one of them is rewritten.")
        return
    yield Hint("differing_schemas", "info", message, "`inlay compact` gives all files one schema.")


def _small_files(looks: Sequence[_Look]) -> Iterator[Hint]:
    """Small files that have a small neighbour, so that compaction would help."""
    directories: dict[str, int] = {}
    for look in looks:
        if look.file.size < _SMALL_FILE and look.error is None:
            directory = posixpath.dirname(look.file.path)
            directories[directory] = directories.get(directory, 0) + 1
    count = sum(small for small in directories.values() if small > 1)
    if count:
        yield Hint(
            "small_files",
            "info",
            f"{count:,} of {len(looks):,} files are smaller than {output.size(_SMALL_FILE)} and have such a neighbour.",
            "`inlay compact` combines them.",
        )


def _tiny_groups(looks: Sequence[_Look]) -> Iterator[Hint]:
    tiny = [look for look in looks if look.groups > 1 and look.rows / look.groups < _TINY_ROW_GROUP]
    if tiny:
        yield Hint(
            "tiny_row_groups",
            "info",
            f"{len(tiny):,} of {len(looks):,} files have row groups of fewer than {_TINY_ROW_GROUP:,} rows on average.",
            "`inlay compact --row-group-size 500000 --sort-by KEY` writes larger ones.",
        )


def _key_ranges(looks: Sequence[_Look], keys: Sequence[str]) -> Iterator[Hint]:
    readable = [look for look in looks if look.schema is not None and look.rows]
    stored = [key for key in keys if any(key in look.schema.names for look in readable if look.schema is not None)]
    for key in stored:
        ranges = [look.ranges[key] for look in readable]
        unknown = sum(found.exactness != "exact" for found in ranges)
        if unknown:
            yield Hint(
                "unknown_key_range",
                "info",
                f"{unknown:,} of {len(readable):,} files have no exact range of {key!r}: every merge reads it there.",
                "Floats never have one; for other types let a writer that writes statistics rewrite the files.",
            )
        nulls = sum(found.null_count or 0 for found in ranges)
        if nulls:
            yield Hint(
                "null_keys",
                "warning",
                f"{nulls:,} rows have no {key!r}.",
                "They match no source row; full_merge deletes them.",
            )
    overlapping = min((_overlapping([look.ranges[key] for look in readable]) for key in stored), default=0)
    if overlapping:
        yield Hint(
            "overlapping_key_ranges",
            "info",
            f"{overlapping:,} of {len(readable):,} files share a part of their key range with another file.",
            "Merges touch fewer files if rows are written in key order; `inlay compact --sort-by` sorts within files.",
        )


def _overlapping(ranges: Sequence[ColumnRange]) -> int:
    """How many ranges share a value with another one."""
    known = sorted(
        ((found.low, found.high) for found in ranges if found.low is not None and found.high is not None),
        key=lambda bounds: bounds[0],
    )
    shared: set[int] = set()
    widest = 0
    for at in range(1, len(known)):
        if known[at][0] <= known[widest][1]:  # type: ignore[operator]
            shared |= {at, widest}
        if known[at][1] >= known[widest][1]:  # type: ignore[operator]
            widest = at
    return len(shared)


# ---------------------------------------------------------------------------------------------------------- showing
def show(found: Inspection, limit: int) -> None:
    out = output.console()
    shown = found.files[:limit] if limit else found.files
    keys = list(dict.fromkeys(key for file in found.files for key in file.keys))
    headers = ["file", "rows", "groups", "size", "codec", *(f"range of {key}" for key in keys)]
    rows = [_row(file, found.path, keys) for file in shown]
    left = ("file", "codec", *headers[5:])
    out.print(output.table(headers, rows, left=left, styles=["red" if file.error else "" for file in shown]))
    output.more(out, len(found.files) - len(shown))
    out.print()
    out.print(
        f"{output.counted(found.file_count, 'file')}, {output.counted(found.row_count, 'row')},"
        f" {output.counted(found.row_group_count, 'row group')}, {output.size(found.size_bytes)},"
        f" {', '.join(found.codecs) or 'no codec'}"
    )
    if found.partition_columns:
        count = output.counted(found.partition_count, "partition")
        out.print(f"{count} by {plain(', '.join(found.partition_columns))}")
    out.print("columns: " + ", ".join(plain(f"{column['name']} {column['type']}") for column in found.columns))
    for hint in found.hints:
        out.print(plain(f"{hint.severity}: {hint.message} {hint.hint}"))


def _row(file: InspectedFile, dataset: str, keys: Sequence[str]) -> list[str]:
    counts = ["unreadable", ""] if file.error else [f"{file.row_count:,}", f"{file.row_group_count:,}"]
    ranges = [_range_text(file.keys.get(key)) for key in keys]
    return [output.relative(file.path, dataset), *counts, output.size(file.size_bytes), ", ".join(file.codecs), *ranges]


def _range_text(found: dict[str, Any] | None) -> str:
    if found is None or found["exactness"] == "unknown":
        return "unknown"
    if found["min"] is None:
        return "all NULL" if found["null_count"] else "no rows"
    text = f"{found['min']} to {found['max']}"
    return text if found["exactness"] == "exact" else f"{text} (inexact)"
