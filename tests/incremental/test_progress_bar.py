"""`progress=True`: a bar on a terminal or in a real notebook kernel, and no bar elsewhere."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel
from rich.console import Console

import inlay
from inlay.errors import InvalidArgumentError, SchemaMismatchError
from inlay.incremental import display as progress_bar_module
from inlay.incremental.display import progress_bar, progress_callback
from tests import lake

SOURCE = lake.table([15, 100], ["x", "y"])
SHOW_CURSOR = "\x1b[?25h"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plain(text: str) -> str:
    """Remove the control sequences."""
    return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return lake.write(tmp_path / "d", {f"{i}.parquet": lake.table(range(10 * i, 10 * i + 10)) for i in range(4)})


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


# ------------------------------------------------------------------------------------------------------------ the bar
def test_a_bar_shows_the_phase_and_the_number_of_files() -> None:
    screen = io.StringIO()
    with progress_bar(Console(file=screen, force_terminal=True, width=80, legacy_windows=False)) as show:
        show(inlay.Progress("match", 0, 4))
        show(inlay.Progress("rewrite", 3, 4))
    assert re.search(r"rewrite\s+[━╸╺]+\s+3/4\s+0:00:0\d", plain(screen.getvalue()))
    assert screen.getvalue().endswith("\x1b[1A\x1b[2K")  # the line is free again


def test_a_bar_without_files_is_full() -> None:
    screen = io.StringIO()
    with progress_bar(Console(file=screen, force_terminal=True, width=80, legacy_windows=False)) as show:
        show(inlay.Progress("rewrite", 0, 0))
    assert "0/0" in plain(screen.getvalue())


OPERATIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "merge": (lambda d, **o: inlay.merge(SOURCE, d, "upsert", ["id"], **o), "commit"),
    "plan": (lambda d, **o: inlay.plan_merge(SOURCE, d, "upsert", ["id"], **o), "rewrite"),
    "write": (lambda d, **o: inlay.write_dataset(SOURCE, d, **o), "append"),
    "compact": (inlay.compact, "compact"),
    "class": (lambda d, **o: inlay.DuckDBDatasetIO().merge(SOURCE, d, "upsert", ["id"], **o), "commit"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_draws_a_bar_on_a_terminal(path: str, terminal: Terminal, name: str) -> None:
    call, last = OPERATIONS[name]
    with contextlib.redirect_stderr(terminal):
        with_bar = call(path, progress=True)
        assert sys.stderr is terminal
    assert re.search(rf"{last}\s+━+\s+1/1", plain(terminal.getvalue()))
    assert type(with_bar) is type(call(path))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("progress", [None, False], ids=repr)
def test_without_progress_nothing_is_drawn(path: str, terminal: Terminal, name: str, progress: Any) -> None:
    with contextlib.redirect_stderr(terminal):
        OPERATIONS[name][0](path, progress=progress)
    assert terminal.getvalue() == ""


def test_redirected_output_contains_no_bar(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert inlay.merge(SOURCE, path, "upsert", ["id"], progress=True).inserted == 1
    assert capsys.readouterr() == ("", "")


def test_a_dumb_terminal_contains_no_bar(path: str, terminal: Terminal, monkeypatch: Any) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with contextlib.redirect_stderr(terminal):
        inlay.merge(SOURCE, path, "upsert", ["id"], progress=True)
    assert terminal.getvalue() == ""


def test_a_failure_restores_the_terminal(path: str, terminal: Terminal) -> None:
    before = sys.stdout
    with contextlib.redirect_stderr(terminal):
        with pytest.raises(SchemaMismatchError):
            inlay.merge(SOURCE, path, "upsert", ["nothing"], progress=True)
        assert (sys.stdout, sys.stderr) == (before, terminal)
    assert SHOW_CURSOR in terminal.getvalue()


@pytest.mark.parametrize("progress", [1, 0, "yes", "", [], 1.5], ids=repr)
def test_an_invalid_progress_argument_is_rejected(path: str, progress: Any) -> None:
    before = lake.photograph(path)
    with pytest.raises(InvalidArgumentError, match="progress must be True or a callback"):
        inlay.merge(SOURCE, path, "upsert", ["id"], progress=progress)
    assert lake.photograph(path) == before


def test_a_callback_is_used_unchanged() -> None:
    def on_progress(step: inlay.Progress) -> None:
        raise AssertionError(step)

    with progress_callback(on_progress) as found:
        assert found is on_progress


# ---------------------------------------------------------------------------------------------------------- a notebook
@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingKernelClient]:
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder / name.lower()))
        manager, client = start_new_kernel(kernel_name="python3", startup_timeout=120, cwd=str(folder))
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def outputs(notebook: BlockingKernelClient, code: str) -> list[tuple[str, dict[str, Any]]]:
    """Run a cell and return the type and content of each message."""
    messages: list[tuple[str, dict[str, Any]]] = []

    def take(message: dict[str, Any]) -> None:
        content = message["content"]
        assert message["msg_type"] not in ("error", "stream"), content
        if "data" in content:
            messages.append((message["msg_type"], content))

    notebook.execute_interactive(code, timeout=120, output_hook=take)
    return messages


MERGE = """
import pyarrow, inlay
inlay.write_dataset(pyarrow.table({"id": range(1000)}), "d", max_rows_per_file=100, mode="overwrite")
"""


def test_a_notebook_shows_a_bar_that_changes_and_the_result(notebook: BlockingKernelClient) -> None:
    call = 'inlay.merge(pyarrow.table({"id": [5, 5000]}), "d", "upsert", ["id"], progress=True)'
    (first, bar), *updates, (last, result) = outputs(notebook, MERGE + call)
    assert (first, last) == ("display_data", "execute_result")
    assert {kind for kind, _ in updates} == {"update_display_data"}
    assert all(update["transient"] == bar["transient"] for _, update in updates)
    assert "source" in bar["data"]["text/html"]
    assert re.search(r"commit.*1/1", updates[-1][1]["data"]["text/html"], re.DOTALL)
    assert 'data-rows="inserted"' in result["data"]["text/html"]
    assert result["data"]["text/plain"].startswith("MergeResult(upsert: 1 inserted, 1 updated")


def test_a_notebook_is_updated_at_most_ten_times_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress_bar_module.time, "monotonic", lambda: now)
    shell = InteractiveShell.instance()
    published = shell.display_pub = CapturingDisplayPublisher()
    try:
        with progress_bar(Console(force_jupyter=True)) as show:
            for done in range(1, 9):
                now += 0.04
                show(inlay.Progress("match", done, 8))
    finally:
        InteractiveShell.clear_instance()
    messages = [re.search(r"(\w+) .* (\S+/\S+) ", each["data"]["text/plain"]) for each in published.outputs]
    assert [found and found.groups() for found in messages] == [
        ("source", "0/?"), ("match", "3/8"), ("match", "6/8"), ("match", "8/8"),
    ]  # fmt: skip
    assert [each["update"] for each in published.outputs] == [False, True, True, True]


def test_a_notebook_shows_a_plan(notebook: BlockingKernelClient) -> None:
    call = 'inlay.plan_merge(pyarrow.table({"id": [5, 5000]}), "d", "upsert", ["id"])'
    [(kind, plan)] = outputs(notebook, MERGE + call)
    assert kind == "execute_result"
    assert "nothing was changed" in plan["data"]["text/html"]
    assert plan["data"]["text/plain"].startswith("MergePlan(upsert: 1 to insert")
