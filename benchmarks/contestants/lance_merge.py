"""Lance: converts the dataset file by file to its own format, then runs one merge_insert."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import lance
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.measure import Contestant, Spec, UnsupportedError, dataset_files, main


class Lance(Contestant):
    packages: ClassVar[tuple[str, ...]] = ("pylance", "pyarrow")

    def __init__(self, spec: Spec) -> None:
        if spec.strategy == "delete":
            raise UnsupportedError("cannot delete rows by the keys of a source")
        self.spec = spec
        self.source = spec.load_source()
        self.path = Path(spec.work, "target.lance")
        for file in dataset_files(spec.target):
            partitioned = ds.dataset(
                file, partitioning=ds.partitioning(flavor="hive"), partition_base_dir=spec.target
            ).to_table()
            schema = partitioned.schema if spec.updated_columns else self.source.schema
            rows = partitioned.select(schema.names).cast(schema)
            lance.write_dataset(rows, self.path, mode="append" if self.path.exists() else "create")

    def run(self) -> dict[str, Any]:
        merge = lance.dataset(self.path).merge_insert(self.spec.key_columns)
        newer = None if self.spec.newer_by is None else f"source.{self.spec.newer_by} > target.{self.spec.newer_by}"
        merge = merge.when_matched_update_all(newer).when_not_matched_insert_all()
        if self.spec.strategy == "full_merge":
            merge = merge.when_not_matched_by_source_delete()
        return dict(merge.execute(self.source))

    def files(self) -> list[str]:
        return [str(file) for file in sorted(self.path.rglob("*")) if file.is_file()]

    def verified_files(self) -> list[str]:
        """Export the table as plain Parquet, because only Lance can read its files."""
        plain = f"{self.spec.work}/plain.parquet"
        batches = lance.dataset(self.path).scanner(batch_size=100_000).to_reader()
        with pq.ParquetWriter(plain, batches.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return [plain]


if __name__ == "__main__":
    main(Lance)
