"""Sources of every kind, and text formats read in the dataset's types."""

from __future__ import annotations

import datetime as dt
import gzip
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.cli import run
from inlay.engines.streams import open_source
from inlay.errors import (
    BadRowsError,
    InvalidArgumentError,
    NotFoundError,
    NullKeyError,
    SchemaMismatchError,
    UnreadableSourceError,
)
from tests import lake
from tests.arrow_types import TYPES

ROWS = [{"id": 1, "v": "a"}, {"id": 2, "v": None}, {"id": 3, "v": "é"}]
TABLE = pa.Table.from_pylist(ROWS, pa.schema([("id", pa.int64()), ("v", pa.string())]))


def read(source: Any, **options: Any) -> pa.Table:
    with open_source(source, **options) as opened:
        return opened.read_all() if isinstance(opened, pa.RecordBatchReader) else opened


def rows(source: Any, **options: Any) -> list[dict[str, Any]]:
    return read(source, **options).to_pylist()


def written(folder: Path, *tables: pa.Table) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet")
    return folder


class CArray:
    """An object with only the C data interface of an array."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


class CStream:
    """An object with only the C data interface of a stream."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)


#: kind of source -> function that makes one in a folder
SOURCES: dict[str, Callable[[Path], Any]] = {
    "table": lambda _: TABLE,
    "record batch": lambda _: TABLE.to_batches()[0],
    "reader": lambda _: TABLE.to_reader(),
    "reader of generated batches": lambda _: pa.RecordBatchReader.from_batches(
        TABLE.schema, (TABLE.slice(i, 1).to_batches()[0] for i in range(3))
    ),
    "dataset": lambda folder: ds.dataset(written(folder / "s", TABLE)),
    "dataset in memory": lambda _: ds.dataset(TABLE),
    "scanner": lambda folder: ds.dataset(written(folder / "s", TABLE)).scanner(filter=ds.field("id") > 0),
    "C array": lambda _: CArray(),
    "C stream": lambda _: CStream(),
    "pandas": lambda _: pd.DataFrame(ROWS, index=[7, 8, 9]),
    "pandas with Arrow types": lambda _: pd.DataFrame(ROWS).convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda _: pl.DataFrame(ROWS),
    "polars lazy": lambda _: pl.LazyFrame(ROWS).filter(pl.col("id") > 0),
    "DuckDB relation": lambda _: duckdb.sql("SELECT * FROM (VALUES (1::BIGINT, 'a'), (2, NULL), (3, 'é')) t(id, v)"),
    "dict": lambda _: {"id": [1, 2, 3], "v": ["a", None, "é"]},
    "dict of arrays": lambda _: {"id": np.array([1, 2, 3]), "v": pa.array(["a", None, "é"])},
    "list of dicts": lambda _: ROWS,
    "path of a file": lambda folder: written(folder / "s", TABLE) / "0.parquet",
    "path of a directory": lambda folder: str(written(folder / "s", TABLE.slice(0, 1), TABLE.slice(1))),
    "URL": lambda folder: f"file://{written(folder / 's', TABLE)}/0.parquet",
    "glob": lambda folder: f"{written(folder / 's', TABLE.slice(0, 2), TABLE.slice(2))}/*.parquet",
    "CSV": lambda folder: text(folder / "s.csv", "id,v\n1,a\n2,\n3,é\n"),
    "CSV in gzip": lambda folder: text(folder / "s.csv.gz", "id,v\n1,a\n2,\n3,é\n"),
    "NDJSON": lambda folder: text(folder / "s.ndjson", '{"id":1,"v":"a"}\n{"id":2}\n{"v":"é","id":3}\n'),
    "JSON lines in gzip": lambda folder: text(folder / "s.jsonl.gz", '{"id":1,"v":"a"}\n{"id":2}\n{"v":"é","id":3}\n'),
}


def text(path: Path, content: str) -> str:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_can_be_merged(tmp_path: Path, kind: str) -> None:
    for target, expected in ((tmp_path / "new", (3, 0)), (tmp_path / "old", (2, 1))):
        if target.name == "old":
            written(target, pa.table({"id": [3], "v": ["old"]}))
        result = inlay.merge(SOURCES[kind](tmp_path), str(target), "upsert", ["id"], missing_columns="null")
        assert (result.inserted, result.updated, result.source_count) == (*expected, 3)
        assert sorted(lake.id_values(lake.all_rows(target))) == [(1, "a"), (2, None), (3, "é")]


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_can_be_written(tmp_path: Path, kind: str) -> None:
    result = inlay.write_dataset(SOURCES[kind](tmp_path), str(tmp_path / "d"))
    assert result.row_count == 3
    assert lake.all_rows(tmp_path / "d") == ROWS


