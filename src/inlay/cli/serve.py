"""`inlay serve`: run the service. Flags win over the environment, which wins over `inlay.toml`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from inlay.cli import options as o

__all__ = ["serve"]


def _option(name: str, metavar: str, text: str) -> Any:
    """Declare a flag that falls back to the environment, then to `inlay.toml`."""
    return typer.Option(f"--{name}", metavar=metavar, help=text, show_default=False)


Host = Annotated[
    str | None, _option("host", "ADDRESS", "Address to listen on [127.0.0.1]. Another address requires API keys.")
]
Port = Annotated[int | None, _option("port", "N", "Port to listen on [8000]. 0 picks a free port.")]
HttpProcesses = Annotated[int | None, _option("http-processes", "N", "Number of processes that serve HTTP [1].")]
DataDir = Annotated[str | None, _option("data-dir", "PATH", "Directory of the catalog and the files [.inlay].")]
CatalogUrl = Annotated[
    str | None, _option("catalog-url", "URL", "Database of the catalog [SQLite in the data directory].")
]
StorageUrl = Annotated[
    str | None, _option("storage-url", "URL", "Where to store files, such as s3://bucket/prefix [the data directory].")
]
SparkMaster = Annotated[
    str | None, _option("spark-master", "MASTER", "Spark master that runs conversions and loads [local[*]].")
]
CatalogTimeout = Annotated[
    float | None, _option("catalog-timeout-seconds", "SECONDS", "Wait this long for a statement of the catalog [30].")
]
StorageTimeout = Annotated[
    float | None, _option("storage-timeout-seconds", "SECONDS", "Wait this long for a request to an S3 storage [30].")
]
DiskReserve = Annotated[
    int | None, _option("disk-reserve-bytes", "BYTES", "Refuse writes if a disk has less free space [256 MiB].")
]
MaxUploadBytes = Annotated[int | None, _option("max-upload-bytes", "BYTES", "Maximum size of an upload [2 GiB].")]
MaxInlineBytes = Annotated[
    int | None, _option("max-inline-bytes", "BYTES", "Maximum size of inline data in a request [1 MiB].")
]
MaxDecodedBytes = Annotated[
    int | None, _option("max-decoded-bytes", "BYTES", "Maximum size of an upload after decoding [32 GiB].")
]
MaxColumns = Annotated[
    int | None, _option("max-columns", "N", "Maximum number of columns of an upload, with nested fields [50,000].")
]
MaxNameBytes = Annotated[int | None, _option("max-name-bytes", "BYTES", "Maximum size of a column name [1,000].")]
WorkerMemory = Annotated[
    int | None, _option("worker-memory-bytes", "BYTES", "Maximum memory of a Spark worker process [2 GiB].")
]
SparkIdle = Annotated[
    float | None, _option("spark-idle-seconds", "SECONDS", "Stop Spark after this time without work [600].")
]
DeleteGrace = Annotated[
    float | None,
    _option("delete-grace-seconds", "SECONDS", "Keep files this long after a dataset or version is deleted [60]."),
]
OrphanGrace = Annotated[
    float | None, _option("orphan-grace-seconds", "SECONDS", "Keep files that no dataset refers to this long [3600].")
]
UploadExpiry = Annotated[
    float | None, _option("upload-expiry-seconds", "SECONDS", "Delete a pending upload after this time [604800].")
]
KeepVersions = Annotated[
    int | None, _option("keep-versions", "N", "Keep at least this many versions of a dataset [10].")
]
KeepDays = Annotated[float | None, _option("keep-days", "DAYS", "Keep every version this long [30].")]
Publish = Annotated[
    str | None,
    _option("publish", "FORMATS", "Publish each dataset as a view, a table for other programs: delta, iceberg [none]."),
]
QueryTimeout = Annotated[float | None, _option("query-timeout-seconds", "SECONDS", "Maximum run time of a query [30].")]
QueryMemory = Annotated[int | None, _option("query-memory-bytes", "BYTES", "Maximum memory of a query [512 MiB].")]
QuerySpill = Annotated[
    int | None, _option("query-spill-bytes", "BYTES", "Maximum disk space of a query for spilled data [4 GiB].")
]
QueryMaxRows = Annotated[
    int | None, _option("query-max-rows", "N", "Maximum number of rows in a query result [1,000,000].")
]
ConcurrentJobs = Annotated[int | None, _option("concurrent-jobs", "N", "Maximum number of jobs that run at once [8].")]
LeaseSeconds = Annotated[
    float | None, _option("lease-seconds", "SECONDS", "Release the jobs of a stopped service after this time [30].")
]
Config = Annotated[
    str | None, _option("config", "FILE", "Settings file [inlay.toml in the working directory, if it exists].")
]


def serve(
    host: Host = None,
    port: Port = None,
    http_processes: HttpProcesses = None,
    data_dir: DataDir = None,
    catalog_url: CatalogUrl = None,
    storage_url: StorageUrl = None,
    spark_master: SparkMaster = None,
    catalog_timeout_seconds: CatalogTimeout = None,
    storage_timeout_seconds: StorageTimeout = None,
    disk_reserve_bytes: DiskReserve = None,
    max_upload_bytes: MaxUploadBytes = None,
    max_inline_bytes: MaxInlineBytes = None,
    max_decoded_bytes: MaxDecodedBytes = None,
    max_columns: MaxColumns = None,
    max_name_bytes: MaxNameBytes = None,
    worker_memory_bytes: WorkerMemory = None,
    spark_idle_seconds: SparkIdle = None,
    delete_grace_seconds: DeleteGrace = None,
    orphan_grace_seconds: OrphanGrace = None,
    upload_expiry_seconds: UploadExpiry = None,
    keep_versions: KeepVersions = None,
    keep_days: KeepDays = None,
    query_timeout_seconds: QueryTimeout = None,
    query_memory_bytes: QueryMemory = None,
    query_spill_bytes: QuerySpill = None,
    query_max_rows: QueryMaxRows = None,
    publish: Publish = None,
    concurrent_jobs: ConcurrentJobs = None,
    lease_seconds: LeaseSeconds = None,
    config: Config = None,
    json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Run the service. Set API keys with INLAY_API_KEYS or `inlay keys`: other users can see flags."""
    flags = {name: value for name, value in locals().items() if name not in ("config", "json", "debug")}
    from inlay.settings import Settings

    settings = Settings.load(flags, file=config)
    _load_server().serve(settings)


def _load_server() -> Any:
    from inlay.errors import EngineNotInstalledError

    try:
        import inlay.server
    except ImportError as error:
        raise EngineNotInstalledError(
            f"The service requires the package {error.name or error}.", hint="Run: pip install 'inlay[server]'"
        ) from error
    return inlay.server
