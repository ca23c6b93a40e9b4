"""Tests of the preview of an upload in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.faults.service_process import ServiceProcess
from tests.pipeline_data import parquet_bytes
from tests.web.conftest import SPARK_TIMEOUT, TIMEOUT_MS, Opener, Visit

pytestmark = pytest.mark.spark

EVIL = "<img src=x onerror=alert(1)>"
MESSY = "id;zip;amount;day;" + EVIL + "\n" + "".join(
    f"{n};{n * 37 % 99_999:05};{'n/a' if n % 5 == 2 else n * 1.5};2024-01-{n % 28 + 1:02};{EVIL if n % 2 else 'café'}\n"
    for n in range(1, 201)
)  # fmt: skip


@pytest.fixture
def visit(visit: Visit) -> Iterator[Visit]:
    """Fail if data opens an alert or sends a request."""
    messages: list[str] = []
    visit.page.on("dialog", lambda dialog: (messages.append(dialog.message), dialog.dismiss()))
    visit.page.on("request", lambda request: messages.append(request.url) if request.url.endswith("/x") else None)
    yield visit
    assert messages == []


def upload(api: httpx.Client, content: bytes | str, name: str = "some.csv", type_: str = "text/csv") -> str:
    """Upload content and return the address of its page."""
    headers = {"Content-Type": f'{type_}; name="{name}"'}
    data = content.encode() if isinstance(content, str) else content
    return f"/uploads/{api.post('/v1/files', content=data, headers=headers).raise_for_status().json()['id']}"


def look(visit: Visit, path: str) -> Page:
    page = visit.go(path)
    heading = page.get_by_role("heading", name="First rows")
    expect(heading.or_(page.get_by_role("alert"))).to_be_visible(timeout=SPARK_TIMEOUT * 1000)
    return page


def shoot(visit: Visit, name: str) -> None:
    visit.page.evaluate("scrollTo(0, 0)")
    visit.shoot(name)


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_label(label, exact=True).click()
    page.get_by_role("option", name=option, exact=True).click()


def type_in(page: Page, label: str, text: str) -> None:
    """Replace the value of a field by keyboard. Type again if the page draws the field anew meanwhile."""
    box = page.get_by_label(label, exact=True)
    for timeout in (5_000, 5_000, TIMEOUT_MS):
        box.focus()
        page.keyboard.press("Control+A")
        page.keyboard.type(text)
        try:
            expect(box).to_have_value(text, timeout=timeout)
            page.keyboard.press("Enter")
            expect(box).to_have_value(text, timeout=timeout)
            return
        except AssertionError:
            if timeout == TIMEOUT_MS:
                raise


def give_type(page: Page, column: str, type_: str) -> None:
    type_in(page, f"Type of {column}", type_)


def cell(page: Page, row: int, column: int) -> Locator:
    return page.locator(f'.ag-row[row-index="{row}"] .ag-cell[aria-colindex="{column + 1}"]')


def dataset(api: httpx.Client, page: Page) -> dict[str, Any]:
    """Wait until the page shows the new dataset, and return it."""
    page.wait_for_url(re.compile("/datasets/data_"), timeout=SPARK_TIMEOUT * 1000)
    found: dict[str, Any] = api.get(f"/v1/datasets/{page.url.rpartition('/')[2]}").raise_for_status().json()
    return found


# --------------------------------------------------------------------------------------------------------- one good way
def test_dataset_from_a_messy_file(visit: Visit, api: httpx.Client) -> None:
    page = visit.go("/")
    file = {"name": f"q1_orders {EVIL}.csv", "mimeType": "text/csv", "buffer": MESSY.encode("cp1252")}
    page.get_by_label("click to choose").set_input_files(file)  # type: ignore[arg-type]
    page.wait_for_url("**/uploads/**")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"q1_orders {EVIL}.csv")

    # what was found out
    expect(page.get_by_label("Delimiter")).to_have_value("Semicolon (;)", timeout=SPARK_TIMEOUT * 1000)
    expect(page.get_by_label("Encoding")).to_have_value("Windows-1252 (Western Europe)")
    for warning in ("byte 0xe9 at offset", "its numbers have leading zeros", "it holds numbers and also 'n/a'"):
        expect(page.get_by_text(warning)).to_be_visible()
    types = {"id": "bigint", "zip": "text", "amount": "text", "day": "date", EVIL: "text"}
    for column, type_ in types.items():
        expect(page.get_by_label(f"Type of {column}", exact=True)).to_have_value(type_)
    expect(page.get_by_role("row").filter(has=page.get_by_label("Type of zip"))).to_contain_text("00037")
    expect(page.get_by_role("columnheader", name=EVIL)).to_be_visible()
    expect(cell(page, 0, 4)).to_have_text(EVIL)
    expect(cell(page, 1, 4)).to_have_text("café")

    # a type, what does not fit it, and why
    give_type(page, "amount", "decimal(10,1)")
    expect(page.get_by_text("Invalid rows: 40 of the first 200 rows.")).to_be_visible()
    bad = cell(page, 1, 2)
    expect(bad).to_have_text("n/a")
    expect(bad).to_have_class(re.compile("inlay-bad"))
    bad.hover()
    expect(page.get_by_text("not a decimal that fits decimal(10,1)").last).to_be_visible()
    page.get_by_text("Show invalid values").click()
    expect(page.get_by_role("row").filter(has_text="not a decimal").first).to_contain_text("n/a")
    shoot(visit, "preview")
    page.get_by_role("button", name="Read n/a as NULL").click()
    expect(page.get_by_text("Invalid rows:")).to_be_hidden()
    expect(cell(page, 1, 2)).to_have_text("NULL")

    # a name, and off it goes
    expect(page.get_by_label("Label")).to_have_value(f"Q1 orders {EVIL}")
    page.get_by_label("Label").fill(f"Messy {EVIL}")
    expect(page.get_by_label("Table name")).to_have_attribute("placeholder", "messy_img_src_x_onerror_alert_1")
    page.get_by_label("Table name").fill("messy_orders")
    page.get_by_role("button", name="Create dataset").click()
    made = dataset(api, page)
    assert (made["label"], made["table_name"], made["row_count"]) == (f"Messy {EVIL}", "messy_orders", 200)
    assert [column["type"] for column in made["schema"]["columns"]] == [
        "bigint",
        "text",
        "decimal(10,1)",
        "date",
        "text",
    ]
    answer = api.post("/v1/query", json={"sql": "SELECT count(amount), max(zip) FROM datasets.messy_orders"}).json()
    assert answer["rows"] == [[160, "07400"]]


# -------------------------------------------------------------------------------------------------------- what is wrong
@pytest.mark.long  # short runs fix invalid rows on this page
def test_errors_of_format_and_names_can_be_fixed(visit: Visit, api: httpx.Client) -> None:
    page = look(visit, upload(api, "name|n\ncafé|1\nx|2\n".encode("cp1252")))
    expect(page.get_by_text("Invalid UTF-8: byte 0xe9 at offset 10 of the file.")).to_be_visible()
    choose(page, "Encoding", "UTF-8")
    expect(page.get_by_role("alert")).to_contain_text("Invalid UTF-8: byte 0xe9 at offset 10 of the file.")
    shoot(visit, "preview-not-utf8")
    choose(page, "Encoding", "Latin-1")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(cell(page, 0, 0)).to_have_text("café")

    give_type(page, "n", "decimall")
    expect(page.get_by_text("Unknown type 'decimall'. Did you mean 'decimal'?")).to_be_visible()
    give_type(page, "n", "tinyint")
    expect(page.get_by_label("Type of n", exact=True)).to_have_value("tinyint")
    choose(page, "First row", "Data")  # columns with other names have no types yet
    expect(page.get_by_label("Type of column_2", exact=True)).to_have_value("text")
    choose(page, "First row", "Column names")
    choose(page, "Delimiter", "Comma (,)")
    expect(page.get_by_label("Type of name|n", exact=True)).to_have_value("text")
    type_in(page, "Delimiter", "||")
    expect(page.get_by_role("alert")).to_contain_text("delimiter must be one ASCII character")
    page.keyboard.press("Escape")  # who types fast finds the list still open
    expect(page.get_by_role("option")).to_have_count(0)
    choose(page, "Delimiter", "Bar (|)")
    expect(page.get_by_role("alert")).to_be_hidden()

    page.get_by_label("Table name").fill("1 table")
    page.get_by_role("button", name="Create dataset").click()
    expect(page.get_by_role("alert")).to_contain_text("'1 table' is not a valid table name")
    page.get_by_label("Table name").fill("")
    page.get_by_label("Label").fill(" ")
    page.get_by_role("button", name="Create dataset").click()
    expect(page.get_by_role("alert")).to_contain_text("The label is empty.")
    page.get_by_label("Label").fill("Put right")
    page.get_by_role("button", name="Create dataset").click()
    assert dataset(api, page)["source_config"]["options"]["encoding"] == "iso8859-1"


@pytest.mark.long  # short runs check the same errors over HTTP
def test_unsupported_files_are_named(visit: Visit, api: httpx.Client) -> None:
    page = look(visit, upload(api, b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "data.csv"))
    expect(page.get_by_role("alert")).to_contain_text("The file is a PNG image, not text.")
    shoot(visit, "preview-wrong-file")
    expect(page.get_by_role("button", name="Create dataset")).to_be_disabled()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url(visit.url + "/")

    table = pa.table({"p": [1, 2], "s": [{":a": "alert(1)"}, None]})
    page = look(visit, upload(api, parquet_bytes(table), "really.csv"))
    expect(page.get_by_role("alert")).to_contain_text("Pass parquet as its format.")
    choose(page, "Format", "Parquet")
    expect(cell(page, 0, 1)).to_have_text('{":a":"alert(1)"}')
    expect(page.get_by_label("Type of p", exact=True)).to_be_hidden()
    expect(page.get_by_text("struct<")).to_be_visible()
    page.get_by_role("button", name="Create dataset").click()
    assert dataset(api, page)["row_count"] == 2


def test_invalid_rows_are_listed_or_rejected(visit: Visit, api: httpx.Client) -> None:
    rows = "".join(f"{n},x\n" for n in range(20_000))
    page = look(visit, upload(api, f"n,t\n{rows}oops,{EVIL}\n1,2,3\n", "late.csv"))
    give_type(page, "n", "integer")
    expect(page.get_by_role("button", name="Reset n to the detected type")).to_be_visible()
    page.get_by_role("button", name="Create dataset").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("2 of 20,002 rows are invalid")
    expect(alert.get_by_role("row").nth(1)).to_contain_text("20,002")
    expect(alert.get_by_role("row").nth(1)).to_contain_text("oops")
    shoot(visit, "preview-bad-rows")
    alert.get_by_role("button", name="Reject invalid rows and create dataset").click()
    made = dataset(api, page)
    assert (made["row_count"], made["rejected_count"]) == (20_000, 2)
    page.goto(f"{page.url}/rejects")
    expect(page.get_by_role("row").nth(2)).to_contain_text("the row has 3 cells instead of 2")


# --------------------------------------------------------------------------------------------------------- two browsers
@pytest.mark.long  # short runs use an upload twice over HTTP
def test_upload_is_used_once_in_two_windows(
    visit: Visit, open_window: Opener, service: ServiceProcess, api: httpx.Client
) -> None:
    path = upload(api, '[{"a": 0}, {"a": 1}, {"a": 2}]', "a.json", "application/json")
    first, second = look(visit, path), look(open_window(service.url), f"{path}?name=other.json")
    expect(first.get_by_role("heading", level=1)).to_have_text("a.json")
    expect(second.get_by_role("heading", level=1)).to_have_text("other.json")
    expect(second.get_by_label("Layout")).to_have_value("Array of records")
    first.get_by_role("button", name="Create dataset").click()
    made = dataset(api, first)
    second.get_by_role("button", name="Create dataset").click()
    expect(second.get_by_role("alert")).to_contain_text("is already consumed")
    second.reload()
    expect(second.get_by_role("alert")).to_contain_text("This file is already loaded into a dataset.")
    assert made["row_count"] == 3


@pytest.mark.long  # short runs cancel jobs over HTTP
def test_creation_can_be_cancelled(visit: Visit, api: httpx.Client) -> None:
    rows = "".join(f"{n},{n * 7},{n % 13}.5,some text\n" for n in range(3_000_000))
    page = look(visit, upload(api, f"a,b,c,d\n{rows}", "cancelled.csv"))
    page.get_by_role("button", name="Create dataset").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled.")).to_be_visible()
    expect(page.get_by_role("button", name="Create dataset")).to_be_enabled()
    job = api.get("/v1/jobs", params={"limit": 1}).json()["jobs"][0]
    assert job["state"] == "cancelled"
    assert page.url.rpartition("/")[2] in {each["id"] for each in api.get("/v1/files").json()["uploads"]}
