"""Object stores that reject, delay, lose or repeat requests, behind a proxy on loopback."""

from __future__ import annotations

import http.client
import itertools
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.errors import ConcurrentModificationError, DatasetIOError, InlayError
from inlay.storage import object_store
from inlay.storage.s3 import S3Store
from tests import lake
from tests.faults.proxy import Proxy
from tests.s3 import start_server

_NUMBERS = itertools.count()
TARGET = {"a.parquet": lake.table(range(20)), "b.parquet": lake.table(range(20, 40))}
SOURCE = lake.table([5, 100], ["new", "new"])


@dataclass
class Server:
    """An S3 server and a proxy in front of it."""

    host: str
    port: int
    proxy: Proxy

    def options(self, url: str | None = None, **more: Any) -> dict[str, Any]:
        return {"key": "k", "secret": "s", "endpoint_url": url or self.proxy.url, **more}

    def dataset(self, files: Mapping[str, pa.Table] = TARGET) -> str:
        """Write a dataset without the proxy and return its URL."""
        path = f"bucket/edges-{next(_NUMBERS)}/d"
        for name, table in files.items():
            with self.direct.open(f"{path}/{name}", "wb") as file:
                pq.write_table(table, file)
        return f"s3://{path}"

    @property
    def direct(self) -> Any:
        found = fsspec.filesystem("s3", **self.options(f"http://{self.host}:{self.port}"))
        found.invalidate_cache()
        return found

    def objects(self, url: str) -> dict[str, bytes]:
        """Return every object of a dataset and of its sidecar."""
        root = url.removeprefix("s3://").rpartition("/")[0]
        return {path: self.direct.cat_file(path) for path in self.direct.find(root)}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    moto = start_server()
    host, port = moto.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/bucket")
    assert connection.getresponse().status == 200
    connection.close()
    proxy = Proxy(host, port)
    yield Server(host, port, proxy)
    proxy.stop()
    moto.stop()


def rows(url: str, server: Server) -> list[Any]:
    return sorted(map(repr, lake.rows_of(inlay.read_parquet(url, storage_options=server.options()))))


# ------------------------------------------------------------------------------------------------ conditional writes
REJECTIONS = [(501, "NotImplemented"), (400, "InvalidArgument"), (400, "InvalidRequest"), (405, "MethodNotAllowed")]


def rejects_conditions(status: int, code: str) -> Any:
    return lambda _method, _path, headers: (status, code) if headers.get("If-None-Match") else None


@pytest.mark.parametrize("rejection", REJECTIONS, ids=lambda each: f"{each[0]} {each[1]}")
def test_store_that_rejects_conditional_writes_is_recognized(server: Server, rejection: tuple[int, str]) -> None:
    url = server.dataset()
    before = server.objects(url)
    with server.proxy.answer(rejects_conditions(*rejection)):
        with pytest.raises(
            InlayError, match=r"^The store of '.*' rejects conditional writes \(If-None-Match"
        ) as caught:
            inlay.merge(SOURCE, url, "upsert", ["id"], storage_options=server.options())
        assert "single_writer" in str(caught.value.hint)
        assert server.objects(url) == before
        result = inlay.merge(SOURCE, url, "upsert", ["id"], storage_options=server.options(single_writer=True))
    assert (result.updated, result.inserted) == (1, 1)
    assert len(rows(url, server)) == 41


def test_single_writer_sends_no_condition(server: Server) -> None:
    url, options = server.dataset(), server.options(single_writer=True)
    conditions: list[str] = []

    def record(_method: str, path: str, headers: Mapping[str, str]) -> None:
        if headers.get("If-None-Match"):
            conditions.append(path)

    with server.proxy.answer(record):
        inlay.merge(SOURCE, url, "upsert", ["id"], storage_options=options)
        inlay.write_dataset(SOURCE, url, storage_options=options)
        inlay.compact(url, storage_options=options)
        inlay.recover(url, storage_options=options)
    assert conditions == []


