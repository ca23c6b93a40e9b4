"""What a merge or a write did, in exact numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from inlay.errors import InlayError
from inlay.incremental.strategies import MergeStrategy

__all__ = ["MergeFileMetadata", "MergeResult", "MergeStats", "WriteResult", "compute_merge_stats"]

Operation = Literal["rewritten", "inserted", "preserved", "removed"]


@dataclass(slots=True)
class MergeFileMetadata:
    """One file of the dataset and what became of it."""

    path: str
    row_count: int
    operation: Operation
    size_bytes: int | None = None
    bytes_copied: int = 0  # of `size_bytes`: taken over from the old file without decoding


def _paths(files: Sequence[MergeFileMetadata], operation: Operation) -> list[str]:
    return [file.path for file in files if file.operation == operation]


@dataclass(slots=True)
class MergeResult:
    """Result of a merge. `target_count_before + inserted - deleted == target_count_after`, always."""

    strategy: str
    source_count: int
    target_count_before: int
    target_count_after: int
    inserted: int
    updated: int
    deleted: int
    files: list[MergeFileMetadata] = field(default_factory=list)
    rewritten_files: list[str] = field(default_factory=list)
    inserted_files: list[str] = field(default_factory=list)
    preserved_files: list[str] = field(default_factory=list)
    removed_files: list[str] = field(default_factory=list)
    unchanged: int = 0  # of `updated`: rows that already were equal
    bytes_written: int = 0
    bytes_copied: int = 0  # of `bytes_written`: taken over from old files without decoding

    @classmethod
    def of(cls, files: Sequence[MergeFileMetadata], **counts: Any) -> MergeResult:
        ordered = sorted(files, key=lambda file: file.path)
        return cls(
            files=ordered,
            rewritten_files=_paths(ordered, "rewritten"),
            inserted_files=_paths(ordered, "inserted"),
            preserved_files=_paths(ordered, "preserved"),
            removed_files=_paths(ordered, "removed"),
            **counts,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        return (
            f"MergeResult({self.strategy}: {self.inserted:,} inserted, {self.updated:,} updated"
            f" ({self.unchanged:,} unchanged), {self.deleted:,} deleted; {self.target_count_before:,} ->"
            f" {self.target_count_after:,} rows; files: {len(self.rewritten_files):,} rewritten,"
            f" {len(self.inserted_files):,} new, {len(self.removed_files):,} removed,"
            f" {len(self.preserved_files):,} untouched)"
        )

    def _repr_html_(self) -> str:
        """What notebooks show."""
        from inlay.incremental.html import result_html

        return result_html(self)


@dataclass(slots=True)
class WriteResult:
    """Result of `write_dataset` or `compact`: the files it wrote and removed."""

    mode: str
    row_count: int
    files: list[MergeFileMetadata] = field(default_factory=list)
    removed_files: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class MergeStats(dict[str, int]):
    """`inserted`, `updated`, `deleted` and `total` (rows after), as a dict with attributes."""

    def __getattr__(self, name: str) -> int:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def compute_merge_stats(
    *,
    strategy: MergeStrategy,
    target_before: int,
    target_after: int,
    inserted_rows: int,
    updated_rows: int,
    deleted_rows: int,
) -> MergeStats:
    """Statistics from actual row counts; numbers that do not add up are an error, never an estimate."""
    if min(target_before, target_after, inserted_rows, updated_rows, deleted_rows) < 0:
        raise InlayError(f"Negative row count in the statistics of {strategy!r}.")
    if target_before + inserted_rows - deleted_rows != target_after:
        raise InlayError(
            f"The row counts of {strategy!r} do not add up: {target_before} before + {inserted_rows} inserted"
            f" - {deleted_rows} deleted is not {target_after} after."
        )
    return MergeStats(inserted=inserted_rows, updated=updated_rows, deleted=deleted_rows, total=target_after)
