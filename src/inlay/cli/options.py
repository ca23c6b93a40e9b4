"""Options that several commands share, and the parsers of their values."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from inlay.errors import InvalidArgumentError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class StrategyName(StrEnum):
    insert = "insert"
    update = "update"
    upsert = "upsert"
    full_merge = "full_merge"
    deduplicate = "deduplicate"
    delete = "delete"


class SchemaModeName(StrEnum):
    strict = "strict"
    evolve = "evolve"


class MissingColumnsName(StrEnum):
    error = "error"
    null = "null"
    keep = "keep"


class WriteMode(StrEnum):
    append = "append"
    overwrite = "overwrite"


class SourceFormat(StrEnum):
    csv = "csv"
    json = "json"
    parquet = "parquet"
    arrow = "arrow"


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A file, directory or glob of Parquet, Arrow, CSV or JSON files; `-` reads standard input.",
        show_default=False,
    ),
]
Dataset = Annotated[
    str, typer.Argument(metavar="DATASET", help="The path or URL of a directory of Parquet files.", show_default=False)
]
Strategy = Annotated[
    StrategyName,
    typer.Option(
        "--strategy",
        "-s",
        metavar="STRATEGY",
        help=f"How to treat matching, new and missing keys: {', '.join(StrategyName)}.",
    ),
]
Keys = Annotated[
    list[str],
    typer.Option(
        "--key", "-k", metavar="COLUMN", help="Key column. Repeat the option or separate columns with commas."
    ),
]
KeysToShow = Annotated[
    list[str] | None,
    typer.Option("--key", "-k", metavar="COLUMN", help="Show the range of this column in every file. Repeatable."),
]
PartitionBy = Annotated[
    list[str] | None,
    typer.Option(
        "--partition-by",
        metavar="COLUMN",
        help="Partition column of a new dataset. Repeatable. An existing dataset keeps its partitions.",
    ),
]
EngineName = Annotated[str, typer.Option("--engine", help="Engine to run on: auto, pyarrow, duckdb or spark.")]
Compression = Annotated[
    str | None,
    typer.Option(
        "--compression",
        metavar="CODEC",
        help="Codec of new files: none, snappy, gzip, brotli, lz4 or zstd. Default: the codec of the dataset's files.",
    ),
]
RowGroupSize = Annotated[
    int | None,
    typer.Option(
        "--row-group-size",
        metavar="ROWS",
        min=1,
        help="Rows per row group of new files. Default: as in the dataset's files.",
    ),
]
MaxRowsPerFile = Annotated[
    int, typer.Option("--max-rows-per-file", metavar="ROWS", min=1, help="Maximum number of rows in each new file.")
]
SchemaMode = Annotated[
    SchemaModeName,
    typer.Option(
        "--schema-mode",
        help="strict requires the same columns; evolve adds new columns and, in a merge, widens columns.",
    ),
]
DedupOrderBy = Annotated[
    list[str] | None,
    typer.Option(
        "--dedup-order-by",
        metavar="COLUMN",
        help="Column that orders the rows of a key for deduplicate; the last row wins. Repeatable.",
    ),
]
MissingColumns = Annotated[
    MissingColumnsName,
    typer.Option(
        "--missing-columns",
        help="error requires all columns of the dataset; null sets those that the source lacks to NULL; keep keeps"
        " their values.",
    ),
]
OperationColumn = Annotated[
    str | None,
    typer.Option(
        "--operation-column",
        metavar="COLUMN",
        help="Column of SOURCE that says what each row does, for upsert and deduplicate: insert, update or delete, I, U"
        " or D, or c, r, u or d.",
    ),
]
NewerBy = Annotated[
    str | None,
    typer.Option(
        "--newer-by", metavar="COLUMN", help="Replace or delete rows only if SOURCE has a greater value in this column."
    ),
]
MaxDeleted = Annotated[
    str | None,
    typer.Option(
        "--max-deleted",
        metavar="LIMIT",
        help="Refuse to delete more rows than this number, such as 1000, or share, such as 0.05.",
    ),
]
Scope = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        metavar="COLUMN=VALUE",
        help="Rows of the dataset that full_merge or delete is about; it never touches other rows. Repeatable.",
    ),
]
Transaction = Annotated[
    str | None,
    typer.Option(
        "--transaction", metavar="TOKEN", help="Name of the batch. A batch whose name is committed changes nothing."
    ),
]
Rename = Annotated[list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="Rename a column. Repeatable.")]
Drop = Annotated[list[str] | None, typer.Option("--drop", metavar="COLUMN", help="Drop a column. Repeatable.")]
Widen = Annotated[
    list[str] | None,
    typer.Option("--widen", metavar="COLUMN=TYPE", help="Widen the type of a column, such as d=bigint. Repeatable."),
]
Where = Annotated[
    str,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Condition in SQL notation, such as \"day < '2025-01-01' AND status IN ('closed', 'void')\".",
    ),
]
AllowEmpty = Annotated[
    bool,
    typer.Option("--allow-empty", help="Let full_merge delete all rows if standard input, as SOURCE, has no rows."),
]
SortBy = Annotated[
    list[str] | None,
    typer.Option("--sort-by", metavar="COLUMN", help="Sort the rows of every written file by this column. Repeatable."),
]
Mode = Annotated[
    WriteMode, typer.Option("--mode", help="append adds files; overwrite replaces every Parquet file in one commit.")
]
TargetFileSize = Annotated[
    str,
    typer.Option(
        "--target-file-size",
        metavar="SIZE",
        help="Target size of each file, such as 128MB (10^6 bytes) or 128MiB (2^20).",
    ),
]
LockTimeout = Annotated[
    float,
    typer.Option("--lock-timeout", metavar="SECONDS", min=0, help="How many seconds to wait for another writer."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing, as `inlay plan` does.")]
PlanOnly = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
FormatOfSource = Annotated[
    SourceFormat | None,
    typer.Option(
        "--source-format",
        case_sensitive=False,
        help="Format of SOURCE. Default: from its name; csv for `-`.",
        show_default=False,
    ),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="Option of the dataset's filesystem, such as endpoint_url=http://... Repeatable.",
    ),
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=0, help="Maximum number of files to show; 0 shows all.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


class LayoutName(StrEnum):
    lines = "lines"
    array = "array"
    objects = "objects"


# Each read option of a text file: the type of its value, its flags and its help.
_READ_OPTIONS: dict[str, tuple[Any, str, str, str]] = {
    "delimiter": (
        str,
        "--delimiter",
        "CHAR",
        "Character between the cells of a CSV file; `tab` for a tab. Default: detected.",
    ),
    "header": (
        bool,
        "--header/--no-header",
        "",
        "Whether the first row of a CSV file holds the column names. Default: detected.",
    ),
    "quote": (
        str,
        "--quote",
        "CHAR",
        "Quote character of a CSV file; an empty text disables quoting. Default: detected.",
    ),
    "escape": (str, "--escape", "CHAR", "Character that escapes a quote in a CSV file. Default: detected."),
    "null_values": (list[str], "--null-value", "TEXT", "Cell of a CSV file that means NULL. Repeatable."),
    "encoding": (
        str,
        "--encoding",
        "NAME",
        "Encoding of a text file, such as latin-1. Default: UTF-8, or detected UTF-16.",
    ),
    "day_first": (
        bool,
        "--day-first/--month-first",
        "",
        "Whether 01/02/2024 is February 1 or January 2. Default: detected.",
    ),
    "layout": (LayoutName, "--layout", "", "Layout of a JSON file. Default: detected."),
}


def with_read_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add a flag for each read option to a command, which receives the chosen ones as `read_options`."""
    known = inspect.signature(command, eval_str=True).parameters
    parameters = [parameter for name, parameter in known.items() if name != "read_options"]
    at = next(number for number, parameter in enumerate(parameters, 1) if parameter.name.endswith("_format"))
    parameters[at:at] = [_read_option(name) for name in _READ_OPTIONS]

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        chosen = {name: arguments.pop(name) for name in _READ_OPTIONS}
        command(**arguments, read_options={name: value for name, value in chosen.items() if value is not None})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _read_option(name: str) -> inspect.Parameter:
    type_, flags, metavar, text = _READ_OPTIONS[name]
    option = typer.Option(flags, metavar=metavar or None, help=text, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Annotated[type_ | None, option]
    )


