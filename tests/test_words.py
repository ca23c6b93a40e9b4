"""The glossary's banned words: in docstrings, comments, texts for people, names of the package, and in documents.

A text for people is every string that reads as prose: errors, hints, help, labels, log lines. A word with a legal use,
such as "in place" or "at most", is banned only where the glossary has a better one.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/inlay"
PARTS = sorted(path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

PROSE = {  # pattern -> what to write instead
    r"news": "updates, new rows",
    r"told|said": "reported, passed, described",
    r"(?<!in )(?<!into )(?<!take )(?<!takes )(?<!took )(?<!decimal )places?": "location, path, position",
    r"in (\w+ ){0,3}words|words of": "describe the text itself",
    r"(came|come|comes|became|become|becomes) of": "result, outcome",
    r"(make|makes|made|making|became|become|becomes)( \w+){0,3} true": "commit",
    r"gone": "deleted, removed",
    r"(stay|stays|stayed)( as| where| there| alone| the same|(?=[.,;:]|$))": "is kept, remain unchanged",
    r"lie|lies|lay|lying": "is stored, is in",
    r"(look|looks|looked|looking) (at|for|into)|a look": "read, check, search",
    r"ask|asks|asked|asking": "query, request",
    r"(mean|means|meant) nothing": "is invalid",
    r"(give|gives|given|gave|giving)(?! up)": "pass, return",
    r"(take|takes|took|taken|taking) in": "load",
    r"so many|of ours": "name the limit, the maximum or the thing",
}
BANNED = {re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE): text for pattern, text in PROSE.items()}

#: parts of names, between underscores and capitals
NAMES = re.compile(
    r"(?:^|_)(told|telling|news|given|most|shown|places?|here|said|(?<!reserved_)words?|asked|asking|watched|listening"
    r"|following|lasted|ticket|turns|patience)(?:_|$)"
)

EXCEPTIONS = {  # file -> the text in which a banned word is right
    "web/home.py": 'said "call first"',  # a value of the sample data
}


def files_of(part: Path) -> list[Path]:
    return [part] if part.is_file() else sorted(part.rglob("*.py"))


def is_prose(text: str) -> bool:
    """Return True for at least three words, two of them in lower case, that are not SQL, CSS or HTML."""
    words = re.findall(r"[A-Za-z']+", text)
    return (
        len(words) >= 3
        and sum(word.islower() for word in words) >= 2
        and not re.search(r"[<{]|;(?! )|\bSELECT\b", text)
    )


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings, comments, prose and the constant parts of f-strings, each with its line."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {n.body[0].value for n in ast.walk(tree) if isinstance(n, documented) and ast.get_docstring(n)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and (node in docstrings or is_prose(node.value)):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the names that a module defines: functions, classes, arguments, variables and attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr


def banned_in(text: str) -> Iterator[str]:
    prose = re.sub(r"`[^`]*`", "``", text)
    for pattern, instead in BANNED.items():
        for found in pattern.finditer(prose):
            around = " ".join(prose[max(found.start() - 40, 0) : found.end() + 40].split())
            yield f"{found[0]!r} in {around!r}; use {instead}"


def is_banned_name(name: str) -> bool:
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()  # TaskProgress -> task_progress
    return NAMES.search(separated) is not None


def findings(path: Path) -> Iterator[str]:
    file, source = path.relative_to(PACKAGE).as_posix(), path.read_text()
    for line, text in texts(source):
        if file not in EXCEPTIONS or EXCEPTIONS[file] not in text:
            yield from (f"{file}:{line}: {found}" for found in banned_in(text))
    for line, name in [(1, path.stem), *names(source)]:
        if is_banned_name(name):
            yield f"{file}:{line}: the name {name!r}"


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.stem)
def test_no_banned_word(part: Path) -> None:
    found = [finding for path in files_of(part) for finding in findings(path)]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_no_banned_word_in_a_document(path: Path) -> None:
    """Code, and the targets of links, are not prose."""
    prose = re.sub(r"^```.*?^```$|(?<=\])\([^)]*\)", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = [finding for paragraph in prose.split("\n\n") for finding in banned_in(paragraph)]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "What came of it, as people are told.",
        "Files that lie elsewhere",
        "Make the draft true.",
        "So many rows are named for a file, not more.",
        "The bytes at offset 12 mean nothing in it.",
        "A place for a new file",
        "Takes in the rows, in the words of pyarrow",
        "It is gone at once; its files stay.",
    ],
)
def test_a_banned_word_is_found(text: str) -> None:
    assert list(banned_in(text))
    assert is_prose(text)


@pytest.mark.parametrize(
    "text",
    [
        "Rewrites files in place, at most `max_rows` at once.",
        "The column stays text, because most values have leading zeros.",
        "Checks the newsletter, the layout and the workplace.",
        "class=break-words",
        "Set `given` or `told`.",
    ],
)
def test_legal_words_are_not_found(text: str) -> None:
    assert list(banned_in(text)) == []


def test_names() -> None:
    assert all(map(is_banned_name, ["_told", "MOST_ROWS", "PlaceOf", "shown"]))
    assert not any(map(is_banned_name, ["almost", "placeholder", "RESERVED_WORDS", "replace"]))


def test_exceptions_are_few_and_needed() -> None:
    assert len(EXCEPTIONS) <= 10
    for file, text in EXCEPTIONS.items():
        assert text in (PACKAGE / file).read_text()
        assert list(banned_in(text))
