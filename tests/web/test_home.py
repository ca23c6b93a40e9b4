"""Tests of the home page in a browser: datasets, pending uploads and the drop zone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from inlay.catalog import Catalog
from tests.catalog import steps
from tests.faults.service_process import ServiceProcess, Stand
from tests.spark import cluster
from tests.web.conftest import SPARK_TIMEOUT, Opener, Visit

pytestmark = pytest.mark.spark

EVIL = "<img src=x onerror=alert(1)>"
CSV = b"a,b\n1,x\n2,y\n"


def choose(page: Page, *files: tuple[str, bytes]) -> None:
    """Choose files in the dialog of the drop zone."""
    chosen = [{"name": name, "mimeType": "", "buffer": content} for name, content in files]
    page.get_by_label("click to choose").set_input_files(chosen)  # type: ignore[arg-type]


def pending(api: httpx.Client) -> list[str]:
    return [upload["id"] for upload in api.get("/v1/files", params={"limit": 1000}).json()["uploads"]]


def slow_down(visit: Visit, bytes_per_second: float) -> None:
    session = visit.context.new_cdp_session(visit.page)
    speed = {"uploadThroughput": bytes_per_second, "downloadThroughput": -1, "latency": 0, "offline": False}
    session.send("Network.emulateNetworkConditions", speed)


# ----------------------------------------------------------------------------------------------------- an empty service
@pytest.fixture
def fresh_service(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(Stand(tmp_path, cluster.local_connect_url(), settings={}))
    process.start()
    try:
        process.wait_until_open()
        yield process
    finally:
        process.end()


@pytest.mark.long  # creates many datasets; short runs start on an empty home page in test_story.py
def test_home_page_from_empty_to_many_datasets(fresh_service: ServiceProcess, open_window: Opener) -> None:
    visit, other = open_window(fresh_service.url), open_window(fresh_service.url)
    page = visit.go("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Turn files into SQL tables")
    visit.shoot("home-empty")
    watching = other.go("/")

    # a sample, one click away, and what to do with it
    page.get_by_role("button", name="Try a sample of 500 orders").click()
    expect(page.get_by_role("status").filter(has_text=re.compile("Starting|Waiting|Converting"))).to_be_visible()
    expect(page.get_by_text("Sample orders: 500 rows loaded")).to_be_visible(timeout=SPARK_TIMEOUT * 1000)
    expect(page.get_by_role("link", name="View the rows")).to_have_attribute("href", re.compile("/datasets/data_"))
    expect(page.get_by_role("link", name="Load corrections")).to_have_attribute("href", re.compile("/datasets/.*/load"))
    question = page.get_by_role("link", name="Query the dataset with SQL").get_attribute("href") or ""
    sql = httpx.URL(question).params["q"]
    answer = httpx.post(f"{fresh_service.url}/v1/query", json={"sql": sql}).json()
    assert (answer["columns"][0]["name"], answer["row_count"]) == ("product", 8)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download order-corrections.csv").click()
    assert download.value.path().read_text().startswith("order_id,")
    visit.shoot("home-sample")

    # whoever else looks sees it without doing anything
    row = watching.get_by_role("row").filter(has_text="sample_orders")
    expect(row).to_contain_text("500")
    expect(row.get_by_role("img", name="Rows of the last 1 version: 500")).to_be_visible()

    # many of them, with versions and names of all sorts
    add_datasets(fresh_service, 119)
    expect(watching.get_by_text("1 to 100 of 120")).to_be_visible()
    expect(watching.get_by_role("link", name=EVIL)).to_be_visible()
    expect(watching.get_by_role("img", name="Rows of the last 3 versions: 10, 20, 30")).to_be_visible()
    watching.get_by_role("button", name="Next").click()
    expect(watching.get_by_text("101 to 120 of 120")).to_be_visible()
    expect(watching.get_by_role("link", name="Sample orders")).to_be_visible()
    box = watching.get_by_role("searchbox", name="Search")
    box.fill("sample")
    expect(watching.get_by_role("row")).to_have_count(2)
    box.fill("ORDERS größe_7")
    expect(watching.get_by_text("No datasets match your search.")).to_be_visible()
    box.fill("groesse_77 GRÖSSE")
    expect(watching.get_by_role("link", name="Größe 77")).to_be_visible()
    expect(watching.get_by_role("row")).to_have_count(2)
    box.fill("1")
    expect(watching.get_by_role("row")).not_to_have_count(2)
    other.shoot("home")


def add_datasets(service: ServiceProcess, count: int) -> None:
    """Add datasets without data to the catalog."""
    catalog = Catalog(service.stand.folder / "data" / "catalog.db")
    try:
        for number in range(count - 1):
            steps.dataset(catalog, f"Größe {number}", table_name=f"groesse_{number}")
        evil = steps.dataset(catalog, EVIL)
        for _ in range(2):
            steps.load(catalog, evil.id)
    finally:
        catalog.close()


def test_read_only_key_offers_no_uploads(fresh_service: ServiceProcess) -> None:
    with httpx.Client(base_url=fresh_service.url) as client:
        upload = client.post("/v1/files", content=CSV, headers={"Content-Type": "text/csv"}).json()
        catalog = Catalog(fresh_service.stand.folder / "data" / "catalog.db")
        client.cookies.set("inlay_key", catalog.api_keys.create("reader", ["read"]).secret)
        catalog.close()
        home, preview = client.get("/").text, client.get(f"/uploads/{upload['id']}").text
    assert upload["id"] in home
    for offer in ("click to choose", "Try a sample", "Delete the file"):
        assert offer not in home
    assert "Your API key is read-only" in preview
    for offer in ("Create dataset", "Delete"):
        assert offer not in preview


# ------------------------------------------------------------------------------------------------------ pending uploads
@pytest.mark.long  # short runs open uploads in test_preview.py and delete them over HTTP
def test_pending_uploads_can_be_opened_and_deleted(visit: Visit, api: httpx.Client) -> None:
    before = set(pending(api))
    page = visit.go("/")
    choose(page, ("one.csv", CSV), (f"{EVIL}.json", b'{"a": 1}\n'), ("three.csv.gz", b"\x1f\x8b not really"))
    for name in ("one.csv", f"{EVIL}.json", "three.csv.gz"):
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
    assert len(set(pending(api)) - before) == 3
    types = {upload["content_type"] for upload in api.get("/v1/files").json()["uploads"]}
    assert {'text/csv; name="one.csv"', 'text/csv; name="three.csv.gz"'} <= types
    visit.shoot("home-uploads")

    page.get_by_role("button", name="Delete one.csv").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("link", name="one.csv", exact=True)).to_be_visible()
    for name in ("one.csv", "three.csv.gz"):
        page.get_by_role("button", name=f"Delete {name}").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page.get_by_role("link", name=name, exact=True)).to_be_hidden()
    assert len(set(pending(api)) - before) == 1
    page.get_by_role("link", name=f"{EVIL}.json", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{EVIL}.json")


@pytest.mark.long  # short runs choose files in a dialog
def test_files_can_be_dropped_anywhere(visit: Visit) -> None:
    page = visit.go("/")
    expect(page.get_by_label("click to choose")).to_be_attached()
    dropped = page.evaluate_handle(
        """() => { const files = new DataTransfer();
          files.items.add(new File(["a,b\\n1,2\\n"], "dropped.csv")); return files }"""
    )
    for kind in ("dragenter", "dragover", "drop"):
        page.dispatch_event("body", kind, {"dataTransfer": dropped})
    page.wait_for_url("**/uploads/**")
    expect(page.get_by_role("heading", level=1)).to_have_text("dropped.csv")


# -------------------------------------------------------------------------------------------------------------- uploads
WATCH_PROGRESS = """() => setInterval(() => {
  const bar = document.querySelector(".inlay-transfers progress");
  if (bar) window.seen(bar.value, bar.max, bar.closest("li").innerText);
}, 20)"""


def large_file(path: Path, megabytes: int) -> Path:
    block = b"1234567890,some text that makes lines longer,2024-01-01\n" * 17_858  # a megabyte
    with path.open("wb") as out:
        out.write(b"number,text,day\n")
        for _ in range(megabytes):
            out.write(block)
    return path


@pytest.mark.long  # short runs upload files in test_story.py and test_preview.py
def test_large_upload_shows_progress(visit: Visit, tmp_path: Path) -> None:
    file = large_file(tmp_path / "large.csv", 200)
    seen: list[tuple[float, float, str]] = []
    visit.page.expose_function("seen", lambda value, total, text: seen.append((value, total, text)))
    page = visit.go("/")
    slow_down(visit, 100e6)
    page.evaluate(WATCH_PROGRESS)
    page.get_by_label("click to choose").set_input_files(file)
    page.wait_for_url("**/uploads/**")
    assert len({value for value, _, _ in seen}) > 5
    assert [value for value, _, _ in seen] == sorted(value for value, _, _ in seen)
    assert {total for _, total, _ in seen} == {file.stat().st_size}
    assert [text for _, _, text in seen if re.search(r"MB of 200 MB · .*\d [KM]B/s · .*(s|min|second) left", text)]
    slow_down(visit, -1)
    type_ = page.get_by_label("Type of number")  # inlay reads only the beginning of a large file
    expect(type_).to_have_value("bigint", timeout=SPARK_TIMEOUT * 1000)


@pytest.mark.long  # short runs cancel an upload after its last byte below
def test_cancelled_upload_stores_nothing(
    visit: Visit, api: httpx.Client, service: ServiceProcess, tmp_path: Path
) -> None:
    before, files_before = pending(api), service.stand.files()
    (tmp_path / "next.csv").write_bytes(CSV)
    page = visit.go("/")
    slow_down(visit, 2e6)
    page.get_by_label("click to choose").set_input_files(
        [large_file(tmp_path / "huge.csv", 200), tmp_path / "next.csv"]
    )
    expect(page.get_by_role("progressbar", name="Upload of huge.csv")).to_be_visible()
    expect(page.get_by_text(re.compile("MB of 200 MB"))).to_be_visible()
    visit.shoot("upload")
    page.get_by_role("button", name="Cancel upload of next.csv").click()
    page.get_by_role("button", name="Cancel upload of huge.csv").click()
    expect(page.get_by_role("listitem").filter(has_text="huge.csv")).to_contain_text("Cancelled")
    expect(page.get_by_role("status").filter(has_text="huge.csv: Cancelled")).to_be_attached()
    slow_down(visit, -1)
    choose(page, ("wanted.csv", CSV))  # the zone is free for others
    page.wait_for_url("**/uploads/**")
    wanted = page.url.rpartition("/")[2]
    assert [upload for upload in pending(api) if upload not in before] == [wanted]
    assert {path for path in service.stand.files() - files_before if wanted not in path} == set()


HOLD_ANSWERS = """Object.defineProperty(XMLHttpRequest.prototype, "onload", {
  set(handler) { this.addEventListener("load", () => { window.answer = () => handler.call(this) }) }
})"""


def test_upload_cancelled_after_the_last_byte_is_deleted(visit: Visit, api: httpx.Client) -> None:
    before = pending(api)
    visit.page.add_init_script(HOLD_ANSWERS)
    page = visit.go("/")
    choose(page, ("late.csv", CSV * 1000))
    item = page.get_by_role("listitem").filter(has_text="late.csv")
    expect(item).to_contain_text("storing")
    page.wait_for_function("() => window.answer !== undefined")
    assert len(pending(api)) == len(before) + 1
    item.get_by_role("button", name="Cancel").click()
    page.evaluate("() => window.answer()")
    expect(item).to_contain_text("Cancelled")
    assert pending(api) == before


def test_rejected_upload_shows_the_reason_and_can_be_retried(visit: Visit) -> None:
    page = visit.go("/")
    choose(page, ("empty.csv", b""))
    item = page.get_by_role("listitem").filter(has_text="empty.csv")
    expect(item).to_contain_text("The upload is empty.")
    item.get_by_role("button", name="Retry").click()
    expect(item).to_contain_text("The upload is empty.")
