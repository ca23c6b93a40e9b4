"""Which columns tell the rows of a dataset apart: those of its last load by key, and those that are unique in it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from inlay.catalog import Catalog
from inlay.errors import QueryError
from inlay.query import QueryEngine
from inlay.query.statements import quoted

__all__ = ["KeyAdvice", "advise_keys"]

_MOST_COLUMNS = 60  # that are looked at
_MOST_COUNTED = 5  # of which values are counted exactly
_MOST_PAIRED = 5
_NEARLY = 0.9  # distinct values are estimated first, to some per cent
_LIKE_A_KEY = re.compile(
    r"(?i:(?:^|[_ ])(?:id|key|code|uuid|guid|nr|no|num|number|sku)$)|[a-z](?:I[dD]|Key|Code|N[or])$"
)
_types: Any = pa.types


@dataclass(frozen=True, slots=True)
class KeyAdvice:
    remembered: tuple[str, ...]  # key columns of the last load that had any
    unique: tuple[tuple[str, ...], ...]  # best first; where no column is unique by itself, a pair

    @property
    def best(self) -> tuple[str, ...]:
        return self.remembered or next(iter(self.unique), ())


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    distinct: int  # about
    rank: tuple[bool, bool, int]


def advise_keys(catalog: Catalog, queries: QueryEngine, dataset_id: str) -> KeyAdvice:
    """What the data says, as far as it can be found out within the limits of a query."""
    dataset = catalog.datasets.get(dataset_id)
    unique = _Counter(queries, dataset.table_name).unique(dataset.schema)
    return KeyAdvice(_remembered(catalog, dataset_id, dataset.schema), unique)


def _remembered(catalog: Catalog, dataset_id: str, schema: pa.Schema) -> tuple[str, ...]:
    for version in catalog.versions.list(dataset_id).items:
        names = version.source.get("key_columns")
        if names and set(names) <= set(schema.names):
            return tuple(names)
    return ()


class _Counter:
    """Counts the values of a table's columns. What a query may not find out stays unknown."""

    def __init__(self, queries: QueryEngine, table_name: str) -> None:
        self._queries, self._table = queries, f'datasets."{table_name}"'

    def unique(self, schema: pa.Schema) -> tuple[tuple[str, ...], ...]:
        rows, candidates = self._candidates(schema)
        alone = [(each.name,) for each in candidates if each.distinct >= _NEARLY * rows][:_MOST_COUNTED]
        found = [names for names in alone if self._distinct(names) == rows]
        if found:
            return tuple(found)
        pairs = (names for names in _pairs(candidates, rows) if self._distinct(names) == rows)
        return tuple(itertools.islice(pairs, 1))

    def _candidates(self, schema: pa.Schema) -> tuple[int, list[_Candidate]]:
        """Columns without NULL that may be keys, best first."""
        fields = [field for field in schema if _can_be_key(field.type)][:_MOST_COLUMNS]
        counts = [f"count({quoted(field.name)}), approx_distinct({quoted(field.name)})" for field in fields]
        told = self._ask(f"count(*), {', '.join(counts)}", self._table) if fields else None
        if told is None or not told[0]:
            return 0, []
        counted = zip(fields, told[1::2], told[2::2], strict=True)
        full = [(field, distinct) for field, count, distinct in counted if count == told[0]]
        found = [_Candidate(field.name, distinct, _rank(field, at)) for at, (field, distinct) in enumerate(full)]
        return told[0], sorted(found, key=lambda each: each.rank)

    def _distinct(self, names: Sequence[str]) -> int | None:
        columns = ", ".join(map(quoted, names))
        told = self._ask("count(*)", f"(SELECT DISTINCT {columns} FROM {self._table})")  # noqa: S608
        return None if told is None else told[0]

    def _ask(self, what: str, where: str) -> list[int] | None:
        try:
            with self._queries.run(f"SELECT {what} FROM {where}") as result:  # noqa: S608  (names are quoted)
                return [column[0].as_py() for column in result.read_all().columns]
        except QueryError:
            return None


def _pairs(candidates: Sequence[_Candidate], rows: int) -> Iterator[tuple[str, str]]:
    """Pairs with enough different values, out of the columns that have most of them."""
    richest = sorted(candidates, key=lambda each: -each.distinct)[:_MOST_PAIRED]
    pairs = itertools.combinations(richest, 2)
    enough = [(one, two) for one, two in pairs if one.distinct * two.distinct >= _NEARLY * rows]
    for first, second in sorted(enough, key=lambda pair: sorted(each.rank for each in pair)):
        yield (first.name, second.name) if first.rank < second.rank else (second.name, first.name)


def _rank(field: pa.Field, at: int) -> tuple[bool, bool, int]:
    """What is named like a key comes first, then numbers and text, each in the order of the columns."""
    plain = _types.is_integer(field.type) or _is_text(field.type)
    return not _LIKE_A_KEY.search(field.name), not plain, at


def _is_text(type_: pa.DataType) -> bool:
    return bool(_types.is_string(type_) or _types.is_large_string(type_) or _types.is_string_view(type_))


def _can_be_key(type_: pa.DataType) -> bool:
    """Floats are measured, not given; nested values and truths identify nothing."""
    if _types.is_dictionary(type_):
        return _can_be_key(type_.value_type)
    plain = _types.is_integer(type_) or _is_text(type_) or _types.is_decimal(type_)
    return bool(plain or _types.is_date(type_) or _types.is_timestamp(type_) or _types.is_binary(type_))
