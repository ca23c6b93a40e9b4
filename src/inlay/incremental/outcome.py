"""What a merge did or would do, told from its decisions and from what was written."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from inlay.engines.base import Written
from inlay.incremental.decide import Decision, Decisions
from inlay.incremental.options import MergeOptions
from inlay.incremental.plan import FilePlan, MergePlan
from inlay.incremental.result import MergeFileMetadata, MergeResult, compute_merge_stats
from inlay.incremental.stage import Slot, partition_chunks
from inlay.incremental.strategies import Strategy
from inlay.storage import FileStat, Location

__all__ = ["Rewritten", "plan_of", "result_of"]


class Rewritten(NamedTuple):
    """A file that was to be rewritten, and what became of it."""

    decision: Decision
    slot: Slot
    written: Written

    @property
    def changed(self) -> bool:
        return self.written.stage is not None


def result_of(
    decisions: Decisions,
    strategy: Strategy,
    source_count: int,
    rewritten: Sequence[Rewritten],
    appended: Sequence[tuple[Slot, Written]],
) -> MergeResult:
    location = decisions.target.location
    changed = {each.decision.footer.file.path: each for each in rewritten if each.changed}
    removed = set(decisions.removed)
    files = []
    for file, rows in decisions.target.footers.files_and_rows():
        if file.path in removed:
            entry = MergeFileMetadata(location.shown(file.path), 0, "removed", None)
        elif file.path in changed:
            _, slot, written = changed[file.path]
            entry = MergeFileMetadata(
                location.shown(slot.path), written.rows, "rewritten", written.size, written.bytes_copied
            )
        else:
            entry = MergeFileMetadata(location.shown(file.path), rows, "preserved", file.size)
        files.append(entry)
    files += [MergeFileMetadata(location.shown(slot.path), w.rows, "inserted", w.size) for slot, w in appended]
    stats = compute_merge_stats(
        strategy=strategy.name,
        target_before=decisions.target.rows,
        target_after=sum(file.row_count for file in files),
        inserted_rows=decisions.inserted,
        updated_rows=decisions.updated,
        deleted_rows=decisions.deleted,
    )
    everything = [*(each.written for each in changed.values()), *(written for _, written in appended)]
    return MergeResult.of(
        files,
        strategy=strategy.name,
        source_count=source_count,
        target_count_before=decisions.target.rows,
        target_count_after=stats.total,
        inserted=stats.inserted,
        updated=stats.updated,
        deleted=stats.deleted,
        unchanged=sum(each.written.unchanged for each in rewritten),
        bytes_written=sum(written.size for written in everything),
        bytes_copied=sum(written.bytes_copied for written in everything),
    )


def plan_of(
    decisions: Decisions,
    options: MergeOptions,
    source_count: int,
    rewritten: Sequence[Rewritten],
) -> MergePlan:
    location, footers = decisions.target.location, decisions.target.footers
    changed = {id(each.decision): each.written for each in rewritten if each.changed}
    explained = {d.at: _explained(location, d, changed.get(id(d))) for d in decisions.files}
    touched = {at: file for at, file in explained.items() if file.operation != "preserved"}
    return MergePlan(
        affected_files=[file.path for file in touched.values()],
        unaffected_files=[location.shown(file.path) for at, file in enumerate(footers.files) if at not in touched],
        new_files=_planned_names(decisions, options.max_rows_per_file),
        affected_rows=sum(file.row_count for file in touched.values()),
        strategy=options.strategy.name,
        source_count=source_count,
        target_count_before=decisions.target.rows,
        target_count_after=decisions.rows_after,
        inserted=decisions.inserted,
        updated=decisions.updated,
        deleted=decisions.deleted,
        unchanged=sum(each.written.unchanged for each in rewritten),
        rows_to_rewrite=sum(decision.rows_touched for decision in decisions.files if id(decision) in changed),
        bytes_to_rewrite=sum(
            (file.size_bytes or 0) - file.bytes_copied for file in touched.values() if file.operation == "rewritten"
        ),
        explain=partial(_every_file, location, footers.files, footers.rows, decisions.reasons_to_keep(), explained),
    )


def _every_file(
    location: Location,
    files: Sequence[FileStat],
    rows: np.ndarray,
    reasons: Sequence[str],
    explained: Mapping[int, FilePlan],
) -> list[FilePlan]:
    entries = enumerate(zip(files, rows.tolist(), reasons, strict=True))
    return [
        explained.get(at) or FilePlan(location.shown(file.path), "preserved", reason, count, file.size)
        for at, (file, count, reason) in entries
    ]


def _explained(location: Location, decision: Decision, changed: Written | None) -> FilePlan:
    equal = "; all of them are equal already" if decision.edits and changed is None else ""
    return FilePlan(
        path=location.shown(decision.footer.file.path),
        operation="removed" if decision.remove else "preserved" if changed is None else "rewritten",
        reason=decision.reason + equal,
        row_count=decision.footer.rows,
        size_bytes=decision.footer.file.size,
        matched_rows=decision.matched,
        row_groups=tuple(group.group for group in decision.match.groups) if decision.match else (),
        bytes_copied=0 if changed is None else changed.bytes_copied,
    )


def _planned_names(decisions: Decisions, most: int) -> list[str]:
    """New files get their final names only when they are written; a plan says where and how many."""
    partitions, shown = decisions.partitions, decisions.target.location.shown
    chunks = partition_chunks(decisions.new_rows, partitions, most)
    return [
        shown(posixpath.join(partitions.directory(number), f"part-*-{at:05d}.parquet"))
        for at, (number, _) in enumerate(chunks)
    ]
