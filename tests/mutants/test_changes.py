"""Mutations: their names, positions and exclusions."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import FunctionType

import pytest

from tests.mutants.changes import Change, changes_of


def _changes(folder: Path, source: str) -> list[Change]:
    file = folder / "code.py"
    file.write_text(textwrap.dedent(source))
    return changes_of(file)


def _names(folder: Path, source: str) -> list[str]:
    prefix = f"{folder.name}/code.f: "
    return [change.name.removeprefix(prefix) for change in _changes(folder, source)]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("a < b", ["a <[ -> =] b"]),
        ("a is None", ["a is [ -> not ]None"]),
        ("a and b", ["a [and -> or] b"]),
        ("not a", ["[not  -> ]a"]),
        ("a + b", ["a [+ -> -] b"]),
        ("a += b", ["a [+ -> -]= b"]),
        ("pass", []),
        ("continue", ["[continue -> break]"]),
    ],
)
def test_operators_change_to_their_opposites(tmp_path: Path, statement: str, expected: list[str]) -> None:
    assert _names(tmp_path, f"def f(a, b):\n    for _ in a:\n        {statement}\n") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", ["[7 -> 8]"]),
        ("True", ["[True -> False]"]),
        ("'key'", ["'[key -> XkeyX]'"]),
        ("'a sentence'", []),
        ("None", []),
        ("lambda: a", ["return [lambda: a -> None]", "lambda: [a -> None]"]),
        ("a if b else 0", ["return [a if b else 0 -> None]", "a if [ -> not ]b else 0", "a if b else [0 -> 1]"]),
    ],
)
def test_returned_values_change(tmp_path: Path, value: str, expected: list[str]) -> None:
    assert _names(tmp_path, f"def f(a, b):\n    return {value}\n") == expected


def test_calls_lose_an_argument_or_are_removed(tmp_path: Path) -> None:
    assert _names(tmp_path, "def f(a, b):\n    a(b, *b, key=b, strict=True)\n") == [
        "[a(b, *b, key=b, strict=True) -> pass]",
        "a([b -> None], *b, key=b, strict=…",
        "a(b, *b, [key=b,  -> ]strict=True)",
    ]


def test_error_messages_annotations_and_docstrings_do_not_change(tmp_path: Path) -> None:
    source = '''
    def f(a: "int") -> "str":
        """A docstring."""
        b: "list[int]"
        if a:
            raise KeyError("a" + a, 3)
        error = MergeError("no", a, code=1)
    '''
    assert _names(tmp_path, source) == [
        "if [ -> not ]a: raise KeyError('a…",
        "error = [MergeError('no', a, code=1) -> None]",
    ]


def test_changes_with_equal_names_are_numbered(tmp_path: Path) -> None:
    changes = _changes(tmp_path, "class C:\n    def f(self):\n        g(1)\n        g(1)\n")
    names = [change.name.split(": ", 1)[1] for change in changes]
    assert names[:2] == ["[g(1) -> pass]", "g([1 -> 2])"]
    assert names[2:] == [f"{name} #2" for name in names[:2]]
    assert {change.function for change in changes} == {"C.f"}


def test_change_has_the_lines_of_its_statement(tmp_path: Path) -> None:
    source = """
    @decorated
    def f(a):
        if (a
                and b):
            return g(
                a)
    """
    changes = _changes(tmp_path, source)
    assert {change.first_line for change in changes} == {2}
    assert {change.lines for change in changes} == {range(4, 6), range(6, 8)}


def test_change_affects_only_the_named_code(tmp_path: Path) -> None:
    results = set()
    for change in _changes(tmp_path, "def f(a, b):\n    return a + b if a < b else a * 10\n"):
        changed = FunctionType(change.code(), {})
        results.add((change.name.split(": ", 1)[1], changed(1, 2), changed(2, 2), changed(3, 2)))
    assert results == {
        ("return [a + b if a < b else a * 10 -> None]", None, None, None),
        ("a + b if a <[ -> =] b else a * 10", 3, 4, 30),
        ("a [+ -> -] b if a < b else a *…", -1, 20, 30),
        ("a + b if a < b else a [* -> /] 10", 3, 0.2, 0.3),
        ("a * [10 -> 11]", 3, 22, 33),
    }
