"""The commands. Each reads its options, calls the function of the same name and prints what it returns."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from inlay.cli import keys, output
from inlay.cli import options as o
from inlay.cli.doctor import doctor
from inlay.cli.serve import serve
from inlay.cli.service import datasets, load, query, upload
from inlay.cli.source import opened
from inlay.defaults import LOCK_TIMEOUT, MAX_ROWS_PER_FILE, TARGET_FILE_SIZE
from inlay.errors import InvalidArgumentError, NotFoundError

__all__ = ["app"]

app = typer.Typer(
    help="Keep plain Parquet datasets current: merges that touch only the bytes that must change.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help is there three times faster
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import inlay

        typer.echo(f"inlay {inlay.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


for _command in (serve, upload, datasets, load, query, doctor):
    app.command()(_command)
app.add_typer(keys.app, name="keys")


@app.command()
def merge(
    source: o.Source,
    dataset: o.Dataset,
    strategy: o.Strategy,
    key: o.Keys,
    partition_by: o.PartitionBy = None,
    dedup_order_by: o.DedupOrderBy = None,
    schema_mode: o.SchemaMode = o.SchemaModeName.strict,
    compression: o.Compression = None,
    row_group_size: o.RowGroupSize = None,
    max_rows_per_file: o.MaxRowsPerFile = MAX_ROWS_PER_FILE,
    engine: o.EngineName = "auto",
    source_format: o.FormatOfSource = None,
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    dry_run: o.DryRun = False,
    limit: o.Limit = 50,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001  (read where errors are shown)
) -> None:
    """Merge the rows of SOURCE into DATASET, rewriting only what must change."""
    arguments = {
        "path": dataset,
        "strategy": strategy.value,
        "key_columns": o.names(key) or [],
        "partition_columns": o.names(partition_by),
        "dedup_order_by": o.names(dedup_order_by),
        "schema_mode": schema_mode.value,
        "compression": compression,
        "row_group_size": row_group_size,
        "max_rows_per_file": max_rows_per_file,
        "engine": engine,
        "storage_options": o.storage_options(storage_option),
        "lock_timeout": lock_timeout,
    }
    if dry_run:
        _plan(source, source_format, arguments, limit=limit, json=json, quiet=quiet)
    else:
        _merge(source, source_format, arguments, limit=limit, json=json, quiet=quiet)


@app.command()
def plan(
    source: o.Source,
    dataset: o.Dataset,
    strategy: o.Strategy,
    key: o.Keys,
    partition_by: o.PartitionBy = None,
    dedup_order_by: o.DedupOrderBy = None,
    schema_mode: o.SchemaMode = o.SchemaModeName.strict,
    compression: o.Compression = None,
    row_group_size: o.RowGroupSize = None,
    max_rows_per_file: o.MaxRowsPerFile = MAX_ROWS_PER_FILE,
    engine: o.EngineName = "auto",
    source_format: o.FormatOfSource = None,
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    limit: o.Limit = 50,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Say what `inlay merge` with the same arguments would do, file by file and why. Changes nothing."""
    merge(
        source, dataset, strategy, key, partition_by, dedup_order_by, schema_mode, compression, row_group_size,
        max_rows_per_file, engine, source_format, storage_option, lock_timeout, True, limit, json, quiet, debug,
    )  # fmt: skip


def _merge(
    source: str, source_format: o.SourceFormat | None, arguments: dict[str, Any], *, limit: int, json: bool, quiet: bool
) -> None:
    import inlay

    with opened(source, source_format) as data, output.progress(wanted=not json and not quiet) as step:
        result = inlay.merge(data, **arguments, progress=step)
    output.print_json(result.to_dict()) if json else output.merge_result(result, arguments["path"], limit)


def _plan(
    source: str, source_format: o.SourceFormat | None, arguments: dict[str, Any], *, limit: int, json: bool, quiet: bool
) -> None:
    import inlay

    with opened(source, source_format) as data, output.progress(wanted=not json and not quiet) as step:
        planned = inlay.plan_merge(data, **arguments, progress=step)
    output.print_json(planned.to_dict()) if json else output.merge_plan(planned, arguments["path"], limit)


