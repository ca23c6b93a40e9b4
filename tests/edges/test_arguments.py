"""Arguments that contradict each other, or that have an unknown value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inlay
from inlay.errors import InvalidArgumentError

ROWS = [{"id": 1}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "overwrite", "strategy": "upsert", "key_columns": "id"}, 'mode="overwrite" contradicts strategy'),
        ({"mode": "replace"}, "Unknown mode 'replace'"),
        ({"mode": "replace", "strategy": "upsert", "key_columns": "id"}, "Unknown mode 'replace'"),
        ({"strategy": "upsrt"}, "'upsrt'"),
        ({"strategy": "upsrt", "mode": "overwrite"}, "'upsrt'"),
        ({"key_columns": "id"}, "key_columns needs a strategy"),
    ],
)
def test_contradictions_are_rejected(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        inlay.PyArrowDatasetIO().write_parquet_dataset(ROWS, tmp_path / "d", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_strategy_is_named_first(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="'upsrt'"):
        inlay.merge(ROWS, tmp_path / "d", "upsrt", [], partition_columns="a", partition_by="b")  # type: ignore[arg-type]


@pytest.mark.parametrize("condition", ["id > 1", [("id", ">", 1)]])
def test_a_filter_that_is_no_expression_is_rejected(tmp_path: Path, condition: Any) -> None:
    inlay.merge(ROWS, tmp_path / "d", "upsert", "id")
    with pytest.raises(InvalidArgumentError, match="filter must be a pyarrow expression") as error:
        inlay.read_parquet(tmp_path / "d", filter=condition)
    assert "pyarrow.compute.field" in str(error.value.hint)
