"""Versions of a plain dataset: history, reads of a version, undo, restore, keep, forget and foreign changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.commit import records as records_module
from inlay.commit.history import History
from inlay.commit.kept import FileList
from inlay.commit.local import LocalJournal
from inlay.commit.transaction import IncrementalFileManager
from inlay.errors import (
    DamagedVersionError,
    HistoryUnavailableError,
    InvalidArgumentError,
    NotFoundError,
)
from inlay.storage import locate
from tests.faults.scenarios import leftovers
from tests.versions import (
    LOCAL,
    STORAGES,
    Dataset,
    dataset_size,
    hidden_objects,
    refuse_links,
    write_file,
    wrong_versions,
)


def rows(path: Dataset, version: int | None = None) -> dict[int, str]:
    table = inlay.read_parquet(path, version=version)
    return dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))


def upsert(path: Dataset, **values: str) -> None:
    ids = [int(name[1:]) for name in values]
    inlay.merge({"id": ids, "v": list(values.values())}, path, "upsert", "id")


def keep(path: Dataset, **limits: Any) -> Any:
    return inlay.keep(path, **limits, copies=True)  # Only storage without hard links needs it.


def build(path: Dataset) -> Any:
    """Build version 1 (two rows) and version 2 (one row updated, one inserted)."""
    inlay.write_dataset({"id": [1, 2], "v": ["a", "b"]}, path)
    keep(path, versions=20)  # By default, versions may not cost more than the dataset, which is tiny.
    upsert(path, k2="B", k3="C")
    return path


@pytest.fixture
def sales(tmp_path: Path) -> Path:
    """A dataset with versions, whose files have hard links."""
    return cast(Path, build(tmp_path / "ds"))


@pytest.fixture
def stored(storage: Dataset) -> Dataset:
    """A dataset with versions on a local disk, or on the storages of `storage`."""
    return cast(Dataset, build(storage))


everywhere = pytest.mark.parametrize("storage", STORAGES, indirect=True)
on_disk = pytest.mark.parametrize("storage", LOCAL, indirect=True)
FIRST, SECOND = {1: "a", 2: "b"}, {1: "a", 2: "B", 3: "C"}


def check(path: Dataset) -> None:
    """Check that links, records and the dataset agree, after the deletion of dropped versions has finished."""
    inlay.recover(path)
    assert wrong_versions(path) == []


# --------------------------------------------------------------------------------------------------------- history
def test_a_merge_on_each_engine_makes_a_version_that_stays_readable(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / "ds"
    before = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"], "p": ["x", "x", "y"]})
    inlay.merge(before, path, "upsert", "id", ["p"], engine=engine)
    inlay.merge(before.slice(1, 1).set_column(1, "v", [["B"]]), path, "upsert", "id", engine=engine)
    assert [entry.version for entry in inlay.history(path)] == [2, 1]
    assert rows(path, 1) == {1: "a", 2: "b", 3: "c"}
    assert rows(path, 2) == rows(path) == {1: "a", 2: "B", 3: "c"}
    assert inlay.read_parquet(path, version=1).column_names == ["id", "v", "p"]
    check(path)


@everywhere
def test_history_tells_what_each_commit_did(stored: Dataset) -> None:
    inlay.write_dataset({"id": [9], "v": ["z"]}, stored, mode="overwrite")
    overwrite, merge, append = inlay.history(stored)
    assert (merge.version, merge.operation, merge.strategy, merge.key_columns) == (2, "merge", "upsert", ["id"])
    assert (merge.inserted, merge.updated, merge.deleted, merge.rows, merge.files) == (1, 1, 0, 3, 2)
    assert (append.version, append.operation, append.inserted, append.rows) == (1, "append", 2, 2)
    assert (overwrite.operation, overwrite.inserted, overwrite.deleted, overwrite.rows) == ("overwrite", 1, 3, 1)
    assert overwrite.bytes == dataset_size(stored)
    assert not any(entry.external or entry.damaged for entry in (overwrite, merge, append))


@everywhere
def test_history_is_a_table_in_terminals_and_notebooks(stored: Dataset) -> None:
    inlay.restore(stored, 1)
    text = repr(inlay.history(stored)).splitlines()
    assert text[0].split() == ["version", "at", "operation", "strategy", "inserted", "updated", "deleted", "rows",
                               "files", "bytes"]  # fmt: skip
    assert text[1].startswith("3 ")
    assert "restore to 1" in text[1]
    assert "<td>upsert</td>" in inlay.history(stored)._repr_html_()
    assert inlay.history(stored)[0].to_dict()["restores"] == 1


@everywhere
def test_the_first_commit_to_a_directory_records_what_it_found_as_version_0(storage: Dataset) -> None:
    write_file(storage, "a.parquet", pa.table({"id": [1], "v": ["theirs"]}))
    assert inlay.history(storage) == ()
    upsert(storage, k1="ours")
    assert [(entry.version, entry.operation, entry.external) for entry in inlay.history(storage)] == [
        (1, "merge", False),
        (0, "found", True),
    ]
    assert rows(storage, 0) == {1: "theirs"}
    assert inlay.history(storage)[1].rows == (1 if isinstance(storage, Path) else None)
    check(storage)


@everywhere
def test_a_call_that_changes_nothing_makes_no_version(stored: Dataset) -> None:
    upsert(stored, k1="a")
    inlay.restore(stored, 2)
    assert inlay.restore(stored, 2).version == 2
    assert [entry.version for entry in inlay.history(stored)] == [2, 1]


@everywhere
def test_a_missing_version_is_named_with_those_that_are_kept(stored: Dataset) -> None:
    with pytest.raises(NotFoundError, match=r"Version 7 .* Versions 1 to 2 are kept"):
        inlay.read_parquet(stored, version=7)
    with pytest.raises(NotFoundError, match="Version 7"), inlay.open_dataset(stored, 7):
        pass


@on_disk
def test_other_readers_of_the_parent_directory_see_no_row_twice(stored: Any) -> None:
    for number in range(3):
        upsert(stored, k1=f"again {number}")
    with duckdb.connect() as connection:
        [(count,)] = connection.execute(f"SELECT count(*) FROM '{stored.parent}/**/*.parquet'").fetchall()
    assert count == pl.scan_parquet(f"{stored.parent}/**/*.parquet").select(pl.len()).collect().item() == 3
    outside = [file for file in stored.parent.rglob("*") if file.suffix == ".parquet" and stored not in file.parents]
    assert outside == []


@everywhere
def test_polars_and_duckdb_scan_an_open_version_with_its_partition_columns(storage: Dataset) -> None:
    inlay.write_dataset({"id": [1, 2, 3], "p": ["007", "a/b 50%", None]}, storage, partition_columns="p")
    inlay.merge({"id": [1], "p": ["007"]}, storage, "delete", ["id", "p"])
    expected = [(1, "007"), (2, "a/b 50%"), (3, None)]
    with inlay.open_dataset(storage, 1) as dataset:
        assert sorted(pl.scan_pyarrow_dataset(dataset).collect().rows()) == expected
        assert pl.scan_pyarrow_dataset(dataset).filter(pl.col("p") == "007").collect().rows() == expected[:1]
        assert sorted(duckdb.from_arrow(dataset).fetchall()) == expected
        assert duckdb.from_arrow(dataset).filter("p = '007'").fetchall() == expected[:1]


@everywhere
@pytest.mark.parametrize("version", [1, None], ids=["an earlier version", "the newest version"])
def test_scans_of_an_open_version_see_no_later_commit(stored: Dataset, version: int | None) -> None:
    with inlay.open_dataset(stored, version) as dataset:
        upsert(stored, k1="later", k2="later")
        inlay.compact(stored)
        expected = sorted((FIRST if version else SECOND).items())
        assert sorted(dataset.scan_polars().collect().rows()) == expected
        assert sorted(dataset.duckdb(duckdb.connect()).fetchall()) == expected


def test_names_of_255_bytes_are_kept(tmp_path: Path) -> None:
    path, name = tmp_path / "ds", "é" * 123 + "x.parquet"
    assert len(name.encode()) == 255
    path.mkdir()
    pq.write_table(pa.table({"id": [1], "v": ["a"]}), path / name)
    upsert(path, k1="b")
    assert rows(path, 0) == {1: "a"}
    check(path)


# ---------------------------------------------------------------------------------------------------- readers' pins
@on_disk
def test_an_open_version_is_not_dropped(stored: Any) -> None:
    with inlay.open_dataset(stored, 1) as dataset:
        report = inlay.forget(stored, before=2)
        assert (report.versions, report.pinned) == ([], 1)
        assert dataset.to_table().num_rows == 2
    assert inlay.forget(stored, before=2).versions == [1]
    with pytest.raises(NotFoundError):
        inlay.read_parquet(stored, version=1)
    check(stored)


@on_disk
def test_the_newest_version_is_pinned_while_commits_go_on(stored: Any) -> None:
    with inlay.open_dataset(stored) as dataset:
        for number in range(25):
            upsert(stored, k1=str(number))
        assert {row["v"] for row in dataset.to_table().to_pylist()} == {"a", "B", "C"}
    upsert(stored, k1="last")
    assert len(inlay.history(stored)) == 20
    check(stored)


def test_the_pin_of_a_killed_reader_ends(sales: Path) -> None:
    program = "import inlay, sys; c = inlay.open_dataset(sys.argv[1], 1); c.__enter__(); print(flush=True); input()"
    reader = subprocess.Popen(
        [sys.executable, "-c", program, str(sales)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdout is not None
    reader.stdout.readline()
    try:
        assert inlay.forget(sales, before=2).pinned == 1
    finally:
        reader.kill()
        reader.communicate()
    assert inlay.forget(sales, before=2).versions == [1]


# ------------------------------------------------------------------------------------------------------- retention
def test_by_default_ten_versions_are_kept_while_they_cost_less_than_the_dataset(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    inlay.write_dataset({"id": list(range(5000)), "v": [str(n) * 9 for n in range(5000)]}, path)
    for number in range(12):
        inlay.write_dataset({"id": [10_000 + number], "v": ["small"]}, path)
    assert [entry.version for entry in inlay.history(path)] == list(range(13, 3, -1))
    inlay.write_dataset({"id": [1], "v": ["x"]}, path, mode="overwrite")
    assert [entry.version for entry in inlay.history(path)] == [14, 13], "older versions cost more than the dataset"
    check(path)


@everywhere
def test_keep_replaces_all_limits_and_acts_at_once(stored: Dataset) -> None:
    for number in range(4):
        upsert(stored, k1=str(number))
    keep(stored, versions=3)
    assert [entry.version for entry in inlay.history(stored)] == [6, 5, 4]
    assert keep(stored, days=1).versions == [], "the limit of three versions no longer applies"
    for number in range(12):
        upsert(stored, k1=f"more {number}")
    assert len(inlay.history(stored)) == 15
    assert keep(stored, days=0).versions == list(range(4, 18))
    keep(stored, bytes=0)
    upsert(stored, k1="end")
    assert [entry.version for entry in inlay.history(stored)] == [19]
    check(stored)


@pytest.mark.parametrize("limit", [{"versions": 0}, {"days": -1}, {"bytes": -1}])
def test_limits_that_keep_nothing_are_rejected(sales: Path, limit: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        inlay.keep(sales, **limit)


def test_a_commit_reads_only_the_entries_of_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ds").mkdir()
    for number in range(70):
        pq.write_table(pa.table({"id": [number], "v": ["a"]}), tmp_path / f"ds/{number}.parquet")
    upsert(tmp_path / "ds", k1="b")
    with monkeypatch.context() as patch:
        patch.setattr(FileList, "all", None)
        patch.setattr(History, "record_external", None)
        upsert(tmp_path / "ds", k2="c")
        upsert(tmp_path / "ds", k1="d", k3="d")
    versions = inlay.history(tmp_path / "ds")
    size = sum(file.stat().st_size for file in (tmp_path / "ds").rglob("*.parquet"))
    assert [(version.version, version.files) for version in versions] == [(3, 70), (2, 70), (1, 70), (0, 70)]
    assert versions[0].bytes == size
    assert [rows(tmp_path / "ds", number)[1] for number in range(4)] == ["a", "b", "b", "d"]
    check(tmp_path / "ds")


@pytest.mark.parametrize("number", [1, 2], ids=["of the newest version", "of an earlier version"])
@pytest.mark.parametrize("change", ["replace", "remove", "touch", "add"])
def test_a_commit_notices_a_change_of_any_file(tmp_path: Path, number: int, change: str) -> None:
    (tmp_path / "ds").mkdir()
    for each in range(3):
        pq.write_table(pa.table({"id": [each], "v": ["a"]}), tmp_path / f"ds/{each}.parquet")
    upsert(tmp_path / "ds", k1="b")
    inlay.keep(tmp_path / "ds", versions=9)
    file = tmp_path / f"ds/{number}.parquet"
    if change == "remove":
        file.unlink()
    elif change == "touch":
        os.utime(file, ns=(0, 0))
    else:
        target = file.with_name("b.parquet") if change == "add" else file
        pq.write_table(pa.table({"id": [number + 10], "v": ["x"]}), tmp_path / "new")
        (tmp_path / "new").rename(target)
    upsert(tmp_path / "ds", k0="c")
    # The footer tells that a file with another time is the same.
    external = [] if change == "touch" else ["external"]
    assert [version.operation for version in inlay.history(tmp_path / "ds")] == ["merge", *external, "merge", "found"]
    assert rows(tmp_path / "ds", len(external) + 2) == rows(tmp_path / "ds")


def test_forget_deletes_links_and_cached_footers_and_reports_the_freed_bytes(sales: Path) -> None:
    size = sum(file.stat().st_size for file in (sales.parent / ".ds.txn/files").rglob("*") if file.stat().st_nlink == 1)
    (sales.parent / ".ds.txn/footers.db").write_bytes(b"statistics of forgotten rows")
    report = inlay.forget(sales, before=2)
    assert (report.versions, report.bytes_freed, report.pinned) == ([1], size, None)
    assert size > 0
    assert not (sales.parent / ".ds.txn/footers.db").exists()
    links = [file for file in (sales.parent / ".ds.txn/files").rglob("*") if file.is_file()]
    assert all(file.stat().st_nlink == 2 for file in links)
    check(sales)
    with pytest.raises(InvalidArgumentError, match="newest version is 2"):
        inlay.forget(sales, before=3)


@everywhere
def test_forget_without_a_number_deletes_the_history_and_its_limits(stored: Dataset) -> None:
    report = inlay.forget(stored)
    assert (report.versions, report.pinned) == ([1, 2], None)
    assert report.bytes_freed > 0
    assert rows(stored) == SECOND
    assert hidden_objects(stored) == []
    if isinstance(stored, str):
        with pytest.raises(HistoryUnavailableError):
            inlay.history(stored)
    keep(stored, versions=5)
    upsert(stored, k1="again")
    assert [(entry.version, entry.operation) for entry in inlay.history(stored)] == [(1, "merge"), (0, "found")]
    assert rows(stored, 0) == SECOND
    check(stored)


def test_forget_without_a_number_keeps_what_a_reader_reads(sales: Path) -> None:
    upsert(sales, k1="x")
    with inlay.open_dataset(sales, 2) as dataset:
        report = inlay.forget(sales)
        assert (report.versions, report.pinned) == ([1], 2)
        assert dataset.to_table().num_rows == 3
    assert inlay.forget(sales).versions == [2, 3]
    assert inlay.history(sales) == ()
    check(sales)


def test_a_history_whose_records_are_lost_can_be_forgotten(sales: Path) -> None:
    (sales.parent / ".ds.txn/versions/00000001.json").unlink()
    with pytest.raises(inlay.InlayError, match="lacks a record"):
        inlay.read_parquet(sales, version=2)
    assert inlay.forget(sales).versions == [2]
    upsert(sales, k1="x")
    assert [entry.version for entry in inlay.history(sales)] == [1, 0]
    check(sales)


@on_disk
def test_long_histories_are_read_from_lists_of_all_files(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "_FEW_RECORDS", 3)
    keep(stored, versions=30)
    for number in range(12):
        upsert(stored, k1=str(number))
    assert list((stored.parent / ".ds.txn/versions").glob("*.all"))
    assert rows(stored, 1) == FIRST
    assert rows(stored, 10) == SECOND | {1: "7"}
    inlay.forget(stored, before=12)
    assert rows(stored, 12) == SECOND | {1: "9"}
    numbers = sorted(int(file.stem) for file in (stored.parent / ".ds.txn/versions").glob("*.past"))
    assert numbers == [] or numbers[0] > 1, "records that no kept version needs are deleted"
    check(stored)


# ------------------------------------------------------------------------------------------------ undo and restore
@everywhere
def test_undo_reverts_one_change_after_the_other(stored: Dataset) -> None:
    upsert(stored, k4="D")
    assert inlay.undo(stored).restores == 2
    assert rows(stored) == SECOND
    assert inlay.undo(stored).restores == 1
    assert rows(stored) == FIRST
    with pytest.raises(NotFoundError, match="Version 0"):
        inlay.undo(stored)
    assert rows(stored) == FIRST
    assert inlay.restore(stored, 3).operation == "restore"
    assert rows(stored) == SECOND | {4: "D"}
    assert inlay.undo(stored).restores == 5, "the restore was the newest change"
    assert rows(stored) == FIRST
    check(stored)


@everywhere
def test_undo_reverts_a_compaction_with_the_change_before_it(stored: Dataset) -> None:
    inlay.compact(stored)
    assert inlay.history(stored)[0].operation == "compact"
    assert inlay.undo(stored).restores == 1
    assert rows(stored) == FIRST


@everywhere
def test_a_version_can_be_restored_several_times(stored: Dataset) -> None:
    for version in (1, 2, 1, 2):
        inlay.restore(stored, version)
        assert rows(stored) == (FIRST if version == 1 else SECOND)
    assert inlay.forget(stored, before=6).versions == [1, 2, 3, 4, 5]
    assert rows(stored) == SECOND
    check(stored)


def test_restore_encodes_no_rows(sales: Path) -> None:
    [old] = [
        file for file in (sales.parent / ".ds.txn/files").rglob("*") if file.is_file() and file.stat().st_nlink == 1
    ]
    inlay.restore(sales, 1)
    assert [file.stat().st_ino for file in sales.rglob("*.parquet")] == [old.stat().st_ino]


@on_disk
def test_empty_versions_can_be_restored(stored: Any) -> None:
    for file in stored.rglob("*.parquet"):
        file.unlink()
    inlay.write_dataset({"id": [7], "v": ["new"]}, stored)
    assert [(entry.operation, entry.files) for entry in inlay.history(stored)[:2]] == [("append", 1), ("external", 0)]
    inlay.restore(stored, 3)
    assert list(stored.rglob("*.parquet")) == []
    inlay.restore(stored, 2)
    assert rows(stored) == SECOND
    check(stored)


# --------------------------------------------------------------------------------------------------- other writers
def replace(path: Path, table: pa.Table) -> None:
    """Write a new file and rename it over the old one, as careful programs do."""
    pq.write_table(table, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").rename(path)


@on_disk
@pytest.mark.parametrize("foreign", ["added", "replaced", "removed"])
def test_a_foreign_change_is_read_at_once_and_recorded_by_the_next_write(stored: Any, foreign: str) -> None:
    first = min(stored.glob("*.parquet"))
    table = pq.read_table(first)
    theirs = pa.table({"id": [50], "v": ["theirs"]}, schema=table.schema)
    if foreign == "removed":
        first.unlink()
    else:
        replace(stored / "foreign.parquet" if foreign == "added" else first, theirs)
    seen = rows(stored)
    with inlay.open_dataset(stored) as dataset:
        assert dataset.to_table().num_rows == len(seen)
    assert seen != SECOND
    upsert(stored, k99="ours")
    assert [(entry.version, entry.operation, entry.external) for entry in inlay.history(stored)[:2]] == [
        (4, "merge", False),
        (3, "external", True),
    ]
    assert rows(stored, 2) == SECOND
    assert rows(stored, 3) == seen
    assert rows(stored) == seen | {99: "ours"}
    check(stored)


@pytest.mark.parametrize("writer", ["foreign", "inlay"])
def test_a_replacement_with_an_equal_footer_is_noticed(tmp_path: Path, writer: str) -> None:
    """Without statistics, the footers of two files of one size can be equal."""
    path, new = tmp_path / "ds", tmp_path / "new"
    path.mkdir()

    def write_numbers(number: int) -> None:
        options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        pq.write_table(pa.table({"id": [number] * 3}), new, **options)

    write_numbers(1)
    new.rename(path / "a.parquet")
    inlay.write_dataset({"id": [9]}, path)
    if writer == "inlay":  # whose versions know the checksum of all content
        write_numbers(2)
        with IncrementalFileManager() as manager:
            manager.open(locate(path))
            manager.snapshot()
            staged = manager.stage_path()
            new.rename(staged)
            manager.commit([(staged, "a.parquet")])
    newest = inlay.history(path)[0].version
    write_numbers(3)
    new.rename(path / "a.parquet")
    inlay.write_dataset({"id": [8]}, path)
    assert [version.operation for version in inlay.history(path)[:2]] == ["append", "external"]
    assert inlay.read_parquet(path, version=newest + 1)["id"].to_pylist()[:3] == [3, 3, 3]
    assert 3 not in inlay.read_parquet(path, version=newest)["id"].to_pylist()


def test_a_file_that_was_copied_over_itself_is_no_change(tmp_path: Path) -> None:
    inlay.write_dataset({"id": [1]}, tmp_path / "ds")
    [file] = (tmp_path / "ds").glob("*.parquet")
    shutil.copyfile(file, tmp_path / "copy")
    (tmp_path / "copy").rename(file)
    inlay.write_dataset({"id": [2]}, tmp_path / "ds")
    assert [version.operation for version in inlay.history(tmp_path / "ds")] == ["append", "append"]


@on_disk
def test_undo_records_a_foreign_change_and_then_reverts_it(stored: Any) -> None:
    replace(stored / "foreign.parquet", pa.table({"id": [50], "v": ["theirs"]}))
    assert inlay.undo(stored).restores == 2
    assert rows(stored) == SECOND
    assert rows(stored, 3) == SECOND | {50: "theirs"}
    check(stored)


def write_in_place(path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = content.index(b"a" if b"B" not in content else b"B")
    content[at] = ord("#")
    path.write_bytes(content)


def test_a_version_whose_file_changed_in_place_is_never_served(sales: Path) -> None:
    for file in sales.glob("*.parquet"):
        pq.write_table(pa.table({"id": [1], "v": ["changed in place"]}), file)
    assert {"changed in place"} == set(rows(sales).values()), "the directory itself is read as it is"
    with pytest.raises(DamagedVersionError, match=r"Version 2 .* is damaged.* 2 of its files") as caught:
        inlay.read_parquet(sales, version=2)
    assert len(caught.value.files) == 2
    with pytest.raises(DamagedVersionError), inlay.open_dataset(sales, 2):
        pass
    with pytest.raises(DamagedVersionError):
        inlay.undo(sales)
    with pytest.raises(DamagedVersionError):
        inlay.restore(sales, 2)
    found = {entry.version: entry.damaged for entry in inlay.history(sales)}
    assert found == {3: False, 2: True, 1: False}, "version 1 has other files"
    assert rows(sales, 1) == FIRST


def test_a_change_in_place_that_keeps_the_size_is_noticed(sales: Path) -> None:
    changed = next(file for file in sales.glob("*.parquet") if b"B" in file.read_bytes())
    os.utime(changed, ns=(1, 1))
    assert rows(sales, 2) == SECOND, "only the time differs"
    write_in_place(changed)
    with pytest.raises(DamagedVersionError):
        inlay.read_parquet(sales, version=2)


@pytest.mark.parametrize("keeps_links", [True, False])
def test_a_copied_dataset_keeps_its_versions(
    sales: Path, tmp_path_factory: pytest.TempPathFactory, keeps_links: bool
) -> None:
    copy = tmp_path_factory.mktemp("elsewhere") / "copy"
    subprocess.run(["cp", "-a" if keeps_links else "-r", sales.parent, copy], check=True)
    assert rows(copy / "ds", 1) == FIRST
    assert rows(copy / "ds", 2) == SECOND
    upsert(copy / "ds", k1="in the copy")
    assert [entry.operation for entry in inlay.history(copy / "ds")] == ["merge", "merge", "append"]
    assert inlay.undo(copy / "ds").restores == 2
    assert rows(copy / "ds") == SECOND


# ------------------------------------------------------------------------------------------- without hard links
_KEEP: Any = lambda path: inlay.keep(path, versions=1)  # noqa: E731
CALLS: list[Any] = [
    inlay.history,
    inlay.undo,
    lambda path: inlay.restore(path, 1),
    _KEEP,
    lambda path: inlay.forget(path, before=1),
    lambda path: inlay.read_parquet(path, version=1),
    lambda path: inlay.diff(path, 0, 1),
]


def test_without_hard_links_merges_work_and_the_reason_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_links(monkeypatch)
    path = tmp_path / "ds"
    for number in range(3):
        upsert(path, k1=str(number))
    assert rows(path) == {1: "2"}
    [message] = [record.message for record in caplog.records if record.name == "inlay.commit"]
    assert f"inlay keeps no history of {str(path)!r}: it cannot create hard links: [Errno 1]" in message
    assert "inlay keep DATASET --versions 10 --copies" in message
    for call in CALLS:
        with pytest.raises(HistoryUnavailableError, match="cannot create hard links") as caught:
            call(path)
        assert 'inlay.keep("DATASET", versions=10, copies=True)' in str(caught.value.hint)
    assert leftovers(tmp_path) == []
    monkeypatch.undo()
    upsert(path, k1="now")
    assert [(entry.version, entry.operation) for entry in inlay.history(path)] == [(1, "merge"), (0, "found")]
    check(path)


def test_a_dataset_with_the_sidecar_inside_has_no_history(sales: Path) -> None:
    (sales / ".inlay.txn").mkdir()
    upsert(sales, k1="x")
    assert rows(sales)[1] == "x"
    with pytest.raises(HistoryUnavailableError, match="sidecar is inside the dataset"):
        inlay.history(sales)
    with pytest.raises(HistoryUnavailableError):
        inlay.read_parquet(sales, version=1)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("call", [call for call in CALLS if call is not _KEEP])
def test_an_object_store_has_no_history_until_it_is_turned_on(call: Any) -> None:
    inlay.write_dataset({"id": [1]}, "memory://lake/sales")
    with pytest.raises(HistoryUnavailableError, match="their history is off") as caught:
        call("memory://lake/sales")
    assert 'inlay.keep("DATASET", versions=10)' in str(caught.value.hint)


def test_a_missing_dataset_is_not_found(tmp_path: Path) -> None:
    for call in (inlay.undo, lambda path: inlay.restore(path, 1), lambda path: inlay.keep(path, versions=1)):
        with pytest.raises(NotFoundError):
            call(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


@on_disk
def test_a_dataset_that_was_deleted_can_be_restored(stored: Any) -> None:
    shutil.rmtree(stored)
    inlay.restore(stored, 2)
    assert rows(stored) == SECOND
    check(stored)


# ------------------------------------------------------------------------------------------------ pending commits
def test_a_reader_reads_a_pending_commit_without_the_lock(sales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the writer moves files, inlay's readers see the committed version and do not wait."""
    seen: list[dict[int, str]] = []
    move = LocalJournal._put

    def read_first(journal: LocalJournal, put: Any, target: str) -> None:
        seen.append(rows(sales))
        with inlay.open_dataset(sales) as dataset:
            seen.append(dict(zip(*dataset.to_table(columns=["id", "v"]).to_pydict().values(), strict=True)))
        move(journal, put, target)

    monkeypatch.setattr(LocalJournal, "_put", read_first)
    upsert(sales, k1="new", k3="new", k5="new")
    assert len(seen) >= 4
    assert all(each == {1: "new", 2: "B", 3: "new", 5: "new"} for each in seen)


def test_a_read_only_reader_reads_a_pending_commit(sales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise OSError("the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(LocalJournal, "_put", stop)
        with pytest.raises(inlay.DatasetMergeError, match="not all of its files are in place"):
            upsert(sales, k1="new")
    monkeypatch.setattr(LocalJournal, "is_writable", lambda _: False)
    assert rows(sales) == SECOND | {1: "new"}
    assert LocalJournal(locate(sales)).has_pending_commit()
