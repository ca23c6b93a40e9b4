"""Words that several layers speak, each with all of its values."""

from __future__ import annotations

from typing import Final, Literal, get_args

FileFormat = Literal["csv", "json", "parquet"]
FORMATS: Final[tuple[str, ...]] = get_args(FileFormat)
InlineFormat = Literal["csv", "json"]
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ACTIVE: Final = ("queued", "running")  # states in which a job holds its upload
OnError = Literal["fail", "quarantine"]
Scope = Literal["read", "write"]
