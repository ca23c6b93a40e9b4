"""Jobs whose owner is gone: they end, and what they held is free."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from inlay.catalog import owners, tables
from inlay.catalog.context import Context
from inlay.choices import ACTIVE
from inlay.errors import JobInterruptedError

__all__ = ["release_expired"]

_jobs = tables.jobs
_INTERRUPTED = JobInterruptedError(
    "The process that ran this job ended before it. Nothing was changed.", hint="Send the request again."
)


def release_expired(context: Context) -> Sequence[str]:
    """End the jobs of owners that are dead, or silent for longer than their lease. Returns their ids.

    A transaction of its own, so that a refusal that follows from it does not undo it; whoever finds nothing to
    release takes no write lock.
    """
    with context.read() as connection:
        if not _expired(connection, context):
            return ()
    with context.write() as connection:
        released = _expired(connection, context)
        # the key is free: sending the request again must run it
        ended = {"state": "failed", "error": _INTERRUPTED.to_dict(), "idempotency_key": None}
        for job_id in released:
            connection.execute(
                _jobs.update().where(_jobs.c.id == job_id).values(ended | {"finished_at": context.now()})
            )
        return released


def _expired(connection: Connection, context: Context) -> Sequence[str]:
    """Our own silence is no sign of death: after a machine's sleep all leases are old, and we are still at work."""
    active = _jobs.c.state.in_(ACTIVE) & (_jobs.c.owner != context.owner)
    leases = connection.execute(sa.select(_jobs.c.id, _jobs.c.owner, _jobs.c.lease_until).where(active)).all()
    dead = {owner for owner in {lease.owner for lease in leases} if owners.is_dead(owner)}
    now = context.now()
    return [lease.id for lease in leases if lease.owner in dead or lease.lease_until < now]
