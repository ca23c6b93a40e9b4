"""The status page: the health of the service, its contents, software versions and settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from nicegui import html, ui

from inlay.errors import CatalogUnavailableError, InlayError
from inlay.settings import Settings
from inlay.web.formatting import count, duration, size
from inlay.web.shell import Visitor, heading, page, report_errors, show_error, use_stylesheet

if TYPE_CHECKING:
    from inlay.workspace.services import About, Backend

__all__ = ["setting_rows"]

_Pairs = tuple[tuple[str, str], ...]
_Drawing = tuple[Any, ...]  # a function and its arguments
_POLL_SECONDS = 5.0
_ICONS = {
    "ready": "check_circle", "starting": "autorenew", "not started": "pause_circle", "unavailable": "error",
}  # fmt: skip
_COMPONENTS = ("catalog", "storage", "spark")
_SETTINGS_OF_COMPONENTS = ("data_dir", "catalog_url", "storage_url", "spark_master")
_LINKS = (
    ("/docs", "HTTP API reference"),
    ("/docs/errors", "Error reference"),
    ("/openapi.json", "OpenAPI description"),
    ("/metrics", "Prometheus metrics"),
)


@page("/status", "Status")
async def show(visitor: Visitor) -> None:
    use_stylesheet("status.css")
    heading("Status")
    settings = await visitor.read(lambda w: w.settings)
    view = _View(visitor)
    _show_settings(settings)
    _show_links()
    refresh = report_errors(view.refresh)
    ui.timer(0, refresh, once=True)
    ui.timer(_POLL_SECONDS, refresh)


class _View:
    """The part of the page that updates itself. It redraws only what changed."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self._drawn: dict[ui.element, Sequence[_Drawing]] = {}
        self._components = html.div().classes("inlay-components").props("role=status")
        self._body = html.div().classes("inlay-status")
        with self._components:
            ui.spinner(size="1.5em")

    async def refresh(self) -> None:
        try:
            health = await self._visitor.read(lambda w: w.health())
        except CatalogUnavailableError:
            # The catalog holds the API keys. The visitor was authenticated when the page opened, so show the health.
            health = await self._visitor.service.run(lambda w: w.health())
        try:
            about = await self._visitor.read(lambda w: w.about())
        except InlayError as error:
            self._draw(self._body, [(_show_problem, error.message, error.hint)])
            details: dict[str, _Pairs] = {}
        else:
            self._draw(self._body, [(_show_contents, _contents(about)), (_show_versions, about.versions)])
            details = _component_details(about)
        components = [(_show_component, name, health[name], details.get(name, ())) for name in _COMPONENTS]
        self._draw(self._components, components)

    def _draw(self, element: ui.element, drawings: Sequence[_Drawing]) -> None:
        if self._drawn.get(element) != drawings:
            self._drawn[element] = drawings
            element.clear()
            with element:
                for draw, *arguments in drawings:
                    draw(*arguments)


def _show_problem(message: str, hint: str | None) -> None:
    show_error(InlayError(message, hint=hint))


def _show_component(name: str, state: str, details: _Pairs) -> None:
    kind = state if state in _ICONS else "unavailable"
    with html.section().classes("inlay-card inlay-component") as card:
        card.props["data-state"] = kind
        with html.div().classes("inlay-component-head"):
            html.h2(name.capitalize())
            with html.span().classes("inlay-component-state"):
                ui.icon(_ICONS[kind]).props("aria-hidden=true")
                html.span(kind.capitalize())
        if kind == "unavailable":
            html.p(state).classes("inlay-component-reason")
        if kind == "not started":
            html.p("Spark starts with the next upload, preview, or job.").classes("inlay-note")
        _show_pairs(details)


def _component_details(about: About) -> dict[str, _Pairs]:
    return {
        "catalog": _backend_details(about.catalog),
        "storage": _backend_details(about.storage),
        "spark": (("Master", about.spark_master),),
    }


def _backend_details(backend: Backend) -> _Pairs:
    free = (("Free space", size(backend.free_bytes)),) if backend.free_bytes is not None else ()
    return (("Type", backend.kind), ("Address", backend.address), *free)


def _contents(about: About) -> list[tuple[str, str, str | None]]:
    """Return the name, value and link of every count."""
    jobs = about.jobs.items()
    return [
        ("Datasets", f"{about.datasets:,}", "/"),
        ("Rows", f"{about.rows:,}", None),
        ("Size", size(about.bytes), None),
        ("Pending uploads", f"{about.uploads:,}", None),
        *((f"{state.capitalize()} jobs", f"{number:,}", f"/jobs?state={state}") for state, number in jobs),
    ]


def _show_contents(contents: Sequence[tuple[str, str, str | None]]) -> None:
    with html.section().classes("inlay-card"):
        html.h2("Contents").classes("inlay-status-title")
        with html.dl().classes("inlay-numbers"):
            for name, value, target in contents:
                with html.div():
                    html.dt(name)
                    with html.dd():
                        ui.link(value, target) if target else html.span(value)


def _show_versions(versions: Mapping[str, str]) -> None:
    with html.section().classes("inlay-card"):
        html.h2("Versions").classes("inlay-status-title")
        _show_pairs(versions.items())
        if "Spark" not in versions:
            ui.label("The Spark and Java versions appear once Spark is running.").classes("inlay-note")


def _show_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    with html.dl().classes("inlay-pairs"):
        for name, value in pairs:
            html.dt(name)
            html.dd(value)


# ------------------------------------------------------------------------------------------------- settings and links
def setting_rows(settings: Settings) -> list[tuple[str, str, str]]:
    """Return the environment variable, value and meaning of every setting. API keys are only counted."""
    return [
        (f"INLAY_{each.name.upper()}", _format(each.name, getattr(settings, each.name)), each.metadata["meaning"])
        for each in fields(settings)
        if each.name not in _SETTINGS_OF_COMPONENTS
    ]


def _format(name: str, value: Any) -> str:
    if name == "api_keys":
        return count(len(value), "key") if value else "none"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_seconds"):
        return duration(value)
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and name != "port" else str(value)


def _show_settings(settings: Settings) -> None:
    with html.section().classes("inlay-card"):
        html.h2("Settings").classes("inlay-status-title")
        with html.table().classes("inlay-settings"):
            with html.thead(), html.tr():
                for name in ("Setting", "Value", "Meaning"):
                    html.th(name)
            with html.tbody():
                for row in setting_rows(settings):
                    with html.tr():
                        for text in row:
                            html.td(text)


def _show_links() -> None:
    with html.section().classes("inlay-card"):
        html.h2("Links").classes("inlay-status-title")
        with html.ul().classes("inlay-status-links"):
            for target, text in _LINKS:
                with html.li():
                    ui.link(text, target)
