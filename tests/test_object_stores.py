"""Merges on object stores, in memory and over the S3 protocol: the same results as on a local disk."""

from __future__ import annotations

import datetime as dt
import errno
import gc
import http.client
import itertools
import posixpath
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.engines import edits
from inlay.errors import (
    ConcurrentModificationError,
    DatasetIOError,
    DuplicateKeyError,
    InvalidArgumentError,
    NotFoundError,
    PartitionMoveError,
)
from inlay.incremental import ParquetMetadataAnalyzer, confirm_affected_files, list_dataset_files
from inlay.parquet.splice import SpliceRefused
from inlay.storage import locate
from inlay.storage.objects import _object_stat
from tests import lake
from tests.s3 import start_server

STRATEGIES = ["insert", "update", "upsert", "full_merge", "deduplicate"]
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = start_server()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/bucket")
    assert connection.getresponse().status == 200
    connection.close()
    yield f"http://{host}:{port}"
    server.stop()


@dataclass
class Place:
    """The location of a dataset, and the arguments that select it."""

    path: str
    options: dict[str, Any]  # storage_options

    @property
    def client(self) -> Any:
        filesystem, _ = fsspec.url_to_fs(self.path, **self.options)
        filesystem.invalidate_cache()
        return filesystem

    @property
    def key(self) -> str:
        return str(self.client._strip_protocol(self.path))

    def write(self, files: dict[str, pa.Table], **options: Any) -> None:
        for name, table in files.items():
            with self.client.open(f"{self.key}/{name}", "wb") as file:
                pq.write_table(table, file, **options)

    def names(self) -> list[str]:
        found = self.client.find(self.key)
        return sorted(path.removeprefix(self.key).lstrip("/") for path in found)

    def everything(self) -> dict[str, bytes]:
        """Every object below the parent, hidden ones too."""
        return {path: self.client.cat_file(path) for path in self.client.find(posixpath.dirname(self.key))}

    def read(self, **options: Any) -> pa.Table:
        return inlay.read_parquet(self.path, storage_options=self.options, **options)

    def merge(self, source: Any, strategy: str, keys: list[str], **options: Any) -> Any:
        return inlay.merge(source, self.path, strategy, keys, storage_options=self.options, **options)


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    number = next(_NUMBERS)
    if request.param == "memory":
        return Place(f"memory://stores-{number}/d", {})
    url = request.getfixturevalue("endpoint")
    return Place(f"s3://bucket/stores-{number}/d", {"key": "k", "secret": "s", "endpoint_url": url})


TARGET = {
    "a.parquet": lake.table(range(20)),
    "b.parquet": lake.table(range(20, 40)),
    "c/d.parquet": lake.table(range(40, 60)),
}
SOURCE = lake.table([5, 6, 45, 100, 101], ["v5", "new", "new", "new", "new"])


def rows(table: pa.Table) -> list[Any]:
    return sorted(map(repr, lake.rows_of(table)))


def numbers(result: Any) -> tuple[int, ...]:
    return (
        result.source_count,
        result.target_count_before,
        result.target_count_after,
        result.inserted,
        result.updated,
        result.deleted,
        result.unchanged,
        len(result.rewritten_files),
        len(result.inserted_files),
        len(result.preserved_files),
        len(result.removed_files),
    )