def names(values: Sequence[str] | None) -> list[str] | None:
    """Split repeated and comma-separated column names; return None if there are none."""
    found = [name.strip() for text in values or () for name in text.split(",")]
    return [name for name in found if name] or None


def storage_options(pairs: Sequence[str] | None) -> dict[str, Any] | None:
    """Parse NAME=VALUE pairs. Values are text, except true, false and JSON objects or lists."""
    options: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidArgumentError(f"--storage-option expects NAME=VALUE, but got {pair!r}.")
        options[name] = _value(value, pair)
    return options or None


def _value(text: str, pair: str) -> Any:
    if text not in ("true", "false") and not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(f"--storage-option {pair!r} holds invalid JSON: {error}.") from error


def max_deleted(text: str | None) -> float | None:
    """Parse a number of rows, such as 1000, or a share of the rows, such as 0.05."""
    if text is None:
        return None
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text.strip()) else float(text)
    except ValueError:
        raise InvalidArgumentError(
            f"--max-deleted expects a number, but got {text!r}.",
            hint="Pass a number of rows such as 1000, or a share such as 0.05.",
        ) from None


def scope(texts: Sequence[str] | None) -> dict[str, list[str]] | None:
    """Collect the values of each column."""
    found: dict[str, list[str]] = {}
    for name, value in pairs(texts, "--scope"):
        found.setdefault(name, []).append(value)
    return found or None


def size(text: str) -> int:
    """Parse a number of bytes: 1000, 128MB (powers of 1000), 128MiB (powers of 1024)."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(
            f"Invalid size: {text!r}.", hint="Pass a number of bytes, or a size such as 64MB, 128MiB or 1.5GB."
        )
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])


def pairs(texts: Sequence[str] | None, flag: str, *, last: bool = False) -> list[tuple[str, str]]:
    """Split NAME=VALUE at the first equals sign, or at the last."""
    found = []
    for text in texts or ():
        name, equals, value = text.rpartition("=") if last else text.partition("=")
        if not name or not equals or (last and not re.search(r"\S", value)):
            raise InvalidArgumentError(f"{flag} expects NAME=VALUE, but got {text!r}.")
        found.append((name, value))
    return found
