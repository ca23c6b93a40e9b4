"""Work on a thread pool in the order of its items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["bounded_map"]

T = TypeVar("T")
R = TypeVar("R")


def bounded_map(pool: ThreadPoolExecutor, limit: int, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Map in order, with at most `limit` items in progress or waiting to be consumed."""
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > limit:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
