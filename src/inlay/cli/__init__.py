"""The command line. A command imports heavy packages only when it runs."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from inlay.errors import InlayError

__all__ = ["main", "run"]

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_INTERRUPTED = 130
_ARGUMENT = re.compile(r"""(?<!\()\b(strategy|schema_mode|missing_columns|engine|mode)=["'](\w+)["']""")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors go to stderr, as JSON under `--json`."""
    from inlay.cli.commands import app

    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name="inlay", standalone_mode=False) or 0
    except InlayError as error:
        return _report(error.to_dict(), error.exit_code, arguments)
    except _UsageError as error:
        return _report(_usage(error), 2, arguments)
    except (typer.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except Exception as error:  # noqa: BLE001  (an unexpected error is a message too, not a traceback)
        return _report(_unexpected(error), 1, arguments)
    if code == _INTERRUPTED:
        message = "Interrupted. The dataset is unchanged, or the change is committed and inlay completes it."
        return _report({"code": "interrupted", "message": message, "hint": None}, code, arguments)
    return int(code)


def _usage(error: Exception) -> dict[str, Any]:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "inlay"
    message = str(getattr(error, "format_message", error.__str__)()).replace(": Value error, ", ": ")
    return {"code": "usage", "message": message, "hint": f"Run `{path} --help` to see its arguments and options."}


def _unexpected(error: Exception) -> dict[str, Any]:
    message = f"{type(error).__name__}: {error}"
    return {"code": "failure", "message": message, "hint": "Run the command again with --debug to see the traceback."}


def _with_flags(hint: str) -> str:
    """Name the flags of the arguments that a hint suggests."""
    return _ARGUMENT.sub(lambda match: f"--{match[1].replace('_', '-')} {match[2]}", hint)


def _report(problem: dict[str, Any], exit_code: int, arguments: Sequence[str]) -> int:
    problem |= {"hint": problem["hint"] and _with_flags(problem["hint"])}
    trace = traceback.format_exc() if "--debug" in arguments and sys.exc_info()[0] is not None else None
    if "--json" in arguments:
        text = json.dumps(problem | ({"traceback": trace} if trace else {}), ensure_ascii=False)
    else:
        hint = f"\nHint: {problem['hint']}" if problem["hint"] else ""
        text = f"{trace or ''}Error: {problem['message']}{hint}"
    sys.stderr.write(text + "\n")
    return exit_code
