"""The layout of a dataset: which files are data files, and the partition values in their paths."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

import pyarrow as pa

from inlay.arrays import from_texts
from inlay.errors import InvalidArgumentError
from inlay.storage import FileStat, Listing, Location, Store, is_visible

__all__ = [
    "NULL_PARTITION",
    "data_files",
    "hive_segment",
    "hive_segments",
    "infer_partition_type",
    "integer_spellings",
    "new_file_extension",
    "new_hive_segment",
    "parse_hive_partition_path",
    "summary_files",
    "visible_files",
]

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_SUFFIXES = (".parquet", ".parq", ".pq")
_MAGIC = (b"PAR1", b"PARE")  # The first bytes of a Parquet file, and of one with an encrypted footer.
_SUMMARIES = ("_metadata", "_common_metadata")
_EXTENSION = re.compile(r"(\.parquet|\.parq|\.pq)?(\.[^./]*)?$", re.IGNORECASE)
_READERS = 16  # threads that wait for an object store
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
# Values that no directory can represent for every reader.
_NO_DIRECTORY: dict[object, str] = {
    NULL_PARTITION: "which is reserved for NULL",
    "": "which Spark cannot read from a path",
}


def visible_files(location: Location) -> Listing:
    """List the files that other readers see, by path. A missing directory has none.

    Reject the directory of a table format: its log decides which files contain its rows.
    """

    def keep(name: str) -> bool:
        if name.endswith(".parquet") and name[0] not in "._":  # the usual name: a dataset may have a million files
            return True
        if name.endswith(_TABLE_FORMAT_ENDS):
            raise _table_format_error(location, name)
        return _is_visible(name)

    _reject_part_of_table(location)
    return location.store.walk(location.path, keep)


def _reject_part_of_table(location: Location) -> None:
    """Reject a partition or the data directory of a table format, whose log is in a directory above."""
    store, root = location.store, location.path
    while "=" in posixpath.basename(root):
        root = posixpath.dirname(root)
    for log in ("_delta_log", ".hoodie"):
        if root != location.path and store.is_directory(f"{root}/{log}"):
            raise _table_format_error(location, log, above=root)
    if posixpath.basename(root) == "data":  # of Iceberg
        metadata = f"{posixpath.dirname(root)}/metadata"
        for file in store.walk(metadata, lambda name: name.endswith(_TABLE_FORMAT_ENDS)):
            raise _table_format_error(location, file.path, above=metadata)


def data_files(location: Location) -> Listing:
    """List the Parquet files of a dataset by path. A missing directory is an empty dataset.

    A file without a known extension is a data file if it begins like one, because other readers read every visible
    file.
    """
    files = visible_files(location)
    known = [path.endswith(_SUFFIXES) or _is_parquet(path) for path in files.paths]
    if all(known):
        return files
    unknown = [file for file, is_known in zip(files, known, strict=True) if not is_known and file.size]
    with ThreadPoolExecutor(1 if location.store.is_local else _READERS, "inlay-magic") as pool:
        checked = pool.map(lambda file: _begins_like_parquet(location.store, location.full(file.path), file), unknown)
        data = {file.path for file, is_data in zip(unknown, checked, strict=True) if is_data}
    return files.filter([is_known or path in data for path, is_known in zip(files.paths, known, strict=True)])


# One operation lists the files of a dataset several times. A store keeps megabytes, so its key is weak.
_checked: WeakKeyDictionary[Store, dict[FileStat, bool]] = WeakKeyDictionary()
_MAX_CHECKED = 1 << 16  # files per store


def _begins_like_parquet(store: Store, path: str, file: FileStat) -> bool:
    known, version = _checked.setdefault(store, {}), file._replace(path=path)
    if (found := known.get(version)) is None:
        if len(known) >= _MAX_CHECKED:
            known.clear()
        found = known[version] = _read_magic(store, path)
    return found


def _read_magic(store: Store, path: str) -> bool:
    try:
        return store.read_range(path, 0, len(_MAGIC[0])) in _MAGIC
    except FileNotFoundError:
        return False  # The file was deleted after the listing.


def summary_files(location: Location) -> list[str]:
    """List the `_metadata` and `_common_metadata` files, which repeat the footers of data files."""

    def keep(name: str) -> bool:
        return name in _SUMMARIES or (_is_visible(name) and not _is_parquet(name))

    files = location.store.walk(location.path, keep)
    return [file.path for file in files if posixpath.basename(file.path) in _SUMMARIES]


def new_file_extension(paths: Iterable[str]) -> str:
    """Return the extension that all files share, or `.parquet`. polars rejects directories with several extensions."""
    ends = {path[path.find(".", path.rfind("/") + 1) :] for path in paths}  # few, also of a million paths
    found = {_EXTENSION.search(end)[0] for end in ends}  # type: ignore[index]  # The pattern matches any text.
    return found.pop() if len(found) == 1 else _SUFFIXES[0]


def _table_format_error(location: Location, name: str, above: str | None = None) -> InvalidArgumentError:
    table_format, tool = next(known for end, known in _TABLE_FORMATS.items() if name.endswith(end))
    return InvalidArgumentError(
        f"{location.uri!r} is {'' if above is None else 'part of '}a table of {table_format}, not a plain Parquet"
        f" dataset: {'it' if above is None else repr(above)} contains {name!r}.",
        hint=f"Use {tool} for this table.",
    )


def _is_visible(name: str) -> bool:
    # "_day=1" is a partition of the column "_day". "_SUCCESS" and "_delta_log" belong to other programs.
    return not name.startswith((".", "_")) or (name[0] == "_" and "=" in name)


def _is_parquet(path: str) -> bool:
    return path.lower().endswith(_SUFFIXES)


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
    values: dict[str, str | None] = {}
    for name, segment in hive_segments(file_path).items():
        if partition_columns is None or name in partition_columns:
            value = segment.partition("=")[2]
            values[name] = None if value == NULL_PARTITION else unquote(value)
    return values


def hive_segments(file_path: str) -> dict[str, str]:
    """Return the `column=value` directories of a path by column, as they are spelled in the path."""
    # A backslash separates directories only in a Windows path. Otherwise it is an ordinary character of a value.
    directories = file_path.split("/" if "/" in file_path else "\\")[:-1]
    return {unquote(d.partition("=")[0]): d for d in directories if d.find("=") > 0}


def hive_segment(column: str, value: object) -> str:
    """Return the directory name of a partition value, such as `day=2025-01-01`."""
    name = re.sub(r"^\.", "%2E", _quote(column))  # A leading dot would hide the directory.
    return f"{name}={NULL_PARTITION if value is None else _quote(str(value))}"


def new_hive_segment(column: str, value: object) -> str:
    """Return the name of a directory to create. Reject values that a reader would read as another value."""
    if value in _NO_DIRECTORY:
        raise InvalidArgumentError(
            f"The partition column {column!r} contains {value!r}, {_NO_DIRECTORY[value]}.",
            hint="Replace the value, or do not partition by this column.",
        )
    return hive_segment(column, value)


def _quote(text: str) -> str:
    """Encode special ASCII characters only: Spark decodes the two bytes of an encoded "é" as two characters."""
    encoded = "".join(c if c > "\x7f" and is_visible(c) else quote(c, safe=_READABLE_IN_PATHS) for c in text)
    return encoded.replace("--", "-%2D")  # "--" begins a comment in SQL.


def infer_partition_type(values: Iterable[str | None]) -> pa.DataType:
    """Infer the type of path values: integer or ISO date if every value is spelled in the one standard way, or text."""
    known = {value for value in values if value is not None}
    for pattern, type_ in ((r"0|-?[1-9][0-9]{0,17}", pa.int64()), (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", pa.date32())):
        if known and all(re.fullmatch(pattern, v) and typed_partition_value(v, type_) is not None for v in known):
            return type_
    return pa.string()


def integer_spellings(values: Iterable[str]) -> dict[int, list[str]]:
    """Group values that are all whole numbers by number, or return nothing if one value is another text."""
    spellings: dict[int, list[str]] = {}
    for value in values:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            return {}
        spellings.setdefault(int(value), []).append(value)
    return spellings


def typed_partition_value(text: str | None, type_: pa.DataType) -> pa.Scalar | None:
    """Convert a path value to the column's type. Returns None if the type cannot represent it."""
    if text is None:
        return pa.nulls(1, type_)[0]
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    try:
        if pa.types.is_time(type_):  # Arrow parses a time only as part of a timestamp.
            return from_texts([f"1970-01-01 {text}"])[0].cast(pa.timestamp(type_.unit)).cast(type_)
        return from_texts([text])[0].cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
