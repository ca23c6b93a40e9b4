"""Which process holds a job, and whether that process is still there.

An owner reads `host/pid/start`. The host names the machine's boot and process namespace too: containers may share
a host name and even a kernel, and a process can be judged only by those who see the same processes.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

__all__ = ["is_dead", "this_process"]


def this_process() -> str:
    return f"{_host()}/{os.getpid()}/{_start_time(os.getpid()) or 0}"


def is_dead(owner: str) -> bool:
    """Whether that process has certainly ended. Of another host nobody here can tell: its lease decides."""
    match owner.split("/"):
        case [host, pid, start] if host == _host() and start != "0":
            return _start_time(int(pid)) != start
    return False


def _host() -> str:
    return f"{socket.gethostname()}:{_read('/proc/sys/kernel/random/boot_id')[:8]}:{_namespace()}"


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """When the process began, in ticks since boot; None if there is none, or only its remains."""
    state, *rest = _read(f"/proc/{pid}/stat").rpartition(")")[2].split() or ["Z"]
    return None if state in "ZXx" else rest[18]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
