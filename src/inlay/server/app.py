"""The FastAPI application of the service, and the uvicorn server that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request, Response
from starlette.routing import compile_path

from inlay.errors import InvalidArgumentError, MethodNotAllowedError, NotFoundError
from inlay.server import auth, models
from inlay.server.dependencies import Service, reject_unexpected_parameters
from inlay.server.middleware import LimitsMiddleware, TelemetryMiddleware, set_up_logging
from inlay.server.problems import handle_errors, problem_response
from inlay.server.processes import Processes
from inlay.server.routes import about, datasets, files, jobs, query
from inlay.settings import Settings

if TYPE_CHECKING:
    import uvicorn

    from inlay.workspace import Workspace

__all__ = ["create_app", "make_server", "serve"]

log = logging.getLogger("inlay.server")
_ROUTERS = (query.router, files.router, datasets.router, jobs.router, auth.router)  # most frequent requests first
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
_DESCRIPTION = """Upload files, create datasets from them, query them with SQL, load new rows by key, restore versions.

Errors are [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problem documents. `/docs/errors` explains their codes.
Lists accept `limit` and `offset`. Creates, loads and restores run as jobs: the request waits for its job, or returns
it immediately with `Prefer: respond-async`."""

_SHUTDOWN_SECONDS = 20  # for open requests; running jobs then get the workspace's own timeout
_KEEP_ALIVE_SECONDS = 30
_BACKLOG = 512


# --------------------------------------------------------------------------------------------------------- application
def _create_workspace(settings: Settings) -> Workspace:
    from inlay.workspace import Workspace

    return Workspace(settings)


def create_app(settings: Settings, make_workspace: Callable[[Settings], Workspace] = _create_workspace) -> FastAPI:
    """Create the application of a workspace, which it opens at startup and closes at shutdown.

    The application creates the workspace in a thread at startup, so that its slow imports block no request.
    """
    from inlay import __version__

    service = Service(lambda: make_workspace(settings))
    app = FastAPI(
        title="inlay",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
        generate_unique_id_function=lambda route: route.name,
        separate_input_output_schemas=False,
    )
    app.state.service = service
    for router in _ROUTERS:
        app.include_router(router, dependencies=[Depends(reject_unexpected_parameters)])
    app.include_router(about.router)
    app.add_api_route("/v1/{path:path}", _unknown_route, methods=_METHODS, include_in_schema=False)
    handle_errors(app)
    app.add_middleware(LimitsMiddleware, max_inline_bytes=settings.max_inline_bytes)
    app.add_middleware(auth.AuthenticationMiddleware)
    app.add_middleware(TelemetryMiddleware, metrics=service.metrics)
    app.openapi = _with_problems(app, app.openapi)  # type: ignore[method-assign]
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.start()
    try:
        yield
    finally:
        await service.stop()


async def _unknown_route(request: Request) -> Response:
    """Answer 404 or 405 for unknown paths under /v1, which the page at `/` would otherwise serve."""
    path = request.url.path
    allowed = sorted(
        method.upper()
        for template, operations in request.app.openapi()["paths"].items()
        if compile_path(template)[0].fullmatch(path)
        for method in operations
    )
    if not allowed:
        return problem_response(NotFoundError(f"Nothing exists at {path[:200]!r}.", hint="See /docs for all paths."))
    methods = ", ".join(allowed)
    error = MethodNotAllowedError(f"{path[:200]} does not accept {request.method}.", hint=f"Use {methods}.")
    return problem_response(error, {"Allow": methods})


def _with_problems(app: FastAPI, openapi: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Replace FastAPI's validation errors with problem documents in the OpenAPI document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            created = openapi()
            schemas = created["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            schemas["Problem"] = models.Problem.model_json_schema()
            for operation in (o for path in created["paths"].values() for o in path.values()):
                if "HTTPValidationError" in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]
        return dict(app.openapi_schema or openapi())

    return document


# -------------------------------------------------------------------------------------------------------------- server
def serve(settings: Settings) -> None:
    """Run the service in this process until it receives a stop signal and all its work has ended."""
    from inlay.server.protocol import raise_file_limit
    from inlay.web import mount

    _require_api_keys(settings)
    set_up_logging()
    raise_file_limit()
    app = create_app(settings)
    mount(app)
    with bind(settings) as listener:
        log.info("listening on %s", _url(listener), extra={"facts": {"url": _url(listener)}})
        if settings.http_processes > 1:
            app.state.service.processes = Processes(replace(settings, port=listener.getsockname()[1]))
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after the shutdown
            make_server(app).run(sockets=[listener])
    if app.state.service.failure is not None:
        raise app.state.service.failure


def make_server(app: FastAPI) -> uvicorn.Server:
    """Create a server with the service's limits. It stops if the workspace fails to open."""
    import uvicorn

    from inlay.server.protocol import LimitedProtocol

    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    server = _server_class()(config)

    def stop() -> None:
        server.should_exit = True

    app.state.service.on_failure = stop
    app.state.service.is_stopping = lambda: server.should_exit
    return server


@cache
def _server_class() -> type[uvicorn.Server]:
    import uvicorn

    class Server(uvicorn.Server):
        """A server that also answers the requests that other HTTP processes forward, and stops them first."""

        @property
        def _processes(self) -> Processes | None:
            service: Service = self.config.app.state.service  # type: ignore[union-attr]
            return service.processes

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self._processes is not None:
                kind: Any = self.config.http_protocol_class
                create = partial(kind, self.config, self.server_state, self.lifespan.state)
                loop = asyncio.get_running_loop()
                forwarded = self._processes.forwarded
                self.servers.append(await loop.create_unix_server(create, sock=forwarded, backlog=_BACKLOG))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if self._processes is not None:
                self.servers[0].close()  # accept no connections, except from the other processes
                await self._processes.stop()
            await super().shutdown(sockets)

    return Server


def bind(settings: Settings) -> socket.socket:
    """Listen before the application exists; early connections wait in the backlog."""
    listener = _bind(settings.host, settings.port)
    if settings.http_processes > 1:
        # Every process listens on a socket of its own, and the kernel distributes the connections. The first socket
        # has proved that no other service uses the port, which sockets that share a port would not notice.
        port = listener.getsockname()[1]
        listener.close()
        listener = _bind(settings.host, port, is_shared=True)
    listener.listen(_BACKLOG)
    return listener


def bind_shared(settings: Settings) -> socket.socket:
    """Return a socket on the port of the main process, which does not listen yet."""
    return _bind(settings.host, settings.port, is_shared=True)


def _bind(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_shared)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InvalidArgumentError(
            f"Cannot listen on {host} port {port}: {error.strerror or error}.",
            hint="Choose another port with --port, or --port 0 for any free port.",
        ) from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _require_api_keys(settings: Settings) -> None:
    """Raise if the service would listen beyond loopback and no API key exists."""
    if settings.is_loopback or settings.api_keys:
        return
    from inlay.catalog import Catalog
    from inlay.workspace.health import require_answer

    with contextlib.closing(Catalog(settings.catalog)) as catalog:
        require_answer(catalog)
        catalog.migrate()
        if catalog.api_keys.exist():
            return
    raise InvalidArgumentError(
        f"Without an API key, the service would be open to everyone who can reach {settings.host!r}.",
        hint="Create an API key with `inlay keys create`, set INLAY_API_KEYS, or use --host 127.0.0.1.",
    )
