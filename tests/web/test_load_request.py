"""Tests that the page loads exactly the previewed request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from inlay.web.load import _LoadPage
from inlay.workspace import Load, Source
from tests.coroutines import run_coroutine


def test_a_load_runs_the_previewed_request_whatever_the_form_says() -> None:
    planned = Load(Source(upload_id="upld_x"), "append", dry_run=True)
    later = replace(planned, strategy="upsert", key_columns=("id",))  # The advice on keys arrived after the preview.
    done = []
    page: Any = object.__new__(_LoadPage)
    page._dataset = SimpleNamespace(id="data_x")
    page._draft = SimpleNamespace(request=lambda dry_run: replace(later, dry_run=dry_run))

    async def follow(ask: Callable[[Any], Any]) -> None:
        ask(SimpleNamespace(load=lambda dataset_id, request: done.append((dataset_id, request))))

    async def latest_version() -> int:
        return 1

    page._follow, page._latest_version = follow, latest_version
    run_coroutine(page._load(planned, SimpleNamespace(version=1)))
    assert done == [("data_x", replace(planned, dry_run=False))]
