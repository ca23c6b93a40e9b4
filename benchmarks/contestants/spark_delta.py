"""Delta Lake on Spark: converts the files to a Delta table in place, then runs one MERGE.

The jars of Delta are not a Python package. INLAY_BENCH_DELTA_JARS names the directory of the jars, which support one
minor version of Spark. INLAY_BENCH_DELTA_PYTHON names an interpreter with that version of pyspark and with pyarrow, if
the interpreter of inlay has another version.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks import spark
from benchmarks.measure import Contestant, Spec, main

SETTINGS = {
    **spark.SETTINGS,
    "spark.databricks.delta.snapshotPartitions": "2",  # the default needs 50 tasks to read a log of one entry
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}


def _session() -> SparkSession:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    jars = sorted(str(jar) for jar in Path(os.environ["INLAY_BENCH_DELTA_JARS"]).glob("*.jar"))
    settings: dict[str, Any] = {**SETTINGS, "spark.jars": ",".join(jars)}
    return SparkSession.builder.master(spark.MASTER).config(map=settings).getOrCreate()


class SparkDelta(Contestant):
    packages: ClassVar[tuple[str, ...]] = ("pyspark", "pyarrow")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.spark = _session()
        source = f"{spec.work}/source.parquet"
        pq.write_table(spec.load_source(), source, compression="snappy", row_group_size=spec.row_group_size)
        self.spark.read.parquet(source).createOrReplaceTempView("source")
        spark.warm(spec, self._convert_and_merge)
        self._convert(spec.target)

    def _convert(self, target: str) -> None:
        days = f" PARTITIONED BY ({', '.join(f'{c} DATE' for c in self.spec.partition_columns)})"
        self.spark.sql(f"CONVERT TO DELTA parquet.`{target}`{days if self.spec.partition_columns else ''}")

    def _merge(self, target: str) -> None:
        keys = " AND ".join(f"t.{key} = s.{key}" for key in self.spec.key_columns)
        deletes = " WHEN NOT MATCHED BY SOURCE THEN DELETE" if self.spec.strategy == "full_merge" else ""
        self.spark.sql(
            f"MERGE INTO delta.`{target}` t USING source s ON {keys}"
            f" WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *{deletes}"
        ).collect()

    def _convert_and_merge(self, target: str) -> None:
        self._convert(target)
        self._merge(target)

    def run(self) -> dict[str, Any]:
        self._merge(self.spec.target)
        return {}

    def files(self) -> list[str]:
        urls = self.spark.sql(f"SELECT * FROM delta.`{self.spec.target}`").inputFiles()
        return sorted(unquote(urlsplit(url).path) for url in urls)


if __name__ == "__main__":
    main(SparkDelta)
