"""Commands on plain datasets: each calls the library function of its name and prints the result."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from inspect import Signature, signature
from typing import Annotated, Any, BinaryIO, TypeAlias

import typer

from inlay.cli import api_keys, output
from inlay.cli import options as o
from inlay.cli.diff import diff
from inlay.cli.doctor import doctor
from inlay.cli.options import SourceFormat
from inlay.cli.serve import serve
from inlay.cli.service import datasets, load, query, upload
from inlay.cli.views import publish, unpublish
from inlay.constants import LOCK_TIMEOUT, MAX_ROWS_PER_FILE, TARGET_FILE_SIZE
from inlay.errors import (
    BadRowsError,
    InvalidArgumentError,
    NotFoundError,
    RejectedDataError,
    UnreadableSourceError,
)

__all__ = ["app"]


_START_BYTES = 1 << 10  # of a file, which tell whether it has content
SourceArguments: TypeAlias = contextlib.AbstractContextManager[dict[str, Any]]


@contextlib.contextmanager
def _open_source(
    source: str, source_format: SourceFormat | None, read_options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the arguments `data` and `read_options` of `inlay.merge`."""
    options = dict(read_options)
    if source_format is not None:
        options["format"] = source_format.value
    if _is_stream(source):
        with contextlib.ExitStack() as stack:
            stream = sys.stdin.buffer if source == "-" else stack.enter_context(open(source, "rb"))
            yield stack.enter_context(_stream_source(stream, source_format, options))
    else:
        yield {"data": source, "read_options": options}


def _is_stream(source: str) -> bool:
    """Return whether a source can be read only once: standard input, a pipe such as `<(command)`, or a device."""
    with contextlib.suppress(OSError, ValueError):
        mode = os.stat(source).st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return source == "-"


