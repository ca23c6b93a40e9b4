"""What the service counts, for Prometheus, in a registry of its own."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

__all__ = ["Metrics"]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        labels = ["method", "route"]
        self._requests = Counter("inlay_http_requests", "Requests answered.", [*labels, "status"], registry=registry)
        self._seconds = Histogram(
            "inlay_http_request_seconds", "Time to the end of the answer.", labels, buckets=_SECONDS, registry=registry
        )
        self._uploaded = Counter("inlay_uploaded_bytes", "Bytes of finished uploads.", registry=registry)
        self._jobs = Gauge("inlay_jobs", "Jobs that the catalog knows, by state.", ["state"], registry=registry)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Routes are templates, and methods those that exist: what clients make up makes no series."""
        known = method if method in _METHODS else "OTHER"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)

    def uploaded(self, size: int) -> None:
        self._uploaded.inc(size)

    def render(self, jobs: Mapping[str, int]) -> bytes:
        for state, count in jobs.items():
            self._jobs.labels(state).set(count)
        return generate_latest(self._registry)
