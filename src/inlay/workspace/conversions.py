"""The work of jobs that create datasets, load rows into them, and plan loads.

Spark reads, parses, types and writes rows; this module handles plans, counts and lists of files. New files become
visible when a catalog transaction commits them, and are removed if it fails.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from inlay.catalog import DataFile, NewVersion, Snapshot
from inlay.engines.spark.engine import SparkEngine
from inlay.errors import CommitStateUnknownError, SchemaMismatchError
from inlay.incremental.display import Progress, ProgressCallback
from inlay.incremental.managed import Draft, merge_draft
from inlay.incremental.validate import MergeOptions
from inlay.pipeline import Conversion, ReadOptions
from inlay.storage import Location, discard_tree
from inlay.workspace.plans import Planner
from inlay.workspace.requests import Load, NewDataset, Source, column_overrides
from inlay.workspace.runner import JobHandle
from inlay.workspace.services import Services
from inlay.workspace.sources import Sources

__all__ = ["Conversions"]


class Conversions:
    """Runs creates, loads and plans."""

    def __init__(self, services: Services, sources: Sources) -> None:
        self._services = services
        self._sources = sources

    # ------------------------------------------------------------------------------------------------------- create
    def create(self, request: NewDataset, handle: JobHandle) -> None:
        dataset_id = str(handle.job.dataset_id)
        location = self._services.storage.dataset(dataset_id)
        with self._removed_on_failure(location, ""):
            converted = self._sources.convert(
                request.source, handle, location, "v1",
                overrides=column_overrides(request.columns), on_error=request.on_error,
            )  # fmt: skip
            version = self._version(dataset_id, "v1", "create", converted, request.source, inserted=converted.rows)
            self._services.catalog.datasets.create(
                job_id=handle.id,
                label=request.label,
                table_name=request.table_name,
                source_type=request.source.type,
                source_config=self._source_config(request, converted.options),
                version=version,
                result=_source_counts(converted),
            )

    @staticmethod
    def _source_config(request: NewDataset, options: ReadOptions) -> dict[str, Any]:
        source = request.source
        origin = {"upload_id": source.upload_id} if source.upload_id else {"sql": source.sql} if source.sql else {}
        return {
            **origin,
            "original_format": options.format,
            "schema_overrides": dict(request.columns),
            "options": options.to_dict(),
        }

    # --------------------------------------------------------------------------------------------------------- load
    def load(self, request: Load, handle: JobHandle) -> None:
        snapshot = self._snapshot(handle)
        work = self._load_keyless if request.is_keyless else self._load_by_key
        directory = self._directory(snapshot, handle)
        location = self._services.storage.dataset(snapshot.dataset.id)
        with self._removed_on_failure(location, directory), _schema_hint():
            version, result = work(request, handle, snapshot, directory)
            self._services.catalog.versions.commit(
                snapshot.dataset.id, snapshot.version.version, version, job_id=handle.id, result=result
            )

    def _load_keyless(
        self, request: Load, handle: JobHandle, snapshot: Snapshot, directory: str
    ) -> tuple[NewVersion, dict[str, Any]]:
        """Append to the dataset, or replace it. The version gets the converted files."""
        dataset, old = snapshot.dataset, snapshot.version
        location = self._services.storage.dataset(dataset.id)
        converted = self._sources.convert(
            request.source, handle, location, directory, like=dataset.schema, conforms=True, on_error=request.on_error
        )
        replaces = request.strategy == "replace"
        kept = () if replaces else snapshot.files
        version = self._version(
            dataset.id, directory, request.strategy, converted, request.source,
            kept=kept, inserted=converted.rows, deleted=old.row_count if replaces else 0,
        )  # fmt: skip
        counts = {"inserted": converted.rows, "updated": 0, "deleted": version.deleted, "unchanged": 0}
        touched = {
            "files_rewritten": 0,
            "files_added": len(version.files) - len(kept),
            "files_removed": len(snapshot.files) - len(kept),
            "files_kept": len(kept),
            "bytes_written": sum(file.bytes for file in version.files[len(kept) :]),
        }
        outcome = _source_counts(converted) | {"row_count": sum(file.rows for file in version.files)}
        return version, outcome | counts | touched

    def _load_by_key(
        self, request: Load, handle: JobHandle, snapshot: Snapshot, directory: str
    ) -> tuple[NewVersion, dict[str, Any]]:
        dataset = snapshot.dataset
        with self._sources.staged(request, handle, dataset.schema) as (converted, rows):
            draft = self._draft(snapshot, directory)
            with self._services.spark.running(handle) as spark:
                options = _merge_options(request, handle)
                result = merge_draft(rows, draft, options, SparkEngine(spark), self._services.storage.options)
            rejects = self._store_rejects(dataset.id, directory, converted, handle)
        files = [
            DataFile(self._services.storage.in_storage(dataset.id, path), rows, size)
            for path, rows, size in draft.files(result)
        ]
        version = self._with_manifest(
            dataset.id,
            directory,
            NewVersion(
                operation="load",
                strategy=request.strategy,
                files=files,
                schema=dataset.schema,
                parquet_url="",
                inserted=result.inserted,
                updated=result.updated,
                deleted=result.deleted,
                source=_origin(request.source) | {"key_columns": list(request.key_columns)},
                rejected_count=converted.rejected,
                reject_files=rejects,
            ),
        )
        counts = {"inserted": result.inserted, "updated": result.updated, "deleted": result.deleted,
                  "unchanged": result.unchanged}  # fmt: skip
        touched = {
            "files_rewritten": len(result.rewritten_files),
            "files_added": len(result.inserted_files),
            "files_removed": len(result.removed_files),
            "files_kept": len(result.preserved_files),
            "bytes_written": result.bytes_written,
        }
        outcome = _source_counts(converted) | {"row_count": result.target_count_after}
        return version, outcome | counts | touched

    def plan(self, request: Load, handle: JobHandle) -> dict[str, Any]:
        """Return the plan of a load into the current version, without changing anything."""
        snapshot = self._snapshot(handle)
        storage = self._services.storage
        with (
            _schema_hint(),
            self._sources.staged(request, handle, snapshot.dataset.schema) as (converted, rows),
            self._services.spark.running(handle) as spark,
        ):
            planner = Planner(storage, snapshot, self._draft(snapshot, "plan"), SparkEngine(spark))
            if request.is_keyless:
                plan = planner.plan_keyless(request.strategy, converted, storage.scratch(handle.id))
            else:
                plan = planner.plan_by_key(_merge_options(request, handle), rows)
        return _source_counts(converted) | {"dry_run": True, "version": snapshot.version.version} | plan

    # ----------------------------------------------------------------------------------------------------- versions
    def _snapshot(self, handle: JobHandle) -> Snapshot:
        return self._services.catalog.versions.snapshot(str(handle.job.dataset_id))

    def _draft(self, snapshot: Snapshot, directory: str) -> Draft:
        storage, dataset_id = self._services.storage, snapshot.dataset.id
        files = [(storage.in_dataset(dataset_id, file.path), file.bytes) for file in snapshot.files]
        return Draft(storage.dataset(dataset_id), files, directory)

    def _directory(self, snapshot: Snapshot, handle: JobHandle) -> str:
        """Return a directory for the next version that no other attempt writes to or removes.

        A failed attempt may still be running: as Spark tasks of a killed service, or in a service that slept longer
        than its lease.
        """
        name = f"v{snapshot.version.version + 1}"
        is_first = not self._services.catalog.jobs.has_failed_writes(snapshot.dataset.id, excluded=handle.id)
        return name if is_first else f"{name}-{handle.id.removeprefix('job_')}"

    def _version(
        self,
        dataset_id: str,
        directory: str,
        operation: str,
        converted: Conversion,
        source: Source,
        *,
        kept: Sequence[DataFile] = (),
        inserted: int = 0,
        deleted: int = 0,
    ) -> NewVersion:
        storage = self._services.storage
        filled = [file for file in converted.files if file.rows]
        written = filled if filled or kept else converted.files  # a version has at least one file
        added = [DataFile(storage.in_storage(dataset_id, f.path), f.rows, f.bytes) for f in written]
        return self._with_manifest(
            dataset_id,
            directory,
            NewVersion(
                operation="create" if operation == "create" else "load",
                strategy=None if operation == "create" else operation,
                files=[*kept, *added],
                schema=converted.schema,
                parquet_url="",
                inserted=inserted,
                deleted=deleted,
                source=_origin(source),
                rejected_count=converted.rejected,
                reject_files=[storage.in_storage(dataset_id, path) for path in converted.reject_files],
            ),
        )

    def _with_manifest(self, dataset_id: str, directory: str, version: NewVersion) -> NewVersion:
        """Set the URL of a version: its only file, or a manifest that lists its files."""
        storage = self._services.storage
        if len(version.files) == 1:
            return replace(version, parquet_url=storage.address(version.files[0].path))
        path = storage.in_storage(dataset_id, f"{directory}/manifest.json")
        listed = [{"url": storage.address(f.path), "rows": f.rows, "bytes": f.bytes} for f in version.files]
        storage.remove(path)
        storage.create(path, json.dumps({"files": listed}, indent=1).encode())
        return replace(version, parquet_url=storage.address(path), manifest_path=path)

    def _store_rejects(self, dataset_id: str, directory: str, converted: Conversion, handle: JobHandle) -> list[str]:
        """Copy the rejects of a staged source into the directory of the new version."""
        storage, kept = self._services.storage, []
        for number, path in enumerate(converted.reject_files):
            name = f"{directory}/rejects/{handle.id}-{number:05d}.parquet"
            target = storage.in_storage(dataset_id, name)
            storage.copy(f"scratch/{handle.id}/{path}", target)
            kept.append(target)
        return kept

    @contextlib.contextmanager
    def _removed_on_failure(self, location: Location, directory: str) -> Iterator[None]:
        """Delete the files of a failed commit. Keep them if the outcome of the commit is unknown."""
        try:
            yield
        except CommitStateUnknownError:
            raise
        except BaseException:
            discard_tree(location.store, location.full(directory) if directory else location.path)
            raise


@contextlib.contextmanager
def _schema_hint() -> Iterator[None]:
    """Replace the hint of a schema mismatch: loads, unlike merges, cannot change the schema."""
    try:
        yield
    except SchemaMismatchError as error:
        raise SchemaMismatchError(
            error.message,
            hint="The source must have the columns of the dataset. Correct the file, or create a new dataset from it.",
        ) from error


def _merge_options(request: Load, handle: JobHandle) -> MergeOptions:
    return MergeOptions.check(
        request.strategy,
        list(request.key_columns),
        dedup_order_by=list(request.dedup_order_by) or None,
        progress=_progress_callback(handle),
    )


def _progress_callback(handle: JobHandle) -> ProgressCallback:
    def report(progress: Progress) -> None:
        handle.progress(progress.phase, progress.done, progress.total)

    return report


def _origin(source: Source) -> dict[str, Any]:
    named = {"upload_id": source.upload_id, "sql": source.sql}
    return {"type": source.type} | {name: value for name, value in named.items() if value is not None}


def _source_counts(converted: Conversion) -> dict[str, Any]:
    return {
        "row_count": converted.rows,
        "source_count": converted.rows + converted.rejected,
        "rejected_count": converted.rejected,
        "warnings": converted.warnings,
    }
