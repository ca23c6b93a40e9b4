"""Requests to an S3 store that accepts connections, but never answers."""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from inlay.storage import Location, locate

ENOUGH_SECONDS = 15.0  # more than the requests need on a busy machine
LARGE = bytes(20 << 20)  # more than the buffers of a connection hold


@pytest.fixture(scope="module")
def mute() -> Iterator[Location]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        options = {
            "timeout_seconds": 1.0,
            "key": "key",
            "secret": "secret",
            "endpoint_url": f"http://127.0.0.1:{server.getsockname()[1]}",
        }
        yield locate("s3://bucket/data", storage_options=options)


REQUESTS: dict[str, Callable[[Location], object]] = {
    "list": lambda data: data.store.walk(data.path, lambda _: True),
    "stat": lambda data: data.store.stat(data.full("a")),
    "read": lambda data: data.store.read_bytes(data.full("a")),
    "create": lambda data: data.store.create(data.full("a"), b"1"),
    "send a large body": lambda data: data.store.create(data.full("a"), LARGE),
    "remove": lambda data: data.store.remove(data.full("a")),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_without_an_answer_ends_in_time(mute: Location, name: str) -> None:
    started = time.monotonic()
    with pytest.raises(OSError, match="did not answer within 1 seconds"):
        REQUESTS[name](mute)
    assert time.monotonic() - started < ENOUGH_SECONDS


def test_tasks_of_spark_get_the_time_limit(mute: Location) -> None:
    copy = pickle.loads(pickle.dumps(mute))
    assert copy.store.filesystem.storage_options["timeout_seconds"] == 1.0
    with pytest.raises(OSError, match="did not answer within 1 seconds"):
        copy.store.stat(copy.full("a"))
