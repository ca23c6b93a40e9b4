"""How the service is, in a browser; and that what is broken is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from inlay.settings import Settings
from inlay.web.status import limits
from tests.faults.service_process import MortalPostgres, ServiceProcess, Stand
from tests.web.conftest import SPARK_PATIENCE, Opener, Visit

SECRET = "a-secret-key"


def test_every_setting_is_told_but_no_key() -> None:
    told = {name: value for name, value, _ in limits(Settings(api_keys=(SECRET, "other"), query_max_rows=2_000_000))}
    assert told["INLAY_API_KEYS"] == "2 keys"
    assert told["INLAY_QUERY_MAX_ROWS"] == "2,000,000"
    assert told["INLAY_MAX_UPLOAD_BYTES"] == "2.1 GB"
    assert told["INLAY_DELETE_GRACE_SECONDS"] == "1 min"
    assert told["INLAY_PORT"] == "8000"
    assert told["INLAY_KEEP_DAYS"] == "30"
    assert not any(SECRET in text for row in limits(Settings(api_keys=(SECRET,))) for text in row)


@pytest.mark.spark
def test_the_status_tells_parts_numbers_versions_and_limits(visit: Visit, api: httpx.Client) -> None:
    datasets = api.get("/v1/datasets").json()["count"]
    page = visit.go("/status")
    for part in ("Catalog", "Storage", "Spark"):
        card = page.locator("section").filter(has=page.get_by_role("heading", name=part, exact=True))
        expect(card).to_contain_text("Ready", timeout=SPARK_PATIENCE * 1000)
    expect(page.get_by_text("SQLite")).to_be_visible()
    expect(page.get_by_text("local[2]")).to_be_visible()
    versions = page.locator("section").filter(has=page.get_by_role("heading", name="Versions"))
    for name in ("inlay", "Python", "PyArrow", "DataFusion", "Spark", "Java"):
        expect(versions.get_by_text(name, exact=True)).to_be_visible()
    numbers = page.locator("section").filter(has=page.get_by_role("heading", name="What there is"))
    expect(numbers.get_by_role("link", name=str(datasets), exact=True).first).to_be_visible()
    expect(page.get_by_role("cell", name="INLAY_QUERY_TIMEOUT_SECONDS")).to_be_visible()
    visit.shoot("status")
    for name in ("The HTTP interface, described", "Its description for programs (OpenAPI)", "Counters for Prometheus"):
        target = page.get_by_role("link", name=name).get_attribute("href")
        assert api.get(str(target)).status_code == 200
    numbers.locator("div").filter(has_text="Jobs failed").get_by_role("link").last.click()
    page.wait_for_url(f"{visit.url}/jobs?state=failed")


@pytest.mark.spark
def test_what_does_not_work_is_told_until_it_works_again(tmp_path: Path, open_window: Opener) -> None:
    with ServiceProcess(Stand(tmp_path, "local[1]", settings={})).opened() as own:
        scratch = tmp_path / "data" / "scratch"
        shutil.rmtree(scratch)
        scratch.write_text("in the way")
        visit = open_window(own.url)
        page = visit.go("/status")
        storage = page.locator("section").filter(has=page.get_by_role("heading", name="Storage", exact=True))
        expect(storage).to_contain_text("Not working")
        expect(storage).to_contain_text("Nothing can be stored")
        visit.shoot("status-broken")
        scratch.unlink()
        expect(storage).to_contain_text("Ready")


@pytest.mark.spark
def test_a_catalog_that_is_away_is_told_to_who_was_let_in(tmp_path: Path, open_window: Opener) -> None:
    postgres = MortalPostgres.start()
    try:
        catalog_url = postgres.server.url(postgres.server.create_database())
        with ServiceProcess(Stand(tmp_path, "local[1]", catalog_url, settings={})).opened() as own:
            visit = open_window(own.url)
            page = visit.go("/status")
            catalog = page.locator("section").filter(has=page.get_by_role("heading", name="Catalog", exact=True))
            expect(catalog).to_contain_text("Ready")
            postgres.crash()
            expect(catalog).to_contain_text("Not working", timeout=30_000)
            visit.shoot("status-without-catalog")
            postgres.come_back()
            expect(catalog).to_contain_text("Ready", timeout=30_000)
    finally:
        postgres.stop()
