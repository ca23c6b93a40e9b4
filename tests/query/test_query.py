"""SQL queries on datasets: tables, results, result formats, limits and errors."""

from __future__ import annotations

import base64
import csv
import dataclasses
import datetime as dt
import decimal
import http.client
import io
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datafusion
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inlay.errors import (
    InvalidArgumentError,
    QueryBusyError,
    QueryCancelledError,
    QueryError,
    QueryFailedError,
    QueryLimitError,
    QueryTimeoutError,
    StorageUnavailableError,
)
from inlay.query import Answer, QueryEngine, QueryResult, Table, deadlines, pool
from inlay.query.caches import ResultCache
from inlay.query.csv_lines import csv_rows
from inlay.query.deadlines import Deadline, StorageChecks
from inlay.query.sql import VOLATILE, explain, find_case_mistake, first_keyword, position_of, respell, table_names
from inlay.query.steps import run_in_thread
from inlay.query.values import text_values
from tests.coroutines import run_coroutine
from tests.query.workers import workers

NAN = float("nan")
ENDLESS = "SELECT count(*) FROM generate_series(1, 1000000000000)"


class Shelf:
    """Tables as lists of versions. The last version is the current one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.versions: dict[str, list[Table]] = {}
        self.requests: list[tuple[str, int | None]] = []

    def put(self, name: str, *parts: pa.Table, schema: pa.Schema | None = None, **options: Any) -> None:
        number = len(self.versions.setdefault(name, []))
        files = []
        for index, part in enumerate(parts):
            path = self.directory / f"{name}-{number}-{index}.parquet"
            pq.write_table(part, path, **options)
            files.append(str(path))
        self.versions[name].append(Table(schema or parts[0].schema, files))

    def find(self, name: str, version: int | None) -> Table | None:
        self.requests.append((name, version))
        versions = next((found for known, found in self.versions.items() if known.lower() == name), [])
        number = len(versions) if version is None else version
        return versions[number - 1] if 1 <= number <= len(versions) else None

    def names(self) -> list[str]:
        return list(self.versions)

    def schemas(self) -> list[tuple[str, pa.Schema]]:
        return [(name, versions[-1].schema) for name, versions in self.versions.items()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("query")


@pytest.fixture(scope="module")
def running(home: Path) -> Iterator[tuple[QueryEngine, Shelf]]:
    shelf = Shelf(home)
    with QueryEngine(shelf, spill_dir=home / "spill", timeout_seconds=60, max_rows=50_000) as db:
        yield db, shelf


@pytest.fixture
def shelf(running: tuple[QueryEngine, Shelf], tmp_path: Path) -> Shelf:
    running[1].versions.clear()
    running[1].requests.clear()
    running[1].directory = tmp_path
    return running[1]


@pytest.fixture
def db(running: tuple[QueryEngine, Shelf], shelf: Shelf) -> QueryEngine:
    return running[0]


def table_of(db: QueryEngine, sql: str, **options: Any) -> pa.Table:
    with db.run(sql, **options) as result:
        return result.read_all()


def rows_of(db: QueryEngine, sql: str, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table_of(db, sql, **options).to_pylist()]


def failure(db: QueryEngine, sql: str, **options: Any) -> QueryError:
    with pytest.raises(QueryError) as caught:
        db.run(sql, **options)
    return caught.value


# ------------------------------------------------------------------------------------------------- which tables it sees
@pytest.mark.parametrize(
    "name",
    [
        "datasets.orders",
        "datasets.Orders",
        "DATASETS.ORDERS",
        'datasets."orders"',
        'datasets."ORDERS"',
        "datasets.default.orders",
        'datasets."default"."oRDers"',
        '"datasets"."DEFAULT".orders',
        'datasets."orders@2"',
        'datasets.default."Orders@2"',
    ],
)
def test_table_names_ignore_case_and_quotes(db: QueryEngine, shelf: Shelf, name: str) -> None:
    shelf.put("Orders", pa.table({"a": [1]}))
    shelf.put("Orders", pa.table({"a": [2]}))
    assert rows_of(db, f"SELECT a FROM {name}") == [(2,)]


def test_older_versions_are_tables(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("t", pa.table({"k": [1, 2], "v": ["a", "b"]}))
    shelf.put("t", pa.table({"k": [1, 2, 3], "v": ["a", "B", "c"]}))
    changed = (
        'SELECT n.k, o.v, n.v FROM datasets.t n LEFT JOIN datasets."t@1" o ON o.k = n.k WHERE n.v IS DISTINCT FROM o.v'
    )
    assert sorted(map(str, rows_of(db, changed))) == ["(2, 'B')", "(3, 'c')"]  # both columns are named v
    assert sorted(table_of(db, f"SELECT count(*) AS n FROM ({changed}) AS c(k, x, y)")["n"].to_pylist()) == [2]


def test_the_next_query_sees_a_load_a_rename_and_a_deletion(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("t", pa.table({"a": [1]}))
    assert rows_of(db, "SELECT a FROM datasets.t") == [(1,)]
    shelf.put("t", pa.table({"a": [2], "b": ["x"]}))
    assert rows_of(db, "SELECT * FROM datasets.t") == [(2, "x")]
    shelf.versions["u"] = shelf.versions.pop("t")
    assert rows_of(db, "SELECT a FROM datasets.u") == [(2,)]
    assert "no table datasets.t" in failure(db, "SELECT a FROM datasets.t").message
    del shelf.versions["u"]
    assert "no table datasets.u" in failure(db, "SELECT a FROM datasets.u").message


def test_a_query_sees_one_version_of_a_table(db: QueryEngine, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.put("t", pa.table({"a": [1]}))
    find = shelf.find

    def find_and_load(name: str, version: int | None) -> Table | None:
        found = find(name, version)
        shelf.put("t", pa.table({"a": [100 + len(shelf.versions["t"])]}))
        return found

    monkeypatch.setattr(shelf, "find", find_and_load)
    sql = 'SELECT x.a, y.a AS b, z.a AS c FROM datasets.t x, datasets.default.t y, datasets."T" z'
    assert rows_of(db, sql) == [(1, 1, 1)]
    assert len(shelf.requests) == 1


def test_only_the_tables_of_a_query_are_requested(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("a", pa.table({"x": [1]}))
    shelf.put("b", pa.table({"x": [1]}))
    rows_of(db, "WITH c AS (SELECT * FROM datasets.a) SELECT * FROM c")
    assert shelf.requests == [("a", None)]


def test_files_of_one_version_can_have_different_schemas(db: QueryEngine, shelf: Shelf) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("extra", pa.struct([("x", pa.float64())]))])
    old = pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", None]})
    new = pa.table({"extra": pa.array([{"x": 1.5}], schema.field("extra").type), "id": [2**40], "name": ["c"]})
    shelf.put("t", old, new, schema=schema)
    found = table_of(db, "SELECT * FROM datasets.t ORDER BY id")
    assert found.schema.equals(schema)
    assert found.to_pylist() == [
        {"id": 1, "name": "a", "extra": None},
        {"id": 2, "name": None, "extra": None},
        {"id": 2**40, "name": "c", "extra": {"x": 1.5}},
    ]
    assert rows_of(db, "SELECT id FROM datasets.t WHERE extra IS NULL ORDER BY id") == [(1,), (2,)]


def test_tables_of_many_files_and_of_no_files(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("many", *[pa.table({"a": [number]}) for number in range(60)])
    shelf.versions["none"] = [Table(pa.schema([("a", pa.int64())]), [])]
    shelf.put("empty", pa.table({"a": pa.array([], pa.int64())}))
    assert rows_of(db, "SELECT count(*), sum(a) FROM datasets.many") == [(60, 1770)]
    for name in ("none", "empty"):
        assert rows_of(db, f"SELECT a FROM datasets.{name}") == []
        assert rows_of(db, f"SELECT count(a), max(a) FROM datasets.{name}") == [(0, None)]


def test_paths_with_special_characters(db: QueryEngine, shelf: Shelf, tmp_path: Path) -> None:
    shelf.directory = tmp_path / "a b%20*?[1]{x,y}#é'"
    shelf.directory.mkdir()
    shelf.put("t", pa.table({"a": [1]}))
    assert rows_of(db, "SELECT a FROM datasets.t") == [(1,)]


def test_a_missing_data_file_is_a_failure_of_the_engine(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("t", pa.table({"a": [1]}))
    os.unlink(shelf.versions["t"][0].files[0])
    assert isinstance(failure(db, "SELECT a FROM datasets.t"), QueryFailedError)
    assert rows_of(db, "SELECT 1") == [(1,)]


def test_a_corrupt_data_file_is_a_failure_of_the_engine(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("t", pa.table({"a": [1]}))
    Path(shelf.versions["t"][0].files[0]).write_bytes(b"PAR1" + b"\0" * 100 + b"PAR1")
    assert isinstance(failure(db, "SELECT a FROM datasets.t"), QueryFailedError)


def test_a_full_disk_is_a_failure_of_the_engine() -> None:
    message = "[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device"
    assert isinstance(explain(message, "SELECT 1", list), QueryFailedError)
    assert not isinstance(explain("a value '[Errno 28]' is wrong", "SELECT 1", list), QueryFailedError)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "repeated",
    [
        " ",
        "No field named ",
        "No field named a. Did you mean ",
        "table 'a.b.",
        "used disk space ",
        "Arrow error: ",
        "'",
        '"',
    ],
)
def test_engine_messages_are_parsed_in_linear_time(repeated: str) -> None:
    """The service parses messages that can repeat a megabyte of the query or of the data."""
    text = repeated * ((1 << 20) // len(repeated))
    for message in (text, f"Arrow error: Cast error: Cannot cast string 'x{text}x' to value of Int32 type", f"{text}."):
        assert len(str(explain(message, f"SELECT '{text}'", list))) < 10_000
        find_case_mistake(message)


def test_an_error_of_the_table_lookup_is_raised_and_the_next_query_works(
    db: QueryEngine, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str, version: int | None) -> Table | None:
        raise ConnectionRefusedError("the catalog is unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(shelf, "find", broken)
        with pytest.raises(ConnectionRefusedError):
            db.run("SELECT * FROM datasets.t")
    assert rows_of(db, "SELECT 1") == [(1,)]


# ------------------------------------------------------------------------------------------------------- exact answers
TYPES: dict[str, pa.Array] = {
    "timestamp_ns": pa.array([1, 2**62, None], pa.timestamp("ns")),
    "timestamp_ns_zoned": pa.array([1, -(2**62), None], pa.timestamp("ns", "Europe/Berlin")),
    "timestamp_us": pa.array([1, -1, None], pa.timestamp("us")),
    "timestamp_ms": pa.array([1, -1, None], pa.timestamp("ms", "UTC")),
    "timestamp_s": pa.array([1, -1, None], pa.timestamp("s")),
    "decimal128": pa.array(
        [decimal.Decimal("1.20"), decimal.Decimal("-" + "9" * 36 + ".99"), None], pa.decimal128(38, 2)
    ),
    "decimal256": pa.array([decimal.Decimal("9" * 60), decimal.Decimal("-0.01"), None], pa.decimal256(70, 2)),
    "large_string": pa.array(["a", "", None], pa.large_string()),
    "string": pa.array(["ä", "", None]),
    "dictionary": pa.array(["x", "y", None]).dictionary_encode(),
    "uint8": pa.array([255, 0, None], pa.uint8()),
    "uint64": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "int64": pa.array([2**63 - 1, -(2**63), None]),
    "duration_ns": pa.array([1, -1, None], pa.duration("ns")),
    "duration_s": pa.array([1, -1, None], pa.duration("s")),
    "time32": pa.array([1, 86_399_999, None], pa.time32("ms")),
    "time64": pa.array([1, 86_399_999_999_999, None], pa.time64("ns")),
    "date32": pa.array([1, -1, None], pa.date32()),
    "date64": pa.array([86_400_000, 0, None], pa.date64()),
    "binary": pa.array([b"\x00\xff", b"", None]),
    "large_binary": pa.array([b"\x00\xff", b"", None], pa.large_binary()),
    "fixed_binary": pa.array([b"ab", b"cd", None], pa.binary(2)),
    "float16": pa.array([1.5, -0.0, None], pa.float16()),
    "float32": pa.array([0.1, NAN, None], pa.float32()),
    "float64": pa.array([0.1, math.inf, None]),
    "boolean": pa.array([True, False, None]),
    "null": pa.nulls(3),
    "list": pa.array([[1, None], [], None]),
    "large_list": pa.array([[1, None], [], None], pa.large_list(pa.int8())),
    "fixed_list": pa.array([[1, 2], [3, None], None], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}, None]),
    "list_of_structs": pa.array([[{"t": 1}], [None], None], pa.list_(pa.struct([("t", pa.timestamp("ns"))]))),
    "map": pa.array([[("k", 1), ("l", None)], [], None], pa.map_(pa.string(), pa.int32())),
}


@pytest.mark.parametrize("name", TYPES)
def test_results_have_the_stored_types_and_values(db: QueryEngine, shelf: Shelf, name: str) -> None:
    stored = pa.table({"row": [0, 1, 2], "v": TYPES[name]})
    shelf.put("t", stored)
    found = table_of(db, "SELECT * FROM datasets.t ORDER BY row")
    assert found.schema.equals(stored.schema)
    assert found["v"].combine_chunks().equals(TYPES[name]) or repr(found["v"].to_pylist()) == repr(
        stored["v"].to_pylist()
    )


def test_results_have_no_view_types_and_no_metadata(db: QueryEngine, shelf: Shelf) -> None:
    field = pa.field("s", pa.string(), metadata={"secret": "x"})
    shelf.put("t", pa.Table.from_arrays([pa.array(["ab"])], schema=pa.schema([field], metadata={"owner": "y"})))
    sql = """SELECT s, substr(s, 2) AS u, concat(s, 'c') AS c, arrow_cast(s, 'Utf8View') AS v, ARRAY[s] AS l,
             arrow_cast(arrow_cast(s, 'Binary'), 'BinaryView') AS b, make_array(arrow_cast(s, 'Utf8View')) AS lv,
             named_struct('x', arrow_cast(s, 'Utf8View')) AS st FROM datasets.t"""
    schema = table_of(db, sql).schema
    assert "view" not in str(schema)
    assert schema.metadata is None
    assert schema.field("s").metadata is None


@pytest.mark.parametrize("statistics", [True, False], ids=["statistics", "no statistics"])
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_nan_is_never_lost(db: QueryEngine, shelf: Shelf, statistics: bool, nested: bool) -> None:
    values = pa.array([NAN, 3.25])
    column = pa.StructArray.from_arrays([values], ["f"]) if nested else values
    v = "v['f']" if nested else "v"
    shelf.put("t", pa.table({"i": [1, 2], "v": column}), write_statistics=statistics)
    queries = {
        f"SELECT i FROM datasets.t WHERE {v} <> 3.25": [(1,)],
        f"SELECT i FROM datasets.t WHERE {v} > 100": [(1,)],
        f"SELECT i FROM datasets.t WHERE NOT ({v} <= 3.25)": [(1,)],
        f"SELECT i FROM datasets.t WHERE isnan({v})": [(1,)],
        f"SELECT i FROM datasets.t WHERE {v} = 3.25": [(2,)],
        f"SELECT min({v}) FROM datasets.t": [(3.25,)],
    }
    for sql, expected in queries.items():
        assert rows_of(db, sql) == expected, sql
    assert str(rows_of(db, f"SELECT {v} AS x FROM datasets.t ORDER BY i")) == "[(nan,), (3.25,)]"
    assert str(rows_of(db, f"SELECT max({v}) FROM datasets.t")) == "[(nan,)]"


def test_row_groups_with_trusted_bounds_are_skipped(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("t", pa.table({"i": list(range(1000)), "v": [0.5] * 1000}), row_group_size=10)
    plan = "EXPLAIN ANALYZE SELECT v FROM datasets.t WHERE i = 7"
    assert "row_groups_pruned_statistics=100 total → 100 matched" in str(rows_of(db, plan))
    shelf.versions["t"] = [dataclasses.replace(shelf.versions["t"][0], exact_float_bounds=True)]
    assert "row_groups_pruned_statistics=100 total → 1 matched" in str(rows_of(db, plan))
    assert rows_of(db, "SELECT v FROM datasets.t WHERE i = 7") == [(0.5,)]


# -------------------------------------------------------------------------------------- compared with an independent db
def orders() -> pa.Table:
    days = [dt.date(2024, 1, 1) + dt.timedelta(days=(number * 37) % 500) for number in range(2000)]
    return pa.table(
        {
            "id": pa.array(range(2000), pa.int64()),
            "customer": pa.array([None if n % 41 == 0 else n * 7919 % 150 for n in range(2000)], pa.int32()),
            "amount": pa.array(
                [decimal.Decimal(n * 104729 % 100_000) / 100 for n in range(2000)], pa.decimal128(12, 2)
            ),
            "weight": pa.array([None if n % 13 == 0 else (n * 31 % 997) / 8 for n in range(2000)]),
            "day": pa.array(days, pa.date32()),
            "moment": pa.array([n * 86_399_000_001 for n in range(2000)], pa.timestamp("us")),
            "status": pa.array([["new", "paid", "sent", None][n % 4] for n in range(2000)]),
            "tags": pa.array([["a", "b", "c"][: n % 4] for n in range(2000)]),
            "place": pa.array([{"city": f"c{n % 9}", "zip": n % 5} for n in range(2000)]),
        }
    )


def customers() -> pa.Table:
    return pa.table(
        {
            "customer": pa.array(range(0, 200, 2), pa.int32()),
            "name": [f"Name {n:03d}" for n in range(100)],
            "region": [["north", "south", None][n % 3] for n in range(100)],
        }
    )


QUERIES = [
    "SELECT count(*), count(customer), count(DISTINCT customer) FROM orders",
    "SELECT status, count(*) FROM orders GROUP BY status ORDER BY status NULLS LAST",
    "SELECT sum(amount), min(amount), max(amount) FROM orders",
    "SELECT status, sum(amount) FROM orders WHERE weight > 50 GROUP BY status HAVING count(*) > 3 ORDER BY 2",
    "SELECT id FROM orders WHERE status IS NULL AND amount < 100 ORDER BY id",
    "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 25",
    "SELECT id FROM orders ORDER BY id LIMIT 10 OFFSET 100",
    "SELECT DISTINCT status FROM orders ORDER BY status NULLS FIRST",
    "SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.customer WHERE o.amount > 900 ORDER BY o.id",
    "SELECT o.id, c.name FROM orders o LEFT JOIN customers c USING (customer) WHERE o.id < 60 ORDER BY o.id",
    (
        "SELECT c.customer, count(o.id) FROM customers c LEFT JOIN orders o ON o.customer = c.customer GROUP BY 1"
        " ORDER BY 1"
    ),
    "SELECT count(*) FROM orders o FULL JOIN customers c ON o.customer = c.customer",
    "SELECT count(*) FROM customers a CROSS JOIN customers b WHERE a.customer < b.customer",
    "SELECT name FROM customers WHERE customer IN (SELECT customer FROM orders WHERE amount > 990) ORDER BY name",
    (
        "SELECT name FROM customers c WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.customer)"
        " ORDER BY name"
    ),
    (
        "SELECT name FROM customers c WHERE EXISTS (SELECT 1 FROM orders o"
        " WHERE o.customer = c.customer AND o.weight > 120) ORDER BY 1"
    ),
    "SELECT id, (SELECT max(weight) FROM orders) - weight FROM orders WHERE id < 30 ORDER BY id",
    (
        "WITH t AS (SELECT customer, sum(amount) AS total FROM orders GROUP BY customer) SELECT * FROM t"
        " WHERE total > 8000 ORDER BY 1"
    ),
    (
        "WITH a AS (SELECT id FROM orders WHERE id < 5), b AS (SELECT id + 1 AS id FROM a) SELECT a.id FROM a"
        " JOIN b ON a.id = b.id ORDER BY 1"
    ),
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 50) SELECT sum(n), count(*) FROM r",
    "SELECT id, row_number() OVER (PARTITION BY status ORDER BY id) FROM orders WHERE id < 40 ORDER BY id",
    (
        "SELECT id, rank() OVER (ORDER BY customer NULLS LAST), dense_rank() OVER (ORDER BY customer NULLS LAST)"
        " FROM orders WHERE id < 90 ORDER BY id"
    ),
    (
        "SELECT id, sum(amount) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM orders"
        " WHERE id < 50 ORDER BY id"
    ),
    (
        "SELECT id, lag(weight, 2) OVER (ORDER BY id), lead(weight) OVER (ORDER BY id) FROM orders WHERE id < 50"
        " ORDER BY id"
    ),
    "SELECT id, first_value(id) OVER (PARTITION BY customer ORDER BY id) FROM orders WHERE id < 300 ORDER BY id",
    "SELECT id, ntile(4) OVER (ORDER BY id) FROM orders WHERE id < 41 ORDER BY id",
    (
        "SELECT customer, amount FROM (SELECT *, row_number() OVER (PARTITION BY customer"
        " ORDER BY amount DESC, id) AS n FROM orders) t WHERE n = 1 ORDER BY 1 NULLS LAST"
    ),
    "SELECT date_trunc('month', day) AS m, count(*) FROM orders GROUP BY 1 ORDER BY 1",
    (
        "SELECT extract(year FROM day), extract(month FROM day), extract(dow FROM day), count(*) FROM orders"
        " GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    ),
    "SELECT id FROM orders WHERE day BETWEEN DATE '2024-03-01' AND DATE '2024-03-31' ORDER BY id",
    "SELECT id, day + INTERVAL '1 month' FROM orders WHERE id < 60 ORDER BY id",
    "SELECT id, extract(hour FROM moment), extract(minute FROM moment) FROM orders WHERE id < 60 ORDER BY id",
    "SELECT max(moment), min(day) FROM orders",
    (
        "SELECT id, CASE WHEN amount > 500 THEN 'big' WHEN amount > 100 THEN 'mid' ELSE 'small' END FROM orders"
        " WHERE id < 60 ORDER BY id"
    ),
    "SELECT id, coalesce(customer, -1), nullif(status, 'new') FROM orders WHERE id < 90 ORDER BY id",
    "SELECT upper(status), length(status), substr(status, 2, 2), status || '!' FROM orders WHERE id < 8 ORDER BY id",
    "SELECT name FROM customers WHERE name LIKE '%01%' ORDER BY name",
    "SELECT name FROM customers WHERE name NOT LIKE 'Name 0%' ORDER BY name",
    "SELECT replace(name, 'Name ', '#'), trim('  x '), lpad('7', 3, '0') FROM customers WHERE customer < 9 ORDER BY 1",
    (
        "SELECT id, CAST(amount AS BIGINT), CAST(id AS VARCHAR) AS x FROM orders"
        " WHERE id < 40 AND amount = CAST(amount AS BIGINT) ORDER BY id"
    ),
    "SELECT id % 7, abs(id - 1000), floor(weight), ceil(weight) FROM orders WHERE id < 60 ORDER BY id",
    "SELECT place['city'], count(*) FROM orders GROUP BY 1 ORDER BY 1",
    "SELECT id FROM orders WHERE place['zip'] = 3 AND place['city'] = 'c3' ORDER BY id",
    "SELECT id, tags[1] FROM orders WHERE id < 20 ORDER BY id",
    "SELECT tag, count(*) FROM (SELECT unnest(tags) AS tag FROM orders) t GROUP BY tag ORDER BY tag",
    "SELECT count(*) FILTER (WHERE weight IS NULL), count(*) FILTER (WHERE status = 'new') FROM orders",
    (
        "SELECT region, status, count(*) FROM orders JOIN customers USING (customer)"
        " GROUP BY ROLLUP (region, status) ORDER BY 1 NULLS FIRST, 2 NULLS FIRST, 3"
    ),
    "SELECT region, count(*) FROM customers GROUP BY GROUPING SETS ((region), ()) ORDER BY 2, 1 NULLS LAST",
    "SELECT id FROM orders WHERE id < 10 UNION SELECT id FROM orders WHERE id BETWEEN 5 AND 15 ORDER BY 1",
    "SELECT customer FROM orders WHERE id < 100 EXCEPT SELECT customer FROM customers ORDER BY 1 NULLS LAST",
    "SELECT customer FROM orders WHERE id < 200 INTERSECT SELECT customer FROM customers ORDER BY 1",
    "SELECT sum(weight), avg(weight) FROM orders WHERE id < 8",
    "SELECT median(id), stddev_pop(id) FROM orders WHERE id < 9",
    "SELECT string_agg(name, ',' ORDER BY name) FROM customers WHERE customer < 20",
    "SELECT array_agg(id ORDER BY id) FROM orders WHERE id < 10",
    "SELECT * FROM (VALUES (1, 'a'), (2, NULL)) AS t(n, s) ORDER BY n",
    "SELECT bool_and(amount >= 0), bool_or(weight > 1000) FROM orders",
    "SELECT status, customer, max(id) FROM orders GROUP BY status, customer ORDER BY 3 DESC LIMIT 20",
]


@pytest.fixture(scope="module")
def oracle() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("orders", orders())
        connection.register("customers", customers())
        yield connection


def plain(value: Any) -> Any:
    """Normalize a value for comparison between engines: numbers by value, dates as midnights."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float, decimal.Decimal)):
        return round(float(value), 9)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day)  # noqa: DTZ001
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("sql", QUERIES)
def test_results_equal_those_of_duckdb(
    db: QueryEngine, shelf: Shelf, oracle: duckdb.DuckDBPyConnection, sql: str
) -> None:
    everything = orders()
    shelf.put(
        "orders", everything.slice(0, 700), everything.slice(700, 700), everything.slice(1400), row_group_size=100
    )
    shelf.put("customers", customers())
    ours = sql.replace("FROM orders", "FROM datasets.orders").replace("JOIN orders", "JOIN datasets.orders")
    ours = ours.replace("FROM customers", "FROM datasets.customers").replace(
        "JOIN customers", "JOIN datasets.customers"
    )
    with db.run(ours) as result:
        found = [column.to_pylist() for column in result.read_all().columns]
    expected = oracle.sql(sql).fetchall()
    assert [tuple(map(plain, row)) for row in zip(*found, strict=True)] == [tuple(map(plain, row)) for row in expected]


