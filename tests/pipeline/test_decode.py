"""Bytes to UTF-8: compression, encodings, byte order marks, and what stops an attack."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from inlay.errors import NotFoundError, NotUtf8Error, UnreadableUploadError
from inlay.storage import locate
from inlay.text.decode import InlineFile, RawFile, StorePath, check_utf8, decode, guess_encoding
from inlay.text.options import Limits

_NUMBERS = itertools.count()


@pytest.fixture
def target(tmp_path: Path) -> StorePath:
    return StorePath(locate(str(tmp_path)), "decoded")


def _raw(target: StorePath, content: bytes, encoding: str | None = None) -> RawFile:
    path = f"raw-{next(_NUMBERS)}"
    Path(target.location.full(path)).write_bytes(content)
    return RawFile(target.location, path, len(content), encoding)


def _decoded(target: StorePath, content: bytes, encoding: str | None = None, charset: str | None = None) -> bytes:
    found = decode(_raw(target, content, encoding), Limits(), target, charset)
    return found.read(found.skip, found.size)


TEXT = "naïve,Ünï\n€,𝄞\n"
LONG = "a,b\n" + "".join(f"{n},ä{n}\n" for n in range(200_000))


@pytest.mark.parametrize("text", [TEXT, LONG])
@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"])
def test_encodings(target: StorePath, text: str, charset: str) -> None:
    marked = charset in ("utf-8", "utf-8-sig", "utf-16", "utf-32")
    assert _decoded(target, text.encode(charset), charset=None if marked else charset).decode() == text


def test_eight_bit_encodings_need_the_encoding_option(target: StorePath) -> None:
    assert _decoded(target, "é€".encode("cp1252"), charset="cp1252").decode() == "é€"
    assert _decoded(target, "é".encode("latin-1"), charset="iso8859-1").decode() == "é"


def test_a_byte_order_mark_wins(target: StorePath) -> None:
    assert _decoded(target, "a,ß".encode("utf-16"), charset="cp1252").decode() == "a,ß"


@pytest.mark.parametrize("text", [TEXT, LONG])
@pytest.mark.parametrize("name", ["gzip", "zstd"])
@pytest.mark.parametrize("declared", [True, False])
def test_compression(target: StorePath, text: str, name: str, declared: bool) -> None:
    packed = pa.compress(text.encode(), codec=name, asbytes=True)
    assert _decoded(target, packed, name if declared else None).decode() == text


def test_compressed_utf_16(target: StorePath) -> None:
    assert _decoded(target, gzip.compress(LONG.encode("utf-16"))).decode() == LONG


def test_concatenated_compressed_members(target: StorePath) -> None:
    assert _decoded(target, gzip.compress(b"a,b\n") + gzip.compress(b"1,2\n")) == b"a,b\n1,2\n"


def test_plain_utf_8_is_not_copied(target: StorePath) -> None:
    raw = _raw(target, LONG.encode())
    assert decode(raw, Limits(), target).source is raw
    assert not Path(target.full).exists()


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_incomplete_or_wrong_compression_is_rejected(target: StorePath, name: str) -> None:
    packed = pa.compress(LONG.encode(), codec=name, asbytes=True)
    for content in (packed[:-20], b"a,b\n1,2\n", packed[: len(packed) // 2]):
        with pytest.raises(UnreadableUploadError, match=name):
            _decoded(target, content, name)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_decompression_bombs_are_stopped_early(target: StorePath, name: str) -> None:
    bomb = _raw(target, pa.compress(b"\0" * (50 << 20), codec=name, asbytes=True))
    with pytest.raises(UnreadableUploadError, match="100 times"):
        decode(bomb, Limits(ratio=100, ratio_from=1 << 20), target)
    assert sum(file.stat().st_size for file in Path(target.location.path).iterdir()) < 10 << 20
    Path(target.full).unlink(missing_ok=True)
    with pytest.raises(UnreadableUploadError, match="exceeds the limit"):
        decode(bomb, Limits(decoded_bytes=5 << 20), target)


def test_invalid_text_is_reported_with_its_offset(target: StorePath) -> None:
    with pytest.raises(UnreadableUploadError, match="0xff at offset 103"):
        check_utf8(b"ab\xff", 101)
    with pytest.raises(UnreadableUploadError, match="at byte 5 "):
        _decoded(target, b"a,b\nc\x81", charset="cp1252")
    with pytest.raises(UnreadableUploadError, match="at byte 6 "):
        _decoded(target, "a,".encode("utf-16") + b"x")


def test_a_deleted_upload_is_reported(target: StorePath) -> None:
    with pytest.raises(NotFoundError):
        decode(RawFile(target.location, "nowhere", 3), Limits(), target)


def test_small_text_stays_in_memory(target: StorePath) -> None:
    assert isinstance(decode(_raw(target, gzip.compress(b"a,b\n")), Limits(), target).source, InlineFile)


_WIDE = ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]
_SHEETS = ["a,b\n1,2\n", "имя,год\nилья,5\n", '[{"a": 1}]', "名前,年\n一郎,5\n", LONG[:10_001]]


@pytest.mark.parametrize("text", _SHEETS)
@pytest.mark.parametrize("charset", _WIDE)
def test_wide_encodings_without_a_byte_order_mark_need_the_encoding_option(
    target: StorePath, text: str, charset: str
) -> None:
    content = text.encode(charset)
    for packed in (content, gzip.compress(content)):
        with pytest.raises(NotUtf8Error, match=charset) as caught:
            _decoded(target, packed)
        assert caught.value.hint == f"Pass the option `encoding`: {charset}."
        assert _decoded(target, packed, charset=charset).decode() == text
    assert guess_encoding(_raw(target, content)) == charset


@pytest.mark.parametrize("text", [*_SHEETS, "", "a", "a\0b,x\n", "a,b\na\0b,\0\n", "a,b\n" + "1,\0x\n" * 50])
def test_nul_characters_alone_do_not_imply_a_wide_encoding(target: StorePath, text: str) -> None:
    assert _decoded(target, text.encode()).decode() == text
    assert guess_encoding(_raw(target, text.encode())) == "cp1252"


def test_files_of_failed_attempts_do_not_collide(target: StorePath) -> None:
    """Each writes under a name of its own."""
    raw = _raw(target, "é\n".encode("cp1252") * (2 << 20), None)
    first, second = (decode(raw, Limits(), target, "cp1252").source for _ in range(2))
    assert isinstance(first, RawFile)
    assert isinstance(second, RawFile)
    assert first.path != second.path
    assert first.size == second.size == 6 << 20
