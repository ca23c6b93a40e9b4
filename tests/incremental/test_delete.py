"""`delete` and `plan_delete`: the dataset rows for which a condition is true are deleted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.engines import get_engine
from inlay.engines.base import FileMatch
from inlay.engines.local import ArrowEngine
from inlay.errors import InvalidArgumentError, MergeCancelledError, UnreadableFileError
from tests import lake

ID = pc.field("id")


def ids(path: str | Path) -> list[int]:
    return [row["id"] for row in lake.all_rows(path)]


def test_rows_go_by_sql_text_and_by_expression(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2, 3]), "b.parquet": lake.table([4, 5])})
    result = inlay.delete(path, "id = 2 OR v = 'v4'", engine=engine)
    assert (result.strategy, result.source_count, result.deleted, result.inserted, result.updated) == (
        "delete", 0, 2, 0, 0,
    )  # fmt: skip
    assert (result.target_count_before, result.target_count_after, len(result.rewritten_files)) == (5, 3, 2)
    assert inlay.delete(path, ID == 3, engine=engine).deleted == 1
    assert ids(path) == [1, 5]


@pytest.mark.long_on("duckdb-union", "spark")  # every engine selects rows with the same functions
def test_foreign_readers_see_the_rows_that_stay(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(9))}, row_group_size=3)
    inlay.delete(path, "id BETWEEN 2 AND 4", engine=engine)
    left = [0, 1, 5, 6, 7, 8]
    assert pl.read_parquet(f"{path}/*.parquet")["id"].to_list() == left
    assert [row for (row,) in duckdb.sql(f"SELECT id FROM '{path}/*.parquet' ORDER BY 1").fetchall()] == left
    assert pq.read_table(path)["id"].to_pylist() == left


def test_row_groups_without_a_selected_row_are_copied(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(9))}, row_group_size=3)
    before = lake.chunk_bytes(f"{path}/a.parquet", 0, 1)
    assert inlay.delete(path, "id IN (3, 4, 5, 7)").bytes_copied >= len(before)
    footer = lake.footer(f"{path}/a.parquet")
    assert [footer.row_group(group).num_rows for group in range(footer.num_row_groups)] == [3, 2]
    assert lake.chunk_bytes(f"{path}/a.parquet", 0, 1) == before


@pytest.mark.parametrize(
    ("column", "where"),
    [
        (pa.array(range(6)), "c > 2"),
        (pa.array(range(6), pa.uint8()), "c > 2"),
        (pa.array(list("abcdef")), "c >= 'd'"),
        (pa.array(list("abcdef")).dictionary_encode(), "c >= 'd'"),
        (pa.array(list("abcdef"), pa.string_view()), "c >= 'd'"),
        (pa.array([dt.date(2025, 1, 1 + day) for day in range(6)]), "c > '2025-01-03'"),
        (pa.array([f"2025-01-0{1 + day}" for day in range(6)]).cast(pa.timestamp("us")), "c > '2025-01-03'"),
        (pa.array(range(6), pa.timestamp("ms", "Europe/Berlin")), "c > '1970-01-01 00:00:00.002Z'"),
        (pa.array([Decimal(n) for n in range(6)], pa.decimal128(9, 2)), "c > 2.5"),
        (pa.array([0, 1, 2, 3, None, 5]), "c > 2 OR c IS NULL"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_statistics_exclude_row_groups(tmp_path, column, where):
    """Row groups that cannot be read prove that they are not read."""
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"c": column})}, row_group_size=3)
    lake.spoil(tmp_path / "d" / "a.parquet", 0)
    plan = inlay.plan_delete(path, where)
    assert plan.deleted == 3
    assert plan.files[0].reason == "3 matching rows in 1 of 2 row groups"
    with pytest.raises(UnreadableFileError, match="row group 0"):
        inlay.plan_delete(path, f"NOT ({where})")


@pytest.mark.long_on("duckdb-union", "spark")  # every engine selects rows with the same functions
def test_only_the_named_columns_are_read(tmp_path, engine):
    """The condition selects whole files, so that nothing else is decoded."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])})
    file = tmp_path / "d" / "a.parquet"
    data = bytearray(file.read_bytes())
    pages = lake.chunk_range(file, 0, 1)
    data[pages] = b"\xff" * (pages.stop - pages.start)
    file.write_bytes(data)
    plan = inlay.plan_delete(path, "id < 3", engine=engine)
    assert [(each.operation, each.reason) for each in plan.files] == [
        ("removed", "all 2 rows are deleted (2 matching rows in 1 of 1 row groups)"),
        ("preserved", "statistics or partition exclude the condition"),
    ]
    assert inlay.delete(path, "id < 3", engine=engine).removed_files == [f"{path}/a.parquet"]
    assert ids(path) == [3]


