"""Error messages for invalid request bodies."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from inlay.server.problems import _invalid
from inlay.server.requests import DatasetBody

SOURCE = {"upload_id": "upld_x"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"label": "x", "source": {"file": "upld_x"}},
            "source.file: Unknown field. Valid fields: upload_id, inline, sql, format, options.",
        ),
        (
            {"labell": "x", "source": SOURCE},
            (
                "label: This field is required; labell: Unknown field. Valid fields: label, table_name, source,"
                " schema, on_error."
            ),
        ),
        (
            {"label": "x", "source": SOURCE, "schema": {"columns": [{"name": "a", "typ": "int"}]}},
            (
                "schema.columns.0.type: This field is required; schema.columns.0.typ: Unknown field."
                " Valid fields: name, type."
            ),
        ),
        ({"label": "x", "source": []}, "source: This must be a JSON object."),
        ({"label": 1, "source": SOURCE}, "label: Input should be a valid string."),
        ({"label": "\ud800", "source": SOURCE}, "body: Value error, half a surrogate pair in '\\ud800'."),
    ],
)
def test_an_invalid_body_names_the_field_and_the_valid_fields(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DatasetBody.model_validate(body)
    error = RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in caught.value.errors()])
    assert _invalid(error.errors()).message == f"The request is invalid: {message}"
