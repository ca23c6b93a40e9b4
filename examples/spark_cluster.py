"""Merge on a Spark cluster. The result is the same as on one machine; the work runs in tasks on the executors.

    python examples/spark_cluster.py [--master spark://host:7077] [FOLDER]

All executors must be able to reach FOLDER: use a shared disk, or s3://bucket/prefix.
Needs: pip install 'inlay[spark]', which includes Java for machines that have none.
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
    # With this variable, every merge of the process runs on Spark.
    os.environ["INLAY_SPARK_MASTER"] = master
    path = f"{folder}/prices"

    # The executors write the files.
    prices = pa.table({"item": range(FILES * ROWS), "price": [1.0] * (FILES * ROWS)})
    written = inlay.write_dataset(prices, path, max_rows_per_file=ROWS)
    print(f"{written.row_count:,} rows in {len(written.files)} files written on {master}")

    # The source is a table on the driver. inlay sends its rows to the tasks that need them.
    result = inlay.merge(pa.table({"item": [5, 10**6], "price": [9.5, 2.0]}), path, "upsert", ["item"])
    kept = len(result.preserved_files)
    print(f"from the driver: {result.updated} updated, {result.inserted} inserted, {kept} files untouched")

    # The source is a Spark DataFrame. The rows of a large DataFrame never come to the driver. Spark has one session
    # per process, which inlay started above. If you start a session first, inlay uses yours.
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    changes = spark.range(0, FILES * ROWS, 1000).selectExpr("id AS item", "CAST(id AS DOUBLE) AS price")
    result = inlay.merge(changes, path, "upsert", ["item"])
    touched = len(result.rewritten_files)
    print(f"from a DataFrame: {result.updated} updated in {touched} files, {result.target_count_after:,} rows")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", default="local[2]", help="the Spark master (default: two threads on this machine)")
    parser.add_argument("folder", nargs="?", default=None)
    arguments = parser.parse_args()
    main(arguments.master, arguments.folder or tempfile.mkdtemp(prefix="inlay-example-"))
