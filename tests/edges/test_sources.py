"""Sources of every kind that inlay accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import inlay
from inlay.errors import SchemaMismatchError, UnreadableSourceError
from tests import lake
from tests.edges.readers import assert_rows


def test_a_list_of_dicts_has_the_columns_of_all_dicts(tmp_path: Path, engine: Any) -> None:
    inlay.merge([{"id": 1}, {"id": 2, "v": "b"}], tmp_path / "d", "upsert", "id", engine=engine)
    assert_rows(tmp_path / "d", [{"id": 1, "v": None}, {"id": 2, "v": "b"}])


def test_a_column_of_a_later_dict_is_never_dropped(tmp_path: Path, engine: Any) -> None:
    path = Path(lake.write(tmp_path / "d", {"a.parquet": lake.table([1])}))
    rows = [{"id": 1, "v": "x"}, {"id": 2, "v": "y", "new": 7}]
    with pytest.raises(SchemaMismatchError, match="does not have 'new'"):
        inlay.merge(rows, path, "upsert", "id", engine=engine)
    inlay.merge(rows, path, "upsert", "id", engine=engine, schema_mode="evolve")
    found = inlay.read_parquet(path).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [rows[0] | {"new": None}, rows[1]]


@pytest.mark.parametrize("prefix", ["file:", "file://", "file://localhost", "FILE://"])
def test_a_file_uri_is_decoded(tmp_path: Path, prefix: str) -> None:
    folder = tmp_path / "with space & 100%"
    folder.mkdir()
    uri = f"{prefix}{tmp_path}/with%20space%20&%20100%25/d"
    inlay.merge([{"id": 1, "city": "New York"}], uri, "upsert", "id", partition_by="city")
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == ["d"]
    (file,) = inlay.list_dataset_files(uri)
    assert inlay.merge(file, tmp_path / "copy", "upsert", "id").inserted == 1
    assert inlay.merge(f"{uri}/*/*.parquet", tmp_path / "glob", "upsert", "id").inserted == 1
    assert inlay.merge([{"id": 1, "city": "New York"}], folder / "d", "upsert", "id").unchanged == 1
    assert_rows(folder / "d", [{"id": 1, "city": "New York"}])


@pytest.mark.parametrize(
    ("order", "kept"),
    [([1.0, float("nan"), 2.0], 1), ([float("nan"), float("inf"), None], 0), ([None, float("-inf"), None], 1)],
)
def test_nan_is_the_highest_value_of_dedup_order_by(
    tmp_path: Path, engine: Any, order: list[float | None], kept: int
) -> None:
    rows = pa.table({"id": [1, 1, 1], "v": ["0", "1", "2"], "at": pa.array(order, pa.float64())})
    inlay.merge(rows, tmp_path / "d", "deduplicate", "id", dedup_order_by="at", engine=engine)
    assert inlay.read_parquet(tmp_path / "d")["v"].to_pylist() == [str(kept)]


@pytest.mark.parametrize("first", [inlay.plan_merge, inlay.merge])
@pytest.mark.parametrize("strategy", ["upsert", "full_merge"])
def test_a_reader_that_an_earlier_call_has_read_is_rejected(
    tmp_path: Path, engine: Any, first: Any, strategy: Any
) -> None:
    path = Path(lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])}))
    reader = lake.table([1, 2], ["x", "y"]).to_reader()
    first(reader, path, strategy, "id", engine=engine)
    before = inlay.read_parquet(path)
    with pytest.raises(UnreadableSourceError, match="already read") as error:
        inlay.merge(reader, path, strategy, "id", engine=engine)
    assert "new reader" in str(error.value.hint)
    assert inlay.read_parquet(path).equals(before)


@pytest.mark.parametrize("type_", [pl.Categorical, pl.Enum(["b", "a", "c"])], ids=["categorical", "enum"])
@pytest.mark.parametrize("key", ["id", "v"])
def test_polars_categories_are_values_and_keys(tmp_path: Path, engine: Any, type_: Any, key: str) -> None:
    path = tmp_path / "d"
    first = pl.DataFrame({"id": [1, 2], "v": pl.Series(["b", "a"], dtype=type_)})
    second = pl.DataFrame({"id": [2, 3], "v": pl.Series(["a", "c"], dtype=type_)})
    inlay.merge(first, path, "upsert", key, engine=engine)
    result = inlay.merge(second.lazy(), path, "upsert", key, engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    assert_rows(path, [{"id": 1, "v": "b"}, {"id": 2, "v": "a"}, {"id": 3, "v": "c"}])
