"""The pruning functions of the requirements: metadata of files, and exclusion by statistics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from inlay.errors import InlayError, SchemaMismatchError
from inlay.incremental import (
    ConservativeMembershipChecker,
    ParquetFileMetadata,
    ParquetMetadataAnalyzer,
    RowGroupMetadata,
    confirm_affected_files,
    plan_incremental_rewrite,
)
from tests import lake


def test_a_file_is_described_as_a_whole_and_by_row_group(tmp_path: Path) -> None:
    rows = pa.table({"id": range(15), "v": [f"v{n:02}" for n in range(14)] + [None]})
    lake.write(tmp_path / "d", {"day=1/a.parquet": rows}, row_group_size=10)
    (found,) = ParquetMetadataAnalyzer().analyze_dataset_files(str(tmp_path / "d"))
    path = tmp_path / "d/day=1/a.parquet"
    footer = pq.read_metadata(path)
    sizes = [sum(footer.row_group(g).column(c).total_compressed_size for c in range(2)) for g in range(2)]
    assert (found.path, found.row_group_count, found.total_rows) == (str(path), 2, 15)
    assert (found.partition_values, found.size_bytes, found.error) == ({"day": "1"}, path.stat().st_size, None)
    assert [(group.rows, group.size_bytes) for group in found.row_groups] == [(10, sizes[0]), (5, sizes[1])]
    ranges = [found.column_stats, *(group.column_stats for group in found.row_groups)]
    assert [(r["id"]["min"], r["id"]["max"], r["id"]["null_count"]) for r in ranges] == [
        (0, 14, 0), (0, 9, 0), (10, 14, 0)
    ]  # fmt: skip
    assert [(r["v"]["min"], r["v"]["max"], r["v"]["null_count"]) for r in ranges] == [
        ("v00", "v13", 1), ("v00", "v09", 0), ("v10", "v13", 1)
    ]  # fmt: skip


def test_an_unreadable_file_has_an_error_and_no_statistics(tmp_path: Path) -> None:
    (tmp_path / "d/day=1").mkdir(parents=True)
    (tmp_path / "d/day=1/a.parquet").write_bytes(b"this is no parquet file")
    (found,) = ParquetMetadataAnalyzer().analyze_dataset_files(str(tmp_path / "d"))
    assert found.error
    assert "a.parquet" in found.error
    expected = ParquetFileMetadata(str(tmp_path / "d/day=1/a.parquet"), 0, 0, {}, {"day": "1"}, [], 23, found.error)
    assert found == expected
    assert RowGroupMetadata(1, 2).column_stats == {}


def file(**bounds: tuple[Any, Any]) -> ParquetFileMetadata:
    return ParquetFileMetadata("f", 1, 1, {name: {"min": low, "max": high} for name, (low, high) in bounds.items()})


@pytest.mark.parametrize(
    ("bounds", "keys", "possible"),
    [
        ((10, 20), [9, 21], False),
        ((10, 20), [10], True),
        ((10, 20), [20], True),
        ((10, 20), [5, 15, 25], True),
        ((10, 20), [], False),
        ((10, 20), [None], False),  # NULL matches nothing
        ((10, 20), [15.5], True),
        ((10, 20), ["15"], True),  # does not compare, and proves nothing
        ((None, 20), [30], True),
        ((10, None), [5], True),
        ((1.5, 2.5), [math.nan], True),  # bounds leave NaN out
        ((1.5, 2.5), [3.5, None], False),
        (("b", "d"), ["a", "e"], False),
        (("b", "d"), ["c"], True),
    ],
    ids=str,
)
def test_a_file_is_excluded_only_by_exact_statistics(
    bounds: tuple[Any, Any], keys: list[Any], *, possible: bool
) -> None:
    check = ConservativeMembershipChecker().file_might_contain_keys
    assert check(file(id=bounds), ["id"], pa.array(keys)) is possible
    is_key = any(key is not None for key in keys)
    assert check(file(other=bounds), ["id"], pa.array(keys)) is is_key  # nothing is known of the key column


def test_one_column_of_a_key_is_enough_to_exclude_a_file() -> None:
    checker = ConservativeMembershipChecker()
    files = [file(a=(1, 5), b=("x", "z")), file(a=(6, 9), b=("x", "z")), file(a=(1, 5), b=("a", "b"))]
    assert checker.files_that_might(files, ["a", "b"], [(3, "y")]).tolist() == [True, False, False]
    odd = [*files, file(a=("text", "text"), b=("a", "b"))]  # bounds that do not compare: the other column still counts
    assert checker.files_that_might(odd, ["a", "b"], [(3, "y")]).tolist() == [True, True, False, False]
    truncated = ParquetFileMetadata("f", 1, 1, {"a": {"min": 1, "max": 2, "exactness": "truncated"}})
    assert checker.file_might_contain_keys(truncated, ["a"], [7])


def test_a_plan_from_metadata_uses_statistics_and_partitions(memory: MemoryFileSystem) -> None:
    for name, ids in {"p=01/a": [1, 2], "p=2/a": [1, 2], "p=2/b": [8, 9]}.items():
        with memory.open(f"/planned/d/{name}.parquet", "wb") as file:
            pq.write_table(lake.table(ids), file)

    def planned(keys: list[Any], columns: list[str], **options: Any) -> list[str]:
        plan = plan_incremental_rewrite("/planned/d", keys, columns, memory, **options)
        assert plan.new_files == []
        assert plan.affected_rows == 2 * len(plan.affected_files)
        assert len(plan.affected_files) + len(plan.unaffected_files) == 3
        return [path.removeprefix("/planned/d/") for path in plan.affected_files]

    assert planned([1], ["id"]) == ["p=01/a.parquet", "p=2/a.parquet"]
    assert planned([9], ["id"]) == ["p=2/b.parquet"]
    assert planned([1], ["id"], source_partitions=[{"p": "2"}]) == ["p=2/a.parquet"]
    integers = pa.schema([("p", pa.int64())])
    assert planned([1], ["id"], partition_schema=integers, source_partitions=[{"p": 1}]) == ["p=01/a.parquet"]
    assert planned([(1, 1)], ["p", "id"], partition_schema=integers) == ["p=01/a.parquet"]


def test_keys_are_matched_in_the_types_of_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.write(tmp_path, {"a.parquet": lake.table([1, 2])})
    monkeypatch.chdir(tmp_path)
    assert confirm_affected_files(["a.parquet"], ["id"], [2]) == ["a.parquet"]
    with pytest.raises(InlayError, match="The key column 'nope' does not exist in the dataset"):
        confirm_affected_files(["a.parquet"], ["nope"], [2])
    with pytest.raises(SchemaMismatchError, match="'id'"):
        confirm_affected_files(["a.parquet"], ["id"], [2.0])
