"""All datasets."""

from __future__ import annotations

from nicegui import ui

from inlay.web.shell import heading, page
from inlay.web.visitor import Visitor


@page("/", "Datasets")
async def show(visitor: Visitor) -> None:
    found = await visitor.read(lambda w: w.datasets())
    heading("Datasets", f"{found.count:,} in all")
    for dataset in found.items:
        ui.link(dataset.label, f"/datasets/{dataset.id}")
