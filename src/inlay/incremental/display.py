"""Progress callbacks and bars, and the HTML view of plans and results in notebooks.

The HTML uses inline styles only: no script, no style sheet, no network. Text inherits the notebook's color, so it is
readable on light and dark backgrounds.
"""

from __future__ import annotations

import contextlib
import itertools
import posixpath
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from inlay.errors import InvalidArgumentError, MergeCancelledError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from inlay.incremental.plan import FilePlan, MergePlan
    from inlay.incremental.result import MergeFileMetadata, MergeResult

__all__ = ["Progress", "ProgressCallback", "Reporter", "plan_html", "progress_bar", "progress_callback", "result_html"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The argument of a progress callback: the number of finished files in one phase.

    Attributes:
        phase: `"match"`, `"rewrite"`, `"append"`, `"compact"`, `"alter"` or `"commit"`.
        done: The number of files that the phase has finished.
        total: The number of files in the phase.

    Example:
        >>> import inlay
        >>> steps = []
        >>> def on_progress(step: inlay.Progress) -> None:
        ...     steps.append(f"{step.phase} {step.done}/{step.total}")
        >>> inlay.merge({"id": [1]}, "people", "upsert", "id", progress=on_progress).inserted
        1
        >>> steps[-2:]
        ['commit 0/1', 'commit 1/1']
    """

    phase: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], object]


class Reporter:
    """Pass progress to the callback, if there is one, and raise if the callback cancels."""

    def __init__(self, callback: ProgressCallback | None) -> None:
        self._callback = callback
        self._now = Progress("", 0, 0)

    def __call__(self, phase: str, done: int, total: int) -> None:
        self._now = Progress(phase, done, total)
        if self._callback is not None and self._callback(self._now) is False:
            raise MergeCancelledError(
                f"The progress callback canceled the operation at {phase} {done} of {total}. Nothing changed.",
                operation=phase,
            )

    def committed(self) -> None:
        """Report the commit. The callback can no longer cancel."""
        self._now = Progress("commit", 1, 1)
        if self._callback is not None:
            self._callback(self._now)

    def tasks(self, done: int, total: int) -> None:
        """Convert the share of finished tasks of a remote engine to finished files of the phase."""
        files = self._now.total * done // max(total, 1)
        self(self._now.phase, max(files, self._now.done), self._now.total)


_SECONDS_BETWEEN_UPDATES = 0.1  # each update of a notebook is a message to a browser


@contextlib.contextmanager
def progress_callback(progress: ProgressCallback | bool | None) -> Iterator[ProgressCallback | None]:
    """Turn the `progress` argument into a callback. True shows a bar inside the block."""
    if progress is True:
        with progress_bar() as on_progress:
            yield on_progress
    elif progress is None or progress is False:
        yield None
    elif callable(progress):
        yield progress
    else:
        raise InvalidArgumentError(f"progress must be True or a callback, not {progress!r}.")


@contextlib.contextmanager
def progress_bar(console: Console | None = None) -> Iterator[ProgressCallback]:
    """Show a progress bar in the notebook, or on stderr if it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = console or Console(stderr=True)
    bar = Bar(*columns, console=console, transient=True)
    task = bar.add_task("source", total=None)
    show = _in_notebook if console.is_jupyter else _in_terminal if console.is_interactive else _hidden
    with show(bar) as redraw:

        def on_progress(step: Progress) -> None:
            bar.update(task, description=step.phase, completed=step.done, total=step.total)
            redraw()

        yield on_progress


@contextlib.contextmanager
def _hidden(_: Bar) -> Iterator[Callable[[], None]]:
    yield lambda: None


@contextlib.contextmanager
def _in_terminal(bar: Bar) -> Iterator[Callable[[], None]]:
    with bar:
        yield lambda: None  # rich redraws the bar in its own thread


@contextlib.contextmanager
def _in_notebook(bar: Bar) -> Iterator[Callable[[], None]]:
    """Show the bar as an updatable output. rich's own notebook support needs ipywidgets."""
    from IPython.display import display

    output = display(bar, display_id=True)  # type: ignore[no-untyped-call]  # IPython has no types
    drawn = time.monotonic()

    def redraw() -> None:
        nonlocal drawn
        if time.monotonic() - drawn >= _SECONDS_BETWEEN_UPDATES:
            output.update(bar)
            drawn = time.monotonic()

    try:
        yield redraw
    finally:
        output.update(bar)


_MAX_BLOCKS = 160
_MAX_LISTED = 20
_MAX_PATH = 120  # characters

# The kinds of files, from the least to the most changed, with their colors.
_COLORS = {
    "untouched": "#8b949e",
    "spliced": "#2f81f7",
    "rewritten": "#d9822b",
    "new": "#2da44e",
    "removed": "#d1242f",
}
_FADED = "#8b949e55"
_BLOCK = "display:inline-block;width:9px;height:15px;margin:1px;background:"
_TABLE = "border-collapse:collapse;border:0;margin:4px 0;font:inherit"
_CELL = "padding:0 1.2em 0 0;border:0;background:none;color:inherit;vertical-align:top"


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    kind: str
    rows: int
    size: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Bytes:
    """The dataset's bytes after the merge, by how the merge wrote them."""

    encoded: int
    copied: int
    untouched: int


def result_html(result: MergeResult) -> str:
    files = [_File(f.path, _kind(f), f.row_count, f.size_bytes) for f in result.files]
    encoded = result.bytes_written - result.bytes_copied
    written = _Bytes(encoded, result.bytes_copied, _size(files, "untouched"))
    summary = (
        f"{_size_text(result.bytes_written)} written: {_size_text(encoded)} encoded,"
        f" {_size_text(result.bytes_copied)} copied unchanged;"
        f" {_saved(written)} saved compared with rewriting the dataset"
    )
    title = "already committed, nothing changed now" if result.replayed else "done"
    return _page(f"{result.strategy}: {title}", files, _counts(result), written, summary)


def plan_html(plan: MergePlan) -> str:
    files = [_File(f.path, _kind(f), f.row_count, f.size_bytes, f.reason) for f in plan.files]
    files += [_File(path, "new", 0, None, "new keys") for path in plan.new_files]
    copied = sum(file.bytes_copied for file in plan.files)
    written = _Bytes(plan.bytes_to_rewrite, copied, _size(files, "untouched"))
    summary = (
        f"{_size_text(plan.bytes_to_rewrite)} to encode (without new rows), {_size_text(copied)} to copy;"
        f" {_saved(written)} saved compared with rewriting the dataset"
    )
    title = "already committed, nothing to do" if plan.replayed else "plan, nothing was changed"
    return _page(f"{plan.strategy}: {title}", files, _counts(plan), written, summary)


def _kind(file: FilePlan | MergeFileMetadata) -> str:
    if file.operation == "rewritten":
        return "spliced" if file.bytes_copied else "rewritten"
    return {"preserved": "untouched", "inserted": "new"}.get(file.operation, file.operation)


def _size(files: Sequence[_File], kind: str) -> int:
    return sum(file.size or 0 for file in files if file.kind == kind)


def _counts(merge: MergePlan | MergeResult) -> dict[str, int]:
    counts = {
        "source": merge.source_count,
        "inserted": merge.inserted,
        "updated": merge.updated,
        "unchanged": merge.unchanged,
        "deleted": merge.deleted,
        "before": merge.target_count_before,
        "after": merge.target_count_after,
    }
    return counts | ({"stale": merge.stale} if merge.stale else {})


def _saved(written: _Bytes) -> str:
    whole = written.encoded + written.copied + written.untouched
    return f"{_size_text(written.untouched)} ({written.untouched / whole if whole else 0:.0%})"


# ----------------------------------------------------------------------------------------------------------------- HTML
def _page(title: str, files: Sequence[_File], counts: Mapping[str, int], written: _Bytes, summary: str) -> str:
    ordered = sorted(files, key=lambda file: file.path)
    directory = _common_directory(ordered)
    relative = [_File(_relative(f.path, directory), f.kind, f.rows, f.size, f.reason) for f in ordered]
    subtitle = f' <span style="opacity:.7">{escape(_shorten(directory))}</span>' if directory else ""
    return "".join(
        [
            '<div style="font:13px/1.6 system-ui,sans-serif;color:inherit">',
            f"<div><b>{escape(title)}</b>{subtitle}</div>",
            _strip(relative),
            _legend(relative),
            _table(counts),
            _bar(written),
            f'<div style="opacity:.85">{escape(summary)}</div>',
            _details([file for file in relative if file.kind != "untouched"]),
            "</div>",
        ]
    )


def _strip(files: Sequence[_File]) -> str:
    """Draw a block for each file in path order, or for several adjacent files if many."""
    step = -(-len(files) // _MAX_BLOCKS) or 1
    groups = [(start + 1, files[start : start + step]) for start in range(0, len(files), step)]
    blocks = [_file_block(group[0]) if step == 1 else _group_block(first, group) for first, group in groups]
    return (
        f'<div role="img" aria-label="{_list_kinds(_by_kind(files))}"'
        f' style="line-height:0;margin:6px 0;max-width:56em">{"".join(blocks)}</div>'
    )


def _file_block(file: _File) -> str:
    return _block(_fill(file.kind), f"{file.kind}: {_describe(file)}", f' data-kind="{file.kind}"')


def _group_block(first: int, files: Sequence[_File]) -> str:
    kinds = _by_kind(files)
    title = f"files {first:,} to {first + len(files) - 1:,}: {_list_kinds(kinds)}"
    return _block(_gradient(kinds), title, f' data-files="{len(files)}"')


def _block(background: str, title: str, data: str = "") -> str:
    return f'<span title="{escape(title)}" style="{_BLOCK}{background}"{data}></span>'


def _fill(kind: str) -> str:
    """Return the color of a block, and a shape that color-blind users can distinguish."""
    color = _COLORS[kind]
    if kind == "spliced":
        return f"linear-gradient(to top,{color} 55%,{_FADED} 55%)"
    if kind == "removed":
        return f"none;box-shadow:inset 0 0 0 2px {color}"
    return _FADED if kind == "untouched" else color


def _gradient(kinds: Mapping[str, int]) -> str:
    """Show the share of each kind as height, large enough that a single file is visible."""
    weights = {kind: max(count / sum(kinds.values()), 0.25) for kind, count in kinds.items()}
    stops, height = [], 0.0
    for kind, weight in weights.items():
        color = _FADED if kind == "untouched" else _COLORS[kind]
        top = height + 100 * weight / sum(weights.values())
        stops.append(f"{color} {height:.0f}% {top:.0f}%")
        height = top
    return f"linear-gradient({','.join(stops)})"


def _legend(files: Sequence[_File]) -> str:
    kinds = _by_kind(files)
    parts = [
        f'<span style="margin-right:1.2em;white-space:nowrap">{_block(_fill(kind) + ";vertical-align:middle", kind)}'
        f' <span data-count="{kind}">{count:,}</span> {kind}</span>'
        for kind, count in kinds.items()
    ]
    return f"<div>{''.join(parts) or 'no files'}</div>"


def _table(counts: Mapping[str, int]) -> str:
    heads = "".join(f'<th style="{_CELL};text-align:right;font-weight:normal">{name}</th>' for name in counts)
    cells = "".join(
        f'<td data-rows="{name}" style="{_CELL};text-align:right">{count:,}</td>' for name, count in counts.items()
    )
    return (
        f'<table style="{_TABLE}"><tr style="opacity:.7"><td style="{_CELL}"></td>{heads}</tr>'
        f'<tr><td style="{_CELL}">rows</td>{cells}</tr></table>'
    )


def _bar(written: _Bytes) -> str:
    parts = {"encoded": written.encoded, "copied": written.copied, "untouched": written.untouched}
    colors = (_COLORS["rewritten"], _COLORS["spliced"], _FADED)
    whole = sum(parts.values())
    if not whole:
        return ""
    pieces = [
        f'<span title="{_size_text(count)} {name}" style="display:inline-block;height:8px;background:{color};'
        f'width:{100 * count / whole:.2f}%"></span>'
        for (name, count), color in zip(parts.items(), colors, strict=True)
        if count
    ]
    return f'<div style="line-height:0;white-space:nowrap;max-width:56em;margin:4px 0">{"".join(pieces)}</div>'


def _details(touched: Sequence[_File]) -> str:
    if not touched:
        return ""
    rows = "".join(
        "<tr>" + "".join(f'<td style="{_CELL};text-align:left">{escape(text)}</td>' for text in _cells(file)) + "</tr>"
        for file in touched[:_MAX_LISTED]
    )
    more = len(touched) - _MAX_LISTED
    rest = f"<div>... and {more:,} more</div>" if more > 0 else ""
    noun = "file" if len(touched) == 1 else "files"
    return (
        f"<details><summary>{len(touched):,} {noun} touched</summary>"
        f'<table style="{_TABLE}">{rows}</table>{rest}</details>'
    )


def _cells(file: _File) -> Iterator[str]:
    yield file.kind
    yield _shorten(file.path)
    yield "" if file.size is None else f"{file.rows:,}\N{NO-BREAK SPACE}rows"
    yield "" if file.size is None else _size_text(file.size)
    yield file.reason


# ----------------------------------------------------------------------------------------------------------------- text
def _by_kind(files: Sequence[_File]) -> dict[str, int]:
    found = Counter(file.kind for file in files)
    return {kind: found[kind] for kind in _COLORS if found[kind]}


def _list_kinds(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) or "no files"


def _describe(file: _File) -> str:
    size = "" if file.size is None else f" ({file.rows:,} rows, {_size_text(file.size)})"
    reason = f": {file.reason}" if file.reason else ""
    return f"{_shorten(file.path)}{size}{reason}"


def _common_directory(files: Sequence[_File]) -> str:
    directories = {posixpath.dirname(file.path) for file in files}
    if not directories:
        return ""
    first, last = min(directories).split("/"), max(directories).split("/")
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "/".join(name for name, _ in same)


def _relative(path: str, directory: str) -> str:
    return path.removeprefix(f"{directory}/") if directory else path


def _shorten(path: str) -> str:
    """Keep the end of a long path, which differs more than its start."""
    return path if len(path) <= _MAX_PATH else f"...{path[-_MAX_PATH:]}"


def _size_text(size: int) -> str:
    from rich.filesize import decimal  # a merge that shows nothing does not import rich

    return decimal(size)
