"""Work as a generator of the things that it waits for, which a thread or an event loop can run.

Queries of the page and of the library run in threads; queries of HTTP run in the event loop, because a switch between
threads costs more than most of a small query.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

__all__ = ["Call", "Readable", "Steps", "run_in_loop", "run_in_thread"]

T = TypeVar("T")


class Readable(NamedTuple):
    """Wait until a descriptor is readable. The answer is False if the time is over."""

    descriptor: int
    seconds: float


class Call(NamedTuple):
    """Call a function that may block. The answer is its result."""

    function: Callable[[], Any]


Steps = Generator[Readable | Call, Any, T]


def run_in_thread(steps: Steps[T]) -> T:
    """Run the steps in this thread."""
    with contextlib.closing(steps):
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer = step.function() if isinstance(step, Call) else _is_readable(step)


async def run_in_loop(steps: Steps[T]) -> T:
    """Run the steps in the event loop. Canceling the task closes the steps."""
    with contextlib.closing(steps):
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(step, Call):
                answer = await asyncio.to_thread(step.function)
            else:
                answer = await _becomes_readable(step)


def _is_readable(step: Readable) -> bool:
    poll = select.poll()
    poll.register(step.descriptor, select.POLLIN)
    return bool(poll.poll(step.seconds * 1000))


async def _becomes_readable(step: Readable) -> bool:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()
    loop.add_reader(step.descriptor, _resolve, future, True)
    timer = loop.call_later(step.seconds, _resolve, future, False)
    try:
        return await future
    finally:
        timer.cancel()
        loop.remove_reader(step.descriptor)


def _resolve(future: asyncio.Future[bool], answer: bool) -> None:
    if not future.done():
        future.set_result(answer)
