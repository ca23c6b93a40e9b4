"""Tests of the page frame in a browser: navigation, theme, sign-in, errors and security headers."""

from __future__ import annotations

import base64
import re
import socket
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from tests.faults.service_process import ServiceProcess, Stand
from tests.spark import cluster
from tests.web.conftest import Opener, Visit

pytestmark = pytest.mark.spark


SIGN_IN = re.compile(r"/login\?next=")
KEPT = "[...Object.keys(localStorage), ...Object.keys(sessionStorage)].filter((name) => name.startsWith('inlay.'))"
BROKEN = """
from inlay.web.shell import page

@page("/broken", "Broken")
async def show(visitor):
    raise RuntimeError("nobody should see this")

@page("/broken/{number}", "Broken")
async def show_number(visitor, number: int):
    ...

from inlay.cli import main
main()
"""


def test_navigation_links_to_every_page(visit: Visit) -> None:
    page = visit.go("/")
    for name, path in (("SQL", "/sql"), ("Jobs", "/jobs"), ("Status", "/status"), ("Datasets", "/")):
        page.get_by_role("navigation").get_by_text(name, exact=True).click()
        page.wait_for_url(visit.url + path)
        expect(page.locator("[aria-current=page]")).to_contain_text(name)
        expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_skip_link_focuses_the_content(visit: Visit) -> None:
    page = visit.go("/")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".inlay-content")).to_be_focused()


@pytest.mark.long  # short runs check sign-in and navigation of the same frame
def test_dark_theme_is_remembered(visit: Visit) -> None:
    page = visit.go("/")
    page.get_by_role("button", name="Change theme").click()
    page.get_by_text("Dark", exact=True).click()
    expect(page.locator("body.body--dark")).to_be_visible()
    page.reload()
    expect(page.locator("body.body--dark")).to_be_visible()
    visit.shoot("home-dark")


@pytest.mark.long  # looks of the page; its content is the same
def test_theme_follows_the_system(service: ServiceProcess, open_window: Opener) -> None:
    visit = open_window(service.url, color_scheme="dark")
    visit.go("/")
    expect(visit.page.locator("body.body--dark")).to_be_visible()


def test_unknown_dataset_shows_an_error_and_a_link(visit: Visit) -> None:
    page = visit.go("/datasets/data_there_is_none")
    expect(page.get_by_role("alert")).to_contain_text("data_there_is_none")
    page.get_by_role("link", name="Back to datasets").click()
    page.wait_for_url(visit.url + "/")