def test_other_failure_of_the_probe_is_not_a_missing_feature(server: Server) -> None:
    """A store that also rejects the write without a condition has another problem."""
    url = server.dataset()
    before = server.objects(url)
    with (
        server.proxy.answer(lambda method, path, _: (400, "InvalidArgument") if ".probe_" in path else None),
        pytest.raises(DatasetIOError, match=r"The proxy answers this request\.: 'bucket/.*/\.d\.txn/\.probe_"),
    ):
        inlay.merge(SOURCE, url, "upsert", ["id"], storage_options=server.options())
    assert server.objects(url) == before


@pytest.mark.parametrize(
    ("answer", "exists"),
    [
        ((412, "PreconditionFailed"), True),
        ((409, "ConditionalRequestConflict"), True),
        ((400, "InvalidArgument"), False),
        ((501, "NotImplemented"), False),
        ((403, "AccessDenied"), False),
    ],
    ids=str,
)
def test_only_conflicts_mean_that_an_object_exists(server: Server, answer: tuple[int, str], exists: bool) -> None:
    store = object_store(fsspec.filesystem("s3", **server.options()))
    with server.proxy.answer(rejects_conditions(*answer)), pytest.raises(OSError) as caught:  # noqa: PT011
        store.create(f"bucket/create-{next(_NUMBERS)}", b"x")
    assert isinstance(caught.value, FileExistsError) is exists


def test_conflicting_request_at_the_commit_point_is_retried(server: Server) -> None:
    url, seen = server.dataset(), Counter[str]()

    def conflict_twice(method: str, path: str, _: Mapping[str, str]) -> tuple[int, str] | None:
        if method != "PUT" or not path.endswith(".json"):
            return None
        seen[path] += 1
        return (409, "ConditionalRequestConflict") if seen[path] <= 2 else None

    with server.proxy.answer(conflict_twice):
        inlay.merge(SOURCE, url, "upsert", ["id"], storage_options=server.options())
    assert list(seen.values()) == [3]
    assert len(rows(url, server)) == 41


# ------------------------------------------------------------------------------------------------ multipart uploads
def open_upload(server: Server, path: str) -> str:
    """Start a multipart upload of an object, and leave it incomplete, like a killed writer."""
    bucket, key = path.split("/", 1)
    upload = server.direct.call_s3("create_multipart_upload", Bucket=bucket, Key=key)["UploadId"]
    server.direct.call_s3("upload_part", Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 100)
    return str(upload)


def open_uploads(server: Server, url: str) -> list[str]:
    root = url.removeprefix("s3://bucket/").rpartition("/")[0]
    found = server.direct.call_s3("list_multipart_uploads", Bucket="bucket", Prefix=root)
    return [upload["Key"].removeprefix(f"{root}/") for upload in found.get("Uploads", ())]


UPLOADS = [".d.txn/.staging_0123/1.stage", "d/day=1/a-inlay-0123456789ab.parquet", "d/part-0123456789ab-00000.parquet"]


