"""The frame of every page: visitor, navigation, sign-in, errors, dialogs, and pagers."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fastapi import HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from nicegui import Client, html, ui
from nicegui.element import Element

from inlay import __version__
from inlay.constants import Scope
from inlay.errors import InlayError, ServiceUnreachableError, UnauthorizedError
from inlay.server.auth import SESSION_COOKIE, authenticate, identify, require_scope
from inlay.server.dependencies import Service, Threads
from inlay.web.mount import STATIC, address_of, login_address

if TYPE_CHECKING:
    from inlay.workspace import Workspace

__all__ = [
    "ICON",
    "CopyButton",
    "Visitor",
    "confirm",
    "heading",
    "page",
    "pager",
    "report_errors",
    "run_inside",
    "show_error",
    "show_not_found",
    "use_stylesheet",
]

log = logging.getLogger("inlay.web")
ICON = resources.files("inlay.web").joinpath("static/icon.svg").read_text(encoding="utf-8")
_BUILD_TIMEOUT_SECONDS = 30.0
_VISITOR_TIMEOUT_SECONDS = 1.0  # The middleware already waited for the workspace to open.
_THEME_COOKIE = "inlay_theme"
_THEMES = {"light": False, "dark": True}  # Without a choice, the page follows the system.
_ASSET_PATHS = ("/_nicegui", STATIC)
_NAV_LINKS = (
    ("/", "Datasets", "dataset"),
    ("/sql", "SQL", "terminal"),
    ("/jobs", "Jobs", "bolt"),
    ("/status", "Status", "monitor_heart"),
)
T = TypeVar("T")
Body = Callable[..., Awaitable[None]]


# ------------------------------------------------------------------------------------------------------------- visitors
@dataclass(frozen=True, slots=True)
class Visitor:
    """The signed-in visitor. Every call checks their key again, so that a revoked key stops working immediately."""

    service: Service
    secret: str | None = field(default=None, repr=False)

    @classmethod
    async def of(cls, request: Request) -> Visitor:
        """Return the visitor who sent a request. They must have the read scope."""
        require_scope(await authenticate(request), "read")
        return cls(request.app.state.service, request.cookies.get(SESSION_COOKIE))

    async def read(self, work: Callable[[Workspace], T], threads: Threads = "catalog") -> T:
        return await self._run("read", work, threads)

    async def write(self, work: Callable[[Workspace], T], threads: Threads = "catalog") -> T:
        return await self._run("write", work, threads)

    async def may(self, scope: Scope) -> bool:
        return scope in (await identify(self.service, self.secret)).scopes

    async def _run(self, scope: Scope, work: Callable[[Workspace], T], threads: Threads) -> T:
        require_scope(await identify(self.service, self.secret), scope)
        return await self.service.run(work, threads)


# ---------------------------------------------------------------------------------------------------------------- pages
def page(path: str, title: str) -> Callable[[Body], Body]:
    """Register `body(visitor, ...)` as a page. Its other parameters come from the path and the query string."""

    def register(body: Body) -> Body:
        @functools.wraps(body)
        async def build(request: Request, **parameters: Any) -> None:
            content = _frame(request, title)
            try:
                visitor = await asyncio.wait_for(Visitor.of(request), _VISITOR_TIMEOUT_SECONDS)
                with content:
                    await body(visitor, **parameters)
            except Exception as error:  # noqa: BLE001  (it is logged and shown on the page)
                _show_failure(content, error)

        build.__signature__ = _signature(body)  # type: ignore[attr-defined]
        del build.__wrapped__
        ui.page(path, title=f"{title} · inlay", response_timeout=_BUILD_TIMEOUT_SECONDS)(build)
        return body

    return register


def _signature(body: Body) -> inspect.Signature:
    """Return the signature of `body` with the request in place of the visitor."""
    hints = typing.get_type_hints(body)
    first, *others = inspect.signature(body).parameters.values()
    request = first.replace(name="request", annotation=Request)
    return inspect.Signature([request, *(each.replace(annotation=hints[each.name]) for each in others)])


def _frame(request: Request, title: str) -> ui.element:
    """Build the header of a page and return the element for its content."""
    use_stylesheet("inlay.css")
    ui.colors(primary="#0f766e", secondary="#475569", accent="#b45309", positive="#15803d", negative="#b91c1c")
    dark = ui.dark_mode(_THEMES.get(request.cookies.get(_THEME_COOKIE, "")))
    with ui.header().classes("inlay-header"):
        with ui.link(target="/").classes("inlay-brand").props('aria-label="inlay: datasets"'):
            ui.html(ICON, sanitize=False).classes("inlay-icon").props("aria-hidden=true")
            ui.label("inlay")
        with ui.element("nav").classes("inlay-nav").props('aria-label="Pages"'):
            for target, name, icon in _NAV_LINKS:
                _nav_link(target, name, icon, is_current=_is_current(request.url.path, target))
        ui.space()
        _theme_menu(dark)
        if request.cookies.get(SESSION_COOKIE):
            _sign_out_button()
    content = ui.element("div").classes("inlay-content").props("tabindex=-1")
    ui.skip_link("Skip to content", target=content)
    with content:
        ui.page_title(f"{title} · inlay")
    return content


def use_stylesheet(file: str) -> None:
    """Add a file of `static/` to the page. Browsers cache it until the next version of inlay."""
    ui.add_head_html(f'<link rel="stylesheet" href="{STATIC}/{file}?{__version__}">')


def _is_current(path: str, target: str) -> bool:
    return path.startswith(target) if target != "/" else path == "/" or path.startswith(("/datasets", "/uploads"))


def _nav_link(target: str, name: str, icon: str, *, is_current: bool) -> None:
    link = ui.link(target=target).classes("inlay-nav-link")
    if is_current:
        link.props('aria-current="page"')
    with link:
        ui.icon(icon).props("aria-hidden=true")
        ui.label(name)


def _theme_menu(dark: ui.dark_mode) -> None:
    with ui.button(icon="contrast").props('flat round color=inherit aria-label="Change theme"'), ui.menu():
        for name, label in (("light", "Light"), ("dark", "Dark"), ("system", "System")):
            keep = f"document.cookie = '{_THEME_COOKIE}={name}; path=/; max-age=31536000; samesite=lax'"
            item = ui.menu_item(label, on_click=functools.partial(dark.set_value, _THEMES.get(name)))
            item.on("click", js_handler=f"() => {{ {keep} }}")


def heading(text: str, note: str | None = None) -> None:
    html.h1(text).classes("inlay-title")
    if note:
        ui.label(note).classes("inlay-note")


# ------------------------------------------------------------------------------------------------- signing in and out
# Remove drafts and history from the browser, and sign out in every tab.
_SIGN_OUT = """() => {
  for (const storage of [localStorage, sessionStorage]) {
    for (const name of Object.keys(storage)) if (name.startsWith('inlay.')) storage.removeItem(name);
  }
  fetch('/v1/session', {method: 'DELETE'}).then(() => {
    new BroadcastChannel('inlay.session').postMessage('over');
    location.href = '/login';
  });
}"""
_SIGN_OUT_WITH_OTHER_TABS = "new BroadcastChannel('inlay.session').onmessage = () => { location.href = '/login' };"


def _sign_out_button() -> None:
    button = ui.button(icon="logout").props('flat round color=inherit aria-label="Sign out"')
    button.on("click", js_handler=_SIGN_OUT)
    # A script of the page listens as soon as the button shows. The socket would deliver it later.
    ui.add_head_html(f"<script>{_SIGN_OUT_WITH_OTHER_TABS}</script>")


# --------------------------------------------------------------------------------------------------------------- errors
_STARTING = ServiceUnreachableError("The service is still starting.", hint="Reload the page in a few seconds.")
_UNEXPECTED = InlayError(
    "This page failed with an unexpected error.", hint="Reload the page. The service log has the details."
)


def show_error(error: InlayError) -> None:
    """Show an error in place of content that failed to load."""
    with ui.card().classes("inlay-error").props("role=alert"):
        ui.label(str(error.message)).classes("text-base font-medium")
        if error.hint:
            ui.label(error.hint)
        ui.link("Back to datasets", "/")


def _show_failure(content: ui.element, error: Exception) -> None:
    """Replace the content of a failed page with its error. Only the log has details of unexpected errors."""
    if not isinstance(error, InlayError):
        log.error("failed to build a page", exc_info=error)
        error = _STARTING if isinstance(error, TimeoutError) else _UNEXPECTED
    content.client.status_code = error.http_status
    content.clear()
    with content:
        show_error(error)


async def show_not_found(request: Request, error: Exception) -> Response:
    if request.url.path.startswith(_ASSET_PATHS):
        return await http_exception_handler(request, cast("HTTPException", error))
    with Client(ui.page(""), request=request) as client, _frame(request, "Not found"):
        heading("Page not found", f"No page exists at {address_of(request)[:200]}")
        ui.link("Back to datasets", "/")
    return client.build_response(request, 404)


def report_errors(handler: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Wrap an event handler so that its errors appear as notifications."""

    @functools.wraps(handler)
    async def run(*arguments: Any, **named: Any) -> None:
        # The content of the page outlives the element that the handler belongs to.
        content = ui.context.client.content
        try:
            await handler(*arguments, **named)
        except UnauthorizedError:
            with content:
                ui.navigate.to(login_address(content.client.request))
        except InlayError as error:
            with content:
                _notify(error)
        except Exception:
            log.exception("an event handler of the page failed")
            with content:
                ui.notify(
                    "The action failed with an unexpected error. The service log has the details.", type="negative"
                )

    return run


