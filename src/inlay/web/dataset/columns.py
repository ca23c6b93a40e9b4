"""The columns of a version: a card with statistics and a small chart for each column."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from nicegui import html, ui

from inlay.errors import InlayError, UnauthorizedError
from inlay.query.sql import quoted
from inlay.query.values import text_values
from inlay.type_grammar import type_name
from inlay.web import formatting
from inlay.web.dataset.rows import table_of
from inlay.web.dataset.schema import Kind, kind_of
from inlay.web.shell import Visitor, report_errors
from inlay.web.widgets import shorten

if TYPE_CHECKING:
    from inlay.catalog import Snapshot
    from inlay.workspace import Workspace

__all__ = ["EXACT_ROWS", "Profile", "profile", "show_columns"]

EXACT_ROWS = 2_000_000  # Above this, distinct counts are estimates, and frequent values come from a sample.
_PAGE_SIZE = 24
_QUERY_TIMEOUT_SECONDS = 20.0
_BINS = 20
_MAX_FREQUENT = 6
_SAMPLE_ROWS = 500_000
_MAX_INTEGER_RANGE = 2**62  # Wider ranges of integers are binned as doubles.
_MAX_LABEL = 200  # characters
_ESTIMATE_NOTE = (
    f"Above {EXACT_ROWS:,} rows, distinct counts are estimates, and frequent values come from a random sample. "
    "All other numbers are exact."
)
Query = Callable[[str], pa.Table]
_is: Any = pa.types


# ---------------------------------------------------------------------------------------------------------------- cards
async def show_columns(visitor: Visitor, snapshot: Snapshot) -> None:
    fields = list(snapshot.version.schema)
    rows = snapshot.version.row_count
    if rows > EXACT_ROWS:
        ui.label(_ESTIMATE_NOTE).classes("inlay-note")
    cards = html.div().classes("inlay-profiles")
    more = ui.button(icon="expand_more").props("flat no-caps").classes("self-center")
    offset = 0

    async def show_more() -> None:
        nonlocal offset
        page = fields[offset : offset + _PAGE_SIZE]
        offset += len(page)
        more.text = f"Show {min(_PAGE_SIZE, len(fields) - offset)} more of {len(fields):,} columns"
        more.set_visibility(offset < len(fields))
        with cards:
            bodies = [_card(field) for field in page]
        for field, body in zip(page, bodies, strict=True):
            if body.is_deleted:
                return
            await _fill(visitor, body, snapshot, field)

    more.on_click(report_errors(show_more))
    await show_more()


def _card(field: pa.Field) -> ui.element:
    """Add the card of a column, and return the element that the statistics fill later."""
    with html.section(**{"aria-label": f"Column {field.name}"}).classes("inlay-card inlay-profile"):
        with html.div().classes("inlay-profile-head"):
            html.h3(field.name).classes("inlay-profile-name")
            html.span(type_name(field.type)).classes("inlay-type")
        body: ui.element = html.div().classes("inlay-profile-body")
        with body:
            ui.skeleton(height="5.5rem", width="100%").props('aria-label="Loading"')
    return body


async def _fill(visitor: Visitor, body: ui.element, snapshot: Snapshot, field: pa.Field) -> None:
    rows = snapshot.version.row_count

    def read(workspace: Workspace) -> Profile:
        return profile(lambda sql: _query(workspace, sql), table_of(workspace, snapshot), field, rows)

    try:
        found = await visitor.read(read, "queries")
    except UnauthorizedError:
        raise
    except InlayError as error:  # The cards of the other columns still appear.
        reason = str(error.message)
        _replace(body, lambda: ui.label(reason).classes("inlay-note").props("role=alert"))
    else:
        _replace(body, lambda: _show(found))


def _replace(body: ui.element, show: Callable[[], object]) -> None:
    """Replace the content of an element, unless the visitor has left the page."""
    if not body.is_deleted:
        body.clear()
        with body:
            show()


def _query(workspace: Workspace, sql: str) -> pa.Table:
    with workspace.query(sql, timeout=_QUERY_TIMEOUT_SECONDS) as result:
        return result.read_all()


def _show(found: Profile) -> None:
    if found.kind in ("number", "time"):
        _show_histogram(found)
    elif found.is_unique:
        html.p(f"Every value{'' if found.is_exact else ' in the sample'} is unique.").classes("inlay-note")
    elif found.bars:
        _show_frequent(found)
    _show_nulls(found)
    with html.dl().classes("inlay-facts"):
        for name, value in _facts(found):
            html.dt(name)
            html.dd(value)


def _facts(found: Profile) -> list[tuple[str, str]]:
    about = "" if found.is_exact or found.kind == "boolean" else "about "
    facts = [
        ("Distinct", None if found.distinct is None else f"{about}{found.distinct:,}"),
        ("Minimum", found.low),
        ("Maximum", found.high),
        ("Mean", None if found.mean is None else _format(found.mean)),
        ("NaN", f"{found.nans:,}" if found.nans else None),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _format(value: float) -> str:
    return f"{value:,.6g}" if not 1e6 <= abs(value) < 1e15 else f"{value:,.1f}"


def _show_nulls(found: Profile) -> None:
    if not found.rows:
        html.p("No rows").classes("inlay-note")
        return
    share = found.nulls / found.rows
    text = f"{_percent(share)} NULL ({found.nulls:,})" if found.nulls else "No NULL values"
    with html.div().classes("inlay-null-share"):
        with html.div(**{"aria-hidden": "true"}).classes("inlay-null-bar"):
            html.div().style(f"width: {100 * share:.2f}%")
        html.span(text)


def _percent(share: float) -> str:
    return "under 1%" if 0 < share < 0.01 else "over 99%" if 0.99 < share < 1 else f"{share:.0%}"


def _show_histogram(found: Profile) -> None:
    if not found.bars:
        return
    highest = max(bar.rows for bar in found.bars)
    label = f"Distribution from {found.bars[0].label} to {found.bars[-1].label}"
    with html.div(role="img", **{"aria-label": label}).classes("inlay-histogram"):
        for bar in found.bars:
            title = f"{bar.label}: {formatting.count(bar.rows, 'row')}"
            with html.div(title=title).classes("inlay-bin"):
                html.div().style(f"height: {100 * bar.rows / highest:.2f}%")


def _show_frequent(found: Profile) -> None:
    """Show the share of each frequent value, and of all other values, among the rows that are not NULL."""
    with html.ul().classes("inlay-frequent"):
        for bar in found.bars:
            with html.li():
                html.div(**{"aria-hidden": "true"}).classes("inlay-frequent-bar").style(
                    f"width: {100 * bar.rows / found.counted:.2f}%"
                )
                is_empty = bar.label == ""
                html.span(bar.label or "empty", title=bar.label).classes("inlay-null" if is_empty else "")
                html.span(_percent(bar.rows / found.counted)).classes("inlay-frequent-share")
    others = (found.distinct or 0) - len(found.bars)
    if others > 0:
        rest = found.counted - sum(bar.rows for bar in found.bars)
        about = "" if found.is_exact else "About "
        values = f"{others:,} other {formatting.plural(others, 'value')}"
        html.p(f"{about}{values} in {_percent(rest / found.counted)} of the rows").classes("inlay-note")


# ------------------------------------------------------------------------------------------------------------- profiles
class Bar(NamedTuple):
    """The number of rows with a value, or with a value in a range."""

    label: str
    rows: int


@dataclass(frozen=True, slots=True)
class Profile:
    """The statistics of a column."""

    kind: Kind
    rows: int
    nulls: int
    nans: int = 0
    distinct: int | None = None
    low: str | None = None
    high: str | None = None
    mean: float | None = None
    bars: tuple[Bar, ...] = ()
    counted: int = 0  # the number of rows that the bars count
    is_exact: bool = True

    @property
    def is_unique(self) -> bool:
        """True for text if no counted value occurs twice."""
        return self.kind == "text" and self.counted > 1 and self.bars[0].rows == 1


def profile(query: Query, table: str, field: pa.Field, rows: int) -> Profile:
    """Compute the statistics of a column with two queries. `rows` is the row count of the table."""
    column = _Column(field)
    is_exact = rows <= EXACT_ROWS
    aggregates = query(f"SELECT {', '.join(column.aggregates(is_exact))} FROM {table}")  # noqa: S608
    values = {name: aggregates[name][0].as_py() for name in aggregates.column_names if name not in ("low", "high")}
    values |= {name: _text(aggregates[name]) for name in ("low", "high") if name in aggregates.column_names}
    bounds = values.pop("first", None), values.pop("last", None)
    present = values.pop("present")
    if "distinct" in values:
        values["distinct"] = min(values["distinct"], present)  # An estimate may exceed the number of rows.
    if bounds[0] is not None:
        bars, counted = _histogram(query, table, column, *bounds)
    elif column.kind in ("text", "boolean"):
        bars, counted = _frequent(query, table, column, 1.0 if is_exact else _SAMPLE_ROWS / rows)
    else:
        bars, counted = (), 0
    return Profile(column.kind, rows, rows - present, **values, bars=bars, counted=counted, is_exact=is_exact)


class _Column:
    """SQL expressions for a column: its `value` without NaN, and its `position` as a finite number."""

    def __init__(self, field: pa.Field) -> None:
        self.type = field.type
        self.kind = kind_of(field.type)
        self.is_float = _is.is_floating(field.type)
        self.name = quoted(field.name)
        number = f"arrow_cast({self.name}, 'Float32')" if _is.is_float16(self.type) else self.name
        self.value = f"CASE WHEN isnan({number}) THEN NULL ELSE {number} END" if self.is_float else self.name
        self.position = self._position()

    def _position(self) -> str:
        if self.is_float:
            is_finite = f"abs({self.value}) < arrow_cast('Infinity', 'Float64')"
            return f"CASE WHEN {is_finite} THEN CAST({self.name} AS DOUBLE) END"
        if _is.is_decimal(self.type) or _is.is_uint64(self.type):
            # The addition keeps the engine from taking the bounds of the column itself for those of the cast.
            return f"CAST({self.name} AS DOUBLE) + 0"
        if _is.is_date32(self.type) or _is.is_time32(self.type):
            return f"arrow_cast(arrow_cast({self.name}, 'Int32'), 'Int64')"
        return f"arrow_cast({self.name}, 'Int64')"

    def aggregates(self, is_exact: bool) -> list[str]:
        found = [(f"count({self.name})", "present")]
        if self.kind != "other":
            found.append((self._distinct(is_exact), "distinct"))
        if self.kind in ("number", "time", "text"):
            found += [(f"min({self.value})", "low"), (f"max({self.value})", "high")]
        if self.kind == "number":
            found.append((f"avg(CAST({self.value} AS DOUBLE))", "mean"))
        if self.kind in ("number", "time"):
            found += [(f"min({self.position})", "first"), (f"max({self.position})", "last")]
        if self.is_float:
            found.append((f"count({self.name}) - count({self.value})", "nans"))
        return [f"{expression} AS {name}" for expression, name in found]

    def _distinct(self, is_exact: bool) -> str:
        if is_exact or self.kind == "boolean":
            return f"count(DISTINCT {self.value})"
        return f"approx_distinct({f'CAST({self.value} AS VARCHAR)' if self.is_float else self.value})"


def _text(column: pa.ChunkedArray) -> str | None:
    """Return the only value of a column as text."""
    [text] = text_values(column.combine_chunks())
    return None if text is None else shorten(text, _MAX_LABEL)


# ------------------------------------------------------------------------------------------------------------ histogram
def _histogram(query: Query, table: str, column: _Column, first: Any, last: Any) -> tuple[tuple[Bar, ...], int]:
    """Count the rows between `first` and `last` in bins of equal width, and return the bars and their sum."""
    if isinstance(first, int) and last - first < _MAX_INTEGER_RANGE:
        width = -(-(last - first + 1) // _BINS)
        bins, bin_sql = (last - first) // width + 1, f"({column.position} - {first}) / {width}"
        edges = [(first + step * width, min(first + (step + 1) * width - 1, last)) for step in range(bins)]
    elif 0 < (width := (last - first) / _BINS) < math.inf:
        offset = f"(CAST({column.position} AS DOUBLE) - {_double(first)}) / {_double(width)}"
        bin_sql = f"least(CAST(floor({offset}) AS BIGINT), {_BINS - 1})"
        edges = [(first + step * width, first + (step + 1) * width) for step in range(_BINS)]
    else:
        bin_sql, edges = "0", [(first, last)]
    found = query(
        f"SELECT {bin_sql} AS bin, count(*) AS n FROM {table} WHERE ({column.position}) IS NOT NULL GROUP BY 1"  # noqa: S608
    )
    counts = dict(zip(found["bin"].to_pylist(), found["n"].to_pylist(), strict=True))
    bars = tuple(Bar(_range(column, edge), counts.get(step, 0)) for step, edge in enumerate(edges))
    return bars, sum(counts.values())


def _range(column: _Column, edges: Sequence[Any]) -> str:
    low, high = (_edge(column, position) for position in edges)
    return low if low == high else f"{low} to {high}"


def _edge(column: _Column, position: float) -> str:
    if not isinstance(position, int):
        return f"{position + 0.0:,.4g}"
    if column.kind == "number":
        return f"{position:,}"
    stored = pa.array([position], pa.int32() if column.type.bit_width == 32 else pa.int64())
    return str(_text(pa.chunked_array([stored.cast(column.type)])))


def _double(value: float) -> str:
    return f"arrow_cast('{float(value)!r}', 'Float64')"


# ------------------------------------------------------------------------------------------------------ frequent values
def _frequent(query: Query, table: str, column: _Column, share: float) -> tuple[tuple[Bar, ...], int]:
    """Return the most frequent values in a sample, and the number of rows of the sample."""
    sample = f" AND random() < {share}" if share < 1 else ""
    found = query(
        f"SELECT value, n, sum(n) OVER () AS counted FROM (SELECT {column.name} AS value, count(*) AS n "  # noqa: S608
        f"FROM {table} WHERE {column.name} IS NOT NULL{sample} GROUP BY {column.name}) "
        f"ORDER BY n DESC, value LIMIT {_MAX_FREQUENT}"
    )
    labels = [str(_text(found["value"].slice(row, 1))) for row in range(found.num_rows)]
    bars = tuple(Bar(label, rows) for label, rows in zip(labels, found["n"].to_pylist(), strict=True))
    return bars, found["counted"][0].as_py() if bars else 0
