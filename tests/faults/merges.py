"""Scenarios of complete public calls: merges, writes and compaction of a Parquet dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

import inlay
from tests.faults.scenarios import Scenario, dataset

Rows = dict[str, tuple[int, list[tuple[object, ...]]]]

DAYS = (1, 2, 3)


def table(ids: range | list[int], text: str) -> pa.Table:
    """Build rows with a day derived from the id, so that a key never changes its partition."""
    ids = list(ids)
    day = pa.array([DAYS[0] + (i // 100) for i in ids], pa.int64())
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"{text} {i}" for i in ids], "day": day})


def build_dataset(root: Path) -> None:
    """Write three partitions with two files each, and two row groups in each file."""
    for start in (0, 50, 100, 150, 200, 250):
        rows = table(range(start, start + 8), "old")
        directory = dataset(root) / f"day={rows['day'][0]}"
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.drop_columns("day"), directory / f"part-{start}.parquet", row_group_size=4)


def read_rows(root: Path) -> Rows:
    """Return the number of files and the rows of each directory, read without inlay."""
    found: Rows = {}
    for path in sorted(dataset(root).rglob("*.parquet")):
        directory = str(path.parent.relative_to(dataset(root)))
        count, rows = found.get(directory, (0, []))
        columns = pq.ParquetFile(path).read().to_pydict()
        texts = columns["v"] if "v" in columns else [f"renamed {text}" for text in columns["text"]]
        kinds = [str(pq.read_schema(path).field("id").type)] * len(texts)
        found[directory] = count + 1, sorted([*rows, *zip(columns["id"], texts, kinds, strict=True)])
    return found


def _merge(strategy: str, ids: list[int]) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        inlay.merge(table(ids, "new"), str(dataset(root)), strategy, ["id"], ["day"])

    return apply


def _delete(root: Path) -> None:
    inlay.delete(str(dataset(root)), "id IN (1, 52, 101, 153, 206) OR day = 3")


def _build_narrow(root: Path) -> None:
    """Write files whose keys are 32-bit integers."""
    for number in range(3):
        rows = table([number, 100 + number], "old").cast(
            pa.schema([("id", pa.int32()), ("v", pa.string()), ("day", pa.int64())])
        )
        dataset(root).mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, dataset(root) / f"part-{number}.parquet", row_group_size=1)


def _widen(root: Path) -> None:
    rows = table([1, 2**40], "new")
    inlay.merge(rows, str(dataset(root)), "upsert", ["id"], schema_mode="evolve", transaction="wide")


def _delete_early(root: Path) -> inlay.MergeResult:
    """Delete rows of a missing dataset in a transaction."""
    return inlay.merge({"id": TOUCHED}, str(dataset(root)), "delete", ["id"], transaction="first")


def _create_late(root: Path) -> None:
    inlay.merge(table(TOUCHED, "new"), str(dataset(root)), "insert", ["id"], transaction="second")
    assert _delete_early(root).replayed


def _write(mode: Literal["append", "overwrite"]) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        inlay.write_dataset(table([5, 105, 305], "new"), str(dataset(root)), mode=mode, partition_columns=["day"])

    return apply


def _compact(root: Path) -> None:
    inlay.compact(str(dataset(root)))


def _alter(root: Path) -> None:
    path = inlay.list_dataset_files(str(dataset(root)))[0]  # completes the commit of a killed writer
    if "v" in pq.read_schema(path).names:
        inlay.alter(str(dataset(root)), rename={"v": "text"})


def _build_nothing(root: Path) -> None:
    """Create nothing, because the first merge creates the dataset."""


def _append_text(root: Path) -> None:
    """Append to the text of each row in a transaction, and check that the result tells whether this call did it."""
    path = str(dataset(root))
    paths = inlay.list_dataset_files(path)  # completes the commit of a killed writer
    # In one thread, so that the n-th call is the same in every run.
    files = [pq.ParquetFile(each).read(use_threads=False).to_pydict() for each in paths]
    text = {key: value for file in files for key, value in zip(file["id"], file["v"], strict=True)}
    is_applied = text[0].endswith("again")
    rows = table(list(text), "").set_column(1, "v", [[f"{value} again" for value in text.values()]])
    result = inlay.merge(rows, path, "upsert", ["id"], ["day"], transaction="again-1")
    assert result.replayed == is_applied
    assert (result.inserted, result.updated, result.unchanged) == (0, 48, 0)
    assert len(result.rewritten_files) == 6


TOUCHED = [1, 52, 101, 153, 206]  # one row group in each of five files
NEW = [20, 120, 320]  # two existing partitions and one new one

MERGES = {
    scenario.name: scenario
    for scenario in (
        Scenario("insert", build_dataset, _merge("insert", TOUCHED + NEW), read_rows),
        Scenario("update", build_dataset, _merge("update", TOUCHED), read_rows),
        Scenario("upsert", build_dataset, _merge("upsert", TOUCHED + NEW), read_rows),
        Scenario("full_merge", build_dataset, _merge("full_merge", TOUCHED + NEW), read_rows),
        Scenario("deduplicate", build_dataset, _merge("deduplicate", [*TOUCHED, *NEW, *TOUCHED]), read_rows),
        Scenario("delete", build_dataset, _merge("delete", TOUCHED), read_rows),
        Scenario("delete by condition", build_dataset, _delete, read_rows),
        Scenario("widen", _build_narrow, _widen, read_rows),
        Scenario("early transaction", _delete_early, _create_late, read_rows),
        Scenario("initial load", _build_nothing, _merge("upsert", TOUCHED + NEW), read_rows),
        Scenario("overwrite", build_dataset, _write("overwrite"), read_rows),
        Scenario("transaction", build_dataset, _append_text, read_rows),
        Scenario("append", build_dataset, _write("append"), read_rows, repeatable=False),
        Scenario("compact", build_dataset, _compact, read_rows),
        Scenario("alter", build_dataset, _alter, read_rows),
    )
}
