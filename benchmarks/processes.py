"""CPU time, memory and written bytes of this process and its descendants, from /proc.

Spark computes in a JVM and in Python workers that outlive the measured call, so neither the usage of this process nor
that of its ended children includes them.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_SECONDS = 0.1
_SEARCH_EVERY = 5  # samples; a search for new processes costs more than reading known ones


class Process(NamedTuple):
    """Values of /proc/PID/stat: CPU seconds of the process and of its reaped children, and resident bytes."""

    pid: int
    parent: int
    name: str
    own: float
    waited: float
    resident: int


def read(pid: int) -> Process | None:
    """Read a process, or return None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    user, system, waited_user, waited_system = (int(ticks) / _TICKS for ticks in rest[11:15])
    return Process(pid, int(rest[1]), name, user + system, waited_user + waited_system, int(rest[21]) * _PAGE)


def _present(pids: Iterable[int]) -> list[Process]:
    return [process for pid in pids if (process := read(pid))]


def descendants(pid: int) -> list[Process]:
    """List the live descendants of `pid`, parents before children."""
    children: dict[int, list[Process]] = {}
    for process in _present(int(name) for name in os.listdir("/proc") if name.isdigit()):
        children.setdefault(process.parent, []).append(process)
    found = list(children.get(pid, ()))
    for process in found:  # the list grows during the loop
        found += children.get(process.pid, ())
    return found


def proc_field(pid: int, file: str, name: str) -> int:
    """Read a number from a `name: value` file, such as status or io."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise KeyError(name)


def reset_peak() -> bool:
    """Reset VmHWM of this process. Return False if the kernel refuses."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def settle(pid: int, timeout: float = 5.0) -> None:
    """Wait until the descendants of `pid` are idle, because a JVM keeps compiling code after a call."""
    end, before = time.monotonic() + timeout, -1.0
    while time.monotonic() < end and (now := sum(p.own for p in descendants(pid))) - before > 0.02:
        before = now
        time.sleep(0.3)


def _ignores_children(pid: int) -> bool:
    """Return True if a process ignores SIGCHLD. No process then accounts for its ended children."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored, 16) >> (signal.SIGCHLD - 1) & 1)


class Usage(NamedTuple):
    """Total usage so far: CPU seconds by role, bytes passed to write calls, and bytes sent to storage."""

    cpu: dict[str, float]
    written: int
    stored: int


class Tree:
    """Usage of this process and its descendants within a `with` block; samples memory if there are descendants."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._known: dict[int, Process] = {}
        self._unaccounted: dict[int, Process] = {}  # ended, and in no other process's total
        self._unwaited: dict[int, bool] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak = 0
        self._refresh(search=True)

    def __enter__(self) -> Self:
        self._sampled = bool(self._known)
        if self._sampled:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._sampled:
            self._ended.set()
            self._thread.join()
        else:
            self.peak = proc_field(self._pid, "status", "VmHWM") * 1024

    def resident(self) -> int:
        return proc_field(self._pid, "status", "VmRSS") * 1024 + sum(p.resident for p in self._known.values())

    def usage(self) -> Usage:
        self._refresh(search=True)
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = {"driver": sum(u.ru_utime + u.ru_stime for u in usages), "jvm": 0.0, "workers": 0.0}
        for process in self._known.values():
            cpu["jvm" if process.name == "java" else "workers"] += process.own + process.waited
        cpu["workers"] += sum(process.own for process in self._unaccounted.values())
        pids = [self._pid, *self._known]
        return Usage(cpu, sum(_io(pid, "wchar") for pid in pids), sum(_io(pid, "write_bytes") for pid in pids))

    def _sample(self) -> None:
        at = 0
        while not self._ended.wait(_SAMPLE_SECONDS):
            at += 1
            self._refresh(search=at % _SEARCH_EVERY == 0)

    def _refresh(self, *, search: bool) -> None:
        with self._lock:
            found = descendants(self._pid) if search else _present(self._known)
            now = {process.pid: process for process in found}
            for process in found:
                if process.pid not in self._unwaited:
                    self._unwaited[process.pid] = _ignores_children(process.parent)
            self._unaccounted |= {pid: p for pid, p in self._known.items() if pid not in now and self._unwaited[pid]}
            self._known = now
            self.peak = max(self.peak, self.resident())


def _io(pid: int, name: str) -> int:
    try:
        return proc_field(pid, "io", name)
    except OSError:
        return 0
