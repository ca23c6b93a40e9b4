"""Splices between files of every kind, and faults of the operating system."""

from __future__ import annotations

import errno
import gzip
import io
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.parquet.raw import Input
from inlay.parquet.splice import ParquetBytes, Splicer, SpliceRefused, _Output
from tests.parquet.splicing import copied, fresh_like, rows_of, sample, spliced, table_bytes

DATA = table_bytes(sample(0, 600), row_group_size=200, write_page_index=True)


def splice_into(out: BinaryIO, source: Any) -> Splicer:
    base = ParquetBytes(source)
    fresh = fresh_like(base, sample(1000, 10))
    splicer = Splicer(out, base)
    splicer.copy(base, 2)
    splicer.replace(base, 1, fresh)
    splicer.copy(base, 0)
    splicer.finish()
    return splicer


def expected_bytes() -> bytes:
    out = io.BytesIO()
    splice_into(out, DATA)
    return out.getvalue()


EXPECTED = expected_bytes()


def test_expected_bytes_contain_the_right_rows() -> None:
    ids = [*range(200), *range(400, 600), *range(1000, 1010)]
    table = pq.read_table(pa.BufferReader(EXPECTED))
    assert rows_of(table) == [row for i in ids for row in rows_of(sample(i, 1))]
    assert table["id"].to_pylist()[:200] == list(range(400, 600))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.parquet"
    path.write_bytes(DATA)
    return path


class Dribbling(io.RawIOBase):
    """A raw file that reads and writes only a few bytes per call."""

    def __init__(self, data: bytes = b"") -> None:
        self.inner = io.BytesIO(data)

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self.inner.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        return self.inner.read(min(size, 1000))

    def write(self, data: Any) -> int:
        return self.inner.write(bytes(data[:777]))


def in_memory_filesystem(path: Path) -> Any:
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe("/splice/source", DATA)
    return filesystem.open("/splice/source", "rb")


def gzipped(path: Path) -> Any:
    packed = path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(DATA))
    return gzip.open(packed, "rb")


INPUTS: dict[str, Callable[[Path], Any]] = {
    "file": lambda path: path.open("rb"),
    "unbuffered file": lambda path: path.open("rb", buffering=0),
    "bytes": lambda path: DATA,
    "bytearray": lambda path: bytearray(DATA),
    "memoryview": lambda path: memoryview(DATA),
    "arrow buffer": lambda path: pa.py_buffer(DATA),
    "BytesIO": lambda path: io.BytesIO(DATA),
    "short reads": lambda path: Dribbling(DATA),
    "fsspec memory": in_memory_filesystem,
    "fsspec local": lambda path: fsspec.filesystem("file").open(str(path), "rb"),
    "arrow file": lambda path: pa.OSFile(str(path)),
    "gzip": gzipped,
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("to_file", [True, False])
def test_every_kind_of_source(kind: str, to_file: bool, source: Path, tmp_path: Path) -> None:
    opened = INPUTS[kind](source)
    out: BinaryIO = (tmp_path / "out").open("w+b") if to_file else io.BytesIO()
    splice_into(out, opened)
    assert out.tell() == len(EXPECTED)
    out.seek(0)
    assert out.read() == EXPECTED
    out.close()
    if hasattr(opened, "close"):
        opened.close()


def test_threads_can_share_a_file_object() -> None:
    """Threads move the position of a shared file object with seek()."""

    class Slow(io.BytesIO):
        def seek(self, *where: int) -> int:
            at = super().seek(*where)
            time.sleep(0.001)
            return at

    data = os.urandom(64_000)
    shared = Input(Slow(data))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda start: bytes(shared.read(start, 1000)), range(0, 64_000, 1000)))
    assert b"".join(found) == data


def test_unbuffered_temporary_and_fsspec_outputs(source: Path, tmp_path: Path) -> None:
    with source.open("rb") as file:
        with (tmp_path / "raw").open("wb", buffering=0) as out:
            splice_into(out, file)
        with tempfile.NamedTemporaryFile(dir=tmp_path) as temporary:
            splice_into(temporary, file)  # type: ignore[arg-type]
            assert Path(temporary.name).read_bytes() == EXPECTED
        with fsspec.filesystem("file").open(str(tmp_path / "local"), "wb") as out:
            splice_into(out, file)
        with fsspec.filesystem("memory").open("/splice/out", "wb") as out:
            splice_into(out, file)
        with (tmp_path / "appended").open("ab") as out:
            splice_into(out, file)
    assert (tmp_path / "raw").read_bytes() == EXPECTED
    assert (tmp_path / "local").read_bytes() == EXPECTED
    assert (tmp_path / "appended").read_bytes() == EXPECTED
    assert fsspec.filesystem("memory").cat("/splice/out") == EXPECTED


