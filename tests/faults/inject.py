"""Count the system calls of a change with strace, and repeat it with one failing call."""

from __future__ import annotations

import collections
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.faults.scenarios import State, directories, is_pending, leftovers, scenario_named

ROOT = Path(__file__).resolve().parents[2]

# System calls on files. Their names differ between architectures: with a "?", strace ignores names that are unknown.
OPENS = ("open", "openat")
WRITES = ("write", "pwrite64", "writev", "ftruncate", "copy_file_range", "sendfile")
RENAMES = ("rename", "renameat", "renameat2", "link", "linkat")
REMOVALS = ("unlink", "unlinkat", "rmdir")
CREATIONS = ("mkdir", "mkdirat", "chmod", "fchmod", "fchmodat", "flock")
SYNCS = ("fsync", "fdatasync")
CHANGING = OPENS + WRITES + RENAMES + REMOVALS + CREATIONS + SYNCS
READS = ("read", "pread64", "getdents64", "stat", "lstat", "fstat", "newfstatat", "statx", "access", "faccessat2")

# kind -> strace's notation of the fault, and the calls that it applies to
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "kill": ("signal=KILL:when={n}", CHANGING),
    "interrupt": ("signal=INT:when={n}", CHANGING),
    "full": ("error=ENOSPC:when={n}+", OPENS + WRITES + CREATIONS[:2]),
    "eio": ("error=EIO:when={n}", CHANGING),
    "eio-for-good": ("error=EIO:when={n}+", SYNCS + RENAMES + REMOVALS),
    "eio-read": ("error=EIO:when={n}", READS),
}

_CALL = re.compile(r"^(?:\[pid\s+)?(\d+)\]?\s+(\w+)\(")
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Fault:
    kind: str
    call: str
    n: int

    @property
    def injection(self) -> str:
        return f"inject={self.call}:{KINDS[self.kind][0].format(n=self.n)}"


@dataclass
class Run:
    """The reported outcome of a change (empty if its process died), and the log of strace."""

    outcome: str
    log: str

    @property
    def fired(self) -> bool:
        return "+++ killed by SIGKILL" in self.log or "(INJECTED)" in self.log or "--- SIGINT" in self.log

    @property
    def acked(self) -> bool:
        return self.outcome == "acked"


class Zygote:
    """The parent's side of tests/faults/zygote.py."""

    def __init__(self) -> None:
        if shutil.which("strace") is None:
            raise RuntimeError("These tests need strace. Run `make setup-test`.")
        self._control, child_end = socket.socketpair()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.zygote", str(child_end.fileno())],
            pass_fds=[child_end.fileno()],
            cwd=ROOT,
            env=environment,
        )
        child_end.close()

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        self._process.wait(30)

    def fork(self, root: Path, **job: str) -> tuple[int, socket.socket]:
        """Fork a child, which starts when it receives a byte and then sends its outcome."""
        parent_end, child_end = socket.socketpair()
        text = json.dumps({"root": str(root), **job})
        socket.send_fds(self._control, [text.encode()], [child_end.fileno()])
        child_end.close()
        child = int(self._control.recv(64))
        parent_end.settimeout(_TIMEOUT_SECONDS)
        return child, parent_end

    def run(self, scenario: str, root: Path) -> Run:
        """Run the scenario without faults in a new process."""
        _, link = self.fork(root, scenario=scenario)
        with link:
            return Run(_start_and_wait(link), "")

    def trace(self, scenario: str, root: Path, *options: str) -> Run:
        """Run the scenario under strace with these options."""
        child, link = self.fork(root, scenario=scenario)
        log = root.parent / f"strace-{child}.log"
        command = ["strace", "-f", "-o", str(log), "-p", str(child), *options]
        with link, subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            _await_attached(strace)
            outcome = _start_and_wait(link)
            strace.communicate(timeout=_TIMEOUT_SECONDS)
        text = log.read_text()
        log.unlink()
        return Run(outcome, text)


def _await_attached(strace: subprocess.Popen[str]) -> None:
    """Wait for the message of strace.

    The kernel sets TracerPid earlier, when strace does not see all calls yet.
    """
    assert strace.stderr is not None
    line = strace.stderr.readline()
    if "attached" not in line:
        raise RuntimeError(f"strace did not attach: {line}{strace.stderr.read()}")


def _start_and_wait(link: socket.socket) -> str:
    link.send(b"!")
    try:
        return link.recv(65536).decode()
    except ConnectionResetError:
        return ""


def _names(calls: tuple[str, ...]) -> str:
    return ",".join(f"?{call}" for call in calls)


