"""Files on a local disk: their content, and hard links to them."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator

from inlay.storage import Content

__all__ = ["link_into", "open_directory", "read_content", "read_footer_checksum", "write_durably"]

_CHECKSUM_BLOCK = 1 << 20
_MAX_FOOTER = 1 << 20  # of a longer footer, only the end is compared


def link_into(root: int, name: str, target: str) -> None:
    """Link a file of the dataset. With a directory descriptor, Python follows symbolic links."""
    os.link(name, target, src_dir_fd=root)


@contextlib.contextmanager
def open_directory(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_content(path: str) -> Content:
    checksum = size = 0
    with open(path, "rb") as file:
        while block := file.read(_CHECKSUM_BLOCK):
            checksum = zlib.crc32(block, checksum)
            size += len(block)
    return Content(size, checksum)


def read_footer_checksum(path: str) -> int:
    """Return the CRC-32 of the footer of a Parquet file. The footer changes with every other content."""
    with open(path, "rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 8, 0))
        length = int.from_bytes(file.read(4), "little") + 8
        file.seek(max(size - min(length, _MAX_FOOTER), 0))
        return zlib.crc32(file.read(_MAX_FOOTER))


def write_durably(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
