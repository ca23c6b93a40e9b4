"""Error messages for invalid request bodies."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from inlay.server.problems import _invalid
from inlay.server.requests import DatasetBody, LoadBody, PreviewBody, RequestBody

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
    ],
)
def test_an_invalid_body_names_the_field_and_the_valid_fields(body: dict[str, Any], message: str) -> None:
    assert message_for(DatasetBody, body) == f"The request is invalid: {message}"


def message_for(model: type[RequestBody], body: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    error = RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in caught.value.errors()])
    return _invalid(error.errors()).message


STRATEGIES = "append, replace, insert, update, upsert, full_merge, deduplicate, delete"


@pytest.mark.parametrize("strategy", ["merge", "", None, 5, ["upsert"]])
def test_an_unknown_strategy_is_named_with_the_known_ones(strategy: Any) -> None:
    message = message_for(LoadBody, {"source": SOURCE, "strategy": strategy})
    assert message == f"The request is invalid: strategy: Unknown value {strategy!r}; known: {STRATEGIES}."


def test_a_long_unknown_value_is_shortened() -> None:
    message = message_for(LoadBody, {"source": SOURCE, "strategy": "x" * 1_000_000})
    assert len(message) < 300


@pytest.mark.parametrize("spelling", ["CSV", "csv", "Csv"])
def test_formats_ignore_case(spelling: str) -> None:
    inline = {"inline": {"format": spelling, "content": "a"}, "format": spelling}
    source = DatasetBody.model_validate({"label": "x", "source": inline}).source
    assert (source.format, source.inline and source.inline.format) == ("csv", "csv")
    assert PreviewBody.model_validate({"format": spelling}).format == "csv"