def count_calls(zygote: Zygote, scenario: str, root: Path) -> dict[str, int]:
    """Return how often a scenario makes each call in one thread, at most, without faults."""
    log = zygote.trace(scenario, root, "-e", f"trace={_names(CHANGING + READS)}").log
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for line in log.splitlines():
        if match := _CALL.match(line):
            counts[match.groups()] += 1  # type: ignore[index]
    highest: dict[str, int] = {}
    for (_, call), count in counts.items():
        highest[call] = max(highest.get(call, 0), count)
    return highest


def all_faults(counts: dict[str, int], kinds: tuple[str, ...]) -> list[Fault]:
    return [
        Fault(kind, call, n) for kind in kinds for call in KINDS[kind][1] for n in range(1, counts.get(call, 0) + 1)
    ]


def sample(faults: list[Fault], size: int) -> list[Fault]:
    """Choose `size` evenly spaced faults."""
    if len(faults) <= size:
        return faults
    return [faults[i * len(faults) // size] for i in range(size)]


@dataclass
class Expectation:
    """The states that a fault in this scenario may leave."""

    scenario: str
    before: State
    after: State
    counts: dict[str, int]
    base: Path | None = None  # a directory to copy instead of building the scenario's dataset
    directories: set[str] | None = None  # the directories of the dataset before the change

    @property
    def allowed(self) -> tuple[State, State]:
        return self.before, self.after


def wrong_outcome(run: Run, state: State, expected: Expectation) -> str | None:
    """Describe how the reported outcome contradicts the recovered state, or return None."""
    if run.outcome in ("acked", "commit_pending") and state != expected.after:
        return f"reported {run.outcome!r}, but the change is missing"
    definite = run.outcome.startswith("error:") or run.outcome in ("io_error", "concurrent_modification")
    if definite and state != expected.before and scenario_named(expected.scenario).is_commit:
        return f"reported {run.outcome!r}, but the change was made"
    return None


def new_root(parent: Path, name: str) -> Path:
    root = parent / name
    root.mkdir()
    return root


def expectation(zygote: Zygote, name: str, parent: Path) -> Expectation:
    """Run the scenario without faults: once to read its states, once to count its calls."""
    scenario = scenario_named(name)
    root = new_root(parent, f"{name}-whole")
    scenario.build(root)
    before, present = scenario.read(root), directories(root)
    assert zygote.run(name, root).acked
    after = scenario.read(root)
    assert before != after
    assert leftovers(root) == []
    counted = new_root(parent, f"{name}-count")
    scenario.build(counted)
    return Expectation(name, before, after, count_calls(zygote, name, counted), directories=present)


def violation(zygote: Zygote, fault: Fault, run: Run, root: Path, expected: Expectation) -> str | None:
    """Describe the promise that a fault broke, or return None."""
    from inlay.commit.transaction import recover

    scenario = scenario_named(expected.scenario)
    raw = scenario.read(root)
    if raw not in expected.allowed and not is_pending(root):
        return "a mix is visible although no commit is pending"
    if run.acked and (raw != expected.after or is_pending(root)):
        return "the change is acknowledged but incomplete"
    recover(root / "ds")
    state = scenario.read(root)
    if state not in expected.allowed:
        return "the recovered state is neither the state before nor the state after"
    if wrong := wrong_outcome(run, state, expected):
        return wrong
    if state == expected.before and expected.directories is not None:
        made = directories(root) - expected.directories
        if made:
            return f"the dataset is unchanged but has new directories: {made}"
    if left := leftovers(root):
        return f"leftover files: {left}"
    if not scenario.repeatable and state == expected.after:
        return None
    again = zygote.run(expected.scenario, root)
    if not again.acked or scenario.read(root) != expected.after or leftovers(root):
        return f"a retry failed: {again.outcome}, leftover files: {leftovers(root)}"
    return None


def try_fault(zygote: Zygote, fault: Fault, parent: Path, expected: Expectation) -> str | None:
    """Run the scenario with one fault on a new dataset, and describe the violation, if any."""
    root = parent / f"{expected.scenario}-{fault.kind}-{fault.call}-{fault.n}"
    if expected.base is not None:
        shutil.copytree(expected.base, root)
    else:
        root.mkdir()
        scenario_named(expected.scenario).build(root)
    run = zygote.trace(expected.scenario, root, "-e", f"trace={fault.call}", "-e", fault.injection)
    assert run.fired, f"{fault} was not injected: {run.log[-500:]}"
    found = violation(zygote, fault, run, root, expected)
    shutil.rmtree(root)
    return None if found is None else f"{fault} (reported {run.outcome!r}): {found}"


@dataclass
class Tally:
    tried: int = 0
    violations: list[str] = field(default_factory=list)


def try_faults(zygote: Zygote, faults: list[Fault], parent: Path, expected: Expectation) -> Tally:
    tally = Tally()
    for fault in faults:
        tally.tried += 1
        if found := try_fault(zygote, fault, parent, expected):
            tally.violations.append(found)
    return tally
