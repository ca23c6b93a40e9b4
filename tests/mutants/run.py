"""Check that tests notice small changes to the code of merges: `make mutants`.

The tests run once to record which tests run which lines. Then each change is tried with the tests that run its
statement: first with a few seconds of quick tests and, if no test notices an unexplained change, with more tests.
`explained.toml` must explain each change that no test notices. Otherwise the command fails.

After writing a test, run `make mutants MUTANT_ARGS='--again --tests tests/incremental/test_merge_run.py'`.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import json
import os
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import coverage
import pytest

from tests.mutants.changes import Change, changes_of

_EXPLAINED = Path(__file__).parent / "explained.toml"
_FOLDER = Path(".cache/mutants")
_DURATIONS, _COVERAGE = _FOLDER / "durations.json", _FOLDER / "coverage"
_OUTCOMES, _UNCHANGED, _LOG = _FOLDER / "outcomes.jsonl", _FOLDER / "unchanged.jsonl", _FOLDER / "log"
_FEW_SECONDS, _MANY_SECONDS = 2.0, 60.0  # test time per change, in the first and in the second attempt
_NOT_NOTICED = "not noticed"


def main() -> int:
    arguments = _arguments()
    changes = {change.name: change for module in arguments.modules for change in _changes_of(module)}
    _FOLDER.mkdir(parents=True, exist_ok=True)
    if not arguments.again:
        _OUTCOMES.unlink(missing_ok=True)
    _measure(arguments.modules, arguments.tests)
    _try_all(changes, _Tests(), arguments.tests)
    return _report(changes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", nargs="+", required=True, help="modules and packages to change")
    parser.add_argument("--tests", nargs="+", required=True, help="test files and folders")
    parser.add_argument("--again", action="store_true", help="retry only changes that no test noticed last time")
    return parser.parse_args()


def _changes_of(module: str) -> list[Change]:
    path = Path("src", *module.split(".")).resolve()
    files = sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return [change for file in files for change in changes_of(file)]


# --------------------------------------------------------------------------------------------------------- coverage
class _Durations:
    def __init__(self) -> None:
        self.of_test: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.of_test[report.nodeid] += report.duration


def _measure(modules: list[str], tests: list[str]) -> None:
    durations = _Durations()
    os.environ["COVERAGE_FILE"] = str(_COVERAGE)
    options = ["-q", "-n", "2", "-m", "not spark", "--cov-branch", "--cov-context=test", "--cov-report="]
    if code := pytest.main([*options, *(f"--cov={module}" for module in modules), *tests], plugins=[durations]):
        raise SystemExit(code)
    _DURATIONS.write_text(json.dumps(durations.of_test))


class _Tests:
    """The tests that run each line, and their durations."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = json.loads(_DURATIONS.read_text())
        self._data = coverage.CoverageData(str(_COVERAGE))
        self._data.read()
        self._of_file: dict[Path, dict[int, list[str]]] = {}

    def of(self, change: Change) -> list[str]:
        """Return the tests that run a statement.

        The tests of its module come first, and the cases of different test functions alternate.
        """
        if change.file not in self._of_file:
            self._of_file[change.file] = self._data.contexts_by_lineno(str(change.file))
        of_line = self._of_file[change.file]
        found = {context.split("|")[0] for line in change.lines for context in of_line.get(line, [])}
        seen: Counter[str] = Counter()
        ranks = {}
        for test in sorted(found & self.seconds.keys(), key=lambda test: (self.seconds[test], test)):
            function = test.split("[")[0]
            ranks[test] = (change.module not in _imported(_file_of(test)), seen[function], self.seconds[test])
            seen[function] += 1
        return sorted(ranks, key=ranks.__getitem__)

    def within(self, tests: list[str], seconds: float) -> list[str]:
        """Return the first tests within a time limit, at least one, grouped by file."""
        ends = itertools.accumulate(self.seconds[test] for test in tests)
        count = sum(1 for end in ends if end <= seconds)
        return sorted(tests[: max(count, 1)], key=_file_of)


@functools.cache
def _imported(file: str) -> set[str]:
    """Return the modules that a test file imports."""
    found = [node for node in ast.walk(ast.parse(Path(file).read_text())) if isinstance(node, ast.ImportFrom)]
    return {str(node.module) for node in found} | {
        f"{node.module}.{each.name}" for node in found for each in node.names
    }


