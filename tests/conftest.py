"""Profiles, engines and the long tests: what every test file shares."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from inlay.engines import get_engine

if TYPE_CHECKING:
    from tests.spark.cluster import Cluster, ConnectServer

# Every engine that the suite knows, with the marks of its tests.
ENGINES: dict[str, tuple[pytest.MarkDecorator, ...]] = {
    "pyarrow": (),
    "duckdb": (),
    "duckdb-union": (),  # without MERGE, as with a DuckDB older than 1.4
    "spark": (pytest.mark.spark,),
}

# Examples of Arrow data are slow to build under load: no deadline, and slowness is no failure.
_SHARED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("quick", max_examples=25, **_SHARED)
hypothesis.settings.register_profile("thorough", max_examples=200, **_SHARED)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engines",
        default=",".join(ENGINES),
        help=f"engines to run the shared suites on, comma-separated (default: {','.join(ENGINES)})",
    )


def _chosen_engines(config: pytest.Config) -> list[str]:
    names = [name.strip() for name in config.getoption("--engines").split(",") if name.strip()]
    if unknown := sorted(set(names) - ENGINES.keys()):
        raise pytest.UsageError(f"--engines: unknown {', '.join(unknown)}; known: {', '.join(ENGINES)}")
    return names


def pytest_configure(config: pytest.Config) -> None:
    _chosen_engines(config)  # a wrong name fails before anything is collected


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        names = _chosen_engines(metafunc.config)
        metafunc.parametrize("engine", [pytest.param(n, marks=ENGINES[n]) for n in names], indirect=True)


def pytest_collection_finish() -> None:
    """Thousands of tests and their modules stay to the end: no collection of garbage need walk them."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    """The object store of fsspec that lives in this process, with nothing in it before and after."""
    filesystem = MemoryFileSystem()
    filesystem.rm("/", recursive=True)
    yield filesystem
    filesystem.rm("/", recursive=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Any:
    """An engine, by name or as an object; a test that asks for it runs once on each."""
    name: str = request.param
    if name == "duckdb-union":
        return get_engine("duckdb", use_merge=False)
    if name == "spark":
        from tests.spark import cluster

        cluster.local_session()  # with the settings of the tests, before the engine starts one without
    return name


@pytest.fixture(scope="session")
def standalone() -> Iterator[Cluster]:
    """A standalone cluster for all tests that do it no harm."""
    from tests.spark import cluster

    with cluster.standalone_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def connect() -> Iterator[ConnectServer]:
    """A Connect server for all tests that do it no harm."""
    from tests.spark import cluster

    with cluster.connect_server() as server:
        yield server


# Files that wait for processes more than they compute: begun first, so that they do not run alone at the end.
_BEGUN_FIRST = ("test_service_kills.py", "test_engine_cluster.py", "test_large_source_cluster.py", "test_cluster.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests are deselected, not skipped: a skip in the report always means something is missing."""
    items.sort(key=lambda item: item.path.name not in _BEGUN_FIRST)
    if os.environ.get("INLAY_TEST_LONG") == "1":
        return
    if long := [item for item in items if _is_long(item)]:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not _is_long(item)]


def _is_long(item: pytest.Item) -> bool:
    marks = {mark.name for mark in item.iter_markers()}
    return "long" in marks or {"long_on_spark", "spark"} <= marks
