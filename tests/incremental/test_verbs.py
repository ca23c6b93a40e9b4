"""What all calls on a dataset have in common: where they look, how long they wait, in whose name they fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.errors import DatasetIOError, DatasetMergeError, InlayError, InvalidArgumentError, LockTimeoutError
from inlay.incremental import read
from inlay.incremental.commit import IncrementalFileManager
from inlay.parquet import footer_cache
from inlay.storage import locate
from tests import lake
from tests.attentive import Listening, Lying
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


@pytest.mark.parametrize("name", VERBS)
def test_footers_are_remembered(heedless: Heedless, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(footer_cache, "_WORTH_CACHING", 1)
    VERBS[name]("/bucket/ds", filesystem=heedless, storage_options={"single_writer": True})
    assert len(list(tmp_path.glob("inlay/footers/*.db"))) == 1


@pytest.mark.parametrize("name", ["plan", *WRITING])
def test_engines_are_told_what_they_work_for_and_say_how_far_they_are(
    heedless: Heedless, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine, steps = Listening(), []
    given: dict[str, Any] = {"filesystem": heedless, "storage_options": {"single_writer": True}}
    VERBS[name]("/bucket/ds", engine=engine, progress=steps.append, **given)
    assert steps[0] == inlay.Progress("", 0, 0)
    assert engine.told.pop("working_at") == (
        "/bucket/ds",
        {"write": "append", "compact": "compact"}.get(name, "upsert"),
    )
    assert engine.told.pop("footers") == 2
    assert engine.told == ({} if name == "compact" else {"open": (["id", "v"], {"single_writer": True})})


@pytest.mark.parametrize("name", WRITING)
def test_what_an_engine_wrote_is_looked_at_before_it_becomes_true(tmp_path: Path, name: str) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1]), "b.parquet": lake.table([2])})
    before = lake.photograph(path)
    with pytest.raises(DatasetMergeError, match=r"^A staged file has \d rows instead of \d; nothing changed"):
        WRITING[name](path, engine=Lying())
    assert lake.photograph(path) == before


@pytest.mark.parametrize(("option", "wrong"), [("compression", "zip"), ("row_group_size", 0), ("max_rows_per_file", 0)])
@pytest.mark.parametrize("name", ["plan", *WRITING])
def test_wrong_choices_are_told_before_anything_is_looked_at(
    tmp_path: Path, name: str, option: str, wrong: Any
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgumentError, match=option):
        VERBS[name](str(tmp_path / "file"), **{option: wrong})


@pytest.mark.parametrize("call", [inlay.merge, inlay.plan_merge])
def test_the_order_of_duplicates_is_by_columns_of_the_source(tmp_path: Path, call: Callable[..., Any]) -> None:
    path = str(tmp_path / "d")
    with pytest.raises(InlayError, match="The dedup_order_by column 'nope' does not exist in the source"):
        call(ROWS, path, "deduplicate", ["id"], dedup_order_by="nope")
    twice = lake.table([1, 1], ["b", "a"])
    assert call(twice, path, "deduplicate", ["id"], dedup_order_by="v").inserted == 1


def test_a_plan_of_a_new_dataset_knows_its_partitions(tmp_path: Path) -> None:
    plan = inlay.plan_merge(ROWS, str(tmp_path / "d"), "upsert", ["id"], partition_by=["v"])
    assert plan.new_files == [f"{tmp_path}/d/v=x/part-*-00000.parquet", f"{tmp_path}/d/v=y/part-*-00001.parquet"]


@pytest.mark.parametrize("call", [inlay.read_parquet, scan])
def test_readers_look_where_they_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., pa.Table]
) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    asked: list[Any] = []

    def locate_dataset(*arguments: Any) -> Any:
        asked.append(arguments)
        return locate(path)

    monkeypatch.setattr(read, "locate_dataset", locate_dataset)
    assert call("somewhere", filesystem=7, storage_options={"key": "k"}).num_rows == 1
    assert asked == [("somewhere", 7, {"key": "k"})]


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


@pytest.mark.parametrize("name", [*VERBS, "scan"])
def test_a_failure_says_what_was_being_done(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    inlay.write_dataset(lake.table([1]), "/bucket/ds", filesystem=memory)

    def lost(path: str, *_: Any, **__: Any) -> None:
        raise OSError(5, "no answer", path)

    monkeypatch.setattr(memory, "find", lost)
    operation = "read" if name == "scan" else name
    with pytest.raises(DatasetIOError, match=rf"^The {operation} failed and nothing changed: .*no answer") as caught:
        (VERBS | {"scan": scan})[name]("/bucket/ds", filesystem=memory)
    merging = ("upsert", ["id"]) if name in ("merge", "plan") else (None, [])
    assert (caught.value.operation, caught.value.strategy, caught.value.key_columns) == (operation, *merging)
    assert len(caught.value.files) == 1