# --------------------------------------------------------------------------------------- compared with pyarrow's filter
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
COLUMNS = {
    "i": (pa.int32(), st.integers(-5, 5)),
    "u": (pa.uint64(), st.integers(0, 2**64 - 1) | st.integers(0, 3)),
    "s": (pa.string(), st.text(alphabet="aAbé'\x00\n ", max_size=3)),
    "d": (pa.decimal128(10, 2), st.decimals(-5, 5, places=2)),
    "t": (pa.timestamp("ns"), st.integers(-3, 3)),
    "b": (pa.bool_(), st.booleans()),
    "f": (pa.float64(), st.floats(-4, 4, width=16)),
}
LITERALS: dict[str, Callable[[Any], str]] = {
    "s": lambda v: "'" + v.replace("'", "''") + "'",
    "d": lambda v: f"CAST('{v}' AS DECIMAL(10,2))",
    "t": lambda v: f"arrow_cast({v}, 'Timestamp(Nanosecond, None)')",
    "u": lambda v: f"CAST('{v}' AS BIGINT UNSIGNED)",
    "f": lambda v: f"CAST('{v}' AS DOUBLE)",
}


@st.composite
def filtered(draw: st.DrawFn) -> tuple[pa.Table, str, str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True))
    rows = draw(st.integers(0, 30))
    columns = {
        name: pa.array(draw(st.lists(st.none() | COLUMNS[name][1], min_size=rows, max_size=rows)), COLUMNS[name][0])
        for name in names
    }
    name = draw(st.sampled_from(names))
    value = draw(COLUMNS[name][1].filter(lambda v: "\x00" not in str(v)))
    return pa.table(columns), name, draw(st.sampled_from(sorted(OPERATORS))), value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=filtered(), groups=st.integers(1, 9), parts=st.integers(1, 3))
