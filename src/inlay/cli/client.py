"""A client of the service: requests whose problems are raised as the errors they tell of, and jobs to wait for."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from inlay.errors import (
    ConflictError,
    EngineNotInstalledError,
    InlayError,
    InvalidArgumentError,
    JobCancelledError,
    NotFoundError,
    RequestError,
    ServiceUnreachableError,
    error_from,
)
from inlay.settings import is_loopback

if TYPE_CHECKING:
    import httpx

__all__ = ["Client", "Step", "is_service", "required_packages"]

Step = Callable[[str, int, int | None], object]  # what is being done, how much of it is done, and of how much

_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_PROBE_SECONDS = 2.0
_BLOCK = 1 << 20
_LONGEST_PAGE = 1000
_FIRST_LOOK_SECONDS, _LAST_LOOK_SECONDS = 0.05, 0.5
_ENDED = ("succeeded", "failed", "cancelled")


@contextlib.contextmanager
def required_packages() -> Iterator[None]:
    """What is imported inside comes with the server extra."""
    try:
        yield
    except ImportError as error:
        if isinstance(error, InlayError):
            raise
        raise EngineNotInstalledError(
            f"This command needs {error.name or error}.", hint="Install it with: pip install 'inlay[server]'"
        ) from error


class Client:
    """One service, by its address."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        with required_packages():
            import httpx
        self.url = _checked_url(url)
        self._http = httpx.Client(
            base_url=self.url,
            headers={"User-Agent": "inlay", **_authorization(api_key)},
            timeout=httpx.Timeout(_SECONDS, connect=_CONNECT_SECONDS),
            trust_env=not _is_here(self.url),  # no proxy leads to this machine
        )

    def close(self) -> None:
        self._http.close()

    # ------------------------------------------------------------------------------------------------------- requests
    def get(self, path: str, **query: Any) -> Any:
        return self._ask("GET", path, params=query).json()

    def post(self, path: str, body: Any, **headers: str) -> Any:
        return self._ask("POST", path, json=body, headers=headers).json()

    def delete(self, path: str) -> None:
        self._ask("DELETE", path)

    def pages(self, path: str, items: str, limit: int = 0) -> dict[str, Any]:
        """The first `limit` things of a list, all of them for 0, as one page."""
        found: list[Any] = []
        while True:
            wanted = min(_LONGEST_PAGE, limit - len(found)) if limit else _LONGEST_PAGE
            page = self.get(path, limit=wanted, offset=len(found))
            found += page[items]
            if not page["has_more"] or len(found) == limit:
                return dict(page) | {items: found, "limit": limit or len(found), "offset": 0}

    @contextlib.contextmanager
    def query(self, body: Mapping[str, Any], media_type: str) -> Iterator[httpx.Response]:
        """A query's answer, to be read piece by piece. How long it may take is the service's decision."""
        with _reachable(self.url):
            request = self._http.build_request(
                "POST", "/v1/query", json=dict(body), headers={"Accept": media_type}, timeout=_patient()
            )
            answer = self._http.send(request, stream=True)
            try:
                if answer.is_error:
                    answer.read()
                yield _checked(answer)
            finally:
                answer.close()

    def _ask(self, method: str, path: str, **how: Any) -> httpx.Response:
        with _reachable(self.url):
            return _checked(self._http.request(method, path, **how))

    # -------------------------------------------------------------------------------------------------------- uploads
    def upload(
        self, file: BinaryIO, size: int | None, content_type: str | None, content_encoding: str | None, step: Step
    ) -> Any:
        """Send a file while it is read."""
        headers = {
            "Content-Type": content_type,
            "Content-Encoding": content_encoding,
            "Content-Length": None if size is None else str(size),
        }
        return self._ask(
            "POST",
            "/v1/files",
            content=_blocks(file, size, step),
            headers={name: value for name, value in headers.items() if value is not None},
            timeout=_patient(),
        ).json()

    def forget_upload(self, upload_id: str) -> None:
        """Nobody will use it any more; if somebody did, it is gone already."""
        with contextlib.suppress(InlayError):
            self.delete(f"/v1/files/{upload_id}")

    # ----------------------------------------------------------------------------------------------------------- jobs
    def run(self, path: str, body: Mapping[str, Any], step: Step) -> Any:
        """Start a job, wait for its end, and give the answer that waiting for it would have given.

        Who interrupts this cancels the job, unless it has succeeded meanwhile.
        """
        key = {"Idempotency-Key": secrets.token_hex(16)}

        def started() -> Any:
            """The job, started once: asked again, the same key finds it."""
            return self.post(path, body, Prefer="respond-async", **key)

        try:
            job = self._watched(started(), step)
        except KeyboardInterrupt:
            job = self._stopped(started(), step)
            if job["state"] != "succeeded":
                raise
        if job["state"] != "succeeded":
            raise _error_of(job)
        return self.post(path, body, **key)

    def _stopped(self, job: Any, step: Step) -> Any:
        with contextlib.suppress(ConflictError):  # it has ended
            self.delete(f"/v1/jobs/{job['id']}")
        return self._watched(job, step)

    def _watched(self, job: Any, step: Step) -> Any:
        pause = _FIRST_LOOK_SECONDS
        while job["state"] not in _ENDED:
            progress = job["progress"] or {"phase": job["state"], "done": 0, "total": None}
            step(progress["phase"], progress["done"], progress["total"])
            time.sleep(pause)
            pause = min(pause * 1.5, _LAST_LOOK_SECONDS)
            job = self.get(f"/v1/jobs/{job['id']}")
        return job


