"""Text that every database can hold."""

from __future__ import annotations

from inlay.errors import InvalidArgumentError

__all__ = ["require_text"]

_LONGEST = 4096


def require_text(value: str, what: str, *, longest: int = _LONGEST) -> str:
    """The text, unless it is blank, too long, or has characters that PostgreSQL or UTF-8 cannot hold."""
    if not value.strip():
        raise InvalidArgumentError(f"{what} must not be empty.")
    if len(value) > longest:
        raise InvalidArgumentError(f"{what} has {len(value):,} characters, and {longest:,} are allowed.")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidArgumentError(f"{what} has a NUL character or half a surrogate pair: {value[:50]!r}.")
    return value
