"""The worker processes of query engines."""

from __future__ import annotations

import os
from pathlib import Path


def workers() -> set[int]:
    """Return the process ids of all workers of this process."""
    return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_worker(pid)}


def _is_worker(pid: int) -> bool:
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return int(parent) == os.getpid() and b"inlay.query.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # the process has ended
        return False
