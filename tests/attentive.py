"""Engines for tests that look at what engines are told, and at what is believed of what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inlay.engines.base import StageResult
from inlay.engines.local import ArrowEngine


class Listening(ArrowEngine):
    """Remembers what it is told, and says how far it is before it has begun."""

    def __init__(self) -> None:
        super().__init__(1)
        self.told: dict[str, Any] = {}

    def bind(self, location: Any, operation: str) -> Any:
        self.told["bind"] = (location.path, operation)
        return self

    def with_progress(self, watch: Any) -> Any:
        watch(1, 1)
        return self

    def open(self, data: Any, like: Any, storage_options: Any) -> Any:
        self.told["open"] = (like.names, storage_options)
        return super().open(data, like, storage_options)

    def footers(self, location: Any, files: Any, columns: Any) -> Any:
        self.told["footers"] = len(files)
        return super().footers(location, files, columns)


class Lying(ArrowEngine):
    """Says of everything that it wrote a row more."""

    def stage(self, *arguments: Any, **options: Any) -> Any:
        yield from map(_one_more, super().stage(*arguments, **options))

    def combine(self, *arguments: Any) -> Any:
        yield from map(_one_more, super().combine(*arguments))


def _one_more(written: StageResult) -> StageResult:
    return replace(written, rows=written.rows + 1)


class Unanswered(ArrowEngine):
    """Gets no answer to the first thing that it asks for."""

    def footers(self, location: Any, files: Any, columns: Any) -> Any:
        raise OSError(5, "no answer", files[0].path)
