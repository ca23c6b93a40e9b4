"""Small datasets on disk: write files, read plain rows, and record the state of files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests import oracle

NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
DAY = 86_400_000_000_000


def plain(scalar: pa.Scalar) -> Any:
    """Convert a scalar to a Python value without loss.

    Times become nanoseconds, structs become dicts, and maps become lists of pairs.
    """
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        return plain(scalar.value)
    if pa.types.is_date32(kind):
        return scalar.value * DAY
    if pa.types.is_date64(kind):
        return scalar.value * NANOS["ms"]
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind):
        return scalar.value * NANOS[kind.unit]
    if pa.types.is_nested(kind):
        return _plain_nested(scalar, kind)
    return scalar.as_py()


def _plain_nested(scalar: pa.Scalar, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {kind.field(i).name: plain(scalar[i]) for i in range(kind.num_fields)}
    return [plain(item) for item in scalar.values]


def rows_of(table: pa.Table | pa.RecordBatch) -> list[oracle.Row]:
    columns = [[plain(value) for value in column] for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def exact_rows(rows: list[oracle.Row]) -> list[Any]:
    return [oracle.exact_row(row) for row in rows]


def same_rows(left: list[oracle.Row], right: list[oracle.Row], *, ordered: bool = True) -> bool:
    a, b = exact_rows(left), exact_rows(right)
    return a == b if ordered else sorted(a, key=repr) == sorted(b, key=repr)


def read_file(path: str | Path) -> pa.Table:
    """Read one file without the partition columns of its path.

    This reads one row group at a time, because pyarrow cannot read a list of dictionaries across row groups.
    """
    with pq.ParquetFile(path) as file:
        groups = [file.read_row_group(i) for i in range(file.num_row_groups)]
        return pa.concat_tables(groups) if groups else file.read()


def footer(path: str | Path) -> pq.FileMetaData:
    return pq.read_metadata(path)


def write(root: Path, files: Mapping[str, pa.Table], **options: Any) -> str:
    """Write {relative path: table} to `root` with pyarrow and return the dataset's path."""
    for name, table in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **options)
    return str(root)


def names(root: str | Path) -> list[str]:
    """List the data files as relative paths."""
    return sorted(path.relative_to(root).as_posix() for path in Path(root).rglob("*.parquet"))


def new_names(root: str | Path, before: Mapping[str, Any]) -> list[str]:
    return [name for name in names(root) if name not in before]


def contents(root: str | Path) -> dict[str, list[oracle.Row]]:
    return {name: rows_of(read_file(Path(root) / name)) for name in names(root)}


def all_rows(root: str | Path) -> list[oracle.Row]:
    return [row for rows in contents(root).values() for row in rows]


def photograph(root: str | Path) -> dict[str, tuple[bytes, int, int]]:
    """Return the bytes, mtime and inode of every file and directory below `root`."""
    states: dict[str, tuple[bytes, int, int]] = {}
    for folder, _, files in os.walk(root):
        states[os.path.relpath(folder, root) + "/"] = (b"", 0, 0)
        for file in files:
            path = os.path.join(folder, file)
            info = os.stat(path)
            states[os.path.relpath(path, root)] = (Path(path).read_bytes(), info.st_mtime_ns, info.st_ino)
    return states


def chunk_range(path: str | Path, row_group: int, column: int) -> slice:
    """Return the byte range of the encoded pages of one column chunk."""
    chunk = footer(path).row_group(row_group).column(column)
    start = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = min(start, chunk.dictionary_page_offset)
    return slice(start, start + chunk.total_compressed_size)


def chunk_bytes(path: str | Path, row_group: int, column: int) -> bytes:
    return Path(path).read_bytes()[chunk_range(path, row_group, column)]


def spoil(path: Path, *row_groups: int) -> None:
    """Overwrite the pages of some row groups (all by default) and keep the footer."""
    data = bytearray(path.read_bytes())
    meta = footer(path)
    for group in row_groups or range(meta.num_row_groups):
        for column in range(meta.num_columns):
            pages = chunk_range(path, group, column)
            data[pages] = b"\xff" * (pages.stop - pages.start)
    path.write_bytes(data)


def id_values(rows: list[oracle.Row]) -> list[tuple[Any, Any]]:
    return [(row["id"], row["v"]) for row in rows]


def table(ids: Any, values: Any = None, **more: Any) -> pa.Table:
    """Build a table of int64 `id` and string `v` (f"v{id}" by default)."""
    ids = list(ids)
    values = [f"v{i}" for i in ids] if values is None else values
    columns = {"id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.string())}
    return pa.table(columns | more)
