"""Decompress and transcode a file to UTF-8 in one streaming pass.

Plain UTF-8 is not copied. Small decoded content stays in memory; larger content goes to a file in the dataset's store,
so that every task can read its part.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import pyarrow as pa

from inlay.errors import NotFoundError, NotUtf8Error, UnreadableUploadError
from inlay.storage import Location
from inlay.text.options import Limits

__all__ = ["Content", "InlineFile", "RawFile", "StorePath", "check_text", "check_utf8", "decode", "guess_encoding"]

_STEP = 4 << 20
_HEAD = 4 << 10
_MAX_IN_MEMORY = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SHEET = "Save the sheet as CSV, or unpack the archive, and use the result."
_NOT_TEXT = {  # first bytes -> description and hint
    b"\x89PNG": ("a PNG image", None),
    b"\xff\xd8\xff": ("a JPEG image", None),
    b"GIF87a": ("a GIF image", None),
    b"GIF89a": ("a GIF image", None),
    b"%PDF-": ("a PDF document", None),
    b"PK\x03\x04": ("an Office document or a ZIP archive", _SHEET),
    b"\xd0\xcf\x11\xe0": ("an old Office document", _SHEET),
    b"PAR1\x15": ("a Parquet file", "Pass parquet as its format."),
    b"ARROW1\0": ("an Arrow file", "Write it as Parquet and use the Parquet file."),
    b"SQLite f": ("an SQLite database", "Export the table as CSV and use the CSV file."),
    b"BZh91AY&": ("compressed with bzip2", "Compress it with gzip or zstd."),
    b"\xfd7zXZ": ("compressed with xz", "Compress it with gzip or zstd."),
}
_PLAIN = frozenset({"utf-8", "ascii", "utf-8-sig"})
# wide encodings: bytes per character, and the position of the byte that ASCII characters use
_WIDE = {"utf-16-le": (2, 0), "utf-16-be": (2, 1), "utf-32-le": (4, 0), "utf-32-be": (4, 3)}


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file in a store. `encoding` is the Content-Encoding of an upload: None, gzip or zstd."""

    location: Location
    path: str
    size: int
    encoding: str | None = None

    def open(self) -> BinaryIO:
        try:
            return self.location.store.open_read(self.location.full(self.path))
        except FileNotFoundError as error:
            raise NotFoundError(f"The file no longer exists: {self.location.display(self.path)}") from error


@dataclass(frozen=True, slots=True)
class InlineFile:
    """Content that is small enough to be part of the job."""

    content: bytes

    encoding = None

    @property
    def size(self) -> int:
        return len(self.content)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.content)


@dataclass(frozen=True, slots=True)
class StorePath:
    """A path in a store."""

    location: Location
    path: str

    @property
    def full(self) -> str:
        return self.location.full(self.path)


@dataclass(frozen=True, slots=True)
class Content:
    """Decoded bytes, in memory or in a store. `skip` bytes at the start are a byte order mark."""

    source: RawFile | InlineFile
    size: int
    encoding: str = "utf-8"
    skip: int = 0

    def open(self) -> BinaryIO:
        return self.source.open()

    def read(self, start: int, end: int) -> bytes:
        if isinstance(self.source, InlineFile):
            return self.source.content[start:end]
        with self.open() as file:
            file.seek(start)
            data = file.read(end - start)
        if len(data) != end - start:
            raise UnreadableUploadError("The file changed during the read.")
        return data


def decode(
    raw: RawFile | InlineFile,
    limits: Limits,
    target: StorePath | None,
    encoding: str | None = None,
    *,
    text: bool = True,
) -> Content:
    """Decode a file to UTF-8. Without a `target`, decode only its beginning, for a preview.

    With `text=False` decompress it and leave its characters unchanged.
    """
    with raw.open() as file:
        compression = raw.encoding or _compression_of(file.read(4))
    with _plain_stream(raw, compression) as stream:
        head = _read(stream, _HEAD, compression)
        mark, marked = _byte_order_mark(head) if text else (b"", None)
        charset = marked or encoding or "utf-8"
        if text and not marked and not encoding:
            _reject_wide(head)
        if compression is None and (not text or charset in _PLAIN):
            return Content(raw, raw.size, charset, len(mark))
        if target is None and not text:
            limits = replace(limits, decoded_bytes=min(limits.decoded_bytes, limits.held_bytes))
        chunks = _limited(_chunks(stream, head, compression), raw.size, limits)
        if text and charset not in _PLAIN:
            chunks, mark = _transcoded(chunks, charset, len(mark)), b""
        decoded = _store(chunks, target) if target or text else InlineFile(b"".join(chunks))
    return Content(decoded, decoded.size, charset, len(mark))


def check_text(raw: RawFile | InlineFile) -> None:
    """Reject a file of a known binary format before it is read as text in an odd encoding."""
    with raw.open() as file:
        compression = raw.encoding or _compression_of(file.read(4))
    with _plain_stream(raw, compression) as stream:
        head = _read(stream, 8, compression)
    for magic, (description, hint) in _NOT_TEXT.items():
        if head.startswith(magic):
            formats = "Use CSV, TSV, JSON or Parquet, uncompressed or compressed with gzip or zstd."
            raise UnreadableUploadError(f"The file is {description}, not text.", hint=hint or formats)


