"""The steps of the requirements return the same results as a merge."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inlay
from inlay.errors import InlayError, NullKeyError, PartitionMoveError, SchemaMismatchError
from inlay.incremental import (
    ConservativeMembershipChecker,
    ParquetFileMetadata,
    ParquetMetadataAnalyzer,
    PartitionPruner,
    compute_merge_stats,
    confirm_affected_files,
    plan_incremental_rewrite,
    validate_keys_and_schema,
    validate_no_null_keys,
    validate_partition_column_immutability,
)
from tests import lake

NAN = float("nan")
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "integer": (pa.int32(), [-1, 0, 1, 5, 9]),
    "float": (pa.float64(), [-1.5, -0.0, 0.0, NAN, 9.0]),
    "text": (pa.string(), ["", "a", "b", "ä", "z"]),
}
PARTITIONS = ["1", "2", None]


@st.composite
def datasets(draw: st.DrawFn) -> tuple[list[pa.Table], list[str | None], pa.Table]:
    """Return the rows of files, the partition of each file, and source rows that change every row that they match."""
    kind, values = draw(st.sampled_from(list(TYPES.values())))
    key = st.tuples(st.none() | st.sampled_from(values), st.none() | st.integers(0, 3))
    files = draw(st.lists(st.lists(key, min_size=1, max_size=6), min_size=1, max_size=4))
    known = st.tuples(st.sampled_from(values), st.integers(0, 3))
    keys = draw(st.lists(known, min_size=1, max_size=4, unique_by=lambda pair: (repr(pair[0]).strip("-"), pair[1])))
    partitions = draw(st.lists(st.sampled_from(PARTITIONS), min_size=len(files), max_size=len(files)))

    def table(rows: list[tuple[Any, int | None]], value: str) -> pa.Table:
        return pa.table({
            "a": pa.array([row[0] for row in rows], kind),
            "b": pa.array([row[1] for row in rows], pa.int64()),
            "v": [value] * len(rows),
        })  # fmt: skip

    return [table(rows, "old") for rows in files], partitions, table(keys, "new")


@given(case=datasets(), columns=st.sampled_from([["a"], ["a", "b"], ["b", "a"]]))
def test_steps_agree_with_a_merge(case: tuple[list[pa.Table], list[str | None], pa.Table], columns: list[str]) -> None:
    files, _, source = case
    if len(columns) == 1:  # one row per key
        source = one_row_per_key(source, "a")
    keys = source.select(columns)
    with tempfile.TemporaryDirectory() as folder:
        path = lake.write(Path(folder) / "d", {f"{n}.parquet": t for n, t in enumerate(files)}, row_group_size=2)
        metadata = ParquetMetadataAnalyzer().analyze_dataset_files(path)
        paths = [file.path for file in metadata]
        checker = ConservativeMembershipChecker()
        possible = [f.path for f in metadata if checker.file_might_contain_keys(f, columns, keys)]
        plan = plan_incremental_rewrite(path, keys, columns)
        confirmed = confirm_affected_files(paths, columns, keys)
        dry = inlay.plan_merge(source, path, "upsert", columns, engine="pyarrow")
        result = inlay.merge(source, path, "upsert", columns, engine="pyarrow")
    assert possible == plan.affected_files
    assert set(confirmed) <= set(possible)
    assert confirmed == result.rewritten_files == dry.affected_files
    excluded = {f.path for f in dry.files if f.reason.startswith("statistics")}
    assert excluded == set(plan.unaffected_files)
    assert plan.affected_rows == sum(f.total_rows for f in metadata if f.path in possible)
    stats = compute_merge_stats(
        strategy="upsert",
        target_before=sum(f.total_rows for f in metadata),
        target_after=result.target_count_after,
        inserted_rows=dry.inserted,
        updated_rows=dry.updated,
        deleted_rows=dry.deleted,
    )
    assert stats == {"inserted": result.inserted, "updated": result.updated, "deleted": 0, "total": stats.total}


def one_row_per_key(source: pa.Table, column: str) -> pa.Table:
    seen = {repr(value).strip("-"): row for row, value in enumerate(source[column].to_pylist())}
    return source.take(sorted(seen.values()))


@given(case=datasets(), partition=st.sampled_from(PARTITIONS))
def test_partition_steps_agree_with_a_merge(
    case: tuple[list[pa.Table], list[str | None], pa.Table], partition: str | None
) -> None:
    files, partitions, source = case
    names = [f"p={'__HIVE_DEFAULT_PARTITION__' if p is None else p}/{n}.parquet" for n, p in enumerate(partitions)]
    source = source.append_column("p", pa.array([partition and int(partition)] * len(source), pa.int64()))
    stored = pa.concat_tables(
        t.append_column("p", pa.array([p and int(p)] * len(t), pa.int64()))
        for t, p in zip(files, partitions, strict=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = lake.write(Path(folder) / "d", dict(zip(names, files, strict=True)))
        metadata = ParquetMetadataAnalyzer().analyze_dataset_files(path)
        schema = pa.schema([("p", pa.int64())])
        found = PartitionPruner().identify_candidate_files(
            metadata, ["a", "b"], source, schema, source_partitions=[{"p": partition and int(partition)}]
        )
        moves = _raises(lambda: validate_partition_column_immutability(source, stored, ["a", "b"], ["p"]))
        merge_moves = _raises(lambda: inlay.merge(source, path, "upsert", ["a", "b"], engine="pyarrow"))
    assert found == [f"{path}/{n}" for n, p in sorted(zip(names, partitions, strict=True)) if p == partition]
    assert moves == merge_moves


def _raises(call: Any) -> bool:
    try:
        call()
    except PartitionMoveError:
        return True
    return False


# ------------------------------------------------------------------------------------------------------ table cases
def test_a_key_column_in_the_path_is_confirmed(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {f"day={n}/a.parquet": lake.table([1, 2]) for n in (1, 2)})
    files = inlay.list_dataset_files(path)
    assert confirm_affected_files(files, ["id", "day"], [(2, 2), (9, 1)]) == files[1:]
    assert confirm_affected_files(files, ["day"], pa.array([1])) == files[:1]


def test_files_without_rows_are_excluded_unless_they_are_unreadable() -> None:
    check = ConservativeMembershipChecker().file_might_contain_keys
    assert not check(ParquetFileMetadata("f", 0, 0, {}), "id", [1])
    assert check(ParquetFileMetadata("f", 0, 0, {}, error="Cannot read 'f'"), "id", [1])
    assert check(ParquetFileMetadata("f", 1, 1, {"id": {"min": NAN, "max": NAN}}), "id", [1.0])
    assert not check(ParquetFileMetadata("f", 1, 1, {"id": {"min": 0.5, "max": 0.75}}), "id", [1.0])
    assert not check(ParquetFileMetadata("f", 1, 2, {"id": {"min": None, "max": None, "null_count": 2}}), "id", [1])
    assert check(ParquetFileMetadata("f", 1, 2, {"id": {"min": None, "max": None, "null_count": 1}}), "id", [1])


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([{"p": 1}], ["a", "d"]),
        ([{"p": "1"}], ["a", "d"]),
        ([{"p": 1}, {"p": 2}], ["a", "b", "d"]),
        ([{"p": None}], ["c", "d"]),
        ([{"p": 1, "q": 5}], ["a", "b", "c", "d"]),  # no path has q, so no file is excluded
        ([{"p": 1}, {"q": 5}], ["a", "b", "c", "d"]),
        ([{"p": "x"}], ["d"]),
        ([{}], ["a", "b", "c", "d"]),
        ([], []),
    ],
    ids=str,
)
def test_partitions_exclude_files(wanted: list[dict[str, Any]], found: list[str]) -> None:
    values: dict[str, dict[str, Any]] = {"a": {"p": "01"}, "b": {"p": "2"}, "c": {"p": None}, "d": {}}
    files = [ParquetFileMetadata(name, 1, 1, {}, partitions) for name, partitions in values.items()]
    schema = pa.schema([("p", pa.int32())])
    assert PartitionPruner().identify_candidate_files(files, "id", [1], schema, source_partitions=wanted) == found


REJECTED: dict[str, tuple[pa.Table, type[InlayError]]] = {
    "NULL key": (pa.table({"id": pa.array([1, None]), "v": ["a", "b"]}), NullKeyError),
    "NULL in a dictionary": (
        pa.table({"id": pa.DictionaryArray.from_arrays([0, 1], pa.array([1, None])), "v": ["a", "b"]}), NullKeyError,
    ),
    "float for integer": (pa.table({"id": [1.0], "v": ["a"]}), SchemaMismatchError),
    "missing column": (pa.table({"id": [1]}), SchemaMismatchError),
    "extra column": (pa.table({"id": [1], "v": ["a"], "w": [1]}), SchemaMismatchError),
    "value out of range": (pa.table({"id": [2**40], "v": ["a"]}), SchemaMismatchError),
}  # fmt: skip


@pytest.mark.parametrize("case", REJECTED)
def test_checks_reject_like_a_merge(tmp_path: Path, engine: Any, case: str) -> None:
    source, error = REJECTED[case]
    target = pa.table({"id": pa.array([1], pa.int32()), "v": ["old"]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    with pytest.raises(error) as by_step:
        validate_keys_and_schema(source, target, "id")
    with pytest.raises(error) as by_merge:
        inlay.merge(source, path, "upsert", "id", engine=engine)
    assert str(by_step.value) == str(by_merge.value)
    if error is NullKeyError:
        with pytest.raises(error, match="NULL in 1 of 2 source rows"):
            validate_no_null_keys(source, "id")
