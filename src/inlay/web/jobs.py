"""To be written."""

from __future__ import annotations

from inlay.web.shell import heading, page
from inlay.web.visitor import Visitor


@page("/jobs", "Jobs")
async def show(visitor: Visitor) -> None:  # noqa: ARG001
    heading("Jobs")
