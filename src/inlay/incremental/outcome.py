"""What a merge did or would do, told from its decisions and from what was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inlay.engines.base import Written
from inlay.incremental.decide import Decision, Decisions
from inlay.incremental.options import MergeOptions
from inlay.incremental.plan import FilePlan, MergePlan
from inlay.incremental.result import MergeFileMetadata, MergeResult, compute_merge_stats
from inlay.incremental.stage import Slot, partition_chunks
from inlay.incremental.strategies import Strategy

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
    location = decisions.target.location
    changed = {id(each.decision): each.written for each in rewritten if each.changed}
    reasons = decisions.reasons_to_keep()
    files = [
        FilePlan(location.shown(file.path), "preserved", reason, rows, file.size)
        for (file, rows), reason in zip(decisions.target.footers.files_and_rows(), reasons, strict=True)
    ]
    for decision in decisions.files:
        _explain(files[decision.at], decision, changed.get(id(decision)))
    touched = [file for file in files if file.operation in ("rewritten", "removed")]
    return MergePlan(
        affected_files=[file.path for file in touched],
        unaffected_files=[file.path for file in files if file.operation == "preserved"],
        new_files=_planned_names(decisions, options.max_rows_per_file),
        affected_rows=sum(file.row_count for file in touched),
        strategy=options.strategy.name,
        source_count=source_count,
        target_count_before=decisions.target.rows,
        target_count_after=decisions.rows_after,
        inserted=decisions.inserted,
        updated=decisions.updated,
        deleted=decisions.deleted,
        unchanged=sum(each.written.unchanged for each in rewritten),
        files=files,
        rows_to_rewrite=sum(decision.rows_touched for decision in decisions.files if id(decision) in changed),
        bytes_to_rewrite=sum((f.size_bytes or 0) - f.bytes_copied for f in touched if f.operation == "rewritten"),
    )


def _explain(plan: FilePlan, decision: Decision, changed: Written | None) -> None:
    plan.operation = "removed" if decision.remove else "preserved" if changed is None else "rewritten"
    equal = "; all of them are equal already" if decision.edits and changed is None else ""
    plan.reason = decision.reason + equal
    plan.matched_rows = decision.matched
    plan.bytes_copied = 0 if changed is None else changed.bytes_copied
    plan.row_groups = tuple(group.group for group in decision.match.groups) if decision.match else ()


def _planned_names(decisions: Decisions, most: int) -> list[str]:
    """New files get their final names only when they are written; a plan says where and how many."""
    chunks = partition_chunks(decisions.new_rows, decisions.partitions, most)
    names = [
        f"{decisions.partitions.directory(number)}/part-*-{at:05d}.parquet" for at, (number, _) in enumerate(chunks)
    ]
    return [decisions.target.location.shown(name.lstrip("/")) for name in names]
