"""Tests of the dataset page in a browser: rows, columns, versions, snippets and actions."""

from __future__ import annotations

import csv
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.faults.service_process import ServiceProcess, Stand
from tests.web.conftest import SPARK_TIMEOUT, Opener, Visit

pytestmark = pytest.mark.spark

HOSTILE = "<img src=x onerror=alert(1)>"
MANY = """
    SELECT value AS id,
           CASE WHEN value % 1000 = 0 THEN NULL ELSE 'customer ' || (value % 997) END AS customer,
           CASE value % 4 WHEN 0 THEN 'open' WHEN 1 THEN 'sent' ELSE 'paid' END AS state,
           CAST(value AS DECIMAL(12,2)) / 100 AS amount,
           arrow_cast(arrow_cast(19700 + value % 365, 'Int32'), 'Date32') AS day,
           value % 3 = 0 AS express
    FROM generate_series(1, 100000) ORDER BY value
"""
_NUMBERS = itertools.count(1)


def create(api: httpx.Client, source: dict[str, Any] | str, label: str, **more: Any) -> dict[str, Any]:
    body = {"inline": {"format": "csv", "content": source}} if isinstance(source, str) else source
    answer = api.post("/v1/datasets", json={"label": label, "source": body, **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def load(api: httpx.Client, dataset: dict[str, Any], content: str, strategy: str, **more: Any) -> None:
    body = {"source": {"inline": {"format": "csv", "content": content}}, "strategy": strategy, **more}
    answer = api.post(f"/v1/datasets/{dataset['id']}/loads", json=body)
    assert answer.status_code == 201, answer.text


@pytest.fixture(scope="module")
def many(service: ServiceProcess) -> dict[str, Any]:
    with httpx.Client(base_url=service.url, timeout=SPARK_TIMEOUT) as api:
        return create(api, {"sql": MANY}, "Orders of a year", table_name="many_orders")


@pytest.fixture
def people(api: httpx.Client) -> dict[str, Any]:
    """Create a dataset with three versions: created, one row updated and one inserted, one rejected."""
    name = f"people_{next(_NUMBERS)}"
    made = create(api, "id,name,city\n1,ann,Bonn\n2,bob,Rome\n3,cy,\n", "People", table_name=name)
    load(api, made, "id,name,city\n2,bob,Oslo\n4,di,Kyiv\n", "upsert", key_columns=["id"])
    load(api, made, "id,name,city\nfive,ed,Nice\n1,ann,Graz\n", "update", key_columns=["id"], on_error="quarantine")
    return made


def row(page: Page, number: int) -> Locator:
    """Return a row of the grid by number. The grid keeps row numbers and cells in two elements."""
    return page.locator(f".ag-center-cols-container [row-index='{number - 1}']")


def row_count(page: Page) -> Locator:
    return page.locator(".inlay-rows-bar").get_by_role("status")


# ---------------------------------------------------------------------------------------------------------------- rows
@pytest.mark.long  # needs a large dataset; short runs check the SQL of each page of rows in test_rows_sql.py
def test_large_dataset_can_be_scrolled_sorted_and_filtered(visit: Visit, many: dict[str, Any]) -> None:
    page = visit.go(f"/datasets/{many['id']}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Orders of a year")
    expect(row_count(page)).to_have_text("100,000 rows")
    expect(row(page, 1)).to_contain_text("customer 1")
    visit.shoot("dataset-rows")

    page.locator(".ag-body-viewport").evaluate("element => { element.scrollTop = element.scrollHeight }")
    expect(row(page, 100_000)).to_contain_text("100000")
    expect(row(page, 100_000).locator(".inlay-null")).to_have_text("NULL")

    page.locator(".ag-body-viewport").evaluate("element => { element.scrollTop = 0 }")
    header = page.get_by_role("columnheader", name="id", exact=True)
    header.click()
    header.click()
    expect(row(page, 1)).to_contain_text("100000")
    expect(row(page, 2)).to_contain_text("99999")
    page.locator(".ag-body-viewport").evaluate("element => { element.scrollTop = element.scrollHeight }")
    expect(row(page, 100_000)).to_contain_text("customer 1")
    page.locator(".ag-body-viewport").evaluate("element => { element.scrollTop = 0 }")

    page.get_by_label("customer Filter Input").fill("CUSTOMER 99")
    matching = sum("customer 99" in f"customer {key % 997}" for key in range(1, 100_001) if key % 1000)
    expect(row_count(page)).to_have_text(f"{matching} of 100,000 rows")
    page.get_by_label("id Filter Input").fill("many")
    expect(row_count(page)).to_have_text("'many' is not an integer that fits bigint.")
    page.get_by_label("id Filter Input").fill("991")
    expect(row_count(page)).to_have_text("1 of 100,000 rows")
    expect(row(page, 1)).to_contain_text("customer 991")
    visit.shoot("dataset-filtered")

    page.get_by_role("button", name="Clear filters and order").click()
    expect(row_count(page)).to_have_text("100,000 rows")
    expect(row(page, 1)).to_contain_text("customer 1")


@pytest.mark.long  # short runs check the SQL of filters in test_rows_sql.py
def test_filters_compare_and_find_null(visit: Visit, many: dict[str, Any]) -> None:
    page = visit.go(f"/datasets/{many['id']}")
    expect(row(page, 1)).to_be_visible()
    choose_filter(page, "amount", "Greater than")
    page.get_by_label("Filter Value").fill("999.5")
    expect(row_count(page)).to_have_text("50 of 100,000 rows")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Clear filters and order").click()
    expect(row_count(page)).to_have_text("100,000 rows")
    choose_filter(page, "customer", "Is NULL")
    expect(row_count(page)).to_have_text("100 of 100,000 rows")
    page.keyboard.press("Escape")
    choose_filter(page, "express", "True")
    expect(row_count(page)).to_have_text("33 of 100,000 rows")


def choose_filter(page: Page, column: str, operator: str) -> None:
    at = [name.strip() for name in page.locator(".ag-header-cell-text").all_inner_texts()].index(column)
    page.locator(".ag-floating-filter-button-button").nth(at).click()
    page.get_by_role("combobox", name="Filtering operator").click()
    page.get_by_role("option", name=operator, exact=True).click()


@pytest.mark.long  # looks of the grid; short runs check its rows and values
def test_column_widths_fit_values_and_fill_the_page(visit: Visit, api: httpx.Client) -> None:
    names = "id,customer,city,amount,ordered_at,paid,note"
    rows = f"{names}\n1,ann,Bonn,1.5,2026-01-01 00:00:17,true,a\n2,bob,Rome,2.5,2026-01-02 10:20:30,false,b\n"
    page = visit.go(f"/datasets/{create(api, rows, 'Wide and narrow')['id']}")
    expect(row(page, 1).get_by_text("2026-01-01T00:00:17")).to_be_visible()
    texts = "[...document.querySelectorAll('[role=gridcell], [role=gridcell] *')]"
    page.wait_for_function(f"{texts}.every(text => text.scrollWidth <= text.clientWidth)")
    filled = "head => head.getBoundingClientRect().right / head.closest('[role=grid]').getBoundingClientRect().right"
    assert page.get_by_role("columnheader").last.evaluate(filled) > 0.98


@pytest.mark.long  # short runs show values in test_names_and_values_are_shown_as_text
def test_row_dialog_shows_full_values(visit: Visit, api: httpx.Client) -> None:
    long = "word " * 500
    made = create(api, f'id,text\n9007199254740993,"{long}"\n', "Long")
    page = visit.go(f"/datasets/{made['id']}")
    row(page, 1).get_by_text("9007199254740993").click()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Row 1")
    expect(dialog).to_contain_text(long.strip())
    visit.shoot("dataset-row")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)


# ------------------------------------------------------------------------------------------------------------- columns
def test_columns_schema_and_snippets(visit: Visit, many: dict[str, Any], service: ServiceProcess) -> None:
    page = visit.go(f"/datasets/{many['id']}?tab=columns")
    state = page.get_by_role("region", name="Column state")
    expect(state.get_by_role("listitem")).to_have_text(
        [re.compile("paid.*50%"), re.compile("open"), re.compile("sent")]
    )
    customer = page.get_by_role("region", name="Column customer")
    expect(customer).to_contain_text("under 1% NULL (100)")
    expect(customer).to_contain_text("997")
    expect(page.get_by_role("region", name="Column day").get_by_role("img")).to_be_visible()
    expect(page.get_by_role("region", name="Column express")).to_contain_text("67%")
    visit.shoot("dataset-columns")

    page.get_by_role("tab", name="Rows").focus()
    page.keyboard.press("Tab")  # tabs can be chosen without a mouse
    page.get_by_role("tab", name="Schema").press("Enter")
    page.wait_for_url(re.compile("tab=schema"))
    table = page.get_by_role("region", name="Schema").get_by_role("table")
    expect(table.get_by_role("row").nth(4)).to_have_text(re.compile(r"amount\s*decimal"))
    visit.shoot("dataset-schema")

    page.get_by_role("tab", name="Use in code").click()
    curl = page.get_by_role("region", name="curl")
    expect(curl).to_contain_text(f"{service.url}/v1/query")
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    curl.get_by_role("button", name="Copy curl").click()
    expect(curl.get_by_role("status")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == curl.locator("pre").inner_text()
    visit.shoot("dataset-use")

    page.get_by_role("link", name="Query with SQL").click()
    page.wait_for_url(re.compile(r"/sql\?q=SELECT%20\*%20FROM%20datasets\.many_orders%20LIMIT%20100$"))


# ------------------------------------------------------------------------------------------------------------ versions
def test_versions_can_be_compared_viewed_and_restored(
    visit: Visit, open_window: Opener, people: dict[str, Any], service: ServiceProcess
) -> None:
    page = visit.go(f"/datasets/{people['id']}?tab=versions")
    second = page.get_by_role("listitem", name="Version 2")
    expect(second).to_contain_text("Loaded with upsert")
    expect(second).to_contain_text("1 inserted")
    expect(second).to_contain_text("1 updated")
    third = page.get_by_role("listitem", name="Version 3")
    expect(third).to_contain_text("Current")
    link = third.get_by_role("link", name="1 row rejected")
    assert link.get_attribute("href") == f"/datasets/{people['id']}/rejects?version=3"
    visit.shoot("dataset-versions")
    second.get_by_role("link", name="Changes of version 2").click()
    page.wait_for_url(re.compile(r"/diff\?old=1&new=2$"))
    changes = page.get_by_role("region", name="Changes", exact=True)
    expect(changes.get_by_role("heading", level=2)).to_have_text("2 rows changed from version 1 to version 2")
    expect(changes.locator("del")).to_have_text("Rome")
    expect(changes.locator("ins")).to_have_text("Oslo")
    expect(changes.get_by_role("region", name="New rows")).to_contain_text("Kyiv")
    visit.shoot("dataset-diff")
    page.get_by_label("New version").click()
    page.get_by_role("option", name="Version 3").click()
    page.wait_for_url(re.compile(r"/diff\?old=1&new=3$"))
    expect(changes.get_by_role("heading", level=2)).to_have_text("3 rows changed from version 1 to version 3")
    changes.get_by_role("button", name="Download").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="CSV").click()
    assert download.value.suggested_filename == f"{people['table_name']}-v1-v3.csv"
    assert Path(download.value.path()).read_text().splitlines()[-1] == "insert,4,di,Kyiv"
    [view] = httpx.get(f"{service.url}/v1/datasets/{people['id']}").json()["views"]
    assert (view["format"], view["version"], view["problem"]) == ("delta", 3, None)
    visit.go(f"/datasets/{people['id']}?tab=use")
    shown = page.get_by_role("region", name="Delta Lake view")
    expect(shown).to_contain_text("The newest version in the table is 3.")
    expect(shown.locator("pre").first).to_have_text(view["url"])
    expect(shown.get_by_role("button", name="Copy Delta Lake view")).to_be_visible()
    assert pl.scan_delta(view["url"]).collect().height == 4
    visit.go(f"/datasets/{people['id']}/diff?old=2&new=2")
    expect(changes).to_have_text("Choose two different versions.")
    visit.go(f"/datasets/{people['id']}/diff?old=2&new=9")
    expect(page.get_by_role("alert")).to_contain_text("has no version 9")
    page.get_by_role("link", name="Back to versions").click()
    other = open_window(service.url)  # another visitor opens the same dataset
    other.go(f"/datasets/{people['id']}")
    expect(row(other.page, 4)).to_contain_text("Kyiv")

    page.get_by_role("listitem", name="Version 1").get_by_role("link", name="View version 1").click()
    page.wait_for_url(re.compile(r"version=1$"))
    expect(page.get_by_role("note")).to_contain_text("Viewing version 1 of 3")
    expect(row_count(page)).to_have_text("3 rows")
    expect(row(page, 2)).to_contain_text("Rome")
    page.get_by_label("city Filter Input").fill("rome")
    expect(row_count(page)).to_have_text("1 of 3 rows")
    visit.shoot("dataset-older")

    page.get_by_role("button", name="Restore this version").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This creates version 4 with the rows of version 1")
    expect(dialog).to_contain_text("4")
    visit.shoot("dataset-restore")
    dialog.get_by_role("button", name="Restore").click()
    page.wait_for_url(re.compile(r"tab=versions$"))
    expect(page.get_by_role("listitem", name="Version 4")).to_contain_text("Restored version 1")

    notice = other.page.get_by_text("Version 4 is available.")
    expect(notice).to_be_visible()
    other.shoot("dataset-live")
    other.page.get_by_role("link", name="View version 4").click()
    expect(row_count(other.page)).to_have_text("3 rows")


# ------------------------------------------------------------------------------------------------------------- actions
@pytest.mark.long  # short runs rename over HTTP
def test_rename_dialog_shows_errors(visit: Visit, people: dict[str, Any], many: dict[str, Any]) -> None:
    page = visit.go(f"/datasets/{people['id']}")
    page.get_by_role("button", name="Show more actions").click()
    page.get_by_role("menuitem", name="Rename").click()
    dialog = page.get_by_role("dialog", name="Rename")
    dialog.get_by_label("Table name").fill(many["table_name"])
    dialog.get_by_role("button", name="Rename").click()
    expect(dialog.get_by_role("alert")).to_contain_text("many_orders")
    visit.shoot("dataset-rename")
    dialog.get_by_label("Table name").fill("all_people")
    dialog.get_by_label("Label").fill("Everybody")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Everybody")
    expect(page.get_by_text("datasets.all_people")).to_be_visible()


@pytest.mark.long  # short runs delete over HTTP
def test_deleting_requires_typing_the_table_name(
    visit: Visit, open_window: Opener, people: dict[str, Any], service: ServiceProcess
) -> None:
    other = open_window(service.url)
    other.go(f"/datasets/{people['id']}")
    page = visit.go(f"/datasets/{people['id']}")
    page.get_by_role("button", name="Show more actions").click()
    page.get_by_role("menuitem", name="Delete dataset").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This deletes 4 rows and all older versions")
    expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    visit.shoot("dataset-delete")
    dialog.get_by_label(f"Type {people['table_name']} to confirm").fill(people["table_name"])
    dialog.get_by_role("button", name="Delete").click()
    page.wait_for_url(visit.url + "/")
    expect(other.page.get_by_text("This dataset was deleted.")).to_be_visible()
    visit.go(f"/datasets/{people['id']}")
    expect(page.get_by_role("alert")).to_contain_text(people["id"])


@pytest.mark.long  # short runs download over HTTP
def test_downloads_have_the_rows_of_the_version(visit: Visit, people: dict[str, Any], tmp_path: Path) -> None:
    page = visit.go(f"/datasets/{people['id']}?version=2")
    expected = [(1, "ann", "Bonn"), (2, "bob", "Oslo"), (3, "cy", None), (4, "di", "Kyiv")]
    for name, read in (("CSV", read_csv), ("Parquet", read_parquet), ("Arrow", read_arrow)):
        page.get_by_role("button", name="Download").click()
        with page.expect_download() as started:
            page.get_by_role("menu").get_by_text(name, exact=True).click()
        assert started.value.suggested_filename == f"{people['table_name']}-v2.{name.lower()}"
        path = tmp_path / started.value.suggested_filename
        started.value.save_as(path)
        assert read(path) == expected


Rows = list[tuple[int, str, str | None]]


def read_csv(path: Path) -> Rows:
    with path.open(newline="") as file:
        return [(int(key), name, city or None) for key, name, city in list(csv.reader(file))[1:]]


def read_parquet(path: Path) -> Rows:
    return [tuple(each.values()) for each in pq.read_table(path).to_pylist()]


def read_arrow(path: Path) -> Rows:
    return [tuple(each.values()) for each in pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()]


def select_tab(page: Page, name: str) -> None:
    """Click a tab. Click again if a late answer about the rows selects the earlier tab meanwhile."""
    tab = page.get_by_role("tab", name=name)
    for timeout in (5_000, SPARK_TIMEOUT * 1000):
        tab.click()
        try:
            expect(tab).to_have_attribute("aria-selected", "true", timeout=timeout)
            return
        except AssertionError:
            if timeout != 5_000:
                raise


# -------------------------------------------------------------------------------------------------------------- safety
def test_names_and_values_are_shown_as_text(visit: Visit, api: httpx.Client) -> None:
    content = json.dumps([{HOSTILE: HOSTILE, 'quo"te.d': 1, "nested": {HOSTILE: [HOSTILE]}}, {HOSTILE: None}])
    made = create(api, {"inline": {"format": "json", "content": content}}, HOSTILE)
    alerts: list[str] = []
    page = visit.page
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    visit.go(f"/datasets/{made['id']}")
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    assert page.title() == f"{HOSTILE} · inlay"
    expect(row(page, 1).get_by_text(HOSTILE, exact=True)).to_be_visible()
    page.get_by_role("columnheader", name=HOSTILE, exact=True).click()
    expect(row(page, 1).get_by_text(HOSTILE, exact=True)).to_be_visible()
    page.get_by_label(f"{HOSTILE} Filter Input").fill(HOSTILE)
    expect(row_count(page)).to_have_text("1 of 2 rows")
    row(page, 1).get_by_text(HOSTILE, exact=True).dblclick()
    expect(page.get_by_role("dialog").get_by_role("definition").first).to_have_text(HOSTILE)
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    visit.shoot("dataset-hostile")
    for tab, words in (("Columns", HOSTILE), ("Schema", HOSTILE), ("Versions", "Created"), ("Use in code", "SELECT")):
        select_tab(page, tab)
        expect(page.get_by_role("tabpanel", name=tab).get_by_text(words).first).to_be_visible()
    page.get_by_role("button", name="Show more actions").click()
    page.get_by_role("menuitem", name="Delete dataset").click()
    expect(page.get_by_role("dialog")).to_contain_text(HOSTILE)
    assert page.locator("img[src=x]").count() == 0
    assert alerts == []


# Long: short runs check in test_home.py what a read-only key offers, and in tests/server what it allows.
@pytest.mark.long
def test_a_read_only_key_offers_no_changes(locked_service: ServiceProcess, open_window: Opener) -> None:
    key = {"Authorization": "Bearer key-of-the-service"}
    with httpx.Client(base_url=locked_service.url, headers=key, timeout=SPARK_TIMEOUT) as api:
        made = create(api, "id\n1\n", "Locked")
        load(api, made, "id\n2\n", "append")
    visit = open_window(locked_service.url)
    page = visit.go(f"/datasets/{made['id']}?version=1&tab=use")
    page.get_by_label("API key").fill(create_key(locked_service.stand))
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("tab=use"))
    expect(page.get_by_text("This service requires an API key.")).to_be_visible()
    expect(page.get_by_role("region", name="curl")).to_contain_text("Bearer $INLAY_API_KEY")
    expect(page.get_by_role("link", name="Query with SQL")).to_be_visible()
    for name in ("Load rows", "Show more actions", "Restore this version"):
        for role in ("button", "link"):
            expect(page.get_by_role(role, name=name, exact=True)).to_have_count(0)  # type: ignore[arg-type]
    visit.shoot("dataset-read-only")


