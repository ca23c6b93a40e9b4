"""What is in a column: NULLs, distinct values, bounds, and how its values are spread. Two queries for each column."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from inlay.query.cells import text_values
from inlay.query.statements import quoted

__all__ = ["BINS", "EXACT_ROWS", "Bar", "Profile", "Sort", "profile", "sort_of"]

Sort = Literal["number", "moment", "text", "boolean", "other"]
Ask = Callable[[str], pa.Table]
BINS = 20
VALUES = 6
EXACT_ROWS = 2_000_000  # above, distinct values are estimated and frequent values are those of a sample
_SAMPLE_ROWS = 500_000
_WIDEST = 2**62  # whole numbers further apart are counted as doubles
_LONGEST = 200
_is: Any = pa.types


class Bar(NamedTuple):
    """So many rows have this value, or one between these."""

    label: str
    rows: int


@dataclass(frozen=True, slots=True)
class Profile:
    sort: Sort
    rows: int
    nulls: int
    nans: int = 0
    distinct: int | None = None
    low: str | None = None
    high: str | None = None
    mean: float | None = None
    bars: tuple[Bar, ...] = ()
    counted: int = 0  # the rows that the bars are about
    is_exact: bool = True

    @property
    def is_all_different(self) -> bool:
        """Whether no value that was counted comes twice."""
        return self.sort == "text" and self.counted > 1 and self.bars[0].rows == 1


def sort_of(type_: pa.DataType) -> Sort:
    if _is.is_integer(type_) or _is.is_floating(type_) or _is.is_decimal(type_):
        return "number"
    if _is.is_date(type_) or _is.is_timestamp(type_) or _is.is_time(type_):
        return "moment"
    if _is.is_string(type_) or _is.is_large_string(type_):
        return "text"
    return "boolean" if _is.is_boolean(type_) else "other"


def profile(ask: Ask, table: str, field: pa.Field, rows: int) -> Profile:
    """Of a table with so many rows."""
    column = _Column(field)
    is_exact = rows <= EXACT_ROWS
    facts = ask(f"SELECT {', '.join(column.aggregates(is_exact))} FROM {table}")  # noqa: S608
    told = {name: facts[name][0].as_py() for name in facts.column_names if name not in ("low", "high")}
    told |= {name: _shown(facts[name]) for name in ("low", "high") if name in facts.column_names}
    ends = told.pop("first", None), told.pop("last", None)
    present = told.pop("present")
    if "distinct" in told:
        told["distinct"] = min(told["distinct"], present)  # where it is an estimate it may be more
    if ends[0] is not None:
        bars, counted = _histogram(ask, table, column, *ends)
    elif column.sort in ("text", "boolean"):
        bars, counted = _frequent(ask, table, column, 1.0 if is_exact else _SAMPLE_ROWS / rows)
    else:
        bars, counted = (), 0
    return Profile(column.sort, rows, rows - present, **told, bars=bars, counted=counted, is_exact=is_exact)


class _Column:
    """A column in SQL: as it is, as values that can be compared, and as places on a line of numbers."""

    def __init__(self, field: pa.Field) -> None:
        self.type = field.type
        self.sort = sort_of(field.type)
        self.is_float = _is.is_floating(field.type)
        self.name = quoted(field.name)
        self.value = f"CASE WHEN isnan({self._plain}) THEN NULL ELSE {self._plain} END" if self.is_float else self.name
        self.place = self._place()

    @property
    def _plain(self) -> str:
        return f"arrow_cast({self.name}, 'Float32')" if _is.is_float16(self.type) else self.name

    def _place(self) -> str:
        if self.is_float:
            is_finite = f"abs({self.value}) < arrow_cast('Infinity', 'Float64')"
            return f"CASE WHEN {is_finite} THEN CAST({self.name} AS DOUBLE) END"
        if _is.is_decimal(self.type) or _is.is_uint64(self.type):
            return f"CAST({self.name} AS DOUBLE) + 0"  # without a sum the engine takes its bounds for the column's own
        if _is.is_date32(self.type) or _is.is_time32(self.type):
            return f"arrow_cast(arrow_cast({self.name}, 'Int32'), 'Int64')"
        return f"arrow_cast({self.name}, 'Int64')"

    def aggregates(self, is_exact: bool) -> list[str]:
        wanted = [(f"count({self.name})", "present")]
        if self.sort != "other":
            wanted.append((self._distinct(is_exact), "distinct"))
        if self.sort in ("number", "moment", "text"):
            wanted += [(f"min({self.value})", "low"), (f"max({self.value})", "high")]
        if self.sort == "number":
            wanted.append((f"avg(CAST({self.value} AS DOUBLE))", "mean"))
        if self.sort in ("number", "moment"):
            wanted += [(f"min({self.place})", "first"), (f"max({self.place})", "last")]
        if self.is_float:
            wanted.append((f"count({self.name}) - count({self.value})", "nans"))
        return [f"{expression} AS {name}" for expression, name in wanted]

    def _distinct(self, is_exact: bool) -> str:
        if is_exact or self.sort == "boolean":
            return f"count(DISTINCT {self.value})"
        return f"approx_distinct({f'CAST({self.value} AS VARCHAR)' if self.is_float else self.value})"


def _shown(column: pa.ChunkedArray) -> str | None:
    [text] = text_values(column.combine_chunks())
    return text if text is None or len(text) <= _LONGEST else text[:_LONGEST] + "…"


# ------------------------------------------------------------------------------------------------------------ histogram
def _histogram(ask: Ask, table: str, column: _Column, first: Any, last: Any) -> tuple[tuple[Bar, ...], int]:
    """Rows between `first` and `last`, in bins of one width."""
    if isinstance(first, int) and last - first < _WIDEST:
        width = -(-(last - first + 1) // BINS)
        bins, place = (last - first) // width + 1, f"({column.place} - {first}) / {width}"
        edges = [(first + step * width, min(first + (step + 1) * width - 1, last)) for step in range(bins)]
    elif 0 < (width := (last - first) / BINS) < math.inf:
        offset = f"(CAST({column.place} AS DOUBLE) - {_double(first)}) / {_double(width)}"
        place = f"least(CAST(floor({offset}) AS BIGINT), {BINS - 1})"
        edges = [(first + step * width, first + (step + 1) * width) for step in range(BINS)]
    else:
        place, edges = "0", [(first, last)]
    found = ask(
        f"SELECT {place} AS place, count(*) AS n FROM {table} WHERE ({column.place}) IS NOT NULL GROUP BY 1"  # noqa: S608
    )
    counts = dict(zip(found["place"].to_pylist(), found["n"].to_pylist(), strict=True))
    bars = tuple(Bar(_range(column, edge), counts.get(step, 0)) for step, edge in enumerate(edges))
    return bars, sum(counts.values())


def _range(column: _Column, edge: Sequence[Any]) -> str:
    low, high = (_edge(column, place) for place in edge)
    return low if low == high else f"{low} to {high}"


def _edge(column: _Column, place: float) -> str:
    if not isinstance(place, int):
        return f"{place + 0.0:,.4g}"
    if column.sort == "number":
        return f"{place:,}"
    stored = pa.array([place], pa.int32() if column.type.bit_width == 32 else pa.int64())
    return str(_shown(pa.chunked_array([stored.cast(column.type)])))


def _double(value: float) -> str:
    return f"arrow_cast('{float(value)!r}', 'Float64')"


# ------------------------------------------------------------------------------------------------------ frequent values
def _frequent(ask: Ask, table: str, column: _Column, share: float) -> tuple[tuple[Bar, ...], int]:
    """The most frequent values, and the number of rows that they are counted in."""
    sample = f" AND random() < {share}" if share < 1 else ""
    found = ask(
        f"SELECT value, n, sum(n) OVER () AS counted FROM (SELECT {column.name} AS value, count(*) AS n "  # noqa: S608
        f"FROM {table} WHERE {column.name} IS NOT NULL{sample} GROUP BY {column.name}) "
        f"ORDER BY n DESC, value LIMIT {VALUES}"
    )
    labels = [str(_shown(found["value"].slice(row, 1))) for row in range(found.num_rows)]
    bars = tuple(Bar(label, rows) for label, rows in zip(labels, found["n"].to_pylist(), strict=True))
    return bars, found["counted"][0].as_py() if bars else 0
