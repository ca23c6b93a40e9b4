"""CSV and JSON files as sources: every value arrives exactly, or the merge names its file, line and column."""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import gzip
import io
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inlay
from inlay.cli import run
from inlay.engines import text_files
from inlay.errors import BadRowsError, InvalidArgumentError, SchemaMismatchError, UnreadableSourceError
from inlay.text import json_files, reader
from tests import lake
from tests.edges.readers import READERS, assert_rows

ROWS = [{"id": 1, "v": "a;b"}, {"id": 2, "v": None}, {"id": 3, "v": "é\nx,y"}]
CSV = 'id,v\n1,a;b\n2,\n3,"é\nx,y"\n'
SEMICOLONS = 'id;v\n1;"a;b"\n2;\n3;"é\nx,y"\n'
TABS = 'id\tv\n1\ta;b\n2\t\n3\t"é\nx,y"\n'
NDJSON = '{"id":1,"v":"a;b"}\n{"id":2}\n{"v":"é\\nx,y","id":3}\n'
ARRAY = '[{"id": 1, "v": "a;b"},\n {"id": 2, "v": null}, {"id": 3, "v": "é\\nx,y"}]\n'
OBJECTS = '{"id": 1, "v": "a;b"}{"id": 2}\n\n{\n"id": 3, "v": "é\\nx,y"\n}'


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


