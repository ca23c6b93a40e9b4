"""The process in which DataFusion runs: `python -m inlay.query.worker <descriptor>`.

It answers one query after the other. Everything it may use is limited before the first one, and its owner kills
it when a query takes too long: planning, evaluating constants and some operators cannot be interrupted otherwise.
Messages are JSON over one socket; results are Arrow streams in files.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any


class _WithoutPandas:
    """pyarrow imports pandas if it can: half of this process's start, for nothing."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError(name)


def _limit_process(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_owner(descriptor: int) -> None:
    """Die by signal when the other end of a pipe closes, whatever this process is doing then."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def _serve(owner: Connection) -> None:
    def exchange(message: Mapping[str, Any]) -> Any:
        owner.send_bytes(json.dumps(message).encode())
        return json.loads(owner.recv_bytes())

    from inlay.query.session import ResultTooLargeError, Session

    settings = json.loads(owner.recv_bytes())
    _limit_process(settings["process_memory"])
    session = Session(settings, lambda name: exchange({"find": name}))
    reply: dict[str, Any] = {"ready": True}
    while True:
        request = exchange(reply)
        try:
            reply = session.execute(**request)
        except ResultTooLargeError:
            reply = {"too_large": True}
        except Exception as error:  # noqa: BLE001  # the engine's errors have no common class; their text is examined
            reply = {"error": str(error)}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides
    _end_with_owner(sys.stdin.fileno())
    sys.meta_path.insert(0, _WithoutPandas())
    try:
        _serve(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    main()
