"""A test of a visitor's first five minutes: upload, query, load a correction, and undo it."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from tests.faults.service_process import ServiceProcess, Stand
from tests.spark import cluster
from tests.web.conftest import SPARK_TIMEOUT, Opener, Visit

pytestmark = pytest.mark.spark

SHOPS = "shop_id;zip;opened;revenue\n" + "".join(
    f"{n};{n * 137 % 9999:05};2024-{n % 12 + 1:02}-15;{'?' if n in (77, 78) else f'{n}.5'}\n" for n in range(1, 301)
)
CORRECTION = "shop_id;zip;opened;revenue\n77;00550;2024-06-15;77.5\n301;01111;2025-01-02;1.0\n"


def test_first_five_minutes(visit: Visit, api: httpx.Client) -> None:
    tell_story(visit, api)


@pytest.mark.long  # short runs send requests to several processes in tests/server/test_processes.py
def test_first_five_minutes_with_several_processes(open_window: Opener, tmp_path: Path) -> None:
    """The connections of the browser reach each of the processes."""
    stand = Stand(tmp_path, cluster.local_connect_url(), settings={"INLAY_HTTP_PROCESSES": "3"})
    with ServiceProcess(stand).serving() as service, httpx.Client(base_url=service.url, timeout=SPARK_TIMEOUT) as api:
        cluster.wait_until(lambda: api.get("/readyz").status_code == 200, SPARK_TIMEOUT, "all processes")
        for _ in range(8):
            window = open_window(service.url)
            window.go("/status")
            expect(window.page.get_by_role("heading", name="Versions")).to_be_visible()
            window.context.close()
        tell_story(open_window(service.url), api)


def tell_story(visit: Visit, api: httpx.Client) -> None:
    timeout = SPARK_TIMEOUT * 1000
    page = visit.go("/")

    # a messy file, one type put right, one invalid cell
    shops = {"name": "shops_2024.csv", "mimeType": "text/csv", "buffer": SHOPS.encode()}
    page.get_by_label("click to choose").set_input_files(shops)  # type: ignore[arg-type]
    page.wait_for_url("**/uploads/**")
    expect(page.get_by_text("its numbers have leading zeros")).to_be_visible(timeout=timeout)
    box = page.get_by_label("Type of revenue", exact=True)
    expect(box).to_have_value("text")
    box.focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("decimal(12,2)")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Read ? as NULL").click()
    expect(page.get_by_text("Invalid rows:")).to_be_hidden()
    page.get_by_role("button", name="Create dataset").click()
    page.wait_for_url(re.compile("/datasets/data_"), timeout=timeout)
    dataset = api.get(f"/v1/datasets/{page.url.rpartition('/')[2]}").raise_for_status().json()
    assert (dataset["row_count"], dataset["schema"]["columns"][3]["type"]) == (300, "decimal(12,2)")

    # a question
    page.get_by_role("link", name="Query with SQL").click()
    page.wait_for_url("**/sql?q=*")
    answer = page.get_by_role("region", name="Result")
    expect(answer.get_by_role("grid")).to_be_visible(timeout=timeout)
    editor = page.get_by_role("textbox", name="SQL")
    question = f"SELECT count(*) AS shops, sum(revenue) AS total FROM datasets.{dataset['table_name']}"
    editor.fill(question)
    editor.press("Control+Enter")
    total = sum(n + 0.5 for n in range(1, 301) if n not in (77, 78))
    expect(answer).to_contain_text(f"{total:.2f}", timeout=timeout)

    # a correction by key: what it would change, the change, and what it did
    page.goto(f"{visit.url}/datasets/{dataset['id']}")
    page.get_by_role("link", name="Load rows").click()
    fix = {"name": "fix.csv", "mimeType": "text/csv", "buffer": CORRECTION.encode()}
    page.locator("input[type=file]").set_input_files(fix)  # type: ignore[arg-type]
    expect(page.get_by_label("Upsert", exact=True)).to_be_checked(timeout=timeout)
    page.get_by_role("button", name="Preview changes").click()
    changed = page.get_by_role("region", name="Changed cells")
    expect(changed.locator("tbody")).to_have_text(["77revenueNULL77.50"], timeout=timeout)
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Loaded as version 2")).to_be_visible(timeout=timeout)

    # and back
    page.get_by_role("button", name="Undo and restore version 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.get_by_role("status").filter(has_text="Restored version 1")).to_be_visible(timeout=timeout)
    rows = api.post("/v1/query", json={"sql": question}).json()["rows"]
    assert rows == [[300, f"{total:.2f}"]]
    page.goto(f"{visit.url}/datasets/{dataset['id']}?tab=versions")
    expect(page.get_by_role("listitem", name="Version 2")).to_contain_text("1 inserted")
    expect(page.get_by_role("listitem", name="Version 3")).to_contain_text("Restored version 1")
