"""Random merges against the oracle: content, order, types, counts, untouched bytes, and other readers."""

import tempfile
from pathlib import Path

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import inlay
from tests import lake, oracle
from tests.arrow_types import TYPES
from tests.merge_cases import Case, cases

quiet = settings(suppress_health_check=list(HealthCheck))


def merge(case: Case, path, engine, function=None):
    function = function or inlay.merge
    options = {"dedup_order_by": case.order_by or None, "partition_columns": case.partitions or None}
    options |= {"schema_mode": case.schema_mode, "transaction": case.transaction} | case.options
    options["scope"] = case.scope_argument
    return function(case.source, path, case.strategy, case.keys, engine=engine, **options)


def target_rows(case, root, where):
    return [
        (name, case.with_partition(lake.rows_of(lake.read_file(root / name)), part)) for name, part in where.items()
    ]


def expectation(case, root, where):
    """Return the oracle's outcome, or None if it rejects the merge."""
    schemas = [lake.read_file(root / name).schema for name in where]
    columns = [*dict.fromkeys(name for schema in schemas for name in schema.names), *case.partitions]
    required = [field.name for schema in schemas for field in schema if not field.nullable]
    try:
        return oracle.merge(
            target_rows(case, root, where), lake.rows_of(case.source), case.strategy, case.keys, case.partitions,
            case.order_by, columns=columns if where else (), required=required, **case.options,
        )  # fmt: skip
    except oracle.RefusedError as refusal:
        event(f"refused: {refusal.kind}")
        return None


def without_partition(rows):
    return [{name: value for name, value in row.items() if name != "p"} for row in rows]


def check_old_files(root, where, expected, schemas, before):
    present = {name for name in where if (root / name).exists()}
    gone = set(where) - present
    assert gone <= expected.emptied
    assert len(expected.emptied - gone) == int(expected.one_empty_file_stays)
    after = lake.photograph(root)
    for name in present:
        table = lake.read_file(root / name)
        assert lake.same_rows(lake.rows_of(table), without_partition(expected.files[name]))
        assert table.schema.equals(schemas[name], check_metadata=True)
        table.validate(full=True)
    assert {name: after[name] for name in expected.untouched} == {name: before[name] for name in expected.untouched}


def encoded_groups(path):
    """Return for each row group its first row, its row count and the bytes of its column chunks."""
    footer, first = lake.footer(path), 0
    for i in range(footer.num_row_groups):
        group = footer.row_group(i)
        chunks = [lake.chunk_bytes(path, i, column) for column in range(group.num_columns)]
        yield range(first, first + group.num_rows), chunks
        first += group.num_rows


def check_groups(root, groups, expected):
    """Check that row groups without differences are copied byte for byte."""
    for name in expected.rewritten:
        data = (root / name).read_bytes()
        for span, chunks in groups[name]:
            if not set(span) & set(expected.changed[name]):
                assert all(chunk in data for chunk in chunks)


def check_new_files(case, root, where, expected, schema):
    """Check that new rows are in the directory of their partition, in source order and the target's types."""
    found: dict[str, list[oracle.Row]] = {}
    for name in lake.new_names(root, where):
        table = lake.read_file(root / name)
        found.setdefault(str(Path(name).parent), []).extend(lake.rows_of(table))
        assert table.schema.equals(schema, check_metadata=True)
    wanted = {}
    for rows in expected.inserts.values():
        part = "__HIVE_DEFAULT_PARTITION__" if case.partitions and rows[0]["p"] is None else rows[0].get("p")
        wanted[f"p={part}" if case.partitions else "."] = lake.exact_rows(without_partition(rows))
    got = {folder.replace("%20", " "): lake.exact_rows(rows) for folder, rows in found.items()}
    assert got == wanted


