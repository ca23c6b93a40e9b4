"""The column kernels against plain Python, for every type: what is equal to the bit, and what replaces what."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.engines import kernels
from inlay.engines.base import Append, Combine, FileEdit, GroupEdit
from inlay.engines.kernels import append_rows, bit_equal, combine_files, file_settings, replace_rows, rewrite_file
from inlay.errors import UnreadableFileError
from inlay.parquet.writer import WriterSettings
from inlay.storage import locate
from tests import lake, oracle
from tests.arrow_types import TYPES, array_of

NAN = math.nan
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]


def chunked(kind: pa.DataType, values: list[Any], chunks: int = 1) -> pa.ChunkedArray:
    size = max(1, -(-len(values) // chunks))
    return pa.chunked_array([array_of(kind, values[i : i + size]) for i in range(0, len(values), size)], kind)


def exact(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Python values that are equal exactly if they are the same to the bit."""
    return lake.exact_rows([{"v": lake.plain(value)} for value in column])


# --------------------------------------------------------------------------------------------------------- equality
def test_the_oracle_tells_bits_apart() -> None:
    assert oracle.exact_row({"v": 0.0}) != oracle.exact_row({"v": -0.0})
    assert oracle.exact_row({"v": NAN}) == oracle.exact_row({"v": NAN})
    assert oracle.exact_row({"v": None}) != oracle.exact_row({"v": 0})


@pytest.mark.parametrize("name", TYPES)
def test_bit_equal_agrees_with_python_for_every_type(name: str) -> None:
    kind, values = TYPES[name]
    rows = [*values, None]
    pairs = [(a, b) for a in rows for b in rows]
    left, right = array_of(kind, [a for a, _ in pairs]), array_of(kind, [b for _, b in pairs])
    wanted = [a == b for a, b in zip(exact(left), exact(right), strict=True)]
    assert bit_equal(left, right).tolist() == wanted
    assert bit_equal(left.slice(3, 11), right.slice(3, 11)).tolist() == wanted[3:14]
    assert bit_equal(left.slice(5), right.slice(0, len(right) - 5)).tolist() == [
        a == b for a, b in zip(exact(left)[5:], exact(right)[:-5], strict=True)
    ]
    assert bit_equal(left, left).all()
    assert bit_equal(left.slice(0, 0), right.slice(0, 0)).tolist() == []


@given(st.data())
def test_bit_equal_agrees_with_python_at_random(data: st.DataObject) -> None:
    kind, values = TYPES[data.draw(st.sampled_from(list(TYPES)))]
    one = st.none() | st.sampled_from(values)
    pairs = data.draw(st.lists(st.tuples(one, one), max_size=12))
    left, right = (array_of(kind, [pair[i] for pair in pairs]) for i in (0, 1))
    wanted = [a == b for a, b in zip(exact(left), exact(right), strict=True)]
    assert bit_equal(left, right).tolist() == wanted
    start, length = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 6))
    cut = slice(start, start + length)
    assert bit_equal(left.slice(start, length), right.slice(start, length)).tolist() == wanted[cut]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_nans_and_zeros_differ_by_their_bits(kind: pa.DataType) -> None:
    left = pa.array([NAN, NAN, 0.0, 0.0, None, 1.0], kind)
    right = pa.array([NAN, OTHER_NAN, -0.0, 0.0, None, None], kind)
    assert bit_equal(left, right).tolist() == [True, False, False, True, True, False]
    nested = [pa.ListArray.from_arrays(pa.array(range(7), pa.int32()), side) for side in (left, right)]
    assert bit_equal(*nested).tolist() == [True, False, False, True, True, False]


def test_what_hides_under_a_null_does_not_matter() -> None:
    mask = pa.array([True, False])
    left = pa.StructArray.from_arrays([pa.array([1, 2])], ["x"], mask=mask)
    right = pa.StructArray.from_arrays([pa.array([9, 2])], ["x"], mask=mask)
    assert bit_equal(left, right).tolist() == [True, True]
    offsets = pa.array([0, 2, 3], pa.int32())
    lists = [pa.ListArray.from_arrays(offsets, pa.array(values), mask=mask) for values in ([1, 2, 3], [7, 8, 3])]
    assert bit_equal(*lists).tolist() == [True, True]


def test_dictionaries_are_equal_by_value() -> None:
    left = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2], pa.int8()), pa.array(["a", "b", None]))
    right = pa.DictionaryArray.from_arrays(pa.array([1, 0, 2, None], pa.int8()), pa.array(["b", "a", None]))
    assert bit_equal(left, right).tolist() == [True, True, True, True]


def test_lists_of_equal_values_in_other_arrangement_differ() -> None:
    kind = pa.list_(pa.int64())
    left, right = pa.array([[1], [2, 3], [], [1]], kind), pa.array([[1, 2], [3], [], [1]], kind)
    assert bit_equal(left, right).tolist() == [False, False, True, True]


