"""Runs the snippets of the documentation's pages in order, as a reader would run them.

python   runs in one namespace for the page
sh       runs lines of `inlay` in this process; a comment "exits with N" sets the expected exit code
bash     runs in one environment for the page, with a running service
sql      is a query to that service, whose response is CSV
output   is the expected output of the snippet before it; ... matches any text
"""

from __future__ import annotations

import doctest
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from inlay.cli import run

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
RUN_ALONE, RUN_WITH_A_SERVICE = ("python", "sh", "output"), ("bash", "sql")
NOT_RUN = ("text", "toml", "ini", "nginx", "pyi", "pycon")
ADDRESS = "http://127.0.0.1:8000"  # the default address of a service


def load_generator() -> Any:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Snippet(NamedTuple):
    kind: str
    body: str
    line: int


def snippets(path: Path) -> list[Snippet]:
    text = path.read_text()
    return [Snippet(m["kind"], m["body"], text[: m.start()].count("\n") + 2) for m in FENCE.finditer(text)]


def runs(path: Path) -> bool:
    return any(snippet.kind in RUN_ALONE + RUN_WITH_A_SERVICE for snippet in snippets(path))


def needs_a_service(path: Path) -> bool:
    return any(snippet.kind in RUN_WITH_A_SERVICE for snippet in snippets(path))


@dataclass
class PageRunner:
    """Runs the snippets of a page in the current directory."""

    path: Path
    url: str = ""
    variables: dict[str, str] = field(default_factory=dict)  # of bash snippets; snippets can add variables
    program_directories: list[str] = field(default_factory=list)  # additional directories of programs
    _names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__docs__"})

    def __post_init__(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("INLAY_")}
        path = os.pathsep.join([str(Path(sys.executable).parent), *self.program_directories, os.environ["PATH"]])
        self.variables = inherited | {"PATH": path, "INLAY_URL": self.url, "COLUMNS": "120"} | self.variables

    def run(self) -> None:
        printed = ""
        for snippet in snippets(self.path):
            if snippet.kind == "output":
                found = f"{printed.rstrip()}\n"
                same = doctest.OutputChecker().check_output(snippet.body, found, doctest.ELLIPSIS)
                assert same, f"{name_of(self.path)}:{snippet.line}: printed\n{printed}"
            elif snippet.kind not in NOT_RUN:
                addressed = snippet._replace(body=snippet.body.replace(ADDRESS, self.url or ADDRESS))
                printed = getattr(self, f"_run_{snippet.kind}")(addressed)

    def _run_python(self, snippet: Snippet) -> str:
        code = compile("\n" * (snippet.line - 1) + snippet.body, str(self.path), "exec")
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, self._names)
        return printed.getvalue()

    def _run_sh(self, snippet: Snippet) -> str:
        with redirect_stdout(io.StringIO()) as printed:
            for line in snippet.body.replace("\\\n", " ").splitlines():
                assert line.startswith("inlay "), f"{name_of(self.path)}:{snippet.line}: {line}"
                expected = re.search(r"# exits with (\d+)", line)
                code = run(shlex.split(line, comments=True)[1:])
                assert code == (int(expected[1]) if expected else 0), line
        return printed.getvalue()

    def _run_bash(self, snippet: Snippet) -> str:
        """Run a block and keep its variables for the next block."""
        exported = Path("variables-of-the-page")
        script = f"set -a\n{snippet.body}\nset +a\nenv -0 > {exported}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            check=False,
            env=self.variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{name_of(self.path)}:{snippet.line}:\n{done.stdout}{done.stderr}"
        self.variables = dict(entry.split("=", 1) for entry in exported.read_text().split("\0") if entry)
        exported.unlink()
        return done.stdout

    def _run_sql(self, snippet: Snippet) -> str:
        response = httpx.post(
            f"{self.url}/v1/query", json={"sql": snippet.body}, headers={"Accept": "text/csv"}, timeout=60
        )
        assert response.status_code == 200, f"{name_of(self.path)}:{snippet.line}: {response.text}"
        return response.text.replace("\r\n", "\n")


# ------------------------------------------------------------------------------------- commands that tests do not run
def untested_commands(path: Path) -> Iterator[list[str]]:
    """Yield the `inlay` and `make` commands of snippets that tests do not run."""
    for snippet in snippets(path):
        if snippet.kind in NOT_RUN:
            for line in snippet.body.replace("\\\n", " ").splitlines():
                found = re.search(r"(?:^|[ =/|])(?P<command>(?:inlay|make) [a-z].*)", line)
                if found:
                    yield shlex.split(found["command"], comments=True)
