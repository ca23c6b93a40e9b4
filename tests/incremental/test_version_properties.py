"""After any sequence of changes, also by other programs, each kept version has the rows of the model, also in views."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table import StaticTable

import inlay
from inlay.errors import NotFoundError
from tests.faults.scenarios import wrong_history
from tests.faults.views import wrong_views

Rows = dict[int, int]

KEYS = st.integers(0, 12)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["upsert", "update", "insert", "full_merge", "delete"]), st.sets(KEYS, max_size=5)),
    st.tuples(st.sampled_from(["append", "overwrite", "foreign"]), st.sets(KEYS, min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["compact", "foreign removal", "foreign replacement"]), st.none()),
    st.tuples(st.just("undo"), st.none()),
    st.tuples(st.sampled_from(["restore", "forget"]), st.integers(0, 20)),
)


class Model:
    """A dataset, and the rows that each version must have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[tuple[int, int]] = []  # with repeated keys, because appends do not compare them
        self.versions: dict[int, list[tuple[int, int]]] = {}
        self.number = 0

    def table(self, keys: set[int]) -> pa.Table:
        self.number += 1
        return pa.table(
            {"id": pa.array(sorted(keys), pa.int64()), "v": pa.array([self.number] * len(keys), pa.int64())}
        )

    def step(self, action: str, argument: Any) -> None:
        if action in ("upsert", "update", "insert", "full_merge", "delete"):
            self.merge(action, argument)
        elif action in ("append", "overwrite"):
            table = self.table(argument)
            inlay.write_dataset(table, self.path, mode=action)
            self.rows = [*(self.rows if action == "append" else []), *pairs(table)]
        elif action == "compact":
            inlay.compact(self.path)
        elif action == "undo":
            self.undo()
        elif action == "restore":
            self.restore(argument)
        elif action == "forget":
            self.forget(argument)
        else:
            self.foreign(action, argument)
        assert sorted(pairs(inlay.read_parquet(self.path))) == sorted(self.rows)
        self.observe()

    def merge(self, strategy: Any, keys: set[int]) -> None:
        table = self.table(keys)
        inlay.merge(table, self.path, strategy, "id")
        source, present = dict(pairs(table)), {key for key, _ in self.rows}
        if strategy == "delete":
            self.rows = [row for row in self.rows if row[0] not in source]
            return
        if strategy == "full_merge":
            self.rows = [row for row in self.rows if row[0] in source]
        if strategy != "insert":
            self.rows = [(key, source.get(key, value)) for key, value in self.rows]
        if strategy != "update":
            self.rows += [(key, value) for key, value in source.items() if key not in present]

    def undo(self) -> None:
        try:
            version = inlay.undo(self.path)
        except NotFoundError:
            return
        assert version.restores is not None
        if version.restores in self.versions:
            self.rows = list(self.versions[version.restores])

    def restore(self, choice: int) -> None:
        numbers = [entry.version for entry in inlay.history(self.path) if entry.version in self.versions]
        if numbers:
            number = numbers[choice % len(numbers)]
            inlay.restore(self.path, number)
            self.rows = list(self.versions[number])

    def forget(self, choice: int) -> None:
        numbers = sorted(entry.version for entry in inlay.history(self.path))
        before = numbers[choice % len(numbers)]
        report = inlay.forget(self.path, before)
        assert report.versions == [number for number in numbers if number < before]

    def foreign(self, action: str, keys: set[int]) -> None:
        """Change files as a program without inlay does, by renaming new files and deleting files."""
        files = sorted(self.path.glob("*.parquet"))
        if action == "foreign":
            table = self.table(keys)
            write(self.path / f"foreign-{self.number}.parquet", table)
            self.rows += pairs(table)
        elif len(files) > 1 and action == "foreign removal":
            self._lose(files[0])
        elif action == "foreign replacement":
            table = pq.read_table(files[-1])
            self._lose(files[-1], keep=True)
            changed = table.set_column(1, "v", pa.array([-1] * table.num_rows, pa.int64()))
            write(files[-1], changed)
            self.rows += pairs(changed)

    def _lose(self, file: Path, *, keep: bool = False) -> None:
        for row in pairs(pq.read_table(file)):
            self.rows.remove(row)
        if not keep:
            file.unlink()

    def observe(self) -> None:
        """Remember the rows of a new version, and compare those of all kept versions."""
        kept = inlay.history(self.path)
        for entry in kept:
            found = sorted(pairs(inlay.read_parquet(self.path, version=entry.version))) if entry.files else []
            expected = self.versions.setdefault(entry.version, found)
            assert found == sorted(expected), f"version {entry.version} changed"
            assert entry.rows in (None, len(found))
            assert not entry.damaged
        if kept and self.is_recorded():
            assert sorted(self.versions[kept[0].version]) == sorted(self.rows)

    def is_recorded(self) -> bool:
        """Return whether no foreign change waits for the next commit."""
        return wrong_history(self.path.parent) == []

    def check_views(self) -> None:
        """Compare the rows of all kept versions in views with the model."""
        assert wrong_views(self.path.parent, is_recovered=True) == []
        for entry in inlay.history(self.path) if self.path.with_name("ds.delta").exists() else ():
            expected = sorted(self.versions[entry.version])
            delta = pl.scan_delta(self.path.with_name("ds.delta"), version=entry.version).collect()
            found = [delta.to_arrow()] if entry.files else []
            if self.path.with_name("ds.iceberg").exists():
                table = StaticTable.from_metadata(str(self.path.with_name("ds.iceberg")))
                snapshot = table.snapshot_by_name(f"v{entry.version}")
                assert snapshot is not None
                iceberg = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
                found += [iceberg] if entry.files else []
                assert iceberg.num_rows == delta.height
            for each in found:
                assert sorted(pairs(each)) == expected, f"version {entry.version}"


def pairs(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))


def write(path: Path, table: pa.Table) -> None:
    draft = path.with_suffix(".draft")
    pq.write_table(table, draft)
    draft.rename(path)


@given(
    st.lists(STEPS, min_size=1, max_size=14),
    st.sampled_from([None, 1, 3, 100]),
    st.sampled_from([[], ["delta"], ["delta", "iceberg"]]),
    st.booleans(),
)
def test_each_version_keeps_its_rows(
    steps: list[tuple[str, Any]], limit: int | None, formats: list[str], on_commit: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory) / "ds")
        model.step("append", {1, 2, 3})
        for format_ in formats:
            inlay.publish(model.path, format_, on_commit=on_commit)
        if limit is not None:
            inlay.keep(model.path, versions=limit)
        for action, argument in steps:
            model.step(action, argument)
        inlay.merge(model.table({99}), model.path, "insert", "id")  # records the last foreign change
        model.rows.append((99, model.number))
        inlay.recover(model.path)
        assert wrong_history(model.path.parent) == []
        for format_ in [] if on_commit else formats:
            inlay.publish(model.path, format_)
        model.observe()
        model.check_views()
