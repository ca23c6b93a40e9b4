"""The Spark session of the test process."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def parquet_spark() -> Any:
    from tests.spark import cluster

    return cluster.local_session()
