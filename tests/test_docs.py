"""The documentation cannot lie: its code runs, its generated parts are current, its names are complete."""

from __future__ import annotations

import doctest
import importlib.util
import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import inlay
from inlay import errors, incremental
from inlay.cli import run

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
REFERENCE = "\n".join(path.read_text() for path in sorted((ROOT / "docs/reference").glob("*.md")))


def load_generator() -> Any:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()
DOCUMENTS: list[Path] = GENERATOR.documents()


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --------------------------------------------------------------------------------------------------------- it runs
class Snippet(NamedTuple):
    kind: str
    body: str
    line: int


def snippets(path: Path) -> list[Snippet]:
    text = path.read_text()
    found = (Snippet(m["kind"], m["body"], text[: m.start()].count("\n") + 2) for m in FENCE.finditer(text))
    return [snippet for snippet in found if snippet.kind in ("python", "sh", "output")]


def run_python(snippet: Snippet, path: Path, namespace: dict[str, Any]) -> str:
    code = compile("\n" * (snippet.line - 1) + snippet.body, str(path), "exec")
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
    return printed.getvalue()


def run_shell(snippet: Snippet) -> str:
    """Lines that start with `inlay`; a comment may say which exit code they end with."""
    with redirect_stdout(io.StringIO()) as printed:
        for line in snippet.body.replace("\\\n", " ").splitlines():
            if line.startswith("inlay "):
                expected = re.search(r"# exits with (\d+)", line)
                code = run(shlex.split(line, comments=True)[1:])
                assert code == (int(expected[1]) if expected else 0), line
    return printed.getvalue()


def own_documents() -> list[Path]:
    return [path for path in DOCUMENTS if snippets(path)]


@pytest.mark.parametrize("path", own_documents(), ids=name_of)
def test_every_snippet_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    printed = ""
    for snippet in snippets(path):
        if snippet.kind == "python":
            printed = run_python(snippet, path, namespace)
        elif snippet.kind == "sh":
            printed = run_shell(snippet)
        else:
            same = doctest.OutputChecker().check_output(snippet.body, printed, doctest.ELLIPSIS)
            assert same, f"{name_of(path)}:{snippet.line}: printed\n{printed}"


def test_the_documents_with_examples_are_these() -> None:
    names = {name_of(path) for path in own_documents()}
    assert {"README.md", "docs/index.md", "docs/explanation/semantics.md", "docs/how-to/library.md"} <= names


# ------------------------------------------------------------------------------------------------------ it is current
@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_generated_parts_are_up_to_date(path: Path) -> None:
    text = path.read_text()
    assert GENERATOR.regenerated(text) == text, "run `python docs/generate.py`"


def test_every_generated_part_is_used() -> None:
    used = {match["name"] for path in DOCUMENTS for match in GENERATOR.BLOCK.finditer(path.read_text())}
    assert used == set(GENERATOR.BLOCKS)


# ----------------------------------------------------------------------------------------------------- it is complete
@pytest.mark.parametrize("name", sorted({*inlay.__all__, *incremental.__all__} - {"__version__"}))
def test_every_public_name_is_documented(name: str) -> None:
    assert f"### `{name}`\n" in REFERENCE


@pytest.mark.parametrize("name", sorted({*inlay.__all__, *incremental.__all__} - {"__version__"}))
def test_every_public_name_says_what_it_is(name: str) -> None:
    entry = REFERENCE.split(f"### `{name}`\n")[1].split("\n### ")[0].split("\n## ")[0]
    assert re.search(r"[a-z]{3,} ", re.sub(r"```.*?```", "", entry, flags=re.DOTALL)), entry


def commands() -> dict[str, Any]:
    return dict(GENERATOR.every_command())


@pytest.mark.parametrize("name", commands())
def test_every_command_and_option_is_documented(name: str) -> None:
    part = REFERENCE.split(f"### `inlay {name}`\n")[1].split("\n### ")[0]
    for param in commands()[name].params:
        for option in [param.metavar] if param.param_type_name == "argument" else param.opts:
            assert f"`{option}`" in part


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_documented(name: str) -> None:
    kind = getattr(errors, name)
    assert f"| `{kind.code}` | `{name}` |" in REFERENCE
    assert f"| {kind.exit_code} |" in (ROOT / "docs/how-to/library.md").read_text()


def test_every_error_class_is_exported_and_has_a_code_of_its_own() -> None:
    defined = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.InlayError)]
    assert {kind.__name__ for kind in defined} == set(errors.__all__)
    assert len({kind.code for kind in defined}) == len(defined)


def test_every_hint_of_inspect_is_documented() -> None:
    source = (ROOT / "src/inlay/cli/inspection.py").read_text()
    codes = re.findall(r'Hint\(\s*"(\w+)",\s*"(\w+)"', source)
    assert len(codes) >= 9
    for code, severity in codes:
        assert f"| `{code}` | {severity} |" in REFERENCE


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs/decisions/index.md").read_text()
    for path in (ROOT / "docs/decisions").glob("*.md"):
        assert path.name == "index.md" or f"]({path.name})" in index


# -------------------------------------------------------------------------------------------------- it holds together
def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    text = FENCE.sub("", path.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path: Path) -> Iterator[str]:
    if "benchmarks" in path.parts:
        return  # it links to the report of a run, which may not have been made yet
    for match in LINK.finditer(FENCE.sub("", path.read_text())):
        if "://" not in match["target"]:
            yield match["target"]


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name_of)
def test_internal_links_resolve(path: Path) -> None:
    for link in links(path):
        target, _, anchor = link.partition("#")
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), f"{name_of(path)} links to {link}"
        assert not anchor or anchor in anchors(page), f"{name_of(path)} links to {link}"
