"""A process that has imported everything and forks children for fault tests.

Imports take a second, and a fork takes a millisecond. For each job (JSON text and one end of a socket), the process
forks a child and sends the child's pid. The child waits for one byte, so that strace can attach. Then it runs the
scenario, sends the outcome and exits.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

from tests.faults import scenarios, soak

_PR_SET_PTRACER = 0x59616D61


def warm_up() -> None:
    """Run changes once, so that later faults do not occur in the imports of a first run."""
    for name in ("files", "upsert", "compact"):
        with tempfile.TemporaryDirectory() as root:
            scenario = scenarios.scenario_named(name)
            scenario.build(Path(root))
            scenario.apply(Path(root))


def serve(control: socket.socket) -> None:
    warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    while True:
        text, descriptors, _, _ = socket.recv_fds(control, 65536, 1)
        if not text:
            return
        child = os.fork()
        if child == 0:
            control.close()
            run(json.loads(text), socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])
        control.send(str(child).encode())


def run(job: dict[str, str], parent: socket.socket) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Lets strace attach where the security module Yama restricts ptrace.
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
        gc.disable()
        parent.recv(1)
        parent.send(work(job, Path(job["root"])).encode())
    except KeyboardInterrupt:
        parent.send(b"interrupted")
    finally:
        os._exit(0)


def work(job: dict[str, str], root: Path) -> str:
    """Run a scenario once, or a writer or reader of a soak until it is stopped."""
    if "scenario" in job:
        # With one processor there is one worker thread, so that the n-th call is the same in every run.
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[os.getpid() % len(processors)]})
        return scenarios.outcome(scenarios.scenario_named(job["scenario"]), root)
    soak.ROLES[job["role"]](job["kind"], root, job["name"])
    return "ended"


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
