"""How Alembic runs the migrations: on the connection that it is given, within that one's transaction."""

from __future__ import annotations

from alembic import context

from inlay.catalog import tables


def run() -> None:
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, target_metadata=tables.metadata, render_as_batch=True)
    context.run_migrations()


if __name__ == "env_py":  # as Alembic names this file when it runs it
    run()
