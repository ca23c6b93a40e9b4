"""API keys, stored as SHA-256 hashes, which suffice because the secrets are random."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import get_args

import sqlalchemy as sa

from inlay.catalog import records, tables
from inlay.catalog.database import Context, require_text
from inlay.catalog.lookups import Lookup
from inlay.catalog.names import is_id, new_id, not_found, require_id
from inlay.catalog.records import ApiKey, NewApiKey, Page
from inlay.constants import Scope
from inlay.errors import InvalidArgumentError, StorageFullError

__all__ = ["ApiKeys"]

_keys = tables.api_keys
_PREFIX = "inlay"
_USE_INTERVAL = timedelta(minutes=1)  # between updates of last_used_at
_BY_ID = Lookup(sa.select(_keys).where(_keys.c.id == sa.bindparam("key_id")))
_ANY = Lookup(sa.select(_keys.c.id).limit(1))
_ANY_VALID = Lookup(sa.select(_keys.c.id).where(_keys.c.revoked_at.is_(None)).limit(1))


class ApiKeys:
    def __init__(self, context: Context) -> None:
        self._context = context

    def create(self, name: str, scopes: Sequence[str] = ("read", "write")) -> NewApiKey:
        """Create an API key. Its secret cannot be read again."""
        require_text(name, "name", max_length=200)
        unknown = sorted(set(scopes) - set(get_args(Scope)))
        if unknown or not scopes:
            problem = f"Unknown scope {unknown[0]!r}." if unknown else "The API key has no scope."
            raise InvalidArgumentError(problem, hint="Use the scope read, write, or both.")
        key = ApiKey(new_id("key"), name, sorted(set(scopes)), self._context.now(), None, None)
        secret = f"{_PREFIX}_{key.id.removeprefix('key_')}_{secrets.token_urlsafe(32)}"
        with self._context.write() as connection:
            connection.execute(_keys.insert().values(**records.values(key), secret_hash=_hash(secret)))
        return NewApiKey(key, secret)

    def verify(self, secret: str) -> ApiKey | None:
        """Return the API key with this secret, or None if it does not exist or is revoked."""
        parts = secret.split("_", 2)
        key_id = f"key_{parts[1]}" if len(parts) == 3 else ""
        row = self._context.look_up(_BY_ID, key_id=key_id) if is_id("key", key_id) else None
        values = dict(zip(_keys.c.keys(), row, strict=True)) if row is not None else {"secret_hash": "0" * 64}
        matches = hmac.compare_digest(values.pop("secret_hash"), _hash(secret))
        return ApiKey(**values) if matches and values["revoked_at"] is None else None

    def is_use_due(self, key: ApiKey) -> bool:
        """Return whether to record the use of a key. The catalog holds its last use to the minute."""
        return key.last_used_at is None or self._context.now() - key.last_used_at >= _USE_INTERVAL

    def record_use(self, key: ApiKey) -> None:
        # A full disk must not prevent reads.
        with contextlib.suppress(StorageFullError), self._context.write() as connection:
            connection.execute(_keys.update().where(_keys.c.id == key.id).values(last_used_at=self._context.now()))

    def list(self, *, limit: int = 100, offset: int = 0) -> Page[ApiKey]:
        """List all API keys, including revoked ones, oldest first."""
        records.check_page(limit, offset)
        query = records.select(ApiKey, _keys).order_by(_keys.c.created_at, _keys.c.id)
        with self._context.read() as connection:
            return records.page(connection, ApiKey, query, limit, offset)

    def exist(self) -> bool:
        """Return whether any API key is valid."""
        return self._context.look_up(_ANY_VALID) is not None

    def have_existed(self) -> bool:
        """Return whether any API key was ever created, even if all are revoked."""
        return self._context.look_up(_ANY) is not None

    def revoke(self, key_id: str) -> ApiKey:
        """Revoke an API key permanently."""
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
