"""Files of one directory whose schemas differ, as other tools leave them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.errors import SchemaMismatchError
from inlay.schema import storage_type
from tests import lake, oracle
from tests.edges.readers import assert_rows, files

IDS = pa.array([1, 2, 3])
AT = pa.array([1_735_689_600_000_000] * 3, pa.timestamp("us"))
TEXT = pa.array(["x", None, "z"])
# The second file of each directory; the first has `id` int64 and `v` as here.
SECOND: dict[str, tuple[pa.Array, pa.Table]] = {
    "column order": (TEXT, pa.table({"v": TEXT, "id": IDS})),
    "narrow key": (TEXT, pa.table({"id": IDS.cast(pa.int32()), "v": TEXT})),
    "narrow value": (IDS, pa.table({"id": IDS, "v": IDS.cast(pa.int32())})),
    "dictionary": (TEXT, pa.table({"id": IDS, "v": TEXT.dictionary_encode()})),
    "large string": (TEXT, pa.table({"id": IDS, "v": TEXT.cast(pa.large_string())})),
    "nanoseconds": (AT, pa.table({"id": IDS, "v": AT.cast(pa.timestamp("ns"))})),
    "milliseconds": (AT, pa.table({"id": IDS, "v": AT.cast(pa.timestamp("ms"))})),
    "decimal precision": (
        pa.array([Decimal("1.50"), None, Decimal("2.25")], pa.decimal128(5, 2)),
        pa.table({"id": IDS, "v": pa.array([Decimal("1.50"), None, Decimal("2.25")], pa.decimal128(12, 2))}),
    ),
    "decimal scale": (
        pa.array([Decimal("1.50"), None, Decimal("2.25")], pa.decimal128(5, 2)),
        pa.table({"id": IDS, "v": pa.array([Decimal("1.5"), None, Decimal("2.5")], pa.decimal128(5, 1))}),
    ),
    "required": (
        TEXT,
        pa.Table.from_arrays(
            [IDS, pa.array(["x", "y", "z"])],
            schema=pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False)]),
        ),
    ),
    "metadata": (
        TEXT,
        pa.Table.from_arrays(
            [IDS, TEXT], schema=pa.schema([pa.field("id", pa.int64(), metadata={"a": "b"}), ("v", pa.string())])
        ),
    ),
}


def _decoded(table: pa.Table) -> pa.Table:
    """Decode dictionaries, which pyarrow cannot concatenate with plain text."""
    return table.cast(pa.schema([field.with_type(storage_type(field.type)) for field in table.schema]))


def _read(path: Path) -> dict[str, list[oracle.Row]]:
    names = [str(file) for file in files(path)]
    tables = {
        "pyarrow": pa.concat_tables([_decoded(pq.read_table(n)) for n in names], promote_options="permissive"),
        "polars": pl.concat([pl.read_parquet(name) for name in names], how="diagonal_relaxed").to_arrow(),
        "duckdb": duckdb.read_parquet(names, union_by_name=True).to_arrow_table(),
        "inlay": inlay.read_parquet(path),
    }
    return {
        reader: sorted(lake.rows_of(table.select(sorted(table.column_names))), key=lambda row: row["id"])
        for reader, table in tables.items()
    }


@pytest.mark.long_on("duckdb", "duckdb-union", "spark")  # all engines rewrite files with the same kernels
@pytest.mark.parametrize("strategy", sorted(oracle.TRUTH))
@pytest.mark.parametrize("kind", SECOND)
def test_merges_into_files_with_other_schemas(tmp_path: Path, engine: Any, kind: str, strategy: Any) -> None:
    values, second = SECOND[kind]
    position = second.column_names.index("id")
    second = second.set_column(position, second.schema.field("id"), pa.array([4, 5, 6]).cast(second["id"].type))
    first = pa.table({"id": IDS, "v": values})
    path = Path(lake.write(tmp_path / "d", {"a.parquet": first, "b.parquet": second}))
    source = pa.table({"id": [1, 5, 9], "v": values.take(pa.array([2, 0, 0]))})
    inlay.merge(source, path, strategy, "id", engine=engine)
    old = [("a", lake.rows_of(first)), ("b", lake.rows_of(second.select(["id", "v"])))]
    expected = sorted(oracle.merge(old, lake.rows_of(source), strategy, ["id"]).rows(), key=lambda row: row["id"])
    for reader, rows in _read(path).items():
        assert rows == expected, reader


@pytest.mark.parametrize("mode", ["strict", "evolve"])
def test_merges_into_files_without_a_column(tmp_path: Path, engine: Any, mode: Any) -> None:
    files = {"a.parquet": pa.table({"id": [1], "v": ["a"], "w": [1]}), "b.parquet": pa.table({"id": [2], "v": ["b"]})}
    path = Path(lake.write(tmp_path / "d", files))
    source = [{"id": 2, "v": "x", "w": 7}, {"id": 3, "v": "y", "w": None}]
    inlay.merge(source, path, "upsert", "id", engine=engine, schema_mode=mode)
    for reader, rows in _read(path).items():
        assert rows == [{"id": 1, "v": "a", "w": 1}, *source], reader


def test_int96_timestamps_are_kept(tmp_path: Path, engine: Any) -> None:
    at = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC).replace(tzinfo=None)
    old = pa.table({"id": [1, 2], "at": pa.array([at, at], pa.timestamp("ns"))})
    path = Path(lake.write(tmp_path / "d", {"a.parquet": old}, use_deprecated_int96_timestamps=True))
    later = at + dt.timedelta(seconds=1)
    source = [{"id": 2, "at": later}, {"id": 3, "at": later}]
    inlay.merge(source, path, "upsert", "id", engine=engine)
    for reader, rows in _read(path).items():
        seconds = [row["at"] // 1_000_000_000 for row in rows]
        assert [second - seconds[0] for second in seconds] == [0, 1, 1], reader


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_new_files_declare_the_unit_of_int96_timestamps(tmp_path: Path, engine: Any, unit: str) -> None:
    """INT96 has no unit. polars reads the unit that the Arrow schema of a file declares, and refuses two units."""
    at = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC).replace(tzinfo=None)
    old = pa.table({"id": [1], "at": pa.array([at], pa.timestamp(unit))})
    path = Path(lake.write(tmp_path / "d", {"a.parquet": old}, use_deprecated_int96_timestamps=True))
    inlay.merge([{"id": 2, "at": at}], path, "upsert", "id", engine=engine)
    assert_rows(path, [{"id": 1, "at": at}, {"id": 2, "at": at}])
    finer = pa.array([1], pa.timestamp("ns"))
    inlay.merge(pa.table({"id": [3], "at": finer}), path, "upsert", "id", engine=engine)
    assert finer[0] in inlay.read_parquet(path)["at"].combine_chunks(), "a value that the unit cannot hold is kept"


def test_the_index_column_of_pandas_is_a_column(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / "d"
    path.mkdir()
    frame = pd.DataFrame({"id": [1, 2], "v": ["a", "b"]}, index=["r1", "r2"])
    frame.to_parquet(path / "a.parquet")
    with pytest.raises(SchemaMismatchError, match="lacks '__index_level_0__'"):
        inlay.merge([{"id": 1, "v": "x"}], path, "upsert", "id", engine=engine)
    new = {"id": [2, 3], "v": ["x", "y"], "__index_level_0__": ["r2", "r3"]}
    inlay.merge(new, path, "upsert", "id", engine=engine)
    found = pd.read_parquet(path).sort_values("id")
    assert found.reset_index().to_dict("list") == {"index": ["r1", "r2", "r3"], "id": [1, 2, 3], "v": ["a", "x", "y"]}
    for reader, rows in _read(path).items():
        assert [row["__index_level_0__"] for row in rows] == ["r1", "r2", "r3"], reader


def test_columns_that_differ_only_by_case_are_not_added(tmp_path: Path, engine: Any) -> None:
    """Spark and DuckDB do not distinguish `v` and `V`."""
    path = Path(lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1], "v": ["a"]})}))
    before = lake.photograph(path)
    source = pa.table({"id": [1], "v": ["x"], "V": ["y"]})
    with pytest.raises(SchemaMismatchError, match="'V' differs from column 'v' only by case"):
        inlay.merge(source, path, "upsert", "id", engine=engine, schema_mode="evolve")
    assert lake.photograph(path) == before