def test_predicates_equal_those_of_pyarrow(
    db: QueryEngine, shelf: Shelf, case: tuple[pa.Table, str, str, Any], groups: int, parts: int
) -> None:
    table, name, operator, value = case
    table = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    size = max(1, -(-table.num_rows // parts))
    shelf.versions.clear()
    shelf.directory = shelf.directory / "x"
    shelf.directory.mkdir()
    shelf.put("t", *[table.slice(start * size, size) for start in range(parts)], row_group_size=groups)
    literal = LITERALS.get(name, str)(value)
    found = table_of(db, f"SELECT * FROM datasets.t WHERE {name} {operator} {literal} ORDER BY row")
    expected = table.filter(OPERATORS[operator](table[name], pa.scalar(value, table.schema.field(name).type)))
    assert found.to_pylist() == expected.to_pylist()


# ----------------------------------------------------------------------------------------------------------- statements
def test_show_tables_describe_and_explain(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("b", pa.table({"x": [1]}))
    shelf.put("A", pa.table({"x": [1]}))
    assert rows_of(db, " show  tables ;") == [("A",), ("b",)]
    columns = table_of(db, "SHOW COLUMNS FROM datasets.b").select(["column_name", "data_type", "is_nullable"])
    assert columns.to_pylist() == [{"column_name": "x", "data_type": "bigint", "is_nullable": "YES"}]
    assert rows_of(db, "DESCRIBE datasets.b") == [("x", "Int64", "YES")]
    assert "physical_plan" in str(rows_of(db, "EXPLAIN SELECT x FROM datasets.b"))
    assert rows_of(db, "-- a comment\n(SELECT 1);") == [(1,)]


def test_the_information_schema_lists_tables_and_columns_without_opening_files(db: QueryEngine, shelf: Shelf) -> None:
    schema = pa.schema([pa.field("x", pa.int32(), nullable=False), ("Price", pa.decimal128(10, 2)), ("s", pa.string())])
    shelf.versions["a"] = [Table(schema, ["/nowhere/secret/a.parquet"])]
    shelf.versions["B"] = [Table(pa.schema([("y", pa.list_(pa.int64()))]), ["s3://nowhere/secret/b.parquet"])]
    shelf.requests.clear()
    tables = "SELECT table_catalog, table_schema, table_name, table_type FROM information_schema.tables ORDER BY 3"
    assert rows_of(db, tables) == [("inlay", "datasets", "B", "BASE TABLE"), ("inlay", "datasets", "a", "BASE TABLE")]
    columns = (
        "SELECT column_name, ordinal_position, is_nullable, data_type, column_default FROM information_schema.columns "
        "WHERE table_schema = 'datasets' AND table_name = 'a' ORDER BY ordinal_position"
    )
    assert rows_of(db, columns) == [
        ("x", 1, "NO", "integer", None),
        ("Price", 2, "YES", "decimal(10,2)", None),
        ("s", 3, "YES", "text", None),
    ]
    assert rows_of(db, "SELECT * FROM information_schema.schemata") == [("inlay", "datasets")]
    joined = (
        "SELECT t.table_name, count(*) FROM INFORMATION_SCHEMA.Tables t JOIN datasets.information_schema.columns c "
        "ON t.table_name = c.table_name GROUP BY 1 ORDER BY 1"
    )
    assert rows_of(db, joined) == [("B", 1), ("a", 3)]
    everything = str(rows_of(db, "SELECT * FROM information_schema.tables, information_schema.columns"))
    assert "secret" not in everything
    assert shelf.requests == []


def test_no_tables(db: QueryEngine, shelf: Shelf) -> None:
    shelf.versions.clear()
    assert rows_of(db, "SELECT * FROM information_schema.tables") == []
    assert rows_of(db, "SELECT * FROM information_schema.columns") == []
    assert rows_of(db, "SHOW TABLES") == []


def test_a_listed_table_can_be_queried_by_its_schema_and_name(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("Odd", pa.table({"x": [1]}))
    sql = "SELECT table_catalog, table_schema, table_name FROM information_schema.tables WHERE table_name = 'Odd'"
    [(catalog, schema, name)] = rows_of(db, sql)
    assert rows_of(db, f"SELECT x FROM {schema}.{name}") == rows_of(db, f"SELECT x FROM {catalog}.{schema}.{name}")


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT Revenue FROM datasets.t", ["Revenue"]),
        ("SELECT revenue, REVENUE AS x FROM datasets.t WHERE reVenue > 0 ORDER BY revenue", ["Revenue", "x"]),
        ("SELECT T.Revenue, length(LENGTH) AS d FROM datasets.t AS T", ["Revenue", "d"]),
        ("SELECT 'revenue' AS r, sum(REVENUE) AS s FROM datasets.t GROUP BY Date", ["r", "s"]),
        ("WITH c AS (SELECT revenue FROM datasets.t) SELECT revenue FROM c", ["Revenue"]),
        ("SELECT LOW FROM datasets.t", ["low"]),
    ],
)
def test_column_names_ignore_case(db: QueryEngine, shelf: Shelf, sql: str, names: list[str]) -> None:
    shelf.put("t", pa.table({"Revenue": [5], "Date": ["2024-01-02"], "Length": ["x"], "low": [1]}))
    assert table_of(db, sql).column_names == names


def test_columns_that_differ_only_in_case(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("t", pa.table({"ID": [1], "Id": [2], "id": [3]}))
    assert rows_of(db, 'SELECT "ID", "Id", id FROM datasets.t') == [(1, 2, 3)]
    shelf.put("t", pa.table({"ID": [1], "Id": [2]}))
    assert 'Did you mean "I' in str(failure(db, "SELECT id FROM datasets.t").hint)


# --------------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("sql", "message", "position", "hint"),
    [
        ("SELEC 1", "Invalid SQL: Expected: an SQL statement, found: SELEC.", (1, 1), None),
        ("SELECT *\nFROM datasets.orders\nWHER x = 1", "Expected: end of statement, found: x", (3, 6), None),
        ("SELECT (1", "Expected: ), found: EOF", None, None),
        ("SELECT 'it''s \"", "Unterminated string literal", (1, 8), None),
        ("SELECT 1; SELECT 2", "The SQL has several statements.", None, "Run one statement at a time."),
        (" ;; -- nothing", "The SQL is empty.", None, None),
        ("", "The SQL is empty.", None, None),
        (
            "SELECT *\n FROM datasets.ordres",
            "There is no table datasets.ordres.",
            (2, 16),
            "Did you mean datasets.Orders?",
        ),
        ("SELECT * FROM orders", "There is no table orders.", (1, 15), "Did you mean datasets.Orders?"),
        ('SELECT * FROM datasets."orders@9"', "The table datasets.Orders has no version 9.", (1, 24), None),
        ("SELECT * FROM datasets.zzzzzz", "There is no table datasets.zzzzzz.", (1, 24), "The tables are Orders."),
        (
            "SELECT * FROM other.orders",
            "There is no table other.orders.",
            (1, 21),
            "Tables are named datasets.<table>.",
        ),
        ("SELECT * FROM a.b.c", "There is no table a.b.c.", (1, 19), "Tables are named datasets.<table>."),
        (
            "SELECT 'amuont', -- amuont\n amuont FROM datasets.orders",
            "There is no column amuont.",
            (2, 2),
            "Did you mean amount?",
        ),
        ("SELECT o.amuont FROM datasets.orders o", "There is no column amuont.", (1, 10), "Did you mean amount?"),
        (
            "SELECT qqqq FROM datasets.orders",
            "There is no column qqqq.",
            (1, 8),
            'The columns are id, amount, "Unit Price".',
        ),
        (
            "SELECT unit_price FROM datasets.orders",
            "There is no column unit_price.",
            (1, 8),
            'Did you mean "Unit Price"?',
        ),
        ("SELECT summ(id) FROM datasets.orders", "There is no function summ.", (1, 8), "Did you mean sum?"),
        (
            "SELECT " + "(" * 500 + "1" + ")" * 500,
            "The query is nested too deeply.",
            None,
            "Split the query into steps with WITH.",
        ),
        ("SELECT 1 / 0", "Divide by zero error.", None, None),
        ("SELECT CAST('x' AS INT)", "Cannot cast string 'x' to value of Int32 type.", None, None),
        ("SELECT CAST('Resources exhausted, No such file' AS INT)", "Cannot cast string", None, None),
        ("SELECT a\x00b", "The SQL contains a NUL character.", None, None),
    ],
)
def test_error_messages_positions_and_hints(
    db: QueryEngine, shelf: Shelf, sql: str, message: str, position: tuple[int, int] | None, hint: str | None
) -> None:
    shelf.put("Orders", pa.table({"id": [1], "amount": [2], "Unit Price": [3]}))
    error = failure(db, sql)
    assert type(error) is QueryError
    assert message in error.message
    assert "DataFusion" not in str(error)
    assert error.position == position
    assert error.hint == hint
    assert error.to_dict()["position"] == (None if position is None else {"line": position[0], "column": position[1]})


@pytest.mark.parametrize("options", [{"limit": -1}, {"timeout": 0}, {"timeout": -1.0}])
def test_invalid_arguments_are_rejected(db: QueryEngine, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        db.run("SELECT 1", **options)


# ----------------------------------------------------------------------------------------------------- limits and stops
@pytest.mark.parametrize(
    ("limit", "rows", "truncated"), [(None, 20, False), (20, 20, False), (19, 19, True), (1, 1, True), (0, 0, True)]
)
def test_a_row_limit_truncates_the_result(
    db: QueryEngine, shelf: Shelf, limit: int | None, rows: int, truncated: bool
) -> None:
    shelf.put("t", pa.table({"a": list(range(20))}))
    with db.run("SELECT a FROM datasets.t ORDER BY a", limit=limit) as result:
        assert (result.row_count, result.truncated) == (rows, truncated)
        assert result.read_all()["a"].to_pylist() == list(range(rows))


def test_a_limit_cannot_exceed_that_of_the_engine(db: QueryEngine) -> None:
    with db.run("SELECT value FROM generate_series(1, 1000000000)", limit=10**9) as result:
        assert (result.row_count, result.truncated) == (50_000, True)


def test_a_row_limit_applies_to_other_statements(db: QueryEngine) -> None:
    with db.run("EXPLAIN SELECT 1", limit=1) as result:
        assert (result.row_count, result.truncated) == (1, True)


def test_a_result_that_is_too_large_is_an_error(home: Path) -> None:
    with QueryEngine(Shelf(home), spill_dir=home / "spill", max_result_bytes=100_000) as db:
        error = failure(db, "SELECT value FROM generate_series(1, 100000)")
        assert isinstance(error, QueryLimitError)
        assert error.message == "The query result is larger than 100,000 bytes."
        assert len(rows_of(db, "SELECT value FROM generate_series(1, 10000)")) == 10_000


def test_an_engine_claims_another_directory_if_its_own_is_deleted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, taken = pool._lock, []

    def swept(directory: Path) -> int | None:
        if not taken:
            taken.append(directory)
            directory.rmdir()
        return lock(directory)

    monkeypatch.setattr(pool, "_lock", swept)
    with QueryEngine(Shelf(home), spill_dir=home / "swept") as db:
        assert rows_of(db, "SELECT 1") == [(1,)]
    assert taken


def test_a_sort_that_does_not_fit_into_memory_spills(home: Path) -> None:
    sql = "SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY -value) AS n FROM generate_series(1, 3000000))"
    with QueryEngine(Shelf(home), spill_dir=home / "spill", memory_limit_bytes=48 << 20) as db:
        assert rows_of(db, sql) == [(3_000_000,)]
    with QueryEngine(
        Shelf(home), spill_dir=home / "spill", memory_limit_bytes=48 << 20, spill_limit_bytes=1 << 20
    ) as db:
        error = failure(db, sql)
        assert isinstance(error, QueryLimitError)
        assert "disk space" in error.message


def test_a_sort_of_a_large_result_spills(home: Path) -> None:
    sql = "SELECT 0 - value AS n, repeat('x', 40) AS s FROM generate_series(1, 1200000) ORDER BY n"
    with QueryEngine(Shelf(home), spill_dir=home / "spill", memory_limit_bytes=48 << 20) as db, db.run(sql) as result:
        assert (result.row_count, result.truncated) == (1_000_000, True)
        assert result.read_all()["n"].combine_chunks().equals(pa.array(range(-1_200_000, -200_000)))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT a FROM datasets.t ORDER BY a",
        "SELECT a FROM datasets.t UNION SELECT 1 ORDER BY 1",
    ],
)
def test_sorted_distinct_values_with_a_large_limit(tmp_path: Path, sql: str) -> None:
    """An optimization of DataFusion 55 ends the process on such queries."""
    shelf = Shelf(tmp_path)
    shelf.put("t", pa.table({"a": [2, 1, 2]}))
    with QueryEngine(shelf, spill_dir=tmp_path, threads=2) as db:
        assert rows_of(db, sql) == rows_of(db, f"{sql} LIMIT 1000000") == [(1,), (2,)]


def test_a_worker_that_the_system_kills_is_a_lack_of_memory(alone: QueryEngine) -> None:
    rows_of(alone, "SELECT 1")
    before = total_processor_seconds()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(failure, alone, ENDLESS)
        while total_processor_seconds() - before < 0.1:
            time.sleep(0.01)
        for pid in workers():
            if processor_seconds(pid) > 0.1:
                os.kill(pid, signal.SIGKILL)
        error = running.result()
    assert isinstance(error, QueryLimitError)
    assert "too little free memory" in error.message
    assert rows_of(alone, "SELECT 1") == [(1,)]


def test_short_queries_run_on_one_worker_for_each_processor(alone: QueryEngine) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: rows_of(alone, f"SELECT {number}"), range(200)))
    assert alone._pool._count <= len(os.sched_getaffinity(0))


