"""Values that a merge could change silently: inlay keeps them exactly, or rejects the merge."""
# ruff: noqa: DTZ001  (timestamps without a zone are what is meant)

import datetime as dt
import decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.errors import InvalidArgumentError, SchemaMismatchError, UnreadableFileError
from tests import lake
from tests.arrow_types import needs_small_decimals

FAR, NEAR = dt.datetime(9999, 12, 31), dt.datetime(2024, 5, 1)
MAXIMUM = 2**63 - 1


# ------------------------------------------------------------------------------------------- timestamps of 96 bits
def write_int96(path, when):
    """Write INT96 timestamps as Spark does by default."""
    path.mkdir(exist_ok=True)
    table = pa.table({"id": [1, 2], "valid_to": pa.array([when, NEAR], pa.timestamp("us"))})
    pq.write_table(table, path / "a.parquet", use_deprecated_int96_timestamps=True)
    return str(path)


def test_int96_years_that_arrow_would_change_are_rejected(tmp_path, engine):
    path = write_int96(tmp_path / "d", FAR)
    before = lake.photograph(path)
    source = pa.table({"id": [2], "valid_to": pa.array([NEAR], pa.timestamp("us"))})
    for strategy in ("update", "upsert", "full_merge"):
        with pytest.raises(UnreadableFileError, match=r"INT96 timestamps .* in valid_to"):
            inlay.merge(source, path, strategy, ["id"], engine=engine)
    with pytest.raises(UnreadableFileError, match="INT96"):
        inlay.compact(path, sort_by="id", engine=engine)
    assert lake.photograph(path) == before


@pytest.mark.parametrize("read", [inlay.read_parquet, lambda path: inlay.merge(path, f"{path}-2", "upsert", ["id"])])
def test_int96_years_that_arrow_would_change_are_not_read(tmp_path, read):
    path = write_int96(tmp_path / "d", FAR)
    with pytest.raises(UnreadableFileError, match="microseconds"):
        read(path)


def test_int96_years_that_arrow_holds_are_merged(tmp_path, engine):
    path = write_int96(tmp_path / "d", dt.datetime(1999, 12, 31, 23, 59, 59, 999999))
    source = pa.table({"id": [2], "valid_to": pa.array([dt.datetime(2025, 1, 1)], pa.timestamp("ns"))})
    assert inlay.merge(source, path, "update", ["id"], engine=engine).updated == 1
    found = inlay.read_parquet(path).sort_by("id")["valid_to"].cast(pa.timestamp("us")).to_pylist()
    assert found == [dt.datetime(1999, 12, 31, 23, 59, 59, 999999), dt.datetime(2025, 1, 1)]


# ------------------------------------------------------------------------------------------------------------- keys
def test_infinite_timestamps_are_valid_keys(tmp_path, engine):
    """DuckDB and PostgreSQL export `infinity` like this."""
    keys = pa.array([MAXIMUM, -MAXIMUM, 0], pa.timestamp("us"))
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"at": keys, "v": ["a", "b", "c"]})})
    result = inlay.merge(pa.table({"at": keys, "v": ["x", "y", "z"]}), path, "upsert", ["at"], engine=engine)
    assert (result.updated, result.inserted) == (3, 0)


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")], ids=str)
def test_times_of_day_round_trip_through_paths(tmp_path, engine, kind):
    times = pa.array([dt.time(1, 2, 3), dt.time(23, 59, 59), None], pa.time64("us")).cast(kind)
    table = pa.table({"id": [1, 2, 3], "t": times, "v": ["a", "b", "c"]})
    path = str(tmp_path / "d")
    inlay.merge(table, path, "insert", ["id"], partition_columns=["t"], engine=engine)
    table = table.set_column(2, "v", pa.array(["x", "y", "z"]))
    assert inlay.merge(table.slice(0, 2), path, "upsert", ["id", "t"], engine=engine).updated == 2
    assert inlay.merge(table, path, "upsert", ["id"], engine=engine).updated == 3


