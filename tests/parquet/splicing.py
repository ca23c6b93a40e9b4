"""Helpers of the splice tests: Parquet files of five writers, and five readers."""

from __future__ import annotations

import datetime as dt
import decimal
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.parquet.raw import ELEMENT
from inlay.parquet.splice import ParquetBytes, Splicer
from inlay.parquet.thrift import LIST, Struct, decode_structs, encode
from inlay.pyarrow_features import WRITES_BLOOM_FILTERS

ROWS, GROUP = 6144, 2048  # DuckDB's row groups are multiples of 2048

needs_bloom_filters = pytest.mark.skipif(not WRITES_BLOOM_FILTERS, reason="pyarrow before 24 writes no Bloom filters")


def supported(options: dict[str, Any]) -> dict[str, Any]:
    """Drop the option of pyarrow's writer that the installed pyarrow lacks."""
    return {name: o for name, o in options.items() if WRITES_BLOOM_FILTERS or name != "bloom_filter_options"}


def sample(first: int = 0, rows: int = ROWS) -> pa.Table:
    """Create rows with flat, nested and nullable columns. `id` identifies a row in every test."""
    ids = range(first, first + rows)
    start = dt.datetime(2024, 2, 28, tzinfo=dt.UTC)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "small": pa.array([None if i % 11 == 0 else i % 100 for i in ids], pa.int32()),
            "word": [f"word {i % 7}" for i in ids],
            "text": [None if i % 13 == 0 else f"text number {i}" for i in ids],
            "at": pa.array([start + dt.timedelta(seconds=i) for i in ids], pa.timestamp("us", "UTC")),
            "price": pa.array([decimal.Decimal(i).scaleb(-2) for i in ids], pa.decimal128(10, 2)),
            "flag": [i % 3 == 0 for i in ids],
            "score": [i / 3 for i in ids],
            "tags": [None if i % 17 == 0 else [f"tag {j}" for j in range(i % 4)] for i in ids],
            "place": [{"x": i, "name": f"place {i % 5}"} for i in ids],
        }
    )


def write_pyarrow(table: pa.Table, path: Path, **options: Any) -> None:
    pq.write_table(table, path, row_group_size=GROUP, **supported(options))


def write_pyarrow_rich(table: pa.Table, path: Path) -> None:
    """Write a file with page index, bloom filters, checksums and metadata, which must survive a splice."""
    write_pyarrow(
        table.replace_schema_metadata({"owner": "somebody"}),
        path,
        data_page_version="2.0",
        write_page_index=True,
        write_page_checksum=True,
        compression="zstd",
        data_page_size=1024,
        write_batch_size=64,
        use_dictionary=["word"],
        bloom_filter_options={"text": {"ndv": 4000}, "word": {"ndv": 10}},
        sorting_columns=[pq.SortingColumn(0)],
    )


def write_duckdb(table: pa.Table, path: Path) -> None:
    with duckdb.connect() as connection:
        connection.from_arrow(table).write_parquet(str(path), row_group_size=GROUP)


def write_polars(table: pa.Table, path: Path) -> None:
    pl.DataFrame(table).write_parquet(path, row_group_size=GROUP)


def write_datafusion(table: pa.Table, path: Path, bloom_filters: str = "bloom_filter_on_write") -> None:
    context = datafusion.SessionContext()
    context.from_arrow(table, "t")
    rows = f"'format.max_row_group_size' {GROUP}, 'format.{bloom_filters}' true"
    context.sql(f"COPY (SELECT * FROM t ORDER BY id) TO '{path}' STORED AS PARQUET OPTIONS ({rows})").collect()


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "pyarrow": write_pyarrow,
    "pyarrow-rich": write_pyarrow_rich,
    "duckdb": write_duckdb,
    "polars": write_polars,
    "datafusion": write_datafusion,
}


def read_duckdb(path: Path) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.read_parquet(str(path)).to_arrow_table()


def read_datafusion(path: Path, where: str = "true") -> pa.Table:
    return ask_datafusion(path, f"SELECT * FROM t WHERE {where}")


def ask_datafusion(path: Path, sql: str) -> pa.Table:
    """Query a file with all index and bloom filter options of DataFusion."""
    config = datafusion.SessionConfig(
        {
            "datafusion.execution.target_partitions": "1",
            "datafusion.execution.parquet.enable_page_index": "true",
            "datafusion.execution.parquet.pushdown_filters": "true",
            "datafusion.execution.parquet.bloom_filter_on_read": "true",
        }
    )
    context = datafusion.SessionContext(config)
    context.register_parquet("t", str(path))
    return context.sql(sql).to_arrow_table()


READERS: dict[str, Callable[[Path], pa.Table]] = {
    "pyarrow": lambda path: pq.ParquetFile(path, page_checksum_verification=True).read(),
    "duckdb": read_duckdb,
    "polars": lambda path: pl.read_parquet(path).to_arrow(),
    "datafusion": read_datafusion,
}


def plain(value: Any) -> Any:
    """Normalize values that readers return differently: maps as lists of pairs, instants in UTC."""
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    if isinstance(value, dict):
        if value.keys() == {"key", "value"}:
            return plain((value["key"], value["value"]))
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return value


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted((plain(row) for row in table.to_pylist()), key=lambda row: row["id"])


