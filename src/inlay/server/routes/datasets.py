"""Datasets: made from a source, kept current by loads, each a version to come back to."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from inlay.errors import InvalidRequestError
from inlay.server import bodies, models
from inlay.server.answers import choose, ended, json_answer, queued, streamed
from inlay.server.auth import Caller, Reader, Writer, require
from inlay.server.dependencies import Accept, How, Manner, Paging, ServiceOf, Version, problems
from inlay.server.service import Service

if TYPE_CHECKING:
    from inlay.catalog import Job
    from inlay.workspace import Ticket, Workspace

__all__ = ["router"]

router = APIRouter(tags=["datasets"])
_CSV = "text/csv"
_FORMATS = {"csv": _CSV, "parquet": "application/vnd.apache.parquet", "arrow": "application/vnd.apache.arrow.stream"}
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_ACCEPTED = {"model": models.Job, "description": "The job, with `Prefer: respond-async`."}


async def _answer(
    service: Service, how: Manner, submit: Callable[[Workspace], Ticket], then: Callable[[Job], Response]
) -> Response:
    """Start a job; answer with it, or wait for what comes of it."""
    ticket = await service.run(submit)
    return queued(ticket.job) if how.is_async else then(await ended(service, ticket))


def _idempotent(how: Manner, caller: Caller) -> dict[str, Any]:
    return {"idempotency_key": how.idempotency_key, "scope": caller.id}


def _require_reading(caller: Caller, source: bodies.SourceBody, *, shows_rows: bool = False) -> None:
    """Who asks a query, or to see rows before they are loaded, must be allowed to read as well."""
    if source.sql is not None or shows_rows:
        require(caller, "read")


# --------------------------------------------------------------------------------------------------------- one dataset
@router.post(
    "/v1/datasets",
    status_code=201,
    response_model=models.Created,
    responses={202: _ACCEPTED, **problems(404, 408, 409, 413, 415, 422)},
    summary="Create a dataset",
)
async def create_dataset(body: bodies.DatasetBody, service: ServiceOf, caller: Writer, how: How) -> Response:
    """Convert an upload, inline data or a query's result to typed Parquet."""

    _require_reading(caller, body.source)

    def answer(job: Job) -> Response:
        return json_answer(models.Created.of(job), 201, Location=f"/v1/datasets/{job.dataset_id}")

    return await _answer(service, how, lambda w: w.create_dataset(body.request(), **_idempotent(how, caller)), answer)


@router.get("/v1/datasets", responses=problems(), summary="List datasets")
async def list_datasets(
    service: ServiceOf,
    _: Reader,
    page: Paging,
    search: Annotated[str, Query(max_length=1000, description="Words of the label or the table name.")] = "",
) -> models.Datasets:
    """Newest first."""
    return models.Datasets.of(await service.run(lambda w: w.datasets(*page, search)))


@router.get("/v1/datasets/{dataset_id}", responses=problems(404), summary="Show a dataset")
async def get_dataset(dataset_id: str, service: ServiceOf, _: Reader, version: Version = None) -> models.Dataset:
    """With schema, files and counts of its current version, or of another."""
    return await service.run(lambda w: _described(w, dataset_id, version))


def _described(workspace: Workspace, dataset_id: str, version: int | None = None) -> models.Dataset:
    return models.Dataset.of_snapshot(workspace.dataset(dataset_id, version), workspace.places)


@router.get(
    "/v1/datasets/{dataset_id}/data",
    response_class=Response,
    responses={
        200: {"description": "The file.", "content": dict.fromkeys(_FORMATS.values(), _BINARY)},
        **problems(404, 406),
    },
    summary="Download the rows",
)
async def get_data(
    dataset_id: str,
    service: ServiceOf,
    _: Reader,
    version: Version = None,
    format: Annotated[Literal["csv", "parquet", "arrow"] | None, Query(description="Else `Accept` decides.")] = None,  # noqa: A002
    accept: Accept = None,
) -> Response:
    """All rows of a version in the order in which they are stored, as one file. There is no limit to its size."""
    media = _FORMATS[format] if format is not None else choose(accept, list(_FORMATS.values()))
    kind = next(name for name, each in _FORMATS.items() if each == media)
    data = await service.run(lambda w: w.data(dataset_id, version))
    found = data.snapshot
    name = f"{found.dataset.table_name}-v{found.version.version}.{kind}"
    told = {"Content-Disposition": f'attachment; filename="{name}"', "X-Row-Count": str(found.version.row_count)}
    return await streamed(service, getattr(data, f"to_{kind}")(), media, headers=told)


@router.put("/v1/datasets/{dataset_id}", responses=problems(404, 409, 413, 415), summary="Rename a dataset")
async def update_dataset(dataset_id: str, body: bodies.ChangeBody, service: ServiceOf, _: Writer) -> models.Dataset:
    """Change the label, the table name, or both."""
    if body.label is None and body.table_name is None:
        raise InvalidRequestError("There is nothing to change.", hint="Give a label, a table_name, or both.")

    def change(workspace: Workspace) -> models.Dataset:
        workspace.rename_dataset(dataset_id, body.label, body.table_name)
        return _described(workspace, dataset_id)

    return await service.run(change)


