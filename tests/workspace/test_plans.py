"""Plans of loads: their sample of changed rows, its limits, and the load that follows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.errors import SchemaMismatchError
from inlay.workspace import Inline, Load, NewDataset, Source, Workspace
from tests import oracle
from tests.workspace.test_loads import content, inline, load, made, row

pytestmark = pytest.mark.spark

values = st.tuples(st.sampled_from("abc"), st.sampled_from([1, 2, None]))
rows_of = st.dictionaries(st.integers(0, 12), values, min_size=1, max_size=9)


def rows_from(found: dict[int, tuple[str, int | None]]) -> list[dict[str, Any]]:
    return [row(key, *value) for key, value in found.items()]


def changes_of(workspace: Workspace, dataset: Any, rows: list[dict[str, Any]], strategy: str) -> dict[str, Any]:
    plan = load(workspace, dataset, inline(rows), strategy, dry_run=True).result
    assert plan is not None
    changes: dict[str, Any] = plan["changes"]
    return changes


def whole(changes: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [dict(zip(changes["columns"], each, strict=True)) for each in changes[kind]]


@settings(max_examples=5)
@given(first=rows_of, second=rows_of, source=rows_of, strategy=st.sampled_from(sorted(oracle.TRUTH)))
def test_a_dry_run_shows_the_rows_that_change(
    workspace: Workspace, first: Any, second: Any, source: Any, strategy: str
) -> None:
    before = [rows_from(first), rows_from(second)]
    rows = rows_from(source)
    dataset = made(workspace, before[0])
    load(workspace, dataset, inline(before[1]), "append")
    outcome = oracle.merge([(str(n), each) for n, each in enumerate(before)], rows, strategy, ["id"])
    new = {each["id"]: each for each in rows} if strategy != "delete" else {}
    touched = [before[int(path)][at] for path, positions in outcome.changed.items() for at in positions]
    changes = changes_of(workspace, dataset, rows, strategy)
    assert changes["columns"] == ["id", "name", "n"]
    assert whole(changes, "deleted") == [each for each in touched if each["id"] not in new]
    assert whole(changes, "inserted") == [each for rows_ in outcome.inserts.values() for each in rows_]
    assert changes["updated"] == [
        {
            "key": {"id": old["id"]},
            "cells": [
                {"column": name, "old": old[name], "new": new[old["id"]][name]}
                for name in ("name", "n")
                if old[name] != new[old["id"]][name]
            ],
            "more_cells": 0,
        }
        for old in touched
        if old["id"] in new
    ]


def test_plans_of_append_and_replace_show_inserted_and_deleted_rows(workspace: Workspace) -> None:
    dataset = made(workspace, [row(key, "a") for key in range(30)])
    rows = [row(key, "b") for key in range(40)]
    appended = changes_of(workspace, dataset, rows, "append")
    assert (whole(appended, "inserted"), appended["deleted"]) == (rows[:20], [])
    replaced = load(workspace, dataset, inline(rows), "replace", dry_run=True).result
    assert replaced is not None
    assert whole(replaced["changes"], "inserted") == rows[:20]
    assert whole(replaced["changes"], "deleted") == [row(key, "a") for key in range(20)]
    assert [file["operation"] for file in replaced["files"]] == ["removed"]
    assert (appended["updated"], replaced["changes"]["updated"]) == ([], [])


def test_a_plan_finds_few_changed_rows_among_many(workspace: Workspace) -> None:
    before = [row(key, "same") for key in range(1000)]
    rows = [row(key, "other" if key in (500, 998) else "same") for key in range(1000)]
    dataset = made(workspace, before)
    changes = changes_of(workspace, dataset, rows, "upsert")
    changed = {each["key"]["id"]: each["cells"] for each in changes["updated"]}
    assert changed == {key: [{"column": "name", "old": "same", "new": "other"}] for key in (500, 998)}
    load(workspace, dataset, inline(rows), "upsert")
    assert [each["id"] for each in content(workspace, dataset) if each["name"] == "other"] == [500, 998]


def test_plans_limit_rows_columns_and_text(workspace: Workspace) -> None:
    names = [f"c{number}" for number in range(40)]
    header, text = ",".join(["id", *names]), "x" * 10_000

    def table(last: str) -> Source:
        lines = [",".join([str(key), *[text + last] * len(names)]) for key in range(2)]
        return Source(inline=Inline("csv", "\n".join([header, *lines])))

    job = workspace.create_dataset(NewDataset("Wide and long", table("a"))).wait()
    plan = workspace.load(str(job.dataset_id), Load(table("b"), "upsert", ["id"], dry_run=True)).wait().result
    assert plan is not None
    changed = plan["changes"]["updated"][0]
    assert (len(changed["cells"]), changed["more_cells"]) == (30, 10)
    assert {(cell["old"], cell["new"]) for cell in changed["cells"]} == {("…" + "x" * 40 + "a", "…" + "x" * 40 + "b")}
    plan = workspace.load(str(job.dataset_id), Load(table("b"), "append", dry_run=True)).wait().result
    assert plan is not None
    [one, _] = plan["changes"]["inserted"]
    assert (one[0], one[1], len(one)) == (0, "x" * 200 + "…", 30)


@pytest.mark.parametrize("strategy", ["append", "replace", "upsert"])
@pytest.mark.parametrize("text", ["id,name\n1,a\n", "id,name,n,more\n1,a,1,x\n"])
def test_a_dry_run_rejects_what_the_load_rejects(workspace: Workspace, strategy: str, text: str) -> None:
    dataset = made(workspace, [row(1, "a")])
    for dry_run in (True, False):
        with pytest.raises(SchemaMismatchError):
            load(workspace, dataset, Source(inline=Inline("csv", text)), strategy, dry_run=dry_run)


def test_plans_use_the_column_order_of_the_dataset(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "a", 5)])
    source = Source(inline=Inline("csv", "n,name,id\n6,b,2\n"))
    plan = load(workspace, dataset, source, "append", dry_run=True).result
    assert plan is not None
    assert whole(plan["changes"], "inserted") == [row(2, "b", 6)]
