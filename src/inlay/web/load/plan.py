"""What a load would do: how many rows come, change and go, some of them, and what becomes of which file."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from nicegui import html, ui

from inlay.server import models
from inlay.web.load.problems import show_warnings
from inlay.web.load.tables import cell, rows_table, scrolling_table, text_of
from inlay.web.wording import count, size

__all__ = ["Segment", "rewritten_share", "segments", "show_counts", "show_plan"]

_MOST_SEGMENTS = 120
_MOST_FILES = 40
_ROWS = 8  # of those that come or go
_BECOMES = {"rewritten": "rewritten", "removed": "removed", "preserved": "untouched"}


def show_plan(plan: models.LoadPlan) -> None:
    show_counts(plan, "would be ")
    html.p(_before_and_after(plan)).classes("inlay-note")
    show_warnings(plan.warnings)
    _show_updated(plan.changes.updated, plan.updated - plan.unchanged)
    _show_rows("New rows", "inlay-come", plan.changes.columns, plan.changes.inserted, plan.inserted)
    _show_rows("Rows to be deleted", "inlay-go", plan.changes.columns, plan.changes.deleted, plan.deleted)
    _show_files(plan)


# --------------------------------------------------------------------------------------------------------------- counts
def show_counts(told: models.Counts, tense: str = "") -> None:
    with html.ul().classes("inlay-counts"):
        _number(told.inserted, f"{tense}inserted", "inlay-come")
        unchanged = f", {told.unchanged:,} of them equal already" if told.unchanged else ""
        _number(told.updated, f"{tense}updated{unchanged}", "inlay-change")
        _number(told.deleted, f"{tense}deleted", "inlay-go")
        if told.rejected_count:
            _number(told.rejected_count, f"{tense}set aside, since they do not fit", "inlay-reject")


def _number(number: int, text: str, kind: str) -> None:
    with html.li().classes(f"inlay-count {kind if number else ''}"):
        html.strong(f"{number:,}")
        html.span(text)


def _before_and_after(plan: models.LoadPlan) -> str:
    before = plan.row_count - plan.inserted + plan.deleted
    if not plan.inserted and not plan.deleted and plan.updated == plan.unchanged:
        return f"Nothing would change: the dataset keeps its {count(before, 'row')}."
    return f"{count(before, 'row')} before, {plan.row_count:,} after."


# ----------------------------------------------------------------------------------------------------------------- rows
def _show_updated(rows: Sequence[models.ChangedRow], total: int) -> None:
    if not rows:
        return
    html.h3(_some("Changed cells", len(rows), total)).classes("inlay-subtitle")
    with scrolling_table("Changed cells"):
        with html.thead(), html.tr():
            for name in (", ".join(rows[0].key), "column", "now", "then"):
                html.th(name, scope="col")
        for row in rows:
            with html.tbody():
                _show_updated_row(row)


def _show_updated_row(row: models.ChangedRow) -> None:
    lines = len(row.cells) + bool(row.more_cells)
    for at, changed in enumerate(row.cells):
        with html.tr():
            if at == 0:
                html.th(", ".join(map(text_of, row.key.values())), scope="rowgroup", rowspan=lines)
            html.td(changed.column).classes("inlay-note")
            with html.td():
                cell(changed.old, html.del_)
            with html.td():
                cell(changed.new, html.ins)
    if row.more_cells:
        with html.tr():
            html.td(f"and {count(row.more_cells, 'cell')} more", colspan=3).classes("inlay-note")


def _show_rows(title: str, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]], total: int) -> None:
    if rows:
        shown = rows[:_ROWS]
        html.h3(_some(title, len(shown), total)).classes("inlay-subtitle")
        rows_table(title, [(name, "") for name in columns], shown, kind)


def _some(title: str, shown: int, total: int) -> str:
    return title if shown == total else f"{title}: {shown:,} of {count(total, 'row')}"


# ---------------------------------------------------------------------------------------------------------------- files
class Segment(NamedTuple):
    """A part of the strip: a file, or all files that become the same."""

    operation: str
    bytes: int
    title: str


def segments(files: Sequence[models.PlannedFile]) -> list[Segment]:
    """A file each, or where these are too many to be seen, all of a kind together."""
    if len(files) <= _MOST_SEGMENTS:
        return [
            Segment(file.operation, file.bytes, f"{_name(file)}: {_BECOMES[file.operation]}, {file.reason}")
            for file in files
        ]
    counts = Counter(file.operation for file in files)
    sizes = {kind: sum(file.bytes for file in files if file.operation == kind) for kind in counts}
    return [
        Segment(kind, sizes[kind], f"{count(counts[kind], 'file')} {_BECOMES[kind]}")
        for kind in _BECOMES
        if counts[kind]
    ]


def rewritten_share(plan: models.LoadPlan) -> str:
    """The bytes that must be written anew, besides new rows, out of all."""
    total = sum(file.bytes for file in plan.files)
    if not plan.bytes_rewritten:
        return f"None of the {size(total)} that are there would be written again."
    share = plan.bytes_rewritten / max(total, 1)
    shown = f"{share:.0%}" if share >= 0.095 else f"{share:.1%}" if share >= 0.0005 else "less than 0.1%"
    return f"{size(plan.bytes_rewritten)} of {size(total)} ({shown}) would be written again."


def _name(file: models.PlannedFile) -> str:
    """The version and the file; the rest of the path is the same for all."""
    return "/".join(file.path.split("/")[-2:]) if "/" in file.path else posixpath.basename(file.path)


def _show_files(plan: models.LoadPlan) -> None:
    html.h3("Files").classes("inlay-subtitle")
    html.p(rewritten_share(plan)).classes("inlay-note")
    counts = Counter(_BECOMES[file.operation] for file in plan.files)
    told = [f"{number:,} {kind}" for kind, number in counts.items()] + (["new ones"] if plan.inserted else [])
    with html.div(role="img", **{"aria-label": f"Files: {', '.join(told)}"}).classes("inlay-strip"):
        for part in segments(plan.files):
            bar = html.div(title=part.title).classes(f"inlay-strip-{part.operation}")
            bar.style(f"flex-grow: {max(part.bytes, 1)}")
        if plan.inserted:
            html.div(title=f"new files for {count(plan.inserted, 'row')}").classes("inlay-strip-new")
    with html.p().classes("inlay-legend"):
        for kind in told:
            html.span(kind).classes(f"inlay-key-{kind.split()[-1]}")
    with ui.expansion("File by file").classes("inlay-expansion"), html.ul().classes("inlay-files"):
        _list_files(plan.files)


def _list_files(files: Sequence[models.PlannedFile]) -> None:
    order = list(_BECOMES)
    for file in sorted(files, key=lambda each: order.index(each.operation))[:_MOST_FILES]:
        with html.li():
            html.span(_BECOMES[file.operation]).classes(f"inlay-badge inlay-strip-{file.operation}")
            html.span(_name(file)).classes("inlay-mono")
            html.span(f"{count(file.rows, 'row')}, {size(file.bytes)}: {file.reason}").classes("inlay-note")
    if len(files) > _MOST_FILES:
        html.li(f"and {count(len(files) - _MOST_FILES, 'file')} more").classes("inlay-note")
