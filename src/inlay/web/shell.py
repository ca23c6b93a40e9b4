"""What every page has: the frame with its navigation, a visitor who may read, and errors that say what to do."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import typing
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any, cast
from urllib.parse import quote

from fastapi import HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import RedirectResponse
from nicegui import Client, html, ui

from inlay import __version__
from inlay.errors import InlayError, ServiceUnreachableError, UnauthorizedError
from inlay.server.auth import SESSION_COOKIE
from inlay.web.visitor import Visitor

__all__ = [
    "ICON",
    "STATIC",
    "frame",
    "guarded",
    "heading",
    "page",
    "show_error",
    "show_missing",
    "style_with",
    "tell",
]

log = logging.getLogger("inlay.web")
STATIC = "/static"
ICON = resources.files("inlay.web").joinpath("static/icon.svg").read_text(encoding="utf-8")
_SECONDS_TO_BUILD = 30.0
_SECONDS_TO_OPEN = 20.0  # the workspace may still be opening
_THEME_COOKIE = "inlay_theme"
_THEMES = {"light": False, "dark": True}  # what is not chosen is what the system has
_PARTS = ("/_nicegui", STATIC)  # of pages
_PLACES = (
    ("/", "Datasets", "dataset"),
    ("/sql", "SQL", "terminal"),
    ("/jobs", "Jobs", "bolt"),
    ("/status", "Status", "monitor_heart"),
)
Body = Callable[..., Awaitable[None]]


def page(path: str, title: str) -> Callable[[Body], Body]:
    """Make a page of `body(visitor, ...)`; its other parameters come from the path and the query string."""

    def register(body: Body) -> Body:
        @functools.wraps(body)
        async def build(request: Request, **parameters: Any) -> Response | None:
            content = frame(request, title)
            try:
                visitor = await asyncio.wait_for(Visitor.of(request), _SECONDS_TO_OPEN)
                with content:
                    await body(visitor, **parameters)
            except UnauthorizedError:
                return RedirectResponse(_login(request), status_code=303)
            except Exception as error:  # noqa: BLE001  (it is logged, and the page says so)
                _show_failure(content, error)
            return None

        build.__signature__ = _signature(body)  # type: ignore[attr-defined]
        del build.__wrapped__
        ui.page(path, title=f"{title} · inlay", response_timeout=_SECONDS_TO_BUILD)(build)
        return body

    return register


def _signature(body: Body) -> inspect.Signature:
    """The body's own, with the request in the place of the visitor."""
    hints = typing.get_type_hints(body)
    first, *others = inspect.signature(body).parameters.values()
    request = first.replace(name="request", annotation=Request)
    return inspect.Signature([request, *(each.replace(annotation=hints[each.name]) for each in others)])


def _login(request: Request) -> str:
    """Where one signs in, to come back."""
    return f"/login?next={quote(_place_of(request))}"


