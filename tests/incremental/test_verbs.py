"""What all calls on a dataset have in common: where they look, how long they wait, in whose name they fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.errors import DatasetIOError, InlayError, LockTimeoutError
from inlay.incremental.commit import IncrementalFileManager
from inlay.storage import locate
from tests import lake
from tests.faults.flaky import Heedless

ROWS = lake.table([1, 5], ["x", "y"])


def scan(path: str, **options: Any) -> pa.Table:
    with inlay.open_dataset(path, **options) as dataset:
        return dataset.to_table()


# operation -> call
READING: dict[str, Callable[..., Any]] = {
    "read": inlay.read_parquet,
    "plan": lambda path, **options: inlay.plan_merge(ROWS, path, "upsert", ["id"], **options),
}
WRITING: dict[str, Callable[..., Any]] = {
    "merge": lambda path, **options: inlay.merge(ROWS, path, "upsert", ["id"], **options),
    "write": lambda path, **options: inlay.write_dataset(ROWS, path, **options),
    "compact": inlay.compact,
}
VERBS = READING | WRITING


@pytest.fixture
def heedless() -> Heedless:
    """A store for a single writer, with a dataset of two files."""
    Heedless.store.clear()
    filesystem = Heedless()
    for ids in ([1, 2], [3]):
        inlay.write_dataset(
            lake.table(ids), "/bucket/ds", filesystem=filesystem, storage_options={"single_writer": True}
        )
    return filesystem


@pytest.mark.parametrize("name", VERBS)
def test_a_call_works_through_the_filesystem_and_the_options_it_is_given(heedless: Heedless, name: str) -> None:
    told = VERBS[name]("/bucket/ds", filesystem=heedless, storage_options={"single_writer": True})
    rows = scan("/bucket/ds", filesystem=heedless, storage_options={"single_writer": True})["id"].to_pylist()
    expected = {"merge": [1, 2, 3, 5], "write": [1, 1, 2, 3, 5]}
    assert told is not None
    assert sorted(rows) == expected.get(name, [1, 2, 3])


@pytest.mark.parametrize("name", WRITING)
def test_without_the_option_the_store_is_refused(heedless: Heedless, name: str) -> None:
    with pytest.raises(InlayError, match="ignores conditional writes"):
        WRITING[name]("/bucket/ds", filesystem=heedless)


@pytest.mark.parametrize("name", [*WRITING, "recover"])
def test_a_writer_waits_as_long_as_it_is_told_to(tmp_path: Path, name: str) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    with IncrementalFileManager() as holder:
        holder.open(locate(path))
        with pytest.raises(LockTimeoutError, match=r"waited 0\.06 s"):
            (WRITING | {"recover": inlay.recover})[name](path, lock_timeout=0.06)


@pytest.mark.parametrize("name", VERBS)
def test_a_failure_says_what_was_being_done(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    inlay.write_dataset(lake.table([1]), "/bucket/ds", filesystem=memory)

    def lost(path: str, *_: Any, **__: Any) -> None:
        raise OSError(5, "no answer", path)

    monkeypatch.setattr(memory, "find", lost)
    with pytest.raises(DatasetIOError, match=rf"^The {name} failed and nothing changed: .*no answer") as caught:
        VERBS[name]("/bucket/ds", filesystem=memory)
    merging = ("upsert", ["id"]) if name in ("merge", "plan") else (None, [])
    assert (caught.value.operation, caught.value.strategy, caught.value.key_columns) == (name, *merging)
    assert len(caught.value.files) == 1
