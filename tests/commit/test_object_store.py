"""Commits on object stores: faults, lost responses, conflicts, recovery and the log."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from inlay.commit import object_store, snapshot, transaction
from inlay.commit.snapshot import hold_snapshot, list_dataset_files, read_consistently
from inlay.commit.transaction import IncrementalFileManager, recover
from inlay.errors import (
    CommitPendingError,
    CommitStateUnknownError,
    ConcurrentModificationError,
    CorruptJournalError,
    DatasetIOError,
    InlayError,
)
from inlay.storage import FileStat, Location, ObjectStore, locate
from tests.faults.flaky import KINDS, Flaky, Store, UnconditionalStore
from tests.faults.objects import ADDED, AFTER, BEFORE, REWRITTEN, Dataset, change, outcome, plain, violation
from tests.faults.report import record_case
from tests.faults.scenarios import stage
from tests.versions import wrong_objects

PATH = "/bucket/ds"


def new_dataset(versions: int | None = None) -> tuple[Store, Dataset]:
    store = Store()
    dataset = Dataset(PATH, store.client(), versions)
    dataset.build()
    return store, dataset


def count_requests(versions: int | None = None) -> int:
    store, dataset = new_dataset(versions)
    client = store.client()
    change(dataset.location(client))
    assert dataset.content() == AFTER
    assert dataset.hidden() == []
    return len(client.requests)


def log(dataset: Dataset) -> list[str]:
    return [name.rpartition("/")[2] for name in dataset.direct.find("/bucket/.ds.txn/log")]


def add(location: Location, name: str, content: bytes = b"x") -> None:
    with IncrementalFileManager() as manager:
        manager.open(location)
        manager.snapshot()
        manager.commit(list(stage(manager, {name: content})))


def request_index(condition: Callable[[str], bool], versions: int | None = None) -> int:
    """Return the number of the first request of a change that meets a condition."""
    store, dataset = new_dataset(versions)
    client = store.client()
    change(dataset.location(client))
    return next(i for i, request in enumerate(client.requests, 1) if condition(request))


def commit_point(versions: int | None = None) -> int:
    entry = 1 if versions is None else 2  # The first entry records the files that the history finds.
    return request_index(lambda request: request == f"put /bucket/.ds.txn/log/{entry:020d}.json", versions)


COMMIT_POINT = commit_point()
# Without versions, with versions that the next commit drops, and without an earlier version at all.
VERSIONS = [None, 2, pytest.param(1, marks=pytest.mark.long)]  # The last one is a corner of the second.


@pytest.mark.parametrize("versions", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_fault_at_any_request_leaves_the_state_before_or_after(
    kind: str, versions: int | None, request: pytest.FixtureRequest
) -> None:
    violations: list[str] = []
    requests = count_requests(versions)
    for k in range(1, requests + 1):
        store, dataset = new_dataset(versions)
        client = store.client()
        client.fail(kind, k)
        try:
            result = outcome(dataset.location(client))
        except KeyboardInterrupt:
            result = "commit_state_unknown"
        assert client.fired
        if found := violation(result, dataset):
            violations.append(f"{k} {client.requests[k - 1]} (result: {result}): {found}")
    record_case(request.node.nodeid, f"requests, {kind}", requests, violations)


@pytest.mark.parametrize("versions", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_fault_while_completing_the_commit_of_another_writer(kind: str, versions: int | None) -> None:
    """Recovery may fail at any request and be retried. It never claims that the caller's own change succeeded."""
    store, dataset = pending_dataset(versions)
    client = store.client()
    recover(PATH, filesystem=client)
    for k in range(1, len(client.requests) + 1):
        store, dataset = pending_dataset(versions)
        client = store.client()
        client.fail(kind, k)
        try:
            recover(PATH, filesystem=client)
        except (CommitPendingError, CommitStateUnknownError) as error:
            pytest.fail(f"recovery reports a commit of its own: {error}")
        except (OSError, InlayError, KeyboardInterrupt):
            pass
        assert client.fired
        dataset.recover()
        assert dataset.content() == AFTER
        assert dataset.wrong_versions() == [], client.requests[k - 1]


def transact(location: Location) -> bool:
    """Append to a file in a transaction. Return whether this call did it. A repeated change has a further effect."""
    while True:
        try:
            with IncrementalFileManager() as manager:
                manager.open(location)
                [file] = manager.snapshot()
                if manager.find_outcome("batch-1") is not None:
                    return False
                content = location.store.read_bytes(location.full(file.path)) + b" again"
                name = manager.replacement_name(file.path)
                manager.commit(list(stage(manager, {name: content})), [file.path], token="batch-1", outcome={"rows": 1})
                return True
        except ConcurrentModificationError:
            continue


