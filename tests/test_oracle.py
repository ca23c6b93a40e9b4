"""The oracle by itself: small merges worked out by hand."""

import math

import pytest

from tests import oracle

TARGET = [
    ("a", [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]),
    ("b", [{"id": 3, "v": "c"}, {"id": None, "v": "n"}]),
]
SOURCE = [{"id": 2, "v": "b"}, {"id": 3, "v": "X"}, {"id": 9, "v": "new"}]
COUNTS = {  # inserted, updated, deleted, unchanged, after
    "insert": (1, 0, 0, 0, 5),
    "update": (0, 2, 0, 1, 4),
    "upsert": (1, 2, 0, 1, 5),
    "full_merge": (1, 2, 2, 1, 3),
    "deduplicate": (1, 2, 0, 1, 5),
}


@pytest.mark.parametrize("strategy", COUNTS)
def test_counts(strategy):
    out = oracle.merge(TARGET, SOURCE, strategy, ["id"])
    assert (out.inserted, out.updated, out.deleted, out.unchanged, out.after) == COUNTS[strategy]
    assert len(out.rows()) == out.after


def test_rows_stay_in_place_and_equal_files_untouched():
    out = oracle.merge(TARGET, SOURCE, "upsert", ["id"])
    assert out.files["b"] == [{"id": 3, "v": "X"}, {"id": None, "v": "n"}]
    assert (out.untouched, out.rewritten, out.emptied) == ({"a"}, {"b"}, set())


def test_an_empty_source_empties_all_under_full_merge():
    out = oracle.merge(TARGET, [], "full_merge", ["id"])
    assert (out.deleted, out.after, out.emptied) == (4, 0, {"a", "b"})
    assert out.one_empty_file_stays


def test_keys_and_bits():
    target = [("a", [{"id": 0.0}, {"id": math.nan}])]
    out = oracle.merge(target, [{"id": -0.0}, {"id": math.nan}], "upsert", ["id"])
    assert (out.updated, out.unchanged, out.inserted, out.touched) == (2, 1, 0, {"a"})
    assert oracle.key_part("é") != oracle.key_part("e\u0301")


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ([{"id": None, "v": ""}], "null-key"),
        ([{"id": 1, "v": ""}, {"id": 1, "v": ""}], "duplicate-key"),
        ([{"id": 1, "v": "elsewhere"}], "partition-move"),
    ],
)
def test_refusals(source, kind):
    with pytest.raises(oracle.RefusedError, match=kind):
        oracle.merge(TARGET, source, "upsert", ["id"], partitions=["v"])


def test_insert_with_a_key_of_another_partition():
    assert oracle.merge(TARGET, [{"id": 1, "v": "elsewhere"}], "insert", ["id"], ["v"]).inserted == 0


def test_deduplication_orders_nulls_lowest_and_ties_by_position():
    rows = [{"id": 1, "at": 2, "n": 0}, {"id": 1, "at": None, "n": 1}, {"id": 1, "at": 2, "n": 2}]
    assert oracle.deduplicated(rows, ["id"], ["at"]) == [rows[2]]
    assert oracle.deduplicated(rows[:2], ["id"], ["at"]) == [rows[0]]
    assert oracle.deduplicated(rows[:2], ["id"], []) == [rows[1]]
