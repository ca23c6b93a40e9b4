"""Commands over the service, running or not: upload, datasets, load, query."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from inlay.cli import answers, output
from inlay.cli import options as o
from inlay.cli.client import Client
from inlay.cli.connection import ApiKey, DataDir, Service, Url
from inlay.cli.sent import FileFormat, SentSource, pairs
from inlay.errors import InvalidArgumentError, NotFoundError, did_you_mean

__all__ = ["datasets", "load", "query", "upload"]


class LoadStrategy(StrEnum):
    append = "append"
    replace = "replace"  # type: ignore[assignment]  # hides a method of str that nobody needs here
    insert = "insert"
    update = "update"
    upsert = "upsert"
    full_merge = "full_merge"
    deduplicate = "deduplicate"


class OnErrorName(StrEnum):
    fail = "fail"
    quarantine = "quarantine"


class AnswerFormat(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"
    arrow = "arrow"
    parquet = "parquet"


_WHOLE = (LoadStrategy.append, LoadStrategy.replace)  # loads that need no keys
_ANSWER_TYPES = {
    AnswerFormat.table: "application/json",
    AnswerFormat.json: "application/json",
    AnswerFormat.csv: "text/csv",
    AnswerFormat.arrow: "application/vnd.apache.arrow.stream",
    AnswerFormat.parquet: "application/vnd.apache.parquet",
}
_BINARY = (AnswerFormat.arrow, AnswerFormat.parquet)
_ROWS_OF_A_TABLE = 100

Label = Annotated[str, typer.Option("--label", metavar="TEXT", help="What the data is, in a few words.")]
TableName = Annotated[
    str | None, typer.Option("--table-name", metavar="NAME", help="Its name in SQL; made from the label without it.")
]
FormatOfFile = Annotated[
    FileFormat | None,
    typer.Option("--format", help="Format of FILE. Without it by its name, such as x.csv or x.ndjson.gz."),
]
ReadOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="How to read FILE, instead of what is detected: delimiter, header, quote, escape, null_values,"
        " encoding, day_first, layout; repeatable.",
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="COLUMN=TYPE", help="Type of a column, such as price=decimal(10,2); repeatable."),
]
OnError = Annotated[
    OnErrorName,
    typer.Option(
        "--on-error", help="fail: any bad row stops it and nothing changes; quarantine: the others are loaded."
    ),
]
Target = Annotated[str, typer.Argument(metavar="DATASET", help="Table name or id of the dataset.", show_default=False)]
Name = Annotated[
    str | None,
    typer.Argument(metavar="DATASET", help="Show this one, by table name or id, with schema and versions."),
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
    str | None, typer.Option("--sql", metavar="SELECT", help="Load what this query answers, instead of FILE.")
]
Strategy = Annotated[
    LoadStrategy,
    typer.Option(
        "--strategy",
        "-s",
        metavar="STRATEGY",
        help=f"append and replace take all rows; by key: {', '.join(s for s in LoadStrategy if s not in _WHOLE)}.",
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", "-k", metavar="COLUMN", help="Key column; repeat it or separate columns by commas."),
]
OrderBy = Annotated[
    list[str] | None,
    typer.Option(
        "--order-by", metavar="COLUMN", help="With deduplicate: the row that is last in this order wins; repeatable."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Restore = Annotated[
    int | None, typer.Option("--restore", metavar="VERSION", min=1, help="Make an older version the current one.")
]
Delete = Annotated[bool, typer.Option("--delete", help="Delete the dataset with all its versions.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before deleting.")]
Rejects = Annotated[
    bool, typer.Option("--rejects", help="Show the rows that were rejected when the current version was loaded.")
]
ListLimit = Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Show at most this many; 0 shows all.")]
Statement = Annotated[str, typer.Argument(metavar="SELECT", help="SQL over datasets.TABLE.", show_default=False)]
RowLimit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=0, help=f"Rows at most [{_ROWS_OF_A_TABLE} in a table, else all]."),
]
FormatOfAnswer = Annotated[
    AnswerFormat | None,
    typer.Option("--format", help="Form of the answer [that of the output's name, else table].", show_default=False),
]
Output = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the answer here; by its name also the form.")
]


# -------------------------------------------------------------------------------------------------------------- upload
def upload(
    file: FileToUpload,
    label: Label,
    table_name: TableName = None,
    file_format: FormatOfFile = None,
    option: ReadOptions = None,
    column_type: Types = None,
    on_error: OnError = OnErrorName.fail,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Make a dataset of FILE."""
    source = SentSource.of(file, file_format, option)
    columns = [{"name": name, "type": kind} for name, kind in pairs(column_type, "--type", last=True)]
    body = {
        "label": label,
        "table_name": table_name,
        "schema": {"columns": columns} if columns else None,
        "on_error": on_error.value,
    }
    with Service(url, api_key, data_dir, debug).connected(creates=True) as client:
        with answers.progress(wanted=not json and not quiet) as step, source.sent(client, step) as told:
            made = client.run("/v1/datasets", body | {"source": told}, step)
        output.print_json(made) if json else answers.created(made)


