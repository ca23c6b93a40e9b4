"""The sample of rows that a merge would change, compared with a merge in plain Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.engines.base import Engine
from inlay.engines.local import ArrowEngine
from inlay.incremental.managed import Draft, plan_draft
from inlay.incremental.plan import MergePlan
from inlay.incremental.result import Changes, first_rows
from inlay.incremental.validate import MergeOptions
from inlay.storage import locate
from tests import oracle

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("x", pa.float64())])
Rows = list[dict[str, Any]]

ids = st.integers(0, 30)
values = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0.0, -0.0, float("nan"), 1.5, None]))
sources = st.dictionaries(ids, values, min_size=1, max_size=20)
files_of = st.lists(st.lists(st.tuples(ids, values), max_size=12), min_size=1, max_size=3)
strategies = st.sampled_from(sorted(oracle.TRUTH))


def row(key: int, value: tuple[str | None, float | None]) -> dict[str, Any]:
    return {"id": key, "name": value[0], "x": value[1]}


def planned(
    folder: Path, files: list[Rows], source: Rows, strategy: str, limit: int, engine: Engine
) -> tuple[MergePlan, Changes]:
    named = []
    for number, rows in enumerate(files):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=6)  # not more row groups than are read
        named.append((path.name, path.stat().st_size))
    draft = Draft(locate(str(folder)), named, "plan")
    options = MergeOptions.check(strategy, ["id"])
    return plan_draft(pa.Table.from_pylist(source, SCHEMA), draft, options, engine, limit=limit)


def exact(rows: Rows) -> list[Any]:
    return [oracle.exact_row(each) for each in rows]


def check(files: list[Rows], source: Rows, strategy: str, limit: int, changes: Changes) -> None:
    """Check that the sample holds the first changed rows of each kind, up to the limit."""
    outcome = oracle.merge([(str(n), rows) for n, rows in enumerate(files)], source, strategy, ["id"])
    by_key = {each["id"]: each for each in source}
    touched = [files[int(path)][at] for path, positions in outcome.changed.items() for at in positions]
    replaces = oracle.TRUTH[strategy][0] == "replace"
    replaced = [each for each in touched if replaces and each["id"] in by_key]
    gone = [each for each in touched if not replaces or each["id"] not in by_key]
    assert exact(changes.old.to_pylist()) == exact(replaced[:limit])
    assert exact(changes.new.to_pylist()) == exact([by_key[each["id"]] for each in replaced[:limit]])
    assert exact(changes.deleted.to_pylist()) == exact(gone[:limit])
    inserted = [each for rows in outcome.inserts.values() for each in rows]
    assert exact(changes.inserted.to_pylist()) == exact(inserted[:limit])


@pytest.mark.parametrize("source", [[row(1, ("a", None))], []])
def test_sample_contains_deleted_rows_of_row_groups_without_source_keys(tmp_path: Path, source: Rows) -> None:
    rows = [row(number, ("a", None)) for number in range(12)]  # in two row groups
    _, changes = planned(tmp_path, [rows], source, "full_merge", 20, ArrowEngine())
    check([rows], source, "full_merge", 20, changes)
    assert changes.deleted.num_rows == 12 - len(source)


@given(files=files_of, source=sources, strategy=strategies, limit=st.sampled_from([1, 3, 20]))
def test_sample_contains_only_changed_rows(
    tmp_path_factory: pytest.TempPathFactory, files: Any, source: Any, strategy: str, limit: int
) -> None:
    target = [[row(*each) for each in rows] for rows in files]
    rows = [row(*each) for each in source.items()]
    _, changes = planned(tmp_path_factory.mktemp("plan"), target, rows, strategy, limit, ArrowEngine(2))
    check(target, rows, strategy, limit, changes)


@pytest.mark.spark
@pytest.mark.parametrize("strategy", sorted(oracle.TRUTH))
def test_sample_is_the_same_on_spark(tmp_path: Path, strategy: str) -> None:
    from inlay.engines.spark.engine import SparkEngine
    from tests.spark import cluster

    target = [[row(key, ("a", 1.0)) for key in range(start, start + 12)] for start in (0, 12)]
    rows = [row(key, ("a" if key % 3 else "b", 1.0)) for key in range(5, 30)]
    _, changes = planned(tmp_path, target, rows, strategy, 20, SparkEngine(cluster.local_session()))
    check(target, rows, strategy, 20, changes)


class CountingEngine(ArrowEngine):
    """An engine that records its picks."""

    def __init__(self) -> None:
        super().__init__(2)
        self.seen: list[tuple[str, int]] = []

    def pick(self, location: Any, picks: Any, schema: Any) -> Any:
        self.seen += [(pick.path, pick.group) for pick in picks]
        return super().pick(location, picks, schema)


def test_sample_reads_few_row_groups(tmp_path: Path) -> None:
    """The rows come from the first files that hold enough of them."""
    target = [[row(10 * number + key, ("a", 1.0)) for key in range(10)] for number in range(30)]
    rows = [row(key, ("b", 1.0)) for key in range(300)]
    engine = CountingEngine()
    plan, changes = planned(tmp_path, target, rows, "upsert", 20, engine)
    assert (plan.updated, changes.old.num_rows, changes.new.num_rows) == (300, 20, 20)
    assert len(engine.seen) == 4
    engine.seen.clear()
    gone = planned(tmp_path, target, [row(1000, ("b", 1.0))], "full_merge", 200, engine)[1].deleted
    assert [name for name, _ in engine.seen] == [f"{n}.parquet" for n in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert gone["id"].to_pylist() == list(range(40))
    gone = planned(tmp_path, target, [row(1000, ("b", 1.0))], "full_merge", 5, engine)[1].deleted
    assert gone["id"].to_pylist() == list(range(5))
    engine.seen.clear()
    few = [row(10 * number, ("b", 1.0)) for number in range(30)]
    old = planned(tmp_path, target, few, "upsert", 200, engine)[1].old
    assert [name for name, _ in engine.seen] == [f"{n}.parquet" for n in range(8)]
    assert old["id"].to_pylist() == list(range(0, 80, 10))


def test_sample_contains_deleted_rows_between_kept_rows(tmp_path: Path) -> None:
    target = [[row(key, ("a", 1.0)) for key in range(12)]]
    rows = [*(row(key, ("a", 1.0)) for key in range(6)), row(7, ("b", 1.0))]
    engine = CountingEngine()
    _, changes = planned(tmp_path, target, rows, "full_merge", 20, engine)
    check(target, rows, "full_merge", 20, changes)
    assert changes.deleted["id"].to_pylist() == [6, 8, 9, 10, 11]
    # once for the row that changes, once for those that go; nothing goes out of the first row group
    assert engine.seen == [("0.parquet", 1), ("0.parquet", 1)]
    engine.seen.clear()
    planned(tmp_path, target, target[0], "full_merge", 20, engine)
    assert engine.seen == []


@pytest.mark.parametrize("limit", [0, 1, 12, 13, 1000])
def test_first_rows_come_from_files_in_order(tmp_path: Path, limit: int) -> None:
    tables = [pa.table({"id": pa.array(range(10 * n, 10 * n + 6), pa.int32())}) for n in range(10)]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=4)
    paths = [f"{number}.parquet" for number in range(10)]
    found = first_rows(ArrowEngine(), locate(str(tmp_path)), paths, SCHEMA.empty_table().select(["id"]).schema, limit)
    expected = [n for table in tables[:8] for n in table["id"].to_pylist()[:4]][:limit]
    assert found.schema == pa.schema([("id", pa.int64())])
    assert found["id"].to_pylist()[:12] == expected[:12]


def test_first_rows_of_no_files_is_an_empty_table(tmp_path: Path) -> None:
    assert first_rows(ArrowEngine(), locate(str(tmp_path)), [], SCHEMA, 5).equals(SCHEMA.empty_table())
