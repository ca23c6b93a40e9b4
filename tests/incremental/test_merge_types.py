"""Every Arrow type that Parquet holds survives a merge exactly: values, schema, nullability, metadata."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from tests import lake
from tests.arrow_types import DICTIONARY, SCALARS, TYPES, array_of

METADATA = {b"owner": b"tests", b"\xc3\xbc": b"bytes \xff"}


# Short runs check each type alone on pyarrow, and all types side by side on every engine: all engines write files with
# the same kernels, and DuckDB only matches keys, whose types tests/engines/test_duckdb.py checks one by one.
per_type = pytest.mark.long_on("duckdb", "duckdb-union", "spark")


def each_type(test):
    return per_type(pytest.mark.parametrize("name", TYPES)(test))


def target_of(name, *, nullable=True):
    """Ten rows in two row groups: ids 0-4 hold the values, 5-9 NULLs and the values in reverse."""
    kind, values = TYPES[name]
    nulls = [None, values[3], None, values[1], None] if nullable else values[::-1]
    fields = [
        pa.field("id", pa.int64(), nullable=False, metadata={b"what": b"the key"}),
        pa.field("x", kind, nullable=nullable, metadata={b"unit": b"m"}),
    ]
    arrays = [pa.array(range(10), pa.int64()), array_of(kind, [*values, *nulls])]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=METADATA))


def source_of(name, ids, picks):
    kind, values = TYPES[name]
    return pa.table({"id": pa.array(ids, pa.int64()), "x": array_of(kind, [values[i] for i in picks])})


def merge_into(tmp_path, target, source, engine, strategy="upsert", keys=("id",), **options):
    """Return the schema before, the rows before and the result."""
    path = lake.write(tmp_path / "d", {"a.parquet": target}, row_group_size=5, **options)
    before = lake.read_file(tmp_path / "d/a.parquet")
    result = inlay.merge(source, path, strategy, list(keys), engine=engine)
    return before, result


def side_by_side(table_of):
    """Combine the tables of all types into one, with a column `x` for each type."""
    tables = {name: table_of(name) for name in TYPES}
    wide = tables["null"].drop_columns("x")
    for name, table in tables.items():
        wide = wide.append_column(table.schema.field("x").with_name(f"x_{name}"), table["x"])
    return wide


def check_schema(got, expected):
    assert got.equals(expected, check_metadata=True), f"{got}\n is not\n{expected}"


@pytest.mark.parametrize("pages", ["1.0", "2.0"])
@each_type
def test_values_and_schema_survive(tmp_path, engine, name, pages):
    """Row 1 is replaced and a row inserted: only one row group is encoded again."""
    source = source_of(name, [1, 77], [4, 0])
    before, result = merge_into(tmp_path, target_of(name), source, engine, data_page_version=pages)
    after = lake.read_file(tmp_path / "d/a.parquet")
    check_schema(after.schema, before.schema)
    expected = lake.rows_of(before)
    new_rows = lake.rows_of(source)
    expected[1] = new_rows[0]
    assert lake.same_rows(lake.rows_of(after), expected)
    after.validate(full=True)
    inserted = lake.read_file(result.inserted_files[0])
    check_schema(inserted.schema, before.schema)
    assert lake.same_rows(lake.rows_of(inserted), new_rows[1:])


@each_type
def test_a_null_replaces_and_is_replaced(tmp_path, engine, name):
    """Row 1 becomes NULL, row 5 was NULL and gets a value."""
    kind, values = TYPES[name]
    source = pa.table({"id": pa.array([1, 5], pa.int64()), "x": array_of(kind, [None, values[2]])})
    before, result = merge_into(tmp_path, target_of(name), source, engine)
    expected = lake.rows_of(before)
    expected[1], expected[5] = lake.rows_of(source)
    assert lake.same_rows(lake.all_rows(tmp_path / "d"), expected)
    assert result.updated == 2


@per_type
@pytest.mark.parametrize("name", [name for name in TYPES if name != "null"])
def test_not_null_survives(tmp_path, engine, name):
    source = source_of(name, [1, 77], [4, 0])
    before, result = merge_into(tmp_path, target_of(name, nullable=False), source, engine)
    check_schema(lake.read_file(tmp_path / "d/a.parquet").schema, before.schema)
    new = lake.read_file(result.inserted_files[0])
    check_schema(new.schema, before.schema)
    assert new.schema.field("x").nullable is False


@each_type
def test_equal_values_are_recognized(tmp_path, engine, name):
    """Merging the rows of the file again writes nothing."""
    path = lake.write(tmp_path / "d", {"a.parquet": target_of(name)}, row_group_size=5)
    before = lake.photograph(path)
    source = lake.read_file(tmp_path / "d/a.parquet")
    result = inlay.merge(source, path, "full_merge", ["id"], engine=engine)
    assert (result.updated, result.unchanged, result.deleted) == (10, 10, 0)
    assert lake.photograph(path) == before


@each_type
def test_deleted_rows_leave_the_others_exact(tmp_path, engine, name):
    """full_merge keeps rows 0, 3 and 9 unchanged."""
    before = target_of(name)
    source = pa.concat_tables([before.slice(i, 1) for i in (9, 0, 3)])
    _, result = merge_into(tmp_path, before, source, engine, "full_merge")
    rows = lake.rows_of(before)
    assert lake.same_rows(lake.all_rows(tmp_path / "d"), [rows[0], rows[3], rows[9]])
    assert (result.deleted, result.updated, result.unchanged) == (7, 3, 3)


@each_type
def test_an_initial_load_writes_the_types_of_the_source(tmp_path, engine, name):
    """The new file reads back like a file written by pyarrow."""
    source = target_of(name)
    pq.write_table(source, tmp_path / "reference.parquet")
    reference = lake.read_file(tmp_path / "reference.parquet")
    result = inlay.merge(source, str(tmp_path / "d"), "upsert", ["id"], engine=engine)
    got = lake.read_file(result.inserted_files[0])
    check_schema(got.schema, reference.schema)
    assert lake.same_rows(lake.rows_of(got), lake.rows_of(source))


@pytest.mark.parametrize("name", SCALARS)
def test_every_scalar_type_is_a_key(tmp_path, engine, name):
    """Values 0-3 are in the target; 1 and 3 are replaced, 4 is new."""
    kind, values = TYPES[name]
    target = pa.table({"k": array_of(kind, values[:4]), "v": ["a", "b", "c", "d"]})
    source = pa.table({"k": array_of(kind, [values[4], values[3], values[1]]), "v": ["new", "D", "B"]})
    before, result = merge_into(tmp_path, target, source, engine, keys=["k"])
    assert (result.updated, result.inserted) == (2, 1)
    after = lake.read_file(tmp_path / "d/a.parquet")
    check_schema(after.schema, before.schema)
    assert after["v"].to_pylist() == ["a", "B", "c", "D"]
    assert lake.same_rows(lake.rows_of(after.select(["k"])), lake.rows_of(before.select(["k"])))


@per_type
@pytest.mark.parametrize("name", SCALARS)
def test_every_scalar_type_is_part_of_a_key(tmp_path, engine, name):
    kind, values = TYPES[name]
    columns = {"k": array_of(kind, values * 2), "n": pa.array([1] * 5 + [2] * 5), "v": list("abcdefghij")}
    source = pa.table({"k": array_of(kind, [values[2]] * 2), "n": pa.array([2, 3]), "v": ["X", "Y"]})
    _, result = merge_into(tmp_path, pa.table(columns), source, engine, keys=["k", "n"])
    assert (result.updated, result.inserted) == (1, 1)
    assert "".join(row["v"] for row in lake.all_rows(tmp_path / "d")) == "abcdefgXijY"


def nullable_source(name):
    """Rows 1 and 77 get a value, row 5 was NULL and gets one, row 2 becomes NULL."""
    kind, values = TYPES[name]
    picked = [values[4], None, values[2], values[0]]
    return pa.table({"id": pa.array([1, 2, 5, 77], pa.int64()), "x": array_of(kind, picked)})


def test_all_types_survive_side_by_side(tmp_path, engine):
    target, source = side_by_side(target_of), side_by_side(nullable_source)
    before, result = merge_into(tmp_path, target, source, engine)
    after, inserted = (lake.read_file(file) for file in [tmp_path / "d/a.parquet", *result.inserted_files])
    check_schema(after.schema, before.schema)
    check_schema(inserted.schema, before.schema)
    expected, new_rows = lake.rows_of(before), lake.rows_of(source)
    expected[1], expected[2], expected[5] = new_rows[:3]
    assert lake.same_rows(lake.rows_of(after), expected)
    assert lake.same_rows(lake.rows_of(inserted), new_rows[3:])
    assert (result.updated, result.unchanged, result.inserted) == (3, 0, 1)


def test_all_types_without_nulls_survive_side_by_side(tmp_path, engine):
    target = side_by_side(lambda name: target_of(name, nullable=name == "null"))
    source = side_by_side(lambda name: source_of(name, [1, 77], [4, 0]))
    before, result = merge_into(tmp_path, target, source, engine)
    check_schema(lake.read_file(tmp_path / "d/a.parquet").schema, before.schema)
    check_schema(lake.read_file(result.inserted_files[0]).schema, before.schema)


def test_an_initial_load_and_its_repetition_hold_all_types(tmp_path, engine):
    """Merging the same rows again changes nothing, and full_merge keeps a subset unchanged."""
    source = side_by_side(target_of)
    path = str(tmp_path / "d")
    pq.write_table(source, tmp_path / "reference.parquet")
    loaded = inlay.merge(source, path, "upsert", ["id"], engine=engine)
    got = lake.read_file(loaded.inserted_files[0])
    check_schema(got.schema, lake.read_file(tmp_path / "reference.parquet").schema)
    assert lake.same_rows(lake.rows_of(got), lake.rows_of(source))
    before = lake.photograph(path)
    again = inlay.merge(got, path, "full_merge", ["id"], engine=engine)
    assert (again.updated, again.unchanged, again.deleted) == (10, 10, 0)
    assert lake.photograph(path) == before
    kept = pa.concat_tables([source.slice(i, 1) for i in (9, 0, 3)])
    fewer = inlay.merge(kept, path, "full_merge", ["id"], engine=engine)
    assert (fewer.deleted, fewer.updated, fewer.unchanged) == (7, 3, 3)
    rows = lake.rows_of(source)
    assert lake.same_rows(lake.all_rows(tmp_path / "d"), [rows[0], rows[3], rows[9]])


def test_all_scalar_types_together_are_a_key(tmp_path, engine):
    """Rows 1 and 2 match in every key column; row 3 differs in the last."""

    def rows(values_of_v, picks, last_picks):
        wanted = dict.fromkeys(SCALARS, picks) | {list(SCALARS)[-1]: last_picks}
        arrays = {name: array_of(kind, [values[i] for i in wanted[name]]) for name, (kind, values) in SCALARS.items()}
        return pa.table(arrays | {"v": list(values_of_v)})

    target, source = rows("abcd", [0, 1, 2, 3], [0, 1, 2, 3]), rows("BCD", [1, 2, 3], [1, 2, 2])
    _, result = merge_into(tmp_path, target, source, engine, keys=list(SCALARS))
    assert (result.updated, result.inserted) == (2, 1)
    assert "".join(row["v"] for row in lake.all_rows(tmp_path / "d")) == "aBCdD"


@pytest.mark.parametrize("strategy", ["upsert", "full_merge"])
def test_schema_metadata_of_the_target_wins(tmp_path, engine, strategy):
    source = source_of("string", [1, 77], [4, 0]).replace_schema_metadata({"owner": "source"})
    before, result = merge_into(tmp_path, target_of("string"), source, engine, strategy)
    for file in [*result.rewritten_files, *result.inserted_files]:
        check_schema(lake.read_file(file).schema, before.schema)
    assert before.schema.metadata == METADATA


def test_pandas_metadata_survives(tmp_path, engine):
    blob = {b"pandas": b'{"index_columns": [], "columns": []}'}
    target = lake.table([1, 2]).replace_schema_metadata(blob)
    merge_into(tmp_path, target, lake.table([1], ["x"]), engine)
    assert lake.read_file(tmp_path / "d/a.parquet").schema.metadata == blob


def test_a_file_without_an_arrow_schema_does_not_get_one(tmp_path, engine):
    """Other writers store no Arrow schema; the types that a plain reader sees must not change."""
    before, _ = merge_into(tmp_path, target_of("string"), source_of("string", [1], [4]), engine, store_schema=False)
    after = lake.read_file(tmp_path / "d/a.parquet")
    check_schema(after.schema, before.schema)
    assert b"ARROW:schema" not in (lake.footer(tmp_path / "d/a.parquet").metadata or {})


def test_a_dictionary_may_grow(tmp_path, engine):
    """New values are added to the dictionary of the touched row group and of new files."""
    target = pa.table({"id": range(6), "x": pa.array(["a", "b"] * 3, DICTIONARY)})
    source = pa.table({"id": [0, 9], "x": pa.array(["new", "newer"], DICTIONARY)})
    merge_into(tmp_path, target, source, engine)
    rows = lake.all_rows(tmp_path / "d")
    assert [row["x"] for row in rows] == ["new", "b", "a", "b", "a", "b", "newer"]


def test_old_int96_timestamps_survive(tmp_path, engine):
    target = pa.table({"id": [1, 2], "x": pa.array([10**18 + 1, 5], pa.timestamp("ns"))})
    source = pa.table({"id": [2], "x": pa.array([10**18 + 7], pa.timestamp("ns"))})
    options = {"use_deprecated_int96_timestamps": True, "store_schema": False}
    before, _ = merge_into(tmp_path, target, source, engine, **options)
    after = lake.read_file(tmp_path / "d/a.parquet")
    check_schema(after.schema, before.schema)
    assert lake.rows_of(after) == [{"id": 1, "x": 10**18 + 1}, {"id": 2, "x": 10**18 + 7}]


def test_wide_and_empty_tables(tmp_path, engine):
    """A table with two hundred columns, one of them replaced in one row."""
    columns = {f"c{i}": pa.array([i, i + 1]) for i in range(200)}
    target = pa.table({"id": [1, 2]} | columns)
    source = target.slice(1).set_column(7, "c6", pa.array([-1]))
    merge_into(tmp_path, target, source, engine)
    rows = lake.all_rows(tmp_path / "d")
    assert (rows[1]["c6"], rows[0]["c6"], rows[1]["c199"]) == (-1, 6, 200)
