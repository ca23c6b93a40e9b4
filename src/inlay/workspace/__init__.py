"""Every use case of the service. HTTP, command line and web page are thin shells over `Workspace`.

with Workspace(Settings.load()) as workspace:
    with workspace.receive("text/csv") as upload:
        upload.write(b"id,name\\n1,ann\\n")
        stored = upload.finish()
    workspace.create_dataset(NewDataset("People", Source(upload_id=stored.id))).wait()
    workspace.query("SELECT * FROM datasets.people")
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

from inlay.catalog import Catalog, Dataset, Job, Page, Snapshot, Upload, Version, new_id
from inlay.catalog.text import require_text
from inlay.errors import InlayError, InvalidArgumentError, error_from
from inlay.pipeline import Preview, read_rejects, scan_rejects
from inlay.query import QueryEngine, QueryResult
from inlay.settings import Settings
from inlay.workspace.about import About, about
from inlay.workspace.conversions import Conversions
from inlay.workspace.data import Data
from inlay.workspace.keys import KeyAdvice, advise_keys
from inlay.workspace.maintenance import Maintenance
from inlay.workspace.places import Places
from inlay.workspace.requests import Inline, Load, NewDataset, Source, overrides_of
from inlay.workspace.runner import JobHandle, JobRunner, cancelled
from inlay.workspace.services import Services
from inlay.workspace.sources import Sources
from inlay.workspace.spark import Spark
from inlay.workspace.tables import DatasetTables
from inlay.workspace.uploads import UploadWriter, require_size

__all__ = ["Inline", "Load", "NewDataset", "Source", "Ticket", "Workspace", "require_success"]

_PATIENCE_AT_END = 20.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Ticket:
    """A job: on its way here, in another process, or long ended."""

    job: Job
    look: Callable[[str], Job]
    future: Future[Job] | None = None

    def wait(self) -> Job:
        """The ended job; raises what it failed with."""
        if self.future is not None:
            return self.future.result()
        job = self.job
        while not job.has_ended:
            time.sleep(_LOOK_SECONDS)
            job = self.look(job.id)
        return require_success(job)


def require_success(job: Job) -> Job:
    """A job that has ended well; raises what it failed with, or that it was cancelled."""
    if job.error is not None:
        raise error_from(job.error)
    if job.state == "cancelled":
        raise cancelled(job.id)
    return job


class Workspace:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        os.makedirs(settings.data_path, exist_ok=True)
        catalog = Catalog(
            settings.catalog,
            lease=timedelta(seconds=settings.lease_seconds),
            grace=timedelta(seconds=settings.delete_grace_seconds),
        )
        places = Places(settings.storage)
        self.query_engine = QueryEngine(
            DatasetTables(catalog, places),
            spill_dir=settings.data_path / "spill",
            timeout_seconds=settings.query_timeout_seconds,
            memory_limit_bytes=settings.query_memory_bytes,
            max_rows=settings.query_max_rows,
        )
        self.catalog, self.places = catalog, places
        self.spark = Spark(settings.spark_master)
        self._services = Services(settings, catalog, places, self.spark, self.query_engine)
        self._sources = Sources(self._services)
        self._conversions = Conversions(self._services, self._sources)
        self._maintenance = Maintenance(self._services)
        self._runner: JobRunner | None = None

    # --------------------------------------------------------------------------------------------------- its own life
    def open(self, *, warm: bool = True) -> Workspace:
        """Make the tables, check the storage, and begin to work; Spark and queries warm up in the background."""
        self.catalog.migrate()
        self.places.prepare()
        self.places.claim(self.catalog.identity)
        settings = self.settings
        self._runner = JobRunner(self.catalog, threads=settings.concurrent_jobs, lease_seconds=settings.lease_seconds)
        self._maintenance.start()
        if warm:
            self.spark.warm()
            threading.Thread(target=self.query_engine.warm, name="inlay-query", daemon=True).start()
        return self

    def close(self) -> None:
        """Finish what runs or give it back, then end everything that was started."""
        if self._runner is not None:
            self._runner.close(_PATIENCE_AT_END)
        self._maintenance.close()
        self.query_engine.close()
        self.spark.close()
        self.catalog.close()

    def __enter__(self) -> Workspace:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def health(self) -> dict[str, str]:
        """What answers and what does not: `ready` or the reason."""
        found = {"spark": self.spark.state()}
        for name, check in (("catalog", self.catalog.check), ("storage", self.places.prepare)):
            try:
                check()
                found[name] = "ready"
            except InlayError as error:
                found[name] = str(error)
        return found

    def about(self) -> About:
        """What this workspace stands on, and how much it holds."""
        return about(self._services)

    # -------------------------------------------------------------------------------------------------------- uploads
    def receive(
        self, content_type: str | None = None, content_encoding: str | None = None, size: int | None = None
    ) -> UploadWriter:
        """Take bytes in. Where the size is known beforehand, too large a file is refused before its first byte."""
        require_size(size or 0, self.settings.max_upload_bytes)
        return UploadWriter(self.catalog, self.places, self.settings.max_upload_bytes, content_type, content_encoding)

    def uploads(self, status: Any = "pending", limit: int = 100, offset: int = 0) -> Page[Upload]:
        return self.catalog.uploads.list(status=status, limit=limit, offset=offset)

    def upload(self, upload_id: str) -> Upload:
        return self.catalog.uploads.get(upload_id)

    def delete_upload(self, upload_id: str) -> None:
        self.catalog.uploads.delete(upload_id)

    def preview(
        self,
        upload_id: str,
        format: str | None = None,  # noqa: A002
        options: Mapping[str, Any] | None = None,
        columns: Sequence[tuple[str, str]] = (),
        dataset_id: str | None = None,
    ) -> Preview:
        """What a conversion would make of an upload's first rows, or with a dataset what a load into it would.

        Here, and only here, a format may be guessed.
        """
        like = None if dataset_id is None else self.catalog.datasets.get(dataset_id).schema
        return self._sources.preview(upload_id, format, options or {}, columns, like)

    # ------------------------------------------------------------------------------------------------------- datasets
    def create_dataset(self, request: NewDataset, *, idempotency_key: str | None = None, scope: str = "") -> Ticket:
        """Convert a source into a new dataset."""
        request.source.check(self.settings.max_inline_bytes)
        overrides_of(request.columns)
        if not request.label.strip():
            raise InvalidArgumentError("The label is empty.", hint="Say in a few words what the data is.")
        require_text(request.label, "The label")
        if request.table_name is not None and not self.catalog.jobs.knows_key(idempotency_key, scope):
            self.catalog.datasets.check_table_name(request.table_name)  # a repeated request has taken it itself
        self._sources.check_readable(request.source)
        return self._submit(
            "create", request.as_json(), lambda handle: self._conversions.create(request, handle),
            dataset_id=new_id("dataset"), upload_id=request.source.upload_id,
            idempotency_key=idempotency_key, scope=scope,
        )  # fmt: skip

    def datasets(self, limit: int = 100, offset: int = 0, search: str = "") -> Page[Dataset]:
        return self.catalog.datasets.list(search=search, limit=limit, offset=offset)

    def row_counts(self, dataset_ids: Sequence[str], most: int = 20) -> dict[str, Sequence[int]]:
        """How many rows the last versions of each dataset had, the latest at the end."""
        return self.catalog.versions.row_counts(dataset_ids, most=most)

    def suggest_table_name(self, label: str) -> str:
        """The table name that a new dataset with this label would get."""
        return self.catalog.datasets.suggest_table_name(label)

    def dataset(self, dataset_id: str, version: int | None = None) -> Snapshot:
        return self.catalog.versions.snapshot(dataset_id, version)

    def data(self, dataset_id: str, version: int | None = None) -> Data:
        """All rows of a version, or some of them, in the order in which they are stored."""
        return Data(self.catalog.versions.snapshot(dataset_id, version), self.places)

    def rename_dataset(self, dataset_id: str, label: str | None = None, table_name: str | None = None) -> Dataset:
        return self.catalog.datasets.rename(dataset_id, label=label, table_name=table_name)

    def delete_dataset(self, dataset_id: str) -> None:
        self.catalog.datasets.delete(dataset_id)

    def rejects(
        self, dataset_id: str, version: int | None = None, limit: int = 100, offset: int = 0
    ) -> tuple[Version, list[dict[str, Any]]]:
        """Rows that a version's source had and that did not fit."""
        found = self.catalog.versions.get(dataset_id, version)
        return found, read_rejects(self.places.root, found.reject_files, offset, limit)

    def all_rejects(
        self, dataset_id: str, version: int | None = None
    ) -> tuple[Version, Iterator[list[dict[str, Any]]]]:
        """The same, all of them, piece by piece."""
        found = self.catalog.versions.get(dataset_id, version)
        return found, scan_rejects(self.places.root, found.reject_files)

    # ---------------------------------------------------------------------------------------------- loads and versions
    def load(self, dataset_id: str, request: Load, *, idempotency_key: str | None = None, scope: str = "") -> Ticket:
        """Merge, append or replace; or say what that would do."""
        request.check()
        request.source.check(self.settings.max_inline_bytes)
        self._sources.check_readable(request.source)
        work = self._conversions.plan if request.dry_run else self._conversions.load
        return self._submit(
            "plan" if request.dry_run else "load", request.as_json(), lambda handle: work(request, handle),
            dataset_id=dataset_id, upload_id=None if request.dry_run else request.source.upload_id,
            writes=not request.dry_run, idempotency_key=idempotency_key, scope=scope,
        )  # fmt: skip

    def advise_keys(self, dataset_id: str) -> KeyAdvice:
        """Columns that a load by key could use."""
        return advise_keys(self.catalog, self.query_engine, dataset_id)

    def versions(self, dataset_id: str, limit: int = 100, offset: int = 0) -> Page[Version]:
        return self.catalog.versions.list(dataset_id, limit=limit, offset=offset)

    def restore(self, dataset_id: str, version: int, *, idempotency_key: str | None = None, scope: str = "") -> Ticket:
        """Make an older version the current one. No data moves."""
        self.catalog.versions.get(dataset_id, version)

        def work(handle: JobHandle) -> None:
            self.catalog.versions.restore(dataset_id, version, job_id=handle.id)

        return self._submit(
            "restore", {"version": version}, work,
            dataset_id=dataset_id, idempotency_key=idempotency_key, scope=scope,
        )  # fmt: skip

    # ---------------------------------------------------------------------------------------------------------- queries
    def query(
        self, sql: str, limit: int | None = None, timeout: float | None = None, cancel: threading.Event | None = None
    ) -> QueryResult:
        return self.query_engine.run(sql, limit=limit, timeout=timeout, cancel=cancel)

    # ------------------------------------------------------------------------------------------------------------- jobs
    def job(self, job_id: str) -> Job:
        return self.catalog.jobs.get(job_id)

    def jobs(self, state: Any = None, dataset_id: str | None = None, limit: int = 100, offset: int = 0) -> Page[Job]:
        return self.catalog.jobs.list(state=state, dataset_id=dataset_id, limit=limit, offset=offset)

    def cancel_job(self, job_id: str) -> Job:
        job = self.catalog.jobs.cancel(job_id)
        if self._runner is not None:
            self._runner.stop(job_id)
        return job

    def _submit(
        self,
        kind: str,
        request: Mapping[str, Any],
        work: Callable[[JobHandle], Mapping[str, Any] | None],
        **how: Any,
    ) -> Ticket:
        if self._runner is None:
            raise InlayError("The workspace is not open.")
        with self._runner.admission():
            submission = self.catalog.jobs.create(kind, request, **how)
            if not submission.is_new:
                return Ticket(submission.job, self.job, self._runner.future(submission.job.id))
            return Ticket(submission.job, self.job, self._runner.submit(submission.job, work))
