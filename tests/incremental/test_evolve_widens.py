"""`schema_mode="evolve"` widens the columns of a dataset when values of the source need it."""

from __future__ import annotations

import datetime as dt
import decimal
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import inlay
from inlay.errors import BadRowsError, SchemaMismatchError
from tests import lake, oracle
from tests.parquet.splicing import READERS, rows_of

DAY, NOON = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12)  # noqa: DTZ001
#: the type in the dataset, a stored value, the type and a value of the source, the new type
NEEDED: list[tuple[pa.DataType, Any, pa.DataType, Any, pa.DataType]] = [
    (pa.int32(), 5, pa.int64(), 2**40, pa.int64()),
    (pa.int8(), 5, pa.int16(), 300, pa.int16()),
    (pa.uint32(), 5, pa.int64(), -1, pa.int64()),
    (pa.float32(), 0.5, pa.float64(), 0.1, pa.float64()),
    (pa.decimal128(5, 2), decimal.Decimal("1.25"), pa.decimal128(9, 4), decimal.Decimal("1.2345"), pa.decimal128(9, 4)),
    (pa.date32(), DAY, pa.timestamp("us"), NOON, pa.timestamp("us")),
    (pa.timestamp("ms"), NOON, pa.timestamp("us"), NOON.replace(microsecond=1), pa.timestamp("us")),
    (pa.list_(pa.int32()), [1], pa.list_(pa.int64()), [2**40], pa.list_(pa.int64())),
    (
        pa.struct([("a", pa.int32())]),
        {"a": 1},
        pa.struct([("b", pa.string()), ("a", pa.int32())]),
        {"b": "new", "a": 2},
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
    ),
    (
        pa.list_(pa.struct([("a", pa.int32())])),
        [{"a": 1}],
        pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])),
        [{"a": 2**40, "b": "new"}],
        pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ),
]


def rows_with(ids: list[int], type_: pa.DataType, value: Any) -> pa.Table:
    values = pa.array([value] * len(ids), type_)
    return pa.table({"id": ids, "x": values, "y": [f"y{n}" for n in ids]})


def three_files(tmp_path: Path, type_: pa.DataType, value: Any) -> str:
    files = {f"{n}.parquet": rows_with([2 * n, 2 * n + 1], type_, value) for n in range(3)}
    return lake.write(tmp_path / "d", files, row_group_size=1)


def chunk(path: Path, column: int) -> list[bytes]:
    footer = lake.footer(path)
    column %= footer.num_columns
    return [lake.chunk_bytes(path, group, column) for group in range(footer.num_row_groups)]


# Short runs widen on these engines in the tests of keys, NULLs and other options below.
@pytest.mark.long_on("duckdb-union", "spark")
@pytest.mark.parametrize(("old", "stored", "new", "value", "wide"), NEEDED, ids=str)
def test_values_that_need_it_widen_the_column_in_every_file(
    tmp_path: Path, engine: Any, old: pa.DataType, stored: Any, new: pa.DataType, value: Any, wide: pa.DataType
) -> None:
    path = three_files(tmp_path, old, stored)
    photo = lake.photograph(path)
    source = rows_with([0, 9], new, value)
    options: Any = {"schema_mode": "evolve", "engine": engine}
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(SchemaMismatchError, match="'x' is"):
            call(source, path, "upsert", "id", engine=engine)
    plan = inlay.plan_merge(source, path, "upsert", "id", **options)
    assert lake.photograph(path) == photo
    untouched = {name: (chunk(tmp_path / "d" / name, 0), chunk(tmp_path / "d" / name, -1)) for name in lake.names(path)}
    result = inlay.merge(source, path, "upsert", "id", **options)
    for summary in (plan, result):
        assert (summary.updated, summary.inserted, summary.unchanged) == (1, 1, 0)
    assert len(plan.affected_files) == len(result.rewritten_files) == 3
    assert [file.reason for file in plan.files][1:] == ["widens column 'x'"] * 2
    for name in lake.names(path):
        assert pq.read_schema(tmp_path / "d" / name).field("x").type == wide
    for name in ("0.parquet", "1.parquet", "2.parquet"):
        assert (chunk(tmp_path / "d" / name, 0), chunk(tmp_path / "d" / name, -1)) == untouched[name]
    found = {row["id"]: row["x"] for row in rows_of(inlay.read_parquet(path))}
    before, after = (rows_of(pa.table({"id": [0], "x": pa.array([each], wide)}))[0]["x"] for each in (
        widened_value(stored, old, wide), value,
    ))  # fmt: skip
    expected = {0: after, 1: before, 2: before, 3: before, 4: before, 5: before, 9: after}
    assert found == expected
    for reader, read in READERS.items():
        files = (rows_of(read(tmp_path / "d" / name)) for name in lake.names(path))
        assert {row["id"]: row["x"] for rows in files for row in rows} == expected, reader
    again = inlay.merge(source, path, "upsert", "id", engine=engine)
    assert again.unchanged == 2


