"""An in-memory object store whose k-th request fails, or waits until a callback has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from fsspec.implementations.memory import MemoryFileSystem

# kind -> whether the k-th request takes effect, whether all later requests fail, and the error that the client gets
KINDS: dict[str, tuple[bool, bool, type[BaseException]]] = {
    "refused": (False, False, OSError),
    "response lost": (True, False, OSError),
    "conflict reported": (False, False, FileExistsError),
    "dead": (False, True, OSError),
    "response lost, then dead": (True, True, OSError),
    "interrupted": (False, False, KeyboardInterrupt),
    "done and interrupted": (True, False, KeyboardInterrupt),
}


class Store:
    """The objects that all clients of a test share."""

    def __init__(self) -> None:
        class Client(Flaky):
            store: ClassVar[dict[str, Any]] = {}
            pseudo_dirs: ClassVar[list[str]] = [""]

        self._client = Client

    def client(self) -> Flaky:
        return self._client(skip_instance_cache=True)


class Flaky(MemoryFileSystem):
    """A client of a store. Without a fault, it is a plain store with conditional writes."""

    protocol = "flaky"
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.requests: list[str] = []
        self.kind: str | None = None
        self.k = 0
        self.callback: Callable[[], None] | None = None
        self.in_flight = False
        self._in_request = False

    def fail(self, kind: str, k: int) -> None:
        self.requests, self.kind, self.k = [], kind, k

    def before(self, k: int, callback: Callable[[], None], *, in_flight: bool = False) -> None:
        """Run the callback before the k-th request.

        With `in_flight`, the k-th request must be a copy, and the callback runs in the middle of it.
        """
        self.requests, self.k, self.callback, self.in_flight = [], k, callback, in_flight

    @property
    def fired(self) -> bool:
        return 0 < self.k <= len(self.requests)

    def _request(self, name: str, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self._in_request:  # calls that the filesystem makes itself are part of the same request
            return work(*arguments, **options)
        self.requests.append(f"{name} {arguments[0]}")
        self._in_request = True
        try:
            return self._run_request(len(self.requests), lambda: work(*arguments, **options))
        finally:
            self._in_request = False

    def _run_request(self, index: int, work: Callable[[], Any]) -> Any:
        if index == self.k and self.callback is not None and not self.in_flight:
            self.callback()
        if self.kind is None or index < self.k:
            return work()
        effective, dead, error = KINDS[self.kind]
        if index > self.k:
            if dead:
                raise OSError("the network is down")
            return work()
        if effective:
            work()
        raise error("this request failed")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> Any:
        return self._request("put", super().pipe_file, path, value, mode=mode, **options)

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        return self._request("get", super().cat_file, path, *arguments, **options)

    def cp_file(self, path1: str, path2: str, **options: Any) -> Any:
        return self._request("copy", self._copy, path1, path2, **options)

    def _copy(self, source: str, target: str) -> None:
        content = self.cat_file(source)
        if self.in_flight and self.callback is not None and len(self.requests) == self.k:
            self.callback()
        self.pipe_file(target, content)

    def rm_file(self, path: str) -> Any:
        return self._request("delete", super().rm_file, path)

    def info(self, path: str, **options: Any) -> Any:
        return self._request("head", super().info, path, **options)

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        return self._request("list", super().find, path, *arguments, **options)

    def open(self, path: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        return self._request("open", super().open, path, mode, *arguments, **options)


class UnconditionalStore(MemoryFileSystem):
    """A store that ignores the condition of a conditional write."""

    protocol = "unconditional"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> Any:
        return super().pipe_file(path, value, mode="overwrite", **options)
