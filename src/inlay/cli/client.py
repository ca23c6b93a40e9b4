"""The HTTP client of the service, and the choice of the service that a command uses.

A command uses the service that flags or the environment name, else the service that runs on this machine, else a
private service that lives as long as the command.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO
from urllib.parse import urlsplit

import typer

from inlay.errors import (
    ConflictError,
    EngineNotInstalledError,
    InlayError,
    InvalidArgumentError,
    JobCancelledError,
    NotFoundError,
    RequestError,
    ServiceUnreachableError,
    StorageUnavailableError,
    error_from_dict,
)
from inlay.settings import is_loopback

if TYPE_CHECKING:
    import httpx
    import uvicorn

    from inlay.settings import Settings
    from inlay.workspace import Workspace

__all__ = [
    "ApiKey",
    "Client",
    "DataDir",
    "Service",
    "Step",
    "Url",
    "is_service",
    "require_data_dir",
    "required_packages",
    "silent_children",
    "url_of",
]


Step = Callable[[str, int, int | None], object]  # phase, amount done, total amount

_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_PROBE_SECONDS = 2.0
_BLOCK = 1 << 20
_MAX_PAGE = 1000
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.05, 0.5
_ENDED = ("succeeded", "failed", "cancelled")


@contextlib.contextmanager
def required_packages() -> Iterator[None]:
    """Turn an ImportError inside the block into a hint to install the server extra."""
    try:
        yield
    except ImportError as error:
        if isinstance(error, InlayError):
            raise
        raise EngineNotInstalledError(
            f"This command requires the package {error.name or error}.", hint="Run: pip install 'inlay[server]'"
        ) from error


class Client:
    """An HTTP client of one service. It raises a problem document as the error that caused it."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        with required_packages():
            import httpx
        self.url = _checked_url(url)
        self._http = httpx.Client(
            base_url=self.url,
            headers={"User-Agent": "inlay", **_authorization(api_key)},
            timeout=httpx.Timeout(_SECONDS, connect=_CONNECT_SECONDS),
            trust_env=not _is_local(self.url),  # a proxy cannot reach loopback addresses
        )

    def close(self) -> None:
        self._http.close()

    # ------------------------------------------------------------------------------------------------------- requests
    def get(self, path: str, **query: Any) -> Any:
        return self._send("GET", path, params=query).json()

    def post(self, path: str, body: Any, **headers: str) -> Any:
        return self._send("POST", path, json=body, headers=headers).json()

    def delete(self, path: str) -> None:
        self._send("DELETE", path)

    def pages(self, path: str, items: str, limit: int = 0, **query: Any) -> dict[str, Any]:
        """Return the first `limit` items of a list as one page; 0 returns all."""
        found: list[Any] = []
        while True:
            size = min(_MAX_PAGE, limit - len(found)) if limit else _MAX_PAGE
            page = self.get(path, limit=size, offset=len(found), **query)
            found += page[items]
            if not page["has_more"] or len(found) == limit:
                return dict(page) | {items: found, "limit": limit or len(found), "offset": 0}

    @contextlib.contextmanager
    def stream(self, method: str, path: str, media_type: str, **arguments: Any) -> Iterator[httpx.Response]:
        """Yield the streamed response of a query or a diff. The service, not the client, limits its run time."""
        with _reachable(self.url):
            headers = {"Accept": media_type}
            request = self._http.build_request(method, path, headers=headers, timeout=_no_read_timeout(), **arguments)
            response = self._http.send(request, stream=True)
            try:
                if response.is_error:
                    response.read()
                yield _require_success(response)
            finally:
                response.close()

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        with _reachable(self.url):
            return _require_success(self._http.request(method, path, **arguments))

    # -------------------------------------------------------------------------------------------------------- uploads
    def upload(
        self, file: BinaryIO, size: int | None, content_type: str | None, content_encoding: str | None, step: Step
    ) -> Any:
        """Stream a file to the service."""
        headers = {
            "Content-Type": content_type,
            "Content-Encoding": content_encoding,
            "Content-Length": None if size is None else str(size),
        }
        return self._send(
            "POST",
            "/v1/files",
            content=_blocks(file, size, step),
            headers={name: value for name, value in headers.items() if value is not None},
            timeout=_no_read_timeout(),
        ).json()

    def discard_upload(self, upload_id: str) -> None:
        """Delete an upload unless a job has already consumed it."""
        with contextlib.suppress(InlayError):
            self.delete(f"/v1/files/{upload_id}")

    # ----------------------------------------------------------------------------------------------------------- jobs
    def run(self, path: str, body: Mapping[str, Any], step: Step) -> Any:
        """Run a job and return the response of a synchronous call.

        An interrupt cancels the job unless it has already succeeded.
        """
        key = {"Idempotency-Key": secrets.token_hex(16)}

        def start() -> Any:
            # The idempotency key makes a second call return the same job.
            return self.post(path, body, Prefer="respond-async", **key)

        try:
            job = self._wait(start(), step)
        except KeyboardInterrupt:
            job = self._cancel(start(), step)
            if job["state"] != "succeeded":
                raise
        if job["state"] != "succeeded":
            raise _error_of(job)
        return self.post(path, body, **key)

    def _cancel(self, job: Any, step: Step) -> Any:
        with contextlib.suppress(ConflictError):  # the job has already ended
            self.delete(f"/v1/jobs/{job['id']}")
        return self._wait(job, step)

    def _wait(self, job: Any, step: Step) -> Any:
        pause = _FIRST_POLL_SECONDS
        while job["state"] not in _ENDED:
            progress = job["progress"] or {"phase": job["state"], "done": 0, "total": None}
            step(progress["phase"], progress["done"], progress["total"])
            time.sleep(pause)
            pause = min(pause * 1.5, _LAST_POLL_SECONDS)
            job = self.get(f"/v1/jobs/{job['id']}")
        return job


