"""Sockets of a page: only the browser and the API key that loaded a page may use its socket.

The tests speak Socket.IO over long polling, with the messages that NiceGUI's own script sends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.faults.service_process import ServiceProcess
from tests.spark.cluster import wait_until

KEY = "key-of-the-service"
SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"


class Socket:
    """One Socket.IO connection over long polling."""

    def __init__(self, http: httpx.Client, query: str = "") -> None:
        opened = http.get(SOCKET + query)
        assert opened.status_code == 200, opened.text
        self.http, self.path = http, f"{SOCKET}&sid={json.loads(opened.text[1:])['sid']}"
        self.send("40")
        self.answer = self.receive()

    def send(self, text: str) -> None:
        assert self.http.post(self.path, content=text).text == "OK"

    def receive(self) -> str:
        return self.http.get(self.path).text

    def handshake(self, client_id: str) -> bool:
        """Request the content of a page, and return whether the service agreed."""
        message = {"client_id": client_id, "tab_id": "tab", "document_id": "document", "next_message_id": 0}
        self.send(f"420{json.dumps(['handshake', message])}")
        while "430[" not in (text := self.receive()):
            pass
        return "430[true]" in text


@pytest.fixture
def browser(locked_service: ServiceProcess) -> Iterator[httpx.Client]:
    """A browser that signed in."""
    with httpx.Client(base_url=locked_service.url, timeout=60) as http:
        assert http.post("/v1/session", json={"key": KEY}).status_code == 204
        yield http


def open_page(http: httpx.Client, path: str = "/") -> str:
    """Load a page and return its id."""
    page = http.get(path)
    assert page.status_code == 200
    found = re.search(r"'client_id': '([0-9a-f-]+)'", page.text)
    assert found, page.text[:2000]
    return found[1]


def other_browser(url: str, **cookies: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=60, cookies=cookies)


def test_a_page_connects_to_its_own_socket(browser: httpx.Client) -> None:
    page = open_page(browser)
    assert Socket(browser).handshake(page)


@pytest.mark.parametrize("cookies", [{}, {"inlay_key": KEY}])
def test_no_socket_opens_without_the_cookie_of_a_page(browser: httpx.Client, cookies: dict[str, str]) -> None:
    with other_browser(str(browser.base_url), **cookies) as other:
        assert other.get(SOCKET).status_code == 403


@pytest.mark.parametrize("value", ["chosen", "x" * 33, '"a\\015\\012X-Chosen: 1"'])
def test_a_page_sets_its_own_cookie_and_repeats_no_text_of_a_client(browser: httpx.Client, value: str) -> None:
    headers = {"Cookie": f"inlay_key={KEY}; inlay_browser={value}"}
    page = httpx.get(browser.base_url, headers=headers)
    assert "chosen" not in str(page.headers).lower()
    made = page.cookies["inlay_browser"]
    assert re.fullmatch(r"[\w-]{32}", made)
    headers = {"Cookie": f"inlay_key={KEY}; inlay_browser={made}"}
    assert "set-cookie" not in httpx.get(browser.base_url, headers=headers).headers
    assert httpx.get(f"{browser.base_url}{SOCKET}", headers={"Cookie": f"inlay_browser={value}"}).status_code == 403


OTHER = {"inlay_browser": "x" * 32}


@pytest.mark.parametrize("cookies", [OTHER, OTHER | {"inlay_key": KEY}, {"inlay_browser": "same"}])
def test_no_other_socket_receives_the_content_of_a_page(browser: httpx.Client, cookies: dict[str, str]) -> None:
    """Not without a key, not with the same key in another browser, and not in the same browser without the key."""
    page = open_page(browser)
    own = {name: browser.cookies[name] if value == "same" else value for name, value in cookies.items()}
    with other_browser(str(browser.base_url), **own) as other:
        assert not Socket(other).handshake(page)
        query = f"&client_id={page}&tab_id=tab&document_id=d&next_message_id=0&implicit_handshake=true"
        assert Socket(other, query).answer.startswith("44")  # refused
    assert Socket(browser).handshake(page)


def test_no_other_client_continues_a_socket(browser: httpx.Client) -> None:
    page = open_page(browser)
    own = Socket(browser)
    for cookies in ({}, {"inlay_key": KEY}, {"inlay_browser": browser.cookies.get("inlay_browser") or ""}):
        with other_browser(str(browser.base_url), **cookies) as other:
            poll = other.get(own.path)
            assert (poll.status_code, poll.json()["code"]) == (403, "forbidden")
            assert other.post(own.path, content="41").status_code == 403
    assert own.handshake(page)


def test_no_other_socket_sends_events_to_a_page(browser: httpx.Client, locked_service: ServiceProcess) -> None:
    page = open_page(browser, "/sql?q=SELECT+1")
    own = Socket(browser)
    assert own.handshake(page)
    message: dict[str, Any] = {"client_id": page, "request_id": "r", "result": "forged", "next_message_id": 10**6}
    with other_browser(str(browser.base_url), **OTHER) as stranger:
        socket = Socket(stranger)
        for event in ("event", "javascript_response", "ack", "log"):
            socket.send(f"42{json.dumps([event, message])}")
            socket.send(f"42{json.dumps([event, 'no object'])}")
        assert socket.handshake("unknown") is False  # the service handled the messages before this one
    assert [line for line in locked_service.log.read_text().splitlines() if '"error"' in line] == []


def test_the_log_contains_no_ids_addresses_or_texts_of_clients(
    browser: httpx.Client, locked_service: ServiceProcess
) -> None:
    page = open_page(browser, "/sql?q=SELECT+'chosen-text'")
    socket = Socket(browser)
    assert socket.handshake(page)
    browser.get("/v1/chosen-text?a=chosen-text", headers={"X-Request-ID": "chosen-text," * 3})
    browser.get("/chosen-text")
    browser.get(f"{SOCKET}&sid=chosen-text")
    browser.post("/v1/query", json={"sql": "SELECT chosen-text"}, headers={"Authorization": f"Bearer {KEY}"})
    # The service logs a request after its response.
    wait_until(lambda: "POST /v1/query" in locked_service.log.read_text(), 30, "the last request to be logged")
    logged = locked_service.log.read_text().replace(locked_service.url, "")
    for secret in (page, socket.path.rpartition("=")[2], "127.0.0.1", "chosen", browser.cookies["inlay_browser"]):
        assert secret not in logged, secret