def run_inside(element: ui.element, handler: Callable[[], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Wrap an event handler to run inside `element`, which outlives the element that the handler belongs to."""

    async def run() -> None:
        with element:
            await report_errors(handler)()

    return run


def _notify(error: InlayError) -> None:
    text = f"{error.message}\n{error.hint}" if error.hint else str(error.message)
    ui.notify(text, type="negative", multi_line=True, close_button="Close", timeout=0, classes="inlay-notice")


# -------------------------------------------------------------------------------------------------------------- widgets
async def confirm(question: str, consequence: str, button: str) -> bool:
    """Return True if the visitor confirms. Escape cancels."""
    # The element that opens the dialog may be deleted before the visitor answers; the content of the page is not.
    with ui.context.client.content, ui.dialog() as dialog, ui.card().classes("inlay-card"):
        html.h2(question).classes("inlay-heading")
        ui.label(consequence)
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps autofocus")
            ui.button(button, on_click=lambda: dialog.submit(True)).props("unelevated no-caps color=negative")
    answer = await dialog
    dialog.clear()
    dialog.delete()
    return bool(answer)


class CopyButton(Element, component="copy_button.js"):
    """A button that copies `text`. Screen readers read `label`, such as "Copy table name"."""

    def __init__(self, text: str, label: str) -> None:
        super().__init__()
        self._props["text"] = text
        self._props["label"] = label


def pager(offset: int, visible: int, total: int, size: int, turn: Callable[[int], Awaitable[None]]) -> None:
    """Show the range of visible items and buttons that turn the page, unless all items fit on one page."""
    if total <= size:
        return
    with ui.row().classes("items-center gap-2"):
        ui.label(f"{offset + 1:,} to {offset + visible:,} of {total:,}").classes("inlay-note")
        for name, target in (("Previous", offset - size), ("Next", offset + size)):
            button = ui.button(name, on_click=report_errors(functools.partial(turn, target))).props("flat no-caps")
            button.set_enabled(0 <= target < total)