def _file_of(test: str) -> str:
    return test.split("::", maxsplit=1)[0]


# ----------------------------------------------------------------------------------------------------------- trials
def _try_all(changes: Mapping[str, Change], tests: _Tests, folders: Sequence[str]) -> None:
    known = _read(_OUTCOMES)
    chosen = {
        name: tests.of(change) for name, change in changes.items() if known.get(name, _NOT_NOTICED) == _NOT_NOTICED
    }
    chosen = {name: found for name, found in chosen.items() if found}
    _reject_failing({test for found in chosen.values() for test in found}, tests, folders)
    _try({n: tests.within(found, _FEW_SECONDS) for n, found in chosen.items()}, tests, changes, folders, _OUTCOMES)
    noticed, explained = _read(_OUTCOMES), _explained()
    left = {n: found for n, found in chosen.items() if noticed[n] == _NOT_NOTICED and n not in explained}
    _try({n: tests.within(found, _MANY_SECONDS) for n, found in left.items()}, tests, changes, folders, _OUTCOMES)


def _reject_failing(names: set[str], tests: _Tests, folders: Sequence[str]) -> None:
    """Exit if tests fail in a fork without a change, because they would notice every change."""
    _UNCHANGED.unlink(missing_ok=True)
    of_file = {file: list(found) for file, found in itertools.groupby(sorted(names), key=_file_of)}
    _try(of_file, tests, {}, folders, _UNCHANGED)
    if failing := [file for file, outcome in _read(_UNCHANGED).items() if outcome != _NOT_NOTICED]:
        raise SystemExit(f"These tests fail without a change: {', '.join(failing)}")


def _try(
    trials: Mapping[str, list[str]],
    tests: _Tests,
    changes: Mapping[str, Change],
    folders: Sequence[str],
    outcomes: Path,
) -> None:
    if not trials:
        return
    trials_file = _FOLDER / "trials.jsonl"
    with trials_file.open("w") as file:
        for name, found in trials.items():
            limit = 15 + 6 * sum(tests.seconds[test] for test in found)
            print(json.dumps({"name": name, "tests": found, "limit": limit}), file=file)
    command = [
        sys.executable, "-m", "pytest", "-m", "not spark", "-p", "no:cacheprovider", "--timeout", "0",
        "-p", "tests.mutants.forks", "--trials", trials_file, "--outcomes", outcomes,
        *(f"--changed={module}" for module in sorted({changes[name].module for name in trials if name in changes})),
        *folders,
    ]  # fmt: skip
    with _LOG.open("w") as log:
        subprocess.run(command, env=os.environ | {"HYPOTHESIS_PROFILE": "mutants"}, check=True, stdout=log)


def _read(outcomes: Path) -> dict[str, str]:
    """Return the last outcome of each trial."""
    lines = outcomes.read_text().splitlines() if outcomes.exists() else []
    return {each["name"]: each["outcome"] for each in map(json.loads, lines)}


# ----------------------------------------------------------------------------------------------------------- report
def _explained() -> set[str]:
    groups = tomllib.loads(_EXPLAINED.read_text())["group"]
    return {name for group in groups for name in group["changes"]}


def _report(changes: Mapping[str, Change]) -> int:
    outcomes, explained = _read(_OUTCOMES), _explained()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    left = []
    for name, change in changes.items():
        outcome = outcomes.get(name, _NOT_NOTICED)
        if outcome == _NOT_NOTICED and name in explained:
            outcome = "explained"
        elif outcome == _NOT_NOTICED:
            left.append(f"{_NOT_NOTICED}: {name}  ({change.file.name}:{change.lines.start})")
        counts[change.file.stem][outcome] += 1
    counts["all"] = sum(counts.values(), Counter())
    kinds = ("noticed", "too slow", "explained", _NOT_NOTICED)
    print(f"{'module':16}{'changes':>9}" + "".join(f"{kind:>13}" for kind in kinds))
    for module, of_kind in counts.items():
        print(f"{module:16}{of_kind.total():>9}" + "".join(f"{of_kind[kind]:>13}" for kind in kinds))
    print(
        *left,
        *(f"explained, but no change of the code has this name: {name}" for name in explained - changes.keys()),
        sep="\n",
    )
    return 1 if left or explained - changes.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