def test_a_partition_type_that_paths_cannot_hold_is_rejected(tmp_path, engine):
    table = pa.table({"id": [1], "span": pa.array([5], pa.duration("s"))})
    with pytest.raises(InvalidArgumentError, match="cannot be a partition column"):
        inlay.merge(table, str(tmp_path / "d"), "insert", ["id"], partition_columns=["span"], engine=engine)
    assert lake.names(tmp_path) == []


def test_an_integer_among_paths_of_fractions_is_rejected(tmp_path, engine):
    path = lake.write(tmp_path / "d", {f"p={n}.0/a.parquet": lake.table([n]) for n in (1, 2)})
    before = lake.photograph(path)
    with pytest.raises(SchemaMismatchError, match=r"'p' is int64 .* such as '1\.0'"):
        inlay.merge(lake.table([1], ["new"], p=pa.array([2])), path, "upsert", ["id"], engine=engine)
    assert lake.photograph(path) == before


# ---------------------------------------------------------------------------------------------------------- sources
def test_only_an_empty_cell_of_a_csv_file_is_null(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1], "country": ["DE"], "x": [1.0]})})
    (tmp_path / "s.csv").write_text('id,country,x\n2,NA,nan\n3,null,3\n4,,\n5,"",\n')
    inlay.merge(str(tmp_path / "s.csv"), path, "upsert", ["id"], engine=engine)
    rows = {row["id"]: row for row in inlay.read_parquet(path).to_pylist()}
    assert [rows[n]["country"] for n in (2, 3, 4, 5)] == ["NA", "null", None, ""]
    assert str(rows[2]["x"]) == "nan"
    assert [rows[n]["x"] for n in (3, 4)] == [3.0, None]


def test_numbers_with_leading_zeros_in_csv_remain_text_in_a_new_dataset(tmp_path, engine):
    rows = "".join(f"{n},{n:03},{12345678901234567890 + n},{n}.5,{n}\n" for n in range(3))
    (tmp_path / "s.csv").write_text("id,code,account,price,zero\n" + rows)
    path = str(tmp_path / "d")
    inlay.merge(str(tmp_path / "s.csv"), path, "upsert", ["id"], engine=engine)
    assert inlay.read_parquet(path).sort_by("id").to_pylist()[1] == {
        "id": 1, "code": "001", "account": decimal.Decimal(12345678901234567891), "price": 1.5, "zero": 1
    }  # fmt: skip
    assert inlay.merge(str(tmp_path / "s.csv"), path, "upsert", ["account"], engine=engine).unchanged == 3


def test_whole_numbers_fit_decimals_by_their_value(tmp_path, engine):
    prices = pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.50")], pa.decimal128(10, 2))
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1, 2], "price": prices})})
    inlay.merge(pa.table({"id": [1], "price": [5]}), path, "update", ["id"], engine=engine)
    assert inlay.read_parquet(path).sort_by("id")["price"][0].as_py() == decimal.Decimal("5.00")
    with pytest.raises(inlay.InlayError, match="price"):
        inlay.merge(pa.table({"id": [1], "price": [10**9]}), path, "update", ["id"], engine=engine)


@pytest.mark.parametrize(
    "order",
    [
        pa.array(["b", "c", "a"], pa.string_view()),
        pa.array(["b", "c", "a"]).dictionary_encode(),
        pa.array([2, 3, 1], pa.float16()),
        pytest.param(pa.array([2, 3, 1], pa.decimal128(5, 1)).cast(pa.decimal64(5, 1)), marks=needs_small_decimals),
    ],
    ids=lambda order: str(order.type),
)
def test_rows_are_ordered_by_columns_of_any_type(tmp_path, engine, order):
    path = str(tmp_path / "d")
    source = pa.table({"id": [1, 1, 1], "o": order, "v": ["x", "last", "y"]})
    inlay.merge(source, path, "deduplicate", ["id"], dedup_order_by="o", engine=engine)
    assert inlay.read_parquet(path)["v"].to_pylist() == ["last"]
    inlay.write_dataset(source.set_column(0, "id", pa.array([2, 3, 4])), path, engine=engine)
    inlay.compact(path, sort_by=["o", "v"], engine=engine)
    assert inlay.read_parquet(path)["v"].to_pylist() == ["y", "x", "last", "last"]


