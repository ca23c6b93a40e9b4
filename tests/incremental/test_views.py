"""Views of a dataset for readers of Delta Lake: each version, statistics, types, retention and errors."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyiceberg.table import StaticTable

import inlay
from inlay.commit import published
from inlay.errors import InvalidArgumentError, NotFoundError, SchemaMismatchError
from inlay.views.delta import DeltaView
from tests.faults.scenarios import wrong_history

Rows = list[dict[str, Any]]


def view_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.delta")


def sorted_rows(rows: Rows) -> Rows:
    return sorted((dict(sorted(row.items())) for row in rows), key=repr)


def read_polars(path: Path, version: int) -> Rows:
    return sorted_rows(pl.scan_delta(view_of(path), version=version).collect().to_dicts())


def read_deltalake(path: Path, version: int) -> Rows:
    table = (
        QueryBuilder().register("t", DeltaTable(view_of(path), version=version)).execute("select * from t").read_all()
    )
    return sorted_rows(pa.table(table).to_pylist())


def expected(path: Path, version: int) -> Rows:
    return sorted_rows(inlay.read_parquet(path, version=version).to_pylist())


def check(path: Path) -> list[int]:
    """Check that both readers see each kept version, and that the view has no other files. Return the versions."""
    numbers = [entry.version for entry in inlay.history(path)]
    for number in numbers:
        assert read_polars(path, number) == read_deltalake(path, number) == expected(path, number)
    assert DeltaTable(view_of(path)).version() == max(numbers)
    assert links(view_of(path)) == links(path.parent / f".{path.name}.txn/files")
    assert wrong_history(path.parent) == []
    return sorted(numbers)


def links(folder: Path) -> set[str]:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not name.startswith("_delta_log/")}


def entries(path: Path) -> list[int]:
    """Return the numbers of the entries in the log that are not empty."""
    found = {int(entry.stem): entry.read_text() for entry in (view_of(path) / "_delta_log").iterdir()}
    assert sorted(found) == list(range(len(found)))
    return sorted(number for number, text in found.items() if '"operation":"DROP"' not in text)


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    """A published, partitioned dataset with version 1."""
    path = tmp_path / "ds"
    rows = {"id": [1, 2, 3], "v": ["a", "b", None], "k": ["x", "y z/%", None]}
    inlay.merge(rows, path, "upsert", "id", ["k"])
    inlay.keep(path, versions=50)
    inlay.publish(path, "delta")
    return path


def upsert(path: Path, number: int) -> None:
    inlay.merge({"id": [2, 10 + number], "v": [f"b{number}", "new"], "k": ["y z/%", "x"]}, path, "upsert", "id")


# -------------------------------------------------------------------------------------------------------- versions
def test_each_version_of_the_dataset_is_a_version_of_the_table(sales: Path) -> None:
    upsert(sales, 0)
    inlay.delete(sales, pc.field("id") == 1)
    inlay.compact(sales)
    inlay.undo(sales)
    inlay.restore(sales, 2)
    inlay.merge({"id": [2], "v": ["q"], "k": ["x"], "extra": [1.5]}, sales, "insert", "id", schema_mode="evolve")
    inlay.merge({"id": [9], "v": ["q"], "k": ["x"], "extra": [1.5]}, sales, "insert", "id", schema_mode="evolve")
    inlay.alter(sales, rename={"v": "w"}, drop=["extra"])
    inlay.write_dataset({"id": [7], "w": ["only"], "k": ["x"]}, sales, mode="overwrite")
    assert len(check(sales)) == inlay.history(sales)[0].version


def test_no_byte_of_data_is_written_twice(sales: Path) -> None:
    upsert(sales, 0)
    for path in (sales / "k=x").iterdir():
        link = next((view_of(sales) / "k=x").glob(f"{path.name}.*"))
        assert any(os.path.samefile(path, link) for link in (view_of(sales) / "k=x").iterdir())
        assert link.stat().st_nlink >= 2


def test_commits_carry_the_number_and_the_time_of_the_version(sales: Path) -> None:
    upsert(sales, 0)
    entry = inlay.history(sales)[0]
    [newest, *_] = DeltaTable(view_of(sales)).history()
    assert json.loads(newest["userMetadata"]) == {"inlay.version": 2}
    assert newest["operation"] == "MERGE"
    assert newest["timestamp"] == int(dt.datetime.fromisoformat(entry.at).timestamp() * 1000)
    table = DeltaTable(view_of(sales))
    table.load_as_version(entry.at)
    assert table.version() == 2


def test_other_readers_of_the_parent_directory_see_no_row_twice(sales: Path) -> None:
    inlay.keep(sales, versions=2)
    for number in range(15):
        upsert(sales, number)
    found = expected(sales, inlay.history(sales)[0].version)
    pattern = f"{sales.parent}/**/*.parquet"
    assert duckdb.sql(f"SELECT count(*) FROM '{pattern}'").fetchall() == [(len(found),)]
    assert pl.scan_parquet(pattern).select(pl.len()).collect().item() == len(found)


def test_a_found_directory_is_published_from_version_0(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    path.mkdir()
    pq.write_table(pa.table({"id": [1], "v": ["theirs"]}), path / "a.parquet")
    assert inlay.publish(path, "delta").version == 0
    inlay.merge({"id": [1], "v": ["ours"]}, path, "upsert", "id")
    pq.write_table(pa.table({"id": [5], "v": ["theirs"]}), path / "b.parquet")
    assert inlay.publish(path, "delta").version == 2
    assert check(path) == [0, 1, 2]


def test_an_empty_version_is_an_empty_table(sales: Path) -> None:
    inlay.delete(sales, pc.field("id") > 0)
    upsert(sales, 1)
    check(sales)


# ------------------------------------------------------------------------------------------------------- retention
def test_the_log_begins_with_the_oldest_kept_version(sales: Path) -> None:
    for number in range(5):
        upsert(sales, number)
    inlay.forget(sales, before=4)
    assert check(sales) == [4, 5, 6]
    assert entries(sales) == [4, 5, 6]
    with pytest.raises(Exception, match=r"this-version-is-dropped|No such file|not found"):
        read_deltalake(sales, 3)


def test_forget_frees_the_bytes_of_the_view_too(sales: Path) -> None:
    upsert(sales, 0)
    upsert(sales, 1)
    kept = {os.stat(path).st_ino for path in (sales.parent / "ds").rglob("*.parquet")}
    gone = [path for path in (view_of(sales)).rglob("*.parquet.*") if path.stat().st_ino not in kept]
    size = sum(path.stat().st_size for path in gone)
    assert inlay.forget(sales, before=3).bytes_freed == size
    check(sales)


def test_commits_write_the_log_again_only_after_many_dropped_versions(sales: Path) -> None:
    inlay.keep(sales, versions=2)
    begins = []
    for number in range(30):
        upsert(sales, number)
        begins.append(entries(sales)[0])
    assert 2 <= len(set(begins)) <= 4
    assert check(sales) == [30, 31]


@pytest.mark.parametrize("versions", [1, 3])
def test_a_view_that_waits_for_publish_keeps_its_files_meanwhile(sales: Path, versions: int) -> None:
    inlay.publish(sales, "delta", on_commit=False)
    inlay.keep(sales, versions=versions)
    before = read_polars(sales, 1)
    for number in range(5):
        upsert(sales, number)
    assert read_polars(sales, 1) == before
    view = inlay.publish(sales, "delta")
    assert (view.version, view.on_commit) == (6, False)
    assert len(check(sales)) == versions


# ------------------------------------------------------------------------------------------------- foreign changes
def test_versions_that_another_program_damaged_are_not_published(sales: Path) -> None:
    [victim] = (sales / "k=x").iterdir()  # of version 1
    upsert(sales, 0)
    with open(victim, "r+b") as file:
        file.truncate(0)
        pq.write_table(pa.table({"id": [77], "v": ["in place"]}), file)
    upsert(sales, 1)
    assert read_polars(sales, 4) == read_deltalake(sales, 4) == expected(sales, 4)
    assert {"id": 77, "k": "x", "v": "in place"} in read_polars(sales, 3)
    for version in (1, 2):
        with pytest.raises(Exception, match=r"this-version-is-dropped|No such file|not found"):
            read_polars(sales, version)
    inlay.publish(sales, "delta")
    assert DeltaTable(view_of(sales)).version() == 4
    assert entries(sales) == [3, 4]


def test_other_programs_cannot_write_to_the_view(sales: Path) -> None:
    rows = pa.table({"id": [1], "v": ["x"], "k": ["x"]})
    with pytest.raises(Exception, match="inlayView"):
        write_deltalake(view_of(sales), rows, mode="append")
    with pytest.raises(Exception, match="inlayView"):
        DeltaTable(view_of(sales)).delete()


def test_a_foreign_entry_in_the_log_is_noticed(sales: Path, caplog: pytest.LogCaptureFixture) -> None:
    (view_of(sales) / "_delta_log/00000000000000000002.json").write_text('{"commitInfo":{"operation":"WRITE"}}\n')
    upsert(sales, 0)
    assert "Another program has written version 2" in caplog.text
    with pytest.raises(InvalidArgumentError, match="Another program has written version 2"):
        inlay.publish(sales, "delta")
    inlay.unpublish(sales, "delta")
    inlay.publish(sales, "delta")
    check(sales)


def test_a_new_history_needs_a_new_view(sales: Path, caplog: pytest.LogCaptureFixture) -> None:
    upsert(sales, 0)
    shutil.rmtree(sales.parent / ".ds.txn/versions")
    shutil.rmtree(sales.parent / ".ds.txn/files")
    upsert(sales, 1)
    assert "shows versions of another history" in caplog.text
    inlay.publish(sales, "delta")
    assert check(sales) == [0, 1]


def test_a_moved_dataset_takes_its_view_along(sales: Path) -> None:
    target = sales.parent / "moved"
    target.mkdir()
    for name in ("ds", ".ds.txn", "ds.delta"):
        shutil.move(sales.parent / name, target / name)
    upsert(target / "ds", 0)
    assert check(target / "ds") == [1, 2]


def test_a_deleted_folder_comes_back_with_publish_only(sales: Path) -> None:
    shutil.rmtree(view_of(sales))
    upsert(sales, 0)
    assert not view_of(sales).exists()
    inlay.publish(sales, "delta")
    assert check(sales) == [1, 2]


# -------------------------------------------------------------------------------------------------------- statistics
MOMENT = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)  # noqa: DTZ001
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [-(2**60), 2**60 + 1, None]),
    "u": (pa.uint32(), [0, 2**32 - 1, None]),
    "s": (pa.string(), ["", "ü" * 20, None]),
    "long": (pa.string(), ["a" * 200, "b" * 200, None]),
    "d": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "t": (pa.timestamp("us"), [MOMENT, MOMENT + dt.timedelta(microseconds=1), None]),
    "z": (pa.timestamp("ms", "Europe/Berlin"), [MOMENT.replace(microsecond=1000), MOMENT, None]),
    "m": (pa.decimal128(12, 2), [decimal.Decimal("-1.25"), decimal.Decimal("9999999999.99"), None]),
    "wide": (pa.decimal128(38, 10), [decimal.Decimal("1.0000000001") * 10**20, decimal.Decimal(0), None]),
    "f": (pa.float64(), [1.5, float("nan"), None]),
    "b": (pa.binary(), [b"\xff", b"", None]),
    "n": (pa.bool_(), [True, False, None]),
}


def test_statistics_are_exact_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    columns = {name: pa.array(values, type_) for name, (type_, values) in VALUES.items()}
    inlay.write_dataset(pa.table({"id": [1, 2, 3], **columns}), path)
    inlay.publish(path, "delta")
    with open(view_of(path) / "_delta_log/00000000000000000001.json") as file:
        [stats] = [json.loads(json.loads(line)["add"]["stats"]) for line in file if '"add"' in line]
    assert stats["numRecords"] == 3
    assert stats["nullCount"] == {"id": 0} | dict.fromkeys(VALUES.keys() - {"f"}, 1)  # NaN makes its footer unusable
    assert stats["minValues"] == {
        "id": 1, "i": -(2**60), "u": 0, "s": "", "d": "0001-01-01", "t": "2024-02-29T12:30:15.123456",
        "z": "2024-02-29T12:30:15.001000Z", "m": -1.25,
    }  # fmt: skip
    assert stats["maxValues"]["z"] == "2024-02-29T12:30:15.123000Z"
    assert stats["maxValues"].keys() == stats["minValues"].keys()


def test_readers_prune_by_statistics_without_losing_rows(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    columns = {name: pa.array(values, type_) for name, (type_, values) in VALUES.items()}
    table = pa.table({"id": [1, 2, 3], **columns})
    for row in range(3):
        inlay.write_dataset(table.slice(row, 1), path)
    inlay.publish(path, "delta")
    scan = pl.scan_delta(view_of(path))
    for name in (*VALUES, "id"):
        for row, value in enumerate(table[name].to_pylist()):
            in_utc = value.astimezone(dt.UTC) if name == "z" and value else value
            condition = pl.col(name).is_null() if value is None else pl.col(name) == in_utc
            assert scan.filter(condition).select("id").collect()["id"].to_list() == [row + 1], (name, value)
    query = QueryBuilder().register("t", DeltaTable(view_of(path)))
    found = pa.table(
        query.execute("select max(t), min(t), max(i), count(*) from t where f > 1e300 or id < 9").read_all()
    )
    assert list(found.to_pylist()[0].values()) == [MOMENT + dt.timedelta(microseconds=1), MOMENT, 2**60 + 1, 3]
    found = pa.table(query.execute("select id from t where f > 1e300").read_all())
    assert found.to_pydict() == {"id": [2]}


# ------------------------------------------------------------------------------------------------------------ types
READABLE: dict[str, pa.Array] = {
    "int8": pa.array([-128, 127], pa.int8()),
    "uint8": pa.array([0, 255], pa.uint8()),
    "uint16": pa.array([0, 65535], pa.uint16()),
    "uint32": pa.array([0, 2**32 - 1], pa.uint32()),
    "float32": pa.array([0.5, None], pa.float32()),
    "large_string": pa.array(["a", None], pa.large_string()),
    "string_view": pa.array(["a", None], pa.string_view()),
    "dictionary": pa.array(["a", None]).dictionary_encode(),
    "fixed_size_binary": pa.array([b"ab", None], pa.binary(2)),
    "large_binary": pa.array([b"ab", None], pa.large_binary()),
    "decimal": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(20, 2)),
    "seconds": pa.array([MOMENT.replace(microsecond=0), None], pa.timestamp("s")),
    "milliseconds": pa.array([MOMENT.replace(microsecond=1000), None], pa.timestamp("ms", "UTC")),
    "list": pa.array([[1, None], None], pa.list_(pa.int32())),
    "large_list": pa.array([["a"], []], pa.large_list(pa.string())),
    "struct": pa.array([{"a": 1, "b": ["x"]}, None], pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
}


def test_types_that_readers_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    path.mkdir()
    pq.write_table(pa.table({"id": [1, 2], **READABLE}), path / "a.parquet")
    inlay.publish(path, "delta")
    want = inlay.read_parquet(path).to_pylist()
    for read in (read_polars, read_deltalake):
        found = read(path, 0)
        for name in READABLE:
            assert plain(found, name) == plain(want, name)


def plain(rows: Rows, column: str) -> list[str]:
    def value(each: Any) -> Any:
        if isinstance(each, dt.datetime) and each.tzinfo:
            return each.astimezone(dt.UTC).isoformat()
        if isinstance(each, list) and each and isinstance(each[0], (tuple, dict)):
            return [tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) for pair in each]
        if isinstance(each, dict):
            return sorted(each.items())
        return each

    return sorted(repr([row["id"], value(row[column])]) for row in rows)


REFUSED: dict[str, pa.Array] = {
    "uint64": pa.array([1, 2**64 - 1], pa.uint64()),
    "decimal256": pa.array([1, None], pa.decimal256(50, 2)),
    "time32": pa.array([dt.time(1), None], pa.time32("ms")),
    "time64": pa.array([dt.time(1), None], pa.time64("us")),
    "duration": pa.array([1, None], pa.duration("us")),
    "nanoseconds": pa.array([1, None], pa.timestamp("ns")),
    "null": pa.array([None, None], pa.null()),
    "halffloat": pa.array([1.5, None], pa.float16()),
    "nested": pa.array([[{"a": 1}], None], pa.list_(pa.struct([("a", pa.uint64())]))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_delta_lacks_are_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ds"
    path.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "x": REFUSED[name]}), path / "a.parquet")
    with pytest.raises(SchemaMismatchError, match="delta cannot express the column 'x'"):
        inlay.publish(path, "delta")
    assert not view_of(path).exists()
    assert not (tmp_path / ".ds.txn/views.json").exists()


def test_names_that_differ_in_case_only_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    path.mkdir()
    pq.write_table(pa.table({"a": [1], "A": [2]}), path / "a.parquet")
    with pytest.raises(SchemaMismatchError, match="differs from 'a' only in case"):
        inlay.publish(path, "delta")


def test_odd_column_names_are_published(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    names = ["id", "a b", "a.b", "ü`\"'", "x;y,{z}(=)", "tab\t", "_c"]
    inlay.write_dataset({name: [number] for number, name in enumerate(names)}, path)
    inlay.publish(path, "delta")
    check(path)


def test_files_of_different_types_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    path.mkdir()
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), path / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([2], pa.int32())}), path / "b.parquet")
    with pytest.raises(SchemaMismatchError, match="int32 in some files and int64 in others"):
        inlay.publish(path, "delta")


def test_a_commit_that_the_view_cannot_express_is_complete(sales: Path, caplog: pytest.LogCaptureFixture) -> None:
    wide = pa.table({"id": [4], "v": ["d"], "k": ["x"], "big": pa.array([2**64 - 1], pa.uint64())})
    with caplog.at_level(logging.WARNING, "inlay.commit"):
        inlay.merge(wide, sales, "upsert", "id", schema_mode="evolve")
    assert "delta cannot express the column 'big'" in caplog.text
    assert inlay.read_parquet(sales).num_rows == 4
    assert DeltaTable(view_of(sales)).version() == 1
    with pytest.raises(SchemaMismatchError, match="'big'"):
        inlay.publish(sales, "delta")
    inlay.alter(sales, drop=["big"])
    with pytest.raises(SchemaMismatchError, match="'big'"):  # Version 2 is kept.
        inlay.publish(sales, "delta")
    inlay.forget(sales, before=3)
    assert inlay.publish(sales, "delta").version == 3
    assert check(sales) == [3]


# ----------------------------------------------------------------------------------------------------------- partitions
@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, 20, None], pa.int64()),
        ([dt.date(2024, 1, 1), dt.date(2024, 12, 31), None], pa.date32()),
        (["a/b", "50%", "é", "x y", "a=b", "a+b", None], pa.string()),
        ([True, False, None], pa.bool_()),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(value),
)
def test_partition_columns_have_values_and_types(tmp_path: Path, values: list[Any], type_: pa.DataType) -> None:
    path = tmp_path / "ds"
    inlay.write_dataset({"id": range(len(values)), "p": pa.array(values, type_)}, path, partition_columns=["p"])
    inlay.publish(path, "delta")
    check(path)


def test_the_type_of_a_partition_column_follows_its_values(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    inlay.write_dataset({"id": [1], "p": [2024]}, path, partition_columns=["p"])
    inlay.keep(path, versions=9)
    inlay.publish(path, "delta")
    pq.write_table(pa.table({"id": [2]}), _made(path / "p=text") / "b.parquet")
    inlay.publish(path, "delta")
    shutil.rmtree(path / "p=text")
    inlay.publish(path, "delta")
    assert check(path) == [1, 2, 3]


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def test_files_outside_the_partitions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    pq.write_table(pa.table({"id": [1]}), _made(path) / "a.parquet")
    pq.write_table(pa.table({"id": [2]}), _made(path / "p=1") / "b.parquet")
    with pytest.raises(InvalidArgumentError, match="partition column 'p'"):
        inlay.publish(path, "delta")


# ---------------------------------------------------------------------------------------------------------- calls
def test_publish_and_unpublish_leave_the_dataset_as_it_is(sales: Path) -> None:
    assert inlay.unpublish(sales, "delta") == [str(view_of(sales))]
    assert {path.name for path in sales.parent.iterdir()} == {"ds", ".ds.txn"}
    assert not (sales.parent / ".ds.txn/views.json").exists()
    assert wrong_history(sales.parent) == []
    with pytest.raises(NotFoundError, match="is not published as delta"):
        inlay.unpublish(sales, "delta")
    assert inlay.unpublish(sales) == []


def test_a_view_can_be_in_another_folder(sales: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="already published"):
        inlay.publish(sales, "delta", folder=tmp_path / "other")
    inlay.unpublish(sales)
    view = inlay.publish(sales, "delta", folder=tmp_path / "tables/sales")
    assert view.folder == str(tmp_path / "tables/sales")
    upsert(sales, 0)
    assert inlay.publish(sales, "delta", folder=tmp_path / "tables/sales").version == 2
    assert pl.scan_delta(view.folder).collect().height == 4


@pytest.mark.parametrize("folder", ["ds", "ds/view", ".", "used"])
def test_folders_in_use_are_refused(tmp_path: Path, folder: str) -> None:
    path = tmp_path / "ds"
    inlay.write_dataset({"id": [1]}, path)
    _made(tmp_path / "used").joinpath("file").touch()
    with pytest.raises(InvalidArgumentError, match=r"is not empty|contain one another"):
        inlay.publish(path, "delta", folder=tmp_path / folder)
    assert not (tmp_path / ".ds.txn/views.json").exists()


def test_unknown_formats_and_missing_datasets_are_named(sales: Path, tmp_path: Path) -> None:
    for call in (inlay.publish, inlay.unpublish):
        with pytest.raises(InvalidArgumentError, match="no view format 'hudi'"):
            call(sales, "hudi")
        with pytest.raises(NotFoundError):
            call(tmp_path / "none", "delta")


def test_a_folder_on_another_filesystem_is_refused(sales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inlay.unpublish(sales)

    link = os.link

    def fail(source: str, target: str, **options: Any) -> None:
        if target.startswith(f"{sales}.delta"):
            raise OSError(18, "Invalid cross-device link")
        link(source, target, **options)

    monkeypatch.setattr(published.os, "link", fail)
    with pytest.raises(OSError, match=r"cannot have the hard link .*cross-device"):
        inlay.publish(sales, "delta")
    monkeypatch.undo()
    assert inlay.publish(sales, "delta").version == 1


def test_a_history_with_views_does_not_end(sales: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="is published as delta"):
        inlay.forget(sales)
    inlay.unpublish(sales)
    assert inlay.forget(sales).versions == [1]


def test_a_commit_reads_and_writes_only_its_own_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ds"
    inlay.merge({"id": range(100), "p": range(100)}, path, "upsert", "id", ["p"])
    inlay.publish(path, "delta")
    inlay.merge({"id": [500], "p": [5]}, path, "upsert", "id")
    entry = view_of(path) / "_delta_log/00000000000000000002.json"
    assert sum('"add"' in line for line in entry.read_text().splitlines()) == 1
    assert entry.stat().st_size < 4_000


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_a_view_that_waits_begins_again_when_its_version_is_deleted(tmp_path: Path, format_: Any) -> None:
    path = tmp_path / "ds"
    inlay.merge({"id": [1, 2]}, path, "upsert", "id")
    inlay.keep(path, versions=1)
    inlay.publish(path, format_, on_commit=False)
    inlay.write_dataset({"id": [10]}, path, mode="overwrite")
    inlay.keep(path, versions=1)  # deletes the links of version 1, which the view shows
    assert inlay.publish(path, format_).version == 2
    if format_ == "delta":
        found = pl.scan_delta(view_of(path)).collect().to_arrow()
    else:
        found = StaticTable.from_metadata(str(tmp_path / "ds.iceberg")).scan().to_arrow()
    assert found["id"].to_pylist() == [10]


def test_a_commit_reads_few_entries_of_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ds"
    inlay.write_dataset({"id": [0]}, path)
    inlay.publish(path, "delta")
    inlay.keep(path, versions=2)
    for number in range(1, 40):
        inlay.write_dataset({"id": [number]}, path, mode="overwrite")
    read: list[int] = []
    read_head = DeltaView._read_head
    monkeypatch.setattr(DeltaView, "_read_head", lambda view, number: read.append(number) or read_head(view, number))
    inlay.publish(path, "delta")
    assert len(read) < 12
    assert pl.scan_delta(view_of(path)).collect()["id"].to_list() == [39]
    with pytest.raises(Exception, match="this-version-is-dropped"):
        pl.scan_delta(view_of(path), version=20).collect()
