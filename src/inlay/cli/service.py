"""Commands that use the service: upload, datasets, load, query."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import typer

from inlay.cli import options as o
from inlay.cli import output, service_output
from inlay.cli.client import ApiKey, Client, DataDir, Service, Step, Url
from inlay.errors import InvalidArgumentError, NotFoundError, did_you_mean

__all__ = ["datasets", "load", "query", "upload"]


class FileFormat(StrEnum):
    csv = "csv"
    json = "json"
    parquet = "parquet"


_CONTENT_TYPES = {
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "pq": "application/vnd.apache.parquet",
}
_COMPRESSIONS = {"gz": "gzip", "gzip": "gzip", "zst": "zstd", "zstd": "zstd"}


class SourceToSend(NamedTuple):
    """The rows of an upload or a load: a file with its read options, or a query."""

    file: str | None
    sql: str | None
    format: FileFormat | None
    options: dict[str, Any]

    @classmethod
    def of(
        cls, file: str | None, file_format: FileFormat | None, read_options: dict[str, Any], sql: str | None = None
    ) -> SourceToSend:
        """Create a source and check everything that needs no service."""
        if sql is not None and (file_format or read_options):
            raise InvalidArgumentError("--format and read options apply to a FILE, not to --sql.")
        source = cls(file, sql, file_format, read_options)
        if file is not None:
            source.content_type()
            if not source.is_pipe():
                with source.open():
                    pass
        return source

    def is_pipe(self) -> bool:
        """Return True for a pipe, which must be opened only once."""
        try:
            return self.file == "-" or stat.S_ISFIFO(os.stat(str(self.file)).st_mode)
        except OSError:
            return False

    def content_type(self) -> tuple[str, str | None]:
        """Return the content type and the compression that the file name implies."""
        suffixes = [suffix.lstrip(".").lower() for suffix in Path(str(self.file)).suffixes]
        compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
        inner = suffixes[:-1] if compression else suffixes
        found = _CONTENT_TYPES.get(self.format or (inner[-1] if inner else ""))
        if found is None:
            name = "standard input" if self.file == "-" else repr(self.file)
            raise InvalidArgumentError(
                f"Cannot tell the format of {name} from its name.", hint="Pass --format csv, json or parquet."
            )
        return found, compression

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[BinaryIO, int | None]]:
        """Yield the file and its size, or None as the size of a pipe."""
        if self.file == "-":
            yield sys.stdin.buffer, None
            return
        path = str(self.file)
        try:
            file = open(path, "rb")  # noqa: SIM115  (closed below)
        except FileNotFoundError as error:
            raise NotFoundError(f"No file found at {path!r}.") from error
        except OSError as error:
            raise InvalidArgumentError(f"Cannot read {path!r}: {error.strerror or error}.") from error
        with file:
            status = os.fstat(file.fileno())
            is_file = stat.S_ISREG(status.st_mode)
            if is_file and not status.st_size:
                raise InvalidArgumentError(f"The file {path!r} is empty.")
            yield file, status.st_size if is_file else None

    @contextlib.contextmanager
    def send(self, client: Client, step: Step) -> Iterator[dict[str, Any]]:
        """Upload the file, yield the `source` of a request, and discard an upload that no job consumed."""
        if self.sql is not None:
            yield {"sql": self.sql}
            return
        with self.open() as (file, size):
            stored = client.upload(file, size, *self.content_type(), step)
        try:
            yield {"upload_id": stored["id"], "format": self.format, "options": self.options}
        finally:
            client.discard_upload(stored["id"])


class LoadStrategy(StrEnum):
    append = "append"
    replace = "replace"  # type: ignore[assignment]  # hides str.replace, which a strategy does not need
    insert = "insert"
    update = "update"
    upsert = "upsert"
    full_merge = "full_merge"
    deduplicate = "deduplicate"
    delete = "delete"


class OnErrorName(StrEnum):
    fail = "fail"
    quarantine = "quarantine"


class ResultFormat(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"
    arrow = "arrow"
    parquet = "parquet"


_WHOLE = (LoadStrategy.append, LoadStrategy.replace)  # loads that need no keys
_MEDIA_TYPES = {
    ResultFormat.table: "application/json",
    ResultFormat.json: "application/json",
    ResultFormat.csv: "text/csv",
    ResultFormat.arrow: "application/vnd.apache.arrow.stream",
    ResultFormat.parquet: "application/vnd.apache.parquet",
}
_BINARY = (ResultFormat.arrow, ResultFormat.parquet)
_TABLE_ROWS = 100

Label = Annotated[str, typer.Option("--label", metavar="TEXT", help="Short description of the data.")]
TableName = Annotated[
    str | None,
    typer.Option("--table-name", metavar="NAME", help="Name of the table in SQL. Default: derived from the label."),
]
FormatOfFile = Annotated[
    FileFormat | None,
    typer.Option(
        "--format",
        case_sensitive=False,
        help="Format of FILE. Default: from its name, such as x.csv or x.ndjson.gz.",
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="COLUMN=TYPE", help="Type of a column, such as price=decimal(10,2). Repeatable."),
]
OnError = Annotated[
    OnErrorName,
    typer.Option(
        "--on-error", help="fail stops at an invalid row and changes nothing; quarantine loads the valid rows."
    ),
]
Target = Annotated[str, typer.Argument(metavar="DATASET", help="Table name or id of the dataset.", show_default=False)]
Name = Annotated[
    str | None,
    typer.Argument(metavar="DATASET", help="Table name or id of one dataset, to see its schema and versions."),
]
FileToUpload = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="CSV, JSON or Parquet, also as .gz or .zst; `-` reads standard input.", show_default=False
    ),
]
FileToLoad = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help="CSV, JSON or Parquet, also as .gz or .zst; `-` reads standard input."),
]
Sql = Annotated[
    str | None, typer.Option("--sql", metavar="SELECT", help="Load the result of this query instead of FILE.")
]
Strategy = Annotated[
    LoadStrategy,
    typer.Option(
        "--strategy",
        "-s",
        metavar="STRATEGY",
        help=f"append or replace; with --key: {', '.join(s for s in LoadStrategy if s not in _WHOLE)}.",
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key", "-k", metavar="COLUMN", help="Key column. Repeat the option or separate columns with commas."
    ),
]
OrderBy = Annotated[
    list[str] | None,
    typer.Option(
        "--order-by",
        metavar="COLUMN",
        help="Column that orders the rows of a key for deduplicate; the last row wins. Repeatable.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
Restore = Annotated[
    int | None, typer.Option("--restore", metavar="VERSION", min=1, help="Make this version current again.")
]
Delete = Annotated[bool, typer.Option("--delete", help="Delete the dataset with all its versions.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without a confirmation prompt.")]
Rejects = Annotated[
    bool, typer.Option("--rejects", help="Show the rows that the load of the current version rejected.")
]
Diff = Annotated[
    tuple[int, int] | None,
    typer.Option("--diff", metavar="OLD NEW", help="Show the rows that differ between two versions."),
]
DiffOutput = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="With --diff: write all rows to this .csv, .parquet or .arrow file."
    ),
]
ListLimit = Annotated[
    int, typer.Option("--limit", metavar="N", min=0, help="Maximum number of entries to show; 0 shows all.")
]
Statement = Annotated[
    str, typer.Argument(metavar="SELECT", help="The query. Tables are named datasets.TABLE.", show_default=False)
]
RowLimit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=0, help=f"Maximum number of rows [{_TABLE_ROWS} in a table, else all]."),
]
FormatOfResult = Annotated[
    ResultFormat | None,
    typer.Option(
        "--format",
        case_sensitive=False,
        help="Format of the result [from the name of the output file, else table].",
        show_default=False,
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the result to this file. Its name also implies the format."
    ),
]


# -------------------------------------------------------------------------------------------------------------- upload
@o.with_read_options
def upload(
    file: FileToUpload,
    label: Label,
    table_name: TableName = None,
    file_format: FormatOfFile = None,
    column_type: Types = None,
    on_error: OnError = OnErrorName.fail,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    read_options: dict[str, Any],
) -> None:
    """Create a dataset from FILE."""
    source = SourceToSend.of(file, file_format, read_options)
    columns = [{"name": name, "type": kind} for name, kind in o.pairs(column_type, "--type", last=True)]
    body = {
        "label": label,
        "table_name": table_name,
        "schema": {"columns": columns} if columns else None,
        "on_error": on_error.value,
    }
    with Service(url, api_key, data_dir, debug).connect(creates=True) as client:
        with service_output.progress(enabled=not json and not quiet) as step, source.send(client, step) as sent:
            created = client.run("/v1/datasets", body | {"source": sent}, step)
        output.print_json(created) if json else service_output.created(created)


# ------------------------------------------------------------------------------------------------------------ datasets
def datasets(
    dataset: Name = None,
    restore: Restore = None,
    delete: Delete = False,
    yes: Yes = False,
    rejects: Rejects = False,
    diff: Diff = None,
    output_file: DiffOutput = None,
    limit: ListLimit = 100,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """List all datasets, or show, compare, restore or delete one."""
    chosen = {"--restore": restore, "--delete": delete, "--rejects": rejects, "--diff": diff}
    flags = [flag for flag, value in chosen.items() if value]
    form = None if output_file is None else _diff_format(output_file, diff)
    if len(flags) > 1:
        raise InvalidArgumentError(f"{' and '.join(flags)} cannot be combined.", hint="Pass only one of them.")
    if flags and dataset is None:
        raise InvalidArgumentError(f"{flags[0]} requires a dataset.", hint="Run `inlay datasets` to list all datasets.")
    with Service(url, api_key, data_dir, debug).connect() as client:
        if dataset is None:
            page = client.pages("/v1/datasets", "datasets", limit)
            output.print_json(page) if json else service_output.datasets(page)
            return
        found = _find(client, dataset)
        if restore:
            _restore(client, found, restore, json=json)
        elif delete:
            _delete(client, found, yes=yes, json=json)
        elif rejects:
            page = client.pages(f"/v1/datasets/{found['id']}/rejects", "rejects", limit)
            output.print_json(page) if json else service_output.rejects(page, found["table_name"])
        elif diff:
            summary = _diff(client, found, *diff, limit, output_file, form)
            output.print_json(summary) if json else service_output.diff(summary)
        else:
            _show(client, found, limit, json=json)


def _show(client: Client, found: Any, limit: int, *, json: bool) -> None:
    whole = client.get(f"/v1/datasets/{found['id']}")
    versions = client.pages(f"/v1/datasets/{found['id']}/versions", "versions", limit)
    if json:
        output.print_json(whole | {"versions": versions["versions"]})
    else:
        service_output.dataset(whole, versions)


def _restore(client: Client, found: Any, version: int, *, json: bool) -> None:
    with service_output.progress(enabled=not json) as step:
        restored = client.run(f"/v1/datasets/{found['id']}/restore", {"version": version}, step)
    if json:
        output.print_json(restored)
    else:
        rows = output.counted(restored["row_count"], "row")
        name, current = restored["table_name"], restored["version"]
        typer.echo(f"Restored version {version} of {name} ({rows}) as version {current}.")


def _diff_format(file: str, diff: tuple[int, int] | None) -> ResultFormat:
    if diff is None:
        raise InvalidArgumentError("--output requires --diff.", hint="Use `inlay query` to write rows of a dataset.")
    form = _result_format(None, file, json=False)
    if form is ResultFormat.json:
        raise InvalidArgumentError(
            f"Cannot write a diff to {file!r}.", hint="Choose a name that ends in .csv, .parquet or .arrow."
        )
    return form


def _diff(
    client: Client, found: Any, old: int, new: int, limit: int, file: str | None, form: ResultFormat | None
) -> dict[str, Any]:
    """Return the counts with the first rows, or with the size of the file that has all rows."""
    path, versions = f"/v1/datasets/{found['id']}/diff", {"old": old, "new": new}
    if file is None or form is None:
        return client.pages(path, "rows", limit, **versions)
    counts = client.get(path, limit=1, **versions)
    summary = {name: counts[name] for name in ("old", "new", "key_columns", "inserted", "updated", "deleted")}
    with client.stream("GET", path, _MEDIA_TYPES[form], params=versions) as response:
        size = _write_bytes(response.iter_bytes(), Path(file))
        if response.headers["X-Truncated"] == "true":
            typer.echo(f"Warning: the file has only the first {response.headers['X-Row-Count']} rows.", err=True)
    return summary | {"output": file, "size_bytes": size}


def _delete(client: Client, found: Any, *, yes: bool, json: bool) -> None:
    name = found["table_name"]
    if not yes and not sys.stdin.isatty():
        raise InvalidArgumentError(
            "Deleting a dataset requires a confirmation, but standard input is not a terminal.", hint="Pass --yes."
        )
    rows = output.counted(found["row_count"], "row")
    if not yes and not typer.confirm(f"Delete {name} with {rows} and all its versions?", err=True):
        typer.echo("Nothing was deleted.", err=True)
        raise typer.Exit(1)
    client.delete(f"/v1/datasets/{found['id']}")
    output.print_json({"deleted": found["id"], "table_name": name}) if json else typer.echo(f"Deleted {name}.")


def _find(client: Client, dataset: str) -> Any:
    """Find a dataset by its id, or by its table name in any case."""
    every = client.pages("/v1/datasets", "datasets")["datasets"]
    for each in every:
        if dataset == each["id"] or dataset.lower() == each["table_name"].lower():
            return each
    suggestion = did_you_mean(dataset, [each["table_name"] for each in every])
    raise NotFoundError(
        f"No dataset named {dataset!r}.", hint=suggestion or "Run `inlay datasets` to list all datasets."
    )


# ---------------------------------------------------------------------------------------------------------------- load
@o.with_read_options
def load(
    dataset: Target,
    strategy: Strategy,
    file: FileToLoad = None,
    sql: Sql = None,
    key: Keys = None,
    order_by: OrderBy = None,
    missing_columns: o.MissingColumns = o.MissingColumnsName.error,
    operation_column: o.OperationColumn = None,
    newer_by: o.NewerBy = None,
    scope: o.Scope = None,
    max_deleted: o.MaxDeleted = None,
    dry_run: DryRun = False,
    file_format: FormatOfFile = None,
    on_error: OnError = OnErrorName.fail,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
    *,
    read_options: dict[str, Any],
) -> None:
    """Load the rows of FILE into DATASET. Appends, replaces, or merges by key."""
    if (file is None) == (sql is None):
        raise InvalidArgumentError("A load needs either a FILE or --sql.", hint="Pass exactly one of them.")
    keys, order = o.names(key) or [], o.names(order_by) or []
    _check_keys(strategy, keys, order)
    source = SourceToSend.of(file, file_format, read_options, sql)
    body = {
        "strategy": strategy.value,
        "key_columns": keys,
        "dedup_order_by": order,
        "missing_columns": missing_columns.value,
        "operation_column": operation_column,
        "newer_by": newer_by,
        "scope": o.scope(scope),
        "max_deleted": o.max_deleted(max_deleted),
        "dry_run": dry_run,
        "on_error": on_error.value,
    }
    with Service(url, api_key, data_dir, debug).connect() as client:
        target = _find(client, dataset)
        with service_output.progress(enabled=not json and not quiet) as step, source.send(client, step) as sent:
            result = client.run(f"/v1/datasets/{target['id']}/loads", body | {"source": sent}, step)
        if json:
            output.print_json(result)
        else:
            (service_output.planned if dry_run else service_output.loaded)(result, target["table_name"])


def _check_keys(strategy: LoadStrategy, keys: Sequence[str], order: Sequence[str]) -> None:
    """Check keys before the upload; the service checks them only after it."""
    if strategy in _WHOLE and (keys or order):
        raise InvalidArgumentError(f"Strategy '{strategy}' does not use --key or --order-by.")
    if strategy not in _WHOLE and not keys:
        raise InvalidArgumentError(
            f"Strategy '{strategy}' requires --key.", hint="Pass the columns that identify a row."
        )


# --------------------------------------------------------------------------------------------------------------- query
def query(
    sql: Statement,
    limit: RowLimit = None,
    answer_format: FormatOfResult = None,
    output_file: Output = None,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Run a SQL query over the datasets."""
    form = _result_format(answer_format, output_file, json=json)
    rows = _TABLE_ROWS if limit is None and form is ResultFormat.table else limit
    with (
        Service(url, api_key, data_dir, debug).connect() as client,
        client.stream("POST", "/v1/query", _MEDIA_TYPES[form], json={"sql": sql, "limit": rows}) as response,
    ):
        if form is ResultFormat.table:
            response.read()
            service_output.query_result(response.json())
            return
        summary: dict[str, Any] = {
            "row_count": int(response.headers["X-Row-Count"]),
            "truncated": response.headers["X-Truncated"] == "true",
        }
        if output_file is None:
            _print_bytes(response.iter_bytes(), ends_line=form is ResultFormat.json)
        else:
            summary |= {"output": output_file, "size_bytes": _write_bytes(response.iter_bytes(), Path(output_file))}
            _print_summary(summary, json=json)
        if summary["truncated"] and limit is None:
            rows = summary["row_count"]
            typer.echo(f"Warning: the service limits a result to its first {rows:,} rows.", err=True)


