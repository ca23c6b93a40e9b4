"""Files on a local disk: their content, and hard links or copies that keep it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import zlib
from collections.abc import Iterator

from inlay.commit.access import copy_access
from inlay.storage import Content

__all__ = ["is_link_refused", "keep_file", "open_directory", "read_content", "read_footer_checksum", "write_durably"]

_CHECKSUM_BLOCK = 1 << 20
_MAX_FOOTER = 1 << 20  # of a longer footer, only the end is compared
_FICLONE = 0x40049409  # lets two files share their blocks until one of them changes
# Hard links fail with one of these errors across mounts, on filesystems without them, and on files of other users.
_NO_LINKS = frozenset({errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EPERM, errno.EACCES})


def is_link_refused(error: OSError) -> bool:
    """Return whether a hard link is impossible, rather than the disk full or broken."""
    return error.errno in _NO_LINKS


def keep_file(source: str, target: str, *, root: int | None = None, copies: bool = False) -> None:
    """Link a file. If that is impossible, clone it (which takes no space), or copy it durably if `copies` is true.

    With a descriptor of its directory as `root`, Python follows symbolic links.
    """
    try:
        os.link(source, target, src_dir_fd=root)
    except OSError as error:
        if not is_link_refused(error):
            raise
        original = os.open(source, os.O_RDONLY | os.O_CLOEXEC, dir_fd=root)
        try:
            if not _copy_file(original, target, copies=copies):
                raise
        finally:
            os.close(original)


def _copy_file(original: int, target: str, *, copies: bool) -> bool:
    """Clone or copy an open file with its access rights and modification time. Return False if neither is allowed."""
    with open(target, "xb", opener=_open_private) as copy:
        try:
            fcntl.ioctl(copy, _FICLONE, original)
        except OSError:
            if not copies:
                os.unlink(target)
                return False
            with open(original, "rb", buffering=0, closefd=False) as content:
                shutil.copyfileobj(content, copy, _CHECKSUM_BLOCK)
            copy.flush()
        copy_access(original, target)
        status = os.fstat(original)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.fsync(copy)
    return True


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


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
