"""Faults through strace: which calls a change makes, and the change again with one of them failing."""

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

# What touches files. strace names calls as the kernel does, which differs between architectures: "?" makes a
# name that this one lacks no error.
OPENS = ("open", "openat")
WRITES = ("write", "pwrite64", "writev", "ftruncate", "copy_file_range", "sendfile")
RENAMES = ("rename", "renameat", "renameat2", "link", "linkat")
REMOVALS = ("unlink", "unlinkat", "rmdir")
MAKES = ("mkdir", "mkdirat", "chmod", "fchmod", "fchmodat", "flock")
SYNCS = ("fsync", "fdatasync")
CHANGING = OPENS + WRITES + RENAMES + REMOVALS + MAKES + SYNCS
LOOKS = ("read", "pread64", "getdents64", "stat", "lstat", "fstat", "newfstatat", "statx", "access", "faccessat2")

# how a fault is written for strace, and which calls it can hit
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "kill": ("signal=KILL:when={n}", CHANGING),
    "interrupt": ("signal=INT:when={n}", CHANGING),
    "full": ("error=ENOSPC:when={n}+", OPENS + WRITES + MAKES[:2]),
    "eio": ("error=EIO:when={n}", CHANGING),
    "eio-for-good": ("error=EIO:when={n}+", SYNCS + RENAMES + REMOVALS),
    "eio-look": ("error=EIO:when={n}", LOOKS),
}

_CALL = re.compile(r"^(?:\[pid\s+)?(\d+)\]?\s+(\w+)\(")
_LIMIT = 60.0


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
    """How a change ended: what it said (nothing, if it died first) and what strace saw."""

    said: str
    log: str

    @property
    def fired(self) -> bool:
        return "+++ killed by SIGKILL" in self.log or "(INJECTED)" in self.log or "--- SIGINT" in self.log

    @property
    def acked(self) -> bool:
        return self.said == "acked"


class Zygote:
    """The parent's end of tests/faults/zygote.py."""

    def __init__(self) -> None:
        if shutil.which("strace") is None:
            raise RuntimeError("these tests need strace: make setup-test")
        self._control, theirs = socket.socketpair()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env=environment,
        )
        theirs.close()

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        self._process.wait(30)

    def fork(self, root: Path, **job: str) -> tuple[int, socket.socket]:
        """Start a child; it begins when it is sent a byte, and says how it ended."""
        ours, theirs = socket.socketpair()
        text = json.dumps({"root": str(root), **job})
        socket.send_fds(self._control, [text.encode()], [theirs.fileno()])
        theirs.close()
        child = int(self._control.recv(64))
        ours.settimeout(_LIMIT)
        return child, ours

    def run(self, scenario: str, root: Path) -> Run:
        """The change, undisturbed, in a process of its own."""
        _, link = self.fork(root, scenario=scenario)
        with link:
            return Run(_conversation(link), "")

    def trace(self, scenario: str, root: Path, *options: str) -> Run:
        """The change under strace with the given options."""
        child, link = self.fork(root, scenario=scenario)
        log = root.parent / f"strace-{child}.log"
        command = ["strace", "-f", "-o", str(log), "-p", str(child), *options]
        with link, subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            _await_attached(strace)
            said = _conversation(link)
            strace.communicate(timeout=_LIMIT)
        text = log.read_text()
        log.unlink()
        return Run(said, text)


def _await_attached(strace: subprocess.Popen[str]) -> None:
    """TracerPid in /proc is set too early: the child could still run a few calls that strace does not see."""
    assert strace.stderr is not None
    line = strace.stderr.readline()
    if "attached" not in line:
        raise RuntimeError(f"strace did not attach: {line}{strace.stderr.read()}")


def _conversation(link: socket.socket) -> str:
    link.send(b"!")
    try:
        return link.recv(65536).decode()
    except ConnectionResetError:
        return ""


def _names(calls: tuple[str, ...]) -> str:
    return ",".join(f"?{call}" for call in calls)


def count_calls(zygote: Zygote, scenario: str, root: Path) -> dict[str, int]:
    """How often each call happens in one undisturbed change, at most, in any one thread."""
    log = zygote.trace(scenario, root, "-e", f"trace={_names(CHANGING + LOOKS)}").log
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for line in log.splitlines():
        if match := _CALL.match(line):
            counts[match.groups()] += 1  # type: ignore[index]
    most: dict[str, int] = {}
    for (_, call), count in counts.items():
        most[call] = max(most.get(call, 0), count)
    return most