#: case -> (name of the file, its bytes, read options)
FILES: dict[str, tuple[str, bytes, dict[str, Any] | None]] = {
    "CSV": ("a.csv", CSV.encode(), None),
    "upper case": ("A.CSV", CSV.encode(), None),
    "CRLF": ("a.csv", CSV.replace("\n", "\r\n").replace("é\r\n", "é\n").encode(), None),
    "BOM": ("a.csv", CSV.encode("utf-8-sig"), None),
    "UTF-16": ("a.csv", CSV.encode("utf-16"), None),
    "UTF-16 in gzip": ("a.csv.gz", gzip.compress(CSV.encode("utf-16")), None),
    "UTF-16 without a mark": ("a.csv", CSV.encode("utf-16-be"), {"encoding": "utf-16-be"}),
    "latin-1": ("a.csv", CSV.encode("latin-1"), {"encoding": "latin-1"}),
    "semicolons": ("a.csv", SEMICOLONS.encode(), None),
    "set delimiter": ("a.csv", SEMICOLONS.encode(), {"delimiter": ";"}),
    "tabs": ("a.csv", TABS.encode(), None),
    "TSV": ("a.tsv", TABS.encode(), None),
    "TSV in zstd": ("a.tsv.zst", zstd(TABS.encode()), None),
    "single quotes": ("a.csv", CSV.replace('"', "'").encode(), {"quote": "'"}),
    "escaped": ("a.csv", b"id,v\n1,a;b\n2,\n3,\xc3\xa9\\\nx\\,y\n", {"escape": "\\"}),
    "gzip by content": ("a.csv", gzip.compress(CSV.encode()), None),
    "two gzip members": ("a.csv.gz", gzip.compress(CSV[:9].encode()) + gzip.compress(CSV[9:].encode()), None),
    "zstd by content": ("a.csv", zstd(CSV.encode()), None),
    "zstd by name": ("a.csv.zst", zstd(CSV.encode()), None),
    "null values": ("a.csv", CSV.replace("2,", "2,n/a").encode(), {"null_values": ["n/a"]}),
    "a name without a format": ("rows.txt", CSV.encode(), {"format": "csv"}),
    "NDJSON": ("a.ndjson", NDJSON.encode(), None),
    "JSON lines in .json": ("a.json", NDJSON.encode(), None),
    "JSON lines in UTF-16": ("a.jsonl", NDJSON.encode("utf-16"), None),
    "JSON array": ("a.json", ARRAY.encode(), None),
    "JSON array in zstd": ("a.json.zst", zstd(ARRAY.encode()), None),
    "consecutive objects": ("a.json", OBJECTS.encode(), None),
    "set layout": ("a.json", OBJECTS.encode(), {"layout": "objects"}),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split files after a few bytes, sample a few rows, and keep almost nothing in memory."""
    shrink(monkeypatch)


def shrink(monkeypatch: pytest.MonkeyPatch, split_bytes: int = 16, sample: int = 2, kept_bytes: int = 64) -> None:
    monkeypatch.setattr(text_files, "SPLIT_BYTES", split_bytes)
    monkeypatch.setattr(text_files, "KEPT_BYTES", kept_bytes)
    for module in (reader, json_files):
        monkeypatch.setattr(module, "SAMPLE_BYTES", (4096, 4096, 4096))
        monkeypatch.setattr(module, "SAMPLE_ROWS", sample)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def dataset(path: Path, **columns: pa.DataType) -> Path:
    """Create a dataset without rows."""
    inlay.write_dataset(pa.schema(list(columns.items())).empty_table(), path)
    return path


def rows_by_id(path: Path) -> list[dict[str, Any]]:
    """Read a dataset whose files have different columns, which some readers refuse."""
    return sorted(inlay.read_parquet(path).to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "known types"])
@pytest.mark.parametrize("case", FILES)
def test_text_files_of_every_dialect(tmp_path: Path, case: str, is_new: bool) -> None:
    name, content, options = FILES[case]
    path = tmp_path / "d"
    if not is_new:
        dataset(path, id=pa.int64(), v=pa.string())
    source = write(tmp_path / name, content)
    result = inlay.merge(source, path, "upsert", "id", missing_columns="null", read_options=options)
    assert result.source_count == 3
    assert_rows(path, ROWS)


@pytest.mark.parametrize("case", ["semicolons", "latin-1", "JSON array", "consecutive objects"])
def test_text_files_on_every_engine(tmp_path: Path, case: str, engine: Any) -> None:
    name, content, options = FILES[case]
    write(tmp_path / name, content)
    for target, function in (("merged", inlay.merge), ("written", inlay.write_dataset)):
        keys = {} if target == "written" else {"strategy": "upsert", "key_columns": "id"}
        function(tmp_path / name, tmp_path / target, **keys, engine=engine, read_options=options)
        assert_rows(tmp_path / target, ROWS)
    assert inlay.plan_merge(
        tmp_path / name,
        tmp_path / "merged",
        "upsert",
        "id",
        engine=engine,
        missing_columns="null",
        read_options=options,
    ).unchanged == len(ROWS)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", FILES)
def test_splits_of_a_few_bytes(tmp_path: Path, case: str) -> None:
    test_text_files_of_every_dialect(tmp_path, case, is_new=True)


def test_the_classes_and_the_command_line_take_read_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "a.txt", "1|x|-\n2|-|b\n")
    options = {"format": "csv", "delimiter": "|", "header": False, "null_values": ["-"]}
    expected = [{"column_1": 1, "column_2": "x", "column_3": None}, {"column_1": 2, "column_2": None, "column_3": "b"}]
    inlay.PyArrowDatasetIO().merge(source, tmp_path / "io", "upsert", "column_1", read_options=options)
    inlay.DuckDBDatasetIO().write_parquet_dataset(source, tmp_path / "duckdb", read_options=options)
    inlay.merge_parquet_dataset_pyarrow(source, tmp_path / "function", "column_1", read_options=options)
    flags = ["--source-format", "csv", "--delimiter", "|", "--no-header", "--null-value", "-"]
    keys = ["-s", "upsert", "-k", "column_1"]
    assert run(["merge", str(source), str(tmp_path / "cli"), *keys, *flags]) == 0
    assert run(["write", str(source), str(tmp_path / "written"), *flags]) == 0
    capsys.readouterr()
    assert run(["plan", str(source), str(tmp_path / "cli"), *keys, *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unchanged"] == 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(source.read_bytes())))
    assert run(["merge", "-", str(tmp_path / "stdin"), *keys, *flags]) == 0
    for name in ("io", "duckdb", "function", "cli", "written", "stdin"):
        assert_rows(tmp_path / name, expected)


# ------------------------------------------------------------------------------------------------------ fields of JSON
LATE = [{"id": n, "s": {"a": n}} for n in range(6)]
#: case -> (the last record, the name that strict mode must report or None, the rows after "evolve")
LATER: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "field": ({"id": 6, "s": {"a": 6}, "late": "x"}, "late", {"id": 6, "s": {"a": 6}, "late": "x"}),
    "number": ({"id": 6, "s": {"a": 6}, "late": 1.5}, "late", {"id": 6, "s": {"a": 6}, "late": 1.5}),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("layout", ["lines", "array"])
@pytest.mark.parametrize("case", LATER)
def test_a_json_field_of_the_last_record_is_never_dropped(tmp_path: Path, engine: Any, case: str, layout: str) -> None:
    last, name, expected = LATER[case]
    records = [*LATE, last]
    text = json.dumps(records) if layout == "array" else "\n".join(map(json.dumps, records))
    source = write(tmp_path / "a.json", text)
    path = dataset(tmp_path / "d", id=pa.int64(), s=pa.struct([("a", pa.int64())]))
    with pytest.raises(SchemaMismatchError, match=f"does not have '{name}'"):
        inlay.merge(source, path, "upsert", "id", engine=engine)
    inlay.merge(source, path, "upsert", "id", engine=engine, schema_mode="evolve")
    assert rows_by_id(path) == [row | {"late": None} for row in LATE] + [expected]
    inlay.merge(source, tmp_path / "new", "upsert", "id", engine=engine)
    assert_rows(tmp_path / "new", [row | {"late": None} for row in LATE] + [expected])


@pytest.mark.usefixtures("small")
def test_an_unknown_nested_field_is_reported_with_its_line(tmp_path: Path) -> None:
    records = [*LATE, {"id": 6, "s": {"a": 6, "b": 1}}]
    source = write(tmp_path / "a.json", "\n".join(map(json.dumps, records)))
    path = dataset(tmp_path / "d", id=pa.int64(), s=pa.struct([("a", pa.int64())]))
    for mode in ("strict", "evolve"):
        with pytest.raises(BadRowsError, match=r"line 7, column 's': .* is an object with the unknown field 's\.b'"):
            inlay.merge(source, path, "upsert", "id", schema_mode=mode)
    inlay.merge(source, tmp_path / "new", "upsert", "id")
    assert_rows(tmp_path / "new", [{"id": n, "s": {"a": n, "b": None}} for n in range(6)] + records[6:])


def test_nested_keys_of_later_dicts_are_never_dropped(tmp_path: Path, engine: Any) -> None:
    rows = [{"id": 1, "s": {"a": 1}}, {"id": 2, "s": {"b": [{"x": 1}, {"y": 2}]}}]
    inlay.merge(rows, tmp_path / "d", "upsert", "id", engine=engine)
    filled = [{"id": 1, "s": {"a": 1, "b": None}},
              {"id": 2, "s": {"a": None, "b": [{"x": 1, "y": None}, {"x": None, "y": 2}]}}]  # fmt: skip
    assert_rows(tmp_path / "d", filled)


@pytest.mark.usefixtures("small")
def test_a_column_that_no_json_record_has_is_missing(tmp_path: Path) -> None:
    path = dataset(tmp_path / "d", id=pa.int64(), v=pa.string(), w=pa.string())
    source = write(tmp_path / "a.json", '{"id": 1}\n' * 1 + '{"id": 2}\n' * 1 + '{"id": 3, "w": "x"}\n')
    with pytest.raises(SchemaMismatchError, match=r"lacks 'v'\."):
        inlay.merge(source, path, "upsert", "id")
    inlay.merge(source, path, "upsert", "id", missing_columns="null")
    assert_rows(
        path, [{"id": 1, "v": None, "w": None}, {"id": 2, "v": None, "w": None}, {"id": 3, "v": None, "w": "x"}]
    )


# -------------------------------------------------------------------------------------------------------------- values
#: (type of the column, text that does not fit it)
MISFITS = [
    (pa.float64(), "1e400"), (pa.float64(), "-1e400"), (pa.float64(), "1e-400"), (pa.float64(), "9007199254740993"),
    (pa.float64(), "9007199254740993.0"), (pa.float32(), "1e50"), (pa.float32(), "16777217"),
    (pa.float32(), "16777217.0"), (pa.float32(), "1e-60"), (pa.float16(), "70000"), (pa.float16(), "2049"),
    (pa.int64(), "12345678901234567890"), (pa.int64(), "1.6"), (pa.int64(), "1.0"), (pa.int64(), "1e3"),
    (pa.int8(), "128"), (pa.uint8(), "-1"), (pa.uint64(), "18446744073709551616"), (pa.int32(), "0x1F"),
    (pa.decimal128(5, 2), "1.555"), (pa.decimal128(5, 2), "1234.5"), (pa.decimal256(60, 2), "0.001"),
    (pa.timestamp("us"), "2024-01-01 00:00:00.1234567"), (pa.timestamp("ms"), "2024-01-01 00:00:00.0001"),
    (pa.timestamp("ns"), "2500-01-01 00:00:00"),
    (pa.timestamp("us", "UTC"), "2024-01-01 00:00:00"), (pa.timestamp("us"), "2024-01-01 00:00:00Z"),
    (pa.date32(), "10000-01-01"), (pa.date32(), "2023-02-29"), (pa.date32(), "2024-01-01 10:00:00"),
    (pa.time32("ms"), "10:00:00.0005"), (pa.time64("us"), "25:00:00"), (pa.bool_(), "maybe"),
]  # fmt: skip
_JSON_NUMBER = ("float", "double", "halffloat", "int", "uint", "decimal")


def spelled(cell: str, type_: pa.DataType, kind: str) -> str:
    """Write a record whose column `x` holds the text, as a JSON number where JSON can."""
    if kind == "csv":
        return f"2,{cell}"
    is_number = str(type_).startswith(_JSON_NUMBER) and "x" not in cell
    return f'{{"id": 2, "x": {cell if is_number else json.dumps(cell)}}}'


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize(("type_", "cell"), MISFITS, ids=[f"{cell} as {type_}" for type_, cell in MISFITS])
def test_a_value_that_does_not_fit_exactly_is_refused(tmp_path: Path, type_: pa.DataType, cell: str, kind: str) -> None:
    path = dataset(tmp_path / "d", id=pa.int64(), x=type_)
    records = ["id,x"] if kind == "csv" else []
    records += ["1," if kind == "csv" else '{"id": 1, "x": null}', spelled(cell, type_, kind)]
    source = write(tmp_path / f"a.{kind}", "\n".join(records) + "\n")
    with pytest.raises(BadRowsError) as caught:
        inlay.merge(source, path, "upsert", "id")
    line = 3 if kind == "csv" else 2
    (error,) = caught.value.errors
    reason = error.pop("reason")
    assert error == {"file": str(source), "line": line, "column": "x", "value": cell}
    assert f"{str(source)!r}, line {line}, column 'x': {cell!r} is {reason}" in caught.value.message
    assert caught.value.hint
    assert_rows(path, [])


#: (texts of a column of a new dataset, the type and the values that it gets)
INFERRED: list[tuple[list[str], pa.DataType, list[Any]]] = [
    (["007", "7"], pa.string(), ["007", "7"]),
    (["1", "2", "3", "4.5"], pa.float64(), [1, 2, 3, 4.5]),
    (["1", "2", "9007199254740993", "0.5"], pa.decimal128(38, 1),
     [Decimal(1), Decimal(2), Decimal(9007199254740993), Decimal("0.5")]),
    (["1", "2", "3", "12345678901234567890"], pa.decimal128(38, 0), [1, 2, 3, 12345678901234567890]),
    (["1", "2", "3", "x"], pa.string(), ["1", "2", "3", "x"]),
    (["2024-01-01", "2024-01-02", "2024-01-02 10:00:00"], pa.timestamp("us"),
     [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2), dt.datetime(2024, 1, 2, 10)]),  # noqa: DTZ001
    (["", "", "", "5"], pa.int64(), [None, None, None, 5]),
    (["1e400", "2"], pa.string(), ["1e400", "2"]),
    (["true", "false"], pa.bool_(), [True, False]),
]  # fmt: skip


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("texts", "type_", "values"), INFERRED, ids=[case[0][-1] for case in INFERRED])
def test_columns_without_a_known_type_are_inferred_from_all_values(
    tmp_path: Path, texts: list[str], type_: pa.DataType, values: list[Any]
) -> None:
    source = write(tmp_path / "a.csv", "id,x\n" + "".join(f"{n},{text}\n" for n, text in enumerate(texts)))
    inlay.merge(source, tmp_path / "new", "upsert", "id")
    path = dataset(tmp_path / "evolved", id=pa.int64())
    inlay.merge(source, path, "upsert", "id", schema_mode="evolve")
    expected = [{"id": n, "x": value} for n, value in enumerate(values)]
    assert_rows(tmp_path / "new", expected)
    for target in (tmp_path / "new", path):
        assert inlay.read_parquet(target).schema.field("x").type == type_
        assert rows_by_id(target) == expected


# -------------------------------------------------------------------------------------------------------------- errors
def test_an_error_lists_the_first_invalid_cells(tmp_path: Path) -> None:
    path = dataset(tmp_path / "d", id=pa.int64(), n=pa.int32(), v=pa.string())
    lines = ["id,n,v", '1,1,"two', 'lines"', "2,x,ok", "three,y,", "4", *(f"{n},z," for n in range(5, 205))]
    source = write(tmp_path / "a.csv", "\n".join(lines) + "\n")
    with pytest.raises(BadRowsError) as caught:
        inlay.merge(source, path, "upsert", "id")
    error = caught.value
    assert error.rejected == 203
    assert len(error.errors) == 100
    assert [(each["line"], each["column"], each["value"]) for each in error.errors[:5]] == [
        (4, "n", "x"), (5, "id", "three"), (5, "n", "y"), (6, None, None), (7, "n", "z"),
    ]  # fmt: skip
    assert error.message.startswith(f"203 of 204 source rows are invalid: {str(source)!r}, line 4, column 'n': 'x' is")
    assert "line 6: the row has 1 cells instead of 3" in error.message
    assert error.message.endswith("and 198 more rows.")
    assert "null_values" in str(error.hint)
    assert error.exit_code == 3


#: case -> (name of the file, its bytes, message, hint)
UNREADABLE: dict[str, tuple[str, bytes, str, str]] = {
    "latin-1 without encoding": ("a.csv", "id\né\n".encode("latin-1"), "Invalid UTF-8: byte 0xe9 at offset 3", "encod"),
    "UTF-16 without a mark": ("a.csv", CSV.encode("utf-16-le"), "looks like utf-16-le", "utf-16-le"),
    "truncated gzip": ("a.csv.gz", gzip.compress(CSV.encode())[:-12], "is not valid gzip", "complete"),
    "a spreadsheet": ("a.csv", b"PK\x03\x04xxxx", "an Office document or a ZIP archive", "as CSV"),
    "empty": ("a.csv", b"", "The file is empty", ""),
    "no records": ("a.json", b"[]", "no data rows", "empty pyarrow table"),
    "only a header": ("a.csv", b"id,v\n", "no data rows", "empty pyarrow table"),
    "not JSON": ("a.json", b"id,v\n1,a\n", "neither a JSON array nor JSON objects", ""),
    "unclosed array": ("a.json", b'[{"id": 1}', "never closed", ""),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_text_files(tmp_path: Path, case: str) -> None:
    name, content, message, hint = UNREADABLE[case]
    source = write(tmp_path / name, content)
    with pytest.raises(UnreadableSourceError) as caught:
        inlay.merge(source, tmp_path / "d", "upsert", "id")
    assert message in caught.value.message
    assert str(source) in caught.value.message
    assert hint in str(caught.value.hint)
    assert "upload" not in str(caught.value).lower()
    assert not (tmp_path / "d").exists()


def test_a_header_without_rows_merges_nothing(tmp_path: Path) -> None:
    path = dataset(tmp_path / "d", id=pa.int64(), v=pa.string())
    assert inlay.merge(write(tmp_path / "a.csv", "id,v\n"), path, "upsert", "id").source_count == 0


@pytest.mark.long_on("duckdb-union", "spark")  # every engine opens text files with the same functions
@pytest.mark.parametrize(
    ("header", "strategy", "options"),
    [
        ("op,id,v", "upsert", {"operation_column": "op"}),
        ("v,op,id", "deduplicate", {"operation_column": "op", "newer_by": "v"}),
        ("id,v", "delete", {}),
        ("other,id", "delete", {}),
        ("id", "delete", {"max_deleted": 0}),
    ],
)
def test_a_feed_or_a_list_of_keys_without_rows_merges_nothing(
    tmp_path: Path, engine: Any, header: str, strategy: Any, options: dict[str, Any]
) -> None:
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1, 2], "v": ["a", "b"]}, path)
    before = lake.photograph(path)
    source = write(tmp_path / "feed.csv", header + "\n")
    for call in (inlay.plan_merge, inlay.merge):
        result = call(source, path, strategy, "id", engine=engine, **options)
        assert (result.source_count, result.deleted, result.updated) == (0, 0, 0)
    assert lake.photograph(path) == before


def test_a_header_without_rows_names_unknown_columns(tmp_path: Path) -> None:
    path = dataset(tmp_path / "d", id=pa.int64(), v=pa.string())
    with pytest.raises(SchemaMismatchError, match="does not have 'w'"):
        inlay.merge(write(tmp_path / "a.csv", "id,v,w\n"), path, "upsert", "id")
    with pytest.raises(SchemaMismatchError, match="'op' does not exist in the source"):
        inlay.merge(write(tmp_path / "b.csv", "id,v\n"), path, "upsert", "id", operation_column="op")


#: case -> (function that makes the source, read options, message)
REFUSED: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "table": (lambda _: pa.table({"id": [1]}), {"delimiter": ";"}, "not to Table"),
    "list of dicts": (lambda _: [{"id": 1}], {"header": True}, "not to list"),
    "Parquet": (lambda f: parquet(f / "a.parquet"), {"delimiter": ";"}, "'delimiter' applies to CSV and JSON files"),
    "unknown option": (lambda f: write(f / "a.csv", CSV), {"delimeter": ";"}, "Unknown option 'delimeter' for csv"),
    "option of CSV": (lambda f: write(f / "a.json", NDJSON), {"header": True}, "Unknown option 'header' for json"),
    "bad value": (lambda f: write(f / "a.csv", CSV), {"delimiter": ";;"}, "delimiter must be one ASCII character"),
    "unknown format": (lambda f: write(f / "a.csv", CSV), {"format": "xlsx"}, "Unknown format 'xlsx'"),
}


def parquet(path: Path) -> Path:
    pq.write_table(pa.table({"id": [1]}), path)
    return path


@pytest.mark.parametrize("case", REFUSED)
def test_read_options_that_do_not_apply_are_refused_by_name(tmp_path: Path, case: str, engine: Any) -> None:
    make, options, message = REFUSED[case]
    with pytest.raises(InvalidArgumentError, match=message):
        inlay.merge(make(tmp_path), tmp_path / "d", "upsert", "id", engine=engine, read_options=options)
    assert not (tmp_path / "d").exists()


# --------------------------------------------------------------------------------------------------------- large files
def test_quoted_line_ends_in_a_file_of_many_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every split of 64 KiB begins inside quotes, or near them."""
    shrink(monkeypatch, split_bytes=1 << 16, sample=100, kept_bytes=1 << 20)
    rows = [{"id": n, "v": f'line {n}\nand, "more"\r\n{"x" * (n % 300)}'} for n in range(30_000)]
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["id", "v"])
        writer.writeheader()
        writer.writerows(rows)
    assert inlay.merge(tmp_path / "a.csv", tmp_path / "d", "upsert", "id").inserted == len(rows)
    found = sorted(READERS["duckdb"](tmp_path / "d"), key=lambda row: row["id"])
    assert found == rows


