"""What a merge would do, file by file and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from inlay.incremental.prune import ConservativeMembershipChecker, ParquetMetadataAnalyzer, PartitionPruner
from inlay.incremental.validate import normalize_keys

__all__ = ["FilePlan", "IncrementalRewritePlan", "MergePlan", "plan_incremental_rewrite"]


@dataclass
class IncrementalRewritePlan:
    """Plan for executing an incremental rewrite operation."""

    affected_files: list[str]  # Files needing rewrite
    unaffected_files: list[str]  # Files to preserve
    new_files: list[str]  # New files for inserts
    affected_rows: int  # Total rows in affected files


@dataclass(slots=True)
class FilePlan:
    """What would become of one file, and the reason."""

    path: str
    operation: Literal["rewritten", "removed", "preserved", "inserted"]
    reason: str
    row_count: int
    size_bytes: int | None = None
    matched_rows: int = 0
    row_groups: tuple[int, ...] = ()  # those that hold matching keys
    bytes_copied: int = 0  # of `size_bytes`: would be taken over without decoding, where surgery is possible


@dataclass
class MergePlan(IncrementalRewritePlan):
    """A dry run: exact counts, and for every file why it is kept or rewritten."""

    strategy: str = ""
    source_count: int = 0
    target_count_before: int = 0
    target_count_after: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    rows_to_rewrite: int = 0
    bytes_to_rewrite: int = 0  # of the files that would be rewritten, as they are now, without what would be copied
    explain: InitVar[Callable[[], list[FilePlan]]] = list

    def __post_init__(self, explain: Callable[[], list[FilePlan]]) -> None:
        self._explain = explain

    @cached_property
    def files(self) -> list[FilePlan]:
        """One entry for every file."""
        return self._explain()  # not before somebody looks: there may be very many

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"files": [asdict(file) for file in self.files]}

    def __repr__(self) -> str:
        head = (
            f"MergePlan({self.strategy}: {self.inserted:,} to insert, {self.updated:,} to update"
            f" ({self.unchanged:,} unchanged), {self.deleted:,} to delete;"
            f" {self.target_count_before:,} -> {self.target_count_after:,} rows;"
            f" {self.rows_to_rewrite:,} rows, {self.bytes_to_rewrite:,} bytes to rewrite)"
        )
        touched = [file for file in self.files if file.operation != "preserved"]
        lines = [f"  {file.operation:<9} {file.path}: {file.reason}" for file in touched[:20]]
        if len(touched) > 20:
            lines.append(f"  ... and {len(touched) - 20:,} more")
        lines.append(f"  {len(self.files) - len(touched):,} files stay as they are")
        return "\n".join([head, *lines])

    def _repr_html_(self) -> str:
        """What notebooks show."""
        from inlay.incremental.html import plan_html

        return plan_html(self)


def plan_incremental_rewrite(
    dataset_path: str,
    source_keys: Sequence[Any],
    key_columns: Sequence[str],
    filesystem: Any = None,
    partition_schema: pa.Schema | None = None,
    *,
    source_partitions: Iterable[dict[str, Any]] | None = None,
) -> IncrementalRewritePlan:
    """Plan from metadata alone: files that partition values or statistics exclude are unaffected."""
    keys = normalize_keys(key_columns)
    files = ParquetMetadataAnalyzer().analyze_dataset_files(dataset_path, filesystem)
    candidates = set(
        PartitionPruner().identify_candidate_files(
            files, keys, source_keys, partition_schema, source_partitions=source_partitions
        )
    )
    possible = ConservativeMembershipChecker().files_that_might(files, keys, source_keys)
    affected = [file for file, might in zip(files, possible, strict=True) if might and file.path in candidates]
    chosen = {file.path for file in affected}
    return IncrementalRewritePlan(
        affected_files=[file.path for file in affected],
        unaffected_files=[file.path for file in files if file.path not in chosen],
        new_files=[],
        affected_rows=sum(file.total_rows for file in affected),
    )
