"""Serve over HTTP until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any

from inlay.errors import InvalidArgumentError
from inlay.settings import Settings

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from inlay.workspace import Workspace

__all__ = ["serve", "server_for"]

log = logging.getLogger("inlay.server")
_SHUTDOWN_SECONDS = 20  # for requests to be answered; running jobs then have the workspace's own patience
_KEEP_ALIVE_SECONDS = 30
_HEADER_SECONDS = 15.0
_HEADER_BYTES = 64 << 10
_BACKLOG = 512


def serve(settings: Settings) -> None:
    """Run the service in this process; returns when it was asked to stop and everything has ended."""
    from inlay.server import logs
    from inlay.server.app import create_app
    from inlay.web import mount

    _require_keys(settings)
    logs.set_up()
    app = create_app(lambda: _workspace(settings))
    mount(app)
    with _bind(settings) as listener:
        log.info("listening on %s", _url(listener), extra={"facts": {"url": _url(listener)}})
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn tells it again when everything has ended
            server_for(app).run(sockets=[listener])
    if app.state.service.failure is not None:
        raise app.state.service.failure


def server_for(app: FastAPI) -> uvicorn.Server:
    """A server with our limits; it ends when its workspace cannot be opened."""
    import uvicorn

    config = uvicorn.Config(
        app,
        http=_impatient_protocol(),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        h11_max_incomplete_event_size=_HEADER_BYTES,
    )
    server = uvicorn.Server(config)

    def end() -> None:
        server.should_exit = True

    app.state.service.on_failure = end
    app.state.service.is_stopping = lambda: server.should_exit
    return server


def _workspace(settings: Settings) -> Workspace:
    from inlay.workspace import Workspace

    return Workspace(settings)


# ------------------------------------------------------------------------------------------------------------ listening
def _bind(settings: Settings) -> socket.socket:
    """Listen before the application is made; who comes early waits in the queue."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidArgumentError(
            f"Cannot listen on {settings.host} port {settings.port}: {error.strerror or error}.",
            hint="Another program may use the port; choose one with --port, or 0 for any.",
        ) from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _require_keys(settings: Settings) -> None:
    """Whoever can reach another address than loopback must prove that they may."""
    if settings.is_loopback or settings.api_keys:
        return
    from inlay.catalog import Catalog

    with contextlib.closing(Catalog(settings.catalog)) as catalog:
        catalog.migrate()
        if catalog.keys.exist():
            return
    raise InvalidArgumentError(
        f"The service would be open to everybody who can reach {settings.host!r}.",
        hint="Make an API key with `inlay keys create`, set INLAY_API_KEYS, or use --host 127.0.0.1.",
    )


def _impatient_protocol() -> Any:
    """HTTP/1.1 that does not wait for ever for a request's headers, as uvicorn's own does."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class ImpatientProtocol(H11Protocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            cycle: Any = self.cycle  # None before the first request
            is_busy = cycle is not None and not cycle.response_complete
            if is_busy or self.transport.get_protocol() is not self:  # another one took over: a web socket
                self._stop_waiting()
            else:
                self._wait_for_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait_for_headers(self) -> None:
            if self._patience is None:
                self._patience = self.loop.call_later(_HEADER_SECONDS, self.transport.close)

        def _stop_waiting(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

    return ImpatientProtocol