def test_long_queries_do_not_block_short_queries(home: Path) -> None:
    cancel = threading.Event()
    with QueryEngine(Shelf(home), spill_dir=home / "spill", concurrency=8) as db, ThreadPoolExecutor(7) as threads:
        running = [threads.submit(failure, db, ENDLESS, cancel=cancel) for _ in range(7)]
        while len(db._pool._busy) < 7:
            time.sleep(0.01)
        assert rows_of(db, "SELECT 1") == [(1,)]
        cancel.set()
        assert all(isinstance(each.result(), QueryCancelledError) for each in running)


def test_the_timeout_includes_the_wait_for_a_worker(home: Path) -> None:
    with QueryEngine(Shelf(home), spill_dir=home / "spill", concurrency=1) as db:
        worker = run_in_thread(db._pool.take(Deadline(30)))
        threading.Timer(0.6, db._pool.put_back, [worker]).start()
        start = time.monotonic()
        with pytest.raises(QueryTimeoutError):
            db.run(ENDLESS, timeout=1.0)
        assert time.monotonic() - start < 1.6  # 0.6 s of waiting and 0.4 s of running, not 1 s


def test_a_worn_worker_runs_queries_until_the_next_is_ready(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_QUERIES_PER_WORKER", 3)
    with QueryEngine(Shelf(home), spill_dir=home / "spill", concurrency=1) as db:
        rows_of(db, "SELECT 1")
        [first] = db._pool._idle
        ready = threading.Event()
        start = pool.Worker.wait_until_ready

        def wait(worker: pool.Worker) -> None:
            assert ready.wait(30)
            start(worker)

        monkeypatch.setattr(pool.Worker, "wait_until_ready", wait)
        for _ in range(5):
            rows_of(db, "SELECT 1")
            assert list(db._pool._idle) == [first]
        ready.set()
        deadline = time.monotonic() + 30
        while db._pool._spare_workers == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        rows_of(db, "SELECT 1")
        rows_of(db, "SELECT 1")
        assert db._pool._count <= 2
        deadline = time.monotonic() + 30
        while first.is_alive:
            rows_of(db, "SELECT 1")
            assert time.monotonic() < deadline


# Short runs try the join that keeps unmatched rows of both sides.
@pytest.mark.parametrize(
    "kind", [*(pytest.param(k, marks=pytest.mark.long) for k in ("LEFT", "RIGHT", "INNER")), "FULL"]
)
def test_nested_loop_joins_are_correct_or_rejected(home: Path, tmp_path: Path, kind: str) -> None:
    """DataFusion loses rows or panics when such a join spills, so it must not spill."""
    shelf = Shelf(tmp_path)
    shelf.put("l", pa.table({"v": list(range(1_000_000))}))
    shelf.put("r", pa.table({"w": [-5, -3, 1, 2, 3, 999_999] * 10}))
    sql = f"SELECT count(*), count(w) FROM datasets.l {kind} JOIN datasets.r ON l.v < r.w - 1 AND r.w < 100"
    matched, alone_left, alone_right = 30, 999_998, 40
    rows = matched + alone_left * (kind in ("LEFT", "FULL")) + alone_right * (kind in ("RIGHT", "FULL"))
    known = matched + alone_right * (kind in ("RIGHT", "FULL"))
    with QueryEngine(shelf, spill_dir=home / "spill", threads=4) as db:
        assert rows_of(db, sql) == [(rows, known)]
    with QueryEngine(shelf, spill_dir=home / "spill", threads=4, memory_limit_bytes=4 << 20) as db:
        assert "more memory" in failure(db, sql).message


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def total_processor_seconds() -> float:
    return sum(map(processor_seconds, workers()))


@pytest.fixture
def alone(home: Path) -> Iterator[QueryEngine]:
    with QueryEngine(Shelf(home), spill_dir=home / "spill", timeout_seconds=60, concurrency=2) as db:
        yield db


def idle_afterwards() -> bool:
    """Return whether the workers are idle. An endless query uses a CPU second per second."""
    before = total_processor_seconds()
    time.sleep(1)
    return total_processor_seconds() - before < 0.5


def test_a_timeout_stops_the_worker(alone: QueryEngine) -> None:
    rows_of(alone, "SELECT 1")
    known = workers()
    error = failure(alone, ENDLESS, timeout=0.5)
    assert isinstance(error, QueryTimeoutError)
    assert error.http_status == 408
    assert "0.5 seconds" in error.message
    rows_of(alone, "SELECT 1")  # starts the next worker
    assert len(known - workers()) == 1
    assert idle_afterwards()


def test_canceling_stops_the_worker(alone: QueryEngine) -> None:
    rows_of(alone, "SELECT 1")
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    assert isinstance(failure(alone, ENDLESS, cancel=cancel), QueryCancelledError)
    rows_of(alone, "SELECT 1")
    assert idle_afterwards()


def test_a_canceled_query_does_not_start(db: QueryEngine) -> None:
    cancel = threading.Event()
    cancel.set()
    assert isinstance(failure(db, ENDLESS, cancel=cancel), QueryCancelledError)


def test_queries_beyond_the_limit_wait_and_then_fail(home: Path) -> None:
    with QueryEngine(Shelf(home), spill_dir=home / "spill", concurrency=1) as db:
        cancel = threading.Event()
        hog = threading.Thread(target=failure, args=(db, ENDLESS), kwargs={"cancel": cancel})
        hog.start()
        while not total_processor_seconds():
            time.sleep(0.01)
        time.sleep(0.2)
        assert isinstance(failure(db, "SELECT 1", timeout=0.2), QueryBusyError)
        waiting = threading.Event()
        waiting.set()
        assert isinstance(failure(db, "SELECT 1", cancel=waiting), QueryCancelledError)
        cancel.set()
        hog.join()
        assert rows_of(db, "SELECT 1") == [(1,)]


def test_queries_get_workers_in_the_order_of_their_requests(alone: QueryEngine) -> None:
    engine_pool, order = alone._pool, []
    engine_pool._size = 1
    worker = run_in_thread(engine_pool.take(Deadline(30)))

    def wait(number: int) -> None:
        mine = run_in_thread(engine_pool.take(Deadline(30)))
        order.append(number)
        engine_pool.put_back(mine)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        while len(engine_pool._waiters) <= number:
            time.sleep(0.001)
    with pytest.raises(QueryBusyError):
        run_in_thread(engine_pool.take(Deadline(0.01)))
    engine_pool.put_back(worker)
    for thread in threads:
        thread.join()
    assert order == list(range(5))
    assert run_in_thread(engine_pool.take(Deadline(1))) is worker  # it is free again
    engine_pool.put_back(worker)


def test_a_storage_that_does_not_answer_explains_the_end_of_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_SLOW_SECONDS", 0.0)
    answered: Future[None] = Future()
    answered.set_result(None)
    for check, error in ((Future[None](), StorageUnavailableError), (answered, QueryTimeoutError)):
        deadline = Deadline(0.2)
        deadline.check_storage(StorageChecks(lambda check=check: check, 0.6))
        with pytest.raises(error):
            [time.sleep(deadline.wait_seconds()) for _ in itertools.count()]


@pytest.mark.long  # short runs end endless queries in test_attacks.py
def test_twenty_clients_next_to_endless_queries(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("t", pa.table({"k": [number % 7 for number in range(10_000)], "v": list(range(10_000))}))
    cancel, answers = threading.Event(), []
    hogs = [threading.Thread(target=failure, args=(db, ENDLESS), kwargs={"cancel": cancel}) for _ in range(3)]

    def client(number: int) -> None:
        for turn in range(5):
            sql = f"SELECT {number} AS n, {turn} AS t, sum(v) AS s FROM datasets.t WHERE k = {number % 7}"
            answers.extend(rows_of(db, sql))

    clients = [threading.Thread(target=client, args=(number,)) for number in range(20)]
    for thread in (*hogs, *clients):
        thread.start()
    for thread in clients:
        thread.join()
    cancel.set()
    for thread in hogs:
        thread.join()
    sums = [sum(range(k, 10_000, 7)) for k in range(7)]
    assert sorted(answers) == [(number, turn, sums[number % 7]) for number in range(20) for turn in range(5)]


# ------------------------------------------------------------------------------------------------------------ processes
def test_closing_leaves_no_processes_and_no_files(home: Path, tmp_path: Path) -> None:
    others = workers()
    with QueryEngine(Shelf(home), spill_dir=tmp_path / "spill") as db:
        db.warm()
        result = db.run("SELECT 1 AS a")
        mine = workers() - others
        assert mine
        failure(db, ENDLESS, timeout=0.2)
        mine |= workers() - others
    assert result.read_all()["a"].to_pylist() == [1]  # a result is readable after the engine is closed
    result.close()
    assert not workers() & mine
    assert list((tmp_path / "spill").iterdir()) == []
    assert isinstance(failure(db, "SELECT 1"), QueryFailedError)


CHILD = """
import sys, threading
from inlay.query import QueryEngine

class Nothing:
    def find(self, name, version): return None
    def names(self): return []
    def schemas(self): return []

db = QueryEngine(Nothing(), spill_dir=sys.argv[1])
db.run("SELECT 1")
threading.Thread(target=db.run, args=("SELECT count(*) FROM generate_series(1, 1000000000000)",), daemon=True).start()
import time; time.sleep(0.5)
print(*db._pool.directory.split(), flush=True)
time.sleep(60)
"""


def test_a_dead_idle_worker_is_replaced(tmp_path: Path) -> None:
    with QueryEngine(Shelf(tmp_path), spill_dir=tmp_path) as db:
        with db.run("SELECT 1") as first:
            assert first.row_count == 1
        assert db._pool._idle
        for worker in db._pool._idle:
            os.kill(worker.pid, signal.SIGKILL)
            worker._process.wait()
        with db.run("SELECT 1") as second:
            assert second.row_count == 1


def test_workers_end_with_their_parent_and_the_next_engine_cleans_up(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        directory = Path(parent.stdout.readline().strip())
        assert directory.is_dir()
        ids = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        ids += [
            pid
            for task in Path(f"/proc/{parent.pid}/task").iterdir()
            for pid in (task / "children").read_text().split()
        ]
        assert ids
        parent.kill()
    deadline = time.monotonic() + 20
    while any(is_running(int(pid)) for pid in ids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_running(int(pid)) for pid in ids)
    with QueryEngine(Shelf(tmp_path), spill_dir=tmp_path):
        assert not directory.exists()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_engine_keeps_the_directories_of_other_engines(home: Path, tmp_path: Path) -> None:
    with QueryEngine(Shelf(home), spill_dir=tmp_path) as first, QueryEngine(Shelf(home), spill_dir=tmp_path) as second:
        assert rows_of(first, "SELECT 1") == rows_of(second, "SELECT 1") == [(1,)]


def test_importing_the_package_does_not_import_datafusion() -> None:
    code = "import sys, inlay.query; sys.exit('datafusion' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------------------------------------------------------- forms
VALUES = {
    "integer": ("CAST(9223372036854775807 AS BIGINT)", 9223372036854775807, "9223372036854775807"),
    "unsigned": ("arrow_cast('18446744073709551615', 'UInt64')", 18446744073709551615, "18446744073709551615"),
    "decimal": ("CAST('1.20' AS DECIMAL(10, 2))", "1.20", "1.20"),
    "small decimal": ("CAST('0.0000001' AS DECIMAL(20, 10))", "0.0000001000", "0.0000001000"),
    "float": ("CAST(0.1 AS DOUBLE)", 0.1, "0.1"),
    "nan": ("CAST('NaN' AS DOUBLE)", "NaN", "NaN"),
    "infinity": ("CAST('-inf' AS DOUBLE)", "-Infinity", "-Infinity"),
    "boolean": ("true", True, "true"),
    "null": ("NULL", None, ""),
    "text": ("'say \"hi\", é'", 'say "hi", é', '"say ""hi"", é"'),
    "lines": ("E'a\\nb'", "a\nb", '"a\nb"'),
    "empty": ("''", "", '""'),
    "date": ("DATE '0001-02-03'", "0001-02-03", "0001-02-03"),
    "time": ("arrow_cast(1, 'Time64(Nanosecond)')", "00:00:00.000000001", "00:00:00.000000001"),
    "timestamp": ("arrow_cast(1, 'Timestamp(Nanosecond, None)')", *["1970-01-01T00:00:00.000000001"] * 2),
    "zoned": (
        "arrow_cast(to_timestamp_millis('2024-07-01T12:00:00.5Z'), 'Timestamp(Millisecond, Some(\"Europe/Berlin\"))')",
        *["2024-07-01T10:00:00.500Z"] * 2,
    ),
    "duration": ("arrow_cast(-1500, 'Duration(Millisecond)')", "PT-1.5S", "PT-1.5S"),
    "interval": ("INTERVAL '1 month 2 days 3 seconds'", "P1M2DT3S", "P1M2DT3S"),
    "binary": ("X'00ff'", base64.b64encode(b"\x00\xff").decode(), "AP8="),
    "list": ("ARRAY[1, NULL]", [1, None], '"[1,null]"'),
    "struct": (
        "named_struct('a', CAST(1.5 AS DECIMAL(3, 1)), 'b', ARRAY['x'])",
        {"a": "1.5", "b": ["x"]},
        '"{""a"":""1.5"",""b"":[""x""]}"',
    ),
    "map": ("MAP {'k': DATE '2024-01-01'}", [["k", "2024-01-01"]], '"[[""k"",""2024-01-01""]]"'),
    "dictionary": ("arrow_cast('x', 'Dictionary(Int32, Utf8)')", "x", "x"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_in_json_and_csv(db: QueryEngine, name: str) -> None:
    expression, in_json, in_csv = VALUES[name]
    with db.run(f"SELECT {expression} AS v, 1 AS n") as result:
        answer = json.loads(b"".join(result.to_json()))
        text = b"".join(result.to_csv()).decode()
    assert answer["rows"] == [[in_json, 1]]
    assert answer["columns"][0]["name"] == "v"
    assert text == f"v,n\r\n{in_csv},1\r\n"


@pytest.mark.parametrize("name", TYPES)
def test_every_type_in_every_format(db: QueryEngine, shelf: Shelf, name: str) -> None:
    stored = pa.table({"row": [0, 1, 2], "v": TYPES[name]})
    shelf.put("t", stored)
    with db.run("SELECT * FROM datasets.t ORDER BY row") as result:
        rows = json.loads(b"".join(result.to_json()))["rows"]
        lines = list(csv.reader(io.StringIO(b"".join(result.to_csv()).decode(), newline="")))
        arrow = pa.ipc.open_stream(b"".join(result.to_arrow())).read_all()
        parquet = pq.read_table(io.BytesIO(b"".join(result.to_parquet())))
    assert [row[0] for row in rows] == [0, 1, 2]
    assert rows[2][1] is None
    assert [line[0] for line in lines] == ["row", "0", "1", "2"]
    assert lines[3][1] == ""
    assert arrow.schema.equals(stored.schema)
    for found in (arrow, parquet):
        assert repr(found["v"].to_pylist()) == repr(stored["v"].to_pylist())


def test_a_json_result_is_complete(db: QueryEngine) -> None:
    with db.run("SELECT value AS v, 'x' AS s FROM generate_series(1, 20000)", limit=12_345) as result:
        chunks = list(result.to_json())
        answer = json.loads(b"".join(chunks))
    assert len(chunks) > 3  # streamed
    assert answer.pop("rows") == [[number, "x"] for number in range(1, 12_346)]
    assert answer.pop("execution_time_ms") > 0
    assert answer == {
        "columns": [{"name": "v", "type": "bigint"}, {"name": "s", "type": "text"}],
        "row_count": 12_345,
        "truncated": True,
    }


def test_empty_results_in_every_format(db: QueryEngine) -> None:
    with db.run("SELECT 1 AS a, 'x' AS b WHERE false") as result:
        assert json.loads(b"".join(result.to_json()))["rows"] == []
        assert b"".join(result.to_csv()) == b"a,b\r\n"
        assert pa.ipc.open_stream(b"".join(result.to_arrow())).read_all().num_rows == 0
        assert pq.read_table(io.BytesIO(b"".join(result.to_parquet()))).schema.names == ["a", "b"]


def test_parquet_renames_repeated_columns(db: QueryEngine, shelf: Shelf) -> None:
    shelf.put("t", pa.table({"k": [1], "v": ["a"], "v_2": ["b"]}))
    with db.run("SELECT * FROM datasets.t x JOIN datasets.t y USING (k)") as result:
        assert result.schema.names == ["k", "v", "v_2", "v", "v_2"]
        found = pq.read_table(io.BytesIO(b"".join(result.to_parquet())))
    assert found.to_pylist() == [{"k": 1, "v": "a", "v_2": "b", "v_3": "a", "v_2_2": "b"}]


def test_types_that_parquet_cannot_store_are_an_error(db: QueryEngine) -> None:
    with db.run("SELECT INTERVAL '1 month' AS i") as result, pytest.raises(QueryError, match="Parquet cannot store"):
        b"".join(result.to_parquet())


def test_large_results_are_streamed(db: QueryEngine) -> None:
    """Every format is streamed in chunks that are much smaller than the result."""
    with db.run("SELECT value, repeat('x', 500) AS s FROM generate_series(1, 50000)") as result:
        assert result.size_bytes > 20_000_000
        formats: list[Callable[[], Iterator[bytes]]] = [result.to_json, result.to_csv, result.to_arrow]
        for convert in formats:
            sizes = [len(chunk) for chunk in convert()]
            assert max(sizes) < 5_000_000 < sum(sizes)
        assert pq.read_table(io.BytesIO(b"".join(result.to_parquet()))).num_rows == 50_000


def test_results_can_be_read_in_batches(db: QueryEngine) -> None:
    with db.run("SELECT value FROM generate_series(1, 30000)") as result:
        assert isinstance(result, QueryResult)
        assert sum(batch.num_rows for batch in result.batches()) == 30_000
        assert sum(batch.num_rows for batch in result.batches()) == 30_000  # repeatable


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    type_, values = draw(st.sampled_from(CSV_COLUMNS))
    array = pa.array(draw(st.lists(st.none() | values, max_size=30)), type_)
    return array[draw(st.integers(0, 2)) :]


CSV_COLUMNS = [
    (pa.string(), st.text(alphabet='a,"\r\né ', max_size=5)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["", "a", "b,c"])),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.decimal128(20, 10), st.decimals(-100, 100, places=10)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.bool_(), st.booleans()),
    (pa.timestamp("us", "Europe/Berlin"), st.integers(-(2**52), 2**52)),
    (pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
    (pa.list_(pa.string()), st.lists(st.text(alphabet='a,"', max_size=3), max_size=2)),
]


@settings(max_examples=200, deadline=None)
@given(column=columns())
def test_csv_cells_are_those_of_the_values(column: pa.Array) -> None:
    cells = text_values(column)
    special = re.compile(r'[,"\r\n]')
    quoted_cells = [
        "" if cell is None else '"' + cell.replace('"', '""') + '"' if not cell or special.search(cell) else cell
        for cell in cells
    ]
    expected = "".join(f"{cell},{cell}\r\n" for cell in quoted_cells)
    assert csv_rows(pa.record_batch({"a": column, "b": column})).decode() == expected


def test_large_results_are_encoded_by_workers_in_parts(db: QueryEngine) -> None:
    sql = "SELECT value, repeat('x', 300) AS s FROM generate_series(1, 50000)"
    answers = {form: run_coroutine(db.answer(sql, form)) for form in ("json", "csv", "arrow")}
    encoded = {form: list(db.encode_answer(answer, form)) for form, answer in answers.items()}
    with db.run(sql) as result:
        assert len(encoded["csv"]) > 1
        assert b"".join(encoded["csv"]) == b"".join(result.to_csv())
        assert json.loads(b"".join(encoded["json"]))["rows"] == json.loads(b"".join(result.to_json()))["rows"]
        assert pa.ipc.open_stream(b"".join(encoded["arrow"])).read_all() == result.read_all()
    for answer in answers.values():
        answer.close()
        assert answer.path is not None
        assert not os.path.exists(answer.path)


def test_small_results_need_no_file(db: QueryEngine) -> None:
    answer = run_coroutine(db.answer("SELECT 1 AS a, 'x,' AS b", "csv"))
    assert (answer.path, answer.complete("csv")) == (None, b'a,b\r\n1,"x,"\r\n')
    answer = run_coroutine(db.answer("SELECT 1 AS a", "json"))
    assert json.loads(answer.complete("json"))["rows"] == [[1]]


def test_tables_are_encoded_in_storage_order(db: QueryEngine, shelf: Shelf) -> None:
    many = pa.table({"id": range(100_000), "s": ["some text" * 20] * 100_000})
    shelf.put("t", many.slice(0, 70_000), many.slice(70_000), row_group_size=60_000)
    [table] = shelf.versions["t"]
    parts = list(db.encode_table(table))
    assert len(parts) > 1
    lines = b"".join(parts).decode().split("\r\n")
    assert lines[0] == "id,s"
    assert lines[1:-1] == [f"{number},{'some text' * 20}" for number in range(100_000)]
    assert b"".join(db.encode_table(Table(many.schema, []))) == b"id,s\r\n"


# -------------------------------------------------------------------------------------------------------------- caches
@pytest.fixture
def cached(home: Path, tmp_path: Path) -> Iterator[tuple[QueryEngine, Shelf]]:
    shelf = Shelf(tmp_path)
    with QueryEngine(
        shelf, spill_dir=home / "spill", table_cache_bytes=4 << 20, result_cache_bytes=1 << 20, timeout_seconds=60
    ) as db:
        yield db, shelf


@pytest.fixture(scope="module")
def copying(home: Path) -> Iterator[tuple[QueryEngine, Shelf]]:
    shelf = Shelf(home)
    with QueryEngine(shelf, spill_dir=home / "spill", table_cache_bytes=64 << 20, timeout_seconds=60) as db:
        yield db, shelf


def wait_for_copy(db: QueryEngine, table: Table) -> Path:
    deadline = time.monotonic() + 30
    while (path := db._copies.use(table)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return Path(path)


@pytest.mark.parametrize("name", TYPES)
def test_copies_of_tables_have_the_stored_types_and_values(
    copying: tuple[QueryEngine, Shelf], tmp_path: Path, name: str
) -> None:
    db, shelf = copying
    shelf.directory = tmp_path
    stored = pa.table({"row": [0, 1, 2], "v": TYPES[name]})
    shelf.put("t", stored)
    wait_for_copy(db, shelf.versions["t"][-1])
    os.unlink(shelf.versions["t"][-1].files[0])  # the copy is enough
    found = table_of(db, "SELECT * FROM datasets.t ORDER BY row")
    assert found.schema.equals(stored.schema)
    assert repr(found["v"].to_pylist()) == repr(stored["v"].to_pylist())


@pytest.mark.parametrize("sql", QUERIES)
def test_results_from_copies_equal_those_of_duckdb(
    copying: tuple[QueryEngine, Shelf], oracle: duckdb.DuckDBPyConnection, sql: str
) -> None:
    db, shelf = copying
    if "orders" not in shelf.versions:
        shelf.put("orders", orders().slice(0, 700), orders().slice(700), row_group_size=100)
        shelf.put("customers", customers())
        for name in ("orders", "customers"):
            wait_for_copy(db, shelf.versions[name][-1])
    ours = re.sub(r"(FROM|JOIN) (orders|customers)", r"\1 datasets.\2", sql)
    with db.run(ours) as result:
        found = [column.to_pylist() for column in result.read_all().columns]
    expected = oracle.sql(sql).fetchall()
    assert [tuple(map(plain, row)) for row in zip(*found, strict=True)] == [tuple(map(plain, row)) for row in expected]


def test_copies_hold_nan_and_belong_to_one_version(cached: tuple[QueryEngine, Shelf]) -> None:
    db, shelf = cached
    shelf.put("t", pa.table({"i": [1, 2], "v": [NAN, 3.25]}))
    wait_for_copy(db, shelf.versions["t"][0])
    assert rows_of(db, "SELECT i FROM datasets.t WHERE v <> 3.25") == [(1,)]
    shelf.put("t", pa.table({"i": [7], "v": [1.0]}))
    assert rows_of(db, "SELECT i FROM datasets.t") == [(7,)]
    assert rows_of(db, 'SELECT i FROM datasets."t@1" WHERE v = 3.25') == [(2,)]
    del shelf.versions["t"]
    assert "no table" in failure(db, "SELECT i FROM datasets.t").message


def test_the_second_query_of_a_table_requests_a_copy(cached: tuple[QueryEngine, Shelf]) -> None:
    db, shelf = cached
    shelf.put("t", pa.table({"a": [1]}))
    rows_of(db, "SELECT a FROM datasets.t")
    assert db._copies._thread is None
    rows_of(db, "SELECT a + 1 AS b FROM datasets.t")
    deadline = time.monotonic() + 30
    while not db._copies._copies:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_copies_stay_within_their_limit(cached: tuple[QueryEngine, Shelf]) -> None:
    db, shelf = cached  # 4 MiB, and 1 MiB for each table
    shelf.put("large", pa.table({"v": range(200_000)}))
    for _ in range(3):
        assert db._copies.use(shelf.versions["large"][0]) is None
    for number in range(7):
        shelf.put(f"t{number}", pa.table({"v": range(number, 100_000 + number)}))  # 0.8 MB
    paths = [wait_for_copy(db, shelf.versions[f"t{number}"][0]) for number in range(7)]
    assert db._copies.use(shelf.versions["large"][0]) is None
    kept = [path for path in paths if path.exists()]
    assert 0 < len(kept) < 6
    assert kept == paths[-len(kept) :]  # the last used copies
    for number in range(7):
        assert rows_of(db, f"SELECT min(v), max(v) FROM datasets.t{number}") == [(number, 99_999 + number)]


def test_unused_copies_are_deleted(cached: tuple[QueryEngine, Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    db, shelf = cached
    shelf.put("t", pa.table({"a": [1]}))
    path = wait_for_copy(db, shelf.versions["t"][0])
    db.drop_unused_copies()
    assert path.exists()
    assert rows_of(db, "SELECT a FROM datasets.t") == [(1,)]
    monkeypatch.setattr("inlay.query.caches._IDLE_SECONDS", 0.0)
    db.drop_unused_copies()
    assert not path.exists()
    assert rows_of(db, "SELECT a + 1 FROM datasets.t") == [(2,)]


def test_a_repeated_statement_needs_no_worker(cached: tuple[QueryEngine, Shelf]) -> None:
    db, shelf = cached
    shelf.put("t", pa.table({"a": [1]}))
    sql = "SELECT sum(a) AS s FROM datasets.t"
    first = rows_of(db, sql)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(db._pool, "take", None)  # any use of a worker fails
        assert rows_of(db, sql) == first == [(1,)]
        with pytest.raises(TypeError):
            rows_of(db, sql, limit=0)
    shelf.put("t", pa.table({"a": [2]}))
    assert rows_of(db, sql) == [(2,)]
    del shelf.versions["t"]
    assert "no table" in failure(db, sql).message


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT random() AS r",
        'SELECT "uuid"() AS r',
        "SELECT now() AS r",
        "SELECT CURRENT_TIMESTAMP AS r",
        "EXPLAIN ANALYZE SELECT 1",
        "SHOW TABLES",
        "SELECT count(*) FROM information_schema.tables",
        "SELECT a FROM datasets . /* a comment */ t",  # the text search does not find this table
    ],
)
def test_other_statements_run_each_time(cached: tuple[QueryEngine, Shelf], sql: str) -> None:
    db, shelf = cached
    shelf.put("t", pa.table({"a": [1]}))
    rows_of(db, sql)
    assert not db._results._answers


def test_every_function_without_a_fixed_result_is_known() -> None:
    configuration = datafusion.SessionConfig({"datafusion.catalog.information_schema": "true"})
    listed = "SELECT DISTINCT routine_name FROM information_schema.routines WHERE NOT is_deterministic"
    rows = datafusion.SessionContext(configuration).sql(f"{listed} AND function_type <> 'TABLE'").to_pylist()
    assert rows
    assert {row["routine_name"] for row in rows} <= VOLATILE


def test_cached_results_stay_within_their_limit() -> None:
    results = ResultCache(64_000)
    fields: dict[str, Any] = {"columns": []}
    for number in range(100):
        results.put(number, Answer(fields, b"x" * 500, None))
    assert results._bytes <= 64_000
    assert results.get(99) is not None
    assert results.get(0) is None
    assert not results.accepts(Answer(fields, b"x" * 1001, None))
    assert not results.accepts(Answer(fields, b"", "a file"))


# -------------------------------------------------------------------------------------------------------- object stores
@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from tests.s3 import start_server

    server = start_server()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    for bucket in ("first", "second"):
        connection.request("PUT", f"/{bucket}")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    connection.close()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.mark.parametrize("configured_by", ["options", "environment"])
def test_tables_on_an_object_store(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured_by: str
) -> None:
    import s3fs

    options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
    filesystem = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    files = []
    for bucket in ("first", "second"):
        files.append(f"s3://{bucket}/{configured_by}/a b=ü/data.parquet")
        with filesystem.open(files[-1], "wb") as file:
            pq.write_table(pa.table({"a": [1, 2]}), file)
    shelf = Shelf(tmp_path)
    shelf.versions["t"] = [Table(pa.schema([("a", pa.int64())]), files)]
    if configured_by == "environment":
        for name, value in (("ACCESS_KEY_ID", "k"), ("SECRET_ACCESS_KEY", "s"), ("ENDPOINT_URL", endpoint)):
            monkeypatch.setenv(f"AWS_{name}", value)
        options = {}
    with QueryEngine(shelf, spill_dir=tmp_path, storage_options=options) as db:
        assert rows_of(db, "SELECT count(*), sum(a) FROM datasets.t WHERE a > 0") == [(4, 6)]
        shelf.versions["t"] = [Table(pa.schema([("a", pa.int64())]), ["s3://first/missing.parquet"])]
        assert isinstance(failure(db, "SELECT * FROM datasets.t"), QueryFailedError)


# ----------------------------------------------------------------------------------------------------------------- text
@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("SELECT 1", "select"),
        ("  -- x\n /* select */ Explain select", "explain"),
        ("(select 1)", ""),
        ("'select'", ""),
        (";; values (1)", "values"),
        ("", ""),
        ("/* open", ""),
    ],
)
def test_first_keyword(sql: str, word: str) -> None:
    assert first_keyword(sql) == word


def test_table_names() -> None:
    sql = """SELECT * FROM datasets.A, DATASETS . default."b c", "datasets"."t@2" -- datasets.d
    WHERE x IN (SELECT y FROM datasets.information_schema.columns, datasets.default, inlay.datasets.a)"""
    assert table_names(sql) == ["a", "b c", "t@2", "d"]
    assert table_names("SELECT mydatasets.x, datasets") == []
    assert len(table_names(" ".join(f"datasets.t{number}" for number in range(100)))) == 50


def test_position_of_ignores_text_and_comments() -> None:
    assert position_of('select \'a\', -- a\n /* a */ "x""a", b.A from c', "a") == (2, 20)
    assert position_of('select "A"', "a") is None
    assert position_of('select "x""y"', 'x"y') == (1, 8)


def test_respell_changes_only_names() -> None:
    assert respell("select a, 'a', \"a\", A(a), x.a -- a", "a", 'A"b') == (
        'select "A""b", \'a\', "a", A("A""b"), x."A""b" -- a'
    )


@pytest.mark.parametrize("text", ["/*", "'", '"', "''", "--\n", "/**/", "a", "'\"", "$$"])
def test_tokens_are_found_in_linear_time(text: str) -> None:
    long = text * (500_000 // len(text))
    assert position_of(long, "zz") is None
    assert isinstance(first_keyword(long), str)
