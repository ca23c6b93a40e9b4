"""The arguments that all functions share: filesystem, storage options, lock timeout, errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.commit.transaction import IncrementalFileManager
from inlay.engines import get_engine
from inlay.errors import DatasetIOError, DatasetMergeError, InlayError, InvalidArgumentError, LockTimeoutError
from inlay.incremental import ParquetMetadataAnalyzer, plan_incremental_rewrite, read
from inlay.parquet import footer_cache
from inlay.storage import locate
from tests import lake
from tests.fake_engines import MiscountingEngine, RecordingEngine
from tests.faults.flaky import UnconditionalStore

ROWS = lake.table([1, 5], ["x", "y"])


def scan(path: str | Path, **options: Any) -> pa.Table:
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
FUNCTIONS: dict[str, Callable[[Path], Any]] = {
    "open": scan,
    "recover": inlay.recover,
    "list": inlay.list_dataset_files,
    "metadata": ParquetMetadataAnalyzer().analyze_dataset_files,
    "rewrite plan": lambda path: plan_incremental_rewrite(path, [1], "id"),
    "stage": lambda path: IncrementalFileManager().create_staging_directory(path),
    "merge statistics": lambda path: inlay.merge_parquet_dataset_pyarrow(ROWS, path, "id"),
    "write and merge": lambda path: inlay.PyArrowDatasetIO().write_parquet_dataset(ROWS, path),
    "escape": inlay.PathValidator.escape_for_sql,
}


@pytest.mark.parametrize("name", VERBS | FUNCTIONS)
def test_every_call_accepts_a_path_object(tmp_path: Path, name: str) -> None:
    inlay.write_dataset(lake.table([1, 2]), tmp_path / "ds")
    assert (VERBS | FUNCTIONS)[name](tmp_path / "ds") is not None


@pytest.fixture
def unconditional_store() -> UnconditionalStore:
    """A store without conditional writes, with a dataset of two files."""
    UnconditionalStore.store.clear()
    filesystem = UnconditionalStore()
    for ids in ([1, 2], [3]):
        inlay.write_dataset(
            lake.table(ids), "/bucket/ds", filesystem=filesystem, storage_options={"single_writer": True}
        )
    return filesystem


@pytest.mark.parametrize("name", VERBS)
def test_every_call_uses_its_filesystem_and_storage_options(unconditional_store: UnconditionalStore, name: str) -> None:
    result = VERBS[name]("/bucket/ds", filesystem=unconditional_store, storage_options={"single_writer": True})
    rows = scan("/bucket/ds", filesystem=unconditional_store, storage_options={"single_writer": True})["id"].to_pylist()
    expected = {"merge": [1, 2, 3, 5], "write": [1, 1, 2, 3, 5]}
    assert result is not None
    assert sorted(rows) == expected.get(name, [1, 2, 3])


@pytest.mark.parametrize("name", VERBS)
def test_footers_are_cached(
    unconditional_store: UnconditionalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(footer_cache, "_WORTH_CACHING", 1)
    VERBS[name]("/bucket/ds", filesystem=unconditional_store, storage_options={"single_writer": True})
    assert len(list(tmp_path.glob("inlay/footers/*.db"))) == 1


@pytest.mark.parametrize("name", ["plan", *WRITING])
def test_engines_are_bound_to_the_operation_and_report_progress(
    unconditional_store: UnconditionalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine, steps = RecordingEngine(), []
    options: dict[str, Any] = {"filesystem": unconditional_store, "storage_options": {"single_writer": True}}
    VERBS[name]("/bucket/ds", engine=engine, progress=steps.append, **options)
    assert steps[0] == inlay.Progress("", 0, 0)
    assert engine.calls.pop("bind") == (
        "/bucket/ds",
        {"write": "append", "compact": "compact"}.get(name, "upsert"),
    )
    assert engine.calls.pop("footers") == 2
    assert engine.calls == ({} if name == "compact" else {"open": (["id", "v"], {"single_writer": True})})


@pytest.mark.parametrize("name", WRITING)
def test_staged_files_are_verified_before_the_commit(tmp_path: Path, name: str) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1]), "b.parquet": lake.table([2])})
    before = lake.photograph(path)
    with pytest.raises(DatasetMergeError, match=r"^The staged file '.*' has \d rows instead of \d\. Nothing changed"):
        WRITING[name](path, engine=MiscountingEngine())
    assert lake.photograph(path) == before


@pytest.mark.parametrize(("option", "wrong"), [("compression", "zip"), ("row_group_size", 0), ("max_rows_per_file", 0)])
@pytest.mark.parametrize("name", ["plan", *WRITING])
def test_invalid_arguments_are_reported_before_anything_is_read(
    tmp_path: Path, name: str, option: str, wrong: Any
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgumentError, match=option):
        VERBS[name](str(tmp_path / "file"), **{option: wrong})


@pytest.mark.parametrize("call", [inlay.merge, inlay.plan_merge])
def test_dedup_order_by_names_columns_of_the_source(tmp_path: Path, call: Callable[..., Any]) -> None:
    path = str(tmp_path / "d")
    with pytest.raises(InlayError, match="The dedup_order_by column 'nope' does not exist in the source"):
        call(ROWS, path, "deduplicate", ["id"], dedup_order_by="nope")
    twice = lake.table([1, 1], ["b", "a"])
    assert call(twice, path, "deduplicate", ["id"], dedup_order_by="v").inserted == 1


def test_a_plan_of_a_new_dataset_uses_its_partition_columns(tmp_path: Path) -> None:
    plan = inlay.plan_merge(ROWS, str(tmp_path / "d"), "upsert", ["id"], partition_by=["v"])
    assert plan.new_files == [f"{tmp_path}/d/v=x/part-*-00000.parquet", f"{tmp_path}/d/v=y/part-*-00001.parquet"]


@pytest.mark.parametrize("call", [inlay.read_parquet, scan])
def test_readers_use_their_filesystem_and_storage_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., pa.Table]
) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    calls: list[Any] = []

    def locate_dataset(*arguments: Any) -> Any:
        calls.append(arguments)
        return locate(path)

    monkeypatch.setattr(read, "locate_dataset", locate_dataset)
    assert call("somewhere", filesystem=7, storage_options={"key": "k"}).num_rows == 1
    assert calls == [("somewhere", 7, {"key": "k"})]


@pytest.mark.parametrize("name", WRITING)
def test_a_store_without_conditional_writes_is_rejected(unconditional_store: UnconditionalStore, name: str) -> None:
    with pytest.raises(InlayError, match="ignores conditional writes"):
        WRITING[name]("/bucket/ds", filesystem=unconditional_store)


@pytest.mark.parametrize("name", [*WRITING, "recover"])
def test_a_writer_waits_for_the_lock_timeout(tmp_path: Path, name: str) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    with IncrementalFileManager() as holder:
        holder.open(locate(path))
        with pytest.raises(LockTimeoutError, match=r"waited 0\.06 s"):
            (WRITING | {"recover": inlay.recover})[name](path, lock_timeout=0.06)


@pytest.mark.parametrize("name", [*VERBS, "scan"])
def test_an_error_names_the_operation(memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
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


@pytest.mark.parametrize("other", ["auto", "pyarrow", get_engine("pyarrow")], ids=["auto", "pyarrow", "object"])
def test_use_merge_is_rejected_by_other_engines(tmp_path: Path, other: Any) -> None:
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(InvalidArgumentError, match="use_merge needs the DuckDB engine"):
            call({"id": [1]}, tmp_path / "d", "upsert", "id", engine=other, use_merge=False)
    assert list(tmp_path.iterdir()) == []


def test_use_merge_is_rejected_by_classes_of_other_engines(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="use_merge needs the DuckDB engine"):
        inlay.PyArrowDatasetIO().merge({"id": [1]}, tmp_path / "d", "upsert", "id", use_merge=True)
