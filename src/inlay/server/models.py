"""What clients get as JSON. These classes are also the OpenAPI description."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from inlay.choices import JobState
from inlay.errors import error_from
from inlay.server.problems import problem_of

if TYPE_CHECKING:
    import pyarrow as pa

    from inlay import catalog
    from inlay.pipeline import Preview as FoundPreview
    from inlay.workspace.places import Places


class Answer(BaseModel):
    model_config = ConfigDict(populate_by_name=True)


class Problem(Answer):
    """RFC 9457. Each `code` is explained under `type`."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(examples=["/docs/errors#upload_consumed"])]
    title: Annotated[str, Field(examples=["Upload consumed"])]
    status: Annotated[int, Field(examples=[400])]
    detail: Annotated[str, Field(examples=["The upload 'upld_4x7m' has been used already."])]
    code: Annotated[str, Field(examples=["upload_consumed"])]
    hint: Annotated[str | None, Field(examples=["An upload is used once. Upload the file again."])] = None
    errors: Annotated[list[dict[str, Any]] | None, Field(description="Single fields or cells that are wrong.")] = None


class Page(Answer):
    count: Annotated[int, Field(description="Of all pages.")]
    limit: int
    offset: int
    has_more: bool


def _paging(page: catalog.Page[Any]) -> dict[str, Any]:
    return {"count": page.count, "limit": page.limit, "offset": page.offset, "has_more": page.has_more}


class Upload(Answer):
    id: Annotated[str, Field(examples=["upld_4x7mzq2k5w3nvyrt6ahb2dce"])]
    status: Literal["pending", "consumed"]
    size_bytes: int
    content_type: str | None
    content_encoding: str | None
    created_at: datetime
    consumed_at: datetime | None

    @classmethod
    def of(cls, upload: catalog.Upload) -> Self:
        return cls.model_validate(upload, from_attributes=True)


class Uploads(Page):
    uploads: list[Upload]

    @classmethod
    def of(cls, page: catalog.Page[catalog.Upload]) -> Self:
        return cls(uploads=[Upload.of(upload) for upload in page.items], **_paging(page))


class Column(Answer):
    name: str
    type: Annotated[str, Field(examples=["decimal(10,2)"])]
    nullable: bool


class Schema(Answer):
    columns: list[Column]

    @classmethod
    def of(cls, schema: pa.Schema) -> Self:
        from inlay.type_grammar import column_type_name

        return cls(columns=[Column(name=f.name, type=column_type_name(f), nullable=f.nullable) for f in schema])


class File(Answer):
    url: Annotated[str, Field(description="A path, or an address in the object store.")]
    rows: int
    bytes: int


class DatasetSummary(Answer):
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
    """A dataset as it is in one of its versions, the current one unless another was asked for."""

    schema_name: str
    current_version: int
    parquet_url: Annotated[str, Field(description="The data file, or the manifest of several.")]
    schema_: Annotated[Schema, Field(alias="schema")]
    source_config: dict[str, Any]
    rejected_count: int
    files: list[File]

    @classmethod
    def of_snapshot(cls, snapshot: catalog.Snapshot, places: Places) -> Self:
        dataset, version = snapshot.dataset, snapshot.version
        names = ("version", "row_count", "size_bytes", "parquet_url", "rejected_count")
        return cls(
            **{name: getattr(version, name) for name in names},
            **{name: getattr(dataset, name) for name in DatasetSummary.model_fields if name not in (*names, "status")},
            schema_name=dataset.schema_name,
            current_version=dataset.version,
            schema_=Schema.of(version.schema),
            source_config=dataset.source_config,
            files=[File(url=places.address(file.path), rows=file.rows, bytes=file.bytes) for file in snapshot.files],
        )


class Created(Answer):
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
        return cls(id=str(job.dataset_id), label=job.request["label"], **_chosen(cls, result, "id", "label"))


class Version(Answer):
    version: int
    operation: Annotated[str, Field(examples=["create", "load", "restore"])]
    strategy: str | None
    inserted: int
    updated: int
    deleted: int
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


class Counts(Answer):
    dataset_id: str
    strategy: str
    source_count: Annotated[int, Field(description="Rows of the source, those that were rejected among them.")]
    rejected_count: int
    inserted: int
    updated: int
    deleted: int
    unchanged: Annotated[int, Field(description="Of the updated rows those that were equal already.")]
    row_count: Annotated[int, Field(description="Rows of the dataset afterwards.")]
    warnings: list[str] = []


_Counts = TypeVar("_Counts", bound=Counts)


class LoadResult(Counts):
    """What a load did."""

    version: int
    files_rewritten: int = 0
    files_added: int | None = None
    files_removed: int | None = None
    files_kept: int | None = None
    bytes_written: int | None = None

    @classmethod
    def of(cls, job: catalog.Job) -> Self:
        return _load_answer(cls, job)


class PlannedFile(Answer):
    path: str
    operation: Annotated[str, Field(examples=["rewritten", "removed", "preserved"])]
    reason: str
    rows: int
    bytes: int


