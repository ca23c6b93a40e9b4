"""Logs: one JSON object a line; on a terminal, lines that people read."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from inlay.server.middleware import request_id

__all__ = ["set_up"]


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": request_id.get(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in told.items() if value is not None}, ensure_ascii=False)


class PlainLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", {})
        return super().format(record) + (f"  {facts['ms']} ms" if "ms" in facts else "")


def set_up(level: str = "INFO") -> None:
    """Send this process's logs to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines() if sys.stderr.isatty() else JsonLines())
    logging.basicConfig(level="WARNING", handlers=[handler], force=True)
    for name in ("inlay", "uvicorn"):
        logging.getLogger(name).setLevel(level)
