"""The work of jobs that create datasets, load rows into them, and plan loads.

Spark reads, parses, types and writes rows; this module handles plans, counts and lists of files. New files become
visible when a catalog transaction commits them, and are removed if it fails.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa

from inlay.catalog import DataFile, NewManifest, NewVersion, Snapshot
from inlay.commit.sidecar import Change
from inlay.engines.spark.engine import SparkEngine
from inlay.errors import CommitStateUnknownError, SchemaMismatchError
from inlay.incremental.display import Progress, ProgressCallback
from inlay.incremental.managed import Draft, delete_from_draft, merge_draft
from inlay.incremental.result import MergeResult
from inlay.incremental.validate import MergeOptions
from inlay.pipeline import Conversion, ReadOptions
from inlay.storage import Location, discard_tree
from inlay.workspace.manifests import write_manifest
from inlay.workspace.plans import Planner
from inlay.workspace.requests import Deletion, Load, NewDataset, Source, column_mapping, column_overrides
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
            version = self._version(dataset_id, converted, request.source, "create", inserted=converted.rows)
            version = self._with_manifest(dataset_id, "v1", version, None, handle)
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
        work = self._load_keyless if request.is_keyless else self._load_by_key
        with self._committing(handle) as (snapshot, directory, commit), _schema_hint():
            commit(*work(request, handle, snapshot, directory))

    @contextlib.contextmanager
    def _committing(self, handle: JobHandle) -> Iterator[tuple[Snapshot, str, Callable[[NewVersion, Any], object]]]:
        """Yield the current version, a directory for the next one, and a function that commits it with its counts."""
        snapshot = self._snapshot(handle)
        directory = self._directory(snapshot, handle)

        def commit(version: NewVersion, result: dict[str, Any]) -> None:
            dataset_id, base = snapshot.dataset.id, snapshot.version.version
            version = self._with_manifest(dataset_id, directory, version, snapshot, handle)
            self._services.catalog.versions.commit(dataset_id, base, version, job_id=handle.id, result=result)

        with self._removed_on_failure(self._services.storage.dataset(snapshot.dataset.id), directory):
            yield snapshot, directory, commit

    def _load_keyless(
        self, request: Load, handle: JobHandle, snapshot: Snapshot, directory: str
    ) -> tuple[NewVersion, dict[str, Any]]:
        """Append to the dataset, or replace it. The version gets the converted files."""
        dataset, old = snapshot.dataset, snapshot.version
        location = self._services.storage.dataset(dataset.id)
        mapping = column_mapping(request.columns, dataset.schema)
        converted = self._sources.convert(
            request.source, handle, location, directory,
            like=mapping.evolved(dataset.schema), mapping=mapping, conforms=True, on_error=request.on_error,
        )  # fmt: skip
        replaces = request.strategy == "replace"
        kept = () if replaces else snapshot.files
        version = self._version(
            dataset.id, converted, request.source, "overwrite" if replaces else "append",
            strategy=request.strategy, kept=kept, inserted=converted.rows, deleted=old.row_count if replaces else 0,
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
        mapping = column_mapping(request.columns, dataset.schema)
        schema = mapping.evolved(dataset.schema)
        with self._sources.staged(request, handle, schema, mapping) as (converted, rows):
            draft = self._draft(snapshot, directory)
            with self._services.spark.running(handle) as spark:
                options = _merge_options(request, handle, evolves=bool(mapping.added))
                result = merge_draft(rows, draft, options, SparkEngine(spark), self._services.storage.options)
            rejects = self._store_rejects(dataset.id, directory, converted, handle)
        source = _origin(request.source) | {"key_columns": list(request.key_columns)}
        version, outcome = self._merged_version(snapshot, draft, result, schema, source)
        version = replace(version, rejected_count=converted.rejected, reject_files=rejects)
        return version, _source_counts(converted) | outcome

    def _merged_version(
        self,
        snapshot: Snapshot,
        draft: Draft,
        result: MergeResult,
        schema: pa.Schema,
        source: dict[str, Any],
    ) -> tuple[NewVersion, dict[str, Any]]:
        """Return the version that a merge into a draft made, and its counts."""
        storage, dataset_id = self._services.storage, snapshot.dataset.id
        counts = {name: getattr(result, name) for name in ("inserted", "updated", "deleted")}
        files = [DataFile(storage.in_storage(dataset_id, path), rows, size) for path, rows, size in draft.files(result)]
        key_columns = source.get("key_columns", [])
        version = NewVersion(
            operation="merge" if key_columns else "delete",
            strategy=result.strategy,
            key_columns=key_columns,
            files=files,
            schema=schema,
            parquet_url="",
            source=source,
            **counts,
        )
        outcome = counts | {
            "unchanged": result.unchanged,
            "stale": result.stale,
            "row_count": result.target_count_after,
            "files_rewritten": len(result.rewritten_files),
            "files_added": len(result.inserted_files),
            "files_removed": len(result.removed_files),
            "files_kept": len(result.preserved_files),
            "bytes_written": result.bytes_written,
        }
        return version, outcome

    def plan(self, request: Load, handle: JobHandle) -> dict[str, Any]:
        """Return the plan of a load into the current version, without changing anything."""
        snapshot = self._snapshot(handle)
        storage = self._services.storage
        mapping = column_mapping(request.columns, snapshot.dataset.schema)
        schema = mapping.evolved(snapshot.dataset.schema)
        with (
            _schema_hint(),
            self._sources.staged(request, handle, schema, mapping) as (converted, rows),
            self._services.spark.running(handle) as spark,
        ):
            planner = Planner(storage, snapshot, self._draft(snapshot, "plan"), SparkEngine(spark))
            if request.is_keyless:
                plan = planner.plan_keyless(request.strategy, converted, storage.scratch(handle.id), schema)
            else:
                plan = planner.plan_by_key(_merge_options(request, handle, evolves=bool(mapping.added)), rows)
        kept = [name for name in schema.names if name not in converted.schema.names]
        named = {"kept_columns": kept if request.missing_columns == "keep" else []}
        return _source_counts(converted) | {"dry_run": True, "version": snapshot.version.version} | plan | named

    # ------------------------------------------------------------------------------------------------------- delete
    def delete(self, request: Deletion, handle: JobHandle) -> None:
        if request.where is None:
            self.load(request.load_by_key, handle)
            return
        with self._committing(handle) as (snapshot, directory, commit):
            draft = self._draft(snapshot, directory)
            with self._services.spark.running(handle) as spark:
                result = delete_from_draft(
                    request.where, draft, SparkEngine(spark), _progress_callback(handle), request.max_deleted
                )
            source = {"type": "condition", "where": request.where}
            commit(*self._merged_version(snapshot, draft, result, snapshot.dataset.schema, source))

    def plan_deletion(self, request: Deletion, handle: JobHandle) -> dict[str, Any]:
        """Return the plan of a deletion from the current version, without changing anything."""
        if request.where is None:
            return self.plan(request.load_by_key, handle)
        snapshot = self._snapshot(handle)
        with self._services.spark.running(handle) as spark:
            planner = Planner(self._services.storage, snapshot, self._draft(snapshot, "plan"), SparkEngine(spark))
            plan = planner.plan_condition(request.where, _progress_callback(handle), request.max_deleted)
        return {"dry_run": True, "version": snapshot.version.version} | plan

    # ----------------------------------------------------------------------------------------------------- versions
    def restore(self, number: int, handle: JobHandle) -> None:
        """Commit the files of an older version as a new version."""
        snapshot = self._snapshot(handle)
        directory = self._directory(snapshot, handle)
        catalog, dataset_id = self._services.catalog, snapshot.dataset.id
        old = catalog.versions.snapshot(dataset_id, number)
        change = Change("restore", rows=old.version.row_count, inserted=0, updated=0, deleted=0, restores=number)
        with self._removed_on_failure(self._services.storage.dataset(dataset_id), directory):
            manifest = self._write_manifest(dataset_id, directory, old.files, snapshot, change, handle)
            catalog.versions.restore(dataset_id, number, job_id=handle.id, manifest=manifest)

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
        converted: Conversion,
        source: Source,
        operation: str,
        *,
        strategy: str | None = None,
        kept: Sequence[DataFile] = (),
        inserted: int = 0,
        deleted: int = 0,
    ) -> NewVersion:
        storage = self._services.storage
        filled = [file for file in converted.files if file.rows]
        written = filled if filled or kept else converted.files  # a version has at least one file
        added = [DataFile(storage.in_storage(dataset_id, f.path), f.rows, f.bytes) for f in written]
        return NewVersion(
            operation=operation,
            strategy=strategy,
            files=[*kept, *added],
            schema=converted.schema,
            parquet_url="",
            inserted=inserted,
            deleted=deleted,
            source=_origin(source),
            rejected_count=converted.rejected,
            reject_files=[storage.in_storage(dataset_id, path) for path in converted.reject_files],
        )

    def _with_manifest(
        self, dataset_id: str, directory: str, version: NewVersion, base: Snapshot | None, handle: JobHandle
    ) -> NewVersion:
        """Write the manifest of a version, and set what the version takes from it."""
        rows = sum(file.rows for file in version.files)
        counts = (version.inserted, version.updated, version.deleted, rows)
        change = Change(version.operation, version.strategy, version.key_columns, *counts)
        manifest = self._write_manifest(dataset_id, directory, version.files, base, change, handle)
        return replace(version, transaction=handle.job.idempotency_key, **asdict(manifest))

    def _write_manifest(
        self,
        dataset_id: str,
        directory: str,
        files: Sequence[DataFile],
        base: Snapshot | None,
        change: Change,
        handle: JobHandle,
    ) -> NewManifest:
        storage = self._services.storage
        number = 1 if base is None else base.version.version + 1
        path, before = storage.in_storage(dataset_id, directory), None if base is None else base.files
        return write_manifest(storage, path, number, files, before, change, handle.job.idempotency_key)

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


_OPTION_COLUMN = re.compile(r"^The (scope|newer_by|operation|dedup_order_by) column ")


@contextlib.contextmanager
def _schema_hint() -> Iterator[None]:
    """Replace the hint of a schema mismatch: loads, unlike merges, cannot change the schema.

    A misspelled name, and a column of an option, keep their hints.
    """
    try:
        yield
    except SchemaMismatchError as error:
        if (error.hint or "").startswith("Did you mean") or _OPTION_COLUMN.search(error.message):
            raise
        raise SchemaMismatchError(
            error.message,
            hint="The source must have the columns of the dataset. Map the columns of the file to those of the dataset,"
            " ignore them or add them (`columns`), choose how to treat columns that the source lacks"
            " (`missing_columns`), or create a new dataset from the file.",
        ) from error


def _merge_options(request: Load, handle: JobHandle, *, evolves: bool) -> MergeOptions:
    return MergeOptions.check(
        request.strategy,
        list(request.key_columns),
        schema_mode="evolve" if evolves else "strict",
        dedup_order_by=list(request.dedup_order_by) or None,
        missing_columns=request.missing_columns,
        operation_column=request.operation_column,
        newer_by=request.newer_by,
        max_deleted=request.max_deleted,
        scope=request.scope,
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
