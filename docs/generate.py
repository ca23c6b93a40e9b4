"""Generate the parts of the documentation that come from the code: `python docs/generate.py`.

Each generated part is between `<!-- generated: name -->` and `<!-- end -->`. `tests/test_docs.py` fails if a part is
out of date.
"""  # noqa: INP001  (a script)

from __future__ import annotations

import dataclasses
import inspect
import json
import pydoc
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

import inlay
from inlay import errors, incremental, spark, type_grammar
from inlay.cli.commands import app
from inlay.incremental import STRATEGIES
from inlay.server import create_app
from inlay.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 100


# ---------------------------------------------------------------------------------------------------------- strategies
def strategies() -> Iterator[str]:
    yield "| strategy | key in both | key only in source | key only in target | summary |"
    yield "|---|---|---|---|---|"
    for strategy in STRATEGIES.values():
        both = "keep target" if strategy.in_both == "keep" else strategy.in_both
        yield (
            f"| `{strategy.name}` | {both} | {strategy.only_in_source} | {strategy.only_in_target} |"
            f" {strategy.summary} |"
        )


# -------------------------------------------------------------------------------------------------- the Python library
def library() -> Iterator[str]:
    yield from _entries(inlay, [name for name in inlay.__all__ if not name.startswith("__")])


def core() -> Iterator[str]:
    shared = [name for name in incremental.__all__ if name in inlay.__all__]
    links = ", ".join(f"[`{name}`](#{name.lower()})" for name in shared)
    yield f"`inlay.incremental` also exports these names, described above: {links}."
    yield ""
    yield from _entries(incremental, [name for name in incremental.__all__ if name not in shared])


def spark_library() -> Iterator[str]:
    yield from _entries(spark, list(spark.__all__))


def _entries(module: Any, names: list[str]) -> Iterator[str]:
    described: dict[Any, str] = {}  # functions and classes, and the heading under which the page describes each
    for name in sorted(names, key=lambda name: inspect.isclass(getattr(module, name))):  # functions before classes
        value = getattr(module, name)
        yield f"### `{name}`"
        yield ""
        if inspect.isclass(value) and value in described:
            yield f"Another name for {_link(described[value])}."
        elif inspect.isclass(value):
            described[value] = name
            yield from _class(name, value, described)
        else:
            yield from _function_or_constant(name, value)
        yield ""


def _link(heading: str) -> str:
    return f"[`{heading}`](#{heading.lower().replace('.', '')})"


def _function_or_constant(name: str, value: Any) -> Iterator[str]:
    if inspect.isfunction(value):
        yield from _fenced([_signature(name, value)], "pyi")
        yield ""
        yield from markdown(_docstring(value))
    elif get_origin(value) is Literal:
        yield "One of the strings " + ", ".join(f"`{choice!r}`" for choice in get_args(value)) + "."
    elif isinstance(value, Mapping):
        kind = type(next(iter(value.values()))).__name__
        yield f"A mapping of names to {_link(kind)} values: {', '.join(f'`{key}`' for key in value)}."
    else:
        yield f"A type alias for `{value}`."


def _class(name: str, kind: type, described: dict[Any, str]) -> Iterator[str]:
    if _has_constructor(kind):
        yield from _fenced([_signature(name, kind.__init__, returns=False)], "pyi")  # type: ignore[misc]
        yield ""
    yield from markdown(_docstring(kind), skip=["Attributes"])
    if _has_constructor(kind):
        yield from markdown(_docstring(kind.__init__))  # type: ignore[misc]
    attributes = [*_fields(kind), *_properties(kind), *_other_attributes(kind)]
    if attributes:
        yield "**Attributes**"
        yield ""
        yield from attributes
        yield ""
    yield from _methods(name, kind, described)


def _has_constructor(kind: type) -> bool:
    """Return True if callers construct the class with arguments that its fields do not show already."""
    if dataclasses.is_dataclass(kind) or issubclass(kind, Exception) or getattr(kind, "_is_protocol", False):
        return False
    return getattr(kind.__init__, "__module__", "").startswith("inlay.")  # type: ignore[misc]


def _fields(kind: type) -> Iterator[str]:
    if not dataclasses.is_dataclass(kind):
        return
    texts = _attribute_texts(kind)
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        meaning = texts.get(field.name) or _comment(kind, field.name)
        yield f"- `{field.name}: {field.type}{default}`" + (f": {meaning}" if meaning else "")


