"""NULL in a key matches nothing, in every helper as in a merge."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import inlay
from inlay.incremental import (
    ConservativeMembershipChecker,
    ParquetMetadataAnalyzer,
    confirm_affected_files,
    validate_partition_column_immutability,
)
from tests import lake

STORED = pa.table({"a": pa.array([1, None, 3]), "b": pa.array([None, 2, 3]), "p": ["x", "x", "x"]})
NULLS = pa.table({"a": pa.array([1, None]), "b": pa.array([None, 2])})


def test_no_file_contains_a_key_with_null(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"f.parquet": STORED})
    files = inlay.list_dataset_files(path)
    assert confirm_affected_files(files, ["a", "b"], NULLS) == []
    assert confirm_affected_files(files, ["a"], pa.array([None], pa.int64())) == []
    assert confirm_affected_files(files, ["a", "b"], pa.table({"a": [None, 3], "b": [2, 3]})) == files
    (metadata,) = ParquetMetadataAnalyzer().analyze_dataset_files(path)
    checker = ConservativeMembershipChecker()
    assert not checker.file_might_contain_keys(metadata, ["a", "b"], NULLS)
    assert checker.file_might_contain_keys(metadata, ["a", "b"], [(3, 3)])


def test_a_key_with_null_never_moves() -> None:
    moved = NULLS.append_column("p", pa.array(["y", "y"]))
    validate_partition_column_immutability(moved, STORED, ["a", "b"], ["p"])
    validate_partition_column_immutability(moved.select(["a", "p"]).slice(1), STORED, ["a"], ["p"])
