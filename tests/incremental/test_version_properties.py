"""After any sequence of changes, also by other programs, each kept version has the rows of the model."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inlay
from inlay.errors import DamagedVersionError, NotFoundError
from tests.s3 import S3Server
from tests.versions import STORAGES, Dataset, file_names, new_dataset, write_file, wrong_versions

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

    def __init__(self, path: Dataset) -> None:
        self.path = path
        self.client, self.root = fsspec.url_to_fs(str(path))
        self.files: dict[int, set[str]] = {}  # of each version
        self.present: set[str] = set()  # the files before a step
        self.lost: set[str] = set()  # files that another program has destroyed before there was a copy
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
        except (NotFoundError, DamagedVersionError):
            return
        assert version.restores is not None
        if version.restores in self.versions:
            self.rows = list(self.versions[version.restores])

    def restore(self, choice: int) -> None:
        kept = [entry for entry in inlay.history(self.path) if not entry.damaged]
        numbers = [entry.version for entry in kept if entry.version in self.versions]
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
        files = file_names(self.path)
        if action == "foreign":
            table = self.table(keys)
            write_file(self.path, f"foreign-{self.number}.parquet", table)
            self.rows += pairs(table)
        elif len(files) > 1 and action == "foreign removal":
            self._lose(files[0])
            self.client.rm_file(f"{self.root}/{files[0]}")
        elif files and action == "foreign replacement":
            table = self._lose(files[-1])
            changed = table.set_column(1, "v", pa.array([-1] * table.num_rows, pa.int64()))
            write_file(self.path, files[-1], changed)
            self.rows += pairs(changed)

    def _lose(self, name: str) -> pa.Table:
        with self.client.open(f"{self.root}/{name}") as file:
            table = pq.read_table(file)
        for row in pairs(table):
            self.rows.remove(row)
        if isinstance(self.path, str):
            self.lost |= {f"{number}/{name}" for number, files in self.files.items() if name in files}
        return table

    def observe(self) -> None:
        """Remember the rows of a new version, and compare those of all kept versions."""
        kept, present = inlay.history(self.path), set(file_names(self.path))
        for entry in kept:
            if entry.version not in self.files:
                self.files[entry.version] = self.present if entry.external else present
            assert entry.damaged == self.is_damaged(entry.version)
            if entry.damaged:
                with pytest.raises(DamagedVersionError):
                    inlay.read_parquet(self.path, version=entry.version)
                continue
            found = sorted(pairs(inlay.read_parquet(self.path, version=entry.version))) if entry.files else []
            expected = self.versions.setdefault(entry.version, found)
            assert found == sorted(expected), f"version {entry.version} changed"
            assert entry.rows in (None, len(found))
        if kept and self.is_recorded():
            assert sorted(self.versions[kept[0].version]) == sorted(self.rows)
        self.present = present

    def is_damaged(self, number: int) -> bool:
        return any(lost.startswith(f"{number}/") for lost in self.lost)

    def wrong(self) -> list[str]:
        damaged = [entry.version for entry in inlay.history(self.path) if self.is_damaged(entry.version)]
        expected = tuple(f"version {number} has lost" for number in damaged)
        return [each for each in wrong_versions(self.path) if not each.startswith(expected)]

    def is_recorded(self) -> bool:
        """Return whether no foreign change waits for the next commit."""
        return self.wrong() == []


def pairs(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))


@pytest.mark.parametrize("kind", STORAGES)
@given(steps=st.lists(STEPS, min_size=1, max_size=14), limit=st.sampled_from([None, 3, 100]))
def test_each_version_keeps_its_rows(
    kind: str, request: pytest.FixtureRequest, steps: list[tuple[str, Any]], limit: int | None
) -> None:
    with _dataset(kind, request) as path:
        model = Model(path)
        model.step("append", {1, 2, 3})
        if limit is not None:
            inlay.keep(model.path, versions=limit, copies=True)
        for action, argument in steps:
            model.step(action, argument)
        model.step("insert", {99})  # records the last foreign change
        inlay.recover(model.path)
        assert model.wrong() == []


@contextlib.contextmanager
def _dataset(kind: str, request: pytest.FixtureRequest) -> Iterator[Dataset]:
    s3: S3Server | None = request.getfixturevalue("s3") if kind == "s3" else None
    with tempfile.TemporaryDirectory() as directory, new_dataset(kind, Path(directory), s3) as path:
        yield path