def _place_of(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


# --------------------------------------------------------------------------------------------------------------- frame
def frame(request: Request, title: str, *, navigation: bool = True) -> ui.element:
    """The parts around a page's content, which goes into the element that comes back."""
    style_with("inlay.css")
    ui.colors(primary="#0f766e", secondary="#475569", accent="#b45309", positive="#15803d", negative="#b91c1c")
    dark = ui.dark_mode(_THEMES.get(request.cookies.get(_THEME_COOKIE, "")))
    with ui.header().classes("inlay-header"):
        with ui.link(target="/").classes("inlay-brand").props('aria-label="inlay: datasets"'):
            ui.html(ICON, sanitize=False).classes("inlay-icon").props("aria-hidden=true")
            ui.label("inlay")
        if navigation:
            with ui.element("nav").classes("inlay-nav").props('aria-label="Pages"'):
                for place, name, icon in _PLACES:
                    _place(place, name, icon, is_here=_is_here(request.url.path, place))
        ui.space()
        _theme_menu(dark)
        if request.cookies.get(SESSION_COOKIE):
            _sign_out_button()
    content = ui.element("div").classes("inlay-content").props("tabindex=-1")
    ui.skip_link("Skip to the content", target=content)
    with content:
        ui.page_title(f"{title} · inlay")
    return content


def style_with(file: str) -> None:
    """Add a style sheet of ours to the page; browsers keep it until the next version."""
    ui.add_head_html(f'<link rel="stylesheet" href="{STATIC}/{file}?{__version__}">')


def _is_here(path: str, place: str) -> bool:
    return path.startswith(place) if place != "/" else path == "/" or path.startswith(("/datasets", "/uploads"))


def _place(place: str, name: str, icon: str, *, is_here: bool) -> None:
    link = ui.link(target=place).classes("inlay-place")
    if is_here:
        link.props('aria-current="page"')
    with link:
        ui.icon(icon).props("aria-hidden=true")
        ui.label(name)


def _theme_menu(dark: ui.dark_mode) -> None:
    with ui.button(icon="contrast").props('flat round color=inherit aria-label="Colours"'), ui.menu():
        for name, label in (("light", "Light"), ("dark", "Dark"), ("system", "As the system")):
            keep = f"document.cookie = '{_THEME_COOKIE}={name}; path=/; max-age=31536000; samesite=lax'"
            item = ui.menu_item(label, on_click=functools.partial(dark.set_value, _THEMES.get(name)))
            item.on("click", js_handler=f"() => {{ {keep} }}")


_LEAVE = """() => {
  for (const kept of [localStorage, sessionStorage]) {
    for (const name of Object.keys(kept)) if (name.startsWith('inlay.')) kept.removeItem(name);
  }
  fetch('/v1/session', {method: 'DELETE'}).then(() => {
    new BroadcastChannel('inlay.session').postMessage('over');
    location.href = '/login';
  });
}"""
_LEAVE_WITH_OTHERS = "new BroadcastChannel('inlay.session').onmessage = () => { location.href = '/login' };"


def _sign_out_button() -> None:
    """Nothing of what was typed stays in the browser for the next one, and no page in another tab goes on."""
    button = ui.button(icon="logout").props('flat round color=inherit aria-label="Sign out"')
    button.on("click", js_handler=_LEAVE)
    ui.run_javascript(_LEAVE_WITH_OTHERS)


def heading(text: str, note: str | None = None) -> None:
    html.h1(text).classes("inlay-title")
    if note:
        ui.label(note).classes("inlay-note")


# -------------------------------------------------------------------------------------------------------------- errors
def show_error(error: InlayError) -> None:
    """An error in the place of what could not be shown."""
    with ui.card().classes("inlay-error").props("role=alert"):
        ui.label(str(error.message)).classes("text-base font-medium")
        if error.hint:
            ui.label(error.hint)
        ui.link("Back to the datasets", "/")


def _show_failure(content: ui.element, error: Exception) -> None:
    """In the place of a page that could not be built. What nobody expected is for the log, not for visitors."""
    if not isinstance(error, InlayError):
        log.error("a page could not be built", exc_info=error)
        error = _STARTING if isinstance(error, TimeoutError) else _UNEXPECTED
    content.client.status_code = error.http_status
    content.clear()
    with content:
        show_error(error)


_STARTING = ServiceUnreachableError("The service is still starting.", hint="Try again in a moment.")
_UNEXPECTED = InlayError("This page failed unexpectedly.", hint="Try again. The log of the service says what happened.")


async def show_missing(request: Request, error: Exception) -> Response:
    """For an address that no page has."""
    if request.url.path.startswith(_PARTS):
        return await http_exception_handler(request, cast("HTTPException", error))
    with Client(ui.page(""), request=request) as client, frame(request, "Not found"):
        heading("There is nothing here", f"No page has the address {_place_of(request)[:200]}")
        ui.link("Back to the datasets", "/")
    return client.build_response(request, 404)


def tell(error: InlayError) -> None:
    """An error of something that was tried; the page stays as it was."""
    text = f"{error.message}\n{error.hint}" if error.hint else str(error.message)
    ui.notify(text, type="negative", multi_line=True, close_button="Close", timeout=0, classes="inlay-notice")


def guarded(handler: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """An event handler whose errors are told, not lost in the log."""

    @functools.wraps(handler)
    async def run(*arguments: Any, **named: Any) -> None:
        page = ui.context.client.content  # it stays, also where the handler removed the element that it belongs to
        try:
            await handler(*arguments, **named)
        except UnauthorizedError:
            with page:
                ui.navigate.to(_login(page.client.request))
        except InlayError as error:
            with page:
                tell(error)
        except Exception:
            log.exception("a handler of the page failed")
            with page:
                ui.notify("That failed unexpectedly. The log of the service says more.", type="negative")

    return run
