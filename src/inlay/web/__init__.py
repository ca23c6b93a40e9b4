"""The web page: the use cases of the workspace for people, on the same application as the HTTP interface."""

from __future__ import annotations

from inlay.web.mounting import mount

__all__ = ["mount"]
