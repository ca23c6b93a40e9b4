"""`inlay serve`: the service, set up by flags, then the environment, then `inlay.toml`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from inlay.cli import options as o

__all__ = ["serve"]


def _option(name: str, metavar: str, text: str) -> Any:
    """A flag without a default of its own: what is not given may stand in the environment or the file."""
    return typer.Option(f"--{name}", metavar=metavar, help=text, show_default=False)


Host = Annotated[str | None, _option("host", "ADDRESS", "Where to listen [127.0.0.1]; others need API keys.")]
Port = Annotated[int | None, _option("port", "N", "Its port [8000]; 0 takes any free one.")]
DataDir = Annotated[str | None, _option("data-dir", "PATH", "Where everything is kept [.inlay].")]
CatalogUrl = Annotated[str | None, _option("catalog-url", "URL", "The database [SQLite in the data directory].")]
StorageUrl = Annotated[
    str | None, _option("storage-url", "URL", "Where files go, such as s3://bucket/prefix [the data directory].")
]
SparkMaster = Annotated[str | None, _option("spark-master", "MASTER", "What runs conversions [local[*]].")]
MaxUploadBytes = Annotated[int | None, _option("max-upload-bytes", "BYTES", "The largest upload [2 GiB].")]
MaxInlineBytes = Annotated[int | None, _option("max-inline-bytes", "BYTES", "The most data within a request [1 MiB].")]
DeleteGrace = Annotated[float | None, _option("delete-grace-seconds", "SECONDS", "How long deleted files stay [60].")]
OrphanGrace = Annotated[
    float | None, _option("orphan-grace-seconds", "SECONDS", "How long files of nobody stay [3600].")
]
KeepVersions = Annotated[int | None, _option("keep-versions", "N", "The last versions that are kept [10].")]
KeepDays = Annotated[float | None, _option("keep-days", "DAYS", "How long all versions are kept [30].")]
QueryTimeout = Annotated[float | None, _option("query-timeout-seconds", "SECONDS", "The longest query [30].")]
QueryMemory = Annotated[
    int | None, _option("query-memory-bytes", "BYTES", "What a query may hold in memory [512 MiB].")
]
QueryMaxRows = Annotated[int | None, _option("query-max-rows", "N", "The most rows of an answer [1,000,000].")]
ConcurrentJobs = Annotated[int | None, _option("concurrent-jobs", "N", "Jobs that run at once [8].")]
LeaseSeconds = Annotated[
    float | None, _option("lease-seconds", "SECONDS", "How long a dead service's jobs block [30].")
]
Config = Annotated[str | None, _option("config", "FILE", "A settings file; inlay.toml here is read if it is there.")]


def serve(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    catalog_url: CatalogUrl = None,
    storage_url: StorageUrl = None,
    spark_master: SparkMaster = None,
    max_upload_bytes: MaxUploadBytes = None,
    max_inline_bytes: MaxInlineBytes = None,
    delete_grace_seconds: DeleteGrace = None,
    orphan_grace_seconds: OrphanGrace = None,
    keep_versions: KeepVersions = None,
    keep_days: KeepDays = None,
    query_timeout_seconds: QueryTimeout = None,
    query_memory_bytes: QueryMemory = None,
    query_max_rows: QueryMaxRows = None,
    concurrent_jobs: ConcurrentJobs = None,
    lease_seconds: LeaseSeconds = None,
    config: Config = None,
    json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Run the service. API keys come from INLAY_API_KEYS or `inlay keys`, since flags are seen by everybody."""
    given = {name: value for name, value in locals().items() if name not in ("config", "json", "debug")}  # all flags
    from inlay.settings import Settings

    settings = Settings.load(given, file=config)
    _load_server().serve(settings)


def _load_server() -> Any:
    from inlay.errors import EngineNotInstalledError

    try:
        import inlay.server.run
    except ImportError as error:
        raise EngineNotInstalledError(
            f"The service needs {error.name or error}.", hint="Install it with: pip install 'inlay[server]'"
        ) from error
    return inlay.server.run