def fresh_like(like: ParquetBytes, table: pa.Table, **options: Any) -> ParquetBytes:
    """Write rows with pyarrow and the settings of row group 0 of a file, as a rewriting kernel does."""
    settings = [s for s in like.chunk_settings(0) if s.path.split(".")[0] in table.column_names]
    schema = pq.read_schema(pa.BufferReader(like.read(0, like.input.size)))
    table = table.cast(pa.schema([schema.field(name) for name in table.column_names]))
    sink = pa.BufferOutputStream()
    written = {
        "compression": {s.path: s.codec for s in settings},
        "use_dictionary": [s.path for s in settings if s.dictionary],
        "write_page_index": any(s.offset_index for s in settings),
        "data_page_version": f"{settings[0].page_version}.0",
        "write_page_checksum": settings[0].page_checksums,
        "use_compliant_nested_type": False,
        "store_decimal_as_integer": any(s.path == "price" and s.physical_type == "INT64" for s in settings),
        "bloom_filter_options": {
            s.path: {"ndv": s.bloom_filter_ndv()}
            for s in settings
            if s.bloom_filter_bytes and s.physical_type != "BOOLEAN"
        },
    }
    pq.write_table(table, sink, **supported(written | options))
    return ParquetBytes(sink.getvalue(), "fresh")


def spliced(base: ParquetBytes, steps: Iterable[Callable[[Splicer], None]]) -> bytes:
    out = io.BytesIO()
    splicer = Splicer(out, base)
    for step in steps:
        step(splicer)
    splicer.finish()
    assert splicer.bytes_written == len(out.getvalue())
    return out.getvalue()


def copied(source: ParquetBytes, groups: Iterable[int] | None = None) -> list[Callable[[Splicer], None]]:
    chosen = range(source.num_row_groups) if groups is None else groups
    return [lambda splicer, at=at: splicer.copy(source, at) for at in chosen]


def refooted(data: bytes, change: Callable[[Struct], None]) -> bytes:
    """Change the footer of a file."""
    parsed = ParquetBytes(data)
    parsed.footer.put(2, LIST, decode_structs(parsed.footer.text(2), ELEMENT))
    change(parsed.footer)
    footer = encode(parsed.footer)
    return data[: parsed.end] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def chunk_pages(data: bytes) -> list[list[bytes]]:
    """Return the pages of each chunk, found with pyarrow and not with the code under test."""
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    return [
        [_pages(data, metadata.row_group(group).column(at)) for at in range(metadata.num_columns)]
        for group in range(metadata.num_row_groups)
    ]


def _pages(data: bytes, chunk: Any) -> bytes:
    start = min(at for at in (chunk.dictionary_page_offset, chunk.data_page_offset) if at)
    return data[start : start + chunk.total_compressed_size]


def changed(table: pa.Table, columns: Sequence[str] = ("word", "score", "place")) -> pa.Table:
    """Change the values in some columns."""
    backwards = table.take(pa.array(range(table.num_rows - 1, -1, -1)))
    for name in columns:
        at = table.column_names.index(name)
        table = table.set_column(at, table.schema.field(name), backwards.column(name))
    return table


def schemas_match(base: ParquetBytes, other: ParquetBytes) -> bool:
    return base.schema.difference(other.schema) is None


def table_bytes(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **supported(options))
    return sink.getvalue()


REPLACED = ("word", "score", "place")


def _copy_all(base: ParquetBytes, table: pa.Table) -> tuple[bytes, pa.Table]:
    return spliced(base, copied(base)), table


def _replace_row_group(base: ParquetBytes, table: pa.Table) -> tuple[bytes, pa.Table]:
    middle = changed(table.slice(GROUP, GROUP)).slice(0, GROUP - 100)
    fresh = fresh_like(base, middle)
    steps = [*copied(base, [0]), lambda s: s.replace(base, 1, fresh), *copied(base, [2])]
    return spliced(base, steps), pa.concat_tables([table.slice(0, GROUP), middle, table.slice(2 * GROUP)])


def _replace_columns(base: ParquetBytes, table: pa.Table) -> tuple[bytes, pa.Table]:
    first = changed(table.slice(0, GROUP), REPLACED)
    fresh = fresh_like(base, first.select(REPLACED))
    steps = [lambda s: s.replace(base, 0, fresh, REPLACED), *copied(base, [1, 2])]
    return spliced(base, steps), pa.concat_tables([first, table.slice(GROUP)])


def _append_other_file(base: ParquetBytes, table: pa.Table) -> tuple[bytes, pa.Table]:
    more = sample(ROWS, 500).cast(table.schema)
    fresh = fresh_like(base, more)
    return spliced(base, copied(base) + copied(fresh)), pa.concat_tables([table, more])


OPERATIONS: dict[str, Callable[[ParquetBytes, pa.Table], tuple[bytes, pa.Table]]] = {
    "copy": _copy_all,
    "replace": _replace_row_group,
    "replace_columns": _replace_columns,
    "append": _append_other_file,
}


def splice_file(original: Path, operation: str, target: Path) -> pa.Table:
    """Splice a file into `target`, and return the rows that it must contain."""
    with original.open("rb") as file:
        base = ParquetBytes(file)
        assert base.num_row_groups == 3
        assert sum(map(base.row_group_rows, range(base.num_row_groups))) == ROWS
        assert [base.row_group_rows(i) for i in range(3)] == [GROUP] * 3
        data, expected = OPERATIONS[operation](base, pq.ParquetFile(original).read())
    target.write_bytes(data)
    return expected
