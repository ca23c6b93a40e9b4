"""Rows selected by a condition: statistics exclude row groups, and the columns that the condition names are read.

A guarantee is what a path or a footer proves about all rows of a file or row group, as an expression. Arrow drops the
files and row groups whose guarantee contradicts the condition.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.arrays import from_integers, to_numpy
from inlay.conditions import parse_condition
from inlay.engines.base import NO_ROWS, FileMatch, GroupMatch, RowNumbers, Target
from inlay.engines.keys import canonical_type, contiguous
from inlay.engines.matching import OpenTarget, open_target
from inlay.errors import InvalidArgumentError, did_you_mean, short_repr
from inlay.parquet.footers import bound_arrays, group_ranges, read_row_group
from inlay.schema import family, lossless_cast, null_column, storage_type
from inlay.storage import Location
from inlay.type_grammar import type_name

__all__ = ["Condition", "Selection", "bound_guarantees", "comparable_schema", "require_condition", "select_rows"]

Condition: TypeAlias = str | pc.Expression

# Arrow compares values of these families in the order of their statistics. NaN is not in the range of a float column.
_ORDERED = frozenset({"integer", "decimal", "text", "zoned timestamp", "naive timestamp", "date", "time"})
_NO_KERNEL = re.compile(r"Function '(\w+)' has no kernel matching input types \((.*?)\)")
_MAX_NAMED = 5  # columns in an error
_MAX_TEXT = 200  # characters of an expression in an error
_HINT = 'Pass SQL text such as "day < \'2025-01-01\'", or an expression such as pyarrow.compute.field("price") > 2.'


@dataclass(frozen=True)
class Selection:
    """A condition on rows, with the columns that it names in the types in which they are compared.

    A row for which the condition is NULL is not selected.
    """

    expression: pc.Expression
    schema: pa.Schema

    @classmethod
    def of(cls, condition: Condition, schema: pa.Schema) -> Selection:
        """Check a condition on the columns of a dataset."""
        plain = comparable_schema(schema)
        require_condition(condition)
        expression = parse_condition(condition, plain) if isinstance(condition, str) else condition
        _require_names(expression)
        _require_boolean(expression, plain)
        names = _named_columns(expression, plain) or plain.names[:1]
        return cls(expression, pa.schema([plain.field(name) for name in names]))

    def bounded(self, schemas: Iterable[pa.Schema]) -> list[pa.Field]:
        """Return the columns whose statistics exclude files with these schemas.

        Statistics of floats do not tell whether there is NaN. Those of another type may have another scale.
        """

        def is_bounded(field: pa.Field) -> bool:
            own = {family(schema.field(field.name).type) for schema in schemas if field.name in schema.names}
            return own == {family(field.type)} and own <= _ORDERED

        return [field for field in self.schema if is_bounded(field)]

    def path_guarantees(self, constants: Mapping[str, pa.Scalar]) -> list[pc.Expression]:
        """Return what the values in a path prove."""
        fields = [field for field in self.schema if field.name in constants]
        return [_is_value(field.name, constants[field.name], field.type) for field in fields]

    def possible_groups(self, file: OpenTarget) -> list[int]:
        """Return the row groups of a file that may contain a selected row."""
        rows, constants = file.group_rows, file.target.constants
        lacking = [name for name in self.schema.names if name not in file.schema.names and name not in constants]
        always = self.path_guarantees(constants) + [pc.field(name).is_null() for name in lacking]
        found = [list(always) for _ in rows]
        for field in self.bounded([file.schema]):
            if field.name not in constants:
                ranges = group_ranges(file.metadata, field.name, file.schema.field(field.name).type)
                nulls = from_integers([each.null_count for each in ranges], pa.int64())
                for group, each in enumerate(bound_guarantees(field.name, *bound_arrays(ranges, field.type), nulls)):
                    found[group] += each
        allowed = self.allows(found)
        return [group for group, count in enumerate(rows) if count and allowed[group]]

    def allows(self, guarantees: Sequence[Sequence[pc.Expression]]) -> list[bool]:
        """Return for each list of guarantees whether the condition can be true where all of them are."""
        import pyarrow.dataset as ds  # a slow import: it imports pandas if pandas is installed
        from pyarrow.fs import LocalFileSystem

        file_format, files = ds.ParquetFileFormat(), LocalFileSystem()  # only proofs: no file is opened
        fragments = [
            file_format.make_fragment(str(at), files, partition_expression=reduce(and_, each, pc.scalar(True)))
            for at, each in enumerate(guarantees)
        ]
        dataset = ds.FileSystemDataset(fragments, self.schema, file_format, files)
        allowed = {fragment.path for fragment in dataset.get_fragments(filter=self.expression)}
        return [str(at) in allowed for at in range(len(fragments))]

    def rows(self, table: pa.Table) -> RowNumbers:
        """Return the numbers of the selected rows of a table with the columns of the condition."""
        columns = [lossless_cast(table.column(field.name), field.type, field.name) for field in self.schema]
        values = _evaluate(self.expression, pa.Table.from_arrays(columns, schema=self.schema))
        return np.flatnonzero(to_numpy(contiguous(values).fill_null(False)))

    def read(self, location: Location, file: OpenTarget, group: int) -> pa.Table:
        """Read the columns that the condition names. Those in the path of the file are constants."""
        rows, constants = file.group_rows[group], file.target.constants
        stored = [name for name in self.schema.names if name in file.schema.names and name not in constants]
        # pyarrow reads a name with a dot as the path of a nested column.
        names = None if any("." in name for name in stored) else stored
        table = read_row_group(location, file.target.path, file.metadata, group, names) if stored else None
        columns = {field.name: null_column(rows, field.type) for field in self.schema}
        columns |= {name: pa.repeat(value, rows) for name, value in constants.items() if name in columns}
        columns |= {} if table is None else {name: table.column(name) for name in stored}
        return pa.table(columns)


def select_rows(location: Location, selection: Selection, target: Target) -> FileMatch:
    """Find the rows of a data file that a condition selects."""
    file = open_target(location, target)
    possible = selection.possible_groups(file)
    found = [(group, _select(location, selection, file, group)) for group in possible]
    groups = [GroupMatch(group, file.group_rows[group], rows, NO_ROWS) for group, rows in found if len(rows)]
    return FileMatch(target.path, file.group_rows, len(possible), groups)


def _select(location: Location, selection: Selection, file: OpenTarget, group: int) -> RowNumbers:
    try:
        return selection.rows(selection.read(location, file, group)).astype(np.int32)
    except pa.ArrowException as error:
        raise InvalidArgumentError(
            f"The condition cannot be evaluated on row group {group} of {location.display(file.target.path)!r}:"
            f" {_first_line(error)}",
            hint="Change the condition, so that it can be computed for every row.",
        ) from error


# ---------------------------------------------------------------------------------------------------------- checks
def comparable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns in the types in which conditions compare them."""
    return pa.schema([(field.name, _comparable_type(field.type)) for field in schema])