@app.command()
def write(
    source: o.Source,
    dataset: o.Dataset,
    mode: o.Mode = o.WriteMode.append,
    partition_by: o.PartitionBy = None,
    schema_mode: o.SchemaMode = o.SchemaModeName.strict,
    compression: o.Compression = None,
    row_group_size: o.RowGroupSize = None,
    max_rows_per_file: o.MaxRowsPerFile = MAX_ROWS_PER_FILE,
    engine: o.EngineName = "auto",
    source_format: o.FormatOfSource = None,
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    limit: o.Limit = 50,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Write the rows of SOURCE as new files of DATASET, without looking at keys."""
    import inlay

    where = o.storage_options(storage_option)
    _require_dataset(dataset, where, missing_ok=True)
    with opened(source, source_format) as data, output.progress(wanted=not json and not quiet) as step:
        result = inlay.write_dataset(
            data,
            dataset,
            mode=mode.value,
            partition_columns=o.names(partition_by),
            compression=compression,
            max_rows_per_file=max_rows_per_file,
            row_group_size=row_group_size,
            engine=engine,
            storage_options=where,
            schema_mode=schema_mode.value,
            progress=step,
            lock_timeout=lock_timeout,
        )
    output.print_json(result.to_dict()) if json else output.write_result(result, dataset, limit)


@app.command()
def compact(
    dataset: o.Dataset,
    target_file_size: o.TargetFileSize = f"{TARGET_FILE_SIZE >> 20}MiB",
    sort_by: o.SortBy = None,
    compression: o.Compression = None,
    row_group_size: o.RowGroupSize = None,
    max_rows_per_file: o.MaxRowsPerFile = MAX_ROWS_PER_FILE,
    engine: o.EngineName = "auto",
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    limit: o.Limit = 50,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Combine the small files of each partition of DATASET into larger ones."""
    import inlay

    where = o.storage_options(storage_option)
    bytes_per_file = o.size(target_file_size)
    _require_dataset(dataset, where)
    with output.progress(wanted=not json and not quiet) as step:
        result = inlay.compact(
            dataset,
            target_file_size=bytes_per_file,
            max_rows_per_file=max_rows_per_file,
            sort_by=o.names(sort_by),
            compression=compression,
            row_group_size=row_group_size,
            engine=engine,
            storage_options=where,
            progress=step,
            lock_timeout=lock_timeout,
        )
    output.print_json(result.to_dict()) if json else output.write_result(result, dataset, limit)


@app.command()
def recover(
    dataset: o.Dataset,
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Finish or undo what a crash left in DATASET, and say what it was. Writing commands do this by themselves."""
    from dataclasses import asdict

    import inlay

    where = o.storage_options(storage_option)
    report = inlay.recover(dataset, storage_options=where, lock_timeout=lock_timeout)
    if not report:
        _require_dataset(dataset, where)
    output.print_json(asdict(report)) if json else output.recovery(report, dataset)


@app.command()
def inspect(
    dataset: o.Dataset,
    key: o.KeysToShow = None,
    storage_option: o.StorageOptions = None,
    limit: o.Limit = 50,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Show files, partitions, row groups, key ranges and health of DATASET. Changes nothing."""
    from inlay.cli import inspection

    where = o.storage_options(storage_option)
    _require_dataset(dataset, where, missing_ok=True)
    found = inspection.inspect(dataset, o.names(key) or [], where)
    output.print_json(found.to_dict()) if json else inspection.show(found, limit)


def _require_dataset(dataset: str, storage_options: dict[str, Any] | None, *, missing_ok: bool = False) -> None:
    from inlay.storage import locate

    location = locate(dataset, None, storage_options)
    if location.store.is_directory(location.path):
        return
    if location.store.stat(location.path) is not None:
        raise InvalidArgumentError(f"{dataset!r} is a file; a dataset is a directory of Parquet files.")
    if not missing_ok:
        raise NotFoundError(f"There is no dataset at {dataset!r}.")
