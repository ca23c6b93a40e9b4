"""The time limit of Spark calls that a request waits for."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from inlay.errors import SparkUnavailableError
from inlay.workspace import services
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


def test_versions_of_a_spark_that_does_not_answer_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status page, which asks for the versions again and again, starts one call."""
    calls, hang = [], threading.Event()

    def current_session() -> None:
        calls.append(None)
        hang.wait(60)

    monkeypatch.setattr(services, "current_session", current_session)
    monkeypatch.setattr(services, "_VERSIONS_SECONDS", 0.05)
    spark = services.Spark("sc://127.0.0.1:1")
    monkeypatch.setattr(spark, "state", lambda: "ready")
    try:
        assert [spark.versions() for _ in range(3)] == [{}, {}, {}]
        assert len(calls) == 1
    finally:
        hang.set()


MUTE = """
from inlay.engines.spark import session
from inlay.errors import SparkUnavailableError
session._CONNECT_SECONDS = 1.0
try:
    session.get_session("{url}/;token=secret")
except SparkUnavailableError as error:
    print(error.message)
"""


def test_a_connect_server_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts connections, but never answers
        url = f"sc://127.0.0.1:{mute.getsockname()[1]}"
        program = [sys.executable, "-c", MUTE.format(url=url)]
        done = subprocess.run(program, check=True, capture_output=True, text=True, env=cluster.spark_environment())
    assert done.stdout == f"The Spark server {url} did not answer within 1 seconds.\n"
