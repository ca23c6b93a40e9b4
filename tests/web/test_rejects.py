"""Rows that did not fit, page by page and as a file."""

from __future__ import annotations

import csv

import httpx
import pytest
from playwright.sync_api import expect

from tests.web.conftest import Visit

pytestmark = pytest.mark.spark

EVIL = "<img src=x onerror=alert(1)>"


def body(content: str, **more: object) -> dict[str, object]:
    return {"source": {"inline": {"format": "csv", "content": content}}, "on_error": "quarantine", **more}


def test_rejects_are_shown_in_pages_and_downloaded(visit: Visit, api: httpx.Client) -> None:
    rows = "".join(f"{n},{EVIL if n % 2 else n}\n" for n in range(500))
    typed = {"columns": [{"name": EVIL, "type": "bigint"}]}
    create = body(f"id,{EVIL}\n{rows}7\n", label=f"Rejected {EVIL}", table_name="with_rejects", schema=typed)
    made = api.post("/v1/datasets", json=create).raise_for_status().json()
    load = body(f"id,{EVIL}\n1000,x\n1001,1\n", strategy="append")
    api.post(f"/v1/datasets/{made['id']}/loads", json=load).raise_for_status()
    api.post(f"/v1/datasets/{made['id']}/loads", json=body(f"id,{EVIL}\n1,1\n", strategy="append")).raise_for_status()

    page = visit.go(f"/datasets/{made['id']}/rejects")
    expect(page.get_by_text("Every row of what made version 3 did fit.")).to_be_visible()
    visit.shoot("rejects-none")
    page.get_by_role("link", name="version 2 (1)").click()
    expect(page.get_by_text("1 row of what made version 2 did not fit")).to_be_visible()
    page.get_by_role("link", name="version 1 (251)").click()
    expect(page.get_by_role("link", name=f"Rejected {EVIL}")).to_be_visible()
    expect(page.get_by_text("251 rows of what made version 1 did not fit")).to_be_visible()
    first = page.get_by_role("row").nth(1)
    for text in ("3", EVIL, "not an integer that fits bigint"):
        expect(first).to_contain_text(text)
    first.get_by_text("the row").click()
    expect(first.get_by_text(f"1,{EVIL}")).to_be_visible()
    visit.shoot("rejects")
    for shown in ("101 to 200 of 251", "201 to 251 of 251"):
        page.get_by_role("button", name="Next").click()
        expect(page.get_by_text(shown)).to_be_visible()
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    expect(page.get_by_role("row").last).to_contain_text("1 cells in a row of 2 columns")

    with page.expect_download() as download:
        page.get_by_role("link", name="Download all as CSV").click()
    with download.value.path().open(newline="") as file:
        kept = list(csv.DictReader(file))
    assert len(kept) == 251
    assert kept[0] == {
        "line": "3", "column": EVIL, "value": EVIL, "reason": "not an integer that fits bigint", "raw": f"1,{EVIL}",
    }  # fmt: skip


def test_rejects_of_what_is_not_there(visit: Visit) -> None:
    page = visit.go("/datasets/data_there_is_none/rejects")
    expect(page.get_by_role("alert")).to_contain_text("data_there_is_none")
