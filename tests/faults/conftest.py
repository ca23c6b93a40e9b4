"""The process that forks victims, and the account of what was tried."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator

import pytest

from tests.faults.inject import Zygote
from tests.faults.report import account


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as process:
        yield process


@pytest.fixture
def thorough() -> bool:
    """Whether to try everything instead of a sample."""
    return os.environ.get("INLAY_TEST_LONG") == "1"


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[[str, int, list[str]], None]:
    """To be called with what was tried, how often, and what was violated."""
    return functools.partial(account, request.node.nodeid)
