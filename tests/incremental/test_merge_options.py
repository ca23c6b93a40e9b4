"""The options of a merge, checked before anything is read."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from inlay.errors import InvalidArgumentError
from inlay.incremental.strategies import STRATEGIES
from inlay.incremental.validate import MergeOptions


def checked(**options: Any) -> MergeOptions:
    return MergeOptions.check("upsert", ["id"], **options)


def test_options_keep_the_arguments() -> None:
    chosen = MergeOptions.check(
        "deduplicate", ("a", "b"), ["p"], compression="zstd", max_rows_per_file=10, row_group_size=5,
        schema_mode="evolve", dedup_order_by=["b", "c"], progress=print, missing_columns="keep",
    )  # fmt: skip
    assert chosen == MergeOptions(
        STRATEGIES["deduplicate"], ["a", "b"], ["p"], "zstd", 10, 5, "evolve", ["b", "c"], print, "keep"
    )


def test_a_strategy_can_be_an_enum_member() -> None:
    class Wanted(Enum):
        ALL = "full_merge"

    chosen = MergeOptions.check(Wanted.ALL, ["id"])  # type: ignore[arg-type]
    assert chosen.strategy is STRATEGIES["full_merge"]


def test_a_single_column_name_is_a_list_of_one() -> None:
    alone = MergeOptions.check("deduplicate", "id", "p", dedup_order_by="at")
    assert (alone.key_columns, alone.partition_columns, alone.dedup_order_by) == (["id"], ["p"], ["at"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, None),  # as the dataset is
        ({"partition_columns": []}, []),  # not at all
        ({"partition_by": ["p"]}, ["p"]),
        ({"partition_by": []}, []),
        ({"partition_by": ["p", "q"], "partition_columns": ("p", "q")}, ["p", "q"]),
        ({"partition_by": iter(["p"]), "partition_columns": "p", "operation_column": "o", "newer_by": "n"}, ["p"]),
    ],
)
def test_partition_columns_can_be_none_empty_or_names(arguments: dict[str, Any], expected: list[str] | None) -> None:
    assert checked(**arguments).partition_columns == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition_columns": "op", "operation_column": "op"}, "The operation column 'op' cannot also be"),
        ({"partition_columns": iter(["n"]), "operation_column": "op", "newer_by": "n"}, "The newer_by column 'n'"),
        ({"scope": {"day": ["2025-01-01"]}}, "scope needs strategy"),
        ({"compression": "zzz"}, "compression"),
        ({"row_group_size": 0}, "row_group_size"),
        ({"max_rows_per_file": 0}, "max_rows_per_file"),
        ({"schema_mode": "loose"}, "schema_mode"),
        ({"partition_by": ["p"], "partition_columns": ["q"]}, "partition_by and partition_columns differ"),
        ({"partition_columns": ["p", "p"]}, "The partition column 'p' occurs twice in the list"),
        ({"dedup_order_by": ["a"]}, "dedup_order_by"),
    ],
)
def test_invalid_options_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        checked(**arguments)


def test_a_column_name_is_not_a_list_of_characters() -> None:
    chosen = MergeOptions.check("deduplicate", "id", dedup_order_by="lsno", operation_column="o")
    assert (chosen.dedup_order_by, chosen.operation_column) == (["lsno"], "o")
    for order in ("op", ["op"], iter(["op"])):
        with pytest.raises(InvalidArgumentError, match="The operation column 'op' cannot also be"):
            MergeOptions.check("deduplicate", "id", dedup_order_by=order, operation_column="op")


def test_the_values_of_a_scope_become_lists() -> None:
    assert MergeOptions.check("delete", "id", scope={"day": iter("ab")}).scope == {"day": ["a", "b"]}
    for scope in ({}, {"day": []}):
        with pytest.raises(InvalidArgumentError, match="scope"):
            MergeOptions.check("delete", "id", scope=scope)
