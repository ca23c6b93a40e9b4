"""The S3 client of the service, which stops waiting for a store that does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

from fsspec.asyn import sync_wrapper
from s3fs import S3FileSystem

__all__ = ["DeadlineS3FileSystem", "StoreTimeoutError"]

CONNECT_SECONDS = 10.0
_ATTEMPTS = 3


class StoreTimeoutError(OSError):
    """The store did not answer in time. A plain `TimeoutError` would make s3fs repeat the request."""


class DeadlineS3FileSystem(S3FileSystem):  # type: ignore[misc]
    """An S3 filesystem whose requests end within `timeout_seconds`, including all their attempts."""

    protocol = ("s3", "s3a")
    retries = 2  # s3fs counts attempts, and repeats each request that the client has already repeated

    def __init__(self, *arguments: Any, timeout_seconds: float, config_kwargs: Any = None, **options: Any) -> None:
        defaults = {
            "connect_timeout": min(CONNECT_SECONDS, timeout_seconds),
            "read_timeout": timeout_seconds / self.retries,  # for a response that stops in the middle
            "retries": {"mode": "standard", "total_max_attempts": _ATTEMPTS},
        }
        super().__init__(*arguments, config_kwargs=defaults | (config_kwargs or {}), **options)
        self._timeout_seconds = timeout_seconds

    async def _call_s3(self, method: str, *arguments: Any, **options: Any) -> Any:
        request = super()._call_s3(method, *arguments, **options)
        try:
            return await asyncio.wait_for(request, self._timeout_seconds)
        except TimeoutError as error:
            raise StoreTimeoutError(f"S3 did not answer within {self._timeout_seconds:g} seconds.") from error

    call_s3 = sync_wrapper(_call_s3)