def test_temporary_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, kept_bytes=0)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    inlay.merge(write(tmp_path / "a.csv.gz", gzip.compress(CSV.encode())), tmp_path / "d", "upsert", "id")
    with pytest.raises(SchemaMismatchError):
        inlay.merge(write(tmp_path / "b.csv", "id,w\n1,2\n3,4\n"), tmp_path / "d", "upsert", "id")
    with pytest.raises(BadRowsError):
        inlay.merge(write(tmp_path / "c.csv", "id,v\n1,2\nx,4\n"), tmp_path / "d", "upsert", "id")
    assert list((tmp_path / "tmp").iterdir()) == []


# ------------------------------------------------------------------------------------------------------- several files
def test_files_of_a_directory_share_their_columns(tmp_path: Path, engine: Any) -> None:
    folder = tmp_path / "s"
    (folder / "deeper").mkdir(parents=True)
    write(folder / "1.csv", "id,v\n1,007\n")
    write(folder / "2.csv.gz", gzip.compress(b"v;id;w\n8;2;x\n"))
    write(folder / "deeper/3.tsv", "id\tw\n3\ty\n")
    write(folder / "notes.txt", "not rows")
    write(folder / "_hidden.csv", "id\n9\n")
    expected = [{"id": 1, "v": "007", "w": None}, {"id": 2, "v": "8", "w": "x"}, {"id": 3, "v": None, "w": "y"}]
    inlay.merge(folder, tmp_path / "d", "upsert", "id", engine=engine)
    assert_rows(tmp_path / "d", expected)
    inlay.merge(f"{folder}/?.csv*", tmp_path / "glob", "upsert", "id", engine=engine)
    assert_rows(tmp_path / "glob", expected[:2])


