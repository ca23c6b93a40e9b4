"""Tests of the page of rejected rows."""

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


def test_rejected_rows_are_paged_and_can_be_downloaded(visit: Visit, api: httpx.Client) -> None:
    rows = "".join(f"{n},{EVIL if n % 2 else n}\n" for n in range(500))
    typed = {"columns": [{"name": EVIL, "type": "bigint"}]}
    create = body(f"id,{EVIL}\n{rows}7\n", label=f"Rejected {EVIL}", table_name="with_rejects", schema=typed)
    made = api.post("/v1/datasets", json=create).raise_for_status().json()
    load = body(f"id,{EVIL}\n1000,x\n1001,1\n", strategy="append")
    api.post(f"/v1/datasets/{made['id']}/loads", json=load).raise_for_status()
    api.post(f"/v1/datasets/{made['id']}/loads", json=body(f"id,{EVIL}\n1,1\n", strategy="append")).raise_for_status()

    page = visit.go(f"/datasets/{made['id']}/rejects")
    expect(page.get_by_text("The load of version 3 rejected no rows.")).to_be_visible()
    visit.shoot("rejects-none")
    page.get_by_role("link", name="Version 2 (1)").click()
    expect(page.get_by_text("The load of version 2 rejected 1 row")).to_be_visible()
    page.get_by_role("link", name="Version 1 (251)").click()
    expect(page.get_by_role("link", name=f"Rejected {EVIL}")).to_be_visible()
    expect(page.get_by_text("The load of version 1 rejected 251 rows")).to_be_visible()
    first = page.get_by_role("row").nth(1)
    for text in ("3", EVIL, "not an integer that fits bigint"):
        expect(first).to_contain_text(text)
    first.get_by_text("Show row").click()
    expect(first.get_by_text(f"1,{EVIL}")).to_be_visible()
    visit.shoot("rejects")
    for shown in ("101 to 200 of 251", "201 to 251 of 251"):
        page.get_by_role("button", name="Next").click()
        expect(page.get_by_text(shown)).to_be_visible()
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    expect(page.get_by_role("row").last).to_contain_text("the row has 1 cells instead of 2")

    with page.expect_download() as download:
        page.get_by_role("link", name="Download all as CSV").click()
    with download.value.path().open(newline="") as file:
        kept = list(csv.DictReader(file))
    assert len(kept) == 251
    assert kept[0] == {
        "line": "3", "column": EVIL, "value": EVIL, "reason": "not an integer that fits bigint", "raw": f"1,{EVIL}",
    }  # fmt: skip


def test_rejected_rows_of_an_unknown_dataset(visit: Visit) -> None:
    page = visit.go("/datasets/data_there_is_none/rejects")
    expect(page.get_by_role("alert")).to_contain_text("data_there_is_none")
