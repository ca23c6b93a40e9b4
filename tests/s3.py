"""A real S3 protocol server on loopback, one per session, for tests that keep files in an object store."""

from __future__ import annotations

import http.client
import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from moto.server import ThreadedMotoServer


@dataclass(frozen=True)
class S3Server:
    host: str
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def bucket(self) -> str:
        """A new bucket, by its URL."""
        name = f"b-{uuid.uuid4().hex}"
        connection = http.client.HTTPConnection(self.host, self.port)
        connection.request("PUT", f"/{name}")
        assert connection.getresponse().status == 200
        connection.close()
        return f"s3://{name}"

    def environment(self) -> dict[str, str]:
        """What a program needs to find the server and nothing else."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """The server; the environment names it for as long as the session lasts."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
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
