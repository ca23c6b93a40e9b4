"""Suggested key columns, compared with counting in plain Python."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.workspace import Inline, Load, NewDataset, Source, Workspace

pytestmark = pytest.mark.spark


def stored(workspace: Workspace, table: pa.Table, label: str = "Keys") -> str:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    with workspace.receive("application/vnd.apache.parquet") as writer:
        writer.write(sink.getvalue().to_pybytes())
        upload_id = writer.finish().id
    return str(workspace.create_dataset(NewDataset(label, Source(upload_id=upload_id))).wait().dataset_id)


def is_key(rows: list[tuple[Any, ...]]) -> bool:
    return None not in itertools.chain(*rows) and len(set(rows)) == len(rows)


@settings(max_examples=6)
@given(rows=st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abcd"), st.integers(0, 3)), min_size=1, max_size=8))
def test_suggestions_are_exactly_the_unique_columns(workspace: Workspace, rows: list[Any]) -> None:
    columns = {"n": 0, "text": 1, "small": 2}
    dataset_id = stored(workspace, pa.table({name: [row[at] for row in rows] for name, at in columns.items()}))
    unique = workspace.advise_keys(dataset_id).unique
    alone = {(name,) for name, at in columns.items() if is_key([(row[at],) for row in rows])}
    if alone:
        assert set(unique) == alone
        return
    pairs = itertools.combinations(columns, 2)
    possible = {pair for pair in pairs if is_key([tuple(row[columns[name]] for name in pair) for row in rows])}
    assert len(unique) == min(1, len(possible))
    assert set(unique) <= possible


def test_key_names_rank_first_and_unsuitable_types_are_excluded(workspace: Workspace) -> None:
    count = 5_000
    table = pa.table(
        {
            "price": pa.array(range(count), pa.float64()),
            "at": pa.array(range(count), pa.timestamp("us")),
            "sometimes": [None, *range(1, count)],
            "many": [[number] for number in range(count)],
            'the "name"': [f"name {number}" for number in range(count)],
            "orderId": range(count),
            "nearly_id": [0, *range(count - 1)],
        }
    )
    advice = workspace.advise_keys(stored(workspace, table))
    assert advice.unique == (("orderId",), ('the "name"',), ("at",))
    assert (advice.last_used, advice.best) == ((), ("orderId",))


@pytest.mark.on_servers
def test_the_key_of_the_last_load_is_suggested(workspace: Workspace) -> None:
    made = NewDataset("Remembered", Source(inline=Inline("csv", "id,a,b\n1,x,1\n2,x,2\n")))
    dataset_id = str(workspace.create_dataset(made).wait().dataset_id)
    assert workspace.advise_keys(dataset_id).best == ("id",)
    more = Source(inline=Inline("csv", "id,a,b\n3,y,1\n"))
    workspace.load(dataset_id, Load(more, "upsert", ["a", "b"])).wait()
    workspace.load(dataset_id, Load(more, "append")).wait()
    advice = workspace.advise_keys(dataset_id)
    assert (advice.last_used, advice.best) == (("a", "b"), ("a", "b"))
    assert advice.unique == ()


def test_an_empty_dataset_has_no_suggestions(workspace: Workspace) -> None:
    made = NewDataset("Nothing yet", Source(inline=Inline("csv", "id\n")), columns=[("id", "bigint")])
    dataset_id = str(workspace.create_dataset(made).wait().dataset_id)
    assert workspace.advise_keys(dataset_id).best == ()
