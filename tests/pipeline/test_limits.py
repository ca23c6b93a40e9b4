"""Limits of files, in tasks without Spark. tests/server/test_attack_files.py has the same limits in a service."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.errors import UnreadableUploadError
from inlay.text.options import Limits
from tests.parquet_bytes import row_with_a_long_list, rows_of_a_constant


def parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("kind", "content", "limits", "message"),
    [
        ("parquet", rows_of_a_constant(1_000), Limits(decoded_bytes=7_999), "exceeds the limit of 7,999 bytes"),
        ("parquet", rows_of_a_constant(1_000), Limits(ratio=10, ratio_from=1), "10 times the 119 bytes"),
        ("parquet", row_with_a_long_list(1_000), Limits(decoded_bytes=3_999), "exceeds the limit"),
        # The footer declares one item: only the count while decoding finds the others.
        ("parquet", row_with_a_long_list(1_000, declared=1), Limits(decoded_bytes=3_999), "exceeds the limit"),
        ("parquet", parquet(pa.table({"a": ["x" * 1_000] * 50})), Limits(decoded_bytes=49_999), "exceeds the limit"),
        ("parquet", parquet(pa.table({"a": [1], "b": [2]})), Limits(columns=1), "2 columns, more than the limit of 1"),
        ("parquet", parquet(pa.table({"a": [{"x": 1, "y": 2}]})), Limits(columns=1), "2 columns"),
        ("parquet", parquet(pa.table({"\u00e9\u00e9": [1]})), Limits(name_bytes=3), "name of column 1 exceeds 3 bytes"),
        ("csv", b"a,b\n1,2\n", Limits(columns=1), "2 columns"),
        ("csv", b'a,"b,c",d\n1,2,3\n', Limits(columns=2), "3 columns"),
        ("csv", b"abcd\n1\n", Limits(name_bytes=3), "name of column 1"),
        ("json", b'{"a": 1, "b": {"c": 1, "d": [2]}}', Limits(columns=2), "3 columns"),
        ("json", b'{"a": 1}\n' * 10_001 + b'{"b": 1}\n', Limits(columns=1), "2 columns"),
        ("json", b'{"a": 1}\n' * 10_001 + b'{"bbb": 1}\n', Limits(name_bytes=2), "name of column 2"),
        ("json", b'{"a": 1, "b": 2}\n' + b"{}\n" * 1_000, Limits(ratio=4, ratio_from=1), "4 times"),
    ],
)  # fmt: skip
def test_a_file_beyond_a_limit_is_refused(
    local_converter: Any, kind: str, content: bytes, limits: Limits, message: str
) -> None:
    with pytest.raises(UnreadableUploadError, match=message):
        local_converter.convert(content, kind, limits=limits)
    assert local_converter.everything() == []


@pytest.mark.parametrize(
    ("kind", "content", "limits"),
    [
        ("parquet", rows_of_a_constant(1_000), Limits(decoded_bytes=8_000)),
        ("csv", b'"a,b","c"\n"1,5",2\n', Limits(columns=2, name_bytes=3)),
        ("json", b'{"a": 1, "b": {"c": 1}}', Limits(columns=2, name_bytes=1)),
    ],
)
def test_a_file_at_its_limits_is_converted(local_converter: Any, kind: str, content: bytes, limits: Limits) -> None:
    assert local_converter.convert(content, kind, limits=limits).rows


def test_a_parquet_file_without_columns_is_refused(local_converter: Any) -> None:
    with pytest.raises(UnreadableUploadError, match="no columns"):
        local_converter.convert(parquet(pa.table({})), "parquet")
