"""The work of jobs that bring rows in: create a dataset, load into one, or say what a load would do.

Rows are read, parsed, typed and written by Spark; here are only plans, counts and lists of files. Whatever is written
lies where nobody looks until one catalog transaction makes it true, and is removed if that does not happen.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from inlay.catalog import DataFile, NewVersion, Snapshot
from inlay.engines.spark import SparkEngine
from inlay.errors import CommitStateUnknownError, SchemaMismatchError
from inlay.incremental.options import MergeOptions
from inlay.incremental.progress import Progress, ProgressCallback
from inlay.incremental.read import parquet_dataset
from inlay.incremental.versions import Draft, append_draft, merge_draft
from inlay.pipeline import Conversion, ConvertedFile, ReadOptions
from inlay.storage import Location, discard_tree
from inlay.workspace.planning import Planner
from inlay.workspace.requests import Load, NewDataset, Source, overrides_of
from inlay.workspace.runner import JobHandle
from inlay.workspace.services import Services
from inlay.workspace.sources import Sources

__all__ = ["Conversions"]


class Conversions:
    def __init__(self, services: Services, sources: Sources) -> None:
        self._services = services
        self._sources = sources

    # ------------------------------------------------------------------------------------------------------- create
    def create(self, request: NewDataset, handle: JobHandle) -> None:
        dataset_id = str(handle.job.dataset_id)
        location = self._services.places.dataset(dataset_id)
        with self._undone_on_failure(location, ""):
            converted = self._sources.convert(
                request.source, handle, location, "v1",
                overrides=overrides_of(request.columns), on_error=request.on_error,
            )  # fmt: skip
            version = self._version(dataset_id, "v1", "create", converted, request.source, inserted=converted.rows)
            self._services.catalog.datasets.create(
                job_id=handle.id,
                label=request.label,
                table_name=request.table_name,
                source_type=request.source.type,
                source_config=self._source_config(request, converted.options),
                version=version,
                result=_outcome(converted),
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
        work = self._load_whole if request.is_whole else self._load_by_key
        directory = self._directory(snapshot, handle)
        location = self._services.places.dataset(snapshot.dataset.id)
        with self._undone_on_failure(location, directory), _told_of_loads():
            version, result = work(request, handle, snapshot, directory)
            self._services.catalog.versions.commit(
                snapshot.dataset.id, snapshot.version.version, version, job_id=handle.id, result=result
            )

    def _load_whole(
        self, request: Load, handle: JobHandle, snapshot: Snapshot, directory: str
    ) -> tuple[NewVersion, dict[str, Any]]:
        """Append or replace: what is converted is what the version gets."""
        dataset, old = snapshot.dataset, snapshot.version
        location = self._services.places.dataset(dataset.id)
        converted = self._sources.convert(
            request.source, handle, location, directory, like=dataset.schema, on_error=request.on_error
        )
        replaces = request.strategy == "replace"
        if not converted.schema.equals(dataset.schema):
            converted = self._fitted(converted, handle, snapshot, directory, empty=replaces)
        converted = replace(converted, schema=dataset.schema)  # the same, with what it says besides types
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
        outcome = _outcome(converted) | {"row_count": sum(file.rows for file in version.files)}
        return version, outcome | counts | touched

    def _fitted(
        self, converted: Conversion, handle: JobHandle, snapshot: Snapshot, directory: str, *, empty: bool
    ) -> Conversion:
        """Columns in another order or type are written again as the dataset has them; others are refused."""
        location = self._services.places.dataset(snapshot.dataset.id)
        draft = self._draft(snapshot, directory)
        with self._services.spark.running(handle) as spark:
            rows = parquet_dataset(location, [file.path for file in converted.files], converted.schema)
            written = append_draft(rows, draft, SparkEngine(spark), progress=_reporting(handle), empty=empty)
        for file in converted.files:
            location.store.remove(location.full(file.path))
        files = [ConvertedFile(*file) for file in written]
        return replace(converted, files=files)

    def _load_by_key(
        self, request: Load, handle: JobHandle, snapshot: Snapshot, directory: str
    ) -> tuple[NewVersion, dict[str, Any]]:
        dataset = snapshot.dataset
        with self._sources.staged(request, handle, dataset.schema) as (converted, rows):
            draft = self._draft(snapshot, directory)
            with self._services.spark.running(handle) as spark:
                result = merge_draft(rows, draft, _merge_options(request, handle), SparkEngine(spark))
            rejects = self._keep_rejects(dataset.id, directory, converted, handle)
        files = [
            DataFile(self._services.places.in_storage(dataset.id, path), rows, size)
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
        outcome = _outcome(converted) | {"row_count": result.target_count_after}
        return version, outcome | counts | touched

    def plan(self, request: Load, handle: JobHandle) -> dict[str, Any]:
        """What the load would do to the current version; nothing is kept."""
        snapshot = self._snapshot(handle)
        places = self._services.places
        with (
            _told_of_loads(),
            self._sources.staged(request, handle, snapshot.dataset.schema) as (converted, rows),
            self._services.spark.running(handle) as spark,
        ):
            planner = Planner(places, snapshot, self._draft(snapshot, "plan"), SparkEngine(spark))
            if request.is_whole:
                told = planner.whole(request.strategy, converted, places.scratch(handle.id), rows)
            else:
                told = planner.by_key(_merge_options(request, handle), rows)
        return _outcome(converted) | {"dry_run": True, "version": snapshot.version.version} | told

    # ----------------------------------------------------------------------------------------------------- versions
    def _snapshot(self, handle: JobHandle) -> Snapshot:
        return self._services.catalog.versions.snapshot(str(handle.job.dataset_id))

    def _draft(self, snapshot: Snapshot, directory: str) -> Draft:
        places, dataset_id = self._services.places, snapshot.dataset.id
        files = [(places.in_dataset(dataset_id, file.path), file.bytes) for file in snapshot.files]
        return Draft(places.dataset(dataset_id), files, directory)

    def _directory(self, snapshot: Snapshot, handle: JobHandle) -> str:
        """Where the files of the next version go: a place where no other attempt at it ever writes or cleans up.

        Attempts that ended in the catalog may go on elsewhere: as Spark tasks of a service that was killed, or in a
        service that slept longer than its lease.
        """
        plain = f"v{snapshot.version.version + 1}"
        is_first = not self._services.catalog.jobs.left_off(snapshot.dataset.id, but=handle.id)
        return plain if is_first else f"{plain}-{handle.id.removeprefix('job_')}"

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
        places = self._services.places
        added = [DataFile(places.in_storage(dataset_id, f.path), f.rows, f.bytes) for f in converted.files if f.rows]
        if not kept and not added:
            added = [DataFile(places.in_storage(dataset_id, f.path), f.rows, f.bytes) for f in converted.files]
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
                reject_files=[places.in_storage(dataset_id, path) for path in converted.reject_files],
            ),
        )

    def _with_manifest(self, dataset_id: str, directory: str, version: NewVersion) -> NewVersion:
        """One file is its own address; several are listed in a manifest."""
        places = self._services.places
        if len(version.files) == 1:
            return replace(version, parquet_url=places.address(version.files[0].path))
        path = places.in_storage(dataset_id, f"{directory}/manifest.json")
        listed = [{"url": places.address(f.path), "rows": f.rows, "bytes": f.bytes} for f in version.files]
        places.remove(path)
        places.create(path, json.dumps({"files": listed}, indent=1).encode())
        return replace(version, parquet_url=places.address(path), manifest_path=path)

    def _keep_rejects(self, dataset_id: str, directory: str, converted: Conversion, handle: JobHandle) -> list[str]:
        """Rejects of a staged source outlive it, under the version that was made without them."""
        places, kept = self._services.places, []
        for number, path in enumerate(converted.reject_files):
            name = f"{directory}/rejects/{handle.id}-{number:05d}.parquet"
            target = places.in_storage(dataset_id, name)
            places.copy(f"scratch/{handle.id}/{path}", target)
            kept.append(target)
        return kept

    @contextlib.contextmanager
    def _undone_on_failure(self, location: Location, directory: str) -> Iterator[None]:
        """What was written for nothing is removed; where nobody knows whether it was for nothing, it stays."""
        try:
            yield
        except CommitStateUnknownError:
            raise
        except BaseException:
            discard_tree(location.store, location.full(directory) if directory else location.path)
            raise


@contextlib.contextmanager
def _told_of_loads() -> Iterator[None]:
    """A merge may offer to change the schema; a load does not."""
    try:
        yield
    except SchemaMismatchError as error:
        raise SchemaMismatchError(
            error.message, hint="A load has the columns of its dataset. Correct the file, or make a new dataset of it."
        ) from error


def _merge_options(request: Load, handle: JobHandle) -> MergeOptions:
    return MergeOptions.check(
        request.strategy,
        list(request.key_columns),
        dedup_order_by=list(request.dedup_order_by) or None,
        progress=_reporting(handle),
    )


def _reporting(handle: JobHandle) -> ProgressCallback:
    def report(now: Progress) -> None:
        handle.progress(now.phase, now.done, now.total)

    return report


def _origin(source: Source) -> dict[str, Any]:
    named = {"upload_id": source.upload_id, "sql": source.sql}
    return {"type": source.type} | {name: value for name, value in named.items() if value is not None}


def _outcome(converted: Conversion) -> dict[str, Any]:
    return {
        "row_count": converted.rows,
        "source_count": converted.rows + converted.rejected,
        "rejected_count": converted.rejected,
        "warnings": converted.warnings,
    }
