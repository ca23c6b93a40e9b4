"""JSON responses of the HTTP API; the OpenAPI document is generated from them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from inlay.constants import JobState
from inlay.errors import error_from_dict
from inlay.server.problems import problem_document

if TYPE_CHECKING:
    import pyarrow as pa

    from inlay import catalog, pipeline, workspace
    from inlay.workspace import Workspace


class ResponseModel(BaseModel):
    model_config = ConfigDict(populate_by_name=True)


class Problem(ResponseModel):
    """An error as an RFC 9457 problem document. `type` links to the explanation of `code`."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(examples=["/docs/errors#upload_consumed"])]
    title: Annotated[str, Field(examples=["Upload consumed"])]
    status: Annotated[int, Field(examples=[400])]
    detail: Annotated[str, Field(examples=["The upload 'upld_4x7m' is already consumed."])]
    code: Annotated[str, Field(examples=["upload_consumed"])]
    hint: Annotated[str | None, Field(examples=["Each upload can be used once. Upload the file again."])] = None
    errors: Annotated[list[dict[str, Any]] | None, Field(description="Each invalid field or cell.")] = None


class Page(ResponseModel):
    count: Annotated[int, Field(description="Number of items on all pages together.")]
    limit: int
    offset: int
    has_more: bool


def _paging(page: catalog.Page[Any]) -> dict[str, Any]:
    return {"count": page.count, "limit": page.limit, "offset": page.offset, "has_more": page.has_more}


class Upload(ResponseModel):
    id: Annotated[str, Field(examples=["upld_4x7mzq2k5w3nvyrt6ahb2dce"])]
    status: Literal["pending", "consumed"]
    size_bytes: int
    content_type: str | None
    content_encoding: str | None
    created_at: datetime
    consumed_at: datetime | None
    expires_at: Annotated[
        datetime | None, Field(description="Time after which the service deletes a pending upload that no job uses.")
    ] = None

    @classmethod
    def of(cls, upload: catalog.Upload, workspace: Workspace) -> Self:
        found = cls.model_validate(upload, from_attributes=True)
        return found.model_copy(update={"expires_at": workspace.expires_at(upload)})


class Uploads(Page):
    uploads: list[Upload]

    @classmethod
    def of(cls, page: catalog.Page[catalog.Upload], workspace: Workspace) -> Self:
        return cls(uploads=[Upload.of(upload, workspace) for upload in page.items], **_paging(page))


class Column(ResponseModel):
    name: str
    type: Annotated[str, Field(examples=["decimal(10,2)"])]
    nullable: bool


class Schema(ResponseModel):
    columns: list[Column]

    @classmethod
    def of(cls, schema: pa.Schema) -> Self:
        from inlay.type_grammar import column_type_name

        return cls(columns=[Column(name=f.name, type=column_type_name(f), nullable=f.nullable) for f in schema])


class File(ResponseModel):
    url: Annotated[str, Field(description="Local path or object store URL.")]
    rows: int
    bytes: int


class View(ResponseModel):
    """The dataset as a table for other programs."""

    format: Annotated[str, Field(examples=["delta"])]
    url: Annotated[str, Field(description="Address of the table: a local path or an object store URL.")]
    version: Annotated[int | None, Field(description="Newest version in the view. None if the view has none yet.")]
    problem: Annotated[str | None, Field(description="Why the view cannot show the current version.")]


class DatasetSummary(ResponseModel):
    id: Annotated[str, Field(examples=["data_k2vq6tz3mwyx4r7n5hab2cde"])]
    label: str
    table_name: str
    status: Literal["ready"] = "ready"
    source_type: Literal["upload", "inline", "query"]
    version: int
    row_count: int
    size_bytes: int
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, dataset: catalog.Dataset) -> Self:
        return cls.model_validate(dataset, from_attributes=True)


class Datasets(Page):
    datasets: list[DatasetSummary]

    @classmethod
    def of(cls, page: catalog.Page[catalog.Dataset]) -> Self:
        return cls(datasets=[DatasetSummary.of(dataset) for dataset in page.items], **_paging(page))


