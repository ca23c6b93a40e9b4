"""Fixtures: the process that forks children, and the counts of tested faults."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator

import pytest

from tests.faults.inject import Zygote
from tests.faults.report import record_case


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as process:
        yield process


@pytest.fixture
def thorough() -> bool:
    """Return whether to test every fault instead of a sample."""
    return os.environ.get("INLAY_TEST_LONG") == "1"


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[[str, int, list[str]], None]:
    """Return a function that records a case, the number of tested faults, and the violations."""
    return functools.partial(record_case, request.node.nodeid)
