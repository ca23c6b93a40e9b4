"""Survey a text file of any format: decode it, then detect its dialect, columns and splits."""

from __future__ import annotations

from collections.abc import Callable

from inlay.errors import UnreadableUploadError
from inlay.text import delimited, json_files
from inlay.text.decode import Content, InlineFile, RawFile, StorePath, check_text, decode
from inlay.text.options import Limits, ReadOptions
from inlay.text.reader import Survey

__all__ = ["survey_text"]

_SURVEYS: dict[str, Callable[[Content, ReadOptions, Limits, int | None], Survey]] = {
    "csv": delimited.survey,
    "json": json_files.survey,
}


def survey_text(
    raw: RawFile | InlineFile, options: ReadOptions, limits: Limits, split_bytes: int, decoded: StorePath | None
) -> Survey:
    """Survey a text file. `decoded` is where to store decoded text; None surveys only the beginning."""
    check_text(raw)
    content = decode(raw, limits, decoded, options.encoding)
    if content.size <= content.skip and options.format != "json":  # an empty file of JSON lines holds no records
        raise UnreadableUploadError("The file is empty.")
    survey = _SURVEYS[options.format](content, options, limits, split_bytes if decoded else None)
    limits.check_count(sum(kind.leaves for kind in survey.kinds.values()))
    limits.check_names(survey.kinds)
    return survey
