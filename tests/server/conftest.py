"""The fixtures of a running service. Tests that ask for `api` need Spark, and carry its mark by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres import postgres  # noqa: F401  (a fixture)
from tests.s3 import s3  # noqa: F401  (a fixture)
from tests.service import api, plain_api  # noqa: F401  (fixtures)

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    # pyspark says this of every conversion; it is not about this project.
    config.addinivalue_line("filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "api" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
