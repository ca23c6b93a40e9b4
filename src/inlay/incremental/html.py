"""A plan and a result as notebooks show them: every file a coloured block, what becomes of rows and of bytes.

Only elements with styles of their own: no script, no style sheet, nothing from a network. Text has the notebook's own
colour, so that it is readable on light and on dark.
"""

from __future__ import annotations

import itertools
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from rich.filesize import decimal

if TYPE_CHECKING:
    from inlay.incremental.plan import FilePlan, MergePlan
    from inlay.incremental.result import MergeFileMetadata, MergeResult

__all__ = ["plan_html", "result_html"]

_MOST_BLOCKS = 160
_MOST_LISTED = 20
_LONGEST = 120

#: what becomes of a file, from the least to the most that is done to it -> its colour
_COLOURS = {
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
    """The dataset's bytes by what becomes of them."""

    encoded: int
    copied: int
    untouched: int


def result_html(result: MergeResult) -> str:
    """What a merge did."""
    files = [_File(f.path, _kind(f), f.row_count, f.size_bytes) for f in result.files]
    encoded = result.bytes_written - result.bytes_copied
    written = _Bytes(encoded, result.bytes_copied, _size(files, "untouched"))
    said = (
        f"{decimal(result.bytes_written)} written: {decimal(encoded)} encoded anew,"
        f" {decimal(result.bytes_copied)} copied as they were; {_saved(written)} saved against rewriting the dataset"
    )
    return _page(f"{result.strategy}: done", files, _counts(result), written, said)


def plan_html(plan: MergePlan) -> str:
    """What a merge would do."""
    files = [_File(f.path, _kind(f), f.row_count, f.size_bytes, f.reason) for f in plan.files]
    files += [_File(path, "new", 0, None, "new keys") for path in plan.new_files]
    copied = sum(file.bytes_copied for file in plan.files)
    written = _Bytes(plan.bytes_to_rewrite, copied, _size(files, "untouched"))
    said = (
        f"{decimal(plan.bytes_to_rewrite)} to encode anew besides new rows, {decimal(copied)} to copy as they are;"
        f" {_saved(written)} saved against rewriting the dataset"
    )
    return _page(f"{plan.strategy}: plan, nothing was changed", files, _counts(plan), written, said)


def _kind(file: FilePlan | MergeFileMetadata) -> str:
    if file.operation == "rewritten":
        return "spliced" if file.bytes_copied else "rewritten"
    return {"preserved": "untouched", "inserted": "new"}.get(file.operation, file.operation)


def _size(files: Sequence[_File], kind: str) -> int:
    return sum(file.size or 0 for file in files if file.kind == kind)


def _counts(told: MergePlan | MergeResult) -> dict[str, int]:
    return {
        "source": told.source_count,
        "inserted": told.inserted,
        "updated": told.updated,
        "unchanged": told.unchanged,
        "deleted": told.deleted,
        "before": told.target_count_before,
        "after": told.target_count_after,
    }


def _saved(written: _Bytes) -> str:
    whole = written.encoded + written.copied + written.untouched
    return f"{decimal(written.untouched)} ({written.untouched / whole if whole else 0:.0%})"


# ------------------------------------------------------------------------------------------------------------- the page
def _page(title: str, files: Sequence[_File], counts: Mapping[str, int], written: _Bytes, said: str) -> str:
    ordered = sorted(files, key=lambda file: file.path)
    place = _common_directory(ordered)
    shown = [_File(_relative(f.path, place), f.kind, f.rows, f.size, f.reason) for f in ordered]
    where = f' <span style="opacity:.7">{escape(_shortened(place))}</span>' if place else ""
    return "".join(
        [
            '<div style="font:13px/1.6 system-ui,sans-serif;color:inherit">',
            f"<div><b>{escape(title)}</b>{where}</div>",
            _strip(shown),
            _legend(shown),
            _table(counts),
            _bar(written),
            f'<div style="opacity:.85">{escape(said)}</div>',
            _details([file for file in shown if file.kind != "untouched"]),
            "</div>",
        ]
    )


def _strip(files: Sequence[_File]) -> str:
    """A block per file in the order of their paths; many files share blocks with their neighbours."""
    step = -(-len(files) // _MOST_BLOCKS) or 1
    groups = [(start + 1, files[start : start + step]) for start in range(0, len(files), step)]
    blocks = [_one(group[0]) if step == 1 else _several(first, group) for first, group in groups]
    return (
        f'<div role="img" aria-label="{_spoken(_by_kind(files))}" style="line-height:0;margin:6px 0;max-width:56em">'
        f"{''.join(blocks)}</div>"
    )


def _one(file: _File) -> str:
    return _block(_filled(file.kind), f"{file.kind}: {_described(file)}", f' data-kind="{file.kind}"')


def _several(first: int, files: Sequence[_File]) -> str:
    kinds = _by_kind(files)
    title = f"files {first:,} to {first + len(files) - 1:,}: {_spoken(kinds)}"
    return _block(_stacked(kinds), title, f' data-files="{len(files)}"')


def _block(background: str, title: str, data: str = "") -> str:
    return f'<span title="{escape(title)}" style="{_BLOCK}{background}"{data}></span>'


def _filled(kind: str) -> str:
    """A colour, and for eyes that tell few colours apart a form: a spliced block is half, a removed one hollow."""
    colour = _COLOURS[kind]
    if kind == "spliced":
        return f"linear-gradient(to top,{colour} 55%,{_FADED} 55%)"
    if kind == "removed":
        return f"none;box-shadow:inset 0 0 0 2px {colour}"
    return _FADED if kind == "untouched" else colour


def _stacked(kinds: Mapping[str, int]) -> str:
    """Shares as heights; what was done to a single file among thousands stays visible."""
    weights = {kind: max(count / sum(kinds.values()), 0.25) for kind, count in kinds.items()}
    stops, height = [], 0.0
    for kind, weight in weights.items():
        colour = _FADED if kind == "untouched" else _COLOURS[kind]
        top = height + 100 * weight / sum(weights.values())
        stops.append(f"{colour} {height:.0f}% {top:.0f}%")
        height = top
    return f"linear-gradient({','.join(stops)})"


def _legend(files: Sequence[_File]) -> str:
    kinds = _by_kind(files)
    parts = [
        f'<span style="margin-right:1.2em;white-space:nowrap">{_block(_filled(kind) + ";vertical-align:middle", kind)}'
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
    parts = {"encoded anew": written.encoded, "copied": written.copied, "untouched": written.untouched}
    colours = (_COLOURS["rewritten"], _COLOURS["spliced"], _FADED)
    whole = sum(parts.values())
    if not whole:
        return ""
    pieces = [
        f'<span title="{decimal(count)} {name}" style="display:inline-block;height:8px;background:{colour};'
        f'width:{100 * count / whole:.2f}%"></span>'
        for (name, count), colour in zip(parts.items(), colours, strict=True)
        if count
    ]
    return f'<div style="line-height:0;white-space:nowrap;max-width:56em;margin:4px 0">{"".join(pieces)}</div>'


def _details(touched: Sequence[_File]) -> str:
    if not touched:
        return ""
    rows = "".join(
        "<tr>" + "".join(f'<td style="{_CELL};text-align:left">{escape(text)}</td>' for text in _cells(file)) + "</tr>"
        for file in touched[:_MOST_LISTED]
    )
    more = len(touched) - _MOST_LISTED
    rest = f"<div>... and {more:,} more</div>" if more > 0 else ""
    noun = "file" if len(touched) == 1 else "files"
    return (
        f"<details><summary>{len(touched):,} {noun} touched</summary>"
        f'<table style="{_TABLE}">{rows}</table>{rest}</details>'
    )


def _cells(file: _File) -> Iterator[str]:
    yield file.kind
    yield _shortened(file.path)
    yield "" if file.size is None else f"{file.rows:,}\N{NO-BREAK SPACE}rows"
    yield "" if file.size is None else decimal(file.size)
    yield file.reason


# -------------------------------------------------------------------------------------------------------------- words
def _by_kind(files: Sequence[_File]) -> dict[str, int]:
    found = Counter(file.kind for file in files)
    return {kind: found[kind] for kind in _COLOURS if found[kind]}


def _spoken(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) or "no files"


def _described(file: _File) -> str:
    size = "" if file.size is None else f" ({file.rows:,} rows, {decimal(file.size)})"
    reason = f": {file.reason}" if file.reason else ""
    return f"{_shortened(file.path)}{size}{reason}"


def _common_directory(files: Sequence[_File]) -> str:
    """Where all of the files lie, said once."""
    folders = {posixpath.dirname(file.path) for file in files}
    if not folders:
        return ""
    least, most = min(folders).split("/"), max(folders).split("/")
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(least, most, strict=False))
    return "/".join(name for name, _ in same)


def _relative(path: str, place: str) -> str:
    return path.removeprefix(f"{place}/") if place else path


def _shortened(text: str) -> str:
    """The end of a path says more than its start."""
    return text if len(text) <= _LONGEST else f"...{text[-_LONGEST:]}"
