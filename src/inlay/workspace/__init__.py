"""All operations of the service, for HTTP, the command line and the web page.

with Workspace(Settings.load()) as workspace:
    with workspace.receive("text/csv") as upload:
        upload.write(b"id,name\\n1,ann\\n")
        stored = upload.finish()
    workspace.create_dataset(NewDataset("People", Source(upload_id=stored.id))).wait()
    workspace.query("SELECT * FROM datasets.people")
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal

from inlay.catalog import Catalog, Dataset, Job, Page, Snapshot, Upload, Version, new_id
from inlay.catalog.database import require_text
from inlay.catalog.uploads import UploadStatus
from inlay.conditions import parse_condition
from inlay.constants import JobState
from inlay.engines.spark.session import ServiceSession
from inlay.errors import InlayError, InvalidArgumentError, QueryFailedError, QueryTimeoutError, error_from_dict
from inlay.pipeline import Preview, read_rejects, scan_rejects
from inlay.query import Answer, Format, QueryEngine, QueryResult
from inlay.query.deadlines import StorageChecks
from inlay.settings import Settings
from inlay.workspace.conversions import Conversions
from inlay.workspace.data import Data, DatasetTables
from inlay.workspace.diffs import Diff, Diffs, DiffSample
from inlay.workspace.health import Check, require_answer, states
from inlay.workspace.key_columns import KeyAdvice, advise_keys
from inlay.workspace.maintenance import Maintenance
from inlay.workspace.requests import Deletion, Inline, Load, NewColumn, NewDataset, Source, column_overrides
from inlay.workspace.runner import JobHandle, JobRunner, Work, cancelled_error
from inlay.workspace.services import About, Services, Spark, about
from inlay.workspace.sources import Sources
from inlay.workspace.storage import ServiceStorage, UploadWriter, require_size
from inlay.workspace.storage_faults import DiskReserve, find_fault, storage_faults
from inlay.workspace.views import Publisher

__all__ = [
    "Deletion",
    "Diff",
    "Inline",
    "Load",
    "NewColumn",
    "NewDataset",
    "Source",
    "SubmittedJob",
    "Workspace",
    "require_success",
]

_SHUTDOWN_SECONDS = 20.0
_POLL_SECONDS = 0.1
_HEALTH_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job that was submitted now or, with the same idempotency key, before."""

    job: Job
    get_job: Callable[[str], Job]
    future: Future[Job] | None = None  # None if another process runs the job, or if it has ended

    def wait(self) -> Job:
        """Wait until the job has succeeded, or raise its error."""
        if self.future is not None:
            return self.future.result()
        job = self.job
        while not job.has_ended:
            time.sleep(_POLL_SECONDS)
            job = self.get_job(job.id)
        return require_success(job)


def require_success(job: Job) -> Job:
    """Return the job, or raise its error if it failed or was canceled."""
    if job.error is not None:
        raise error_from_dict(job.error)
    if job.state == "cancelled":
        raise cancelled_error(job.id)
    return job


