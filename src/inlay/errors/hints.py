"""Hints for misspelled names, and short forms of values in errors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from inlay.errors.base import InvalidArgumentError

__all__ = ["close_matches", "did_you_mean", "short_repr", "unknown"]

_MAX_COMPARED_LENGTH = 200  # difflib compares in quadratic time
_MAX_REPR_LENGTH = 100


def close_matches(name: object, known: Iterable[str], limit: int = 1) -> list[str]:
    """Return the known names that are spelled most like `name`, ignoring case."""
    if not isinstance(name, str) or len(name) > _MAX_COMPARED_LENGTH:
        return []
    spellings = {each.casefold(): each for each in known}
    return [spellings[each] for each in difflib.get_close_matches(name.casefold(), spellings, limit)]


def did_you_mean(name: object, known: Iterable[str], limit: int = 1, quote: Callable[[str], str] = repr) -> str | None:
    """Return the hint "Did you mean ...?" if `name` is close to a known name, else None."""
    matches = [quote(each) for each in close_matches(name, known, limit)]
    return f"Did you mean {' or '.join(matches)}?" if matches else None


def unknown(kind: str, name: object, known: Iterable[str]) -> InvalidArgumentError:
    """Build the error for a name that is not among the known names."""
    names = list(known)
    return InvalidArgumentError(
        f"Unknown {kind} {short_repr(name)}; known: {', '.join(names) or 'none'}.", hint=did_you_mean(name, names)
    )


def short_repr(value: object) -> str:
    """Return the representation of a value for an error, without the end of a long one."""
    text = repr(value)
    return text if len(text) <= _MAX_REPR_LENGTH else f"{text[:_MAX_REPR_LENGTH]}…"
