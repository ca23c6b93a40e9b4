"""Loads that rename, ignore and add columns of a file."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.catalog import Dataset
from inlay.errors import BadRowsError, InvalidArgumentError, SchemaMismatchError
from inlay.type_grammar import column_type_name
from inlay.workspace import Inline, Load, NewColumn, Source, Workspace
from tests.pipeline_data import parquet_bytes
from tests.workspace.test_loads import content, load, made, row, upload

pytestmark = pytest.mark.spark
MAPPING = {
    "Customer": "id",
    "Full name": "name",
    "name": None,
    "Amount": "n",
    "land": NewColumn("country", "varchar(2)"),
}
ROWS = [
    {"Customer": 2, "Full name": "bob", "name": 7, "Amount": 20, "land": "FR"},
    {"Customer": 3, "Full name": "eve", "name": "x", "Amount": 30, "land": None},
]


def source(workspace: Workspace, kind: str) -> Source:
    if kind == "parquet":
        table = pa.Table.from_pylist([each | {"name": "x"} for each in ROWS])
        return Source(upload_id=upload(workspace, parquet_bytes(table), "application/parquet"))
    if kind == "json":
        return Source(inline=Inline("json", json.dumps(ROWS)))
    if kind == "query":
        return Source(sql="SELECT * FROM (VALUES (2, 'bob', 7, 20, 'FR'), (3, 'eve', 8, 30, NULL))"
                      ' AS t("Customer", "Full name", "name", "Amount", "land")')  # fmt: skip
    lines = [",".join("" if value is None else str(value) for value in each.values()) for each in ROWS]
    return Source(inline=Inline("csv", "\n".join([",".join(ROWS[0]), *lines])))


def rows(workspace: Workspace, dataset: Dataset, version: int | None = None) -> list[dict[str, Any]]:
    table = dataset.table_name if version is None else f'"{dataset.table_name}@{version}"'
    with workspace.query(f"SELECT * FROM datasets.{table} ORDER BY id") as result:
        found: list[dict[str, Any]] = result.read_all().to_pylist()
    return found


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("csv", "append"), ("csv", "replace"), ("csv", "upsert"), ("json", "upsert"), ("parquet", "append"),
     ("query", "upsert")],
)  # fmt: skip
def test_columns_are_renamed_ignored_and_added(workspace: Workspace, kind: str, strategy: str) -> None:
    dataset = made(workspace, [row(1, "ann", 1), row(2, "old", 2)])
    planned = load(workspace, dataset, source(workspace, kind), strategy, columns=MAPPING, dry_run=True).result or {}
    assert planned["changes"]["columns"] == ["id", "name", "n", "country"]
    result = load(workspace, dataset, source(workspace, kind), strategy, columns=MAPPING).result or {}
    assert [planned[name] for name in ("inserted", "updated")] == [result[name] for name in ("inserted", "updated")]
    old = {"append": [row(1, "ann", 1), row(2, "old", 2)], "upsert": [row(1, "ann", 1)], "replace": []}[strategy]
    new = [row(2, "bob", 20) | {"country": "FR"}, row(3, "eve", 30) | {"country": None}]
    key = lambda each: (each["id"], each["name"])  # noqa: E731
    assert sorted(rows(workspace, dataset), key=key) == sorted([r | {"country": None} for r in old] + new, key=key)
    assert rows(workspace, dataset, 1) == [row(1, "ann", 1), row(2, "old", 2)]  # older versions stay readable
    assert column_type_name(workspace.dataset(dataset.id).version.schema.field("country")) == "varchar(2)"
    workspace.restore(dataset.id, 1).wait()
    assert rows(workspace, dataset) == [row(1, "ann", 1), row(2, "old", 2)]
    assert workspace.dataset(dataset.id).dataset.schema.names == ["id", "name", "n"]


def test_a_download_has_an_added_column_that_no_file_has(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "ann", 1)])
    source = Source(inline=Inline("csv", "id,name,n,x\n9,a,1,2\n"))
    load(workspace, dataset, source, "update", columns={"x": NewColumn("x", "bigint")})
    data = b"".join(workspace.download(workspace.data(dataset.id), "parquet"))
    assert pq.read_table(pa.BufferReader(data)).to_pylist() == [row(1, "ann", 1) | {"x": None}]


def test_names_can_be_exchanged(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "ann", 1)])
    source = Source(inline=Inline("csv", "n,id,name\n2,10,bob\n"))
    load(workspace, dataset, source, "upsert", columns={"n": "id", "id": "n"})
    assert content(workspace, dataset) == [row(1, "ann", 1), row(2, "bob", 10)]


def test_rejects_name_the_columns_of_the_file(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "ann", 1)])
    source = Source(inline=Inline("csv", "Customer,name,n\n1,a,x\ny,b,2\n"))
    with pytest.raises(BadRowsError) as caught:
        load(workspace, dataset, source, "upsert", columns={"Customer": "id"})
    assert [each["column"] for each in caught.value.errors] == ["n", "Customer"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": "id"}, "names the column 'a', which the file does not have"),
        ({"id": "ident"}, "no column 'ident'"),
        ({"id": "n"}, "Two columns of the file become the column 'n'"),
        ({"id": "n", "name": "n"}, "maps two columns of the file to the column 'n'"),
        ({"id": NewColumn("Name", "text")}, "already has the column 'name'"),
        ({"id": NewColumn("x", "texty")}, "texty"),
    ],
)
def test_invalid_mappings_are_explained(workspace: Workspace, columns: Any, message: str) -> None:
    dataset = made(workspace, [row(1, "ann", 1)])
    source = Source(inline=Inline("csv", "id,name,n\n2,bob,2\n"))
    with pytest.raises(InvalidArgumentError, match=message):
        load(workspace, dataset, source, "append", columns=columns)


def test_types_of_parquet_columns_do_not_change(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "ann", 1)])
    table = pa.table({"id": [2], "name": ["bob"], "n": [2], "x": [1]})
    source = Source(upload_id=upload(workspace, parquet_bytes(table), "application/parquet"))
    with pytest.raises(InvalidArgumentError, match="'x' is int64 in the file, not string"):
        workspace.load(dataset.id, Load(source, "upsert", ["id"], columns={"x": NewColumn("x", "text")})).wait()


@pytest.mark.parametrize("strategy", ["append", "upsert"])
def test_a_mapping_leaves_no_column_of_the_dataset_out(workspace: Workspace, strategy: str) -> None:
    dataset = made(workspace, [row(1, "ann", 1)])
    source = Source(inline=Inline("csv", "id,name,n\n2,bob,2\n"))
    for columns in ({"n": None}, {"n": NewColumn("x", "bigint")}):
        with pytest.raises(SchemaMismatchError, match="lacks 'n'"):
            load(workspace, dataset, source, strategy, columns=columns)
