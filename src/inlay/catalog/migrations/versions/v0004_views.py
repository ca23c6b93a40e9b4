"""Add the state of the published views."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "views",
        sa.Column("dataset_id", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("oldest", sa.BigInteger(), nullable=False),
        sa.Column("newest", sa.BigInteger(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_views_datasets")),
        sa.PrimaryKeyConstraint("dataset_id", "format", name=op.f("pk_views")),
    )
