"""Malicious SQL reaches only the tables of datasets, and exhausts no resource."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.errors import QueryError, QueryLimitError, QueryTimeoutError
from inlay.query import QueryEngine, Table
from tests.query.workers import workers

SECRET = "a-secret-that-no-query-may-see"
MEMORY = 256 << 20
# In long runs, bombs run for longer.
TIMEOUT = 2.0 if os.environ.get("INLAY_TEST_LONG") == "1" else 0.8


class OneTable:
    def __init__(self, path: Path) -> None:
        self.table = Table(pq.read_schema(path), [str(path)])

    def find(self, name: str, version: int | None) -> Table | None:
        return self.table if (name, version) == ("t", None) else None

    def names(self) -> list[str]:
        return ["t"]

    def schemas(self) -> list[tuple[str, pa.Schema]]:
        return [("t", self.table.schema)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("attacks")
    pq.write_table(pa.table({"a": [1, 2, 3]}), home / "t.parquet")
    pq.write_table(pa.table({"a": [SECRET]}), home / "secret.parquet")
    (home / "secret.csv").write_text(f"a\n{SECRET}\n")
    (home / "secret.json").write_text(f'{{"a": "{SECRET}"}}\n')
    return home


@pytest.fixture(scope="module")
def db(home: Path) -> Iterator[QueryEngine]:
    os.environ["INLAY_TEST_SECRET"] = SECRET
    with QueryEngine(
        OneTable(home / "t.parquet"),
        spill_dir=home / "spill",
        memory_limit_bytes=MEMORY,
        spill_limit_bytes=64 << 20,
        timeout_seconds=20,
        max_result_bytes=16 << 20,
        concurrency=2,
    ) as engine:
        yield engine
    del os.environ["INLAY_TEST_SECRET"]


def rejection(db: QueryEngine, sql: str, timeout: float | None = None) -> QueryError:
    with pytest.raises(QueryError) as caught:
        db.run(sql, timeout=timeout)
    return caught.value


def snapshot(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}


FORBIDDEN = [
    # files
    "SELECT * FROM '/etc/passwd'",
    'SELECT * FROM "/etc/passwd"',
    "SELECT * FROM 'HOME/secret.parquet'",
    'SELECT * FROM "HOME/secret.csv"',
    "SELECT * FROM `HOME/secret.parquet`",
    "SELECT * FROM 'file://HOME/secret.parquet'",
    'SELECT * FROM datasets."HOME/secret.parquet"',
    'SELECT * FROM datasets."../secret.parquet"',
    'SELECT * FROM datasets."t@1/../../secret"',
    "SELECT * FROM 's3://bucket/key.parquet'",
    "SELECT * FROM 'http://127.0.0.1:1/x.csv'",
    "SELECT * FROM read_csv('HOME/secret.csv')",
    "SELECT * FROM read_parquet('HOME/secret.parquet')",
    "SELECT * FROM read_json('HOME/secret.json')",
    "SELECT * FROM parquet_scan('HOME/secret.parquet')",
    "SELECT * FROM parquet_metadata('HOME/secret.parquet')",
    "SELECT * FROM glob('HOME/*')",
    "SELECT read_text('HOME/secret.csv')",
    "SELECT pg_read_file('HOME/secret.csv')",
    "SELECT load_file('HOME/secret.csv')",
    "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION 'HOME/secret.csv'",
    "EXPLAIN CREATE EXTERNAL TABLE x STORED AS CSV LOCATION 'HOME/secret.csv'",
    "DESCRIBE 'HOME/secret.parquet'",
    # writing
    "COPY (SELECT 1) TO 'HOME/stolen.csv'",
    "COPY datasets.t TO 'HOME/stolen.parquet'",
    "EXPLAIN COPY (SELECT 1) TO 'HOME/stolen.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 'HOME/stolen.csv'",
    "SELECT * FROM datasets.t INTO OUTFILE 'HOME/stolen.csv'",
    "SELECT * INTO x FROM datasets.t",
    "INSERT INTO datasets.t VALUES (4)",
    "INSERT INTO datasets.t SELECT * FROM datasets.t",
    "EXPLAIN ANALYZE INSERT INTO datasets.t VALUES (4)",
    "UPDATE datasets.t SET a = 0",
    "DELETE FROM datasets.t",
    "TRUNCATE datasets.t",
    "WITH x AS (SELECT 1) INSERT INTO datasets.t SELECT * FROM x",
    "MERGE INTO datasets.t USING datasets.t AS s ON true WHEN MATCHED THEN DELETE",
    # definitions
    "CREATE TABLE x AS SELECT 1",
    "CREATE TABLE datasets.x (a INT)",
    "CREATE VIEW x AS SELECT 1",
    "CREATE OR REPLACE VIEW datasets.t AS SELECT 1 AS a",
    "CREATE SCHEMA x",
    "CREATE DATABASE x",
    "CREATE FUNCTION f() RETURNS INT RETURN 1",
    "CREATE INDEX i ON datasets.t (a)",
    "DROP TABLE datasets.t",
    "DROP SCHEMA datasets",
    "ALTER TABLE datasets.t RENAME TO u",
    # settings and session
    "SET datafusion.catalog.information_schema = true",
    "SET datafusion.execution.batch_size = 1",
    "SET datafusion.runtime.memory_limit = '100G'",
    "RESET datafusion.runtime.memory_limit",
    "SHOW ALL",
    "SHOW datafusion.execution.batch_size",
    "SHOW FUNCTIONS",
    "SHOW CREATE TABLE datasets.t",
    "SELECT * FROM information_schema.df_settings",
    "SELECT * FROM information_schema.parameters",
    "SELECT * FROM datasets.information_schema.routines",
    "SELECT * FROM inlay.information_schema.df_settings",
    "SELECT * FROM pg_catalog.pg_tables",
    "SELECT * FROM sqlite_master",
    "SELECT getenv('INLAY_TEST_SECRET')",
    "SELECT current_setting('datafusion.execution.batch_size')",
    "SELECT @@version",
    "SELECT $1",
    "SELECT ?",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "USE datasets",
    "LOAD 'x'",
    "INSTALL httpfs",
    "ATTACH 'HOME/x.db'",
    "PRAGMA version",
    "BEGIN",
    "COMMIT",
    "START TRANSACTION",
    "KILL 1",
    "CALL f()",
    "ANALYZE datasets.t",
    "VACUUM",
    # several statements
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE datasets.t",
    "SELECT 1;\n-- x\nSET x = 1",
    # catalogs
    "SELECT * FROM datafusion.public.t",
    "SELECT * FROM inlay.none.t",
    "SELECT * FROM none.t",
    "SELECT * FROM datasets.public.t",
    "SELECT * FROM datasets.t.a.b",
    # functions that run programs elsewhere
    "SELECT TRANSFORM(a) USING 'cat /etc/passwd' FROM datasets.t",
    "SELECT system('id')",
]


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_forbidden_statements_are_rejected(db: QueryEngine, home: Path, sql: str) -> None:
    before = snapshot(home)
    error = rejection(db, sql.replace("HOME", str(home)))
    assert error.http_status == 400
    assert SECRET not in str(error)
    assert snapshot(home) == before
    assert not (home / "stolen.csv").exists()


def test_rejected_statements_do_not_affect_the_session(db: QueryEngine, home: Path) -> None:
    for sql in FORBIDDEN:
        rejection(db, sql.replace("HOME", str(home)))
    with db.run("SELECT a FROM datasets.t ORDER BY a") as result:
        assert result.read_all()["a"].to_pylist() == [1, 2, 3]
    with db.run("SHOW TABLES") as result:
        assert result.read_all()["table_name"].to_pylist() == ["t"]
    assert rejection(db, "SELECT * FROM x").message == "There is no table x."


def test_worker_processes_do_not_inherit_the_environment(db: QueryEngine) -> None:
    with db.run("SELECT 1"):
        pids = workers()
    assert pids
    for pid in pids:
        assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


SERIES = "generate_series(1, 1000000000000)"
COLUMNS = ", ".join(f"column{number}" for number in range(1, 21))
BOMBS = {
    "counting forever": f"SELECT count(*) FROM {SERIES}",
    "a list without end": "SELECT generate_series(1, 1000000000000)",
    "a large list": "SELECT generate_series(1, 500000000)",
    "many large lists": "SELECT generate_series(1, 1000000) FROM generate_series(1, 10000)",
    "a cross join": "WITH x AS (SELECT * FROM generate_series(1, 3000000)) SELECT count(*) FROM x a, x b, x c "
    "WHERE a.value + b.value + c.value = 7",
    "a long text": "SELECT repeat('x', 10000000000)",
    "texts of a gigabyte": "SELECT length(repeat('x', 1000000000 * (value % 2 + 1))) FROM generate_series(1, 100)",
    "texts within texts": "SELECT length(repeat(repeat(repeat('x', 1000), 1000), 1000))",
    "padding": "SELECT length(lpad('x', 2000000000, 'y')) FROM generate_series(1, 100)",
    "replacing": "SELECT length(replace(repeat('a', 100000), 'a', repeat('b', 100000)))",
    "brackets": "SELECT " + "(" * 100_000 + "1" + ")" * 100_000,
    "a long sum": "SELECT " + "+".join(["1"] * 300_000),
    "a long condition": "SELECT 1 WHERE " + " OR ".join(["a = 1"] * 80_000),
    "negations": "SELECT " + "NOT " * 200_000 + "true",
    "minus signs": "SELECT " + "- " * 200_000 + "1",
    "cases": "SELECT " + "CASE WHEN true THEN " * 20_000 + "1" + " END" * 20_000,
    "subqueries": "SELECT * FROM (" * 20_000 + "SELECT 1" + ")" * 20_000,
    "unions": "SELECT 1" + " UNION ALL SELECT 1" * 30_000,
    "joins": "SELECT count(*) FROM datasets.t" + ", datasets.t" * 5_000,
    "many names": "WITH x0 AS (SELECT 1 AS a)"
    + "".join(f", x{n} AS (SELECT a.a FROM x{n - 1} a, x{n - 1} b)" for n in range(1, 40))
    + " SELECT count(*) FROM x39",
    "an endless recursion": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
    "a growing recursion": "WITH RECURSIVE r AS (SELECT 'x' AS s UNION ALL SELECT s || s FROM r) "
    "SELECT max(length(s)) FROM r",
    "a doubling recursion": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT v FROM r, (VALUES (1), (2)) t(v)) "
    "SELECT count(*) FROM r",
    "a large statement": "SELECT '" + "x" * 10_000_000 + "'",
    "grouping sets": f"SELECT count(*) FROM (VALUES ({', '.join(map(str, range(20)))})) t GROUP BY CUBE ({COLUMNS})",
    "one array of all": f"SELECT array_agg(value) FROM {SERIES}",
    "one text of all": f"SELECT string_agg(repeat('x', 1000), '') FROM {SERIES}",
    "a sort of all": f"SELECT * FROM (SELECT value, row_number() OVER (ORDER BY -value) FROM {SERIES}) ORDER BY 2 DESC",
    "groups without end": f"SELECT count(*) FROM (SELECT value, count(*) FROM {SERIES} GROUP BY value)",
    "distinct values without end": f"SELECT count(DISTINCT value) FROM {SERIES}",
    "a join that does not fit": f"SELECT count(*) FROM {SERIES} a JOIN {SERIES} b ON a.value = b.value",
    "windows": f"SELECT sum(s) FROM (SELECT sum(value) OVER () AS s FROM {SERIES})",
    "a large result": "SELECT value, repeat('x', 10000) FROM generate_series(1, 100000)",
    "a large repetition in a pattern": "SELECT regexp_like('a', '((((a{1,1000}){1,1000}){1,1000}){1,1000})')",
    "a large power": "SELECT power(10, 1000000000), factorial(1000000)",
}


class Peak(threading.Thread):
    """Measures the largest resident size of the worker processes while the block runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.02):
            for pid in workers():
                self.bytes = max(self.bytes, resident(pid))

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def processor_seconds() -> float:
    used = 0.0
    for pid in workers():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