def widened_value(value: Any, old: pa.DataType, wide: pa.DataType) -> Any:
    from inlay.schema import widen_column

    return widen_column(pa.chunked_array([pa.array([value], old)]), wide, "x").to_pylist()[0]


@pytest.mark.parametrize(
    ("old", "stored", "new", "value"),
    [
        (pa.int32(), 5, pa.int64(), 7),
        (pa.float32(), 0.5, pa.float64(), 0.25),
        (pa.decimal128(5, 2), decimal.Decimal("1.25"), pa.decimal128(9, 4), decimal.Decimal("1.5")),
        (pa.timestamp("ms"), NOON, pa.timestamp("us"), NOON.replace(microsecond=1000)),
    ],
    ids=str,
)
def test_values_that_fit_widen_nothing(
    tmp_path: Path, engine: Any, old: pa.DataType, stored: Any, new: pa.DataType, value: Any
) -> None:
    path = three_files(tmp_path, old, stored)
    source = rows_with([0, 9], new, value)
    result = inlay.merge(source, path, "upsert", "id", schema_mode="evolve", engine=engine)
    assert len(result.rewritten_files) == 1
    assert {pq.read_schema(tmp_path / "d" / name).field("x").type for name in lake.names(path)} == {old}


def test_nulls_make_a_required_column_nullable(tmp_path: Path, engine: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int64(), nullable=False)])
    files = {f"{n}.parquet": pa.table({"id": [n], "x": [n]}, schema) for n in range(2)}
    path = lake.write(tmp_path / "d", files)
    source = pa.table({"id": [0, 1], "x": [5, None]})
    with pytest.raises(SchemaMismatchError, match="'x' is not nullable"):
        inlay.merge(source, path, "upsert", "id", engine=engine)
    inlay.merge(source, path, "upsert", "id", schema_mode="evolve", engine=engine)
    assert lake.all_rows(path) == [{"id": 0, "x": 5}, {"id": 1, "x": None}]
    assert {pq.read_schema(tmp_path / "d" / name).field("x").nullable for name in files} == {True}


