"""What a dataset's columns demand beyond their types, of text that is loaded into it."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest

from inlay.errors import BadRowsError, SchemaMismatchError
from inlay.type_grammar import column_type_name, parse_column
from tests.pipeline.conftest import Converter
from tests.pipeline_data import parquet_bytes

_NEEDED = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string(), nullable=False), ("n", pa.int8())]
)
_NO_NULL = "NULL in a column that does not allow it"


@pytest.mark.parametrize(
    ("kind", "content", "rejects"),
    [
        ("csv", 'id,s,n\n1,x,\n,y,2\n3,,4\n"",z,5\n6,"",7\n', [(3, "id", None), (4, "s", None), (5, "id", "")]),
        ("json", '{"id":1,"s":"x"}\n{"s":"y","n":2}\n{"id":3,"s":null,"n":4}\n{"id":6,"s":"","n":7}',
         [(2, "id", None), (3, "s", None)]),
        ("json", '[{"id":1,"s":"x"},\n{"s":"y","n":2},\n{"id":3},\n{"id":6,"s":"","n":7}]',
         [(2, "id", None), (3, "s", None)]),
    ],
)  # fmt: skip
def test_null_is_rejected_in_a_column_that_does_not_allow_it(
    local_converter: Converter, kind: str, content: str, rejects: list[Any]
) -> None:
    found = local_converter.convert(content.encode(), kind, like=_NEEDED, on_error="quarantine", split_bytes=10)
    assert [(r["line"], r["column"], r["value"]) for r in local_converter.rejects(found)] == rejects
    assert local_converter.table(found).to_pylist() == [{"id": 1, "s": "x", "n": None}, {"id": 6, "s": "", "n": 7}]
    assert (found.schema, local_converter.table(found).schema) == (_NEEDED, _NEEDED)
    with pytest.raises(BadRowsError, match="column 'id': " + _NO_NULL) as caught:
        local_converter.convert(content.encode(), kind, like=_NEEDED)
    assert caught.value.errors[1]["reason"] == _NO_NULL
    assert caught.value.hint is not None
    assert "set on_error to quarantine" in caught.value.hint
    assert "--on-error quarantine" in caught.value.hint


def test_a_missing_required_field_rejects_every_record(local_converter: Converter) -> None:
    found = local_converter.convert(b'{"n": 1, "s": "x"}', "json", like=_NEEDED, on_error="quarantine")
    assert (found.rows, found.rejected, local_converter.rejects(found)[0]["reason"]) == (0, 1, _NO_NULL)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("csv", "k,s\n1,ab\n2,abc\n3,\n4,é𝄞\n5,éé \n"),
        ("json", '{"k":1,"s":"ab"}\n{"k":2,"s":"abc"}\n{"k":3}\n{"k":4,"s":"é𝄞"}\n{"k":5,"s":"éé "}'),
        ("json", '[{"k":1,"s":"ab"}, {"k":2,"s":"abc"}, {"k":3}, {"k":4,"s":"é𝄞"}, {"k":5,"s":"éé "}]'),
    ],
)
@pytest.mark.parametrize("is_loaded", [False, True])
def test_text_longer_than_its_type_is_rejected(
    local_converter: Converter, kind: str, content: str, is_loaded: bool
) -> None:
    short = parse_column("s", "varchar(2)")
    chosen = {"like": pa.schema([("k", pa.int64()), short])} if is_loaded else {"overrides": {"s": short}}
    found = local_converter.convert(content.encode(), kind, on_error="quarantine", **chosen)
    assert local_converter.table(found).to_pydict() == {"k": [1, 3, 4], "s": ["ab", None, "é𝄞"]}
    assert [(r["column"], r["value"], r["reason"]) for r in local_converter.rejects(found)] == [
        ("s", "abc", "longer than 2 characters"),
        ("s", "éé ", "longer than 2 characters"),
    ]
    assert column_type_name(found.schema.field("s")) == "varchar(2)"


_WHOLE = pa.schema([("t", pa.timestamp("s")), ("h", pa.time32("s")), ("z", pa.timestamp("s", "UTC"))])


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_fractions_are_rejected_by_types_of_whole_seconds(
    local_converter: Converter, kind: str, is_loaded: bool
) -> None:
    """The type is the requested one; a Parquet file holds seconds as milliseconds."""
    day = "2024-01-31 10:00:0"
    rows = [(f"{day}1", "10:00:02", f"{day}3Z"), (f"{day}1.5", "10:00:02", f"{day}3Z"), (f"{day}1", "10:00:02.5", ""),
            ("", "", f"{day}3.001+01:00"), (f"{day}1.000", "10:00:02.0", f"{day}3.00000000000Z")]  # fmt: skip
    lines = [",".join(row) for row in rows]
    if kind == "json":
        lines = [json.dumps({k: v for k, v in zip("thz", row, strict=True) if v}) for row in rows]
    content = "\n".join([*(["t,h,z"] if kind == "csv" else []), *lines]).encode()
    chosen = {"like": _WHOLE} if is_loaded else {"overrides": {field.name: field.type for field in _WHOLE}}
    found = local_converter.convert(content, kind, on_error="quarantine", **chosen)
    assert (found.schema, found.rows) == (_WHOLE, 2)
    assert [reject["column"] for reject in local_converter.rejects(found)] == ["t", "h", "z"]
    assert (
        local_converter.table(found).cast(_WHOLE).column("t").to_pylist() == [dt.datetime.fromisoformat(f"{day}1")] * 2
    )


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        (parse_column("a", "varchar(2)"), pa.array(["ab", None, "é𝄞"]), pa.array(["ab", "abc"])),
        (parse_column("a", "varchar(2)"), pa.array(["ab"]).dictionary_encode(), pa.array(["abc"]).dictionary_encode()),
        (
            parse_column("a", "timestamp(0)"),
            pa.array([1000, None], pa.timestamp("ms")),
            pa.array([1], pa.timestamp("ms")),
        ),
        (parse_column("a", "time(0)"), pa.array([1000], pa.time32("ms")), pa.array([1], pa.time32("ms"))),
    ],
)
def test_constraints_apply_to_parquet_files(
    local_converter: Converter, field: pa.Field, good: pa.Array, bad: pa.Array
) -> None:
    like = pa.schema([field, ("elsewhere", pa.int8())])
    assert local_converter.table(
        local_converter.convert(parquet_bytes(pa.table({"a": good})), "parquet", like=like)
    ).num_rows == len(good)
    with pytest.raises(SchemaMismatchError, match="'a'"):
        local_converter.convert(parquet_bytes(pa.table({"a": bad})), "parquet", like=like)
    assert local_converter.convert(parquet_bytes(pa.table({"a": bad})), "parquet").rows == len(bad)


def test_text_lengths_in_a_parquet_file_are_ignored(local_converter: Converter) -> None:
    table = pa.table([["abc"]], schema=pa.schema([parse_column("a", "varchar(2)")]))
    assert column_type_name(local_converter.convert(parquet_bytes(table), "parquet").schema.field("a")) == "text"