def _comparable_type(type_: pa.DataType) -> pa.DataType:
    """Return the plain type of a column, one that Arrow can compare. Times keep their time zone."""
    plain = storage_type(type_)
    return plain if family(plain) == "zoned timestamp" else canonical_type(plain)


def require_condition(condition: Any) -> None:
    if not isinstance(condition, str | pc.Expression):
        raise InvalidArgumentError(
            f"A condition must be SQL text or a pyarrow expression, not {type(condition).__name__}.", hint=_HINT
        )


def _require_names(expression: pc.Expression) -> None:
    """Reject columns by position. Arrow can send only names to other processes."""
    try:
        pickle.dumps(expression)
    except pa.ArrowException as error:
        raise InvalidArgumentError(
            f"Invalid condition {_text(expression)}: {_first_line(error)}.", hint="Refer to each column by its name."
        ) from error


def _require_boolean(expression: pc.Expression, schema: pa.Schema) -> None:
    try:
        type_ = _evaluate(expression, schema.empty_table()).type
    except pa.ArrowException as error:
        raise _unbound_error(expression, schema, error) from error
    if not pa.types.is_boolean(type_):
        raise InvalidArgumentError(f"The condition {_text(expression)} is {type_}, not true or false.", hint=_HINT)


def _unbound_error(expression: pc.Expression, schema: pa.Schema, error: Exception) -> InvalidArgumentError:
    unknown = _first_line(error).partition("No match for FieldRef.Name(")[2].partition(") in ")[0]
    if unknown and unknown not in schema.names:
        hint = did_you_mean(unknown, schema.names) or f"The columns are: {', '.join(schema.names[:20])}."
        return InvalidArgumentError(f"Invalid condition: there is no column {short_repr(unknown)}.", hint=hint)
    if found := _NO_KERNEL.search(str(error)):
        named = [f for f in schema if re.search(rf"(?<!\w){re.escape(f.name)}(?!\w)", str(expression))]
        types = "".join(f" Column {field.name!r} is {type_name(field.type)}." for field in named[:_MAX_NAMED])
        reason = f"the function {found[1]} has no meaning for the types {found[2]}.{types}"
        return InvalidArgumentError(
            f"Invalid condition {_text(expression)}: {reason}", hint="Compare values of one type."
        )
    return InvalidArgumentError(f"Invalid condition {_text(expression)}: {_first_line(error)}", hint=_HINT)


def _text(expression: pc.Expression) -> str:
    text = " ".join(str(expression).split())
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _named_columns(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """Return the columns that an expression names: those without which Arrow cannot resolve it."""

    def resolves(names: Sequence[str]) -> bool:
        try:
            _evaluate(expression, schema.empty_table().select(list(names)))
        except pa.ArrowException:
            return False
        return True

    def needed(names: Sequence[str], others: Sequence[str]) -> list[str]:
        """Return the needed columns among `names`, if `names` and `others` together are enough."""
        if resolves(others):
            return []
        if len(names) == 1:
            return list(names)
        left, right = names[: len(names) // 2], names[len(names) // 2 :]
        found = needed(left, [*others, *right])
        return found + needed(right, [*others, *found])

    return needed(schema.names, [])


def _evaluate(expression: pc.Expression, table: pa.Table) -> pa.ChunkedArray:
    """Compute an expression for each row of a table."""
    from pyarrow import acero  # imports pyarrow.dataset

    rows = table if table.num_columns else pa.table({"": pa.nulls(table.num_rows)})
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]), [source])
    return project.to_table(use_threads=False).column("value")


# ------------------------------------------------------------------------------------------------------ guarantees
def bound_guarantees(
    name: str, lows: pa.Array, highs: pa.Array, exact: npt.NDArray[np.bool_], nulls: pa.Array
) -> Iterator[list[pc.Expression]]:
    """Yield what the bounds of a column prove about each file or row group."""
    column = pc.field(name)
    for low, high, is_exact, null_count in zip(lows, highs, exact, nulls, strict=True):
        if not is_exact:
            yield []
        elif low.is_valid and high.is_valid:
            bounds = [column >= low, column <= high]
            yield bounds if null_count.as_py() == 0 else [bound | column.is_null() for bound in bounds]
        else:
            yield [column.is_null()] if low.is_valid == high.is_valid else []


def _is_value(name: str, value: pa.Scalar, type_: pa.DataType) -> pc.Expression:
    column = pc.field(name)
    return column == value.cast(type_) if value.is_valid else column.is_null()
