"""`inlay inspect`: show the files of a dataset and its problems. Changes nothing."""

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
from inlay.commit.snapshot import read_consistently
from inlay.commit.transaction import open_journal
from inlay.errors import NotFoundError, SchemaMismatchError, UnreadableFileError
from inlay.incremental.publish import PublishedView, list_views
from inlay.incremental.validate import require_columns
from inlay.parquet.footers import ColumnRange, column_ranges, merge_ranges, open_parquet, python_range
from inlay.parquet.layout import data_files, parse_hive_partition_path
from inlay.schema import unify
from inlay.storage import FileStat, Location, locate

__all__ = ["Hint", "InspectedFile", "Inspection", "inspect", "show"]

_SMALL_FILE = 16_000_000
_TINY_ROW_GROUP = 10_000
_READERS = 8


@dataclass(frozen=True, slots=True)
class Hint:
    """A finding about a dataset, and what to do about it."""

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
    version_count: int = 0
    history_bytes: int = 0  # of the files that only earlier versions have
    views: list[PublishedView] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _FooterView:
    """One file as its footer describes it, with comparable key ranges."""

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


# -------------------------------------------------------------------------------------------------------- inspecting
def inspect(path: str, keys: Sequence[str], storage_options: dict[str, Any] | None) -> Inspection:
    location = locate(path, None, storage_options)
    pending = open_journal(location).has_pending_commit()

    def read(pinned: Location, files: Sequence[FileStat]) -> list[_FooterView]:
        with ThreadPoolExecutor(_READERS, "inlay-inspect") as pool:
            return list(pool.map(functools.partial(_read_footer, pinned, keys), files))

    # A consistent read would complete the pending commit, but `inspect` changes nothing.
    views = read(location, data_files(location)) if pending else read_consistently(location, read)
    if not views and not pending:
        raise NotFoundError(f"{path!r} holds no Parquet files.")
    _require_keys(keys, views)
    hints = [*_pending_hints(pending), *_hints(location, views, keys)]
    found = _summary(location, views, keys, hints)
    found.version_count, found.history_bytes = _history(location)
    found.views = list_views(location)
    return found


def _history(location: Location) -> tuple[int, int]:
    """Return the number of versions, and the size of the files that only earlier versions have."""
    history = open_journal(location).history
    numbers = [] if history is None else history.numbers()
    if history is None or not numbers:
        return 0, 0
    oldest, newest = history.read(numbers[0]), history.read(numbers[-1])
    return len(numbers), newest.replaced_bytes - oldest.replaced_bytes


def _read_footer(location: Location, keys: Sequence[str], file: FileStat) -> _FooterView:
    try:
        with open_parquet(location, file.path) as parquet:
            metadata, schema = parquet.metadata, parquet.schema_arrow
            ranges = {key: merge_ranges(column_ranges(metadata, schema, key)) for key in keys}
            return _FooterView(file, metadata, schema, ranges)
    except UnreadableFileError as error:
        return _FooterView(file, error=error.message)


def _require_keys(keys: Sequence[str], views: Sequence[_FooterView]) -> None:
    for view in views:
        if view.schema is not None:
            inside = [key for key in keys if key not in parse_hive_partition_path(view.file.path)]
            require_columns(inside, view.schema, "the dataset", "key column")
            return


def _summary(location: Location, views: Sequence[_FooterView], keys: Sequence[str], hints: list[Hint]) -> Inspection:
    files = [_inspected(location, view, keys) for view in views]
    partitions = [file.partition for file in files]
    return Inspection(
        path=location.uri,
        file_count=len(files),
        row_count=sum(file.row_count for file in files),
        row_group_count=sum(file.row_group_count for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        codecs=sorted({codec for file in files for codec in file.codecs}),
        partition_columns=list(dict.fromkeys(itertools.chain.from_iterable(partitions))),
        partition_count=len({tuple(values.items()) for values in partitions if values}),
        columns=_columns(views),
        files=files,
        hints=hints,
    )


def _columns(views: Sequence[_FooterView]) -> list[dict[str, Any]]:
    schema = next((view.schema for view in views if view.schema is not None), pa.schema([]))
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]


def _inspected(location: Location, view: _FooterView, keys: Sequence[str]) -> InspectedFile:
    schema = view.schema or pa.schema([])
    ranges = {key: python_range(view.ranges[key], schema.field(key).type) for key in keys if key in schema.names}
    return InspectedFile(
        location.display(view.file.path),
        view.rows,
        view.groups,
        view.file.size,
        view.codecs,
        parse_hive_partition_path(view.file.path),
        {key: {name: _plain(value) for name, value in found.items()} for key, found in ranges.items()},
        view.error,
    )


