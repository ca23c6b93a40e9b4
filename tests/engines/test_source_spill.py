"""Sources on disk: split by key, deduplicated, and merged like sources in memory."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inlay
from inlay.engines import source as source_module
from inlay.engines.source import ArrowSource, last_per_key, load_source
from inlay.errors import (
    DuplicateKeyError,
    NullKeyError,
    UnreadableSourceError,
)
from tests import lake
from tests.arrow_types import SCALARS, TYPES, array_of


def batched(table: pa.Table, size: int) -> pa.RecordBatchReader:
    """Return a stream whose batches have separate dictionaries, as real streams do."""

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, table.num_rows, size):
            part = table.slice(start, size)
            columns = [
                array_of(field.type, part.column(field.name).to_pylist())
                if pa.types.is_dictionary(field.type)
                else pa.concat_arrays(part.column(field.name).chunks)
                for field in table.schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=table.schema)

    return pa.RecordBatchReader.from_batches(table.schema, batches())


@pytest.fixture
def spilling(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Spill sources of more than 1,000 bytes, and check that no file remains."""
    folder = tmp_path_factory.mktemp("spill")
    monkeypatch.setattr(source_module, "SPILL_BYTES", 1000)
    monkeypatch.setattr(source_module, "_BUCKET_BYTES", 500)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert os.listdir(folder) == []


