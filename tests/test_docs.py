"""The documentation is true: its code runs, its generated parts are current, its names are complete."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import inlay
from inlay import errors, incremental, spark
from inlay.cli.commands import app
from inlay.server.middleware import Metrics
from inlay.server.routes import about
from inlay.settings import Settings
from tests.pages import (
    FENCE,
    NOT_RUN,
    ROOT,
    RUN_ALONE,
    RUN_WITH_A_SERVICE,
    PageRunner,
    load_generator,
    name_of,
    needs_a_service,
    runs,
    snippets,
    untested_commands,
)
from tests.spark import cluster

LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
OURS = re.compile(r"\bINLAY_[A-Z]+(?:_[A-Z]+)*\b")
GENERATOR = load_generator()
DOCUMENTS: list[Path] = GENERATOR.documents()
WRITTEN = [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def reference(name: str) -> str:
    return (ROOT / f"docs/reference/{name}.md").read_text()


# ------------------------------------------------------------------------------------------------------------- it runs
def needs_spark(path: Path) -> bool:
    return "from pyspark" in path.read_text()


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(page, marks=[pytest.mark.spark] if needs_spark(page) else [])
        for page in DOCUMENTS
        if runs(page) and not needs_a_service(page)
    ],
    ids=name_of,
)
def test_every_snippet_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if needs_spark(path):
        cluster.local_session()  # with the settings of the tests
    PageRunner(path).run()


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_every_snippet_runs_or_is_marked(path: Path) -> None:
    kinds = {snippet.kind for snippet in snippets(path)}
    assert kinds <= {*RUN_ALONE, *RUN_WITH_A_SERVICE, *NOT_RUN}
    assert FENCE.sub("", path.read_text()).count("```") == 0, "a fence that is not at the start of its line"


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_commands_in_unexecuted_snippets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for program, *arguments in untested_commands(path):
        if program == "make":
            assert arguments[0] in targets
        else:
            require_command(arguments)


def require_command(arguments: list[str]) -> None:
    """That the command line takes it; it is not run."""
    command = typer.main.get_command(app)
    context = command.make_context("inlay", list(arguments), resilient_parsing=True)
    while isinstance(command, typer.core.TyperGroup):
        name, command, arguments = command.resolve_command(context, arguments)
        assert command is not None, name
        context = command.make_context(name, list(arguments), parent=context)


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_commands_named_in_text_exist(path: Path) -> None:
    for named in re.findall(r"`inlay ([a-z]+(?: [a-z]+)?)", FENCE.sub("", path.read_text())):
        assert any(named in (name, name.split()[0]) or named.startswith(f"{name} ") for name in commands()), named


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_settings_files_in_the_documentation_are_valid(path: Path, tmp_path: Path) -> None:
    for snippet in snippets(path):
        if snippet.kind == "toml":
            (tmp_path / "inlay.toml").write_text(snippet.body)
            settings = Settings.load(environ={}, file=tmp_path / "inlay.toml")
            assert {name: getattr(settings, name) for name in tomllib.loads(snippet.body)}


# ------------------------------------------------------------------------------------------------------ it is current
@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_generated_parts_are_up_to_date(path: Path) -> None:
    text = path.read_text()
    assert GENERATOR.regenerated(text) == text, "run `python docs/generate.py`"


def test_every_generated_part_is_used() -> None:
    used = {match["name"] for path in DOCUMENTS for match in GENERATOR.BLOCK.finditer(path.read_text())}
    assert used == set(GENERATOR.BLOCKS)


# ----------------------------------------------------------------------------------------------------- it is complete
PUBLIC = sorted({*inlay.__all__, *incremental.__all__, *spark.__all__} - {"__version__"})


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name: str) -> None:
    assert f"### `{name}`\n" in reference("python")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring(name: str) -> None:
    entry = reference("python").split(f"### `{name}`\n")[1].split("\n### ")[0].split("\n## ")[0]
    assert re.search(r"[a-z]{3,} ", re.sub(r"```.*?```", "", entry, flags=re.DOTALL)), entry


def public(name: str) -> Any:
    return next(getattr(module, name) for module in (incremental, spark, inlay) if hasattr(module, name))


CLASSES = [name for name in PUBLIC if isinstance(public(name), type)]


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_method_is_documented(name: str) -> None:
    kind = public(name)
    entry = reference("python").split(f"### `{name}`\n")[1].split("\n### ")[0]
    for method, _ in GENERATOR.public_methods(kind):
        assert re.search(rf"`\w+\.{method}`", entry) or "Another name for" in entry, method


GOOGLE_STYLE = """Join the parts.

