"""A pytest plugin that collects tests once, and tries each change in a fork.

`pytest -p tests.mutants.forks --trials TRIALS --outcomes OUTCOMES ...` reads trials as lines of JSON, and writes their
outcomes as lines of JSON. Without `--changed`, the trials show whether the tests pass in a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, TextIO

import hypothesis
import pytest

from tests.mutants.changes import Change, changes_of

# One deterministic failure is enough, so Hypothesis does not need to shrink examples.
hypothesis.settings.register_profile(
    "mutants",
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    suppress_health_check=list(hypothesis.HealthCheck),
)


@dataclass(frozen=True)
class Trial:
    name: str
    tests: tuple[str, ...]
    limit: float  # in seconds, because a change can make a loop endless
    change: Change | None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--trials", type=Path)
    parser.addoption("--outcomes", type=Path)
    parser.addoption("--changed", action="append", default=[], help="a module to change")


class _Functions:
    """Finds the functions of changed modules, before the garbage collector freezes objects."""

    def __init__(self, modules: list[str]) -> None:
        files = [Path(str(importlib.import_module(name).__file__)) for name in modules]
        self.changes = {change.name: change for file in files for change in changes_of(file)}
        self._of_code: dict[tuple[str, str, int], list[FunctionType]] = {}
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                code = each.__code__
                self._of_code.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(each)

    def apply(self, change: Change) -> None:
        code = change.code()
        for function in self._of_code[str(change.file), change.function, change.first_line]:
            function.__code__ = code


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_FUNCTIONS] = _Functions(session.config.getoption("--changed"))


_INVALID_TRIAL = 3  # an exit code
_FUNCTIONS = pytest.StashKey[_Functions]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    functions = session.config.stash[_FUNCTIONS]
    items = {item.nodeid: item for item in session.items}
    trials = _trials(session.config.getoption("--trials"), functions.changes)
    with session.config.getoption("--outcomes").open("a") as outcomes:
        _Pool(session, items, functions, outcomes).run(trials)
    return True


def _trials(file: Path, changes: dict[str, Change]) -> Iterator[Trial]:
    for line in file.read_text().splitlines():
        entry = json.loads(line)
        change = changes[entry["name"]] if changes else None
        yield Trial(entry["name"], tuple(entry["tests"]), entry["limit"], change)


@dataclass
class _Fork:
    trial: Trial
    folder: Path
    ends: float


class _Pool:
    """A pool of forks: one per core, and one more because forks also wait."""

    def __init__(
        self, session: pytest.Session, items: dict[str, pytest.Item], functions: _Functions, outcomes: TextIO
    ) -> None:
        self._session, self._items, self._functions, self._outcomes = session, items, functions, outcomes
        self._factory: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]
        self._folder: Path = self._factory.getbasetemp()
        self._running: dict[int, _Fork] = {}

    def run(self, trials: Iterator[Trial]) -> None:
        for number, trial in enumerate(trials):
            while len(self._running) >= (os.cpu_count() or 1) + 1:
                self._wait()
            self._start(trial, self._folder / f"fork-{number}")
        while self._running:
            self._wait()

    def _start(self, trial: Trial, folder: Path) -> None:
        folder.mkdir()
        child = os.fork()
        if child == 0:
            os.setsid()
            self._try(trial, folder)
        self._running[child] = _Fork(trial, folder, time.monotonic() + trial.limit)

    def _wait(self) -> None:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            self._record(child, self._outcome(os.waitstatus_to_exitcode(status), self._running[child].trial))
            return
        for late in [child for child, fork in self._running.items() if time.monotonic() > fork.ends]:
            os.killpg(late, signal.SIGKILL)
            os.waitpid(late, 0)
            self._record(late, "too slow")
        time.sleep(0.005)

    def _outcome(self, code: int, trial: Trial) -> str:
        if code == _INVALID_TRIAL:
            raise RuntimeError(f"The trial is invalid: {trial}")
        return "not noticed" if code == 0 else "noticed"  # A crashed process counts as noticed.

    def _record(self, child: int, outcome: str) -> None:
        fork = self._running.pop(child)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # Ends processes that tests have left running.
        noticed = fork.folder / "noticed"
        by = noticed.read_text() if noticed.exists() else None
        print(json.dumps({"name": fork.trial.name, "outcome": outcome, "by": by}), file=self._outcomes, flush=True)
        shutil.rmtree(fork.folder, ignore_errors=True)

    def _try(self, trial: Trial, folder: Path) -> None:
        """Apply the change in a fork and run the tests until one fails."""
        code = _INVALID_TRIAL
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            self._factory._basetemp = folder
            tests = [self._items[test] for test in trial.tests]
            if trial.change is not None:
                self._functions.apply(trial.change)
            self._session.config.pluginmanager.register(_ExitOnFailure(folder / "noticed"))
            code = 1
            for test, next_test in zip(tests, [*tests[1:], None], strict=True):
                test.config.hook.pytest_runtest_protocol(item=test, nextitem=next_test)
            code = 0
        finally:
            os._exit(code)


class _ExitOnFailure:
    """Writes the name of the first failed test to a file and exits."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._file.write_text(report.nodeid)
            os._exit(1)
