"""Print responses of the service in a terminal, and progress while a command waits for them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from inlay.cli.output import console, counted, history, note_hidden, plain, size, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from inlay.cli.client import Step

__all__ = [
    "created",
    "dataset",
    "datasets",
    "diff",
    "loaded",
    "planned",
    "print_rows",
    "progress",
    "query_result",
    "rejects",
]


_MIN_WIDTH = 6  # a narrower column of a table is not readable
_PADDING = 2


def _minute(time: str) -> str:
    """Format a timestamp to the minute."""
    return f"{time[:10]} {time[11:16]}"


# ------------------------------------------------------------------------------------------------------------ datasets
def created(dataset: Mapping[str, Any]) -> None:
    out = console()
    rows = counted(dataset["row_count"], "row")
    out.print(f"{dataset['table_name']}: {rows} in version {dataset['version']} ({dataset['id']})")
    _print_warnings(out, dataset, dataset["table_name"])
    out.print("Query it:")
    out.print(f'  inlay query "SELECT * FROM datasets.{dataset["table_name"]} LIMIT 10"', soft_wrap=True)  # noqa: S608


def datasets(page: Mapping[str, Any]) -> None:
    out = console()
    rows = [
        (each["table_name"], plain(each["label"]), f"{each['row_count']:,}", size(each["size_bytes"]),
         f"{each['version']:,}", each["updated_at"][:10])
        for each in page["datasets"]
    ]  # fmt: skip
    if not rows:
        out.print("There are no datasets. Create one with `inlay upload FILE --label ...`.")
        return
    headers = ("table", "label", "rows", "size", "version", "updated")
    out.print(table(headers, rows, left=("table", "label"), styles=[""] * len(rows)))
    note_hidden(out, page["count"] - len(rows), "dataset")


def dataset(found: Mapping[str, Any], versions: Mapping[str, Any]) -> None:
    from inlay.incremental.versions import Version

    out = console()
    out.print(f"{found['table_name']}: {plain(found['label'])} ({found['id']})")
    out.print(
        f"{counted(found['row_count'], 'row')}, {size(found['size_bytes'])} in {counted(len(found['files']), 'file')};"
        f" version {found['version']}, updated {_minute(found['updated_at'])} UTC"
    )
    out.print(found["parquet_url"], soft_wrap=True)
    out.print()
    columns = [(plain(c["name"]), c["type"], "" if c["nullable"] else "not null") for c in found["schema"]["columns"]]
    out.print(table(("column", "type", ""), columns, left=("column", "type", ""), styles=[""] * len(columns)))
    out.print()
    listed = versions["versions"]
    names = [each.name for each in fields(Version)]
    history([Version(**{name: each[name] for name in names}) for each in listed])
    for each in listed:
        if each["rejected_count"]:
            out.print(f"version {each['version']}: {counted(each['rejected_count'], 'row')} rejected", style="yellow")
    note_hidden(out, versions["count"] - len(listed), "version")


def rejects(page: Mapping[str, Any], table_name: str) -> None:
    out = console()
    rows = [
        (f"{each['line']:,}", plain(each["column"] or ""), plain(each["value"]), plain(each["reason"]))
        for each in page["rejects"]
    ]
    out.print(f"{counted(page['count'], 'row')} rejected in the source of version {page['version']} of {table_name}")
    if rows:
        left = ("column", "value", "reason")
        out.print(table(("line", *left), rows, left=left, styles=[""] * len(rows)))
    note_hidden(out, page["count"] - len(rows), "row")


# --------------------------------------------------------------------------------------------------------------- loads
def loaded(load: Mapping[str, Any], table_name: str) -> None:
    out = console()
    out.print(
        f"{load['strategy']}: {load['inserted']:,} inserted, {load['updated']:,} updated"
        f" ({load['unchanged']:,} unchanged), {load['deleted']:,} deleted{_stale(load)}; {_rows(load)}"
    )
    files = {name: load.get(f"files_{name}") or 0 for name in ("rewritten", "added", "removed", "kept")}
    out.print(
        f"files: {files['rewritten']:,} rewritten, {files['added']:,} new, {files['removed']:,} removed,"
        f" {files['kept']:,} untouched; {size(load.get('bytes_written') or 0)} written"
    )
    _print_warnings(out, load, table_name)
    out.print(f"{table_name} is at version {load['version']}. To undo the load:")
    out.print(f"  inlay datasets {table_name} --restore {load['version'] - 1}", soft_wrap=True)


def planned(plan: Mapping[str, Any], table_name: str) -> None:
    out = console()
    out.print(
        f"{plan['strategy']}: {plan['inserted']:,} to insert, {plan['updated']:,} to update"
        f" ({plan['unchanged']:,} unchanged), {plan['deleted']:,} to delete{_stale(plan)}; {_rows(plan)}"
    )
    out.print(
        f"{counted(plan['files_rewritten'], 'file')} ({size(plan['bytes_rewritten'])}) of version {plan['version']}"
        f" of {table_name} to rewrite; nothing changed"
    )
    _print_warnings(out, plan, None)


def _stale(counts: Mapping[str, Any]) -> str:
    return f", {counts['stale']:,} stale" if counts["stale"] else ""


def _rows(counts: Mapping[str, Any]) -> str:
    after = counts["row_count"]
    return f"{after - counts['inserted'] + counts['deleted']:,} -> {after:,} rows"


def _print_warnings(out: Console, response: Mapping[str, Any], table_name: str | None) -> None:
    """Print rejects and warnings. A dry run has no table name, because its rejects are not stored."""
    if response["rejected_count"]:
        command = f": inlay datasets {table_name} --rejects" if table_name else ""
        out.print(f"{counted(response['rejected_count'], 'row')} rejected{command}", style="yellow")
    for warning in response["warnings"]:
        out.print(f"Warning: {plain(warning)}", style="yellow")


# ------------------------------------------------------------------------------------------------------------- queries
def query_result(answer: Mapping[str, Any]) -> None:
    """Print a table, or each row as a list of values if the table is too wide for the terminal."""
    out = console()
    print_rows(out, answer["columns"], answer["rows"])
    more = "; more rows exist, raise --limit to see them" if answer["truncated"] else ""
    out.print(f"({counted(answer['row_count'], 'row')} in {answer['execution_time_ms'] / 1000:.2f} s{more})")


def print_rows(out: Console, columns: Sequence[Mapping[str, str]], values: Sequence[Sequence[object]]) -> None:
    """Print rows as a table, or each as a list of values. Without rows, print the names of the columns."""
    names = [plain(column["name"]) for column in columns]
    rows = [[_cell(value) for value in row] for row in values]
    if rows:
        show = _as_table if _fits(out.width, names, rows) else _as_lists
        show(out, names, [_is_number(*each) for each in zip(columns, *values, strict=True)], rows)
    else:
        out.print(", ".join(names))


def _is_number(column: Mapping[str, str], *values: object) -> bool:
    # JSON carries decimals as text.
    are_numbers = all(value is None or type(value) in (int, float) for value in values)
    return are_numbers or column["type"].startswith("decimal")


def _cell(value: object) -> Text:
    from rich.text import Text

    return Text(plain(value), style="dim" if value is None else "")


def _fits(width: int, names: Sequence[str], rows: Sequence[Sequence[Text]]) -> bool:
    """Return True if every column gets its full width, or at least a readable one."""
    from rich.cells import cell_len

    widest = [max(map(cell_len, (name, *(row[i].plain for row in rows)))) for i, name in enumerate(names)]
    return sum(min(each, _MIN_WIDTH) + _PADDING for each in widest) <= width


def _as_table(out: Console, names: Sequence[str], numbers: Sequence[bool], rows: Sequence[Sequence[Text]]) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, _PADDING, 0, 0), header_style="bold")
    for name, is_number in zip(names, numbers, strict=True):
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _as_lists(out: Console, names: Sequence[str], _: Sequence[bool], rows: Sequence[Sequence[Text]]) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, _PADDING, 0, 0))
    table.add_column(style="bold", overflow="fold", max_width=max(_MIN_WIDTH, out.width // 3))
    table.add_column(overflow="fold")
    for number, row in enumerate(rows, start=1):
        table.add_row(f"row {number:,}", "", style="dim")
        for name, value in zip(names, row, strict=True):
            table.add_row(name, value)
    out.print(table)


def diff(summary: Mapping[str, Any]) -> None:
    """Print the rows that differ between two versions, and their counts."""
    out = console()
    if summary.get("rows"):
        print_rows(out, summary["columns"], summary["rows"])
    out.print(
        f"Version {summary['old']} to version {summary['new']}: {summary['inserted']:,} inserted,"
        f" {summary['updated']:,} updated, {summary['deleted']:,} deleted"
    )
    if "output" in summary:
        out.print(f"Rows written to {summary['output']} ({size(summary['size_bytes'])})", soft_wrap=True)
        return
    hidden = summary["inserted"] + 2 * summary["updated"] + summary["deleted"] - len(summary["rows"])
    if hidden:
        out.print(f"... and {counted(hidden, 'more row')}; --output FILE writes all rows")


# ------------------------------------------------------------------------------------------------------------ progress
@contextlib.contextmanager
def progress(*, enabled: bool) -> Iterator[Step]:
    """Yield a progress callback that draws a bar for each phase, if stderr is a terminal."""
    if not enabled or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<8}"), BarColumn(), TextColumn("{task.fields[amount]}"),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _steps(bar)


def _steps(bar: Any) -> Callable[[str, int, int | None], None]:
    tasks: dict[str, Any] = {}

    def show(phase: str, done: int, total: int | None) -> None:
        if phase not in tasks:
            for earlier in tasks.values():
                bar.update(earlier, visible=False)
            tasks[phase] = bar.add_task(phase, total=total or None, amount="")
        in_bytes = phase == "upload"
        amount = (f"{size(done)} of {size(total)}" if total else size(done)) if in_bytes else f"{done}/{total}"
        bar.update(tasks[phase], completed=done, total=total or None, amount=amount if total or in_bytes else "")

    return show
