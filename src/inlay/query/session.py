"""DataFusion with one catalog, whose tables are asked for when a query names them."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, reduce
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
from datafusion import DataFrame, RuntimeEnvBuilder, SessionConfig, SessionContext, SQLOptions
from datafusion import catalog as df_catalog
from datafusion.object_store import AmazonS3

from inlay.query.statements import first_word
from inlay.schema import with_leaves

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
_READERS = 8
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}

Ask = Callable[[str], Mapping[str, Any] | None]


class ResultTooLargeError(Exception):
    """A result is larger than results may be."""


class Session:
    """One after the other, any number of queries; nothing of one is left for the next but footers of files.

    Queries run without a disk to spill to, and again with one if memory is not enough, unless they join by nested
    loops: DataFusion 55 loses or repeats rows, or panics, when such a join spills.
    """

    def __init__(self, settings: Mapping[str, Any], ask: Ask) -> None:
        self._settings = settings
        self._ask = ask
        self._in_memory = _Database(settings, ask, spills=False)

    def execute(self, sql: str, tables: list[str], max_rows: int, max_bytes: int, path: str) -> dict[str, Any]:
        try:
            return _write(self._in_memory.frame(sql, tables, max_rows), max_rows, max_bytes, path)
        except Exception as error:
            if "Resources exhausted" not in str(error) or self._in_memory.joins_by_nested_loops(sql):
                raise
        return _write(self._on_disk.frame(sql, tables, max_rows), max_rows, max_bytes, path)

    @cached_property
    def _on_disk(self) -> _Database:
        return _Database(self._settings, self._ask, spills=True)


class _Database:
    """A context with its catalog and its stores."""

    def __init__(self, settings: Mapping[str, Any], ask: Ask, *, spills: bool) -> None:
        self._ask = ask
        self._s3 = settings["s3"]
        self._buckets: set[str] = set()
        # DataFusion refuses to open files inside its own callbacks, which is where tables are asked for
        self._readers = ThreadPoolExecutor(_READERS)
        self._context = _context(settings, spills=spills)
        self._context.register_catalog_provider("datasets", _Catalog("default", self._table))
        self._context.register_catalog_provider("inlay", _Catalog("datasets", self._table))

    def frame(self, sql: str, tables: list[str], max_rows: int) -> DataFrame:
        """A query's plan; of its rows, one more than are wanted, if it is one that has rows."""
        if sql.strip(" \r\n\t;").lower().split() == ["show", "tables"]:
            return self._context.read_batch(pa.record_batch({"table_name": pa.array(sorted(tables), pa.string())}))
        frame = self._context.sql_with_options(sql, _OPTIONS)
        return frame.limit(max_rows + 1) if first_word(sql) in _ROWS else frame

    def joins_by_nested_loops(self, sql: str) -> bool:
        plan = self._context.sql_with_options(sql, _OPTIONS).execution_plan()
        return "NestedLoopJoinExec" in plan.display_indent()

    def _table(self, name: str) -> df_catalog.Table | None:
        found = self._ask(name)
        if found is None:
            return None
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["schema"]))).remove_metadata()
        self._register_buckets(found["files"])
        frames = list(self._readers.map(lambda file: self._read(file, schema, found["prune"]), found["files"]))
        return df_catalog.Table(reduce(DataFrame.union, frames) if frames else self._empty(schema))

    def _register_buckets(self, files: Sequence[str]) -> None:
        buckets = {urlsplit(file).netloc for file in files if file.startswith("s3://")}
        for bucket in buckets - self._buckets:
            self._context.register_object_store("s3://", AmazonS3(bucket, **self._s3), bucket)
        self._buckets |= buckets

    def _read(self, file: str, schema: pa.Schema, prune: bool) -> DataFrame:
        if "://" in file:
            self._context.read_parquet(file, file_extension="")  # of a missing file with a schema, no rows are read
            url = file
        else:
            os.stat(file)
            url = "file://" + quote(os.path.abspath(file))
        return self._context.read_parquet(url, schema=schema, parquet_pruning=prune, file_extension="")

    def _empty(self, schema: pa.Schema) -> DataFrame:
        return self._context.read_batch(pa.RecordBatch.from_pylist([], schema))


def _context(settings: Mapping[str, Any], *, spills: bool) -> SessionContext:
    config = (
        SessionConfig(_CONFIGURATION)
        .with_create_default_catalog_and_schema(False)
        .with_default_catalog_and_schema("inlay", "none")
        .with_target_partitions(settings["threads"])
    )
    runtime = RuntimeEnvBuilder().with_fair_spill_pool(settings["memory"])
    if not spills:
        return SessionContext(config, runtime.with_disk_manager_disabled())
    context = SessionContext(config, runtime.with_disk_manager_specified(settings["directory"]))
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
    return with_leaves(type_, lambda leaf: _VIEWS.get(leaf, leaf))
