"""Steps that many tests of the catalog share."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from inlay.catalog import Catalog, DataFile, Dataset, Job, NewVersion, Upload, Version, dataset_directory, new_id

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("naïve", pa.decimal128(10, 2))])


def upload(catalog: Catalog, **fields: Any) -> Upload:
    fields = {"storage_url": "file:///raw", "size_bytes": 10, "content_type": "text/csv"} | fields
    return catalog.uploads.create(new_id("upload"), **fields)


def path(dataset_id: str, version: int, name: str = "data.parquet") -> str:
    return f"{dataset_directory(dataset_id)}/v{version}/{name}"


def new_version(dataset_id: str, version: int, **fields: Any) -> NewVersion:
    files = [DataFile(path(dataset_id, version), rows=version * 10, bytes=version * 100)]
    defaults = {"operation": "load", "files": files, "schema": SCHEMA, "parquet_url": f"file:///{files[0].path}"}
    return NewVersion(**(defaults | fields))


def running(catalog: Catalog, kind: str, **fields: Any) -> Job:
    """Create and start a job."""
    job = catalog.jobs.create(kind, {"kind": kind}, **fields).job
    assert catalog.jobs.start(job.id)
    return catalog.jobs.get(job.id)


def create_job(catalog: Catalog, **fields: Any) -> Job:
    return running(catalog, "create", dataset_id=new_id("dataset"), **fields)


def finish_creation(catalog: Catalog, job: Job, **fields: Any) -> Dataset:
    assert job.dataset_id is not None
    defaults = {
        "label": "Sales",
        "source_type": "upload",
        "source_config": {"upload_id": job.upload_id},
        "version": new_version(job.dataset_id, 1, operation="create", inserted=10),
    }
    return catalog.datasets.create(job_id=job.id, **(defaults | fields))


def dataset(catalog: Catalog, label: str = "Sales", **fields: Any) -> Dataset:
    return finish_creation(catalog, create_job(catalog), label=label, **fields)


def load(catalog: Catalog, dataset_id: str, **fields: Any) -> Version:
    """Build the next version: the files of the previous version and one new file."""
    job = running(catalog, "load", dataset_id=dataset_id)
    now = catalog.versions.snapshot(dataset_id)
    number = now.version.version + 1
    new = new_version(dataset_id, number, **fields)
    return catalog.versions.commit(dataset_id, number - 1, new, job_id=job.id)
