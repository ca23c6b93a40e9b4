"""A plain query service over DuckDB: `python -m benchmarks.duckdb_service PORT TABLE=FILE...`.

It is what one writes in forty lines: no isolation, no limits, no keys, no versions. The queries run in threads of the
service process.
"""

from __future__ import annotations

import sys

import duckdb
import orjson
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel


class Query(BaseModel):
    sql: str


def create_app(files: dict[str, str]) -> FastAPI:
    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA datasets")
    for table, path in files.items():
        connection.execute(f"CREATE VIEW datasets.{table} AS FROM read_parquet('{path}')")
    app = FastAPI()

    @app.post("/v1/query")
    def query(body: Query) -> Response:
        found = connection.cursor().execute(body.sql)
        columns = [name for name, *_ in found.description or ()]
        return Response(orjson.dumps({"columns": columns, "rows": found.fetchall()}, default=str))

    return app


if __name__ == "__main__":
    tables = dict(argument.split("=", 1) for argument in sys.argv[2:])
    uvicorn.run(create_app(tables), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
