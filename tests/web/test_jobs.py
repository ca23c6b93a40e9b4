"""Tests of the job pages in a browser."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import expect

from tests.web.conftest import Visit
from tests.web.test_sql import ENDLESS, XSS

pytestmark = pytest.mark.spark


def create(api: httpx.Client, label: str, **source: object) -> httpx.Response:
    body = {"label": label, "source": source}
    return api.post("/v1/datasets", json=body, headers={"Prefer": "respond-async"})


@pytest.mark.long  # short runs cancel jobs over HTTP
def test_running_job_is_shown_and_can_be_cancelled(visit: Visit, api: httpx.Client) -> None:
    page = visit.go("/jobs")
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    job = create(api, "Endless", sql=ENDLESS).raise_for_status().json()
    line = page.get_by_role("row").filter(has_text="Endless")
    expect(line).to_contain_text("Running")  # it comes by itself
    visit.shoot("jobs")
    line.get_by_role("link", name="Create").click()
    page.wait_for_url(f"{visit.url}/jobs/{job['id']}")
    expect(page.get_by_role("progressbar", name="Progress")).to_be_visible()
    visit.shoot("job-running")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled").first).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    expect(page.get_by_text("Cancellation requested")).to_be_visible()
    assert api.get(f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"
    page.get_by_role("link", name="View all jobs").click()
    expect(line).to_contain_text("Nothing changed")


@pytest.mark.long  # short runs cancel jobs over HTTP
def test_jobs_can_be_cancelled_in_the_list_and_filtered_by_state(visit: Visit, api: httpx.Client) -> None:
    create(api, "Never ending", sql=ENDLESS).raise_for_status()
    page = visit.go("/jobs?state=running")
    line = page.get_by_role("row").filter(has_text="Never ending")
    line.get_by_role("button", name="Cancel").click()
    expect(line).to_have_count(0)  # it runs no more
    page.get_by_label("State").click()
    page.get_by_role("option", name="Cancelled").click()
    expect(line).to_contain_text("Cancelled")
    assert page.url == f"{visit.url}/jobs?state=cancelled"


def test_job_page_shows_request_timeline_and_result(visit: Visit, api: httpx.Client) -> None:
    inline = {"format": "csv", "content": f"code,{XSS}\n007,a\n008,{XSS}\n"}
    made = api.post("/v1/datasets", json={"label": XSS, "source": {"inline": inline}}).raise_for_status().json()
    jobs = api.get("/v1/jobs", params={"dataset_id": made["id"]}).json()["jobs"]
    page = visit.go(f"/jobs/{jobs[0]['id']}")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Create: {XSS}")
    expect(page.get_by_text("Converting on Spark")).to_be_visible()
    expect(page.get_by_text("its numbers have leading zeros")).to_be_visible()
    expect(page.get_by_text("of inline CSV")).to_be_visible()
    visit.shoot("job")
    page.get_by_role("link", name=f"View {XSS}").click()
    page.wait_for_url(f"{visit.url}/datasets/{made['id']}?version=1")
    api.delete(f"/v1/datasets/{made['id']}").raise_for_status()
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Create: {XSS}")
    expect(page.get_by_role("link", name=f"View {XSS}")).to_have_count(0)


def test_failed_job_shows_invalid_cells_and_a_hint(visit: Visit, api: httpx.Client) -> None:
    columns = {"columns": [{"name": "n", "type": "bigint"}]}
    body = {"label": "Wrong", "schema": columns, "source": {"inline": {"format": "csv", "content": f"n\n1\n{XSS}\n"}}}
    failed = api.post("/v1/datasets", json=body)
    assert failed.status_code == 422
    page = visit.go("/jobs?state=failed")
    line = page.get_by_role("row").filter(has_text="Wrong").first
    expect(line).to_contain_text("1 of 2 rows are invalid")
    line.get_by_role("link", name="Create").click()
    alert = page.get_by_role("alert")
    expect(alert.get_by_role("row").last).to_contain_text(XSS)
    expect(alert).to_contain_text("quarantine")
    visit.shoot("job-failed")


def test_unknown_job_is_not_found(visit: Visit) -> None:
    page = visit.go("/jobs/job_there_is_none")
    expect(page.get_by_role("alert")).to_contain_text("job_there_is_none")
    assert httpx.get(visit.url + "/jobs/job_there_is_none").status_code == 404
