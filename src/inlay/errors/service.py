"""Errors of the service and its parts: jobs, Spark, the storage and the catalog."""

from __future__ import annotations

from inlay.errors.base import InlayError

__all__ = [
    "CatalogUnavailableError",
    "CatalogVersionError",
    "ConversionFailedError",
    "JobCancelledError",
    "JobInterruptedError",
    "MemoryLimitError",
    "ServiceBusyError",
    "ServiceStoppingError",
    "ServiceUnreachableError",
    "SparkUnavailableError",
    "StorageFullError",
    "StorageUnavailableError",
]


class MemoryLimitError(InlayError):
    """A Spark task needs more memory than its worker process may use."""

    code = "memory_limit"
    http_status = 413


class ConversionFailedError(InlayError):
    """The upload is valid, but converting it to Parquet failed."""

    code = "conversion_failed"


class JobCancelledError(InlayError):
    """The job was canceled. Nothing changed."""

    code = "job_cancelled"
    http_status = 409


class JobInterruptedError(InlayError):
    """The process that ran the job ended. Nothing changed."""

    code = "job_interrupted"
    http_status = 503


class ServiceBusyError(InlayError):
    """The service has too many open connections."""

    code = "service_busy"
    http_status = 503


class ServiceStoppingError(InlayError):
    """The service is shutting down."""

    code = "service_stopping"
    http_status = 503


class ServiceUnreachableError(InlayError):
    """No inlay service responds at the address."""

    code = "service_unreachable"
    http_status = 503


class SparkUnavailableError(InlayError):
    """The Spark master cannot be reached, or Spark cannot start."""

    code = "spark_unavailable"
    http_status = 503


class StorageUnavailableError(InlayError):
    """The storage cannot be read or written."""

    code = "storage_unavailable"
    http_status = 503


class StorageFullError(InlayError):
    """The disk is full, or has less free space than its reserve. Reads still work."""

    code = "storage_full"
    http_status = 507


class CatalogUnavailableError(InlayError):
    """The catalog database cannot be reached."""

    code = "catalog_unavailable"
    http_status = 503


class CatalogVersionError(CatalogUnavailableError):
    """The catalog database's schema does not match this version of inlay."""

    code = "catalog_version"