@pytest.mark.parametrize("data", [1, None, object(), [1, 2], [{"id": 1}, 2], (1,)], ids=lambda d: type(d).__name__)
def test_unsupported_objects_are_rejected(tmp_path: Path, data: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=type(data).__name__) as caught:
        inlay.merge(data, str(tmp_path / "d"), "upsert", ["id"])
    assert "pandas" in str(caught.value.hint)
    assert os.listdir(tmp_path) in ([], [".d.txn"])


def test_a_stream_is_read_once_and_completely(tmp_path: Path) -> None:
    taken = []

    def batches() -> Iterator[pa.RecordBatch]:
        for i in range(5):
            taken.append(i)
            yield pa.record_batch({"id": pa.array([i]), "v": [f"n{i}"]})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64()), ("v", pa.string())]), batches())
    result = inlay.merge(reader, lake.write(tmp_path / "d", {"a.parquet": lake.table([3, 9])}), "upsert", ["id"])
    assert taken == [0, 1, 2, 3, 4]
    assert (result.source_count, result.updated, result.inserted) == (5, 1, 4)
    with pytest.raises(UnreadableSourceError, match="already read"):
        inlay.merge(reader, str(tmp_path / "d"), "upsert", ["id"])


def test_a_failing_stream_is_an_unreadable_source(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        raise OSError("the connection broke")

    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    before = lake.photograph(path)
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, batches())
    with pytest.raises(UnreadableSourceError, match="the connection broke"):
        inlay.merge(reader, path, "upsert", ["id"])
    assert lake.photograph(path) == before


def test_an_empty_stream_is_checked_by_its_schema(tmp_path: Path) -> None:
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, iter(()))
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    assert inlay.merge(reader, path, "upsert", ["id"]).source_count == 0
    with pytest.raises(SchemaMismatchError, match="'w'"):
        inlay.merge(pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64()), ("w", pa.string())]), iter(())),
                    path, "upsert", ["id"])  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ paths
def test_a_source_directory_is_read_like_a_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    written(folder / "_day=1", pa.table({"id": [1]}))
    written(folder / "_day=2", pa.table({"id": [2]}))
    written(folder / ".staging", pa.table({"id": [3]}))
    written(folder / "_temporary", pa.table({"id": [4]}))
    (folder / "_SUCCESS").touch()
    (folder / "notes.txt").write_text("not a Parquet file")
    assert rows(folder) == [{"id": 1, "_day": 1}, {"id": 2, "_day": 2}]
    assert rows(f"{folder}/") == rows(folder)


def test_files_of_one_source_can_have_compatible_types(tmp_path: Path) -> None:
    folder = written(
        tmp_path / "s",
        pa.table({"id": pa.array([1], pa.int32()), "v": pa.array([0.5], pa.float32())}),
        pa.table({"v": pa.array([0.1], pa.float64()), "id": pa.array([2**40], pa.int64()), "w": ["x"]}),
    )
    opened = read(folder)
    assert opened.schema == pa.schema([("id", pa.int64()), ("v", pa.float64()), ("w", pa.string())])
    assert opened.to_pylist() == [{"id": 1, "v": 0.5, "w": None}, {"id": 2**40, "v": 0.1, "w": "x"}]


def test_the_error_names_files_with_incompatible_types(tmp_path: Path) -> None:
    folder = written(tmp_path / "s", pa.table({"id": [1]}), pa.table({"id": ["x"]}))
    with pytest.raises(SchemaMismatchError, match=r"'id' is int64 in .*0\.parquet.* and string in .*1\.parquet"):
        read(folder)


def test_sources_on_object_stores(memory: MemoryFileSystem) -> None:
    with memory.open("/source-test/p=1/a.parquet", "wb") as file:
        pq.write_table(pa.table({"id": [1]}), file)
    memory.pipe_file("/source-text/c.csv", b"id\n2\n")
    assert rows("memory://source-test/p=1/a.parquet") == [{"id": 1, "p": 1}]
    assert rows("memory://source-test") == [{"id": 1, "p": 1}]
    assert rows("memory://source-test/*/*.parquet") == [{"id": 1, "p": 1}]
    assert rows("memory://source-text/c.csv") == [{"id": 2}]
    assert rows("memory://source-text/*.csv", storage_options={"single_writer": True}) == [{"id": 2}]
    with pytest.raises(NotFoundError):
        read("memory://source-test/missing.parquet")


