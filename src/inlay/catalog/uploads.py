"""Uploads: stored files, each of which can be loaded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from inlay.catalog import garbage, leases, records, tables
from inlay.catalog.database import Context, require_text
from inlay.catalog.names import is_id, not_found, require_id, upload_directory
from inlay.catalog.records import Page, Upload
from inlay.constants import ACTIVE
from inlay.errors import UploadConsumedError, UploadInUseError, unknown

__all__ = ["UploadStatus", "Uploads"]

UploadStatus = Literal["pending", "consumed", "all"]
_uploads = tables.uploads


class Uploads:
    def __init__(self, context: Context) -> None:
        self._context = context

    def create(
        self,
        upload_id: str,
        *,
        storage_url: str,
        size_bytes: int,
        content_type: str | None = None,
        content_encoding: str | None = None,
    ) -> Upload:
        """Record an upload whose bytes are stored."""
        upload = Upload(
            id=require_id("upload", upload_id),
            status="pending",
            storage_url=require_text(storage_url, "storage_url"),
            content_type=content_type and require_text(content_type, "Content-Type"),
            content_encoding=content_encoding and require_text(content_encoding, "Content-Encoding"),
            size_bytes=size_bytes,
            created_at=self._context.now(),
            consumed_at=None,
        )
        with self._context.write() as connection:
            connection.execute(_uploads.insert().values(records.values(upload)))
        return upload

    def get(self, upload_id: str) -> Upload:
        with self._context.read() as connection:
            return get(connection, upload_id)

    def list(self, *, status: UploadStatus = "pending", limit: int = 100, offset: int = 0) -> Page[Upload]:
        """List uploads, newest first."""
        records.check_page(limit, offset)
        if status not in get_args(UploadStatus):
            raise unknown("status", status, get_args(UploadStatus))
        query = records.select(Upload, _uploads).order_by(_uploads.c.created_at.desc(), _uploads.c.id)
        if status != "all":
            query = query.where(_uploads.c.status == status)
        with self._context.read() as connection:
            return records.page(connection, Upload, query, limit, offset)

    def delete(self, upload_id: str) -> None:
        """Delete a pending upload that no job uses, and schedule its file for removal."""
        leases.release_expired(self._context)
        with self._context.write() as connection:
            require_pending(connection, upload_id)
            require_unclaimed(connection, upload_id)
            connection.execute(_uploads.delete().where(_uploads.c.id == upload_id))
            now = self._context.now()
            garbage.schedule(connection, [upload_directory(upload_id)], is_directory=True, now=now, due_at=now)

    def expire(self, before: datetime) -> Sequence[str]:
        """Delete pending uploads that are older than `before` and that no job uses. Returns their ids."""
        jobs = tables.jobs
        claimed = sa.select(jobs.c.upload_id).where(jobs.c.upload_id.is_not(None), jobs.c.state.in_(ACTIVE))
        expired = (_uploads.c.status == "pending") & (_uploads.c.created_at < before) & _uploads.c.id.not_in(claimed)
        query = sa.select(_uploads.c.id).where(expired)
        with self._context.read() as connection:
            if connection.scalars(query.limit(1)).first() is None:  # so that only an expiry takes the write lock
                return ()
        with self._context.write() as connection:
            ids = connection.scalars(query).all()
            connection.execute(_uploads.delete().where(expired))
            now = self._context.now()
            garbage.schedule(connection, map(upload_directory, ids), is_directory=True, now=now, due_at=now)
            return ids

    def unknown(self, upload_ids: Iterable[str]) -> set[str]:
        """Return the valid upload ids that belong to no upload."""
        ids = {upload_id for upload_id in upload_ids if is_id("upload", upload_id)}
        with self._context.read() as connection:
            return ids - records.known(connection, _uploads.c.id, ids)


def get(connection: Connection, upload_id: str) -> Upload:
    query = records.select(Upload, _uploads).where(_uploads.c.id == require_id("upload", upload_id))
    upload = records.first(connection, Upload, query)
    if upload is None:
        raise not_found("upload", upload_id)
    return upload


def require_pending(connection: Connection, upload_id: str) -> Upload:
    upload = get(connection, upload_id)
    if upload.status != "pending":
        raise _consumed(upload_id)
    return upload


def require_unclaimed(connection: Connection, upload_id: str) -> None:
    jobs = tables.jobs
    claim = sa.select(jobs.c.id).where(jobs.c.upload_id == upload_id, jobs.c.state.in_(ACTIVE))
    job_id = connection.execute(claim).scalar()
    if job_id is not None:
        raise UploadInUseError(
            f"The upload {upload_id!r} is in use by job {job_id!r}.",
            hint="Wait for the job or cancel it. If it does not succeed, the upload can be used again.",
        )


def consume(connection: Connection, upload_id: str, *, context: Context) -> None:
    """Mark an upload as consumed, and schedule its file for removal."""
    now = context.now()
    pending = (_uploads.c.id == upload_id) & (_uploads.c.status == "pending")
    result = connection.execute(_uploads.update().where(pending).values(status="consumed", consumed_at=now))
    if result.rowcount != 1:
        raise _consumed(upload_id)
    garbage.schedule(connection, [upload_directory(upload_id)], is_directory=True, now=now, due_at=now + context.grace)


def _consumed(upload_id: str) -> UploadConsumedError:
    return UploadConsumedError(
        f"The upload {upload_id!r} is already consumed.", hint="Each upload can be used once. Upload the file again."
    )
