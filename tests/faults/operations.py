"""Parse the file operations of a change from a log of strace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TRACED = (
    "open",
    "openat",
    "creat",
    "write",
    "pwrite64",
    "writev",
    "ftruncate",
    "truncate",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "rmdir",
    "fsync",
    "fdatasync",
    "copy_file_range",
    "sendfile",
    "lseek",
    "sendto",
)
OPTIONS = ("-y", "-xx", "-s", "10000000", "-e", "trace=" + ",".join(f"?{name}" for name in TRACED))

_LINE = re.compile(r"^(\d+)\s+(.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\)\s+= (\d+)(?:<.*>)?$")
_DESCRIPTOR = re.compile(r"^(\d+)<(.*)>$")


@dataclass(frozen=True)
class Operation:
    """A change of the file tree, a sync or the acknowledgment, with paths below the root."""

    kind: str  # create, write, truncate, rename, link, unlink, mkdir, rmdir, sync, ack
    path: str = ""
    target: str = ""
    offset: int = 0
    data: bytes = b""


def parse(log: str, root: Path) -> list[Operation]:
    reader = _Reader(str(root))
    return [operation for line in _whole_lines(log) for operation in reader.operations(line)]


def _whole_lines(log: str) -> Iterator[str]:
    """Yield complete calls. strace splits a call when another thread runs meanwhile."""
    begun: dict[str, str] = {}
    for line in log.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        thread, text = match.groups()
        if text.endswith("<unfinished ...>"):
            begun[thread] = text.removesuffix("<unfinished ...>")
        elif text.startswith("<..."):
            yield begun.pop(thread) + text.partition("resumed>")[2]
        else:
            yield text


def _text(argument: str) -> bytes:
    return bytes.fromhex(argument.strip('"').replace("\\x", ""))


class _Reader:
    def __init__(self, root: str) -> None:
        self._root = root
        self._positions: dict[str, int] = {}

    def operations(self, line: str) -> list[Operation]:
        match = _CALL.match(line)
        if match is None:  # a failed or killed call, or a signal
            return []
        call, text, result = match.groups()
        handler = getattr(self, f"_{call.removesuffix('at')}", None) or getattr(self, f"_{call}", None)
        if handler is None:
            raise NotImplementedError(f"The power-cut model does not support {line[:200]}")
        return [operation for operation in handler(text.split(", "), int(result)) if operation is not None]

    def _inside(self, path: str) -> str | None:
        if path == self._root:
            return "."
        return path[len(self._root) + 1 :] if path.startswith(self._root + "/") else None

    def _path(self, arguments: list[str], index: int = 0) -> str | None:
        """Return the path at `index`, or the path that follows a directory descriptor at `index`."""
        if arguments[index].startswith('"'):
            return self._inside(_text(arguments[index]).decode())
        directory = _text(arguments[index].partition("<")[2].rstrip(">")).decode()
        name = _text(arguments[index + 1]).decode()
        return self._inside(name if name.startswith("/") else f"{directory}/{name}")

    def _descriptor(self, argument: str) -> tuple[str, str | None]:
        match = _DESCRIPTOR.match(argument)
        assert match is not None, argument
        number, name = match.groups()
        return number, self._inside(_text(name).decode()) if name.startswith("\\x2f") else None

    def _open(self, arguments: list[str], result: int) -> list[Operation]:
        self._positions[str(result)] = 0
        path, flags = self._path(arguments), " ".join(arguments)
        created = [Operation("create", path)] if path and "O_CREAT" in flags else []
        return created + ([Operation("truncate", path)] if path and "O_TRUNC" in flags else [])

    def _lseek(self, arguments: list[str], result: int) -> list[Operation]:
        self._positions[self._descriptor(arguments[0])[0]] = result
        return []

    def _write(self, arguments: list[str], result: int) -> list[Operation]:
        number, path = self._descriptor(arguments[0])
        start = self._positions.get(number, 0)
        self._positions[number] = start + result
        return [Operation("write", path, offset=start, data=_text(arguments[1])[:result])] if path else []

    def _pwrite64(self, arguments: list[str], result: int) -> list[Operation]:
        _, path = self._descriptor(arguments[0])
        data = _text(arguments[1])[:result]
        return [Operation("write", path, offset=int(arguments[3]), data=data)] if path else []

    def _copy_file_range(self, arguments: list[str], result: int) -> list[Operation]:
        source, path = self._descriptor(arguments[0])[1], self._descriptor(arguments[2])[1]
        begin, offset = (self._start(arguments[i], arguments[i + 1], result) for i in (0, 2))
        return [Operation("copy", path, source or "", offset, f"{begin}:{begin + result}".encode())] if path else []

    def _start(self, descriptor: str, offset: str, moved: int) -> int:
        if offset != "NULL":
            return int(offset.strip("[]").split(" ")[0])
        number, _ = self._descriptor(descriptor)
        start = self._positions.get(number, 0)
        self._positions[number] = start + moved
        return start

    def _ftruncate(self, arguments: list[str], _: int) -> list[Operation]:
        path = self._descriptor(arguments[0])[1]
        return [Operation("truncate", path, offset=int(arguments[1]))] if path else []

    def _truncate(self, arguments: list[str], _: int) -> list[Operation]:
        path = self._path(arguments)
        return [Operation("truncate", path, offset=int(arguments[1]))] if path else []

    def _rename(self, arguments: list[str], _: int) -> list[Operation]:
        return [Operation("rename", *self._ends(arguments))]

    def _link(self, arguments: list[str], _: int) -> list[Operation]:
        return [Operation("link", *self._ends(arguments))]

    def _ends(self, arguments: list[str]) -> tuple[str, str]:
        source = self._path(arguments)
        target = self._path(arguments, 1 if arguments[0].startswith('"') else 2)
        assert source is not None, "a rename or link from outside the root"
        assert target is not None, "a rename or link to outside the root"
        return source, target

    def _unlink(self, arguments: list[str], _: int) -> list[Operation]:
        path = self._path(arguments)
        kind = "rmdir" if "AT_REMOVEDIR" in arguments[-1] else "unlink"
        return [Operation(kind, path)] if path else []

    def _rmdir(self, arguments: list[str], _: int) -> list[Operation]:
        path = self._path(arguments)
        return [Operation("rmdir", path)] if path else []

    def _mkdir(self, arguments: list[str], _: int) -> list[Operation]:
        path = self._path(arguments)
        return [Operation("mkdir", path)] if path else []

    def _fsync(self, arguments: list[str], _: int) -> list[Operation]:
        path = self._descriptor(arguments[0])[1]
        return [Operation("sync", path)] if path else []

    _fdatasync = _fsync

    def _sendto(self, arguments: list[str], _: int) -> list[Operation]:
        return [Operation("ack")] if _text(arguments[1]) == b"acked" else []
