"""DuckLake: adds the files to a table of a local catalog, then runs one MERGE."""

from __future__ import annotations

from importlib.resources import files as resources
from pathlib import Path
from typing import Any, ClassVar

import duckdb

from benchmarks.measure import Contestant, Spec, main

EXTENSION = "duckdb_extension_ducklake"


class DuckLake(Contestant):
    packages: ClassVar[tuple[str, ...]] = (EXTENSION, "duckdb", "pyarrow")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.source = spec.load_source()
        self.connection = duckdb.connect()
        extension = next(Path(str(resources(EXTENSION))).rglob("*.duckdb_extension"))
        self.connection.execute(f"LOAD '{extension}'")
        self.connection.execute(f"ATTACH 'ducklake:{spec.work}/lake.db' AS lake (DATA_PATH '{spec.work}/lake')")
        self.connection.execute("CALL lake.set_option('parquet_compression', 'snappy')")
        self.connection.register("src", self.source)
        self._create()

    def _create(self) -> None:
        some = self.spec.strategy == "delete" or self.spec.updated_columns  # the source lacks columns
        rows = f"read_parquet('{self.spec.target}/*.parquet')" if some else "src"
        self.connection.execute(f"CREATE TABLE lake.target AS FROM {rows} LIMIT 0")
        if partitions := ", ".join(self.spec.partition_columns):
            self.connection.execute(f"ALTER TABLE lake.target SET PARTITIONED BY ({partitions})")
        arguments = f"'lake', 'target', '{self.spec.target}/**/*.parquet', hive_partitioning => {bool(partitions)}"
        self.connection.execute(f"CALL ducklake_add_data_files({arguments})")

    def run(self) -> dict[str, Any]:
        same = " AND ".join(f"t.{key} = s.{key}" for key in self.spec.key_columns)
        merge = f"MERGE INTO lake.target AS t USING src AS s ON {same}"
        newer = "" if self.spec.newer_by is None else f" AND s.{self.spec.newer_by} > t.{self.spec.newer_by}"
        if self.spec.strategy == "delete":
            self.connection.execute(f"{merge} WHEN MATCHED THEN DELETE")
            return {}
        if self.spec.updated_columns:
            values = ", ".join(f"{name} = s.{name}" for name in self.spec.updated_columns)
            self.connection.execute(f"{merge} WHEN MATCHED THEN UPDATE SET {values}")
            return {}
        self.connection.begin()
        if self.spec.strategy == "full_merge":  # one statement can have one UPDATE or DELETE
            self.connection.execute(f"{merge} WHEN NOT MATCHED BY SOURCE THEN DELETE")
        self.connection.execute(f"{merge} WHEN MATCHED{newer} THEN UPDATE WHEN NOT MATCHED THEN INSERT")
        self.connection.commit()
        return {}

    def files(self) -> list[str]:
        listed = self.connection.execute("SELECT data_file, delete_file FROM ducklake_list_files('lake', 'target')")
        return [file for pair in listed.fetchall() for file in pair if file]

    def verified_files(self) -> list[str]:
        """Export the table as plain Parquet, because deletions are in separate files."""
        plain = f"{self.spec.work}/plain.parquet"
        self.connection.execute(f"COPY lake.target TO '{plain}'")
        return [plain]


if __name__ == "__main__":
    main(DuckLake)
