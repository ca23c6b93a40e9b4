"""Parquet uploads: rewritten with our settings, every type and value as it was."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.errors import InvalidArgumentError, UnreadableUploadError
from tests.arrow_types import TYPES, array_of
from tests.pipeline_data import parquet_bytes


def test_every_type_and_value_stays(desk: Any) -> None:
    arrays = {name: array_of(type_, [*values, None]) for name, (type_, values) in TYPES.items()}
    content = parquet_bytes(pa.table(arrays), row_group_size=2)
    before = pq.read_table(pa.BufferReader(content))
    conversion = desk.convert(content, "parquet", split_bytes=1_000)
    after = desk.table(conversion)
    assert conversion.schema == before.schema == after.schema
    assert after.cast(before.schema).to_pydict().__repr__() == before.to_pydict().__repr__()


def test_rows_are_rewritten_with_our_settings(desk: Any, tmp_path: Path) -> None:
    table = pa.table({"id": range(1_000), "word": ["a", "b"] * 500})
    conversion = desk.convert(parquet_bytes(table, row_group_size=10), "parquet", split_bytes=2_000)
    assert desk.table(conversion).equals(table)
    metadata = pq.read_metadata(tmp_path / conversion.files[0].path)
    assert metadata.num_row_groups == 1
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_overrides_are_refused(desk: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        desk.convert(parquet_bytes(pa.table({"a": [1]})), "parquet", overrides={"a": pa.int8()})
    assert str(caught.value) == "altering parquet schema is currently unsupported"


def test_no_rows_is_a_dataset_since_the_schema_is_known(desk: Any) -> None:
    table = pa.schema([("a", pa.decimal128(5, 2))]).empty_table()
    conversion = desk.convert(parquet_bytes(table), "parquet")
    assert (conversion.rows, conversion.schema) == (0, table.schema)
    assert desk.table(conversion).schema == table.schema


def test_damaged_files_are_refused(desk: Any) -> None:
    content = parquet_bytes(pa.table({"a": range(1_000)}))
    for damaged in (content[:-7], b"PAR1", b"a,b\n1,2\n", content[:100] + b"\0" * 100 + content[200:]):
        with pytest.raises(UnreadableUploadError):
            desk.convert(damaged, "parquet")
    assert desk.everything() == []


def test_compressed_files(desk: Any) -> None:
    table = pa.table({"a": range(1_000)})
    assert desk.table(desk.convert(gzip.compress(parquet_bytes(table)), "parquet")).equals(table)