class ChangedCell(Answer):
    column: str
    old: Any
    new: Any


class ChangedRow(Answer):
    key: Annotated[dict[str, Any], Field(description="Key columns and their values.", examples=[{"id": 7}])]
    cells: Annotated[list[ChangedCell], Field(description="Those that would get another value, 30 at most.")]
    more_cells: Annotated[int, Field(description="How many more of them there are.")] = 0


class Changes(Answer):
    """Some of the rows that would change, 20 of each kind at most, out of the first places where there are any.
    What is shown is exact, but for values of more than 200 characters, which are shortened."""

    columns: Annotated[list[str], Field(description="Of whole rows: key columns first, 30 at most.")]
    inserted: Annotated[list[list[Any]], Field(description="Rows as arrays in the order of `columns`.")]
    updated: Annotated[list[ChangedRow], Field(description="Rows that would get other values than they have.")]
    deleted: Annotated[list[list[Any]], Field(description="Rows as arrays in the order of `columns`.")]


class LoadPlan(Counts):
    """What a load would do to the current version."""

    dry_run: Literal[True] = True
    version: Annotated[int, Field(description="The version that was looked at.")]
    files_rewritten: int
    bytes_rewritten: int
    files: list[PlannedFile]
    changes: Changes

    @classmethod
    def of(cls, job: catalog.Job) -> Self:
        return _load_answer(cls, job)


class Reject(Answer):
    line: Annotated[int, Field(description="The physical line of the source; the first is 1.")]
    column: str | None
    value: str | None
    reason: str
    raw: str | None


class Rejects(Page):
    version: int
    rejects: list[Reject]


class QueryColumn(Answer):
    name: str
    type: Annotated[str, Field(examples=["bigint"])]


class QueryAnswer(Answer):
    columns: list[QueryColumn]
    rows: Annotated[list[list[Any]], Field(description="Each row is an array of values in the order of `columns`.")]
    row_count: int
    truncated: bool
    execution_time_ms: float


class Phase(Answer):
    phase: Annotated[str, Field(examples=["convert", "rewrite", "commit"])]
    at: Annotated[datetime, Field(description="When it began.")]


class Progress(Answer):
    phase: str
    done: int
    total: int
    phases: Annotated[list[Phase], Field(description="What was done when, the last 50.")] = []


class Job(Answer):
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
        told = {name: getattr(job, name) for name in cls.model_fields}
        return cls.model_validate(told | {"error": job.error and problem_of(error_from(job.error), job.error)})


class Jobs(Page):
    jobs: list[Job]

    @classmethod
    def of(cls, page: catalog.Page[catalog.Job]) -> Self:
        return cls(jobs=[Job.of(job) for job in page.items], **_paging(page))


class PreviewColumn(Answer):
    name: str
    type: str
    samples: list[Any]
    null_share: float
    bad_count: int


class BadCell(Answer):
    line: int
    column: str | None
    value: str | None
    reason: str


class Preview(Answer):
    """What a conversion would make of the first rows."""

    format: str
    options: dict[str, Any]
    columns: list[PreviewColumn]
    rows: Annotated[list[list[Any]], Field(description="The first 50, as arrays in the order of `columns`.")]
    bad_cells: list[BadCell]
    warnings: list[str]

    @classmethod
    def of(cls, found: FoundPreview) -> Self:
        from inlay.type_grammar import type_name

        values = [_json_of([row[column.name] for row in found.rows], column.type) for column in found.columns]
        return cls(
            format=found.format,
            options=found.options.to_dict(),
            columns=[
                PreviewColumn(
                    name=column.name,
                    type=type_name(column.type),
                    samples=_json_of(column.samples, column.type),
                    null_share=column.null_share,
                    bad_count=column.bad_count,
                )
                for column in found.columns
            ],
            rows=[list(row) for row in zip(*values, strict=True)],
            bad_cells=[BadCell(**cell._asdict()) for cell in found.bad_cells],
            warnings=found.warnings,
        )


class Health(Answer):
    status: Annotated[str, Field(examples=["ok"])]


class Readiness(Answer):
    status: Literal["ready", "not ready"]
    parts: Annotated[dict[str, str], Field(examples=[{"spark": "starting", "catalog": "ready", "storage": "ready"}])]


# -------------------------------------------------------------------------------------------------------------- pieces
def _json_of(values: list[Any], type_: Any) -> list[Any]:
    import pyarrow as pa

    from inlay.query.cells import json_values

    try:
        return json_values(pa.array(values, type_))
    except pa.ArrowTypeError:  # dates of years that Python does not know have become text before
        return values


def _chosen(kind: type[BaseModel], told: Mapping[str, Any], *but: str) -> dict[str, Any]:
    return {name: told[name] for name in kind.model_fields if name in told and name not in but}


def _load_answer(kind: type[_Counts], job: catalog.Job) -> _Counts:
    fixed = {"dataset_id": str(job.dataset_id), "strategy": job.request["strategy"]}
    return kind(**fixed, **_chosen(kind, job.result or {}, *fixed))