def _comment(kind: type, field: str) -> str:
    """Return the comment beside a field in the source code."""
    for owner in kind.__mro__[:-1]:
        found = re.search(rf"^    {field}: [^\n#]*  # (.*)$", inspect.getsource(owner), re.MULTILINE)
        if found:
            return found[1]
    return ""


def _properties(kind: type) -> Iterator[str]:
    for name, member in inspect.getmembers(kind):
        getter = getattr(member, "fget", None) or getattr(member, "func", None)
        if getter is not None and not name.startswith("_"):
            meaning = _docstring(getter).replace("\n", " ") or _attribute_texts(kind).get(name, "")
            returns = inspect.signature(getter).return_annotation
            yield f"- `{name}: {returns}`" + (f": {meaning}" if meaning else "")


def _other_attributes(kind: type) -> Iterator[str]:
    """List the attributes that only the docstring names, such as those of an exception."""
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    properties = {name for name, member in inspect.getmembers(kind) if isinstance(member, property | cached_property)}
    for name, meaning in _attribute_texts(kind).items():
        if name not in fields | properties:
            yield f"- `{name}`: {meaning}"


def _methods(owner: str, kind: type, described: dict[Any, str]) -> Iterator[str]:
    """Describe each public method. A method that another class describes already gets a link."""
    repeated = []
    for name, member in public_methods(kind):
        function = getattr(member, "__func__", member)
        if function in described:
            repeated.append(_link(described[function]))
            continue
        described[function] = f"{owner}.{name}"
        yield f"#### `{owner}.{name}`"
        yield ""
        yield from _fenced([_signature(name, member)], "pyi")
        yield ""
        yield from markdown(_docstring(member))
    if repeated:
        yield f"Methods that work the same: {', '.join(repeated)}."
        yield ""


def public_methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") or not (inspect.isfunction(member) or inspect.ismethod(member)):
            continue
        if member.__module__.startswith("inlay."):
            yield name, member


def _signature(name: str, function: Any, *, returns: bool = True) -> str:
    signature = inspect.signature(function)
    shown = [parameter for parameter in _parameters(signature) if parameter != "self"]
    arrow = f" -> {_text(signature.return_annotation)}" if returns else ""
    line = f"{name}({', '.join(shown)}){arrow}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in shown), f"){arrow}"])


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


def _fenced(lines: list[str], language: str = "text") -> Iterator[str]:
    yield f"```{language}"
    yield from lines
    yield "```"


# ---------------------------------------------------------------------------------------------------------- docstrings
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Examples?|Notes?):$")
ENTRY_SECTIONS = {"Args": "Parameters", "Attributes": "Attributes", "Raises": "Raises"}
ENTRY = re.compile(r"^(?P<name>\*{0,2}[\w.]+(?:, [\w.]+)*)(?: \([^)]*\))?: ?(?P<text>.*)$")
DOCTEST = re.compile(r"^>>> (?:.+\n?)+(?:\n+>>> (?:.+\n?)+)*", re.MULTILINE)


def _docstring(value: Any) -> str:
    """Return the cleaned docstring. A method inherits its docstring, a class and a constructor do not."""
    inherits = not inspect.isclass(value) and getattr(value, "__name__", "") != "__init__"
    own = inspect.getdoc(value) if inherits else value.__dict__.get("__doc__", value.__doc__)
    return inspect.cleandoc(own or "")


def markdown(docstring: str, *, skip: Collection[str] = ()) -> Iterator[str]:
    """Render a Google style docstring as Markdown, without the sections in `skip`."""
    for title, lines in _sections(docstring):
        if title in skip or not any(lines):
            continue
        if title:
            yield f"**{ENTRY_SECTIONS.get(title, title)}**"
            yield ""
        yield from _entry_list(lines) if title in ENTRY_SECTIONS else _prose(lines)
        yield ""


def _sections(docstring: str) -> Iterator[tuple[str, list[str]]]:
    """Split a docstring into its description, titled "", and its titled sections."""
    title, lines = "", list[str]()
    for line in docstring.splitlines():
        if found := SECTION.match(line):
            yield title, _dedented(lines)
            title, lines = found[1], []
        else:
            lines.append(line)
    yield title, _dedented(lines)


def _dedented(lines: list[str]) -> list[str]:
    return textwrap.dedent("\n".join(lines)).strip("\n").splitlines()


def _prose(lines: list[str]) -> list[str]:
    """Fence doctests. Doctests with only blank lines in between share one fence."""
    text = DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", "\n".join(lines))
    return text.strip("\n").splitlines()


