"""What each column holds, as a card with a small picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
from nicegui import html, ui

from inlay.errors import InlayError, UnauthorizedError
from inlay.type_grammar import type_name
from inlay.web import wording
from inlay.web.dataset.profile import EXACT_ROWS, Profile, profile
from inlay.web.dataset.rows import table_of
from inlay.web.shell import guarded
from inlay.web.visitor import Visitor

if TYPE_CHECKING:
    from inlay.catalog import Snapshot
    from inlay.workspace import Workspace

__all__ = ["show_columns"]

_AT_ONCE = 24
_SECONDS = 20.0  # for one query about one column
_MANY = (
    f"Beyond {EXACT_ROWS:,} rows the numbers of distinct values are estimates, and frequent values are those of a "
    "random sample. Everything else is exact."
)


async def show_columns(visitor: Visitor, snapshot: Snapshot) -> None:
    fields = list(snapshot.version.schema)
    rows = snapshot.version.row_count
    if rows > EXACT_ROWS:
        ui.label(_MANY).classes("inlay-note")
    cards = html.div().classes("inlay-profiles")
    more = ui.button(icon="expand_more").props("flat no-caps").classes("self-center")
    shown = 0

    async def show_more() -> None:
        nonlocal shown
        some = fields[shown : shown + _AT_ONCE]
        shown += len(some)
        more.text = f"Show {min(_AT_ONCE, len(fields) - shown)} more of {len(fields):,} columns"
        more.set_visibility(shown < len(fields))
        with cards:
            places = [_card(field) for field in some]
        for field, place in zip(some, places, strict=True):
            if place.is_deleted:
                return
            await _fill(visitor, place, snapshot, field)

    more.on_click(guarded(show_more))
    await show_more()


def _card(field: pa.Field) -> ui.element:
    """The frame of a column's card; what comes into it comes later."""
    with html.section(**{"aria-label": f"Column {field.name}"}).classes("inlay-card inlay-profile"):
        with html.div().classes("inlay-profile-head"):
            html.h3(field.name).classes("inlay-profile-name")
            html.span(type_name(field.type)).classes("inlay-type")
        place: ui.element = html.div().classes("inlay-profile-body")
        with place:
            ui.skeleton(height="5.5rem", width="100%").props('aria-label="Loading"')
    return place


async def _fill(visitor: Visitor, place: ui.element, snapshot: Snapshot, field: pa.Field) -> None:
    rows = snapshot.version.row_count

    def look(workspace: Workspace) -> Profile:
        return profile(lambda sql: _ask(workspace, sql), table_of(workspace, snapshot), field, rows)

    try:
        found = await visitor.read(look, "queries")
    except UnauthorizedError:
        raise
    except InlayError as error:  # the other columns may still be told
        reason = str(error.message)
        _put(place, lambda: ui.label(reason).classes("inlay-note").props("role=alert"))
    else:
        _put(place, lambda: _show(found))


def _put(place: ui.element, show: Callable[[], object]) -> None:
    """Show something in a place, unless its page has been left meanwhile."""
    if not place.is_deleted:
        place.clear()
        with place:
            show()


def _ask(workspace: Workspace, sql: str) -> pa.Table:
    with workspace.query(sql, timeout=_SECONDS) as result:
        return result.read_all()


# ---------------------------------------------------------------------------------------------------------------- parts
def _show(found: Profile) -> None:
    if found.sort in ("number", "moment"):
        _histogram(found)
    elif found.is_all_different:
        html.p(f"Every value{'' if found.is_exact else ' of the sample'} is different.").classes("inlay-note")
    elif found.bars:
        _frequent(found)
    _nulls(found)
    with html.dl().classes("inlay-facts"):
        for name, value in _facts(found):
            html.dt(name)
            html.dd(value)


def _facts(found: Profile) -> list[tuple[str, str]]:
    about = "" if found.is_exact or found.sort == "boolean" else "about "
    told = [
        ("distinct", None if found.distinct is None else f"{about}{found.distinct:,}"),
        ("smallest", found.low),
        ("largest", found.high),
        ("mean", None if found.mean is None else _number(found.mean)),
        ("NaN", f"{found.nans:,}" if found.nans else None),
    ]
    return [(name, value) for name, value in told if value is not None]


def _number(value: float) -> str:
    return f"{value:,.6g}" if not 1e6 <= abs(value) < 1e15 else f"{value:,.1f}"


def _nulls(found: Profile) -> None:
    if not found.rows:
        html.p("No rows").classes("inlay-note")
        return
    share = found.nulls / found.rows
    words = f"{_percent(share)} NULL ({found.nulls:,})" if found.nulls else "no NULL"
    with html.div().classes("inlay-null-share"):
        with html.div(**{"aria-hidden": "true"}).classes("inlay-null-bar"):
            html.div().style(f"width: {100 * share:.2f}%")
        html.span(words)


def _percent(share: float) -> str:
    return "under 1 %" if 0 < share < 0.01 else "over 99 %" if 0.99 < share < 1 else f"{share:.0%}".replace("%", " %")


def _histogram(found: Profile) -> None:
    if not found.bars:
        return
    most = max(bar.rows for bar in found.bars)
    words = f"Distribution from {found.bars[0].label} to {found.bars[-1].label}"
    with html.div(role="img", **{"aria-label": words}).classes("inlay-histogram"):
        for bar in found.bars:
            title = f"{bar.label}: {wording.count(bar.rows, 'row')}"
            with html.div(title=title).classes("inlay-bin"):
                html.div().style(f"height: {100 * bar.rows / most:.2f}%")


def _frequent(found: Profile) -> None:
    """The whole width stands for all rows that have a value; those with other values are told, too."""
    with html.ul().classes("inlay-frequent"):
        for bar in found.bars:
            with html.li():
                html.div(**{"aria-hidden": "true"}).classes("inlay-frequent-bar").style(
                    f"width: {100 * bar.rows / found.counted:.2f}%"
                )
                empty = bar.label == ""
                html.span("empty" if empty else bar.label, title=bar.label).classes("inlay-null" if empty else "")
                html.span(_percent(bar.rows / found.counted)).classes("inlay-frequent-share")
    others = (found.distinct or 0) - len(found.bars)
    if others > 0:
        rest = found.counted - sum(bar.rows for bar in found.bars)
        about = "" if found.is_exact else "about "
        told = f"{about}{others:,} other {wording.plural(others, 'value')} in {_percent(rest / found.counted)}"
        html.p(told).classes("inlay-note")
