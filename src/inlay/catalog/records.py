"""What the catalog gives and takes: plain values that change no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from inlay.catalog.schemas import schema_from_json
from inlay.choices import ACTIVE, JobState
from inlay.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ApiKey",
    "DataFile",
    "Dataset",
    "GarbageItem",
    "Heartbeat",
    "Job",
    "NewKey",
    "NewVersion",
    "Page",
    "Snapshot",
    "Submission",
    "Upload",
    "Version",
]

_LARGEST_OFFSET = 2**63 - 1
LONGEST_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Upload:
    id: str
    status: Literal["pending", "consumed"]
    storage_url: str
    content_type: str | None
    content_encoding: str | None
    size_bytes: int
    created_at: datetime
    consumed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset as it is now; the counts and the schema are those of its current version."""

    id: str
    label: str
    schema_name: str
    table_name: str
    parquet_url: str
    arrow_schema_json: str
    source_type: str
    source_config: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    version: int
    row_count: int
    size_bytes: int

    @property
    def schema(self) -> pa.Schema:
        return schema_from_json(self.arrow_schema_json)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file, by its path relative to the root of the storage."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Version:
    dataset_id: str
    version: int
    operation: str
    strategy: str | None
    inserted: int
    updated: int
    deleted: int
    row_count: int
    size_bytes: int
    file_count: int
    parquet_url: str
    manifest_path: str | None
    arrow_schema_json: str
    source: dict[str, Any]
    rejected_count: int
    reject_files: list[str]
    created_at: datetime
    job_id: str

    @property
    def schema(self) -> pa.Schema:
        return schema_from_json(self.arrow_schema_json)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A dataset with one of its versions and that version's files, read at one moment."""

    dataset: Dataset
    version: Version
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """What a job has made and wants to become true. All paths are relative to the root of the storage."""

    operation: str
    files: Sequence[DataFile]
    schema: pa.Schema
    parquet_url: str
    strategy: str | None = None
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    source: Mapping[str, Any] = field(default_factory=dict)
    rejected_count: int = 0
    reject_files: Sequence[str] = ()
    manifest_path: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    kind: str
    state: JobState
    dataset_id: str | None
    upload_id: str | None
    writes: bool
    request: dict[str, Any]
    progress: dict[str, Any] | None
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    owner: str
    lease_until: datetime
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def has_ended(self) -> bool:
        return self.state not in ACTIVE


@dataclass(frozen=True, slots=True)
class Submission:
    """A job, and whether it is new: an idempotency key that was used before finds its job again."""

    job: Job
    is_new: bool


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What an owner still holds, and what of it somebody wants stopped. What is missing was lost."""

    held: frozenset[str]
    cancelling: frozenset[str]


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    name: str
    scopes: list[str]
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key with its secret, which is shown once and kept nowhere."""

    key: ApiKey
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class GarbageItem:
    """A file or directory that nobody needs any more, relative to the root of the storage."""

    path: str
    is_directory: bool
    created_at: datetime
    due_at: datetime


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: tuple[T, ...]
    count: int  # of all pages
    limit: int
    offset: int

    @property
    def has_more(self) -> bool:
        return self.offset + len(self.items) < self.count


# --------------------------------------------------------------------------------------------- from rows to records
class _Record(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=_Record)


def select(record: type[_Record], table: sa.Table) -> sa.Select[Any]:
    return sa.select(*(table.c[field.name] for field in fields(record)))


def first(connection: Connection, record: Callable[..., T], query: sa.Select[Any]) -> T | None:
    row = connection.execute(query).mappings().first()
    return None if row is None else record(**row)


def every(connection: Connection, record: Callable[..., T], query: sa.Select[Any]) -> tuple[T, ...]:
    return tuple(record(**row) for row in connection.execute(query).mappings())


def check_page(limit: int, offset: int) -> None:
    if not 1 <= limit <= LONGEST_PAGE:
        raise InvalidArgumentError(f"limit is between 1 and {LONGEST_PAGE:,}, not {limit}.")
    if not 0 <= offset <= _LARGEST_OFFSET:
        raise InvalidArgumentError(f"offset is not negative and at most {_LARGEST_OFFSET}, not {offset}.")


def page(connection: Connection, record: Callable[..., T], query: sa.Select[Any], limit: int, offset: int) -> Page[T]:
    """One page of an ordered query; the total is of the same snapshot."""
    count = connection.execute(sa.select(sa.func.count()).select_from(query.order_by(None).subquery())).scalar_one()
    return Page(every(connection, record, query.limit(limit).offset(offset)), count, limit, offset)


def values(record: _Record) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def chunks(items: Iterable[str], size: int = 500) -> Iterator[list[str]]:
    """Pieces that fit into one statement's parameters."""
    ordered = sorted(items)
    return (ordered[start : start + size] for start in range(0, len(ordered), size))


def known(connection: Connection, column: sa.Column[str], items: Iterable[str]) -> set[str]:
    """Those of the items that are in this column."""
    found = (connection.execute(sa.select(column).where(column.in_(some))).scalars() for some in chunks(items))
    return {item for some in found for item in some}
