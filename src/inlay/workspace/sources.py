"""Sources of rows (uploads, inline data, query results) and their conversion to Parquet."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from inlay.catalog import Upload
from inlay.constants import OnError
from inlay.errors import InvalidArgumentError, QueryLimitError, UploadConsumedError
from inlay.parquet.writer import WriterSettings
from inlay.pipeline import (
    ColumnMapping,
    Conversion,
    InlineFile,
    Limits,
    Preview,
    RawFile,
    ReadOptions,
    convert,
    preview,
)
from inlay.storage import Location, discard_tree
from inlay.workspace.requests import Load, Source, charset, column_overrides, has_known_type, read_options
from inlay.workspace.runner import JobHandle
from inlay.workspace.services import Services, time_limit

__all__ = ["Sources"]


PREVIEW_SECONDS = 120.0


class Sources:
    """Previews and converts the sources of a workspace."""

    def __init__(self, services: Services) -> None:
        self._services = services
        settings = services.settings
        self._limits = Limits(settings.max_decoded_bytes, settings.max_columns, settings.max_name_bytes)

    def check_readable(self, source: Source) -> None:
        """Raise if the upload, its format or an option is unknown."""
        if source.upload_id is not None:
            read_options(source, self._services.catalog.uploads.get(source.upload_id).content_type)
        elif source.inline is not None:
            ReadOptions.of(source.inline.format, source.options)

    def preview(
        self,
        upload_id: str,
        format: str | None,  # noqa: A002
        options: Mapping[str, Any],
        columns: Sequence[tuple[str, str]],
        like: pa.Schema | None,
    ) -> Preview:
        """Read the first rows of a pending upload, detecting the format if nothing determines it."""
        upload = self._services.catalog.uploads.get(upload_id)
        if upload.status != "pending":
            raise UploadConsumedError(
                f"The upload {upload_id!r} is already consumed and its file is deleted.", hint="Upload the file again."
            )
        is_format_known = format or options or has_known_type(upload.content_type)
        source = Source(upload_id, format=format, options=options)
        read = read_options(source, upload.content_type) if is_format_known else None
        with self._services.spark.using() as spark, time_limit(spark, PREVIEW_SECONDS):
            return preview(
                spark,
                self._upload(upload),
                read,
                encoding=charset(upload.content_type) if read is None else None,
                overrides=column_overrides(columns),
                like=like,
                limits=self._limits,
            )

    def convert(
        self,
        source: Source,
        handle: JobHandle,
        into: Location,
        directory: str,
        *,
        overrides: Mapping[str, pa.Field] | None = None,
        like: pa.Schema | None = None,
        mapping: ColumnMapping | None = None,
        conforms: bool = False,
        requires_fields: bool = False,
        marks_absence: bool = False,
        on_error: OnError = "fail",
        rejects_directory: str | None = None,
    ) -> Conversion:
        """Convert a source to typed Parquet files with Spark."""
        # The limits of queries bound a query result, which may compress at any ratio.
        limits = self._limits if source.sql is None else replace(self._limits, ratio=sys.maxsize)
        with self._raw(source, handle) as (raw, options), self._services.spark.running(handle) as spark:
            handle.progress("convert", 0, 1)  # a small conversion ends before Spark reports its tasks
            return convert(
                spark,
                raw,
                options,
                overrides=overrides,
                like=like,
                mapping=mapping,
                conforms=conforms,
                requires_fields=requires_fields,
                marks_absence=marks_absence,
                on_error=on_error,
                into=into,
                directory=directory,
                settings=WriterSettings.managed(),
                rejects_directory=rejects_directory or f"{directory}/rejects",
                progress=lambda done, total: handle.progress("convert", done, total),
                limits=limits,
            )

    @contextlib.contextmanager
    def staged(
        self, request: Load, handle: JobHandle, like: pa.Schema, mapping: ColumnMapping
    ) -> Iterator[tuple[Conversion, str]]:
        """Yield the conversion of a source and its address, and delete its files afterward."""
        scratch = self._services.storage.scratch(handle.id)
        try:
            converted = self.convert(
                request.source, handle, scratch, "source",
                like=like, mapping=mapping, conforms=request.is_keyless, requires_fields=request.requires_fields,
                marks_absence=request.allows_absence, on_error=request.on_error, rejects_directory="rejects",
            )  # fmt: skip
            yield converted, scratch.display("source")
        finally:
            discard_tree(scratch.store, scratch.path)

    def _upload(self, upload: Upload) -> RawFile:
        storage = self._services.storage
        return RawFile(storage.root, storage.upload(upload.id), upload.size_bytes, upload.content_encoding)

    @contextlib.contextmanager
    def _raw(self, source: Source, handle: JobHandle) -> Iterator[tuple[RawFile | InlineFile, ReadOptions]]:
        """Yield the file of a source and its read options."""
        storage = self._services.storage
        if source.inline is not None:
            options = ReadOptions.of(source.inline.format, source.options)
            if options.encoding is not None:
                raise InvalidArgumentError(
                    "The option 'encoding' does not apply to inline data, which is text.", hint="Remove the option."
                )
            yield InlineFile(source.inline.content.encode()), options
        elif source.upload_id is not None:
            upload = self._services.catalog.uploads.get(source.upload_id)
            yield self._upload(upload), read_options(source, upload.content_type)
        else:
            path = f"scratch/{handle.id}/query.parquet"
            try:
                size = self._store_result(str(source.sql), path, handle)
                yield RawFile(storage.root, path, size, None), ReadOptions.of("parquet", {})
            finally:
                storage.remove(path)

    def _store_result(self, sql: str, path: str, handle: JobHandle) -> int:
        """Run a query and store its result as a Parquet file. Returns the size of the file."""
        cancel = threading.Event()
        with handle.interrupted_by(cancel.set):
            result = self._services.query.run(sql, cancel=cancel)
        with contextlib.closing(result), self._services.storage.open_write(path) as file:
            if result.truncated:
                raise QueryLimitError(
                    f"The query result has more than {result.row_count:,} rows, which is the limit of one load.",
                    hint="Load the result in parts, each with its own WHERE clause.",
                )
            size = 0
            for chunk in result.to_parquet():
                size += len(chunk)
                file.write(chunk)
        return size
