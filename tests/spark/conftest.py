"""The Spark session of the tests: one per process. Tests in this folder carry the mark `spark` by themselves."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.spark import cluster

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    # pyspark says this of every conversion; it is not about this project.
    config.addinivalue_line("filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and (logs := cluster.logs_of_running()):
        report.sections.append(("Spark's processes", logs))
    return report


@pytest.fixture(scope="session")
def spark() -> Any:
    """`local[2]` in this process; it ends with the process, so that other fixtures may share it."""
    return cluster.local_session()


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with every installed package except this one, as executors may have it."""
    return cluster.python_without_inlay(tmp_path_factory.mktemp("python"))