def test_locked_service_requires_a_key(locked_service: ServiceProcess, open_window: Opener) -> None:
    visit = open_window(locked_service.url)
    page = visit.go("/sql?q=SELECT+1")
    page.wait_for_url(SIGN_IN)
    visit.shoot("login")
    page.get_by_label("API key").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("The API key is not valid.")
    page.get_by_label("API key").fill("key-of-the-service")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(visit.url + "/sql?q=SELECT+1")
    cookie = next(c for c in visit.context.cookies() if c["name"] == "inlay_key")
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    expect(page.get_by_role("gridcell", name="1")).to_be_visible()
    assert page.evaluate(KEPT) == ["inlay.sql.history", "inlay.sql.draft"]
    other = visit.context.new_page()
    other.goto(visit.url + "/login?next=/jobs")  # as a link on another site's page ends
    other.wait_for_url(visit.url + "/jobs")
    expect(other.get_by_role("button", name="Sign out")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login")
    other.wait_for_url(re.compile(r"/login(\?next=|$)"))  # it may also notice at its next request
    assert page.evaluate(KEPT) == []
    page.goto(visit.url + "/")
    page.wait_for_url(SIGN_IN)


def test_a_visitor_without_a_key_gets_a_redirect_and_no_page(locked_service: ServiceProcess) -> None:
    with httpx.Client(base_url=locked_service.url, cookies={"inlay_key": "revoked"}) as stranger:
        for path in ("/", "/no/such/page", "/sql?q=SELECT+1"):
            answer = stranger.get(path)
            assert (answer.status_code, answer.content) == (303, b"")
            assert answer.headers["location"].startswith("/login?next=")
            assert 'inlay_key="";' in answer.headers["set-cookie"]
        assert stranger.get("/_nicegui/3.0.0/components/any.js").status_code == 401


def test_signing_in_never_redirects_to_another_site(locked_service: ServiceProcess, open_window: Opener) -> None:
    visit = open_window(locked_service.url)
    for elsewhere in ("//evil.example/", "https://evil.example/", "/\\evil.example", "/%09/evil.example", "/login"):
        visit.context.clear_cookies()
        page = visit.go(f"/login?next={elsewhere}")
        page.get_by_label("API key").fill("key-of-the-service")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(visit.url + "/")


def test_unknown_address_shows_an_error_and_a_link(visit: Visit) -> None:
    page = visit.go("/no/<b>such</b>/page?at=all")
    expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")
    expect(page.get_by_text("No page exists at")).to_contain_text("/no/<b>such</b>/page?at=all")
    visit.shoot("not-found")
    page.get_by_role("link", name="Back to datasets").click()
    page.wait_for_url(visit.url + "/")


@pytest.mark.long  # short runs check the same over HTTP in tests/server/test_http.py
def test_unexpected_error_shows_no_details(tmp_path: Path, open_window: Opener) -> None:
    stand = Stand(tmp_path, cluster.local_connect_url(), settings={})
    with ServiceProcess(stand, program=("-c", BROKEN)).opened() as own:
        visit = open_window(own.url)
        page = visit.go("/broken")
        expect(page.get_by_role("alert")).to_contain_text("This page failed with an unexpected error.")
        visit.shoot("broken")
        answer = httpx.get(own.url + "/broken")
        assert answer.status_code == 500
        assert "nobody should see this" not in answer.text
        assert "Traceback" not in answer.text
        log = own.log.read_text()
        assert "nobody should see this" not in log
        assert "RuntimeError" in log
        assert httpx.get(own.url + "/broken/no_number").status_code == 404


def test_missing_pages_and_parts_are_not_found(api: httpx.Client) -> None:
    assert api.get("/no/such/page").status_code == 404
    assert api.get("/_nicegui/no_such_part").json() == {"detail": "Not Found"}
    assert api.get("/v1/no_such_thing").headers["content-type"] == "application/problem+json"


# ------------------------------------------------------------------------------------------------------ other web sites
def test_pages_forbid_frames_and_foreign_scripts(api: httpx.Client) -> None:
    for path in ("/", "/sql", "/no/such/page"):
        answer = api.get(path)
        policy = answer.headers["content-security-policy"]
        nonce = re.search(r"'nonce-([^']+)'", policy)
        assert nonce is not None
        assert "frame-ancestors 'none'" in policy
        assert "script-src 'self' 'nonce-" in policy
        assert (answer.headers["x-frame-options"], answer.headers["referrer-policy"]) == ("DENY", "same-origin")
        scripts = re.findall(r"<script[^>]*", answer.text)
        assert scripts
        assert all(f'nonce="{nonce[1]}"' in script for script in scripts)
    assert api.get("/").headers["content-security-policy"] != api.get("/").headers["content-security-policy"]
    login = api.get("/login")
    assert login.headers["content-security-policy"] == "default-src 'self'; frame-ancestors 'none'"
    assert login.headers["x-frame-options"] == "DENY"


def test_injected_script_does_not_run(visit: Visit) -> None:
    """Even if a page treated text as HTML, the browser would not run its scripts."""
    page = visit.go("/")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.evaluate(
        """() => { const box = document.createElement('div'); document.body.append(box);
          box.innerHTML = '<img src="data:," onerror="window.ran = true">';
          const script = document.createElement('script'); script.textContent = 'window.ran = true';
          box.append(script) }"""
    )
    page.wait_for_timeout(500)
    assert page.evaluate("window.ran") is None
    assert [fault for fault in visit.faults if "Content Security Policy" in fault]
    visit.faults.clear()


def test_open_service_rejects_foreign_host_names(service: ServiceProcess) -> None:
    answer = httpx.get(service.url, headers={"Host": "evil.example"})
    assert answer.status_code == 403
    assert "available only under a loopback name" in answer.text


SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport="


@pytest.mark.parametrize(
    ("headers", "is_taken"),
    [
        ({}, True),
        ({"Origin": "http://127.0.0.1:{port}"}, True),
        ({"Host": "localhost:{port}", "Origin": "http://localhost:{port}"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://127.0.0.1:1"}, False),
        ({"Host": "evil.example"}, False),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, False),
    ],
)
def test_open_service_accepts_sockets_only_from_its_pages(
    service: ServiceProcess, headers: dict[str, str], is_taken: bool
) -> None:
    own = {name: value.format(port=service.port) for name, value in headers.items()}
    sent = {"Host": f"127.0.0.1:{service.port}", "Cookie": f"inlay_browser={'x' * 32}"} | own
    assert httpx.get(service.url + SOCKET + "polling", headers=sent).status_code == (200 if is_taken else 403)
    assert upgraded(service.port, SOCKET + "websocket", sent) == (101 if is_taken else 403)


def upgraded(port: int, path: str, headers: dict[str, str]) -> int:
    """Request a web socket and return the HTTP status."""
    fields = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    fields |= {"Sec-WebSocket-Key": base64.b64encode(b"0123456789abcdef").decode()} | headers
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall("\r\n".join(lines).encode())
        with connection.makefile("rb") as answer:
            return int(answer.readline().split()[1])