# ------------------------------------------------------------------------------------------------------ replacement
@pytest.mark.parametrize("name", TYPES)
def test_replace_rows_agrees_with_python_for_every_type(name: str) -> None:
    kind, values = TYPES[name]
    old, new = [*values, None, *values], [values[1], None, values[4]]
    for positions in ([0, 5, 10], [4, 5, 6], [2, 3, 9]):
        wanted = exact(chunked(kind, old))
        for place, value in zip(positions, exact(chunked(kind, new)), strict=True):
            wanted[place] = value
        result = replace_rows(chunked(kind, old, 3), np.array(positions), chunked(kind, new, 2))
        assert result.type == kind
        assert exact(result) == wanted
        result.validate(full=True)


@given(st.data())
def test_replace_rows_agrees_with_python_at_random(data: st.DataObject) -> None:
    kind, values = TYPES[data.draw(st.sampled_from(list(TYPES)))]
    one = st.none() | st.sampled_from(values)
    old = data.draw(st.lists(one, min_size=1, max_size=12))
    positions = sorted(data.draw(st.sets(st.integers(0, len(old) - 1), max_size=len(old))))
    new = data.draw(st.lists(one, min_size=len(positions), max_size=len(positions)))
    wanted = exact(chunked(kind, old))
    for place, value in zip(positions, exact(chunked(kind, new)), strict=True):
        wanted[place] = value
    fresh = chunked(kind, new, 2) if new else pa.chunked_array([array_of(kind, [])], kind)
    result = replace_rows(chunked(kind, old, data.draw(st.integers(1, 3))), np.array(positions, np.int64), fresh)
    assert exact(result) == wanted


