"""Jobs over HTTP: list, follow, cancel."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.service import Api, events, expect, expect_problem

ASYNC = {"Prefer": "respond-async"}


def start(api: Api, content: str = "a\n1\n") -> dict[str, Any]:
    job: dict[str, Any] = expect(api.try_to_create(content, headers=ASYNC), 202)
    return job


@pytest.fixture
def held(api: Api, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Start a job that runs until it is canceled."""
    begun = threading.Event()

    def work(_: Any, handle: Any) -> None:
        begun.set()
        for step in range(10_000):
            handle.progress("convert", step, 10_000)
            time.sleep(0.02)

    monkeypatch.setattr(api.workspace._conversions, "create", work)
    job = start(api)
    assert begun.wait(30)
    return job


@pytest.mark.on_servers
def test_list_jobs(api: Api) -> None:
    done = api.wait(start(api))
    failed = api.wait(expect(api.try_to_create({"sql": "SELECT * FROM datasets.no"}, headers=ASYNC), 202))
    everything = api.get("/v1/jobs")
    assert [job["id"] for job in everything["jobs"][:2]] == [failed["id"], done["id"]]
    assert everything["jobs"][0] == failed
    assert failed["error"]["type"] == "/docs/errors#invalid_query"
    assert done["id"] not in {job["id"] for job in api.get("/v1/jobs", state="failed")["jobs"]}
    [mine] = api.get("/v1/jobs", dataset_id=done["dataset_id"])["jobs"]
    assert mine == done == api.get(f"/v1/jobs/{done['id']}")
    assert set(done) >= {"id", "kind", "state", "progress", "result", "error", "created_at", "finished_at"}
    expect_problem(api.http.get("/v1/jobs", params={"state": "lost"}), 400, "invalid_request")
    expect_problem(api.http.get("/v1/jobs/job_nope"), 404, "not_found")
    expect_problem(api.http.delete("/v1/jobs/job_nope"), 404, "not_found")


def test_events_are_sent_until_the_job_ends(api: Api) -> None:
    job = start(api, "a\n" + "1\n" * 1000)
    with api.http.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        seen = list(events(answer.iter_lines()))
    assert [name for name, _ in seen][-1] == "end"
    assert {name for name, _ in seen[:-1]} <= {"progress"}
    assert seen[-1][1] == api.get(f"/v1/jobs/{job['id']}")
    assert seen[-1][1]["state"] == "succeeded"


def test_an_ended_job_sends_one_event(api: Api) -> None:
    job = api.wait(start(api))
    with api.http.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
        assert list(events(answer.iter_lines())) == [("end", job)]
    expect_problem(api.http.get("/v1/jobs/job_nope/events"), 404, "not_found")


@pytest.mark.on_servers
def test_cancel_a_running_job(api: Api, held: dict[str, Any]) -> None:
    with api.http.stream("GET", f"/v1/jobs/{held['id']}/events") as answer:
        seen = events(answer.iter_lines())
        phases = [next(seen)[1]["progress"] for _ in range(2)]
        assert phases[-1]["phase"] == "convert"
        answer_to_cancel = api.http.delete(f"/v1/jobs/{held['id']}")
        assert expect(answer_to_cancel, answer_to_cancel.status_code)["cancel_requested"] is True
        assert answer_to_cancel.status_code in (200, 202)
        last = list(seen)[-1]
    assert last[0] == "end"
    assert last[1]["state"] == "cancelled"
    expect_problem(api.http.delete(f"/v1/jobs/{held['id']}"), 409, "job_ended")
    expect_problem(api.http.get(f"/v1/datasets/{held['dataset_id']}"), 404, "not_found")


@pytest.mark.parametrize("ends", ["succeeded", "cancelled"])
def test_a_request_waits_for_a_job_of_another_process(
    api: Api, held: dict[str, Any], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """This process has no future of the job, so the catalog must report its end."""
    key = {"Idempotency-Key": f"elsewhere-{held['id']}"}
    first = expect(api.try_to_create("a\n1\n", "waits", headers=key | ASYNC), 202)
    assert api.workspace._runner is not None
    monkeypatch.setattr(api.workspace._runner, "future", lambda _: None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.try_to_create, "a\n1\n", "waits", headers=key)
        while api.get(f"/v1/jobs/{first['id']}")["state"] == "queued":
            time.sleep(0.05)
        if ends == "cancelled":
            api.http.delete(f"/v1/jobs/{first['id']}")
            expect_problem(waiting.result(), 409, "job_cancelled")
        else:
            result = {"version": 1, "table_name": "elsewhere", "row_count": 1, "rejected_count": 0, "warnings": []}
            api.workspace.catalog.jobs.succeed(first["id"], result)
            assert expect(waiting.result(), 201)["id"] == first["dataset_id"]
    api.http.delete(f"/v1/jobs/{held['id']}")
    assert api.wait(held)["state"] == "cancelled"


def test_a_waiting_request_fails_when_its_job_is_cancelled(api: Api, held: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.try_to_create, "a\n1\n", "waits")
        job = held
        while job["id"] == held["id"]:
            running = api.get("/v1/jobs", state="running")["jobs"]
            job = next((each for each in running if each["id"] != held["id"]), held)
        for each in (job, held):
            assert api.http.delete(f"/v1/jobs/{each['id']}").status_code in (200, 202)
        expect_problem(waiting.result(), 409, "job_cancelled")
    assert api.wait(held)["state"] == "cancelled"
