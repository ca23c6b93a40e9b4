"""inlay keeps plain Parquet datasets current: merges that rewrite only the row groups that change.

Each name is imported when it is first used, so that `import inlay` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inlay.errors import DatasetMergeError, InlayError
    from inlay.incremental import (
        AlterPlan,
        AlterResult,
        FilePlan,
        ForgetReport,
        MergeFileMetadata,
        MergePlan,
        MergeResult,
        MergeStats,
        Progress,
        PublishedView,
        RecoveryReport,
        SnapshotDataset,
        Version,
        VersionHistory,
        WriteResult,
        alter,
        compact,
        delete,
        diff,
        forget,
        history,
        keep,
        list_dataset_files,
        merge,
        open_dataset,
        plan_alter,
        plan_delete,
        plan_merge,
        publish,
        read_parquet,
        recover,
        restore,
        undo,
        unpublish,
        write_dataset,
    )
    from inlay.io import (
        DuckDBDatasetIO,
        DuckDBParquetHandler,
        PyArrowDatasetIO,
        SparkDatasetIO,
        merge_parquet_dataset_pyarrow,
    )
    from inlay.storage import PathValidator

__version__ = "0.1.0"

_EXPORTS = {
    "inlay.errors": ("DatasetMergeError", "InlayError"),
    "inlay.incremental": (
        "AlterPlan",
        "AlterResult",
        "FilePlan",
        "ForgetReport",
        "MergeFileMetadata",
        "MergePlan",
        "MergeResult",
        "MergeStats",
        "Progress",
        "PublishedView",
        "RecoveryReport",
        "SnapshotDataset",
        "Version",
        "VersionHistory",
        "WriteResult",
        "alter",
        "compact",
        "delete",
        "diff",
        "forget",
        "history",
        "keep",
        "list_dataset_files",
        "merge",
        "open_dataset",
        "plan_delete",
        "plan_alter",
        "plan_merge",
        "publish",
        "read_parquet",
        "recover",
        "restore",
        "undo",
        "unpublish",
        "write_dataset",
    ),
    "inlay.io": (
        "DuckDBDatasetIO",
        "DuckDBParquetHandler",
        "PyArrowDatasetIO",
        "SparkDatasetIO",
        "merge_parquet_dataset_pyarrow",
    ),
    "inlay.storage": ("PathValidator",),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "AlterPlan",
    "AlterResult",
    "DatasetMergeError",
    "DuckDBDatasetIO",
    "DuckDBParquetHandler",
    "FilePlan",
    "ForgetReport",
    "InlayError",
    "MergeFileMetadata",
    "MergePlan",
    "MergeResult",
    "MergeStats",
    "PathValidator",
    "Progress",
    "PublishedView",
    "PyArrowDatasetIO",
    "RecoveryReport",
    "SnapshotDataset",
    "SparkDatasetIO",
    "Version",
    "VersionHistory",
    "WriteResult",
    "__version__",
    "alter",
    "compact",
    "delete",
    "diff",
    "forget",
    "history",
    "keep",
    "list_dataset_files",
    "merge",
    "merge_parquet_dataset_pyarrow",
    "open_dataset",
    "plan_alter",
    "plan_delete",
    "plan_merge",
    "publish",
    "read_parquet",
    "recover",
    "restore",
    "undo",
    "unpublish",
    "write_dataset",
]


def __getattr__(name: str) -> Any:
    if name == "spark":  # needs pyspark, unlike the other names
        return importlib.import_module("inlay.spark")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'inlay' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
