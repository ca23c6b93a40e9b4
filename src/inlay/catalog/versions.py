"""Versions of a dataset: immutable lists of files, each committed by one job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from inlay.catalog import garbage, jobs, records, tables, uploads
from inlay.catalog.database import Context
from inlay.catalog.names import dataset_directory, not_found, require_id
from inlay.catalog.records import (
    DataFile,
    Dataset,
    Job,
    NewManifest,
    NewVersion,
    Page,
    Snapshot,
    Version,
    schema_to_json,
)
from inlay.errors import ConflictError, InvalidArgumentError, NotFoundError
from inlay.settings import MAX_KEEP_DAYS

__all__ = ["Versions"]

_versions = tables.dataset_versions
_files = tables.version_files
_datasets = tables.datasets
CURRENT_COLUMNS = ("parquet_url", "arrow_schema_json", "version", "row_count", "size_bytes")  # copied to its dataset


class Versions:
    def __init__(self, context: Context) -> None:
        self._context = context

    def get(self, dataset_id: str, version: int | None = None) -> Version:
        """Return a version, by default the current one."""
        return self.snapshot(dataset_id, version).version

    def snapshot(self, dataset_id: str, version: int | None = None) -> Snapshot:
        """Return a dataset, one of its versions and the files of that version, from one snapshot."""
        with self._context.read() as connection:
            return snapshot(connection, find_dataset(connection, dataset_id), version)

    def list(self, dataset_id: str, *, limit: int = 100, offset: int = 0) -> Page[Version]:
        """List the versions of a dataset, newest first."""
        records.check_page(limit, offset)
        query = records.select(Version, _versions).where(_versions.c.dataset_id == dataset_id)
        with self._context.read() as connection:
            find_dataset(connection, dataset_id)
            return records.page(connection, Version, query.order_by(_versions.c.version.desc()), limit, offset)

    def row_counts(self, dataset_ids: Iterable[str], *, limit: int) -> dict[str, Sequence[int]]:
        """Return the row counts of the last `limit` versions of each dataset, oldest first."""
        recency = sa.func.row_number().over(partition_by=_versions.c.dataset_id, order_by=_versions.c.version.desc())
        columns = (_versions.c.dataset_id, _versions.c.version, _versions.c.row_count, recency.label("recency"))
        found: dict[str, list[int]] = {}
        with self._context.read() as connection:
            for chunk in records.chunks(dataset_ids):
                ranked = sa.select(*columns).where(_versions.c.dataset_id.in_(chunk)).subquery()
                counts = sa.select(ranked.c.dataset_id, ranked.c.row_count).where(ranked.c.recency <= limit)
                for dataset_id, rows in connection.execute(counts.order_by(ranked.c.version)):
                    found.setdefault(dataset_id, []).append(rows)
        return {dataset_id: tuple(counts) for dataset_id, counts in found.items()}

    def commit(
        self,
        dataset_id: str,
        base_version: int,
        new: NewVersion,
        *,
        job_id: str,
        result: Mapping[str, Any] | None = None,
    ) -> Version:
        """Commit a new version, consume the job's upload and end the job, atomically."""
        with self._context.write() as connection:
            job, dataset = _require_writer(connection, job_id, dataset_id, self._context)
            if dataset.version != base_version:
                raise ConflictError(
                    f"The dataset {dataset_id!r} is at version {dataset.version}, but the change is based on version "
                    f"{base_version}.",
                    hint="Another writer changed the dataset. Repeat the change on the current version.",
                )
            return _advance(connection, dataset, row_of(new, dataset_id), new.files, job, result, self._context)

    def restore(
        self,
        dataset_id: str,
        version: int,
        *,
        job_id: str,
        manifest: NewManifest | None = None,
        result: Mapping[str, Any] | None = None,
    ) -> Version:
        """Commit a new version with the files of an older version. No data is copied."""
        with self._context.write() as connection:
            job, dataset = _require_writer(connection, job_id, dataset_id, self._context)
            old = snapshot(connection, dataset, version)
            unchanged: dict[str, Any] = {"strategy": None, "inserted": 0, "updated": 0, "deleted": 0, "key_columns": []}
            clean = {"rejected_count": 0, "reject_files": []}
            origin = {"operation": "restore", "source": {"version": version}, "restores": version}
            own = {"transaction": job.idempotency_key, "at": None} | (records.values(manifest) if manifest else {})
            row = records.values(old.version) | unchanged | clean | origin | own
            return _advance(connection, dataset, row, old.files, job, result, self._context)

    def mark_damaged(self, dataset_id: str, sizes: Mapping[str, int], listed_at: datetime) -> None:
        """Mark the versions of which a data file is missing or has another size, and no other version.

        Args:
            dataset_id: The id of the dataset.
            sizes: The size of each file in the storage.
            listed_at: When the listing of these files began. Later versions are not checked.
        """
        mine = _versions.c.dataset_id == dataset_id
        joined = _versions.join(_files, (_files.c.dataset_id == dataset_id) & (_files.c.version == _versions.c.version))
        columns = (_versions.c.version, _versions.c.damaged, _files.c.path, _files.c.bytes)
        query = sa.select(*columns).select_from(joined).where(mine, _versions.c.created_at < listed_at)
        with self._context.read() as connection:
            found = connection.execute(query).all()
        damaged = {version for version, _, path, size in found if sizes.get(path) != size}
        marked = {version for version, is_marked, *_ in found if is_marked}
        for changed, value in ((damaged - marked, True), (marked - damaged, False)):
            for version in changed:
                with self._context.write() as connection:
                    this = mine & (_versions.c.version == version)
                    connection.execute(_versions.update().where(this).values(damaged=value))

    def key_columns(self, dataset_id: str) -> dict[int, tuple[Sequence[str], int | None]]:
        """Return the key columns of each version, and the version that it restores."""
        columns = (_versions.c.version, _versions.c.key_columns, _versions.c.restores)
        with self._context.read() as connection:
            found = connection.execute(sa.select(*columns).where(_versions.c.dataset_id == dataset_id))
            return {version: (keys, restores) for version, keys, restores in found}

    def expire(self, *, keep_versions: int = 10, keep_days: float = 30) -> int:
        """Delete versions beyond the last `keep_versions` that are older than `keep_days`."""
        if keep_versions < 1 or not 0 <= keep_days <= MAX_KEEP_DAYS:
            raise InvalidArgumentError(
                f"Invalid retention: keep_versions={keep_versions}, keep_days={keep_days}.",
                hint=f"Keep at least 1 version, and 0 to {MAX_KEEP_DAYS:,} days.",
            )
        before = self._context.now() - timedelta(days=keep_days)
        candidates = sa.select(_versions.c.dataset_id).group_by(_versions.c.dataset_id)
        candidates = candidates.having(sa.func.count() > keep_versions, sa.func.min(_versions.c.created_at) < before)
        with self._context.read() as connection:
            dataset_ids = connection.execute(candidates).scalars().all()
        return sum(self._expire_one(dataset_id, keep_versions, before) for dataset_id in dataset_ids)

    def _expire_one(self, dataset_id: str, keep_versions: int, before: datetime) -> int:
        mine = _versions.c.dataset_id == dataset_id
        last = sa.select(_versions.c.version).where(mine).order_by(_versions.c.version.desc()).limit(keep_versions)
        old = mine & (_versions.c.created_at < before) & _versions.c.version.not_in(last)
        with self._context.write() as connection:
            expired = connection.execute(sa.select(_versions.c.version).where(old)).scalars().all()
            paths = _paths(connection, dataset_id)
            for table in (_files, _versions):
                for version in expired:
                    rows = (table.c.dataset_id == dataset_id) & (table.c.version == version)
                    connection.execute(table.delete().where(rows))
            unneeded = paths - _paths(connection, dataset_id)
            now = self._context.now()
            garbage.schedule(connection, unneeded, is_directory=False, now=now, due_at=now + self._context.grace)
        return len(expired)

    def live_paths(self, dataset_id: str) -> set[str]:
        """Return the data files, manifests and reject files of all versions of a dataset."""
        require_id("dataset", dataset_id)
        with self._context.read() as connection:
            return _paths(connection, dataset_id)


