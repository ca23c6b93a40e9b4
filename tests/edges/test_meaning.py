"""What a merge means where the arguments leave room for doubt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import inlay
from inlay.engines import source as source_module
from inlay.errors import InvalidArgumentError, SchemaMismatchError
from tests import lake
from tests.edges.readers import assert_rows

CHANGES = pa.table({"id": [1, 2, 1, 3, 3], "v": list("abcde"), "at": [9, 1, 5, None, -1]})
LATEST = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "v": "e"}]


# --------------------------------------------------------------------------------------------------- dedup_order_by
@pytest.mark.parametrize("order_by", ["at", ["at", "v"]], ids=str)
def test_a_column_that_is_not_stored_orders_the_source(tmp_path: Path, engine: Any, order_by: Any) -> None:
    path = Path(lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 7], ["old", "old"])}))
    plan = inlay.plan_merge(CHANGES, path, "deduplicate", "id", dedup_order_by=order_by, engine=engine)
    result = inlay.merge(CHANGES, path, "deduplicate", "id", dedup_order_by=order_by, engine=engine)
    assert (result.updated, result.inserted, result.source_count) == (1, 2, 5)
    assert (plan.updated, plan.inserted) == (1, 2)
    assert_rows(path, [*LATEST, {"id": 7, "v": "old"}])
    assert inlay.read_parquet(path).column_names == ["id", "v"]


def test_the_order_column_of_a_partitioned_dataset_is_dropped(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / "d"
    inlay.write_dataset({"id": [1], "v": ["old"], "day": ["mon"]}, path, partition_columns="day")
    source = CHANGES.append_column("day", pa.array(["mon"] * 5))
    inlay.merge(source, path, "deduplicate", "id", dedup_order_by="at", engine=engine)
    assert_rows(path, [row | {"day": "mon"} for row in LATEST])


def test_a_spilled_source_drops_its_order_column(tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "SPILL_BYTES", 1)
    path = Path(lake.write(tmp_path / "d", {"a.parquet": lake.table([1], ["old"])}))
    inlay.merge(CHANGES.to_reader(1), path, "deduplicate", "id", dedup_order_by="at", engine=engine)
    assert_rows(path, LATEST)


def test_evolve_adds_the_order_column(tmp_path: Path, engine: Any) -> None:
    path = Path(lake.write(tmp_path / "d", {"a.parquet": lake.table([1], ["old"])}))
    inlay.merge(CHANGES, path, "deduplicate", "id", dedup_order_by="at", schema_mode="evolve", engine=engine)
    rows = inlay.read_parquet(path).sort_by("id").to_pylist()
    assert rows == [row | {"at": at} for row, at in zip(LATEST, [9, 1, -1], strict=True)]


def test_only_order_columns_may_be_unknown(tmp_path: Path, engine: Any) -> None:
    path = Path(lake.write(tmp_path / "d", {"a.parquet": lake.table([1], ["old"])}))
    source = CHANGES.append_column("more", CHANGES["at"])
    cases: list[tuple[pa.Table, dict[str, Any], type[Exception], str]] = [
        (source, {"strategy": "deduplicate", "dedup_order_by": "at"}, SchemaMismatchError, "does not have 'more'"),
        (CHANGES, {"strategy": "deduplicate"}, SchemaMismatchError, "does not have 'at'"),
        (CHANGES, {"strategy": "deduplicate", "dedup_order_by": "att"}, SchemaMismatchError, "order_by column 'att'"),
        (CHANGES, {"strategy": "upsert", "dedup_order_by": "at"}, InvalidArgumentError, 'strategy="deduplicate"'),
    ]
    for rows, options, error, message in cases:
        with pytest.raises(error, match=message):
            inlay.merge(rows, path, key_columns="id", engine=engine, **options)
    assert_rows(path, [{"id": 1, "v": "old"}])


@pytest.mark.parametrize("values", [[[1], [2]], [{"a": 1}, {"a": 2}]], ids=["list", "struct"])
def test_a_column_without_order_is_rejected(tmp_path: Path, engine: Any, values: list[Any]) -> None:
    rows = pa.table({"id": [1, 1], "at": values})
    with pytest.raises(InvalidArgumentError, match="'at' cannot be a dedup_order_by column"):
        inlay.merge(rows, tmp_path / "d", "deduplicate", "id", dedup_order_by="at", engine=engine)
    assert not (tmp_path / "d").exists()


# ------------------------------------------------------------------------------------------------ partition_columns
@pytest.mark.parametrize("columns", [["v"], ["id", "v"], []], ids=str)
def test_update_of_a_flat_dataset_needs_no_partitions(tmp_path: Path, engine: Any, columns: list[str]) -> None:
    path = Path(lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2], ["a", "b"])}))
    result = inlay.merge(
        lake.table([2, 3], ["new", "x"]), path, "update", "id", partition_columns=columns, engine=engine
    )
    assert (result.updated, result.inserted, result.inserted_files) == (1, 0, [])
    assert_rows(path, [{"id": 1, "v": "a"}, {"id": 2, "v": "new"}])


def test_partition_columns_are_checked_where_they_matter(tmp_path: Path, engine: Any) -> None:
    flat = lake.write(tmp_path / "flat", {"a.parquet": lake.table([1], ["a"])})
    parts = lake.write(tmp_path / "parts", {"day=1/a.parquet": lake.table([1], ["a"])})
    source = lake.table([1], ["new"]).append_column("day", pa.array([1]))
    cases: list[tuple[Any, str, str, list[str], str]] = [
        (lake.table([1]), flat, "upsert", ["v"], "not partitioned"),
        (lake.table([1]), flat, "full_merge", ["v"], "not partitioned"),
        (lake.table([1]), flat, "update", ["day"], "partition column 'day' does not exist in the source"),
        (source, parts, "update", ["v"], "partitioned by day, not by v"),
    ]
    for rows, path, strategy, columns, message in cases:
        with pytest.raises(ValueError, match=message):
            inlay.merge(rows, path, strategy, "id", partition_columns=columns, engine=engine)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------- DuckDB
@pytest.mark.parametrize(
    ("use_merge", "chosen", "statement"),
    [
        (None, "Using DuckDB MERGE for merge operation (auto-detected)", "MERGE"),
        (True, "Using DuckDB MERGE (explicitly requested)", "MERGE"),
        (False, "Using UNION ALL (explicitly requested)", "UNION ALL"),
    ],
)
@pytest.mark.parametrize(("strategy", "updated", "inserted"), [("insert", 0, 1), ("update", 1, 0), ("upsert", 1, 1)])
def test_the_log_names_the_statement_that_ran(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, strategy: Any, updated: int, inserted: int,
    use_merge: bool | None, chosen: str, statement: str,
) -> None:  # fmt: skip
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([41, 4343], ["secret", "b"])})
    with caplog.at_level("DEBUG", "inlay.engines.duckdb"):
        result = inlay.merge(
            lake.table([42, 4343], ["x", "secret2"]), path, strategy, "id", engine="duckdb", use_merge=use_merge
        )
    assert (result.updated, result.inserted) == (updated, inserted)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [chosen, f"DuckDB ran {statement} on 1 row groups: {updated} updated, {inserted} inserted"]


# ------------------------------------------------------------------------------------------------------ positions
def test_the_mode_may_be_positional(tmp_path: Path) -> None:
    inlay.write_dataset(lake.table([1]), tmp_path / "d", "append")
    inlay.PyArrowDatasetIO().write_dataset(lake.table([2]), tmp_path / "d", "append")
    assert inlay.read_parquet(tmp_path / "d").num_rows == 2
    inlay.DuckDBDatasetIO().write_dataset(lake.table([3]), tmp_path / "d", "overwrite")
    assert inlay.read_parquet(tmp_path / "d")["id"].to_pylist() == [3]