#: case -> (function that makes the source, error, exit code, message)
WRONG: dict[str, tuple[Callable[[Path], str], type[Exception], int, str]] = {
    "missing file": (lambda folder: str(folder / "no.parquet"), NotFoundError, 5, r"no\.parquet' does not exist"),
    "missing CSV": (lambda folder: str(folder / "no.csv"), NotFoundError, 5, r"no\.csv' does not exist"),
    "missing directory": (lambda folder: str(folder / "no/such"), NotFoundError, 5, "does not exist"),
    "empty directory": (lambda folder: str(written(folder / "empty")), NotFoundError, 5, "empty' has no files to read"),
    "glob of nothing": (lambda folder: f"{folder}/*.nothing", NotFoundError, 5, "has no files to read"),
    "not Parquet": (lambda folder: text(folder / "x.parquet", "text"), UnreadableSourceError, 3, r"x\.parquet"),
    "CSV with a short row": (
        lambda f: text(f / "x.csv", "id,v\n1,a\n2\n"),
        BadRowsError,
        3,
        r"x\.csv', line 3: the row has 1 cells instead of 2",
    ),
    "CSV with a wrong cell": (
        lambda f: text(f / "x.csv", "id,v\nx,a\n"),
        BadRowsError,
        3,
        r"x\.csv', line 2, column 'id': 'x' is not an integer that fits bigint",
    ),
    "empty CSV": (lambda f: text(f / "x.csv", ""), UnreadableSourceError, 3, r"x\.csv"),
    "broken gzip": (
        lambda f: truncated(f / "x.csv.gz"),
        UnreadableSourceError,
        3,
        "x",
    ),
    "broken JSON": (lambda f: text(f / "x.json", '{"id":'), BadRowsError, 3, r"x\.json', line 1: invalid JSON"),
    "broken JSON array": (lambda f: text(f / "x.json", '[{"id": 1}'), UnreadableSourceError, 3, "never closed"),
    "unknown store": (lambda _: "nope://bucket/x", InvalidArgumentError, 2, "nope"),
    "column missing in CSV": (lambda f: text(f / "x.csv", "id\n1\n"), SchemaMismatchError, 3, "lacks 'v'"),
    "column missing in JSON": (lambda f: text(f / "x.json", '{"id": 1}\n'), SchemaMismatchError, 3, "lacks 'v'"),
    "column too many": (lambda f: text(f / "x.csv", "id,v,w\n1,a,b\n"), SchemaMismatchError, 3, "does not have 'w'"),
}


