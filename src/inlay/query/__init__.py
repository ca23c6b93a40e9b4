"""SQL over managed datasets: SELECTs on `datasets.<table>`, answered by DataFusion in processes that can be killed."""

from inlay.query.engine import QueryEngine, Table, Tables
from inlay.query.result import QueryResult

__all__ = ["QueryEngine", "QueryResult", "Table", "Tables"]