def counted_dataset() -> tuple[Store, Dataset]:
    store = Store()
    dataset = Dataset(PATH, store.client())
    dataset.direct.pipe_file(f"{PATH}/a.parquet", b"a one")
    return store, dataset


def count_requests_of_transaction() -> int:
    store, dataset = counted_dataset()
    client = store.client()
    assert transact(dataset.location(client))
    return len(client.requests)


@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_that_failed_at_any_request_can_be_repeated(kind: str) -> None:
    for k in range(1, count_requests_of_transaction() + 1):
        store, dataset = counted_dataset()
        client = store.client()
        client.fail(kind, k)
        acked = False
        with contextlib.suppress(OSError, InlayError, KeyboardInterrupt):
            acked = transact(dataset.location(client))
        assert client.fired
        repeated = transact(dataset.location())
        assert not (acked and repeated), f"request {k}: {client.requests[k - 1]}"
        assert dataset.content() == [("a.parquet", b"a one again")], f"request {k}: {client.requests[k - 1]}"
        assert not transact(dataset.location())


def test_two_writers_with_one_token_apply_it_once_however_their_requests_interleave() -> None:
    for k in range(1, count_requests_of_transaction() + 1):
        store, dataset = counted_dataset()
        client, other = store.client(), []
        client.before(k, lambda dataset=dataset, other=other: other.append(transact(dataset.location())))
        first = transact(dataset.location(client))
        assert sorted([first, *other]) == [False, True], f"before request {k}: {client.requests[k - 1]}"
        assert dataset.content() == [("a.parquet", b"a one again")]


def pending_dataset(versions: int | None = None) -> tuple[Store, Dataset]:
    """Create a dataset whose writer crashed between the commit point and the first copy."""
    store, dataset = new_dataset(versions)
    client = store.client()
    client.fail("response lost, then dead", commit_point(versions))
    with pytest.raises(CommitStateUnknownError):
        change(dataset.location(client))
    assert dataset.content() == sorted(BEFORE.items())
    return store, dataset


def test_lost_response_of_a_successful_commit_is_detected() -> None:
    store, dataset = new_dataset()
    client = store.client()
    client.fail("response lost", COMMIT_POINT)
    change(dataset.location(client))
    assert dataset.content() == AFTER


def test_rejected_commit_leaves_only_an_aborted_entry() -> None:
    store, dataset = new_dataset()
    client = store.client()
    client.fail("refused", COMMIT_POINT)
    with pytest.raises(DatasetIOError, match="Nothing changed"):
        change(dataset.location(client))
    assert dataset.content() == sorted(BEFORE.items())
    assert dataset.hidden() == []
    assert log(dataset) == [f"{1:020d}.json"]
    assert b"abort-" in dataset.direct.cat_file(f"/bucket/.ds.txn/log/{1:020d}.json")
    report = recover(PATH, filesystem=dataset.direct)
    assert (report.completed, report.files) == (None, []), "an aborted entry has nothing to complete"
    change(dataset.location())
    assert dataset.content() == AFTER


def test_conflict_without_another_entry_is_retried() -> None:
    """The store reports a conflict while it handles another request, which may fail."""
    store, dataset = new_dataset()
    client = store.client()
    client.fail("conflict reported", COMMIT_POINT)
    change(dataset.location(client))
    assert dataset.content() == AFTER
    assert dataset.hidden() == []


def test_lasting_conflict_is_settled_before_staged_files_are_deleted(replace_sleep: Any) -> None:
    """An earlier request of this client may still be in flight and must find the entry taken."""
    replace_sleep(lambda _: None)
    store, dataset = new_dataset()
    client = scripted(store, *[(False, EXISTS)] * len(object_store._CONFLICT_PAUSES))
    with pytest.raises(DatasetIOError, match=r"the store reports a conflict\. Nothing changed"):
        change(dataset.location(client))
    with pytest.raises(FileExistsError):
        dataset.direct.pipe_file(f"/bucket/.ds.txn/log/{1:020d}.json", b"late", mode="create")
    dataset.recover()
    assert dataset.content() == sorted(BEFORE.items())