Args:
    parts: What to join, one of:
        - a list
        - a tuple,
          which may be empty
    sep: The separator.

Raises:
    ValueError: A part is empty.
    NullKeyError: A part is None.

Example:
    >>> join(["a", "b"])
    'a, b'

    >>> join([])
    ''
"""
RENDERED = """Join the parts.

**Parameters**

- `parts`: What to join, one of:

    - a list
    - a tuple,
      which may be empty
- `sep`: The separator.

**Raises**

- `ValueError`: A part is empty.
- [`NullKeyError`](errors.md): A part is None.

**Example**

```pycon
>>> join(["a", "b"])
'a, b'

>>> join([])
''
```
"""


def test_google_style_docstrings_render_as_markdown() -> None:
    assert list(GENERATOR.markdown(GOOGLE_STYLE)) == [*RENDERED.splitlines(), ""]


def commands() -> dict[str, Any]:
    return dict(GENERATOR.every_command())


@pytest.mark.parametrize("name", commands())
def test_every_command_and_option_is_documented(name: str) -> None:
    part = reference("command-line").split(f"### `inlay {name}`\n")[1].split("\n### ")[0]
    for param in commands()[name].params:
        for option in [param.metavar] if param.param_type_name == "argument" else param.opts:
            assert f"`{option}`" in part


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_documented(name: str) -> None:
    kind = getattr(errors, name)
    row = rf"\| `{kind.code}` \| `{name}` \| [^|]*\| {kind.exit_code} \| {kind.http_status} \|"
    assert re.search(row, reference("errors"))
    assert f"| {kind.exit_code} |" in reference("command-line")


def test_every_error_class_is_exported_and_has_a_code_of_its_own() -> None:
    defined = [errors.InlayError]
    for kind in defined:
        defined += [
            each for each in kind.__subclasses__() if each.__module__.startswith("inlay") and each not in defined
        ]
    assert {kind.__name__ for kind in defined} == set(errors.__all__)
    assert len({kind.code for kind in defined}) == len(defined)


def test_every_request_is_documented_with_its_parameters_and_responses() -> None:
    """By the OpenAPI document, read in another way than the generator reads it."""
    document = GENERATOR.openapi()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            part = reference("http").split(f"### `{method.upper()} {path}`\n")[1].split("\n### ")[0]
            for parameter in operation.get("parameters", ()):
                assert parameter["in"] == "path" or f"| `{parameter['name']}` |" in part
            responses = part.partition("Responses: ")[2]
            assert re.findall(r"(?:^|; )(\d{3})", responses) == list(operation["responses"])


def test_every_path_that_openapi_leaves_out_is_documented() -> None:
    left_out = {route.path for route in about.router.routes if not route.include_in_schema}
    assert left_out == {"/docs", "/docs/errors"}
    for path in (*left_out, "/openapi.json"):
        assert f"`GET {path}`" in reference("http")


def test_every_field_of_every_document_is_documented() -> None:
    for name, model in GENERATOR.openapi()["components"]["schemas"].items():
        part = reference("http").split(f"### `{name}`\n")[1].split("\n### ")[0]
        for field in model["properties"]:
            assert f"| `{field}` |" in part


def variables() -> set[str]:
    """Every variable of the environment that the code reads, found by how it is written there."""
    source = "\n".join(path.read_text() for path in (ROOT / "src/inlay").rglob("*.py"))
    read = re.findall(r'environ(?:\.get\(|\[)\s*"([A-Z_]+)"', source)
    looked_for = re.findall(r'"([A-Z_]+)" (?:not )?in (?:os\.)?environ', source)
    ours = OURS.findall(source)
    settings = [f"INLAY_{name.upper()}" for name in Settings.__dataclass_fields__]
    return {*read, *looked_for, *ours, *settings} - {"PATH"}


@pytest.mark.parametrize("name", sorted(variables()))
def test_every_environment_variable_is_documented(name: str) -> None:
    assert re.search(rf"^\|[^|]*\|?[^|]*`{name}`", reference("settings"), re.MULTILINE)


def test_documented_environment_variables_exist() -> None:
    code = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    known = variables().union(*(OURS.findall(path.read_text()) for path in code))
    for path in WRITTEN:
        assert set(OURS.findall(path.read_text())) <= known, name_of(path)


def test_every_metric_is_documented() -> None:
    text = Metrics().render({"running": 1}).decode()
    page = (ROOT / "docs/operations/care.md").read_text()
    for name, kind in re.findall(r"^# TYPE (inlay_\w+) (\w+)$", text, re.MULTILINE):
        assert f"| `{name}` |" in page or name.endswith("_created"), (name, kind)


def test_every_hint_of_inspect_is_documented() -> None:
    source = (ROOT / "src/inlay/cli/inspection.py").read_text()
    codes = re.findall(r'Hint\(\s*"(\w+)",\s*"(\w+)"', source)
    assert len(codes) >= 9
    for code, severity in codes:
        assert f"| `{code}` | {severity} |" in reference("command-line")


def test_buttons_named_in_the_tutorial_exist() -> None:
    section = (ROOT / "docs/tutorial/service.md").read_text().split("## On the page\n")[1].split("\n## ")[0]
    labels = re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", section)
    pages = "\n".join(path.read_text() for path in (ROOT / "src/inlay/web").rglob("*.py"))
    assert len(labels) >= 9
    assert [label for label in labels if f'"{label}"' not in pages] == []


ELSEWHERE = re.compile("core|utils")  # folders of the package that the requirement documents name


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_source_files_named_in_text_exist(path: Path) -> None:
    for named in re.findall(r"`((?:\w+/)+\w+\.py)`", path.read_text()):
        homes = (ROOT, ROOT / "src", ROOT / "src/inlay")
        assert ELSEWHERE.match(named) or any((home / named).exists() for home in homes), named


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs/decisions/index.md").read_text()
    for path in (ROOT / "docs/decisions").glob("*.md"):
        assert path.name == "index.md" or f"]({path.name})" in index


# ------------------------------------------------------------------------------------------------- the map of the code
def mapped() -> dict[str, list[str]]:
    """The folders and modules that the architecture page shows, each with the parts that it names."""
    table = (ROOT / "docs/architecture.md").read_text().split("## The folders\n")[1].split("\n## ")[0]
    rows = (line.split("|") for line in table.splitlines() if line.startswith("| `"))
    return {row[1].strip(" `"): re.findall(r"`(\w+)`", row[3]) for row in rows}


def folders(folder_path: Path) -> set[str]:
    return {path.parent.name for path in folder_path.glob("*/__init__.py")}


def test_the_architecture_page_lists_every_module() -> None:
    package = ROOT / "src/inlay"
    modules = {f"inlay/{path.name}" for path in package.glob("*.py") if not path.name.startswith("__")}
    assert set(mapped()) == modules | {f"inlay/{name}/" for name in folders(package)}


@pytest.mark.parametrize("folder", [name for name in mapped() if name.endswith("/")])
def test_modules_named_in_the_architecture_page_exist(folder: str) -> None:
    folder_path = ROOT / "src" / folder
    there = {path.stem for path in folder_path.iterdir()}
    named = set(mapped()[folder])
    assert named - there == set()
    assert folders(folder_path) - named == set()


# -------------------------------------------------------------------------------------------------- it holds together
def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    text = FENCE.sub("", path.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path: Path) -> Iterator[str]:
    for match in LINK.finditer(FENCE.sub("", path.read_text())):
        if "://" not in match["target"]:
            yield match["target"]


@pytest.mark.parametrize("path", WRITTEN, ids=name_of)
def test_internal_links_resolve(path: Path) -> None:
    for link in links(path):
        target, _, anchor = link.partition("#")
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), f"{name_of(path)} links to {link}"
        assert not anchor or anchor in anchors(page), f"{name_of(path)} links to {link}"


def test_every_picture_is_shown_somewhere() -> None:
    shown = {(path.parent / link).resolve() for path in DOCUMENTS for link in links(path)}
    pictures = [path for path in (ROOT / "docs/images").iterdir() if path.suffix in (".svg", ".png")]
    assert {path.name for path in pictures if path not in shown} <= {"icon.svg"}  # the site's own
