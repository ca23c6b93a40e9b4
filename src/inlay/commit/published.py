"""The published views of a dataset: where they are, and how they follow its versions.

    <parent>/.<dataset>.txn/views.json     the folder of each view, relative to the parent of the dataset
    <parent>/<dataset>.delta/              a view, with hard links of its own to the links of the history

Views are derived from the history: a commit never fails because of a view. A view that a crash or an error left behind
gets the missing versions in the next call. While a view lags, its files are not deleted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from inlay.commit.access import share_access
from inlay.commit.files import write_durably
from inlay.commit.kept import KeptFile, link_name
from inlay.commit.sidecar import corrupt_record_error, stat_or_none
from inlay.errors import DatasetIOError, InlayError
from inlay.storage import LocalStore, Location
from inlay.views import DataFile, Version, View, open_view

if TYPE_CHECKING:
    from inlay.commit.history import History

__all__ = ["HistoryVersions", "LocalFolder", "PublishedViews", "ViewEntry"]

log = logging.getLogger("inlay.commit")


class ViewEntry(NamedTuple):
    """The entry of a view in `views.json`."""

    format: str
    folder: str  # relative to the parent of the dataset, so that both can be moved together
    on_commit: bool
    is_removed: bool = False  # Its files are being deleted.


class PublishedViews:
    """The views of a dataset. Only a process that holds the lock of the dataset changes them."""

    def __init__(self, location: Location, sidecar: str) -> None:
        self._location, self._sidecar = location, sidecar
        self._path = f"{sidecar}/views.json"

    def read(self) -> dict[str, ViewEntry]:
        try:
            with open(self._path, "rb") as file:
                return {view.format: view for view in (ViewEntry(*each) for each in json.load(file))}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError) as error:
            raise corrupt_record_error(self._path, error) from error

    def write(self, views: Mapping[str, ViewEntry]) -> None:
        """Replace the list of views."""
        draft = f"{self._sidecar}/commit.views.tmp"  # A sweep deletes drafts.
        LocalStore().remove(draft)
        write_durably(draft, json.dumps(list(views.values())).encode())
        os.rename(draft, self._path)
        if not views:
            os.unlink(self._path)
        LocalStore().sync_directory(self._sidecar)

    def path_of(self, view: ViewEntry) -> str:
        return os.path.normpath(os.path.join(os.path.dirname(self._location.path), view.folder))

    def open(self, view: ViewEntry) -> View:
        return open_view(view.format, LocalFolder(self.path_of(view), self._location.path, f"{self._sidecar}/files"))

    def update(self, history: History) -> None:
        """Add the newest versions to all views that follow each commit. Log errors instead of raising them."""
        try:
            views = self.read()
            newest = max(history.numbers(), default=None) if views else None
        except (OSError, InlayError) as error:
            log.warning("inlay cannot read the views of %r: %s", self._location.uri, error)
            return
        for view in views.values():
            try:
                if view.is_removed:
                    self.remove(view.format)
                elif view.on_commit and newest is not None and stat_or_none(self.path_of(view)) is not None:
                    self._add_versions(view, history, newest)
            except (OSError, InlayError) as error:  # A view is derived, so the commit is complete without it.
                log.warning(
                    'The %s view of %r is not up to date: %s Run inlay.publish(path, "%s") when the cause is fixed.',
                    view.format,
                    self._location.uri,
                    error,
                    view.format,
                )

    def _add_versions(self, view: ViewEntry, history: History, newest: int) -> None:
        opened = self.open(view)
        published = opened.newest()
        if published != newest:
            opened.publish(HistoryVersions(history, published))

    def publish(self, view: ViewEntry, history: History) -> None:
        """Write a view, and remove from it what no version needs."""
        self.open(view).publish(HistoryVersions(history), exact=True)

    def update_all(self, history: History, *, exact: bool) -> None:
        """Add the newest versions to all views, also those that do not follow each commit."""
        for view in self.read().values():
            if view.is_removed or stat_or_none(self.path_of(view)) is None:
                continue
            if exact:
                self.publish(view, history)
            else:
                self._add_versions(view, history, history.numbers()[-1])

    def remove(self, format_: str) -> None:
        """Delete the files of a view. The next call completes this after a crash."""
        views = self.read()
        view = views[format_]
        self.write(views | {format_: view._replace(is_removed=True)})
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path_of(view))
        self.write({name: each for name, each in views.items() if name != format_})

    def links_to_drop(self, number: int, names: Sequence[str]) -> Iterator[str]:
        """Return the links of views to files that version `number` replaced. Skip views without that version."""
        for view in self.read().values() if names else ():
            opened = self.open(view)
            newest = opened.newest()
            if newest is not None and newest >= number:
                yield from (os.path.join(self.path_of(view), opened.data, name) for name in names)


def _intact(history: History, newest: int | None, numbers: Sequence[int]) -> Sequence[int]:
    """Return the versions from the newest one that replaces a damaged file. Check those that the view lacks."""
    for number in reversed(numbers[1:]):
        if newest is not None and number <= newest:
            break
        if history.has_damaged(number - 1, [path for path, *_ in history.read(number).replaced]):
            return numbers[numbers.index(number) :]
    return numbers


class HistoryVersions:
    """The versions of a history, as far as a view shows them."""

    def __init__(self, history: History, newest: int | None = None) -> None:
        """Leave out damaged versions, of which a view up to version `newest` has seen the others."""
        self._history = history
        self.numbers = _intact(history, newest, history.numbers())
        self.location = history.links_location

    def read(self, number: int) -> Version:
        record = self._history.read(number)
        removed = [DataFile(path, link_name(path, link), size, 0) for path, link, size in record.replaced]
        added = [_data_file(put.target, KeptFile.of(put)) for put in record.puts]
        return Version(number, record.id, record.at, record.change.operation, added, removed)

    def files(self, number: int) -> list[DataFile]:
        kept = self._history.files(self._history.read(number))
        return [_data_file(path, file) for path, file in sorted(kept.items())]


def _data_file(path: str, file: KeptFile) -> DataFile:
    return DataFile(path, link_name(path, file.link), file.size, file.mtime_ns)


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """The folder of a view on a local disk. Its data files are hard links to those in another directory."""

    path: str
    model: str  # the dataset, whose access rights new directories get
    links: str

    def full(self, file: DataFile, directory: str) -> str:
        return f"{self.path}/{directory}/{file.name}"

    def names(self, directory: str) -> list[str]:
        try:
            return os.listdir(f"{self.path}/{directory}")
        except FileNotFoundError:
            return []

    def open(self, name: str) -> BinaryIO:
        return open(f"{self.path}/{name}", "rb")

    def write(self, name: str, content: bytes, at: str | None = None) -> None:
        path = f"{self.path}/{name}"
        directory = os.path.dirname(path)
        self._make_directories([directory])
        draft = f"{directory}/.draft"
        with open(draft, "wb") as file:
            file.write(content)
            file.flush()
            if at is not None:
                time = datetime.fromisoformat(at).timestamp()
                os.utime(draft, (time, time))
            os.fsync(file.fileno())
        os.rename(draft, path)
        LocalStore().sync_directory(directory)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            LocalStore().remove(f"{self.path}/{name}")

    def add(self, files: Sequence[DataFile], directory: str = "") -> None:
        root = os.path.join(self.path, directory)
        targets = [os.path.join(root, file.name) for file in files]
        directories = {os.path.dirname(target) for target in targets}
        self._make_directories(sorted(directories))
        for file, target in zip(files, targets, strict=True):
            try:
                os.link(f"{self.links}/{file.name}", target)
            except FileExistsError:  # An interrupted call has linked it. Links are never used for other content.
                continue
            except OSError as error:
                raise _link_error(self.path, target, error) from error
        for each in directories:
            LocalStore().sync_directory(each)

    def release(self, files: Iterable[DataFile], directory: str = "") -> None:
        self.delete(os.path.join(directory, file.name) for file in files)

    def retain(self, files: Iterable[DataFile], directory: str = "", *, beside: str = "") -> None:
        root = os.path.join(self.path, directory)
        wanted = {os.path.join(root, file.name) for file in files}
        for parent, _, names in os.walk(root, topdown=False):
            if beside and (parent == os.path.join(root, beside)):
                continue
            for name in names:
                if (path := os.path.join(parent, name)) not in wanted:
                    LocalStore().remove(path)
            if parent != root:
                LocalStore().remove_empty_directory(parent)

    def _make_directories(self, directories: Iterable[str]) -> None:
        parents = set()
        for directory in directories:
            for made in LocalStore().make_directories(directory):
                share_access(self.model, made)
                parents.add(os.path.dirname(made))
        for parent in parents:
            LocalStore().sync_directory(parent)


def _link_error(folder: str, target: str, error: OSError) -> DatasetIOError:
    return DatasetIOError(
        f"The view in {folder!r} cannot have the hard link {target!r}: {error.strerror or error}.",
        operation="publish",
        hint="Publish into a folder on the filesystem of the dataset.",
    )
