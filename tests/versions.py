"""Datasets with a history on each kind of storage: hard links, copies of files, and copies of objects."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.commit.kept import link_name
from inlay.commit.object_history import ObjectHistory
from inlay.commit.transaction import open_journal
from inlay.parquet.layout import data_files
from inlay.storage import Location, locate
from tests.faults.scenarios import wrong_history
from tests.s3 import S3Server

Dataset: TypeAlias = Path | str  # a local path or a URL

LOCAL = ["links", "copies"]
# Copies differ from links in few functions, which tests with `LOCAL` call. S3 differs from the store in memory only in
# the requests, and the server of the tests answers slowly.
STORAGES = ["links", "memory", *(pytest.param(name, marks=pytest.mark.long) for name in ("copies", "s3"))]
_NUMBERS = itertools.count()


def refuse_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the filesystem have no hard links."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)


@contextlib.contextmanager
def new_dataset(kind: str, directory: Path, s3: S3Server | None) -> Iterator[Dataset]:
    """Yield a path for a new dataset with a history."""
    path: Dataset = directory / "ds"
    with pytest.MonkeyPatch.context() as patch:
        if kind == "copies":
            refuse_links(patch)
            (directory / "ds").mkdir()
        elif kind == "memory":
            path = f"memory://versions-{next(_NUMBERS)}/ds"
        elif s3 is not None:
            path = f"{s3.bucket()}/lake/ds"
        if kind != "links":
            inlay.keep(path, versions=20, copies=True)
        yield path
        if kind == "memory":
            client, root = fsspec.url_to_fs(str(path).rpartition("/")[0])
            client.rm(root, recursive=True)


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Dataset]:
    """Return a path for a new dataset that keeps 20 versions."""
    kind = getattr(request, "param", "links")
    with new_dataset(kind, tmp_path, request.getfixturevalue("s3") if kind == "s3" else None) as path:
        yield path


def write_file(path: Dataset, name: str, table: pa.Table) -> None:
    """Write or replace a data file as another program does."""
    client, root = fsspec.url_to_fs(str(path))
    target = f"{root}/{name}"
    client.makedirs(target.rpartition("/")[0], exist_ok=True)
    if isinstance(path, Path):
        pq.write_table(table, f"{target}.new")
        os.rename(f"{target}.new", target)
        return
    with client.open(target, "wb") as file:
        pq.write_table(table, file)


def file_names(path: Dataset) -> list[str]:
    return [file.path for file in data_files(locate(path))]


def dataset_size(path: Dataset) -> int:
    return sum(file.size for file in data_files(locate(path)))


def hidden_objects(path: Dataset) -> list[str]:
    """List the files of the history of a dataset."""
    client, root = fsspec.url_to_fs(str(path))
    client.invalidate_cache()
    parent, _, name = root.rpartition("/")
    found = [str(each) for each in client.find(parent, withdirs=isinstance(path, Path))]
    return [
        each
        for each in found
        if re.search(rf"/\.{name}\.(versions/|txn/(files|versions|log/.*(versions|ended)_))", each)
    ]


def wrong_versions(path: Dataset) -> list[str]:
    """Describe kept files that no version needs, damaged versions, and a newest version that is not the dataset."""
    return wrong_history(path.parent) if isinstance(path, Path) else wrong_objects(locate(path))


def wrong_objects(location: Location) -> list[str]:
    history = open_journal(location).history
    if history is None:
        return []
    assert isinstance(history, ObjectHistory)
    records = [history.read(number) for number in history.numbers()]
    lost = {each.version: history.damaged(history.files(each)) for each in records}
    found = [f"version {number} has lost {paths}" for number, paths in lost.items() if paths]
    needed = {link_name(path, link) for each in records[1:] for path, link, _ in each.replaced}
    copies = set(location.store.walk(history._copies, lambda _: True).paths)
    found += [f"a copy that no version needs: {name}" for name in copies - needed]
    if records and history.find_external(data_files(location)) is not None:
        found.append("the newest version is not the dataset")
    if (numbers := history.numbers()) and numbers != list(range(numbers[0], numbers[-1] + 1)):
        found.append(f"versions are missing: {numbers}")
    return found