def test_output_with_short_writes() -> None:
    out = Dribbling()
    splice_into(out, DATA)  # type: ignore[arg-type]
    assert out.inner.getvalue() == EXPECTED


def test_output_whose_write_returns_none() -> None:
    class Silent(io.BytesIO):
        def write(self, data: Any) -> None:  # type: ignore[override]
            super().write(data)

    out = Silent()
    splice_into(out, DATA)
    assert out.getvalue() == EXPECTED


def splice_files(source: Path, target: Path) -> bytes:
    with source.open("rb") as file, target.open("wb") as out:
        splice_into(out, file)
    return target.read_bytes()


class Kernel:
    """A version of os.copy_file_range with a fault."""

    def __init__(self, behave: Callable[[int], int]) -> None:
        self.real = os.copy_file_range
        self.behave = behave
        self.calls: list[int] = []

    def __call__(self, src: int, dst: int, count: int, at: int, to: int) -> int:
        self.calls.append(count)
        allowed = self.behave(count)
        return self.real(src, dst, allowed, at, to) if allowed else 0


def fail_with(number: int) -> Callable[[int], int]:
    def behave(count: int) -> int:
        raise OSError(number, os.strerror(number))

    return behave


FAULTS: dict[str, Callable[[int], int]] = {
    "nothing": lambda count: count,
    "short copies": lambda count: min(count, 1234),
    "no progress": lambda count: 0,
    "another device": fail_with(errno.EXDEV),
    "no such call": fail_with(errno.ENOSYS),
    "not for these files": fail_with(errno.EINVAL),
    "not supported": fail_with(errno.EOPNOTSUPP),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_kernel_copies(fault: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(FAULTS[fault])
    monkeypatch.setattr(os, "copy_file_range", kernel)
    assert splice_files(source, tmp_path / "out") == EXPECTED
    assert kernel.calls


def test_short_writes_and_reads_of_descriptors(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.pread
    monkeypatch.delattr(os, "copy_file_range")
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:500], at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read(fd, min(size, 333), at))
    assert splice_files(source, tmp_path / "out") == EXPECTED


def test_other_errors_are_not_hidden(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", Kernel(fail_with(errno.ENOSPC)))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        splice_files(source, tmp_path / "out")


def test_adjacent_chunks_are_one_copy(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(lambda count: count)
    monkeypatch.setattr(os, "copy_file_range", kernel)
    with source.open("rb") as file, (tmp_path / "out").open("wb") as out:
        base = ParquetBytes(file)
        splicer = Splicer(out, base)
        for i in range(3):
            splicer.copy(base, i)
        splicer.finish()
        assert len(kernel.calls) == 3
        assert sum(kernel.calls) == splicer.bytes_copied
    assert (tmp_path / "out").read_bytes() == spliced(ParquetBytes(DATA), copied(ParquetBytes(DATA)))


def test_source_truncated_during_the_splice(source: Path, tmp_path: Path) -> None:
    with source.open("rb") as file, (tmp_path / "out").open("wb") as out:
        base = ParquetBytes(file)
        os.truncate(source, 1000)
        splicer = Splicer(out, base)
        with pytest.raises(SpliceRefused, match="ends at byte"):
            splicer.copy(base, 1)


def test_output_must_be_empty(source: Path) -> None:
    with source.open("r+b") as out, pytest.raises(ValueError, match="not empty"):
        Splicer(out, ParquetBytes(DATA))
    assert source.read_bytes() == DATA


def test_output_with_unflushed_bytes_is_rejected(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        out.write(b"buffered")
        with pytest.raises(ValueError, match="not empty"):
            Splicer(out, ParquetBytes(DATA))


def test_output_is_flushed_in_call_order() -> None:
    class Flushed(io.BytesIO):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

    out = Flushed()
    output, base = _Output(out), ParquetBytes(DATA)
    output.copy(base.input, 0, 4)
    output.write(b"between")
    output.copy(base.input, 4, 4)
    output.finish()
    assert out.getvalue() == DATA[:4] + b"between" + DATA[4:8]
    assert out.flushes == 1
