"""A job in words: what was asked, what was done when, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from inlay.web.following import phase_in_words
from inlay.web.wording import count, duration, size

if TYPE_CHECKING:
    from inlay.catalog import Job

__all__ = ["ICONS", "KINDS", "Step", "asked", "counts", "label_in", "lasted", "outcome", "timeline"]

KINDS = {"create": "Create", "load": "Load", "plan": "Dry run", "restore": "Restore"}
ICONS = {
    "queued": "schedule",
    "running": "autorenew",
    "succeeded": "check_circle",
    "failed": "error",
    "cancelled": "cancel",
}
_COUNTS = {
    "version": "Version",
    "row_count": "Rows now",
    "source_count": "Rows in the source",
    "inserted": "Inserted",
    "updated": "Updated",
    "unchanged": "Equal already",
    "deleted": "Deleted",
    "rejected_count": "Rejected",
}
_ON_ERROR = {"fail": "change nothing", "quarantine": "load the others, keep these apart"}


class Step(NamedTuple):
    """Something that happened, and when; what came of it has no time of its own."""

    text: str
    at: datetime | None = None


def label_in(job: Job) -> str | None:
    """What a job that makes a dataset calls it."""
    return job.request.get("label") if job.kind == "create" else None


def lasted(job: Job, now: datetime | None = None) -> str:
    """How long a job took, or takes so far."""
    if job.started_at is None:
        return "not begun"
    return duration(((job.finished_at or now or datetime.now(UTC)) - job.started_at).total_seconds())


# --------------------------------------------------------------------------------------------------- what was asked for
def asked(job: Job) -> list[tuple[str, str]]:
    """The request, line by line; what was left open is left out."""
    return [(name, text) for name, text in _asked(job.request) if text]


def _asked(request: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Label", request.get("label") or ""
    yield "Table name", request.get("table_name") or ""
    yield "Strategy", request.get("strategy") or ""
    yield "Key columns", ", ".join(request.get("key_columns") or ())
    yield "Last by", ", ".join(request.get("dedup_order_by") or ())
    yield "Version", str(request.get("version") or "")
    yield from _source(request.get("source") or {})
    yield "Types", ", ".join(f"{name} {type_}" for name, type_ in request.get("columns") or ())
    yield "If rows do not fit", _ON_ERROR.get(request.get("on_error") or "", "")


def _source(source: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    inline = source.get("inline")
    if inline is not None:
        yield "Source", f"{size(inline['size_bytes'])} of {inline['format'].upper()} within the request"
    yield "Upload", source.get("upload_id") or ""
    yield "Query", source.get("sql") or ""
    yield "Format", source.get("format") or ""
    yield "Options", ", ".join(f"{name} {value!r}" for name, value in (source.get("options") or {}).items())


# ------------------------------------------------------------------------------------------------------- what happened
def timeline(job: Job) -> list[Step]:
    """What was done when, as far as it was written down."""
    progress = job.progress or {}
    steps = [Step("Asked for", job.created_at)]
    if job.started_at is not None:
        steps.append(Step("Began", job.started_at))
    steps += [
        Step(phase_in_words(job.kind, each["phase"]), datetime.fromisoformat(each["at"]))
        for each in progress.get("phases", ())
    ]
    steps += [Step(warning) for warning in (job.result or {}).get("warnings", ())]
    if job.cancel_requested:
        steps.append(Step("Somebody asked to cancel it"))
    if job.finished_at is not None:
        steps.append(Step(job.state.capitalize(), job.finished_at))
    return steps


def counts(job: Job) -> list[tuple[str, str]]:
    """What came of it, in numbers."""
    result = job.result or {}
    return [(name, f"{result[key]:,}") for key, name in _COUNTS.items() if isinstance(result.get(key), int)]


def outcome(job: Job) -> str:
    """How a job ended, in a line; nothing while it has not."""
    if job.error is not None:
        return str(job.error.get("message", ""))
    if job.state != "succeeded":
        return "Nothing changed" if job.has_ended else ""
    result = job.result or {}
    changes = [f"{result[key]:,} {key}" for key in ("inserted", "updated", "deleted") if result.get(key)]
    rows = [count(result["row_count"], "row")] if "row_count" in result and not changes else []
    rejected = [f"{result['rejected_count']:,} rejected"] if result.get("rejected_count") else []
    told = ", ".join([*changes, *rows, *rejected])
    return f"Would be: {told}" if job.kind == "plan" else told
