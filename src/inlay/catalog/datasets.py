"""Datasets: create, find, rename and delete them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from inlay.catalog import garbage, jobs, records, tables, versions
from inlay.catalog.database import Context, require_text
from inlay.catalog.lookups import Lookup
from inlay.catalog.names import dataset_directory, is_id, name_prefix, table_name_from_label, validate_table_name
from inlay.catalog.records import Dataset, NewVersion, Page
from inlay.errors import ConflictError, TableNameTakenError

__all__ = ["MAX_LABEL_LENGTH", "Datasets"]

_datasets = tables.datasets
MAX_LABEL_LENGTH = 1000
_CURRENT = Lookup(
    sa.select(_datasets.c.id, _datasets.c.version).where(_datasets.c.table_key == sa.bindparam("table_key"))
)


class Datasets:
    def __init__(self, context: Context) -> None:
        self._context = context

    def create(
        self,
        *,
        job_id: str,
        label: str,
        source_type: str,
        source_config: Mapping[str, Any],
        version: NewVersion,
        table_name: str | None = None,
        result: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Create the dataset of a job, consume the job's upload and end the job, atomically."""
        require_text(label, "label", max_length=MAX_LABEL_LENGTH)
        with self._context.write() as connection:
            job = jobs.require_running(connection, job_id, self._context)
            if job.dataset_id is None or job.kind != jobs.CREATE:
                raise ConflictError(f"The job {job_id!r} does not create a dataset.")
            name = _choose_name(connection, label, table_name)
            first = versions.commit_values(versions.row_of(version, job.dataset_id), 1, job, self._context)
            now = first["created_at"]
            dataset = Dataset(
                id=job.dataset_id,
                label=label,
                schema_name="default",
                table_name=name,
                source_type=source_type,
                source_config=dict(source_config),
                created_at=now,
                updated_at=now,
                **{column: first[column] for column in versions.CURRENT_COLUMNS},
            )
            connection.execute(_datasets.insert().values(**records.values(dataset), table_key=name.lower()))
            versions.insert(connection, first, version.files)
            created = {"dataset_id": dataset.id, "version": 1, "table_name": name}
            versions.finish_job(connection, job, created, result, self._context)
            return dataset

    def get(self, dataset_id: str) -> Dataset:
        with self._context.read() as connection:
            return versions.find_dataset(connection, dataset_id)

    def find(self, table_name: str) -> Dataset | None:
        """Return the dataset with this table name, ignoring case, or None."""
        with self._context.read() as connection:
            return _by_name(connection, table_name)

    def current_version(self, table_name: str) -> tuple[str, int] | None:
        """Return the id and the current version of the dataset with this table name, ignoring case, or None."""
        if not _can_be_name(table_name):
            return None
        row = self._context.look_up(_CURRENT, table_key=table_name.lower())
        return None if row is None else (row[0], row[1])

    def list(self, *, search: str = "", limit: int = 100, offset: int = 0) -> Page[Dataset]:
        """List datasets whose label or table name contains every term of `search`, newest first."""
        records.check_page(limit, offset)
        query = records.select(Dataset, _datasets).order_by(_datasets.c.created_at.desc(), _datasets.c.id)
        with self._context.read() as connection:
            if not search.strip():
                return records.page(connection, Dataset, query, limit, offset)
            matching = _matching(connection, search)
            selected = query.where(_datasets.c.id.in_(matching[offset : offset + limit]))
            return Page(records.every(connection, Dataset, selected), len(matching), limit, offset)

    def totals(self) -> tuple[int, int, int]:
        """Return the number of datasets, and the rows and bytes in their current versions."""
        sums = (sa.func.coalesce(sa.func.sum(column), 0) for column in (_datasets.c.row_count, _datasets.c.size_bytes))
        with self._context.read() as connection:
            count, rows, size = connection.execute(sa.select(sa.func.count(), *sums).select_from(_datasets)).one()
            return int(count), int(rows), int(size)

    def ids(self) -> Sequence[str]:
        with self._context.read() as connection:
            return connection.execute(sa.select(_datasets.c.id)).scalars().all()

    def table_names(self) -> Sequence[str]:
        with self._context.read() as connection:
            names = sa.select(_datasets.c.table_name).order_by(_datasets.c.table_key)
            return connection.execute(names).scalars().all()

    def schemas(self) -> Sequence[tuple[str, pa.Schema]]:
        """Return the table name and the current schema of each dataset, by name."""
        query = sa.select(_datasets.c.table_name, _datasets.c.arrow_schema_json).order_by(_datasets.c.table_key)
        with self._context.read() as connection:
            found = connection.execute(query).all()
        return [(name, records.schema_from_json(text)) for name, text in found]

    def suggest_table_name(self, label: str) -> str:
        """Return the table name that a new dataset with this label would get."""
        with self._context.read() as connection:
            return _choose_name(connection, label, None)

    def check_table_name(self, table_name: str) -> None:
        """Raise if a new dataset cannot have this table name."""
        validate_table_name(table_name)
        with self._context.read() as connection:
            _require_free(connection, table_name)

    def rename(self, dataset_id: str, *, label: str | None = None, table_name: str | None = None) -> Dataset:
        """Change the label, the table name, or both."""
        values: dict[str, Any] = {}
        if label is not None:
            values["label"] = require_text(label, "label", max_length=MAX_LABEL_LENGTH)
        if table_name is not None:
            values |= {"table_name": validate_table_name(table_name), "table_key": table_name.lower()}
        with self._context.write() as connection:
            dataset = versions.find_dataset(connection, dataset_id)
            if table_name is not None:
                _require_free(connection, table_name, excluded=dataset_id)
            if values:
                changed = _datasets.update().where(_datasets.c.id == dataset.id)
                connection.execute(changed.values(**values, updated_at=self._context.now()))
            return versions.find_dataset(connection, dataset_id)

    def delete(self, dataset_id: str) -> None:
        """Delete a dataset and its versions. Its files are removed after the grace period."""
        with self._context.write() as connection:
            dataset = versions.find_dataset(connection, dataset_id)
            for table in (tables.views, tables.version_files, tables.dataset_versions):
                connection.execute(table.delete().where(table.c.dataset_id == dataset.id))
            connection.execute(_datasets.delete().where(_datasets.c.id == dataset.id))
            jobs.cancel_all(connection, dataset.id, self._context)
            now = self._context.now()
            directory = dataset_directory(dataset.id)
            garbage.schedule(connection, [directory], is_directory=True, now=now, due_at=now + self._context.grace)

    def unknown(self, dataset_ids: Iterable[str]) -> set[str]:
        """Return the valid dataset ids that belong to no dataset and to no active job."""
        ids = {dataset_id for dataset_id in dataset_ids if is_id("dataset", dataset_id)}
        with self._context.read() as connection:
            return ids - records.known(connection, _datasets.c.id, ids) - jobs.active_datasets(connection)


