"""After any sequence of changes, also by other programs, each kept version has the rows of the model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

import inlay
from inlay.errors import NotFoundError
from tests.faults.scenarios import wrong_history

Rows = dict[int, int]

KEYS = st.integers(0, 12)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["upsert", "update", "insert", "full_merge", "delete"]), st.sets(KEYS, max_size=5)),
    st.tuples(st.sampled_from(["append", "overwrite", "foreign"]), st.sets(KEYS, min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["compact", "foreign removal", "foreign replacement"]), st.none()),
    st.tuples(st.just("undo"), st.none()),
    st.tuples(st.sampled_from(["restore", "forget", "keep"]), st.integers(0, 20)),
    st.tuples(st.sampled_from(["rename", "widen"]), st.none()),
)
PARTITIONS = 3


class Model:
    """A dataset, and the rows that each version must have.

    A dataset with partitions has the column `p`, which depends on the key. `name` is the column of the values.
    """

    def __init__(self, path: Path, partition_columns: list[str]) -> None:
        self.path, self.partition_columns = path, partition_columns
        self.rows: list[tuple[int, int]] = []  # with repeated keys, because appends do not compare them
        self.name = "v"
        self.versions: dict[int, tuple[str, list[tuple[int, int]]]] = {}
        self.number = 0

    def table(self, keys: set[int]) -> pa.Table:
        self.number += 1
        return self.filled(pa.array(sorted(keys), pa.int64()), self.number)

    def filled(self, keys: pa.Array, value: int) -> pa.Table:
        partitions = {"p": [key % PARTITIONS for key in keys.to_pylist()]} if self.partition_columns else {}
        return pa.table({"id": keys, self.name: pa.array([value] * len(keys), pa.int32()), **partitions})

    def read(self, version: int | None = None) -> tuple[str, list[tuple[int, int]]]:
        found = inlay.read_parquet(self.path, version=version)
        if self.partition_columns and found.num_rows:
            assert found["p"].to_pylist() == [key % PARTITIONS for key in found["id"].to_pylist()]
        [name] = set(found.column_names) - {"id", "p"}
        return name, sorted(pairs(found))

    def step(self, action: str, argument: Any) -> None:
        if action in ("upsert", "update", "insert", "full_merge", "delete"):
            self.merge(action, argument)
        elif action in ("append", "overwrite"):
            table = self.table(argument)
            inlay.write_dataset(table, self.path, mode=action, partition_columns=self.partition_columns or None)
            self.rows = [*(self.rows if action == "append" else []), *pairs(table)]
        elif action == "compact":
            inlay.compact(self.path)
        elif action == "undo":
            self.undo()
        elif action == "restore":
            self.restore(argument)
        elif action == "forget":
            self.forget(argument)
        elif action == "keep":
            inlay.keep(self.path, versions=argument + 1)
            assert len(inlay.history(self.path)) <= argument + 1
        elif action == "rename":
            name, self.name = self.name, {"v": "w", "w": "v"}[self.name]
            inlay.alter(self.path, rename={name: self.name})
        elif action == "widen":
            inlay.alter(self.path, widen={self.name: "int64"})
        else:
            self.foreign(action, argument)
        assert self.read() == (self.name, sorted(self.rows))
        self.observe()

    def merge(self, strategy: Any, keys: set[int]) -> None:
        table = self.table(keys)
        inlay.merge(table, self.path, strategy, "id", self.partition_columns or None)
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
            self.bring_back(version.restores)

    def restore(self, choice: int) -> None:
        numbers = [entry.version for entry in inlay.history(self.path) if entry.version in self.versions]
        if numbers:
            number = numbers[choice % len(numbers)]
            inlay.restore(self.path, number)
            self.bring_back(number)

    def bring_back(self, number: int) -> None:
        name, rows = self.versions[number]
        self.name, self.rows = name, list(rows)

    def forget(self, choice: int) -> None:
        numbers = sorted(entry.version for entry in inlay.history(self.path))
        before = numbers[choice % len(numbers)]
        report = inlay.forget(self.path, before)
        assert report.versions == [number for number in numbers if number < before]

    def foreign(self, action: str, keys: set[int]) -> None:
        """Change files as a program without inlay does, by renaming new files and deleting files."""
        files = sorted(self.path.rglob("*.parquet"))
        if action == "foreign":
            table = self.table(keys)
            for partition in range(PARTITIONS) if self.partition_columns else ():
                part = table.filter([key % PARTITIONS == partition for key in table["id"].to_pylist()])
                write(self.path / f"p={partition}" / f"foreign-{self.number}.parquet", part.drop_columns("p"))
            if not self.partition_columns:
                write(self.path / f"foreign-{self.number}.parquet", table)
            self.rows += pairs(table)
        elif len(files) > 1 and action == "foreign removal":
            self._lose(files[0])
        elif action == "foreign replacement":
            table = read_file(files[-1])
            self._lose(files[-1], keep=True)
            changed = table.set_column(1, self.name, pa.array([-1] * table.num_rows, pa.int64()))
            write(files[-1], changed)
            self.rows += pairs(changed)

    def _lose(self, file: Path, *, keep: bool = False) -> None:
        for row in pairs(read_file(file)):
            self.rows.remove(row)
        if not keep:
            file.unlink()

    def observe(self) -> None:
        """Remember the rows of a new version, and compare those of all kept versions."""
        kept = inlay.history(self.path)
        for entry in kept:
            found = self.read(entry.version)
            expected = self.versions.setdefault(entry.version, found)
            assert found == expected, f"version {entry.version} changed"
            assert entry.rows in (None, len(found[1]))
            assert not entry.damaged
        if kept and self.is_recorded():
            assert self.versions[kept[0].version] == (self.name, sorted(self.rows))

    def is_recorded(self) -> bool:
        """Return whether no foreign change waits for the next commit."""
        return wrong_history(self.path.parent) == []


def pairs(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))


def read_file(path: Path) -> pa.Table:
    return pq.ParquetFile(path).read()


def write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".draft")
    pq.write_table(table, draft)
    draft.rename(path)


@given(st.lists(STEPS, min_size=1, max_size=14), st.sampled_from([None, 3, 100]), st.sampled_from([[], ["p"]]))
def test_each_version_keeps_its_rows(
    steps: list[tuple[str, Any]], limit: int | None, partition_columns: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory) / "ds", partition_columns)
        model.step("append", {1, 2, 3})
        if limit is not None:
            inlay.keep(model.path, versions=limit)
        for action, argument in steps:
            model.step(action, argument)
        inlay.merge(model.table({99}), model.path, "insert", "id")  # records the last foreign change
        inlay.recover(model.path)
        assert wrong_history(model.path.parent) == []
