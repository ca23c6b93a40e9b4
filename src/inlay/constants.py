"""Literal types, limits and defaults that several layers share."""

from __future__ import annotations

from typing import Final, Literal, get_args

FileFormat = Literal["csv", "json", "parquet"]
FORMATS: Final[tuple[str, ...]] = get_args(FileFormat)
InlineFormat = Literal["csv", "json"]
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ACTIVE: Final = ("queued", "running")  # states of a job that has not ended
GOOD_STATES: Final = ("ready", "starting", "not started")  # of a part of the service; any other state is a reason
OnError = Literal["fail", "quarantine"]
Scope = Literal["read", "write"]

LOCK_TIMEOUT = 300.0  # seconds
MAX_DECODED_BYTES = 32 << 30  # of an upload: 16 times the default size limit
MAX_COLUMNS = 50_000
MAX_NAME_BYTES = 1_000
VIEW_FORMATS = ("delta", "iceberg")  # in which the service can publish its datasets
WORKER_MEMORY_BYTES = 2 << 30
MAX_ROWS_PER_FILE = 5_000_000
TARGET_FILE_SIZE = 128 << 20  # bytes
