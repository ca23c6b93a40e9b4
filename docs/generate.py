"""Writes the parts of the documentation that come from the code: `python docs/generate.py`.

A generated part stands between `<!-- generated: name -->` and `<!-- end -->`. `tests/test_docs.py` fails when one
of them is not up to date.
"""  # noqa: INP001  (a script)

from __future__ import annotations

import dataclasses
import inspect
import json
import pydoc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import typer

import inlay
from inlay import errors, incremental, type_grammar
from inlay.cli.commands import app
from inlay.incremental import STRATEGIES
from inlay.server import create_app
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
    lines = [*_fields(kind), *_properties(kind), *_methods(kind)]
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


def _properties(kind: type) -> Iterator[str]:
    for name, member in inspect.getmembers(kind):
        getter = getattr(member, "fget", None) or getattr(member, "func", None)
        if getter is not None and not name.startswith("_"):
            remark = inspect.getdoc(getter)
            yield f"{name}: {inspect.signature(getter).return_annotation}" + (f"  # {remark}" if remark else "")


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


# ---------------------------------------------------------------------------------------------------------------- types
def types() -> Iterator[str]:
    yield "| type | also | in Arrow and Parquet |"
    yield "|---|---|---|"
    for kind, (name, *others) in type_grammar._PLAIN.items():  # noqa: SLF001  (no code needs these but its own)
        yield f"| `{name}` | {', '.join(f'`{other}`' for other in others)} | {kind} |"
    for name, others, kind in _BUILT_TYPES:
        yield f"| `{name}` | {others} | {kind} |"


_BUILT_TYPES = (
    ("decimal(p,s)", "`numeric(p,s)`, `dec(p,s)`", "decimal128, from 39 digits on decimal256"),
    ("timestamp(d)", "", "timestamp with 0, 3, 6 or 9 digits after the second, also `with time zone`"),
    ("list<t>", "`array<t>`, `t[]`", "list"),
    ("map<k,v>", "", "map"),
    ("struct<name: t, ...>", "", "struct"),
)


# ----------------------------------------------------------------------------------------------------------------- HTTP
def http() -> Iterator[str]:
    for path, operations in openapi()["paths"].items():
        for method, operation in operations.items():
            yield f"### `{method.upper()} {path}`"
            yield ""
            yield " ".join([_sentence(operation["summary"]), operation.get("description", "")]).strip()
            yield ""
            yield from _parameter_table(operation.get("parameters", ()))
            yield from _body(operation.get("requestBody"))
            yield f"Answers: {'; '.join(_answer(*each) for each in operation['responses'].items())}."
            yield ""


def openapi() -> dict[str, Any]:
    """The document as the service shows it; for that, no workspace is opened."""
    return create_app(_no_workspace).openapi()


def _no_workspace() -> Any:
    raise NotImplementedError


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def _parameter_table(parameters: Any) -> Iterator[str]:
    """Those of the path explain themselves."""
    shown = [each for each in parameters if each["in"] != "path"]
    if not shown:
        return
    yield "| parameter | in | type | default | meaning |"
    yield "|---|---|---|---|---|"
    for each in shown:
        meaning = each.get("description", "")
        kind, default = _optional(each["schema"]), _json_default(each["schema"])
        yield f"| `{each['name']}` | {each['in']} | {kind} | {default} | {meaning} |"
    yield ""


def _body(body: Any) -> Iterator[str]:
    if body:
        kinds = [f"{_optional(content['schema'])} as `{media}`" for media, content in body["content"].items()]
        yield _sentence(f"Body: {'; '.join(kinds)}. {body.get('description', '')}".strip())
        yield ""


def _answer(status: str, answer: Any) -> str:
    """Problems are alike everywhere, so their status is enough."""
    forms = answer.get("content", {})
    if "application/problem+json" in forms or not forms:
        return status
    kinds = dict.fromkeys(_type(form["schema"]) for form in forms.values() if form.get("schema"))
    others = [f"`{media}`" for media in forms if media != "application/json"]
    return " ".join([status, *kinds, *([f"({', '.join(others)})"] if others else [])])