@router.delete("/v1/datasets/{dataset_id}", status_code=204, responses=problems(404), summary="Delete a dataset")
async def delete_dataset(dataset_id: str, service: ServiceOf, _: Writer) -> None:
    """It is gone at once; its files go after a while."""
    await service.run(lambda w: w.delete_dataset(dataset_id))


# -------------------------------------------------------------------------------------------------- loads and versions
@router.post(
    "/v1/datasets/{dataset_id}/loads",
    status_code=201,
    response_model=models.LoadResult,
    responses={
        200: {"model": models.LoadPlan, "description": "What would be done, with `dry_run`."},
        202: _ACCEPTED,
        **problems(404, 408, 409, 413, 415, 422),
    },
    summary="Load rows into a dataset",
)
async def load_dataset(
    dataset_id: str, body: bodies.LoadBody, service: ServiceOf, caller: Writer, how: How
) -> Response:
    """Append, replace, or merge by key. Only what must change is written, as a new version."""
    _require_reading(caller, body.source, shows_rows=body.dry_run)

    def answer(job: Job) -> Response:
        if body.dry_run:
            return json_answer(models.LoadPlan.of(job))
        return json_answer(models.LoadResult.of(job), 201, Location=_version_url(job))

    return await _answer(service, how, lambda w: w.load(dataset_id, body.request(), **_idempotent(how, caller)), answer)


def _version_url(job: Job) -> str:
    return f"/v1/datasets/{job.dataset_id}?version={(job.result or {})['version']}"


@router.get("/v1/datasets/{dataset_id}/versions", responses=problems(404), summary="List versions")
async def list_versions(dataset_id: str, service: ServiceOf, _: Reader, page: Paging) -> models.Versions:
    """Newest first. Each can be shown, queried as `datasets."<table_name>@<version>"`, and restored."""
    return models.Versions.of(await service.run(lambda w: w.versions(dataset_id, *page)))


@router.post(
    "/v1/datasets/{dataset_id}/restore",
    status_code=201,
    response_model=models.Dataset,
    responses={202: _ACCEPTED, **problems(404, 409, 413, 415, 422)},
    summary="Restore a version",
)
async def restore_dataset(
    dataset_id: str, body: bodies.RestoreBody, service: ServiceOf, caller: Writer, how: How
) -> Response:
    """Make an older version the current one, as a new version. No data moves."""
    ticket = await service.run(lambda w: w.restore(dataset_id, body.version, **_idempotent(how, caller)))
    if how.is_async:
        return queued(ticket.job)
    job = await ended(service, ticket)
    made = (job.result or {})["version"]
    restored = await service.run(lambda w: _described(w, dataset_id, made))
    return json_answer(restored, 201, Location=_version_url(job))


# ------------------------------------------------------------------------------------------------------------- rejects
@router.get(
    "/v1/datasets/{dataset_id}/rejects",
    response_model=models.Rejects,
    responses={200: {"content": {_CSV: {"schema": {"type": "string"}}}}, **problems(404, 406)},
    summary="List rejected rows",
)
async def list_rejects(
    dataset_id: str,
    service: ServiceOf,
    _: Reader,
    page: Paging,
    version: Version = None,
    format: Annotated[Literal["json", "csv"] | None, Query(description="csv: all of them, as a file.")] = None,  # noqa: A002
    accept: Accept = None,
) -> Response:
    """Rows of a version's source that did not fit, with line, column, value and reason. CSV has no pages."""
    named = {"json": "application/json", "csv": _CSV}
    media = choose(accept, list(named.values())) if format is None else named[format]
    if media == _CSV:
        return await _all_rejects(service, dataset_id, version)
    found, rows = await service.run(lambda w: w.rejects(dataset_id, version, *page))
    more = page.offset + len(rows) < found.rejected_count
    paging = {"count": found.rejected_count, **page._asdict(), "has_more": more}
    return json_answer(models.Rejects(version=found.version, rejects=[models.Reject(**r) for r in rows], **paging))


async def _all_rejects(service: Service, dataset_id: str, version: int | None) -> Response:
    found, pieces = await service.run(lambda w: w.all_rejects(dataset_id, version))
    name = f'attachment; filename="{dataset_id}-v{found.version}-rejects.csv"'
    return await streamed(service, _as_csv(pieces), _CSV, headers={"Content-Disposition": name})


def _as_csv(pieces: Iterator[Sequence[Mapping[str, Any]]]) -> Iterator[bytes]:
    columns = list(models.Reject.model_fields)
    yield (",".join(columns) + "\r\n").encode()
    for rows in pieces:
        text = io.StringIO(newline="")
        csv.DictWriter(text, columns).writerows(rows)
        yield text.getvalue().encode(errors="surrogatepass")
