"""Conditions on the rows of a dataset: which rows a deletion selects, and which rows a scope contains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.arrays import from_numpy, to_numpy
from inlay.conditions import match_values
from inlay.engines.absence import absence_column
from inlay.engines.base import NO_ROWS, Engine, FileMatch, RowNumbers, Source
from inlay.engines.keys import contiguous
from inlay.engines.selection import Condition, Selection, comparable_schema
from inlay.errors import OutsideScopeError
from inlay.incremental.display import Reporter
from inlay.incremental.prune import selection_targets
from inlay.incremental.target import TargetState, path_texts
from inlay.incremental.validate import CheckedScope, require_columns, row_text
from inlay.parquet.layout import typed_partition_value
from inlay.storage import Location

__all__ = ["RowCondition", "reject_rows_outside", "reject_stored_outside"]

_MAX_FILES = 5  # files that an error names


@dataclass(frozen=True)
class RowCondition:
    """A condition on the rows of a dataset, and the stored columns whose statistics exclude files."""

    selection: Selection
    bounded: list[str]

    @classmethod
    def of(cls, where: Condition | CheckedScope, target: TargetState, schema: pa.Schema) -> RowCondition:
        """Check that a condition fits the columns of a schema."""
        if not isinstance(where, str | pc.Expression):
            require_columns(where, schema, "the dataset", "scope column")
            where = match_values(where, comparable_schema(schema))
        selection = Selection.of(where, schema)
        return cls(selection, [field.name for field in selection.bounded(target.footers.schemas)])

    @property
    def columns(self) -> list[str]:
        return list(self.selection.schema.names)

    def select(self, target: TargetState, engine: Engine, report: Reporter) -> dict[str, FileMatch]:
        """Find the selected rows in the files that statistics and partitions don't exclude.

        `target` has the bounds of the `bounded` columns.
        """
        targets = selection_targets(target, self.selection)
        report("match", 0, len(targets))
        found = {}
        for done, match in enumerate(engine.select(target.location, self.selection, targets), 1):
            found[match.path] = match
            report("match", done, len(targets))
        return found


# --------------------------------------------------------------------------------------------------------------- scope
def reject_rows_outside(
    source: Source,
    scope: CheckedScope,
    target: TargetState,
    schema: pa.Schema,
    key_columns: Sequence[str],
    *,
    may_lack: bool,
) -> None:
    """Reject source rows that show a value outside the scope. With `may_lack`, rows may lack the scope's columns."""
    for part in _parts(scope):
        condition = RowCondition.of(part, target, schema)
        names = [name for name in condition.columns if name in source.schema.names]
        if not may_lack:
            require_columns(condition.columns, source.schema, "the source", "scope column")
        columns = {name: _typed(name, source.column(name), schema.field(name).type) for name in names}
        lacking = _cells_that_lack(source, condition.columns)
        outside = _rows_outside(condition.selection, columns, lacking)
        if len(outside):
            present = [name for name in names if not lacking[outside[0], condition.columns.index(name)]]
            raise outside_scope(source, outside, key_columns, present, "are outside the scope")


def _cells_that_lack(source: Source, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return for each row and column whether the row lacks the column."""
    found = np.zeros((source.num_rows, len(columns)), np.bool_)
    for at, name in enumerate(columns):
        hidden = absence_column(name)
        if hidden in source.schema.names:
            found[:, at] = to_numpy(source.column(hidden))
        found[:, at] |= name not in source.schema.names
    return found


def _rows_outside(
    selection: Selection, columns: Mapping[str, pa.ChunkedArray], lacking: npt.NDArray[np.bool_]
) -> RowNumbers:
    """Return the rows whose values the selection excludes, whatever the values that the rows lack are."""
    whole = np.flatnonzero(~lacking.any(axis=1))
    outside = NO_ROWS
    if len(whole):
        table = pa.table(dict(columns))
        table = table if len(whole) == len(lacking) else table.take(from_numpy(whole))
        outside = np.delete(whole, selection.rows(table))
    for pattern in np.unique(lacking[lacking.any(axis=1)], axis=0):
        rows = np.flatnonzero((lacking == pattern).all(axis=1))
        fields = [field for field, is_absent in zip(selection.schema, pattern, strict=True) if not is_absent]
        values = {f.name: columns[f.name].take(from_numpy(rows)) for f in fields if not pa.types.is_nested(f.type)}
        if values:
            outside = np.concatenate([outside, rows[_impossible(selection, values)]])
    return np.sort(outside)


def _impossible(selection: Selection, values: Mapping[str, pa.ChunkedArray]) -> npt.NDArray[np.bool_]:
    """Return which rows a selection excludes already because of the values of some of its columns."""
    codes = [to_numpy(contiguous(v).dictionary_encode("encode").indices) for v in values.values()]
    _, first, inverse = np.unique(np.column_stack(codes), axis=0, return_index=True, return_inverse=True)
    rows = ({name: column[row] for name, column in values.items()} for row in first.tolist())
    possible = selection.allows([selection.path_guarantees(row) for row in rows])
    return ~np.array(possible, np.bool_)[inverse.reshape(-1)]


def reject_stored_outside(
    location: Location,
    source: Source,
    matches: Mapping[str, FileMatch],
    inside: Mapping[str, FileMatch],
    key_columns: Sequence[str],
) -> None:
    """Reject source rows whose key the dataset stores outside the scope."""
    outside: dict[str, RowNumbers] = {}
    for path, match in matches.items():
        selected = {group.group: group.positions for group in inside[path].groups} if path in inside else {}
        for group in match.groups:
            rows = group.sources[np.isin(group.positions, selected.get(group.group, NO_ROWS), invert=True)]
            if len(rows):
                outside[path] = np.concatenate([outside.get(path, NO_ROWS), rows])
    if outside:
        files = ", ".join(repr(location.display(path)) for path in list(outside)[:_MAX_FILES])
        more = f" and {len(outside) - _MAX_FILES:,} more files" if len(outside) > _MAX_FILES else ""
        rows = np.unique(np.concatenate(list(outside.values())))
        raise outside_scope(source, rows, key_columns, [], f"have keys outside the scope in {files}{more}")


def outside_scope(
    source: Source, rows: RowNumbers, key_columns: Sequence[str], more: Sequence[str], why: str
) -> OutsideScopeError:
    columns = list(dict.fromkeys([*key_columns, *more]))
    example = row_text(source.take(rows[:1], columns), columns, 0)
    return OutsideScopeError(
        f"Source rows {why}: {len(rows):,}, the first with {example}.",
        hint="Remove these rows, or pass a scope that contains them.",
    )


def _parts(scope: CheckedScope) -> Iterator[CheckedScope]:
    """Split a scope into conditions that a row must all meet."""
    if isinstance(scope, pc.Expression):
        yield scope
    else:
        yield from ({name: values} for name, values in scope.items())


def _typed(name: str, column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Convert the values of a partition column to the type of the paths. A value that does not fit becomes NULL."""
    if column.type.equals(type_):
        return column
    texts = contiguous(path_texts(name, column))
    values = [typed_partition_value(text, type_) for text in texts.dictionary.to_pylist()]
    typed = pa.array([None if value is None else value.as_py() for value in values], type_)
    return pa.chunked_array([typed.take(texts.indices)])