def test_an_empty_file_deletes_nothing(tmp_path: Path) -> None:
    """It may be a failed export. An empty table or list that a program passes is meant."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    empty = text(tmp_path / "x.json", "")
    assert inlay.merge(empty, path, "upsert", ["id"]).source_count == 0
    with pytest.raises(UnreadableSourceError, match=r"x\.json"):
        inlay.merge(empty, path, "full_merge", ["id"])
    assert inlay.merge([], path, "full_merge", ["id"]).deleted == 1


def truncated(path: Path) -> str:
    path.write_bytes(gzip.compress(b"id,v\n1,a\n")[:-9])
    return str(path)


@pytest.mark.parametrize("case", WRONG)
def test_errors_of_unreadable_sources(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, error, code, message = WRONG[case]
    source = make(tmp_path)
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    before = lake.photograph(path)
    with pytest.raises(error, match=message) as caught:
        inlay.merge(source, path, "upsert", ["id"])
    assert caught.value.exit_code == code  # type: ignore[attr-defined]
    assert "\n\n" not in str(caught.value)
    assert run(["merge", source, path, "--key", "id", "--strategy", "upsert"]) == code
    assert "Traceback" not in capsys.readouterr().err
    assert lake.photograph(path) == before


# ------------------------------------------------------------------------------------------------------------- text
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("n", pa.int8()),
        ("price", pa.decimal128(10, 2)),
        ("small", pa.decimal32(5, 2) if "decimal32" in TYPES else pa.decimal128(5, 2)),
        ("at", pa.timestamp("us")),
        ("zoned", pa.timestamp("ms", "UTC")),
        ("day", pa.date32()),
        ("time", pa.time64("us")),
        ("flag", pa.bool_()),
        ("ratio", pa.float16()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("view", pa.string_view()),
        ("raw", pa.binary()),
    ]
)
NAIVE = dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC).replace(tzinfo=None)
CSV_VALUES = {
    "id": ("007", "007"),
    "n": ("-5", -5),
    "price": ("1.5", Decimal("1.50")),
    "small": ("1.25", Decimal("1.25")),
    "at": ("2024-02-29 10:00:00.123456", NAIVE.replace(microsecond=123456)),
    "zoned": ("2024-02-29T10:00:00.5+01:00", dt.datetime(2024, 2, 29, 9, 0, 0, 500000, dt.UTC)),
    "day": ("2024-02-29", dt.date(2024, 2, 29)),
    "time": ("10:00:00.5", dt.time(10, 0, 0, 500000)),
    "flag": ("true", True),
    "ratio": ("1.5", 1.5),
    "kind": ("x", "x"),
    "view": ("123", "123"),
    "raw": ("abc", b"abc"),
}


@pytest.fixture
def typed(tmp_path: Path) -> str:
    return lake.write(tmp_path / "d", {"a.parquet": SCHEMA.empty_table()})


def test_csv_cells_get_the_types_of_the_dataset(tmp_path: Path, typed: str) -> None:
    header = ",".join(CSV_VALUES)
    cells = ",".join(cell for cell, _ in CSV_VALUES.values())
    inlay.merge(text(tmp_path / "s.csv", f"{header}\n{cells}\n"), typed, "insert", ["id"])
    result = inlay.read_parquet(typed)
    assert result.schema.equals(SCHEMA)
    assert result.to_pylist() == [{name: value for name, (_, value) in CSV_VALUES.items()}]


def test_empty_cells_are_null_and_quoted_empty_cells_are_text(tmp_path: Path, typed: str) -> None:
    header = ",".join(CSV_VALUES)
    empty = "," * (len(CSV_VALUES) - 1)
    quoted = empty[:11] + '"",'
    inlay.merge(text(tmp_path / "s.csv", f"{header}\n1{empty}\n2{quoted}\n"), typed, "insert", ["id"])
    one, two = inlay.read_parquet(typed).to_pylist()
    assert one == dict.fromkeys(CSV_VALUES) | {"id": "1"}
    assert two == dict.fromkeys(CSV_VALUES) | {"id": "2", "view": ""}
    with pytest.raises(NullKeyError):
        inlay.merge(text(tmp_path / "t.csv", f"{header}\n{empty}\n"), typed, "insert", ["id"])
    inlay.merge(text(tmp_path / "u.csv", f'{header}\n""{empty}\n'), typed, "insert", ["id"])
    assert "" in inlay.read_parquet(typed).column("id").to_pylist()


@pytest.mark.parametrize(
    ("column", "cell"),
    [("price", "1.555"), ("price", "123456789.5"), ("n", "128"), ("n", "1.0"), ("day", "2024-02-30"), ("flag", "maybe"),
     ("at", "2024-02-29T10:00:00Z"), ("ratio", "2049")],
)  # fmt: skip
def test_cells_that_do_not_fit_are_rejected(tmp_path: Path, typed: str, column: str, cell: str) -> None:
    cells = dict.fromkeys(CSV_VALUES, "") | {"id": "1", column: cell}
    source = text(tmp_path / "s.csv", f"{','.join(cells)}\n{','.join(cells.values())}\n")
    with pytest.raises(BadRowsError, match=f"line 2, column {column!r}: {cell!r}") as caught:
        inlay.merge(source, typed, "insert", ["id"])
    assert caught.value.errors[0] | {"reason": ""} == {
        "file": source, "line": 2, "column": column, "value": cell, "reason": ""
    }  # fmt: skip
    assert inlay.read_parquet(typed).num_rows == 0


def test_json_values_get_the_types_of_the_dataset(tmp_path: Path) -> None:
    names = ["id", "n", "price", "at", "zoned", "day", "flag", "kind"]
    schema = pa.schema([SCHEMA.field(name) for name in names])
    path = lake.write(tmp_path / "d", {"a.parquet": schema.empty_table()})
    line = '{"id":"2024-01-01","n":-5,"price":1.10,"at":"2024-02-29 10:00:00","zoned":"2024-02-29T10:00:00Z",'
    line += '"day":"2024-02-29","flag":true,"kind":"x"}'
    inlay.merge(
        text(tmp_path / "s.ndjson", f'{line}\n{{"id":"007"}}\n'), path, "insert", ["id"], missing_columns="null"
    )
    assert inlay.read_parquet(path).to_pylist() == [
        {
            "id": "2024-01-01",
            "n": -5,
            "price": Decimal("1.10"),
            "at": NAIVE,
            "zoned": NAIVE.replace(tzinfo=dt.UTC),
            "day": dt.date(2024, 2, 29),
            "flag": True,
            "kind": "x",
        },
        dict.fromkeys(names) | {"id": "007"},
    ]


def test_several_csv_files_are_one_source(tmp_path: Path, typed: str) -> None:
    blank = "," * (len(CSV_VALUES) - 2)
    header = ",".join(CSV_VALUES)
    text(tmp_path / "1.csv", f"{header}\n001,1{blank}\n")
    text(tmp_path / "2.csv", f"{header}\n002,2{blank}\n")
    result = inlay.merge(f"{tmp_path}/?.csv", typed, "insert", ["id"])
    assert result.inserted == 2
    assert inlay.read_parquet(typed).select(["id", "n"]).to_pylist() == [{"id": "001", "n": 1}, {"id": "002", "n": 2}]


def test_a_filtered_dataset_yields_only_its_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "a.parquet")
    filtered = ds.dataset(tmp_path).filter(ds.field("id") > 1)
    assert read(filtered)["id"].to_pylist() == [2, 3]