_SHORT = ("counting forever", "a long text", "brackets", "cases", "joins", "an endless recursion", "a large statement",
          "one array of all", "a sort of all", "a large result", "a large repetition in a pattern")  # fmt: skip


# Short runs try bombs of each kind: endless, large, nested, recursive, sorted.
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n not in _SHORT)) for n in BOMBS])
def test_bombs_end_and_later_queries_work(db: QueryEngine, name: str) -> None:
    with db.run("SELECT 1"):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Peak() as peak:
        error = rejection(db, BOMBS[name], timeout=TIMEOUT)
    assert error.http_status in (400, 408, 413), error
    assert type(error) in (QueryError, QueryLimitError, QueryTimeoutError)
    assert peak.bytes < MEMORY * 3 // 2 + (512 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB, in this process
    with db.run("SELECT sum(a) AS s FROM datasets.t") as result:
        assert result.read_all()["s"].to_pylist() == [6]


def test_no_work_continues_after_bombs(db: QueryEngine, home: Path) -> None:
    for name in ("counting forever", "a cross join", "an endless recursion", "unions", "a sort of all"):
        rejection(db, BOMBS[name], timeout=0.5)
    for _ in range(2):
        with db.run("SELECT 1"):
            pass
    before = processor_seconds()
    time.sleep(1)
    assert processor_seconds() - before < 0.5
    spilled = [path for path in (home / "spill").rglob("*") if path.is_file()]
    assert spilled == []
