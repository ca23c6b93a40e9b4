"""Document 003 (DuckDB datasets: merge with the MERGE statement): its scenarios, in its order.

Where it contains SQL that DuckDB does not parse, the test shows that and what is done instead; all of it is in
docs/decisions/duckdb-merge.md.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import inlay
from inlay.engines.duckdb import (
    DuckDBEngine,
    SqlSearch,
    _unregister_duckdb_table_safely,
    duckdb_version,
    sql,
    supports_merge,
)
from inlay.errors import DatasetMergeError
from inlay.incremental import IncrementalFileManager
from tests import lake
from tests.duckdb_tap import Tap, state_of

AUTO = "Using DuckDB MERGE for merge operation (auto-detected)"
REQUESTED = "Using DuckDB MERGE (explicitly requested)"
FALLBACK = "Using UNION ALL fallback for merge operation (DuckDB < 1.4.0 or MERGE unavailable)"
UNION = "Using UNION ALL (explicitly requested)"

HAS_MERGE = supports_merge(duckdb_version(duckdb.connect()))
with_merge = pytest.mark.skipif(not HAS_MERGE, reason="this DuckDB has no MERGE")


@pytest.fixture(autouse=True)
def info(caplog):
    caplog.set_level(logging.INFO, "inlay.engines.duckdb")


def dataset(tmp_path):
    return lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2, 3]), "b.parquet": lake.table([4, 5])})


SOURCE = lake.table([2, 4, 9], ["x", "y", "z"])


def merged(tmp_path, tap, strategy="upsert", **options):
    handler = inlay.DuckDBDatasetIO(connection=tap)
    return handler.merge(SOURCE, dataset(tmp_path), strategy=strategy, key_columns=["id"], **options)


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "inlay.engines.duckdb"]


# ------------------------------------------------------------------------------------- merge strategies by native MERGE
@with_merge
def test_user_calls_merge_with_duckdb_1_4_0_or_newer_auto_detect(tmp_path, caplog):
    tap = Tap()
    result = merged(tmp_path, tap)
    assert (result.updated, result.inserted) == (2, 1)
    assert tap.executed("SELECT * FROM pragma_version()")
    assert tap.executed("MERGE INTO")
    assert not tap.executed("NOT EXISTS")
    assert not tap.executed("UNION ALL")
    assert messages(caplog) == [AUTO]


@with_merge
def test_user_calls_merge_with_duckdb_1_4_0_or_newer_explicit_request(tmp_path, caplog):
    tap = Tap()
    result = merged(tmp_path, tap, use_merge=True)
    assert (result.updated, result.inserted) == (2, 1)
    assert tap.executed("SELECT * FROM pragma_version()")
    assert tap.executed("MERGE INTO")
    assert not tap.executed("NOT EXISTS")
    assert messages(caplog) == [REQUESTED]


def test_user_calls_merge_with_duckdb_older_than_1_4_0_auto_detect_fallback(tmp_path, caplog):
    tap = Tap("v1.3.2")
    result = merged(tmp_path, tap)
    assert (result.updated, result.inserted) == (2, 1)
    assert tap.executed("SELECT * FROM pragma_version()")
    assert tap.executed("UNION ALL")
    assert tap.executed("NOT EXISTS")
    assert not tap.executed("MERGE INTO")
    assert messages(caplog) == [FALLBACK]


def test_user_calls_merge_with_duckdb_older_than_1_4_0_explicit_fallback(tmp_path, caplog):
    tap = Tap("v1.3.2")
    result = merged(tmp_path, tap, use_merge=False)
    assert (result.updated, result.inserted) == (2, 1)
    assert tap.executed("UNION ALL")
    assert not tap.executed("pragma_version")
    assert not tap.executed("MERGE INTO")
    assert messages(caplog) == [UNION]


@with_merge
def test_merge_insert_strategy_execution(tmp_path):
    tap = Tap()
    result = merged(tmp_path, tap, "insert")
    [statement] = tap.executed("MERGE INTO")
    assert "WHEN NOT MATCHED THEN INSERT BY NAME" in statement
    assert "WHEN MATCHED" not in statement
    assert (result.updated, result.inserted) == (0, 1)
    assert lake.id_values(lake.all_rows(tmp_path / "d"))[:5] == [(i, f"v{i}") for i in range(1, 6)]


@with_merge
def test_merge_update_strategy_execution(tmp_path):
    tap = Tap()
    result = merged(tmp_path, tap, "update")
    [statement] = tap.executed("MERGE INTO")
    assert "WHEN MATCHED THEN UPDATE SET" in statement
    assert "NOT MATCHED" not in statement
    assert (result.updated, result.inserted) == (2, 0)
    expected = [(1, "v1"), (2, "x"), (3, "v3"), (4, "y"), (5, "v5")]
    assert lake.id_values(lake.all_rows(tmp_path / "d")) == expected


@with_merge
@pytest.mark.parametrize("strategy", ["upsert", "full_merge", "deduplicate"])
def test_merge_upsert_strategy_execution(tmp_path, strategy):
    tap = Tap()
    result = merged(tmp_path, tap, strategy)
    [statement] = tap.executed("MERGE INTO")
    assert re.search(r"WHEN MATCHED THEN UPDATE SET .* WHEN NOT MATCHED THEN INSERT BY NAME", statement)
    assert tap.executed("GROUP BY merge_action")
    assert (result.updated, result.inserted) == (2, 1)


@with_merge
def test_multi_column_key_handling_with_merge(tmp_path):
    tap = Tap()
    columns = {"id": [1, 1, 2], 'a "category"; --': ["A", "B", "A"], "v": [1, 2, 3]}
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table(columns)})
    source = pa.table({"id": [1, 2], 'a "category"; --': ["B", "B"], "v": [20, 40]})
    keys = ["id", 'a "category"; --']
    result = inlay.DuckDBDatasetIO(tap).merge(source, path, "upsert", keys)
    second = 'target."a ""category""; --" = source."a ""category""; --"'
    assert f'ON (target."id" = source."id" AND {second})' in tap.executed("MERGE INTO")[0]
    assert (result.updated, result.inserted) == (1, 1)
    assert [row["v"] for row in lake.all_rows(path)] == [1, 20, 3, 40]
    same = lake.write(tmp_path / "e", {"a.parquet": pa.table(columns)})
    inlay.DuckDBDatasetIO().merge(source, same, "upsert", keys, use_merge=False)
    assert lake.all_rows(same) == lake.all_rows(path)


@with_merge
def test_returning_clause_audit_trail(tmp_path):
    tap = Tap()
    merged(tmp_path, tap)
    [statement] = tap.executed("MERGE INTO")
    assert statement.endswith("RETURNING merge_action, *")
    [counting] = tap.executed("GROUP BY merge_action")
    assert counting.startswith("SELECT merge_action, COUNT(*) FROM")


# ---------------------------------------------------------------------------------------------------------- the version
@pytest.mark.parametrize(
    ("text", "version"),
    [("1.4.0", (1, 4, 0)), ("v1.4.1", (1, 4, 1)), ("10.2.3", (10, 2, 3)), ("v1.5.0-dev1", (1, 5, 0))],
)
def test_duckdb_version_detection_succeeds(text, version):
    tap = Tap(text)
    assert duckdb_version(tap) == duckdb_version(tap) == version
    assert tap.statements == ["SELECT * FROM pragma_version()"]
    assert duckdb_version(Tap("2.0.0")) == (2, 0, 0)  # another connection has its own version


@pytest.mark.parametrize("text", ["", "unknown", "1.4", "1.x.0"])
def test_duckdb_version_detection_fails_gracefully(tmp_path, caplog, text):
    tap = Tap(text)
    result = merged(tmp_path, tap)
    assert (result.updated, result.inserted) == (2, 1)
    assert duckdb_version(tap) == (0, 0, 0)
    assert messages(caplog)[0].startswith("Could not determine DuckDB version")
    assert messages(caplog)[1] == FALLBACK
    assert tap.executed("UNION ALL")


def test_merge_support_check():
    supported = [(1, 4, 0), (1, 4, 1), (1, 10, 0), (2, 0, 0), (10, 2, 3)]
    unsupported = [(0, 0, 0), (0, 10, 0), (1, 3, 2), (1, 3, 99)]
    assert all(map(supports_merge, supported))
    assert not any(map(supports_merge, unsupported))


# ----------------------------------------------------------------------------------------------------- explicit control
@pytest.mark.parametrize(("text", "current"), [("v1.3.2", "1.3.2"), ("nonsense", "0.0.0")])
def test_explicit_merge_request_with_incompatible_duckdb(tmp_path, text, current):
    tap = Tap(text)
    path = dataset(tmp_path)
    before = lake.photograph(path)
    expected = f"DuckDB MERGE requested but not available. Required version: >= 1.4.0, Current: {current}"
    with pytest.raises(DatasetMergeError) as caught:
        inlay.DuckDBDatasetIO(tap).merge(SOURCE, path, "upsert", ["id"], use_merge=True)
    assert caught.value.message == expected
    assert "use_merge=False" in caught.value.hint
    assert "pgrade" in caught.value.hint
    assert not tap.executed("UNION ALL")
    assert lake.photograph(path) == before


def test_explicit_fallback_request(tmp_path, caplog):
    tap = Tap()
    merged(tmp_path, tap, use_merge=False)
    assert not tap.executed("pragma_version")
    assert not tap.executed("MERGE INTO")
    assert messages(caplog) == [UNION]


@pytest.mark.parametrize(("text", "message"), [("v1.3.2", FALLBACK), pytest.param("v1.4.0", AUTO, marks=with_merge)])
def test_auto_detect_mode_default(tmp_path, caplog, text, message):
    result = merged(tmp_path, Tap(text))
    assert (result.updated, result.inserted) == (2, 1)
    assert messages(caplog) == [message]


# -------------------------------------------------------------------------------------------------- PyArrow Table input
def test_register_pyarrow_table_as_temporary_view(tmp_path):
    tap = Tap()
    merged(tmp_path, tap)
    merged(tmp_path / "again", tap)
    views = [name for name in tap.registered if name.startswith("source_view_")]
    assert len(set(views)) == len(views) == 2
    assert all(re.fullmatch(r"source_view_[0-9a-f]{32}", view) for view in views)
    assert set(tap.registered) == set(tap.unregistered)
    if HAS_MERGE:
        assert f'USING "{views[0]}" AS source' in tap.executed("MERGE INTO")[0]


@pytest.mark.parametrize("fails", [False, True])
def test_clean_up_temporary_views_after_merge(tmp_path, monkeypatch, fails):
    tap = Tap()
    before = state_of(tap.connection)
    if fails:
        monkeypatch.setattr(sql, "count_actions", lambda _: "SELECT no_such_column")
        with pytest.raises(DatasetMergeError):
            merged(tmp_path, tap)
    else:
        merged(tmp_path, tap)
    assert set(tap.registered) == set(tap.unregistered)
    assert state_of(tap.connection) == before
    _unregister_duckdb_table_safely(tap.connection, "never_registered")


# ----------------------------------------------------------------------------------------------- parquet_scan() targets
@with_merge
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert"])
def test_build_merge_with_parquet_scan_in_into_clause(tmp_path, strategy):
    """The document's statement does not parse: MERGE wants a table. It gets keys, and no file or path."""
    path = dataset(tmp_path)
    clauses = {
        "insert": "WHEN NOT MATCHED THEN INSERT BY NAME",
        "update": "WHEN MATCHED THEN UPDATE SET *",
        "upsert": "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT BY NAME",
    }
    with duckdb.connect() as connection:
        connection.register("source_view", SOURCE)
        with pytest.raises(duckdb.ParserException):
            connection.execute(
                f"MERGE INTO parquet_scan('{path}/a.parquet') AS target USING source_view AS source "
                f"ON (target.id = source.id) {clauses[strategy]}"
            )
    tap = Tap()
    inlay.DuckDBDatasetIO(tap).merge(SOURCE, path, strategy, ["id"])
    assert re.match(r'MERGE INTO "target_keys_[0-9a-f]{32}" AS target USING ', tap.executed("MERGE INTO")[0])
    [scan] = tap.executed("CREATE TEMP TABLE")
    assert re.search(r'"target row", CAST.*, "id" FROM "target_view_[0-9a-f]{32}"$', scan)
    assert path not in "".join(tap.statements)