def _result_format(chosen: ResultFormat | None, file: str | None, *, json: bool) -> ResultFormat:
    """Return the format of --format, else of the output file's name, else a table."""
    suffix = Path(file).suffix.lstrip(".").lower() if file else ""
    found = chosen or (ResultFormat(suffix) if suffix in (*ResultFormat,) else None)
    if json and file is None:
        if found not in (None, ResultFormat.json):
            raise InvalidArgumentError(
                f"--json and --format {found} cannot be combined.", hint="Pass only one of them."
            )
        return ResultFormat.json
    if file and found in (None, ResultFormat.table):
        raise InvalidArgumentError(
            f"Cannot tell the format of the output from the name {file!r}.",
            hint="Pass --format json, csv, arrow or parquet.",
        )
    if found in _BINARY and file is None and sys.stdout.isatty():
        raise InvalidArgumentError(
            f"A terminal cannot show {found}.", hint="Pass --output, or pipe the output to another program."
        )
    return found or ResultFormat.table


def _print_bytes(pieces: Iterator[bytes], *, ends_line: bool) -> None:
    out = sys.stdout.buffer
    try:
        for piece in pieces:
            out.write(piece)
        out.write(b"\n" if ends_line else b"")
        out.flush()
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None


def _write_bytes(pieces: Iterator[bytes], path: Path) -> int:
    """Replace the file once the response is complete. Write directly to a pipe or device."""
    partial = path if path.exists() and not path.is_file() else path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            size = sum(file.write(piece) for piece in pieces)
        if partial != path:
            os.replace(partial, path)
    except OSError as error:
        raise InvalidArgumentError(f"Cannot write {str(path)!r}: {error.strerror or error}.") from error
    finally:
        if partial != path:
            partial.unlink(missing_ok=True)
    return size


def _print_summary(summary: dict[str, Any], *, json: bool) -> None:
    if json:
        output.print_json(summary)
    else:
        rows = output.counted(summary["row_count"], "row")
        typer.echo(f"{rows} written to {summary['output']} ({output.size(summary['size_bytes'])})")
