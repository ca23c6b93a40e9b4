"""Fixtures of the edge cases."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark_session() -> Any:
    from tests.spark import cluster

    return cluster.local_session()
