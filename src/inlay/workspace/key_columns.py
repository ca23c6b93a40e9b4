"""Suggestions for key columns: those of the last load by key, and unique columns."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from inlay.catalog import Catalog
from inlay.errors import QueryError
from inlay.query import QueryEngine
from inlay.query.sql import quoted

__all__ = ["KeyAdvice", "advise_keys"]


_MAX_COLUMNS = 60
_MAX_EXACT_COUNTS = 5
_MAX_PAIRED = 5
_MIN_DISTINCT_SHARE = 0.9  # of an approximate count, which has an error of some percent
_KEY_NAME = re.compile(r"(?i:(?:^|[_ ])(?:id|key|code|uuid|guid|nr|no|num|number|sku)$)|[a-z](?:I[dD]|Key|Code|N[or])$")


@dataclass(frozen=True, slots=True)
class KeyAdvice:
    """Suggested key columns of a dataset."""

    last_used: tuple[str, ...]  # key columns of the last load by key
    unique: tuple[tuple[str, ...], ...]  # unique columns, best first, or else a unique pair of columns

    @property
    def best(self) -> tuple[str, ...]:
        return self.last_used or next(iter(self.unique), ())


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    distinct: int  # approximate
    rank: tuple[bool, bool, int]


def advise_keys(catalog: Catalog, queries: QueryEngine, dataset_id: str) -> KeyAdvice:
    """Suggest key columns, as far as queries within the service's limits can find them."""
    dataset = catalog.datasets.get(dataset_id)
    unique = _Counter(queries, dataset.table_name).unique(dataset.schema)
    return KeyAdvice(_last_used(catalog, dataset_id, dataset.schema), unique)


def _last_used(catalog: Catalog, dataset_id: str, schema: pa.Schema) -> tuple[str, ...]:
    for version in catalog.versions.list(dataset_id).items:
        names = version.source.get("key_columns")
        if names and set(names) <= set(schema.names):
            return tuple(names)
    return ()


class _Counter:
    """Counts distinct values with queries. A count that exceeds a query limit is unknown."""

    def __init__(self, queries: QueryEngine, table_name: str) -> None:
        self._queries, self._table = queries, f'datasets."{table_name}"'

    def unique(self, schema: pa.Schema) -> tuple[tuple[str, ...], ...]:
        rows, candidates = self._candidates(schema)
        alone = [(each.name,) for each in candidates if each.distinct >= _MIN_DISTINCT_SHARE * rows][:_MAX_EXACT_COUNTS]
        found = [names for names in alone if self._distinct(names) == rows]
        if found:
            return tuple(found)
        pairs = (names for names in _pairs(candidates, rows) if self._distinct(names) == rows)
        return tuple(itertools.islice(pairs, 1))

    def _candidates(self, schema: pa.Schema) -> tuple[int, list[_Candidate]]:
        """Return the row count, and the columns without NULL that can be keys, best first."""
        fields = [field for field in schema if _can_be_key(field.type)][:_MAX_COLUMNS]
        counts = [f"count({quoted(field.name)}), approx_distinct({quoted(field.name)})" for field in fields]
        values = self._query(f"count(*), {', '.join(counts)}", self._table) if fields else None
        if values is None or not values[0]:
            return 0, []
        counted = zip(fields, values[1::2], values[2::2], strict=True)
        full = [(field, distinct) for field, count, distinct in counted if count == values[0]]
        found = [_Candidate(field.name, distinct, _rank(field, at)) for at, (field, distinct) in enumerate(full)]
        return values[0], sorted(found, key=lambda each: each.rank)

    def _distinct(self, names: Sequence[str]) -> int | None:
        columns = ", ".join(map(quoted, names))
        values = self._query("count(*)", f"(SELECT DISTINCT {columns} FROM {self._table})")  # noqa: S608
        return None if values is None else values[0]

    def _query(self, expressions: str, table: str) -> list[int] | None:
        try:
            with self._queries.run(f"SELECT {expressions} FROM {table}") as result:  # noqa: S608  (names are quoted)
                return [column[0].as_py() for column in result.read_all().columns]
        except QueryError:
            return None


def _pairs(candidates: Sequence[_Candidate], rows: int) -> Iterator[tuple[str, str]]:
    """Yield pairs of columns that may be unique together, best first."""
    richest = sorted(candidates, key=lambda each: -each.distinct)[:_MAX_PAIRED]
    pairs = itertools.combinations(richest, 2)
    enough = [(one, two) for one, two in pairs if one.distinct * two.distinct >= _MIN_DISTINCT_SHARE * rows]
    for first, second in sorted(enough, key=lambda pair: sorted(each.rank for each in pair)):
        yield (first.name, second.name) if first.rank < second.rank else (second.name, first.name)


def _rank(field: pa.Field, at: int) -> tuple[bool, bool, int]:
    """Rank names that look like keys first, then integers and text, each in column order."""
    plain = pa.types.is_integer(field.type) or _is_text(field.type)
    return not _KEY_NAME.search(field.name), not plain, at


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _can_be_key(type_: pa.DataType) -> bool:
    """Return whether a type suits a key: floats, booleans and nested values do not."""
    if pa.types.is_dictionary(type_):
        return _can_be_key(type_.value_type)
    plain = pa.types.is_integer(type_) or _is_text(type_) or pa.types.is_decimal(type_)
    return bool(plain or pa.types.is_date(type_) or pa.types.is_timestamp(type_) or pa.types.is_binary(type_))
