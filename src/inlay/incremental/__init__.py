"""Merges, writes, compaction and reads of Parquet datasets."""

from typing import TYPE_CHECKING, Any

from inlay.commit.snapshot import list_dataset_files
from inlay.commit.transaction import IncrementalFileManager, RecoveryReport, recover
from inlay.incremental.alter import AlterPlan, AlterResult, alter, plan_alter
from inlay.incremental.compact import compact
from inlay.incremental.delete import delete, plan_delete
from inlay.incremental.diff import diff
from inlay.incremental.display import Progress
from inlay.incremental.merge import merge, plan_merge
from inlay.incremental.metadata import ParquetFileMetadata, ParquetMetadataAnalyzer, RowGroupMetadata
from inlay.incremental.plan import FilePlan, IncrementalRewritePlan, MergePlan
from inlay.incremental.publish import PublishedView, publish, unpublish
from inlay.incremental.read import open_dataset, read_parquet
from inlay.incremental.result import (
    MergeFileMetadata,
    MergeResult,
    MergeStats,
    WriteResult,
    compute_merge_stats,
)
from inlay.incremental.steps import (
    ConservativeMembershipChecker,
    PartitionPruner,
    TableLike,
    confirm_affected_files,
    plan_incremental_rewrite,
    validate_keys_and_schema,
    validate_no_null_keys,
    validate_partition_column_immutability,
)
from inlay.incremental.strategies import STRATEGIES, MergeStrategy, Strategy
from inlay.incremental.validate import normalize_keys
from inlay.incremental.versions import (
    ForgetReport,
    Version,
    VersionHistory,
    forget,
    history,
    keep,
    restore,
    undo,
)
from inlay.incremental.write import write_dataset
from inlay.parquet.layout import parse_hive_partition_path

if TYPE_CHECKING:
    from inlay.incremental.dataset import SnapshotDataset

__all__ = [
    "STRATEGIES",
    "AlterPlan",
    "AlterResult",
    "ConservativeMembershipChecker",
    "FilePlan",
    "ForgetReport",
    "IncrementalFileManager",
    "IncrementalRewritePlan",
    "MergeFileMetadata",
    "MergePlan",
    "MergeResult",
    "MergeStats",
    "MergeStrategy",
    "ParquetFileMetadata",
    "ParquetMetadataAnalyzer",
    "PartitionPruner",
    "Progress",
    "PublishedView",
    "RecoveryReport",
    "RowGroupMetadata",
    "SnapshotDataset",
    "Strategy",
    "TableLike",
    "Version",
    "VersionHistory",
    "WriteResult",
    "alter",
    "compact",
    "compute_merge_stats",
    "confirm_affected_files",
    "delete",
    "diff",
    "forget",
    "history",
    "keep",
    "list_dataset_files",
    "merge",
    "normalize_keys",
    "open_dataset",
    "parse_hive_partition_path",
    "plan_alter",
    "plan_delete",
    "plan_incremental_rewrite",
    "plan_merge",
    "publish",
    "read_parquet",
    "recover",
    "restore",
    "undo",
    "unpublish",
    "validate_keys_and_schema",
    "validate_no_null_keys",
    "validate_partition_column_immutability",
    "write_dataset",
]


def __getattr__(name: str) -> Any:
    if name != "SnapshotDataset":
        raise AttributeError(f"module 'inlay.incremental' has no attribute {name!r}")
    from inlay.incremental.dataset import SnapshotDataset  # a slow import, because it needs the datasets of pyarrow

    globals()[name] = SnapshotDataset
    return SnapshotDataset