def test_key_columns_widen(tmp_path: Path, engine: Any) -> None:
    files = {f"{n}.parquet": pa.table({"id": pa.array([n], pa.int32()), "v": [f"v{n}"]}) for n in range(2)}
    path = lake.write(tmp_path / "d", files)
    source = pa.table({"id": [1, 2**40], "v": ["new", "wide"]})
    result = inlay.merge(source, path, "upsert", "id", schema_mode="evolve", engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    assert {pq.read_schema(tmp_path / "d" / name).field("id").type for name in lake.names(path)} == {pa.int64()}
    assert lake.id_values(lake.all_rows(path)) == [(0, "v0"), (1, "new"), (2**40, "wide")]


def test_only_rows_with_an_effect_widen(tmp_path: Path) -> None:
    path = three_files(tmp_path, pa.int32(), 5)
    before = lake.photograph(path)
    source = rows_with([77], pa.int64(), 2**40)
    result = inlay.merge(source, path, "update", "id", schema_mode="evolve")
    assert (result.updated, result.rewritten_files) == (0, [])
    assert lake.photograph(path) == before


def test_equal_rows_and_deleted_rows_are_widened_with_the_file(tmp_path: Path, engine: Any) -> None:
    path = three_files(tmp_path, pa.int32(), 5)
    source = pa.table({"id": [0, 1, 2, 9], "x": pa.array([5, 5, 5, 2**40]), "y": ["y0", "y1", "y2", "y9"]})
    options: Any = {"schema_mode": "evolve", "engine": engine}
    plan = inlay.plan_merge(source, path, "full_merge", "id", **options)
    result = inlay.merge(source, path, "full_merge", "id", **options)
    for summary in (plan, result):
        assert (summary.updated, summary.unchanged, summary.deleted, summary.inserted) == (3, 3, 3, 1)
    assert {pq.read_schema(tmp_path / "d" / name).field("x").type for name in lake.names(path)} == {pa.int64()}
    assert sorted(row["id"] for row in lake.all_rows(path)) == [0, 1, 2, 9]


def test_widening_adding_and_keeping_work_together(tmp_path: Path, engine: Any) -> None:
    path = three_files(tmp_path, pa.int32(), 5)
    source = pa.table({"id": [0], "x": [2**40], "extra": ["new"]})
    options: Any = {"schema_mode": "evolve", "missing_columns": "keep", "engine": engine}
    assert inlay.merge(source, path, "upsert", "id", **options).updated == 1
    found = {row["id"]: (row["x"], row["y"], row["extra"]) for row in inlay.read_parquet(path).to_pylist()}
    assert found[0] == (2**40, "y0", "new")
    assert found[5] == (5, "y5", None)
    dicts = [{"id": 1, "x": 2**41}, {"id": 2, "y": "n2"}]
    inlay.merge(dicts, path, "upsert", "id", **options)
    found = {row["id"]: (row["x"], row["y"]) for row in inlay.read_parquet(path).to_pylist()}
    assert (found[1], found[2]) == ((2**41, "y1"), (5, "n2"))


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        (pa.int64(), pa.float64(), 0.5),
        (pa.int64(), pa.uint64(), 2**63),
        (pa.int64(), pa.string(), "x"),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), NOON),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())]), {"b": 1}),
    ],
    ids=str,
)
def test_evolve_rejects_values_that_no_wider_type_holds(
    tmp_path: Path, old: pa.DataType, new: pa.DataType, value: Any
) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": rows_with([1], old, None)})
    before = lake.photograph(path)
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(SchemaMismatchError, match="'x'"):
            call(rows_with([1], new, value), path, "upsert", "id", schema_mode="evolve")
    assert lake.photograph(path) == before


@pytest.mark.parametrize("nested", [False, True])
def test_decimals_that_polars_cannot_read_are_refused(tmp_path: Path, nested: bool) -> None:
    old, new, value = pa.decimal128(5, 2), pa.decimal256(39, 2), decimal.Decimal("1" * 37 + ".25")
    if nested:
        old, new, value = pa.list_(old), pa.list_(new), [value]
    path = lake.write(tmp_path / "d", {"a.parquet": rows_with([1], old, None)})
    before = lake.photograph(path)
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(SchemaMismatchError, match="'x'") as caught:
            call(rows_with([1], new, value), path, "upsert", "id", schema_mode="evolve")
        assert "38 digits" in str(caught.value.hint)
    assert lake.photograph(path) == before
    wide = lake.write(tmp_path / "wide", {"a.parquet": rows_with([1], pa.decimal256(40, 2), None)})
    inlay.merge(rows_with([1], pa.decimal256(50, 2), 10**45), wide, "upsert", "id", schema_mode="evolve")


