"""What a visitor looked at is what is loaded, whatever the form says by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from inlay.web.load import _Loading
from inlay.workspace import Load, Source


def test_a_load_does_what_was_planned() -> None:
    planned = Load(Source(upload_id="upld_x"), "append", dry_run=True)
    later = replace(planned, strategy="upsert", key_columns=("id",))  # advice that came late
    done = []
    page: Any = object.__new__(_Loading)
    page._dataset = SimpleNamespace(id="data_x")
    page._choices = SimpleNamespace(request=lambda dry_run: replace(later, dry_run=dry_run))

    async def follow(ask: Callable[[Any], Any]) -> None:
        ask(SimpleNamespace(load=lambda dataset_id, request: done.append((dataset_id, request))))

    async def newest() -> int:
        return 1

    page._follow, page._newest = follow, newest
    asyncio.run(page._load(planned, SimpleNamespace(version=1)))
    assert done == [("data_x", replace(planned, dry_run=False))]
