"""An S3 server on loopback, one per session, for tests of object stores."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from moto.s3.utils import _VersionedKeyStore
from moto.server import ThreadedMotoServer


@dataclass(frozen=True)
class S3Server:
    host: str
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def bucket(self) -> str:
        """Create a bucket and return its URL."""
        name = f"b-{uuid.uuid4().hex}"
        connection = http.client.HTTPConnection(self.host, self.port)
        connection.request("PUT", f"/{name}")
        assert connection.getresponse().status == 200
        connection.close()
        return f"s3://{name}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make a program use this server only."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def _items(store: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a listing. Skip objects that another request deletes meanwhile."""
    for key in list(store):
        with contextlib.suppress(KeyError):
            yield key, store[key]


def start_server() -> ThreadedMotoServer:
    """Start a server whose listings work while other requests create and delete objects."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    _VersionedKeyStore.items = _items  # type: ignore[assignment]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    return server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """Run a server, which the environment names until the end of the session."""
    server = start_server()
    found = S3Server(*server.get_host_and_port())
    before = {name: os.environ.get(name) for name in found.environment()}
    os.environ.update(found.environment())
    yield found
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    server.stop()
