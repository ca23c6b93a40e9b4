"""A warm process that forks the victims: importing costs a second, forking a millisecond.

For every job (a JSON text and one end of a socket) it forks a child and answers with its process id. The child
waits for one byte, so that strace can attach first, runs the scenario, says how it ended and exits.
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
    """Import what a change imports when it is first made, so that faults hit the change and not the imports."""
    for name in ("files", "upsert", "compact"):
        with tempfile.TemporaryDirectory() as place:
            scenario = scenarios.scenario_named(name)
            scenario.build(Path(place))
            scenario.apply(Path(place))


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
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)  # let strace in where Yama guards
        gc.disable()
        parent.recv(1)
        parent.send(work(job, Path(job["root"])).encode())
    except KeyboardInterrupt:
        parent.send(b"interrupted")
    finally:
        os._exit(0)


def work(job: dict[str, str], root: Path) -> str:
    """A scenario once, or one of the endless tasks of a soak."""
    if "scenario" in job:
        # one processor, so one worker thread: the n-th call is the same one every time
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[os.getpid() % len(processors)]})
        return scenarios.outcome(scenarios.scenario_named(job["scenario"]), root)
    soak.ROLES[job["role"]](job["kind"], root, job["name"])
    return "ended"


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
