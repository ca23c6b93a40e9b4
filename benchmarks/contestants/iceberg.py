"""pyiceberg: adds the files to a table of a SQLite catalog, then runs one upsert."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow.dataset as ds
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from benchmarks.measure import Contestant, Spec, UnsupportedError, dataset_files, main


class Iceberg(Contestant):
    packages: ClassVar[tuple[str, ...]] = ("pyiceberg", "pyarrow")

    def __init__(self, spec: Spec) -> None:
        if spec.strategy == "full_merge":
            raise UnsupportedError("cannot delete rows that the source lacks")
        if spec.updated_columns:
            raise UnsupportedError("replaces whole rows")
        spec.require_upsert()
        self.spec = spec
        self.source = spec.load_source()
        warehouse = Path(spec.work, "warehouse")
        warehouse.mkdir()
        options = {"uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": f"file://{warehouse}"}
        self.catalog = SqlCatalog("bench", **options)
        self.catalog.create_namespace("bench")
        self.table = self._create()

    def _create(self) -> Table:
        properties = {"write.parquet.compression-codec": "snappy"}
        table = self.catalog.create_table("bench.target", self.source.schema, properties=properties)
        if self.spec.partition_columns:
            with table.update_spec() as update:
                for name in self.spec.partition_columns:
                    update.add_field(name, IdentityTransform(), f"{name}_part")
            schema = self.source.select(self.spec.partition_columns).schema
            partitioning = ds.partitioning(schema, flavor="hive")
            target = ds.dataset(self.spec.target, partitioning=partitioning)
            table.append(target.to_table(columns=self.source.column_names))
        else:
            table.add_files(dataset_files(self.spec.target))
        return self.catalog.load_table("bench.target")

    def run(self) -> dict[str, Any]:
        result = self.table.upsert(self.source, join_cols=self.spec.key_columns)
        return {"inserted": result.rows_inserted, "updated": result.rows_updated}

    def files(self) -> list[str]:
        tasks = list(self.catalog.load_table("bench.target").scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise UnsupportedError("a plain read cannot verify delete files")
        return sorted({task.file.file_path.removeprefix("file://") for task in tasks})


if __name__ == "__main__":
    main(Iceberg)
