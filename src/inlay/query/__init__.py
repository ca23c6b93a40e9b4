"""SQL queries on managed datasets, run by DataFusion in worker processes."""

from inlay.query.engine import QueryEngine, Table, Tables
from inlay.query.result import QueryResult

__all__ = ["QueryEngine", "QueryResult", "Table", "Tables"]
