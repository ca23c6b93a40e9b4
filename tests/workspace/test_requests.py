"""Checks of requests that need neither a catalog nor Spark."""

from __future__ import annotations

import re
from typing import Any

import pytest

from inlay.errors import InvalidArgumentError
from inlay.workspace.requests import Inline, Load, Source, read_options

UPLOAD = "upld_x"
EVERY_STRATEGY = "append, replace, insert, update, upsert, full_merge, deduplicate, delete"


@pytest.mark.parametrize(
    ("content_type", "explicit", "encoding"),
    [
        ("text/csv; charset=windows-1252", {}, "cp1252"),
        ('TEXT/CSV; header=present; CHARSET="ISO-8859-1"', {}, "iso8859-1"),
        ("application/json; charset=utf-16", {}, "utf-16"),
        ("text/csv; charset=windows-1252", {"encoding": "utf-16"}, "utf-16"),
        ("text/csv; charset=unheard-of", {"encoding": "utf-16"}, "utf-16"),
        ("text/csv; charset=UTF-8", {}, None),  # the default, which inlay detects together with its byte order mark
        ("text/csv", {}, None),
        ("application/vnd.apache.parquet; charset=binary", {}, None),
    ],
)
def test_the_charset_of_the_content_type_is_the_encoding(
    content_type: str, explicit: dict[str, Any], encoding: str | None
) -> None:
    assert read_options(Source(UPLOAD, options=explicit), content_type).encoding == encoding


def test_an_unknown_charset_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="Unknown charset 'klingon' in the content type"):
        read_options(Source(UPLOAD), "text/csv; charset=Klingon")


@pytest.mark.parametrize("spelling", ["csv", "CSV", "Csv"])
def test_formats_ignore_case(spelling: str) -> None:
    source = Source(UPLOAD, format=spelling)
    source.check(1)
    assert read_options(source, None).format == "csv"
    Inline(spelling, "a").check(1)


@pytest.mark.parametrize("strategy", ["merge", "Upsert", "", "full-merge"])
def test_an_unknown_strategy_is_named_with_the_known_ones(strategy: str) -> None:
    message = f"Unknown strategy {strategy!r}; known: {EVERY_STRATEGY}."
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        Load(Source(UPLOAD), strategy, ["id"]).check()
