"""Writer settings: matching existing files, statistics and NaN, and streaming."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay import pyarrow_features
from inlay.errors import EngineNotInstalledError, InvalidArgumentError
from inlay.parquet.raw import ChunkSettings, ParquetBytes
from inlay.parquet.writer import (
    DEFAULT_COMPRESSION,
    DEFAULT_ROW_GROUP_SIZE,
    StreamingParquetWriter,
    WriterSettings,
    check_write_options,
    encode_row_group,
)
from tests import lake
from tests.arrow_types import ALL_TYPES, TYPES, array_of
from tests.parquet.splicing import READERS, needs_bloom_filters, rows_of, sample, supported, write_datafusion

ROWS = 4000
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "word": [f"word {i % 7}" for i in range(ROWS)],
        "text": [f"text number {i}" for i in range(ROWS)],
        "value": [i / 3 for i in range(ROWS)],
        "flag": [i % 2 == 0 for i in range(ROWS)],
    }
)


def chunks(data: Path | pa.Buffer) -> dict[str, ChunkSettings]:
    if isinstance(data, Path):
        data = pa.py_buffer(data.read_bytes())
    return {chunk.path: chunk for chunk in ParquetBytes(data).chunk_settings(0)}


def like(path: Path, row_group_size: int = ROWS) -> WriterSettings:
    with pq.ParquetFile(path) as file:
        return WriterSettings.like(ParquetBytes(path.read_bytes()), 0, file.schema, row_group_size)


def written_like(path: Path, table: pa.Table | None = None) -> pa.Buffer:
    return encode_row_group(TABLE if table is None else table, like(path))


# ------------------------------------------------------------------------------------------ matching existing files
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_codec_is_kept(tmp_path: Path, codec: str) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", compression=codec)
    assert {chunk.codec for chunk in chunks(written_like(tmp_path / "a.parquet")).values()} == {codec}


def test_codecs_may_differ_by_column(tmp_path: Path) -> None:
    codecs = {"id": "zstd", "word": "none", "text": "gzip", "value": "snappy", "flag": "lz4"}
    pq.write_table(TABLE, tmp_path / "a.parquet", compression=codecs)
    assert {path: chunk.codec for path, chunk in chunks(written_like(tmp_path / "a.parquet")).items()} == codecs


@pytest.mark.parametrize(
    "options",
    [
        {"data_page_version": "1.0"},
        {"data_page_version": "2.0"},
        {"write_page_index": True},
        {"write_page_index": False},
        {"write_page_checksum": True},
        {"write_page_checksum": False},
        {"write_statistics": False},
        {"write_statistics": ["id"]},
        {"use_dictionary": False},
        {"use_dictionary": ["word"]},
    ],
    ids=str,
)
def test_pages_indexes_checksums_and_statistics_are_kept(tmp_path: Path, options: dict[str, Any]) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", **options)
    before, after = chunks(tmp_path / "a.parquet"), chunks(written_like(tmp_path / "a.parquet"))
    for path, chunk in before.items():
        again = after[path]
        assert (again.page_version, again.page_checksums) == (chunk.page_version, chunk.page_checksums)
        assert (again.offset_index, again.statistics) == (chunk.offset_index, chunk.statistics)
    if "use_dictionary" in options:
        assert {path for path, chunk in after.items() if chunk.dictionary} == set(options["use_dictionary"] or [])


def test_dictionaries_of_mostly_distinct_values_are_dropped(tmp_path: Path) -> None:
    """By default pyarrow writes a dictionary for every column, which is useless for mostly distinct values."""
    pq.write_table(TABLE, tmp_path / "a.parquet")
    before, after = chunks(tmp_path / "a.parquet"), chunks(written_like(tmp_path / "a.parquet"))
    assert before["text"].dictionary
    assert before["text"].distinct_share == 1.0
    assert {path for path, chunk in after.items() if chunk.dictionary} == {"word"}


@pytest.mark.parametrize(
    ("column", "encoding"),
    [
        ("id", "DELTA_BINARY_PACKED"),
        ("text", "DELTA_LENGTH_BYTE_ARRAY"),
        ("text", "DELTA_BYTE_ARRAY"),
        ("value", "BYTE_STREAM_SPLIT"),
        ("id", "PLAIN"),
    ],
)
def test_chosen_encodings_are_kept(tmp_path: Path, column: str, encoding: str) -> None:
    options = {"use_dictionary": False, "column_encoding": {column: encoding}}
    pq.write_table(TABLE, tmp_path / "a.parquet", **options)
    assert chunks(tmp_path / "a.parquet")[column].encoding == encoding
    assert chunks(written_like(tmp_path / "a.parquet"))[column].encoding == encoding


@needs_bloom_filters
def test_bloom_filters_are_kept_and_find_their_values(tmp_path: Path) -> None:
    options = {"bloom_filter_options": {"text": {"ndv": ROWS}, "id": {"ndv": 100}}}
    pq.write_table(TABLE, tmp_path / "a.parquet", **options)
    before, after = chunks(tmp_path / "a.parquet"), chunks(written_like(tmp_path / "a.parquet"))
    assert {path: chunk.bloom_filter_bytes for path, chunk in after.items()} == {
        path: chunk.bloom_filter_bytes for path, chunk in before.items()
    }
    assert before["text"].bloom_filter_bytes > before["id"].bloom_filter_bytes > 0
    assert before["word"].bloom_filter_bytes == 0
    (tmp_path / "b.parquet").write_bytes(written_like(tmp_path / "a.parquet"))
    for wanted, count in (("text number 7", 1), ("no such text", 0)):
        query = f"SELECT count(*) FROM read_parquet('{tmp_path}/b.parquet') WHERE text = '{wanted}'"
        assert duckdb.sql(query).fetchall() == [(count,)]


def test_pyarrow_without_bloom_filters_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyarrow_features, "WRITES_BLOOM_FILTERS", False)
    path = tmp_path / "a.parquet"
    write_datafusion(sample().select(["id", "word", "text"]), path, bloom_filters="bloom_filter_enabled::text")
    before = path.read_bytes()
    refused = pytest.raises(
        EngineNotInstalledError, match=r"pyarrow \S+ cannot write the Bloom filter of column 'text'"
    )
    with refused as caught:
        inlay.merge(pa.table({"id": [1], "word": ["word 1"], "text": ["new"]}), tmp_path, "update", "id")
    assert "pyarrow 24" in str(caught.value.hint)
    assert path.read_bytes() == before
    updates = pa.table({"id": [1], "word": ["new"], "text": ["text number 1"]})
    assert inlay.merge(updates, tmp_path, "update", "id").updated == 1  # the column chunks of `text` are copied
    assert pq.read_table(path).slice(1, 1).to_pylist() == updates.to_pylist()


@pytest.mark.parametrize("integers", [True, False])
def test_physical_type_of_decimals_is_kept(tmp_path: Path, integers: bool) -> None:
    table = pa.table({"d": pa.array([1, 2], pa.decimal128(9, 2))})
    pq.write_table(table, tmp_path / "a.parquet", store_decimal_as_integer=integers)
    after = chunks(written_like(tmp_path / "a.parquet", table))
    assert after["d"].physical_type == ("INT32" if integers else "FIXED_LEN_BYTE_ARRAY")


@pytest.mark.parametrize("old", [True, False])
def test_int96_stays_int96(tmp_path: Path, old: bool) -> None:
    table = pa.table({"t": pa.array([1, 2], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=old)
    assert chunks(written_like(tmp_path / "a.parquet", table))["t"].physical_type == ("INT96" if old else "INT64")


@pytest.mark.parametrize("compliant", [True, False])
def test_naming_of_list_elements_is_kept(tmp_path: Path, compliant: bool) -> None:
    table = pa.table({"l": pa.array([[1], None, [2, 3]]), "s": pa.array([{"x": [1]}] * 3)})
    pq.write_table(table, tmp_path / "a.parquet", use_compliant_nested_type=compliant, compression="zstd")
    before, after = chunks(tmp_path / "a.parquet"), chunks(written_like(tmp_path / "a.parquet", table))
    assert list(after) == list(before)
    assert ("l.list.element" in after) is compliant
    assert {chunk.codec for chunk in after.values()} == {"zstd"}


@pytest.mark.parametrize("writer", [pytest.param("duckdb", marks=needs_bloom_filters), "polars"])
def test_files_of_other_writers_can_be_imitated(tmp_path: Path, writer: str) -> None:
    path = tmp_path / "a.parquet"
    if writer == "duckdb":
        duckdb.from_arrow(TABLE).write_parquet(str(path), compression="zstd")
    else:
        pl.DataFrame(TABLE).write_parquet(path, compression="zstd")
    with pq.ParquetFile(path) as file:
        table = file.read()
    after = chunks(written_like(path, table))
    assert {chunk.codec for chunk in after.values()} == {"zstd"}
    assert after["word"].dictionary
    assert not after["text"].dictionary


def test_new_columns_use_the_settings_of_the_first_column(tmp_path: Path) -> None:
    options = {"use_dictionary": False, "write_statistics": ["id"], "bloom_filter_options": {"text": {"ndv": 10}}}
    pq.write_table(TABLE, tmp_path / "a.parquet", compression="zstd", **supported(options))
    table = TABLE.select(["id", "flag"]).append_column("new", pa.array([f"n{i % 3}" for i in range(ROWS)]))
    after = chunks(written_like(tmp_path / "a.parquet", table))
    assert list(after) == ["id", "flag", "new"]
    assert after["new"].codec == "zstd"
    assert after["new"].statistics
    assert after["new"].dictionary
    assert not after["flag"].statistics


def test_options_of_the_caller_take_precedence(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", compression="zstd")
    settings = like(tmp_path / "a.parquet", 123)
    assert settings.override(None, None) == settings
    chosen = settings.override("gzip", 7)
    assert chosen.row_group_size == 7
    assert {chunk.codec for chunk in chunks(encode_row_group(TABLE, chosen)).values()} == {"gzip"}
    assert settings.row_group_size == 123


def test_defaults_of_a_new_dataset(tmp_path: Path) -> None:
    assert (DEFAULT_COMPRESSION, DEFAULT_ROW_GROUP_SIZE) == ("snappy", 500_000)
    settings = WriterSettings()
    assert settings.row_group_size == 500_000
    assert {chunk.codec for chunk in chunks(encode_row_group(TABLE, settings)).values()} == {"snappy"}
    inlay.merge(TABLE, str(tmp_path / "d"), "insert", ["id"])
    (name,) = lake.names(tmp_path / "d")
    assert {chunk.codec for chunk in chunks(tmp_path / "d" / name).values()} == {"snappy"}


def _managed(repetitive: list[str]) -> WriterSettings:
    settings = WriterSettings.managed()
    return replace(settings, options=settings.options | {"use_dictionary": repetitive or False})


@pytest.mark.parametrize("repetitive", [[], ["code", "word"]], ids=["no dictionary", "some"])
def test_managed_datasets_delta_encode_integers_and_merges_keep_it(tmp_path: Path, repetitive: list[str]) -> None:
    table = TABLE.append_column("code", pa.array([i % 3 for i in range(ROWS)], pa.int32()))
    table = table.append_column("at", TABLE["id"].cast(pa.timestamp("us")))
    packed = {"id", "code", "at"} - set(repetitive)
    data = encode_row_group(table, _managed(repetitive))
    assert {name for name, chunk in chunks(data).items() if chunk.encoding == "DELTA_BINARY_PACKED"} == packed
    assert {name for name, chunk in chunks(data).items() if chunk.dictionary} == set(repetitive)
    (tmp_path / "a.parquet").write_bytes(data)
    again = chunks(written_like(tmp_path / "a.parquet", table))
    assert {name for name, chunk in again.items() if chunk.encoding == "DELTA_BINARY_PACKED"} == packed
    for name, read in READERS.items():
        assert rows_of(read(tmp_path / "a.parquet")) == rows_of(table), name


@pytest.mark.parametrize("name", TYPES)
def test_managed_settings_support_every_type(name: str) -> None:
    table = pa.table({"a": array_of(*TYPES[name])})
    for repetitive in ([], ["a"]):
        read = pq.read_table(pa.BufferReader(encode_row_group(table, _managed(repetitive))))
        assert read.schema.equals(table.schema)
        assert repr(read.to_pylist()) == repr(table.to_pylist())  # NaN equals nothing


@pytest.mark.parametrize(
    ("compression", "row_group_size", "max_rows", "match"),
    [
        ("lzo", None, 1, "compression 'lzo'; known: none, snappy"),
        ("", None, 1, "compression"),
        (None, 0, 1, "row_group_size"),
        (None, None, 0, "max_rows_per_file"),
        ("zstd", -1, 1, "row_group_size must be at least 1, not -1"),
    ],
)
def test_invalid_write_options_are_rejected(
    compression: str | None, row_group_size: int | None, max_rows: int, match: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        check_write_options(compression, row_group_size, max_rows)


@pytest.mark.parametrize("compression", [None, "ZSTD", "snappy", "none"])
def test_valid_write_options_are_accepted(tmp_path: Path, compression: str | None) -> None:
    check_write_options(compression, 1, 1)
    settings = WriterSettings().override(compression, None)
    wanted = (compression or "snappy").lower()
    assert {chunk.codec for chunk in chunks(encode_row_group(TABLE, settings)).values()} == {wanted}


# ------------------------------------------------------------------------------------------------------------- NaN
FLOATS: dict[str, tuple[pa.DataType, list[Any], bool]] = {
    "no NaN": (pa.float64(), [1.5, None, 2.5], True),
    "NaN": (pa.float64(), [1.5, math.nan], False),
    "only NaN": (pa.float32(), [math.nan], False),
    "NULL only": (pa.float64(), [None, None], True),
    "float16": (pa.float16(), [1.5], False),
    "dictionary": (pa.dictionary(pa.int8(), pa.float64()), [1.5], False),
    "list": (pa.list_(pa.float64()), [[math.nan]], False),
    "struct": (pa.struct([("x", pa.float32()), ("y", pa.list_(pa.float64()))]), [{"x": 1.0, "y": [1.0]}], False),
    "map": (pa.map_(pa.string(), pa.float64()), [[("a", 1.0)]], False),
    "list of numbers": (pa.list_(pa.int64()), [[1]], True),
}


@pytest.mark.parametrize("case", FLOATS)
def test_chunks_that_may_contain_nan_have_no_statistics(case: str) -> None:
    kind, values, bounded = FLOATS[case]
    table = pa.table({"f": pa.array(values, kind), "i": range(len(values))})
    data = encode_row_group(table, WriterSettings())
    metadata = pq.read_metadata(pa.BufferReader(data))
    group = metadata.row_group(0)
    assert group.column(group.num_columns - 1).is_stats_set
    assert [group.column(i).is_stats_set for i in range(group.num_columns - 1)] == [bounded] * (group.num_columns - 1)
    back = pq.read_table(pa.BufferReader(data))
    assert lake.same_rows(lake.rows_of(back), lake.rows_of(table))


def test_only_columns_with_nan_lose_their_statistics() -> None:
    table = pa.table({"nan": [math.nan], "ok": [1.0], "a": [1]})
    for stated, kept in ((True, ["ok", "a"]), (["nan", "a"], ["a"]), (False, [])):
        settings = WriterSettings({"compression": "none", "write_statistics": stated})
        group = pq.read_metadata(pa.BufferReader(encode_row_group(table, settings))).row_group(0)
        assert [group.column(i).path_in_schema for i in range(3) if group.column(i).is_stats_set] == kept


def test_readers_that_prune_by_statistics_find_nan(tmp_path: Path) -> None:
    import datafusion

    path = str(tmp_path / "d")
    inlay.merge(pa.table({"id": [1, 2], "v": [math.nan, 3.25]}), path, "insert", ["id"])
    context = datafusion.SessionContext()
    context.register_parquet("t", path)
    found = context.sql("SELECT id FROM t WHERE v <> 3.25").to_pydict()
    assert found == {"id": [1]}


# ------------------------------------------------------------------------------------------------------- streaming
def streamed(schema: pa.Schema, tables: list[pa.Table], size: int, **options: Any) -> bytes:
    sink = io.BytesIO()
    settings = WriterSettings({"compression": "zstd"} | options, row_group_size=size)
    with StreamingParquetWriter(sink, schema, settings) as writer:
        for table in tables:
            writer.write_table(table)
    assert writer.rows == sum(table.num_rows for table in tables)
    return sink.getvalue()


def row_groups(data: bytes) -> list[int]:
    metadata = pq.read_metadata(pa.BufferReader(data))
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def test_each_table_becomes_row_groups() -> None:
    data = streamed(TABLE.schema, [TABLE.slice(0, 1000), TABLE.slice(1000, 0), TABLE.slice(1000)], 700)
    assert row_groups(data) == [700, 300, 700, 700, 700, 700, 200]
    assert pq.read_table(pa.BufferReader(data)).equals(TABLE)


def test_row_group_size_can_be_passed_with_a_table() -> None:
    sink = io.BytesIO()
    with StreamingParquetWriter(sink, TABLE.schema, WriterSettings()) as writer:
        writer.write_table(TABLE, row_group_size=ROWS)
        writer.write_table(TABLE, row_group_size=ROWS // 2)
    assert row_groups(sink.getvalue()) == [4000, 2000, 2000]


@pytest.mark.parametrize("name", ALL_TYPES)
def test_type_that_pyarrow_cannot_store_is_rejected_by_name(name: str) -> None:
    kind, values = ALL_TYPES[name]
    table = pa.table({"n": [*range(6)], "v": array_of(kind, [*values, None])})
    if name in TYPES:
        assert pq.read_table(pa.BufferReader(encode_row_group(table, WriterSettings()))).num_rows == 6
    else:
        with pytest.raises(EngineNotInstalledError, match=r"pyarrow \S+ cannot store the values of column 'v'"):
            encode_row_group(table, WriterSettings())


@pytest.mark.parametrize("name", TYPES)
def test_every_type_streams_and_keeps_its_schema(name: str) -> None:
    kind, values = TYPES[name]
    schema = pa.schema(
        [pa.field("v", kind, metadata={"unit": "m"}), pa.field("n", pa.int8(), nullable=False)], metadata={"k": "v"}
    )
    table = pa.table([array_of(kind, [*values, None]), pa.array(range(6), pa.int8())], schema=schema)
    data = streamed(schema, [table.slice(0, 4), table.slice(4)], 2)
    assert row_groups(data) == [2, 2, 2]
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        back = pa.concat_tables([file.read_row_group(i) for i in range(3)])
    plain = as_pyarrow_writes(table)
    assert back.schema.equals(plain.schema, check_metadata=True)
    assert lake.same_rows(lake.rows_of(back), lake.rows_of(table))


def as_pyarrow_writes(table: pa.Table) -> pa.Table:
    """Return the table as pyarrow's own writer stores it."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    with pq.ParquetFile(pa.BufferReader(sink.getvalue())) as file:
        return file.read_row_group(0)


