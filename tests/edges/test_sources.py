"""Sources of every kind that inlay accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather

import inlay
from inlay.errors import InvalidArgumentError, SchemaMismatchError, UnreadableSourceError
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


# ------------------------------------------------------------------------------------------- Arrow files and batches
ROWS = [{"id": 1, "v": "a"}, {"id": 2, "v": None}, {"id": 3, "v": "c"}]
TABLE = pa.Table.from_pylist(ROWS, pa.schema([("id", pa.int64()), ("v", pa.string())]))


def batches(*starts: int) -> Iterator[pa.RecordBatch]:
    for start in starts or (0, 1, 2):
        yield TABLE.slice(start, 1).to_batches()[0]


def arrow_file(path: Path, table: pa.Table = TABLE) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def arrow_stream(path: Path) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=2)
    return path


def compressed_feather(path: Path) -> Path:
    feather.write_feather(TABLE, str(path), compression="zstd")
    return path


def arrow_directory(path: Path) -> Path:
    """Write files with different columns and types, which have a common schema."""
    path.mkdir()
    arrow_file(path / "1.arrow", TABLE.slice(0, 1).cast(pa.schema([("id", pa.int32()), ("v", pa.string())])))
    arrow_file(path / "2.feather", TABLE.slice(1, 1).select(["id"]))
    arrow_file(path / "3.ipc", TABLE.slice(2).select(["v", "id"]))
    return path


#: kind of source -> function that makes one
MORE: dict[str, Callable[[Path], Any]] = {
    "Arrow file": lambda folder: arrow_file(folder / "a.arrow"),
    "Arrow stream": lambda folder: arrow_stream(folder / "a.arrow"),
    "IPC file": lambda folder: arrow_file(folder / "a.ipc"),
    "compressed Feather file": lambda folder: compressed_feather(folder / "a.feather"),
    "directory of Arrow files": lambda folder: arrow_directory(folder / "s"),
    "glob of Arrow files": lambda folder: f"{arrow_directory(folder / 's')}/*",
    "generator": lambda _: batches(),
    "iterator": lambda _: iter(list(batches())),
    "generator of tables": lambda _: (pa.Table.from_batches([batch]) for batch in batches()),
    "list of batches": lambda _: list(batches()),
    "tuple of batches": lambda _: tuple(batches()),
    "list of tables": lambda _: [TABLE.slice(0, 2), TABLE.slice(2)],
    "list of tables and batches": lambda _: [TABLE.slice(0, 2), *batches(2)],
}


@pytest.mark.parametrize("kind", MORE)
def test_arrow_files_and_batches(tmp_path: Path, engine: Any, kind: str) -> None:
    result = inlay.merge(MORE[kind](tmp_path), tmp_path / "d", "upsert", "id", engine=engine)
    assert result.inserted == 3
    assert_rows(tmp_path / "d", ROWS)


@pytest.mark.parametrize("make", [batches, lambda: iter(list(batches()))], ids=["generator", "iterator"])
def test_an_iterator_that_an_earlier_call_has_read_is_rejected(tmp_path: Path, engine: Any, make: Any) -> None:
    source = make()
    inlay.plan_merge(source, tmp_path / "d", "full_merge", "id", engine=engine)
    with pytest.raises(UnreadableSourceError) as caught:
        inlay.merge(source, tmp_path / "d", "full_merge", "id", engine=engine)
    assert "each call" in str(caught.value.hint)
    assert not (tmp_path / "d").exists()


class Wrapped:
    """An object that exports the stream of a reader, which can be read only once."""

    def __init__(self, table: pa.Table) -> None:
        self.reader = table.to_reader()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader.__arrow_c_stream__(requested_schema)


def test_an_object_whose_rows_an_earlier_call_read_is_rejected(tmp_path: Path) -> None:
    path, source = tmp_path / "d", Wrapped(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    inlay.merge(source, path, "upsert", "id")
    for again in (
        lambda: inlay.merge(source, path, "full_merge", "id"),
        lambda: inlay.write_dataset(source, path, mode="overwrite"),
    ):
        with pytest.raises(UnreadableSourceError):
            again()
    assert inlay.read_parquet(path).num_rows == 2
    empty = pa.table({"id": [1], "v": ["a"]}).slice(1)
    assert inlay.merge(Wrapped(empty), path, "full_merge", "id").deleted == 2  # it never had rows


def test_a_relation_over_a_reader_is_rejected_by_the_second_call(tmp_path: Path) -> None:
    relation = duckdb.from_arrow(pa.table({"id": [1]}).to_reader())
    inlay.merge(relation, tmp_path / "d", "upsert", "id")
    with pytest.raises(UnreadableSourceError):
        inlay.merge(relation, tmp_path / "d", "full_merge", "id")
    assert inlay.read_parquet(tmp_path / "d").num_rows == 1


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 12345678901234567890123}],
        [{"id": 1}, {"id": "x"}],
        {"id": [1, "x"]},
        {"other": [1], "id": [object()]},
    ],
)
def test_python_values_without_a_common_type_name_their_column(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(UnreadableSourceError, match="source column 'id' have no common Arrow type"):
        inlay.merge(rows, tmp_path / "d", "upsert", "id")


def test_columns_of_different_lengths_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSourceError, match="do not fit together"):
        inlay.merge({"id": [1, 2], "v": [1]}, tmp_path / "d", "upsert", "id")


def test_an_unknown_or_missing_field_of_a_struct_is_named(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / "d"
    inlay.write_dataset([{"id": 1, "s": {"a": 1, "l": [{"x": 1}]}}], path)
    for value, message in (
        ({"a": 1, "l": [{"x": 1, "y": 2}]}, r"the dataset lacks the field 's.l.y'"),
        ({"a": 1, "b": 2, "l": []}, r"the dataset lacks the field 's.b'"),
        ({"l": [{"x": 1}]}, r"the source lacks the field 's.a'"),
    ):
        with pytest.raises(SchemaMismatchError, match=message):
            inlay.merge([{"id": 1, "s": value}], path, "upsert", "id", engine=engine)


def test_a_generator_that_a_failed_call_has_begun_to_read_is_rejected(tmp_path: Path) -> None:
    source = batches()
    with pytest.raises(SchemaMismatchError):
        inlay.merge(source, tmp_path / "d", "upsert", "other")
    with pytest.raises(UnreadableSourceError, match="generator that an earlier call has already read"):
        inlay.merge(source, tmp_path / "d", "upsert", "id")


def test_items_of_different_schemas_are_rejected(tmp_path: Path, engine: Any) -> None:
    for other, difference in (
        (pa.table({"id": [4]}), "no column instead of 'v' string"),
        (pa.table({"id": [4.5], "v": ["x"]}), "'id' double instead of 'id' int64"),
    ):
        for source in ([TABLE, other], iter([TABLE, other])):
            with pytest.raises(SchemaMismatchError, match=f"Item 2 of the source .*: {difference}"):
                inlay.merge(source, tmp_path / "d", "upsert", "id", engine=engine)
    with pytest.raises(InvalidArgumentError, match="Cannot read rows from an iterator of int"):
        inlay.merge(iter([TABLE, 1]), tmp_path / "d", "upsert", "id", engine=engine)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("is_glob", [False, True])
def test_a_directory_of_several_formats_is_refused(tmp_path: Path, engine: Any, is_glob: bool) -> None:
    folder = arrow_directory(tmp_path / "s")
    (folder / "4.csv").write_text("id,v\n4,d\n")
    (folder / "5.jsonl.gz").write_bytes(b"")
    with pytest.raises(UnreadableSourceError, match="several formats") as caught:
        inlay.merge(f"{folder}/*" if is_glob else folder, tmp_path / "d", "upsert", "id", engine=engine)
    for file, kind in (("1.arrow", "arrow"), ("4.csv", "csv"), ("5.jsonl.gz", "json")):
        assert f"{str(folder / file)!r} ({kind})" in caught.value.message
    inlay.merge(f"{folder}/*.csv", tmp_path / "d", "upsert", "id", engine=engine)
    assert_rows(tmp_path / "d", [{"id": 4, "v": "d"}])


def test_partition_directories_of_text_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s" / "day=1").mkdir(parents=True)
    (tmp_path / "s" / "day=1" / "a.csv").write_text("id,v\n4,d\n")
    with pytest.raises(UnreadableSourceError, match=r"'day=1/a\.csv', whose path has a value of the column 'day'"):
        inlay.merge(tmp_path / "s", tmp_path / "d", "upsert", "id")
    assert not (tmp_path / "d").exists()


def test_a_file_that_is_not_arrow_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b"ARROW1 and then nothing")
    with pytest.raises(UnreadableSourceError, match=r"a\.arrow'"):
        inlay.merge(tmp_path / "a.arrow", tmp_path / "d", "upsert", "id")


# ------------------------------------------------------------------------------------------------- datasets as sources
def test_an_error_names_the_file_of_a_source_dataset(tmp_path: Path, engine: Any) -> None:
    source = tmp_path / "source"
    inlay.write_dataset({"id": [1]}, source)
    (source / "broken.parquet").write_bytes(b"not Parquet")
    with pytest.raises(UnreadableSourceError, match=r"source/broken\.parquet': it is not a Parquet file"):
        inlay.merge(source, tmp_path / "d", "upsert", "id", engine=engine)
    assert not (tmp_path / ".source.txn/commit.json").exists()
