"""API keys. The database holds only hashes: a secret is random, so one round of SHA-256 protects it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import get_args

import sqlalchemy as sa

from inlay.catalog import records, tables
from inlay.catalog.context import Context
from inlay.catalog.ids import is_id, new_id, not_found, require_id
from inlay.catalog.records import ApiKey, NewKey, Page
from inlay.catalog.text import require_text
from inlay.choices import Scope
from inlay.errors import InvalidArgumentError

__all__ = ["Keys"]

_keys = tables.api_keys
_MARK = "inlay"
_USE_IS_NOTED_EVERY = timedelta(minutes=1)


class Keys:
    def __init__(self, context: Context) -> None:
        self._context = context

    def create(self, name: str, scopes: Sequence[str] = ("read", "write")) -> NewKey:
        """A new key, with the secret that nobody can see again."""
        require_text(name, "name", longest=200)
        unknown = sorted(set(scopes) - set(get_args(Scope)))
        if unknown or not scopes:
            raise InvalidArgumentError(
                f"A key has one or both scopes read and write, not {', '.join(unknown) or 'none'}."
            )
        key = ApiKey(new_id("key"), name, sorted(set(scopes)), self._context.now(), None, None)
        secret = f"{_MARK}_{key.id.removeprefix('key_')}_{secrets.token_urlsafe(32)}"
        with self._context.write() as connection:
            connection.execute(_keys.insert().values(**records.values(key), secret_hash=_hash(secret)))
        return NewKey(key, secret)

    def verify(self, secret: str) -> ApiKey | None:
        """The key with this secret, unless it was revoked."""
        parts = secret.split("_", 2)
        key_id = f"key_{parts[1]}" if len(parts) == 3 else ""
        with self._context.read() as connection:
            row = connection.execute(sa.select(_keys).where(_keys.c.id == _askable(key_id))).mappings().first()
        matches = hmac.compare_digest(row["secret_hash"] if row else "0" * 64, _hash(secret))
        if not row or not matches or row["revoked_at"] is not None:
            return None
        key = ApiKey(**{name: value for name, value in row.items() if name != "secret_hash"})
        self._note_use(key)
        return key

    def _note_use(self, key: ApiKey) -> None:
        now = self._context.now()
        if key.last_used_at is None or now - key.last_used_at >= _USE_IS_NOTED_EVERY:
            with self._context.write() as connection:
                connection.execute(_keys.update().where(_keys.c.id == key.id).values(last_used_at=now))

    def list(self, *, limit: int = 100, offset: int = 0) -> Page[ApiKey]:
        """Oldest first, the revoked ones too."""
        records.check_page(limit, offset)
        query = records.select(ApiKey, _keys).order_by(_keys.c.created_at, _keys.c.id)
        with self._context.read() as connection:
            return records.page(connection, ApiKey, query, limit, offset)

    def exist(self) -> bool:
        """Whether any key is valid."""
        with self._context.read() as connection:
            return connection.execute(sa.select(_keys.c.id).where(_keys.c.revoked_at.is_(None))).first() is not None

    def revoke(self, key_id: str) -> ApiKey:
        """Make a key invalid at once and for good."""
        query = records.select(ApiKey, _keys).where(_keys.c.id == require_id("key", key_id))
        with self._context.write() as connection:
            valid = (_keys.c.id == key_id) & _keys.c.revoked_at.is_(None)
            connection.execute(_keys.update().where(valid).values(revoked_at=self._context.now()))
            key = records.first(connection, ApiKey, query)
        if key is None:
            raise not_found("key", key_id)
        return key


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _askable(key_id: str) -> str:
    return key_id if is_id("key", key_id) else ""
