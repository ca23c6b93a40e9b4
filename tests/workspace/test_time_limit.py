"""The time limit of Spark calls that a request waits for."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from inlay.errors import SparkUnavailableError
from inlay.workspace.services import time_limit
from tests.spark import cluster

pytestmark = pytest.mark.spark


def sleep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(60)
    yield from batches


def test_a_spark_job_that_takes_too_long_is_canceled() -> None:
    spark = cluster.local_session()
    with pytest.raises(SparkUnavailableError, match="within 1 seconds"), time_limit(spark, 1.0):
        spark.range(1).mapInArrow(sleep, "id long").collect()
    with time_limit(spark, 60.0):
        assert spark.range(3).count() == 3


def test_other_errors_of_the_block_stay() -> None:
    with pytest.raises(ZeroDivisionError), time_limit(cluster.local_session(), 60.0):
        raise ZeroDivisionError
