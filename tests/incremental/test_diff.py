"""The rows that differ between two versions."""

from __future__ import annotations

import contextlib
import gc
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inlay
from inlay.engines import open_file
from inlay.engines.open_file import OpenFile
from inlay.engines.row_codes import number_rows
from inlay.errors import (
    DamagedVersionError,
    HistoryUnavailableError,
    InvalidArgumentError,
    NotFoundError,
    SchemaMismatchError,
)
from tests.oracle import exact_row
from tests.versions import LOCAL, STORAGES, Dataset

Row = dict[str, Any]


def changes(path: Any, old: int, new: int) -> list[Row]:
    rows: list[Row] = inlay.diff(path, old, new).read_all().to_pylist()
    return rows


def build(path: Any) -> Any:
    """Version 1 has two rows. Version 2 updates one and inserts one."""
    inlay.write_dataset({"id": [1, 2], "v": ["a", "b"]}, path)
    inlay.keep(path, versions=50, copies=True)
    inlay.merge({"id": [2, 3], "v": ["B", "C"]}, path, "upsert", "id")
    return path


@pytest.fixture
def sales(tmp_path: Path) -> Any:
    return build(tmp_path / "ds")


@pytest.fixture
def stored(storage: Dataset) -> Any:
    return build(storage)


everywhere = pytest.mark.parametrize("storage", STORAGES, indirect=True)


BEFORE, AFTER = {"id": 2, "v": "b"}, {"id": 2, "v": "B"}


# ------------------------------------------------------------------------------------------------------------- rows
def test_a_merge_on_each_engine_gives_updates_and_insertions(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / "ds"
    inlay.write_dataset({"id": [1, 2], "v": ["a", "b"]}, path)
    inlay.merge({"id": [2, 3], "v": ["B", "C"]}, path, "upsert", "id", engine=engine)
    assert changes(path, 1, 2) == [
        {"_change": "update_before"} | BEFORE,
        {"_change": "update_after"} | AFTER,
        {"_change": "insert", "id": 3, "v": "C"},
    ]


@everywhere
def test_a_diff_works_in_both_directions(stored: Any) -> None:
    assert changes(stored, 2, 1) == [
        {"_change": "delete", "id": 3, "v": "C"},
        {"_change": "update_before"} | AFTER,
        {"_change": "update_after"} | BEFORE,
    ]
    assert changes(stored, 2, 2) == []


@everywhere
def test_an_undo_pairs_rows_by_the_keys_of_the_change_that_it_reverts(stored: Any) -> None:
    inlay.undo(stored)
    assert [row["_change"] for row in changes(stored, 2, 3)] == ["delete", "update_before", "update_after"]
    assert changes(stored, 1, 3) == []


def test_merges_by_different_keys_give_deletions_and_insertions(sales: Path) -> None:
    inlay.merge({"id": [9], "v": ["B"]}, sales, "update", "v")
    assert [row["_change"] for row in changes(sales, 2, 3)] == ["update_before", "update_after"]
    assert {row["_change"] for row in changes(sales, 1, 3)} == {"delete", "insert"}


@everywhere
def test_repeated_rows_are_counted_and_null_keys_are_not_paired(stored: Any) -> None:
    inlay.write_dataset({"id": [1, 1, None], "v": ["a", "x", "n"]}, stored)
    inlay.write_dataset({"id": [1, None], "v": ["a", "m"]}, stored, mode="overwrite")
    assert sorted((row["_change"], row["v"]) for row in changes(stored, 3, 4)) == [
        ("delete", "B"), ("delete", "C"), ("delete", "a"), ("delete", "n"), ("delete", "x"), ("insert", "m"),
    ]  # fmt: skip
    assert [(row["id"], row["v"]) for row in changes(stored, 1, 4) if row["_change"] == "insert"] == [(None, "m")]


def test_nan_and_null_equal_themselves_and_the_bits_of_zeros_count(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("l", pa.list_(pa.struct([("f", pa.float32())])))])
    rows = [
        {"id": 1, "x": math.nan, "l": [{"f": math.nan}, None]},
        {"id": 2, "x": None, "l": None},
        {"id": 3, "x": 0.0, "l": []},
        {"id": 4, "x": 1.0, "l": [{"f": None}]},
    ]
    inlay.write_dataset(pa.Table.from_pylist(rows, schema), path)
    rows[2]["x"], rows[3]["l"] = -0.0, [None]
    inlay.write_dataset(pa.Table.from_pylist(rows[::-1], schema), path, mode="overwrite")
    found = changes(path, 1, 2)
    assert sorted((row["_change"], row["id"]) for row in found) == [
        ("delete", 3), ("delete", 4), ("insert", 3), ("insert", 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", None, "", "a", ""]),
        pa.array([b"a", None, b"", b"a", b""], pa.binary_view()),
        pa.array([1.5, None, math.nan, 1.5, math.nan], pa.float32()),
        pa.array([True, None, False, True, False]),
        pa.array([[1], None, [], [1], []], pa.list_(pa.int8())),
        pa.array([[("k", 1)], None, [], [("k", 1)], []], pa.map_(pa.string(), pa.int8())),
        pa.array([[1, 2], None, [1, None], [1, 2], [1, None]], pa.list_(pa.int8(), 2)),
        pa.array([{"a": 1}, None, {"a": None}, {"a": 1}, {"a": None}]),
        pa.array([[[1], []], None, [[1]], [[1], []], [[1]]]),
        pa.array(["a", None, "b", "a", "b"]).dictionary_encode(),
        pa.array([1, None, 2, 1, 2], pa.decimal128(5, 2)),
        pa.array([1, None, 2, 1, 2], pa.duration("us")),
    ],
    ids=lambda values: str(values.type),
)
def test_equal_values_of_each_type_have_equal_numbers(values: pa.Array) -> None:
    for column in (values, pa.concat_arrays([values[:1], values]).slice(1)):
        first, null, other, same_first, same_other = number_rows([pa.chunked_array([column])], 5).tolist()
        assert (first, other) == (same_first, same_other)
        assert len({first, null, other}) == 3


