"""The tables of the catalog.

JSON is stored as text with ASCII escapes, because PostgreSQL's JSON types reject NUL characters and lone surrogates,
which rejected cells may contain. Times are stored in UTC without a zone, because SQLite has no zones.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect


class Utc(sa.types.TypeDecorator[datetime]):
    """A timestamp with a zone, which is returned in UTC."""

    impl = sa.TIMESTAMP
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else value.replace(tzinfo=UTC)


class JsonText(sa.types.TypeDecorator[Any]):
    """A JSON document, or NULL."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

uploads = sa.Table(
    "uploads",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("storage_url", sa.Text, nullable=False),
    sa.Column("content_type", sa.Text),
    sa.Column("content_encoding", sa.Text),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("created_at", Utc, nullable=False),
    sa.Column("consumed_at", Utc),
    sa.Index("ix_uploads_status", "status", "created_at"),
)

datasets = sa.Table(
    "datasets",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("schema_name", sa.Text, nullable=False, server_default="default"),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("parquet_url", sa.Text, nullable=False),
    sa.Column("arrow_schema_json", sa.Text, nullable=False),
    sa.Column("source_type", sa.Text, nullable=False),
    sa.Column("source_config", JsonText, nullable=False),
    sa.Column("created_at", Utc, nullable=False),
    sa.Column("updated_at", Utc, nullable=False),
    sa.Column("table_key", sa.Text, nullable=False),  # lower-case table_name
    sa.Column("version", sa.BigInteger, nullable=False),  # current version
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("schema_name", "table_name"),
    sa.UniqueConstraint("schema_name", "table_key"),
)

dataset_versions = sa.Table(
    "dataset_versions",
    metadata,
    sa.Column("dataset_id", sa.Text, sa.ForeignKey("datasets.id"), primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("operation", sa.Text, nullable=False),
    sa.Column("strategy", sa.Text),
    sa.Column("inserted", sa.BigInteger, nullable=False),
    sa.Column("updated", sa.BigInteger, nullable=False),
    sa.Column("deleted", sa.BigInteger, nullable=False),
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("file_count", sa.BigInteger, nullable=False),
    sa.Column("parquet_url", sa.Text, nullable=False),
    sa.Column("manifest_path", sa.Text),
    sa.Column("arrow_schema_json", sa.Text, nullable=False),
    sa.Column("source", JsonText, nullable=False),
    sa.Column("rejected_count", sa.BigInteger, nullable=False),
    sa.Column("reject_files", JsonText, nullable=False),
    sa.Column("created_at", Utc, nullable=False),
    sa.Column("job_id", sa.Text, nullable=False),
    sa.Column("key_columns", JsonText, nullable=False, server_default="[]"),
    sa.Column("transaction", sa.Text),
    sa.Column("restores", sa.BigInteger),
    sa.Column("damaged", sa.Boolean, nullable=False, server_default=sa.false()),
)

version_files = sa.Table(
    "version_files",
    metadata,
    sa.Column("dataset_id", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.ForeignKeyConstraint(["dataset_id", "version"], ["dataset_versions.dataset_id", "dataset_versions.version"]),
)

views = sa.Table(
    "views",
    metadata,
    sa.Column("dataset_id", sa.Text, sa.ForeignKey("datasets.id"), primary_key=True),
    sa.Column("format", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger),
    sa.Column("oldest", sa.BigInteger, nullable=False),
    sa.Column("newest", sa.BigInteger, nullable=False),
    sa.Column("problem", sa.Text),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("dataset_id", sa.Text),
    sa.Column("upload_id", sa.Text),
    sa.Column("writes", sa.Boolean, nullable=False),
    sa.Column("request", JsonText, nullable=False),
    sa.Column("request_hash", sa.Text, nullable=False),
    sa.Column("key_scope", sa.Text, nullable=False),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("progress", JsonText),
    sa.Column("result", JsonText),
    sa.Column("error", JsonText),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("lease_until", Utc, nullable=False),
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.Column("created_at", Utc, nullable=False),
    sa.Column("started_at", Utc),
    sa.Column("finished_at", Utc),
    sa.CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="state"),
    sa.UniqueConstraint("key_scope", "idempotency_key"),
    sa.Index("ix_jobs_created_at", "created_at"),
    sa.Index("ix_jobs_dataset_id", "dataset_id"),
)
_claims = sa.text("state IN ('queued', 'running')")
_writing = sa.text("state = 'running' AND writes")
sa.Index("uq_jobs_claimed_upload", jobs.c.upload_id, unique=True, sqlite_where=_claims, postgresql_where=_claims)
sa.Index("uq_jobs_written_dataset", jobs.c.dataset_id, unique=True, sqlite_where=_writing, postgresql_where=_writing)
sa.Index("ix_jobs_active", jobs.c.owner, sqlite_where=_claims, postgresql_where=_claims)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("secret_hash", sa.Text, nullable=False),
    sa.Column("scopes", JsonText, nullable=False),
    sa.Column("created_at", Utc, nullable=False),
    sa.Column("last_used_at", Utc),
    sa.Column("revoked_at", Utc),
)

garbage = sa.Table(
    "garbage",
    metadata,
    sa.Column("path", sa.Text, primary_key=True),  # relative to the storage root
    sa.Column("is_directory", sa.Boolean, nullable=False),
    sa.Column("created_at", Utc, nullable=False),
    sa.Column("due_at", Utc, nullable=False),
    sa.Index("ix_garbage_due_at", "due_at"),
)

identity = sa.Table("identity", metadata, sa.Column("id", sa.Text, primary_key=True))  # one row: the catalog's id
