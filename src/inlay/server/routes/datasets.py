"""Routes of datasets: creates, loads, versions, downloads and rejected rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from inlay.errors import InvalidRequestError
from inlay.server import models, requests
from inlay.server.auth import Caller, Reader, Writer, require_scope
from inlay.server.dependencies import (
    Accept,
    JobPreferences,
    Paging,
    Preferences,
    Service,
    ServiceDep,
    Version,
    problems,
)
from inlay.server.responses import (
    ANSWER_FORMATS,
    accepted_response,
    answer_headers,
    answer_response,
    cancel_on_disconnect,
    json_response,
    negotiate,
    stream_response,
    wait_for_job,
)

if TYPE_CHECKING:
    from inlay.catalog import Job
    from inlay.workspace import SubmittedJob, Workspace

__all__ = ["router"]

router = APIRouter(tags=["datasets"], route_class=requests.JsonRoute)
_CSV = "text/csv"
_FORMATS: dict[Literal["csv", "parquet", "arrow"], str] = {
    "csv": _CSV,
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
}
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_ACCEPTED = {"model": models.Job, "description": "The job, with `Prefer: respond-async`."}


async def _run_job(
    service: Service,
    preferences: JobPreferences,
    submit: Callable[[Workspace], SubmittedJob],
    respond: Callable[[Job], Response],
) -> Response:
    """Submit a job and return its result, or the job itself for `respond-async`."""
    submitted = await service.run(submit)
    if preferences.is_async:
        return accepted_response(submitted.job)
    return respond(await wait_for_job(service, submitted))


def _idempotency(preferences: JobPreferences, caller: Caller) -> dict[str, Any]:
    return {"idempotency_key": preferences.idempotency_key, "scope": caller.id}


def _require_read_scope(caller: Caller, source: requests.SourceBody, *, returns_rows: bool = False) -> None:
    """Require the read scope for a query source and for a plan, because both reveal rows."""
    if source.sql is not None or returns_rows:
        require_scope(caller, "read")


# --------------------------------------------------------------------------------------------------------- one dataset
@router.post(
    "/v1/datasets",
    status_code=201,
    response_model=models.Created,
    responses={202: _ACCEPTED, **problems(404, 408, 409, 413, 415, 422, 507)},
    summary="Create a dataset",
)
async def create_dataset(
    body: requests.DatasetBody, service: ServiceDep, caller: Writer, preferences: Preferences
) -> Response:
    """Convert an upload, inline data or a query result to typed Parquet."""
    _require_read_scope(caller, body.source)

    def submit(workspace: Workspace) -> SubmittedJob:
        return workspace.create_dataset(body.request(), **_idempotency(preferences, caller))

    def respond(job: Job) -> Response:
        return json_response(models.Created.of(job), 201, Location=f"/v1/datasets/{job.dataset_id}")

    return await _run_job(service, preferences, submit, respond)


@router.get("/v1/datasets", responses=problems(), summary="List datasets")
async def list_datasets(
    service: ServiceDep,
    _: Reader,
    page: Paging,
    search: Annotated[str, Query(max_length=1000, description="Words to find in labels and table names.")] = "",
) -> models.Datasets:
    """Datasets are sorted from newest to oldest."""
    return models.Datasets.of(await service.run(lambda w: w.datasets(*page, search)))


@router.get("/v1/datasets/{dataset_id}", responses=problems(404), summary="Show a dataset")
async def get_dataset(dataset_id: str, service: ServiceDep, _: Reader, version: Version = None) -> models.Dataset:
    """Return the schema, data files and counts of the current version, or of another version."""
    return await service.run(lambda w: _dataset(w, dataset_id, version))


def _dataset(workspace: Workspace, dataset_id: str, version: int | None = None) -> models.Dataset:
    return models.Dataset.of_snapshot(workspace.dataset(dataset_id, version), workspace)


@router.get(
    "/v1/datasets/{dataset_id}/data",
    response_class=Response,
    responses={
        200: {"description": "One file with all rows.", "content": dict.fromkeys(_FORMATS.values(), _BINARY)},
        **problems(404, 406),
    },
    summary="Download the rows",
)
async def get_data(
    dataset_id: str,
    service: ServiceDep,
    _: Reader,
    version: Version = None,
    format: Annotated[  # noqa: A002
        Literal["csv", "parquet", "arrow"] | None,
        requests.IgnoreCase,
        Query(description="File format. Default: from `Accept`."),
    ] = None,
    accept: Accept = None,
) -> Response:
    """Download all rows of a version as one file of any size, in storage order."""
    media = _FORMATS[format] if format is not None else negotiate(accept, list(_FORMATS.values()))
    kind = next(name for name, each in _FORMATS.items() if each == media)
    data = await service.run(lambda w: w.data(dataset_id, version))
    snapshot = data.snapshot
    name = f"{snapshot.dataset.table_name}-v{snapshot.version.version}.{kind}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Row-Count": str(snapshot.version.row_count)}
    pieces = await service.run(lambda w: w.download(data, kind))
    return await stream_response(service, pieces, media, headers=headers)


@router.put("/v1/datasets/{dataset_id}", responses=problems(404, 409, 413, 415), summary="Rename a dataset")
async def update_dataset(dataset_id: str, body: requests.ChangeBody, service: ServiceDep, _: Writer) -> models.Dataset:
    """Change the label, the table name, or both."""
    if body.label is None and body.table_name is None:
        raise InvalidRequestError("The request changes nothing.", hint="Send a label, a table_name, or both.")

    def change(workspace: Workspace) -> models.Dataset:
        workspace.rename_dataset(dataset_id, body.label, body.table_name)
        return _dataset(workspace, dataset_id)

    return await service.run(change)


@router.delete("/v1/datasets/{dataset_id}", status_code=204, responses=problems(404), summary="Delete a dataset")
async def delete_dataset(dataset_id: str, service: ServiceDep, _: Writer) -> None:
    """The dataset disappears immediately. Its files are deleted after the grace period."""
    await service.run(lambda w: w.delete_dataset(dataset_id))


# -------------------------------------------------------------------------------------------------- loads and versions
@router.post(
    "/v1/datasets/{dataset_id}/loads",
    status_code=201,
    response_model=models.LoadResult,
    responses={
        200: {"model": models.LoadPlan, "description": "The plan of the load, with `dry_run`."},
        202: _ACCEPTED,
        **problems(404, 408, 409, 413, 415, 422, 507),
    },
    summary="Load rows into a dataset",
)
async def load_dataset(
    dataset_id: str, body: requests.LoadBody, service: ServiceDep, caller: Writer, preferences: Preferences
) -> Response:
    """Append rows, replace all rows, or merge rows by key. The result is a new version."""
    _require_read_scope(caller, body.source, returns_rows=body.dry_run)

    def submit(workspace: Workspace) -> SubmittedJob:
        return workspace.load(dataset_id, body.request(), **_idempotency(preferences, caller))

    def respond(job: Job) -> Response:
        if body.dry_run:
            return json_response(models.LoadPlan.of(job))
        return json_response(models.LoadResult.of(job), 201, Location=_version_url(job))

    return await _run_job(service, preferences, submit, respond)


def _version_url(job: Job) -> str:
    return f"/v1/datasets/{job.dataset_id}?version={(job.result or {})['version']}"


@router.post(
    "/v1/datasets/{dataset_id}/deletes",
    status_code=201,
    response_model=models.DeletionResult,
    responses={
        200: {"model": models.DeletionPlan, "description": "The plan of the deletion, with `dry_run`."},
        202: _ACCEPTED,
        **problems(404, 408, 409, 413, 415, 422, 507),
    },
    summary="Delete rows of a dataset",
)
async def delete_rows(
    dataset_id: str, body: requests.DeletionBody, service: ServiceDep, caller: Writer, preferences: Preferences
) -> Response:
    """Delete rows by their keys or by a condition. To undo it, restore the version before the new one."""
    if body.dry_run:
        require_scope(caller, "read")  # a plan reveals rows

    def submit(workspace: Workspace) -> SubmittedJob:
        return workspace.delete_rows(dataset_id, body.request(), **_idempotency(preferences, caller))

    def respond(job: Job) -> Response:
        if body.dry_run:
            return json_response(models.DeletionPlan.of(job))
        return json_response(models.DeletionResult.of(job), 201, Location=_version_url(job))

    return await _run_job(service, preferences, submit, respond)


@router.get("/v1/datasets/{dataset_id}/versions", responses=problems(404), summary="List versions")
async def list_versions(dataset_id: str, service: ServiceDep, _: Reader, page: Paging) -> models.Versions:
    """Versions are sorted newest first. Query one as `datasets."<table_name>@<version>"`."""
    return models.Versions.of(await service.run(lambda w: w.versions(dataset_id, *page)))


@router.get(
    "/v1/datasets/{dataset_id}/diff",
    response_model=models.Diff,
    responses={200: {"content": dict.fromkeys(_FORMATS.values(), _BINARY)}, **problems(404, 406, 408, 413, 507)},
    summary="Compare two versions",
)
async def diff_versions(
    dataset_id: str,
    service: ServiceDep,
    request: Request,
    _: Reader,
    page: Paging,
    old: Annotated[int, Query(ge=1, le=2**31 - 1, description="Version number.")],
    new: Annotated[
        int, Query(ge=1, le=2**31 - 1, description="Number of the version to compare with it. It may be older.")
    ],
    format: Annotated[  # noqa: A002
        Literal["json", "csv", "parquet", "arrow"] | None,
        requests.IgnoreCase,
        Query(description="`csv`, `parquet` and `arrow`: one file with all rows. Default: from `Accept`."),
    ] = None,
    accept: Accept = None,
) -> Response:
    """List the rows that differ between two versions. Only files and row groups that differ are read."""
    media_types: dict[Any, str] = {"json": "application/json", **_FORMATS}
    media = negotiate(accept, list(media_types.values())) if format is None else media_types[format]
    workspace = await service.workspace()
    paging = page._asdict() if media == media_types["json"] else {}
    async with cancel_on_disconnect(request):
        diff = await workspace.answer_diff(dataset_id, old, new, ANSWER_FORMATS[media], **paging)
    if paging:
        return await answer_response(service, diff.answer, media, {}, models.Diff.summary(diff, *page))
    kind = next(name for name, each in media_types.items() if each == media)
    name = f'attachment; filename="{diff.pair.name}-v{old}-v{new}.{kind}"'
    headers = answer_headers(diff.answer) | {"Content-Disposition": name}
    return await answer_response(service, diff.answer, media, headers)


@router.post(
    "/v1/datasets/{dataset_id}/restore",
    status_code=201,
    response_model=models.Dataset,
    responses={202: _ACCEPTED, **problems(404, 409, 413, 415, 422)},
    summary="Restore a version",
)
async def restore_dataset(
    dataset_id: str, body: requests.RestoreBody, service: ServiceDep, caller: Writer, preferences: Preferences
) -> Response:
    """Create a new version with the data files of an older version. No data is copied."""
    submitted = await service.run(lambda w: w.restore(dataset_id, body.version, **_idempotency(preferences, caller)))
    if preferences.is_async:
        return accepted_response(submitted.job)
    job = await wait_for_job(service, submitted)
    version = (job.result or {})["version"]
    restored = await service.run(lambda w: _dataset(w, dataset_id, version))
    return json_response(restored, 201, Location=_version_url(job))


# ------------------------------------------------------------------------------------------------------------- rejects
@router.get(
    "/v1/datasets/{dataset_id}/rejects",
    response_model=models.Rejects,
    responses={200: {"content": {_CSV: {"schema": {"type": "string"}}}}, **problems(404, 406)},
    summary="List rejected rows",
)
async def list_rejects(
    dataset_id: str,
    service: ServiceDep,
    _: Reader,
    page: Paging,
    version: Version = None,
    format: Annotated[  # noqa: A002
        Literal["json", "csv"] | None,
        requests.IgnoreCase,
        Query(description="`csv`: one file with all rejects. Default: from `Accept`."),
    ] = None,
    accept: Accept = None,
) -> Response:
    """List the source rows that a version rejected, with line, column, value and reason."""
    media_types = {"json": "application/json", "csv": _CSV}
    media = negotiate(accept, list(media_types.values())) if format is None else media_types[format]
    if media == _CSV:
        return await _all_rejects(service, dataset_id, version)
    source, rows = await service.run(lambda w: w.rejects(dataset_id, version, *page))
    has_more = page.offset + len(rows) < source.rejected_count
    paging = {"count": source.rejected_count, **page._asdict(), "has_more": has_more}
    return json_response(models.Rejects(version=source.version, rejects=[models.Reject(**r) for r in rows], **paging))


async def _all_rejects(service: Service, dataset_id: str, version: int | None) -> Response:
    source, batches = await service.run(lambda w: w.all_rejects(dataset_id, version))
    name = f'attachment; filename="{dataset_id}-v{source.version}-rejects.csv"'
    return await stream_response(service, _as_csv(batches), _CSV, headers={"Content-Disposition": name})


def _as_csv(batches: Iterator[Sequence[Mapping[str, Any]]]) -> Iterator[bytes]:
    columns = list(models.Reject.model_fields)
    yield (",".join(columns) + "\r\n").encode()
    for rows in batches:
        text = io.StringIO(newline="")
        csv.DictWriter(text, columns).writerows(rows)
        yield text.getvalue().encode(errors="surrogatepass")