@pytest.mark.parametrize("name", ["int64", "string", "dictionary", "list", "struct", "map", "uuid", "list_of_lists"])
def test_file_without_rows_keeps_its_schema(tmp_path: Path, name: str) -> None:
    schema = pa.schema([pa.field("v", TYPES[name][0]), pa.field("n", pa.int8(), nullable=False)], metadata={"k": "v"})
    for tables in ([], [schema.empty_table()]):
        data = streamed(schema, tables, 10)
        assert row_groups(data) == []
        back = pq.read_table(pa.BufferReader(data))
        assert back.schema.equals(as_pyarrow_writes(schema.empty_table()).schema, check_metadata=True)
        assert pl.read_parquet(io.BytesIO(data)).height == 0
        (tmp_path / "a.parquet").write_bytes(data)
        assert duckdb.sql(f"SELECT count(*) FROM read_parquet('{tmp_path}/a.parquet')").fetchall() == [(0,)]


def test_failed_stream_is_not_finished() -> None:
    sink = io.BytesIO()
    writer = StreamingParquetWriter(sink, TABLE.schema, WriterSettings())
    writer.write_table(TABLE.slice(0, 10), 5)
    writer.__exit__(RuntimeError, RuntimeError("stop"), None)
    assert len(sink.getvalue()) > 100
    assert not sink.getvalue().endswith(b"PAR1")