class Dataset(DatasetSummary):
    """A dataset at one version: the requested version, or the current one."""

    schema_name: str
    current_version: int
    parquet_url: Annotated[str, Field(description="URL of the data file, or of a manifest that lists data files.")]
    manifest_url: Annotated[
        str | None, Field(description="URL of the manifest, which versions of older releases may lack.")
    ]
    schema_: Annotated[Schema, Field(alias="schema")]
    source_config: dict[str, Any]
    rejected_count: int
    files: list[File]
    views: Annotated[list[View], Field(description="Published views (`INLAY_PUBLISH`).")]

    @classmethod
    def of_snapshot(cls, snapshot: catalog.Snapshot, workspace: Workspace) -> Self:
        dataset, version, storage = snapshot.dataset, snapshot.version, workspace.storage
        url = workspace.publisher.address(dataset.id)
        views = workspace.publisher.views(dataset.id)
        names = ("version", "row_count", "size_bytes", "parquet_url", "rejected_count")
        return cls(
            **{name: getattr(version, name) for name in names},
            **{name: getattr(dataset, name) for name in DatasetSummary.model_fields if name not in (*names, "status")},
            schema_name=dataset.schema_name,
            manifest_url=None if version.manifest_path is None else storage.address(version.manifest_path),
            current_version=dataset.version,
            schema_=Schema.of(version.schema),
            source_config=dataset.source_config,
            files=[File(url=storage.address(file.path), rows=file.rows, bytes=file.bytes) for file in snapshot.files],
            views=[View(format=v.format, url=url, version=v.version, problem=v.problem) for v in views],
        )


class Created(ResponseModel):
    """A new dataset."""

    id: Annotated[str, Field(examples=["data_k2vq6tz3mwyx4r7n5hab2cde"])]
    label: str
    table_name: str
    status: Literal["ready"] = "ready"
    version: int
    row_count: int
    rejected_count: int
    warnings: list[str]

    @classmethod
    def of(cls, job: catalog.Job) -> Self:
        result = job.result or {}
        return cls(id=str(job.dataset_id), label=job.request["label"], **_select_fields(cls, result, "id", "label"))


class Version(ResponseModel):
    """A version of a dataset. It has the fields of `inlay.Version` of the library, with the same meaning."""

    version: int
    at: Annotated[datetime, Field(description="Time of the commit, as `created_at`.")]
    operation: Annotated[str, Field(examples=["create", "merge", "append", "overwrite", "delete", "restore"])]
    strategy: Annotated[str | None, Field(description="Strategy of the load.")]
    key_columns: Annotated[list[str], Field(description="Key columns of the load.")]
    inserted: int
    updated: int
    deleted: int
    rows: Annotated[int, Field(description="Number of rows, as `row_count`.")]
    files: Annotated[int, Field(description="Number of data files, as `file_count`.")]
    bytes: Annotated[int, Field(description="Size of the data files, as `size_bytes`.")]
    transaction: Annotated[str | None, Field(description="`Idempotency-Key` of the request.")]
    external: Annotated[bool, Field(description="Always false: other programs cannot commit to a dataset.")]
    damaged: Annotated[bool, Field(description="Whether a data file is missing or has another size.")]
    restores: Annotated[int | None, Field(description="Version whose rows a restore brought back.")]
    row_count: int
    size_bytes: int
    file_count: int
    rejected_count: int
    source: dict[str, Any]
    created_at: datetime
    job_id: str

    @classmethod
    def of(cls, version: catalog.Version) -> Self:
        return cls.model_validate(version, from_attributes=True)


class Versions(Page):
    versions: list[Version]

    @classmethod
    def of(cls, page: catalog.Page[catalog.Version]) -> Self:
        return cls(versions=[Version.of(version) for version in page.items], **_paging(page))


class QueryColumn(ResponseModel):
    name: str
    type: Annotated[str, Field(examples=["bigint"])]


class Diff(Page):
    """Rows that differ between two versions. `count` is the number of all these rows: an update has two."""

    old: int
    new: int
    key_columns: Annotated[
        list[str], Field(description="Key columns of the loads between the versions. Empty if these differ.")
    ]
    inserted: int
    updated: int
    deleted: int
    columns: list[QueryColumn]
    rows: Annotated[
        list[list[Any]],
        Field(
            description="Rows as arrays, in the order of `columns`: deletions, then updates, then insertions. The first"
            " column, `_change`, is `delete`, `update_before`, `update_after` or `insert`."
        ),
    ]

    @staticmethod
    def summary(diff: workspace.Diff, limit: int, offset: int) -> dict[str, Any]:
        """Return all fields except `rows`."""
        count = diff.row_count
        paging = {"count": count, "limit": limit, "offset": offset}
        versions = {"old": diff.pair.old, "new": diff.pair.new, "key_columns": diff.pair.key_columns}
        has_more = {"has_more": offset + diff.answer.row_count < count}
        return paging | has_more | versions | diff.counts | {"columns": diff.answer.fields["columns"]}


