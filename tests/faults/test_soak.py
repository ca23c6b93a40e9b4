"""Eight writers and two readers that are killed at random.

Each acknowledged commit must be present exactly once, and no reader may see a mix of states.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from inlay.commit.transaction import recover
from tests.faults.inject import Zygote
from tests.faults.scenarios import leftovers
from tests.faults.soak import KINDS

pytestmark = pytest.mark.faults
Tally = Callable[[str, int, list[str]], None]
WRITERS, READERS = 8, 2
ROLES = ["write"] * WRITERS + ["read"] * READERS


@dataclass
class MemberProcess:
    role: str
    descriptor: int  # a pidfd, so that the signal cannot reach another process
    link: socket.socket

    def kill(self) -> None:
        """Kill the process. A process that ended by itself has sent its outcome."""
        signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)
        outcome = self.end()
        assert outcome == b"", f"the process ended by itself: {outcome!r}"

    def end(self) -> bytes:
        """Wait for the end of the process and return its outcome, or nothing if it was killed."""
        self.link.settimeout(120)
        try:
            return self.link.recv(1000)
        except ConnectionResetError:
            return b""
        finally:
            self.link.close()
            os.close(self.descriptor)


class ProcessGroup:
    """Writers and readers, of which each is replaced after a kill."""

    def __init__(self, zygote: Zygote, kind: str, root: Path) -> None:
        self._zygote, self._kind, self._root = zygote, kind, root
        self._names = itertools.count()
        self.members: list[MemberProcess] = []

    def start(self, role: str) -> None:
        name = f"{role.split(maxsplit=1)[0]}{next(self._names)}"
        child, link = self._zygote.fork(self._root, kind=self._kind, role=role, name=name)
        self.members.append(MemberProcess(role, os.pidfd_open(child), link))
        link.send(b"!")

    def kill_one(self, rng: random.Random) -> None:
        victim = self.members.pop(rng.randrange(len(self.members)))
        victim.kill()
        self.start(victim.role)

    def stop(self) -> None:
        (self._root / "stop").touch()
        assert [member.end() for member in self.members] == [b"ended"] * len(self.members)


def soak(
    zygote: Zygote,
    kind: str,
    root: Path,
    seconds: float,
    pause: float,
    roles: Sequence[str] = ROLES,
    watch: Callable[[], None] = lambda: None,
) -> tuple[int, list[str]]:
    """Return the number of kills, and all lines that the processes logged. Call `watch` after each kill."""
    rng = random.Random(20)
    group = ProcessGroup(zygote, kind, root)
    for role in roles:
        group.start(role)
    deadline, kills = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < deadline:
            time.sleep(rng.uniform(0.5, 1.5) * pause)
            group.kill_one(rng)
            kills += 1
            watch()
    finally:
        group.stop()
    return kills, [line for log in root.glob("log-*") for line in log.read_text().splitlines()]


def seconds(thorough: bool, quick: float = 8) -> float:
    return float(os.environ.get("INLAY_SOAK_SECONDS") or (60 if thorough else quick))


def _finish(root: Path, kind: str) -> list[list[str]]:
    recover(root / "ds")
    states = KINDS[kind][2](root)
    assert [name for name in leftovers(root) if "/log-" not in name and not name.endswith("/stop")] == []
    return states


@pytest.mark.timeout(900)
def test_concurrent_commits_under_random_kills(zygote: Zygote, tmp_path: Path, tally: Tally, thorough: bool) -> None:
    KINDS["files"][0](tmp_path)
    kills, lines = soak(zygote, "files", tmp_path, seconds(thorough), 0.1)
    states = _finish(tmp_path, "files")
    acked = [line.split()[1] for line in lines if line.startswith("acked ")]
    tried = {line.split()[1] for line in lines if line.startswith("tried ")}
    present = Counter(states[0])
    violations = [line for line in lines if line.startswith(("mixed ", "failed "))]
    violations += ["a mix in the final state"] * any(state != states[0] for state in states)
    violations += [f"{entry} is present {present[entry]} times" for entry in acked if present[entry] != 1]
    violations += [
        f"{entry} was never tried, or is present twice" for entry in present if entry not in tried or present[entry] > 1
    ]
    assert kills > 10
    assert len(acked) > 50
    assert lines.count("read") > 50
    tally(f"commits of {WRITERS} writers ({kills} kills, {lines.count('read')} reads)", len(acked), violations)


@pytest.mark.timeout(900)
def test_concurrent_merges_under_random_kills(zygote: Zygote, tmp_path: Path, tally: Tally, thorough: bool) -> None:
    KINDS["merge"][0](tmp_path)
    kills, lines = soak(zygote, "merge", tmp_path, seconds(thorough), 0.25)
    states = _finish(tmp_path, "merge")
    violations = [line for line in lines if line.startswith(("mixed ", "failed "))]
    violations += ["a mix in the final state"] * any(state != states[0] for state in states)
    latest = dict(entry.split(":") for entry in states[0])
    violations += [
        f"{name} has several rows" for name in latest if sum(e.startswith(f"{name}:") for e in states[0]) > 1
    ]
    acked = [line.split()[1].split(":") for line in lines if line.startswith("acked ")]
    violations += [f"{name}:{number} is missing" for name, number in acked if int(latest.get(name, 0)) < int(number)]
    assert kills > 3
    assert len(acked) > 10
    assert lines.count("read") > 5
    tally(f"merges of {WRITERS} writers ({kills} kills, {lines.count('read')} reads)", len(acked), violations)
