"""`progress=True`: a bar in the terminal or in the notebook, for as long as a call lasts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from inlay.errors import InvalidArgumentError
from inlay.incremental.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

__all__ = ["listening", "progress_bar"]

_SECONDS_BETWEEN_UPDATES = 0.1  # of a notebook, each of which is a message to a browser


@contextlib.contextmanager
def listening(progress: ProgressCallback | bool | None) -> Iterator[ProgressCallback | None]:
    """Whoever is to be told: a callback is itself, True is a bar, nobody otherwise."""
    if progress is True:
        with progress_bar() as show:
            yield show
    elif progress is None or progress is False:
        yield None
    elif callable(progress):
        yield progress
    else:
        raise InvalidArgumentError(f"progress must be True or a function, not {progress!r}.")


@contextlib.contextmanager
def progress_bar(console: Console | None = None) -> Iterator[ProgressCallback]:
    """A bar on stderr if that is a terminal, else in the notebook if this is one, else nowhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = console or Console(stderr=True)
    bar = Bar(*columns, console=console, transient=True)
    task = bar.add_task("source", total=None)
    surface = _in_notebook if console.is_jupyter else _in_terminal if console.is_interactive else _nowhere
    with surface(bar) as redraw:

        def show(step: Progress) -> None:
            bar.update(task, description=step.phase, completed=step.done, total=step.total)
            redraw()

        yield show


@contextlib.contextmanager
def _nowhere(_: Bar) -> Iterator[Callable[[], None]]:
    yield lambda: None


@contextlib.contextmanager
def _in_terminal(bar: Bar) -> Iterator[Callable[[], None]]:
    with bar:
        yield lambda: None  # it has a thread that draws it


@contextlib.contextmanager
def _in_notebook(bar: Bar) -> Iterator[Callable[[], None]]:
    """The bar as an output that changes. rich itself would need widgets, which not every notebook has."""
    from IPython.display import display

    output = display(bar, display_id=True)  # type: ignore[no-untyped-call]  # it has no types
    drawn = time.monotonic()

    def redraw() -> None:
        nonlocal drawn
        if time.monotonic() - drawn >= _SECONDS_BETWEEN_UPDATES:
            output.update(bar)
            drawn = time.monotonic()

    try:
        yield redraw
    finally:
        output.update(bar)