def _entry_list(lines: list[str]) -> Iterator[str]:
    """Render `name: text` entries, whose further lines are indented by 4, as a Markdown list."""
    nested = True  # the line may start a nested list: Markdown wants a blank line before it
    for line in lines:
        if found := ENTRY.match(line):
            yield f"- {_entry_name(found['name'])}: {found['text']}".rstrip()
            nested = False
            continue
        bullet = line.lstrip().startswith("- ")
        if bullet and not nested:
            yield ""
        nested = nested or bullet or not line
        yield line


def _entry_name(name: str) -> str:
    return f"[`{name}`](errors.md)" if name in errors.__all__ else f"`{name}`"


def _attribute_texts(kind: type) -> dict[str, str]:
    """Collect what the docstrings of a class and its bases say about each attribute."""
    texts: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        for title, lines in _sections(_docstring(owner)) if owner.__module__.startswith("inlay.") else ():
            if title == "Attributes":
                texts |= _entry_texts(lines)
    return texts


def _entry_texts(lines: list[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    name = ""
    for line in lines:
        if found := ENTRY.match(line):
            name = found["name"]
            texts[name] = found["text"]
        elif name:
            texts[name] = f"{texts[name]} {line.strip()}".strip()
    return texts


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
    """Yield every command with its full name, including the commands of groups."""
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
    yield "| type | aliases | in Arrow and Parquet |"
    yield "|---|---|---|"
    for kind, (name, *others) in type_grammar._PLAIN.items():  # noqa: SLF001  (only this table needs the names)
        yield f"| `{name}` | {', '.join(f'`{other}`' for other in others)} | {kind} |"
    for name, others, kind in _BUILT_TYPES:
        yield f"| `{name}` | {others} | {kind} |"


_BUILT_TYPES = (
    ("decimal(p,s)", "`numeric(p,s)`, `dec(p,s)`", "decimal128; decimal256 from 39 digits"),
    ("timestamp(d)", "", "timestamp with 0, 3, 6 or 9 fractional digits; add `with time zone` for UTC"),
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
            yield f"Responses: {'; '.join(_response(*each) for each in operation['responses'].items())}."
            yield ""


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of the service, without opening a workspace."""
    return create_app(Settings(), _no_workspace).openapi()


def _no_workspace(_: Settings) -> Any:
    raise NotImplementedError


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def _parameter_table(parameters: Any) -> Iterator[str]:
    """List the query and header parameters. The names of path parameters explain themselves."""
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


def _response(status: str, response: Any) -> str:
    """Describe a response. An error shows only its status, because all errors have the same form."""
    contents = response.get("content", {})
    if "application/problem+json" in contents or not contents:
        return status
    kinds = dict.fromkeys(_type(content["schema"]) for content in contents.values() if content.get("schema"))
    others = [f"`{media}`" for media in contents if media != "application/json"]
    return " ".join([status, *kinds, *([f"({', '.join(others)})"] if others else [])])


def http_documents() -> Iterator[str]:
    for name, model in openapi()["components"]["schemas"].items():
        yield f"### `{name}`"
        yield ""
        if "description" in model:
            yield model["description"]
            yield ""
        # Only request models forbid additional properties. Clients need not know which response fields are required.
        required = model.get("required", ()) if model.get("additionalProperties") is False else ()
        yield "| field | type | default | meaning |"
        yield "|---|---|---|---|"
        for field, schema in model["properties"].items():
            default = "required" if field in required else _json_default(schema)
            yield f"| `{field}` | {_type(schema)} | {default} | {schema.get('description', '')} |"
        yield ""


def _type(schema: Any) -> str:
    """Describe a JSON schema in one phrase."""
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
    yield "| limit | maximum | setting |"
    yield "|---|---|---|"
    for limit, value in _SET_LIMITS.items():
        default = next(each.default for each in dataclasses.fields(Settings) if each.name == value)
        yield f"| {limit} | {_amount(value, default)} | `{value}` |"
    for limit, (owner, name) in _FIXED_LIMITS.items():
        yield f"| {limit} | {_amount(name, _value(owner, name))} | |"


_SET_LIMITS = {
    "size of an upload, as sent": "max_upload_bytes",
    "size of an upload, decompressed and decoded": "max_decoded_bytes",
    "columns of an upload, with nested fields": "max_columns",
    "size of a column name": "max_name_bytes",
    "size of inline data in a request": "max_inline_bytes",
    "memory of a Spark worker process": "worker_memory_bytes",
    "run time of a query": "query_timeout_seconds",
    "memory of a query": "query_memory_bytes",
    "rows of a query result; inlay truncates a longer result and says so": "query_max_rows",
    "disk space that a query may spill to": "query_spill_bytes",
    "concurrent jobs": "concurrent_jobs",
    "age of a pending upload; the service deletes an older upload that no job uses": "upload_expiry_seconds",
    "answer of the catalog to a statement": "catalog_timeout_seconds",
    "answer of S3 to a request": "storage_timeout_seconds",
}
_FIXED_LIMITS = {
    "ratio of decoded to sent bytes, from 256 MiB of decoded data": ("inlay.text.options.Limits", "ratio"),
    "size of one CSV or JSON record": ("inlay.text.options.Limits", "record_bytes"),
    "invalid cells that an error lists": ("inlay.text.reader", "MAX_BAD_CELLS"),
    "size of a request body other than an upload, without inline data": ("inlay.server.middleware", "MAX_BODY_BYTES"),
    "size of the headers of a request": ("inlay.server.middleware", "MAX_HEADER_BYTES"),
    "time to send the headers of a request": ("inlay.server.protocol", "_HEADER_SECONDS"),
    "pause while a client sends a body": ("inlay.server.middleware", "IDLE_SECONDS"),
    "pause while a client reads a response": ("inlay.server.protocol", "_STALL_SECONDS"),
    "size of an SQL statement": ("inlay.query.engine", "_MAX_SQL_BYTES"),
    "size of a query result": ("inlay.query.engine.QueryEngine", "max_result_bytes"),
    "connection to PostgreSQL": ("inlay.catalog.database", "CONNECT_SECONDS"),
    "connection to S3": ("inlay.storage.s3_requests", "CONNECT_SECONDS"),
    "run time of a preview": ("inlay.workspace.sources", "PREVIEW_SECONDS"),
    "concurrent queries; further queries wait": ("inlay.query.engine.QueryEngine", "concurrency"),
    "length of a table name, in characters": ("inlay.catalog.names", "MAX_NAME_LENGTH"),
    "length of a label, in characters": ("inlay.catalog.datasets", "MAX_LABEL_LENGTH"),
}


def _value(owner: str, name: str) -> Any:
    """Return a constant of a module, a field of a class, or the default of a constructor argument."""
    found = pydoc.locate(owner)
    if hasattr(found, name) or not inspect.isclass(found):
        value = getattr(found, name)
        return value if isinstance(value, int | float) else getattr(found(), name)
    return inspect.signature(found).parameters[name].default


def _amount(name: str, value: float) -> str:
    if "bytes" in name.lower():
        unit, size = next((unit, size) for unit, size in _UNITS if value >= size)
        return f"{value / size:,g} {unit}"
    return f"{value:,g}" + (" s" if "seconds" in name.lower() else "") if value < 1e6 else f"{value:,}"


_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))


# --------------------------------------------------------------------------------------------------------------- errors
def error_codes() -> Iterator[str]:
    yield "| code | class | meaning | exit code | HTTP status |"
    yield "|---|---|---|---|---|"
    for kind in sorted((getattr(errors, name) for name in errors.__all__), key=lambda kind: kind.code):
        meaning = inspect.cleandoc(kind.__doc__).partition("\n")[0].replace("|", r"\|")
        yield f"| `{kind.code}` | `{kind.__name__}` | {meaning} | {kind.exit_code} | {kind.http_status} |"


def error_tree() -> Iterator[str]:
    yield from _fenced([*_error_branch(errors.InlayError, "", "")])


def _error_branch(kind: type[errors.InlayError], head: str, indent: str) -> Iterator[str]:
    """Draw an error class and its subclasses, with the built-in classes that they also derive from."""
    builtins = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins" and base is not Exception]
    yield f"{head}{kind.__name__}{''.join(f' ({name})' for name in builtins)}"
    children = [child for child in kind.__subclasses__() if child.__name__ in errors.__all__]
    for child in children:
        last = child is children[-1]
        yield from _error_branch(child, f"{indent}{'└' if last else '├'}── ", f"{indent}{' ' if last else '│'}   ")


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
    "spark": spark_library,
    "strategies": strategies,
    "types": types,
}


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def regenerated(text: str) -> str:
    """Return the text with every generated part brought up to date."""
    return BLOCK.sub(lambda found: found[1] + _block(found["name"]) + found[3], text)


def _block(name: str) -> str:
    text = "\n".join(BLOCKS[name]()).strip()
    return re.sub(r"\n{3,}", "\n\n", text) + "\n"


if __name__ == "__main__":
    for document in documents():
        before = document.read_text()
        if (after := regenerated(before)) != before:
            document.write_text(after)
