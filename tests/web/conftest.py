"""A running service with its page, and a real browser that looks at it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.faults.service_process import ServiceProcess, Stand

WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
PATIENCE_MS = 60_000  # the machine may be busy; what comes in time is not waited for
SPARK_PATIENCE = 180.0
SCREENSHOTS = Path(__file__).parents[2] / ".screenshots"
IS_LONG = os.environ.get("INLAY_TEST_LONG") == "1"

# answers that are errors, and a service that is away
_TOLD_ON_THE_PAGE = ("Failed to load resource", "net::ERR_CONNECTION_", "WebSocket connection to")

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """`inlay serve` with its embedded defaults, for all tests of the page that do not need one of their own.

    Queries have time until somebody cancels them, also where everything is slow.
    """
    settings = {"INLAY_QUERY_TIMEOUT_SECONDS": "600"}
    with ServiceProcess(Stand(tmp_path_factory.mktemp("page"), "local[2]", settings=settings)).opened() as process:
        yield process


@pytest.fixture
def api(service: ServiceProcess) -> Iterator[httpx.Client]:
    """The same service for programs: tests make here what a page is to show."""
    with httpx.Client(base_url=service.url, timeout=SPARK_PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        assert path, "Debian's chromium is missing; `make setup-test` installs it"
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Visit:
    """A browser window on the service. What it asks of other hosts and what goes wrong in it is written down."""

    url: str
    context: BrowserContext
    page: Page
    faults: list[str] = field(default_factory=list)

    def go(self, path: str = "/") -> Page:
        self.page.goto(self.url + path)
        return self.page

    def shoot(self, name: str) -> None:
        """Whether a phone shows it all; in long runs with screenshots, wide and on a phone, to be looked at."""
        for kind, viewport in (("wide", WIDE), ("phone", PHONE))[not IS_LONG :]:
            self.page.set_viewport_size(viewport)  # type: ignore[arg-type]
            self.page.wait_for_timeout(300)  # grids and charts settle into the width
            if IS_LONG:
                SCREENSHOTS.mkdir(exist_ok=True)
                self.page.screenshot(path=SCREENSHOTS / f"{name}-{kind}.png", full_page=True)
        overflow = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{name} is {overflow} pixels wider than a phone"
        self.page.set_viewport_size(WIDE)  # type: ignore[arg-type]

    def _watch(self) -> None:
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("request", lambda request: self._check_host(request.url))
        self.page.on("console", lambda message: self._check_console(message.type, message.text))

    def _check_host(self, url: str) -> None:
        if urlsplit(url).hostname not in (None, "127.0.0.1"):
            self.faults.append(f"outside: {url}")

    def _check_console(self, kind: str, text: str) -> None:
        if kind == "error" and not any(known in text for known in _TOLD_ON_THE_PAGE):
            self.faults.append(f"console: {text}")


Opener = Callable[..., Visit]


@pytest.fixture
def open_window(chromium: Browser) -> Iterator[Opener]:
    """`open_window(url)`: another browser with its own cookies. None of them may fault or talk to other hosts."""
    opened: list[Visit] = []

    def opener(url: str, **options: Any) -> Visit:
        context = chromium.new_context(viewport=WIDE, **options)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        visit = Visit(url, context, context.new_page())
        visit._watch()
        opened.append(visit)
        return visit

    yield opener
    for visit in opened:
        visit.context.close()
    assert [fault for visit in opened for fault in visit.faults] == []


@pytest.fixture
def visit(open_window: Opener, service: ServiceProcess) -> Visit:
    """A browser on the shared service."""
    return open_window(service.url)
