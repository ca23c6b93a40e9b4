"""Writes the parts of the documentation that come from the code: `python docs/generate.py`.

A generated part stands between `<!-- generated: name -->` and `<!-- end -->`. `tests/test_docs.py` fails when one
of them is not up to date.
"""  # noqa: INP001  (a script)

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import typer

import inlay
from inlay import errors, incremental
from inlay.cli.commands import app
from inlay.incremental import STRATEGIES
from inlay.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 100


# ---------------------------------------------------------------------------------------------------------- strategies
def strategies() -> Iterator[str]:
    yield "| strategy | key in both | key only in source | key only in target | in one sentence |"
    yield "|---|---|---|---|---|"
    for strategy in STRATEGIES.values():
        both = "keep target" if strategy.in_both == "keep" else strategy.in_both
        yield (
            f"| `{strategy.name}` | {both} | {strategy.only_in_source} | {strategy.only_in_target} |"
            f" {strategy.summary} |"
        )


# ---------------------------------------------------------------------------------------------------------- the library
def library() -> Iterator[str]:
    yield from _entries(inlay, [name for name in inlay.__all__ if not name.startswith("__")])


def core() -> Iterator[str]:
    shared = [name for name in incremental.__all__ if name in inlay.__all__]
    yield f"These are the names above as well: {', '.join(f'`{name}`' for name in shared)}."
    yield ""
    yield from _entries(incremental, [name for name in incremental.__all__ if name not in shared])


def _entries(module: Any, names: list[str]) -> Iterator[str]:
    for name in names:
        value = getattr(module, name)
        yield f"### `{name}`"
        yield ""
        yield from _described(name, value)
        yield ""


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _class(value)
    elif inspect.isfunction(value):
        yield from _fenced([_signature(name, value)])
        yield ""
        yield _doc(value)
    elif get_args(value):
        yield "A type with these values: " + ", ".join(f"`{choice!r}`" for choice in get_args(value)) + "."
    else:
        yield f"A `{type(value).__name__}` of the names {', '.join(f'`{key}`' for key in value)}."


def _class(kind: type) -> Iterator[str]:
    yield _doc(kind)
    lines = [*_fields(kind), *_methods(kind)]
    if lines:
        yield ""
        yield from _fenced(lines)


def _fields(kind: type) -> Iterator[str]:
    if not dataclasses.is_dataclass(kind):
        return
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        comment = _comment(kind, field.name)
        yield f"{field.name}: {field.type}{default}{comment}"


def _comment(kind: type, field: str) -> str:
    """The remark beside a field in the source."""
    for owner in kind.__mro__[:-1]:
        found = re.search(rf"^    {field}: [^\n#]*(  # .*)$", inspect.getsource(owner), re.MULTILINE)
        if found:
            return found[1]
    return ""


def _methods(kind: type) -> Iterator[str]:
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") or not (inspect.isfunction(member) or inspect.ismethod(member)):
            continue
        if member.__module__.startswith("inlay."):
            yield _signature(name, member)


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    shown = [parameter for parameter in _parameters(signature) if parameter != "self"]
    returns = f" -> {_text(signature.return_annotation)}"
    line = f"{name}({', '.join(shown)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in shown), f"){returns}"])


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    starred = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        annotation = "" if parameter.annotation is parameter.empty else f": {_text(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        yield f"{stars}{parameter.name}{annotation}{default}"


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _doc(value: Any) -> str:
    own = value.__doc__ if "__doc__" in vars(value) or not inspect.isclass(value) else None
    text = inspect.cleandoc(own or "")
    return re.sub(r"(?m)^(>>> .*\n(?:(?!\n).*\n?)*)", lambda m: f"```text\n{m.group().rstrip()}\n```", text)


def _fenced(lines: list[str]) -> Iterator[str]:
    yield "```text"
    yield from lines
    yield "```"


# ----------------------------------------------------------------------------------------------------- the command line
def commands() -> Iterator[str]:
    for name, command in every_command():
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        yield f"### `inlay {name}`"
        yield ""
        yield command.help
        yield ""
        yield f"`{' '.join(['inlay', name, *map(_argument, arguments), '[OPTIONS]'])}`"
        yield ""
        yield "| option | default | meaning |"
        yield "|---|---|---|"
        for param in command.params:
            yield _option(param)
        yield ""


def every_command(group: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Commands by what is typed, also those of groups."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def _argument(param: Any) -> str:
    return str(param.metavar if param.required else f"[{param.metavar}]")


def _option(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"| `{param.metavar}` | {_default(param)} | {param.help} |"
    names = ", ".join(f"`{name}`" for name in param.opts)
    value = f" `{param.metavar}`" if param.metavar else ""
    return f"| {names}{value} | {_default(param)} | {param.help} |".replace("<", "&lt;")


def _default(param: Any) -> str:
    if param.required:
        return "required"
    if param.default is None or param.default is False or param.default == []:
        return ""
    return f"`{getattr(param.default, 'value', param.default)}`"


# ------------------------------------------------------------------------------------------------------------- settings
def settings() -> Iterator[str]:
    yield "| setting | environment | default | meaning |"
    yield "|---|---|---|---|"
    for each in dataclasses.fields(Settings):
        default = ", ".join(each.default) if isinstance(each.default, tuple) else str(each.default)
        shown = f"`{default}`" if default else ""
        yield f"| `{each.name}` | `INLAY_{each.name.upper()}` | {shown} | {each.metadata['meaning']} |"


# --------------------------------------------------------------------------------------------------------------- errors
def error_codes() -> Iterator[str]:
    yield "| code | class | also a | exit code |"
    yield "|---|---|---|---|"
    for name in sorted(errors.__all__, key=lambda name: (_depth(name), name)):
        kind = getattr(errors, name)
        builtin = next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")
        yield f"| `{kind.code}` | `{name}` | {'' if builtin == 'Exception' else f'`{builtin}`'} | {kind.exit_code} |"


def _depth(name: str) -> int:
    return len([base for base in getattr(errors, name).__mro__ if issubclass(base, errors.InlayError)])


def error_tree() -> Iterator[str]:
    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    yield from _fenced([inspect.cleandoc(tree)])


BLOCKS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "core": core,
    "error-codes": error_codes,
    "error-tree": error_tree,
    "library": library,
    "settings": settings,
    "strategies": strategies,
}


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def regenerated(text: str) -> str:
    """The text with every generated part as it should be."""
    return BLOCK.sub(lambda m: m[1] + "\n".join(BLOCKS[m["name"]]()).rstrip() + "\n" + m[3], text)


if __name__ == "__main__":
    for document in documents():
        before = document.read_text()
        if (after := regenerated(before)) != before:
            document.write_text(after)
