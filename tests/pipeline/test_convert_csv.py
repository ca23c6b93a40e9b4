"""CSV through the whole pipeline: types, NULLs, names, rejects, promotion, row accounting."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.errors import BadRowsError, ConversionFailedError, InvalidArgumentError, UnreadableUploadError

_naive = dt.datetime.fromisoformat


def _column(converter: Any, content: str, **more: Any) -> tuple[str, list[Any]]:
    """The type and the values of the first column."""
    conversion = converter.convert(content.encode(), **more)
    table = converter.table(conversion)
    assert table.num_rows == conversion.rows
    return str(table.schema[0].type), table.column(0).to_pylist()


@pytest.mark.parametrize(
    ("cells", "type_", "values"),
    [
        (["1", "-2", "9223372036854775807"], "int64", [1, -2, 9223372036854775807]),
        (["007", "1"], "string", ["007", "1"]),
        (["1234567890123456789"], "int64", [1234567890123456789]),
        (["1" * 25, "1"], "decimal128(38, 0)", [Decimal("1" * 25), Decimal(1)]),
        (["1" * 39], "string", ["1" * 39]),
        (["1.5", "2"], "double", [1.5, 2.0]),
        (["9007199254740993", "0.5"], "decimal128(38, 1)", [Decimal("9007199254740993.0"), Decimal("0.5")]),
        (["0.1234567890123456789"], "decimal128(38, 19)", [Decimal("0.1234567890123456789")]),
        (["1e3", "-inf"], "double", [1000.0, -math.inf]),
        (["1e400"], "string", ["1e400"]),
        (["true", "FALSE"], "bool", [True, False]),
        (["0", "1"], "int64", [0, 1]),
        (["2024-01-31"], "date32[day]", [dt.date(2024, 1, 31)]),
        (["31.01.2024"], "date32[day]", [dt.date(2024, 1, 31)]),
        (["2024/01/31"], "date32[day]", [dt.date(2024, 1, 31)]),
        (["01/02/2024"], "string", ["01/02/2024"]),
        (["13/02/2024", "01/02/2024"], "date32[day]", [dt.date(2024, 2, 13), dt.date(2024, 2, 1)]),
        (["2024-02-30"], "string", ["2024-02-30"]),
        (["2024-01-31 10:00", "2024-02-01"], "timestamp[us]", [_naive("2024-01-31T10:00"), _naive("2024-02-01")]),
        (
            ["2024-01-31T10:00:00.5+02:00", "2024-01-31 08:00:00 UTC"],
            "timestamp[us, tz=UTC]",
            [
                dt.datetime(2024, 1, 31, 8, 0, 0, 500_000, tzinfo=dt.UTC),
                dt.datetime(2024, 1, 31, 8, tzinfo=dt.UTC),
            ],
        ),
        (["2024-01-31T10:00:00Z", "2024-01-31T10:00:00"], "string", ["2024-01-31T10:00:00Z", "2024-01-31T10:00:00"]),
        (["0x1F"], "string", ["0x1F"]),
        (["+5"], "string", ["+5"]),
        (["a\0b"], "string", ["a\0b"]),
    ],
)
def test_types_are_inferred_and_no_value_changes(
    converter: Any, cells: list[str], type_: str, values: list[Any]
) -> None:
    content = "a,b\n" + "".join(f"{cell},x\n" for cell in cells)
    assert _column(converter, content) == (type_, values)


def test_nanoseconds_are_kept(converter: Any) -> None:
    table = converter.table(converter.convert(b"t,b\n2024-01-31T10:00:00.123456789,x\n2024-01-31T10:00:00,y\n"))
    assert table.schema.field("t").type == pa.timestamp("ns")
    assert table.column("t").cast(pa.int64()).to_pylist() == [1706695200123456789, 1706695200000000000]


def test_nan_is_kept_and_its_column_has_no_statistics(converter: Any, tmp_path: Any) -> None:
    conversion = converter.convert(b"a,b\nNaN,1\n3.25,2\n")
    values = converter.table(conversion).column("a").to_pylist()
    assert math.isnan(values[0])
    assert values[1] == 3.25
    group = pq.read_metadata(tmp_path / conversion.files[0].path).row_group(0)
    assert not group.column(0).is_stats_set
    assert group.column(1).is_stats_set


def test_null_and_empty_text_differ(converter: Any) -> None:
    content = b'a,b,c\n,"",1\n"x",NULL,""\n"NULL",y,NULL\n'
    rows = converter.table(converter.convert(content, options={"null_values": ["NULL"]})).to_pylist()
    assert rows == [
        {"a": None, "b": "", "c": 1},
        {"a": "x", "b": None, "c": None},
        {"a": "NULL", "b": "y", "c": None},
    ]


def test_duplicate_and_empty_names_are_made_unique_with_a_warning(converter: Any) -> None:
    conversion = converter.convert(b"a,a,,a_2\n1,2,3,x\n")
    assert conversion.schema.names == ["a", "a_3", "column_3", "a_2"]
    assert len(conversion.warnings) == 2


def test_a_file_with_only_a_header_needs_a_type_for_every_column(converter: Any) -> None:
    with pytest.raises(UnreadableUploadError, match="no data rows"):
        converter.convert(b"a,b\n")
    with pytest.raises(UnreadableUploadError, match="no data rows"):
        converter.convert(b"a,b\n", overrides={"a": pa.int64()})
    conversion = converter.convert(b"a,b\n", overrides={"a": pa.int64(), "b": pa.string()})
    assert (conversion.rows, converter.table(conversion).schema.field("a").type) == (0, pa.int64())


def test_empty_files_are_rejected(converter: Any) -> None:
    for content in (b"", b"\n\n"):
        with pytest.raises(UnreadableUploadError):
            converter.convert(content)


def test_unknown_override_names_the_columns(converter: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="'name', 'b'") as caught:
        converter.convert(b"name,b\n1,2\n", overrides={"nmae": pa.int64()})
    assert caught.value.hint == "Did you mean 'name'?"


def test_invalid_cells_are_listed_and_leave_no_files(converter: Any) -> None:
    content = b'a,b\n1,"x\ny"\nbad,z\n3\n1.5,w\n'
    with pytest.raises(BadRowsError) as caught:
        converter.convert(content, overrides={"a": pa.int32()})
    assert caught.value.rejected == 3
    assert [(e["line"], e["column"], e["value"]) for e in caught.value.errors] == [
        (4, "a", "bad"),
        (5, None, None),
        (6, "a", "1.5"),
    ]
    assert converter.everything() == []


def test_quarantine_loads_the_valid_rows(converter: Any) -> None:
    content = b'a,b\n1,"x\ny"\nbad,z\n3\n1.5,w\n4,v\n'
    conversion = converter.convert(content, overrides={"a": pa.int32()}, on_error="quarantine")
    assert (conversion.rows, conversion.rejected) == (2, 3)
    assert converter.table(conversion).to_pylist() == [{"a": 1, "b": "x\ny"}, {"a": 4, "b": "v"}]
    rejects = converter.rejects(conversion)
    assert [(r["line"], r["column"], r["raw"]) for r in rejects] == [
        (4, "a", "bad,z"),
        (5, None, "3"),
        (6, "a", "1.5,w"),
    ]
    assert converter.rejects(conversion, offset=1, limit=1) == rejects[1:2]


def test_a_quote_that_is_never_closed_is_reported_where_it_opens(converter: Any) -> None:
    conversion = converter.convert(b'a,b\n1,x\n2,"open\n3,y\n', on_error="quarantine")
    assert (conversion.rows, conversion.rejected) == (1, 1)
    assert converter.rejects(conversion)[0]["line"] == 3


def test_integers_then_fractions_then_text_after_the_sample(converter: Any) -> None:
    lines = [f"{n},{n},x" for n in range(10_500)]
    fractions = [*lines, "1.5,1,x"]
    table = converter.table(converter.convert("\n".join(["a,b,c", *fractions]).encode(), split_bytes=20_000))
    assert [str(t) for t in table.schema.types] == ["double", "int64", "string"]
    assert table.column("a").to_pylist() == [*map(float, range(10_500)), 1.5]
    texts = [*fractions, "n/a,1,x"]
    table = converter.table(converter.convert("\n".join(["a,b,c", *texts]).encode(), split_bytes=20_000))
    assert table.column("a").to_pylist() == [*map(str, range(10_500)), "1.5", "n/a"]


def test_a_column_that_is_empty_in_the_sample_is_kept_and_typed(converter: Any) -> None:
    lines = [f"{n},,," for n in range(10_500)]
    content = "\n".join(["a,late,never,text", *lines, "1,7,,x"]).encode()
    table = converter.table(converter.convert(content, split_bytes=20_000))
    assert [str(t) for t in table.schema.types] == ["int64", "int64", "string", "string"]
    assert table.slice(10_500).to_pylist() == [{"a": 1, "late": 7, "never": None, "text": "x"}]
    assert table.num_rows == 10_501


def test_target_types_reject_invalid_values(converter: Any) -> None:
    like = pa.schema([("a", pa.decimal128(10, 2)), ("other", pa.int8())])
    conversion = converter.convert(b"b,a\nx,1.25\ny,1.259\n", like=like, on_error="quarantine")
    assert conversion.schema.field("a").type == pa.decimal128(10, 2)
    assert converter.table(conversion).to_pylist() == [{"b": "x", "a": Decimal("1.25")}]
    assert converter.rejects(conversion)[0]["value"] == "1.259"


def test_rows_are_split_into_files(converter: Any) -> None:
    content = "a,b\n" + "".join(f"{n},x\n" for n in range(1_000))
    conversion = converter.convert(content.encode(), max_rows_per_file=300, split_bytes=500)
    assert [file.path.rsplit("/", 1)[1] for file in conversion.files[:2]] == [
        "data-00001.parquet",
        "data-00002.parquet",
    ]
    assert all(file.rows <= 300 for file in conversion.files)
    assert converter.table(conversion).column("a").to_pylist() == list(range(1_000))
    assert sorted(converter.everything()) == sorted(file.path for file in conversion.files)


def test_small_splits_become_one_row_group(converter: Any, tmp_path: Any) -> None:
    content = "a,b\n" + "".join(f"{n},x\n" for n in range(2_000))
    conversion = converter.convert(content.encode(), split_bytes=1_000)
    assert pq.read_metadata(tmp_path / conversion.files[0].path).num_row_groups == 1


def test_two_thousand_columns(converter: Any) -> None:
    names = [f"c{n}" for n in range(2_000)]
    content = "\n".join(",".join(row) for row in [names, *([str(n)] * 2_000 for n in range(3))]) + "\n"
    table = converter.table(converter.convert(content.encode()))
    assert (table.num_columns, table.column("c1999").to_pylist()) == (2_000, [0, 1, 2])


def test_a_field_of_five_megabytes(converter: Any) -> None:
    field = 'x"",\n' * (1 << 20)
    conversion = converter.convert(converter.upload(f'a,b\n1,"{field}"\n2,y\n'.encode()), split_bytes=1 << 20)
    values = converter.table(conversion).column("b").to_pylist()
    assert values == [field.replace('""', '"'), "y"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_dialects_are_detected(converter: Any, delimiter: str, end: str) -> None:
    rows = ["name", "note"], ["x", "1,5"], ["y", "2,5"]
    lines = [delimiter.join(f'"{cell}"' if delimiter in cell else cell for cell in row) for row in rows]
    conversion = converter.convert(end.join(lines).encode())
    assert conversion.options.delimiter == delimiter
    assert converter.table(conversion).to_pylist() == [{"name": "x", "note": "1,5"}, {"name": "y", "note": "2,5"}]


def test_a_file_without_header(converter: Any) -> None:
    conversion = converter.convert(b"1,x\n2,y\n")
    assert not conversion.options.header
    assert converter.table(conversion).to_pylist() == [
        {"column_1": 1, "column_2": "x"},
        {"column_1": 2, "column_2": "y"},
    ]
    assert converter.convert(b"1,x\n2,y\n", options={"header": True}).schema.names == ["1", "x"]


def test_cancelling_through_progress_leaves_no_files(converter: Any) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        converter.convert(b"a,b\n1,2\n", progress=stop)
    assert converter.everything() == []


def test_invalid_text_after_the_sample_is_reported_with_its_offset(converter: Any) -> None:
    content = b"a,b\n" + b"1,x\n" * 20_000 + b"2,\xff\n"
    with pytest.raises(UnreadableUploadError, match=f"byte 0xff at offset {4 + 4 * 20_000 + 2}") as caught:
        converter.convert(content, split_bytes=10_000)
    assert "encoding" in str(caught.value.hint)
    assert converter.everything() == []


def test_encodings_come_from_an_option_or_a_byte_order_mark(converter: Any) -> None:
    text = "a,b\né€,1\n"
    for content, options in (
        (text.encode("cp1252"), {"encoding": "cp1252"}),
        (text.encode("utf-16"), {}),
        (text.encode("utf-8-sig"), {}),
    ):
        assert converter.table(converter.convert(content, options=options)).to_pylist() == [{"a": "é€", "b": 1}]


def test_a_failure_removes_only_new_files(converter: Any, tmp_path: Path) -> None:
    first = converter.convert(b"a,b\n1,2\n", directory="here", rejects_directory="here/rejects", name="one")
    with pytest.raises(BadRowsError):
        converter.convert(b"a,b\n1\n", directory="here", rejects_directory="here/rejects", name="o")
    assert converter.everything() == [first.files[0].path]
    assert not (tmp_path / "here" / "rejects").exists()


def test_a_target_that_is_not_a_directory(converter: Any, tmp_path: Path) -> None:
    raw = converter.upload(b"a,b\n1,2\n")
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(OSError):  # noqa: PT011  (the type depends on the system)
        converter.convert(raw, directory="file/out", rejects_directory="file/rejects")


def test_a_failed_task_is_reported_with_its_cause(spark: Any) -> None:
    from inlay.pipeline.conversion import run

    with pytest.raises(ConversionFailedError, match="ZeroDivisionError: division by zero"):
        run(spark, "test", _divide, [1, 0])


def _divide(number: int) -> float:
    return 1 / number


def test_row_groups_of_repetitive_text_are_bounded_in_memory(converter: Any, tmp_path: Path) -> None:
    content = ("a,b\n" + f"1,{'x' * 2_000}\n" * 40_000).encode()
    conversion = converter.convert(content, split_bytes=4 << 20)
    metadata = pq.read_metadata(tmp_path / conversion.files[0].path)
    assert max(metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)) * 2_000 <= 33 << 20


@pytest.mark.parametrize("cell", ["1e-99999999999999999999", "0e9999999999999999999", "1e99999999999999999999"])
def test_exponents_out_of_range_are_text(converter: Any, cell: str) -> None:
    assert converter.table(converter.convert(f"a\n1.5\n{cell}\n".encode())).column("a").to_pylist() == ["1.5", cell]


def test_a_column_name_with_a_dot_next_to_a_nested_field_of_that_path(converter: Any) -> None:
    content = b'{"a.b": 1, "a": {"b": 1.5}}\n{"a.b": 2, "a": {"b": 2.5}}\n'
    assert converter.table(converter.convert(content, "json")).to_pylist() == [
        {"a.b": 1, "a": {"b": 1.5}},
        {"a.b": 2, "a": {"b": 2.5}},
    ]


def test_rejects_of_a_split_of_several_blocks(converter: Any) -> None:
    lines = [f"{number},{'x' * 80}" for number in range(100_000)]  # blocks of 4 MiB
    for number in (10, 49_000, 99_000):
        lines[number] = f'{number},"two\nlines, {number}"'
    lines[20], lines[60_000], lines[99_990] = "bad,a", "60000,b,c", "99990"
    conversion = converter.convert(
        "\n".join(["id,note", *lines, '"open']).encode(), on_error="quarantine", overrides={"id": pa.int64()}
    )
    table = converter.table(conversion)
    valid = [number for number in range(100_000) if number not in (20, 60_000, 99_990)]
    assert table["id"].to_pylist() == valid
    assert table["note"][valid.index(49_000)].as_py() == "two\nlines, 49000"
    found = [(reject["line"], reject["column"], reject["raw"]) for reject in converter.rejects(conversion)]
    assert found == [
        (23, "id", "bad,a"),
        (60_004, None, "60000,b,c"),
        (99_995, None, "99990"),
        (100_005, None, '"open'),
    ]


def test_a_column_that_needs_all_blocks_of_a_split_to_find_its_type(converter: Any) -> None:
    lines = [f",{'x' * 80}" for _ in range(60_000)]  # empty in the sample
    lines += [f"01/02/2024,{'x' * 80}" for _ in range(60_000)] + ["25/12/2024,x"]
    conversion = converter.convert("\n".join(["day,note", *lines]).encode())
    assert converter.table(conversion).schema[0].type == pa.date32()
    assert converter.table(conversion)["day"][-2:].to_pylist() == [dt.date(2024, 2, 1), dt.date(2024, 12, 25)]
    lines = [f"{number},{'x' * 80}" for number in range(110_000)] + ["0.5,x", "007,x"]
    conversion = converter.convert("\n".join(["id,note", *lines]).encode())
    assert converter.table(conversion)["id"][-3:].to_pylist() == ["109999", "0.5", "007"]
