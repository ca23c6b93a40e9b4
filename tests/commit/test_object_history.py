"""Versions on an object store: readers beside writers, changes by other programs, and requests."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.commit.kept import FileList
from inlay.commit.snapshot import hold_snapshot
from inlay.commit.transaction import open_journal, recover
from inlay.errors import ConcurrentModificationError, DamagedVersionError, HistoryUnavailableError, InlayError
from inlay.storage import Location
from tests.faults.flaky import KINDS, Store
from tests.faults.objects import AFTER, BEFORE, Dataset, change, outcome, plain
from tests.s3 import S3Server, s3  # noqa: F401  (a fixture)
from tests.versions import wrong_objects

PATH = "/bucket/ds"
State = list[tuple[str, bytes]]


def new_dataset(versions: int = 20) -> tuple[Store, Dataset]:
    """Return a dataset with version 0, the state before, and version 1, the state after."""
    store = Store()
    dataset = Dataset(PATH, store.client(), versions)
    dataset.build()
    change(dataset.location())
    return store, dataset


def read(location: Location, version: int | None = None) -> State:
    """Read all files of one snapshot, each with requests of its own."""
    with hold_snapshot(location, version) as snapshot:
        at = snapshot.location
        return sorted((plain(file.path), read_file(at, file.path)) for file in snapshot.files)


def read_file(location: Location, path: str) -> bytes:
    with location.store.open_read(location.full(path)) as file:
        return file.read()


@pytest.mark.parametrize("version", [0, 1, None])
def test_a_reader_overtaken_at_any_request_sees_one_version(version: int | None) -> None:
    """Another client changes every file before a request of the reader."""
    expected = sorted(BEFORE.items()) if version == 0 else AFTER
    store, dataset = new_dataset()
    client = store.client()
    assert read(dataset.location(client), version) == expected
    for k in range(1, len(client.requests) + 1):
        store, dataset = new_dataset()
        client = store.client()
        client.before(k, lambda dataset=dataset, store=store: change(dataset.location(store.client())))
        assert read(dataset.location(client), version) == expected, (k, client.requests[k - 1])
        assert client.fired


def test_a_version_that_is_dropped_while_it_is_read_is_an_error_and_never_a_mixture() -> None:
    store, dataset = new_dataset()
    client = store.client()
    read(dataset.location(client), 0)
    for k in range(1, len(client.requests) + 1):
        store, dataset = new_dataset()
        client = store.client()
        client.before(k, lambda dataset=dataset: inlay.forget(PATH, before=1, filesystem=dataset.direct))
        with contextlib.suppress(InlayError, OSError):
            assert read(dataset.location(client), 0) == sorted(BEFORE.items())
        assert client.fired


# A commit meets the other kinds of faults in each run, and an undo is a commit.
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.long] * (kind not in ("refused", "response lost, then dead")))
        for kind in KINDS
    ],
)
@pytest.mark.parametrize("call", ["keep", "forget", "forget all", pytest.param("undo", marks=pytest.mark.long)])
def test_a_fault_at_any_request_of_a_change_of_the_history(kind: str, call: str) -> None:
    calls: dict[str, Any] = {
        "keep": lambda client: inlay.keep(PATH, versions=1, filesystem=client),
        "forget": lambda client: inlay.forget(PATH, before=1, filesystem=client),
        "forget all": lambda client: inlay.forget(PATH, filesystem=client),
        "undo": lambda client: inlay.undo(PATH, filesystem=client),
    }
    store, dataset = new_dataset()
    client = store.client()
    calls[call](client)
    for k in range(1, len(client.requests) + 1):
        store, dataset = new_dataset()
        client = store.client()
        client.fail(kind, k)
        with contextlib.suppress(InlayError, OSError, KeyboardInterrupt):
            calls[call](client)
        dataset.recover()
        assert dataset.content() in ([sorted(BEFORE.items()), AFTER] if call == "undo" else [AFTER])
        assert dataset.wrong_versions() == [], (k, client.requests[k - 1])
        if open_journal(dataset.location()).history is None:
            assert dataset.direct.find("/bucket/.ds.versions") == [], (k, client.requests[k - 1])
        assert outcome(dataset.location()) == "acked"


def test_a_user_begins_and_ends_the_history() -> None:
    store = Store()
    dataset = Dataset(PATH, store.client())
    dataset.build()
    change(dataset.location())
    with pytest.raises(HistoryUnavailableError, match="history is off"):
        inlay.history(PATH, filesystem=dataset.direct)
    inlay.keep(PATH, versions=3, filesystem=dataset.direct)
    assert inlay.history(PATH, filesystem=dataset.direct) == ()
    change(dataset.location())
    assert [entry.version for entry in inlay.history(PATH, filesystem=dataset.direct)] == [1, 0]
    inlay.forget(PATH, filesystem=dataset.direct)
    assert [name for name in dataset.direct.find("/bucket") if "versions" in name] == []
    with pytest.raises(HistoryUnavailableError):
        inlay.read_parquet(PATH, version=1, filesystem=dataset.direct)


def test_a_commit_finds_the_files_that_it_replaces_in_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    dataset = Dataset(PATH, store.client(), versions=9)
    for number in range(70):
        dataset.direct.pipe_file(f"{PATH}/more/{number}.parquet", b"x")
    dataset.build()
    change(dataset.location())
    assert [
        name.rpartition("/")[2] for name in dataset.direct.find("/bucket/.ds.versions") if name.endswith(".all")
    ] == ["00000000.all"]
    with monkeypatch.context() as patch:
        patch.setattr(FileList, "all", None)
        change(dataset.location())
    assert [entry.files for entry in inlay.history(PATH, filesystem=dataset.direct)] == [73, 73, 73]
    assert wrong_objects(dataset.location()) == []


def test_a_whole_bucket_has_no_history() -> None:
    client = Store().client()
    client.pipe_file("/a.parquet", b"a")
    with pytest.raises(HistoryUnavailableError, match="whole bucket"):
        inlay.keep("", versions=3, filesystem=client)


def test_a_commit_that_a_crash_interrupted_belongs_to_the_history_that_it_began_in() -> None:
    store, dataset = new_dataset()
    client = store.client()
    change(dataset.location(client))
    copied = next(k for k, request in enumerate(client.requests, 1) if request.startswith("copy"))
    store, dataset = new_dataset()
    client = store.client()
    client.fail("dead", copied)
    assert outcome(dataset.location(client)) == "commit_pending"
    dataset.direct.rm([name for name in dataset.direct.find("/bucket") if "versions" in name])
    recover(PATH, filesystem=dataset.direct)
    assert dataset.content() == AFTER
    assert [name for name in dataset.direct.find("/bucket") if "versions" in name] == []


# ---------------------------------------------------------------------------------------------- other programs and S3
@pytest.fixture
def bucket(s3: S3Server) -> str:  # noqa: F811  (the fixture)
    return s3.bucket()


@pytest.fixture
def sales(bucket: str) -> str:
    url = f"{bucket}/lake/sales"
    inlay.keep(url, versions=20)
    inlay.write_dataset({"id": [1], "v": ["a"]}, url)
    inlay.write_dataset({"id": [2], "v": ["b"]}, url)
    return url


def rows(url: str, version: int | None = None) -> dict[int, str]:
    table = inlay.read_parquet(url, version=version)
    return dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))


def damaged(url: str) -> list[int]:
    return [entry.version for entry in inlay.history(url) if entry.damaged]


def test_versions_with_an_object_that_another_program_overwrote_or_deleted_are_never_served(sales: str) -> None:
    import fsspec

    client, root = fsspec.url_to_fs(sales)
    first, second = client.find(root)
    if pq.read_table(client.open(first))["id"].to_pylist() == [2]:
        first, second = second, first
    content = bytearray(client.cat_file(second))
    content[content.index(b"b")] = ord("c")
    client.pipe_file(second, bytes(content))  # Only the ETag tells.
    assert damaged(sales) == [2]
    for call in (lambda: rows(sales, 2), lambda: inlay.restore(sales, 2), lambda: inlay.diff(sales, 1, 2)):
        with pytest.raises(DamagedVersionError):
            call()
    assert rows(sales, 1) == {1: "a"}
    client.rm(first)
    inlay.merge({"id": [3], "v": ["x"]}, sales, "upsert", "id")
    assert [(entry.version, entry.operation, entry.damaged) for entry in inlay.history(sales)] == [
        (5, "merge", False), (4, "external", False), (3, "external", True), (2, "append", True), (1, "append", True),
    ]  # fmt: skip
    assert list(rows(sales, 4)) == [2]


def test_a_large_file_is_read_to_its_end_while_writers_replace_and_compact_it(sales: str) -> None:
    """The reader opens the file before the commits, and reads most of it afterwards, with requests of its own."""
    many = pa.table({"id": pa.array(range(60_000)), "v": [f"{number:x}" * 3 for number in range(60_000)]})
    inlay.write_dataset(many, sales, mode="overwrite", row_group_size=5_000)
    with inlay.open_dataset(sales) as dataset:
        batches = dataset.to_batches(batch_size=2_000, fragment_readahead=0, batch_readahead=0)
        first = next(batches)
        inlay.merge({"id": [7, 59_999], "v": ["x", "y"]}, sales, "upsert", "id")
        inlay.compact(sales, sort_by="v")
        assert pa.Table.from_batches([first, *batches]) == many
    assert rows(sales)[7] == "x"


@pytest.mark.long  # The same in memory takes a fraction of the time.
def test_writers_on_s3_lose_no_version(sales: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def write(writer: int) -> None:
        for turn in range(3):
            inlay.merge({"id": [1, 100 * writer + turn], "v": ["x", "y"]}, sales, "upsert", "id")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(1, 4)))
    versions = inlay.history(sales)
    assert [entry.version for entry in versions] == list(range(11, 0, -1))
    assert [len(rows(sales, entry.version)) for entry in versions] == [entry.rows for entry in versions]
    assert damaged(sales) == []


def test_concurrent_writers_lose_no_version() -> None:
    """A second writer commits before each request of a change. The loser repeats its change."""
    store, dataset = new_dataset()
    client = store.client()
    change(dataset.location(client))
    for k in range(1, len(client.requests) + 1):
        store, dataset = new_dataset()
        client = store.client()
        client.before(k, lambda dataset=dataset, store=store: change(dataset.location(store.client())))
        with contextlib.suppress(ConcurrentModificationError):
            change(dataset.location(client))
        dataset.recover()
        numbers = [entry.version for entry in inlay.history(PATH, filesystem=dataset.direct)]
        assert numbers == list(range(numbers[0], -1, -1)), (k, client.requests[k - 1])
        assert numbers[0] in (2, 3)
        assert dataset.wrong_versions() == [], (k, client.requests[k - 1])
