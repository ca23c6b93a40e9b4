"""Parquet uploads: rewritten with our settings, every type and value as it was."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from inlay.errors import InvalidArgumentError, UnreadableUploadError
from tests.arrow_types import TYPES, array_of
from tests.pipeline_data import parquet_bytes


def test_every_type_and_value_is_kept(converter: Any) -> None:
    arrays = {name: array_of(type_, [*values, None]) for name, (type_, values) in TYPES.items()}
    content = parquet_bytes(pa.table(arrays), row_group_size=2)
    before = pq.read_table(pa.BufferReader(content))
    conversion = converter.convert(content, "parquet", split_bytes=1_000)
    after = converter.table(conversion)
    nested = {"list_of_dictionaries": pa.list_(pa.field("element", pa.string()))}
    types = [f.type.value_type if pa.types.is_dictionary(f.type) else nested.get(f.name, f.type) for f in before.schema]
    plain = pa.schema([field.with_type(type_) for field, type_ in zip(before.schema, types, strict=True)])
    assert conversion.schema == plain == after.schema
    assert after.to_pydict().__repr__() == before.to_pydict().__repr__()


def test_dictionary_types_are_decoded(converter: Any) -> None:
    """Five batches of a hundred categories each, all with indices of 8 bits: together they have no room in one."""
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([("c", kind), ("l", pa.list_(kind)), ("s", pa.struct([("x", kind)]))])
    words = [[f"{batch}-{n}" for n in range(100)] for batch in range(5)]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema) as writer:
        for some in words:
            columns = {"c": some, "l": [[word] for word in some], "s": [{"x": word} for word in some]}
            writer.write_table(pa.table({n: array_of(schema.field(n).type, v) for n, v in columns.items()}, schema))
    conversion = converter.convert(sink.getvalue().to_pybytes(), "parquet")
    assert str(conversion.schema.field("l").type) == "list<element: string>"
    found = converter.table(conversion).to_pydict()
    flat = [word for some in words for word in some]
    assert (found["c"], found["l"], found["s"]) == (flat, [[word] for word in flat], [{"x": word} for word in flat])


def test_row_groups_are_bounded_by_decoded_memory(converter: Any, tmp_path: Path) -> None:
    value = "x" * 20_000  # one entry in a dictionary: 80 MB are a few bytes in the file
    content = parquet_bytes(pa.table({"a": [value] * 4_000}))
    assert len(content) < 10_000
    conversion = converter.convert(content, "parquet")
    metadata = pq.read_metadata(tmp_path / conversion.files[0].path)
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert sum(rows) == 4_000
    assert max(rows) * len(value) <= 33 << 20


def test_rows_are_rewritten_with_the_settings_of_inlay(converter: Any, tmp_path: Path) -> None:
    table = pa.table({"id": range(1_000), "word": ["a", "b"] * 500})
    conversion = converter.convert(parquet_bytes(table, row_group_size=10), "parquet", split_bytes=2_000)
    assert converter.table(conversion).equals(table)
    metadata = pq.read_metadata(tmp_path / conversion.files[0].path)
    assert metadata.num_row_groups == 1
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_overrides_are_rejected_for_parquet(converter: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        converter.convert(parquet_bytes(pa.table({"a": [1]})), "parquet", overrides={"a": pa.int8()})
    assert str(caught.value) == "altering parquet schema is currently unsupported"


def test_a_parquet_file_without_rows_becomes_a_dataset(converter: Any) -> None:
    table = pa.schema([("a", pa.decimal128(5, 2))]).empty_table()
    conversion = converter.convert(parquet_bytes(table), "parquet")
    assert (conversion.rows, conversion.schema) == (0, table.schema)
    assert converter.table(conversion).schema == table.schema


def test_damaged_files_are_rejected(converter: Any) -> None:
    content = parquet_bytes(pa.table({"a": range(1_000)}))
    for damaged in (content[:-7], b"PAR1", b"a,b\n1,2\n", content[:100] + b"\0" * 100 + content[200:]):
        with pytest.raises(UnreadableUploadError):
            converter.convert(damaged, "parquet")
    assert converter.everything() == []


def test_compressed_files(converter: Any) -> None:
    table = pa.table({"a": range(1_000)})
    assert converter.table(converter.convert(gzip.compress(parquet_bytes(table)), "parquet")).equals(table)


def _int96(*values: str, nested: bool = False) -> bytes:
    stamps = pa.array(values).cast(pa.timestamp("us" if len(values[0]) < 27 else "ns"))
    column = pa.array([{"x": [stamp]} for stamp in stamps.to_pylist()]) if nested else stamps
    return parquet_bytes(pa.table({"t": column, "n": range(len(stamps))}), use_deprecated_int96_timestamps=True)


@pytest.mark.parametrize("nested", [False, True])
def test_int96_timestamps_outside_of_nanoseconds_are_kept(local_converter: Any, nested: bool) -> None:
    content = _int96("9999-12-31T23:59:59.999999", "0001-01-01T00:00:00", "2024-01-31T10:00:00", nested=nested)
    table = local_converter.table(local_converter.convert(content, "parquet"))
    stamps = table.column("t").combine_chunks()
    stamps = pc.struct_field(stamps, "x").flatten() if nested else stamps
    assert stamps.type == pa.timestamp("us")
    assert stamps.cast(pa.string()).to_pylist() == [
        "9999-12-31 23:59:59.999999",
        "0001-01-01 00:00:00.000000",
        "2024-01-31 10:00:00.000000",
    ]


def test_int96_timestamps_keep_their_nanoseconds(local_converter: Any) -> None:
    content = _int96("2024-01-31T10:00:00.123456789", "1700-01-01T00:00:00.000000001")
    stamps = local_converter.table(local_converter.convert(content, "parquet")).column("t")
    assert stamps.cast(pa.string()).to_pylist() == ["2024-01-31 10:00:00.123456789", "1700-01-01 00:00:00.000000001"]


def test_int96_timestamps_that_no_unit_holds_are_rejected(local_converter: Any) -> None:
    far = pa.array(["9999-12-31T00:00:00"]).cast(pa.timestamp("us"))
    fine = pa.array(["2024-01-31T10:00:00.123456789"]).cast(pa.timestamp("ns"))
    content = parquet_bytes(pa.table({"far": far, "fine": fine}), use_deprecated_int96_timestamps=True)
    with pytest.raises(UnreadableUploadError, match="INT96"):
        local_converter.convert(content, "parquet")
    assert local_converter.everything() == []


def test_pages_with_wrong_checksums_are_rejected(local_converter: Any) -> None:
    table = pa.table({"a": range(1_000)})
    content = bytearray(parquet_bytes(table, write_page_checksum=True, compression="none", use_dictionary=False))
    at = content.index((500).to_bytes(8, "little"))
    content[at] ^= 1
    with pytest.raises(UnreadableUploadError):
        local_converter.convert(bytes(content), "parquet")


@pytest.mark.parametrize("more", [{}, {"split_bytes": 100}, {"max_rows_per_file": 60}])
@pytest.mark.parametrize("rows", [0, 200])
def test_schema_metadata_is_kept(local_converter: Any, tmp_path: Path, more: dict[str, int], rows: int) -> None:
    field = pa.field("a", pa.int64(), metadata={"unit": "km"})
    foreign = {"owner": "somebody", "geo": "{}", "pandas": "{}", "org.apache.spark.sql.parquet.row.metadata": "{}"}
    table = pa.table([pa.array(range(rows), pa.int64())], schema=pa.schema([field], foreign))
    found = local_converter.convert(parquet_bytes(table, row_group_size=50), "parquet", **more)
    wanted = {b"owner": b"somebody", b"geo": b"{}"}
    assert found.schema.metadata == wanted
    for file in found.files:
        written = pq.read_metadata(tmp_path / file.path).metadata
        assert {key: value for key, value in written.items() if key != b"ARROW:schema"} == wanted
        assert pq.read_schema(tmp_path / file.path).field("a").metadata[b"unit"] == b"km"
