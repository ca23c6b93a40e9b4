"""Fixtures: a running service and a real browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.faults.service_process import ServiceProcess, Stand
from tests.spark import cluster

WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
TIMEOUT_MS = 60_000  # long, because the machine may be busy
SPARK_TIMEOUT = 180.0
SCREENSHOTS = Path(__file__).parents[2] / ".screenshots"
IS_LONG = os.environ.get("INLAY_TEST_LONG") == "1"

# messages of the browser about error responses and about an unavailable service
_EXPECTED_CONSOLE_ERRORS = ("Failed to load resource", "net::ERR_CONNECTION_", "WebSocket connection to")

expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Run `inlay serve` with its defaults, shared by most tests.

    Queries have a long timeout, so that tests can cancel them also on a slow machine.
    """
    stand = Stand(
        tmp_path_factory.mktemp("page"),
        cluster.local_connect_url(),
        settings={"INLAY_QUERY_TIMEOUT_SECONDS": "600", "INLAY_PUBLISH": "delta"},
    )
    with ServiceProcess(stand).opened() as process:
        yield process


@pytest.fixture(scope="session")
def locked_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Run a service that requires the API key `key-of-the-service`."""
    stand = Stand(
        tmp_path_factory.mktemp("locked"),
        cluster.local_connect_url(),
        settings={"INLAY_API_KEYS": "key-of-the-service"},
    )
    with ServiceProcess(stand).opened() as process:
        yield process


@pytest.fixture
def api(service: ServiceProcess) -> Iterator[httpx.Client]:
    """Return an HTTP client of the shared service, to prepare the data of a page."""
    with httpx.Client(base_url=service.url, timeout=SPARK_TIMEOUT) as client:
        yield client


@dataclass
class Visit:
    """A browser window on a service.

    `faults` lists script errors, console errors and requests to other hosts.
    """

    url: str
    context: BrowserContext
    page: Page
    faults: list[str] = field(default_factory=list)

    def go(self, path: str = "/") -> Page:
        self.page.goto(self.url + path)
        return self.page

    def shoot(self, name: str) -> None:
        """Check that the page fits a phone. In long runs, also save screenshots for review."""
        for kind, viewport in (("wide", WIDE), ("phone", PHONE))[not IS_LONG :]:
            self.page.set_viewport_size(viewport)  # type: ignore[arg-type]
            self.page.wait_for_timeout(300)  # grids and charts adapt to the new width
            if IS_LONG:
                SCREENSHOTS.mkdir(exist_ok=True)
                self.page.screenshot(path=SCREENSHOTS / f"{name}-{kind}.png", full_page=True)
        overflow = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{name} is {overflow} pixels wider than a phone"
        self.page.set_viewport_size(WIDE)  # type: ignore[arg-type]

    def _record_faults(self) -> None:
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("request", lambda request: self._check_host(request.url))
        self.page.on("console", lambda message: self._check_console(message.type, message.text))

    def _check_host(self, url: str) -> None:
        if urlsplit(url).hostname not in (None, "127.0.0.1"):
            self.faults.append(f"request to another host: {url}")

    def _check_console(self, kind: str, text: str) -> None:
        if kind == "error" and not any(known in text for known in _EXPECTED_CONSOLE_ERRORS):
            self.faults.append(f"console: {text}")


Opener = Callable[..., Visit]


@pytest.fixture
def open_window(chromium: Browser) -> Iterator[Opener]:
    """Yield a function that opens a window with its own cookies.

    The fixture fails if a window has faults.
    """
    opened: list[Visit] = []

    def opener(url: str, **options: Any) -> Visit:
        context = chromium.new_context(viewport=WIDE, **options)  # type: ignore[arg-type]
        context.set_default_timeout(TIMEOUT_MS)
        visit = Visit(url, context, context.new_page())
        visit._record_faults()
        opened.append(visit)
        return visit

    yield opener
    for visit in opened:
        visit.context.close()
    assert [fault for visit in opened for fault in visit.faults] == []


@pytest.fixture(scope="session")
def shared_context(chromium: Browser) -> BrowserContext:
    """Open one window for all tests, so that the browser fetches and compiles scripts once."""
    context = chromium.new_context(viewport=WIDE)  # type: ignore[arg-type]
    context.set_default_timeout(TIMEOUT_MS)
    return context


@pytest.fixture
def visit(shared_context: BrowserContext, service: ServiceProcess) -> Iterator[Visit]:
    """Return a window on the shared service, without cookies or stored data of earlier tests."""
    visit = Visit(service.url, shared_context, shared_context.new_page())
    visit._record_faults()
    yield visit
    session = shared_context.new_cdp_session(visit.page)
    session.send("Storage.clearDataForOrigin", {"origin": service.url, "storageTypes": "local_storage,indexeddb"})
    shared_context.clear_cookies()
    shared_context.clear_permissions()
    for page in shared_context.pages:
        page.close()
    assert visit.faults == []
