"""Fixtures: the Spark session of this process, and converters of test files."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.parquet.writer import WriterSettings
from inlay.pipeline import Conversion, InlineFile, RawFile, ReadOptions, convert, read_rejects
from inlay.pipeline.conversion import Totals
from inlay.storage import Location, locate
from tests.spark import cluster

FOLDER = Path(__file__).parent
SETTINGS = WriterSettings.managed()


def pytest_configure(config: pytest.Config) -> None:
    # pyspark warns at every conversion, and this project cannot change that.
    config.addinivalue_line("filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.hookimpl(tryfirst=True)  # before -m selects tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Any:
    return cluster.local_session()


@dataclass
class Converter:
    """Converts each file into a new directory, and reads the resulting tables and rejects."""

    spark: Any
    into: Location
    numbers: Any = field(default_factory=itertools.count)

    def upload(self, content: bytes, encoding: str | None = None) -> RawFile:
        path = f"raw-{next(self.numbers)}"
        with self.into.store.open_write(self.into.full(path)) as file:
            file.write(content)
        return RawFile(self.into, path, len(content), encoding)

    def convert(
        self, content: bytes | RawFile, kind: str = "csv", options: dict[str, Any] | None = None, **more: Any
    ) -> Conversion:
        raw = content if isinstance(content, RawFile) else InlineFile(content)
        directory = f"out-{next(self.numbers)}"
        return convert(
            self.spark,
            raw,
            ReadOptions.of(kind, options or {}),
            **{
                "into": self.into,
                "directory": directory,
                "rejects_directory": f"{directory}/rejects",
                "settings": SETTINGS,
                **more,
            },
        )

    def table(self, conversion: Conversion) -> pa.Table:
        tables = []
        for file in conversion.files:
            with self.into.store.open_arrow(self.into.full(file.path)) as source:
                tables.append(pq.read_table(source))
        return pa.concat_tables(tables)

    def rejects(self, conversion: Conversion, offset: int = 0, limit: int = 10_000) -> list[dict[str, Any]]:
        return read_rejects(self.into, conversion.reject_files, offset, limit)

    def everything(self) -> list[str]:
        return [status.path for status in self.into.store.walk(self.into.path, lambda _: True)]


@pytest.fixture
def converter(spark: Any, tmp_path: Path) -> Converter:
    return Converter(spark, locate(str(tmp_path)))


def run_in_process(_: Any, what: str, kernel: Callable[[Any], Any], tasks: Sequence[Any], progress: Any = None) -> Any:
    """Run the tasks of a job in this process, with pickled tasks and results as in Spark."""
    kernel, tasks = pickle.loads(pickle.dumps((kernel, tasks)))
    results = [pickle.loads(pickle.dumps(kernel(task))) for task in tasks]
    counted = [getattr(result, "rows", 0) for result in results]
    return results, Totals(what, sum(rows for rows in counted if isinstance(rows, int)), 0)


@pytest.fixture(scope="module")
def run_jobs_in_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inlay.pipeline.conversion.run", run_in_process)
        patch.setattr("inlay.pipeline.previews.run", run_in_process)
        yield


@pytest.fixture
def local_converter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Converter:
    """Return a converter that runs jobs in this process, without Spark."""
    monkeypatch.setattr("inlay.pipeline.conversion.run", run_in_process)
    monkeypatch.setattr("inlay.pipeline.previews.run", run_in_process)
    return Converter(None, locate(str(tmp_path)))


Convert = Callable[..., Conversion]