def bucket_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each loaded source adds its number of buckets."""
    counts: list[int] = []
    original = ArrowSource.__init__

    def record(self: ArrowSource, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        counts.append(len(self.buckets))

    monkeypatch.setattr(ArrowSource, "__init__", record)
    return counts


TARGET = {
    "a.parquet": lake.table(range(0, 60, 2), kind=pa.array([i % 3 for i in range(30)])),
    "b.parquet": lake.table(range(60, 120, 2), kind=pa.array([i % 3 for i in range(30)])),
}


def changes(ids: list[int]) -> pa.Table:
    values = [f"v{i}" if i % 7 == 0 else f"new {n} of {i}" for n, i in enumerate(ids)]
    return lake.table(ids, values, kind=pa.array([n % 5 for n in range(len(ids))]))


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_source_on_disk_merges_like_one_in_memory(
    tmp_path: Path, spilling: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, size: int
) -> None:
    rng = np.random.default_rng(5)
    ids = rng.permutation(150)[:100].tolist()
    source = changes(ids + ids[:30] if strategy == "deduplicate" else ids)
    counts = bucket_counts(monkeypatch)
    outcomes = {}
    for name, data in (("memory", source), ("disk", batched(source, size))):
        path = lake.write(tmp_path / name, TARGET, row_group_size=10)
        result = inlay.merge(data, path, strategy, ["id"])
        numbers = [result.inserted, result.updated, result.deleted, result.unchanged, result.source_count]
        outcomes[name] = (numbers, sorted(map(repr, lake.all_rows(path))), sorted(lake.contents(path)) and None)
    assert outcomes["disk"] == outcomes["memory"]
    assert counts[0] == 1
    assert counts[1] > 5


@pytest.mark.parametrize("order_by", [None, "kind", ["kind", "v"]])
def test_deduplication_on_disk_keeps_the_same_rows(tmp_path: Path, spilling: Path, order_by: Any) -> None:
    rng = np.random.default_rng(11)
    ids = rng.integers(0, 40, 300).tolist()
    kinds = [None if k == 0 else int(k) for k in rng.integers(0, 4, 300)]
    source = lake.table(ids, [f"row {n}" for n in range(300)], kind=pa.array(kinds, pa.int64()))
    found = {}
    for name, data in (("memory", source), ("disk", batched(source, 13))):
        path = lake.write(tmp_path / name, TARGET)
        inlay.merge(data, path, "deduplicate", ["id"], dedup_order_by=order_by)
        found[name] = sorted(map(repr, lake.all_rows(path)))
    assert found["disk"] == found["memory"]


def test_duplicates_in_different_batches_on_disk_are_found(tmp_path: Path, spilling: Path) -> None:
    ids = [*range(200), 57]
    with pytest.raises(DuplicateKeyError, match="id=57"):
        inlay.merge(batched(changes(ids), 10), str(tmp_path / "d"), "upsert", ["id"])
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("row", [0, 100, 199])
def test_null_keys_on_disk_are_found_in_any_row(tmp_path: Path, spilling: Path, row: int) -> None:
    ids: list[int | None] = list(range(200))
    ids[row] = None
    source = pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{i}" for i in ids]})
    for strategy in ("insert", "deduplicate"):
        with pytest.raises(NullKeyError, match="1 of"):
            inlay.merge(batched(source, 9), str(tmp_path / "d"), strategy, ["id"])
    assert not (tmp_path / "d").exists()


def test_composite_keys_on_disk(tmp_path: Path, spilling: Path) -> None:
    pairs = [(i % 4, f"k{i // 4}") for i in range(200)]
    source = pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs], "v": range(200)})
    path = lake.write(tmp_path / "d", {"a.parquet": source.slice(50, 50).set_column(2, "v", pa.array([0] * 50))})
    result = inlay.merge(batched(source, 11), path, "upsert", ["a", "b"])
    assert (result.updated, result.inserted) == (50, 150)
    assert sorted(row["v"] for row in lake.all_rows(path)) == list(range(200))
    with pytest.raises(DuplicateKeyError):
        inlay.merge(batched(pa.concat_tables([source, source.slice(3, 1)]), 11), path, "upsert", ["a", "b"])


def test_partitions_and_new_columns_on_disk(tmp_path: Path, spilling: Path) -> None:
    source = pa.table({"id": range(200), "p": [i % 3 for i in range(200)], "w": [f"w{i}" for i in range(200)]})
    path = lake.write(tmp_path / "d", {f"p={p}/a.parquet": pa.table({"id": [p, 300 + p]}) for p in range(3)})
    result = inlay.merge(batched(source, 20), path, "upsert", ["id"], schema_mode="evolve")
    assert (result.updated, result.inserted) == (3, 197)
    table = inlay.read_parquet(path)
    found = {(r["id"], r["p"], r["w"]) for r in table.to_pylist()}
    assert found == {(i, i % 3, f"w{i}") for i in range(200)} | {(300 + p, p, None) for p in range(3)}


def test_writing_a_source_on_disk_keeps_the_order(tmp_path: Path, spilling: Path) -> None:
    source = changes(list(range(300)))
    result = inlay.write_dataset(batched(source, 17), str(tmp_path / "d"), max_rows_per_file=70, row_group_size=30)
    assert (result.row_count, len(result.files)) == (300, 5)
    assert lake.all_rows(tmp_path / "d") == lake.rows_of(source)


def test_a_stream_that_fails_while_spilling_leaves_no_files(tmp_path: Path, spilling: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from changes(list(range(200))).to_batches(max_chunksize=20)
        raise OSError("the connection broke")

    source = changes([1])
    with pytest.raises(UnreadableSourceError, match="the connection broke"):
        inlay.merge(pa.RecordBatchReader.from_batches(source.schema, batches()), str(tmp_path / "d"), "upsert", ["id"])
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("name", TYPES)
def test_every_type_survives_spilling(spilling: Path, name: str) -> None:
    kind, values = TYPES[name]
    column = [None if i % 11 == 0 else values[i % 5] for i in range(150)]
    table = pa.table({"id": range(150), "v": array_of(kind, column)})
    source = load_source(batched(table, 13), lambda part: part, ["id"])
    try:
        assert len(source.buckets) > 1
        order = np.argsort(np.asarray(source.column("id")))
        assert lake.same_rows(lake.rows_of(source.take(order)), lake.rows_of(table))
        some = order[[149, 3, 3, 50]]
        assert source.take(some).column("id").to_pylist() == [149, 3, 3, 50]
        assert source.take(order[:0]).schema == table.schema
    finally:
        source.close()


@pytest.mark.parametrize("name", SCALARS)
def test_every_key_type_is_split_by_key(spilling: Path, name: str) -> None:
    """All rows of a key are in one bucket, so reducing each bucket leaves one row per key."""
    kind, values = SCALARS[name]
    table = pa.table({"k": array_of(kind, [values[i % 5] for i in range(300)]), "n": range(300)})
    source = load_source(batched(table, 30), lambda part: part, ["k"])
    try:
        assert len(source.buckets) > 1
        assert source.input_rows == 300
        source.reduce(["n"])
        assert sorted(source.column("n").to_pylist()) == [295, 296, 297, 298, 299]
    finally:
        source.close()


@pytest.mark.parametrize("size", [20, 1000, 100_000])
def test_the_sample_of_keys_is_small_for_any_batch_size(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    sampled: list[int] = []
    original = source_module.split_points

    def record(sample: list[pa.Table], *rest: Any) -> Any:
        sampled.append(sum(map(len, sample)))
        return original(sample, *rest)

    monkeypatch.setattr(source_module, "split_points", record)
    monkeypatch.setattr(source_module, "_BUCKET_BYTES", 80_000)
    table = pa.table({"id": range(100_000)})
    reader = pa.RecordBatchReader.from_batches(table.schema, iter(table.to_batches(size)))
    source = load_source(reader, lambda part: part, ["id"], spill_bytes=1000)
    try:
        assert 500 <= sampled[0] <= 1000
        assert len(source.buckets) == 10
        assert max(bucket.num_rows for bucket in source.buckets) < 25_000
    finally:
        source.close()


def test_null_and_repeated_keys_are_the_same_on_disk_and_in_memory(spilling: Path) -> None:
    ids = [None if i in (170, 401) else i % 450 for i in range(500)]
    table = pa.table({"id": pa.array(ids, pa.int64()), "k": [f"k{i % 3}" for i in range(500)]})
    sources = [load_source(data, lambda part: part, ["k", "id"]) for data in (table, batched(table, 30))]
    with contextlib.closing(sources[1]):
        assert [len(source.buckets) > 1 for source in sources] == [False, True]
        assert sources[0].null_keys == sources[1].null_keys
        assert [(found.column, found.nulls, found.row) for found in sources[0].null_keys] == [("id", 2, 170)]
        assert sources[0].repeated_keys() == sources[1].repeated_keys()
        assert sources[0].repeated_keys().rows == 50
        taken = sources[1].take(np.array([3, 1, 499]), ["id"])
        assert taken.column_names == ["id"]


def test_a_source_of_one_key_is_one_bucket(spilling: Path) -> None:
    table = pa.table({"id": [7] * 500, "n": range(500)})
    source = load_source(batched(table, 50), lambda part: part, ["id"])
    assert len(source.buckets) == 1
    source.reduce([])
    assert source.take(np.array([0])).to_pylist() == [{"id": 7, "n": 499}]
    source.close()


# -------------------------------------------------------------------------------------------------- one row per key
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1.5, math.nan, 0.0, -0.0, 2.0]), st.none() | st.integers(0, 3), st.sampled_from(["a", "b"])
        ),
        max_size=30,
    )
)
def test_the_last_row_of_each_key_is_kept(source_rows: list[tuple[float, int | None, str]]) -> None:
    table = pa.table(
        {
            "k": pa.array([k for k, _, _ in source_rows], pa.float64()),
            "o": pa.array([o for _, o, _ in source_rows], pa.int64()),
            "p": pa.array([p for _, _, p in source_rows], pa.string()),
        }
    )
    best: dict[Any, int] = {}
    for number, (k, o, p) in enumerate(source_rows):
        key = "nan" if math.isnan(k) else k + 0.0
        rank = (-1 if o is None else o, p, number)
        if key not in best or rank >= (-1 if source_rows[best[key]][1] is None else source_rows[best[key]][1],
                                       source_rows[best[key]][2], best[key]):  # fmt: skip
            best[key] = number
    assert last_per_key(table, ["k"], ["o", "p"]).tolist() == sorted(best.values())
