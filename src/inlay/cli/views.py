"""`inlay publish` and `inlay unpublish`: views of a dataset for readers of Delta Lake and Apache Iceberg."""

from __future__ import annotations

from typing import Annotated

import typer

from inlay.cli import options as o
from inlay.cli import output
from inlay.constants import LOCK_TIMEOUT

__all__ = ["publish", "unpublish"]

Folder = Annotated[
    str | None, typer.Option("--folder", metavar="DIRECTORY", help="Directory of the view [DATASET.FORMAT].")
]
OnCommit = Annotated[
    bool | None,
    typer.Option(
        "--on-commit/--no-on-commit",
        help="Add each version in its commit (the default of a new view), or only with `inlay publish`.",
    ),
]


def publish(
    dataset: o.Dataset,
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help="delta or iceberg.")],
    folder: Folder = None,
    on_commit: OnCommit = None,
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Publish the versions of DATASET as a table for other readers, or bring that table up to date."""
    import inlay

    view = inlay.publish(
        dataset,
        format_,
        folder=folder,
        on_commit=on_commit,
        storage_options=o.storage_options(storage_option),
        lock_timeout=lock_timeout,
    )
    output.print_json(view.to_dict()) if json else output.view(view)


def unpublish(
    dataset: o.Dataset,
    format_: Annotated[str | None, typer.Argument(metavar="[FORMAT]", help="delta or iceberg [all views].")] = None,
    storage_option: o.StorageOptions = None,
    lock_timeout: o.LockTimeout = LOCK_TIMEOUT,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Delete the published views of DATASET. The dataset keeps its versions."""
    import inlay

    storage = o.storage_options(storage_option)
    folders = inlay.unpublish(dataset, format_, storage_options=storage, lock_timeout=lock_timeout)
    output.print_json({"folders": folders}) if json else output.unpublished(folders)
