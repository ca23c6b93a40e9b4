"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from inlay.errors import InlayError

__all__ = ["main", "run"]

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors are a paragraph on stderr, or JSON under `--json`."""
    from inlay.cli.commands import app

    given = list(sys.argv[1:] if arguments is None else arguments)
    command = typer.main.get_command(app)
    try:
        code = command.main(given, prog_name="inlay", standalone_mode=False) or 0
    except InlayError as error:
        return _report(error.to_dict(), error.exit_code, given)
    except _UsageError as error:
        return _report(_usage(error), 2, given)
    except (typer.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except Exception as error:  # noqa: BLE001  (people get a paragraph, also for what nobody foresaw)
        return _report(_unforeseen(error), 1, given)
    if code == _INTERRUPTED:
        message = "Interrupted. The dataset is exactly as before, or the change is committed and will complete."
        return _report({"code": "interrupted", "message": message, "hint": None}, code, given)
    return int(code)


def _usage(error: Exception) -> dict[str, Any]:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "inlay"
    message = str(getattr(error, "format_message", error.__str__)())
    return {"code": "usage", "message": message, "hint": f"`{path} --help` lists what it takes."}


def _unforeseen(error: Exception) -> dict[str, Any]:
    message = f"{type(error).__name__}: {error}"
    return {"code": "failure", "message": message, "hint": "--debug shows where it happened."}


def _report(problem: dict[str, Any], exit_code: int, given: Sequence[str]) -> int:
    trace = traceback.format_exc() if "--debug" in given and sys.exc_info()[0] is not None else None
    if "--json" in given:
        text = json.dumps(problem | ({"traceback": trace} if trace else {}), ensure_ascii=False)
    else:
        hint = f"\nHint: {problem['hint']}" if problem["hint"] else ""
        text = f"{trace or ''}Error: {problem['message']}{hint}"
    sys.stderr.write(text + "\n")
    return exit_code
