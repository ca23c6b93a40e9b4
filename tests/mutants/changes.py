"""Small changes to code, one at a time, that a test should notice.

A change modifies the syntax tree, which is then compiled. No file is written, and line numbers do not change. Error
messages and annotations are not changed.
"""

from __future__ import annotations

import ast
import copy
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

_OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Pow: ast.Mult,
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}
_NONE = ast.Constant(None)


@dataclass(frozen=True)
class Change:
    """One change. Its name depends on the function, not on its position in the file."""

    name: str
    file: Path
    function: str  # the outermost function that contains the change, with its class
    first_line: int  # the first line of that function, including decorators
    lines: range  # the lines of the changed statement, or of the head of a block
    index: int  # the index among the changes of the file

    @property
    def module(self) -> str:
        parts = self.file.with_suffix("").parts
        return ".".join(parts[parts.index("src") + 1 :])

    def code(self) -> CodeType:
        """Build the changed function."""
        return _Tree(self.file).compile(self)


def changes_of(file: Path) -> list[Change]:
    return _Tree(file).changes()


@dataclass(frozen=True)
class _Position:
    """The position of a node in the syntax tree."""

    parent: ast.AST
    field: str
    index: int | None

    @property
    def node(self) -> ast.AST:
        held = getattr(self.parent, self.field)
        return held if self.index is None else held[self.index]  # type: ignore[no-any-return]

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


class _Tree:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._tree = ast.parse(file.read_text())
        self._found = list(self._find())

    def changes(self) -> list[Change]:
        seen: Counter[str] = Counter()
        return [
            Change(
                name=_numbered(
                    f"{self._file.parent.name}/{self._file.stem}.{of.qualname}: {_describe(position, after)}", seen
                ),
                file=self._file,
                function=of.qualname,
                first_line=of.first_line,
                lines=_own_lines(statement),
                index=index,
            )
            for index, (of, statement, position, after) in enumerate(self._found)
        ]

    def compile(self, change: Change) -> CodeType:
        _, _, position, after = self._found[change.index]
        position.put(ast.fix_missing_locations(ast.copy_location(after, position.node)))
        wanted = change.function, change.first_line
        return next(
            code
            for code in _codes(compile(self._tree, str(self._file), "exec"))
            if (code.co_qualname, code.co_firstlineno) == wanted
        )

    def _find(self) -> Iterator[tuple[_Function, ast.stmt, _Position, ast.AST]]:
        for function in _functions(self._tree, ""):
            for statement, position in _positions_of(function.node):
                for after in _alternatives(position.node):
                    yield function, statement, position, after


@dataclass(frozen=True)
class _Function:
    qualname: str
    node: ast.FunctionDef

    @property
    def first_line(self) -> int:
        return min([self.node.lineno, *(each.lineno for each in self.node.decorator_list)])


def _functions(node: ast.AST, prefix: str) -> Iterator[_Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield _Function(prefix + child.name, child)
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _positions_of(function: ast.FunctionDef) -> Iterator[tuple[ast.stmt, _Position]]:
    """Yield every node whose change affects behavior, with its statement."""
    for index, statement in enumerate(function.body):
        yield from _positions(_Position(function, "body", index), statement)


def _positions(position: _Position, statement: ast.stmt) -> Iterator[tuple[ast.stmt, _Position]]:
    node = position.node
    if _is_docstring(node) or _is_message(node) or _is_strict(node):
        return
    if isinstance(node, ast.stmt):
        statement = node
    yield statement, position
    for field, held in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "format_spec"):
            continue
        for index, child in enumerate(held) if isinstance(held, list) else [(None, held)]:
            if isinstance(child, ast.AST) and not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
                yield from _positions(_Position(node, field, index), statement)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_message(node: ast.AST) -> bool:
    """Return whether a node is part of a raised error or its message."""
    return isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error"))


def _is_strict(node: ast.AST) -> bool:
    """Return whether a node is `strict=True` of `zip`.

    It guards against mistakes that no caller makes.
    """
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _own_lines(statement: ast.stmt) -> range:
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return range(statement.lineno, max(last, statement.lineno) + 1)


def _numbered(name: str, seen: Counter[str]) -> str:
    seen[name] += 1
    return name if seen[name] == 1 else f"{name} #{seen[name]}"


def _describe(position: _Position, after: ast.AST) -> str:
    """Describe the code before and after the change, with some context."""
    around = position.parent if isinstance(position.parent, ast.expr | ast.keyword) else None
    before = position.node
    old = _tokens(around or before)
    position.put(after)
    new = _tokens(around or after)
    position.put(before)
    same = _common_prefix_length(old, new)
    rest = _common_prefix_length(old[same:][::-1], new[same:][::-1])
    cut = len(old) - rest
    head, tail = "".join(old[:same]), "".join(old[cut:])
    was, becomes = "".join(old[same:cut]), "".join(new[same : len(new) - rest])
    return f"{_end(head, 40)}[{_start(was, 60)} -> {_start(becomes, 60)}]{_start(tail, 20)}"


def _common_prefix_length(left: list[str], right: list[str]) -> int:
    """Return the length of the common prefix."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    return sum(1 for _ in pairs)


def _tokens(node: ast.AST) -> list[str]:
    return re.findall(r"\w+|\W", " ".join(ast.unparse(node).split()))


def _start(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "…"


def _end(text: str, length: int) -> str:
    return text if len(text) <= length else "…" + text[-length:]


# ---------------------------------------------------------------------------------------------------- replacements
def _alternatives(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                yield _with(node, "ops", [*node.ops[:index], _OPPOSITE[type(operator)](), *node.ops[index + 1 :]])
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign():
            yield _with(node, "op", _OPPOSITE[type(node.op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant():
            yield from _other_constants(node.value)
        case ast.Break() | ast.Continue():
            yield _OPPOSITE[type(node)]()
        case ast.Call():
            yield from _other_calls(node)
        case ast.Assign() | ast.AnnAssign() | ast.Return() if not isinstance(node.value, ast.Constant | None):
            yield _with(node, "value", _NONE)
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield ast.Pass()
        case ast.Lambda() if not isinstance(node.body, ast.Constant):
            yield _with(node, "body", _NONE)
        case ast.If() | ast.While() | ast.IfExp() if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            yield _with(node, "test", ast.UnaryOp(ast.Not(), node.test))


def _other_constants(value: object) -> Iterator[ast.Constant]:
    match value:
        case bool():
            yield ast.Constant(not value)
        case int() | float():
            yield ast.Constant(value + 1)
        case str() if " " not in value:
            yield ast.Constant(f"X{value}X")
        case bytes():
            yield ast.Constant(b"X" + value + b"X")


def _other_calls(call: ast.Call) -> Iterator[ast.Call]:
    """Yield the call with an argument replaced by None, or without a keyword argument."""
    of_types = isinstance(call.func, ast.Name) and call.func.id in ("cast", "isinstance")
    for index, argument in enumerate(call.args):
        if not (of_types or isinstance(argument, ast.Constant | ast.Starred)):
            yield _with(call, "args", [*call.args[:index], _NONE, *call.args[index + 1 :]])
    for index, keyword in enumerate(call.keywords):
        if keyword.arg is not None and not _is_strict(keyword):
            yield _with(call, "keywords", [*call.keywords[:index], *call.keywords[index + 1 :]])


def _with(node: ast.AST, field: str, value: object) -> ast.AST:
    changed = copy.copy(node)
    setattr(changed, field, value)
    return changed
