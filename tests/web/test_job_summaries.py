"""Tests of job summaries without a browser."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inlay.catalog import Job
from inlay.web.jobs import counts, elapsed, outcome, request_lines, timeline
from inlay.workspace import Inline, Load, NewColumn, NewDataset, Source

T0 = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def job(kind: str = "load", state: str = "succeeded", **more: Any) -> Job:
    defaults: dict[str, Any] = {
        "id": "job_x", "kind": kind, "state": state, "dataset_id": "data_x", "upload_id": None, "writes": True,
        "request": {}, "progress": None, "result": None, "error": None, "owner": "o", "lease_until": T0,
        "cancel_requested": False, "idempotency_key": None, "created_at": T0, "started_at": T0 + timedelta(seconds=1),
        "finished_at": T0 + timedelta(seconds=4),
    }  # fmt: skip
    return Job(**defaults | more)


def test_request_lines_of_a_load() -> None:
    source = Source(inline=Inline("csv", "id\n1\n"), options={"delimiter": ";"})
    request = Load(source, "deduplicate", ["id", "day"], ["at"], on_error="quarantine")
    assert request_lines(job(request=request.as_json())) == [
        ("Strategy", "deduplicate"),
        ("Key columns", "id, day"),
        ("Deduplication order", "at"),
        ("Source", "5 bytes of inline CSV"),
        ("Options", "delimiter ';'"),
        ("Invalid rows", "Reject them and load the rest"),
    ]


def test_request_lines_of_a_column_mapping() -> None:
    columns = {"Customer": "id", "comment": None, "Land": NewColumn("country", "text")}
    request = Load(Source(upload_id="upld_x"), "append", columns=columns)
    expected = ("Columns", "Customer as id, comment ignored, Land added as country text")
    assert expected in request_lines(job(request=request.as_json()))


def test_request_lines_of_a_scope() -> None:
    request = Load(Source(sql="SELECT 1"), "delete", ["id"], scope={"day": ["2025-01-01", "2025-01-02"], "n": [1]})
    assert ("Scope", "day=2025-01-01, 2025-01-02; n=1") in request_lines(job(request=request.as_json()))


def test_request_lines_of_a_new_dataset() -> None:
    request = NewDataset("My data", Source(upload_id="upld_x", format="csv"), "t", [("id", "bigint"), ("n", "text")])
    assert request_lines(job("create", request=request.as_json())) == [
        ("Label", "My data"),
        ("Table name", "t"),
        ("Upload", "upld_x"),
        ("Format", "csv"),
        ("Types", "id bigint, n text"),
        ("Invalid rows", "Stop without changes"),
    ]
    assert request_lines(job("restore", request={"version": 3})) == [("Version", "3")]
    assert request_lines(job("create", request=NewDataset("q", Source(sql="SELECT 1")).as_json()))[1] == (
        "Query",
        "SELECT 1",
    )


def test_timeline_is_in_order() -> None:
    phases = [
        {"phase": "convert", "at": "2026-01-02T03:04:07.500+00:00"},
        {"phase": "odd", "at": "2026-01-02T03:04:08+00:00"},
    ]
    made = job(progress={"phase": "odd", "done": 1, "total": 1, "phases": phases}, result={"warnings": ["Careful."]})
    assert [(step.text, step.at) for step in timeline(made)] == [
        ("Queued", T0),
        ("Started", T0 + timedelta(seconds=1)),
        ("Converting on Spark", T0 + timedelta(seconds=2.5)),
        ("Odd", T0 + timedelta(seconds=3)),
        ("Careful.", None),
        ("Succeeded", T0 + timedelta(seconds=4)),
    ]


def test_timeline_of_a_job_without_phases() -> None:
    made = job(state="cancelled", cancel_requested=True, progress={"phase": "convert", "done": 0, "total": 1})
    assert [step.text for step in timeline(made)] == ["Queued", "Started", "Cancellation requested", "Cancelled"]
    waiting = job(state="queued", started_at=None, finished_at=None)
    assert [step.text for step in timeline(waiting)] == ["Queued"]
    assert elapsed(waiting) == "Not started"
    assert elapsed(made) == "3.0 s"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (job("create", result={"row_count": 2000, "rejected_count": 0}), "2,000 rows"),
        (job(result={"inserted": 1, "updated": 2000, "deleted": 0, "row_count": 9}), "1 inserted, 2,000 updated"),
        (job(result={"inserted": 0, "updated": 0, "deleted": 0, "row_count": 1}), "1 row"),
        (job(result={"inserted": 3, "rejected_count": 2, "row_count": 9}), "3 inserted, 2 rejected"),
        (job("plan", result={"deleted": 3, "row_count": 9}), "Planned: 3 deleted"),
        (job("restore", result={"version": 2}), ""),
        (job(state="failed", error={"code": "bad_rows", "message": "They do not fit."}), "They do not fit."),
        (job(state="cancelled"), "Nothing changed"),
        (job(state="running", finished_at=None), ""),
    ],
)  # fmt: skip
def test_outcome_is_one_line(made: Job, text: str) -> None:
    assert outcome(made) == text


def test_counts_have_labels() -> None:
    result = {"version": 2, "row_count": 20_000, "inserted": 1, "files": [{}], "warnings": [], "strategy": "upsert"}
    assert counts(job(result=result)) == [("Version", "2"), ("Rows", "20,000"), ("Inserted", "1")]
