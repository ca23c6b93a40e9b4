"""A DuckDB connection that records its statements and can report another version."""

from __future__ import annotations

from typing import Any

import duckdb


class Tap:
    """Wraps a connection and all its cursors."""

    def __init__(self, version: str | None = None, connection: Any = None, log: Tap | None = None) -> None:
        self.connection = connection or duckdb.connect()
        self.version = version
        self.statements: list[str] = log.statements if log else []
        self.registered: list[str] = log.registered if log else []
        self.unregistered: list[str] = log.unregistered if log else []

    def cursor(self) -> Tap:
        return Tap(self.version, self.connection.cursor(), self)

    def execute(self, statement: str, values: Any = None) -> Any:
        self.statements.append(statement)
        if "pragma_version" in statement and self.version is not None:
            statement = f"SELECT '{self.version}' AS library_version"
        return self.connection.execute(statement, values) if values else self.connection.execute(statement)

    def sql(self, statement: str) -> Any:
        self.statements.append(statement)
        return self.connection.sql(statement)

    def register(self, name: str, table: Any) -> None:
        self.registered.append(name)
        self.connection.register(name, table)

    def unregister(self, name: str) -> None:
        self.unregistered.append(name)
        self.connection.unregister(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def executed(self, text: str) -> list[str]:
        return [statement for statement in self.statements if text in statement]


def state_of(connection: duckdb.DuckDBPyConnection) -> dict[str, list[Any]]:
    """Return the settings, tables and views of a connection."""
    queries = {
        "settings": "SELECT name, value FROM duckdb_settings() ORDER BY name",
        "tables": "SELECT database_name, schema_name, table_name FROM duckdb_tables() ORDER BY ALL",
        "views": "SELECT database_name, schema_name, view_name FROM duckdb_views() WHERE NOT internal ORDER BY ALL",
    }
    return {kind: connection.execute(query).fetchall() for kind, query in queries.items()}
