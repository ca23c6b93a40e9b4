"""Views of a dataset for readers of Delta Lake and Apache Iceberg: publish, unpublish and list them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from inlay.commit.history import History
from inlay.commit.local import LocalJournal
from inlay.commit.published import PublishedViews, ViewEntry
from inlay.commit.transaction import open_journal
from inlay.constants import LOCK_TIMEOUT
from inlay.errors import InlayError, InvalidArgumentError, NotFoundError
from inlay.incremental.versions import OpenHistory, open_history
from inlay.storage import Filesystem, Location
from inlay.views import FORMATS, unknown_format_error

__all__ = ["PublishedView", "list_views", "publish", "unpublish"]


@dataclass(frozen=True, slots=True)
class PublishedView:
    """A view of a dataset.

    Attributes:
        format: `"delta"` or `"iceberg"`.
        folder: The directory that readers open as a table.
        version: The newest version of the dataset that the view shows. None if the view has no files.
        is_current: True if that is the newest version.
        on_commit: True if each commit adds its version to the view.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
        2
        >>> view = inlay.publish("people", "delta")
        >>> view.format, view.version, view.is_current
        ('delta', 1, True)
    """

    format: str
    folder: str
    version: int | None
    is_current: bool
    on_commit: bool

    def to_dict(self) -> dict[str, Any]:
        """Convert the view to a dict that `json.dumps` accepts.

        Returns:
            The attributes by name.

        Example:
            >>> import inlay
            >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
            2
            >>> inlay.publish("people", "delta").to_dict()["version"]
            1
        """
        return asdict(self)


def publish(
    path: str | os.PathLike[str],
    format: str,  # noqa: A002
    *,
    folder: str | os.PathLike[str] | None = None,
    on_commit: bool | None = None,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> PublishedView:
    """Publish the versions of a dataset as a table of Delta Lake or Apache Iceberg.

    Each kept version is a version of the table, in Delta Lake with the same number. The view consists of the log of
    the format and of hard links to the data files, so no data is written twice. Later commits add their versions to
    the view, and a repeated call brings it up to date. The view is for readers: change the dataset with inlay.

    Args:
        path: The directory of the dataset.
        format: `"delta"` or `"iceberg"`. Iceberg needs the extra: `pip install "inlay[iceberg]"`.
        folder: The directory of the view, on the filesystem of the dataset. By default the path of the dataset with
            `.delta` or `.iceberg` appended. It must not exist or be empty.
        on_commit: True (the default of a new view) adds each version in its commit. False waits for the next call of
            `publish`. None keeps the choice for an existing view.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.
        lock_timeout: How many seconds to wait for another writer.

    Returns:
        The view, which shows the newest version.

    Raises:
        InvalidArgumentError: The format is unknown, the folder is in use or inside the dataset, or another program
            wrote to the view.
        SchemaMismatchError: The format has no type for a column. Nothing was written.
        NotFoundError: The dataset does not exist or has no versions.
        EngineNotInstalledError: The extra for Iceberg is not installed.
        HistoryUnavailableError: The storage of the dataset cannot keep versions.
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout` seconds.
        DatasetIOError: The storage failed, or the folder is on another filesystem.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
        2
        >>> inlay.publish("people", "delta").version
        1
        >>> inlay.merge({"id": [3]}, "people", "upsert", "id").inserted
        1
        >>> import polars as pl
        >>> pl.scan_delta("people.delta").collect().height
        3
        >>> pl.scan_delta("people.delta", version=1).collect().height
        2
    """
    if format not in FORMATS:
        raise unknown_format_error(format)
    with open_history(path, filesystem, storage_options, lock_timeout, "publish") as opened:
        views, history = _views(opened)
        entries = views.read()
        entry = _entry(opened.location, views, entries.get(format), format, folder)
        entry = entry._replace(on_commit=entry.on_commit if on_commit is None else on_commit)
        opened.record_external(opened.snapshot())
        if entries.get(format) != entry:
            views.write(entries | {format: entry})
        try:
            views.publish(entry, history)
        except InlayError:
            if format not in entries and views.open(entry).newest() is None:
                views.remove(format)
            raise
        return _described(views, entry, history)


def _views(opened: OpenHistory) -> tuple[PublishedViews, History]:
    journal = opened.journal
    if not isinstance(journal, LocalJournal):
        raise InvalidArgumentError(
            f"{opened.location.uri!r} cannot be published: a view consists of hard links, which need a local disk.",
            hint="Upload the dataset to a service of inlay, which publishes datasets on object stores.",
        )
    return journal.views, journal.require_history()


def _entry(
    location: Location,
    views: PublishedViews,
    existing: ViewEntry | None,
    format_: str,
    folder: str | os.PathLike[str] | None,
) -> ViewEntry:
    wanted = f"{location.path}.{format_}" if folder is None else os.path.abspath(os.fspath(folder))
    if existing is not None:
        at = views.path_of(existing)
        if folder is not None and os.path.realpath(at) != os.path.realpath(wanted):
            raise InvalidArgumentError(
                f"{location.uri!r} is already published as {format_} in {at!r}.",
                hint=f'Run inlay.unpublish(path, "{format_}") first to move the view.',
            )
        return existing
    _require_free(location, wanted)
    return ViewEntry(format_, os.path.relpath(wanted, os.path.dirname(location.path)), on_commit=True)


def _require_free(location: Location, folder: str) -> None:
    real, dataset = os.path.realpath(folder), os.path.realpath(location.path)
    if f"{real}/".startswith(f"{dataset}/") or f"{dataset}/".startswith(f"{real}/"):
        raise InvalidArgumentError(
            f"The folder {folder!r} and the dataset {location.uri!r} contain one another, so readers of the dataset"
            " would read each row twice.",
            hint="Choose a folder beside the dataset.",
        )
    if os.path.lexists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise InvalidArgumentError(
            f"The folder {folder!r} exists and is not empty.",
            hint="Choose another folder, or delete it if it is a view that no dataset publishes.",
        )


def unpublish(
    path: str | os.PathLike[str],
    format: str | None = None,  # noqa: A002
    *,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> list[str]:
    """Delete a published view of a dataset, or all of them. The dataset keeps its versions.

    Args:
        path: The directory of the dataset.
        format: `"delta"` or `"iceberg"`. None deletes all views of the dataset.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.
        lock_timeout: How many seconds to wait for another writer.

    Returns:
        The deleted folders.

    Raises:
        InvalidArgumentError: The format is unknown.
        NotFoundError: The dataset does not exist, or is not published in this format.
        HistoryUnavailableError: The storage of the dataset cannot keep versions.
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout` seconds.
        DatasetIOError: The storage failed.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
        2
        >>> inlay.publish("people", "delta").version
        1
        >>> len(inlay.unpublish("people"))
        1
    """
    if format is not None and format not in FORMATS:
        raise unknown_format_error(format)
    with open_history(path, filesystem, storage_options, lock_timeout, "unpublish") as opened:
        views, _ = _views(opened)
        entries = views.read()
        if format is not None and format not in entries:
            raise NotFoundError(
                f"{opened.location.uri!r} is not published as {format}.",
                hint="Run `inlay inspect DATASET` to see the published views.",
            )
        chosen = [entry for name, entry in entries.items() if format in (None, name)]
        for entry in chosen:
            views.remove(entry.format)
        return [views.path_of(entry) for entry in chosen]


def list_views(location: Location) -> list[PublishedView]:
    """Return the published views of a dataset."""
    journal = open_journal(location)
    if not isinstance(journal, LocalJournal) or (history := journal.history) is None:
        return []
    views = journal.views
    return [_described(views, entry, history) for entry in views.read().values() if not entry.is_removed]


def _described(views: PublishedViews, entry: ViewEntry, history: History) -> PublishedView:
    try:
        version = views.open(entry).newest()
    except InvalidArgumentError:  # Another program has written to the view, which only `publish` needs to report.
        version = None
    is_current = version is not None and version == max(history.numbers(), default=None)
    return PublishedView(entry.format, views.path_of(entry), version, is_current, entry.on_commit)