def is_service(url: str) -> bool:
    """Whether a service answers there."""
    with required_packages():
        import httpx
    try:
        answer = httpx.get(f"{url}/healthz", timeout=_PROBE_SECONDS, trust_env=not _is_here(url))
        return answer.is_success and answer.json() == {"status": "ok"}
    except (httpx.HTTPError, ValueError):
        return False


# ------------------------------------------------------------------------------------------------------------- pieces
def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise InvalidArgumentError(
            f"{url!r} is not the address of a service.", hint="It looks like http://127.0.0.1:8000."
        )
    return url.rstrip("/")


def _without_secrets(url: str) -> str:
    """An address as it may be shown: a password may stand in front of the host."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _is_here(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def _authorization(api_key: str | None) -> dict[str, str]:
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise InvalidArgumentError("The API key has characters that no key has.", hint="Check INLAY_API_KEY.")
    return {"Authorization": f"Bearer {api_key}"}


def _patient() -> Any:
    import httpx

    return httpx.Timeout(_SECONDS, connect=_CONNECT_SECONDS, read=None)


def _blocks(file: BinaryIO, size: int | None, step: Step) -> Iterator[bytes]:
    """What the file had when its size was looked at."""
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
        raise InvalidArgumentError("The file became shorter while it was sent.", hint="Try again.") from error
    except httpx.TransportError as error:
        raise ServiceUnreachableError(
            f"The service at {_without_secrets(url)} does not answer: {str(error) or type(error).__name__}.",
            hint="Check --url and INLAY_URL; without them, and with --data-dir, no service is needed.",
        ) from error


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_success:
        return answer
    raise _error_from(_problem(answer), answer.status_code)


def _problem(answer: httpx.Response) -> Mapping[str, Any]:
    with contextlib.suppress(ValueError):
        found = answer.json()
        if isinstance(found, dict) and "code" in found:
            return found
    return {
        "code": "",
        "detail": f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}".rstrip() + ".",
        "hint": "Is this an inlay service? Check --url and INLAY_URL.",
    }


_DOCUMENT = ("type", "title", "status", "detail")  # of RFC 9457; the rest is what the error told of itself
_BY_STATUS: dict[int, type[InlayError]] = {404: NotFoundError, 409: ConflictError}


def _error_from(problem: Mapping[str, Any], status: int) -> InlayError:
    """The error that a problem document tells of; one that this program does not know is sorted by its status."""
    told = {name: value for name, value in problem.items() if name not in _DOCUMENT and value is not None}
    error = error_from(told | {"message": problem.get("detail", "")})
    if type(error) is InlayError and status < 500:
        kind = _BY_STATUS.get(status, RequestError)
        return kind(error.message, hint=error.hint)
    return error


def _error_of(job: Mapping[str, Any]) -> InlayError:
    if job["error"] is None:
        return JobCancelledError(f"The job {job['id']!r} was cancelled by somebody else; nothing changed.")
    return _error_from(job["error"], int(job["error"]["status"]))
