"""The web page, which the service serves on the same application as the HTTP API."""

from __future__ import annotations

from inlay.web.mount import mount

__all__ = ["mount"]
