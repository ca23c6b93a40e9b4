"""The plan of a load: counts and examples of changed rows, and what happens to each file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from nicegui import html, ui

from inlay.errors import BadRowsError, InlayError
from inlay.server import models
from inlay.web.formatting import count, size
from inlay.web.widgets import bad_cells_table, cell, rows_table, scrolling_table, text_of

__all__ = [
    "Remedy",
    "rewritten_share",
    "segments",
    "show_changes",
    "show_count",
    "show_counts",
    "show_plan",
    "show_problem",
    "show_warnings",
]

_MAX_BAD_CELLS = 20
_MAX_SEGMENTS = 120
_MAX_FILES = 40
_MAX_ROWS = 8  # inserted or deleted rows
_OUTCOMES = {"rewritten": "rewritten", "removed": "removed", "preserved": "untouched"}


# ------------------------------------------------------------------------------------------------ problems and warnings
class Remedy(NamedTuple):
    """Advice for an error, and the button that follows it."""

    advice: str
    button: str
    apply: Callable[[], Awaitable[None]]


def show_problem(error: InlayError, remedy: Remedy | None = None) -> None:
    """Show an error. The advice of a remedy replaces the hint of the error."""
    with html.div(role="alert").classes("inlay-problem"):
        html.p(error.message).classes("inlay-problem-message")
        advice = remedy.advice if remedy is not None else error.hint
        if advice:
            html.p(advice)
        if isinstance(error, BadRowsError):
            bad_cells_table(error.errors[:_MAX_BAD_CELLS])
            if len(error.errors) > _MAX_BAD_CELLS:
                html.p(f"and {len(error.errors) - _MAX_BAD_CELLS} more")
        if remedy is not None:
            with html.div().classes("inlay-buttons"):
                ui.button(remedy.button, on_click=remedy.apply).props("outline no-caps")


def show_warnings(warnings: Sequence[str]) -> None:
    if warnings:
        with html.ul().classes("inlay-warning"):
            for warning in warnings:
                html.li(warning)


# --------------------------------------------------------------------------------------------------------------- counts
def show_plan(plan: models.LoadPlan) -> None:
    show_counts(plan, "to be ")
    html.p(_before_and_after(plan)).classes("inlay-note")
    if plan.kept_columns:
        html.p(f"Matching rows keep their values in {', '.join(plan.kept_columns)}.").classes("inlay-note")
    show_warnings(plan.warnings)
    show_changes(plan.changes, plan.inserted, plan.updated - plan.unchanged, plan.deleted)
    _show_files(plan)


def show_counts(counts: models.Counts, tense: str = "") -> None:
    unchanged = f", {counts.unchanged:,} of them unchanged" if counts.unchanged else ""
    with html.ul().classes("inlay-counts"):
        show_count(counts.inserted, f"{tense}inserted", "inlay-inserted")
        show_count(counts.updated, f"{tense}updated{unchanged}", "inlay-updated")
        show_count(counts.deleted, f"{tense}deleted", "inlay-deleted")
        if counts.stale:
            show_count(counts.stale, "stale, without effect", "inlay-rejected-count")
        if counts.rejected_count:
            show_count(counts.rejected_count, f"{tense}rejected", "inlay-rejected-count")


def show_count(number: int, text: str, kind: str) -> None:
    with html.li().classes(f"inlay-count {kind if number else ''}"):
        html.strong(f"{number:,}")
        html.span(text)


def _before_and_after(plan: models.LoadPlan) -> str:
    before = plan.row_count - plan.inserted + plan.deleted
    if not plan.inserted and not plan.deleted and plan.updated == plan.unchanged:
        return f"This load changes nothing. The dataset keeps its {count(before, 'row')}."
    return f"{count(before, 'row')} before, {plan.row_count:,} after."


# ----------------------------------------------------------------------------------------------------------------- rows
def show_changes(changes: models.Changes, inserted: int, updated: int, deleted: int) -> None:
    """Show a sample of changed rows, with the number of all rows of each kind."""
    _show_updated(changes.updated, updated)
    _show_rows("New rows", "inlay-inserted", changes.columns, changes.inserted, inserted)
    _show_rows("Deleted rows", "inlay-deleted", changes.columns, changes.deleted, deleted)


def _show_updated(rows: Sequence[models.ChangedRow], total: int) -> None:
    if not rows:
        return
    html.h3(_title("Changed cells", len(rows), total)).classes("inlay-subtitle")
    with scrolling_table("Changed cells"):
        with html.thead(), html.tr():
            for name in (", ".join(rows[0].key), "Column", "Old value", "New value"):
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
        first = rows[:_MAX_ROWS]
        html.h3(_title(title, len(first), total)).classes("inlay-subtitle")
        rows_table(title, [(name, "") for name in columns], first, kind)


def _title(title: str, visible: int, total: int) -> str:
    return title if visible == total else f"{title}: {visible:,} of {count(total, 'row')}"


# ---------------------------------------------------------------------------------------------------------------- files
class Segment(NamedTuple):
    """A part of the bar: one file, or all files with the same operation."""

    operation: str
    bytes: int
    title: str


def segments(files: Sequence[models.PlannedFile]) -> list[Segment]:
    """Return one segment per file, or one per operation if there are too many files."""
    if len(files) <= _MAX_SEGMENTS:
        return [
            Segment(file.operation, file.bytes, f"{_name(file)}: {_OUTCOMES[file.operation]}, {file.reason}")
            for file in files
        ]
    counts = Counter(file.operation for file in files)
    sizes = {kind: sum(file.bytes for file in files if file.operation == kind) for kind in counts}
    return [
        Segment(kind, sizes[kind], f"{count(counts[kind], 'file')} {_OUTCOMES[kind]}")
        for kind in _OUTCOMES
        if counts[kind]
    ]


def rewritten_share(plan: models.LoadPlan) -> str:
    """Say how much of the existing data the load rewrites."""
    total = sum(file.bytes for file in plan.files)
    if not plan.bytes_rewritten:
        return f"The load rewrites none of the existing data ({size(total)})."
    share = plan.bytes_rewritten / max(total, 1)
    percent = f"{share:.0%}" if share >= 0.095 else f"{share:.1%}" if share >= 0.0005 else "less than 0.1%"
    return f"The load rewrites {size(plan.bytes_rewritten)} of {size(total)} ({percent})."


def _name(file: models.PlannedFile) -> str:
    """Return the last folder and the file name; the rest of the path is the same for all files."""
    return "/".join(file.path.split("/")[-2:])


def _show_files(plan: models.LoadPlan) -> None:
    html.h3("Files").classes("inlay-subtitle")
    html.p(rewritten_share(plan)).classes("inlay-note")
    counts = Counter(_OUTCOMES[file.operation] for file in plan.files)
    legend = [f"{number:,} {kind}" for kind, number in counts.items()] + (["new files"] if plan.inserted else [])
    with html.div(role="img", **{"aria-label": f"Files: {', '.join(legend)}"}).classes("inlay-strip"):
        for part in segments(plan.files):
            bar = html.div(title=part.title).classes(f"inlay-strip-{part.operation}")
            bar.style(f"flex-grow: {max(part.bytes, 1)}")
        if plan.inserted:
            html.div(title=f"new files for {count(plan.inserted, 'row')}").classes("inlay-strip-new")
    with html.p().classes("inlay-legend"):
        for text in legend:
            html.span(text).classes(f"inlay-key-{text.split()[-1]}")
    with ui.expansion("Show files").classes("inlay-expansion"), html.ul().classes("inlay-files"):
        _list_files(plan.files)


def _list_files(files: Sequence[models.PlannedFile]) -> None:
    order = list(_OUTCOMES)
    for file in sorted(files, key=lambda each: order.index(each.operation))[:_MAX_FILES]:
        with html.li():
            html.span(_OUTCOMES[file.operation]).classes(f"inlay-badge inlay-strip-{file.operation}")
            html.span(_name(file)).classes("inlay-mono")
            html.span(f"{count(file.rows, 'row')}, {size(file.bytes)}: {file.reason}").classes("inlay-note")
    if len(files) > _MAX_FILES:
        html.li(f"and {count(len(files) - _MAX_FILES, 'file')} more").classes("inlay-note")
