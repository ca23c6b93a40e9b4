"""A TCP proxy on loopback that forwards connections, falls silent, or refuses connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

FAULTS = ("mute", "refuse")
_BLOCK_BYTES = 1 << 16


class TcpProxy:
    """Forwards each connection to a new one that `connect` opens."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._forwards = threading.Event()
        self._forwards.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listen(0)

    @classmethod
    def to(cls, address: tuple[str, int] | str) -> TcpProxy:
        """Return a proxy to a host and port, or to a Unix socket."""

        def connect() -> socket.socket:
            if not isinstance(address, str):
                return socket.create_connection(address)
            opened = socket.socket(socket.AF_UNIX)
            opened.connect(address)
            return opened

        return cls(connect)

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._forwards.set()
        self._stop()
        for thread in self._threads:
            thread.join()

    @contextlib.contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Be `mute` (accept, but never answer) or `refuse` connections inside the block."""
        with {"mute": self._mute, "refuse": self._refuse}[name]():
            yield

    @contextlib.contextmanager
    def _mute(self) -> Iterator[None]:
        self._forwards.clear()
        try:
            yield
        finally:
            self._forwards.set()

    @contextlib.contextmanager
    def _refuse(self) -> Iterator[None]:
        self._stop()
        try:
            yield
        finally:
            self._listen(self.port)

    def _listen(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._run(self._accept, self._listener)

    def _stop(self) -> None:
        """Close the port, and reset all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for opened in self._sockets:
            with contextlib.suppress(OSError):
                # With SO_LINGER 0, closing the connection resets it.
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        self._sockets.clear()

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="tcp-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # the listener is closed
                return
            self._sockets.append(client)
            self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        self._forwards.wait()
        try:
            server = self._connect()
        except OSError:
            client.close()
            return
        self._sockets.append(server)
        self._run(self._forward, server, client)
        self._forward(client, server)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_BLOCK_BYTES):
                self._forwards.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
