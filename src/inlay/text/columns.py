"""The columns of a file: their detected types, the types that users or a dataset set, and wider types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from inlay.errors import InvalidArgumentError, did_you_mean
from inlay.text.cells import check_readable
from inlay.text.inference import NULL, TEXT, Kind, join, order_of
from inlay.text.reader import Column, Survey

__all__ = ["Override", "join_kinds", "no_column", "plan_columns", "widened"]

Override: TypeAlias = pa.DataType | pa.Field  # a field also says whether NULLs are allowed and how long text may be


def plan_columns(survey: Survey, overrides: Mapping[str, Override], like: pa.Schema | None) -> list[Column]:
    """Return the columns with detected types, overrides, or the types of the target schema `like`."""
    if survey.schema is not None:
        stored = set(survey.schema.names)
        return [Column.chosen(field, NULL) for field in like or () if field.name in stored]
    kinds = survey.kinds
    if survey.options.format == "json":  # a field that the sample lacks may come later, or is NULL
        names = [*(like.names if like is not None else []), *kinds, *overrides]
        kinds = {name: kinds.get(name, NULL) for name in names}
    if unknown := [name for name in overrides if name not in kinds]:
        raise no_column(unknown[0], kinds)
    chosen = {field.name: field for field in like or ()} | {n: _as_field(n, type_) for n, type_ in overrides.items()}
    columns = []
    for name, kind in kinds.items():
        if name in chosen:
            if survey.options.format == "csv":
                check_readable(name, chosen[name].type)
            column = Column.chosen(chosen[name], _ordered(kind, survey.options.day_first))
            columns.append(replace(column, is_expected=name in overrides and name not in survey.kinds))
        else:
            columns.append(Column.inferred(name, kind))
    return columns


def no_column(name: str, known: Iterable[str]) -> InvalidArgumentError:
    names = list(known)
    return InvalidArgumentError(
        f"Cannot set a type for {name!r}: the file has no such column. Columns: {', '.join(map(repr, names))}.",
        hint=did_you_mean(name, names),
    )


def _as_field(name: str, override: Override) -> pa.Field:
    return pa.field(name, override) if isinstance(override, pa.DataType) else override.with_name(name)


def _ordered(kind: Kind, day_first: bool | None) -> Kind:
    """Return the kind with the order of day and month that the option day_first sets."""
    return kind if day_first is None else replace(kind, form=order_of(day_first))


def widened(
    columns: Sequence[Column], met: Sequence[Mapping[str, Kind]], blocked: Sequence[Mapping[str, Kind]]
) -> list[Column]:
    """Widen the columns to hold every kind that splits have `met`; append new columns.

    `blocked` are the kinds of the splits that could not be parsed with these columns.
    """
    met_kinds, blocked_kinds = join_kinds(met), join_kinds(blocked)
    wider = []
    for column in columns:
        is_met = column.name in met_kinds and not column.fixed
        new = column.widened(met_kinds[column.name]) if is_met else column
        # A split needs a wider type and there is none: text holds every value.
        stuck = is_met and column.name in blocked_kinds and new.type.equals(column.type) and not column.is_open
        wider.append(Column.inferred(column.name, TEXT) if stuck else new)
    known = {column.name for column in columns}
    return wider + [Column.inferred(name, kind) for name, kind in met_kinds.items() if name not in known]


def join_kinds(findings: Sequence[Mapping[str, Kind]]) -> dict[str, Kind]:
    met: dict[str, Kind] = {}
    for finding in findings:
        for name, kind in finding.items():
            met[name] = join(met[name], kind) if name in met else kind
    return met