@pytest.fixture
def uploads_age(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the age of all uploads in hours, because the server reports a constant time."""
    uploads = S3Store.uploads

    def set_age(hours: float) -> None:
        started = int((time.time() - hours * 3600) * 1e9)
        monkeypatch.setattr(
            S3Store,
            "uploads",
            lambda *arguments: [each._replace(started_ns=started) for each in uploads(*arguments)],
        )

    return set_age


@pytest.mark.parametrize("operation", ["recover", "merge"])
def test_uploads_of_killed_writers_are_aborted(
    server: Server, uploads_age: Callable[[float], None], operation: str
) -> None:
    url, foreign = server.dataset(), "d/of-another-tool.parquet"
    parent = url.rpartition("/")[0]
    for name in [*UPLOADS, foreign]:
        open_upload(server, f"{parent.removeprefix('s3://')}/{name}")
    uploads_age(23)
    assert not inlay.recover(url, storage_options=server.options())
    assert len(open_uploads(server, url)) == 4, "their writers may still be running"
    uploads_age(25)
    if operation == "merge":
        inlay.merge(SOURCE, url, "upsert", ["id"], storage_options=server.options())
    else:
        report = inlay.recover(url, storage_options=server.options())
        assert report.swept == [".staging_0123", *(f"{parent}/{name}" for name in UPLOADS[1:])]
        assert not inlay.recover(url, storage_options=server.options())
    assert open_uploads(server, url) == [foreign]


def test_old_upload_of_a_busy_writer_is_kept(server: Server) -> None:
    """The writer has staged another file today, so it is running."""
    url = server.dataset()
    parent = url.removeprefix("s3://").rpartition("/")[0]
    open_upload(server, f"{parent}/{UPLOADS[0]}")
    server.direct.pipe_file(f"{parent}/.d.txn/.staging_0123/2.stage", b"x")
    assert not inlay.recover(url, storage_options=server.options())
    assert open_uploads(server, url) == [UPLOADS[0]]


def test_stores_that_cannot_list_uploads_are_swept(server: Server) -> None:
    url = server.dataset()
    with server.proxy.answer(lambda _, path, __: (501, "NotImplemented") if "?uploads" in path else None):
        assert not inlay.recover(url, storage_options=server.options())
    assert not inlay.recover("memory://no-uploads/d")


def test_uploads_on_several_pages_are_listed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[dict[str, Any]] = []
    store = object_store(server.direct)
    call = store._client.call_s3

    def one_per_page(method: str, **options: Any) -> Any:
        pages.append(options)
        found = call(method, Bucket=options["Bucket"], Prefix=options["Prefix"])["Uploads"]
        start = int(options.get("KeyMarker", 0))
        more = {"IsTruncated": True, "NextKeyMarker": str(start + 1), "NextUploadIdMarker": "x"}
        return {"Uploads": found[start : start + 1], **(more if start + 1 < len(found) else {"IsTruncated": False})}

    root = f"bucket/pages-{next(_NUMBERS)}"
    names = [f"{root}/{number}" for number in range(3)]
    for name in names:
        open_upload(server, name)
    monkeypatch.setattr(store, "_client", type("Paged", (), {"call_s3": staticmethod(one_per_page)}))
    assert [upload.path for upload in store.uploads(root)] == names
    assert [page.get("UploadIdMarker") for page in pages] == [None, "x", "x"]


# ------------------------------------------------------------------------------------------------------ many writers
@pytest.mark.timeout(300)
def test_four_writers_get_through_without_conflicts(server: Server) -> None:
    """All writers replace the same row, and each one adds a row with each merge."""
    writers, turns = 4, 2
    url = server.dataset({"a.parquet": lake.table(range(20))})
    options = server.options(f"http://{server.host}:{server.port}")

    def write(writer: int) -> None:
        for turn in range(turns):
            source = lake.table([0, 1000 * (writer + 1) + turn], [f"{writer}/{turn}", "x"])
            inlay.merge(source, url, "upsert", ["id"], storage_options=options)

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    found = inlay.read_parquet(url, storage_options=options)
    added = [1000 * (writer + 1) + turn for writer in range(writers) for turn in range(turns)]
    assert sorted(found["id"].to_pylist()) == [*range(20), *added]


def test_merge_gives_up_when_its_time_is_over(server: Server) -> None:
    url = server.dataset()

    def overtake(now: inlay.Progress) -> None:
        if now.phase == "commit":
            inlay.write_dataset(SOURCE, url, storage_options=server.options())

    with pytest.raises(ConcurrentModificationError, match="changed during the operation"):
        inlay.merge(
            SOURCE, url, "upsert", ["id"], storage_options=server.options(), progress=overtake, lock_timeout=0
        )  # fmt: skip


def test_changed_schema_is_reported_at_once(server: Server) -> None:
    """Planning again cannot help, because the source rows are already converted."""
    url, calls = server.dataset(), []

    def evolve(now: inlay.Progress) -> None:
        if now.phase == "commit":
            calls.append(now)
            wide = pa.table({"id": [900], "v": ["x"], "extra": [1]})
            inlay.merge(wide, url, "upsert", ["id"], schema_mode="evolve", storage_options=server.options())

    with pytest.raises(ConcurrentModificationError, match="changed the schema"):
        inlay.merge(
            SOURCE, url, "upsert", ["id"], schema_mode="evolve", missing_columns="null",
            storage_options=server.options(), progress=evolve,
        )  # fmt: skip
    assert len(calls) == 1


# ---------------------------------------------------------------------------------------------------------- requests
def kinds(requests: list[str]) -> Counter[str]:
    def kind(request: str) -> str:
        method, path = request.split(" ", 1)
        if "list-type" in path or "?uploads" in path:
            return "LIST"
        if "?delete" in path:
            return "DELETE"
        folders = {"/.staging_": "staged", "/log/": "log", "/.d.versions/": "versions"}
        return f"{method} {next((name for folder, name in folders.items() if folder in path), 'data')}"

    return Counter(map(kind, requests))


def test_requests_of_a_merge(server: Server) -> None:
    """Each rewritten file costs three requests: read, stage, copy. The rest does not grow with the files.

    The response to staging contains the checksum of the stored bytes, so no request reads them again.
    """
    counts = {}
    for files in (5, 15):
        tables = {f"{n}.parquet": lake.table(range(10 * n, 10 * n + 10)) for n in range(files)}
        url, options = server.dataset(tables), server.options()
        source = lake.table([10 * n for n in range(files)], ["new"] * files)
        # The first merge checks the store and creates the log.
        inlay.merge(lake.table([0], ["first"]), url, "upsert", ["id"], storage_options=options)
        with server.proxy.answer(lambda *_: None) as plan:
            assert inlay.merge(source, url, "upsert", ["id"], storage_options=options).updated == files
        counts[files] = kinds(plan.seen)
        fixed = counts[files] - Counter({"GET data": files, "PUT staged": files, "PUT data": files})
        assert fixed == {"LIST": 10, "PUT log": 2, "DELETE": 2, "HEAD data": 1}


def test_requests_of_a_merge_with_versions(server: Server) -> None:
    """Each replaced object costs one more request, its copy. The others do not grow with the objects."""
    for files in (3, 9):
        tables = {f"{n}.parquet": lake.table(range(10 * n, 10 * n + 10)) for n in range(files)}
        url, options = server.dataset(tables), server.options()
        inlay.keep(url, versions=2, storage_options=options)
        for text in ("first", "second", "third"):
            source = lake.table([10 * n for n in range(files)], [text] * files)
            with server.proxy.answer(lambda *_: None) as plan:
                assert inlay.merge(source, url, "upsert", ["id"], storage_options=options).updated == files
        of_files = Counter({"GET data": files, "PUT staged": files, "PUT data": files, "PUT versions": files})
        without = Counter({"LIST": 10, "PUT log": 2, "DELETE": 2, "HEAD data": 1})
        assert kinds(plan.seen) - of_files - without == {
            "LIST": 2, "GET log": 1, "GET versions": 3, "PUT versions": 3, "DELETE": 1, "DELETE versions": 1,
        }  # fmt: skip


# --------------------------------------------------------------------------------------------- pyarrow's filesystem
def arrow_filesystem(server: Server) -> pafs.S3FileSystem:
    return pafs.S3FileSystem(
        access_key="k", secret_key="s", endpoint_override=f"{server.host}:{server.port}", scheme="http",
        region="us-east-1",
    )  # fmt: skip


def test_filesystem_of_pyarrow_is_rejected_with_its_reason(server: Server) -> None:
    url = server.dataset()
    path, before = url.removeprefix("s3://"), server.objects(url)
    for name in (path, url):
        with pytest.raises(InlayError, match=r"^pyarrow\.fs\.S3FileSystem does not support conditional") as caught:
            inlay.merge(SOURCE, name, "upsert", ["id"], filesystem=arrow_filesystem(server))
        assert "single_writer" in str(caught.value.hint)
    assert server.objects(url) == before
    assert inlay.read_parquet(path, filesystem=arrow_filesystem(server)).num_rows == 40


def test_filesystem_of_pyarrow_works_for_a_single_writer(server: Server) -> None:
    url = server.dataset()
    for name in (url.removeprefix("s3://"), url):
        options = {"filesystem": arrow_filesystem(server), "storage_options": {"single_writer": True}}
        inlay.merge(SOURCE, name, "upsert", ["id"], **options)
        inlay.write_dataset(lake.table([200]), name, mode="append", **options)
        inlay.compact(name, **options)
        assert not inlay.recover(name, **options)
    assert len(rows(url, server)) == 43


# ---------------------------------------------------------------------------------------------------- store failures
FAILURES = {
    "forbidden": (403, "AccessDenied"),
    "no such bucket": (404, "NoSuchBucket"),
    "server error": (500, "InternalError"),
    "bad request": (400, "InvalidRequest"),
}
CALLS: dict[str, Any] = {
    "merge": lambda url, **options: inlay.merge(SOURCE, url, "upsert", ["id"], **options),
    "plan": lambda url, **options: inlay.plan_merge(SOURCE, url, "upsert", ["id"], **options),
    "write": lambda url, **options: inlay.write_dataset(SOURCE, url, **options),
    "compact": inlay.compact,
    "read": inlay.read_parquet,
    "recover": inlay.recover,
}


def impatient_client(url: str) -> Any:
    """Return a client that reports the first failure, and does not wait for responses."""
    config = {"retries": {"total_max_attempts": 1}, "connect_timeout": 1, "read_timeout": 0.5}
    client = fsspec.filesystem(
        "s3", key="k", secret="s", endpoint_url=url, config_kwargs=config, skip_instance_cache=True
    )
    client.retries = 1
    return client


@pytest.fixture(scope="module")
def impatient(server: Server) -> Any:
    return impatient_client(server.proxy.url)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("call", CALLS)
def test_failing_store_is_named(server: Server, impatient: Any, call: str, failure: str) -> None:
    url = server.dataset()
    before = server.objects(url)
    with server.proxy.answer(lambda *_: FAILURES[failure]), pytest.raises(InlayError) as caught:
        CALLS[call](url, filesystem=impatient)
    assert url.removeprefix("s3://")[:-1] in str(caught.value)
    assert server.objects(url) == before


@pytest.mark.parametrize("call", ["merge", "write", "compact"])
def test_store_that_rejects_writes_is_named(server: Server, impatient: Any, call: str) -> None:
    url = server.dataset()
    before = server.objects(url)

    def forbid(method: str, *_: object) -> tuple[int, str] | None:
        return (403, "AccessDenied") if method in ("PUT", "POST", "DELETE") else None

    with server.proxy.answer(forbid), pytest.raises(DatasetIOError, match="nothing changed") as caught:
        CALLS[call](url, filesystem=impatient)
    assert f"{url.removeprefix('s3://').rpartition('/')[0]}/.d.txn" in str(caught.value)
    assert server.objects(url) == before
    assert inlay.read_parquet(url, filesystem=impatient).num_rows == 40


@pytest.mark.parametrize("call", CALLS)
def test_missing_bucket_is_named(impatient: Any, call: str) -> None:
    with pytest.raises(InlayError) as caught:
        CALLS[call]("s3://no-such-bucket/d", filesystem=impatient)
    assert "no-such-bucket/" in str(caught.value)


@pytest.mark.parametrize("call", CALLS)
def test_unreachable_store_is_named(call: str, free_port: int) -> None:
    with pytest.raises(InlayError, match="bucket/d") as caught:
        CALLS[call]("s3://bucket/d", filesystem=impatient_client(f"http://127.0.0.1:{free_port}"))
    assert str(free_port) in str(caught.value)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize("call", CALLS)
def test_store_that_does_not_respond_is_named(server: Server, impatient: Any, call: str) -> None:
    url = server.dataset()

    def wait(*_: Any) -> None:
        time.sleep(1)

    with server.proxy.answer(wait), pytest.raises(InlayError) as caught:
        CALLS[call](url, filesystem=impatient)
    assert url.removeprefix("s3://") in str(caught.value)
    assert "timeout" in str(caught.value).lower()
