"""Where rows come from: uploads, inline data and queries, as bytes, and as what Spark makes of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from inlay.catalog import Upload
from inlay.choices import OnError
from inlay.errors import InvalidArgumentError, QueryLimitError, UploadConsumedError
from inlay.parquet.writer import WriterSettings
from inlay.pipeline import Conversion, InlineFile, Preview, RawFile, ReadOptions, convert, preview
from inlay.storage import Location, discard_tree
from inlay.workspace.requests import Load, Source, format_of, is_known_type, overrides_of
from inlay.workspace.runner import JobHandle
from inlay.workspace.services import Services

__all__ = ["Sources"]


class Sources:
    def __init__(self, services: Services) -> None:
        self._services = services

    def check_readable(self, source: Source) -> None:
        """Refuse at once what no conversion could read: an unknown upload, format or option."""
        if source.upload_id is not None:
            _options(source, self._services.catalog.uploads.get(source.upload_id))
        elif source.inline is not None:
            ReadOptions.of(source.inline.format, source.options)

    def preview(
        self,
        upload_id: str,
        stated: str | None,
        options: Mapping[str, Any],
        columns: Sequence[tuple[str, str]],
        like: pa.Schema | None,
    ) -> Preview:
        upload = self._services.catalog.uploads.get(upload_id)
        if upload.status != "pending":
            raise UploadConsumedError(f"The upload {upload_id!r} has been used already; its bytes are gone.")
        is_told = stated or options or is_known_type(upload.content_type)
        read = _options(Source(upload_id, format=stated, options=options), upload) if is_told else None
        types = overrides_of(columns)
        return preview(self._services.spark.session(), self._upload(upload), read, overrides=types, like=like)

    # --------------------------------------------------------------------------------------------------- converted
    def convert(
        self,
        source: Source,
        handle: JobHandle,
        into: Location,
        directory: str,
        *,
        overrides: Mapping[str, pa.Field] | None = None,
        like: pa.Schema | None = None,
        on_error: OnError = "fail",
        rejects_directory: str | None = None,
    ) -> Conversion:
        """Typed Parquet files of the source's rows, by a Spark job."""
        with self._raw(source, handle) as (raw, options), self._services.spark.running(handle) as spark:
            return convert(
                spark,
                raw,
                options,
                overrides=overrides,
                like=like,
                on_error=on_error,
                into=into,
                directory=directory,
                settings=WriterSettings.managed(),
                rejects_directory=rejects_directory or f"{directory}/rejects",
                progress=lambda done, total: handle.progress("convert", done, total),
            )

    @contextlib.contextmanager
    def staged(self, request: Load, handle: JobHandle, like: pa.Schema) -> Iterator[tuple[Conversion, str]]:
        """The source's rows, typed like a dataset, in files of their own that are gone after the block."""
        scratch = self._services.places.scratch(handle.id)
        try:
            converted = self.convert(
                request.source, handle, scratch, "source",
                like=like, on_error=request.on_error, rejects_directory="rejects",
            )  # fmt: skip
            yield converted, scratch.shown("source")
        finally:
            discard_tree(scratch.store, scratch.path)

    # ------------------------------------------------------------------------------------------------------- bytes
    def _upload(self, upload: Upload) -> RawFile:
        places = self._services.places
        return RawFile(places.root, places.upload(upload.id), upload.size_bytes, upload.content_encoding)

    @contextlib.contextmanager
    def _raw(self, source: Source, handle: JobHandle) -> Iterator[tuple[RawFile | InlineFile, ReadOptions]]:
        """The bytes of a source, and how they are to be read."""
        places = self._services.places
        if source.inline is not None:
            options = ReadOptions.of(source.inline.format, source.options)
            if options.encoding is not None:
                raise InvalidArgumentError(
                    "Inline content is text already: it has no encoding.", hint="Leave the option encoding out."
                )
            yield InlineFile(source.inline.content.encode()), options
        elif source.upload_id is not None:
            upload = self._services.catalog.uploads.get(source.upload_id)
            yield self._upload(upload), _options(source, upload)
        else:
            path = f"scratch/{handle.id}/query.parquet"
            try:
                size = self._answer(str(source.sql), path, handle)
                yield RawFile(places.root, path, size, None), ReadOptions.of("parquet", {})
            finally:
                places.remove(path)

    def _answer(self, sql: str, path: str, handle: JobHandle) -> int:
        """Keep a query's result as a file, to be taken in like any other."""
        stopped = threading.Event()
        with handle.interrupted_by(stopped.set):
            result = self._services.query.run(sql, cancel=stopped)
        with contextlib.closing(result), self._services.places.open_write(path) as file:
            if result.truncated:
                raise QueryLimitError(
                    f"The query has more than {result.row_count:,} rows, too many to load.",
                    hint="Load it in parts, with a WHERE.",
                )
            size = 0
            for chunk in result.to_parquet():
                size += len(chunk)
                file.write(chunk)
        return size


def _options(source: Source, upload: Upload) -> ReadOptions:
    return ReadOptions.of(format_of(source.format, upload.content_type), source.options)
