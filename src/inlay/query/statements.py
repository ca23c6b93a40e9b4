"""SQL text, as far as it must be understood here: where a name stands in it, and how it begins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

__all__ = ["first_word", "position_at", "position_of", "quoted", "respelled", "tokens"]

# A comment, text or quoted name that is never closed reaches to the end: every pattern is linear.
_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'[^']*(?:''[^']*)*(?:'|\Z)"""
    r"""|"(?P<quoted>[^"]*(?:""[^"]*)*)(?:"|\Z)|(?P<word>[^\W\d]\w*)|(?P<other>\d\w*|\S)""",
    re.DOTALL,
)
_CALL = re.compile(r"\s*\(")


def tokens(sql: str) -> Iterator[re.Match[str]]:
    """The pieces of a statement: a `word`, a `quoted` name, any `other` mark, or else a comment or text."""
    return _TOKEN.finditer(sql)


def first_word(sql: str) -> str:
    """The word that a statement begins with, in lower case; empty if it begins with something else."""
    for token in tokens(sql):
        if token["word"] is not None:
            return token["word"].lower()
        if token["other"] is not None and token["other"] != ";":
            return ""
    return ""


def _is(name: str) -> Callable[[re.Match[str]], bool]:
    def matches(token: re.Match[str]) -> bool:
        if token["quoted"] is not None:
            return token["quoted"].replace('""', '"') == name
        return token["word"] is not None and token["word"].lower() == name.lower()

    return matches


def position_at(sql: str, offset: int) -> tuple[int, int]:
    """Line and column, both from 1."""
    return sql.count("\n", 0, offset) + 1, offset - sql.rfind("\n", 0, offset)


def position_of(sql: str, name: str) -> tuple[int, int] | None:
    """Where a name first stands, outside of text and comments."""
    token = next(filter(_is(name), tokens(sql)), None)
    return None if token is None else position_at(sql, token.start())


def quoted(name: str) -> str:
    """A name as it can be written whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def respelled(sql: str, name: str, exact: str) -> str:
    """The same statement with an unquoted name, in any case, written exactly; names of functions stay."""
    written = quoted(exact)

    def change(token: re.Match[str]) -> str:
        is_name = token["word"] is not None and token["word"].lower() == name.lower()
        return written if is_name and not _CALL.match(sql, token.end()) else token.group()

    return _TOKEN.sub(change, sql)
