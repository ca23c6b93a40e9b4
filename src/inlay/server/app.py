"""The application: routes, errors and limits around one workspace. Other pages may be mounted on it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request, Response
from starlette.routing import compile_path

from inlay.errors import MethodNotAllowedError, NotFoundError
from inlay.server import models
from inlay.server.dependencies import known_parameters
from inlay.server.middleware import Limited, Observed
from inlay.server.problems import handle_errors, response_of
from inlay.server.routes import about, datasets, files, jobs, query, session
from inlay.server.service import Service

if TYPE_CHECKING:
    from inlay.workspace import Workspace

__all__ = ["create_app"]

_ROUTERS = (files.router, datasets.router, query.router, jobs.router, session.router)
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
_DESCRIPTION = """Upload a file, make it a dataset, ask SQL, load tomorrow's file by key, go back if it was wrong.

Errors are [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problems; their codes are explained at `/docs/errors`.
Lists take `limit` and `offset`. Everything that takes time is a job: calls wait for it, or get it with
`Prefer: respond-async`."""


def create_app(workspace: Workspace | Callable[[], Workspace]) -> FastAPI:
    """The service over a workspace, which it opens when it starts and closes when it ends.

    A function that makes the workspace is called then, off the event loop, so that its imports make nobody wait.
    """
    service = Service(workspace if callable(workspace) else lambda: workspace)
    app = FastAPI(
        title="inlay",
        version=_version(),
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
        app.include_router(router, dependencies=[Depends(known_parameters)])
    app.include_router(about.router)
    app.add_api_route("/v1/{path:path}", _nothing_here, methods=_METHODS, include_in_schema=False)
    handle_errors(app)
    app.add_middleware(Limited)
    app.add_middleware(Observed, metrics=service.metrics)
    app.openapi = _described(app, app.openapi)  # type: ignore[method-assign]
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.start()
    try:
        yield
    finally:
        await service.stop()


def _version() -> str:
    from inlay import __version__

    return __version__


async def _nothing_here(request: Request) -> Response:
    """Whatever no other route under /v1 takes: also with a page mounted at `/` this is a problem document."""
    path = request.url.path
    allowed = sorted(
        method.upper()
        for template, operations in request.app.openapi()["paths"].items()
        if compile_path(template)[0].fullmatch(path)
        for method in operations
    )
    if not allowed:
        return response_of(NotFoundError(f"There is nothing at {path[:200]!r}.", hint="See /docs."))
    taken = ", ".join(allowed)
    error = MethodNotAllowedError(f"{request.method} {path[:200]} is not possible.", hint=f"It takes {taken}.")
    return response_of(error, {"Allow": taken})


def _described(app: FastAPI, describe: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The OpenAPI document with our problems instead of FastAPI's own."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = describe()
            schemas = document["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            schemas["Problem"] = models.Problem.model_json_schema()
            for operation in (o for path in document["paths"].values() for o in path.values()):
                _without_theirs(operation["responses"])
        return dict(app.openapi_schema or describe())

    return openapi


def _without_theirs(responses: dict[str, Any]) -> None:
    """FastAPI adds a 422 of its own to whatever takes parameters; ours are 400."""
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]