def test_lost_response_is_a_conflict_if_another_writer_was_first(monkeypatch: pytest.MonkeyPatch) -> None:
    store, dataset = new_dataset()
    create, lost = ObjectStore.create, []

    def losing(self: ObjectStore, path: str, data: bytes) -> None:
        if path.endswith("1.json") and not lost:
            lost.append(path)
            add(dataset.location(store.client()), "rival.parquet")
            raise OSError("no response")
        create(self, path, data)

    monkeypatch.setattr(ObjectStore, "create", losing)
    with pytest.raises(ConcurrentModificationError, match="Another writer committed"):
        change(dataset.location())
    assert dataset.content() == sorted({**BEFORE, "rival.parquet": b"x"}.items())
    assert dataset.hidden() == []


def test_commits_work_if_old_entries_cannot_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_KEPT_ENTRIES", 1)
    store, dataset = new_dataset()
    remove = ObjectStore.remove

    def refused(self: ObjectStore, path: str) -> None:
        if "/log/" in path:
            raise OSError("not now")
        remove(self, path)

    monkeypatch.setattr(ObjectStore, "remove", refused)
    names = [f"{number}.parquet" for number in range(4)]
    for name in names:
        add(dataset.location(store.client()), name)
    assert dataset.content() == sorted((BEFORE | dict.fromkeys(names, b"x")).items())


def test_unknown_outcome_keeps_staged_files_until_the_next_open() -> None:
    _, dataset = pending_dataset()
    assert len(dataset.hidden()) == 3
    assert len(list_dataset_files(PATH, dataset.direct)) == 3
    assert dataset.content() == AFTER


def test_cleanup_after_an_unknown_outcome_keeps_staged_files() -> None:
    store, dataset = new_dataset()
    client = store.client()
    manager = IncrementalFileManager()
    manager.open(dataset.location(client))
    puts = list(stage(manager, {"new.parquet": b"new"}))
    client.fail("response lost, then dead", len(client.requests) + 1)
    client.k = next_create(client)
    with pytest.raises(CommitStateUnknownError):
        manager.commit(puts)
    client.kind = None
    manager.cleanup_staging_files()
    dataset.recover()
    assert ("new.parquet", b"new") in dataset.content()


def next_create(client: Flaky) -> int:
    """Return the number of the create request: it follows one request for each staged file."""
    return len(client.requests) + 2


# ----------------------------------------------------------------------------------------------------------- names
def test_rewritten_files_get_unique_names() -> None:
    _, dataset = new_dataset()
    with IncrementalFileManager() as manager:
        manager.open(dataset.location())
        own = manager.id[:12]
        old = "inlay-0123456789ab"
        old_names = ["a.parquet", f"day=1/b-{old}.parquet", "day=1/b.parquet", f"c-inlay-x-{old}.parquet"]
        assert [manager.replacement_name(name) for name in old_names] == [
            f"a-inlay-{own}.parquet",
            f"day=1/b-inlay-{own}.parquet",
            f"day=1/b-inlay-{own}-2.parquet",
            f"c-inlay-x-inlay-{own}.parquet",
        ]
        assert [manager.stage_new_file(directory).path for directory in ("", "day=1")] == [
            f"part-{own}-00000.parquet",
            f"day=1/part-{own}-00001.parquet",
        ]
        assert [manager.stage_path().rpartition("/")[2] for _ in range(2)] == ["3.stage", "4.stage"]


def test_each_commit_of_a_manager_uses_new_names() -> None:
    _, dataset = new_dataset()
    with IncrementalFileManager() as manager:
        manager.open(dataset.location())
        names = []
        for content in (b"1", b"2"):
            names.append(manager.replacement_name("x.parquet"))
            manager.commit(list(stage(manager, {names[-1]: content})), names[-2:-1])
    assert len(set(names)) == 2
    assert ("x.parquet", b"2") in dataset.content()
    assert dataset.hidden() == []


# --------------------------------------------------------------------------------------------------- missing files
def fail_after_snapshot(dataset: Dataset, meanwhile: Callable[[], None] = lambda: None) -> None:
    with IncrementalFileManager() as manager:
        manager.open(dataset.location())
        manager.snapshot()
        list(stage(manager, {"new.parquet": b"new"}))
        meanwhile()
        raise FileNotFoundError("a file of the snapshot")


def test_missing_file_is_a_conflict_if_another_writer_replaced_it() -> None:
    _, dataset = new_dataset()
    with pytest.raises(ConcurrentModificationError, match="changed during the operation") as caught:
        fail_after_snapshot(dataset, lambda: change(dataset.location()))
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert dataset.content() == AFTER
    assert dataset.hidden() == []


