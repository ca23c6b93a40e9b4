"""Random deletions by a condition against the oracle, and proofs that no selected row is pruned."""

from __future__ import annotations

import math
import operator
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import inlay
from inlay.engines.selection import Selection
from tests import lake, oracle
from tests.arrow_types import array_of
from tests.incremental.test_merge_properties import (
    check_groups,
    check_old_files,
    check_result,
    encoded_groups,
    quiet,
    target_rows,
)
from tests.merge_cases import Case, cases

OPERATORS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt}
# Arrow compares columns of these types with values of the same type.
COMPARABLE = ("int", "uint", "float", "double", "string", "large_string", "date", "time", "decimal128", "decimal256")


class Condition(NamedTuple):
    """An expression, and whether it is true, false or NULL for a row of plain values."""

    expression: pc.Expression
    value: Callable[[oracle.Row], bool | None]


def is_comparable(type_: pa.DataType) -> bool:
    text = str(type_)
    return text.startswith(COMPARABLE) and text not in ("halffloat", "string_view")


@st.composite
def comparisons(draw: st.DrawFn, schema: pa.Schema, table: pa.Table) -> Condition:
    name = draw(st.sampled_from(schema.names))
    field, type_ = pc.field(name), schema.field(name).type
    values = [value for value in table.column(name) if value.is_valid]
    if not values or not is_comparable(type_) or draw(st.integers(0, 5)) == 0:
        is_null = draw(st.booleans())
        return Condition(field.is_null() if is_null else field.is_valid(), lambda row: (row[name] is None) == is_null)
    value = draw(st.sampled_from(values))
    limit = ordered(lake.plain(value))
    if draw(st.integers(0, 4)) == 0 and not pa.types.is_floating(type_):
        found = pa.array([value.as_py()], type_) if not pa.types.is_temporal(type_) else pa.array([value], type_)
        return Condition(field.isin(found), lambda row: row[name] is not None and ordered(row[name]) == limit)
    sign = draw(st.sampled_from(list(OPERATORS)))
    compare = OPERATORS[sign]
    return Condition(
        compare(field, value), lambda row: None if row[name] is None else compare(ordered(row[name]), limit)
    )


