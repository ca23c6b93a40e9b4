"""How the service is: whether its parts work, what it stands on, how much it holds, and its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from nicegui import html, ui

from inlay.errors import CatalogUnavailableError, InlayError
from inlay.settings import Settings
from inlay.web.shell import guarded, heading, page, show_error, style_with
from inlay.web.visitor import Visitor
from inlay.web.wording import count, duration, size

if TYPE_CHECKING:
    from inlay.workspace.about import About, Place

__all__ = ["limits"]

_Pairs = tuple[tuple[str, str], ...]
_Drawing = tuple[Any, ...]  # a function, and what it is to show
_LOOK_SECONDS = 5.0
_PARTS = ("catalog", "storage", "spark")
_ELSEWHERE = ("data_dir", "catalog_url", "storage_url", "spark_master")  # shown with the parts
_LINKS = (
    ("/docs", "The HTTP interface, described"),
    ("/docs/errors", "Errors and what they mean"),
    ("/openapi.json", "Its description for programs (OpenAPI)"),
    ("/metrics", "Counters for Prometheus"),
)


@page("/status", "Status")
async def show(visitor: Visitor) -> None:
    style_with("status.css")
    heading("Status")
    settings = await visitor.read(lambda w: w.settings)
    view = _View(visitor)
    _show_limits(settings)
    _show_links()
    look = guarded(view.look)
    ui.timer(0, look, once=True)
    ui.timer(_LOOK_SECONDS, look)


class _View:
    """What changes while one looks at it. Only what has changed is drawn again."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self._drawn: dict[ui.element, Sequence[_Drawing]] = {}
        self._parts = html.div().classes("inlay-parts").props("role=status")
        self._body = html.div().classes("inlay-status")
        with self._parts:
            ui.spinner(size="1.5em")

    async def look(self) -> None:
        """When the catalog is away, that is told, and the parts are still shown."""
        try:
            health = await self._visitor.read(lambda w: w.health())
        except CatalogUnavailableError:  # which knows the keys: who was let in may still be told that it is away
            health = await self._visitor.service.run(lambda w: w.health())
        try:
            about = await self._visitor.read(lambda w: w.about())
        except InlayError as error:
            self._draw(self._body, [(_show_trouble, error.message, error.hint)])
            places: dict[str, _Pairs] = {}
        else:
            self._draw(self._body, [(_show_numbers, _numbers(about)), (_show_versions, about.versions)])
            places = _places(about)
        self._draw(self._parts, [(_show_part, name, health[name], places.get(name, ())) for name in _PARTS])

    def _draw(self, element: ui.element, drawings: Sequence[_Drawing]) -> None:
        if self._drawn.get(element) != drawings:
            self._drawn[element] = drawings
            element.clear()
            with element:
                for draw, *facts in drawings:
                    draw(*facts)


def _show_trouble(message: str, hint: str | None) -> None:
    show_error(InlayError(message, hint=hint))


def _show_part(name: str, state: str, facts: _Pairs) -> None:
    kind = state if state in ("ready", "starting") else "broken"
    icon = {"ready": "check_circle", "starting": "autorenew", "broken": "error"}[kind]
    with html.section().classes("inlay-card inlay-part") as card:
        card.props["data-state"] = kind
        with html.div().classes("inlay-part-head"):
            html.h2(name.capitalize())
            with html.span().classes("inlay-part-state"):
                ui.icon(icon).props("aria-hidden=true")
                html.span(state.capitalize() if kind != "broken" else "Not working")
        if kind == "broken":
            html.p(state).classes("inlay-part-reason")
        _show_pairs(facts)


def _places(about: About) -> dict[str, _Pairs]:
    """Where each part is."""
    kept = {name: _place(place) for name, place in (("catalog", about.catalog), ("storage", about.storage))}
    return {**kept, "spark": (("Master", about.spark_master),)}


def _place(place: Place) -> _Pairs:
    free = (("Free", size(place.free_bytes)),) if place.free_bytes is not None else ()
    return (("Kind", place.kind), ("Address", place.address), *free)


def _numbers(about: About) -> list[tuple[str, str, str | None]]:
    """How much there is, with a way to it."""
    return [
        ("Datasets", f"{about.datasets:,}", "/"),
        ("Rows", f"{about.rows:,}", None),
        ("Size", size(about.bytes), None),
        ("Uploads waiting", f"{about.uploads:,}", None),
        *((f"Jobs {state}", f"{number:,}", f"/jobs?state={state}") for state, number in about.jobs.items()),
    ]


def _show_numbers(numbers: Sequence[tuple[str, str, str | None]]) -> None:
    with html.section().classes("inlay-card"):
        html.h2("What there is").classes("inlay-status-title")
        with html.dl().classes("inlay-numbers"):
            for name, value, target in numbers:
                with html.div():
                    html.dt(name)
                    with html.dd():
                        ui.link(value, target) if target else html.span(value)


def _show_versions(versions: Mapping[str, str]) -> None:
    with html.section().classes("inlay-card"):
        html.h2("Versions").classes("inlay-status-title")
        _show_pairs(versions.items())
        if "Spark" not in versions:
            ui.label("Spark and Java are told when Spark runs.").classes("inlay-note")


def _show_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    with html.dl().classes("inlay-pairs"):
        for name, value in pairs:
            html.dt(name)
            html.dd(value)


# -------------------------------------------------------------------------------------------------------------- limits
def limits(settings: Settings) -> list[tuple[str, str, str]]:
    """Every setting in force: the variable that sets it, its value, its meaning. Keys are only counted."""
    return [
        (f"INLAY_{each.name.upper()}", _shown(each.name, getattr(settings, each.name)), each.metadata["meaning"])
        for each in fields(settings)
        if each.name not in _ELSEWHERE
    ]


def _shown(name: str, value: Any) -> str:
    if name == "api_keys":
        return count(len(value), "key") if value else "none"
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_seconds"):
        return duration(value)
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and name != "port" else str(value)


def _show_limits(settings: Settings) -> None:
    with html.section().classes("inlay-card"):
        html.h2("Settings in force").classes("inlay-status-title")
        with html.table().classes("inlay-limits"):
            with html.thead(), html.tr():
                for name in ("Setting", "Value", "Meaning"):
                    html.th(name)
            with html.tbody():
                for row in limits(settings):
                    with html.tr():
                        for text in row:
                            html.td(text)


def _show_links() -> None:
    with html.section().classes("inlay-card"):
        html.h2("More").classes("inlay-status-title")
        with html.ul().classes("inlay-status-links"):
            for target, text in _LINKS:
                with html.li():
                    ui.link(text, target)
