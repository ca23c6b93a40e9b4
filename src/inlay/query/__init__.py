"""SQL queries on managed datasets, run by DataFusion in worker processes."""

from inlay.query.engine import Format, QueryEngine, Table, Tables
from inlay.query.result import Answer, QueryResult

__all__ = ["Answer", "Format", "QueryEngine", "QueryResult", "Table", "Tables"]
