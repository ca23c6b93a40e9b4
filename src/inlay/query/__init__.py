"""SQL queries on managed datasets, run by DataFusion in worker processes."""

from inlay.query.comparison import VersionPair
from inlay.query.engine import Format, QueryEngine
from inlay.query.result import Answer, QueryResult
from inlay.query.tables import Table, Tables

__all__ = ["Answer", "Format", "QueryEngine", "QueryResult", "Table", "Tables", "VersionPair"]