class Counts(ResponseModel):
    dataset_id: str
    strategy: str
    source_count: Annotated[int, Field(description="Rows in the source, including rejected rows.")]
    rejected_count: int
    inserted: int
    updated: int
    deleted: int
    unchanged: Annotated[int, Field(description="Updated rows whose values did not change.")]
    stale: Annotated[
        int, Field(description="Source rows without effect: `newer_by` found the stored rows not older.")
    ] = 0
    row_count: Annotated[int, Field(description="Rows in the dataset after the load.")]
    warnings: list[str] = []


_Counts = TypeVar("_Counts", bound=Counts)


class LoadResult(Counts):
    """The result of a load."""

    version: int
    files_rewritten: int = 0
    files_added: int | None = None
    files_removed: int | None = None
    files_kept: int | None = None
    bytes_written: int | None = None

    @classmethod
    def of(cls, job: catalog.Job) -> Self:
        return _load_response(cls, job)


class PlannedFile(ResponseModel):
    path: str
    operation: Annotated[str, Field(examples=["rewritten", "removed", "preserved"])]
    reason: str
    rows: int
    bytes: int


class ChangedCell(ResponseModel):
    column: str
    old: Any
    new: Any


class ChangedRow(ResponseModel):
    key: Annotated[dict[str, Any], Field(description="Key columns and their values.", examples=[{"id": 7}])]
    cells: Annotated[list[ChangedCell], Field(description="Cells that would change, at most 30.")]
    more_cells: Annotated[int, Field(description="Number of further cells that would change.")] = 0


class Changes(ResponseModel):
    """A sample of the rows that a load would change, at most 20 of each kind.

    Values are exact, except that text of more than 200 characters is shortened."""

    columns: Annotated[list[str], Field(description="Columns of the sample rows: key columns first, at most 30.")]
    inserted: Annotated[list[list[Any]], Field(description="Rows as arrays, in the order of `columns`.")]
    updated: Annotated[list[ChangedRow], Field(description="Rows in which at least one value would change.")]
    deleted: Annotated[list[list[Any]], Field(description="Rows as arrays, in the order of `columns`.")]


class LoadPlan(Counts):
    """The plan of a load into the current version (`dry_run`)."""

    dry_run: Literal[True] = True
    version: Annotated[int, Field(description="The version that the plan is based on.")]
    files_rewritten: int
    bytes_rewritten: int
    files: list[PlannedFile]
    changes: Changes
    kept_columns: Annotated[
        list[str], Field(description="Columns that the source lacks and that keep their values (`missing_columns`).")
    ] = []

    @classmethod
    def of(cls, job: catalog.Job) -> Self:
        return _load_response(cls, job)


class DeletionResult(ResponseModel):
    """The result of a deletion of rows. To undo it, restore the version before it."""

    dataset_id: str
    deleted: int
    row_count: Annotated[int, Field(description="Rows in the dataset after the deletion.")]
    version: int
    files_rewritten: int
    files_removed: int
    files_kept: int
    bytes_written: int

    @classmethod
    def of(cls, job: catalog.Job) -> Self:
        return cls(dataset_id=str(job.dataset_id), **_select_fields(cls, job.result or {}, "dataset_id"))


class DeletionPlan(ResponseModel):
    """The plan of a deletion from the current version (`dry_run`), with a sample of at most 20 of its rows."""

    dataset_id: str
    dry_run: Literal[True] = True
    version: Annotated[int, Field(description="The version that the plan is based on.")]
    deleted: int
    row_count: Annotated[int, Field(description="Rows in the dataset after the deletion.")]
    files_rewritten: int
    bytes_rewritten: int
    files: list[PlannedFile]
    columns: Annotated[list[str], Field(description="Columns of the sample rows, at most 30.")]
    rows: Annotated[list[list[Any]], Field(description="Rows as arrays, in the order of `columns`.")]

    @classmethod
    def of(cls, job: catalog.Job) -> Self:
        result = job.result or {}
        sample = {"columns": result["changes"]["columns"], "rows": result["changes"]["deleted"]}
        return cls(dataset_id=str(job.dataset_id), **_select_fields(cls, result | sample, "dataset_id"))


