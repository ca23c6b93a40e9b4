"""Fixtures of a running service. Tests that use `api` get the mark `spark`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres import postgres  # noqa: F401  (a fixture)
from tests.s3 import s3  # noqa: F401  (a fixture)
from tests.service import api, plain_api  # noqa: F401  (fixtures)

FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    # pyspark warns at every conversion, and this project cannot change that.
    config.addinivalue_line("filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.hookimpl(tryfirst=True)  # before -m selects tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents and "api" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