# ------------------------------------------------------------------------------------------------------------ files
def test_a_damaged_page_is_not_rewritten_with_a_new_checksum(tmp_path, engine):
    values = [f"value {n:06}" for n in range(1000)]
    table = pa.table({"id": range(1000), "v": values})
    (tmp_path / "d").mkdir()
    file = tmp_path / "d" / "a.parquet"
    pq.write_table(table, file, write_page_checksum=True, compression="none", use_dictionary=False)
    content = file.read_bytes()
    file.write_bytes(content.replace(b"value 000777", b"value 000077"))
    with pytest.raises(UnreadableFileError, match="CRC"):
        inlay.merge(pa.table({"id": [1], "v": ["new"]}), str(file.parent), "update", ["id"], engine=engine)


def test_an_encoding_is_not_used_for_a_type_that_it_does_not_fit(tmp_path, engine):
    narrow = pa.table({"id": [1, 2], "a": pa.array([1, 2], pa.int32())})
    path = lake.write(tmp_path / "d", {"1.parquet": pa.table({"id": [3, 4], "a": [1.5, 2.5]})})
    pq.write_table(narrow, f"{path}/0.parquet", use_dictionary=False, column_encoding={"a": "DELTA_BINARY_PACKED"})
    assert inlay.merge(pa.table({"id": [9], "a": [7.5]}), path, "upsert", ["id"], engine=engine).inserted == 1
    evolved = inlay.merge(
        pa.table({"id": [1], "a": [0.5]}), path, "upsert", ["id"], engine=engine, schema_mode="evolve"
    )
    assert evolved.updated == 1
    assert sorted(inlay.read_parquet(path)["a"].to_pylist()) == [0.5, 1.5, 2.0, 2.5, 7.5]


def test_a_file_that_gains_a_column_updates_its_spark_schema(tmp_path, engine):
    """Spark trusts its copy of the schema in the metadata more than the Parquet schema."""
    notes = {b"org.apache.spark.sql.parquet.row.metadata": b"{}", b"mine": b"kept"}
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]).replace_schema_metadata(notes)})
    source = lake.table([1, 3], ["x", "y"], more=pa.array([1, 2]))
    inlay.merge(source, path, "upsert", ["id"], engine=engine, schema_mode="evolve")
    for name in lake.names(tmp_path / "d"):
        found = pq.read_schema(f"{path}/{name}").metadata
        assert b"org.apache.spark.sql.parquet.row.metadata" not in found
        assert found[b"mine"] == b"kept"


def test_schemas_of_removed_files_are_forgotten(tmp_path, engine):
    tables = {f"{n:02}.parquet": lake.table([n], more=pa.array([n])) for n in range(20)}
    path = lake.write(tmp_path / "d", tables)
    pq.write_table(pa.table({"id": [99], "v": [1.5]}), f"{path}/wrong.parquet")
    with pytest.raises(inlay.InlayError, match="incompatible types"):
        inlay.merge(lake.table([1], ["x"], more=pa.array([1])), path, "upsert", ["id"], engine=engine)
    (tmp_path / "d" / "wrong.parquet").unlink()
    assert inlay.merge(lake.table([1], ["x"], more=pa.array([1])), path, "upsert", ["id"], engine=engine).updated == 1
    for n in range(20):
        pq.write_table(lake.table([n]), f"{path}/{n:02}.parquet")
    assert inlay.merge(lake.table([1], ["z"]), path, "upsert", ["id"], engine=engine).updated == 1
    assert inlay.read_parquet(path).column_names == ["id", "v"]