def test_a_dry_run_with_changes_shows_widened_rows(tmp_path: Path) -> None:
    from inlay.engines import get_engine
    from inlay.incremental.managed import Draft, plan_draft
    from inlay.incremental.validate import MergeOptions
    from inlay.storage import LocalStore, Location

    path = three_files(tmp_path, pa.date32(), DAY)
    files = [(f"{n}.parquet", (tmp_path / f"d/{n}.parquet").stat().st_size) for n in range(3)]
    draft = Draft(Location(LocalStore(), path, path), files, "v2")
    options = MergeOptions.check("upsert", "id", schema_mode="evolve")
    source = rows_with([0, 9], pa.timestamp("us"), NOON)
    plan, changes = plan_draft(source, draft, options, get_engine("pyarrow"), limit=5)
    assert plan.updated == 1
    assert changes.old["x"].to_pylist() == [dt.datetime(2024, 2, 29)]  # noqa: DTZ001
    assert changes.new["x"].to_pylist() == [NOON]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_integers_of_text_files_widen(tmp_path: Path, engine: Any, form: str) -> None:
    path = three_files(tmp_path, pa.int32(), 5)
    source = tmp_path / f"rows.{form}"
    texts = {
        "csv": f"id,x,y\n0,7,n\n1,{2**40},n\n",
        "json": f'[{{"id": 0, "x": 7, "y": "n"}}, {{"id": 1, "x": {2**40}, "y": "n"}}]',
    }
    source.write_text(texts[form])
    with pytest.raises(inlay.InlayError, match="'x'"):
        inlay.merge(source, path, "upsert", "id", engine=engine)
    inlay.merge(source, path, "upsert", "id", schema_mode="evolve", engine=engine)
    assert {pq.read_schema(tmp_path / "d" / name).field("x").type for name in lake.names(path)} == {pa.int64()}
    assert [row["x"] for row in lake.all_rows(path)][:2] == [7, 2**40]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("5000000000,2025-01-01,1.5", 5_000_000_000),
        (",2025-01-01,1.5", None),
        ("1,2025-01-01T10:00:00,1.5", BadRowsError),
        ("1,2025-01-01,1.55", BadRowsError),
        ("9223372036854775808,2025-01-01,1.5", BadRowsError),
    ],
)
def test_a_text_file_widens_only_integers_and_required_columns(tmp_path: Path, cell: str, value: Any) -> None:
    fields = [
        pa.field("n", pa.int32(), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("x", pa.decimal128(3, 1)),
    ]
    schema = pa.schema([pa.field("id", pa.int64()), *fields])
    stored = pa.table([pa.array([1]), pa.array([1], pa.int32()), [DAY], [decimal.Decimal("1.5")]], schema=schema)
    path = lake.write(tmp_path / "d", {"a.parquet": stored})
    (tmp_path / "rows.csv").write_text(f"id,n,day,x\n1,{cell}\n")
    options: Any = {"schema_mode": "evolve"}
    if value is BadRowsError:
        with pytest.raises(BadRowsError):
            inlay.merge(tmp_path / "rows.csv", path, "upsert", "id", **options)
    else:
        inlay.merge(tmp_path / "rows.csv", path, "upsert", "id", **options)
        assert inlay.read_parquet(path)["n"].to_pylist() == [value]


def test_stored_values_that_no_wider_type_holds_are_named(tmp_path: Path, engine: Any) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1, 2], "v": [dt.date(2500, 1, 1)] * 2})})
    before = lake.photograph(path)
    source = pa.table({"id": [1], "v": pa.array([NOON], pa.timestamp("ns"))})
    message = r"Column 'v' is date32\[day\] and cannot become timestamp\[ns\]: not every value fits"
    with pytest.raises(SchemaMismatchError, match=message):
        inlay.merge(source, path, "upsert", "id", schema_mode="evolve", engine=engine)
    assert lake.photograph(path) == before


NUMBER = st.sampled_from(["absent", None, 1, 2, 2**40])


# All engines run the kernels that the tests above compare.
@pytest.mark.long_on("duckdb", "duckdb-union", "spark")
@settings(suppress_health_check=list(HealthCheck))
@given(
    cells=st.lists(st.tuples(st.integers(0, 9), NUMBER, NUMBER), min_size=1, max_size=5, unique_by=lambda row: row[0]),
    strategy=st.sampled_from(sorted(set(oracle.TRUTH) - {"delete"})),
    missing=st.sampled_from(["null", "keep"]),
    keys=st.sampled_from([pa.int64(), pa.int8()]),
)
def test_widening_merges_agree_with_the_oracle(
    engine: Any, cells: Any, strategy: Any, missing: Any, keys: pa.DataType
) -> None:
    stored = [{"id": n, "a": n % 3, "b": None if n % 2 else 1} for n in range(6)]
    records = [{"id": key} | {n: v for n, v in (("a", a), ("b", b)) if v != "absent"} for key, a, b in cells]
    schema = pa.schema([("id", keys), ("a", pa.int16()), ("b", pa.int32())])
    with tempfile.TemporaryDirectory() as folder:
        files = {f"{n}.parquet": pa.Table.from_pylist(stored[2 * n : 2 * n + 2], schema) for n in range(3)}
        path = lake.write(Path(folder) / "d", files, row_group_size=1)
        placed = [(name, stored[2 * n : 2 * n + 2]) for n, name in enumerate(files)]
        expected = oracle.merge(placed, records, strategy, ["id"], missing_columns=missing)
        options: Any = {"missing_columns": missing, "schema_mode": "evolve", "engine": engine}
        plan = inlay.plan_merge(records, path, strategy, "id", **options)
        result = inlay.merge(records, path, strategy, "id", **options)
        for got in (plan, result):
            counts = (got.inserted, got.updated, got.unchanged, got.deleted)
            assert counts == (expected.inserted, expected.updated, expected.unchanged, expected.deleted)
        assert len(plan.affected_files) == len(result.rewritten_files) + len(result.removed_files)
        assert lake.same_rows(lake.all_rows(path), expected.rows(), ordered=False)
        schemas = [pq.read_schema(Path(path) / name) for name in lake.names(path)]
        for name, narrow in (("a", pa.int16()), ("b", pa.int32())):
            is_wide = any(row.get(name) == 2**40 for row in expected.rows())
            assert {each.field(name).type for each in schemas} == {pa.int64() if is_wide else narrow}