def _can_be_name(table_name: str) -> bool:
    return table_name.isascii() and "\0" not in table_name  # PostgreSQL rejects NUL in a query


def _by_name(connection: Connection, table_name: str) -> Dataset | None:
    if not _can_be_name(table_name):
        return None
    query = records.select(Dataset, _datasets).where(_datasets.c.table_key == table_name.lower())
    return records.first(connection, Dataset, query)


def _matching(connection: Connection, search: str) -> Sequence[str]:
    """Return the ids of matching datasets, newest first. Databases do not fold every letter."""
    terms = search.casefold().split()
    columns = (_datasets.c.id, _datasets.c.label, _datasets.c.table_name)
    rows = connection.execute(sa.select(*columns).order_by(_datasets.c.created_at.desc(), _datasets.c.id))
    named = ((dataset_id, f"{label}\n{table_name}".casefold()) for dataset_id, label, table_name in rows)
    return [dataset_id for dataset_id, names in named if all(term in names for term in terms)]


def _choose_name(connection: Connection, label: str, table_name: str | None) -> str:
    if table_name is not None:
        validate_table_name(table_name)
        _require_free(connection, table_name)
        return table_name
    similar = _datasets.c.table_key.startswith(name_prefix(label), autoescape=True)
    taken = connection.execute(sa.select(_datasets.c.table_key).where(similar)).scalars()
    return table_name_from_label(label, set(taken))


def _require_free(connection: Connection, table_name: str, *, excluded: str | None = None) -> None:
    holder = _by_name(connection, table_name)
    if holder is not None and holder.id != excluded:
        raise TableNameTakenError(
            f"The table name {table_name!r} belongs to the dataset {holder.label!r} ({holder.id}).",
            hint="Choose another name, or rename that dataset. Table names are not case-sensitive.",
        )
