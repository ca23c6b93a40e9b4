"""Stage 1: decode an upload, find out what it holds, and cut it into splits.

This runs as a task: the driver gets what is known about the file, not the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inlay.errors import UnreadableUploadError
from inlay.pipeline import columnar, delimited, documents
from inlay.pipeline.decode import Content, InlineFile, Place, RawFile, check_text, decode
from inlay.pipeline.options import Limits, ReadOptions
from inlay.pipeline.plan import Survey

__all__ = ["Surveyor"]

_SURVEYS: dict[str, Callable[[Content, ReadOptions, Limits, int | None], Survey]] = {
    "csv": delimited.survey,
    "json": documents.survey,
    "parquet": columnar.survey,
}


@dataclass(frozen=True)
class Surveyor:
    """The kernel of stage 1."""

    options: ReadOptions
    limits: Limits
    split_bytes: int
    decoded: Place | None  # where decoded text goes; None: only the beginning is looked at

    def __call__(self, raw: RawFile | InlineFile) -> Survey:
        is_text = self.options.format != "parquet"
        if is_text:
            check_text(raw)
        content = decode(raw, self.limits, self.decoded, self.options.encoding, text=is_text)
        if content.size <= content.skip and self.options.format != "json":  # no lines are no records
            raise UnreadableUploadError("The file is empty.")
        survey = _SURVEYS[self.options.format]
        return survey(content, self.options, self.limits, self.split_bytes if self.decoded else None)