class Workspace:
    """Uploads, datasets, queries and jobs over one catalog and one storage."""

    def __init__(self, settings: Settings, warm_spark: Callable[[], object] | None = None) -> None:
        """Prepare a workspace.

        Args:
            warm_spark: Lets the main process of the service start Spark. A workspace with this function belongs to
                another HTTP process of the service: it answers reads and queries and receives uploads, but runs no
                jobs, no maintenance and no Spark.
        """
        self.settings = settings
        self._is_main = warm_spark is None
        settings.create_data_dir()
        catalog = Catalog(
            settings.catalog,
            lease=timedelta(seconds=settings.lease_seconds),
            grace=timedelta(seconds=settings.delete_grace_seconds),
            statement_seconds=settings.catalog_timeout_seconds,
        )
        storage = ServiceStorage(settings.storage, settings.storage_timeout_seconds)
        self.query_engine = QueryEngine(
            DatasetTables(catalog, storage),
            spill_dir=settings.data_path / "spill",
            timeout_seconds=settings.query_timeout_seconds,
            memory_limit_bytes=settings.query_memory_bytes,
            spill_limit_bytes=settings.query_spill_bytes,
            disk_reserve_bytes=settings.disk_reserve_bytes,
            max_rows=settings.query_max_rows,
            finds_quickly=catalog.is_local,
            table_cache_bytes=settings.query_table_cache_bytes // settings.http_processes,
            result_cache_bytes=settings.query_result_cache_bytes // settings.http_processes,
            processes=settings.http_processes,
            storage_checks=lambda: StorageChecks(
                Check(storage.require_readable).start, settings.storage_timeout_seconds
            ),
        )
        self.catalog, self.storage = catalog, storage
        session = ServiceSession(
            settings.worker_memory_bytes,
            uses_s3=not storage.root.store.is_local,
            directory=self.query_engine.directory,
        )
        self.spark = Spark(settings.spark_master, session, settings.spark_idle_seconds)
        self.publisher = Publisher(catalog, storage, settings.publish)
        self._services = Services(settings, catalog, storage, self.spark, self.query_engine, self.publisher)
        self._sources = Sources(self._services)
        self._conversions = Conversions(self._services, self._sources)
        self._diffs = Diffs(catalog, storage, self.query_engine)
        self._maintenance = Maintenance(self._services)
        self._runner: JobRunner | None = None
        local = [storage.root.path] if storage.root.store.is_local else []
        self._disk = DiskReserve([settings.data_path, *local], settings.disk_reserve_bytes)
        self._checks: dict[str, Check[Any]] = {
            "spark": Check(self.spark.state),
            "catalog": Check(catalog.check),
            "storage": Check(storage.prepare),
        }
        if not self._is_main:
            self._checks = {"catalog": Check(catalog.check), "storage": Check(storage.require_readable)}
        self._warm_spark = warm_spark

    # ------------------------------------------------------------------------------------------------------ lifecycle
    def open(self, *, warm: bool = True) -> Workspace:
        """Migrate the catalog, check the storage, and start the job runner. Spark starts with the first work."""
        require_answer(self.catalog)
        if self._is_main:
            self._open_main()
        self._maintenance.start(queries_only=not self._is_main)
        if warm:
            threading.Thread(target=self.query_engine.warm, name="inlay-query", daemon=True).start()
        return self

    def _open_main(self) -> None:
        """Do what only one process of a service does."""
        self.catalog.migrate()
        self.storage.prepare()
        self.storage.claim(self.catalog.identity)
        settings = self.settings
        self._runner = JobRunner(self.catalog, threads=settings.concurrent_jobs, lease_seconds=settings.lease_seconds)

    def close(self) -> None:
        """Wait for running jobs for a while, then stop everything that `open` started."""
        if self._runner is not None:
            self._runner.close(_SHUTDOWN_SECONDS)
        self._maintenance.close()
        self.spark.close()
        self.query_engine.close()  # deletes the directory of Spark's temporary data
        self.catalog.close()

    def __enter__(self) -> Workspace:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def health(self) -> dict[str, str]:
        """Return the state of each part within 2 seconds: `ready`, the reason why it is not, or `no answer`.

        Spark can also be `not started`.
        """
        return states(self._checks, _HEALTH_SECONDS)

    def about(self) -> About:
        """Return versions, backends and totals of the workspace."""
        return about(self._services)

    # -------------------------------------------------------------------------------------------------------- uploads
    def receive(
        self, content_type: str | None = None, content_encoding: str | None = None, size: int | None = None
    ) -> UploadWriter:
        """Return a writer for a new upload, or raise if its known `size` exceeds the limit."""
        require_size(size or 0, self.settings.max_upload_bytes)
        (self._warm_spark or self.spark.warm)()  # Spark starts while the upload arrives
        return UploadWriter(
            self.catalog, self.storage, self.settings.max_upload_bytes, content_type, content_encoding, self._writing
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Require free disk space, and raise failures of the storage as errors of the storage."""
        with storage_faults(self.storage):
            self._disk.require()
            yield

    def _require_space(self) -> None:
        with self._writing():
            pass

    def uploads(self, status: UploadStatus = "pending", limit: int = 100, offset: int = 0) -> Page[Upload]:
        return self.catalog.uploads.list(status=status, limit=limit, offset=offset)

    def upload(self, upload_id: str) -> Upload:
        return self.catalog.uploads.get(upload_id)

    def expires_at(self, upload: Upload) -> datetime | None:
        """Return when maintenance deletes an upload, or None if a dataset has consumed it."""
        is_pending = upload.status == "pending"
        return upload.created_at + timedelta(seconds=self.settings.upload_expiry_seconds) if is_pending else None

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
        """Read the first rows of an upload, typed like `dataset_id` if set.

        A preview detects the format if it is unknown. Creating and loading require the format.
        """
        like = None if dataset_id is None else self.catalog.datasets.get(dataset_id).schema
        with storage_faults(self.storage):
            return self._sources.preview(upload_id, format, options or {}, columns, like)

    # ------------------------------------------------------------------------------------------------------- datasets
    def create_dataset(
        self, request: NewDataset, *, idempotency_key: str | None = None, scope: str = ""
    ) -> SubmittedJob:
        """Create a dataset from a source."""
        self._require_space()
        request.source.check(self.settings.max_inline_bytes)
        column_overrides(request.columns)
        if not request.label.strip():
            raise InvalidArgumentError("The label is empty.", hint="Enter a short description of the data.")
        require_text(request.label, "The label")
        if request.table_name is not None and not self.catalog.jobs.knows_key(idempotency_key, scope):
            # A repeated request may name the table that it created.
            self.catalog.datasets.check_table_name(request.table_name)
        self._sources.check_readable(request.source)
        return self._submit(
            "create", request.as_json(), lambda handle: self._conversions.create(request, handle),
            dataset_id=new_id("dataset"), upload_id=request.source.upload_id,
            idempotency_key=idempotency_key, scope=scope,
        )  # fmt: skip

    def datasets(self, limit: int = 100, offset: int = 0, search: str = "") -> Page[Dataset]:
        return self.catalog.datasets.list(search=search, limit=limit, offset=offset)

    def row_counts(self, dataset_ids: Sequence[str], limit: int = 20) -> dict[str, Sequence[int]]:
        """Return the row counts of the last `limit` versions of each dataset, oldest first."""
        return self.catalog.versions.row_counts(dataset_ids, limit=limit)

    def suggest_table_name(self, label: str) -> str:
        """Return the table name that a new dataset with this label would get."""
        return self.catalog.datasets.suggest_table_name(label)

    def dataset(self, dataset_id: str, version: int | None = None) -> Snapshot:
        return self.catalog.versions.snapshot(dataset_id, version)

    def data(self, dataset_id: str, version: int | None = None) -> Data:
        """Return the rows of a version, which are read lazily."""
        return Data(self.catalog.versions.snapshot(dataset_id, version), self.storage)

    def rename_dataset(self, dataset_id: str, label: str | None = None, table_name: str | None = None) -> Dataset:
        return self.catalog.datasets.rename(dataset_id, label=label, table_name=table_name)

    def delete_dataset(self, dataset_id: str) -> None:
        self.catalog.datasets.delete(dataset_id)

    def rejects(
        self, dataset_id: str, version: int | None = None, limit: int = 100, offset: int = 0
    ) -> tuple[Version, list[dict[str, Any]]]:
        """Return a version and one page of the source rows that it rejected."""
        source = self.catalog.versions.get(dataset_id, version)
        with storage_faults(self.storage):
            return source, read_rejects(self.storage.root, source.reject_files, offset, limit)

    def all_rejects(
        self, dataset_id: str, version: int | None = None
    ) -> tuple[Version, Iterator[list[dict[str, Any]]]]:
        """Return a version and all the source rows that it rejected, in batches."""
        source = self.catalog.versions.get(dataset_id, version)

        def scan() -> Iterator[list[dict[str, Any]]]:
            with storage_faults(self.storage):
                yield from scan_rejects(self.storage.root, source.reject_files)

        return source, scan()

    def download(self, data: Data, form: Literal["csv", "arrow", "parquet"]) -> Iterator[bytes]:
        """Yield the rows of a version as one file."""
        with storage_faults(self.storage):
            if form == "csv":
                yield from data.to_csv(self.query_engine)
            else:
                yield from data.to_arrow() if form == "arrow" else data.to_parquet()

    # ---------------------------------------------------------------------------------------------- loads and versions
    def load(
        self, dataset_id: str, request: Load, *, idempotency_key: str | None = None, scope: str = ""
    ) -> SubmittedJob:
        """Append, replace or merge rows; with `dry_run`, plan the load."""
        self._require_space()
        request.check()
        request.source.check(self.settings.max_inline_bytes)
        self._sources.check_readable(request.source)
        work = self._conversions.plan if request.dry_run else self._conversions.load
        return self._submit(
            "plan" if request.dry_run else "load", request.as_json(), lambda handle: work(request, handle),
            dataset_id=dataset_id, upload_id=None if request.dry_run else request.source.upload_id,
            writes=not request.dry_run, idempotency_key=idempotency_key, scope=scope,
        )  # fmt: skip

    def delete_rows(
        self, dataset_id: str, request: Deletion, *, idempotency_key: str | None = None, scope: str = ""
    ) -> SubmittedJob:
        """Delete rows by their keys or by a condition; with `dry_run`, plan the deletion."""
        self._require_space()
        request.check()
        if request.keys:
            request.load_by_key.source.check(self.settings.max_inline_bytes)
        else:
            parse_condition(str(request.where), self.catalog.datasets.get(dataset_id).schema)
        work = self._conversions.plan_deletion if request.dry_run else self._conversions.delete
        return self._submit(
            "plan" if request.dry_run else "delete", request.as_json(), lambda handle: work(request, handle),
            dataset_id=dataset_id, writes=not request.dry_run, idempotency_key=idempotency_key, scope=scope,
        )  # fmt: skip

    def advise_keys(self, dataset_id: str) -> KeyAdvice:
        """Suggest key columns for a load."""
        return advise_keys(self.catalog, self.query_engine, dataset_id)

    def versions(self, dataset_id: str, limit: int = 100, offset: int = 0) -> Page[Version]:
        return self.catalog.versions.list(dataset_id, limit=limit, offset=offset)

    def diff(self, dataset_id: str, old: int, new: int, cancel: threading.Event | None = None) -> DiffSample:
        """Compare two versions: count the rows that differ, and read the first of each kind."""
        return self._diffs.sample(dataset_id, old, new, cancel)

    async def answer_diff(
        self, dataset_id: str, old: int, new: int, form: Format, *, offset: int = 0, limit: int | None = None
    ) -> Diff:
        """Compare two versions from an event loop, and return the encoded rows that differ."""
        return await self._diffs.answer(dataset_id, old, new, form, offset=offset, limit=limit)

    def restore(
        self, dataset_id: str, version: int, *, idempotency_key: str | None = None, scope: str = ""
    ) -> SubmittedJob:
        """Create a new version with the files of an older version. No data is copied."""
        if not self.catalog.jobs.knows_key(idempotency_key, scope):
            # After a restore, the version that it restored may expire. A repeated request still gets the earlier job.
            self.catalog.versions.get(dataset_id, version)

        return self._submit(
            "restore", {"version": version}, lambda handle: self._conversions.restore(version, handle),
            dataset_id=dataset_id, idempotency_key=idempotency_key, scope=scope,
        )  # fmt: skip

    # ---------------------------------------------------------------------------------------------------------- queries
    def query(
        self, sql: str, limit: int | None = None, timeout: float | None = None, cancel: threading.Event | None = None
    ) -> QueryResult:
        with storage_faults(self.storage):
            return self.query_engine.run(sql, limit=limit, timeout=timeout, cancel=cancel)

    async def answer(self, sql: str, form: Format, limit: int | None = None, timeout: float | None = None) -> Answer:
        """Run a query from an event loop, and return its encoded rows."""
        try:
            return await self.query_engine.answer(sql, form, limit=limit, timeout=timeout)
        except (QueryFailedError, QueryTimeoutError) as error:
            fault = await asyncio.to_thread(find_fault, error, self.storage)
            if fault is None:
                raise
            raise fault from error

    def encode(self, answer: Answer, form: Format, summary: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        """Yield the encoded rows of an answer that has many rows. In JSON, a summary comes before them."""
        return self.query_engine.encode_answer(answer, form, summary)

    # ------------------------------------------------------------------------------------------------------------- jobs
    def job(self, job_id: str) -> Job:
        return self.catalog.jobs.get(job_id)

    def jobs(
        self, state: JobState | None = None, dataset_id: str | None = None, limit: int = 100, offset: int = 0
    ) -> Page[Job]:
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
        work: Work,
        *,
        dataset_id: str,
        upload_id: str | None = None,
        writes: bool = True,
        idempotency_key: str | None,
        scope: str,
    ) -> SubmittedJob:
        if self._runner is None:
            raise InlayError("The workspace is not open.", hint="Call open() before submitting jobs.")

        def guarded(handle: JobHandle) -> Mapping[str, Any] | None:
            writes_files = kind != "restore"
            watch = self._disk.watch(handle.stop) if writes_files else contextlib.nullcontext()
            with storage_faults(self.storage), watch:
                result = work(handle)
            if writes:
                self.publisher.update(dataset_id)
            return result

        with self._runner.admission():
            submission = self.catalog.jobs.create(
                kind, request, dataset_id=dataset_id, upload_id=upload_id, writes=writes,
                idempotency_key=idempotency_key, scope=scope,
            )  # fmt: skip
            job = submission.job
            future = self._runner.submit(job, guarded) if submission.is_new else self._runner.future(job.id)
            return SubmittedJob(job, self.job, future)
