"""SOURCE as commands name it: a path that the merge opens itself, another format, or standard input."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from inlay.cli.options import SourceFormat
from inlay.errors import NotFoundError, RejectedDataError

__all__ = ["opened"]


@contextlib.contextmanager
def opened(source: str, source_format: SourceFormat | None) -> Iterator[Any]:
    """What `merge` takes as its data, until the command is done with it."""
    with contextlib.ExitStack() as stack:
        if source == "-":
            yield _readable("-", lambda: _STREAMS[source_format or SourceFormat.csv](sys.stdin.buffer, stack))
        elif source_format is not None:
            yield _readable(source, lambda: _dataset(source, source_format))
        else:
            yield source


def _readable(source: str, read: Callable[[], Any]) -> Any:
    import pyarrow as pa

    try:
        return read()
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no source at {source!r}.") from error
    except (pa.ArrowException, OSError) as error:
        where = "standard input" if source == "-" else repr(source)
        raise RejectedDataError(
            f"Cannot read {where}: {str(error).splitlines()[0]}", hint="--source-format says which format it has."
        ) from error


def _dataset(path: str, source_format: SourceFormat) -> Any:
    import pyarrow.dataset as ds

    from inlay.storage import expand_glob, filesystem_of

    files = list(expand_glob(path)) if any(mark in path for mark in "*?[") else [path]
    if not files:
        raise NotFoundError(f"No file matches {path!r}.")
    filesystem, paths = filesystem_of(files)
    hive = "hive" if source_format is SourceFormat.parquet else None
    return ds.dataset(
        paths if len(paths) > 1 else paths[0], format=source_format.value, filesystem=filesystem, partitioning=hive
    )


# ----------------------------------------------------------------------------------------------------- standard input
def _csv(stream: BinaryIO, _: contextlib.ExitStack) -> Any:
    import pyarrow.csv

    return pyarrow.csv.open_csv(stream)


def _json(stream: BinaryIO, _: contextlib.ExitStack) -> Any:
    import pyarrow.json

    return pyarrow.json.open_json(stream)


def _parquet(stream: BinaryIO, stack: contextlib.ExitStack) -> Any:
    """Parquet is read from its end, so what comes through a pipe is written down first."""
    import pyarrow.dataset as ds

    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="inlay-stdin-"))
    path = os.path.join(directory, "stdin.parquet")
    with open(path, "wb") as file:
        shutil.copyfileobj(stream, file)
    return ds.dataset(path, format="parquet", partitioning=None)


def _arrow(stream: BinaryIO, _: contextlib.ExitStack) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(stream)


_STREAMS = {
    SourceFormat.csv: _csv,
    SourceFormat.json: _json,
    SourceFormat.parquet: _parquet,
    SourceFormat.arrow: _arrow,
}