# ------------------------------------------------------------------------------------------------------------ datasets
def datasets(
    dataset: Name = None,
    restore: Restore = None,
    delete: Delete = False,
    yes: Yes = False,
    rejects: Rejects = False,
    limit: ListLimit = 100,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """List the datasets, or show one; restore a version, delete it."""
    asked = [flag for flag, given in (("--restore", restore), ("--delete", delete), ("--rejects", rejects)) if given]
    if len(asked) > 1:
        raise InvalidArgumentError(f"{' and '.join(asked)} exclude each other.", hint="Give one of them.")
    if asked and dataset is None:
        raise InvalidArgumentError(f"{asked[0]} needs a dataset.", hint="`inlay datasets` lists them.")
    with Service(url, api_key, data_dir, debug).connected() as client:
        if dataset is None:
            page = client.pages("/v1/datasets", "datasets", limit)
            output.print_json(page) if json else answers.datasets(page)
            return
        found = _find(client, dataset)
        if restore:
            _restore(client, found, restore, json=json)
        elif delete:
            _delete(client, found, yes=yes, json=json)
        elif rejects:
            page = client.pages(f"/v1/datasets/{found['id']}/rejects", "rejects", limit)
            output.print_json(page) if json else answers.rejects(page, found["table_name"])
        else:
            _show(client, found, limit, json=json)


def _show(client: Client, found: Any, limit: int, *, json: bool) -> None:
    whole = client.get(f"/v1/datasets/{found['id']}")
    versions = client.pages(f"/v1/datasets/{found['id']}/versions", "versions", limit)
    if json:
        output.print_json(whole | {"versions": versions["versions"]})
    else:
        answers.dataset(whole, versions)


def _restore(client: Client, found: Any, version: int, *, json: bool) -> None:
    with answers.progress(wanted=not json) as step:
        made = client.run(f"/v1/datasets/{found['id']}/restore", {"version": version}, step)
    if json:
        output.print_json(made)
    else:
        rows = output.counted(made["row_count"], "row")
        typer.echo(f"{made['table_name']} is as it was in version {version}, with {rows}; this is version"
                   f" {made['version']}.")  # fmt: skip


def _delete(client: Client, found: Any, *, yes: bool, json: bool) -> None:
    name = found["table_name"]
    if not yes and not sys.stdin.isatty():
        raise InvalidArgumentError("Deleting a dataset needs a yes, and nobody is here to ask.", hint="Give --yes.")
    rows = output.counted(found["row_count"], "row")
    if not yes and not typer.confirm(f"Delete {name} with {rows} and all its versions?", err=True):
        typer.echo("Nothing was deleted.", err=True)
        raise typer.Exit(1)
    client.delete(f"/v1/datasets/{found['id']}")
    output.print_json({"deleted": found["id"], "table_name": name}) if json else typer.echo(f"{name} is deleted.")


def _find(client: Client, dataset: str) -> Any:
    """A dataset by its id, or by its table name in whatever case."""
    every = client.pages("/v1/datasets", "datasets")["datasets"]
    for each in every:
        if dataset == each["id"] or dataset.lower() == each["table_name"].lower():
            return each
    meant = did_you_mean(dataset, [each["table_name"] for each in every])
    raise NotFoundError(f"There is no dataset {dataset!r}.", hint=meant or "`inlay datasets` lists them.")


# ---------------------------------------------------------------------------------------------------------------- load
def load(
    dataset: Target,
    strategy: Strategy,
    file: FileToLoad = None,
    sql: Sql = None,
    key: Keys = None,
    order_by: OrderBy = None,
    dry_run: DryRun = False,
    file_format: FormatOfFile = None,
    option: ReadOptions = None,
    on_error: OnError = OnErrorName.fail,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Load the rows of FILE into DATASET: append, replace, or merge by key."""
    if (file is None) == (sql is None):
        raise InvalidArgumentError("A load takes either a FILE or --sql.", hint="Give exactly one of them.")
    keys, order = o.names(key) or [], o.names(order_by) or []
    _check_keys(strategy, keys, order)
    source = SentSource.of(file, file_format, option, sql)
    body = {
        "strategy": strategy.value,
        "key_columns": keys,
        "dedup_order_by": order,
        "dry_run": dry_run,
        "on_error": on_error.value,
    }
    with Service(url, api_key, data_dir, debug).connected() as client:
        target = _find(client, dataset)
        with answers.progress(wanted=not json and not quiet) as step, source.sent(client, step) as told:
            done = client.run(f"/v1/datasets/{target['id']}/loads", body | {"source": told}, step)
        if json:
            output.print_json(done)
        else:
            (answers.planned if dry_run else answers.loaded)(done, target["table_name"])


def _check_keys(strategy: LoadStrategy, keys: Sequence[str], order: Sequence[str]) -> None:
    """The service checks it too, but only when it has the file."""
    if strategy in _WHOLE and (keys or order):
        raise InvalidArgumentError(f"Strategy '{strategy}' takes no --key and no --order-by.")
    if strategy not in _WHOLE and not keys:
        raise InvalidArgumentError(f"Strategy '{strategy}' needs --key.", hint="Name the columns that identify a row.")


# --------------------------------------------------------------------------------------------------------------- query
def query(
    sql: Statement,
    limit: RowLimit = None,
    answer_format: FormatOfAnswer = None,
    output_file: Output = None,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,
) -> None:
    """Ask SQL over the datasets."""
    form = _form(answer_format, output_file, json=json)
    rows = _ROWS_OF_A_TABLE if limit is None and form is AnswerFormat.table else limit
    with (
        Service(url, api_key, data_dir, debug).connected() as client,
        client.query({"sql": sql, "limit": rows}, _ANSWER_TYPES[form]) as answer,
    ):
        if form is AnswerFormat.table:
            answer.read()
            answers.query_result(answer.json())
            return
        told: dict[str, Any] = {
            "row_count": int(answer.headers["X-Row-Count"]),
            "truncated": answer.headers["X-Truncated"] == "true",
        }
        if output_file is None:
            _print_bytes(answer.iter_bytes(), ends_line=form is AnswerFormat.json)
        else:
            told |= {"output": output_file, "size_bytes": _write_bytes(answer.iter_bytes(), Path(output_file))}
            _tell_written(told, json=json)
        if told["truncated"] and limit is None:
            typer.echo(f"Warning: only the first {told['row_count']:,} rows; the service gives no more.", err=True)


def _form(given: AnswerFormat | None, file: str | None, *, json: bool) -> AnswerFormat:
    """As asked for, else as the output is called, else a table."""
    suffix = Path(file).suffix.lstrip(".").lower() if file else ""
    found = given or (AnswerFormat(suffix) if suffix in (*AnswerFormat,) else None)
    if json and file is None:
        if found not in (None, AnswerFormat.json):
            raise InvalidArgumentError(f"--json prints JSON, and --format {found} does not.", hint="Give one of them.")
        return AnswerFormat.json
    if file and found in (None, AnswerFormat.table):
        raise InvalidArgumentError(
            f"The name {file!r} does not say which form the output has.",
            hint="Give --format: json, csv, arrow or parquet.",
        )
    if found in _BINARY and file is None and sys.stdout.isatty():
        raise InvalidArgumentError(f"{found} is not for a terminal.", hint="Give --output, or send it into a pipe.")
    return found or AnswerFormat.table


def _print_bytes(pieces: Iterator[bytes], *, ends_line: bool) -> None:
    out = sys.stdout.buffer
    try:
        for piece in pieces:
            out.write(piece)
        out.write(b"\n" if ends_line else b"")
        out.flush()
    except BrokenPipeError:  # whoever reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None


def _write_bytes(pieces: Iterator[bytes], path: Path) -> int:
    """Replace the file when all of the answer is there; what is no file, such as a pipe, is written to."""
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


def _tell_written(told: dict[str, Any], *, json: bool) -> None:
    if json:
        output.print_json(told)
    else:
        rows = output.counted(told["row_count"], "row")
        typer.echo(f"{rows} written to {told['output']} ({output.size(told['size_bytes'])})")