def test_missing_file_is_its_own_error_if_no_writer_replaced_it() -> None:
    _, dataset = new_dataset()
    with pytest.raises(FileNotFoundError):
        fail_after_snapshot(dataset)
    assert dataset.hidden() == []


def test_first_error_is_raised_if_the_store_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    _, dataset = new_dataset()

    def lost(*_: Any, **__: Any) -> None:
        raise OSError("the network is down")

    with pytest.raises(FileNotFoundError, match="of the snapshot"):
        fail_after_snapshot(dataset, lambda: monkeypatch.setattr(transaction, "data_files", lost))


# ------------------------------------------------------------------------------------------------ lost responses
class ScriptedClient(Flaky):
    """A client that performs and acknowledges writes to the log as a list of (done, error) pairs says."""

    responses: list[tuple[bool, Exception | None]]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> Any:
        if not self.responses or not path.endswith(".json"):
            return super().pipe_file(path, value, mode=mode, **options)
        done, error = self.responses.pop(0)
        if done:
            super().pipe_file(path, value, mode=mode, **options)
        if error is not None:
            raise error
        return None


def scripted(store: Store, *responses: tuple[bool, Exception | None]) -> ScriptedClient:
    client = type("Client", (ScriptedClient,), {"store": store.client().store, "pseudo_dirs": [""]})(
        skip_instance_cache=True
    )
    client.responses = list(responses)
    return cast(ScriptedClient, client)


LOST, EXISTS = OSError("no response"), FileExistsError("exists")


def test_abort_that_the_client_sent_twice_is_recognized() -> None:
    store, dataset = new_dataset()
    with pytest.raises(DatasetIOError, match=r"no response: '.*json'\. Nothing changed"):
        change(dataset.location(scripted(store, (False, LOST), (True, EXISTS))))
    assert dataset.content() == sorted(BEFORE.items())
    assert dataset.hidden() == []
    change(dataset.location())
    assert dataset.content() == AFTER


def test_conflict_without_a_readable_entry_is_unknown() -> None:
    store, dataset = new_dataset()
    with pytest.raises(CommitStateUnknownError, match=r"is unknown: \[Errno 5\] no response"):
        change(dataset.location(scripted(store, (False, LOST), (False, EXISTS))))
    assert len(dataset.hidden()) == 3, "the commit may need the staged files"


def test_unreadable_entry_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    store, dataset = new_dataset()
    client = scripted(store, (True, EXISTS))

    def lost(path: str, *_: Any, **__: Any) -> bytes:
        raise OSError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(client, "cat_file", lost)
        with pytest.raises(CommitStateUnknownError, match=r"is unknown: \[Errno 5\] connection lost"):
            change(dataset.location(client))
    dataset.recover()
    assert dataset.content() == AFTER


def test_damaged_entry_with_the_same_number_is_named() -> None:
    store, dataset = new_dataset()
    client = scripted(store, (False, EXISTS))
    client.before(COMMIT_POINT - 1, lambda: dataset.direct.pipe_file(f"/bucket/.ds.txn/log/{1:020d}.json", b"{"))
    with pytest.raises(CorruptJournalError, match=f"{1:020d}.json"):
        change(dataset.location(client))
    assert dataset.content() == sorted(BEFORE.items())


def remove_staged(dataset: Dataset) -> None:
    for name in dataset.hidden():
        dataset.direct.rm_file(name)


def test_staged_object_missing_before_the_commit_is_named() -> None:
    _, dataset = new_dataset()
    with IncrementalFileManager() as manager:
        manager.open(dataset.location())
        puts = list(stage(manager, {"new.parquet": b"new"}))
        remove_staged(dataset)
        with pytest.raises(DatasetIOError, match=r"The staged object '/bucket/\.ds\.txn/.*' does not exist") as caught:
            manager.commit(puts)
        assert caught.value.operation == "commit"
    assert dataset.content() == sorted(BEFORE.items())
    assert log(dataset) == []


def test_staged_object_missing_after_the_commit_is_named() -> None:
    store, dataset = new_dataset()
    client = store.client()
    client.before(COMMIT_POINT + 1, lambda: remove_staged(dataset))
    with pytest.raises(CorruptJournalError, match=r"'/bucket/ds/.*' is neither staged nor in place") as caught:
        change(dataset.location(client))
    assert caught.value.operation == "recover"
    assert [plain(name) for name in caught.value.files] == [f"{PATH}/a.parquet"]
    assert dataset.content() == sorted(BEFORE.items())