# ---------------------------------------------------------------------------------------------------------- columns
@everywhere
def test_columns_of_one_version_are_null_in_the_other(stored: Any) -> None:
    inlay.merge({"id": [3], "v": ["C"], "w": [1]}, stored, "upsert", "id", schema_mode="evolve")
    assert [(row["_change"], row["id"], row["w"]) for row in changes(stored, 2, 3)] == [
        ("update_before", 3, None),
        ("update_after", 3, 1),
    ]
    inlay.alter(stored, drop="v")
    assert {(row["id"], row["v"]) for row in changes(stored, 3, 4) if row["_change"] == "insert"} == {
        (1, None), (2, None), (3, None),
    }  # fmt: skip


def test_a_wider_type_is_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    inlay.write_dataset(pa.table({"id": pa.array([1, 2], pa.int32())}), path)
    inlay.alter(path, widen={"id": "bigint"})
    assert inlay.diff(path, 1, 2).read_all().num_rows == 0
    assert inlay.diff(path, 1, 2).schema.field("id").type == pa.int64()


def test_partition_columns_have_the_type_of_all_paths(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    inlay.write_dataset({"id": [1, 2], "p": ["7", "x y"]}, path, partition_columns="p")
    inlay.merge({"id": [1], "p": ["7"]}, path, "delete", ["id", "p"])
    inlay.merge({"id": [3], "p": [None]}, path, "upsert", "id")
    assert changes(path, 1, 2) == [{"_change": "delete", "id": 1, "p": "7"}]
    assert changes(path, 2, 3) == [{"_change": "insert", "id": 3, "p": None}]


def test_incompatible_types_and_a_column_of_the_same_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    inlay.write_dataset({"id": [1]}, path)
    inlay.write_dataset({"id": ["a"]}, path, mode="overwrite")
    with pytest.raises(SchemaMismatchError, match="'id' is"):
        inlay.diff(path, 1, 2)
    inlay.write_dataset({"_change": ["a"]}, path, mode="overwrite")
    with pytest.raises(SchemaMismatchError, match="_change"):
        inlay.diff(path, 2, 3)


# ------------------------------------------------------------------------------------------------------------- cost
def write_large(path: Path) -> None:
    """Write 4 files, each with 5 row groups of 100 rows."""
    path.mkdir()
    for number in range(4):
        ids = range(number * 500, number * 500 + 500)
        table = pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([0] * 500, pa.int64())})
        pq.write_table(table, path / f"part-{number}.parquet", row_group_size=100)