def is_service(url: str) -> bool:
    """Return True if an inlay service responds at the address."""
    with required_packages():
        import httpx
    try:
        response = httpx.get(f"{url}/healthz", timeout=_PROBE_SECONDS, trust_env=not _is_local(url))
        return response.is_success and response.json() == {"status": "ok"}
    except (httpx.HTTPError, ValueError):
        return False


# ----------------------------------------------------------------------------------------------------------- requests
def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise InvalidArgumentError(
            f"Invalid address of a service: {url!r}.", hint="Pass an address such as http://127.0.0.1:8000."
        )
    return url.rstrip("/")


def _without_secrets(url: str) -> str:
    """Remove the user name and password from a URL."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _is_local(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def _authorization(api_key: str | None) -> dict[str, str]:
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise InvalidArgumentError("The API key contains spaces or non-ASCII characters.", hint="Check INLAY_API_KEY.")
    return {"Authorization": f"Bearer {api_key}"}


def _no_read_timeout() -> Any:
    import httpx

    return httpx.Timeout(_SECONDS, connect=_CONNECT_SECONDS, read=None)


def _blocks(file: BinaryIO, size: int | None, step: Step) -> Iterator[bytes]:
    """Yield the file in blocks, and no more bytes than the size that the request declares."""
    sent = 0
    while block := file.read(_BLOCK if size is None else min(_BLOCK, size - sent)):
        yield block
        sent += len(block)
        step("upload", sent, size)


# ------------------------------------------------------------------------------------------------------------- errors
@contextlib.contextmanager
def _reachable(url: str) -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.LocalProtocolError as error:
        raise InvalidArgumentError("The file became shorter during the upload.", hint="Try again.") from error
    except httpx.TransportError as error:
        raise ServiceUnreachableError(
            f"The service at {_without_secrets(url)} does not respond: {str(error) or type(error).__name__}.",
            hint="Check --url and INLAY_URL. With --data-dir instead, the command needs no running service.",
        ) from error


def _require_success(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    raise _error_from(_problem(response), response.status_code)


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    with contextlib.suppress(ValueError):
        document = response.json()
        if isinstance(document, dict) and "code" in document:
            return document
    return {
        "code": "",
        "detail": f"{response.request.url} responded with {response.status_code} {response.reason_phrase}".rstrip()
        + ".",
        "hint": "Check that --url or INLAY_URL is the address of an inlay service.",
    }


_DOCUMENT = ("type", "title", "status", "detail")  # fields of RFC 9457; the others belong to the error
_BY_STATUS: dict[int, type[InlayError]] = {404: NotFoundError, 409: ConflictError}


def _error_from(problem: Mapping[str, Any], status: int) -> InlayError:
    """Rebuild the error of a problem document. The status decides the class of an unknown code."""
    fields = {name: value for name, value in problem.items() if name not in _DOCUMENT and value is not None}
    error = error_from_dict(fields | {"message": problem.get("detail", "")})
    if type(error) is InlayError and status < 500:
        kind = _BY_STATUS.get(status, RequestError)
        return kind(error.message, hint=error.hint)
    return error


def _error_of(job: Mapping[str, Any]) -> InlayError:
    if job["error"] is None:
        return JobCancelledError(f"Another client canceled the job {job['id']!r}. Nothing changed.")
    return _error_from(job["error"], int(job["error"]["status"]))


_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  (to connect, not to listen)


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


Url = Annotated[
    str | None,
    _option(
        "--url", "URL", "Address of the service [INLAY_URL, else the service on this machine, else a private service]."
    ),
]
ApiKey = Annotated[
    str | None, _option("--api-key", "KEY", "API key [INLAY_API_KEY]. Prefer the variable: other users can see flags.")
]
DataDir = Annotated[
    str | None,
    _option(
        "--data-dir",
        "PATH",
        "Work on this data directory without a running service [INLAY_DATA_DIR, else .inlay].",
    ),
]


@dataclass(frozen=True, slots=True)
class Service:
    """The service that flags and the environment select."""

    url: str | None = None
    api_key: str | None = None
    data_dir: str | None = None
    debug: bool = False

    @contextlib.contextmanager
    def connect(self, *, creates: bool = False) -> Iterator[Client]:
        """Yield a client. Only a command that creates a dataset creates a data directory."""
        if self.url and self.data_dir:
            raise InvalidArgumentError("--url and --data-dir cannot be combined.", hint="Pass only one of them.")
        url = self.url or (os.environ.get("INLAY_URL") if not self.data_dir else None)
        key = self.api_key or os.environ.get("INLAY_API_KEY")
        with self._at(url, key) if url else self._local(key, creates=creates) as client:
            yield client

    @contextlib.contextmanager
    def _at(self, url: str, key: str | None) -> Iterator[Client]:
        with contextlib.closing(Client(url, key)) as client:
            yield client

    @contextlib.contextmanager
    def _local(self, key: str | None, *, creates: bool) -> Iterator[Client]:
        from inlay.settings import Settings

        settings = Settings.load({"data_dir": self.data_dir})
        url = url_of(settings)
        if not self.data_dir and settings.port and is_service(url):
            own = settings.api_keys[0] if settings.api_keys and settings.is_loopback else None
            with self._at(url, key or own) as client:
                yield client
        else:
            require_data_dir(settings, creates=creates)
            with _quiet(self.debug), _private_service(settings) as client:
                yield client


def url_of(settings: Settings) -> str:
    """Return the address at which this machine reaches a service with these settings."""
    host = _WILDCARDS.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def require_data_dir(settings: Settings, *, creates: bool) -> None:
    path = settings.data_path
    if not creates and not settings.catalog_url and not path.exists():
        raise NotFoundError(
            f"No service responds at {url_of(settings)}, and the data directory '{path}' does not exist.",
            hint="Pass --url or --data-dir, or create a dataset with `inlay upload`.",
        )
    try:
        settings.create_data_dir()
    except OSError as error:
        raise StorageUnavailableError(
            f"Cannot use the data directory '{path}': {error.strerror}.",
            hint="Choose another directory with --data-dir.",
        ) from error


# ---------------------------------------------------------------------------------------------------- private service
@contextlib.contextmanager
def _private_service(settings: Settings) -> Iterator[Client]:
    with required_packages():
        from inlay.server import create_app, make_server

    secret = secrets.token_urlsafe(32)
    app = create_app(replace(settings, host="127.0.0.1", port=0, api_keys=(secret,)), _workspace)
    with socket.create_server(("127.0.0.1", 0)) as listener, _running(make_server(app), listener):
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", secret)
        with contextlib.closing(client):
            try:
                yield client
            except InlayError as error:
                raise _cause(error, app.state.service.failure) from error


@contextlib.contextmanager
def _running(server: uvicorn.Server, listener: socket.socket) -> Iterator[None]:
    """Run the server in a thread. After the block, stop it and everything that it started."""
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, name="inlay-private-service", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def _cause(error: InlayError, failure: BaseException | None) -> BaseException:
    """Return the failure of a private service, because the user cannot read its log."""
    if failure is not None:
        return failure
    return (
        InlayError(error.message, hint="Run the command again with --debug to see the log.")
        if type(error) is InlayError
        else error
    )


def _workspace(settings: Settings) -> Workspace:
    from inlay.workspace import Workspace

    class LazyWorkspace(Workspace):
        """A workspace that starts Spark and query workers on first use; most commands need neither."""

        def open(self, *, warm: bool = False) -> Workspace:
            return super().open(warm=warm)

    return LazyWorkspace(settings)


@contextlib.contextmanager
def _quiet(debug: bool) -> Iterator[None]:
    """Hide logs and the output of Spark's processes unless `--debug` is set."""
    if debug:
        from inlay.server import middleware

        middleware.set_up_logging()
        yield
        return
    silence = logging.NullHandler()
    logging.getLogger().addHandler(silence)
    try:
        with silent_children():
            yield
    finally:
        logging.getLogger().removeHandler(silence)


@contextlib.contextmanager
def silent_children() -> Iterator[None]:
    """Redirect the stderr of child processes to /dev/null, and keep the stderr of this process."""
    original = sys.stderr
    original.flush()
    with open(os.dup(2), "w", encoding=original.encoding, errors=original.errors, buffering=1) as own:
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), 2)
        sys.stderr = own
        try:
            yield
        finally:
            sys.stderr = original
            own.flush()
            os.dup2(own.fileno(), 2)
