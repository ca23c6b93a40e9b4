"""The program of an HTTP process other than the main process, which starts it: `python -m inlay.server.process`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from inlay.server.app import bind_shared, create_app, make_server
from inlay.server.dependencies import Service
from inlay.server.forward import Forwarding, Tunnel
from inlay.server.middleware import set_up_logging
from inlay.server.protocol import LimitedProtocol
from inlay.server.routes.about import check_health
from inlay.settings import Settings
from inlay.web.mount import mount_files

if TYPE_CHECKING:
    from inlay.workspace import Workspace

_ANSWER_SECONDS = 1.2


class Control:
    """The connection to the main process."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=os.dup(sys.stdin.fileno()))
        self._sending = threading.Lock()  # several threads send messages, and messages must not mix
        self._lines = self._socket.makefile("rb")
        configuration = json.loads(self._lines.readline())
        values: dict[str, Any] = configuration["settings"]
        lists: Any = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        self.settings = Settings(**values | lists)
        self.address: str = configuration["address"]

    def warm(self) -> None:
        """Let the main process start Spark."""
        self._send({"warm": True})

    def answer(self, service: Service) -> None:
        """Answer the main process until it ends. Then end this process, because no other process replaces it."""
        try:
            for line in self._lines:
                state, metrics = _state(service), service.metrics.render({}).decode()
                self._send({"answer": json.loads(line)["ask"], "state": state, "metrics": metrics})
        finally:  # also if the main process ends while it sends a request, which resets the connection
            os._exit(1)

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._socket.sendall(json.dumps(message).encode() + b"\n")


def _state(service: Service) -> str:
    """Return `ready`, or why the process is not ready."""
    if service.loop is None:
        return "starting"
    try:
        parts = asyncio.run_coroutine_threadsafe(check_health(service), service.loop).result(_ANSWER_SECONDS)
    except Exception as error:  # noqa: BLE001  (such as the error that prevented the start)
        return type(error).__name__
    return next((f"{name}: {state}" for name, state in parts.items() if state != "ready"), "ready")


class _Protocol(LimitedProtocol):
    files_per_connection = 2  # its own, and one to the main process


def main() -> None:
    control = Control()
    settings = control.settings
    set_up_logging()

    def make_workspace(settings: Settings) -> Workspace:
        from inlay.workspace import Workspace

        return Workspace(settings, warm_spark=control.warm)

    app = create_app(settings, make_workspace)
    mount_files(app)
    app.add_middleware(Forwarding, address=control.address)
    lifespan: Any = app.router.lifespan_context
    app.router.lifespan_context = partial(_when_open, lifespan)
    server = make_server(app)
    server.config.http = _Protocol
    server.config.ws = partial(Tunnel, control.address)  # type: ignore[assignment]
    threading.Thread(target=control.answer, args=[app.state.service], name="inlay-control", daemon=True).start()
    with bind_shared(settings) as listener:
        server.run(sockets=[listener])


@contextlib.asynccontextmanager
async def _when_open(
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]], app: FastAPI
) -> AsyncIterator[None]:
    """Start to listen when the workspace is open. Until then, the other processes answer."""
    async with lifespan(app):
        await app.state.service.workspace()
        yield


if __name__ == "__main__":
    main()