def http_documents() -> Iterator[str]:
    for name, model in openapi()["components"]["schemas"].items():
        yield f"### `{name}`"
        yield ""
        if "description" in model:
            yield model["description"]
            yield ""
        required = model.get("required", ()) if model.get("additionalProperties") is False else ()  # of requests
        yield "| field | type | default | meaning |"
        yield "|---|---|---|---|"
        for field, schema in model["properties"].items():
            default = "required" if field in required else _json_default(schema)
            yield f"| `{field}` | {_type(schema)} | {default} | {schema.get('description', '')} |"
        yield ""


def _type(schema: Any) -> str:
    """A JSON schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{value if isinstance(value, str) else json.dumps(value)}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format", schema.get("type", "any")))


def _optional(schema: Any) -> str:
    return _type(schema).removesuffix(" or null")


def _json_default(schema: Any) -> str:
    default = schema.get("default")
    return "" if default in (None, "") else f"`{json.dumps(default)}`"


# --------------------------------------------------------------------------------------------------------------- limits
def limits() -> Iterator[str]:
    yield "| what | at most | set by |"
    yield "|---|---|---|"
    for what, value in _SET_LIMITS.items():
        default = next(each.default for each in dataclasses.fields(Settings) if each.name == value)
        yield f"| {what} | {_amount(value, default)} | `{value}` |"
    for what, (place, name) in _FIXED_LIMITS.items():
        yield f"| {what} | {_amount(name, _value(place, name))} | |"


_SET_LIMITS = {
    "an upload, as it is sent": "max_upload_bytes",
    "data within a request": "max_inline_bytes",
    "a query's time": "query_timeout_seconds",
    "a query's memory": "query_memory_bytes",
    "rows of an answer; more are cut off, and the answer says so": "query_max_rows",
    "jobs side by side": "concurrent_jobs",
}
_FIXED_LIMITS = {
    "an upload, decompressed": ("inlay.pipeline.options.Limits", "decoded_bytes"),
    "how much decompression may make of a large upload, as a factor": ("inlay.pipeline.options.Limits", "ratio"),
    "one record of CSV or JSON": ("inlay.pipeline.options.Limits", "record_bytes"),
    "bad cells that an error lists": ("inlay.pipeline.rejects", "MAX_SHOWN"),
    "a body that is not an upload": ("inlay.server.middleware", "MAX_BODY_BYTES"),
    "the headers of a request": ("inlay.server.middleware", "MAX_HEADER_BYTES"),
    "silence in the middle of a body": ("inlay.server.middleware", "IDLE_SECONDS"),
    "SQL text": ("inlay.query.engine", "_MAX_SQL_BYTES"),
    "the answer of a query": ("inlay.query.engine.QueryEngine", "max_result_bytes"),
    "disk that a query may spill to": ("inlay.query.engine.QueryEngine", "spill_limit_bytes"),
    "queries side by side; others wait": ("inlay.query.engine.QueryEngine", "concurrency"),
    "characters of a table name": ("inlay.catalog.names", "LONGEST_NAME"),
    "characters of a label": ("inlay.catalog.datasets", "_LONGEST_LABEL"),
}


def _value(place: str, name: str) -> Any:
    """A constant of a module, a field of a class, or the default of an argument."""
    holder = pydoc.locate(place)
    if hasattr(holder, name) or not inspect.isclass(holder):
        found = getattr(holder, name)
        return found if isinstance(found, int | float) else getattr(holder(), name)
    return inspect.signature(holder).parameters[name].default


def _amount(name: str, value: float) -> str:
    if "bytes" in name.lower():
        unit, size = next((unit, size) for unit, size in _UNITS if value >= size)
        return f"{value / size:g} {unit}"
    return f"{value:,g}" + (" s" if "seconds" in name.lower() else "") if value < 1e6 else f"{value:,}"


_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


# --------------------------------------------------------------------------------------------------------------- errors
def error_codes() -> Iterator[str]:
    yield "| code | class | also a | exit code | HTTP status |"
    yield "|---|---|---|---|---|"
    for name in sorted(errors.__all__, key=lambda name: (_depth(name), name)):
        kind = getattr(errors, name)
        builtin = next(base.__name__ for base in kind.__mro__ if base.__module__ == "builtins")
        also = "" if builtin == "Exception" else f"`{builtin}`"
        yield f"| `{kind.code}` | `{name}` | {also} | {kind.exit_code} | {kind.http_status} |"


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
    "http": http,
    "http-documents": http_documents,
    "library": library,
    "limits": limits,
    "settings": settings,
    "strategies": strategies,
    "types": types,
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
