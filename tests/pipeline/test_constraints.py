"""What a dataset's columns demand beyond their types, of text that is loaded into it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from inlay.errors import BadRowsError
from tests.pipeline.conftest import Desk

_NEEDED = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string(), nullable=False), ("n", pa.int8())]
)
_NO_NULL = "NULL in a column that allows none"


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
def test_null_is_a_bad_cell_where_none_is_allowed(here: Desk, kind: str, content: str, rejects: list[Any]) -> None:
    found = here.convert(content.encode(), kind, like=_NEEDED, on_error="quarantine", split_bytes=10)
    assert [(r["line"], r["column"], r["value"]) for r in here.rejects(found)] == rejects
    assert here.table(found).to_pylist() == [{"id": 1, "s": "x", "n": None}, {"id": 6, "s": "", "n": 7}]
    assert (found.schema, here.table(found).schema) == (_NEEDED, _NEEDED)
    with pytest.raises(BadRowsError, match="column 'id': " + _NO_NULL) as caught:
        here.convert(content.encode(), kind, like=_NEEDED)
    assert caught.value.errors[1]["reason"] == _NO_NULL


def test_a_field_that_is_needed_and_that_no_record_has_rejects_them_all(here: Desk) -> None:
    found = here.convert(b'{"n": 1, "s": "x"}', "json", like=_NEEDED, on_error="quarantine")
    assert (found.rows, found.rejected, here.rejects(found)[0]["reason"]) == (0, 1, _NO_NULL)
