"""What every page has: navigation, colours, signing in, and words for what is not there."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.faults.service_process import ServiceProcess, Stand
from tests.web.conftest import Opener, Visit

pytestmark = pytest.mark.spark


ASKED = re.compile(r"/login\?next=")


def locked_service(folder: Path) -> AbstractContextManager[ServiceProcess]:
    return ServiceProcess(Stand(folder, "local[1]", settings={"INLAY_API_KEYS": "the-key"})).serving()


def test_the_navigation_leads_to_every_page(visit: Visit) -> None:
    page = visit.go("/")
    for name, path in (("SQL", "/sql"), ("Jobs", "/jobs"), ("Status", "/status"), ("Datasets", "/")):
        page.get_by_role("navigation").get_by_text(name, exact=True).click()
        page.wait_for_url(visit.url + path)
        expect(page.locator("[aria-current=page]")).to_contain_text(name)
        expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_the_content_is_one_key_away(visit: Visit) -> None:
    page = visit.go("/")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".inlay-content")).to_be_focused()


def test_dark_is_chosen_and_stays(visit: Visit) -> None:
    page = visit.go("/")
    page.get_by_role("button", name="Colours").click()
    page.get_by_text("Dark", exact=True).click()
    expect(page.locator("body.body--dark")).to_be_visible()
    page.reload()
    expect(page.locator("body.body--dark")).to_be_visible()
    visit.shoot("home-dark")


def test_a_system_that_is_dark_gets_a_dark_page(service: ServiceProcess, open_window: Opener) -> None:
    visit = open_window(service.url, color_scheme="dark")
    visit.go("/")
    expect(visit.page.locator("body.body--dark")).to_be_visible()


def test_an_unknown_dataset_is_told_with_a_way_on(visit: Visit) -> None:
    page = visit.go("/datasets/data_there_is_none")
    expect(page.get_by_role("alert")).to_contain_text("data_there_is_none")
    page.get_by_role("link", name="Back to the datasets").click()
    page.wait_for_url(visit.url + "/")


def test_a_key_is_asked_for_where_one_is_needed(tmp_path: Path, open_window: Opener) -> None:
    with locked_service(tmp_path) as locked:
        visit = open_window(locked.url)
        page = visit.go("/sql?q=SELECT+1")
        page.wait_for_url(ASKED)
        visit.shoot("login")
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("That key is not valid.")
        page.get_by_label("API key").fill("the-key")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(visit.url + "/sql?q=SELECT+1")
        cookie = next(c for c in visit.context.cookies() if c["name"] == "inlay_key")
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/login")
        page.goto(visit.url + "/")
        page.wait_for_url(ASKED)


def test_signing_in_leads_nowhere_else(tmp_path: Path, open_window: Opener) -> None:
    with locked_service(tmp_path) as locked:
        for elsewhere in ("//evil.example/", "https://evil.example/", "/\\evil.example"):
            visit = open_window(locked.url)
            page = visit.go(f"/login?next={elsewhere}")
            page.get_by_label("API key").fill("the-key")
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(visit.url + "/")
