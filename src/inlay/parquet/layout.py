"""The layout of a dataset: which files are data files, and the partition values in their paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote

import pyarrow as pa

from inlay.errors import InvalidArgumentError
from inlay.storage import FileStat, Location

__all__ = [
    "NULL_PARTITION",
    "data_files",
    "hive_segment",
    "infer_partition_type",
    "parse_hive_partition_path",
]

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_SUFFIXES = (".parquet", ".parq", ".pq")
_READABLE_IN_PATHS = " !$&()+,@~-._"  # Only characters that `PathValidator` allows in SQL.


# The ends of names that only the directory of a table format contains, with the format and a tool for it.
_ICEBERG = ("Apache Iceberg", "pyiceberg or Spark with Iceberg")
_TABLE_FORMATS = {
    "_delta_log": ("Delta Lake", "delta-rs or Spark with Delta Lake"),
    ".metadata.json": _ICEBERG,
    ".metadata.json.gz": _ICEBERG,
    "version-hint.text": _ICEBERG,
    ".hoodie": ("Apache Hudi", "Spark with Hudi"),
    ".lance": ("Lance", "pylance"),
}
_TABLE_FORMAT_ENDS = tuple(_TABLE_FORMATS)


def data_files(location: Location) -> list[FileStat]:
    """List the Parquet files of a dataset by path. A missing directory is an empty dataset.

    Reject the directory of a table format: its log decides which files contain its rows.
    """

    def keep(name: str) -> bool:
        if name.endswith(_TABLE_FORMAT_ENDS):
            raise _table_format_error(location, name)
        return _is_visible(name)

    return [file for file in location.store.walk(location.path, keep) if _is_parquet(file.path)]


def _table_format_error(location: Location, name: str) -> InvalidArgumentError:
    table_format, tool = next(known for end, known in _TABLE_FORMATS.items() if name.endswith(end))
    return InvalidArgumentError(
        f"{location.uri!r} is a table of {table_format}, not a plain Parquet dataset: it contains {name!r}.",
        hint=f"Use {tool} for this table.",
    )


def _is_visible(name: str) -> bool:
    # "_day=1" is a partition of the column "_day". "_SUCCESS" and "_delta_log" belong to other programs.
    return not name.startswith((".", "_")) or (name[0] == "_" and "=" in name)


def _is_parquet(path: str) -> bool:
    return path.endswith(_SUFFIXES) or path.lower().endswith(_SUFFIXES)


def parse_hive_partition_path(file_path: str, partition_columns: Sequence[str] | None = None) -> dict[str, str | None]:
    """Parse the `column=value` directories of a path.

    Args:
        file_path: The path of a data file.
        partition_columns: The columns to return. None returns all columns in the path.

    Returns:
        The percent-decoded text of each value by column. A NULL partition is None.

    Example:
        >>> from inlay.incremental import parse_hive_partition_path
        >>> parse_hive_partition_path("/data/year=2024/city=New%20York/file.parquet")
        {'year': '2024', 'city': 'New York'}
    """
    directories = re.split(r"[/\\]", file_path)[:-1]
    values: dict[str, str | None] = {}
    for directory in directories:
        column, equals, value = directory.partition("=")
        if not equals or not column:
            continue
        name = unquote(column)
        if partition_columns is None or name in partition_columns:
            values[name] = None if value == NULL_PARTITION else unquote(value)
    return values


def hive_segment(column: str, value: object) -> str:
    """Return the directory name of a partition value, such as `day=2025-01-01`."""
    name = re.sub(r"^\.", "%2E", _quote(column))  # A leading dot would hide the directory.
    if value is None:
        return f"{name}={NULL_PARTITION}"
    text = str(value)
    if text == NULL_PARTITION:
        raise InvalidArgumentError(
            f"The partition column {column!r} contains {text!r}, which is reserved for NULL.",
            hint="Replace the value, or do not partition by this column.",
        )
    return f"{name}={_quote(text)}"


def _quote(text: str) -> str:
    return quote(text, safe=_READABLE_IN_PATHS).replace("--", "-%2D")  # "--" begins a comment in SQL.


def infer_partition_type(values: Iterable[str | None]) -> pa.DataType:
    """Infer the type of path values as other readers do: integer, ISO date, or else text."""
    known = {value for value in values if value is not None}
    for pattern, type_ in ((r"-?[0-9]{1,18}", pa.int64()), (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", pa.date32())):
        if known and all(re.fullmatch(pattern, v) and typed_partition_value(v, type_) is not None for v in known):
            return type_
    return pa.string()


def typed_partition_value(text: str | None, type_: pa.DataType) -> pa.Scalar | None:
    """Convert a path value to the column's type. Returns None if the type cannot represent it."""
    if text is None:
        return pa.scalar(None, type_)
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    try:
        if pa.types.is_time(type_):  # Arrow parses a time only as part of a timestamp.
            return pa.scalar(f"1970-01-01 {text}").cast(pa.timestamp(type_.unit)).cast(type_)
        return pa.scalar(text).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
