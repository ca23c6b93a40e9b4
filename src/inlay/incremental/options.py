"""The arguments of a merge, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inlay.defaults import MAX_ROWS_PER_FILE
from inlay.errors import InvalidArgumentError
from inlay.incremental.progress import ProgressCallback
from inlay.incremental.strategies import Strategy, get_strategy
from inlay.incremental.validate import SchemaMode, check_schema_mode, normalize_keys
from inlay.parquet.writer import check_choices

__all__ = ["MergeOptions"]


@dataclass(frozen=True, slots=True)
class MergeOptions:
    strategy: Strategy
    key_columns: list[str]
    partition_columns: list[str] | None
    compression: str | None
    max_rows_per_file: int
    row_group_size: int | None
    schema_mode: SchemaMode
    dedup_order_by: list[str]
    progress: ProgressCallback | None

    @classmethod
    def check(
        cls,
        strategy: str,
        key_columns: Sequence[str],
        partition_columns: Sequence[str] | None = None,
        partition_by: Sequence[str] | None = None,
        compression: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        row_group_size: int | None = None,
        schema_mode: SchemaMode = "strict",
        dedup_order_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> MergeOptions:
        if partition_by is not None and partition_columns is not None and list(partition_by) != list(partition_columns):
            raise InvalidArgumentError("partition_by is another name for partition_columns; give one of them.")
        given = partition_by if partition_columns is None else partition_columns
        chosen = get_strategy(strategy)
        if dedup_order_by is not None and not chosen.reduces_source:
            raise InvalidArgumentError('dedup_order_by goes with strategy="deduplicate".')
        check_schema_mode(schema_mode)
        check_choices(compression, row_group_size, max_rows_per_file)
        return cls(
            chosen,
            normalize_keys(key_columns),
            None if given is None else ([] if not given else normalize_keys(given, "partition column")),
            compression,
            max_rows_per_file,
            row_group_size,
            schema_mode,
            [] if dedup_order_by is None else normalize_keys(dedup_order_by, "dedup_order_by column"),
            progress,
        )
