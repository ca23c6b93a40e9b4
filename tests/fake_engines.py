"""Engines that record their calls, report wrong row counts, or cannot read files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inlay.engines.base import StageResult
from inlay.engines.local import ArrowEngine


class RecordingEngine(ArrowEngine):
    """Records the arguments of calls in `calls`, and reports progress before any work."""

    def __init__(self) -> None:
        super().__init__(1)
        self.calls: dict[str, Any] = {}

    def bind(self, location: Any, operation: str) -> Any:
        self.calls["bind"] = (location.path, operation)
        return self

    def with_progress(self, on_tasks: Any) -> Any:
        on_tasks(1, 1)
        return self

    def open(self, data: Any, like: Any, storage_options: Any, read_options: Any) -> Any:
        self.calls["open"] = (like.names, storage_options)
        return super().open(data, like, storage_options, read_options)

    def footers(self, location: Any, files: Any, columns: Any) -> Any:
        self.calls["footers"] = len(files)
        return super().footers(location, files, columns)


class MiscountingEngine(ArrowEngine):
    """Reports one row too many for every staged file."""

    def stage(self, *arguments: Any, **options: Any) -> Any:
        yield from map(_add_one_row, super().stage(*arguments, **options))

    def combine(self, *arguments: Any) -> Any:
        yield from map(_add_one_row, super().combine(*arguments))


def _add_one_row(result: StageResult) -> StageResult:
    return replace(result, rows=result.rows + 1)


class UnavailableEngine(ArrowEngine):
    """Fails with an I/O error when it reads footers."""

    def footers(self, location: Any, files: Any, columns: Any) -> Any:
        raise OSError(5, "no answer", files[0].path)
