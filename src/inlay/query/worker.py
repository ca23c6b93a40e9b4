"""The worker process that runs DataFusion: `python -m inlay.query.worker <descriptor>`.

It runs one query at a time. Its memory is limited before the first query, and its parent process kills it if a query
takes too long, because planning, constant folding and some operators cannot be interrupted. Messages are JSON on a
socket; results are Arrow streams in files.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, reduce
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
from datafusion import DataFrame, RuntimeEnvBuilder, SessionConfig, SessionContext, SQLOptions
from datafusion import catalog as df_catalog
from datafusion.object_store import AmazonS3

from inlay.pyarrow_features import byte_size
from inlay.query.disk import require_space
from inlay.query.paths import FilePaths
from inlay.query.sql import first_keyword
from inlay.schema import map_leaf_types

__all__ = ["ResultTooLargeError", "Session"]

_OPTIONS = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
_CONFIGURATION = {
    # With collected statistics, DataFusion returned [3.25, 3.25] for [NaN, 3.25].
    "datafusion.execution.collect_statistics": "false",
    # Results have the stored types.
    "datafusion.execution.parquet.schema_force_view_types": "false",
    "datafusion.sql_parser.map_string_types_to_utf8view": "false",
    "datafusion.catalog.information_schema": "false",
}
_SHOW_TABLES = "SELECT table_name FROM information_schema.tables ORDER BY table_name"
_ROWS = frozenset({"select", "with", "values", "table", "from", ""})  # statements that accept a LIMIT
_READERS = 8
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}

# Returns a table, None if it does not exist, or the names and columns of all tables if the name is None.
FindTable = Callable[[str | None], Any]
LoadTable = Callable[[str], df_catalog.Table | None]


class ResultTooLargeError(Exception):
    """A result exceeds the size limit."""


class Session:
    """Runs queries one at a time. Queries share only cached footers.

    A query first runs in memory only, and again with spilling to disk if memory is not enough. Queries with nested loop
    joins never spill: DataFusion 55 then loses or repeats rows, or panics.
    """

    def __init__(self, settings: Mapping[str, Any], find_table: FindTable) -> None:
        self._settings = settings
        self._find_table = find_table
        self.paths = FilePaths()
        self._in_memory = _Database(settings, find_table, self.paths, spills=False)

    def execute(self, sql: str, max_rows: int, max_bytes: int, path: str) -> dict[str, Any]:
        paths = self.paths if first_keyword(sql) == "explain" else None
        if sql.strip(" \r\n\t;").lower().split() == ["show", "tables"]:
            sql = _SHOW_TABLES
        try:
            return _write(self._in_memory.frame(sql, max_rows), max_rows, max_bytes, path, paths)
        except Exception as error:
            if "Resources exhausted" not in str(error) or self._in_memory.joins_by_nested_loops(sql):
                raise
        require_space(self._settings["directory"], self._settings["disk_reserve"])
        return _write(self._on_disk.frame(sql, max_rows), max_rows, max_bytes, path, paths)

    @cached_property
    def _on_disk(self) -> _Database:
        return _Database(self._settings, self._find_table, self.paths, spills=True)


class _Database:
    """A DataFusion context with its catalogs and object stores."""

    def __init__(self, settings: Mapping[str, Any], find_table: FindTable, paths: FilePaths, *, spills: bool) -> None:
        self._find_table = find_table
        self._paths = paths
        self._s3 = settings["s3"]
        self._buckets: set[str] = set()
        # DataFusion requests tables in callbacks, in which it cannot open files: other threads open them.
        self._readers = ThreadPoolExecutor(_READERS)
        self._context = _context(settings, spills=spills)
        for catalog, schema in (("datasets", "default"), (_CATALOG, _SCHEMA)):
            schemas = {schema: self._table, "information_schema": self._information}
            self._context.register_catalog_provider(catalog, _Catalog(schemas))

    def frame(self, sql: str, max_rows: int) -> DataFrame:
        """Plan a query, limited to one row more than `max_rows` to detect truncation."""
        frame = self._context.sql_with_options(sql, _OPTIONS)
        return frame.limit(max_rows + 1) if first_keyword(sql) in _ROWS else frame

    def joins_by_nested_loops(self, sql: str) -> bool:
        plan = self._context.sql_with_options(sql, _OPTIONS).execution_plan()
        return "NestedLoopJoinExec" in plan.display_indent()

    def _table(self, name: str) -> df_catalog.Table | None:
        found = self._find_table(name)
        if found is None:
            return None
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["schema"]))).remove_metadata()
        self._paths.add(found["files"])
        self._register_buckets(found["files"])
        frames = list(self._readers.map(lambda file: self._read(file, schema, found["prune"]), found["files"]))
        return df_catalog.Table(reduce(DataFrame.union, frames) if frames else self._empty(schema))

    def _information(self, name: str) -> df_catalog.Table | None:
        """Return a table of the information schema, without opening any data file."""
        if name.lower() not in _INFORMATION:
            return None
        return df_catalog.Table(self._context.read_batch(_INFORMATION[name.lower()](self._find_table(None))))

    def _register_buckets(self, files: Sequence[str]) -> None:
        buckets = {urlsplit(file).netloc for file in files if file.startswith("s3://")}
        for bucket in buckets - self._buckets:
            self._context.register_object_store("s3://", AmazonS3(bucket, **self._s3), bucket)
        self._buckets |= buckets

    def _read(self, file: str, schema: pa.Schema, prune: bool) -> DataFrame:
        if "://" in file:
            self._context.read_parquet(file, file_extension="")  # raises if the file is missing
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
        .with_default_catalog_and_schema(_CATALOG, "none")
        .with_target_partitions(settings["threads"])
    )
    runtime = RuntimeEnvBuilder().with_fair_spill_pool(settings["memory"])
    disk = (
        runtime.with_disk_manager_specified(settings["directory"]) if spills else runtime.with_disk_manager_disabled()
    )
    context = SessionContext(config, disk)
    context.deregister_udf("input_file_name")  # it shows where the storage is
    if spills:
        context.sql(f"SET datafusion.runtime.max_temp_directory_size = '{settings['spill'] >> 20}M'")
    return context


# -------------------------------------------------------------------------------------------------- information schema
_CATALOG, _SCHEMA = "inlay", "datasets"  # so that `table_schema.table_name` is the name of a table in a query


def _text_columns(names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> dict[str, pa.Array]:
    return {name: pa.array([row[at] for row in rows], pa.string()) for at, name in enumerate(names)}


def _list_schemata(_: object) -> pa.RecordBatch:
    return pa.record_batch(_text_columns(("catalog_name", "schema_name"), [(_CATALOG, _SCHEMA)]))


def _list_tables(tables: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    names = ("table_catalog", "table_schema", "table_name", "table_type")
    return pa.record_batch(_text_columns(names, [(_CATALOG, _SCHEMA, t["name"], "BASE TABLE") for t in tables]))


def _list_columns(tables: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    names = ("table_catalog", "table_schema", "table_name", "column_name", "column_default", "is_nullable", "data_type")
    rows = [
        (_CATALOG, _SCHEMA, table["name"], column, None, "YES" if is_nullable else "NO", type_)
        for table in tables
        for column, type_, is_nullable in table["columns"]
    ]
    numbers = [number for table in tables for number, _ in enumerate(table["columns"], 1)]
    return pa.record_batch(_text_columns(names, rows) | {"ordinal_position": pa.array(numbers, pa.int64())})


_INFORMATION = {"schemata": _list_schemata, "tables": _list_tables, "columns": _list_columns}


class _Schema(df_catalog.SchemaProvider):
    def __init__(self, load: LoadTable) -> None:
        self._load = load

    def table_names(self) -> set[str]:
        return set()

    def table(self, name: str) -> df_catalog.Table | None:
        return self._load(name)

    def table_exist(self, name: str) -> bool:
        return self._load(name) is not None


class _Catalog(df_catalog.CatalogProvider):
    """A catalog of schemas, whose names are case-insensitive."""

    def __init__(self, schemas: Mapping[str, LoadTable]) -> None:
        self._schemas = {name: _Schema(load) for name, load in schemas.items()}

    def schema_names(self) -> set[str]:
        return set(self._schemas)

    def schema(self, name: str) -> Any:
        return self._schemas.get(name.lower())


def _write(
    frame: DataFrame, max_rows: int, max_bytes: int, path: str, paths: FilePaths | None = None
) -> dict[str, Any]:
    """Write up to `max_rows` rows as an Arrow stream, without the `paths`. Return their number and `truncated`."""
    schema = pa.schema([field.with_type(_plain(field.type)).remove_metadata() for field in frame.schema()])
    rows, truncated = 0, False
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for produced in frame.execute_stream():
            batch = produced.to_pyarrow() if paths is None else paths.hide_in(produced.to_pyarrow())
            truncated = rows + batch.num_rows > max_rows
            batch = _cast(schema, batch.slice(0, max_rows - rows))
            rows += batch.num_rows
            if file.tell() + byte_size(batch) > max_bytes:
                raise ResultTooLargeError
            stream.write_batch(batch)
            if truncated:
                break
    return {"rows": rows, "truncated": truncated}


def _cast(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(type_: pa.DataType) -> pa.DataType:
    """Replace string and binary views, which many readers do not support."""
    return map_leaf_types(type_, lambda leaf: _VIEWS.get(leaf, leaf))


class _WithoutPandas:
    """Prevents pyarrow from importing pandas, which takes half of the startup time of this process."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)


def _limit_process(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_parent(descriptor: int) -> None:
    """Have the kernel kill this process when the parent process closes its end of a pipe."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def _serve(parent: Connection) -> None:
    def exchange(message: Mapping[str, Any]) -> Any:
        parent.send_bytes(json.dumps(message).encode())
        return json.loads(parent.recv_bytes())

    settings = json.loads(parent.recv_bytes())
    _limit_process(settings["process_memory"])
    session = Session(settings, lambda name: exchange({"find": name}))
    reply: dict[str, Any] = {"ready": True}
    while True:
        request = exchange(reply)
        try:
            reply = session.execute(**request)
        except ResultTooLargeError:
            reply = {"too_large": True}
        except Exception as error:  # noqa: BLE001  # DataFusion's errors have no common class
            reply = {"error": session.paths.hide(str(error))}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    _end_with_parent(sys.stdin.fileno())
    sys.meta_path.insert(0, _WithoutPandas())
    try:
        _serve(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    main()