def _plain(value: Any) -> Any:
    """Convert a bound to a value that JSON and tables can hold."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


# ---------------------------------------------------------------------------------------------------------- problems
def _pending_hints(pending: bool) -> Iterator[Hint]:
    if pending:
        yield Hint(
            "pending_commit",
            "warning",
            "A commit is incomplete: a writer is committing now, or a crash interrupted it.",
            "Run `inlay recover`. Every other command that reads or writes completes it too.",
        )


def _hints(location: Location, views: Sequence[_FooterView], keys: Sequence[str]) -> Iterator[Hint]:
    checks: tuple[Callable[[], Iterator[Hint]], ...] = (
        lambda: _unreadable(location, views),
        lambda: _schemas(location, views),
        lambda: _small_files(views),
        lambda: _tiny_groups(views),
        lambda: _key_ranges(views, keys),
    )
    for check in checks:
        yield from check()


def _unreadable(location: Location, views: Sequence[_FooterView]) -> Iterator[Hint]:
    for view in views:
        if view.error is not None:
            yield Hint(
                "unreadable_file",
                "error",
                view.error,
                f"Restore {location.display(view.file.path)!r} from a copy, or move it out of the dataset.",
            )


def _schemas(location: Location, views: Sequence[_FooterView]) -> Iterator[Hint]:
    distinct: dict[bytes, _FooterView] = {}
    for view in views:
        if view.schema is not None:
            distinct.setdefault(view.schema.remove_metadata().serialize().to_pybytes(), view)
    if len(distinct) < 2:
        return
    first, second = (view.file.path for view in itertools.islice(distinct.values(), 2))
    message = f"The files have {len(distinct):,} different schemas; {first!r} and {second!r} differ."
    try:
        unify([view.schema for view in distinct.values()], [location.display(x.file.path) for x in distinct.values()])
    except SchemaMismatchError as error:
        yield Hint(
            "incompatible_schemas", "error", error.message, "Rewrite one of the files; until then inlay refuses merges."
        )
        return
    yield Hint("differing_schemas", "info", message, "Run `inlay compact` to rewrite all files with one schema.")


def _small_files(views: Sequence[_FooterView]) -> Iterator[Hint]:
    """Find small files in the same directory, which compaction would combine."""
    directories: dict[str, int] = {}
    for view in views:
        if view.file.size < _SMALL_FILE and view.error is None:
            directory = posixpath.dirname(view.file.path)
            directories[directory] = directories.get(directory, 0) + 1
    count = sum(small for small in directories.values() if small > 1)
    if count:
        yield Hint(
            "small_files",
            "info",
            f"{count:,} of {len(views):,} files are smaller than {output.size(_SMALL_FILE)} and share a directory.",
            "Run `inlay compact` to combine them.",
        )


def _tiny_groups(views: Sequence[_FooterView]) -> Iterator[Hint]:
    tiny = [view for view in views if view.groups > 1 and view.rows / view.groups < _TINY_ROW_GROUP]
    if tiny:
        yield Hint(
            "tiny_row_groups",
            "info",
            f"{len(tiny):,} of {len(views):,} files have row groups of fewer than {_TINY_ROW_GROUP:,} rows on average.",
            "Run `inlay compact --row-group-size 500000 --sort-by KEY` to write larger ones.",
        )


def _key_ranges(views: Sequence[_FooterView], keys: Sequence[str]) -> Iterator[Hint]:
    readable = [view for view in views if view.schema is not None and view.rows]
    stored = [key for key in keys if any(key in view.schema.names for view in readable if view.schema is not None)]
    for key in stored:
        ranges = [view.ranges[key] for view in readable]
        unknown = sum(found.exactness != "exact" for found in ranges)
        if unknown:
            yield Hint(
                "unknown_key_range",
                "info",
                f"{unknown:,} of {len(readable):,} files have no exact range of {key!r}: every merge reads their keys.",
                "Float columns never have an exact range. For other types, rewrite the files with statistics.",
            )
        nulls = sum(found.null_count or 0 for found in ranges)
        if nulls:
            yield Hint(
                "null_keys",
                "warning",
                f"The key column {key!r} is NULL in {nulls:,} rows.",
                "Rows with a NULL key match no source row; full_merge deletes them.",
            )
    overlapping = min((_overlapping([view.ranges[key] for view in readable]) for key in stored), default=0)
    if overlapping:
        yield Hint(
            "overlapping_key_ranges",
            "info",
            f"The key ranges of {overlapping:,} of {len(readable):,} files overlap.",
            "Write rows in key order, so that merges touch fewer files. `inlay compact --sort-by` sorts within files.",
        )


def _overlapping(ranges: Sequence[ColumnRange]) -> int:
    """Count the ranges that share a value with another range."""
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


# --------------------------------------------------------------------------------------------------------- printing
def show(found: Inspection, limit: int) -> None:
    out = output.console()
    visible = found.files[:limit] if limit else found.files
    keys = list(dict.fromkeys(key for file in found.files for key in file.keys))
    headers = ["file", "rows", "groups", "size", "codec", *(f"range of {key}" for key in keys)]
    rows = [_row(file, found.path, keys) for file in visible]
    left = ("file", "codec", *headers[5:])
    out.print(output.table(headers, rows, left=left, styles=["red" if file.error else "" for file in visible]))
    output.note_hidden(out, len(found.files) - len(visible))
    out.print()
    out.print(
        f"{output.counted(found.file_count, 'file')}, {output.counted(found.row_count, 'row')},"
        f" {output.counted(found.row_group_count, 'row group')}, {output.size(found.size_bytes)},"
        f" {', '.join(found.codecs) or 'no codec'}"
    )
    if found.partition_columns:
        count = output.counted(found.partition_count, "partition")
        out.print(f"{count} by {plain(', '.join(found.partition_columns))}")
    if found.version_count:
        versions = output.counted(found.version_count, "version")
        out.print(f"{versions} in the history, with {output.size(found.history_bytes)} of replaced files")
    for view in found.views:
        newest = "an empty folder" if view.version is None else f"version {view.version}"
        behind = "" if view.is_current else " (not up to date: run `inlay publish`)"
        out.print(f"{view.format} view in {plain(view.folder)} shows {newest}{behind}", soft_wrap=True)
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
