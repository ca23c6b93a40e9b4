"""Middleware: request ids, logs, metrics, limits, and responses to unexpected errors."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import re
import sys
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from inlay.errors import InlayError, RequestTimeoutError, RequestTooLargeError, UnsupportedMediaTypeError
from inlay.server.problems import ProblemException, internal_error_response, problem_response

__all__ = ["LimitsMiddleware", "Metrics", "TelemetryMiddleware", "merge_metrics", "request_id", "set_up_logging"]

_JOBS = "inlay_jobs"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The Prometheus metrics of one service."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        labels = ["method", "route"]
        self._requests = Counter("inlay_http_requests", "Completed requests.", [*labels, "status"], registry=registry)
        self._seconds = Histogram(
            "inlay_http_request_seconds",
            "Time to the end of a response.",
            labels,
            buckets=_SECONDS,
            registry=registry,
        )
        self._of_route = cache(self._count_and_duration)  # finding labels takes longer than counting
        self._uploaded = Counter("inlay_uploaded_bytes", "Bytes of finished uploads.", registry=registry)
        self._jobs = Gauge(_JOBS, "Jobs in the catalog, by state.", ["state"], registry=registry)

    def record_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request. `route` is a template, so that clients cannot add time series."""
        count, duration = self._of_route(method if method in _METHODS else "OTHER", route, status)
        count.inc()
        duration.observe(seconds)

    def _count_and_duration(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        return self._requests.labels(method, route, str(status)), self._seconds.labels(method, route)

    def record_upload(self, size: int) -> None:
        self._uploaded.inc(size)

    def render(self, jobs: Mapping[str, int]) -> bytes:
        for state, count in jobs.items():
            self._jobs.labels(state).set(count)
        return generate_latest(self._registry)


class _Families(Collector):
    """Families of metrics, to render them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def merge_metrics(of_processes: Mapping[int, str]) -> bytes:
    """Join the metrics of all HTTP processes. Each time series of a process gets the label `process`."""
    families: dict[str, Metric] = {}
    for number, text in of_processes.items():
        for family in text_string_to_metric_families(text):
            label = {} if family.name == _JOBS else {"process": str(number)}
            samples = [sample._replace(labels=sample.labels | label) for sample in family.samples]
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type)).samples += samples
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    return generate_latest(registry)


log = logging.getLogger("inlay.requests")
request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("inlay_request_id", default=None)

MAX_BODY_BYTES = 2 << 20  # without inline data
_MAX_ESCAPE_BYTES = 6  # in which JSON can spell one byte of inline data, as \u000a
SESSION_PATH = "/v1/session"
_MAX_SESSION_BYTES = 8 << 10
_DATASETS = "/v1/datasets"
MAX_HEADER_BYTES = 32 << 10
_MAX_FRAMES = 30
IDLE_SECONDS = 60.0  # maximum pause while a client sends a body
MIN_BYTES_PER_SECOND = 1000  # of a body or a response, if the service waits longer than the maximum pause
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_UPLOADS = "/v1/files"
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)

_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin")]  # of responses

Message = Any
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]


# ----------------------------------------------------------------------------------------------------------- telemetry
@dataclass
class _Exchange:
    """Figures of a request and its response, for the log and the metrics."""

    id: str
    started: float = field(default_factory=time.perf_counter)
    status: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class TelemetryMiddleware:
    """Assigns an id to each request, logs and counts it, and answers unexpected errors with 500."""

    def __init__(self, app: App, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(_request_id(Headers(scope=scope).get("x-request-id")))
        token = request_id.set(exchange.id)
        receive, send = _counting(exchange, receive, send)
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            exchange.status = exchange.status or 499
        except Exception:
            log.exception("a request failed unexpectedly")
            if exchange.status:  # raise, so that the started response does not look complete
                raise
            await internal_error_response()(scope, receive, send)
        finally:
            self._record(scope, exchange)
            request_id.reset(token)

    def _record(self, scope: Any, exchange: _Exchange) -> None:
        seconds = time.perf_counter() - exchange.started
        route = getattr(scope.get("route"), "path", None) or "(none)"
        self._metrics.record_request(scope["method"], route, exchange.status, seconds)
        facts = {
            "method": scope["method"],
            "route": route,
            "status": exchange.status,
            "ms": round(seconds * 1000, 1),
            "bytes_in": exchange.bytes_in,
            "bytes_out": exchange.bytes_out,
        }
        log.info("%s %s %s", facts["method"], route, facts["status"], extra={"facts": facts})


def _request_id(header: str | None) -> str:
    return header if header is not None and _ID.fullmatch(header) else uuid.uuid4().hex


def _counting(exchange: _Exchange, receive: Receive, send: Send) -> tuple[Receive, Send]:
    async def counted_receive() -> Message:
        message = await receive()
        exchange.bytes_in += len(message.get("body", b""))
        return message

    async def counted_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            present = dict(message["headers"])
            added = [(name, value) for name, value in _HEADERS if name not in present]
            message["headers"] = [*message["headers"], (b"x-request-id", exchange.id.encode()), *added]
        exchange.bytes_out += len(message.get("body", b""))
        await send(message)

    return counted_receive, counted_send


# -------------------------------------------------------------------------------------------------------------- limits
class LimitsMiddleware:
    """Limits headers, bodies and idle time under /v1. Bodies other than uploads must be JSON."""

    def __init__(self, app: App, max_inline_bytes: int) -> None:
        self._app = app
        self._inline_bytes = _MAX_ESCAPE_BYTES * max_inline_bytes

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        limit = self._max_body_bytes(scope["path"])
        error = _check_headers(Headers(scope=scope), limit)
        if error is not None:
            await problem_response(error)(scope, receive, send)
        else:
            await self._app(scope, _limited(receive, limit), send)

    def _max_body_bytes(self, path: str) -> int | None:
        """Return the limit of a body, or None for uploads. Only new datasets and loads can have inline data."""
        if path == _UPLOADS:
            return None
        if path == SESSION_PATH:
            return _MAX_SESSION_BYTES
        return MAX_BODY_BYTES + (self._inline_bytes if path.startswith(_DATASETS) else 0)


def _check_headers(headers: Headers, limit: int | None) -> InlayError | None:
    """Return the error that the request headers cause, or None. `limit` is None for uploads."""
    if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
        return RequestTooLargeError(
            f"The request headers exceed the limit of {MAX_HEADER_BYTES:,} bytes.",
            hint="Send shorter headers.",
        )
    if limit is None:
        return None
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        return _too_large(limit)
    has_body = length not in ("", "0") or "transfer-encoding" in headers
    content_type = headers.get("content-type", "")
    if has_body and not _JSON.fullmatch(content_type):
        sent = f"Content-Type is {content_type[:100]!r}" if content_type else "the request has no Content-Type"
        return UnsupportedMediaTypeError(
            f"The body must be JSON, but {sent}.", hint="Send the header Content-Type: application/json."
        )
    return None


def _too_large(limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"The request body exceeds the limit of {limit:,} bytes.",
        hint="Upload the data with POST /v1/files and send its upload_id.",
    )


def _limited(receive: Receive, limit: int | None) -> Receive:
    size = 0
    waited = 0.0
    is_complete = False

    async def limited() -> Message:
        nonlocal size, waited, is_complete
        allowed = min(IDLE_SECONDS, IDLE_SECONDS + size / MIN_BYTES_PER_SECOND - waited)
        started = time.monotonic()
        try:
            async with asyncio.timeout(None if is_complete else allowed):
                message = await receive()
        except TimeoutError:
            timeout = RequestTimeoutError("The client sends the body too slowly.", hint="Send the request again.")
            raise ProblemException(problem_response(timeout)) from None
        waited += time.monotonic() - started
        size += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        if limit is not None and size > limit:
            raise ProblemException(problem_response(_too_large(limit)))
        return message

    return limited


# ---------------------------------------------------------------------------------------------------------------- logs
# Log lines contain nothing that a client wrote: no paths, no values, no messages of unexpected exceptions. Messages of
# other libraries can contain such text, so only the file and the line of the message are logged.
def _message(record: logging.LogRecord) -> str:
    if record.name.partition(".")[0] == "inlay":
        return record.getMessage()
    return f"a message of {record.name}, from {record.filename} line {record.lineno}"


def _trace(error: BaseException) -> list[str]:
    """Return the types of an exception and its causes, and the lines of code that raised them."""
    lines = []
    cause: BaseException | None = error
    while cause is not None:
        lines.append(type(cause).__qualname__)
        frames = traceback.extract_tb(cause.__traceback__, limit=-_MAX_FRAMES)
        lines += [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return lines


class JsonLines(logging.Formatter):
    """Formats each log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            "request_id": request_id.get(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[1]:
            fields["trace"] = _trace(record.exc_info[1])
        return json.dumps({name: value for name, value in fields.items() if value is not None}, ensure_ascii=False)


class PlainLines(logging.Formatter):
    """Formats log records for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", {})
        duration = f"  {facts['ms']} ms" if "ms" in facts else ""
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:7} {_message(record)}{duration}"
        trace = _trace(record.exc_info[1]) if record.exc_info and record.exc_info[1] else []
        return "\n".join([line, *trace])


def set_up_logging(level: str = "INFO") -> None:
    """Send the logs of this process to stderr: as JSON lines, or as plain text on a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines() if sys.stderr.isatty() else JsonLines())
    logging.basicConfig(level="WARNING", handlers=[handler], force=True)
    logging.getLogger("inlay").setLevel(level)
    for name in ("engineio.server", "socketio.server"):  # they log texts of clients, with handlers of their own
        logging.getLogger(name).setLevel(logging.CRITICAL)
