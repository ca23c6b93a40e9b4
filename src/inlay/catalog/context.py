"""What every part of the catalog shares: the database, who we are, and how long things last."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.engine import Connection

from inlay.catalog.engine import Database

__all__ = ["Context"]


@dataclass(frozen=True, slots=True)
class Context:
    database: Database
    owner: str  # of the jobs that are made and run here
    lease: timedelta  # how long a job survives the silence of its owner
    grace: timedelta  # how long readers may go on with files that are needed no more

    def now(self) -> datetime:
        return self.database.now()

    def read(self) -> AbstractContextManager[Connection]:
        return self.database.read()

    def write(self) -> AbstractContextManager[Connection]:
        return self.database.write()
