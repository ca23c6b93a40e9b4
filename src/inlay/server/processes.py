"""The HTTP processes of a service: the main process starts, watches and replaces the others.

The main process does all work that only one process may do: it migrates the catalog, runs jobs and maintenance, owns
Spark and serves the page. The others answer reads, queries and uploads, and forward all other requests to the main
process. All processes accept connections on the same port, and share one catalog.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from inlay.settings import Settings

__all__ = ["Processes"]

log = logging.getLogger("inlay.server")
_ANSWER_SECONDS = 1.4  # so that the readiness is known within 2 seconds
_RESTART_SECONDS = 2.0  # between two starts of a process that ends again and again
_STOP_SECONDS = 25.0  # longer than a process waits for its requests
_LINE_BYTES = 64 << 20  # for the metrics of a process


class Processes:
    """All HTTP processes except the main process, in which this object is."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._numbers = range(2, settings.http_processes + 1)
        self._running: dict[int, _Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        # An abstract address needs no file, and disappears with the process. Requests to it need the same API key.
        self.address = f"\0inlay-{secrets.token_hex(16)}"
        self.forwarded = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # connections of the other processes
        self.forwarded.bind(self.address)

    def start(self, warm: Callable[[], object]) -> None:
        """Start the processes. `warm` starts Spark, when an upload begins in one of them."""
        self._tasks = [asyncio.create_task(self._keep_running(number, warm)) for number in self._numbers]

    async def _keep_running(self, number: int, warm: Callable[[], object]) -> None:
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                reason = f"ended with code {await self._run(number, warm)}"
            except OSError as error:  # such as too many processes or open files
                reason = f"cannot start: {error}"
            if not self._stopping.is_set():
                log.warning("HTTP process %d %s; it is replaced", number, reason)
                await asyncio.sleep(max(0.0, started + _RESTART_SECONDS - time.monotonic()))

    async def _run(self, number: int, warm: Callable[[], object]) -> int | None:
        """Start a process and wait for its end. Return its exit code."""
        process = await _Process.start(self._configuration, warm)
        self._running[number] = process
        if self._stopping.is_set():  # it has started too late for `stop`
            process.signal(signal.SIGTERM)
        await process.run()
        del self._running[number]
        return process.code

    @property
    def _configuration(self) -> dict[str, Any]:
        return {"settings": asdict(self._settings), "address": self.address}

    async def answers(self) -> dict[int, dict[str, Any]]:
        """Return the readiness and the metrics of each process, or nothing for a process that does not answer."""
        found = await asyncio.gather(*(self._answer(number) for number in self._numbers))
        return dict(zip(self._numbers, found, strict=True))

    async def _answer(self, number: int) -> dict[str, Any]:
        process = self._running.get(number)
        return await process.ask() if process is not None else {}

    async def state(self) -> str:
        """Return `ready`, or how many processes are ready."""
        answers = (await self.answers()).values()
        ready = 1 + sum(answer.get("state") == "ready" for answer in answers)
        return "ready" if ready > len(answers) else f"{ready} of {len(answers) + 1} processes are ready"

    async def stop(self) -> None:
        """Let the processes complete their requests, then end them."""
        self._stopping.set()
        for process in self._running.values():
            process.signal(signal.SIGTERM)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_SECONDS)
        for process in self._running.values():
            process.signal(signal.SIGKILL)
        for task in self._tasks:
            task.cancel()


class _Process:
    """One HTTP process. Its standard input is a socket, whose end tells it that the main process has ended."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        warm: Callable[[], object],
    ) -> None:
        self._process, self._reader, self._writer, self._warm = process, reader, writer, warm
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @classmethod
    async def start(cls, configuration: dict[str, Any], warm: Callable[[], object]) -> _Process:
        own_end, other_end = socket.socketpair()
        try:
            with other_end:
                process = await asyncio.to_thread(_start_program, other_end)
        except BaseException:
            own_end.close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=own_end, limit=_LINE_BYTES)
        started = cls(process, reader, writer, warm)
        started._send(configuration)
        return started

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def run(self) -> None:
        """Read the messages of the process until it ends."""
        with contextlib.suppress(ConnectionError, ValueError):  # the process can end in the middle of a message
            while line := await self._reader.readline():
                message = json.loads(line)
                if message.get("warm"):
                    self._warm()
                elif (waiting := self._waiting.pop(message["answer"], None)) is not None and not waiting.done():
                    waiting.set_result(message)
        self._writer.close()
        self.signal(signal.SIGKILL)  # a process that this process cannot hear must not go on
        await asyncio.to_thread(self._process.wait)

    async def ask(self) -> dict[str, Any]:
        """Return the state and the metrics of the process, or nothing if it does not answer in time."""
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send({"ask": number})
        try:
            return await asyncio.wait_for(self._waiting[number], _ANSWER_SECONDS)
        except TimeoutError:
            return {}
        finally:
            self._waiting.pop(number, None)


def _start_program(control: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "inlay.server.process"],
        stdin=control.fileno(),
        process_group=0,  # Ctrl+C reaches the main process alone, which then stops the others
    )