@pytest.mark.parametrize("most", [0, 1 << 30])
def test_text_is_replaced_however_much_there_is(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(kernels, "_GATHERED_BYTES", most)
    for kind in (pa.string(), pa.binary(), pa.large_string()):
        column = chunked(pa.string(), ["a", None, "b", "c"], 2).cast(kind)
        result = replace_rows(column, np.array([0, 3]), chunked(pa.string(), [None, "longer"]).cast(kind))
        assert result.cast(pa.string()).to_pylist() == [None, None, "b", "longer"]


def test_replaced_dictionary_values_may_be_new_ones() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    result = replace_rows(chunked(kind, ["a", "b", "a"]), np.array([1]), chunked(kind, ["z"]))
    assert (result.type, result.to_pylist()) == (kind, ["a", "z", "a"])


# ------------------------------------------------------------------------------------------------------------ files
@pytest.fixture
def place(tmp_path: Path) -> Any:
    lake.write(tmp_path / "d", {"a.parquet": lake.table(range(30))}, row_group_size=10)
    return locate(tmp_path / "d")


SOURCE = lake.table([5, 25], ["five", "twenty-five"])


def take(rows: np.ndarray) -> pa.Table:
    return SOURCE.take(pa.array(rows))


def edit(*groups: GroupEdit, schema: pa.Schema | None = None, stage: str) -> FileEdit:
    return FileEdit("a.parquet", stage, list(groups), schema)


def group(number: int, positions: list[int], sources: list[int], *, keep: bool = True) -> GroupEdit:
    return GroupEdit(number, np.array(positions, np.int64), np.array(sources, np.int64), keep)


def test_a_rewrite_touches_the_row_groups_it_is_told(place: Any, tmp_path: Path) -> None:
    stage = str(tmp_path / "out")
    written = rewrite_file(place, edit(group(0, [5], [0]), group(2, [5], [1]), stage=stage), take, map)
    assert (written.rows, written.groups_rewritten, written.unchanged) == (30, 2, 0)
    assert written.size == Path(stage).stat().st_size
    values = dict(lake.id_values(lake.rows_of(lake.read_file(stage))))
    assert values == {i: f"v{i}" for i in range(30)} | {5: "five", 25: "twenty-five"}
    original = str(tmp_path / "d/a.parquet")
    for column in (0, 1):
        assert lake.chunk_bytes(stage, 1, column) == lake.chunk_bytes(original, 1, column)
    for number in (0, 2):  # ids did not change: those chunks are copied too
        assert lake.chunk_bytes(stage, number, 0) == lake.chunk_bytes(original, number, 0)
    assert written.bytes_copied > 0


@pytest.mark.parametrize("other", ["value", "nested.value"])
def test_columns_that_are_known_to_be_equal_need_not_be_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    lake.write(tmp_path / "d", {"a.parquet": lake.table(range(30)).rename_columns(["id", other])}, row_group_size=10)
    stages, decoded = [str(tmp_path / name) for name in ("all", "few")], []
    read = pq.ParquetFile.read_row_group

    def watched(self: Any, group: int, columns: Any = None, **options: Any) -> pa.Table:
        decoded.append(columns)
        return read(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    for stage, equal in zip(stages, ((), ("id",)), strict=True):
        job = replace(edit(group(0, [5], [0]), stage=stage), equal=equal)
        rewrite_file(locate(tmp_path / "d"), job, lambda rows: take(rows).rename_columns(["id", other]), map)
    # a dot would be taken for the path to a nested column: everything is read then
    assert decoded == [None, [other] if other == "value" else None]
    assert Path(stages[0]).read_bytes() == Path(stages[1]).read_bytes()


def test_rows_that_are_equal_already_are_no_reason_to_write(place: Any, tmp_path: Path) -> None:
    stage = str(tmp_path / "out")
    same = lake.table([5])
    written = rewrite_file(place, edit(group(0, [5], [0]), stage=stage), lambda _: same, map)
    assert (written.stage, written.rows, written.unchanged) == (None, 30, 1)
    assert not Path(stage).exists()


def test_other_rows_of_a_group_can_be_deleted(place: Any, tmp_path: Path) -> None:
    stage = str(tmp_path / "out")
    groups = [group(0, [5], [0], keep=False), group(1, [], [], keep=False), group(2, [5], [1], keep=False)]
    written = rewrite_file(place, edit(*groups, stage=stage), take, map)
    assert (written.rows, written.groups_rewritten) == (2, 3)
    assert lake.id_values(lake.rows_of(lake.read_file(stage))) == [(5, "five"), (25, "twenty-five")]


def test_a_dry_run_says_the_same_and_writes_nothing(place: Any, tmp_path: Path) -> None:
    before = lake.photograph(tmp_path)
    written = rewrite_file(place, edit(group(0, [5], [0]), stage=""), take, map, dry_run=True)
    assert (written.rows, written.groups_rewritten, written.stage) == (30, 1, "")
    assert lake.photograph(tmp_path) == before


def test_another_schema_means_writing_every_row_group(place: Any, tmp_path: Path) -> None:
    stage = str(tmp_path / "out")
    schema = pa.schema([("id", pa.decimal128(20, 0)), ("v", pa.large_string()), ("w", pa.int8())])
    wide = SOURCE.append_column("w", pa.array([1, 2], pa.int8()))
    written = rewrite_file(
        place, edit(group(0, [5], [0]), schema=schema, stage=stage), lambda rows: wide.take(pa.array(rows)), map
    )
    result = lake.read_file(stage)
    assert (written.rows, result.schema.equals(schema)) == (30, True)
    assert result.slice(4, 3).to_pylist() == [
        {"id": Decimal(4), "v": "v4", "w": None},
        {"id": Decimal(5), "v": "five", "w": 1},
        {"id": Decimal(6), "v": "v6", "w": None},
    ]
    assert lake.footer(stage).num_row_groups == 3


def test_a_file_that_cannot_be_decoded_is_named(place: Any, tmp_path: Path) -> None:
    lake.spoil(tmp_path / "d/a.parquet", 0)
    with pytest.raises(UnreadableFileError, match=r"row group 0 of .*a\.parquet"):
        rewrite_file(place, edit(group(0, [5], [0]), stage=str(tmp_path / "out")), take, map)


def test_appended_rows_come_in_the_order_asked_for(place: Any, tmp_path: Path) -> None:
    stage = str(tmp_path / "out")
    settings = WriterSettings(row_group_size=3)
    rows = np.array([1, 0, 0, 1, 1], np.int64)
    written = append_rows(place, Append(stage, rows, SOURCE.schema, settings), take)
    assert (written.rows, written.size) == (5, Path(stage).stat().st_size)
    assert lake.read_file(stage).column("id").to_pylist() == [25, 5, 5, 25, 25]
    assert [lake.footer(stage).row_group(i).num_rows for i in range(2)] == [3, 2]


@pytest.mark.parametrize("sort_by", [[], ["id"]])
def test_combined_files_have_full_row_groups_and_one_schema(tmp_path: Path, sort_by: list[str]) -> None:
    lake.write(
        tmp_path / "d",
        {
            "a.parquet": lake.table([5, 3, 1]),
            "b.parquet": pa.table({"v": ["x"], "id": pa.array([4], pa.int32())}),
            "c.parquet": lake.table([2, 0]),
        },
    )
    stage = str(tmp_path / "out")
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("w", pa.int8())])
    paths = ["a.parquet", "b.parquet", "c.parquet"]
    job = Combine(stage, paths, schema, WriterSettings(row_group_size=4), sort_by)
    written = combine_files(locate(tmp_path / "d"), job)
    result = lake.read_file(stage)
    assert (written.rows, result.schema.equals(schema)) == (6, True)
    assert result.column("id").to_pylist() == ([0, 1, 2, 3, 4, 5] if sort_by else [5, 3, 1, 4, 2, 0])
    assert result.column("w").null_count == 6
    assert [lake.footer(stage).row_group(i).num_rows for i in range(2)] == [4, 2]


def test_the_settings_of_a_file_are_those_it_was_written_with(place: Any, tmp_path: Path) -> None:
    settings, groups = file_settings(place, "a.parquet")
    assert (settings.row_group_size, groups) == (10, 3)
    assert settings.options["compression"] == {"id": "snappy", "v": "snappy"}
    pq.write_table(lake.table([]), tmp_path / "d/empty.parquet")
    settings, groups = file_settings(place, "empty.parquet")
    assert (settings.row_group_size, groups) == (1, 1)  # pyarrow writes a row group without rows
