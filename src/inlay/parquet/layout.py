"""How a dataset lies on its store: which files are data, and what their Hive paths say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
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
_READABLE_IN_PATHS = " !$&()+,@~-._"  # nothing that `PathValidator` refuses: every engine reads what we write


def data_files(location: Location) -> list[FileStat]:
    """The Parquet files of a dataset, sorted by path; a missing directory is an empty dataset."""
    return [file for file in location.store.walk(location.path, _is_visible) if _is_parquet(file.path)]


def _is_visible(name: str) -> bool:
    # "_day=1" is a partition of a column "_day"; "_SUCCESS", "_delta_log" and ".staging" are debris of others
    return not name.startswith((".", "_")) or (name[0] == "_" and "=" in name)


def _is_parquet(path: str) -> bool:
    return path.endswith(_SUFFIXES) or path.lower().endswith(_SUFFIXES)


def parse_hive_partition_path(file_path: str, partition_columns: Sequence[str] | None = None) -> dict[str, Any]:
    """The `column=value` directories of a path, percent-decoded; NULL partitions are None.

    >>> parse_hive_partition_path("/data/year=2024/city=New%20York/file.parquet")
    {'year': '2024', 'city': 'New York'}
    """
    directories = re.split(r"[/\\]", file_path)[:-1]
    values: dict[str, Any] = {}
    for directory in directories:
        column, equals, value = directory.partition("=")
        if not equals or not column:
            continue
        name = unquote(column)
        if partition_columns is None or name in partition_columns:
            values[name] = None if value == NULL_PARTITION else unquote(value)
    return values


def hive_segment(column: str, value: Any) -> str:
    """The directory name of one partition value, e.g. `day=2025-01-01`."""
    name = re.sub(r"^\.", "%2E", _quoted(column))  # directories with a leading dot are hidden
    if value is None:
        return f"{name}={NULL_PARTITION}"
    text = str(value)
    if text == NULL_PARTITION:
        raise InvalidArgumentError(f"The partition column {column!r} holds {text!r}, the name that stands for NULL.")
    return f"{name}={_quoted(text)}"


def _quoted(text: str) -> str:
    return quote(text, safe=_READABLE_IN_PATHS).replace("--", "-%2D")  # the mark of a comment in SQL


def infer_partition_type(values: Iterable[str | None]) -> pa.DataType:
    """The type that readers give path values: whole numbers, ISO dates, otherwise text."""
    known = {value for value in values if value is not None}
    for pattern, type_ in ((r"-?[0-9]{1,18}", pa.int64()), (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", pa.date32())):
        if known and all(re.fullmatch(pattern, v) and typed_partition_value(v, type_) is not None for v in known):
            return type_
    return pa.string()


def typed_partition_value(text: str | None, type_: pa.DataType) -> pa.Scalar | None:
    """A path value as a value of the column's type; None when it cannot be one (then nothing is known)."""
    if text is None:
        return pa.scalar(None, type_)
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    try:
        if pa.types.is_time(type_):  # Arrow reads times of day only as a part of timestamps
            return pa.scalar(f"1970-01-01 {text}").cast(pa.timestamp(type_.unit)).cast(type_)
        return pa.scalar(text).cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