def test_json_files_of_a_directory_share_their_fields(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    write(folder / "1.ndjson", '{"id": 1, "v": 1}\n')
    write(folder / "2.json", '[{"id": 2, "v": 2.5, "w": {"a": 1}}]')
    inlay.merge(folder, tmp_path / "d", "upsert", "id")
    assert_rows(tmp_path / "d", [{"id": 1, "v": 1.0, "w": None}, {"id": 2, "v": 2.5, "w": {"a": 1}}])


def test_an_error_names_the_file_of_a_directory(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    write(folder / "1.csv", "id\n1\n")
    write(folder / "2.csv", "id\n2\nx\n")
    path = dataset(tmp_path / "d", id=pa.int64())
    with pytest.raises(BadRowsError, match=r"2\.csv', line 3, column 'id': 'x' is not an integer"):
        inlay.merge(folder, path, "upsert", "id")


# ------------------------------------------------------------------------------------------------- against oracles
# A lone carriage return is left out, because csv.writer doesn't quote it before Python 3.13.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=8)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "t": (
        pa.string(),
        TEXT | st.sampled_from(["", " ", '"', "a,b", "x\r\ny", "\n", "a\rb\n", ";\t|", "007", "NULL", "é"]),
    ),
    "b": (pa.bool_(), st.booleans()),
    "d": (pa.date32(), st.dates(dt.date(1000, 1, 1), dt.date(9999, 12, 31))),
    "s": (pa.timestamp("us"), st.datetimes(dt.datetime(1000, 1, 1), dt.datetime(9999, 12, 31))),  # noqa: DTZ001
    "n": (pa.decimal128(38, 4), st.decimals(-(10**20), 10**20, places=4)),
}
TYPES = {name: type_ for name, (type_, _) in VALUES.items()}
ROW = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in VALUES.items()})


