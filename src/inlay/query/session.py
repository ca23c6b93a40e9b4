"""DataFusion with one catalog, whose tables are asked for when a query names them."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
from datafusion import DataFrame, RuntimeEnvBuilder, SessionConfig, SessionContext, SQLOptions
from datafusion import catalog as df_catalog
from datafusion.object_store import AmazonS3

from inlay.query.statements import first_word

__all__ = ["ResultTooLargeError", "Session"]

_OPTIONS = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
_CONFIGURATION = {
    # statistics of files and their use instead of data made [3.25, 3.25] of [NaN, 3.25]
    "datafusion.execution.collect_statistics": "false",
    # types come back as they were stored
    "datafusion.execution.parquet.schema_force_view_types": "false",
    "datafusion.sql_parser.map_string_types_to_utf8view": "false",
    "datafusion.catalog.information_schema": "false",
}
_ROWS = frozenset({"select", "with", "values", "table", "from", ""})  # statements that a LIMIT can be put around

Ask = Callable[[str], Mapping[str, Any] | None]


class ResultTooLargeError(Exception):
    """A result is larger than results may be."""


class Session:
    """One after the other, any number of queries; nothing of one is left for the next but footers of files."""

    def __init__(self, settings: Mapping[str, Any], ask: Ask) -> None:
        self._ask = ask
        self._s3 = settings["s3"]
        self._buckets: set[str] = set()
        # DataFusion refuses to read files inside its own callbacks, which is where tables are asked for
        self._reader = ThreadPoolExecutor(1)
        self._context = _context(settings)
        self._context.register_catalog_provider("datasets", _Catalog("default", self._table))
        self._context.register_catalog_provider("inlay", _Catalog("datasets", self._table))

    def execute(self, sql: str, tables: list[str], max_rows: int, max_bytes: int, path: str) -> dict[str, Any]:
        if sql.strip(" \r\n\t;").lower().split() == ["show", "tables"]:
            frame = _listing(self._context, tables)
        else:
            frame = self._context.sql_with_options(sql, _OPTIONS)
        if first_word(sql) in _ROWS:
            frame = frame.limit(max_rows + 1)
        return _write(frame, max_rows, max_bytes, path)

    def _table(self, name: str) -> df_catalog.Table | None:
        found = self._ask(name)
        return None if found is None else self._reader.submit(self._load, found).result()

    def _load(self, found: Mapping[str, Any]) -> df_catalog.Table:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["schema"]))).remove_metadata()
        frames = [self._read(file, schema, found["prune"]) for file in found["files"]]
        if not frames:
            return df_catalog.Table(self._context.read_batch(pa.RecordBatch.from_pylist([], schema)))
        first, *others = frames
        for other in others:
            first = first.union(other)
        return df_catalog.Table(first)

    def _read(self, file: str, schema: pa.Schema, prune: bool) -> DataFrame:
        url = file if "://" in file else "file://" + quote(os.path.abspath(file))
        bucket = urlsplit(url).netloc
        if url.startswith("s3://") and bucket not in self._buckets:
            self._context.register_object_store("s3://", AmazonS3(bucket, **self._s3), bucket)
            self._buckets.add(bucket)
        return self._context.read_parquet(url, schema=schema, parquet_pruning=prune, file_extension="")


def _context(settings: Mapping[str, Any]) -> SessionContext:
    config = (
        SessionConfig(_CONFIGURATION)
        .with_create_default_catalog_and_schema(False)
        .with_default_catalog_and_schema("inlay", "none")
        .with_target_partitions(settings["threads"])
    )
    runtime = (
        RuntimeEnvBuilder().with_fair_spill_pool(settings["memory"]).with_disk_manager_specified(settings["directory"])
    )
    context = SessionContext(config, runtime)
    context.sql(f"SET datafusion.runtime.max_temp_directory_size = '{settings['spill'] >> 20}M'")
    return context


class _Schema(df_catalog.SchemaProvider):
    def __init__(self, load: Callable[[str], df_catalog.Table | None]) -> None:
        self._load = load

    def table_names(self) -> set[str]:
        return set()

    def table(self, name: str) -> df_catalog.Table | None:
        return self._load(name)

    def table_exist(self, name: str) -> bool:
        return self._load(name) is not None


class _Catalog(df_catalog.CatalogProvider):
    """A catalog of one schema, found without regard to case."""

    def __init__(self, name: str, load: Callable[[str], df_catalog.Table | None]) -> None:
        self._name = name
        self._schema = _Schema(load)

    def schema_names(self) -> set[str]:
        return {self._name}

    def schema(self, name: str) -> Any:
        return self._schema if name.lower() == self._name else None


def _listing(context: SessionContext, tables: list[str]) -> DataFrame:
    return context.read_batch(pa.record_batch({"table_name": pa.array(sorted(tables), pa.string())}))


def _write(frame: DataFrame, max_rows: int, max_bytes: int, path: str) -> dict[str, Any]:
    """Write the result's first rows as an Arrow stream; says how many, and whether there were more."""
    schema = pa.schema([field.with_type(_plain(field.type)).remove_metadata() for field in frame.schema()])
    rows, truncated = 0, False
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for produced in frame.execute_stream():
            batch = produced.to_pyarrow()
            truncated = rows + batch.num_rows > max_rows
            batch = _as(schema, batch.slice(0, max_rows - rows))
            rows += batch.num_rows
            if file.tell() + batch.nbytes > max_bytes:
                raise ResultTooLargeError
            stream.write_batch(batch)
            if truncated:
                break
    return {"rows": rows, "truncated": truncated}


def _as(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(type_: pa.DataType) -> pa.DataType:
    """String and binary views become the types that every reader knows."""
    if pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_binary_view(type_):
        return pa.binary()
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_plain(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_plain(type_.value_type)))
    if pa.types.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(_plain(type_.value_type)))
    return type_
