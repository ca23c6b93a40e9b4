"""Partition columns in paths: their values, their types, and files that also store them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import inlay
from inlay.errors import InlayError, InvalidArgumentError, SchemaMismatchError
from inlay.parquet.layout import NULL_PARTITION
from tests import lake
from tests.edges.readers import Row, assert_rows

CHANGES: dict[str, Callable[[pa.Table, Path, Any], Any]] = {
    "merge": lambda source, path, engine: inlay.merge(source, path, "upsert", "id", engine=engine),
    "append": lambda source, path, engine: inlay.write_dataset(source, path, engine=engine),
}
ODD = ["a\\b", "100%", "50%25", "x=y", "a b", " a", "é", "日本", "a/b", "a:b?*", "#1", "it's", 'q"q', "[x]", "a+b", "~"]


def _directories(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_dir())


@pytest.mark.long_on("duckdb-union", "spark")  # inlay encodes paths before it calls an engine
# ---------------------------------------------------------------------------------------------------------- values
@pytest.mark.parametrize("value", ODD)
def test_values_round_trip_through_every_reader(tmp_path: Path, engine: Any, value: str) -> None:
    path = tmp_path / "d"
    inlay.merge([{"id": 1, "p": value}, {"id": 2, "p": "z"}], path, "upsert", "id", "p", engine=engine)
    again = [{"id": 1, "p": value}, {"id": 3, "p": value}, {"id": 4, "p": None}]
    result = inlay.merge(again, path, "upsert", "id", engine=engine)
    assert (result.unchanged, result.inserted, len(_directories(path))) == (1, 2, 3)
    assert_rows(path, [*again, {"id": 2, "p": "z"}])
    assert sorted(inlay.read_parquet(path).to_pylist(), key=repr) == sorted([*again, {"id": 2, "p": "z"}], key=repr)


@pytest.mark.spark
def test_spark_reads_the_same_values(tmp_path: Path, spark_session: Any) -> None:
    rows = [{"id": number, "p": value} for number, value in enumerate([*ODD, None])]
    inlay.merge(rows, tmp_path / "d", "upsert", "id", "p")
    found = [row.asDict() for row in spark_session.read.parquet(str(tmp_path / "d")).collect()]
    assert sorted(found, key=lambda row: row["id"]) == rows


@pytest.mark.spark
def test_directories_of_spark_are_found(tmp_path: Path, spark_session: Any, engine: Any) -> None:
    path = tmp_path / "d"
    rows = [{"id": number, "p": value} for number, value in enumerate([*ODD, None])]
    spark_session.createDataFrame(rows, "id long, p string").write.partitionBy("p").parquet(str(path))
    before = _directories(path)
    result = inlay.merge(rows, path, "upsert", "id", engine=engine)
    assert (result.unchanged, result.inserted, _directories(path)) == (len(rows), 0, before)


@pytest.mark.parametrize(
    "segment", ["p=a\\b", "p=a%5Cb", "p=a=b", "p=%C3%A9", "p=100%", "p=__HIVE_DEFAULT_PARTITION__"]
)
def test_directories_of_other_tools_are_found(tmp_path: Path, segment: str) -> None:
    path = Path(lake.write(tmp_path / "d", {f"{segment}/a.parquet": lake.table([1], ["a"])}))
    value = inlay.read_parquet(path)["p"][0].as_py()
    result = inlay.merge([{"id": 1, "v": "x", "p": value}, {"id": 2, "v": "y", "p": value}], path, "upsert", "id")
    assert (result.updated, result.inserted, _directories(path)) == (1, 1, [segment])
    table = ds.dataset(path, partitioning=ds.partitioning(pa.schema([("p", pa.string())]), flavor="hive")).to_table()
    assert table["p"].to_pylist() == [value, value]


def test_an_empty_value_gets_no_directory(tmp_path: Path, engine: Any) -> None:
    """Spark cannot read a directory `p=`."""
    with pytest.raises(InvalidArgumentError, match="'p' contains ''"):
        inlay.merge([{"id": 1, "p": ""}], tmp_path / "d", "upsert", "id", "p", engine=engine)
    assert not (tmp_path / "d").exists()


# ----------------------------------------------------------------------------------------------------------- types
def test_zip_codes_stay_text(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / "d"
    rows = [{"id": 1, "zip": "99999"}, {"id": 2, "zip": "10000"}]
    inlay.merge(rows, path, "upsert", ["zip", "id"], "zip", engine=engine)
    more = [{"id": 2, "zip": "10000"}, {"id": 3, "zip": "01234"}]
    assert inlay.merge(more, path, "upsert", ["zip", "id"], engine=engine).unchanged == 1
    assert inlay.merge(more, path, "upsert", ["zip", "id"], engine=engine).unchanged == 2
    assert _directories(path) == ["zip=01234", "zip=10000", "zip=99999"]
    found = inlay.read_parquet(path).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [rows[0], rows[1], more[1]]
    with inlay.open_dataset(path) as dataset:
        assert dataset.schema.field("zip").type == pa.string()


@pytest.mark.long_on("duckdb-union", "spark")  # inlay compares partitions before it calls an engine
def test_a_new_text_turns_a_column_of_numbers_into_text(tmp_path: Path, engine: Any) -> None:
    path = Path(lake.write(tmp_path / "d", {"p=1/a.parquet": lake.table([1])}))
    assert inlay.merge(lake.table([2], p=pa.array(["x"])), path, "upsert", ["id"], engine=engine).inserted == 1
    assert _directories(path) == ["p=1", "p=x"]
    assert inlay.read_parquet(path)["p"].to_pylist() == ["1", "x"]


def test_two_spellings_are_two_texts(tmp_path: Path, engine: Any) -> None:
    path = Path(lake.write(tmp_path / "d", {"p=007/a.parquet": lake.table([1]), "p=7/a.parquet": lake.table([1])}))
    source = [{"id": 1, "v": "x", "p": "7"}]
    result = inlay.merge(source, path, "upsert", ["p", "id"], engine=engine)
    assert [Path(file).parent.name for file in result.rewritten_files] == ["p=7"]
    assert inlay.read_parquet(path)["p"].to_pylist() == ["007", "7"]


TEXT, NUMBER, DAY = pa.array(["01"]), pa.array([1]), pa.array([dt.date(2025, 1, 2)])
MIDNIGHT = DAY.cast(pa.timestamp("us"))
FOUND = {
    "text of an integer": ("p=1", pa.array(["1"])),
    "narrow integer": ("p=1", pa.array([1], pa.int8())),
    "integer in a padded directory": ("p=01", NUMBER),
    "padded text": ("p=01", TEXT),
    "date": ("p=2025-01-02", DAY),
    "text of a date": ("p=2025-01-02", pa.array(["2025-01-02"])),
    "categories": ("p=1", pa.array(["1"]).dictionary_encode()),
    "whole float": ("p=1", pa.array([1.0])),
    "truth": ("p=true", pa.array([True])),
}


@pytest.mark.long_on("duckdb-union", "spark")  # inlay compares partitions before it calls an engine
@pytest.mark.parametrize("kind", FOUND)
def test_a_source_finds_the_partition_of_its_value(tmp_path: Path, engine: Any, kind: str) -> None:
    segment, values = FOUND[kind]
    path = Path(lake.write(tmp_path / "d", {f"{segment}/a.parquet": lake.table([1])}))
    before = inlay.read_parquet(path).schema
    source = lake.table([1, 2], ["x", "y"], p=pa.concat_arrays([values, values]))
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted, _directories(path)) == (1, 1, [segment])
    assert inlay.read_parquet(path).schema.field("p") == before.field("p")


REFUSED = {
    "another spelling": ("p=1", TEXT, "contains '01' and '1'"),
    "shorter spelling": ("p=01", pa.array(["1"]), "contains '01' and '1'"),
    "two new spellings": ("p=3", pa.array(["2", "02"]), "contains '02' and '2'"),
    "number among texts": ("p=a", NUMBER, "int64 in the source"),
    "date among numbers": ("p=7", DAY, "date32.* in the source"),
    "fraction among numbers": ("p=7", pa.array([1.5]), "double in the source"),
    "truth among numbers": ("p=0", pa.array([True]), "bool in the source"),
    "time among dates": ("p=2025-01-01", MIDNIGHT, "timestamp.* in the source"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", REFUSED)
def test_values_that_change_the_type_of_the_paths_are_rejected(
    tmp_path: Path, engine: Any, kind: str, change: str
) -> None:
    segment, values, message = REFUSED[kind]
    path = Path(lake.write(tmp_path / "d", {f"{segment}/a.parquet": lake.table([1])}))
    before = lake.photograph(path)
    source = lake.table(list(range(10, 10 + len(values))), p=values)
    with pytest.raises((SchemaMismatchError, InvalidArgumentError), match=f"'p'.*{message}"):
        CHANGES[change](source, path, engine)
    assert lake.photograph(path) == before


def test_a_new_directory_spells_known_values_as_the_paths_do(tmp_path: Path, engine: Any) -> None:
    path = Path(lake.write(tmp_path / "d", {"year=2025/month=01/a.parquet": lake.table([1])}))
    source = lake.table([2], year=pa.array([2026]), month=pa.array([1]))
    inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert _directories(path) == ["year=2025", "year=2025/month=01", "year=2026", "year=2026/month=01"]


# ---------------------------------------------------------------------------------------------------------- layout
@pytest.mark.parametrize(
    ("first", "second"),
    [("a=1/b=2", "b=2/a=1"), ("a=1/b=2", "a=1"), ("a=1", "."), ("a=1", "b=1"), (".", "z=1"), ("a=1", "plain")],
)
@pytest.mark.parametrize("change", CHANGES)
def test_files_with_other_partition_columns_are_rejected(
    tmp_path: Path, engine: Any, first: str, second: str, change: str
) -> None:
    """polars, DuckDB or Spark cannot read such a directory."""
    files = {f"{first}/f.parquet": lake.table([1]), f"{second}/g.parquet": lake.table([2])}
    path = Path(lake.write(tmp_path / "d", files))
    before = lake.photograph(path)
    source = lake.table([1, 2], a=pa.array([1, 1]), b=pa.array([2, 2]), z=pa.array([1, 1]))
    source = source.select(["id", "v", *(name for name in ("a", "b", "z") if f"{name}=" in first)])
    with pytest.raises(InvalidArgumentError, match=r"\.parquet' is partitioned by .* other files"):
        CHANGES[change](source, path, engine)
    assert lake.photograph(path) == before
    assert inlay.read_parquet(path).num_rows == 2


# -------------------------------------------------------------------------------------------------- stored columns
def _read(path: Path) -> dict[str, list[Row]]:
    """Read with tools that prefer the values of the path, which pyarrow alone cannot infer beside a stored column."""
    found = {
        "polars": pl.read_parquet(f"{path}/**/*.parquet", hive_partitioning=True).to_dicts(),
        "duckdb": duckdb.read_parquet(f"{path}/**/*.parquet", hive_partitioning=True, union_by_name=True)
        .to_arrow_table()
        .to_pylist(),
        "duckdb, stored": duckdb.read_parquet(f"{path}/**/*.parquet", hive_partitioning=False, union_by_name=True)
        .to_arrow_table()
        .to_pylist(),
        "pyarrow": ds.dataset(path, schema=inlay.read_parquet(path).schema, partitioning="hive").to_table().to_pylist(),
        "inlay": inlay.read_parquet(path).to_pylist(),
    }
    return {name: sorted(rows, key=lambda row: row["id"]) for name, rows in found.items()}


@pytest.mark.long_on("duckdb-union", "spark")  # all engines rewrite files with the same kernels
@pytest.mark.parametrize("keys", [["id"], ["p", "id"]], ids=["id", "p and id"])
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
def test_stored_partition_columns_are_kept(tmp_path: Path, engine: Any, strategy: Any, keys: list[str]) -> None:
    files = {f"p={n}/a.parquet": pa.table({"id": [n, n + 10], "v": ["a", "b"], "p": [n, n]}) for n in (1, 2)}
    path = Path(lake.write(tmp_path / "d", files))
    source = [{"id": 1, "v": "x", "p": 1}, {"id": 5, "v": "y", "p": 3}, {"id": 2, "v": "a", "p": 2}]
    inlay.merge(source, path, strategy, keys, engine=engine)
    old = {1: "a", 11: "b", 2: "a", 12: "b"}
    if strategy == "full_merge":
        old = {1: "a", 2: "a"}
    if strategy != "insert":
        old[1] = "x"
    if strategy != "update":
        old[5] = "y"
    expected = [{"id": k, "v": v, "p": 3 if k == 5 else k % 10} for k, v in sorted(old.items())]
    for reader, rows in _read(path).items():
        assert rows == expected, reader
    assert all("p" in lake.read_file(file).column_names for file in path.rglob("*.parquet"))


@pytest.mark.parametrize("keys", [["id"], ["p", "id"]], ids=["id", "p and id"])
@pytest.mark.parametrize("stored", ["p=1", "p=2"])
def test_some_files_store_the_partition_column(tmp_path: Path, engine: Any, keys: list[str], stored: str) -> None:
    files = {f"p={n}/a.parquet": pa.table({"id": [n], "v": ["a"]}) for n in (1, 2)}
    number = int(stored[-1])
    files[f"{stored}/a.parquet"] = pa.table({"id": [number], "v": ["a"], "p": pa.array([number], pa.int32())})
    path = Path(lake.write(tmp_path / "d", files))
    source = [{"id": 1, "v": "x", "p": 1}, {"id": 2, "v": "y", "p": 2}, {"id": 3, "v": "z", "p": 1}]
    result = inlay.merge(source, path, "upsert", keys, engine=engine)
    assert (result.updated, result.inserted) == (2, 1)
    stores = {str(file.relative_to(path)): "p" in lake.read_file(file).column_names for file in path.rglob("*.parquet")}
    assert sorted(name for name, is_stored in stores.items() if is_stored) == [f"{stored}/a.parquet"]
    found = _read(path)
    del found["duckdb, stored"]
    for reader, rows in found.items():
        assert rows == source, reader
    inlay.compact(path, engine=engine)
    assert not any("p" in lake.read_file(file).column_names for file in path.rglob("*.parquet"))


@pytest.mark.parametrize("options", [{}, {"write_statistics": False}], ids=["statistics", "no statistics"])
@pytest.mark.parametrize("values", [[5, 1], [1, None], ["1", "2"]], ids=["number", "null", "text"])
def test_a_stored_value_that_differs_from_the_path_is_rejected(
    tmp_path: Path, engine: Any, values: list[Any], options: dict[str, Any]
) -> None:
    table = pa.table({"id": [1, 2], "v": ["a", "b"], "p": values})
    path = Path(lake.write(tmp_path / "d", {"p=1/bad.parquet": table}, **options))
    before = lake.photograph(path)
    source = pa.table({"id": [9], "v": ["x"], "p": pa.array([1]).cast(table.schema.field("p").type)})
    for change in CHANGES.values():
        with pytest.raises(InlayError, match=r"p=1/bad\.parquet' stores .* its path contains '1'"):
            change(source, path, engine)
    assert lake.photograph(path) == before


@pytest.mark.long_on("duckdb-union", "spark")  # inlay compares stored values before it calls an engine
@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("1", pa.array(["1"])),
        ("007", pa.array(["007"]).dictionary_encode()),
        ("2025-01-02", DAY),
        ("true", pa.array([True])),
        ("1.5", pa.array([1.5])),
        (NULL_PARTITION, pa.array([None], pa.int64())),
        ("2025-01-02 00%3A00%3A00", MIDNIGHT),
    ],
)
def test_stored_values_of_every_type_equal_the_path(tmp_path: Path, engine: Any, text: str, array: pa.Array) -> None:
    table = pa.table({"id": [1], "v": ["a"], "p": array})
    path = Path(lake.write(tmp_path / "d", {f"p={text}/a.parquet": table}))
    source = pa.table({"id": [1, 2], "v": ["x", "y"], "p": pa.concat_arrays([array, array])})
    result = inlay.merge(source, path, "upsert", "id", engine=engine)
    assert (result.updated, result.inserted, len(_directories(path))) == (1, 1, 1)
    assert inlay.read_parquet(path)["p"].to_pylist() == array.to_pylist() * 2