def all_faults(counts: dict[str, int], kinds: tuple[str, ...]) -> list[Fault]:
    return [
        Fault(kind, call, n) for kind in kinds for call in KINDS[kind][1] for n in range(1, counts.get(call, 0) + 1)
    ]


def sample(faults: list[Fault], size: int) -> list[Fault]:
    """An even, repeatable choice."""
    if len(faults) <= size:
        return faults
    return [faults[i * len(faults) // size] for i in range(size)]


@dataclass
class Expectation:
    """What may be found after a fault in this scenario."""

    scenario: str
    before: State
    after: State
    counts: dict[str, int]
    base: Path | None = None  # what to start from, if not from what the scenario builds
    directories: set[str] | None = None  # those before the change

    @property
    def allowed(self) -> tuple[State, State]:
        return self.before, self.after


def said_wrong(run: Run, state: State, expected: Expectation) -> str | None:
    """What the caller was told must be true once the dataset has settled."""
    if run.said in ("acked", "commit_pending") and state != expected.after:
        return f"told {run.said!r} but the change is not there"
    definite = run.said.startswith("error:") or run.said in ("io_error", "concurrent_modification")
    if definite and state != expected.before:
        return f"told {run.said!r} but the change was made"
    return None


def new_root(place: Path, name: str) -> Path:
    root = place / name
    root.mkdir()
    return root


def expectation(zygote: Zygote, scenario: str, place: Path) -> Expectation:
    """Run the scenario once undisturbed, and once to count its calls."""
    what = scenario_named(scenario)
    root = new_root(place, f"{scenario}-whole")
    what.build(root)
    before, present = what.read(root), directories(root)
    assert zygote.run(scenario, root).acked
    after = what.read(root)
    assert before != after
    assert leftovers(root) == []
    counted = new_root(place, f"{scenario}-count")
    what.build(counted)
    return Expectation(scenario, before, after, count_calls(zygote, scenario, counted), directories=present)


def violation(zygote: Zygote, fault: Fault, run: Run, root: Path, expected: Expectation) -> str | None:
    """What a fault broke, in words; None if every promise holds."""
    from inlay.commit.transaction import recover

    what = scenario_named(expected.scenario)
    raw = what.read(root)
    if raw not in expected.allowed and not is_pending(root):
        return "a mix is visible and no commit is pending"
    if run.acked and (raw != expected.after or is_pending(root)):
        return "acknowledged but not complete"
    recover(root / "ds")
    state = what.read(root)
    if state not in expected.allowed:
        return "neither before nor after once recovered"
    if wrong := said_wrong(run, state, expected):
        return wrong
    if state == expected.before and expected.directories is not None:
        made = directories(root) - expected.directories
        if made:
            return f"not changed, but made directories: {made}"
    if left := leftovers(root):
        return f"left behind: {left}"
    if not what.repeatable and state == expected.after:
        return None
    again = zygote.run(expected.scenario, root)
    if not again.acked or what.read(root) != expected.after or leftovers(root):
        return f"a retry failed: {again.said}, left behind {leftovers(root)}"
    return None


def try_fault(zygote: Zygote, fault: Fault, place: Path, expected: Expectation) -> str | None:
    """One fault on a fresh copy of the dataset."""
    root = place / f"{expected.scenario}-{fault.kind}-{fault.call}-{fault.n}"
    if expected.base is not None:
        shutil.copytree(expected.base, root)
    else:
        root.mkdir()
        scenario_named(expected.scenario).build(root)
    run = zygote.trace(expected.scenario, root, "-e", f"trace={fault.call}", "-e", fault.injection)
    assert run.fired, f"{fault} did not fire: {run.log[-500:]}"
    found = violation(zygote, fault, run, root, expected)
    shutil.rmtree(root)
    return None if found is None else f"{fault} (said {run.said!r}): {found}"


@dataclass
class Tally:
    tried: int = 0
    violations: list[str] = field(default_factory=list)


def try_faults(zygote: Zygote, faults: list[Fault], place: Path, expected: Expectation) -> Tally:
    tally = Tally()
    for fault in faults:
        tally.tried += 1
        if found := try_fault(zygote, fault, place, expected):
            tally.violations.append(found)
    return tally
