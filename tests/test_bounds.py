"""Limits of a merge: bytes read, files opened, bytes copied, and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.incremental import confirm_affected_files
from inlay.storage import LocalStore
from tests import lake

# ------------------------------------------------------------------------------------------------------------ reads
FOOTER = 1 << 16  # pyarrow reads this much of a file's end to find its footer
HEADERS = 8192  # new files are written like the first one: the headers of its first pages say how that is


class Read(NamedTuple):
    file: str
    start: int
    end: int


class Recorder:
    """Record every byte range that is read from a data file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: list[Read] = []
        self.opened: list[str] = []

        def open_read(_: LocalStore, path: str) -> Any:
            self.opened.append(path)
            return RecordedFile(open(path, "rb"), path, self.reads)

        def open_arrow(store: LocalStore, path: str, _size: int | None = None) -> pa.NativeFile:
            return pa.PythonFile(open_read(store, path), mode="r")

        monkeypatch.setattr(LocalStore, "open_arrow", open_arrow)
        monkeypatch.setattr(LocalStore, "open_footer", open_arrow)
        monkeypatch.setattr(LocalStore, "open_read", open_read)

    def clear(self) -> None:
        self.reads.clear()
        self.opened.clear()

    def bytes_of(self, path: str | Path, column: str, row_groups: list[int] | None = None) -> int:
        """Return how many bytes of a column's chunks were read, without those at the end beside the footer."""
        metadata = lake.footer(path)
        index = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column)
        edge = os.path.getsize(path) - FOOTER
        groups = range(metadata.num_row_groups) if row_groups is None else row_groups
        total = 0
        for group in groups:
            chunk = lake.chunk_range(path, group, index)
            for read in self.reads:
                if read.file == str(path):
                    total += max(0, min(read.end, chunk.stop, edge) - max(read.start, chunk.start))
        return total


class RecordedFile:
    """A file that records its reads."""

    def __init__(self, file: Any, path: str, reads: list[Read]) -> None:
        self._file, self._path, self._reads = file, path, reads

    def read(self, size: int = -1) -> bytes:
        start = self._file.tell()
        data: bytes = self._file.read(size)
        self._reads.append(Read(self._path, start, start + len(data)))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __del__(self) -> None:
        self._file.close()

    def __enter__(self) -> RecordedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


GROUPS, GROUP = 4, 2000


def wide(first: int, rows: int = GROUPS * GROUP) -> pa.Table:
    """Keys before and after a column that is much larger than both."""
    ids = np.arange(first, first + rows)
    noise = np.random.default_rng(first).bytes(rows * 100)
    payload = [noise[i * 100 : i * 100 + 100] for i in range(rows)]
    return pa.table({"id": ids, "payload": pa.array(payload), "code": [f"code {i}" for i in ids], "last": payload})


@pytest.fixture
def lake_path(tmp_path: Path) -> str:
    files = {f"{n}.parquet": wide(n * 10_000) for n in range(3)}
    return lake.write(tmp_path / "d", files, row_group_size=GROUP, use_dictionary=False)


def payload_read(watch: Recorder, path: str, names: list[str]) -> int:
    return sum(watch.bytes_of(f"{path}/{name}", column) for name in names for column in ("payload", "last"))


ALL = ["0.parquet", "1.parquet", "2.parquet"]


def test_the_recorder_counts_reads(lake_path: str, watch: Recorder) -> None:
    """The recorder detects reads of the payload column."""
    inlay.merge(wide(0, 1).set_column(2, "code", pa.array(["new"])), lake_path, "upsert", ["id"])
    assert watch.bytes_of(f"{lake_path}/1.parquet", "payload") == 0
    watch.clear()
    inlay.compact(lake_path)
    assert payload_read(watch, lake_path, []) == 0
    assert sum(read.end - read.start for read in watch.reads) > 3 * 2 * GROUPS * GROUP * 100


