"""Plain Spark: reads everything, anti-join + union, writes a new directory that replaces the old one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks import spark
from benchmarks.measure import Contestant, Spec, dataset_files, main


class SparkRewrite(Contestant):
    packages: ClassVar[tuple[str, ...]] = ("pyspark", "pyarrow")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.spark = spark.session(**spark.DEFAULT_JAVA)
        rows = spec.load_source()
        self.columns = rows.column_names
        self.source = f"{spec.work}/source.parquet"  # the format that Spark reads fastest
        pq.write_table(rows, self.source, compression="snappy", row_group_size=spec.row_group_size)
        spark.warm(spec, self._merge)

    def _merged(self, target: str) -> DataFrame:
        source = self.spark.read.parquet(self.source).select(*self.columns)
        if self.spec.strategy == "full_merge":
            return source
        keys = source.select(*self.spec.key_columns)  # Spark broadcasts the keys automatically
        kept = self.spark.read.parquet(target).select(*self.columns).join(keys, self.spec.key_columns, "left_anti")
        return kept.select(*self.columns).unionByName(source)

    def _merge(self, target: str) -> None:
        path = Path(target)
        new, old = path.with_name("new"), path.with_name("old")
        writer = self._merged(target).write.option("compression", "snappy")
        if self.spec.partition_columns:
            writer = writer.partitionBy(*self.spec.partition_columns)
        writer.parquet(str(new))
        path.rename(old)
        new.rename(path)
        shutil.rmtree(old)

    def run(self) -> dict[str, Any]:
        self._merge(self.spec.target)
        return {}

    def files(self) -> list[str]:
        return dataset_files(self.spec.target)


if __name__ == "__main__":
    main(SparkRewrite)
