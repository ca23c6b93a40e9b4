"""DuckDB: reads everything, anti-join + union, writes a new directory that replaces the old one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import duckdb

from benchmarks.measure import Contestant, Spec, UnsupportedError, dataset_files, main


class DuckDB(Contestant):
    packages: ClassVar[tuple[str, ...]] = ("duckdb", "pyarrow")

    def __init__(self, spec: Spec) -> None:
        if spec.newer_by is not None:
            raise UnsupportedError("rewrites all rows")
        self.spec = spec
        self.source = spec.load_source()
        self.connection = duckdb.connect()
        self.connection.execute("SET preserve_insertion_order = false")
        self.connection.register("src", self.source)

    def _merged(self) -> str:
        columns = ", ".join(f'"{name}"' for name in self.source.column_names)
        if self.spec.strategy == "delete":
            columns = "*"
        if self.spec.strategy == "full_merge":
            return f"SELECT {columns} FROM src"
        keys = ", ".join(f'"{name}"' for name in self.spec.key_columns)
        target = f"read_parquet('{self.spec.target}/**/*.parquet')"
        if updated := self.spec.updated_columns:
            values = ", ".join(f'CASE WHEN found THEN s."{n}" ELSE t."{n}" END AS "{n}"' for n in updated)
            source = "(SELECT *, true AS found FROM src) AS s"
            return f"SELECT t.* REPLACE ({values}) FROM {target} AS t LEFT JOIN {source} USING ({keys})"
        kept = f"SELECT {columns} FROM {target} ANTI JOIN (SELECT {keys} FROM src) USING ({keys})"
        return kept if self.spec.strategy == "delete" else f"{kept} UNION ALL SELECT {columns} FROM src"

    def run(self) -> dict[str, Any]:
        target = Path(self.spec.target)
        new, old = target.with_name("new"), target.with_name("old")
        new.mkdir()
        options = f"FORMAT parquet, COMPRESSION snappy, ROW_GROUP_SIZE {self.spec.row_group_size}"
        output = new / "data.parquet"
        if self.spec.partition_columns:
            output, options = new, f"{options}, PARTITION_BY ({', '.join(self.spec.partition_columns)})"
        self.connection.execute(f"COPY ({self._merged()}) TO '{output}' ({options})")
        target.rename(old)
        new.rename(target)
        shutil.rmtree(old)
        return {}

    def files(self) -> list[str]:
        return dataset_files(self.spec.target)


if __name__ == "__main__":
    main(DuckDB)
