"""Views of a dataset for readers of Apache Iceberg: each version, statistics, types, retention and errors."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

import inlay
from inlay.errors import EngineNotInstalledError, InvalidArgumentError, SchemaMismatchError
from inlay.views import iceberg
from tests.faults.scenarios import wrong_history

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # polars suggests another package otherwise


def view_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.iceberg")


def table_of(path: Path) -> StaticTable:
    return StaticTable.from_metadata(str(view_of(path)))


def sorted_rows(rows: Rows) -> Rows:
    return sorted((dict(sorted(row.items())) for row in rows), key=repr)


def read_pyiceberg(path: Path, version: int) -> Rows:
    return sorted_rows(table_of(path).scan(snapshot_id=iceberg._id(version)).to_arrow().to_pylist())


def read_polars(path: Path, version: int) -> Rows:
    scan = pl.scan_iceberg(table_of(path), snapshot_id=iceberg._id(version), reader_override="native")
    return sorted_rows(scan.collect().to_dicts())


def expected(path: Path, version: int) -> Rows:
    return sorted_rows(inlay.read_parquet(path, version=version).to_pylist())


def links(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def check(path: Path, begin: int = 0) -> list[int]:
    """Check that readers see each kept version, and that the view has no other files. Return the versions."""
    numbers = sorted(entry.version for entry in inlay.history(path) if entry.version >= begin)
    table = table_of(path)
    assert [snapshot.snapshot_id for snapshot in table.snapshots()] == [iceberg._id(number) for number in numbers]
    for number in numbers:
        assert read_pyiceberg(path, number) == expected(path, number)
        assert read_polars(path, number) == expected(path, number)
        snapshot = table.snapshot_by_name(f"v{number}")
        assert snapshot is not None
        assert (snapshot.snapshot_id, snapshot.summary["inlay.version"]) == (iceberg._id(number), str(number))
    assert wrong_history(path.parent) == []
    names = {
        name
        for snapshot in table.metadata.snapshots
        for name in iceberg._files_of(json.loads(snapshot.model_dump_json()))
    }
    present = {path.name for path in (view_of(path) / "metadata").iterdir()}
    assert {name for name in present if name.endswith(".avro")} == names
    if not begin:
        assert links(view_of(path) / "data") == links(path.parent / f".{path.name}.txn/files")
    return numbers


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    """A published, partitioned dataset with version 1."""
    path = tmp_path / "ds"
    rows = {"id": [1, 2, 3], "v": ["a", "b", None], "k": ["x", "y z/%", None]}
    inlay.merge(rows, path, "upsert", "id", ["k"])
    inlay.keep(path, versions=50)
    inlay.publish(path, "iceberg")
    return path


def upsert(path: Path, number: int) -> None:
    inlay.merge({"id": [2, 10 + number], "v": [f"b{number}", "new"], "k": ["y z/%", "x"]}, path, "upsert", "id")


def test_each_version_of_the_dataset_is_a_snapshot(sales: Path) -> None:
    upsert(sales, 0)
    inlay.delete(sales, pc.field("id") == 1)
    inlay.compact(sales)
    inlay.undo(sales)
    inlay.merge({"id": [9], "v": ["q"], "k": ["x"], "extra": [1.5]}, sales, "insert", "id", schema_mode="evolve")
    inlay.alter(sales, rename={"v": "w"}, drop=["extra"])
    inlay.write_dataset({"id": [7], "w": ["only"], "k": ["x"]}, sales, mode="overwrite")
    assert check(sales)[-1] == inlay.history(sales)[0].version
    operations = [snapshot.summary.operation.value for snapshot in table_of(sales).snapshots()]
    assert {"append", "overwrite", "delete"} <= set(operations)
    at = [entry.at for entry in inlay.history(sales)][::-1]
    stamps = [snapshot.timestamp_ms for snapshot in table_of(sales).snapshots()]
    assert stamps == [int(dt.datetime.fromisoformat(each).timestamp() * 1000) for each in at]


def test_a_found_directory_is_published_from_version_0(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    path.mkdir()
    pq.write_table(pa.table({"id": [1], "v": ["theirs"]}), path / "a.parquet")
    assert inlay.publish(path, "iceberg").version == 0
    inlay.merge({"id": [1], "v": ["ours"]}, path, "upsert", "id")
    assert check(path) == [0, 1]


def test_other_readers_of_the_parent_directory_see_no_row_twice(sales: Path) -> None:
    upsert(sales, 0)
    assert duckdb.sql(f"SELECT count(*) FROM '{sales.parent}/**/*.parquet'").fetchall() == [(4,)]
    assert pl.scan_parquet(f"{sales.parent}/**/*.parquet").select(pl.len()).collect().item() == 4


def test_an_empty_version_is_an_empty_table(sales: Path) -> None:
    inlay.delete(sales, pc.field("id") > 0)
    assert read_pyiceberg(sales, 2) == read_polars(sales, 2) == []
    upsert(sales, 1)
    check(sales)


def test_forget_and_keep_drop_snapshots_with_their_files(sales: Path) -> None:
    for number in range(5):
        upsert(sales, number)
    inlay.forget(sales, before=4)
    assert check(sales) == [4, 5, 6]
    inlay.keep(sales, versions=1)
    assert check(sales) == [6]
    upsert(sales, 9)
    assert check(sales) == [7]
    assert len(list((view_of(sales) / "metadata").iterdir())) <= 6


def test_a_view_that_waits_for_publish_keeps_its_files_meanwhile(sales: Path) -> None:
    inlay.publish(sales, "iceberg", on_commit=False)
    inlay.keep(sales, versions=2)
    before = read_pyiceberg(sales, 1)
    for number in range(4):
        upsert(sales, number)
    assert read_pyiceberg(sales, 1) == before
    inlay.publish(sales, "iceberg")
    assert check(sales) == [4, 5]


def test_a_commit_writes_only_the_manifests_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "_FILES_PER_BUCKET", 5)
    path = tmp_path / "ds"
    inlay.merge({"id": range(100), "p": range(100)}, path, "upsert", "id", ["p"])
    inlay.keep(path, versions=9)
    inlay.publish(path, "iceberg")
    before = set((view_of(path) / "metadata").glob("*manifest*"))
    assert len(before) > 10
    inlay.merge({"id": [5, 500], "p": [5, 7]}, path, "upsert", "id")
    assert 1 <= len(set((view_of(path) / "metadata").glob("*manifest*")) - before) <= 2
    assert check(path) == [1, 2]
    table = table_of(path)
    for row_filter, rows in (("p = 7", {7, 500}), ("id = 5", {5}), ("p > 97", {98, 99})):
        found = table.scan(row_filter=row_filter)
        assert set(found.to_arrow()["id"].to_pylist()) == rows
        assert len(list(found.plan_files())) == len(rows)


# ------------------------------------------------------------------------------------------------- columns and types
def test_a_change_of_type_that_iceberg_lacks_begins_the_table_again(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    inlay.write_dataset(pa.table({"id": [1], "n": pa.array([1], pa.int32()), "d": [dt.date(2024, 1, 1)]}), path)
    inlay.keep(path, versions=9)
    inlay.publish(path, "iceberg")
    inlay.alter(path, widen={"n": pa.int64()})
    assert check(path) == [1, 2]
    inlay.alter(path, widen={"d": pa.timestamp("us")})
    assert check(path, begin=3) == [3]
    inlay.merge({"id": [2], "n": [5], "d": [dt.datetime(2024, 1, 1)]}, path, "upsert", "id")  # noqa: DTZ001
    assert check(path, begin=3) == [3, 4]


def test_a_dropped_column_can_come_back(sales: Path) -> None:
    inlay.alter(sales, drop=["v"])
    inlay.merge({"id": [1], "k": ["x"], "v": ["again"]}, sales, "upsert", "id", schema_mode="evolve")
    assert check(sales) == [1, 2, 3]


MOMENT = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)  # noqa: DTZ001
READABLE: dict[str, pa.Array] = {
    "int8": pa.array([-128, 127], pa.int8()),
    "int16": pa.array([-(2**15), None], pa.int16()),
    "int64": pa.array([-(2**63), 2**63 - 1], pa.int64()),
    "bool": pa.array([True, None]),
    "float32": pa.array([0.5, None], pa.float32()),
    "float64": pa.array([0.5, float("inf")]),
    "large_string": pa.array(["a", None], pa.large_string()),
    "dictionary": pa.array(["a", None]).dictionary_encode(),
    "fixed_size_binary": pa.array([b"ab", None], pa.binary(2)),
    "large_binary": pa.array([b"ab", None], pa.large_binary()),
    "decimal": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(20, 2)),
    "date": pa.array([dt.date(2024, 1, 1), dt.date(1969, 1, 1)]),
    "time": pa.array([dt.time(1, 2, 3, 4), None], pa.time64("us")),
    "seconds": pa.array([MOMENT.replace(microsecond=0), None], pa.timestamp("s")),
    "milliseconds": pa.array([MOMENT.replace(microsecond=1000), None], pa.timestamp("ms")),
    "utc": pa.array([MOMENT, None], pa.timestamp("us", "UTC")),
    "list": pa.array([[1, None], None], pa.list_(pa.int32())),
    "large_list": pa.array([["a"], []], pa.large_list(pa.string())),
    "struct": pa.array([{"a": 1, "b": ["x"]}, None], pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
}


def test_types_that_readers_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    path.mkdir()
    pq.write_table(pa.table({"id": [1, 2], **READABLE}), path / "a.parquet")
    inlay.publish(path, "iceberg")
    want, pruned = inlay.read_parquet(path).to_pylist(), table_of(path).scan(row_filter="id < 2").to_arrow()
    by_pyiceberg, by_polars = read_pyiceberg(path, 0), read_polars(path, 0)
    for name in READABLE:
        assert plain(by_pyiceberg, name) == plain(by_polars, name) == plain(want, name)
        assert plain(pruned.to_pylist(), name) == plain(want, name)[:1]


def plain(rows: Rows, column: str) -> list[str]:
    def value(each: Any) -> Any:
        if isinstance(each, dt.datetime) and each.tzinfo:
            return each.astimezone(dt.UTC).isoformat()
        if isinstance(each, list) and each and isinstance(each[0], (tuple, dict)):
            return [tuple(pair.values()) if isinstance(pair, dict) else pair for pair in each]
        return sorted(each.items()) if isinstance(each, dict) else each

    return sorted(repr([row["id"], value(row[column])]) for row in rows)


REFUSED: dict[str, pa.Array] = {
    "uint8": pa.array([1, None], pa.uint8()),
    "uint32": pa.array([1, 2**32 - 1], pa.uint32()),
    "uint64": pa.array([1, 2**64 - 1], pa.uint64()),
    "decimal256": pa.array([1, None], pa.decimal256(50, 2)),
    "time32": pa.array([dt.time(1), None], pa.time32("ms")),
    "nanosecond time": pa.array([dt.time(1), None], pa.time64("ns")),
    "duration": pa.array([1, None], pa.duration("us")),
    "nanoseconds": pa.array([1, None], pa.timestamp("ns")),
    "zone": pa.array([1, None], pa.timestamp("us", "Europe/Berlin")),
    "null": pa.array([None, None], pa.null()),
    "halffloat": pa.array([1.5, None], pa.float16()),
    "nested": pa.array([[{"a": 1}], None], pa.list_(pa.struct([("a", pa.uint64())]))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_iceberg_lacks_are_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ds"
    path.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "x": REFUSED[name]}), path / "a.parquet")
    with pytest.raises(SchemaMismatchError, match="iceberg cannot express the column 'x'"):
        inlay.publish(path, "iceberg")
    assert not view_of(path).exists()
    assert not (tmp_path / ".ds.txn/views.json").exists()


def test_files_with_field_ids_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    path.mkdir()
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "7"})])
    pq.write_table(pa.table({"id": [1]}, schema), path / "a.parquet")
    with pytest.raises(SchemaMismatchError, match="field IDs of another table"):
        inlay.publish(path, "iceberg")


def test_odd_column_names_are_published(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    names = ["id", "a b", "ü`\"'", "x;y,{z}(=)", "tab\t", "_c", "A", "a"]
    inlay.write_dataset({name: [number] for number, name in enumerate(names)}, path)
    inlay.publish(path, "iceberg")
    assert check(path) == [1]


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, 20, None], pa.int64()),
        ([dt.date(2024, 1, 1), dt.date(2024, 12, 31), None], pa.date32()),
        (["a/b", "50%", "é", "x y", "a=b", "a+b", None], pa.string()),
    ],
    ids=["int64", "date", "string"],
)
def test_partition_columns_have_values_and_types(tmp_path: Path, values: list[Any], type_: pa.DataType) -> None:
    path = tmp_path / "ds"
    inlay.write_dataset({"id": range(len(values)), "p": pa.array(values, type_)}, path, partition_columns=["p"])
    inlay.publish(path, "iceberg")
    check(path)


def test_readers_prune_by_statistics_without_losing_rows(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    columns = {
        "i": [-(2**60), 2**60 + 1, None],
        "s": ["", "ü" * 40, None],
        "d": [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
        "t": [MOMENT, MOMENT + dt.timedelta(microseconds=1), None],
        "m": pa.array([decimal.Decimal("-1.25"), decimal.Decimal("9999999999.99"), None], pa.decimal128(12, 2)),
        "f": [1.5, float("nan"), None],
        "n": [True, False, None],
    }
    table = pa.table({"id": [1, 2, 3], **columns})
    for row in range(3):
        inlay.write_dataset(table.slice(row, 1), path)
    inlay.publish(path, "iceberg")
    scan = pl.scan_iceberg(table_of(path), reader_override="native")
    for name in columns:
        for row, value in enumerate(table[name].to_pylist()):
            condition = pl.col(name).is_null() if value is None else pl.col(name) == value
            assert scan.filter(condition).select("id").collect()["id"].to_list() == [row + 1], (name, value)
    assert table_of(path).scan(row_filter="f > 1000000.5").to_arrow()["id"].to_pylist() == []
    assert len(list(table_of(path).scan(row_filter="i > 5").plan_files())) == 1


# ------------------------------------------------------------------------------------------------------------- calls
def test_both_formats_are_published_side_by_side(sales: Path) -> None:
    inlay.publish(sales, "delta")
    upsert(sales, 0)
    assert check(sales) == [1, 2]
    assert pl.scan_delta(f"{sales}.delta", version=2).collect().height == 4
    victim = next((sales / "k=x").iterdir())
    assert victim.stat().st_nlink == 4
    inlay.forget(sales, before=2)
    assert check(sales) == [2]
    assert sorted(inlay.unpublish(sales)) == [f"{sales}.delta", f"{sales}.iceberg"]
    assert {path.name for path in sales.parent.iterdir()} == {"ds", ".ds.txn"}


def test_a_moved_dataset_needs_a_new_view(sales: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = sales.parent / "moved"
    target.mkdir()
    for name in ("ds", ".ds.txn", "ds.iceberg"):
        shutil.move(sales.parent / name, target / name)
    upsert(target / "ds", 0)
    assert "or has moved" in caplog.text
    inlay.publish(target / "ds", "iceberg")
    assert check(target / "ds") == [1, 2]


def test_foreign_snapshots_are_noticed(sales: Path, caplog: pytest.LogCaptureFixture) -> None:
    metadata = view_of(sales) / "metadata"
    table = json.loads((metadata / "v1.metadata.json").read_text())
    (metadata / "v2.metadata.json").write_text(json.dumps(table | {"current-snapshot-id": 77}))
    upsert(sales, 0)
    assert "Another program has written to the table" in caplog.text
    with pytest.raises(InvalidArgumentError, match="Another program has written to the table"):
        inlay.publish(sales, "iceberg")
    inlay.unpublish(sales, "iceberg")
    inlay.publish(sales, "iceberg")
    check(sales)


def test_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    inlay.write_dataset({"id": [1]}, tmp_path / "ds")
    with pytest.raises(EngineNotInstalledError, match="need the package pyiceberg"):
        inlay.publish(tmp_path / "ds", "iceberg")
    assert not view_of(tmp_path / "ds").exists()