def check_utf8(data: bytes, start: int = 0) -> None:
    """Raise an error that names the first byte that is not valid UTF-8."""
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise NotUtf8Error(
            f"Invalid UTF-8: byte 0x{data[error.start]:02x} at offset {start + error.start} of the file.",
            hint="Pass the option `encoding`, for example cp1252.",
        ) from error


def guess_encoding(raw: RawFile | InlineFile) -> str:
    """Guess the encoding of text that is not UTF-8, as a suggestion for the user."""
    with raw.open() as file:
        compression = raw.encoding or _compression_of(file.read(4))
    with _plain_stream(raw, compression) as stream:
        return _wide_encoding(_read(stream, _HEAD, compression)) or "cp1252"


def _reject_wide(head: bytes) -> None:
    """Reject UTF-16 and UTF-32 without a byte order mark: as UTF-8 they are full of NUL characters."""
    if wide := _wide_encoding(head):
        raise NotUtf8Error(
            f"The file is not UTF-8. It looks like {wide} without a byte order mark.",
            hint=f"Pass the option `encoding`: {wide}.",
        )


def _wide_encoding(head: bytes) -> str | None:
    return next((name for name, (width, at) in _WIDE.items() if _is_wide(head, width, at)), None)


def _is_wide(head: bytes, width: int, at: int) -> bool:
    """Return True if most line ends, or else most characters, are ASCII padded with NULs."""
    units = [head[start : start + width] for start in range(0, len(head) - width + 1, width)]
    ascii_ = bytes(unit[at] for unit in units if unit[at] and unit.count(0) == width - 1)
    wide_ends, ends = (sum(text.count(end) for end in (b"\r", b"\n")) for text in (ascii_, head))
    is_majority = wide_ends * 2 > ends if ends else len(ascii_) * 2 > len(units)
    return is_majority and bytes(width) not in units


def _compression_of(head: bytes) -> str | None:
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def _byte_order_mark(head: bytes) -> tuple[bytes, str | None]:
    return next(((mark, name) for mark, name in _BOMS if head.startswith(mark)), (b"", None))


@contextlib.contextmanager
def _plain_stream(raw: RawFile | InlineFile, compression: str | None) -> Iterator[Any]:
    with raw.open() as file:
        if compression is None:
            yield file
        else:
            yield pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression)


def _read(stream: Any, size: int, compression: str | None) -> bytes:
    try:
        return bytes(stream.read(size))
    except MemoryError:
        raise
    except (OSError, pa.ArrowException) as error:
        if compression is None:
            raise
        raise UnreadableUploadError(
            f"The file is not valid {compression}: {str(error).splitlines()[0]}",
            hint="Check that the file is complete and that the Content-Encoding is right.",
        ) from error


def _chunks(stream: Any, head: bytes, compression: str | None) -> Iterator[bytes]:
    chunk = head
    while chunk:
        yield chunk
        chunk = _read(stream, _STEP, compression)


def _limited(chunks: Iterator[bytes], encoded: int, limits: Limits) -> Iterator[bytes]:
    """Stop a decompression bomb before it grows large."""
    total = 0
    for chunk in chunks:
        total += len(chunk)
        limits.check_size(total, encoded)
        yield chunk


def _transcoded(chunks: Iterator[bytes], charset: str, skip: int) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(charset)()
    done = skip
    for chunk in itertools.chain(chunks, [None]):
        piece, skip = (chunk or b"")[skip:], max(0, skip - len(chunk or b""))
        held = len(decoder.getstate()[0])
        try:
            yield decoder.decode(piece, final=chunk is None).encode()
        except UnicodeError as error:
            raise _invalid_bytes(charset, done - held + getattr(error, "start", 0)) from error
        done += len(piece)


def _invalid_bytes(charset: str, offset: int) -> UnreadableUploadError:
    return UnreadableUploadError(
        f"Invalid {charset} at byte {offset} of the file.",
        hint="Pass the encoding of the file with the option `encoding`.",
    )


def _store(chunks: Iterator[bytes], target: StorePath | None) -> RawFile | InlineFile:
    held, size = [], 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size > _MAX_IN_MEMORY and target is not None:
            return _write(held, chunks, target)
        if size > _STEP and target is None:
            beginning = b"".join(held)
            return InlineFile(beginning[: beginning.rfind(b"\n") + 1] or beginning)
    return InlineFile(b"".join(held))


def _write(first: list[bytes], rest: Iterator[bytes], target: StorePath) -> RawFile:
    size, path = 0, f"{target.path}-{uuid.uuid4().hex[:8]}"  # each attempt of a task writes its own file
    with target.location.store.open_write(target.location.full(path)) as file:
        for chunks in (first, rest):
            for chunk in chunks:
                file.write(chunk)
                size += len(chunk)
    return RawFile(target.location, path, size)