@pytest.mark.parametrize(
    "name", ["it's", 'say "x"', "a;b", "a--b", "a/*b*/c", "x/../y", "tab\there", "\u202eevil", "zero\u200bwidth"]
)
def test_validate_and_escape_file_paths(tmp_path, monkeypatch, name):
    bad, good = str(tmp_path / name), str(tmp_path / "b-c_d.e=f:g h%20+@ü/p=1")
    monkeypatch.setattr(duckdb, "connect", None)  # nothing is even connected to
    with pytest.raises(ValueError, match=r"The path"):
        inlay.PathValidator.escape_for_sql(bad)
    for refused in (inlay.DuckDBDatasetIO().merge, inlay.DuckDBDatasetIO().plan_merge):
        with pytest.raises(ValueError, match=r"The path"):
            refused(iter("never read"), bad, "upsert", ["id"])
    assert list(tmp_path.iterdir()) == []
    inlay.PathValidator.validate_path_for_sql(good)
    assert inlay.PathValidator.escape_for_sql(good) == good


# ---------------------------------------------------------------------------------------------- atomic file replacement
@with_merge
def test_merge_output_to_staging_file(tmp_path, monkeypatch):
    """COPY (MERGE ...) does not parse, nor MERGE in CREATE TABLE AS or a CTE; the kernels write the staged file."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (id BIGINT); CREATE TABLE s (id BIGINT)").fetchall()
        merge = "MERGE INTO t USING s ON (t.id = s.id) WHEN NOT MATCHED THEN INSERT BY NAME RETURNING merge_action"
        for statement in (
            f"COPY ({merge}) TO '{tmp_path}/staged.parquet'",
            f"CREATE TABLE r AS {merge}",
            f"WITH r AS ({merge}) SELECT * FROM r",
            f"SELECT * FROM ({merge})",
        ):
            with pytest.raises(duckdb.ParserException):
                connection.execute(statement)
    path = dataset(tmp_path)
    staged = []
    stage = DuckDBEngine.stage

    def spy(self, location, source, edits, appends, *, dry_run):
        staged.extend(edit.stage for edit in edits)
        return stage(self, location, source, edits, appends, dry_run=dry_run)

    monkeypatch.setattr(DuckDBEngine, "stage", spy)
    inlay.DuckDBDatasetIO().merge(SOURCE, path, "upsert", ["id"])
    assert len(staged) == 2
    assert not any(Path(stage).exists() or stage.startswith(path + "/") for stage in staged)


def test_integration_with_incremental_rewrite_workflow(tmp_path, monkeypatch):
    commits = []
    commit = IncrementalFileManager.commit

    def spy(self, puts, *more, **record):
        commits.append((len(puts), lake.contents(tmp_path / "d")))
        return commit(self, puts, *more, **record)

    monkeypatch.setattr(IncrementalFileManager, "commit", spy)
    path = dataset(tmp_path)
    before = lake.contents(path)
    for use_merge in (True, False) if HAS_MERGE else (False,):
        tap = Tap()
        inlay.DuckDBDatasetIO(tap).merge(SOURCE, path, "upsert", ["id"], use_merge=use_merge)
        assert bool(tap.executed("MERGE INTO")) != bool(tap.executed("UNION ALL"))
    assert commits[0] == (3, before)  # two files rewritten and one new, none of it visible before the commit
    assert lake.id_values(lake.all_rows(path)) == [(1, "v1"), (2, "x"), (3, "v3"), (4, "y"), (5, "v5"), (9, "z")]
    assert sorted(p.name for p in tmp_path.rglob("*") if "staging" in p.name) == []


# -------------------------------------------------------------------------------------------------- RETURNING for audit
@with_merge
@pytest.mark.parametrize(
    ("ids", "counts"), [([7, 8, 9], (0, 3)), ([1, 2, 3], (3, 0)), ([1, 9], (1, 1)), (range(1, 8), (5, 2))]
)
@pytest.mark.parametrize("keys", [["id"], ["id", "v"]])
def test_count_merge_actions_via_returning(tmp_path, monkeypatch, ids, counts, keys):
    reported = []
    count = SqlSearch._merge_using_duckdb_merge

    def spy(self, table, view):
        reported.append(count(self, table, view))
        return reported[-1]

    monkeypatch.setattr(SqlSearch, "_merge_using_duckdb_merge", spy)
    table = lake.table([*range(1, 6), 100], [*(f"v{i}" for i in range(1, 6)), "z"])  # statistics exclude nothing
    path = lake.write(tmp_path / "d", {"a.parquet": table})
    result = inlay.DuckDBDatasetIO().merge(lake.table(ids), path, "upsert", keys)
    assert reported == [counts]
    assert (result.updated, result.inserted) == counts


def test_temporary_table_cleanup_after_counting(tmp_path):
    connection = duckdb.connect()
    before = state_of(connection)
    merged(tmp_path, Tap(connection=connection))
    merged(tmp_path / "again", Tap(connection=connection), use_merge=False)
    assert state_of(connection) == before


# ------------------------------------------------------------------------------------------------------- error handling
@with_merge
@pytest.mark.parametrize(
    ("statement", "cause"),
    [
        ("MERGE IN TO nowhere", duckdb.ParserException),
        ("SELECT no_such_column", duckdb.BinderException),
        ("SELECT error('not like this')", duckdb.InvalidInputException),
    ],
)
def test_merge_syntax_error(tmp_path, monkeypatch, caplog, statement, cause):
    monkeypatch.setattr(sql, "merge_into", lambda *_: statement)
    path = dataset(tmp_path)
    before = lake.photograph(path)
    with pytest.raises(DatasetMergeError, match=r"^MERGE operation failed: ") as caught:
        inlay.DuckDBDatasetIO().merge(SOURCE, path, "upsert", ["id"])
    error = caught.value
    assert isinstance(error.__cause__, cause)
    assert str(error.__cause__) in str(error)
    assert (error.operation, error.strategy, error.key_columns) == ("merge", "upsert", ["id"])
    assert error.files == [f"{path}/a.parquet", f"{path}/b.parquet"]
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    for part in (cause.__name__, str(error.__cause__), "upsert", "a.parquet"):
        assert part in logged[0]
    assert lake.photograph(path) == before


def test_version_detection_error(tmp_path, caplog):
    class Silent(Tap):
        def cursor(self):
            return Silent(self.version, self.connection.cursor(), self)

        def execute(self, statement, values=None):
            if "pragma_version" in statement:
                raise duckdb.CatalogException("no such function")
            return super().execute(statement, values)

    result = merged(tmp_path, Silent())
    assert (result.updated, result.inserted) == (2, 1)
    assert messages(caplog) == ["Could not determine DuckDB version: no such function", FALLBACK]
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize("value", ["yes", "auto", 1, 0, "", []])
def test_invalid_use_merge_parameter(tmp_path, value):
    path = dataset(tmp_path)
    with pytest.raises(ValueError, match=r"Invalid use_merge value") as caught:
        inlay.DuckDBDatasetIO().merge(SOURCE, path, "upsert", ["id"], use_merge=value)
    assert str(caught.value) == (f"Invalid use_merge value: {value!r}\nMust be True, False, or None for auto-detect")
