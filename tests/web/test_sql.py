"""Tests of the SQL page in a browser."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.faults.service_process import ServiceProcess, Stand
from tests.spark import cluster
from tests.web.conftest import PHONE, SPARK_TIMEOUT, Opener, Visit

pytestmark = pytest.mark.spark

XSS = "<img src=x onerror=alert(1)>"
SALES = "day,region,amount\n" + "".join(
    f"2025-{month:02d}-01,{region},{month * 10 + number}.5\n"
    for month in range(1, 13)
    for number, region in enumerate(["North", "South", "East"])
)
ENDLESS = "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b WHERE a.value < b.value"


@pytest.fixture(scope="module")
def sales(service: ServiceProcess) -> Iterator[str]:
    """Create a dataset to query."""
    with httpx.Client(base_url=service.url, timeout=SPARK_TIMEOUT) as client:
        body = {"label": "Shop sales", "source": {"inline": {"format": "csv", "content": SALES}}}
        made = client.post("/v1/datasets", json=body).raise_for_status().json()
        yield made["table_name"]
        client.delete(f"/v1/datasets/{made['id']}").raise_for_status()


def editor(page: Page) -> Locator:
    return page.get_by_role("textbox", name="SQL")


def write(page: Page, text: str) -> None:
    """Replace the text of the editor without completion."""
    editor(page).fill(text)


def accept(page: Page, completion: str) -> None:
    expect(page.get_by_role("option").first).to_contain_text(completion)
    page.wait_for_timeout(200)  # a list that has just opened takes no keys, lest it surprise who types
    page.keyboard.press("Enter")


def answer(page: Page) -> Locator:
    return page.get_by_role("region", name="Result")


def ask(page: Page, text: str) -> None:
    write(page, text)
    page.keyboard.press("Control+Enter")


def test_query_is_completed_run_and_charted(visit: Visit, sales: str) -> None:
    page = visit.go("/sql")
    expect(answer(page)).to_contain_text("First rows of")
    expect(page.get_by_role("button", name=sales, exact=True)).to_be_visible()
    visit.shoot("sql-empty")
    editor(page).click()
    page.keyboard.type("SELECT sum() AS total FROM datasets.shop_s")
    accept(page, sales)
    page.keyboard.type(" s GROUP BY 1")
    expect(editor(page)).to_contain_text(f"FROM datasets.{sales} s GROUP BY 1")
    page.keyboard.press("Escape")
    page.keyboard.press("Home")
    for _ in range(len("SELECT sum(")):
        page.keyboard.press("ArrowRight")
    page.keyboard.type("s.")
    expect(page.get_by_role("option", name=re.compile("amount.*double"))).to_be_visible()
    page.keyboard.type("am")
    accept(page, "amount")
    expect(editor(page)).to_contain_text("SELECT sum(s.amount) AS total")
    by_month = "date_trunc('month', \"day\") AS month, sum(amount) AS total, count(*) AS sold"
    ask(page, f"SELECT {by_month}\nFROM datasets.{sales}\nGROUP BY 1 ORDER BY 1")
    expect(answer(page)).to_contain_text("12 rows")
    expect(page.get_by_role("gridcell", name="2025-01-01")).to_be_visible()
    visit.shoot("sql-table")
    page.get_by_role("button", name="Chart").click()
    expect(page.locator(".inlay-chart svg")).to_be_visible()
    expect(page.get_by_label("X axis")).to_have_value("month")
    expect(page.locator(".inlay-chart")).to_contain_text("sold")
    page.get_by_role("button", name="Bars").click()
    expect(page.locator(".inlay-chart svg")).to_be_visible()
    visit.shoot("sql-chart")


def test_error_is_marked_and_explained(visit: Visit, sales: str) -> None:
    page = visit.go("/sql")
    ask(page, f"SELECT region,\n  amuont\nFROM datasets.{sales}")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("There is no column amuont.")
    expect(alert).to_contain_text("Did you mean amount?")
    expect(page.locator(".inlay-sql-error")).to_have_text("amuont")
    visit.shoot("sql-mistake")
    alert.get_by_role("button", name="Line 2, column 3").click()
    expect(editor(page)).to_be_focused()
    page.keyboard.press("Shift+End")
    page.keyboard.type("amount")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+Enter")
    expect(answer(page)).to_contain_text("36 rows")
    expect(page.locator(".inlay-sql-error")).to_have_count(0)
    ask(page, "SELEC 1")
    expect(page.locator(".inlay-sql-error")).to_have_text("SELEC")


@pytest.mark.long  # short runs cancel queries over HTTP
def test_long_query_can_be_cancelled(visit: Visit) -> None:
    page = visit.go("/sql")
    ask(page, ENDLESS)
    expect(answer(page)).to_contain_text("Running")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("canceled")
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    ask(page, "SELECT 41 + 1 AS result")
    expect(page.get_by_role("gridcell", name="42")).to_be_visible()


@pytest.mark.long  # short runs export results over HTTP
def test_truncated_result_can_be_exported_in_full(visit: Visit, api: httpx.Client, tmp_path: Path) -> None:
    page = visit.go("/sql")
    sql = "SELECT value AS n, 'a\"b,c' AS text, CAST(NULL AS double) AS nothing FROM generate_series(1, 25000)"
    ask(page, sql)
    expect(answer(page)).to_contain_text("First 1,000 rows, more available")
    page.get_by_label("Row limit").click()
    page.get_by_role("option", name="10,000 rows").click()
    page.get_by_role("button", name="Run", exact=True).click()
    expect(answer(page)).to_contain_text("First 10,000 rows, more available")
    expect(page.get_by_role("gridcell", name="NULL").first).to_be_visible()
    assert page.get_by_role("row").count() < 200, "the grid draws only the rows that can be seen"
    for form, ending in (("CSV", "csv"), ("Parquet", "parquet"), ("Arrow", "arrow")):
        page.get_by_role("button", name="Export").click()
        with page.expect_download() as download:
            page.get_by_text(form, exact=True).click()
        download.value.save_as(tmp_path / f"query.{ending}")
        assert download.value.suggested_filename == f"query.{ending}"
        expect(page.get_by_text("Exported 25,000 rows.").last).to_be_visible()
    lines = list(csv.reader(io.StringIO((tmp_path / "query.csv").read_text())))
    assert (len(lines), lines[0], lines[-1]) == (25_001, ["n", "text", "nothing"], ["25000", 'a"b,c', ""])
    with pa.ipc.open_stream((tmp_path / "query.arrow").read_bytes()) as stream:
        assert stream.read_all().equals(pq.read_table(tmp_path / "query.parquet"))


@pytest.mark.long  # short runs run queries on this page in the test above
def test_link_runs_its_query_and_history_restores_queries(
    visit: Visit, open_window: Opener, service: ServiceProcess
) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visit.go("/sql")
    first, second = "SELECT 'ä&b=c#d' AS first", "SELECT 2 AS second -- <b>"
    for sql, cell in ((first, "ä&b=c#d"), (second, "2")):
        ask(page, sql)
        expect(page.get_by_role("gridcell", name=cell)).to_be_visible()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_text("Copied the link.")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == f"{visit.url}/sql?q={quote(second, safe='*()')}"
    other = open_window(service.url)
    other.page.goto(link)
    expect(editor(other.page)).to_have_text(second)
    expect(other.page.get_by_role("gridcell", name="2")).to_be_visible()
    page.get_by_role("button", name="Show history").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("listitem")).to_have_text([re.compile(re.escape(second)), re.compile(re.escape(first))])
    page.wait_for_timeout(400)  # it slides in
    visit.shoot("sql-history")
    dialog.get_by_text(first).click()
    expect(editor(page)).to_have_text(first)
    page.reload()
    expect(editor(page)).to_have_text(first)  # typed, but not run: a draft
    expect(answer(page)).not_to_contain_text("row ·")
    page.get_by_role("button", name="Show history").click()
    page.get_by_role("button", name="Clear history").click()
    page.get_by_role("button", name="Show history").click()
    expect(page.get_by_role("dialog")).to_contain_text("Run a query to see it here.")


def test_names_and_values_are_shown_as_text(visit: Visit, api: httpx.Client) -> None:
    content = f'"{XSS}",n\n"{XSS}",1\n"<b>bold</b>",2\n'
    body = {"label": XSS, "table_name": "hostile", "source": {"inline": {"format": "csv", "content": content}}}
    made = api.post("/v1/datasets", json=body).raise_for_status().json()
    try:
        page = visit.go("/sql")
        page.get_by_role("button", name="Columns of hostile").click()
        page.get_by_role("button", name=XSS).click()
        expect(editor(page)).to_contain_text(XSS)
        ask(page, f"SELECT *, named_struct(':evil', 'alert(1)') AS \":nested\" FROM datasets.hostile -- {XSS}")
        expect(page.get_by_role("gridcell", name=XSS)).to_be_visible()
        expect(page.get_by_role("columnheader", name=XSS)).to_be_visible()
        expect(page.get_by_role("gridcell", name='{":evil":"alert(1)"}').first).to_be_visible()
        page.get_by_role("columnheader", name=XSS).hover()
        page.get_by_role("button", name="Chart").click()
        expect(page.locator(".inlay-chart")).to_contain_text(XSS)
        page.locator(".inlay-chart").hover()
        page.get_by_label("X axis").click()
        expect(page.get_by_role("option", name=XSS)).to_be_visible()
        page.keyboard.press("Escape")
        ask(page, f'SELECT "{XSS}x" FROM datasets.hostile')
        expect(page.get_by_role("alert")).to_contain_text(XSS)
        page.get_by_role("button", name="Show history").click()
        expect(page.get_by_role("dialog")).to_contain_text(XSS)
    finally:
        api.delete(f"/v1/datasets/{made['id']}")


@pytest.mark.long  # short runs use the keyboard in test_preview.py
def test_sql_page_works_without_a_mouse(visit: Visit) -> None:
    page = visit.go("/sql")
    ask(page, "SELECT 1 AS one UNION ALL SELECT 2")
    expect(answer(page)).to_contain_text("2 rows")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_focused()
    for name in ("Row limit", "Show history", "Copy link", "Table", "Chart"):
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_accessible_name(re.compile(name))
    page.keyboard.press("Enter")
    expect(page.locator(".inlay-chart svg")).to_be_visible()


@pytest.mark.long  # short runs check the width of the page on a phone
def test_table_list_collapses_on_a_phone(service: ServiceProcess, open_window: Opener, sales: str) -> None:
    visit = open_window(service.url, color_scheme="dark", has_touch=True)
    page = visit.go("/sql")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    expect(page.get_by_role("button", name=sales, exact=True)).to_be_hidden()
    page.get_by_role("button", name="Tables").tap()
    page.get_by_role("button", name=sales, exact=True).tap()
    expect(editor(page)).to_have_text(f"datasets.{sales}")
    visit.shoot("sql-dark")


@pytest.mark.long  # restarts a service; short runs restart services in tests/faults
def test_page_survives_a_restart_of_the_service(tmp_path: Path, open_window: Opener) -> None:
    with ServiceProcess(Stand(tmp_path, cluster.local_connect_url(), settings={})).opened() as own:
        visit = open_window(own.url)
        page = visit.go("/sql?q=SELECT+1+AS+one")
        expect(page.get_by_role("gridcell", name="1")).to_be_visible()
        write(page, "SELECT 7 * 6 AS typed_before")
        own.kill()
        expect(page.get_by_text("Connection lost")).to_be_visible()
        write(page, "SELECT 7 * 6 AS typed_meanwhile")
        own.start()
        expect(page.get_by_text("Connection lost")).to_be_hidden()
        expect(editor(page)).to_have_text("SELECT 7 * 6 AS typed_meanwhile")
        expect(answer(page)).to_contain_text("No datasets yet")
        editor(page).click()
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("gridcell", name="42")).to_be_visible()
