"""Settings of the service: from flags, else the environment, else `inlay.toml`, else defaults."""

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

from inlay.constants import MAX_COLUMNS, MAX_DECODED_BYTES, MAX_NAME_BYTES, VIEW_FORMATS, WORKER_MEMORY_BYTES
from inlay.errors import InvalidArgumentError, did_you_mean, unknown

__all__ = ["Settings", "is_loopback"]

MAX_KEEP_DAYS = 36_500
MIN_KEY_LENGTH = 16
_FILE = "inlay.toml"


def _setting(default: Any, meaning: str, *, low: float = 0, high: float | None = None, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"meaning": meaning, "low": low, "high": high})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the service.

    Each field is read from `INLAY_<NAME>` in the environment or `<name>` in the settings file.
    """

    host: str = _setting("127.0.0.1", "address to listen on; any address but a loopback address requires API keys")
    port: int = _setting(8000, "port to listen on; 0 picks a free port", high=65_535)
    http_processes: int = _setting(
        1, "number of processes that serve HTTP; one of them runs the jobs and serves the page", low=1, high=8
    )
    data_dir: str = _setting(".inlay", "directory of the catalog and the files")
    catalog_url: str = _setting("", "database of the catalog; by default SQLite in the data directory")
    storage_url: str = _setting("", "where to store files; by default the data directory")
    spark_master: str = _setting("local[*]", "Spark master that runs conversions and loads")
    catalog_timeout_seconds: float = _setting(
        30.0, "seconds to wait for a statement of the catalog, or for its write lock", low=1
    )
    storage_timeout_seconds: float = _setting(30.0, "seconds to wait for a request to an S3 storage", low=1)
    disk_reserve_bytes: int = _setting(256 << 20, "free bytes of a disk below which the service refuses writes")
    max_upload_bytes: int = _setting(2 << 30, "maximum size of an upload in bytes")
    max_inline_bytes: int = _setting(1 << 20, "maximum size of inline data in a request in bytes")
    max_decoded_bytes: int = _setting(
        MAX_DECODED_BYTES, "maximum size of an upload in bytes after decompression and decoding"
    )
    max_columns: int = _setting(MAX_COLUMNS, "maximum number of columns of an upload, with nested fields", low=1)
    max_name_bytes: int = _setting(MAX_NAME_BYTES, "maximum size of a column name in bytes", low=1)
    worker_memory_bytes: int = _setting(
        WORKER_MEMORY_BYTES, "maximum memory of a Spark worker process in bytes", low=512 << 20
    )
    spark_idle_seconds: float = _setting(
        600.0, "seconds without work after which the service stops the Spark session that it started"
    )
    delete_grace_seconds: float = _setting(60.0, "seconds to keep the files of a deleted dataset or version")
    orphan_grace_seconds: float = _setting(3600.0, "seconds to keep files that no dataset or upload refers to")
    upload_expiry_seconds: float = _setting(
        604_800.0, "seconds after which a pending upload is deleted", high=MAX_KEEP_DAYS * 86_400
    )
    keep_versions: int = _setting(10, "minimum number of versions to keep for each dataset", low=1)
    keep_days: float = _setting(30.0, "days to keep every version", high=MAX_KEEP_DAYS)
    query_timeout_seconds: float = _setting(30.0, "maximum run time of a query in seconds")
    query_memory_bytes: int = _setting(512 << 20, "maximum memory of a query in bytes")
    query_spill_bytes: int = _setting(4 << 30, "maximum disk space of a query for data that does not fit in memory")
    query_max_rows: int = _setting(
        1_000_000, "maximum number of rows in a query result; longer results are marked as truncated"
    )
    query_table_cache_bytes: int = _setting(
        512 << 20, "maximum size of decoded copies of small tables on the disk, which make queries faster; 0 for none"
    )
    query_result_cache_bytes: int = _setting(
        32 << 20, "maximum memory of results that a repeated query returns again; 0 for none"
    )
    publish: tuple[str, ...] = _setting((), "formats in which to publish each dataset as a view: delta, iceberg")
    concurrent_jobs: int = _setting(8, "maximum number of jobs that run at once", low=1)
    lease_seconds: float = _setting(
        30.0, "seconds without a sign of life after which a process on another machine counts as stopped", low=1
    )
    api_keys: tuple[str, ...] = _setting((), "API keys of at least 16 characters, separated by commas", secret=True)

    @classmethod
    def load(
        cls,
        flags: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        file: str | os.PathLike[str] | None = None,
    ) -> Settings:
        """Load settings. Without `file`, read `inlay.toml` in the working directory if it exists."""
        environment = os.environ if environ is None else environ
        values = _read_file(file)
        for name in _types():
            variable = f"INLAY_{name.upper()}"
            if variable in environment:
                values[name] = (variable, environment[variable])
        values |= {name: (f"--{name.replace('_', '-')}", value) for name, value in (flags or {}).items()
                   if value is not None}  # fmt: skip
        settings = cls(**{name: _convert(name, *origin_and_value) for name, origin_and_value in values.items()})
        settings._check()
        return settings

    def _check(self) -> None:
        for each in fields(self):
            value, low, high = getattr(self, each.name), each.metadata["low"], each.metadata["high"]
            if isinstance(value, (int, float)) and not low <= value <= (math.inf if high is None else high):
                bounds = f"at least {low}" if high is None else f"between {low} and {high:,}"
                raise InvalidArgumentError(f"{each.name} is {value}; it must be {bounds}.")
        for name in self.publish:
            if name not in VIEW_FORMATS:
                raise unknown("view format (INLAY_PUBLISH)", name, VIEW_FORMATS)
        if any(len(key) < MIN_KEY_LENGTH for key in self.api_keys):
            raise InvalidArgumentError(
                f"An API key in the settings (INLAY_API_KEYS) has fewer than {MIN_KEY_LENGTH} characters.",
                hint="Create a random key, for example with `openssl rand -hex 16`, or use `inlay keys create`.",
            )

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def data_path(self) -> Path:
        return Path(self.data_dir).expanduser().absolute()

    def create_data_dir(self) -> None:
        """Create the data directory. Only its owner can read it."""
        self.data_path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def catalog(self) -> str:
        return self.catalog_url or f"sqlite:///{quote(str(self.data_path / 'catalog.db'))}"

    @property
    def storage(self) -> str:
        return (self.storage_url or str(self.data_path)).rstrip("/")


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _types() -> dict[str, str]:
    return {each.name: str(each.type) for each in fields(Settings)}


def _read_file(file: str | os.PathLike[str] | None) -> dict[str, tuple[str, Any]]:
    path = Path(_FILE if file is None else file)
    if not path.exists():
        if file is not None:
            raise InvalidArgumentError(f"The settings file {str(path)!r} does not exist.")
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"Cannot read {str(path)!r}: {error}") from error
    unknown = sorted(set(content) - set(_types()))
    if unknown:
        raise InvalidArgumentError(
            f"Unknown setting {unknown[0]!r} in {str(path)!r}.",
            hint=did_you_mean(unknown[0], _types()) or f"Known settings: {', '.join(sorted(_types()))}.",
        )
    return {name: (f"{name} in {path}", value) for name, value in content.items()}


def _convert(name: str, origin: str, value: Any) -> Any:
    kind = _types()[name]
    try:
        if kind.startswith("tuple"):
            parts = value.split(",") if isinstance(value, str) else list(value)
            return tuple(part.strip() for part in parts if part.strip())
        if isinstance(value, bool):
            raise TypeError
        return {"int": int, "float": float, "str": str}[kind](value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{origin} is {value!r}; it must be a {_TYPE_NAMES[kind]}.") from None


_TYPE_NAMES = {"int": "whole number", "float": "number", "str": "string", "tuple[str, ...]": "list of strings"}
