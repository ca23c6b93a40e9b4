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

    from inlay.incremental import (
        AlterPlan,
        AlterResult,
        ForgetReport,
        MergePlan,
        MergeResult,
        Progress,
        PublishedView,
        RecoveryReport,
        Version,
        WriteResult,
    )

__all__ = [
    "alter_plan",
    "alter_result",
    "forgotten",
    "history",
    "merge_plan",
    "merge_result",
    "plain",
    "print_json",
    "progress",
    "recovery",
    "restored",
    "size",
    "table",
    "unpublished",
    "view",
    "write_result",
]

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
        f" {plan.deleted:,} to delete{_stale(plan.stale)}; {plan.target_count_before:,} ->"
        f" {plan.target_count_after:,} rows"
    )
    out.print(
        f"{counted(plan.rows_to_rewrite, 'row')} ({size(plan.bytes_to_rewrite)}) to rewrite in"
        f" {len(plan.affected_files):,} of {counted(len(plan.files), 'file')}; nothing changed"
    )
    if plan.replayed:
        _note_replay(out, "a merge would change nothing")
    elif plan.strategy == "full_merge" and not plan.source_count:
        out.print(f"note: the source has no rows, so the merge would delete {counted(plan.deleted, 'row')}")
    _note_absence(out, dataset, rows)


def merge_result(result: MergeResult, dataset: str, limit: int) -> None:
    out = console()
    touched = [file for file in result.files if file.operation != "preserved"]
    rows = [(f.operation, relative(f.path, dataset), f"{f.row_count:,}", size(f.size_bytes)) for f in touched]
    untouched = "" if result.replayed else f", {len(result.preserved_files):,} untouched"
    _files(out, ("", "file", "rows", "size"), rows, limit)
    out.print(
        f"{result.strategy}: {result.inserted:,} inserted, {result.updated:,} updated"
        f" ({result.unchanged:,} unchanged), {result.deleted:,} deleted{_stale(result.stale)};"
        f" {result.target_count_before:,} -> {result.target_count_after:,} rows"
    )
    out.print(
        f"files: {len(result.rewritten_files):,} rewritten, {len(result.inserted_files):,} new,"
        f" {len(result.removed_files):,} removed{untouched};"
        f" {size(result.bytes_written)} written, {size(result.bytes_copied)} of it copied"
    )
    if result.replayed:
        _note_replay(out, "this is its recorded result, and nothing changed now")
        return
    if result.strategy == "full_merge" and not result.source_count:
        out.print(f"note: the source has no rows, so the merge deleted {counted(result.deleted, 'row')}")
    _note_absence(out, dataset, result.files)


def _note_replay(out: Console, consequence: str) -> None:
    out.print(f"note: this transaction is already committed; {consequence}")


def alter_plan(plan: AlterPlan, dataset: str, limit: int) -> None:
    out = console()
    rows = [
        (f.operation, relative(f.path, dataset), f"{f.row_count:,}", size(f.size_bytes), f.reason) for f in plan.files
    ]
    _files(out, ("", "file", "rows", "size", "reason"), rows, limit)
    out.print(
        f"{counted(len(plan.affected_files), 'file')} to rewrite, {len(plan.unaffected_files):,} untouched;"
        f" {size(plan.bytes_to_rewrite)} to encode, {size(plan.bytes_copied)} to copy; nothing changed"
    )


def alter_result(result: AlterResult, dataset: str, limit: int) -> None:
    out = console()
    rewritten = [file for file in result.files if file.operation != "preserved"]
    rows = [(f.operation, relative(f.path, dataset), f"{f.row_count:,}", size(f.size_bytes)) for f in rewritten]
    _files(out, ("", "file", "rows", "size"), rows, limit)
    out.print(
        f"{counted(len(result.rewritten_files), 'file')} rewritten, {len(result.preserved_files):,} untouched;"
        f" {size(result.bytes_written)} written, {size(result.bytes_copied)} of it copied"
    )


def _stale(count: int) -> str:
    return f", {count:,} stale" if count else ""


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


# ---------------------------------------------------------------------------------------------------------- versions
def history(versions: Sequence[Version]) -> None:
    headers = ["version", "time (UTC)", "operation", "new, updated, deleted", "rows", "files", "size"]
    styles = ["red" if version.damaged else "" for version in versions]
    left = ("operation",)
    console().print(table(headers, [_version_row(version) for version in versions], left=left, styles=styles))


def _version_row(version: Version) -> list[str]:
    operation = [version.operation]
    operation += [] if version.strategy is None else [version.strategy]
    operation += [] if version.restores is None else [f"to version {version.restores}"]
    operation += ["(damaged)"] if version.damaged else []
    counts = (version.inserted, version.updated, version.deleted)
    changes = "" if counts == (None, None, None) else ", ".join("-" if n is None else f"{n:,}" for n in counts)
    totals = ["" if version.rows is None else f"{version.rows:,}", f"{version.files:,}", size(version.bytes)]
    return [str(version.version), version.at[:19].replace("T", " "), " ".join(operation), changes, *totals]


def restored(version: Version) -> None:
    if version.restores is None:
        console().print(f"Nothing changed: version {version.version} has the same files.")
    else:
        console().print(f"Version {version.version} has the rows of version {version.restores}.")


def forgotten(report: ForgetReport) -> None:
    out = console()
    numbers = ", ".join(map(str, report.versions))
    out.print(f"Dropped {counted(len(report.versions), 'version')}{f' ({numbers})' if numbers else ''}.")
    out.print(f"Freed {size(report.bytes_freed)}.")
    if report.pinned is not None:
        out.print(f"A running process reads version {report.pinned}, so it and later versions were kept.")


def view(found: PublishedView) -> None:
    console().print(f"Published version {found.version} as {found.format} in {plain(found.folder)}", soft_wrap=True)


def unpublished(folders: Sequence[str]) -> None:
    out = console()
    for folder in folders:
        out.print(f"Deleted the view in {plain(folder)}", soft_wrap=True)
    if not folders:
        out.print("The dataset has no published views.")
