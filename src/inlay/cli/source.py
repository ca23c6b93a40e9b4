"""SOURCE as commands name it: a path that the merge opens itself, another format, or standard input."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from inlay.cli.options import SourceFormat
from inlay.errors import RejectedDataError, UnreadableSourceError

__all__ = ["opened"]


@contextlib.contextmanager
def opened(source: str, source_format: SourceFormat | None) -> Iterator[Any]:
    """What `merge` takes as its data, until the command is done with it."""
    from inlay.engines.source import SourcePath

    if source == "-":
        with _standard_input(source_format or SourceFormat.csv) as data:
            yield data
    elif source_format is not None:
        yield SourcePath(source, source_format.value)
    else:
        yield source


@contextlib.contextmanager
def _standard_input(source_format: SourceFormat) -> Iterator[Any]:
    """Arrow comes with its types. Other formats are written down first: Parquet is read from its end, and text by what
    all of it holds.
    """
    from inlay.engines.source import SourcePath

    if source_format is SourceFormat.arrow:
        yield _arrow_stream()
        return
    with tempfile.TemporaryDirectory(prefix="inlay-stdin-") as directory:
        path = os.path.join(directory, "stdin")
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield SourcePath(path, source_format.value)
        except UnreadableSourceError as error:
            raise UnreadableSourceError(
                error.message.replace(f"The source {path!r}", "Standard input").replace(repr(path), "standard input"),
                hint=error.hint or "--source-format says which format it has.",
            ) from error


def _arrow_stream() -> Any:
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(sys.stdin.buffer)
    except (pa.ArrowException, OSError) as error:
        raise RejectedDataError(
            f"Cannot read standard input: {str(error).splitlines()[0]}",
            hint="--source-format says which format it has.",
        ) from error
