"""Immutable records of the catalog, and the queries that read them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from inlay.constants import ACTIVE, JobState
from inlay.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa


def schema_to_json(schema: pa.Schema) -> str:
    columns = [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]
    return json.dumps({"columns": columns, "ipc": base64.b64encode(schema.serialize().to_pybytes()).decode()})


def schema_from_json(text: str) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(json.loads(text)["ipc"])))


_MAX_OFFSET = 2**63 - 1
_MAX_LIMIT = 1000


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
    """A dataset, with the counts and the schema of its current version."""

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
    """A data file, by its path relative to the storage root."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a managed dataset. It has every attribute of `inlay.Version`, with the same meaning."""

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
    key_columns: list[str] = field(default_factory=list)
    transaction: str | None = None
    restores: int | None = None
    damaged: bool = False  # as the last maintenance found the files

    @property
    def schema(self) -> pa.Schema:
        return schema_from_json(self.arrow_schema_json)

    @property
    def at(self) -> datetime:
        return self.created_at

    @property
    def rows(self) -> int:
        return self.row_count

    @property
    def files(self) -> int:
        return self.file_count

    @property
    def bytes(self) -> int:
        return self.size_bytes

    @property
    def external(self) -> bool:
        """Always False: other programs cannot commit to a managed dataset."""
        return False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A dataset, one of its versions and the files of that version, read in one transaction."""

    dataset: Dataset
    version: Version
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class View:
    """The state of a published view of a dataset."""

    dataset_id: str
    format: str
    version: int | None  # the newest version in the view
    oldest: int  # of the dataset's versions when the view was written
    newest: int
    problem: str | None  # why the view lacks versions: the format has no type for a column


@dataclass(frozen=True, slots=True)
class NewManifest:
    """The manifest of a version to commit, and the time in it."""

    manifest_path: str  # relative to the storage root
    parquet_url: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """A version to commit. All paths are relative to the storage root."""

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
    key_columns: Sequence[str] = ()
    transaction: str | None = None
    restores: int | None = None
    at: datetime | None = None  # the time in the manifest. None stands for the time of the commit


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    kind: str
    state: JobState
    dataset_id: str | None
    upload_id: str | None
    writes: bool
    idempotency_key: str | None
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
    """A submitted job. `is_new` is False if its idempotency key belongs to an earlier job."""

    job: Job
    is_new: bool


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The active jobs of an owner, and the active jobs that must be canceled."""

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
class NewApiKey:
    """An API key with its secret, which is not stored."""

    key: ApiKey
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class GarbageItem:
    """A file or directory to remove, relative to the storage root."""

    path: str
    is_directory: bool
    created_at: datetime
    due_at: datetime


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: tuple[T, ...]
    count: int  # items on all pages
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
    if not 1 <= limit <= _MAX_LIMIT:
        raise InvalidArgumentError(f"limit must be between 1 and {_MAX_LIMIT:,}, not {limit}.")
    if not 0 <= offset <= _MAX_OFFSET:
        raise InvalidArgumentError(f"offset must be between 0 and {_MAX_OFFSET}, not {offset}.")


def page(connection: Connection, record: Callable[..., T], query: sa.Select[Any], limit: int, offset: int) -> Page[T]:
    """Return one page of an ordered query, with the total count from the same snapshot."""
    count = connection.execute(sa.select(sa.func.count()).select_from(query.order_by(None).subquery())).scalar_one()
    return Page(every(connection, record, query.limit(limit).offset(offset)), count, limit, offset)


def values(record: _Record) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def chunks(items: Iterable[str], size: int = 500) -> Iterator[list[str]]:
    """Split items into lists that fit into the parameters of one statement."""
    ordered = sorted(items)
    return (ordered[start : start + size] for start in range(0, len(ordered), size))


def known(connection: Connection, column: sa.Column[str], items: Iterable[str]) -> set[str]:
    """Return the items that occur in a column."""
    found = (connection.execute(sa.select(column).where(column.in_(chunk))).scalars() for chunk in chunks(items))
    return {item for chunk in found for item in chunk}
