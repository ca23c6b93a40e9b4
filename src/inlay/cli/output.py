"""Print results as one JSON document, or as text and tables that fit the terminal."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.incremental import MergePlan, MergeResult, Progress, RecoveryReport, WriteResult

__all__ = ["merge_plan", "merge_result", "plain", "print_json", "progress", "recovery", "size", "table", "write_result"]

_STYLES = {"rewritten": "yellow", "removed": "red", "inserted": "green", "preserved": "dim"}
_LABELS = {"inserted": "new", "preserved": "untouched"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_ORDER = ("rewritten", "removed", "inserted", "preserved")


def print_json(document: Any) -> None:
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def plain(value: object) -> str:
    """Format a value as one line, with control characters escaped for the terminal."""
    if value is None:
        return "NULL"
    if isinstance(value, bool | list | dict):
        return plain(json.dumps(value, ensure_ascii=False))
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), str(value))


def size(count: int | None) -> str:
    """Format a number of bytes with a unit, in powers of 1000."""
    if count is None:
        return ""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str], styles: Sequence[str]) -> Any:
    """Build a table that fits the terminal. Only columns in `left` wrap; the other columns are numbers."""
    from rich.table import Table

    built = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        if header in left:
            built.add_column(plain(header), overflow="fold", min_width=8)
        else:
            built.add_column(plain(header), justify="right", no_wrap=True)
    for row, style in zip(rows, styles, strict=True):
        built.add_row(*map(plain, row), style=style)
    return built


def relative(path: str, dataset: str) -> str:
    return plain(path.removeprefix(dataset.rstrip("/") + "/"))


# ----------------------------------------------------------------------------------------------------------- results
def merge_plan(plan: MergePlan, dataset: str, limit: int) -> None:
    out = console()
    rows = [
        (f.operation, relative(f.path, dataset), f"{f.row_count:,}", size(f.size_bytes), f.reason) for f in plan.files
    ]
    rows += [("inserted", relative(path, dataset), "", "", "new keys") for path in plan.new_files]
    rows.sort(key=lambda row: _ORDER.index(row[0]))
    _files(out, ("", "file", "rows", "size", "reason"), rows, limit)
    out.print(
        f"{plan.strategy}: {plan.inserted:,} to insert, {plan.updated:,} to update ({plan.unchanged:,} unchanged),"
        f" {plan.deleted:,} to delete; {plan.target_count_before:,} -> {plan.target_count_after:,} rows"
    )
    out.print(
        f"{counted(plan.rows_to_rewrite, 'row')} ({size(plan.bytes_to_rewrite)}) to rewrite in"
        f" {len(plan.affected_files):,} of {counted(len(plan.files), 'file')}; nothing changed"
    )
    _note_absence(out, dataset, rows)


def merge_result(result: MergeResult, dataset: str, limit: int) -> None:
    out = console()
    touched = [file for file in result.files if file.operation != "preserved"]
    rows = [(f.operation, relative(f.path, dataset), f"{f.row_count:,}", size(f.size_bytes)) for f in touched]
    _files(out, ("", "file", "rows", "size"), rows, limit)
    out.print(
        f"{result.strategy}: {result.inserted:,} inserted, {result.updated:,} updated"
        f" ({result.unchanged:,} unchanged), {result.deleted:,} deleted;"
        f" {result.target_count_before:,} -> {result.target_count_after:,} rows"
    )
    out.print(
        f"files: {len(result.rewritten_files):,} rewritten, {len(result.inserted_files):,} new,"
        f" {len(result.removed_files):,} removed, {len(result.preserved_files):,} untouched;"
        f" {size(result.bytes_written)} written, {size(result.bytes_copied)} of it copied"
    )
    _note_absence(out, dataset, result.files)


def _note_absence(out: Console, dataset: str, files: Sequence[object]) -> None:
    """Point out a missing dataset: an update of one changes nothing, so a typo would go unnoticed."""
    if not files:
        out.print(f"note: {dataset!r} holds no Parquet files")


def write_result(result: WriteResult, dataset: str, limit: int) -> None:
    out = console()
    rows = [(f.operation, relative(f.path, dataset), f"{f.row_count:,}", size(f.size_bytes)) for f in result.files]
    _files(out, ("", "file", "rows", "size"), rows, limit)
    removed = f", {counted(len(result.removed_files), 'file')} removed" if result.removed_files else ""
    out.print(
        f"{result.mode}: {counted(result.row_count, 'row')} in {counted(len(result.files), 'file')} written{removed}"
    )


def recovery(report: RecoveryReport, dataset: str) -> None:
    out = console()
    if not report:
        out.print("Nothing to recover.")
    for verb, commit in (("Completed", report.completed), ("Undid", report.undone)):
        if commit is not None:
            out.print(f"{verb} the commit {commit}: {counted(len(report.files), 'file')}")
            for path in report.files:
                out.print(f"  {relative(path, dataset)}")
    if report.swept:
        out.print(f"Removed the staged files of {counted(len(report.swept), 'interrupted writer')}")


def _files(out: Console, headers: Sequence[str], rows: Sequence[tuple[str, ...]], limit: int) -> None:
    """Print a table of files; the first cell of each row is the file's operation."""
    visible = rows[:limit] if limit else rows
    if visible:
        styles = [_STYLES[row[0]] for row in visible]
        cells = [(_LABELS.get(row[0], row[0]), *row[1:]) for row in visible]
        out.print(table(headers, cells, left=("", "file", "reason"), styles=styles))
    note_hidden(out, len(rows) - len(visible))
    if visible:
        out.print()


def note_hidden(out: Console, hidden: int, noun: str = "file") -> None:
    """Print how many rows of a table `--limit` left out."""
    if hidden > 0:
        out.print(f"... and {counted(hidden, 'more ' + noun)}; --limit 0 shows all")


# ---------------------------------------------------------------------------------------------------------- progress
@contextlib.contextmanager
def progress(*, enabled: bool) -> Iterator[Callable[[Progress], object] | None]:
    """Yield a progress callback that draws a bar on stderr, or None if stderr is not a terminal."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from inlay.incremental.display import progress_bar

    with progress_bar() as show:
        yield show
