"""What `upload` and `load` send to the service: a file with how to read it, or a query."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from inlay.cli.client import Client, Step
from inlay.errors import InvalidArgumentError, NotFoundError

__all__ = ["FileFormat", "SentSource", "pairs"]


class FileFormat(StrEnum):
    csv = "csv"
    json = "json"
    parquet = "parquet"


_CONTENT_TYPES = {
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "pq": "application/vnd.apache.parquet",
}
_COMPRESSIONS = {"gz": "gzip", "gzip": "gzip", "zst": "zstd", "zstd": "zstd"}
_FLAGS = ("header", "day_first")  # options whose values are true or false
_LISTS = ("null_values",)


class SentSource(NamedTuple):
    """Rows to be sent: a file with how to read it, or a query."""

    file: str | None
    sql: str | None
    format: FileFormat | None
    options: dict[str, Any]

    @classmethod
    def of(
        cls, file: str | None, file_format: FileFormat | None, option: Sequence[str] | None, sql: str | None = None
    ) -> SentSource:
        """Checked as far as it can be before anything is sent."""
        options = _read_options(option)
        if sql is not None and (file_format or options):
            raise InvalidArgumentError("--format and --option are about a FILE, not about --sql.")
        source = cls(file, sql, file_format, options)
        if file is not None:
            source.content_type()
            if not source.is_read_once():
                with source.opened():
                    pass
        return source

    def is_read_once(self) -> bool:
        """Who opens and closes a pipe takes away what was in it."""
        try:
            return self.file == "-" or stat.S_ISFIFO(os.stat(str(self.file)).st_mode)
        except OSError:
            return False

    def content_type(self) -> tuple[str, str | None]:
        """The content type and the compression, by the name of the file."""
        suffixes = [suffix.lstrip(".").lower() for suffix in Path(str(self.file)).suffixes]
        compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
        inner = suffixes[:-1] if compression else suffixes
        found = _CONTENT_TYPES.get(self.format or (inner[-1] if inner else ""))
        if found is None:
            what = "standard input" if self.file == "-" else repr(self.file)
            raise InvalidArgumentError(
                f"The format of {what} is not known from its name.", hint="Give --format: csv, json or parquet."
            )
        return found, compression

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[BinaryIO, int | None]]:
        """The file and its size, which of a pipe only its end tells."""
        if self.file == "-":
            yield sys.stdin.buffer, None
            return
        path = str(self.file)
        try:
            file = open(path, "rb")  # noqa: SIM115  (closed below)
        except FileNotFoundError as error:
            raise NotFoundError(f"There is no file {path!r}.") from error
        except OSError as error:
            raise InvalidArgumentError(f"Cannot read {path!r}: {error.strerror or error}.") from error
        with file:
            found = os.fstat(file.fileno())
            is_file = stat.S_ISREG(found.st_mode)
            if is_file and not found.st_size:
                raise InvalidArgumentError(f"{path!r} is empty.")
            yield file, found.st_size if is_file else None

    @contextlib.contextmanager
    def sent(self, client: Client, step: Step) -> Iterator[dict[str, Any]]:
        """The source as the service is told of it. A file that was sent and not used is forgotten after the block."""
        if self.sql is not None:
            yield {"sql": self.sql}
            return
        with self.opened() as (file, size):
            stored = client.upload(file, size, *self.content_type(), step)
        try:
            yield {"upload_id": stored["id"], "format": self.format, "options": self.options}
        finally:
            client.forget_upload(stored["id"])


def _read_options(given: Sequence[str] | None) -> dict[str, Any]:
    """Options of a format: text, except flags; what is repeated becomes a list where lists are taken."""
    options: dict[str, Any] = {}
    for name, value in pairs(given, "--option"):
        if name in _LISTS:
            options.setdefault(name, []).append(value)
        elif name in options:
            raise InvalidArgumentError(f"--option {name} is given twice.")
        else:
            options[name] = {"true": True, "false": False}.get(value.lower(), value) if name in _FLAGS else value
    return options


def pairs(given: Sequence[str] | None, flag: str, *, last: bool = False) -> list[tuple[str, str]]:
    """NAME=VALUE, cut at the first equals sign, or at the last."""
    found = []
    for text in given or ():
        name, equals, value = text.rpartition("=") if last else text.partition("=")
        if not name or not equals or (last and not re.search(r"\S", value)):
            raise InvalidArgumentError(f"{flag} takes NAME=VALUE, not {text!r}.")
        found.append((name, value))
    return found