# --------------------------------------------------------------------------------------------------- the same results
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_merges_match_a_local_disk(place: Place, tmp_path: Path, strategy: str) -> None:
    place.write(TARGET, row_group_size=5)
    lake.write(tmp_path / "d", TARGET, row_group_size=5)
    source = pa.concat_tables([SOURCE, SOURCE.slice(4)]) if strategy == "deduplicate" else SOURCE
    remote = place.merge(source, strategy, ["id"])
    local = inlay.merge(source, str(tmp_path / "d"), strategy, ["id"])
    assert numbers(remote) == numbers(local)
    assert rows(place.read()) == rows(inlay.read_parquet(str(tmp_path / "d")))
    assert remote.bytes_copied == local.bytes_copied
    again = place.merge(SOURCE, "upsert", ["id"])
    assert (again.updated, again.unchanged) == {"insert": (5, 3), "update": (3, 3)}.get(strategy, (5, 5))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_partitioned_merges_match_a_local_disk(place: Place, tmp_path: Path, strategy: str) -> None:
    target = {f"p={p}/q=a b/x.parquet": lake.table(range(10 * p, 10 * p + 10)) for p in range(4)}
    source = lake.table(
        [5, 15, 45], ["n5", "n15", "n45"], p=pa.array([0, 1, 4]), q=pa.array(["a b", "a b", None], pa.string())
    )
    place.write(target)
    lake.write(tmp_path / "d", target)
    remote = place.merge(source, strategy, ["id"])
    local = inlay.merge(source, str(tmp_path / "d"), strategy, ["id"])
    assert numbers(remote) == numbers(local)
    assert rows(place.read()) == rows(inlay.read_parquet(str(tmp_path / "d")))
    found = [name.rpartition("/")[0] for name in place.names()]
    assert found == [name.rpartition("/")[0] for name in lake.names(tmp_path / "d")]
    if strategy not in ("insert", "update"):
        assert "p=4/q=__HIVE_DEFAULT_PARTITION__" in found


def test_a_new_dataset_is_created(place: Place) -> None:
    result = place.merge(SOURCE, "upsert", ["id"])
    assert (result.inserted, result.target_count_before) == (5, 0)
    assert rows(place.read()) == rows(SOURCE)
    assert place.merge(SOURCE, "update", ["id"]).updated == 5


