"""Spark's settings: what the user configured, wherever that was, and our defaults for the rest."""

from __future__ import annotations

import importlib
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

from inlay import settings
from inlay.errors import InvalidArgumentError

__all__ = [
    "DAEMON_MODULE",
    "SHIPPED_DAEMON",
    "default_conf",
    "is_loopback",
    "parse_conf",
    "this_package",
    "user_conf",
    "worker_python",
]

STOCK_DAEMON = "pyspark.daemon"
DAEMON_MODULE = "inlay.engines.spark_daemon"
SHIPPED_DAEMON = "spark_daemon"  # the same file, alone in an executor's working directory

_SUBMIT_OPTIONS = {
    "--master": "spark.master",
    "--remote": "spark.remote",
    "--name": "spark.app.name",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}
_LOG_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_LOG_FILES = ("log4j2.properties", "log4j2.xml", "log4j2.yaml", "log4j2.json")


def is_loopback(master: str) -> bool:
    """Whether all of Spark is on this machine, so that nothing need listen on another address."""
    return master.startswith("local") or settings.is_loopback(urlsplit(master).hostname or "")


def default_conf(master: str, user: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Our settings, without those that the user made."""
    ours = {
        "spark.app.name": "inlay",
        "spark.python.daemon.module": _daemon_module(master, worker_python(user, environ)),
        "spark.python.task.killTimeout": "100ms",  # by default a cancelled task goes on for 2 to 4 s
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.scheduler.mode": "FAIR",  # in FIFO order one long job holds up all later ones
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default is INT96
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_loopback(master):
        ours |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    if not _has_own_logging(user, environ):
        # The level alone comes too late for what Spark says while it starts.
        quiet = Path(__file__).with_name("spark_log4j2.properties")
        ours |= {"spark.driver.defaultJavaOptions": f'"-Dlog4j2.configurationFile={quiet.as_uri()}"'}
    return {key: value for key, value in ours.items() if key not in user}


def user_conf(environ: Mapping[str, str]) -> dict[str, str]:
    """What the user set: spark-defaults.conf, then PYSPARK_SUBMIT_ARGS, then INLAY_SPARK_CONF."""
    submitted = _submit_args(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    file = submitted.pop("properties-file", None) or _conf_directory(environ) / "spark-defaults.conf"
    return _read_properties(Path(file)) | submitted | parse_conf(environ.get("INLAY_SPARK_CONF", ""))


def parse_conf(text: str) -> dict[str, str]:
    """INLAY_SPARK_CONF: a JSON object, or `key=value;key=value`."""
    text = text.strip()
    if text.startswith("{"):
        try:
            items = json.loads(text).items()
        except ValueError as error:
            raise InvalidArgumentError(f"INLAY_SPARK_CONF is not a JSON object: {error}") from error
        return {str(key): _as_text(value) for key, value in items}
    pairs = [part.partition("=") for part in text.split(";") if part.strip()]
    if wrong := [key for key, equals, _ in pairs if not equals or not key.strip()]:
        raise InvalidArgumentError(
            f"INLAY_SPARK_CONF: {wrong[0]!r} is not key=value", hint="key=value;key=value, or JSON"
        )
    return {key.strip(): value.strip() for key, _, value in pairs}


def this_package() -> ModuleType:
    """inlay itself; an import statement would count as one of everything that the package offers."""
    return importlib.import_module("inlay")


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)  # true, not True


def _conf_directory(environ: Mapping[str, str]) -> Path:
    if directory := environ.get("SPARK_CONF_DIR"):
        return Path(directory)
    if home := environ.get("SPARK_HOME"):
        return Path(home, "conf")
    import pyspark

    return Path(pyspark.__file__).parent / "conf"


def _read_properties(file: Path) -> dict[str, str]:
    """Keys (and values, as far as they fit one line) of a Java properties file."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        text = line.strip()
        if text and text[0] not in "#!":
            key, _, value = text.replace("=", " ", 1).replace("\t", " ").partition(" ")
            found[key] = value.strip()
    return found


def _submit_args(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    words = iter(shlex.split(text))
    for word in words:
        option, equals, value = word.partition("=")
        if option in {"--conf", "-c", "--properties-file", *_SUBMIT_OPTIONS}:
            value = value if equals else next(words, "")
        if option in {"--conf", "-c"}:
            key, _, setting = value.partition("=")
            found[key] = setting
        elif option == "--properties-file":
            found["properties-file"] = value
        elif option in _SUBMIT_OPTIONS:
            found[_SUBMIT_OPTIONS[option]] = value
    return found


def _has_own_logging(user: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    options = " ".join([user.get(key, "") for key in _LOG_OPTIONS] + [environ.get("SPARK_SUBMIT_OPTS", "")])
    folder = _conf_directory(environ)
    return (
        "log4j" in options
        or "spark.log.level" in user
        or "LOG4J_CONFIGURATION_FILE" in environ
        or any((folder / f).exists() for f in _LOG_FILES)
    )


def worker_python(user: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """The Python of the workers; Spark's own default is whatever `python3` is on PATH."""
    return environ.get("PYSPARK_PYTHON") or user.get("spark.pyspark.python") or sys.executable


def _daemon_module(master: str, python: str) -> str:
    """A module that cannot be imported would fail every task: this one only where it surely can."""
    if not master.startswith("local"):
        return SHIPPED_DAEMON
    look = "import importlib.util as u; s = u.find_spec('inlay'); print(s and s.origin)"
    try:
        ran = subprocess.run([python, "-c", look], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return STOCK_DAEMON
    return DAEMON_MODULE if ran.stdout.strip() == this_package().__file__ else STOCK_DAEMON