def ordered(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def both(left: Condition, right: Condition) -> Condition:
    def value(row: oracle.Row) -> bool | None:
        found = (left.value(row), right.value(row))
        return False if False in found else None if None in found else True

    return Condition(left.expression & right.expression, value)


def negated(part: Condition) -> Condition:
    def value(row: oracle.Row) -> bool | None:
        found = part.value(row)
        return None if found is None else not found

    return Condition(~part.expression, value)


def conditions(schema: pa.Schema, table: pa.Table) -> st.SearchStrategy[Condition]:
    def combine(parts: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
        pairs = st.tuples(parts, parts)
        either = pairs.map(lambda pair: negated(both(negated(pair[0]), negated(pair[1]))))
        unknown = parts.map(lambda p: Condition(p.expression.is_null(), lambda row: p.value(row) is None))
        return pairs.map(lambda pair: both(*pair)) | either | parts.map(negated) | unknown

    return st.recursive(comparisons(schema, table), combine, max_leaves=5)


def rows_of_target(case: Case, root: Path, where: dict[str, Any]) -> pa.Table:
    """Return all rows, with the partition column in the type that inlay infers."""
    tables = []
    kind = pa.int64() if any(isinstance(part, int) for part in where.values()) else pa.string()
    for name, part in where.items():
        table = lake.read_file(root / name)
        tables.append(table.append_column("p", pa.array([part] * len(table), kind)) if case.partitions else table)
    return pa.concat_tables(tables)


@pytest.mark.long_on("duckdb-union", "spark")  # every engine selects rows with the same functions
@quiet
@given(data=st.data())
def test_a_deletion_agrees_with_the_oracle(engine, data):
    case = data.draw(cases().filter(lambda case: case.files))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "d"
        where = case.write(root)
        rows = rows_of_target(case, root, where)
        condition = data.draw(conditions(rows.schema, rows))
        schemas = {name: lake.read_file(root / name).schema for name in where}
        groups = {name: list(encoded_groups(root / name)) for name in where}
        before = lake.photograph(root)
        expected = oracle.delete(target_rows(case, root, where), condition.value)
        event(f"deleted: {bool(expected.deleted)}, all: {not expected.after}")
        assert inlay.plan_delete(str(root), condition.expression, engine=engine).deleted == expected.deleted
        assert lake.photograph(root) == before
        result = inlay.delete(str(root), condition.expression, engine=engine)
        check_result(root, result, expected)
        check_old_files(root, where, expected, schemas, before)
        if case.writer.startswith("pyarrow"):
            check_groups(root, groups, expected)


# ---------------------------------------------------------------------------------------------------------- pruning
NUMBERS = {"a": pa.int64(), "b": pa.int32(), "c": pa.string(), "d": pa.decimal128(9, 2), "e": pa.timestamp("us", "UTC")}


def number(name: str, value: int) -> pa.Scalar:
    if name == "c":
        return pa.scalar(chr(ord("m") + value))
    return (
        pa.scalar(value * 10**6, pa.int64()).cast(NUMBERS[name]) if name == "e" else array_of(NUMBERS[name], [value])[0]
    )


@st.composite
def expressions(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from(list(NUMBERS)))
    field, values = pc.field(name), st.integers(-3, 6)
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return field.is_null()
    if kind == 1:
        return field.isin(
            pa.array([number(name, v).as_py() for v in draw(st.lists(values, max_size=3))], NUMBERS[name])
        )
    if kind == 2 and name in "ab":
        return draw(st.sampled_from(list(OPERATORS.values())))(field.cast(pa.float64()), draw(values) + 0.5)
    return draw(st.sampled_from(list(OPERATORS.values())))(field, number(name, draw(values)))


def nested(parts: st.SearchStrategy[pc.Expression]) -> st.SearchStrategy[pc.Expression]:
    pair, triple = st.tuples(parts, parts), st.tuples(parts, parts, parts)
    return (
        pair.map(lambda p: p[0] & p[1])
        | pair.map(lambda p: p[0] | p[1])
        | parts.map(operator.invert)
        | parts.map(lambda p: p.is_null())
        | parts.map(lambda p: p.is_valid())
        | pair.map(lambda p: pc.coalesce(*p))
        | triple.map(lambda p: pc.if_else(*p))
    )


@quiet
@given(
    expression=st.recursive(expressions(), nested, max_leaves=8),
    rows=st.lists(st.tuples(*[st.none() | st.integers(-2, 5)] * len(NUMBERS)), min_size=1, max_size=4),
)
def test_statistics_never_exclude_a_selected_row(expression, rows):
    """Arrow simplifies the condition with what is known about a row group. This must never lose a row."""
    table = pa.table({
        name: pa.array([None if row[at] is None else number(name, row[at]).as_py() for row in rows], kind)
        for at, (name, kind) in enumerate(NUMBERS.items())
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = lake.write(Path(folder) / "d", {"a.parquet": table}, row_group_size=2)
        selection = Selection.of(expression, table.schema)
        expected = len(selection.rows(table.select(selection.schema.names)))
        plan = inlay.plan_delete(path, expression)
        event(f"selected: {bool(expected)}, searched: {' in 0 of' not in plan.files[0].reason}")
        assert plan.deleted == expected


def test_not_a_number_is_in_no_statistics(tmp_path):
    """Writers leave NaN out of the bounds, so the bounds of float columns exclude no row group."""
    table = pa.table({"x": [1.0, math.nan, 2.0]})
    path = lake.write(tmp_path / "d", {"a.parquet": table})
    assert inlay.plan_delete(path, "x > 5").deleted == 1
    assert inlay.plan_delete(path, ~(pc.field("x") <= 5)).deleted == 1
    assert inlay.plan_delete(path, pc.field("x") > 5).deleted == 0