def check_result(root, result, expected):
    got = (result.source_count, result.target_count_before, result.target_count_after)
    assert got == (expected.source_count, expected.before, expected.after)
    got = (result.inserted, result.updated, result.deleted, result.unchanged, result.stale)
    assert got == (expected.inserted, expected.updated, expected.deleted, expected.unchanged, expected.stale)
    stays = expected.emptied if expected.one_empty_file_stays else set()
    rewritten = {str(Path(file).relative_to(root)) for file in result.rewritten_files}
    assert rewritten - stays == expected.rewritten
    assert {str(Path(file).relative_to(root)) for file in result.preserved_files} == expected.untouched
    for meta in result.files:
        if meta.operation != "removed":
            assert (meta.row_count, meta.size_bytes) == (
                lake.footer(meta.path).num_rows,
                Path(meta.path).stat().st_size,
            )


def check_replay(case, root, engine, result):
    """Check that the same transaction returns the recorded result and changes nothing."""
    before = lake.photograph(root)
    again = merge(case, str(root), engine)
    assert (again.replayed, result.replayed, lake.photograph(root)) == (True, False, before)
    counts = ("source_count", "inserted", "updated", "deleted", "unchanged", "stale", "target_count_after")
    assert [getattr(again, name) for name in counts] == [getattr(result, name) for name in counts]


@quiet
@given(case=cases())
def test_a_merge_agrees_with_the_oracle(engine, case):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "d"
        where = case.write(root)
        schemas = {name: lake.read_file(root / name).schema for name in where}
        groups = {name: list(encoded_groups(root / name)) for name in where}
        before = lake.photograph(root)
        expected = expectation(case, root, where)
        if expected is None:
            for function in (inlay.plan_merge, inlay.merge):
                with pytest.raises(ValueError, match=r"\w"):
                    merge(case, str(root), engine, function)
            assert lake.photograph(root) == before
            return
        plan = merge(case, str(root), engine, inlay.plan_merge)
        assert lake.photograph(root) == before
        assert (plan.inserted, plan.updated, plan.deleted, plan.stale) == (
            expected.inserted,
            expected.updated,
            expected.deleted,
            expected.stale,
        )
        result = merge(case, str(root), engine)
        check_result(root, result, expected)
        check_old_files(root, where, expected, schemas, before)
        if case.writer.startswith("pyarrow"):
            check_groups(root, groups, expected)
        if case.files:
            check_new_files(case, root, where, expected, schemas[min(schemas)])
        if lake.names(root):
            got = lake.rows_of(inlay.read_parquet(str(root)))
            assert lake.same_rows(got, expected.rows(), ordered=False)
        if case.transaction is not None:
            check_replay(case, root, engine, result)


def read_duckdb(path):
    return (
        duckdb.connect().sql("SELECT * FROM read_parquet(?, hive_partitioning = false)", params=[path]).to_arrow_table()
    )


def read_polars(path):
    return pl.read_parquet(path, hive_partitioning=False).to_arrow()


def read_datafusion(path):
    """Read without statistics: bounds ignore NaN, and DataFusion treats a column with equal bounds as constant."""
    config = datafusion.SessionConfig().set("datafusion.execution.collect_statistics", "false")
    frame = datafusion.SessionContext(config).read_parquet(path)
    return pa.Table.from_batches(frame.collect(), schema=frame.schema())


#: reader -> types that it cannot read or changes, whoever wrote them
READERS = {
    read_duckdb: {"decimal256", "uuid", "duration_s", "duration_ms", "duration_us"},
    read_polars: {"decimal256", "list_view", "timestamp_ns_+05:30"},
    read_datafusion: {"dictionary_ordered"},
}
if "decimal32" not in TYPES:
    READERS[read_duckdb].add("time64_ns")  # pyarrow 21 marks times as UTC, and DuckDB has no such times of nanoseconds


# All engines write files with the same kernels. They differ in how they find rows, which the other tests check.
@pytest.mark.long_on("duckdb", "duckdb-union", "spark")
@quiet
@given(case=cases())
def test_other_readers_agree_with_pyarrow(engine, case):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "d"
        where = case.write(root)
        if expectation(case, root, where) is None:
            return
        merge(case, str(root), engine)
        for name in lake.names(root):
            rows = lake.rows_of(lake.read_file(root / name))
            for reader, unreadable in READERS.items():
                if not case.type_names & unreadable:
                    got = lake.rows_of(reader(str(root / name)))
                    assert lake.same_rows(got, rows), reader.__name__