@contextlib.contextmanager
def _stream_source(
    stream: BinaryIO, source_format: SourceFormat | None, options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a stream; copy formats other than Arrow to a temporary file first.

    Parquet is read from its end, and column types of text depend on the whole text.
    """
    if source_format is SourceFormat.arrow:
        yield {"data": _arrow_stream(stream)}
        return
    with tempfile.TemporaryDirectory(prefix="inlay-stdin-") as directory:
        path = os.path.join(directory, "stdin")
        with open(path, "wb") as file:
            shutil.copyfileobj(stream, file)
        if source_format in (SourceFormat.csv, SourceFormat.json) and _is_empty(path, source_format):
            yield {"data": []}
            return
        try:
            yield {"data": path, "read_options": options | {"format": (source_format or SourceFormat.csv).value}}
        except RejectedDataError as error:
            _name_standard_input(error, path)
            raise


def _is_empty(path: str, source_format: SourceFormat) -> bool:
    """Return whether a file of text has no content, or the JSON text of no records."""
    with open(path, "rb") as file:
        start = file.read(_START_BYTES)
    if len(start) == _START_BYTES:
        return False
    return start.strip() in ((b"", b"[]") if source_format is SourceFormat.json else (b"",))


def _name_standard_input(error: RejectedDataError, path: str) -> None:
    """Replace the path of the temporary file in an error."""
    error.message = error.message.replace(f"the source {path!r}", "standard input").replace(
        repr(path), "standard input"
    )
    error.hint = error.hint or "Pass the format with --source-format."
    if isinstance(error, BadRowsError):
        error.errors = [cell | {"file": "-"} for cell in error.errors]


def _arrow_stream(stream: BinaryIO) -> Any:
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(stream)
    except (pa.ArrowException, OSError) as error:
        raise RejectedDataError(
            f"Cannot read standard input: {str(error).splitlines()[0]}",
            hint="Pass the format with --source-format.",
        ) from error


app = typer.Typer(
    help="Keep plain Parquet datasets current: merge rows by key, and rewrite only row groups that change.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help renders three times faster
)


def _show_version(requested: bool) -> None:
    if requested:
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
app.add_typer(api_keys.app, name="keys")


@app.command()
@o.with_read_options
def merge(
    source: o.Source,
    dataset: o.Dataset,
    strategy: o.Strategy,
    key: o.Keys,
    partition_by: o.PartitionBy = None,
    dedup_order_by: o.DedupOrderBy = None,
    schema_mode: o.SchemaMode = o.SchemaModeName.strict,
    missing_columns: o.MissingColumns = o.MissingColumnsName.error,
    operation_column: o.OperationColumn = None,
    newer_by: o.NewerBy = None,
    scope: o.Scope = None,
    max_deleted: o.MaxDeleted = None,
    transaction: o.Transaction = None,
    allow_empty: o.AllowEmpty = False,
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
    debug: o.Debug = False,  # noqa: ARG001  (`inlay.cli.run` reads it)
    *,
    read_options: dict[str, Any],
) -> None:
    """Merge the rows of SOURCE into DATASET. Rewrites only the row groups that change."""
    arguments: dict[str, Any] = {
        "path": dataset,
        "strategy": strategy.value,
        "key_columns": o.names(key) or [],
        "partition_columns": o.names(partition_by),
        "dedup_order_by": o.names(dedup_order_by),
        "schema_mode": schema_mode.value,
        "missing_columns": missing_columns.value,
        "operation_column": operation_column,
        "newer_by": newer_by,
        "scope": o.scope(scope),
        "max_deleted": o.max_deleted(max_deleted),
        "transaction": transaction,
        "compression": compression,
        "row_group_size": row_group_size,
        "max_rows_per_file": max_rows_per_file,
        "engine": engine,
        "storage_options": o.storage_options(storage_option),
        "lock_timeout": lock_timeout,
    }
    rows = _open_source(source, source_format, read_options)
    if _is_stream(source) and arguments["strategy"] == "full_merge" and not (allow_empty or dry_run):
        rows = _require_rows(rows, dataset, arguments["storage_options"], scope or [])
    (_plan if dry_run else _merge)(rows, arguments, limit=limit, json=json, quiet=quiet)


@contextlib.contextmanager
def _require_rows(
    source: SourceArguments, dataset: str, storage_options: dict[str, Any] | None, scope: list[str]
) -> Iterator[dict[str, Any]]:
    """Raise if standard input has no rows: the program that writes to it may have failed."""
    from inlay.engines.streams import open_source

    with source as arguments:
        like = _schema_of(dataset, storage_options)
        deleted = f"all rows of {dataset!r}" + (f" in the scope {' '.join(scope)}" if scope else "")
        empty = RejectedDataError(
            f"Standard input has no rows, and full_merge would delete {deleted}.",
            hint="Check the program that writes the rows. To delete the rows, pass --allow-empty.",
        )
        with contextlib.ExitStack() as stack:
            try:
                rows = stack.enter_context(open_source(arguments["data"], like, None, arguments.get("read_options")))
            except UnreadableSourceError as error:
                if not error.is_empty:
                    raise
                raise empty from error
            batches = rows.to_batches() if hasattr(rows, "to_batches") else rows
            first = next((batch for batch in batches if batch.num_rows), None)
            if first is None:
                raise empty
            if "read_options" not in arguments:  # a stream can be read only once
                arguments |= {"data": itertools.chain([first], batches)}
        yield arguments


def _schema_of(dataset: str, storage_options: dict[str, Any] | None) -> Any:
    """Return the schema of a dataset, or None if it does not exist."""
    import inlay

    with contextlib.suppress(NotFoundError), inlay.open_dataset(dataset, storage_options=storage_options) as found:
        return found.schema
    return None


def plan(**arguments: Any) -> None:
    """Show what `inlay merge` would do. Lists the operation on each file and its reason. Changes nothing."""
    merge(**arguments, dry_run=True)


plan.__signature__ = Signature(  # type: ignore[attr-defined]
    [parameter for name, parameter in signature(merge).parameters.items() if name != "dry_run"]
)
app.command()(plan)


def _merge(source: SourceArguments, arguments: dict[str, Any], *, limit: int, json: bool, quiet: bool) -> None:
    import inlay

    with source as rows, output.progress(enabled=not json and not quiet) as step:
        result = inlay.merge(**rows, **arguments, progress=step)
    output.print_json(result.to_dict()) if json else output.merge_result(result, arguments["path"], limit)


def _plan(source: SourceArguments, arguments: dict[str, Any], *, limit: int, json: bool, quiet: bool) -> None:
    import inlay

    with source as rows, output.progress(enabled=not json and not quiet) as step:
        planned = inlay.plan_merge(**rows, **arguments, progress=step)
    output.print_json(planned.to_dict()) if json else output.merge_plan(planned, arguments["path"], limit)


@app.command()
@o.with_read_options
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
    *,
    read_options: dict[str, Any],
) -> None:
    """Write the rows of SOURCE as new files. Appends to DATASET or overwrites it, without comparing keys."""
    import inlay

    storage = o.storage_options(storage_option)
    _require_dataset(dataset, storage, missing_ok=True)
    progress = output.progress(enabled=not json and not quiet)
    with _open_source(source, source_format, read_options) as rows, progress as step:
        result = inlay.write_dataset(
            rows.pop("data"),
            dataset,
            **rows,
            mode=mode.value,
            partition_columns=o.names(partition_by),
            compression=compression,
            max_rows_per_file=max_rows_per_file,
            row_group_size=row_group_size,
            engine=engine,
            storage_options=storage,
            schema_mode=schema_mode.value,
            progress=step,
            lock_timeout=lock_timeout,
        )
    output.print_json(result.to_dict()) if json else output.write_result(result, dataset, limit)


@app.command()
def delete(
    dataset: o.Dataset,
    where: o.Where,
    max_deleted: o.MaxDeleted = None,
    engine: o.EngineName = "auto",
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    dry_run: o.PlanOnly = False,
    limit: o.Limit = 50,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Delete the rows of DATASET for which a condition is true. Rewrites only row groups that lose rows."""
    import inlay

    arguments: dict[str, Any] = {
        "max_deleted": o.max_deleted(max_deleted),
        "engine": engine,
        "storage_options": o.storage_options(storage_option),
        "lock_timeout": lock_timeout,
    }
    _require_dataset(dataset, o.storage_options(storage_option), missing_ok=True)
    with output.progress(enabled=not json and not quiet) as step:
        if dry_run:
            plan = inlay.plan_delete(dataset, where, **arguments, progress=step)
            output.print_json(plan.to_dict()) if json else output.merge_plan(plan, dataset, limit)
        else:
            result = inlay.delete(dataset, where, **arguments, progress=step)
            output.print_json(result.to_dict()) if json else output.merge_result(result, dataset, limit)


@app.command()
def alter(
    dataset: o.Dataset,
    rename: o.Rename = None,
    drop: o.Drop = None,
    widen: o.Widen = None,
    engine: o.EngineName = "auto",
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    dry_run: o.PlanOnly = False,
    limit: o.Limit = 50,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Rename, drop and widen columns of DATASET. Encodes only widened columns."""
    import inlay

    arguments: dict[str, Any] = {
        "rename": dict(o.pairs(rename, "--rename")),
        "drop": o.names(drop),
        "widen": dict(o.pairs(widen, "--widen", last=True)),
        "engine": engine,
        "storage_options": o.storage_options(storage_option),
        "lock_timeout": lock_timeout,
    }
    _require_dataset(dataset, o.storage_options(storage_option))
    with output.progress(enabled=not json and not quiet) as step:
        if dry_run:
            plan = inlay.plan_alter(dataset, **arguments, progress=step)
            output.print_json(plan.to_dict()) if json else output.alter_plan(plan, dataset, limit)
        else:
            result = inlay.alter(dataset, **arguments, progress=step)
            output.print_json(result.to_dict()) if json else output.alter_result(result, dataset, limit)


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
    """Combine the small files of DATASET. Each partition gets fewer, larger files."""
    import inlay

    storage = o.storage_options(storage_option)
    bytes_per_file = o.size(target_file_size)
    _require_dataset(dataset, storage)
    with output.progress(enabled=not json and not quiet) as step:
        result = inlay.compact(
            dataset,
            target_file_size=bytes_per_file,
            max_rows_per_file=max_rows_per_file,
            sort_by=o.names(sort_by),
            compression=compression,
            row_group_size=row_group_size,
            engine=engine,
            storage_options=storage,
            progress=step,
            lock_timeout=lock_timeout,
        )
    output.print_json(result.to_dict()) if json else output.write_result(result, dataset, limit)


@app.command()
def recover(
    dataset: o.Dataset,
    undo: Annotated[
        bool, typer.Option("--undo", help="Restore the files as they were before the interrupted commit.")
    ] = False,
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Complete or undo an interrupted commit. Commands that write complete it automatically."""
    from dataclasses import asdict

    import inlay

    storage = o.storage_options(storage_option)
    report = inlay.recover(dataset, storage_options=storage, lock_timeout=lock_timeout, undo=undo)
    if not report:
        _require_dataset(dataset, storage)
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
    """Show the files and problems of DATASET. Includes partitions and key ranges. Changes nothing."""
    from inlay.cli import inspection

    storage = o.storage_options(storage_option)
    _require_dataset(dataset, storage, missing_ok=True)
    found = inspection.inspect(dataset, o.names(key) or [], storage)
    output.print_json(found.to_dict()) if json else inspection.show(found, limit)


@app.command()
def history(
    dataset: o.Dataset,
    storage_option: o.StorageOptions = None,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """List the versions of DATASET, newest first. Shows what each commit did."""
    import inlay

    storage = o.storage_options(storage_option)
    _require_dataset(dataset, storage, missing_ok=True)
    found = inlay.history(dataset, storage_options=storage)
    output.print_json([version.to_dict() for version in found]) if json else output.history(found)


@app.command()
def undo(
    dataset: o.Dataset,
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Revert the newest change of DATASET as a new version. A second undo reverts the change before it."""
    import inlay

    version = inlay.undo(dataset, storage_options=o.storage_options(storage_option), lock_timeout=lock_timeout)
    output.print_json(version.to_dict()) if json else output.restored(version)


@app.command()
def restore(
    dataset: o.Dataset,
    version: Annotated[int, typer.Argument(help="The number of the version.")],
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Restore the rows of an earlier version of DATASET, as a new version."""
    import inlay

    storage = o.storage_options(storage_option)
    made = inlay.restore(dataset, version, storage_options=storage, lock_timeout=lock_timeout)
    output.print_json(made.to_dict()) if json else output.restored(made)


app.command()(diff)


@app.command()
def keep(
    dataset: o.Dataset,
    versions: Annotated[int | None, typer.Option(help="Keep this many versions, with the newest.")] = None,
    days: Annotated[float | None, typer.Option(help="Keep a version this many days after it was replaced.")] = None,
    max_bytes: Annotated[
        str | None, typer.Option("--bytes", help="Keep at most this size of replaced files, such as 10GiB.")
    ] = None,
    copies: Annotated[bool, typer.Option("--copies", help="Keep copies of files that cannot be hard-linked.")] = False,
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Set how many versions DATASET keeps, and drop older ones. Limits that you omit do not apply."""
    import inlay

    report = inlay.keep(
        dataset,
        versions=versions,
        days=days,
        bytes=None if max_bytes is None else o.size(max_bytes),
        copies=copies,
        storage_options=o.storage_options(storage_option),
        lock_timeout=lock_timeout,
    )
    output.print_json(report.to_dict()) if json else output.forgotten(report)


@app.command()
def forget(
    dataset: o.Dataset,
    before: Annotated[int | None, typer.Option(help="The number of the oldest version to keep.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Delete all versions, and the limits of the history.")
    ] = False,
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Delete all versions of DATASET before a number, with their files. Keeps versions that a process reads."""
    import inlay

    if (before is None) != everything:
        raise typer.BadParameter("Pass either --before or --all.")
    storage = o.storage_options(storage_option)
    report = inlay.forget(dataset, before, storage_options=storage, lock_timeout=lock_timeout)
    output.print_json(report.to_dict()) if json else output.forgotten(report)


app.command()(publish)
app.command()(unpublish)


def _require_dataset(dataset: str, storage_options: dict[str, Any] | None, *, missing_ok: bool = False) -> None:
    from inlay.storage import locate

    location = locate(dataset, None, storage_options)
    if location.store.is_directory(location.path):
        return
    if location.store.stat(location.path) is not None:
        raise InvalidArgumentError(f"{dataset!r} is a file. A dataset is a directory of Parquet files.")
    if not missing_ok:
        raise NotFoundError(f"No dataset found at {dataset!r}.")
