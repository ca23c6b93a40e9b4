"""After any sequence of changes, also by other programs, each kept version has the rows of the model, also in views."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table import StaticTable

import inlay
from inlay.errors import DamagedVersionError, NotFoundError
from tests.faults.views import wrong_views
from tests.s3 import S3Server
from tests.versions import STORAGES, Dataset, file_names, new_dataset, write_file, wrong_versions

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

    def __init__(self, path: Dataset, partition_columns: list[str]) -> None:
        self.path, self.partition_columns = path, partition_columns
        self.client, self.root = fsspec.url_to_fs(str(path))
        self.files: dict[int, set[str]] = {}  # of each version
        self.present: set[str] = set()  # the files before a step
        self.lost: set[str] = set()  # files that another program has destroyed before there was a copy
        self.rows: list[tuple[int, int]] = []  # with repeated keys, because appends do not compare them
        self.name = "v"
        self.versions: dict[int, tuple[str, list[tuple[int, int]]]] = {}
        self.number = 0

    def table(self, keys: set[int]) -> pa.Table:
        self.number += 1
        ids = sorted(keys)
        partitions = {"p": [key % PARTITIONS for key in ids]} if self.partition_columns else {}
        values = pa.array([self.number] * len(ids), pa.int32())
        return pa.table({"id": pa.array(ids, pa.int64()), self.name: values, **partitions})

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
            inlay.keep(self.path, versions=argument + 1, copies=True)
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
        except (NotFoundError, DamagedVersionError):
            return
        assert version.restores is not None
        if version.restores in self.versions:
            self.bring_back(version.restores)

    def restore(self, choice: int) -> None:
        kept = [entry for entry in inlay.history(self.path) if not entry.damaged]
        numbers = [entry.version for entry in kept if entry.version in self.versions]
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
        files = file_names(self.path)
        if action == "foreign":
            table = self.table(keys)
            self._write(f"foreign-{self.number}.parquet", table)
            self.rows += pairs(table)
        elif len(files) > 1 and action == "foreign removal":
            self._lose(files[0])
            self.client.rm_file(f"{self.root}/{files[0]}")
        elif files and action == "foreign replacement":
            table = self._lose(files[-1])
            changed = table.set_column(1, self.name, pa.array([-1] * table.num_rows, table.schema.types[1]))
            write_file(self.path, files[-1], changed)
            self.rows += pairs(changed)

    def _write(self, name: str, table: pa.Table) -> None:
        if not self.partition_columns:
            write_file(self.path, name, table)
            return
        for partition in set(table["p"].to_pylist()):
            part = table.filter([value == partition for value in table["p"].to_pylist()])
            write_file(self.path, f"p={partition}/{name}", part.drop_columns("p"))

    def _lose(self, name: str) -> pa.Table:
        with self.client.open(f"{self.root}/{name}") as file:
            table = pq.ParquetFile(file).read()
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
            found = self.read(entry.version) if entry.files else (self.name, [])
            expected = self.versions.setdefault(entry.version, found)
            assert found == expected, f"version {entry.version} changed"
            assert entry.rows in (None, len(found[1]))
        if kept and self.is_recorded():
            assert self.versions[kept[0].version] == (self.name, sorted(self.rows))
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

    def check_views(self) -> None:
        """Compare the rows of all kept versions in views with the model."""
        assert isinstance(self.path, Path)
        assert wrong_views(self.path.parent, is_recovered=True) == []
        for entry in inlay.history(self.path) if self.path.with_name("ds.delta").exists() else ():
            delta = pl.scan_delta(self.path.with_name("ds.delta"), version=entry.version).collect().to_arrow()
            found = [delta] if entry.files else []
            if self.path.with_name("ds.iceberg").exists():
                table = StaticTable.from_metadata(str(self.path.with_name("ds.iceberg")))
                snapshot = table.snapshot_by_name(f"v{entry.version}")
                assert snapshot is not None
                iceberg = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
                found += [iceberg] if entry.files else []
                assert iceberg.num_rows == delta.num_rows
            name, rows = self.versions[entry.version]
            for each in found:
                assert sorted(pairs(each.select(["id", name]))) == rows, f"version {entry.version}"


def pairs(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))


@pytest.mark.parametrize("kind", STORAGES)
@given(
    steps=st.lists(STEPS, min_size=1, max_size=14),
    limit=st.sampled_from([None, 1, 3, 100]),
    partition_columns=st.sampled_from([[], ["p"]]),
    formats=st.sampled_from([[], ["delta"], ["delta", "iceberg"]]),
    on_commit=st.booleans(),
)
def test_each_version_keeps_its_rows(
    kind: str,
    request: pytest.FixtureRequest,
    steps: list[tuple[str, Any]],
    limit: int | None,
    partition_columns: list[str],
    formats: list[str],
    on_commit: bool,
) -> None:
    formats = formats if kind == "links" else []
    if formats:  # A view refuses a dataset whose files have several types.
        steps = [step for step in steps if step[0] != "widen"]
    with _dataset(kind, request) as path:
        model = Model(path, partition_columns)
        model.step("append", {1, 2, 3})
        for format_ in formats:
            inlay.publish(path, format_, on_commit=on_commit)
        if limit is not None:
            inlay.keep(model.path, versions=limit, copies=True)
        for action, argument in steps:
            model.step(action, argument)
        model.step("insert", {99})  # records the last foreign change
        inlay.recover(model.path)
        assert model.wrong() == []
        for format_ in [] if on_commit else formats:
            inlay.publish(path, format_)
        if formats:
            model.observe()
            model.check_views()


@contextlib.contextmanager
def _dataset(kind: str, request: pytest.FixtureRequest) -> Iterator[Dataset]:
    s3: S3Server | None = request.getfixturevalue("s3") if kind == "s3" else None
    with tempfile.TemporaryDirectory() as directory, new_dataset(kind, Path(directory), s3) as path:
        yield path
