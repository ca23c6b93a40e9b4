"""Names of things: random, short, safe in paths and addresses, and they say what they name."""

from __future__ import annotations

import base64
import re
import secrets
from typing import Literal

from inlay.errors import NotFoundError

__all__ = ["Kind", "dataset_directory", "is_id", "new_id", "not_found", "require_id", "upload_directory"]

Kind = Literal["upload", "dataset", "job", "key"]
_PREFIXES: dict[Kind, str] = {"upload": "upld_", "dataset": "data_", "job": "job_", "key": "key_"}
_RANDOM_BYTES = 15  # 24 characters


def new_id(kind: Kind) -> str:
    return _PREFIXES[kind] + base64.b32encode(secrets.token_bytes(_RANDOM_BYTES)).decode().lower()


def is_id(kind: Kind, text: str) -> bool:
    return re.fullmatch(_PREFIXES[kind] + r"[a-z2-7]{1,64}", text) is not None


def require_id(kind: Kind, text: str) -> str:
    """What does not look like an id names nothing; the database is not asked, and need not bear any text."""
    if not is_id(kind, text):
        raise not_found(kind, text)
    return text


def not_found(kind: Kind, text: str) -> NotFoundError:
    name = "API key" if kind == "key" else kind
    return NotFoundError(f"There is no {name} {text[:100]!r}.")


def upload_directory(upload_id: str) -> str:
    """Where an upload's bytes lie, relative to the root of the storage."""
    return f"uploads/{upload_id}"


def dataset_directory(dataset_id: str) -> str:
    """Where all files of a dataset lie, relative to the root of the storage."""
    return f"datasets/{dataset_id}"
