"""Jobs in words, from what the catalog keeps of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inlay.catalog import Job
from inlay.web.job_words import asked, counts, lasted, outcome, timeline
from inlay.workspace import Inline, Load, NewDataset, Source

T0 = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def job(kind: str = "load", state: str = "succeeded", **more: Any) -> Job:
    given: dict[str, Any] = {
        "id": "job_x", "kind": kind, "state": state, "dataset_id": "data_x", "upload_id": None, "writes": True,
        "request": {}, "progress": None, "result": None, "error": None, "owner": "o", "lease_until": T0,
        "cancel_requested": False, "created_at": T0, "started_at": T0 + timedelta(seconds=1),
        "finished_at": T0 + timedelta(seconds=4),
    }  # fmt: skip
    return Job(**given | more)


def test_the_request_of_a_load_is_told_line_by_line() -> None:
    source = Source(inline=Inline("csv", "id\n1\n"), options={"delimiter": ";"})
    request = Load(source, "deduplicate", ["id", "day"], ["at"], on_error="quarantine")
    assert asked(job(request=request.as_json())) == [
        ("Strategy", "deduplicate"),
        ("Key columns", "id, day"),
        ("Last by", "at"),
        ("Source", "5 bytes of CSV within the request"),
        ("Options", "delimiter ';'"),
        ("If rows do not fit", "load the others, keep these apart"),
    ]


def test_the_request_of_a_new_dataset_is_told_line_by_line() -> None:
    request = NewDataset("My data", Source(upload_id="upld_x", format="csv"), "t", [("id", "bigint"), ("n", "text")])
    assert asked(job("create", request=request.as_json())) == [
        ("Label", "My data"),
        ("Table name", "t"),
        ("Upload", "upld_x"),
        ("Format", "csv"),
        ("Types", "id bigint, n text"),
        ("If rows do not fit", "change nothing"),
    ]
    assert asked(job("restore", request={"version": 3})) == [("Version", "3")]
    assert asked(job("create", request=NewDataset("q", Source(sql="SELECT 1")).as_json()))[1] == ("Query", "SELECT 1")


def test_what_was_done_is_told_in_its_order() -> None:
    phases = [
        {"phase": "convert", "at": "2026-01-02T03:04:07.500+00:00"},
        {"phase": "odd", "at": "2026-01-02T03:04:08+00:00"},
    ]
    made = job(progress={"phase": "odd", "done": 1, "total": 1, "phases": phases}, result={"warnings": ["Careful."]})
    assert [(step.text, step.at) for step in timeline(made)] == [
        ("Asked for", T0),
        ("Began", T0 + timedelta(seconds=1)),
        ("Converting on Spark", T0 + timedelta(seconds=2.5)),
        ("Odd", T0 + timedelta(seconds=3)),
        ("Careful.", None),
        ("Succeeded", T0 + timedelta(seconds=4)),
    ]


def test_a_job_of_an_older_version_has_a_timeline_too() -> None:
    made = job(state="cancelled", cancel_requested=True, progress={"phase": "convert", "done": 0, "total": 1})
    assert [step.text for step in timeline(made)] == ["Asked for", "Began", "Somebody asked to cancel it", "Cancelled"]
    waiting = job(state="queued", started_at=None, finished_at=None)
    assert [step.text for step in timeline(waiting)] == ["Asked for"]
    assert lasted(waiting) == "not begun"
    assert lasted(made) == "3.0 s"


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (job("create", result={"row_count": 2000, "rejected_count": 0}), "2,000 rows"),
        (job(result={"inserted": 1, "updated": 2000, "deleted": 0, "row_count": 9}), "1 inserted, 2,000 updated"),
        (job(result={"inserted": 0, "updated": 0, "deleted": 0, "row_count": 1}), "1 row"),
        (job(result={"inserted": 3, "rejected_count": 2, "row_count": 9}), "3 inserted, 2 rejected"),
        (job("plan", result={"deleted": 3, "row_count": 9}), "Would be: 3 deleted"),
        (job("restore", result={"version": 2}), ""),
        (job(state="failed", error={"code": "bad_rows", "message": "They do not fit."}), "They do not fit."),
        (job(state="cancelled"), "Nothing changed"),
        (job(state="running", finished_at=None), ""),
    ],
)  # fmt: skip
def test_the_end_is_told_in_a_line(made: Job, told: str) -> None:
    assert outcome(made) == told


def test_counts_are_those_that_people_know() -> None:
    result = {"version": 2, "row_count": 20_000, "inserted": 1, "files": [{}], "warnings": [], "strategy": "upsert"}
    assert counts(job(result=result)) == [("Version", "2"), ("Rows now", "20,000"), ("Inserted", "1")]
