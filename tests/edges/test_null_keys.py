"""NULL in a key matches nothing, in every step as in a merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import inlay
from inlay.errors import NullKeyError, PartitionMoveError
from inlay.incremental import (
    ConservativeMembershipChecker,
    ParquetMetadataAnalyzer,
    PartitionPruner,
    confirm_affected_files,
    plan_incremental_rewrite,
    validate_keys_and_schema,
    validate_no_null_keys,
    validate_partition_column_immutability,
)
from tests import lake
from tests.edges.readers import assert_rows

STORED = pa.table({"a": pa.array([1, None, 3]), "b": pa.array([None, 2, 3]), "p": ["x", "x", "x"]})
KEYS = ["a", "b"]
NULLS: dict[str, pa.Table] = {
    "plain": pa.table({"a": pa.array([1, None]), "b": pa.array([None, 2])}),
    "all NULL": pa.table({"a": pa.array([None, None], pa.int64()), "b": pa.array([None, 2])}),
    "a dictionary with NULL as a value": pa.table({
        "a": pa.DictionaryArray.from_arrays([0, 1], pa.array([1, None])),
        "b": pa.DictionaryArray.from_arrays([1, 0], pa.array([2, None])),
    }),
}  # fmt: skip


@pytest.mark.parametrize("case", NULLS)
def test_no_file_contains_a_key_with_null(tmp_path: Path, case: str) -> None:
    keys = NULLS[case]
    path = lake.write(tmp_path / "d", {"f.parquet": STORED})
    files = inlay.list_dataset_files(path)
    (metadata,) = ParquetMetadataAnalyzer().analyze_dataset_files(path)
    assert confirm_affected_files(files, KEYS, keys) == []
    assert not ConservativeMembershipChecker().file_might_contain_keys(metadata, KEYS, keys)
    assert plan_incremental_rewrite(path, keys, KEYS).affected_files == []
    schema = pa.schema([("a", pa.int64())])
    assert PartitionPruner().identify_candidate_files([metadata], KEYS, keys, schema) == []


def test_a_key_with_null_hides_no_other_key(tmp_path: Path) -> None:
    keys = pa.table({"a": [None, 3], "b": [2, 3]})
    path = lake.write(tmp_path / "d", {"f.parquet": STORED})
    files = inlay.list_dataset_files(path)
    (metadata,) = ParquetMetadataAnalyzer().analyze_dataset_files(path)
    assert confirm_affected_files(files, KEYS, keys) == files
    assert confirm_affected_files(files, "a", pa.array([None], pa.int64())) == []
    assert ConservativeMembershipChecker().file_might_contain_keys(metadata, KEYS, [(None, 2), (3, 3)])
    assert plan_incremental_rewrite(path, keys, KEYS).affected_files == files


@pytest.mark.parametrize("case", NULLS)
def test_a_key_with_null_never_moves(case: str) -> None:
    moved = NULLS[case].append_column("p", pa.array(["y", "y"]))
    validate_partition_column_immutability(moved, STORED, KEYS, ["p"])
    known = pa.table({"a": [None, 3], "b": [2, 3], "p": ["y", "y"]})
    with pytest.raises(PartitionMoveError, match="a=3, b=3"):
        validate_partition_column_immutability(known, STORED, KEYS, ["p"])


@pytest.mark.parametrize("case", NULLS)
def test_null_keys_are_rejected(tmp_path: Path, engine: Any, case: str) -> None:
    source = NULLS[case].append_column("p", pa.array(["x", "x"]))
    path = lake.write(tmp_path / "d", {"f.parquet": STORED})
    for check in (
        lambda: validate_no_null_keys(source, KEYS),
        lambda: validate_keys_and_schema(source, STORED, KEYS),
        lambda: inlay.merge(source, path, "upsert", KEYS, engine=engine),
    ):
        with pytest.raises(NullKeyError, match="Key column 'a' is NULL"):
            check()


@pytest.mark.parametrize(("strategy", "kept"), [("upsert", 3), ("full_merge", 1)])
def test_stored_rows_with_null_keys_match_nothing(tmp_path: Path, engine: Any, strategy: Any, kept: int) -> None:
    path = Path(lake.write(tmp_path / "d", {"f.parquet": STORED}))
    source = pa.table({"a": [1, 3], "b": [2, 3], "p": ["new", "new"]})
    result = inlay.merge(source, path, strategy, KEYS, engine=engine)
    assert (result.updated, result.inserted, result.deleted) == (1, 1, 3 - kept)
    stored = STORED.slice(0, 2).to_pylist() if kept == 3 else []
    assert_rows(path, [*stored, *source.to_pylist()])
