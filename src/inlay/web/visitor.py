"""Who looks at a page, and what they may do with the workspace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from fastapi import Request

from inlay.choices import Scope
from inlay.server.auth import SESSION_COOKIE, caller_of, identify, require
from inlay.server.service import Service, Threads

if TYPE_CHECKING:
    from inlay.workspace import Workspace

__all__ = ["Visitor"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Visitor:
    """The way from a page to the workspace. Keys are looked at in every call: a revoked one ends at once."""

    service: Service
    secret: str | None = field(default=None, repr=False)

    @classmethod
    async def of(cls, request: Request) -> Visitor:
        """The one who asks for a page, who must be allowed to read."""
        require(await caller_of(request), "read")
        return cls(request.app.state.service, request.cookies.get(SESSION_COOKIE))

    async def read(self, work: Callable[[Workspace], T], threads: Threads = "catalog") -> T:
        return await self._run("read", work, threads)

    async def write(self, work: Callable[[Workspace], T], threads: Threads = "catalog") -> T:
        return await self._run("write", work, threads)

    async def may(self, scope: Scope) -> bool:
        return scope in (await identify(self.service, self.secret)).scopes

    async def _run(self, scope: Scope, work: Callable[[Workspace], T], threads: Threads) -> T:
        require(await identify(self.service, self.secret), scope)
        return await self.service.run(work, threads)
