"""The files that a merge writes (settings, splitting, paths), and the kinds of sources."""

import math

import datafusion
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import inlay
from tests import lake


def codecs(path):
    footer = lake.footer(path)
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    return {group.column(j).compression for group in groups for j in range(group.num_columns)}


def group_sizes(path):
    footer = lake.footer(path)
    return [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]


def test_a_new_dataset_uses_snappy_and_row_groups_of_500_000_rows(tmp_path, engine):
    source = pa.table({"id": pa.array(range(500_001), pa.int64())})
    result = inlay.merge(source, str(tmp_path / "d"), "upsert", ["id"], engine=engine)
    [file] = result.inserted_files
    assert codecs(file) == {"SNAPPY"}
    assert group_sizes(file) == [500_000, 1]


@pytest.mark.parametrize("codec", ["zstd", "gzip", "snappy", "none"])
def test_new_files_use_the_codec_of_the_dataset(tmp_path, engine, codec):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(50))}, compression=codec)
    result = inlay.merge(lake.table([7, 90], ["x", "y"]), path, "upsert", ["id"], engine=engine)
    expected = {"UNCOMPRESSED" if codec == "none" else codec.upper()}
    assert codecs(result.inserted_files[0]) == expected
    assert codecs(result.rewritten_files[0]) == expected


def test_new_files_use_the_row_group_size_of_the_dataset(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(100))}, row_group_size=10)
    result = inlay.merge(lake.table(range(200, 235)), path, "insert", ["id"], engine=engine)
    assert group_sizes(result.inserted_files[0]) == [10, 10, 10, 5]


def test_a_small_file_does_not_determine_the_row_group_size(tmp_path, engine):
    """The file with the largest number of row groups determines the size, whatever its name."""
    files = {"a.parquet": lake.table([1000]), "m.parquet": lake.table(range(100)), "z.parquet": lake.table([1001])}
    path = lake.write(tmp_path / "d", files, row_group_size=10)
    result = inlay.merge(lake.table(range(200, 235)), path, "insert", ["id"], engine=engine)
    assert group_sizes(result.inserted_files[0]) == [10, 10, 10, 5]


def test_writer_settings_apply_to_new_files_only(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(20))}, row_group_size=10, compression="gzip")
    source = lake.table([3, *range(100, 112)], ["x"] * 13)
    options = {"compression": "zstd", "row_group_size": 5}
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine, **options)
    assert (codecs(result.inserted_files[0]), group_sizes(result.inserted_files[0])) == ({"ZSTD"}, [5, 5, 2])
    assert (codecs(result.rewritten_files[0]), group_sizes(result.rewritten_files[0])) == ({"GZIP"}, [10, 10])


