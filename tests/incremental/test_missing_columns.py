"""Columns of the dataset, and fields of single rows, that the source lacks: `missing_columns`."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import inlay
from inlay.engines.absence import absent_path
from inlay.engines.streams import open_source
from inlay.errors import InvalidArgumentError, SchemaMismatchError, UnreadableSourceError
from tests import lake, oracle

WIDE = pa.table({"id": [1, 2, 3, 4], "a": ["w", "x", "y", "z"], "b": [1.0, 2.0, 3.0, 4.0], "c": [[1], [2], None, [4]]})


def wide(tmp_path: Path, **options: Any) -> str:
    return lake.write(tmp_path / "d", {"f.parquet": WIDE}, row_group_size=2, **options)


def required(tmp_path: Path) -> str:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int64(), nullable=False)])
    return lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1], "x": [2]}, schema)})


def rows(path: str) -> dict[int, list[Any]]:
    return {row.pop("id"): list(row.values()) for row in lake.all_rows(path)}


def chunks(path: Path) -> dict[str, list[bytes]]:
    names = pq.ParquetFile(path).schema_arrow.names
    groups = range(lake.footer(path).num_row_groups)
    return {name: [lake.chunk_bytes(path, group, at) for group in groups] for at, name in enumerate(names)}


@pytest.mark.parametrize("schema_mode", ["strict", "evolve"])
def test_a_source_without_a_column_is_rejected_in_both_modes(tmp_path: Path, engine: Any, schema_mode: Any) -> None:
    path = wide(tmp_path)
    before = lake.photograph(path)
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(SchemaMismatchError, match="the source lacks 'b', 'c'") as caught:
            call(WIDE.select(["id", "a"]), path, "upsert", "id", schema_mode=schema_mode, engine=engine)
        assert 'missing_columns="keep"' in str(caught.value.hint)
        assert 'missing_columns="null"' in str(caught.value.hint)
    assert lake.photograph(path) == before


@pytest.mark.parametrize("schema_mode", ["strict", "evolve"])
def test_null_sets_missing_columns_to_null(tmp_path: Path, engine: Any, schema_mode: Any) -> None:
    path = wide(tmp_path)
    source = pa.table({"id": [2, 9], "a": ["new", "n"]})
    options: Any = {"schema_mode": schema_mode, "missing_columns": "null", "engine": engine}
    result = inlay.merge(source, path, "upsert", "id", **options)
    assert (result.updated, result.inserted, result.unchanged) == (1, 1, 0)
    assert rows(path)[2] == ["new", None, None]
    assert rows(path)[9] == ["n", None, None]
    assert rows(path)[1] == ["w", 1.0, [1]]


def test_null_rejects_a_column_that_is_not_nullable(tmp_path: Path, engine: Any) -> None:
    path = required(tmp_path)
    with pytest.raises(SchemaMismatchError, match="'x', which is not nullable"):
        inlay.merge(pa.table({"id": [1]}), path, "upsert", "id", missing_columns="null", engine=engine)


@pytest.mark.parametrize("schema_mode", ["strict", "evolve"])
def test_keep_keeps_stored_values_and_copies_their_chunks(tmp_path: Path, engine: Any, schema_mode: Any) -> None:
    path = wide(tmp_path)
    file = tmp_path / "d/f.parquet"
    before = chunks(file)
    source = pa.table({"id": [2, 3, 9], "a": ["new", "y", "n"]})
    options: Any = {"schema_mode": schema_mode, "missing_columns": "keep", "engine": engine}
    plan = inlay.plan_merge(source, path, "upsert", "id", **options)
    result = inlay.merge(source, path, "upsert", "id", **options)
    assert (plan.updated, plan.inserted, plan.unchanged) == (2, 1, 1)
    assert (result.updated, result.inserted, result.unchanged) == (2, 1, 1)
    expected = [["w", 1.0, [1]], ["new", 2.0, [2]], ["y", 3.0, None], ["z", 4.0, [4]]]
    assert rows(path) == {**dict(zip([1, 2, 3, 4], expected, strict=True)), 9: ["n", None, None]}
    after = chunks(file)
    assert [name for name in before if after[name][0] != before[name][0]] == ["a"]
    assert [name for name in before if after[name][1] != before[name][1]] == []
    assert result.bytes_copied > sum(len(chunk) for name in ("id", "b", "c") for chunk in before[name])


def test_keep_decodes_only_the_columns_of_the_source(tmp_path: Path, engine: Any) -> None:
    """A column whose pages cannot be decoded does not disturb a merge that keeps it."""
    path = wide(tmp_path, use_dictionary=False, write_page_checksum=True)
    file = tmp_path / "d/f.parquet"
    data = bytearray(file.read_bytes())
    data[lake.chunk_range(file, 0, 2).stop - 1] ^= 255
    file.write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(file, page_checksum_verification=True)
    source = pa.table({"id": [2], "a": ["new"], "c": [[5]]})
    result = inlay.merge(source, path, "update", "id", missing_columns="keep", engine=engine)
    assert result.updated == 1
    assert pq.read_table(file, columns=["a"])["a"].to_pylist() == ["w", "new", "y", "z"]


def test_keep_with_deleted_rows_keeps_the_values_of_the_others(tmp_path: Path, engine: Any) -> None:
    path = wide(tmp_path)
    source = pa.table({"id": [4, 2, 9], "a": ["last", "x", "n"]})
    options: Any = {"missing_columns": "keep", "engine": engine}
    plan = inlay.plan_merge(source, path, "full_merge", "id", **options)
    result = inlay.merge(source, path, "full_merge", "id", **options)
    for summary in (plan, result):
        got = (summary.updated, summary.unchanged, summary.deleted, summary.inserted)
        assert got == (2, 1, 2, 1)
    assert rows(path) == {2: ["x", 2.0, [2]], 4: ["last", 4.0, [4]], 9: ["n", None, None]}


def test_keep_rejects_new_rows_without_a_column_that_is_not_nullable(tmp_path: Path, engine: Any) -> None:
    path = required(tmp_path)
    before = lake.photograph(path)
    source = pa.table({"id": [1, 5, 6]})
    options: Any = {"missing_columns": "keep", "engine": engine}
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(SchemaMismatchError, match=r"2 new rows lack the column 'x', .* the first is id=5"):
            call(source, path, "upsert", "id", **options)
    assert lake.photograph(path) == before
    assert inlay.merge(source, path, "update", "id", **options).unchanged == 1


def test_keep_without_the_partition_column_updates_rows_where_they_are(tmp_path: Path, engine: Any) -> None:
    path = str(tmp_path / "d")
    stored = {"id": [1, 2, 3], "day": ["mon", "tue", "tue"], "a": ["x", "y", "z"]}
    inlay.write_dataset(stored, path, partition_columns="day")
    options: Any = {"missing_columns": "keep", "engine": engine}
    source = pa.table({"id": [1, 3], "a": ["n1", "n3"]})
    assert inlay.plan_merge(source, path, "upsert", "id", **options).updated == 2
    assert inlay.merge(source, path, "upsert", "id", **options).updated == 2
    assert sorted((row["id"], row["day"], row["a"]) for row in inlay.read_parquet(path).to_pylist()) == [
        (1, "mon", "n1"),
        (2, "tue", "y"),
        (3, "tue", "n3"),
    ]
    before = lake.photograph(path)
    with pytest.raises(SchemaMismatchError, match="1 new row lacks the partition column 'day'; the first is id=9"):
        inlay.merge(pa.table({"id": [1, 9], "a": ["", ""]}), path, "upsert", "id", **options)
    assert lake.photograph(path) == before


def test_keep_with_one_of_two_partition_columns_rejects_moves(tmp_path: Path, engine: Any) -> None:
    path = str(tmp_path / "d")
    stored = {"id": [1, 2], "year": [2024, 2025], "month": [1, 2], "a": ["x", "y"]}
    inlay.write_dataset(stored, path, partition_columns=["year", "month"])
    options: Any = {"missing_columns": "keep", "engine": engine}
    with pytest.raises(inlay.InlayError, match="Partition columns cannot change"):
        inlay.merge(pa.table({"id": [1], "month": [2], "a": ["n"]}), path, "upsert", "id", **options)
    source = pa.table({"id": [1], "month": [1], "a": ["n"]})
    assert inlay.merge(source, path, "upsert", "id", **options).updated == 1


def test_files_that_lack_a_kept_column_stay_without_it(tmp_path: Path, engine: Any) -> None:
    files = {"a.parquet": lake.table([1]), "b.parquet": lake.table([2], extra=pa.array([7]))}
    path = lake.write(tmp_path / "d", files)
    source = lake.table([1, 2], ["n1", "n2"])
    inlay.merge(source, path, "upsert", "id", missing_columns="keep", engine=engine)
    assert lake.contents(path) == {
        "a.parquet": [{"id": 1, "v": "n1"}],
        "b.parquet": [{"id": 2, "v": "n2", "extra": 7}],
    }


def test_keep_and_evolve_add_a_column_and_keep_another(tmp_path: Path, engine: Any) -> None:
    path = wide(tmp_path)
    source = pa.table({"id": [2], "a": ["new"], "extra": [True]})
    options: Any = {"missing_columns": "keep", "schema_mode": "evolve", "engine": engine}
    assert inlay.plan_merge(source, path, "upsert", "id", **options).unchanged == 0
    inlay.merge(source, path, "upsert", "id", **options)
    assert rows(path)[2] == ["new", 2.0, [2], True]
    assert rows(path)[1] == ["w", 1.0, [1], None]


def test_a_new_dataset_has_no_missing_columns(tmp_path: Path, engine: Any) -> None:
    path = str(tmp_path / "d")
    assert inlay.merge({"id": [1]}, path, "upsert", "id", missing_columns="keep", engine=engine).inserted == 1


def test_an_unknown_choice_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="missing_columns 'skip'"):
        inlay.merge({"id": [1]}, str(tmp_path / "d"), "upsert", "id", missing_columns="skip")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [inlay.PyArrowDatasetIO, inlay.DuckDBDatasetIO])
def test_methods_take_the_option(tmp_path: Path, kind: Any) -> None:
    path = wide(tmp_path)
    io = kind()
    assert io.merge(pa.table({"id": [1]}), path, "upsert", "id", missing_columns="keep").unchanged == 1
    stats = io.merge_parquet_dataset(pa.table({"id": [1]}), path, "id", missing_columns="keep")
    assert stats["updated"] == 1


# ------------------------------------------------------------------------------------------------ fields of single rows
STORED = [{"id": n, "a": f"a{n}", "b": n * 10, "s": {"x": n}} for n in range(6)]
PARTLY = [{"id": 1, "a": None, "s": {"x": 7}}, {"id": 2, "b": None}, {"id": 9, "a": "new", "b": 9, "s": None}]


def partly(tmp_path: Path) -> str:
    return lake.write(tmp_path / "d", {"f.parquet": pa.Table.from_pylist(STORED)}, row_group_size=3)


def as_dicts(_: Path, records: list[dict[str, Any]]) -> Any:
    return records


def as_lines(folder: Path, records: list[dict[str, Any]]) -> Any:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder / "rows.jsonl"


def as_array(folder: Path, records: list[dict[str, Any]]) -> Any:
    (folder / "rows.json").write_text(json.dumps(records, indent=1))
    return folder / "rows.json"


def as_escaped_lines(folder: Path, records: list[dict[str, Any]]) -> Any:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n".replace('"a"', '"\\u0061"') for each in records))
    return folder / "rows.jsonl"


def as_files(folder: Path, records: list[dict[str, Any]]) -> Any:
    """Write a file of JSON for each row."""
    (folder / "rows").mkdir(exist_ok=True)
    for number, record in enumerate(records):
        (folder / f"rows/{number}.json").write_text(json.dumps(record))
    return folder / "rows"


FORMS = [as_dicts, as_lines, as_array, as_escaped_lines, as_files]


@pytest.mark.parametrize(
    ("form", "place"),
    [
        (as_dicts, "row 1 of"),
        (as_lines, "rows.jsonl', line 2 of"),
        (as_array, "rows.json', line 9 of"),
        (as_escaped_lines, "rows.jsonl', line 2 of"),
        (as_files, "0.json', line 1 of"),
    ],
)
def test_a_row_that_lacks_a_field_is_rejected(tmp_path: Path, engine: Any, form: Any, place: str) -> None:
    path = partly(tmp_path)
    before = lake.photograph(path)
    source = form(tmp_path, PARTLY)
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(SchemaMismatchError, match=f"The field '[ab]' is missing in .*{place}") as caught:
            call(source, path, "upsert", "id", engine=engine)
        assert 'missing_columns="keep"' in str(caught.value.hint)
        assert 'missing_columns="null"' in str(caught.value.hint)
    assert lake.photograph(path) == before


@pytest.mark.parametrize("form", FORMS)
def test_keep_keeps_single_cells(tmp_path: Path, engine: Any, form: Any) -> None:
    path = partly(tmp_path)
    source = form(tmp_path, PARTLY)
    options: Any = {"missing_columns": "keep", "engine": engine}
    plan = inlay.plan_merge(source, path, "upsert", "id", **options)
    result = inlay.merge(source, path, "upsert", "id", **options)
    assert (plan.updated, plan.inserted, plan.unchanged) == (result.updated, result.inserted, result.unchanged)
    assert (result.updated, result.inserted, result.unchanged) == (2, 1, 0)
    assert rows(path)[1] == [None, 10, {"x": 7}]
    assert rows(path)[2] == ["a2", None, {"x": 2}]
    assert rows(path)[9] == ["new", 9, None]
    assert inlay.merge(source, path, "upsert", "id", **options).unchanged == 3


@pytest.mark.parametrize("form", FORMS)
def test_null_sets_single_cells_to_null(tmp_path: Path, engine: Any, form: Any) -> None:
    path = partly(tmp_path)
    inlay.merge(form(tmp_path, PARTLY), path, "upsert", "id", missing_columns="null", engine=engine)
    assert rows(path)[1] == [None, None, {"x": 7}]
    assert rows(path)[2] == [None, None, None]


def no_list(_: Path) -> Any:
    return []


def no_frame(_: Path) -> Any:
    return pd.DataFrame([])


def no_records(folder: Path) -> Any:
    (folder / "rows.json").write_text("[]")
    return folder / "rows.json"


def no_lines(folder: Path) -> Any:
    (folder / "rows.jsonl").write_text("")
    return folder / "rows.jsonl"


@pytest.mark.parametrize("form", [no_list, no_frame, no_records, no_lines])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("upsert", {}),
        ("upsert", {"operation_column": "op", "newer_by": "b", "schema_mode": "evolve"}),
        ("deduplicate", {"dedup_order_by": "lsn", "operation_column": "op", "missing_columns": "keep"}),
        ("delete", {"newer_by": "b"}),
        ("full_merge", {"scope": {"a": ["a1"]}}),
    ],
)
def test_a_batch_without_rows_needs_no_columns(tmp_path: Path, form: Any, strategy: Any, options: Any) -> None:
    stored = pa.Table.from_pylist([{"id": 1, "a": "a1", "b": 10}, {"id": 2, "a": "a2", "b": 20}])
    path = lake.write(tmp_path / "d", {"day=1/f.parquet": stored})
    deleted = int(strategy == "full_merge")
    if deleted and form in (no_records, no_lines):
        with pytest.raises(UnreadableSourceError, match="has no data rows"):  # The file may be a failed export.
            inlay.merge(form(tmp_path), path, strategy, ["id", "day"], **options)
        return
    for call in (inlay.plan_merge, inlay.merge):
        assert call(form(tmp_path), path, strategy, ["id", "day"], **options).deleted == deleted
    assert len(lake.all_rows(path)) == 2 - deleted
    with pytest.raises(UnreadableSourceError, match="has no"):
        inlay.merge(form(tmp_path), tmp_path / "new", strategy, ["id", "day"], **options)
    assert not (tmp_path / "new").exists()


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    for source in (tmp_path / "rows.csv", "/dev/null"):
        with pytest.raises(UnreadableSourceError, match="is a pipe or a device"):
            inlay.merge(source, partly(tmp_path / "lake"), "upsert", "id")


def test_rows_without_fields_are_no_empty_batch(tmp_path: Path) -> None:
    path = partly(tmp_path)
    with pytest.raises(UnreadableSourceError, match="The rows of the source have no fields"):
        inlay.merge([{}], path, "full_merge", "id")
    (tmp_path / "rows.json").write_text("[{}]")
    with pytest.raises(SchemaMismatchError, match="The key column 'id' does not exist"):
        inlay.merge(tmp_path / "rows.json", path, "full_merge", "id")


NESTED = {"x": 1, "l": [{"y": 2, "z": 4}], "deep": {"x": 5, "q": 3}}
INCOMPLETE = {
    "s.x": {"l": [{"y": 2, "z": None}], "deep": {"x": None, "q": None}},
    "s.l.z": {"x": None, "l": [{"y": 2, "z": 1}, {"y": None}], "deep": None},
    "s.deep.x": {"x": None, "l": None, "deep": {"q": None}},
    "s.deep.q": {"x": 1, "l": [], "deep": {"x": 1}},
}


def nested(tmp_path: Path) -> str:
    """Write a dataset with objects in objects and in a list of objects."""
    path = str(tmp_path / "nested")
    inlay.write_dataset(pa.table({"id": [1, 2], "x": [1, 2], "s": [NESTED, NESTED]}), path)
    return path


@pytest.mark.parametrize("field", INCOMPLETE)
@pytest.mark.parametrize("form", [as_dicts, as_lines, as_array, as_escaped_lines])
def test_an_object_that_lacks_a_field_is_rejected(tmp_path: Path, form: Any, field: str) -> None:
    path = nested(tmp_path)
    whole: dict[str, Any] = {"x": None, "l": [{"y": None, "z": 0}], "deep": {"x": None, "q": None}}
    before = lake.photograph(path)
    source = form(tmp_path, [{"id": 1, "x": None, "s": whole}, {"id": 2, "x": 1, "s": INCOMPLETE[field]}])
    message = rf"The source lacks the field '{field}' in .*(line \d+|row 1)\."
    for call in (inlay.plan_merge, inlay.merge):
        for choice in ("error", "keep"):
            with pytest.raises(SchemaMismatchError, match=message) as caught:
                call(source, path, "upsert", "id", missing_columns=choice)
            assert 'write null to store NULL), or pass missing_columns="null"' in str(caught.value.hint)
    assert lake.photograph(path) == before
    inlay.merge(source, path, "upsert", "id", missing_columns="null")
    assert rows(path)[1] == [None, whole]
    source = form(tmp_path, [{"id": 1, "x": None, "s": whole}, {"id": 2, "s": None}])
    inlay.merge(source, path, "upsert", "id", missing_columns="keep")
    assert rows(path)[2] == [1, None]


def test_an_object_that_lacks_a_field_is_named_by_its_line(tmp_path: Path, engine: Any) -> None:
    path = nested(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/1.jsonl").write_text(json.dumps({"id": 1, "x": 1, "s": NESTED}) + "\n")
    lines = [{"id": 2, "x": 1, "s": NESTED}, {"id": 3, "x": 1, "s": INCOMPLETE["s.deep.x"]}]
    (tmp_path / "rows/2.jsonl").write_text("\n" + "\n".join(map(json.dumps, lines)))
    with pytest.raises(SchemaMismatchError, match=r"the field 's\.deep\.x' in '.*2\.jsonl', line 3\."):
        inlay.merge(tmp_path / "rows", path, "upsert", "id", engine=engine)


def test_rows_that_delete_may_lack_fields_of_objects(tmp_path: Path) -> None:
    path = nested(tmp_path)
    feed = as_lines(tmp_path, [{"op": "d", "id": 1, "s": {}}, {"op": "u", "id": 2, "x": 5, "s": NESTED}])
    result = inlay.merge(feed, path, "upsert", "id", operation_column="op")
    assert (result.deleted, result.updated) == (1, 1)
    assert inlay.merge(as_lines(tmp_path, [{"id": 2, "s": {"x": 1}}]), path, "delete", "id").deleted == 1


def test_new_datasets_new_columns_and_appended_rows_may_lack_fields_of_objects(tmp_path: Path) -> None:
    path = str(tmp_path / "d")
    inlay.merge(as_lines(tmp_path, [{"id": 1, "s": {"x": 1}}, {"id": 2, "s": {"y": 1}}]), path, "upsert", "id")
    inlay.write_dataset(as_lines(tmp_path, [{"id": 3, "s": {"x": 3}}]), path)
    source = as_lines(tmp_path, [{"id": 1, "s": {"x": 1, "y": 2}, "n": {"a": 1}}, {"id": 4, "s": None, "n": {"b": 1}}])
    inlay.merge(source, path, "upsert", "id", schema_mode="evolve")
    stored = inlay.read_parquet(path).sort_by("id").to_pydict()
    assert stored["s"] == [{"x": 1, "y": 2}, {"x": None, "y": 1}, {"x": 3, "y": None}, None]
    assert stored["n"] == [{"a": 1, "b": None}, None, None, {"a": None, "b": 1}]


def test_a_file_of_csv_without_a_column_of_the_other_file_lacks_it(tmp_path: Path, engine: Any) -> None:
    path = partly(tmp_path)
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv/1.csv").write_text("id,a\n1,n1\n")
    (tmp_path / "csv/2.csv").write_text("id,a,b\n2,n2,\n")
    source = tmp_path / "csv"
    with pytest.raises(SchemaMismatchError, match="the source lacks 's'"):
        inlay.merge(source, path, "update", "id", engine=engine)
    inlay.merge(source, path, "update", "id", missing_columns="keep", engine=engine)
    assert rows(path)[1] == ["n1", 10, {"x": 1}]
    assert rows(path)[2] == ["n2", None, {"x": 2}]
    two = lake.write(tmp_path / "two", {"f.parquet": pa.table({"id": [1], "a": ["x"], "b": [1]})})
    with pytest.raises(SchemaMismatchError, match=r"The field 'b' is missing in .*1\.csv' of the source"):
        inlay.merge(source, two, "upsert", "id", engine=engine)


def test_a_row_that_keeps_a_required_field_is_valid_and_a_new_row_without_it_is_not(tmp_path: Path) -> None:
    path = required(tmp_path)
    options: Any = {"missing_columns": "keep"}
    assert inlay.merge([{"id": 1}, {"id": 2, "x": 5}], path, "upsert", "id", **options).unchanged == 1
    with pytest.raises(SchemaMismatchError, match=r"1 new row lacks the column 'x', .* the first is id=7"):
        inlay.merge([{"id": 1, "x": 1}, {"id": 7}], path, "upsert", "id", **options)
    with pytest.raises(SchemaMismatchError, match="'x' is not nullable in the dataset, but is NULL in 1 source row"):
        inlay.merge([{"id": 1, "x": None}, {"id": 2}], path, "upsert", "id", **options)


def test_rows_that_lack_partition_columns_stay_where_they_are(tmp_path: Path, engine: Any) -> None:
    path = str(tmp_path / "d")
    stored = {"id": [1, 2], "year": [2024, 2025], "month": [1, 2], "a": ["x", "y"]}
    inlay.write_dataset(stored, path, partition_columns=["year", "month"])
    options: Any = {"missing_columns": "keep", "engine": engine}
    source: list[dict[str, Any]] = [{"id": 1, "month": 1, "a": "n1"}, {"id": 2, "year": 2025, "a": "n2"}]
    assert inlay.merge(source, path, "upsert", "id", **options).updated == 2
    with pytest.raises(inlay.InlayError, match="Partition columns cannot change"):
        inlay.merge([*source[:1], {"id": 2, "year": 2024, "a": "n2"}], path, "upsert", "id", **options)
    with pytest.raises(SchemaMismatchError, match="1 new row lacks the partition column 'year'; the first is id=3"):
        inlay.merge([*source, {"id": 3, "month": 1, "a": "n3"}], path, "upsert", "id", **options)


@pytest.mark.parametrize("write", [as_lines, as_array, as_files])
def test_json_records_that_lack_partition_columns_keep_their_partition(write: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1], "p": ["x"], "a": ["old"]}, path, partition_columns="p")
    source = write(tmp_path, [{"id": 1, "a": "n1"}, {"id": 2, "p": "y", "a": "n2"}])
    with pytest.raises(SchemaMismatchError, match="The field 'p' is missing"):
        inlay.merge(source, path, "upsert", "id")
    assert inlay.merge(source, path, "upsert", "id", missing_columns="keep").updated == 1
    assert sorted(inlay.read_parquet(path)["p"].to_pylist()) == ["x", "y"]
    source = write(tmp_path, [{"id": 3, "a": "n3"}, {"id": 2, "p": "y", "a": "n2"}])
    with pytest.raises(SchemaMismatchError, match="lacks the partition column 'p'; the first is id=3"):
        inlay.merge(source, path, "upsert", "id", missing_columns="keep")


def test_a_spilled_source_keeps_single_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inlay.engines.source.SPILL_BYTES", 1)
    path = partly(tmp_path)
    inlay.merge(as_lines(tmp_path, PARTLY), path, "upsert", "id", missing_columns="keep")
    assert rows(path)[1] == [None, 10, {"x": 7}]


def test_rows_of_one_key_are_not_combined(tmp_path: Path) -> None:
    path = partly(tmp_path)
    inlay.merge([{"id": 1, "a": "n"}, {"id": 1, "b": 5}], path, "deduplicate", "id", missing_columns="keep")
    assert rows(path)[1] == ["a1", 5, {"x": 1}]


def test_new_datasets_and_appended_rows_may_lack_fields(tmp_path: Path) -> None:
    path = str(tmp_path / "d")
    inlay.merge([{"id": 1, "a": "x"}, {"id": 2}], path, "upsert", "id")
    inlay.write_dataset([{"id": 3, "a": "x"}, {"id": 4}], path)
    inlay.merge([{"id": 5, "other": 1}, {"id": 1}], path, "delete", "id")
    assert rows(path) == {2: [None], 3: ["x"], 4: [None]}


_SMALL = st.integers(0, 9) | st.none()
_OBJECT = st.none() | st.fixed_dictionaries({}, optional={"id": _SMALL, "a": _SMALL})
_RECORD = st.fixed_dictionaries(
    {"id": st.integers(0, 9)},
    optional={
        "s": st.none() | st.fixed_dictionaries({}, optional={"a": _SMALL, "o": _OBJECT, "l": st.lists(_OBJECT)}),
        "l": st.none() | st.lists(_OBJECT),
        "t": st.sampled_from(["a", '"a":', "\\", None]),
    },
)
_ITEM = pa.struct([("id", pa.int64()), ("a", pa.int64())])
_TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.struct([("a", pa.int64()), ("o", _ITEM), ("l", pa.list_(_ITEM))])),
        ("l", pa.list_(_ITEM)),
        ("t", pa.string()),
    ]
)


def absent_inside(value: Any, type_: pa.DataType, path: str) -> set[str]:
    if pa.types.is_list(type_):
        return {found for item in value or [] for found in absent_inside(item, type_.value_type, path)}
    if not pa.types.is_struct(type_) or value is None:
        return set()
    absent = {f"{path}.{field.name}" for field in type_.fields if field.name not in value}
    return absent.union(*(absent_inside(value.get(f.name), f.type, f"{path}.{f.name}") for f in type_.fields))


@given(st.lists(_RECORD, min_size=1, max_size=6), st.sampled_from([as_lines, as_array]), st.booleans())
def test_absent_fields_of_objects_are_found(records: list[dict[str, Any]], form: Any, is_compact: bool) -> None:
    """Compare with the decoded records. A record that Arrow cannot read is reported with one of its fields."""
    with tempfile.TemporaryDirectory() as folder:
        file = form(Path(folder), records)
        file.write_text(file.read_text().replace('": ', '":') if is_compact else file.read_text())
        with open_source(file, _TYPES) as source:
            table = source.read_all()
    paths = {name: absent_path(name) or () for name in table.column_names}
    hidden = {".".join(path): table.column(name) for name, path in paths.items() if len(path) > 1}
    found = [{path for path, places in hidden.items() if places[row].is_valid} for row in range(len(records))]
    fields = [(field.name, field.type) for field in _TYPES]
    expected = [
        set().union(*(absent_inside(record.get(name), type_, name) for name, type_ in fields)) for record in records
    ]
    assert all(some <= every and bool(some) == bool(every) for some, every in zip(found, expected, strict=True))


CELL = st.sampled_from(["absent", None, 1, 2])


# All engines receive the same opened rows, and the tests above show that they pass them on.
@pytest.mark.long_on("duckdb", "duckdb-union", "spark")
@settings(suppress_health_check=list(HealthCheck))
@given(
    cells=st.lists(st.tuples(st.integers(0, 9), CELL, CELL), min_size=1, max_size=6, unique_by=lambda row: row[0]),
    form=st.sampled_from(FORMS),
    strategy=st.sampled_from(sorted(set(oracle.TRUTH) - {"delete"})),
    missing=st.sampled_from(["error", "null", "keep"]),
    schema_mode=st.sampled_from(["strict", "evolve"]),
)
def test_rows_with_different_fields_agree_with_the_oracle(
    engine: Any, cells: Any, form: Any, strategy: Any, missing: Any, schema_mode: Any
) -> None:
    stored = [{"id": n, "a": n % 3, "b": None if n % 2 else 1} for n in range(6)]
    records = [{"id": key} | {n: v for n, v in (("a", a), ("b", b)) if v != "absent"} for key, a, b in cells]
    with tempfile.TemporaryDirectory() as folder:
        path = lake.write(Path(folder) / "d", {"f.parquet": pa.Table.from_pylist(stored)}, row_group_size=2)
        source = form(Path(folder), records)
        options: Any = {"missing_columns": missing, "schema_mode": schema_mode, "engine": engine}
        try:
            expected = oracle.merge([("f", stored)], records, strategy, ["id"], missing_columns=missing)
        except oracle.RefusedError:
            for call in (inlay.plan_merge, inlay.merge):
                with pytest.raises(SchemaMismatchError, match=r"lacks|is missing"):
                    call(source, path, strategy, "id", **options)
            return
        plan = inlay.plan_merge(source, path, strategy, "id", **options)
        result = inlay.merge(source, path, strategy, "id", **options)
        for got in (plan, result):
            counts = (got.inserted, got.updated, got.unchanged, got.deleted)
            assert counts == (expected.inserted, expected.updated, expected.unchanged, expected.deleted)
        assert lake.same_rows(lake.all_rows(path), expected.rows(), ordered=False)
