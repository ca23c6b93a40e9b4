"""Datasets: what they are called, what they hold now, and how they come and go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from inlay.catalog import garbage, jobs, records, tables, versions
from inlay.catalog.context import Context
from inlay.catalog.ids import dataset_directory, is_id
from inlay.catalog.names import name_family, table_name_from_label, validate_table_name
from inlay.catalog.records import Dataset, NewVersion, Page
from inlay.catalog.text import require_text
from inlay.errors import ConflictError, TableNameTakenError

__all__ = ["Datasets"]

_datasets = tables.datasets
_LONGEST_LABEL = 1000


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
        """Make the dataset that the job names, with version 1; use up the job's upload; end the job. All or nothing."""
        require_text(label, "label", longest=_LONGEST_LABEL)
        with self._context.write() as connection:
            job = jobs.require_running(connection, job_id, self._context)
            if job.dataset_id is None or job.kind != jobs.CREATE:
                raise ConflictError(f"The job {job_id!r} creates no dataset.")
            name = _choose_name(connection, label, table_name)
            now = self._context.now()
            first = versions.row_of(version, job.dataset_id) | {"version": 1, "created_at": now, "job_id": job_id}
            shown = ("parquet_url", "arrow_schema_json", "version", "row_count", "size_bytes")
            dataset = Dataset(
                id=job.dataset_id,
                label=label,
                schema_name="default",
                table_name=name,
                source_type=source_type,
                source_config=dict(source_config),
                created_at=now,
                updated_at=now,
                **{column: first[column] for column in shown},
            )
            connection.execute(_datasets.insert().values(**records.values(dataset), table_key=name.lower()))
            versions.insert(connection, first, version.files)
            made = {"dataset_id": dataset.id, "version": 1, "table_name": name}
            versions.conclude(connection, job, made, result, self._context)
            return dataset

    def get(self, dataset_id: str) -> Dataset:
        with self._context.read() as connection:
            return versions.find_dataset(connection, dataset_id)

    def find(self, table_name: str) -> Dataset | None:
        """The dataset with this table name, in whatever case."""
        with self._context.read() as connection:
            return _by_name(connection, table_name)

    def list(self, *, search: str = "", limit: int = 100, offset: int = 0) -> Page[Dataset]:
        """Newest first; with `search` those whose label or table name has all its words, in whatever case."""
        records.check_page(limit, offset)
        query = records.select(Dataset, _datasets).order_by(_datasets.c.created_at.desc(), _datasets.c.id)
        with self._context.read() as connection:
            if not search.strip():
                return records.page(connection, Dataset, query, limit, offset)
            matching = _matching(connection, search)
            chosen = query.where(_datasets.c.id.in_(matching[offset : offset + limit]))
            return Page(records.every(connection, Dataset, chosen), len(matching), limit, offset)

    def totals(self) -> tuple[int, int, int]:
        """How many datasets there are, and the rows and bytes of their current versions."""
        sums = (sa.func.coalesce(sa.func.sum(column), 0) for column in (_datasets.c.row_count, _datasets.c.size_bytes))
        with self._context.read() as connection:
            count, rows, size = connection.execute(sa.select(sa.func.count(), *sums).select_from(_datasets)).one()
            return int(count), int(rows), int(size)

    def table_names(self) -> Sequence[str]:
        with self._context.read() as connection:
            names = sa.select(_datasets.c.table_name).order_by(_datasets.c.table_key)
            return connection.execute(names).scalars().all()

    def suggest_table_name(self, label: str) -> str:
        """What a dataset with this label would be called now."""
        with self._context.read() as connection:
            return _choose_name(connection, label, None)

    def check_table_name(self, table_name: str) -> None:
        """Refuse a name that no new dataset could have, before any work is done for it."""
        validate_table_name(table_name)
        with self._context.read() as connection:
            _require_free(connection, table_name)

    def rename(self, dataset_id: str, *, label: str | None = None, table_name: str | None = None) -> Dataset:
        """Change the label, the table name, or both."""
        values: dict[str, Any] = {}
        if label is not None:
            values["label"] = require_text(label, "label", longest=_LONGEST_LABEL)
        if table_name is not None:
            values |= {"table_name": validate_table_name(table_name), "table_key": table_name.lower()}
        with self._context.write() as connection:
            dataset = versions.find_dataset(connection, dataset_id)
            if table_name is not None:
                _require_free(connection, table_name, but=dataset_id)
            if values:
                changed = _datasets.update().where(_datasets.c.id == dataset.id)
                connection.execute(changed.values(**values, updated_at=self._context.now()))
            return versions.find_dataset(connection, dataset_id)

    def delete(self, dataset_id: str) -> None:
        """Forget a dataset and all its versions at once; its files go when the grace period is over."""
        with self._context.write() as connection:
            dataset = versions.find_dataset(connection, dataset_id)
            for table in (tables.version_files, tables.dataset_versions):
                connection.execute(table.delete().where(table.c.dataset_id == dataset.id))
            connection.execute(_datasets.delete().where(_datasets.c.id == dataset.id))
            jobs.cancel_all(connection, dataset.id, self._context)
            now = self._context.now()
            directory = dataset_directory(dataset.id)
            garbage.schedule(connection, [directory], is_directory=True, now=now, due_at=now + self._context.grace)

    def unknown(self, dataset_ids: Iterable[str]) -> set[str]:
        """Those of these ids that name no dataset, and none that a job is making: their files are nobody's."""
        asked = {dataset_id for dataset_id in dataset_ids if is_id("dataset", dataset_id)}
        with self._context.read() as connection:
            return asked - records.known(connection, _datasets.c.id, asked) - jobs.active_datasets(connection)


def _by_name(connection: Connection, table_name: str) -> Dataset | None:
    if not table_name.isascii() or "\0" in table_name:
        return None  # PostgreSQL could not even be asked
    query = records.select(Dataset, _datasets).where(_datasets.c.table_key == table_name.lower())
    return records.first(connection, Dataset, query)


def _matching(connection: Connection, search: str) -> Sequence[str]:
    """The ids, newest first. No database folds the case of every letter as Python does."""
    words = search.casefold().split()
    columns = (_datasets.c.id, _datasets.c.label, _datasets.c.table_name)
    rows = connection.execute(sa.select(*columns).order_by(_datasets.c.created_at.desc(), _datasets.c.id))
    named = ((dataset_id, f"{label}\n{table_name}".casefold()) for dataset_id, label, table_name in rows)
    return [dataset_id for dataset_id, names in named if all(word in names for word in words)]


def _choose_name(connection: Connection, label: str, wanted: str | None) -> str:
    if wanted is not None:
        validate_table_name(wanted)
        _require_free(connection, wanted)
        return wanted
    alike = _datasets.c.table_key.startswith(name_family(label), autoescape=True)
    return table_name_from_label(
        label, set(connection.execute(sa.select(_datasets.c.table_key).where(alike)).scalars())
    )


def _require_free(connection: Connection, table_name: str, *, but: str | None = None) -> None:
    holder = _by_name(connection, table_name)
    if holder is not None and holder.id != but:
        raise TableNameTakenError(
            f"The table name {table_name!r} belongs to the dataset {holder.label!r} ({holder.id}).",
            hint="Names differ in more than the case of their letters. Choose another name, or rename that dataset.",
        )
