"""Writes and compaction: rejected arguments, empty data, splitting and combining files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.engines.base import StageResult
from inlay.errors import DatasetMergeError, InlayError, InvalidArgumentError, NotFoundError, SchemaMismatchError
from inlay.incremental.stage import verify_staged
from inlay.storage import locate
from tests import lake

NO_ROWS = lake.table([])


def files(path: Path) -> list[str]:
    return sorted(p.name for p in path.glob("*.parquet"))


# --------------------------------------------------------------------------------------------------------- writing
def test_appending_no_rows_changes_nothing(tmp_path: Path) -> None:
    lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    result = inlay.write_dataset(NO_ROWS, str(tmp_path / "d"))
    assert (result.row_count, result.files, result.removed_files) == (0, [], [])
    assert files(tmp_path / "d") == ["a.parquet"]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_new_dataset_without_rows_still_has_a_schema(tmp_path: Path, mode: Any) -> None:
    result = inlay.write_dataset(NO_ROWS, str(tmp_path / "d"), mode=mode)
    (name,) = files(tmp_path / "d")
    assert (result.row_count, [Path(file.path).name for file in result.files]) == (0, [name])
    assert pq.read_schema(tmp_path / "d" / name).names == NO_ROWS.column_names


def test_overwriting_with_no_rows_leaves_an_empty_file_of_the_new_schema(tmp_path: Path) -> None:
    lake.write(tmp_path / "d", {"a.parquet": lake.table([1]), "b.parquet": lake.table([2])})
    result = inlay.write_dataset(pa.table({"other": pa.array([], pa.int8())}), str(tmp_path / "d"), mode="overwrite")
    assert sorted(Path(path).name for path in result.removed_files) == ["a.parquet", "b.parquet"]
    assert inlay.read_parquet(str(tmp_path / "d")).schema.names == ["other"]


def test_new_files_are_filled_up_to_max_rows_per_file(tmp_path: Path) -> None:
    result = inlay.write_dataset(lake.table(range(25)), str(tmp_path / "d"), max_rows_per_file=10)
    assert [file.row_count for file in result.files] == [10, 10, 5]
    assert {file.operation for file in result.files} == {"inserted"}
    assert [file.size_bytes for file in result.files] == [Path(file.path).stat().st_size for file in result.files]
    assert result.row_count == 25
    assert inlay.read_parquet(str(tmp_path / "d"))["id"].to_pylist() == list(range(25))


def test_a_dataset_keeps_its_partition_columns(tmp_path: Path) -> None:
    rows = pa.table({"day": ["a", "b"], "id": [1, 2]})
    inlay.write_dataset(rows, str(tmp_path / "d"), partition_columns=["day"])
    inlay.write_dataset(rows, str(tmp_path / "d"))
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["day=a", "day=b"]
    assert len(list((tmp_path / "d").rglob("*.parquet"))) == 4
    inlay.write_dataset(rows, str(tmp_path / "d"), mode="overwrite")
    assert len(list((tmp_path / "d").rglob("*.parquet"))) == 2
    inlay.write_dataset(rows, str(tmp_path / "d"), mode="overwrite", partition_columns=[])
    assert [p.suffix for p in (tmp_path / "d").rglob("*") if p.is_file()] == [".parquet"]


def test_settings_of_new_files_come_from_arguments_then_from_the_dataset(tmp_path: Path) -> None:
    path = str(tmp_path / "d")
    inlay.write_dataset(lake.table(range(30)), path, compression="zstd", row_group_size=10)
    inlay.write_dataset(lake.table(range(30, 60)), path)
    inlay.write_dataset(lake.table(range(60, 90)), path, compression="gzip", row_group_size=15)
    found = sorted(
        (meta.row_group(0).column(0).compression, meta.row_group(0).num_rows)
        for meta in map(pq.read_metadata, (tmp_path / "d").glob("*.parquet"))
    )
    assert found == [("GZIP", 15), ("ZSTD", 10), ("ZSTD", 10)]


@pytest.mark.parametrize(("groups", "rows"), [(1, [40]), (2, [10] * 4)])
def test_two_row_groups_determine_the_row_group_size(tmp_path: Path, groups: int, rows: list[int]) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(groups * 10))}, row_group_size=10)
    (new,) = inlay.write_dataset(lake.table(range(100, 140)), path).files
    metadata = pq.read_metadata(new.path)
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "ignore"}, "mode"),
        ({"compression": "zip"}, "compression"),
        ({"max_rows_per_file": 0}, "max_rows_per_file"),
        ({"row_group_size": 0}, "row_group_size"),
        ({"schema_mode": "loose"}, "schema_mode"),
        ({"partition_columns": ["id", "id"]}, "The partition column 'id' occurs twice in the list."),
    ],
)
def test_invalid_arguments_are_rejected_before_anything_is_read(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        inlay.write_dataset("nowhere.csv", str(tmp_path / "d"), **options)
    assert not (tmp_path / "d").exists()


# ------------------------------------------------------------------------------------------------------ compaction
def test_compaction_of_a_missing_or_empty_dataset(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="There is no dataset at"):
        inlay.compact(str(tmp_path / "d"))
    (tmp_path / "d").mkdir()
    result = inlay.compact(str(tmp_path / "d"))
    assert (result.mode, result.row_count, result.files, result.removed_files) == ("compact", 0, [], [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_group_size": 0}, "row_group_size"),
        ({"max_rows_per_file": 0}, "max_rows_per_file"),
        ({"target_file_size": 0}, "target_file_size must be at least 1 byte, not 0."),
        ({"sort_by": ["id", "id"]}, "The sort column 'id' occurs twice in the list."),
        ({"compression": "zip"}, "compression"),
    ],
)
def test_invalid_arguments_of_compaction_are_rejected(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    with pytest.raises(InvalidArgumentError, match=message):
        inlay.compact(str(tmp_path / "d"), **options)


def test_adjacent_files_are_combined_up_to_a_size_and_a_row_count(tmp_path: Path) -> None:
    parts = {f"{n}.parquet": lake.table(range(n * 10, n * 10 + 10)) for n in range(5)}
    lake.write(tmp_path / "d", parts)
    result = inlay.compact(str(tmp_path / "d"), max_rows_per_file=20)
    assert [file.row_count for file in result.files] == [20, 20]
    assert [Path(path).name for path in result.removed_files] == [f"{n}.parquet" for n in range(4)]
    assert "4.parquet" in files(tmp_path / "d")
    lake.write(tmp_path / "e", parts)
    sizes = [(tmp_path / "e" / name).stat().st_size for name in parts]
    least = min(map(sum, itertools.pairwise(sizes)))
    assert inlay.compact(str(tmp_path / "e"), target_file_size=1).files == []
    assert inlay.compact(str(tmp_path / "e"), target_file_size=least - 1).files == []
    result = inlay.compact(str(tmp_path / "e"), target_file_size=sum(sizes[:3]))
    assert [file.row_count for file in result.files] == [30, 20]
    assert result.row_count == 50
    assert inlay.read_parquet(str(tmp_path / "e"))["id"].to_pylist() == list(range(50))


def test_partitions_are_not_combined_with_each_other(tmp_path: Path) -> None:
    for _ in range(2):
        inlay.write_dataset(pa.table({"day": ["a", "b"], "id": [1, 2]}), str(tmp_path / "d"), partition_columns=["day"])
    result = inlay.compact(str(tmp_path / "d"))
    assert [Path(file.path).parent.name for file in result.files] == ["day=a", "day=b"]
    assert [file.row_count for file in result.files] == [2, 2]


def test_compaction_reports_its_files_and_uses_its_settings(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {f"{n}.parquet": lake.table(range(n, n + 40)) for n in (0, 40, 80)})
    result = inlay.compact(path, row_group_size=50, compression="gzip")
    (file,) = result.files
    assert (file.operation, file.row_count, file.size_bytes) == ("inserted", 120, Path(file.path).stat().st_size)
    metadata = pq.read_metadata(file.path)
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [50, 50, 20]
    assert metadata.row_group(0).column(0).compression == "GZIP"


def test_dictionary_indices_widen_only_if_all_files_are_rewritten(tmp_path: Path) -> None:
    narrow, wide = pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.string())

    def rows(count: int) -> pa.Table:
        return pa.table({"id": range(count), "v": pa.array(["a"] * count).cast(narrow)})

    sizes = {"a.parquet": rows(1), "b.parquet": rows(1), "c.parquet": rows(5000)}
    path = lake.write(tmp_path / "d", sizes)
    limit = (tmp_path / "d/a.parquet").stat().st_size * 2 + 100
    (some,) = inlay.compact(path, target_file_size=limit).files
    assert pq.read_schema(some.path).field("v").type == narrow, "another file is kept"
    (all_,) = inlay.compact(path).files
    assert pq.read_schema(all_.path).field("v").type == wide


def test_large_files_are_kept_unless_sorted(tmp_path: Path) -> None:
    lake.write(tmp_path / "d", {"a.parquet": lake.table([3, 1, 2])})
    assert inlay.compact(str(tmp_path / "d")).files == []
    assert inlay.compact(str(tmp_path / "d"), sort_by="id").row_count == 3
    assert inlay.read_parquet(str(tmp_path / "d"))["id"].to_pylist() == [1, 2, 3]


def test_large_files_are_sorted_one_by_one(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([3, 1, 2]), "b.parquet": lake.table([6, 4, 5])})
    with pytest.raises(InlayError, match="The sort column 'nope' does not exist in the dataset"):
        inlay.compact(path, sort_by="nope")
    files = inlay.compact(path, target_file_size=1, sort_by="id").files
    assert [lake.read_file(file.path)["id"].to_pylist() for file in files] == [[1, 2, 3], [4, 5, 6]]


def test_a_single_file_with_another_schema_is_rewritten(tmp_path: Path) -> None:
    lake.write(
        tmp_path / "d",
        {"day=1/a.parquet": pa.table({"id": pa.array([1], pa.int32())}), "day=2/b.parquet": pa.table({"id": [2]})},
    )
    result = inlay.compact(str(tmp_path / "d"))
    assert [Path(path).name for path in result.removed_files] == ["a.parquet"]
    types = {pq.read_schema(path).field("id").type for path in (tmp_path / "d").rglob("*.parquet")}
    assert types == {pa.int64()}


# --------------------------------------------------------------------------------------------------- staged files
def test_every_staged_file_is_verified(tmp_path: Path) -> None:
    pq.write_table(lake.table([1, 2]), tmp_path / "two")
    unchanged, right, wrong = (
        StageResult(None, 5, 5),
        StageResult(str(tmp_path / "two"), 2, 9),
        StageResult(str(tmp_path / "two"), 3, 9),
    )
    verify_staged(locate(tmp_path), [unchanged, right])
    with pytest.raises(DatasetMergeError, match="2 rows instead of 3") as caught:
        verify_staged(locate(tmp_path), [unchanged, right, wrong])
    assert caught.value.operation == "verify"


def test_rows_keep_their_order_in_every_partition(tmp_path: Path) -> None:
    rows = lake.table(range(1000), p=[n * 7 % 3 for n in range(1000)])
    inlay.write_dataset(rows, str(tmp_path / "d"), partition_columns=["p"])
    for part in range(3):
        ids = inlay.read_parquet(str(tmp_path / "d" / f"p={part}"))["id"].to_pylist()
        assert ids == [n for n in range(1000) if n * 7 % 3 == part]


def test_appended_rows_can_add_columns_with_evolve(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    more = lake.table([2]).append_column("more", pa.array([5]))
    with pytest.raises(SchemaMismatchError, match="more"):
        inlay.write_dataset(more, path)
    inlay.write_dataset(more, path, schema_mode="evolve")
    assert inlay.read_parquet(path)["more"].to_pylist() == [None, 5]


def test_an_unknown_mode_is_reported_with_the_known_modes(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="Unknown mode 'replace'; known: append, overwrite"):
        inlay.write_dataset(NO_ROWS, str(tmp_path / "d"), mode="replace")  # type: ignore[arg-type]


def test_a_staged_file_is_verified_before_the_commit(tmp_path: Path) -> None:
    location = locate(str(tmp_path))
    pq.write_table(lake.table([1, 2]), tmp_path / "good")
    (tmp_path / "bad").write_bytes(b"no parquet")
    verify_staged(location, [StageResult(None, 5), StageResult(str(tmp_path / "good"), 2)])
    with pytest.raises(DatasetMergeError, match=r"has 2 rows instead of 3\. Nothing changed"):
        verify_staged(location, [StageResult(str(tmp_path / "good"), 3)])
    for name in ("bad", "nowhere"):
        with pytest.raises(DatasetMergeError, match=r"The staged file '.*' cannot be read"):
            verify_staged(location, [StageResult(str(tmp_path / name), 3)])