PARTS = ["a", "b"]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from([None, "", "v", "w"]),
        st.sampled_from([0.0, -0.0, 1.5]),
        st.sampled_from(PARTS),
    ),
    max_size=6,
)


def table_of(rows, *, partitioned):
    """Draw rows of (id, v, x, p). In a partitioned dataset p usually depends on id, so that few keys move."""
    where = [p if i == 9 else PARTS[i % 2] for i, _, _, p in rows]
    columns = {
        "id": pa.array([row[0] for row in rows], pa.int64()),
        "v": pa.array([row[1] for row in rows], pa.string()),
        "x": pa.array([row[2] for row in rows], pa.float64()),
    }
    return pa.table(columns | ({"p": pa.array(where, pa.string())} if partitioned else {}))


class Dataset(RuleBasedStateMachine):
    """A dataset and a list of rows that go through the same operations."""

    engine = "pyarrow"

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = str(Path(self.folder.name) / "d")
        self.rows = []

    def teardown(self):
        self.folder.cleanup()

    @initialize(rows=ROWS.filter(bool), partitioned=st.booleans())
    def create(self, rows, partitioned):
        self.partitions = ["p"] if partitioned else []
        self.write(rows, "append")

    @rule(rows=ROWS.filter(bool), mode=st.sampled_from(["append", "append", "overwrite"]))
    def write(self, rows, mode):
        table = table_of(rows, partitioned=bool(self.partitions))
        result = inlay.write_dataset(
            table, self.path, mode=mode, partition_columns=self.partitions or None, engine=self.engine
        )
        assert sum(meta.row_count for meta in result.files) == table.num_rows
        self.rows = lake.rows_of(table) + (self.rows if mode == "append" else [])

    @rule(rows=ROWS, strategy=st.sampled_from(list(oracle.TRUTH)), once=st.booleans())
    def merge(self, rows, strategy, once):
        if once:
            rows = list({row[0]: row for row in rows}.values())
        source = table_of(rows, partitioned=bool(self.partitions))
        before = lake.photograph(self.path)
        try:
            expected = oracle.merge([("all", self.rows)], lake.rows_of(source), strategy, ["id"], self.partitions)
        except oracle.RefusedError:
            with pytest.raises(ValueError, match=r"\w"):
                inlay.merge(source, self.path, strategy, ["id"], engine=self.engine)
            assert lake.photograph(self.path) == before
            return
        result = inlay.merge(source, self.path, strategy, ["id"], engine=self.engine)
        got = (result.inserted, result.updated, result.deleted, result.unchanged, result.target_count_after)
        assert got == (
            expected.inserted,
            expected.updated,
            expected.deleted,
            expected.unchanged,
            expected.after,
        )
        self.rows = expected.rows()

    @rule()
    def compact(self):
        inlay.compact(self.path)

    @rule()
    def recover(self):
        before = lake.photograph(self.path)
        inlay.recover(self.path)
        assert lake.photograph(self.path) == before

    @invariant()
    def content_is_the_model(self):
        if self.rows:
            got = lake.rows_of(inlay.read_parquet(self.path))
            assert lake.same_rows(got, self.rows, ordered=False)
        assert sum(lake.footer(Path(self.path) / name).num_rows for name in lake.names(self.path)) == len(self.rows)


# Short runs check single merges on these engines against the oracle above.
@pytest.mark.long_on("duckdb-union", "spark")
def test_a_sequence_of_merges_writes_and_compacts_follows_the_model(engine):
    machine = type("EngineDataset", (Dataset,), {"engine": engine})
    examples = settings().max_examples // (4 if engine == "spark" else 1)  # a step on Spark is a job or two
    run_state_machine_as_test(machine, settings=settings(quiet, stateful_step_count=12, max_examples=examples))
