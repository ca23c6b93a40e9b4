"""Tests of the status page."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from inlay.settings import Settings
from inlay.web.status import setting_rows
from tests.faults.service_process import MortalPostgres, ServiceProcess, Stand
from tests.spark import cluster
from tests.web.conftest import SPARK_TIMEOUT, Opener, Visit

SECRET = "a-secret-key"


def test_settings_are_listed_without_api_keys() -> None:
    values = {
        name: value for name, value, _ in setting_rows(Settings(api_keys=(SECRET, "other"), query_max_rows=2_000_000))
    }
    assert values["INLAY_API_KEYS"] == "2 keys"
    assert values["INLAY_QUERY_MAX_ROWS"] == "2,000,000"
    assert values["INLAY_MAX_UPLOAD_BYTES"] == "2.1 GB"
    assert values["INLAY_DELETE_GRACE_SECONDS"] == "1 min"
    assert values["INLAY_PORT"] == "8000"
    assert values["INLAY_KEEP_DAYS"] == "30"
    assert not any(SECRET in text for row in setting_rows(Settings(api_keys=(SECRET,))) for text in row)


@pytest.mark.spark
def test_status_page_shows_components_contents_versions_and_settings(visit: Visit, api: httpx.Client) -> None:
    datasets = api.get("/v1/datasets").json()["count"]
    api.post("/v1/files", content=b"a\n1\n").raise_for_status()  # starts Spark
    page = visit.go("/status")
    for part in ("Catalog", "Storage", "Spark"):
        card = page.locator("section").filter(has=page.get_by_role("heading", name=part, exact=True))
        expect(card).to_contain_text("Ready", timeout=SPARK_TIMEOUT * 1000)
    expect(page.get_by_text("SQLite")).to_be_visible()
    expect(page.get_by_text("sc://127.0.0.1")).to_be_visible()
    versions = page.locator("section").filter(has=page.get_by_role("heading", name="Versions"))
    for name in ("inlay", "Python", "PyArrow", "DataFusion", "Spark", "Java"):
        expect(versions.get_by_text(name, exact=True)).to_be_visible()
    numbers = page.locator("section").filter(has=page.get_by_role("heading", name="Contents"))
    expect(numbers.get_by_role("link", name=str(datasets), exact=True).first).to_be_visible()
    expect(page.get_by_role("cell", name="INLAY_QUERY_TIMEOUT_SECONDS")).to_be_visible()
    visit.shoot("status")
    for name in ("HTTP API reference", "OpenAPI description", "Prometheus metrics"):
        target = page.get_by_role("link", name=name).get_attribute("href")
        assert api.get(str(target)).status_code == 200
    numbers.locator("div").filter(has_text="Failed jobs").get_by_role("link").last.click()
    page.wait_for_url(f"{visit.url}/jobs?state=failed")


@pytest.mark.long  # stops a service; short runs check the same states over HTTP in tests/server
@pytest.mark.spark
def test_unavailable_storage_is_shown_until_it_recovers(tmp_path: Path, open_window: Opener) -> None:
    with ServiceProcess(Stand(tmp_path, cluster.local_connect_url(), settings={})).opened() as own:
        scratch = tmp_path / "data" / "scratch"
        shutil.rmtree(scratch)
        scratch.write_text("in the way")
        visit = open_window(own.url)
        page = visit.go("/status")
        storage = page.locator("section").filter(has=page.get_by_role("heading", name="Storage", exact=True))
        expect(storage).to_contain_text("Unavailable")
        expect(storage).to_contain_text("Cannot write to the storage")
        visit.shoot("status-broken")
        scratch.unlink()
        expect(storage).to_contain_text("Ready")


@pytest.mark.long  # short runs check the same states over HTTP in tests/server
@pytest.mark.spark
def test_unavailable_catalog_is_shown_to_authenticated_visitors(tmp_path: Path, open_window: Opener) -> None:
    postgres = MortalPostgres.start()
    try:
        catalog_url = postgres.server.url(postgres.server.create_database())
        with ServiceProcess(Stand(tmp_path, cluster.local_connect_url(), catalog_url, settings={})).opened() as own:
            visit = open_window(own.url)
            page = visit.go("/status")
            catalog = page.locator("section").filter(has=page.get_by_role("heading", name="Catalog", exact=True))
            expect(catalog).to_contain_text("Ready")
            postgres.crash()
            expect(catalog).to_contain_text("Unavailable", timeout=30_000)
            visit.shoot("status-without-catalog")
            postgres.come_back()
            expect(catalog).to_contain_text("Ready", timeout=30_000)
    finally:
        postgres.stop()