def test_recovery_reports_files_put_in_place_and_removed() -> None:
    _, dataset = pending_dataset()
    report = recover(PATH, filesystem=dataset.direct)
    assert report.completed
    assert [plain(name) for name in report.files] == [
        *(f"{PATH}/{name}" for name in [*REWRITTEN, *ADDED]),
        *(f"{PATH}/{name}" for name in BEFORE),
    ]


def test_recovery_names_missing_files_and_changes_nothing() -> None:
    _, dataset = pending_dataset()
    remove_staged(dataset)
    with pytest.raises(CorruptJournalError, match="neither staged nor in place"):
        dataset.recover()
    assert dataset.content() == sorted(BEFORE.items())


def test_error_after_the_commit_point_reports_a_pending_commit() -> None:
    store, dataset = new_dataset()
    client = store.client()
    client.fail("dead", request_index(lambda request: request.startswith("copy")))
    with pytest.raises(CommitPendingError, match="is committed, but not all of its files are in place"):
        change(dataset.location(client))
    change(dataset.location())  # The next open completes the commit. This repeats the same change.
    assert dataset.content() == AFTER


@pytest.mark.parametrize("listed", [True, False], ids=["by its listing", "by the log"])
def test_second_of_two_writers_gets_a_conflict(listed: bool) -> None:
    store, dataset = new_dataset()
    slow = IncrementalFileManager()
    slow.open(dataset.location(store.client()))
    if listed:
        slow.snapshot()
    puts = list(stage(slow, {"slow.parquet": b"slow"}))
    add(dataset.location(store.client()), "quick.parquet")
    with pytest.raises(
        ConcurrentModificationError, match="during the operation" if listed else "committed to '/bucket/ds' first"
    ):
        slow.commit(puts)
    slow.cleanup_staging_files()
    names = [name for name, _ in dataset.content()]
    assert "quick.parquet" in names
    assert "slow.parquet" not in names
    assert dataset.hidden() == []


@pytest.mark.parametrize("versions", [None, 3])
def test_writer_overtaken_at_any_request_commits_or_gets_a_conflict(versions: int | None) -> None:
    """Another commit happens just before each request of a change. The change succeeds or fails as a whole."""
    for k in range(1, count_requests(versions) + 1):
        store, dataset = new_dataset(versions)
        client = store.client()
        client.before(k, lambda dataset=dataset, store=store: add(dataset.location(store.client()), "other.parquet"))
        result = outcome(dataset.location(client))
        assert client.fired
        assert result in ("acked", "concurrent_modification"), result
        dataset.recover()
        expected = AFTER if result == "acked" else sorted(BEFORE.items())
        assert dataset.content() == sorted([*expected, ("other.parquet", b"x")]), (k, client.requests[k - 1], result)
        assert wrong_objects(dataset.location()) == [], (k, client.requests[k - 1], result)


@pytest.mark.parametrize("versions", VERSIONS)
def test_recovery_overtaken_at_any_request_does_no_harm(versions: int | None) -> None:
    """Before each request of a recovery, another client completes the same commit and changes every file again."""
    store, dataset = pending_dataset(versions)
    client = store.client()
    recover(PATH, filesystem=client)
    for k in range(1, len(client.requests) + 1):
        store, dataset = pending_dataset(versions)
        client = store.client()
        client.before(k, lambda dataset=dataset, store=store: change(dataset.location(store.client())))
        recover(PATH, filesystem=client)
        assert client.fired
        assert dataset.content() == AFTER, (k, client.requests[k - 1])
        dataset.recover()
        assert dataset.wrong_versions() == [], (k, client.requests[k - 1])


def copies_of_recovery(versions: int | None = None) -> list[int]:
    """Return the numbers of the requests of a recovery that copy a file into place."""
    store, _ = pending_dataset(versions)
    client = store.client()
    recover(PATH, filesystem=client)
    copies = [k for k, request in enumerate(client.requests, 1) if request.startswith("copy")]
    assert len(copies) == (3 if versions is None else 6)
    return copies


@pytest.mark.parametrize("versions", [None, 5])
def test_late_copy_of_an_outdated_file_is_undone(versions: int | None) -> None:
    """The copy arrives after another client has completed the commit and replaced the file."""
    for k in copies_of_recovery(versions):
        store, dataset = pending_dataset(versions)
        client = store.client()
        client.before(k, lambda dataset=dataset, store=store: change(dataset.location(store.client())), in_flight=True)
        recover(PATH, filesystem=client)
        assert client.fired
        assert dataset.content() == AFTER, k
        assert dataset.wrong_versions() == []


