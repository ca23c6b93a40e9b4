"""The worker process that runs DataFusion: `python -m inlay.query.worker <descriptor>`.

It runs one query at a time. Its memory is limited before the first query, and its parent process kills it if a query
takes too long, because planning, constant folding and some operators cannot be interrupted. A message on the socket is
JSON; in a reply, a line feed and encoded rows follow. Large results are Arrow streams in files.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import os
import resource
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial, reduce
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import orjson
import pyarrow as pa
from datafusion import DataFrame, RuntimeEnvBuilder, SessionConfig, SessionContext, SQLOptions
from datafusion import catalog as df_catalog
from datafusion.object_store import AmazonS3

from inlay.errors import InlayError, QueryLimitError
from inlay.pyarrow_features import byte_size
from inlay.query.comparison import Differences
from inlay.query.disk import is_low, require_space
from inlay.query.encoding import ENCODERS, encode_part
from inlay.query.paths import FilePaths
from inlay.query.result import columns_of
from inlay.query.sql import first_keyword
from inlay.schema import map_leaf_types

__all__ = ["ResultTooLargeError", "Session"]

_OPTIONS = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
_CONFIGURATION = {
    # With collected statistics, DataFusion returned [3.25, 3.25] for [NaN, 3.25].
    "datafusion.execution.collect_statistics": "false",
    # With a large limit, `SELECT DISTINCT v ... ORDER BY v` ended the process with a segmentation fault.
    "datafusion.optimizer.enable_topk_aggregation": "false",
    # Results have the stored types.
    "datafusion.execution.parquet.schema_force_view_types": "false",
    "datafusion.sql_parser.map_string_types_to_utf8view": "false",
    "datafusion.catalog.information_schema": "false",
}
_SHOW_TABLES = "SELECT table_name FROM information_schema.tables ORDER BY table_name"
_ROWS = frozenset({"select", "with", "values", "table", "from", ""})  # statements that accept a LIMIT
_READERS = 8
_MAX_TABLES = 64
_LARGE_LIMIT = 20_000
_SMALL_BYTES = 16 << 20  # of Parquet files whose rows one thread reads
_REPLY_BYTES = 1 << 17  # of Arrow data; a larger result is written to a file
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}

# Returns a table, None if it does not exist, or the names and columns of all tables if the name is None.
FindTable = Callable[[str | None], Any]
LoadTable = Callable[[str], df_catalog.Table | None]
Message = tuple[dict[str, Any], bytes]


class ResultTooLargeError(Exception):
    """A result exceeds the size limit."""


class Session:
    """Runs queries one at a time. Queries share tables and cached footers.

    A query first runs in memory only, and again with spilling to disk if memory is not enough. Queries with nested loop
    joins never spill: DataFusion 55 then loses or repeats rows, or panics.
    """

    def __init__(self, settings: Mapping[str, Any], find_table: FindTable) -> None:
        self._settings = settings
        self._find_table = find_table
        self.paths = FilePaths()
        self._in_memory = _Database(settings, find_table, self.paths, spills=False)

    def execute(self, request: Mapping[str, Any]) -> Message:
        """Run a statement. `tables` maps the names of its probable tables to their keys."""
        sql = request["sql"]
        if sql.strip(" \r\n\t;").lower().split() == ["show", "tables"]:
            sql = _SHOW_TABLES
        output = _Output(request, self._settings, self.paths if first_keyword(sql) == "explain" else None)
        try:
            return output.write_frame(self._in_memory.frame(sql, request))
        except Exception as error:
            if "Resources exhausted" not in str(error) or self._in_memory.joins_by_nested_loops(sql):
                raise
        require_space(self._settings["directory"], self._settings["disk_reserve"])
        return output.write_frame(self._on_disk.frame(sql, request))

    def decode(self, request: Mapping[str, Any]) -> Message:
        return self._in_memory.decode(request)

    def compare(self, request: Mapping[str, Any]) -> Message:
        """Compare two versions: return some of the rows that differ, or the first of each kind."""
        output = _Output(request, self._settings, None)
        self.paths.add([f"{request['compare']['address']}/"])
        try:
            found = Differences(request["compare"])
            if request["sample"] is not None:
                rows = found.first_of_each_kind(request["sample"])
            else:
                start = request["offset"]
                rows = found.rows(start, start + request["max_rows"] + 1)
            fields, body = output.write(found.schema, rows)
        except (MemoryError, InlayError) as error:
            if not isinstance(error.__cause__ or error, MemoryError):
                raise
            raise QueryLimitError("The diff needs more memory than the limit allows.") from None
        return {**fields, **found.counts}, body

    @cached_property
    def _on_disk(self) -> _Database:
        return _Database(self._settings, self._find_table, self.paths, spills=True)


class _LoadedTable(NamedTuple):
    table: df_catalog.Table
    files: Sequence[str]  # local files
    is_small: bool


class _Database:
    """A DataFusion context with its catalogs, object stores and the tables that queries used."""

    def __init__(self, settings: Mapping[str, Any], find_table: FindTable, paths: FilePaths, *, spills: bool) -> None:
        self._find_table = find_table
        self._paths = paths
        self._s3, self._disk_reserve = settings["s3"], settings["disk_reserve"]
        self._buckets: set[str] = set()
        self._loaded: OrderedDict[str, _LoadedTable] = OrderedDict()  # by key, the last used table last
        self._named: Mapping[str, tuple[str, str | None]] = {}  # key and copy of tables that the query probably uses
        self._partitions = self._threads = settings["threads"]
        # DataFusion requests tables in callbacks, in which it cannot open files: other threads open them.
        self._readers = ThreadPoolExecutor(_READERS)
        self._context = _context(settings, spills=spills)
        for catalog, schema in (("datasets", "default"), (_CATALOG, _SCHEMA)):
            schemas = {schema: self._table, "information_schema": self._information}
            self._context.register_catalog_provider(catalog, _Catalog(schemas))

    def frame(self, sql: str, request: Mapping[str, Any]) -> DataFrame:
        """Plan a query. A small limit becomes part of the plan, with one row more to detect truncation.

        A sort with a limit keeps its rows in memory, so a plan with a large limit could not spill.
        """
        self._named = request["tables"]
        known = [self._loaded.get(copy or key) for key, copy in self._named.values()]
        is_small = bool(known) and all(table is not None and table.is_small for table in known)
        self._use_partitions(1 if is_small else self._threads)
        frame = self._context.sql_with_options(sql, _OPTIONS)
        max_rows = request["max_rows"]
        return frame.limit(max_rows + 1) if max_rows < _LARGE_LIMIT and first_keyword(sql) in _ROWS else frame

    def joins_by_nested_loops(self, sql: str) -> bool:
        plan = self._context.sql_with_options(sql, _OPTIONS).execution_plan()
        return "NestedLoopJoinExec" in plan.display_indent()

    def decode(self, request: Mapping[str, Any]) -> Message:
        """Write the rows of a table to an Arrow stream, unless it is larger than `max_bytes`."""
        if is_low(os.path.dirname(request["path"]), self._disk_reserve):
            return {}, b""
        self._use_partitions(1)
        rows = self._context.read_table(self._load(request["decode"]).table)
        schema = rows.schema()
        with pa.OSFile(request["path"], "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            for batch in rows.execute_stream():
                stream.write_batch(batch.to_pyarrow())
                if file.tell() > request["max_bytes"]:
                    return {}, b""
        return {"size": os.path.getsize(request["path"])}, b""

    def _use_partitions(self, partitions: int) -> None:
        """Set the number of threads. For small tables, distributing rows takes longer than it saves."""
        if partitions != self._partitions:
            self._context.sql(f"SET datafusion.execution.target_partitions = {partitions}")
            self._partitions = partitions

    def _table(self, name: str) -> df_catalog.Table | None:
        key, copy = self._named.get(name.lower(), (None, None))
        if copy is not None:
            with contextlib.suppress(FileNotFoundError):  # a copy that was deleted just now
                return self._remember(copy, partial(self._map, copy)).table
        found: Any = {"key": key} if key in self._loaded else self._find_table(name)
        if found is None:
            return None
        loaded = self._remember(found["key"], partial(self._load, found))
        for file in loaded.files:
            os.stat(file)  # raises if the file is missing; DataFusion returns no rows then
        return loaded.table

    def _remember(self, key: str, load: Callable[[], _LoadedTable]) -> _LoadedTable:
        """Return the loaded table with this key. Forget deleted copies and tables that were not used for long."""
        if key not in self._loaded:
            self._loaded[key] = load()
            deleted = [each for each in self._loaded if each.startswith("/") and not os.path.exists(each)]
            for each in [*deleted, *list(self._loaded)[: len(self._loaded) - _MAX_TABLES]]:
                self._loaded.pop(each, None)
        self._loaded.move_to_end(key)
        return self._loaded[key]

    def _map(self, path: str) -> _LoadedTable:
        """Load a decoded copy. All workers share its memory."""
        with pa.ipc.open_stream(pa.memory_map(path)) as reader:
            batches = list(reader) or [pa.RecordBatch.from_pylist([], reader.schema)]
        return _LoadedTable(df_catalog.Table(self._context.read_batches(batches)), (), True)

    def _load(self, found: Mapping[str, Any]) -> _LoadedTable:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["schema"]))).remove_metadata()
        files = found["files"]
        self._paths.add(files)
        self._register_buckets(files)
        frames = list(self._readers.map(lambda file: self._read(file, schema, found["prune"]), files))
        table = df_catalog.Table(reduce(DataFrame.union, frames) if frames else self._empty(schema))
        local = [file for file in files if "://" not in file]
        is_small = len(local) == len(files) and sum(os.stat(file).st_size for file in local) < _SMALL_BYTES
        return _LoadedTable(table, local, is_small)

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


class _Output:
    """The result of a query: encoded in the reply if it is small, otherwise an Arrow stream in a file."""

    def __init__(self, request: Mapping[str, Any], settings: Mapping[str, Any], paths: FilePaths | None) -> None:
        self._settings, self._paths = settings, paths  # paths to hide
        self._encode = ENCODERS[request["format"]]
        self._max_rows, self._max_bytes = request["max_rows"], request["max_bytes"]
        self._path = os.path.join(settings["directory"], "result.arrow")
        self._started = time.perf_counter()

    def write_frame(self, frame: DataFrame) -> Message:
        """Run a query and write up to `max_rows` rows."""
        return self.write(frame.schema(), (produced.to_pyarrow() for produced in frame.execute_stream()))

    def write(self, produced: pa.Schema, rows: Iterator[pa.RecordBatch]) -> Message:
        """Write up to `max_rows` rows of a schema."""
        schema = pa.schema([field.with_type(_plain(field.type)).remove_metadata() for field in produced])
        batches = self._limited(schema, rows)
        first = list(_until_large(batches))
        rest = next(batches, None)
        fields: dict[str, Any] = {"columns": columns_of(schema)}
        if rest is None:
            body = self._encode(schema, first)
        else:
            body, fields["file"] = b"", True
            self._write_file(schema, itertools.chain(first, [rest], batches))
        milliseconds = round((time.perf_counter() - self._started) * 1000, 3)
        figures = {"row_count": self._rows, "truncated": self._truncated, "execution_time_ms": milliseconds}
        return fields | figures, body

    def _write_file(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        require_space(self._settings["directory"], self._settings["disk_reserve"])
        try:
            with pa.OSFile(self._path, "wb") as file, pa.ipc.new_stream(file, schema) as stream:
                for batch in batches:
                    stream.write_batch(batch)
        except BaseException:
            os.unlink(self._path)
            raise

    def _limited(self, schema: pa.Schema, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._rows, self._truncated, size = 0, False, 0
        for produced in rows:
            batch = produced if self._paths is None else self._paths.hide_in(produced)
            self._truncated = self._rows + batch.num_rows > self._max_rows
            batch = _cast(schema, batch.slice(0, self._max_rows - self._rows))
            self._rows += batch.num_rows
            size += byte_size(batch)
            if size > self._max_bytes:
                raise ResultTooLargeError
            yield batch
            if self._truncated:
                break


def _until_large(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches until they have more than `_REPLY_BYTES` in total."""
    size = 0
    while size <= _REPLY_BYTES and (batch := next(batches, None)) is not None:
        size += byte_size(batch)
        yield batch


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
    def exchange(fields: Mapping[str, Any], body: bytes = b"") -> Any:
        parent.send_bytes(orjson.dumps(fields) + b"\n" + body)
        return orjson.loads(parent.recv_bytes())

    settings = orjson.loads(parent.recv_bytes())
    _limit_process(settings["process_memory"])
    session = Session(settings, lambda name: exchange({"find": name}))
    reply: Message = {"ready": True}, b""
    while True:
        request = exchange(*reply)
        try:
            reply = _respond(session, request)
        except ResultTooLargeError:
            reply = {"too_large": True}, b""
        except InlayError as error:
            reply = {"problem": orjson.loads(session.paths.hide(orjson.dumps(error.to_dict()).decode()))}, b""
        except Exception as error:  # noqa: BLE001  # DataFusion's errors have no common class
            reply = {"error": session.paths.hide(str(error))}, b""


def _respond(session: Session, request: Mapping[str, Any]) -> Message:
    if "encode" in request:
        return encode_part(request)
    if "compare" in request:
        return session.compare(request)
    return session.decode(request) if "decode" in request else session.execute(request)


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
