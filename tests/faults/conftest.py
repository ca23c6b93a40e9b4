"""The process that forks victims, and the account of what was tried."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import pytest

from tests.faults.inject import Zygote


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
    """Fail on violations; with INLAY_FAULT_COUNTS=<file> also write down how much was tried."""

    def account(what: str, tried: int, violations: list[str]) -> None:
        if path := os.environ.get("INLAY_FAULT_COUNTS"):
            line = {"test": request.node.nodeid, "what": what, "tried": tried, "violations": len(violations)}
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        assert tried > 0
        assert not violations, f"{len(violations)} of {tried}:\n" + "\n".join(violations[:20])

    return account
