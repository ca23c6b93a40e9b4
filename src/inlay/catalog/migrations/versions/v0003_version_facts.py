"""Add the facts that versions of plain datasets have: key columns, transaction, restored version and damage."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_OPERATIONS = {"append": "append", "replace": "overwrite", "delete": "delete"}  # of loads, by strategy. Others merge


def upgrade() -> None:
    for column in (
        sa.Column("key_columns", sa.Text(), server_default="[]", nullable=False),
        sa.Column("transaction", sa.Text(), nullable=True),
        sa.Column("restores", sa.BigInteger(), nullable=True),
        sa.Column("damaged", sa.Boolean(), server_default=sa.false(), nullable=False),
    ):
        op.add_column("dataset_versions", column)
    columns = ("dataset_id", "version", "operation", "strategy", "source", "job_id", *_ADDED)
    versions = sa.table("dataset_versions", *map(sa.column, columns))
    jobs = sa.table("jobs", sa.column("id"), sa.column("idempotency_key"))
    found = sa.select(versions, jobs.c.idempotency_key)
    connection = op.get_bind()
    for row in connection.execute(found.outerjoin_from(versions, jobs, versions.c.job_id == jobs.c.id)).all():
        this = (versions.c.dataset_id == row.dataset_id) & (versions.c.version == row.version)
        connection.execute(versions.update().where(this).values(_facts(row)))


_ADDED = ("key_columns", "transaction", "restores")


def _facts(row: sa.Row[tuple[str, ...]]) -> dict[str, object]:
    source = json.loads(row.source)
    keys = source.get("key_columns", [])
    return {
        "operation": _operation(row, keys),
        "key_columns": json.dumps(keys),
        "restores": source.get("version") if row.operation == "restore" else None,
        "transaction": row.idempotency_key,
    }


def _operation(row: sa.Row[tuple[str, ...]], keys: list[str]) -> str:
    if row.operation != "load":
        return str(row.operation)
    return "merge" if keys else _OPERATIONS.get(row.strategy, "merge")
