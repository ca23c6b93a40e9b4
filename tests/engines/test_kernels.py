"""Kernels on one data file: rewrite, append, combine, and its writer settings."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.engines import open_file
from inlay.engines.base import Append, Combine, FileEdit, GroupEdit
from inlay.engines.columns import bit_equal, take_rows
from inlay.engines.edits import rewrite_file
from inlay.engines.kernels import append_rows, combine_files
from inlay.engines.open_file import file_settings
from inlay.errors import UnreadableFileError
from inlay.parquet.writer import WriterSettings
from inlay.storage import locate
from tests import lake
from tests.arrow_types import TYPES, array_of


@pytest.fixture
def location(tmp_path: Path) -> Any:
    lake.write(tmp_path / "d", {"a.parquet": lake.table(range(30))}, row_group_size=10)
    return locate(tmp_path / "d")


SOURCE = lake.table([5, 25], ["five", "twenty-five"])


def take(rows: np.ndarray) -> pa.Table:
    return SOURCE.take(pa.array(rows))


def edit(*groups: GroupEdit, schema: pa.Schema | None = None, stage: str) -> FileEdit:
    return FileEdit("a.parquet", stage, list(groups), schema)


def group(number: int, positions: list[int], sources: list[int], *, keep: bool = True) -> GroupEdit:
    return GroupEdit(number, np.array(positions, np.int64), np.array(sources, np.int64), keep)


def test_a_rewrite_copies_row_groups_without_edits(location: Any, tmp_path: Path) -> None:
    stage = str(tmp_path / "out")
    written = rewrite_file(location, edit(group(0, [5], [0]), group(2, [5], [1]), stage=stage), take, map)
    assert (written.rows, written.groups_rewritten, written.unchanged) == (30, 2, 0)
    assert written.size == Path(stage).stat().st_size
    values = dict(lake.id_values(lake.rows_of(lake.read_file(stage))))
    assert values == {i: f"v{i}" for i in range(30)} | {5: "five", 25: "twenty-five"}
    original = str(tmp_path / "d/a.parquet")
    for column in (0, 1):
        assert lake.chunk_bytes(stage, 1, column) == lake.chunk_bytes(original, 1, column)
    for number in (0, 2):  # the chunks of unchanged columns are copied too
        assert lake.chunk_bytes(stage, number, 0) == lake.chunk_bytes(original, number, 0)
    assert written.bytes_copied > 0


@pytest.mark.parametrize("other", ["value", "nested.value"])
def test_equal_columns_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    lake.write(tmp_path / "d", {"a.parquet": lake.table(range(30)).rename_columns(["id", other])}, row_group_size=10)
    stages, decoded = [str(tmp_path / name) for name in ("all", "few")], []
    read = pq.ParquetFile.read_row_group

    def record(self: Any, group: int, columns: Any = None, **options: Any) -> pa.Table:
        decoded.append(columns)
        return read(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", record)
    for stage, equal in zip(stages, ((), ("id",)), strict=True):
        job = replace(edit(group(0, [5], [0]), stage=stage), equal=equal)
        rewrite_file(locate(tmp_path / "d"), job, lambda rows: take(rows).rename_columns(["id", other]), map)
    # pyarrow reads a name with a dot as the path of a nested column, so all columns are read.
    assert decoded == ([["id", other], [other]] if other == "value" else [None, None])
    assert Path(stages[0]).read_bytes() == Path(stages[1]).read_bytes()


@pytest.mark.parametrize("positions", [[3], list(range(10))], ids=["one row", "all rows"])
def test_large_row_groups_are_edited_in_batches_of_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, positions: list[int]
) -> None:
    """The result has the same bytes for every batch size and type."""
    kinds = {f"column {number}": TYPES[name] for number, name in enumerate(TYPES)}
    old = pa.table({"id": range(10)} | {n: array_of(k, (v * 10)[:10]) for n, (k, v) in kinds.items()})
    new = pa.table({"id": range(10)} | {n: array_of(k, (v[::-1] * 10)[:10]) for n, (k, v) in kinds.items()})
    lake.write(tmp_path / "d", {"a.parquet": old})
    read, decoded, files = pq.ParquetFile.read_row_group, [], []

    def record(self: Any, number: int, columns: Any = None, **options: Any) -> pa.Table:
        decoded.append(columns)
        return read(self, number, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", record)
    for limit in (8 << 20, 200, 1):
        monkeypatch.setattr(open_file, "_DECODE_BYTES", {True: limit})
        stage = tmp_path / str(limit)
        job = edit(group(0, positions, positions), stage=str(stage))
        written = rewrite_file(locate(tmp_path / "d"), job, lambda rows: take_rows(new, rows), map)
        files.append((written.unchanged, stage.read_bytes()))
    assert files[0] == files[1] == files[2]
    assert decoded[0] == old.column_names
    assert decoded[-len(old.column_names) :] == [[name] for name in old.column_names]
    assert 1 < len(decoded) - 1 - len(old.column_names) < len(old.column_names)
    wanted = new if len(positions) == 10 else pa.concat_tables([old.slice(0, 3), new.slice(3, 1), old.slice(4)])
    found = pq.read_table(pa.BufferReader(files[0][1]))
    for name in old.column_names:
        assert bit_equal(found[name].combine_chunks(), wanted[name].combine_chunks().cast(found[name].type)).all()


def test_equal_rows_are_not_written(location: Any, tmp_path: Path) -> None:
    stage = str(tmp_path / "out")
    same = lake.table([5])
    written = rewrite_file(location, edit(group(0, [5], [0]), stage=stage), lambda _: same, map)
    assert (written.stage, written.rows, written.unchanged) == (None, 30, 1)
    assert not Path(stage).exists()


def test_an_edit_can_delete_the_other_rows(location: Any, tmp_path: Path) -> None:
    stage = str(tmp_path / "out")
    groups = [group(0, [5], [0], keep=False), group(1, [], [], keep=False), group(2, [5], [1], keep=False)]
    written = rewrite_file(location, edit(*groups, stage=stage), take, map)
    assert (written.rows, written.groups_rewritten) == (2, 3)
    assert lake.id_values(lake.rows_of(lake.read_file(stage))) == [(5, "five"), (25, "twenty-five")]


def test_a_dry_run_reports_the_same_and_writes_nothing(location: Any, tmp_path: Path) -> None:
    before = lake.photograph(tmp_path)
    written = rewrite_file(location, edit(group(0, [5], [0]), stage=""), take, map, dry_run=True)
    assert (written.rows, written.groups_rewritten, written.stage) == (30, 1, "")
    assert lake.photograph(tmp_path) == before


def test_another_schema_rewrites_every_row_group(location: Any, tmp_path: Path) -> None:
    stage = str(tmp_path / "out")
    schema = pa.schema([("id", pa.decimal128(20, 0)), ("v", pa.large_string()), ("w", pa.int8())])
    wide = SOURCE.append_column("w", pa.array([1, 2], pa.int8()))
    written = rewrite_file(
        location, edit(group(0, [5], [0]), schema=schema, stage=stage), lambda rows: wide.take(pa.array(rows)), map
    )
    result = lake.read_file(stage)
    assert (written.rows, result.schema.equals(schema)) == (30, True)
    assert result.slice(4, 3).to_pylist() == [
        {"id": Decimal(4), "v": "v4", "w": None},
        {"id": Decimal(5), "v": "five", "w": 1},
        {"id": Decimal(6), "v": "v6", "w": None},
    ]
    assert lake.footer(stage).num_row_groups == 3


def test_the_error_names_a_corrupt_file(location: Any, tmp_path: Path) -> None:
    lake.spoil(tmp_path / "d/a.parquet", 0)
    with pytest.raises(UnreadableFileError, match=r"row group 0 of .*a\.parquet"):
        rewrite_file(location, edit(group(0, [5], [0]), stage=str(tmp_path / "out")), take, map)


def test_appended_rows_keep_the_requested_order(location: Any, tmp_path: Path) -> None:
    stage = str(tmp_path / "out")
    settings = WriterSettings(row_group_size=3)
    rows = np.array([1, 0, 0, 1, 1], np.int64)
    written = append_rows(location, Append(stage, rows, SOURCE.schema, settings), take)
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


def test_file_settings_match_the_file(location: Any, tmp_path: Path) -> None:
    settings, groups = file_settings(location, "a.parquet")
    assert (settings.row_group_size, groups) == (10, 3)
    assert settings.options["compression"] == {"id": "snappy", "v": "snappy"}
    pq.write_table(lake.table([]), tmp_path / "d/empty.parquet")
    settings, groups = file_settings(location, "empty.parquet")
    assert (settings.row_group_size, groups) == (1, 1)  # pyarrow writes a row group without rows