# ------------------------------------------------------------------------------------------- within a transaction
def find_dataset(connection: Connection, dataset_id: str) -> Dataset:
    query = records.select(Dataset, _datasets).where(_datasets.c.id == require_id("dataset", dataset_id))
    dataset = records.first(connection, Dataset, query)
    if dataset is None:
        raise not_found("dataset", dataset_id)
    return dataset


def snapshot(connection: Connection, dataset: Dataset, version: int | None) -> Snapshot:
    number = dataset.version if version is None else version
    query = records.select(Version, _versions).where(
        _versions.c.dataset_id == dataset.id, _versions.c.version == number
    )
    found = records.first(connection, Version, query) if 0 < number <= dataset.version else None
    if found is None:
        raise NotFoundError(
            f"The dataset {dataset.table_name!r} has no version {number}. Its current version is {dataset.version}.",
            hint="List the versions of the dataset to see which exist. Old versions expire.",
        )
    listed = records.select(DataFile, _files).where(_files.c.dataset_id == dataset.id, _files.c.version == number)
    return Snapshot(dataset, found, records.every(connection, DataFile, listed.order_by(_files.c.position)))


def row_of(new: NewVersion, dataset_id: str) -> dict[str, Any]:
    """Return the columns of a version that do not depend on its number or job."""
    row = {name: value for name, value in records.values(new).items() if name not in ("files", "schema")}
    return row | {
        "dataset_id": dataset_id,
        "source": dict(new.source),
        "key_columns": list(new.key_columns),
        "reject_files": list(new.reject_files),
        "arrow_schema_json": schema_to_json(new.schema),
        "row_count": sum(file.rows for file in new.files),
        "size_bytes": sum(file.bytes for file in new.files),
        "file_count": len(new.files),
    }


