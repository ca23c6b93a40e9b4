"""The documentation site: the build has no warnings, and pages contact no other hosts."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser

from tests.pages import ROOT

SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site from copies, as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    build = [Path(sys.executable).parent / "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def entries(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from entries(item)


def test_the_navigation_has_every_page_once() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    listed = list(entries(SETTINGS["nav"]))
    assert len(listed) == len(set(listed))
    assert set(listed) == pages - set(SETTINGS["not_in_nav"].split())


def test_the_site_contains_only_pages_and_their_files(site: Path) -> None:
    kinds = {path.suffix for path in site.rglob("*") if path.is_file() and "assets" not in path.parts}
    assert kinds <= {".html", ".svg", ".png", ".css", ".json", ".xml"}


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(_Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


# Pages share their template, so short runs load every sixth page.
@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.long)])
def test_no_page_contacts_another_host(site: Path, address: str, chromium: Browser, step: int) -> None:
    foreign: list[str] = []
    failed: list[str] = []
    with chromium.new_page(viewport={"width": 390, "height": 844}) as page:
        page.on("request", lambda request: _record_foreign(request.url, address, foreign))
        page.on("response", lambda response: failed.append(response.url) if response.status >= 400 else None)
        for path in sorted(site.rglob("*.html"))[::step]:
            name = path.relative_to(site).as_posix()
            page.goto(f"{address}/{name}")
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, f"{name} is wider than the screen of a phone"
    assert (foreign, failed) == ([], [])


def _record_foreign(url: str, address: str, foreign: list[str]) -> None:
    if not url.startswith((address, "data:", "blob:")):
        foreign.append(url)


def test_no_page_names_a_resource_of_another_host(site: Path) -> None:
    """Check all resources, including those that a browser loads later."""
    resource = re.compile(r"""(?:<(?:script|img|iframe|source)[^>]* src|<link[^>]* href)=["']?https?://""")
    assert [path.name for path in site.rglob("*.html") if resource.search(path.read_text())] == []