def test_late_copy_is_undone_while_the_next_commit_completes() -> None:
    """The next writer has removed the file, but has not marked its own entry as done."""
    store, dataset = pending_dataset()
    client = store.client()
    change(dataset.location(client))
    marking = next(i for i, request in enumerate(client.requests, 1) if request.endswith("2.done"))
    for k in copies_of_recovery():
        assert content_after_a_late_copy(k, marking) == AFTER, k


def content_after_a_late_copy(copy: int, marking: int) -> list[tuple[str, bytes]]:
    store, dataset = pending_dataset()
    helper, writer = store.client(), store.client()
    removed, helped = threading.Event(), threading.Event()
    thread = threading.Thread(target=change, args=(dataset.location(writer),))

    def overtake() -> None:
        thread.start()
        assert removed.wait(60)

    def pause() -> None:
        removed.set()
        helped.wait(60)

    helper.before(copy, overtake, in_flight=True)
    writer.before(marking, pause)
    recover(PATH, filesystem=helper)
    helped.set()
    thread.join(60)
    assert helper.fired
    assert writer.fired
    return dataset.content()


def test_reader_overtaken_at_any_request_sees_one_snapshot() -> None:
    def read(location: Location) -> int:
        return read_consistently(location, lambda _, files: sum(1 for file in files if "-inlay-" in file.path))

    store, dataset = new_dataset()
    client = store.client()
    assert read(dataset.location(client)) == 0
    requests = len(client.requests)
    for die_at in range(COMMIT_POINT, count_requests() + 1):
        for k in range(1, requests + 1):
            store, dataset = new_dataset()
            writer, client = store.client(), store.client()
            writer.fail("response lost, then dead", die_at)
            client.before(k, lambda writer=writer, dataset=dataset: outcome(dataset.location(writer)) and None)
            assert read(dataset.location(client)) in (0, 3), (die_at, k)
            assert client.fired


def count_files(_: Location, files: list[FileStat]) -> int:
    return len(files)


def test_reader_retries_if_a_file_was_replaced() -> None:
    store, dataset = new_dataset()
    calls: list[int] = []

    def read(_: Location, files: list[FileStat]) -> int:
        calls.append(len(files))
        if len(calls) == 1:
            change(dataset.location(store.client()))
            raise FileNotFoundError("a file that was listed")
        return len(files)

    assert read_consistently(dataset.location(), read) == len(AFTER)
    assert len(calls) == 2


def test_reader_does_not_retry_if_no_file_was_replaced() -> None:
    _, dataset = new_dataset()
    calls: list[int] = []

    def read(_: Location, files: list[FileStat]) -> None:
        calls.append(len(files))
        raise FileNotFoundError("a file that was listed")

    with pytest.raises(FileNotFoundError):
        read_consistently(dataset.location(), read)
    assert len(calls) == 1


def test_reader_of_a_constantly_changing_dataset_gets_a_conflict() -> None:
    store, dataset = new_dataset()
    numbers = itertools.count()

    def read(_: Location, files: list[FileStat]) -> None:
        add(dataset.location(store.client()), f"{next(numbers)}.parquet")

    with pytest.raises(ConcurrentModificationError, match="changes faster than inlay can read it"):
        read_consistently(dataset.location(), read)