@contextlib.contextmanager
def small_parts(split_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, split_bytes, kept_bytes=200)
        yield


def as_csv(rows: list[dict[str, Any]], delimiter: str, quoting: int, end: str) -> str:
    """Write rows by Python's csv module."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator=end)  # type: ignore[arg-type]
    writer.writerow(["id", *VALUES])
    writer.writerows([row["id"], *(row[name] for name in VALUES)] for row in rows)
    return out.getvalue()


def expected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    schema = pa.schema([("id", pa.int64()), *TYPES.items()])
    return pa.Table.from_pylist(rows, schema).to_pylist()


@given(
    rows=st.lists(ROW, min_size=1, max_size=12),
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    split_bytes=st.integers(1, 200),
)
def test_csv_of_python_is_merged_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]], delimiter: str, quoting: int, end: str, encoding: str, split_bytes: int,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("csv")
    # The csv module writes NULL and empty text alike: without quotes, or with quotes in QUOTE_ALL.
    empty = "" if quoting == csv.QUOTE_ALL else None
    numbered = [{"id": n, **row, "t": row["t"] or empty} for n, row in enumerate(rows)]
    source = write(folder / "a.csv", as_csv(numbered, delimiter, quoting, end).encode(encoding))
    path = dataset(folder / "d", id=pa.int64(), **TYPES)
    with small_parts(split_bytes):
        inlay.merge(source, path, "upsert", "id", read_options={"delimiter": delimiter, "quote": '"'})
    found = sorted(inlay.read_parquet(path).to_pylist(), key=lambda row: row["id"])
    assert found == expected(numbered)


@given(
    rows=st.lists(ROW, min_size=1, max_size=12),
    layout=st.sampled_from(["lines", "array", "objects"]),
    is_ascii=st.booleans(),
    indent=st.sampled_from([None, 1]),
    split_bytes=st.integers(1, 200),
    leaves_out_nulls=st.booleans(),
)
def test_json_of_python_is_merged_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]], layout: str, is_ascii: bool, indent: int | None, split_bytes: int,
    leaves_out_nulls: bool,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("json")
    numbered = [{"id": n, **row} for n, row in enumerate(rows)]
    records = [{k: v for k, v in row.items() if v is not None or not leaves_out_nulls} for row in numbered]
    texts = [json.dumps(r, ensure_ascii=is_ascii, default=str, indent=None if layout == "lines" else indent)
             for r in records]  # fmt: skip
    content = {"lines": "\n".join(texts), "array": f"[{','.join(texts)}]", "objects": "".join(texts)}[layout]
    source = write(folder / "a.json", content)
    path = dataset(folder / "d", id=pa.int64(), **TYPES)
    with small_parts(split_bytes):
        inlay.merge(source, path, "upsert", "id", missing_columns="null")
    found = sorted(inlay.read_parquet(path).to_pylist(), key=lambda row: row["id"])
    assert found == expected(numbered)
