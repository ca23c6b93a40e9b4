"""How the service is set up: flags, then the environment, then `inlay.toml`, then embedded defaults."""

from __future__ import annotations

import ipaddress
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from inlay.errors import InvalidArgumentError, did_you_mean

__all__ = ["Settings", "is_loopback"]

LONGEST_KEEP_DAYS = 36_500
_FILE = "inlay.toml"


def _setting(default: Any, meaning: str, *, least: float = 0, most: float | None = None, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"meaning": meaning, "least": least, "most": most})


def is_loopback(host: str) -> bool:
    """Whether a name or address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@dataclass(frozen=True, slots=True)
class Settings:
    """Every field is `INLAY_<NAME>` in the environment and `<name>` in the file."""

    host: str = _setting("127.0.0.1", "address to listen on; other than loopback needs API keys")
    port: int = _setting(8000, "port to listen on; 0 chooses a free one", most=65_535)
    data_dir: str = _setting(".inlay", "directory for everything that is kept on this machine")
    catalog_url: str = _setting("", "database of the catalog; SQLite in the data directory unless given")
    storage_url: str = _setting("", "where files are kept; the data directory unless given")
    spark_master: str = _setting("local[*]", "Spark master that conversions and loads run on")
    max_upload_bytes: int = _setting(2 << 30, "largest upload")
    max_inline_bytes: int = _setting(1 << 20, "largest data within a request")
    delete_grace_seconds: float = _setting(60.0, "how long files stay after nothing refers to them any more")
    orphan_grace_seconds: float = _setting(3600.0, "grace period before files that nothing refers to are deleted")
    keep_versions: int = _setting(10, "versions of a dataset that are always kept", least=1)
    keep_days: float = _setting(30.0, "days for which every version is kept", most=LONGEST_KEEP_DAYS)
    query_timeout_seconds: float = _setting(30.0, "longest query")
    query_memory_bytes: int = _setting(512 << 20, "memory of one query")
    query_max_rows: int = _setting(1_000_000, "rows of one answer; more are cut off, and the answer says so")
    concurrent_jobs: int = _setting(8, "jobs that run side by side", least=1)
    lease_seconds: float = _setting(30.0, "silence after which a process on another machine counts as dead", least=1)
    api_keys: tuple[str, ...] = _setting((), "fixed API keys, separated by commas", secret=True)

    @classmethod
    def load(
        cls,
        flags: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        file: str | os.PathLike[str] | None = None,
    ) -> Settings:
        """Read all three places. A file that is named must be there; `inlay.toml` here is read if it is."""
        environment = os.environ if environ is None else environ
        stated = _read_file(file)
        for name in _types():
            variable = f"INLAY_{name.upper()}"
            if variable in environment:
                stated[name] = (variable, environment[variable])
        stated |= {name: (f"--{name.replace('_', '-')}", value) for name, value in (flags or {}).items()
                   if value is not None}  # fmt: skip
        settings = cls(**{name: _converted(name, *given) for name, given in stated.items()})
        settings._check()
        return settings

    def _check(self) -> None:
        for each in fields(self):
            value, least, most = getattr(self, each.name), each.metadata["least"], each.metadata["most"]
            if isinstance(value, (int, float)) and not least <= value <= (math.inf if most is None else most):
                bounds = f"at least {least}" if most is None else f"between {least} and {most:,}"
                raise InvalidArgumentError(f"{each.name} is {value}; it must be {bounds}.")

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def data_path(self) -> Path:
        return Path(self.data_dir).expanduser().absolute()

    @property
    def catalog(self) -> str:
        return self.catalog_url or f"sqlite:///{quote(str(self.data_path / 'catalog.db'))}"

    @property
    def storage(self) -> str:
        return (self.storage_url or str(self.data_path)).rstrip("/")


def _types() -> dict[str, str]:
    return {each.name: str(each.type) for each in fields(Settings)}


def _read_file(file: str | os.PathLike[str] | None) -> dict[str, tuple[str, Any]]:
    path = Path(_FILE if file is None else file)
    if not path.exists():
        if file is not None:
            raise InvalidArgumentError(f"There is no settings file {str(path)!r}.")
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"Cannot read {str(path)!r}: {error}") from error
    unknown = sorted(set(content) - set(_types()))
    if unknown:
        raise InvalidArgumentError(
            f"Unknown setting {unknown[0]!r} in {str(path)!r}.",
            hint=did_you_mean(unknown[0], _types()) or f"Known: {', '.join(sorted(_types()))}.",
        )
    return {name: (f"{name} in {path}", value) for name, value in content.items()}


def _converted(name: str, origin: str, value: Any) -> Any:
    kind = _types()[name]
    try:
        if kind.startswith("tuple"):
            parts = value.split(",") if isinstance(value, str) else list(value)
            return tuple(part.strip() for part in parts if part.strip())
        if isinstance(value, bool):
            raise TypeError
        return {"int": int, "float": float, "str": str}[kind](value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{origin} is {value!r}; it must be a {_WORDS[kind]}.") from None


_WORDS = {"int": "whole number", "float": "number", "str": "text", "tuple[str, ...]": "list of texts"}
