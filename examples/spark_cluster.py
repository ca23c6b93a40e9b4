"""Merge on a Spark cluster. The meaning is the same as on one machine; the work runs in tasks on the executors.

    python examples/spark_cluster.py [--master spark://host:7077] [FOLDER]

FOLDER must be a place that all executors reach: a shared disk, or s3://bucket/prefix.
Needs: pip install 'inlay[spark]'. A Java is brought along where there is none.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import pyarrow as pa

import inlay

FILES, ROWS = 8, 20_000


def main(master: str, folder: str) -> None:
    # In a shell: export INLAY_SPARK_MASTER=spark://host:7077
    # With it every merge of this process runs on Spark, without another word.
    os.environ["INLAY_SPARK_MASTER"] = master
    path = f"{folder}/prices"

    # Executors write the files.
    prices = pa.table({"item": range(FILES * ROWS), "price": [1.0] * (FILES * ROWS)})
    written = inlay.write_dataset(prices, path, max_rows_per_file=ROWS)
    print(f"{written.row_count:,} rows in {len(written.files)} files written on {master}")

    # A table that the driver holds: its rows travel to the tasks that need them.
    result = inlay.merge(pa.table({"item": [5, 10**6], "price": [9.5, 2.0]}), path, "upsert", ["item"])
    kept = len(result.preserved_files)
    print(f"from the driver: {result.updated} updated, {result.inserted} inserted, {kept} files not touched")

    # A Spark DataFrame: the rows of a large one never come to the driver. Spark has one session per process,
    # which inlay started above; a session of your own it would have taken instead.
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    changes = spark.range(0, FILES * ROWS, 1000).selectExpr("id AS item", "CAST(id AS DOUBLE) AS price")
    result = inlay.merge(changes, path, "upsert", ["item"])
    touched = len(result.rewritten_files)
    print(f"from a DataFrame: {result.updated} updated in {touched} files, {result.target_count_after:,} rows")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", default="local[2]", help="the cluster (default: two threads of this machine)")
    parser.add_argument("folder", nargs="?", default=None)
    arguments = parser.parse_args()
    main(arguments.master, arguments.folder or tempfile.mkdtemp(prefix="inlay-example-"))