def test_each_row_group_gets_its_own_settings() -> None:
    """Only the row group with NaN has no statistics."""
    schema = pa.schema([("v", pa.float64())])
    tables = [pa.table({"v": [1.5, 2.5]}), pa.table({"v": [math.nan, 1.0]})]
    metadata = pq.read_metadata(pa.BufferReader(streamed(schema, tables, 2)))
    assert [metadata.row_group(i).column(0).is_stats_set for i in range(2)] == [True, False]


def test_other_readers_read_streams(tmp_path: Path) -> None:
    table = TABLE.append_column("l", pa.array([[i, None] for i in range(ROWS)]))
    path = tmp_path / "a.parquet"
    path.write_bytes(streamed(table.schema, [table], 1500, write_page_index=True, data_page_version="2.0"))
    assert duckdb.sql(f"SELECT * FROM read_parquet('{path}')").to_arrow_table().equals(table)
    assert pl.read_parquet(path).equals(pl.DataFrame(table))


def test_extension_types_are_written_as_their_storage() -> None:
    kind = pa.fixed_shape_tensor(pa.float64(), [2])
    values = pa.ExtensionArray.from_storage(kind, pa.array([[1.0, math.nan], [2.0, 3.0]], kind.storage_type))
    table = pa.table({"id": [1, 2], "tensor": values})
    like = WriterSettings(
        {"compression": {"id": "snappy", "tensor.list.element": "zstd"}}, known=("id", "tensor.list.element")
    )
    written = pq.read_metadata(pa.BufferReader(encode_row_group(table, like))).row_group(0)
    assert [written.column(at).compression for at in range(2)] == ["SNAPPY", "ZSTD"]
    assert [written.column(at).is_stats_set for at in range(2)] == [True, False]  # no bounds where NaN is


def test_statistics_describe_only_the_used_values_of_a_dictionary() -> None:
    words = pa.chunked_array([pa.array(["a", "b", None, "c"]).dictionary_encode().slice(0, 3)])
    chunk = (
        pq.read_metadata(io.BytesIO(encode_row_group(pa.table({"w": words}), WriterSettings()))).row_group(0).column(0)
    )
    assert (chunk.statistics.min, chunk.statistics.max, chunk.statistics.null_count) == ("a", "b", 1)