def create_key(stand: Stand) -> str:
    command = [sys.executable, "-m", "inlay", "keys", "create", "reader", "--scope", "read", "--json"]
    options = ["--data-dir", str(stand.folder / "data")]
    done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    return str(json.loads(done.stdout)["secret"])


@pytest.mark.spark
def test_rows_are_deleted_by_a_condition_and_restored(visit: Visit, api: httpx.Client) -> None:
    source = {"inline": {"format": "csv", "content": "id,state\n1,open\n2,void\n3,<b>void</b>\n"}}
    made = api.post("/v1/datasets", json={"label": "Deletions", "source": source}).json()
    page = visit.go(f"/datasets/{made['id']}")
    page.get_by_role("button", name="Show more actions").click()
    page.get_by_role("menuitem", name="Delete rows").click()
    page.get_by_label("Condition").fill("stat = 'void'")
    page.get_by_role("button", name="Preview deletion").click()
    expect(page.get_by_role("alert")).to_contain_text("Did you mean 'state'?")
    page.get_by_label("Condition").fill("state LIKE '%void%'")
    page.get_by_role("button", name="Preview deletion").click()
    expect(page.get_by_text("2 of 3 rows to be deleted")).to_be_visible()
    expect(page.get_by_role("region", name="Deleted rows").locator("tbody")).to_have_text("2void3<b>void</b>")
    visit.shoot("delete-rows")
    page.get_by_role("button", name="Delete 2 rows").click()
    expect(page.get_by_role("status").filter(has_text="Deleted 2 rows in version 2")).to_be_visible()
    assert api.get(f"/v1/datasets/{made['id']}").json()["row_count"] == 1
    page.get_by_role("button", name="Undo and restore version 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    page.wait_for_url(f"{visit.url}/datasets/{made['id']}")
    assert api.get(f"/v1/datasets/{made['id']}").json()["row_count"] == 3
