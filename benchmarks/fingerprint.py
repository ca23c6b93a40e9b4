"""The fingerprint of a result: an order-independent hash over all rows, computed by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from benchmarks.measure import dataset_files
from benchmarks.workloads import Dataset, Kind, Workload

SQL_TYPES: dict[Kind, str] = {
    "id": "BIGINT",
    "tenant": "VARCHAR",
    "order": "VARCHAR",
    "text": "VARCHAR",
    "float": "DOUBLE",
    "ts": "TIMESTAMP",
    "low": "VARCHAR",
    "int": "INTEGER",
}


def _projection(dataset: Dataset) -> str:
    typed = [(name, SQL_TYPES[kind]) for name, kind in dataset.columns]
    typed += [(name, "DATE") for name in dataset.partition_columns]
    return ", ".join(f'CAST("{name}" AS {sql}) AS "{name}"' for name, sql in typed)


def _hashed(connection: duckdb.DuckDBPyConnection, rows: str, params: Sequence[object]) -> str:
    query = f"SELECT count(*), coalesce(sum(CAST(hash(r) AS HUGEINT)), 0) FROM ({rows}) AS r"
    count, total = connection.execute(query, list(params)).fetchall()[0]
    return f"{count}:{total:x}"


def of_files(dataset: Dataset, files: Sequence[str]) -> str:
    """Return the fingerprint of the rows in these files."""
    with duckdb.connect() as connection:
        rows = f"SELECT {_projection(dataset)} FROM read_parquet(?, union_by_name => true)"
        return _hashed(connection, rows, [list(files)])


def expected(dataset: Dataset, workload: Workload, target: str, source: str) -> str:
    """Return the fingerprint of the expected state after the merge, from target and source."""
    with pa.OSFile(source, "rb") as file:
        rows = pa.ipc.open_file(file).read_all()
    columns = _projection(dataset)
    with duckdb.connect() as connection:
        connection.register("src", rows)
        if workload.strategy == "full_merge":
            return _hashed(connection, f"SELECT {columns} FROM src", [])
        if workload.newer_by is not None:
            return _hashed(connection, f"SELECT {columns} FROM read_parquet(?)", [dataset_files(target)])
        using = ", ".join(f'"{key}"' for key in dataset.keys)
        if workload.updated_columns:  # no generated value is NULL
            values = ", ".join(f'coalesce(s."{name}", t."{name}") AS "{name}"' for name in workload.updated_columns)
            updated = f"SELECT t.* REPLACE ({values}) FROM read_parquet(?) AS t LEFT JOIN src AS s USING ({using})"
            return _hashed(connection, f"SELECT {columns} FROM ({updated})", [dataset_files(target)])
        kept = f"SELECT {columns} FROM read_parquet(?) ANTI JOIN (SELECT {using} FROM src) USING ({using})"
        added = "" if workload.strategy == "delete" else f" UNION ALL SELECT {columns} FROM src"
        return _hashed(connection, f"{kept}{added}", [dataset_files(target)])
