"""Hypothesis profiles, engines, long tests and fixtures that all test files share."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from inlay.engines import get_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.spark.cluster import Cluster

# Every engine of the test suite, with the marks of its tests.
ENGINES: dict[str, tuple[pytest.MarkDecorator, ...]] = {
    "pyarrow": (),
    "duckdb": (),
    "duckdb-union": (),  # without MERGE, as with a DuckDB older than 1.4
    "spark": (pytest.mark.spark,),
}

# Arrow data is slow to build on a busy machine, so slow examples are no failure.
_SHARED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("quick", max_examples=10, **_SHARED)
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
    _chosen_engines(config)  # so that an unknown name fails before the collection


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        names = _chosen_engines(metafunc.config)
        metafunc.parametrize("engine", [pytest.param(n, marks=ENGINES[n]) for n in names], indirect=True)


def pytest_collection_finish() -> None:
    """Freeze all tests and modules, so that the garbage collector does not traverse them."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Run one browser for all tests of a process.

    Its driver keeps an event loop running in the main thread.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        assert path, "Debian's chromium is missing; `make setup-test` installs it"
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def replace_sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[float], object]], None]:
    """Replace `time.sleep` in the test's own thread; threads of a Spark session keep sleeping."""
    test, sleep = threading.get_ident(), time.sleep

    def replace(replacement: Callable[[float], object]) -> None:
        def chosen(seconds: float) -> None:
            (replacement if threading.get_ident() == test else sleep)(seconds)

        monkeypatch.setattr(time, "sleep", chosen)

    return replace


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    """Return fsspec's in-memory object store, which is empty before and after a test."""
    filesystem = MemoryFileSystem()
    filesystem.rm("/", recursive=True)
    yield filesystem
    filesystem.rm("/", recursive=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Any:
    """Return an engine, as a name or an object. A test with this fixture runs once per engine."""
    name: str = request.param
    if name == "duckdb-union":
        return get_engine("duckdb", use_merge=False)
    if name == "spark":
        from tests.spark import cluster

        cluster.local_session()  # with the settings of the tests; the engine would start a session without them
    return name


@pytest.fixture(scope="session")
def standalone() -> Iterator[Cluster]:
    """Run a standalone cluster, shared by all tests that do not damage it."""
    from tests.spark import cluster

    with cluster.standalone_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def connect() -> str:
    """Return the URL of a Connect server, shared by all tests that do not damage it."""
    from tests.spark import cluster

    return cluster.local_connect_url()


# One worker runs all tests of these folders, which share a browser or a service.
_SHARED_FOLDERS = ("tests/web", "tests/server")
# The tests of these files start services of their own, and mostly wait for them. Any worker can run them.
_OWN_SERVICES = tuple(
    f"tests/server/test_{name}.py"
    for name in ("outages", "processes", "process", "attack_files", "full_disk", "documentation")
)
# These start first, because they take long or wait for other processes: none of them should run alone at the end.
_STARTED_FIRST = (
    *_SHARED_FOLDERS,
    *_OWN_SERVICES,
    "tests/faults/test_service_kills.py",
    "tests/faults/test_power_cut.py",
    "tests/faults/test_merge_crash.py",
    "tests/spark/test_engine_cluster.py",
)
# In a long run, the tests of these files take minutes each, so all workers share them.
_SPLIT_FILES = ("tests/faults/test_merge_crash.py",)


def _unit(nodeid: str) -> str:
    """Return the shared folder of a test, or its file."""
    file = nodeid.partition("::")[0]
    shared = (folder for folder in _SHARED_FOLDERS if file.startswith(f"{folder}/") and file not in _OWN_SERVICES)
    return next(shared, file)


def _group(nodeid: str) -> str:
    """Return the group of a test. One worker runs all tests of a group."""
    unit = _unit(nodeid)
    return nodeid if unit in _SPLIT_FILES and _is_long_run() else unit


def _is_long_run() -> bool:
    return os.environ.get("INLAY_TEST_LONG") == "1"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, let one worker run a whole group of tests: a file or a folder."""
    from tests.scheduling import GroupScheduling

    return GroupScheduling(config, log, _group) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect long tests, and start with the longest groups.

    Long tests are not skipped: a skip in the report always means that something is missing.
    """
    if not _is_long_run():
        long = [item for item in items if _is_long(item)]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not _is_long(item)]
    on_spark = {item.path for item in items if item.get_closest_marker("spark")}
    order = {name: number for number, name in enumerate(_STARTED_FIRST)}
    items.sort(key=lambda item: (order.get(_unit(item.nodeid), len(order)), item.path not in on_spark))


def _is_long(item: pytest.Item) -> bool:
    return (
        item.get_closest_marker("long") is not None
        or (_runs_on_servers(item) and item.get_closest_marker("on_servers") is None)
        or any(_engine(item) in mark.args for mark in item.iter_markers("long_on"))
        or _repeats_another_engine(item)
    )


# Without MERGE, the DuckDB engine only finds keys in another way, so short runs try it with the meaning of merges.
_WITHOUT_MERGE = (
    "tests/requirements/",
    "tests/incremental/test_merge_semantics.py",
    "tests/incremental/test_merge_properties.py",
)


def _repeats_another_engine(item: pytest.Item) -> bool:
    """Return whether a test covers code that short runs cover on another engine.

    Tasks of Spark run the kernels of the pyarrow engine, on which short runs merge the files of other tools.
    """
    if _engine(item) == "duckdb-union":
        return not item.nodeid.startswith(_WITHOUT_MERGE)
    return _engine(item) == "spark" and item.nodeid.startswith("tests/edges/")


def _engine(item: pytest.Item) -> object:
    return item.callspec.params.get("engine") if hasattr(item, "callspec") else None


def _runs_on_servers(item: pytest.Item) -> bool:
    """Return whether a test of the service or of its workspace runs on PostgreSQL and S3.

    Short runs try every catalog operation on PostgreSQL in tests/catalog and every storage operation on S3 in
    tests/test_object_stores.py. So one test per kind of request is enough to show that a service uses both.
    """
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "postgresql-s3" in [value for value in parameters if isinstance(value, str)]