def test_reader_without_write_permission_waits_and_learns_why(
    monkeypatch: pytest.MonkeyPatch, replace_sleep: Any
) -> None:
    store, dataset = pending_dataset()
    reader = store.client()

    def refused(path: str, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Access Denied", path)

    monkeypatch.setattr(reader, "pipe_file", refused)
    monkeypatch.setattr(reader, "rm", refused)
    monkeypatch.setattr(reader, "rm_file", refused)
    pauses: list[float] = []
    replace_sleep(pauses.append)
    message = "^A commit to '/bucket/ds' is pending, and you do not have the write permission to complete it"
    with pytest.raises(ConcurrentModificationError, match=message):
        read_consistently(dataset.location(reader), count_files)
    assert pauses == [min(0.01 * 2**attempt, 0.5) for attempt in range(snapshot._READ_ATTEMPTS)]
    with pytest.raises(ConcurrentModificationError, match=message), hold_snapshot(dataset.location(reader)):
        pytest.fail("half of a commit was visible")
    assert pauses == 2 * pauses[: snapshot._READ_ATTEMPTS]

    def completed(_: float) -> None:
        dataset.recover()

    replace_sleep(completed)
    with hold_snapshot(dataset.location(reader)) as held:
        assert len(held.files) == len(AFTER)
    assert read_consistently(dataset.location(reader), count_files) == len(AFTER)


def test_error_of_the_last_attempt_is_raised_unchanged() -> None:
    store, dataset = new_dataset()
    numbers = itertools.count()

    def read(_: Location, files: list[FileStat]) -> None:
        number = next(numbers)
        add(dataset.location(store.client()), f"{number}.parquet")
        raise ValueError(f"attempt {number}")

    with pytest.raises(ValueError, match=f"attempt {snapshot._READ_ATTEMPTS - 1}"):
        read_consistently(dataset.location(), read)


def test_racing_writers_each_commit_once() -> None:
    store, dataset = new_dataset()
    acked: list[str] = []
    threads = [threading.Thread(target=keep_adding, args=(store, dataset, n, acked)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    added = [name for name, _ in dataset.content() if name not in BEFORE]
    assert len(acked) == 30
    assert sorted(added) == sorted(acked)
    assert dataset.hidden() == []


def keep_adding(store: Store, dataset: Dataset, number: int, acked: list[str]) -> None:
    client = store.client()
    for round_ in range(5):
        name = f"w{number}-{round_}.parquet"
        for _ in range(2000):
            try:
                add(dataset.location(client), name)
            except ConcurrentModificationError:
                time.sleep(0.001 * number)
                continue
            acked.append(name)
            break


def test_old_entries_are_trimmed_and_a_paused_writer_cannot_commit() -> None:
    store, dataset = new_dataset()
    paused = IncrementalFileManager()
    paused.open(dataset.location(store.client()))
    puts = list(stage(paused, {"paused.parquet": b"paused"}))
    for number in range(14):
        add(dataset.location(store.client()), f"{number}.parquet")
    assert f"{1:020d}.json" not in log(dataset)
    assert len(log(dataset)) <= 24
    with pytest.raises(CommitStateUnknownError, match="more than 10 other commits happened"):
        paused.commit(puts)
    dataset.recover()
    add(dataset.location(), "last.parquet")
    names = [name for name, _ in dataset.content()]
    assert "paused.parquet" not in names
    assert "last.parquet" in names


def test_paused_writer_whose_commit_others_completed_succeeds() -> None:
    store, dataset = new_dataset()
    paused = store.client()

    def commit_ten_times() -> None:
        for number in range(10):
            add(dataset.location(store.client()), f"{number}.parquet")

    paused.before(COMMIT_POINT + 1, commit_ten_times)
    change(dataset.location(paused))
    assert f"{1:020d}.done" in log(dataset)
    assert dataset.content() == sorted([*AFTER, *((f"{number}.parquet", b"x") for number in range(10))])


def test_entry_whose_done_mark_is_trimmed_is_trimmed_too() -> None:
    store, dataset = new_dataset()
    for number in range(3):
        add(dataset.location(store.client()), f"{number}.parquet")
    dataset.direct.rm_file(f"/bucket/.ds.txn/log/{1:020d}.done")
    for number in range(3, 13):
        add(dataset.location(store.client()), f"{number}.parquet")
    assert f"{1:020d}.json" not in log(dataset)
    assert f"{3:020d}.json" in log(dataset)


def test_unused_staged_files_are_deleted() -> None:
    _, dataset = new_dataset()
    with IncrementalFileManager() as manager:
        manager.open(dataset.location())
        used, _ = stage(manager, {"used.parquet": b"used", "unused.parquet": b"unused"})
        manager.commit([used])
        assert len(dataset.hidden()) == 1
    assert dataset.hidden() == []


def test_messages_name_the_operation_and_the_cause() -> None:
    results: list[tuple[str, str | None, list[str]]] = []
    for responses in (
        [(False, LOST), (True, EXISTS)],
        [(False, LOST), (False, EXISTS)],
        [(False, LOST), (False, LOST)],
    ):
        store, dataset = new_dataset()
        with pytest.raises((DatasetIOError, CommitStateUnknownError)) as caught:
            change(dataset.location(scripted(store, *responses)))
        results.append((caught.value.message, caught.value.operation, caught.value.files))
    lost = f"[Errno 5] no response: '/bucket/.ds.txn/log/{1:020d}.json'"
    unknown = (f"The outcome of the commit to '/bucket/ds' is unknown: {lost}.", "commit", [])
    assert results == [
        (f"The store rejected the commit to '/bucket/ds': {lost}. Nothing changed.", "commit", []),
        unknown,
        unknown,
    ]


def test_conditional_writes_are_probed_in_the_sidecar() -> None:
    store, dataset = new_dataset()
    client = store.client()
    change(dataset.location(client))
    tried = [request for request in client.requests if "probe" in request]
    assert tried
    assert all(request.split(" ", 1)[1].startswith("/bucket/.ds.txn/.probe_") for request in tried)


def test_store_without_conditional_writes_is_rejected() -> None:
    UnconditionalStore.store.clear()
    filesystem = UnconditionalStore()
    filesystem.pipe_file("/bucket/ds/a.parquet", b"a")
    with pytest.raises(InlayError, match="ignores conditional writes") as caught:
        add(locate(PATH, filesystem), "b.parquet")
    assert "single_writer" in str(caught.value)
    assert filesystem.find("/bucket") == ["/bucket/ds/a.parquet"]


def test_single_writer_may_use_a_store_without_conditional_writes() -> None:
    UnconditionalStore.store.clear()
    filesystem = UnconditionalStore()
    add(locate(PATH, filesystem, {"single_writer": True}), "b.parquet")
    assert filesystem.cat_file("/bucket/ds/b.parquet") == b"x"
    with pytest.raises(InlayError, match="ignores conditional writes"):
        recover(PATH, filesystem=filesystem)
    assert not recover(PATH, filesystem=filesystem, storage_options={"single_writer": True})


def test_corrupt_entry_is_named_and_nothing_changes() -> None:
    _, dataset = pending_dataset()
    entry = f"/bucket/.ds.txn/log/{1:020d}.json"
    envelope = json.loads(dataset.direct.cat_file(entry))
    envelope["body"] = envelope["body"].replace("a-inlay", "z-inlay")
    dataset.direct.pipe_file(entry, json.dumps(envelope).encode())
    before = dataset.direct.find("/bucket", detail=False)
    with pytest.raises(CorruptJournalError, match=f"{1:020d}.json"):
        add(dataset.location(), "more.parquet")
    after = [name for name in dataset.direct.find("/bucket", detail=False) if "probe" not in name]
    assert after == before


def test_old_staging_directories_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    store, dataset = new_dataset()
    dead = IncrementalFileManager()
    dead.open(dataset.location(store.client()))
    list(stage(dead, {"x.parquet": b"x"}))
    dataset.recover()
    assert len(dataset.hidden()) == 1, "its writer may still be running"
    later = time.time() + 25 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert recover(PATH, filesystem=dataset.direct).swept
    assert dataset.hidden() == []


def test_only_directories_with_a_known_old_age_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    _, dataset = new_dataset()
    now = time.time_ns()
    old = now - 25 * 3600 * 10**9
    times = {
        ".staging_old/1.stage": old,
        ".staging_old/2.stage": old - 5,
        ".staging_busy/1.stage": now,
        ".staging_busy/2.stage": old,
        ".staging_unknown/1.stage": 0,  # The store reports no time.
        ".probe_old/x": old,
        ".other_old/x": old,
    }
    for name in times:
        dataset.direct.pipe_file(f"/bucket/.ds.txn/{name}", b"x")
    walk = ObjectStore.walk

    def aged(self: ObjectStore, path: str, wanted: Any) -> Any:
        return [file._replace(mtime_ns=times.get(file.path, file.mtime_ns)) for file in walk(self, path, wanted)]

    monkeypatch.setattr(ObjectStore, "walk", aged)
    assert recover(PATH, filesystem=dataset.direct).swept == [".probe_old", ".staging_old"]
    assert [name.removeprefix("/bucket/.ds.txn/") for name in dataset.hidden()] == [
        ".other_old/x", ".staging_busy/1.stage", ".staging_busy/2.stage", ".staging_unknown/1.stage",
    ]  # fmt: skip


@pytest.mark.usefixtures("memory")
def test_memory_filesystem_of_fsspec_works() -> None:
    url = "memory://object-commit/ds"
    add(locate(url), "a.parquet", b"a")
    add(locate(url), "b.parquet", b"b")
    assert list_dataset_files(url) == [f"{url}/a.parquet", f"{url}/b.parquet"]
