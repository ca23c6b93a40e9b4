"""Pieces of rows that Spark tasks exchange, and the driver's summary of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.engines.base import Target
from inlay.engines.keys import KeyIndex
from inlay.engines.selection import Selection
from inlay.engines.spark import jobs, tasks
from inlay.engines.spark.tasks import ChunkRows, PieceWriter, Scratch, read_slabs
from inlay.storage import locate

TYPES = [
    pa.int64(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.list_(pa.int16()),
    pa.decimal128(20, 3),
    pa.timestamp("ns", "UTC"),
    pa.struct([("a", pa.int8()), ("b", pa.string())]),
]


def values(type_: pa.DataType, numbers: list[int]) -> pa.Array:
    if pa.types.is_nested(type_):
        plain = [[n % 7] * (n % 3) if pa.types.is_list(type_) else {"a": n % 5, "b": str(n)} for n in numbers]
        return pa.array(plain, type_)
    texts = pa.array([None if n % 10 == 0 else str(n) for n in numbers])
    if pa.types.is_dictionary(type_):
        return texts.dictionary_encode()
    if pa.types.is_timestamp(type_):
        return texts.cast(pa.int64()).cast(type_)
    return texts.cast(type_)


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    made = Scratch.beside(locate(tmp_path / "d"))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("items", "megabytes", "expected"),
    [
        (100, 0.1, 1),  # one task costs less than several
        (100, 2.5, 3),  # the cores share a few megabytes
        (2, 2.5, 2),
        (100, 60, 4),
        (100, 100, 6),  # more tasks than cores, because they may differ in length
        (100, 10_000, 16),
        (10, 10_000, 10),
        (100, None, 16),
    ],
)
def test_bytes_determine_the_number_of_tasks(
    monkeypatch: pytest.MonkeyPatch, items: int, megabytes: float | None, expected: int
) -> None:
    monkeypatch.setattr(tasks, "parallelism", lambda cores: cores)
    size = None if megabytes is None else int(megabytes * (1 << 20))
    assert tasks.max_tasks(4, items, size) == expected


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_rows_are_read_in_their_positions(scratch: Scratch, type_: pa.DataType) -> None:
    """Two writers write the rows of two chunks."""
    sizes = [40, 60]
    whole = pa.table({"v": values(type_, list(range(100))), "n": range(100)})
    writers = np.random.default_rng(0).integers(0, 2, 100)
    chunks: list[list[tasks.Piece]] = [[], []]
    for writer in (0, 1):
        with PieceWriter(scratch, "sent") as out:
            for chunk, start in enumerate((0, 40)):
                positions = np.flatnonzero(writers[start : start + sizes[chunk]] == writer)
                chunks[chunk].append(out.add(_take(whole, positions + start), positions))
    rows = ChunkRows(scratch, chunks)
    for first, end in ((0, 40), (40, 100), (30, 70), (0, 1), (0, 100)):
        got = rows.take(np.arange(first, end))
        assert got.schema == whole.schema
        assert got.to_pylist() == whole.slice(first, end - first).to_pylist()


def _take(table: pa.Table, rows: np.ndarray) -> pa.Table:
    return pa.concat_tables([table.slice(int(row), 1) for row in rows])


def test_slabs_have_a_limited_size(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_SLAB_BYTES", 2_000)
    with PieceWriter(scratch, "rows") as out:
        pieces = [out.add(pa.table({"n": range(at * 100, (at + 1) * 100)})) for at in range(10)]
    found = list(read_slabs(scratch, pieces))
    assert max(table.nbytes for table in found) < 3_000
    assert pa.concat_tables(found)["n"].to_pylist() == list(range(1_000))


def test_a_writer_that_fails_leaves_no_file(scratch: Scratch) -> None:
    with pytest.raises(AttributeError), PieceWriter(scratch, "rows") as out:
        out.add(None)
    assert [file.name for file in Path(scratch.path).iterdir()] == ["alive"]  # the lock of the directory


def test_removing_a_scratch_removes_its_empty_parent(tmp_path: Path, scratch: Scratch) -> None:
    scratch.write("rows", pa.table({"n": [1]}))
    scratch.remove()
    assert not list(tmp_path.iterdir())


@given(st.lists(st.integers(-50, 50), min_size=1), st.lists(st.tuples(st.integers(-60, 60), st.integers(0, 20))))
def test_runs_touch_every_range_that_contains_a_key(keys: list[int], ranges: list[tuple[int, int]]) -> None:
    index = KeyIndex([pa.chunked_array([pa.array(keys, pa.int64())])])
    lows, highs = pa.array([low for low, _ in ranges], pa.int64()), pa.array([a + b for a, b in ranges], pa.int64())
    known = np.ones(len(ranges), np.bool_)
    exact = index.touches(0, lows, highs, known)
    assert (index.runs(len(keys)).touches(0, lows, highs, known) == exact).all()
    assert (index.runs(3).touches(0, lows, highs, known) >= exact).all()
    assert index.runs(3).touches(0, lows, highs, ~known).all()


def test_positions_of_many_selected_rows_are_sent_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_MAX_RESULT_BYTES", 100)
    table = pa.table({"id": range(1000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=600)
    location = locate(str(tmp_path))
    scratch = Scratch(location.store, str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    results: list[object] = []

    def run(kernel: Callable[[object], object], bundles: Sequence[object]) -> Iterator[object]:
        results.extend(map(kernel, bundles))
        return iter(results)

    selection = Selection.of("id >= 500", table.schema)
    [found] = jobs.select(run, location, selection, scratch, [[Target("a.parquet")]])
    assert [len(group.positions) for group in found.groups] == [100, 400]
    assert [type(result) for result in results] == [str]
    assert not list((tmp_path / "scratch").iterdir())