@pytest.mark.parametrize(("keys", "source"), [
    (["id"], [7999, 15_000, 99_999_999]),
    (["code"], ["code 7999", "code 15000", "none"]),
    (["id", "code"], [(7999, "code 7999"), (15_000, "code 15000"), (7999, "code 1")]),
])  # fmt: skip
def test_confirmation_reads_key_columns_only(
    lake_path: str, watch: Recorder, keys: list[str], source: list[Any]
) -> None:
    files = [f"{lake_path}/{name}" for name in ALL]
    assert confirm_affected_files(files, keys, source) == files[:2]
    assert sum(watch.bytes_of(file, column) for file in files[:2] for column in keys) > 0
    assert payload_read(watch, lake_path, ALL) == 0
    total = sum(read.end - read.start for read in watch.reads)
    assert total < sum(os.path.getsize(file) for file in files) / 4


def test_confirmation_reads_row_groups_that_statistics_do_not_exclude(lake_path: str, watch: Recorder) -> None:
    file = f"{lake_path}/0.parquet"
    assert confirm_affected_files([file], ["id"], [2 * GROUP + 5]) == [file]
    assert watch.bytes_of(file, "id", [2]) > 0
    assert watch.bytes_of(file, "id", [0, 1, 3]) == 0


def phases(watch: Recorder, found: dict[str, tuple[int, int]], path: str) -> Callable[[inlay.Progress], None]:
    """Notes at the start of every phase what the one before it read: bytes of the payload, and of all."""
    before = ["load"]

    def progress(now: inlay.Progress) -> None:
        if now.phase != before[0]:
            found[before[0]] = (payload_read(watch, path, ALL), sum(read.end - read.start for read in watch.reads))
            watch.clear()
            before[0] = now.phase

    return progress


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
@pytest.mark.parametrize("keys", [["id"], ["code", "id"]])
def test_match_phase_reads_key_columns_only(lake_path: str, watch: Recorder, strategy: str, keys: list[str]) -> None:
    source = pa.concat_tables([wide(100, 3), wide(15_000, 3), wide(500_000, 3)])
    found: dict[str, tuple[int, int]] = {}
    watch.clear()
    inlay.merge(source, lake_path, strategy, keys, progress=phases(watch, found, lake_path))
    assert found["load"][0] == found["match"][0] == 0
    assert 0 < found["match"][1] < 1_000_000
    if strategy != "insert":
        assert found["rewrite"][0] > 0


def test_merge_decodes_only_row_groups_with_matches(lake_path: str, watch: Recorder) -> None:
    file = f"{lake_path}/0.parquet"
    spoiled = Path(file)
    lake.spoil(spoiled, 0, 1, 3)  # whoever decodes these fails
    source = wide(2 * GROUP + 5, 1).set_column(2, "code", pa.array(["new"]))
    result = inlay.merge(source, lake_path, "update", ["id"])
    assert result.updated == 1
    table = pq.ParquetFile(file).read_row_group(2)
    assert table.slice(5, 1).column("code").to_pylist() == ["new"]


def test_a_pure_insert_reads_no_rows(lake_path: str, watch: Recorder) -> None:
    result = inlay.merge(wide(500_000, 10), lake_path, "upsert", ["id"])
    assert result.inserted == 10
    assert payload_read(watch, lake_path, ALL) < HEADERS
    assert sum(watch.bytes_of(f"{lake_path}/{name}", "id") for name in ALL) < HEADERS


# ---------------------------------------------------------------------------------------------------------- copies
def test_untouched_files_keep_bytes_inode_and_mtime(lake_path: str) -> None:
    before = lake.photograph(lake_path)
    source = pa.concat_tables([wide(15_000, 2), wide(700_000, 2)]).set_column(2, "code", pa.array(["new"] * 4))
    result = inlay.merge(source, lake_path, "upsert", ["id"])
    after = lake.photograph(lake_path)
    assert result.rewritten_files == [f"{lake_path}/1.parquet"]
    for name in ("0.parquet", "2.parquet"):
        assert after[name] == before[name]
    assert after["1.parquet"] != before["1.parquet"]


