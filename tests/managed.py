"""Versions of managed datasets that tests commit without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from inlay.catalog import DataFile, NewVersion, new_id
from inlay.catalog.records import Version
from inlay.workspace import Workspace


def create(workspace: Workspace, *tables: pa.Table, label: str = "managed rows") -> str:
    """Create a dataset with one file for each table, and return its id."""
    dataset_id = new_id("dataset")
    job = workspace.catalog.jobs.create("create", {}, dataset_id=dataset_id).job
    assert workspace.catalog.jobs.start(job.id)
    files = _write(workspace, dataset_id, 1, tables)
    version = _new_version(workspace, files, tables[0].schema, operation="create")
    workspace.catalog.datasets.create(
        job_id=job.id, label=label, source_type="inline", source_config={}, version=version
    )
    return dataset_id


def commit(workspace: Workspace, dataset_id: str, *tables: pa.Table, kept: Sequence[int] = (), **facts: Any) -> Version:
    """Commit a version with some files of the current one, by position, and a new file for each table."""
    versions = workspace.catalog.versions
    now = versions.snapshot(dataset_id)
    job = workspace.catalog.jobs.create("load", {}, dataset_id=dataset_id).job
    assert workspace.catalog.jobs.start(job.id)
    number = now.version.version + 1
    files = [now.files[at] for at in kept] + _write(workspace, dataset_id, number, tables)
    schema = tables[0].schema if tables else now.version.schema
    facts = {"operation": "merge"} | facts
    return versions.commit(dataset_id, number - 1, _new_version(workspace, files, schema, **facts), job_id=job.id)


def _write(workspace: Workspace, dataset_id: str, number: int, tables: Sequence[pa.Table]) -> list[DataFile]:
    found = []
    for at, table in enumerate(tables):
        path = workspace.storage.in_storage(dataset_id, f"v{number}/part-{at:05d}.parquet")
        with workspace.storage.open_write(path) as file:
            pq.write_table(table, file, row_group_size=max(100, table.num_rows // 10))
        size = workspace.storage.root.store.stat(workspace.storage.root.full(path))
        assert size is not None
        found.append(DataFile(path, table.num_rows, size.size))
    return found


def _new_version(workspace: Workspace, files: Sequence[DataFile], schema: pa.Schema, **facts: Any) -> NewVersion:
    return NewVersion(files=files, schema=schema, parquet_url=workspace.storage.address(files[0].path), **facts)