def test_partitions_are_excluded_by_their_paths(tmp_path, engine):
    files = {f"day=2025-01-0{day}/a.parquet": lake.table([day, 10 + day]) for day in (1, 2, 3)}
    files["day=__HIVE_DEFAULT_PARTITION__/a.parquet"] = lake.table([4])
    path = lake.write(tmp_path / "d", files)
    for name in ("day=2025-01-01/a.parquet", "day=__HIVE_DEFAULT_PARTITION__/a.parquet"):
        (tmp_path / "d" / name).write_bytes((tmp_path / "d" / name).read_bytes())
        lake.spoil(tmp_path / "d" / name)
    plan = inlay.plan_delete(path, "day > '2025-01-01' AND id < 10", engine=engine)
    assert [(file.operation, file.reason.split(" (")[0]) for file in plan.files] == [
        ("preserved", "statistics or partition exclude the condition"),
        ("rewritten", "1 matching row in 1 of 1 row groups"),
        ("rewritten", "1 matching row in 1 of 1 row groups"),
        ("preserved", "statistics or partition exclude the condition"),
    ]
    # No file is decoded to delete whole partitions.
    result = inlay.delete(path, "day = '2025-01-01' OR day IS NULL", engine=engine)
    assert (result.deleted, len(result.removed_files), len(result.preserved_files)) == (3, 2, 2)
    assert sorted(ids(path)) == [2, 3, 12, 13]


def test_partition_values_have_the_type_of_the_column(tmp_path):
    files = {"p=01/a.parquet": lake.table([1]), "p=x%20y/b.parquet": lake.table([2])}
    assert inlay.plan_delete(lake.write(tmp_path / "text", files), "p = 'x y'").deleted == 1
    files = {f"n={n}/a.parquet": lake.table([n]) for n in (2, 10)}
    path = lake.write(tmp_path / "numbers", files)
    assert inlay.plan_delete(path, "n > 5 AND id = 10").deleted == 1
    with pytest.raises(InvalidArgumentError, match="'x' is not a value of column 'n', which is bigint"):
        inlay.plan_delete(path, "n = 'x'")


def test_a_column_that_a_file_lacks_is_null(tmp_path):
    files = {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3, 4], w=pa.array([1.5, None]))}
    path = lake.write(tmp_path / "d", files)
    assert inlay.delete(path, "w IS NULL AND id <> 1").deleted == 2
    assert ids(path) == [1, 3]
    assert lake.footer(f"{path}/a.parquet").schema.names == ["id", "v"]


def test_files_of_different_types_are_compared_in_the_type_of_the_dataset(tmp_path):
    narrow = pa.table({"id": pa.array([1, 2], pa.int32())})
    path = lake.write(tmp_path / "d", {"a.parquet": narrow, "b.parquet": pa.table({"id": [2**40, 2]})})
    assert inlay.delete(path, "id = 2").deleted == 2
    assert lake.footer(f"{path}/a.parquet").schema.to_arrow_schema().field("id").type == pa.int32()


def test_timestamps_without_statistics_are_read(tmp_path):
    times = pa.array([f"2025-01-0{day}" for day in (1, 2, 3)]).cast(pa.timestamp("ns"))
    path = lake.write(
        tmp_path / "d", {"a.parquet": pa.table({"at": times})}, use_deprecated_int96_timestamps=True, row_group_size=2
    )
    assert inlay.delete(path, "at >= '2025-01-02'").deleted == 2


def test_columns_of_every_kind_can_be_named(tmp_path):
    table = pa.table({
        "id": range(3),
        "view": pa.array(["a", "b", None], pa.string_view()),
        "kind": pa.array(["a", "b", None]).dictionary_encode(),
        "half": pa.array([1.0, 2.0, None], pa.float16()),
        "small": pa.array([Decimal(1), Decimal(2), None], pa.decimal128(5, 0)),
        "pair": [{"n": 1}, {"n": 2}, None],
        "dotted.name": [1, 2, None],
        "pair.n": [2, 1, None],
        "items": [[1], [], None],
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", "[]", None])),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")

    def planned(where: Any) -> int:
        return inlay.plan_delete(str(tmp_path), where).deleted

    assert planned("view = 'a' AND kind = 'a' AND half < 1.5 AND small = 1 AND json = '{}'") == 1
    assert planned('"dotted.name" = 1 AND "pair.n" = 2') == 1
    assert planned(pc.field("pair", "n") == 1) == 1
    assert planned((pc.field("pair", "n") == 2) & (pc.field("pair.n") == 1) & (pc.field("kind") == "b")) == 1
    assert planned("items IS NULL AND pair IS NULL") == 1
    assert planned(pc.list_value_length(pc.field("items")) == 0) == 1
    assert planned(pc.scalar(True)) == 3


@pytest.mark.long_on("duckdb-union", "spark")  # every engine selects rows with the same functions
def test_the_last_file_stays_without_rows(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1]), "b.parquet": lake.table([2, 3])})
    result = inlay.delete(path, "TRUE", engine=engine)
    assert (result.deleted, result.target_count_after, len(result.removed_files)) == (3, 0, 1)
    [left] = lake.names(path)
    assert inlay.read_parquet(path).schema.names == ["id", "v"]
    assert inlay.delete(path, "id = 1", engine=engine).preserved_files == [f"{path}/{left}"]