def test_only_differing_files_and_row_groups_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ds"
    write_large(path)
    inlay.merge({"id": [720], "v": [1]}, path, "upsert", "id")
    opened, decoded = [], []
    open_parquet, read_group = open_file.open_parquet, OpenFile.read_group

    def count_open(location: Any, name: str, *arguments: Any) -> Any:
        opened.append(name)
        return open_parquet(location, name, *arguments)

    def count_read(self: OpenFile, group: int, *arguments: Any) -> pa.Table:
        decoded.append((self.path, group))
        return read_group(self, group, *arguments)

    monkeypatch.setattr(open_file, "open_parquet", count_open)
    monkeypatch.setattr(OpenFile, "read_group", count_read)
    assert [(row["id"], row["v"]) for row in changes(path, 0, 1)] == [(720, 0), (720, 1)]
    assert opened == ["part-1.parquet"] * 2
    assert decoded == [("part-1.parquet", 2)] * 2


def test_restored_files_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ds"
    write_large(path)
    inlay.keep(path, versions=50)
    inlay.merge({"id": [720], "v": [1]}, path, "upsert", "id")
    inlay.undo(path)
    monkeypatch.setattr(OpenFile, "read_group", None)
    assert changes(path, 0, 2) == []


def test_row_groups_of_the_same_size_and_other_values_differ(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    path.mkdir()
    for value in (1, 2):
        table = pa.table({"id": pa.array([1, 2]), "v": pa.array([value, value])})
        pq.write_table(table, tmp_path / "new", compression="none", write_statistics=False)
        (path / "1.parquet").unlink(missing_ok=True)
        (tmp_path / "new").rename(path / f"{value}.parquet")
        inlay.write_dataset({"id": [value + 10], "v": [0]}, path)
    found = [(row["_change"], row["v"]) for row in changes(path, 1, 3) if row["id"] == 1]
    assert sorted(found) == [("delete", 1), ("insert", 2)]


# --------------------------------------------------------------------------------------------------------- versions
def test_versions_are_not_dropped_while_the_stream_is_read(sales: Path) -> None:
    inlay.undo(sales)
    stream = inlay.diff(sales, 1, 2)
    assert inlay.forget(sales, before=3).pinned == 1
    assert stream.read_all().num_rows == 3
    assert inlay.forget(sales, before=2).versions == [1]
    stream = inlay.diff(sales, 2, 3)
    assert inlay.forget(sales, before=3).pinned == 2
    del stream
    gc.collect()
    assert inlay.forget(sales, before=3).versions == [2]


def test_a_damaged_version_is_refused(sales: Path) -> None:
    inlay.write_dataset({"id": [5], "v": ["e"]}, sales)
    with open(next(sales.glob("*.parquet")), "r+b") as file:
        file.write(b"changed")
        file.truncate(100)
    with pytest.raises(DamagedVersionError):
        inlay.diff(sales, 2, 3)


def test_a_copied_dataset_has_the_same_differences(sales: Path, tmp_path: Path) -> None:
    expected = changes(sales, 1, 2)
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    assert changes(tmp_path.with_name("copy") / "ds", 1, 2) == expected


def test_invalid_versions_are_refused(sales: Path) -> None:
    with pytest.raises(NotFoundError, match="Versions 1 to 2 are kept"):
        inlay.diff(sales, 1, 9)
    for version in ("1", None, True, 1.0):
        with pytest.raises(InvalidArgumentError, match="whole number"):
            inlay.diff(sales, 1, version)  # type: ignore[arg-type]


def test_an_object_store_has_no_diff(memory: Any) -> None:
    inlay.write_dataset({"id": [1]}, "memory://diff", filesystem=memory)
    with pytest.raises(HistoryUnavailableError):
        inlay.diff("memory://diff", 1, 2, filesystem=memory)


@pytest.mark.parametrize("storage", LOCAL, indirect=True)
def test_empty_versions_have_differences(stored: Any) -> None:
    inlay.merge({"id": pa.array([], pa.int64()), "v": pa.array([], pa.string())}, stored, "full_merge", "id")
    assert {row["_change"] for row in changes(stored, 2, 3)} == {"delete"}
    for file in stored.glob("*.parquet"):
        file.unlink()
    inlay.write_dataset({"id": [7], "v": ["z"]}, stored)
    assert changes(stored, 4, 5)[-1] == {"_change": "insert", "id": 7, "v": "z"}
    assert inlay.diff(stored, 4, 4).read_all().num_columns == 1


@everywhere
def test_duckdb_and_polars_read_the_stream(stored: Any) -> None:
    assert duckdb.from_arrow(inlay.diff(stored, 1, 2)).count("*").fetchall() == [(3,)]
    assert pl.from_arrow(inlay.diff(stored, 1, 2)).height == 3


# --------------------------------------------------------------------------------------------------------- property
KEYS = st.sets(st.integers(0, 9), max_size=4)
STRATEGIES = ("insert", "update", "upsert", "full_merge", "deduplicate", "delete")
STEPS = st.one_of(
    st.tuples(st.sampled_from(STRATEGIES), KEYS),
    st.tuples(st.sampled_from(["append", "overwrite"]), KEYS.filter(len)),
    st.tuples(st.sampled_from(["compact", "undo", "rename", "widen"]), st.none()),
)


class Trial:
    """A dataset, and the key columns of each of its commits."""

    def __init__(self, path: Path, partitioned: bool) -> None:
        self.path, self.number = path, 0
        self.options: dict[str, Any] = {"partition_columns": "p"} if partitioned else {}
        self.value, self.type = "v", pa.float32()
        self.keyed: dict[int, bool] = {}

    def table(self, keys: set[int]) -> pa.Table:
        self.number += 1
        values = [math.nan if key % 3 == 0 else None if key % 3 == 1 else self.number for key in sorted(keys)]
        nested = [[key, None] if self.number % 2 else None for key in sorted(keys)]
        return pa.table(
            {
                "id": pa.array(sorted(keys), pa.int64()),
                "p": pa.array([key % 2 for key in sorted(keys)], pa.int64()),
                self.value: pa.array(values, self.type),
                "l": pa.array(nested, pa.list_(pa.int64())),
            }
        )

    def step(self, action: Any, keys: Any) -> None:
        known = {entry.version for entry in inlay.history(self.path)}
        if action in STRATEGIES:
            inlay.merge(self.table(keys), self.path, action, "id", row_group_size=2)
        elif action in ("append", "overwrite"):
            inlay.write_dataset(self.table(keys), self.path, mode=action, row_group_size=2, **self.options)
        elif action == "compact":
            inlay.compact(self.path)
        elif action == "undo":
            with contextlib.suppress(NotFoundError):  # There is nothing to undo.
                inlay.undo(self.path)
            schema = inlay.read_parquet(self.path).schema
            [self.value] = set(schema.names) - {"id", "p", "l"}
            self.type = schema.field(self.value).type
        elif action == "rename":
            inlay.alter(self.path, rename={self.value: self.value + "v"})
            self.value += "v"
        elif action == "widen" and self.type == pa.float32():
            inlay.alter(self.path, widen={self.value: "double"})
            self.type = pa.float64()
        for entry in inlay.history(self.path):
            if entry.version not in known:
                reverted = range((entry.restores or entry.version) + 1, entry.version)
                self.keyed[entry.version] = action in STRATEGIES or any(self.keyed[number] for number in reverted)

    def rows(self, version: int) -> list[Row]:
        rows: list[Row] = inlay.read_parquet(self.path, version=version).to_pylist()
        return rows

    def check(self, old: int, new: int) -> None:
        before, after = self.rows(old), self.rows(new)
        columns = sorted({name for row in (*before, *after) for name in row})
        removed, added = (Counter(exact(row, columns) for row in rows) for rows in (before, after))
        removed, added = removed - added, added - removed
        found = changes(self.path, old, new)
        by_change = {change: [row for row in found if row["_change"] in change.split("|")] for change in
                     ("delete|update_before", "insert|update_after", "update_before", "update_after")}  # fmt: skip
        assert Counter(exact(row, columns) for row in by_change["delete|update_before"]) == removed
        assert Counter(exact(row, columns) for row in by_change["insert|update_after"]) == added
        pairs = list(zip(by_change["update_before"], by_change["update_after"], strict=True))
        assert all(left["id"] == right["id"] for left, right in pairs)
        by_key = [Counter(dict(row)["id"] for row in side.elements()) for side in (removed, added)]
        is_keyed = any(self.keyed[number] for number in range(min(old, new) + 1, max(old, new) + 1))
        assert Counter(exact({"id": left["id"]}, ["id"])[0][1] for left, _ in pairs) == (
            by_key[0] & by_key[1] if is_keyed else Counter()
        )


def exact(row: Row, columns: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    return exact_row({name: row.get(name) for name in columns})


@given(st.lists(STEPS, min_size=1, max_size=6), st.booleans())
def test_a_diff_of_any_two_versions_equals_the_difference_in_plain_python(
    steps: list[tuple[str, Any]], partitioned: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        trial = Trial(Path(directory) / "ds", partitioned)
        trial.step("append", {0, 1, 2, 3, 4, 5})
        inlay.keep(trial.path, versions=50)
        for step in steps:
            trial.step(*step)
        numbers = [entry.version for entry in inlay.history(trial.path)]
        for old in numbers:
            for new in numbers:
                trial.check(old, new)
