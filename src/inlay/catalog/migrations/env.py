"""Alembic environment that runs the migrations in the caller's transaction."""

from __future__ import annotations

from alembic import context

from inlay.catalog import tables


def run() -> None:
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, target_metadata=tables.metadata, render_as_batch=True)
    context.run_migrations()


if __name__ == "env_py":  # the name under which Alembic runs this file
    run()
