"""Bodies that are refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from inlay.server.bodies import DatasetBody
from inlay.server.problems import _invalid

SOURCE = {"upload_id": "upld_x"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"label": "x", "source": {"file": "upld_x"}},
            "source.file: There is no such field. Fields: upload_id, inline, sql, format, options.",
        ),
        (
            {"labell": "x", "source": SOURCE},
            (
                "label: This field is required; labell: There is no such field. Fields: label, table_name, source,"
                " schema, on_error."
            ),
        ),
        (
            {"label": "x", "source": SOURCE, "schema": {"columns": [{"name": "a", "typ": "int"}]}},
            (
                "schema.columns.0.type: This field is required; schema.columns.0.typ: There is no such field."
                " Fields: name, type."
            ),
        ),
        ({"label": "x", "source": []}, "source: An object is needed here."),
        ({"label": 1, "source": SOURCE}, "label: Input should be a valid string."),
        ({"label": "\ud800", "source": SOURCE}, "body: Value error, half a surrogate pair in '\\ud800'."),
    ],
)
def test_a_refused_body_says_what_is_wrong_and_what_there_is(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DatasetBody.model_validate(body)
    told = RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in caught.value.errors()])
    assert _invalid(told.errors()).message == f"The request is not valid: {message}"
