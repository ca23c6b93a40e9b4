"""Loads of change feeds: operations, newer rows, and columns that a source lacks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inlay.errors import InlayError, InvalidArgumentError, SchemaMismatchError
from inlay.workspace import Inline, Load, NewDataset, Source, Workspace
from tests.workspace.test_loads import content, load, made, row

pytestmark = pytest.mark.spark


def as_json(*records: dict[str, Any]) -> Source:
    return Source(inline=Inline("json", json.dumps(list(records))))


def as_csv(text: str) -> Source:
    return Source(inline=Inline("csv", text))


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_feed_inserts_updates_and_deletes(workspace: Workspace, kind: str) -> None:
    dataset = made(workspace, [row(1, "ann", 1), row(2, "bob", 2), row(3, "eve", 3)])
    feed = {
        "csv": as_csv("op,id,name,n\nu,1,Ann,1\nd,2,,\nc,4,new,4\n"),
        "json": as_json(
            {"op": "u", "id": 1, "name": "Ann", "n": 1},
            {"op": "d", "id": 2},
            {"op": "c", "id": 4, "name": "new", "n": 4},
        ),
    }[kind]
    plan = load(workspace, dataset, feed, "upsert", operation_column="op", dry_run=True).result or {}
    assert [plan[name] for name in ("inserted", "updated", "deleted", "row_count")] == [1, 1, 1, 3]
    assert plan["changes"]["deleted"] == [[2, "bob", 2]]
    result = load(workspace, dataset, feed, "upsert", operation_column="op").result or {}
    assert [result[name] for name in ("inserted", "updated", "deleted", "row_count")] == [1, 1, 1, 3]
    assert content(workspace, dataset) == [row(1, "Ann", 1), row(3, "eve", 3), row(4, "new", 4)]
    assert workspace.dataset(dataset.id).dataset.schema.names == ["id", "name", "n"]


def test_a_record_of_a_feed_that_lacks_a_field_is_named(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "ann", 1)])
    feed = as_json({"op": "d", "id": 9}, {"op": "u", "id": 1, "name": "Ann"})
    with pytest.raises(SchemaMismatchError, match=r"line 1.*'n'|'n'.*line 1"):
        load(workspace, dataset, feed, "upsert", operation_column="op")
    load(workspace, dataset, feed, "upsert", operation_column="op", missing_columns="keep")
    assert content(workspace, dataset) == [row(1, "Ann", 1)]


def test_a_record_whose_object_lacks_a_field_is_named(workspace: Workspace) -> None:
    job = workspace.create_dataset(NewDataset("Objects", as_json({"id": 1, "s": {"x": 1, "l": [{"y": 1}]}}))).wait()
    dataset = workspace.catalog.datasets.get(str(job.dataset_id))
    for value, field in (({"l": []}, "s.x"), ({"x": 1, "l": [{}]}, "s.l.y")):
        for extra, options in (({}, {"missing_columns": "keep"}), ({"op": "u"}, {"operation_column": "op"})):
            source = as_json({"id": 9, "s": None, **extra}, {"id": 1, "s": value, **extra})
            with pytest.raises(SchemaMismatchError, match=f"The source lacks the field '{field}' in line 1"):
                load(workspace, dataset, source, "upsert", **options)
    feed = as_json({"id": 1, "op": "d", "s": {}}, {"id": 2, "op": "u", "s": {"x": None, "l": [{"y": None}]}})
    load(workspace, dataset, feed, "upsert", operation_column="op")
    load(workspace, dataset, as_json({"id": 3, "s": {}}), "upsert", missing_columns="null")
    load(workspace, dataset, as_json({"id": 4, "s": {}}), "upsert")
    with workspace.query(f"SELECT s FROM datasets.{dataset.table_name} ORDER BY id") as result:
        found = result.read_all().column("s").to_pylist()
    assert found == [{"x": None, "l": [{"y": None}]}, {"x": None, "l": None}, {"x": None, "l": None}]


def test_a_late_batch_changes_nothing(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "ann", 10), row(2, "bob", 20)])
    batch = as_csv("id,name,n\n1,late,9\n2,newer,21\n3,first,1\n")
    plan = load(workspace, dataset, batch, "upsert", newer_by="n", dry_run=True).result or {}
    assert [plan[name] for name in ("inserted", "updated", "stale")] == [1, 1, 1]
    for expected in ([1, 1, 1], [0, 0, 3]):
        result = load(workspace, dataset, batch, "upsert", newer_by="n").result or {}
        assert [result[name] for name in ("inserted", "updated", "stale")] == expected
    assert content(workspace, dataset) == [row(1, "ann", 10), row(2, "newer", 21), row(3, "first", 1)]


@pytest.mark.parametrize(("choice", "expected"), [("keep", 1), ("null", None)])
def test_columns_that_the_source_lacks(workspace: Workspace, choice: str, expected: int | None) -> None:
    dataset = made(workspace, [row(1, "ann", 1), row(2, "bob", 2)])
    source = as_csv("id,name\n1,Ann\n3,new\n")
    with pytest.raises(SchemaMismatchError, match="lacks 'n'") as caught:
        load(workspace, dataset, source, "upsert")
    assert "missing_columns" in str(caught.value.hint)
    plan = load(workspace, dataset, source, "upsert", missing_columns=choice, dry_run=True).result or {}
    assert plan["kept_columns"] == (["n"] if choice == "keep" else [])
    load(workspace, dataset, source, "upsert", missing_columns=choice)
    assert content(workspace, dataset) == [row(1, "Ann", expected), row(2, "bob", 2), row(3, "new", None)]


@pytest.mark.parametrize(("choice", "expected"), [("keep", [row(1, "Ann", 1), row(2, "bob", None)]),
                                                  ("null", [row(1, "Ann", None), row(2, None, None)])])  # fmt: skip
def test_fields_that_single_records_lack(workspace: Workspace, choice: str, expected: list[Any]) -> None:
    dataset = made(workspace, [row(1, "ann", 1), row(2, "bob", 2)])
    source = as_json({"id": 1, "name": "Ann"}, {"id": 2, "n": None})
    load(workspace, dataset, source, "upsert", missing_columns=choice)
    assert content(workspace, dataset) == expected


def test_a_field_that_no_record_has_is_kept(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "ann", 1), row(2, "bob", 2)])
    load(workspace, dataset, as_json({"id": 1, "name": "Ann"}), "update", missing_columns="keep")
    assert content(workspace, dataset) == [row(1, "Ann", 1), row(2, "bob", 2)]


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("append", {"operation_column": "op"}, "does not accept operation_column"),
        ("replace", {"missing_columns": "keep", "newer_by": "n"}, "does not accept newer_by or missing_columns"),
        ("insert", {"newer_by": "n"}, "newer_by"),
        ("full_merge", {"operation_column": "op"}, "operation_column needs"),
        ("upsert", {"newer_by": "nn"}, "'nn'"),
    ],
)
def test_options_that_a_strategy_does_not_have(
    workspace: Workspace, strategy: str, options: dict[str, Any], message: str
) -> None:
    dataset = made(workspace, [row(1, "ann", 1)])
    keys = () if strategy in ("append", "replace") else ("id",)
    with pytest.raises((InvalidArgumentError, InlayError), match=message):
        workspace.load(dataset.id, Load(as_csv("id,name,n,op\n1,a,1,u\n"), strategy, keys, **options)).wait()


def test_a_full_merge_of_a_scope_deletes_nothing_else(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "ann", 1), row(2, "ann", 2), row(3, "bob", 3)])
    result = (
        load(workspace, dataset, as_csv("id,name,n\n1,ann,9\n"), "full_merge", scope={"name": ["ann"]}).result or {}
    )
    assert (result["updated"], result["deleted"], result["row_count"]) == (1, 1, 2)
    assert content(workspace, dataset) == [row(1, "ann", 9), row(3, "bob", 3)]
    with pytest.raises(InlayError, match="bob"):
        load(workspace, dataset, as_csv("id,name,n\n1,bob,9\n"), "full_merge", scope={"name": ["ann"]})