def test_writers_with_one_token_apply_it_once(place: Place) -> None:
    place.write(TARGET, row_group_size=5)
    barrier = threading.Barrier(3)
    results: list[Any] = []

    def write(text: str) -> None:
        barrier.wait()
        source = lake.table([5, 100], [text, text])
        results.append((text, place.merge(source, "upsert", ["id"], transaction="batch-1")))

    threads = [threading.Thread(target=write, args=(text,)) for text in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [applied] = [text for text, result in results if not result.replayed]
    assert {numbers(result)[:7] for _, result in results} == {(2, 60, 61, 1, 1, 0, 0)}
    assert rows(place.read()) == rows(
        pa.concat_tables([lake.table([i for i in range(60) if i != 5]), lake.table([5, 100], [applied, applied])])
    )
    plan = inlay.plan_merge(SOURCE, place.path, "upsert", ["id"], storage_options=place.options, transaction="batch-1")
    assert plan.replayed


def test_a_plan_changes_nothing_and_matches_the_merge(place: Place) -> None:
    place.write(TARGET, row_group_size=5)
    before = place.everything()
    plan = inlay.plan_merge(SOURCE, place.path, "upsert", ["id"], storage_options=place.options)
    assert place.everything() == before
    assert sorted(plan.affected_files) == [f"{place.path}/a.parquet", f"{place.path}/c/d.parquet"]
    result = place.merge(SOURCE, "upsert", ["id"])
    assert (plan.inserted, plan.updated, plan.unchanged) == (result.inserted, result.updated, result.unchanged)
    assert len(plan.new_files) == len(result.inserted_files)


def test_files_that_surgery_rejects_can_be_planned(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise SpliceRefused("as files of some old writers are")

    place.write(TARGET, row_group_size=5)
    monkeypatch.setattr(edits, "_splice", refuse)
    plan = inlay.plan_merge(SOURCE, place.path, "upsert", ["id"], storage_options=place.options)
    result = place.merge(SOURCE, "upsert", ["id"])
    assert (plan.inserted, plan.updated) == (result.inserted, result.updated) == (2, 3)


def test_errors_of_a_store_are_reported_by_inlay() -> None:
    class Refusing(MemoryFileSystem):  # type: ignore[misc]
        def info(self, path: str, **_: Any) -> Any:
            raise PermissionError(errno.EACCES, "Access Denied", path)

    with pytest.raises(DatasetIOError, match=r"opening of the dataset failed and nothing changed: .*Access Denied"):
        inlay.merge(SOURCE, "/refused/d", "upsert", ["id"], filesystem=Refusing())


def test_writes_append_and_overwrite(place: Place) -> None:
    place.write(TARGET)
    first = inlay.write_dataset(SOURCE, place.path, storage_options=place.options, max_rows_per_file=2)
    assert (first.row_count, len(first.files)) == (5, 3)
    assert place.read().num_rows == 65
    second = inlay.write_dataset(SOURCE, place.path, mode="overwrite", storage_options=place.options)
    assert len(second.removed_files) == 6
    assert rows(place.read()) == rows(SOURCE)
    assert [f"{place.path}/{name}" for name in place.names()] == [file.path for file in second.files]


def test_small_files_are_compacted(place: Place) -> None:
    place.write(TARGET)
    before = rows(place.read())
    result = inlay.compact(place.path, storage_options=place.options, sort_by="id")
    assert len(result.files) == 2  # one per directory
    assert rows(place.read()) == before
    assert len(place.names()) == 2


def test_columns_and_filters_are_read(place: Place) -> None:
    import pyarrow.dataset as ds

    place.write({"p=1/a.parquet": lake.table([1, 2]), "p=2/b.parquet": lake.table([3])})
    assert place.read(columns=["id", "p"], filter=ds.field("p") == 2).to_pylist() == [{"id": 3, "p": 2}]


def test_recover_reports_nothing_to_do(place: Place) -> None:
    place.write(TARGET)
    place.merge(SOURCE, "upsert", ["id"])
    report = inlay.recover(place.path, storage_options=place.options)
    assert (report.completed, report.files, report.swept) == (None, [], [])
    assert place.read().num_rows == 62


def test_metadata_and_confirmation_on_object_stores(place: Place) -> None:
    place.write(TARGET)
    client = place.client
    files = list_dataset_files(place.path, client)
    assert files == [f"{place.path}/{name}" for name in TARGET]
    analysed = ParquetMetadataAnalyzer().analyze_dataset_files(place.path, client)
    assert [file.column_stats["id"]["max"] for file in analysed] == [19, 39, 59]
    assert confirm_affected_files(files, ["id"], [5, 45], client) == [files[0], files[2]]


def test_sources_on_the_same_store(place: Place) -> None:
    place.write(TARGET)
    other = Place(f"{posixpath.dirname(place.path)}/source", place.options)
    other.write({"p1.parquet": SOURCE.slice(0, 2), "p2.parquet": SOURCE.slice(2)})
    for source in (other.path, f"{other.path}/*.parquet"):
        assert place.merge(source, "upsert", ["id"]).source_count == 5
    assert place.read().num_rows == 62


def test_errors_are_the_same(place: Place) -> None:
    place.write({"p=1/a.parquet": lake.table([1, 2])})
    before = place.everything()
    twice = lake.table([1, 1], p=pa.array([1, 1]))
    with pytest.raises(DuplicateKeyError):
        place.merge(twice, "upsert", ["id"])
    with pytest.raises(PartitionMoveError):
        place.merge(lake.table([1], p=pa.array([2])), "upsert", ["id"])
    with pytest.raises(InvalidArgumentError, match="is a file"):
        inlay.merge(SOURCE, f"{place.path}/p=1/a.parquet", "upsert", ["id"], storage_options=place.options)
    missing = f"{place.path}-missing"
    with pytest.raises(NotFoundError):
        inlay.read_parquet(missing, storage_options=place.options)
    with pytest.raises(NotFoundError):
        inlay.compact(missing, storage_options=place.options)
    assert place.everything() == before


# -------------------------------------------------------------------------------------------------- names and objects
def test_rewritten_files_get_new_names_and_others_keep_theirs(place: Place) -> None:
    place.write(TARGET)
    before = {name: place.client.cat_file(f"{place.key}/{name}") for name in place.names()}
    result = place.merge(SOURCE.slice(1, 1), "update", ["id"])
    (new,) = result.rewritten_files
    assert result.preserved_files == [f"{place.path}/b.parquet", f"{place.path}/c/d.parquet"]
    assert posixpath.basename(new).startswith("a-inlay-")
    assert place.names() == sorted(["b.parquet", "c/d.parquet", posixpath.basename(new)])
    for name in ("b.parquet", "c/d.parquet"):
        assert place.client.cat_file(f"{place.key}/{name}") == before[name]
    again = place.merge(lake.table([6], ["newer"]), "update", ["id"])
    assert posixpath.basename(again.rewritten_files[0]).count("-inlay-") == 1
    assert again.rewritten_files != [new]
    assert len(place.names()) == 3


def test_only_the_log_remains_next_to_the_data(place: Place) -> None:
    place.write(TARGET)
    for n in range(3):
        place.merge(lake.table([n], [f"turn {n}"]), "upsert", ["id"])
    hidden = [path for path in place.everything() if "/.d.txn/" in path]
    assert hidden
    assert all("/.d.txn/log/" in path for path in hidden)
    assert all(name.endswith(".parquet") for name in place.names())


def test_merge_without_changes_writes_nothing(place: Place) -> None:
    place.write(TARGET)
    before = place.everything()
    result = place.merge(lake.table([5, 45]), "upsert", ["id"])
    assert (result.updated, result.unchanged, result.bytes_written) == (2, 2, 0)
    assert place.everything() == before


def test_other_readers_see_the_result(endpoint: str) -> None:
    import duckdb

    place = Place("s3://bucket/readers/d", {"key": "k", "secret": "s", "endpoint_url": endpoint})
    place.write(TARGET)
    place.merge(SOURCE, "upsert", ["id"])
    with duckdb.connect() as connection:
        connection.register_filesystem(place.client)
        found = connection.sql("SELECT count(*), sum(id) FROM read_parquet('s3://bucket/readers/d/**/*.parquet')")
        assert found.fetchall() == [(62, sum(range(60)) + 201)]


# ------------------------------------------------------------------------------------------------------- many writers
def add(place: Place, writer: int, turns: int) -> None:
    """Update one shared row and insert one new row in each round."""
    for turn in range(turns):
        for _ in range(200):
            try:
                place.merge(lake.table([0, 1000 * (writer + 1) + turn], [f"{writer}/{turn}"] * 2), "upsert", ["id"])
                break
            except inlay.InlayError as error:
                if error.exit_code != 4:
                    raise
        else:
            raise AssertionError("never got through")


def own_rows(writers: int, turns: int) -> list[int]:
    return sorted(1000 * (writer + 1) + turn for writer in range(writers) for turn in range(turns))


@pytest.mark.timeout(600)
def test_concurrent_threads_lose_no_rows(place: Place) -> None:
    place.write({"a.parquet": lake.table(range(20))})
    writers, turns = 3, 2
    failures: list[BaseException] = []

    def work(writer: int) -> None:
        try:
            add(place, writer, turns)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=[n]) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    table = place.read()
    assert sorted(i for i in table.column("id").to_pylist() if i >= 1000) == own_rows(writers, turns)
    assert table.num_rows == 20 + writers * turns
    assert {row["v"] for row in table.to_pylist() if row["id"] == 0} <= {f"{w}/{turns - 1}" for w in range(writers)}


@pytest.mark.parametrize("phase", ["match", "rewrite", "append", "commit"])
def test_a_merge_plans_again_after_a_conflict(place: Place, phase: str) -> None:
    """Another writer replaces the same file during the merge."""
    place.write(TARGET)
    overtaken: list[str] = []

    def progress(now: inlay.Progress) -> None:
        if now.phase == phase and not overtaken:
            overtaken.append(phase)
            place.merge(lake.table([6, 7], ["other", "other"]), "update", ["id"])

    result = place.merge(lake.table([5, 6, 200], ["mine"] * 3), "upsert", ["id"], progress=progress)
    assert overtaken == [phase]
    assert (result.updated, result.inserted) == (2, 1)
    found = {row["id"]: row["v"] for row in place.read().to_pylist()}
    assert [found[i] for i in (4, 5, 6, 7, 200)] == ["v4", "mine", "mine", "other", "mine"]
    assert len(found) == 61


def test_a_compaction_reports_a_conflict(place: Place) -> None:
    place.write(TARGET)

    def progress(_: inlay.Progress) -> None:
        place.merge(lake.table([6], ["other"]), "update", ["id"])

    with pytest.raises(ConcurrentModificationError):
        inlay.compact(place.path, storage_options=place.options, progress=progress)
    assert {row["v"] for row in place.read().to_pylist() if row["id"] == 6} == {"other"}


WRITER = """
import sys
import inlay, pyarrow as pa
endpoint, writer, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
for turn in range(turns):
    row = pa.table({"id": [1000 * (writer + 1) + turn], "v": ["x"], "p": [writer]})
    for attempt in range(50):
        try:
            inlay.merge(row, "s3://bucket/processes/d", "upsert", ["id"], storage_options=options)
            break
        except inlay.InlayError as error:
            assert error.exit_code == 4, error
    else:
        sys.exit("never got through")
"""


@pytest.mark.timeout(600)
def test_concurrent_processes_lose_no_rows(endpoint: str) -> None:
    place = Place("s3://bucket/processes/d", {"key": "k", "secret": "s", "endpoint_url": endpoint})
    place.write({"p=0/a.parquet": lake.table([1])})
    command = [sys.executable, "-c", WRITER, endpoint]
    children = [subprocess.Popen([*command, str(n), "3"], stderr=subprocess.PIPE, text=True) for n in range(2)]
    for child in children:
        _, errors = child.communicate(timeout=300)
        assert child.returncode == 0, errors
    table = place.read()
    assert sorted(zip(table["p"].to_pylist(), table["id"].to_pylist(), strict=True)) == [
        (0, 1),
        *((writer, 1000 * (writer + 1) + turn) for writer in range(2) for turn in range(3)),
    ]


def test_an_object_created_after_a_listing_is_found(endpoint: str) -> None:
    """Clients cache listings, but files of a managed dataset are opened without a listing."""
    options: dict[str, Any] = {"key": "k", "secret": "s", "endpoint_url": endpoint}
    name = f"s3://bucket/late-{next(_NUMBERS)}"
    location = locate(name, storage_options=options)
    other = fsspec.filesystem("s3", skip_instance_cache=True, **options)
    other.pipe_file(f"{name}/first", b"1")
    location.store.filesystem.ls(location.path)
    other.pipe_file(f"{name}/second", b"2")
    with location.store.open_read(location.full("second")) as file:
        assert file.read() == b"2"
    with pytest.raises(FileNotFoundError):
        location.store.open_read(location.full("third"))


@pytest.mark.parametrize("size", [10, 12 << 20], ids=["small", "in parts"])
def test_an_incomplete_object_is_not_visible(endpoint: str, size: int) -> None:
    """An existing object with this name is kept."""
    options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
    location = locate(f"s3://bucket/broken-{next(_NUMBERS)}", storage_options=options)
    name = location.full("x")
    with location.store.open_write(name) as file:
        file.write(b"whole")

    def break_off() -> None:
        with location.store.open_write(name) as file:
            file.write(b"x" * size)
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        break_off()
    gc.collect()
    assert location.store.read_bytes(name) == b"whole"


def test_a_name_that_another_tool_reuses_is_unique(place: Place) -> None:
    """`a.parquet` was replaced by `a-inlay-x.parquet`, and another tool has written `a.parquet` again."""
    place.write({"a.parquet": lake.table([1])})
    assert place.merge(lake.table([1], ["x"]), "update", ["id"]).updated == 1
    place.write({"a.parquet": lake.table([2])})
    result = place.merge(lake.table([1, 2], ["y", "z"]), "update", ["id"])
    assert len(set(result.rewritten_files)) == 2
    assert lake.rows_of(place.read().sort_by("id")) == [{"id": 1, "v": "y"}, {"id": 2, "v": "z"}]


@pytest.mark.parametrize("name", ["LastModified", "last_modified", "mtime", "updated", "created", "creation_time"])
def test_modification_times_of_every_listing_format(name: str) -> None:
    when = dt.datetime(2024, 1, 31, tzinfo=dt.UTC)
    assert _object_stat("x", {"size": 1, name: when}).mtime_ns == int(when.timestamp()) * 10**9