AT: list[tuple[pa.DataType, Any, pa.DataType, Any, pa.DataType]] = [
    (pa.int32(), [5, 9, None], pa.int64(), [2**40, 8, 1], pa.int64()),
    (pa.date32(), [DAY, dt.date(2025, 1, 1), None], pa.timestamp("us"), [NOON, NOON, NOON], pa.timestamp("us")),
    (pa.float32(), [0.5, 9.0, None], pa.float64(), [0.50000001, 8.0, 0.1], pa.float64()),
]


@pytest.mark.long_on("duckdb-union", "spark")  # every engine reads the stored values with the same functions
@pytest.mark.parametrize("operations", [False, True])
@pytest.mark.parametrize(("old", "stored", "new", "values", "wide"), AT, ids=str)
def test_the_column_of_newer_by_is_widened_too(
    tmp_path: Path, engine: Any, old: pa.DataType, stored: Any, new: pa.DataType, values: Any, wide: pa.DataType,
    operations: bool,
) -> None:  # fmt: skip
    tables = [pa.table({"id": [n], "at": pa.array([value], old), "y": ["old"]}) for n, value in enumerate(stored)]
    path = lake.write(tmp_path / "d", {f"{n}.parquet": table for n, table in enumerate(tables)})
    source = pa.table({"id": [0, 1, 2], "at": pa.array(values, new), "y": ["new"] * 3})
    options: Any = {"newer_by": "at", "engine": engine}
    if operations:
        source = source.append_column("op", pa.array(["u", "d", "d"]))
        options["operation_column"] = "op"
    with pytest.raises(SchemaMismatchError, match="'at' is"):
        inlay.merge(source, path, "upsert", "id", **options)
    options["schema_mode"] = "evolve"
    for call in (inlay.plan_merge, inlay.merge):
        result = call(source, path, "upsert", "id", **options)
        assert (result.updated, result.deleted, result.stale) == ((1, 1, 1) if operations else (2, 0, 1))
    assert {row["id"]: row["y"] for row in lake.all_rows(path)} == (
        {0: "new", 1: "old"} if operations else {0: "new", 1: "old", 2: "new"}
    )
    assert inlay.read_parquet(path).schema.field("at").type == wide
    assert inlay.merge(source, path, "upsert", "id", **options).stale == (2 if operations else 3)


def test_newer_by_compares_in_the_stored_type_if_the_values_fit(tmp_path: Path) -> None:
    """No timestamp in nanoseconds is as late as the stored one."""
    end = dt.datetime(9999, 12, 31)  # noqa: DTZ001
    times = pa.array([end, NOON - dt.timedelta(1)], pa.timestamp("us"))
    stored = pa.table({"id": [1, 2], "at": times, "y": ["old"] * 2})
    path = lake.write(tmp_path / "d", {"a.parquet": stored})
    source = pa.table({"id": [1, 2], "at": pa.array([NOON, NOON], pa.timestamp("ns")), "y": ["new"] * 2})
    result = inlay.merge(source, path, "upsert", "id", newer_by="at", schema_mode="evolve")
    assert (result.updated, result.stale) == (1, 1)
    assert inlay.read_parquet(path).schema.field("at").type == pa.timestamp("us")