def test_untouched_row_groups_and_columns_are_copied_byte_for_byte(lake_path: str) -> None:
    file = f"{lake_path}/1.parquet"
    before = {(g, c): lake.chunk_bytes(file, g, c) for g in range(GROUPS) for c in range(4)}
    row = GROUP + 7
    changed = wide(10_000).slice(row, 1).set_column(2, "code", pa.array(["new"]))
    result = inlay.merge(changed, lake_path, "update", ["id"])
    after = {(g, c): lake.chunk_bytes(file, g, c) for g in range(GROUPS) for c in range(4)}
    different = [chunk for chunk in before if after[chunk] != before[chunk]]
    assert different == [(1, 2)]  # the one column of the one row group in which a value changed
    assert result.bytes_copied > 0.9 * os.path.getsize(file)


def test_snapshot_with_few_changes_rewrites_few_row_groups(tmp_path: Path) -> None:
    files = {f"{n}.parquet": lake.table(range(n * 1000, n * 1000 + 1000)) for n in range(10)}
    path = lake.write(tmp_path / "d", files, row_group_size=100)
    before = lake.photograph(path)
    ids = range(10_000)
    snapshot = lake.table(ids, [f"new {i}" if i in (150, 5555) else f"v{i}" for i in ids])
    result = inlay.merge(snapshot, path, "full_merge", ["id"])
    assert (result.updated, result.unchanged) == (10_000, 9998)
    after = lake.photograph(path)
    assert {name for name in before if after[name] != before[name]} == {"0.parquet", "5.parquet"}
    assert lake.chunk_bytes(f"{path}/0.parquet", 2, 1) == before["0.parquet"][0][chunk(files["0.parquet"], tmp_path)]


def chunk(table: pa.Table, folder: Path) -> slice:
    pq.write_table(table, folder / "again.parquet", row_group_size=100)
    return lake.chunk_range(folder / "again.parquet", 2, 1)


def test_an_append_reads_no_existing_rows(lake_path: str, watch: Recorder) -> None:
    before = lake.photograph(lake_path)
    inlay.write_dataset(wide(900_000, 5), lake_path)
    after = lake.photograph(lake_path)
    assert {name: after[name] for name in before} == before
    assert payload_read(watch, lake_path, ALL) < HEADERS


# ------------------------------------------------------------------------------------------------------- planning again
def test_planning_again_reads_no_footers(tmp_path: Path, watch: Recorder) -> None:
    count = 2000
    (tmp_path / "d").mkdir()
    pq.write_table(lake.table([0]), tmp_path / "first.parquet")
    data = (tmp_path / "first.parquet").read_bytes()
    for n in range(count):
        (tmp_path / f"d/{n:04d}.parquet").write_bytes(data)
    path = str(tmp_path / "d")
    inlay.merge(lake.table([5]), path, "insert", ["id"])  # makes the sidecar
    assert len(watch.opened) >= count
    inlay.plan_merge(lake.table([5]), path, "insert", ["id"])  # sees the new file
    name = str(tmp_path / "d/0007.parquet")
    pq.write_table(lake.table([7]), name)
    for turn in range(3):
        watch.clear()
        plan = inlay.plan_merge(lake.table([1000 + turn]), path, "upsert", ["id"])
        assert (plan.inserted, len(plan.unaffected_files)) == (1, count + 1)
        assert watch.opened == ([name] if turn == 0 else [])
    watch.clear()
    result = inlay.merge(lake.table([7], ["new"]), path, "update", ["id"])
    assert result.updated == 1
    assert {file for file in watch.opened if file.startswith(path)} <= {name, f"{path}/0000.parquet"}


