"""Which service a command talks to: the one that is named, the one that runs here, or one of its own.

Without a service a private one is started in this process, on loopback, with a key that nobody else knows. So both
ways are the same requests, and a data directory needs no service to be used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli.client import Client, is_service, required_packages
from inlay.errors import InlayError, InvalidArgumentError, NotFoundError, StorageUnavailableError

if TYPE_CHECKING:
    import uvicorn

    from inlay.settings import Settings
    from inlay.workspace import Workspace

__all__ = ["ApiKey", "DataDir", "Service", "Url", "require_data_dir", "silent_children", "url_of"]

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  (where to look, not to listen)
_JAVA_OPTIONS = "JDK_JAVA_OPTIONS"  # put before all others, so that those of the user win


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


Url = Annotated[
    str | None, _option("--url", "URL", "The service [INLAY_URL, else the one that runs here, else none is needed].")
]
ApiKey = Annotated[str | None, _option("--api-key", "KEY", "Sent to the service; others see flags [INLAY_API_KEY].")]
DataDir = Annotated[
    str | None,
    _option(
        "--data-dir",
        "PATH",
        "Work on this data directory, whatever service runs. Where none does: INLAY_DATA_DIR, else .inlay.",
    ),
]


@dataclass(frozen=True, slots=True)
class Service:
    """The service as flags and the environment name it."""

    url: str | None = None
    api_key: str | None = None
    data_dir: str | None = None
    debug: bool = False

    @contextlib.contextmanager
    def connected(self, *, creates: bool = False) -> Iterator[Client]:
        """A client of it. Only a command that creates something makes a data directory."""
        if self.url and self.data_dir:
            raise InvalidArgumentError("--url and --data-dir exclude each other.", hint="Give one of them.")
        url = self.url or (os.environ.get("INLAY_URL") if not self.data_dir else None)
        key = self.api_key or os.environ.get("INLAY_API_KEY")
        with self._named(url, key) if url else self._found(key, creates=creates) as client:
            yield client

    @contextlib.contextmanager
    def _named(self, url: str, key: str | None) -> Iterator[Client]:
        with contextlib.closing(Client(url, key)) as client:
            yield client

    @contextlib.contextmanager
    def _found(self, key: str | None, *, creates: bool) -> Iterator[Client]:
        from inlay.settings import Settings

        settings = Settings.load({"data_dir": self.data_dir})
        url = url_of(settings)
        if not self.data_dir and settings.port and is_service(url):
            own = settings.api_keys[0] if settings.api_keys and settings.is_loopback else None
            with self._named(url, key or own) as client:
                yield client
        else:
            require_data_dir(settings, creates=creates)
            with _quiet(self.debug), _impatient_java(), _private_service(settings) as client:
                yield client


def url_of(settings: Settings) -> str:
    """Where a service with these settings would be reached from this machine."""
    host = _EVERYWHERE.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def require_data_dir(settings: Settings, *, creates: bool) -> None:
    path = settings.data_path
    if not creates and not settings.catalog_url and not path.exists():
        raise NotFoundError(
            f"There is no service at {url_of(settings)}, and no data directory at '{path}'.",
            hint="--url names a service, --data-dir a directory; `inlay upload` makes a new one.",
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageUnavailableError(
            f"The data directory '{path}' cannot be used: {error.strerror}.", hint="Choose another with --data-dir."
        ) from error


# ------------------------------------------------------------------------------------------------------------- private
@contextlib.contextmanager
def _private_service(settings: Settings) -> Iterator[Client]:
    with required_packages():
        from inlay.server import create_app
        from inlay.server.run import server_for

    secret = secrets.token_urlsafe(32)
    app = create_app(lambda: _workspace(replace(settings, host="127.0.0.1", port=0, api_keys=(secret,))))
    with socket.create_server(("127.0.0.1", 0)) as listener, _running(server_for(app), listener):
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", secret)
        with contextlib.closing(client):
            try:
                yield client
            except InlayError as error:
                raise _explained(error, app.state.service.failure) from error


@contextlib.contextmanager
def _running(server: uvicorn.Server, listener: socket.socket) -> Iterator[None]:
    """Requests that come before it listens wait; after the block everything that it started has ended."""
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, name="inlay-private-service", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def _explained(error: InlayError, failure: BaseException | None) -> BaseException:
    """What was behind it: nobody else has the log that its hint may speak of."""
    if failure is not None:
        return failure
    return InlayError(error.message, hint="--debug shows the log.") if type(error) is InlayError else error


def _workspace(settings: Settings) -> Workspace:
    from inlay.workspace import Workspace

    class Cold(Workspace):
        """Starts nothing before it is needed: most commands need neither Spark nor SQL."""

        def open(self, *, warm: bool = False) -> Workspace:
            return super().open(warm=warm)

    return Cold(settings)


@contextlib.contextmanager
def _impatient_java() -> Iterator[None]:
    """A Spark that lives for one command: what its compiler leaves undone halves the time of its start."""
    if _JAVA_OPTIONS in os.environ:
        yield
        return
    os.environ[_JAVA_OPTIONS] = "-XX:TieredStopAtLevel=1"
    try:
        yield
    finally:
        del os.environ[_JAVA_OPTIONS]


@contextlib.contextmanager
def _quiet(debug: bool) -> Iterator[None]:
    """Errors are told once, by the command; logs and what Spark's processes say are for those who look for a fault."""
    if debug:
        from inlay.server import logs

        logs.set_up()
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
    """Processes that are started inside have no stderr; what this one writes to its own still arrives."""
    before = sys.stderr
    before.flush()
    with open(os.dup(2), "w", encoding=before.encoding, errors=before.errors, buffering=1) as ours:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        sys.stderr = ours
        try:
            yield
        finally:
            sys.stderr = before
            ours.flush()
            os.dup2(ours.fileno(), 2)
