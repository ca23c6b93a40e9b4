"""Directories that other tools wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.errors import InlayError, InvalidArgumentError, SchemaMismatchError, UnreadableFileError
from tests import lake
from tests.edges.readers import assert_rows

ROWS = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
CALLS: dict[str, Callable[[Path], object]] = {
    "merge": lambda path: inlay.merge(ROWS, path, "upsert", "id"),
    "plan_merge": lambda path: inlay.plan_merge(ROWS, path, "upsert", "id"),
    "append": lambda path: inlay.write_dataset(ROWS, path),
    "overwrite": lambda path: inlay.write_dataset(ROWS, path, mode="overwrite"),
    "compact": inlay.compact,
    "read": inlay.read_parquet,
    "list": inlay.list_dataset_files,
    "source": lambda path: inlay.merge(path, path.parent / "other", "upsert", "id"),
}
TABLE_FORMATS = {
    "Delta Lake": "_delta_log/00000000000000000000.json",
    "Apache Iceberg": "metadata/00000-5f5c.metadata.json",
    "Apache Hudi": ".hoodie/hoodie.properties",
    "Lance": "data/0a.lance",
}


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
@pytest.mark.parametrize("call", CALLS)
def test_the_directory_of_a_table_format_is_rejected(tmp_path: Path, table_format: str, call: str) -> None:
    path = Path(lake.write(tmp_path / "t", {"part-0.parquet": lake.table([1])}))
    marker = path / TABLE_FORMATS[table_format]
    marker.parent.mkdir()
    marker.write_text("{}")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(
        InvalidArgumentError, match=f"is a table of {table_format}, not a plain Parquet dataset"
    ) as error:
        CALLS[call](path)
    assert "Use " in str(error.value.hint)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("part", "marker"),
    [
        ("day=1", "_delta_log/00000000000000000000.json"),
        ("day=1/city=Bern", ".hoodie/hoodie.properties"),
        ("data", "metadata/00000-5f5c.metadata.json"),
        ("data/day=1", "metadata/version-hint.text"),
    ],
)
@pytest.mark.parametrize("call", ["merge", "append", "read"])
def test_a_directory_inside_a_table_is_rejected(tmp_path: Path, part: str, marker: str, call: str) -> None:
    path = Path(lake.write(tmp_path / "t" / part, {"part-0.parquet": lake.table([1])}))
    (tmp_path / "t" / marker).parent.mkdir()
    (tmp_path / "t" / marker).write_text("{}")
    with pytest.raises(InvalidArgumentError, match=r"is part of a table of .*, not a plain Parquet dataset"):
        CALLS[call](path)


def test_names_that_resemble_a_table_format_are_data(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    lake.write(path, {"kind=delta_log/a.parquet": lake.table([1])})
    assert inlay.merge([{"id": 1, "v": "x", "kind": "delta_log"}], path, "upsert", "id").updated == 1
    assert_rows(path, [{"id": 1, "v": "x", "kind": "delta_log"}])


def test_hadoop_checksums_of_replaced_and_removed_files_are_deleted(tmp_path: Path, engine: Any) -> None:
    path = Path(lake.write(tmp_path / "d", {f"{n}.parquet": lake.table([n]) for n in (1, 2, 3)}))
    for name in ("1", "2", "3"):
        (path / f".{name}.parquet.crc").write_bytes(b"crc\0")
    source = [{"id": 1, "v": "new"}, {"id": 2, "v": pq.read_table(path / "2.parquet")["v"][0].as_py()}]
    result = inlay.merge(source, path, "full_merge", "id", engine=engine)
    assert (result.updated, result.deleted) == (2, 1)
    assert sorted(file.name for file in path.iterdir()) == [".2.parquet.crc", "1.parquet", "2.parquet"]


@pytest.mark.spark
def test_spark_reads_its_own_directory_after_a_merge(tmp_path: Path, spark_session: Any) -> None:
    path = tmp_path / "d"
    spark_session.range(10).selectExpr("id", "concat('v', id) as v").repartition(2).write.parquet(str(path))
    assert list(path.glob(".*.crc"))
    inlay.merge([{"id": 3, "v": "new"}], path, "upsert", "id")
    rows = [row.asDict() for row in spark_session.read.parquet(str(path)).collect()]
    expected = [{"id": n, "v": "new" if n == 3 else f"v{n}"} for n in range(10)]
    assert sorted(rows, key=lambda row: row["id"]) == expected
    assert_rows(path, expected)


@pytest.mark.parametrize("call", [name for name in CALLS if name not in ("list", "overwrite")])
def test_files_with_duplicate_column_names_are_rejected(tmp_path: Path, call: str) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array(["b"])], ["id", "v", "v"])
    path = Path(lake.write(tmp_path / "t", {"a.parquet": twice}))
    with pytest.raises(InlayError, match=r"duplicate|more than one column named 'v'"):
        CALLS[call](path)
    assert [file.name for file in path.iterdir()] == ["a.parquet"]


def test_an_unreadable_file_does_not_block_appends(tmp_path: Path, engine: Any) -> None:
    path = Path(lake.write(tmp_path / "d", {"day=1/a.parquet": lake.table([1]), "day=1/c.parquet": lake.table([2])}))
    broken = path / "day=1" / "b.parquet"
    broken.write_bytes(b"PAR1 no footer")
    rows = {"id": [3], "v": ["x"], "day": [2]}
    assert inlay.write_dataset(rows, path, engine=engine).row_count == 1
    with pytest.raises(UnreadableFileError, match=r"b\.parquet"):
        inlay.merge(rows, path, "upsert", "id", engine=engine)
    with pytest.raises(SchemaMismatchError, match="lacks 'v'"):
        inlay.write_dataset({"id": [3], "day": [2]}, path, engine=engine)
    broken.unlink()
    assert sorted(inlay.read_parquet(path)["id"].to_pylist()) == [1, 2, 3]


def test_appends_need_one_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.mkdir()
    (path / "b.parquet").write_bytes(b"PAR1 no footer")
    with pytest.raises(UnreadableFileError, match=r"b\.parquet"):
        inlay.write_dataset(ROWS, path)