# --------------------------------------------------------------------------------------------------------------- memory
CHILD = """
import sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import inlay

def table(ids, name):
    columns = {"id": ids, "a": ids * 7, "b": ids / 3, "at": pa.array(ids, pa.timestamp("us"))}
    columns["s"] = pa.repeat(name, len(ids)) if name else names.take(pa.array(ids % 1000))
    return pa.table(columns)

names = pa.array([f"name {i}" for i in range(1000)])

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024

def make(path, rows, group):
    with pq.ParquetWriter(f"{path}/a.parquet", table(np.arange(1), "").schema) as writer:
        for first in range(0, rows, group):
            writer.write_table(table(np.arange(first, first + group), ""), row_group_size=group)

def change(path, rows, changed):
    ids = np.linspace(0, rows - 1, changed).astype(np.int64)
    result = inlay.merge(table(ids, "new"), path, "upsert", ["id"])
    assert (result.updated, result.inserted, result.unchanged) == (changed, 0, 0), result
    assert result.target_count_after == rows

def stream(path, rows, width, strategy):
    text = "x" * width
    def batches():
        for first in range(0, rows, 10_000):
            ids = np.arange(first, first + 10_000) * 2654435761 % 2**40
            yield pa.record_batch({"id": ids, "p": pa.array(np.char.add(text, ids.astype(str)))})
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    result = inlay.merge(pa.RecordBatchReader.from_batches(schema, batches()), path, strategy, ["id"])
    inserted = rows - 1 if strategy == "upsert" else 0
    assert (result.updated, result.inserted, result.source_count) == (1, inserted, rows), result

def from_files(path, source, rows):
    result = inlay.merge(source, path, "upsert", ["id"])
    assert (result.updated, result.inserted) == (2, rows - 2), result

{"make": make, "change": change, "stream": stream, "from_files": from_files}[sys.argv[1]](
    *(int(a) if a.isdigit() else a for a in sys.argv[2:])
)
print(peak())
"""
LIMIT = 600  # MB of resident memory


def run(*arguments: Any) -> int:
    """Run a function of CHILD in a process of its own; its peak of resident memory in MB."""
    command = [sys.executable, "-c", CHILD, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def change_a_large_file(tmp_path: Path, rows: int, changed: int, group: int) -> int:
    path = tmp_path / "d"
    path.mkdir()
    run("make", path, rows, group)
    used = run("change", path, rows, changed)
    metadata = lake.footer(path / "a.parquet")
    assert (metadata.num_rows, metadata.num_row_groups) == (rows, rows // group)
    return used


def test_large_file_is_merged_in_bounded_memory(tmp_path: Path) -> None:
    """A tenth of the long test."""
    used = change_a_large_file(tmp_path, 2_000_000, 10_000, 100_000)
    assert used < 320


@pytest.mark.long  # short runs merge a tenth of these rows above
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("group", [200_000, 1_000_000])
def test_twenty_million_rows_are_merged_in_bounded_memory(tmp_path: Path, group: int) -> None:
    assert change_a_large_file(tmp_path, 20_000_000, 100_000, group) < LIMIT


def small_target(tmp_path: Path) -> str:
    return lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [0, 5], "p": ["a", "b"]})})


# An upsert does all that an update does.
@pytest.mark.parametrize("strategy", [pytest.param("update", marks=pytest.mark.long), "upsert"])
def test_stream_is_merged_in_bounded_memory(tmp_path: Path, strategy: str) -> None:
    """The source has 400 MB of rows, more than fits in the limit at once."""
    assert run("stream", small_target(tmp_path), 400_000, 1000, strategy) < 450


@pytest.mark.long  # short runs merge a stream of 400 MB above
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", ["update", "upsert"])
@pytest.mark.parametrize(("rows", "width"), [(3_000_000, 1000), (30_000_000, 80)])
def test_stream_of_three_gigabytes_is_merged_in_bounded_memory(
    tmp_path: Path, strategy: str, rows: int, width: int
) -> None:
    assert run("stream", small_target(tmp_path), rows, width, strategy) < LIMIT


@pytest.mark.long  # short runs merge a stream that is larger than the limit
def test_source_files_larger_than_the_memory_limit(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    rows, per_file = 400_000, 50_000
    for first in range(0, rows, per_file):
        ids = np.arange(first, first + per_file)
        text = pa.array(np.char.add("x" * 1000, ids.astype(str)))
        pq.write_table(pa.table({"id": ids, "p": text}), folder / f"{first:06d}.parquet", compression="zstd")
    assert run("from_files", small_target(tmp_path), folder, rows) < LIMIT