class Reject(ResponseModel):
    line: Annotated[int, Field(description="Line number in the source file, from 1.")]
    column: str | None
    value: str | None
    reason: str
    raw: str | None


class Rejects(Page):
    version: int
    rejects: list[Reject]


class QueryResult(ResponseModel):
    columns: list[QueryColumn]
    rows: Annotated[list[list[Any]], Field(description="Rows as arrays, in the order of `columns`.")]
    row_count: int
    truncated: bool
    execution_time_ms: Annotated[
        float, Field(description="Time of the run. A repeated statement returns the time of its first run.")
    ]


class Phase(ResponseModel):
    phase: Annotated[str, Field(examples=["convert", "rewrite", "commit"])]
    at: Annotated[datetime, Field(description="Start time of the phase.")]


class Progress(ResponseModel):
    phase: str
    done: int
    total: int
    phases: Annotated[list[Phase], Field(description="The last 50 phases, oldest first.")] = []


class Job(ResponseModel):
    id: Annotated[str, Field(examples=["job_h3xk7qwz5mvt2ryn6bac4def"])]
    kind: Annotated[str, Field(examples=["create", "load", "plan", "restore"])]
    state: JobState
    dataset_id: str | None
    upload_id: str | None
    cancel_requested: bool
    progress: Progress | None
    result: dict[str, Any] | None
    error: Problem | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, job: catalog.Job) -> Self:
        values = {name: getattr(job, name) for name in cls.model_fields}
        return cls.model_validate(
            values | {"error": job.error and problem_document(error_from_dict(job.error), job.error)}
        )


class Jobs(Page):
    jobs: list[Job]

    @classmethod
    def of(cls, page: catalog.Page[catalog.Job]) -> Self:
        return cls(jobs=[Job.of(job) for job in page.items], **_paging(page))


class PreviewColumn(ResponseModel):
    name: str
    type: str
    samples: list[Any]
    null_share: float
    bad_count: int


class BadCell(ResponseModel):
    line: int
    column: str | None
    value: str | None
    reason: str


class Preview(ResponseModel):
    """The first rows of an upload, as a conversion would type them."""

    format: str
    options: dict[str, Any]
    columns: list[PreviewColumn]
    rows: Annotated[list[list[Any]], Field(description="The first 50 rows as arrays, in the order of `columns`.")]
    bad_cells: list[BadCell]
    warnings: list[str]

    @classmethod
    def of(cls, preview: pipeline.Preview) -> Self:
        from inlay.type_grammar import type_name

        values = [_json_values([row[column.name] for row in preview.rows], column.type) for column in preview.columns]
        return cls(
            format=preview.format,
            options=preview.options.to_dict(),
            columns=[
                PreviewColumn(
                    name=column.name,
                    type=type_name(column.type),
                    samples=_json_values(column.samples, column.type),
                    null_share=column.null_share,
                    bad_count=column.bad_count,
                )
                for column in preview.columns
            ],
            rows=[list(row) for row in zip(*values, strict=True)],
            bad_cells=[BadCell(**cell._asdict()) for cell in preview.bad_cells],
            warnings=preview.warnings,
        )


class Health(ResponseModel):
    status: Annotated[str, Field(examples=["ok"])]


class Readiness(ResponseModel):
    status: Literal["ready", "not ready"]
    parts: Annotated[dict[str, str], Field(examples=[{"spark": "not started", "catalog": "ready", "storage": "ready"}])]


def _json_values(values: list[Any], type_: pa.DataType) -> list[Any]:
    import pyarrow as pa

    from inlay.query.values import json_values

    try:
        return json_values(pa.array(values, type_))
    except pa.ArrowTypeError:  # the preview renders dates outside Python's year range as text
        return values


def _select_fields(model: type[BaseModel], values: Mapping[str, Any], *excluded: str) -> dict[str, Any]:
    return {name: values[name] for name in model.model_fields if name in values and name not in excluded}


def _load_response(model: type[_Counts], job: catalog.Job) -> _Counts:
    fixed = {"dataset_id": str(job.dataset_id), "strategy": job.request["strategy"]}
    return model(**fixed, **_select_fields(model, job.result or {}, *fixed))
