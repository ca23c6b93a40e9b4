"""An archive of Spark's classes, which halves the CPU time to start a JVM.

`make setup-test` runs this. A JVM that the archive does not fit ignores it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"

# The work of a typical job. The JVM writes the archive when it ends.
_WORK = """
from inlay.engines.spark.session import get_session
spark = get_session("local[2]")
numbers = spark.range(10).mapInArrow(lambda batches: batches, "id long")
numbers.write.parquet("numbers")
assert spark.read.parquet("numbers").groupBy("id").count().toArrow().num_rows == 10
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()
print(java.wait())
"""


def java_options() -> str:
    """Return the Java options to use the archive, or none if it does not exist."""
    return f'"-XX:SharedArchiveFile={ARCHIVE}" -Xlog:cds*=off' if ARCHIVE.exists() else ""


def make() -> None:
    from tests.spark import cluster

    unfinished = ARCHIVE.with_suffix(".unfinished")
    options = f'{cluster.C1} "-XX:ArchiveClassesAtExit={unfinished}" -Xlog:cds*=off'
    conf = cluster.DRIVER_CONF | {"spark.driver.extraJavaOptions": options}
    with tempfile.TemporaryDirectory() as folder:
        code = cluster.run_driver(_WORK, folder=Path(folder), INLAY_SPARK_CONF=json.dumps(conf))
    assert code == 0, f"Java ended with {code}"
    unfinished.replace(ARCHIVE)


if __name__ == "__main__":
    make()
