"""The Spark session of the tests. All tests in this folder get the mark `spark`."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.spark import cluster

FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    # pyspark emits this warning for every conversion.
    config.addinivalue_line("filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.hookimpl(tryfirst=True)  # before pytest evaluates -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and (logs := cluster.logs_of_running()):
        report.sections.append(("Spark's processes", logs))
    return report


@pytest.fixture(scope="session")
def spark() -> Any:
    """Return the `local[2]` session of this process, which all fixtures share."""
    return cluster.local_session()


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a Python with every installed package except inlay, as on an executor."""
    return cluster.python_without_inlay(tmp_path_factory.mktemp("python"))
