"""The checks of a merge: rejected names and values, with their messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import inlay
from inlay.errors import (
    DatasetMergeError,
    DuplicateKeyError,
    InlayError,
    InvalidArgumentError,
    SchemaMismatchError,
    wrap_errors,
)
from inlay.incremental import (
    ParquetFileMetadata,
    PartitionPruner,
    confirm_affected_files,
    validate_keys_and_schema,
    validate_no_null_keys,
    validate_partition_column_immutability,
)
from inlay.incremental.conformer import Conformer, fit_field
from inlay.incremental.validate import check_schema_mode, normalize_keys, reject_duplicates, require_columns
from tests import lake

TWICE = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("a", pa.int64())])


def test_key_columns_must_be_distinct_names() -> None:
    assert normalize_keys(["a", "b"]) == ["a", "b"]
    for wrong, message in (
        ([], "Pass at least one"),
        (["a", ""], "must be the name"),
        (["a", "b", "a"], "'a' occurs twice"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            normalize_keys(wrong)


def test_a_required_column_must_exist_once() -> None:
    require_columns(["b"], TWICE, "the source", "key column")
    with pytest.raises(SchemaMismatchError, match="'a' exists more than once in the source"):
        require_columns(["a"], TWICE, "the source", "key column")
    with pytest.raises(SchemaMismatchError, match="'c' does not exist in the source"):
        require_columns(["c"], TWICE, "the source", "key column")


def test_a_source_with_duplicate_columns_is_rejected(tmp_path: Path) -> None:
    source = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["id", "v", "v"])
    with pytest.raises(SchemaMismatchError, match="The source has more than one column named 'v'"):
        inlay.merge(source, str(tmp_path / "d"), "upsert", ["id"])


def test_partition_by_and_partition_columns_must_agree(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "a": ["x"], "b": ["y"]})
    with pytest.raises(InvalidArgumentError, match="partition_by and partition_columns differ"):
        inlay.merge(rows, str(tmp_path / "d"), "upsert", ["id"], partition_by=["a"], partition_columns=["b"])
    inlay.merge(rows, str(tmp_path / "d"), "upsert", ["id"], partition_by=["a"], partition_columns=["a"])
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["a=x"]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.time64("ns"), 1, "00:00:00.000000001"),
        (pa.timestamp("ns"), 1, "1970-01-01 00:00:00.000000001"),
        (pa.timestamp("s", "UTC"), 1, "1970-01-01 00:00:01Z"),
        (pa.date32(), 1, "1970-01-02"),
        (pa.duration("ms"), 5, "5"),
        (pa.string(), "it's", '"it\'s"'),
        (pa.int64(), 7, "7"),
    ],
    ids=str,
)
def test_repeated_keys_are_reported_with_nanoseconds(tmp_path: Path, kind: pa.DataType, value: Any, text: str) -> None:
    source = pa.table({"at": pa.array([value, value], kind), "v": [1, 2]})
    with pytest.raises(DuplicateKeyError) as caught:
        inlay.merge(source, str(tmp_path / "d"), "upsert", ["at"])
    assert caught.value.message == f"1 source row repeats a key: at={text}."


ROWS = pa.table({"id": [1, 2, 3], "day": ["a", "a", "b"], "v": [1.5, 2.5, 3.5]})
EVOLVES = 'Pass schema_mode="evolve" to add the new columns to the dataset.'
LACKS = (
    'Add the missing columns to the source, or pass missing_columns="keep" to keep the stored values of matching rows,'
    ' or missing_columns="null" to set them to NULL.'
)
STAYS = (
    "A merge cannot move rows between partitions. Restore the old values of the partition columns in the"
    ' source, or rewrite the dataset with write_dataset(mode="overwrite").'
)


def wide(count: int, **more: list[int]) -> pa.Table:
    return pa.table({"id": [1], **{f"c{n:02}": [n] for n in range(count)}, **more})


def immovable(**columns: list[Any]) -> Callable[[], None]:
    source = pa.table(columns)
    return lambda: validate_partition_column_immutability(source, ROWS, ["id"], ["day"])


@pytest.mark.parametrize(
    ("check", "message", "hint"),
    [
        (
            lambda: validate_keys_and_schema(ROWS, None, ["idd"]),
            "The key column 'idd' does not exist in the source.",
            "Did you mean 'id'?",
        ),
        (
            lambda: validate_keys_and_schema(ROWS, ROWS.select(["v"]), ["id"]),
            "The key column 'id' does not exist in the dataset.",
            "The columns are: v.",
        ),
        (
            lambda: validate_no_null_keys(ROWS, ["key"]),
            "The key column 'key' does not exist in the source.",
            "The columns are: id, day, v.",
        ),
        (
            lambda: validate_keys_and_schema(pa.table({"id": [4, None, None]}), None, ["id"]),
            "Key column 'id' is NULL in 2 of 3 source rows; the first is row 1: id=None.",
            "Remove these rows, fill in the keys, or choose other key columns.",
        ),
        (
            lambda: reject_duplicates((1_200, pa.table({"a": [1, 1, 2], "b": ["x", "x", "y"]}))),
            "1,200 source rows repeat a key: a=1, b='x'; a=2, b='y'.",
            'Remove the duplicates, or pass strategy="deduplicate" to keep the last row of each key.',
        ),
        (
            lambda: check_schema_mode("loose"),
            "Unknown schema_mode 'loose'; known: strict, evolve.",
            None,
        ),
        (
            immovable(id=[9, 3, 1, 2], day=["z", "b", "c", "d"]),
            (
                "Partition columns cannot change for existing keys: id=1 is in day='a' and the source has it in day='c'"
                " (2 such rows)."
            ),
            STAYS,
        ),
        (
            immovable(id=[3], day=["a"]),
            (
                "Partition columns cannot change for existing keys: id=3 is in day='b' and the source has it in day='a'"
                " (1 such row)."
            ),
            STAYS,
        ),
        (immovable(id=[3]), "The column 'day' does not exist in the source.", "The columns are: id."),
        (
            lambda: validate_partition_column_immutability(ROWS, ROWS.select(["day"]), ["id"], ["day"]),
            "The column 'id' does not exist in the dataset.",
            "The columns are: day.",
        ),
        (
            immovable(id=["one"], day=["a"]),
            "Column 'id' is string in the source and int64 in the dataset, and not every value fits.",
            None,
        ),
        (
            lambda: validate_keys_and_schema(wide(0, extra=[1]), wide(10), ["id"]),
            (
                "The columns of source and dataset differ: the source lacks 'c00', 'c01', 'c02', 'c03', 'c04', 'c05',"
                " 'c06', 'c07', 'c08', 'c09'; the dataset does not have 'extra'."
            ),
            LACKS,
        ),
        (
            lambda: validate_keys_and_schema(wide(0), wide(11), ["id"]),
            (
                "The columns of source and dataset differ: the source lacks 'c00', 'c01', 'c02', 'c03', 'c04', 'c05',"
                " 'c06', 'c07', 'c08', 'c09' and 1 more."
            ),
            LACKS,
        ),
        (
            lambda: validate_keys_and_schema(wide(11), wide(0), ["id"]),
            (
                "The columns of source and dataset differ: the dataset does not have 'c00', 'c01', 'c02', 'c03', 'c04',"
                " 'c05', 'c06', 'c07', 'c08', 'c09' and 1 more."
            ),
            EVOLVES,
        ),
        (
            lambda: validate_keys_and_schema(wide(0, other=[1], price=[1]), wide(0, prices=[1]), ["id"]),
            (
                "The columns of source and dataset differ: the source lacks 'prices'; the dataset does not have"
                " 'other', 'price' (did you mean 'prices'?)."
            ),
            "Rename the source columns to the names in the dataset.",
        ),
    ],
)
def test_errors_have_these_messages_and_hints(check: Callable[[], None], message: str, hint: str | None) -> None:
    with pytest.raises(InlayError) as caught:
        check()
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_valid_input_is_accepted() -> None:
    validate_keys_and_schema(ROWS, ROWS, ["id"])
    validate_partition_column_immutability(ROWS, ROWS, ["id"], ["day"])
    validate_partition_column_immutability(pa.table({"id": [9], "day": ["z"]}), ROWS, ["id"], ["day"])


def test_an_arrow_error_is_a_merge_error() -> None:
    expected = pytest.raises(DatasetMergeError, match="The merge failed and nothing changed: no room")
    with expected as caught, wrap_errors("merge", "upsert", ["id"]):
        raise pa.ArrowInvalid("no room")
    assert (caught.value.operation, caught.value.strategy, caught.value.key_columns) == ("merge", "upsert", ["id"])


# --------------------------------------------------------------------------------------------------------- pruning
def test_candidates_are_confirmed_by_keys_in_any_form(tmp_path: Path) -> None:
    lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 3]), "b.parquet": lake.table([2, 4])})
    both = [str(tmp_path / "d" / name) for name in ("a.parquet", "b.parquet")]
    assert confirm_affected_files([], ["id"], [1]) == []
    keys = pa.array([3])
    for source_keys in ([3], [(3,)], keys, pa.chunked_array([keys]), pa.table({"v": ["x"], "id": keys})):
        assert confirm_affected_files(both, ["id"], source_keys) == both[:1]


def test_partitions_are_pruned_by_their_known_values() -> None:
    def file(name: str, **values: str) -> ParquetFileMetadata:
        return ParquetFileMetadata(name, 1, 1, {}, values)

    files = [file("one", day="1"), file("two", day="2"), file("odd", day="x"), file("none")]
    schema = pa.schema([("day", pa.int32())])
    pruned = PartitionPruner().identify_candidate_files
    assert pruned(files, ["id"], [5], schema, source_partitions=[{"day": 1}]) == ["one", "odd", "none"]
    assert pruned(files, ["day", "id"], [(2, 5)], schema) == ["two", "odd", "none"]
    assert pruned(files, ["id"], [5], schema) == ["one", "two", "odd", "none"]


# ------------------------------------------------------------------------------------- rows in the types of a dataset
def test_missing_columns_become_null_and_metadata_is_kept() -> None:
    target = pa.schema([("id", pa.int64()), ("m", pa.date32()), ("z", pa.string())], {"owner": "tests"})
    source = pa.table({"z": ["a", "b"], "id": [1, 2]})
    conformer = Conformer(source.schema, target, ["id"], missing_columns="null")
    assert conformer.schema.equals(target, check_metadata=True)
    fitted = conformer(source)
    assert fitted.schema.equals(target, check_metadata=True)
    assert fitted.to_pylist() == [{"id": 1, "m": None, "z": "a"}, {"id": 2, "m": None, "z": "b"}]


def test_keys_are_not_cast_between_type_families_and_values_are() -> None:
    target = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    assert Conformer(pa.schema([("id", pa.int64()), ("n", pa.float64())]), target, ["id"])(
        pa.table({"id": [1], "n": [2.0]})
    ).to_pylist() == [{"id": 1, "n": 2}]
    with pytest.raises(SchemaMismatchError, match="'id'"):
        Conformer(pa.schema([("id", pa.float64()), ("n", pa.int64())]), target, ["id"])(
            pa.table({"id": [1.0], "n": [2]})
        )


def test_null_keys_have_their_own_error() -> None:
    nothing, field = pa.chunked_array([pa.nulls(2, pa.int64())]), pa.field("id", pa.int64(), nullable=False)
    assert fit_field(nothing, field, as_key=True).null_count == 2
    with pytest.raises(SchemaMismatchError, match="'id' is not nullable in the dataset, but is NULL in 2 source rows"):
        fit_field(nothing, field)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (pa.schema([("v", pa.int64())]), "The key column 'id' does not exist in the source"),
        (pa.schema([("id", pa.list_(pa.int64()))]), "Column 'id' cannot be a key column: its type is list<"),
    ],
)
def test_a_column_that_cannot_be_a_key_is_named(source: pa.Schema, message: str) -> None:
    with pytest.raises(InlayError, match=message):
        Conformer(source, None, ["id"])


def test_keys_of_a_stream_are_checked() -> None:
    stream = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), [])
    with pytest.raises(SchemaMismatchError, match="The key column 'idd' does not exist in the source"):
        validate_keys_and_schema(stream, None, ["idd"])


def test_a_partition_that_does_not_fit_is_named() -> None:
    target = pa.table({"id": [1], "p": [1]})
    with pytest.raises(SchemaMismatchError, match="'p'"):
        validate_partition_column_immutability(pa.table({"id": [1], "p": ["x"]}), target, ["id"], ["p"])


def test_errors_list_the_first_columns() -> None:
    schema = pa.schema([(f"c{number:02}", pa.int64()) for number in range(30)])
    with pytest.raises(SchemaMismatchError) as caught:
        require_columns(["something"], schema, "the source", "column")
    assert caught.value.hint == "The columns are: " + ", ".join(schema.names[:20]) + "."


# -------------------------------------------------------------------------------------------- files that do not agree
def test_files_with_incompatible_schemas_are_named(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"v": ["a"]}), "b.parquet": pa.table({"v": [1]})})
    with pytest.raises(SchemaMismatchError, match=r"'v' is string in '\S+/a.parquet' and int64 in '\S+/b.parquet'"):
        inlay.read_parquet(path)


def test_a_misspelled_partition_column_has_a_hint(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "day": ["a"]})
    inlay.write_dataset(rows, str(tmp_path / "d"), partition_columns=["day"])
    with pytest.raises(InvalidArgumentError) as caught:
        inlay.merge(rows, str(tmp_path / "d"), "upsert", ["id"], partition_columns=["dya"])
    assert caught.value.hint == "Did you mean 'day'?"
    with pytest.raises(SchemaMismatchError, match=r"^The column 'nope' does not exist in the dataset"):
        inlay.read_parquet(str(tmp_path / "d"), columns=["nope"])