def test_max_rows_per_file_splits_new_files(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    result = inlay.merge(lake.table(range(10, 20)), path, "upsert", ["id"], max_rows_per_file=4, engine=engine)
    sizes = [lake.footer(file).num_rows for file in sorted(result.inserted_files)]
    assert sizes == [4, 4, 2]
    assert [row["id"] for row in lake.all_rows(path) if row["id"] >= 10] == list(range(10, 20))


def test_new_files_hold_rows_in_the_order_of_the_source(tmp_path, engine):
    """The design requires the order of replaced rows only; a user who sorts the source expects both."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([50])})
    ids = [9, 3, 77, 50, 1, 60]
    result = inlay.merge(lake.table(ids, ["x"] * 6), path, "upsert", ["id"], engine=engine)
    rows = lake.rows_of(lake.read_file(result.inserted_files[0]))
    assert [row["id"] for row in rows] == [9, 3, 77, 1, 60]


def test_float_chunks_that_hold_nan_get_no_bounds(tmp_path, engine):
    """Bounds ignore NaN, and DataFusion by default would read [NaN, 3.25] as [3.25, 3.25]."""
    source = pa.table({"id": [1, 2], "x": [math.nan, 3.25]})
    [new] = inlay.merge(source, str(tmp_path / "d"), "upsert", ["id"], engine=engine).inserted_files
    frame = datafusion.SessionContext().read_parquet(new)
    got = pa.Table.from_batches(frame.collect(), schema=frame.schema())
    assert lake.same_rows(lake.rows_of(got), lake.rows_of(source))
    statistics = lake.footer(new).row_group(0).column(1).statistics
    assert statistics is None or not statistics.has_min_max


def test_paths_in_results_start_with_the_path_of_the_call(tmp_path, engine, monkeypatch):
    lake.write(tmp_path / "d", {"sub/a.parquet": lake.table([1])})
    monkeypatch.chdir(tmp_path)
    result = inlay.merge(lake.table([1, 2], ["x", "y"]), "d", "upsert", ["id"], engine=engine)
    assert result.rewritten_files == ["d/sub/a.parquet"]
    assert all(file.startswith("d/") for file in result.inserted_files)


def test_a_path_object_and_a_trailing_slash_are_accepted(tmp_path, engine):
    lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    inlay.merge(lake.table([1], ["x"]), tmp_path / "d", "upsert", ["id"], engine=engine)
    inlay.merge(lake.table([2], ["y"]), f"{tmp_path}/d/", "upsert", ["id"], engine=engine)
    assert sorted(lake.id_values(lake.all_rows(tmp_path / "d"))) == [(1, "x"), (2, "y")]


def as_files(table, folder):
    pq.write_table(table.slice(0, 1), folder / "s1.parquet")
    pq.write_table(table.slice(1), folder / "s2.parquet")
    return folder


SOURCES = {
    "table": lambda table, folder: table,
    "record batch": lambda table, folder: table.to_batches()[0],
    "reader": lambda table, folder: table.to_reader(max_chunksize=1),
    "chunked table": lambda table, folder: pa.concat_tables([table.slice(0, 1), table.slice(1)]),
    "pandas": lambda table, folder: pd.DataFrame(table.to_pydict()),
    "polars": lambda table, folder: pl.DataFrame(table.to_pydict()),
    "duckdb": lambda table, folder: duckdb.connect().from_arrow(table),
    "pyarrow dataset": lambda table, folder: pyarrow.dataset.dataset(table),
    "parquet file": lambda table, folder: str(as_files(table, folder) / "s1.parquet"),
    "parquet directory": lambda table, folder: str(as_files(table, folder)),
    "parquet glob": lambda table, folder: str(as_files(table, folder) / "s*.parquet"),
    "path object": lambda table, folder: as_files(table, folder) / "s2.parquet",
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_is_accepted(tmp_path, engine, kind):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    table = lake.table([2, 3], ["x", "y"])
    (tmp_path / "s").mkdir()
    result = inlay.merge(SOURCES[kind](table, tmp_path / "s"), path, "upsert", ["id"], engine=engine)
    rows = {"parquet file": [{"id": 2, "v": "x"}], "path object": [{"id": 3, "v": "y"}]}
    wanted = rows.get(kind, lake.rows_of(table))
    assert result.source_count == len(wanted)
    got = lake.all_rows(path)
    assert all(row in got for row in wanted)


def test_a_csv_file_is_a_source(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    pyarrow.csv.write_csv(lake.table([2, 3], ["x", "y"]), tmp_path / "s.csv")
    result = inlay.merge(str(tmp_path / "s.csv"), path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (1, 1)


def test_key_columns_may_be_one_name(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    assert inlay.merge(lake.table([1], ["x"]), path, "upsert", "id", engine=engine).updated == 1


def test_pyarrow_dataset_io_is_the_same_merge(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    result = inlay.PyArrowDatasetIO().merge(lake.table([2, 3], ["x", "y"]), path, "upsert", ["id"])
    assert (result.updated, result.inserted) == (1, 1)
    assert lake.id_values(lake.all_rows(path)) == [(1, "v1"), (2, "x"), (3, "y")]


def test_progress_is_reported(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    seen = []
    inlay.merge(
        lake.table([2, 3], ["x", "y"]),
        path,
        "upsert",
        ["id"],
        engine=engine,
        progress=lambda *event: seen.append(event),
    )
    assert seen