@pytest.mark.long_on("duckdb-union", "spark")  # every engine selects rows with the same functions
def test_a_missing_dataset_is_not_created(tmp_path, engine):
    before = lake.photograph(tmp_path)
    result = inlay.delete(str(tmp_path / "d"), "id = 1", engine=engine)
    assert (result.deleted, result.files) == (0, [])
    assert inlay.plan_delete(str(tmp_path / "d"), "id = 1", engine=engine).files == []
    for function in (inlay.delete, inlay.plan_delete):
        with pytest.raises(InvalidArgumentError, match="a column is missing before '='"):
            function(str(tmp_path / "d"), "id ==", engine=engine)
    assert lake.photograph(tmp_path).keys() == before.keys()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("idd = 1", "there is no column 'idd'.\nHint: Did you mean 'id'"),
        (pc.field("idd") == 1, "there is no column 'idd'.\nHint: Did you mean 'id'"),
        ("id = 'x'", "'x' is not a value of column 'id', which is bigint"),
        (pc.field("v") == 1, r"equal has no meaning for the types .+, .+\. Column 'v' is text\."),
        (ID == "x" * 300, r"Invalid condition .{200}…: the function equal has no meaning for the types"),
        (ID, r"The condition id is int64, not true or false"),
        (pc.field(0) == 1, "Refer to each column by its name"),
        (None, "must be SQL text or a pyarrow expression, not NoneType"),
        ("", "it is empty"),
        (pc.divide(ID, pc.scalar(0)) > 1, "cannot be evaluated on row group 0 of '.*a.parquet'"),
    ],
)
def test_bad_conditions_are_refused_before_anything_changes(tmp_path, where, message):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    before = lake.photograph(path)
    for function in (inlay.plan_delete, inlay.delete):
        with pytest.raises(InvalidArgumentError, match=message):
            function(path, where)
    assert lake.photograph(path) == before


def test_an_empty_dataset_checks_the_condition(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([])})
    assert inlay.delete(path, "id = 1").deleted == 0
    with pytest.raises(InvalidArgumentError, match="no column 'idd'"):
        inlay.delete(path, "idd = 1")


def test_a_deletion_is_one_commit_that_progress_can_cancel(tmp_path):
    path = lake.write(tmp_path / "d", {f"{n}.parquet": lake.table([n, n + 10]) for n in range(3)})
    before = lake.photograph(path)
    phases = []

    def cancel(step: Any) -> bool:
        phases.append(step.phase)
        return step.phase != "commit"

    with pytest.raises(MergeCancelledError):
        inlay.delete(path, "id < 10", progress=cancel)
    assert list(dict.fromkeys(phases)) == ["match", "rewrite", "append", "commit"]
    assert lake.photograph(path) == before


def test_object_stores_delete_too(memory: MemoryFileSystem):
    inlay.write_dataset(lake.table(range(6)), "memory://bucket/d", row_group_size=2)
    assert inlay.delete("memory://bucket/d", "id > 3", filesystem=memory).deleted == 2
    assert inlay.read_parquet("memory://bucket/d")["id"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("io", [inlay.PyArrowDatasetIO, inlay.DuckDBDatasetIO])
def test_every_dataset_io_deletes(tmp_path, io):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    assert io().plan_delete(path, "id = 1").deleted == 1
    assert io().delete(path, where="id = 1").deleted == 1


def test_few_threads_select_the_rows_of_many_files(tmp_path):
    path = lake.write(tmp_path / "d", {f"{n:03}.parquet": lake.table([n, -n]) for n in range(1, 60)}, row_group_size=1)
    assert inlay.delete(path, "id < 0", engine=get_engine("pyarrow")).deleted == 59
    assert ids(path) == list(range(1, 60))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.parquet": lake.table([1]), "p=1/b.parquet": lake.table([2])}, "is partitioned by"),
        ({"p=1/a.parquet": lake.table([1], p=pa.array([2]))}, "stores 2 in the partition column 'p'"),
        ({"p=x/a.parquet": lake.table([1], p=pa.array([1]))}, "stores 1 in the partition column 'p'"),
    ],
)
def test_paths_that_programs_read_differently_are_refused(tmp_path, files, message):
    path = lake.write(tmp_path / "d", files)
    with pytest.raises(InvalidArgumentError, match=message):
        inlay.delete(path, "id = 1")


class InterruptedEngine(ArrowEngine):
    """Runs another deletion before it selects rows for the first time."""

    def __init__(self, interrupt: Callable[[], object]) -> None:
        super().__init__(1)
        self._interrupts = [interrupt]

    def select(self, *arguments: Any) -> Iterator[FileMatch]:
        while self._interrupts:
            self._interrupts.pop()()
        return super().select(*arguments)


def test_a_deletion_plans_again_after_a_conflict(memory: MemoryFileSystem):
    inlay.write_dataset(lake.table(range(6)), "memory://bucket/d", row_group_size=2)
    other = lambda: inlay.delete("memory://bucket/d", "id IN (0, 1, 5)", filesystem=memory)  # noqa: E731
    result = inlay.delete("memory://bucket/d", "id > 3", filesystem=memory, engine=InterruptedEngine(other))
    assert (result.target_count_before, result.deleted) == (3, 1)
    assert inlay.read_parquet("memory://bucket/d")["id"].to_pylist() == [2, 3]