def commit_values(row: Mapping[str, Any], number: int, job: Job, context: Context) -> dict[str, Any]:
    """Return the columns of a version. Its time is that in its manifest, if it has one."""
    values = {name: value for name, value in row.items() if name != "at"}
    return values | {"version": number, "created_at": row["at"] or context.now(), "job_id": job.id, "damaged": False}


def insert(connection: Connection, row: Mapping[str, Any], files: Sequence[DataFile]) -> None:
    """Insert a version and its files, and remove the files from the garbage."""
    _require_own_paths(row, files)
    connection.execute(_versions.insert().values(row))
    owner = {"dataset_id": row["dataset_id"], "version": row["version"]}
    listed = [owner | {"position": position} | records.values(file) for position, file in enumerate(files)]
    if listed:
        connection.execute(_files.insert(), listed)
    garbage.rescue(connection, _paths_of(row, files))


def finish_job(
    connection: Connection, job: Job, created: Mapping[str, Any], result: Mapping[str, Any] | None, context: Context
) -> None:
    """Consume the upload of a job and end the job with its result."""
    if job.upload_id is not None:
        uploads.consume(connection, job.upload_id, context=context)
    jobs.finish(connection, job.id, "succeeded", context, result={**created, **(result or {})})


def _require_writer(connection: Connection, job_id: str, dataset_id: str, context: Context) -> tuple[Job, Dataset]:
    job = jobs.require_running(connection, job_id, context)
    dataset = find_dataset(connection, dataset_id)
    if job.dataset_id != dataset_id or not job.writes:
        raise ConflictError(f"The job {job_id!r} does not write the dataset {dataset_id!r}.")
    return job, dataset


def _advance(
    connection: Connection,
    dataset: Dataset,
    row: Mapping[str, Any],
    files: Sequence[DataFile],
    job: Job,
    result: Mapping[str, Any] | None,
    context: Context,
) -> Version:
    number = dataset.version + 1
    values = commit_values(row, number, job, context)
    insert(connection, values, files)
    current = {name: values[name] for name in CURRENT_COLUMNS} | {"updated_at": values["created_at"]}
    connection.execute(_datasets.update().where(_datasets.c.id == dataset.id).values(current))
    finish_job(connection, job, {"dataset_id": dataset.id, "version": number}, result, context)
    return Version(**values)


def _paths(connection: Connection, dataset_id: str) -> set[str]:
    files = connection.execute(sa.select(_files.c.path).where(_files.c.dataset_id == dataset_id)).scalars()
    others = sa.select(_versions.c.manifest_path, _versions.c.reject_files)
    rows = connection.execute(others.where(_versions.c.dataset_id == dataset_id)).mappings()
    return set(files).union(*(_paths_of(dict(row), ()) for row in rows))


def _paths_of(row: Mapping[str, Any], files: Iterable[DataFile]) -> set[str]:
    named = {file.path for file in files} | set(row["reject_files"])
    return named | {row["manifest_path"]} if row["manifest_path"] else named


def _require_own_paths(row: Mapping[str, Any], files: Sequence[DataFile]) -> None:
    # A version owns its files: expiring it would remove a path outside the dataset's directory.
    root = dataset_directory(row["dataset_id"]) + "/"
    paths = [file.path for file in files]
    if len(set(paths)) != len(paths):
        raise InvalidArgumentError(f"The new version of {row['dataset_id']!r} lists a file twice.")
    for path in _paths_of(row, files):
        if not path.startswith(root) or ".." in path.split("/"):
            raise InvalidArgumentError(f"{path!r} is not a file of this dataset, whose directory is {root!r}.")
