"""Bytes to UTF-8: compression, encodings, byte order marks, and what stops an attack."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from inlay.errors import NotFoundError, NotUtf8Error, UnreadableUploadError
from inlay.pipeline.decode import InlineFile, Place, RawFile, check_utf8, decode, guess_encoding
from inlay.pipeline.options import Limits
from inlay.storage import locate

_NUMBERS = itertools.count()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(locate(str(tmp_path)), "decoded")


def _raw(place: Place, content: bytes, encoding: str | None = None) -> RawFile:
    path = f"raw-{next(_NUMBERS)}"
    Path(place.location.full(path)).write_bytes(content)
    return RawFile(place.location, path, len(content), encoding)


def _decoded(place: Place, content: bytes, encoding: str | None = None, charset: str | None = None) -> bytes:
    found = decode(_raw(place, content, encoding), Limits(), place, charset)
    return found.read(found.skip, found.size)


TEXT = "naïve,Ünï\n€,𝄞\n"
LONG = "a,b\n" + "".join(f"{n},ä{n}\n" for n in range(200_000))


@pytest.mark.parametrize("text", [TEXT, LONG])
@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"])
def test_encodings(place: Place, text: str, charset: str) -> None:
    marked = charset in ("utf-8", "utf-8-sig", "utf-16", "utf-32")
    assert _decoded(place, text.encode(charset), charset=None if marked else charset).decode() == text


def test_eight_bit_encodings_are_named(place: Place) -> None:
    assert _decoded(place, "é€".encode("cp1252"), charset="cp1252").decode() == "é€"
    assert _decoded(place, "é".encode("latin-1"), charset="iso8859-1").decode() == "é"


def test_a_byte_order_mark_wins(place: Place) -> None:
    assert _decoded(place, "a,ß".encode("utf-16"), charset="cp1252").decode() == "a,ß"


@pytest.mark.parametrize("text", [TEXT, LONG])
@pytest.mark.parametrize("name", ["gzip", "zstd"])
@pytest.mark.parametrize("declared", [True, False])
def test_compression(place: Place, text: str, name: str, declared: bool) -> None:
    packed = pa.compress(text.encode(), codec=name, asbytes=True)
    assert _decoded(place, packed, name if declared else None).decode() == text


def test_compressed_utf_16(place: Place) -> None:
    assert _decoded(place, gzip.compress(LONG.encode("utf-16"))).decode() == LONG


def test_members_one_after_the_other(place: Place) -> None:
    assert _decoded(place, gzip.compress(b"a,b\n") + gzip.compress(b"1,2\n")) == b"a,b\n1,2\n"


def test_plain_utf_8_is_not_copied(place: Place) -> None:
    raw = _raw(place, LONG.encode())
    assert decode(raw, Limits(), place).source is raw
    assert not Path(place.full).exists()


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_cut_short_or_wrong_compression_is_refused(place: Place, name: str) -> None:
    packed = pa.compress(LONG.encode(), codec=name, asbytes=True)
    for content in (packed[:-20], b"a,b\n1,2\n", packed[: len(packed) // 2]):
        with pytest.raises(UnreadableUploadError, match=name):
            _decoded(place, content, name)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_bombs_are_stopped_while_they_are_small(place: Place, name: str) -> None:
    bomb = _raw(place, pa.compress(b"\0" * (50 << 20), codec=name, asbytes=True))
    with pytest.raises(UnreadableUploadError, match="100 times"):
        decode(bomb, Limits(ratio=100, ratio_from=1 << 20), place)
    assert sum(file.stat().st_size for file in Path(place.location.path).iterdir()) < 10 << 20
    Path(place.full).unlink(missing_ok=True)
    with pytest.raises(UnreadableUploadError, match="grows beyond"):
        decode(bomb, Limits(decoded_bytes=5 << 20), place)


def test_bad_text_is_named_by_its_offset(place: Place) -> None:
    with pytest.raises(UnreadableUploadError, match="0xff at offset 103"):
        check_utf8(b"ab\xff", 101)
    with pytest.raises(UnreadableUploadError, match="offset 5 "):
        _decoded(place, b"a,b\nc\x81", charset="cp1252")
    with pytest.raises(UnreadableUploadError, match="offset 6 "):
        _decoded(place, "a,".encode("utf-16") + b"x")


def test_bytes_that_are_gone(place: Place) -> None:
    with pytest.raises(NotFoundError):
        decode(RawFile(place.location, "nowhere", 3), Limits(), place)


def test_small_text_travels_in_memory(place: Place) -> None:
    assert isinstance(decode(_raw(place, gzip.compress(b"a,b\n")), Limits(), place).source, InlineFile)


_WIDE = ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]
_SHEETS = ["a,b\n1,2\n", "имя,год\nилья,5\n", '[{"a": 1}]', "名前,年\n一郎,5\n", LONG[:10_001]]


@pytest.mark.parametrize("text", _SHEETS)
@pytest.mark.parametrize("charset", _WIDE)
def test_wide_encodings_without_a_mark_must_be_said(place: Place, text: str, charset: str) -> None:
    content = text.encode(charset)
    for packed in (content, gzip.compress(content)):
        with pytest.raises(NotUtf8Error, match=charset) as caught:
            _decoded(place, packed)
        assert caught.value.hint == f"Say so with the option encoding: {charset}."
        assert _decoded(place, packed, charset=charset).decode() == text
    assert guess_encoding(_raw(place, content)) == charset


@pytest.mark.parametrize("text", [*_SHEETS, "", "a", "a\0b,x\n", "a,b\na\0b,\0\n", "a,b\n" + "1,\0x\n" * 50])
def test_nul_characters_alone_make_no_wide_encoding(place: Place, text: str) -> None:
    assert _decoded(place, text.encode()).decode() == text
    assert guess_encoding(_raw(place, text.encode())) == "cp1252"


def test_attempts_that_died_do_not_stand_in_the_way(place: Place) -> None:
    """Each writes under a name of its own."""
    raw = _raw(place, "é\n".encode("cp1252") * (2 << 20), None)
    first, second = (decode(raw, Limits(), place, "cp1252").source for _ in range(2))
    assert isinstance(first, RawFile)
    assert isinstance(second, RawFile)
    assert first.path != second.path
    assert first.size == second.size == 6 << 20
