"""Owners of jobs, and the release of jobs whose owner is dead or whose lease expired."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from inlay.catalog import tables
from inlay.catalog.database import Context
from inlay.constants import ACTIVE
from inlay.errors import JobInterruptedError

__all__ = ["is_dead", "release_expired", "this_process"]


def this_process() -> str:
    """Return the owner id of this process: host, process id and start time."""
    return f"{_host()}/{os.getpid()}/{_start_time(os.getpid()) or 0}"


def is_dead(owner: str) -> bool:
    """Return whether a process has certainly ended. False for processes of other hosts."""
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
    """Return the start time of a process in ticks since boot, or None if it has ended."""
    state, *rest = _read(f"/proc/{pid}/stat").rpartition(")")[2].split() or ["Z"]
    return None if state in "ZXx" else rest[18]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


_jobs = tables.jobs
_INTERRUPTED = JobInterruptedError(
    "The process that ran this job ended before the job did. Nothing changed.", hint="Send the request again."
)


def release_expired(context: Context) -> Sequence[str]:
    """Fail the jobs of dead owners and of expired leases. Returns the ids of the jobs.

    This runs in its own transaction, so that an error of the caller does not roll it back. It takes the write lock
    only if a job has expired.
    """
    with context.read() as connection:
        if not _expired(connection, context):
            return ()
    with context.write() as connection:
        released = _expired(connection, context)
        # Without its idempotency key, the same request can be sent again.
        ended = {"state": "failed", "error": _INTERRUPTED.to_dict(), "idempotency_key": None}
        for job_id in released:
            connection.execute(
                _jobs.update().where(_jobs.c.id == job_id).values(ended | {"finished_at": context.now()})
            )
        return released


def _expired(connection: Connection, context: Context) -> Sequence[str]:
    # Jobs of this process are skipped: after the machine slept, their leases are old, but they still run.
    active = _jobs.c.state.in_(ACTIVE) & (_jobs.c.owner != context.owner)
    leases = connection.execute(sa.select(_jobs.c.id, _jobs.c.owner, _jobs.c.lease_until).where(active)).all()
    dead = {owner for owner in {lease.owner for lease in leases} if is_dead(owner)}
    now = context.now()
    return [lease.id for lease in leases if lease.owner in dead or lease.lease_until < now]
