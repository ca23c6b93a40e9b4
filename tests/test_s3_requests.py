"""Requests that inlay signs and sends to S3 itself: names, retries, credentials, listings and replaced objects."""

from __future__ import annotations

import http.client
import http.server
import itertools
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from inlay.storage import FileStat, ObjectStore, object_store, s3, s3_requests
from inlay.storage.s3_requests import DirectRequests, Response
from inlay.workspace.storage import ServiceStorage
from tests.faults.proxy import Proxy
from tests.s3 import start_server

_NUMBERS = itertools.count()
KEYS = {"key": "k", "secret": "s"}


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    server = start_server()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/bucket")
    assert connection.getresponse().status == 200
    connection.close()
    found = Proxy(host, port)
    yield found
    found.stop()
    server.stop()


def client(proxy: Proxy, **options: Any) -> Any:
    return fsspec.filesystem("s3", skip_instance_cache=True, endpoint_url=proxy.url, **{**KEYS, **options})


@pytest.fixture(scope="module")
def other_client(proxy: Proxy) -> Any:
    """A client that writes and reads as other programs do."""
    return client(proxy)


@pytest.fixture(scope="module")
def shared_store(proxy: Proxy) -> ObjectStore:
    """A store for tests that neither change the options of its client nor count its requests."""
    return object_store(client(proxy))


@pytest.fixture
def store(proxy: Proxy) -> ObjectStore:
    return object_store(client(proxy))


@pytest.fixture
def root() -> str:
    return f"bucket/requests-{next(_NUMBERS)}"


NAMES = [
    "plain",
    "with space",
    "a+b",
    "é ü 漢字 🎉",
    "100%",
    "50%25",
    "~tilde",
    "day=1/x",
    "a&b;c",
    "<x>",
    "it's",
    "[a]*?",
    "q?x=1",
    "#hash",
    "a//b",
    "../up",
    "back\\slash",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_objects(other_client: Any, shared_store: ObjectStore, root: str, name: str) -> None:
    store = shared_store
    path, copy = f"{root}/{name}", f"{root}/copies/{name}"
    store.create(path, b"0123456789")
    with pytest.raises(FileExistsError):
        store.create(path, b"other")
    assert [file.path for file in store.walk(root, lambda _: True)] == [name]
    assert other_client.find(root) == [path]
    assert store.read_bytes(path) == b"0123456789"
    assert store.read_range(path, 2, 3) == b"234"
    assert store.read_range(path, 2, 0) == b""
    found, (listed,) = store.stat(path), store.walk(root, lambda _: True)
    assert found is not None
    assert (found.size, found.tag) == (listed.size, listed.tag) == (10, other_client.info(path)["ETag"])
    store.move(path, copy, 10)
    with store.open_read(copy) as file:
        assert file.read() == b"0123456789"
    assert store.is_directory(f"{root}/copies")
    store.remove_all([path, copy])
    assert store.stat(path) is None
    assert store.walk(root, lambda _: True) == []
    assert not store.is_directory(f"{root}/copies")


@pytest.mark.parametrize("size", [0, 10, 300_000, 3 << 20])
def test_objects_of_all_sizes(shared_store: ObjectStore, root: str, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    store = shared_store
    monkeypatch.setattr(s3, "_MAX_PUT", 2 << 20)
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    with store.open_write(f"{root}/a") as out:
        for start in range(0, size, 100_000):
            out.write(pa.py_buffer(data[start : start + 100_000]))
            assert out.tell() == min(start + 100_000, size)
    assert store.read_bytes(f"{root}/a") == data
    with store.open_read(f"{root}/a") as file:
        assert file.read(7) == data[:7]
        assert file.seek(-min(size, 5), 2) == max(size - 5, 0)
        assert file.read() == data[-5:]
        assert file.read(1) == b""
    with store.open_arrow(f"{root}/a") as opened:
        assert opened.read() == data


# ------------------------------------------------------------------------------------------------- failed requests
@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "DELETE", "POST"])
def test_failed_requests_are_retried(proxy: Proxy, store: ObjectStore, root: str, method: str, status: int) -> None:
    paths = [f"{root}/{name}" for name in "ab"]
    for path in paths:
        store.create(path, b"1")
    failures = iter(range(2))
    with proxy.answer(
        lambda sent, *_: (status, "SlowDown") if sent == method and next(failures, None) is not None else None
    ):
        assert store.read_bytes(paths[0]) == b"1"
        assert store.stat(paths[0]) is not None
        store.create(f"{root}/c", b"2")
        store.move(f"{root}/c", f"{root}/d", 1)
        assert [file.path for file in store.walk(root, lambda _: True)] == ["a", "b", "c", "d"]
        store.remove(f"{root}/c")
        store.remove_all(paths)
    assert next(failures, None) is None
    assert [file.path for file in store.walk(root, lambda _: True)] == ["d"]


@pytest.mark.parametrize("kind", ["reset", "lost"])
def test_broken_connections_are_retried(proxy: Proxy, store: ObjectStore, root: str, kind: str) -> None:
    store.create(f"{root}/a", b"1")
    with proxy.fault(kind, 1):
        assert store.read_bytes(f"{root}/a") == b"1"
    with proxy.fault(kind, 1):
        assert len(store.walk(root, lambda _: True)) == 1


@pytest.fixture
def new_clients() -> Iterator[None]:
    """Connect to the store of the environment, which clients in the cache do not know."""
    s3_requests.DeadlineS3FileSystem.clear_instance_cache()
    yield
    s3_requests.DeadlineS3FileSystem.clear_instance_cache()


@pytest.mark.usefixtures("new_clients")
def test_file_of_the_service_whose_response_is_lost_is_created(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "ENDPOINT_URL": proxy.url}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    storage = ServiceStorage(f"s3://bucket/service-{next(_NUMBERS)}")
    with proxy.fault("lost", 1) as plan:
        storage.prepare()
    assert plan.fired
    with proxy.fault("500 though done", 1) as plan:
        storage.create("a", b"1")
    assert plan.fired
    with pytest.raises(FileExistsError):
        storage.create("a", b"2")


def test_bucket_of_another_region_is_left_to_the_client(proxy: Proxy, store: ObjectStore, root: str) -> None:
    store.create(f"{root}/a", b"1")
    refused: list[str] = []

    def redirect(method: str, path: str, _: Mapping[str, str]) -> tuple[int, str] | None:
        refused.append(path)
        return (400, "AuthorizationHeaderMalformed") if len(refused) == 1 else None

    with proxy.answer(redirect) as plan:
        assert store.read_bytes(f"{root}/a") == b"1"
        sent = len(plan.seen)
        assert store.read_range(f"{root}/a", 0, 1) == b"1"
    assert sent > 1
    assert not store._requests.serves(f"{root}/a")  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", ["RequestTimeout", "ExpiredToken"])
def test_failure_of_one_request_does_not_leave_all_others_to_the_client(
    proxy: Proxy, store: ObjectStore, root: str, code: str
) -> None:
    failures = iter([(400, code)])
    with proxy.answer(lambda *_: next(failures, None)):
        store.create(f"{root}/a", b"1")
    assert store._requests.serves(f"{root}/a")  # type: ignore[attr-defined]


def test_errors_of_the_store_are_raised_as_by_the_client(proxy: Proxy, store: ObjectStore, root: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"'{root}/missing'"):
        store.read_bytes(f"{root}/missing")
    with proxy.answer(lambda *_: (403, "AccessDenied")):
        with pytest.raises(PermissionError, match=f"'{root}/a'"):
            store.read_bytes(f"{root}/a")
        with pytest.raises(PermissionError, match=f"'{root}'"):
            store.walk(root, lambda _: True)


def test_replaced_object_is_not_read_further(proxy: Proxy, store: ObjectStore, root: str) -> None:
    size = 9 << 20
    store.create(f"{root}/a", bytes(size))
    with store.open_read(f"{root}/a") as file:
        assert file.read(10) == bytes(10)
        client(proxy).pipe_file(f"{root}/a", b"1" * size)
        file.seek(-10, 2)
        with pytest.raises(OSError, match=f"'{root}/a'"):
            file.read(10)
    with store.open_read(f"{root}/a") as file:
        assert file.read(10) == b"1" * 10


def test_other_documents_with_the_status_of_success_are_no_results(proxy: Proxy, store: ObjectStore, root: str) -> None:
    paths = [f"{root}/d/{name}" for name in "ab"]
    for path in paths:
        store.create(path, b"0123456789")

    def first() -> Any:
        """Answer the first request, other than HEAD, with status 200 and the document of an error."""
        rest = iter([(200, "InternalError")])
        return proxy.answer(lambda method, *_: None if method == "HEAD" else next(rest, None))

    with first():
        assert [file.path for file in store.walk(root, lambda _: True)] == ["d/a", "d/b"]
    with first():
        assert store.is_directory(f"{root}/d")
    with first():
        assert store.read_range(paths[0], 2, 3) == b"234"
    with first(), store.open_read(paths[0]) as file:
        assert file.read() == b"0123456789"
    with first():
        store.move(paths[0], f"{root}/d/c", 10)
    with first():
        store.remove_all(paths)
    assert [file.path for file in store.walk(root, lambda _: True)] == ["d/c"]


def test_large_reads_are_requested_in_parts(
    proxy: Proxy, store: ObjectStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_MAX_READ", 1 << 20)
    data = bytes(range(256)) * (3 << 12)
    store.create(f"{root}/a", data)
    ranges: list[str] = []

    def record(method: str, _: str, headers: Mapping[str, str]) -> None:
        if method == "GET":
            ranges.append(headers["Range"])

    with proxy.answer(record), store.open_read(f"{root}/a") as file:
        assert file.read(len(data)) == data
    sizes = [int(end) + 1 - int(start) for start, end in (each.removeprefix("bytes=").split("-") for each in ranges)]
    assert sizes == [1 << 20] * 3


# --------------------------------------------------------------------------------------------------- what is unusual
@pytest.mark.parametrize(
    "options",
    [
        {"anon": True, "key": None, "secret": None},
        {"requester_pays": True},
        {"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}},
        {"config_kwargs": {"signature_version": "s3"}},
        {"version_aware": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_unusual_options_are_left_to_the_client(proxy: Proxy, root: str, options: dict[str, Any]) -> None:
    found = DirectRequests(client(proxy, **options))
    assert not found.serves(f"{root}/a")
    assert found.send("GET", f"{root}/a") is None
    assert found.list_objects(root) is None


@pytest.mark.parametrize("bucket", ["arn:aws:s3:us-west-2:1:accesspoint:x", "name--use1-az4--x-s3", "UPPER"])
def test_unusual_buckets_are_left_to_the_client(proxy: Proxy, bucket: str) -> None:
    assert not DirectRequests(client(proxy)).serves(f"{bucket}/a")


class _OtherVersion:
    """A client without a private attribute that inlay uses."""

    def __init__(self, client: Any, missing: str) -> None:
        self._client, self._missing = client, missing

    def __getattr__(self, name: str) -> Any:
        if name == self._missing:
            raise AttributeError(name)
        return getattr(self._client, name)


@pytest.mark.parametrize("missing", ["_request_signer", "_endpoint", "_resolve_endpoint_ruleset"])
def test_other_versions_of_the_client_are_left_to_the_client(
    proxy: Proxy, root: str, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    filesystem = client(proxy)
    connected = filesystem.set_session

    async def set_session() -> Any:
        return _OtherVersion(await connected(), missing)

    monkeypatch.setattr(filesystem, "set_session", set_session)
    store = object_store(filesystem)
    store.create(f"{root}/a", b"1")
    assert store.read_bytes(f"{root}/a") == b"1"
    assert [file.path for file in store.walk(root, lambda _: True)] == ["a"]


# --------------------------------------------------------------------------------------------------------- credentials
def test_credentials_are_refreshed(proxy: Proxy, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session runs a program for new credentials as soon as the last ones are about to expire."""
    program = tmp_path / "credentials.py"
    program.write_text(
        "import datetime, json, pathlib\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "number = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(number))\n"
        "end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=30)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': f'key{number}', 'SecretAccessKey': 's',"
        " 'SessionToken': f'token{number}', 'Expiration': end.isoformat()}))\n"
    )
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    store = object_store(client(proxy, key=None, secret=None))
    seen: list[tuple[str, str]] = []

    def record(_method: str, _path: str, headers: Mapping[str, str]) -> None:
        seen.append(
            (headers["Authorization"].partition("Credential=")[2].split("/")[0], headers["X-Amz-Security-Token"])
        )

    with proxy.answer(record):
        for number in range(3):
            store.create(f"{root}/{number}", b"1")
    assert len(set(seen)) == 3
    assert all(key.removeprefix("key") == token.removeprefix("token") for key, token in seen)


# -------------------------------------------------------------------------------------------------------------- bodies
class _Chunked(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in (b"first ", b"second"):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


def test_chunked_bodies_are_joined() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Chunked) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        store = object_store(fsspec.filesystem("s3", endpoint_url=url, skip_instance_cache=True, **KEYS))
        assert store.read_bytes("bucket/a") == b"first second"
        server.shutdown()
        thread.join()


def test_only_confirmed_objects_are_kept_in_memory(proxy: Proxy, store: ObjectStore, root: str) -> None:
    with store.open_write(f"{root}/a") as out:
        out.write(b"1234")
    with proxy.answer(lambda *_: None) as plan, store.open_arrow(f"{root}/a", 4) as first:
        assert first.read() == b"1234"
        assert plan.seen == []
        with store.open_arrow(f"{root}/a", 4) as second:
            assert second.read() == b"1234"
        assert len(plan.seen) == 1
    assert s3._confirms(Response({"etag": '"81dc9bdb52d04dc20036dbd8313ed055"'}, b""), b"1234", "x")
    assert s3._confirms(Response({"x-amz-checksum-crc32": "x"}, b""), b"1234", "x")
    assert not s3._confirms(Response({"etag": '"encrypted with a key of the store"'}, b""), b"1234", "x")


def test_content_in_memory_is_forgotten_when_the_object_changes(
    store: ObjectStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(name: str, data: bytes) -> None:
        with store.open_write(f"{root}/{name}") as out:
            out.write(data)

    write("a", b"old")
    write("b", b"new")
    store.move(f"{root}/b", f"{root}/a", 3)
    with store.open_arrow(f"{root}/a", 3) as file:
        assert file.read() == b"new"
    assert isinstance(store, s3.S3Store)
    store.remove(f"{root}/b")
    store.create(f"{root}/c", b"1234")  # such as a log entry, which is not opened again
    assert not len(store._confirmed)
    monkeypatch.setattr(s3, "_MAX_KEPT", 5 + s3._KEPT_OVERHEAD)
    for name in ("d", "d", "e"):
        write(name, b"1234")
    assert [store._confirmed.pop(f"{root}/{name}") for name in "de"] == [None, b"1234"]


def test_many_small_objects_are_read_once(proxy: Proxy, other_client: Any, store: ObjectStore, root: str) -> None:
    names = [f"{number:03}" for number in range(60)]
    other_client.pipe({f"{root}/{name}": name.encode() for name in names})
    files = [file._replace(path=f"{root}/{file.path}") for file in store.walk(root, lambda _: True)]
    with proxy.answer(lambda *_: None) as plan:
        store.read_ahead(files)
        for file, name in zip(files, names, strict=True):
            with store.open_read(file.path) as opened:
                assert opened.read() == name.encode()
    assert len(plan.seen) == len(names)


def test_old_listings_are_forgotten(store: ObjectStore, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_MAX_LISTINGS", 3)
    for number in range(5):
        store.walk(f"{root}/{number}", lambda _: True)
    assert isinstance(store, s3.S3Store)
    assert f"{root}/4" in store._listings
    assert len(store._listings) == s3._MAX_LISTINGS


class _NoLength(_Chunked):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()


def test_object_of_unknown_size_is_an_error_of_the_store() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _NoLength) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        store = object_store(fsspec.filesystem("s3", endpoint_url=url, skip_instance_cache=True, **KEYS))
        with pytest.raises(OSError, match="'bucket/a'"):
            store.stat("bucket/a")
        server.shutdown()
        thread.join()


# ------------------------------------------------------------------------------------------------------------ listings
# short runs list 40 partitions
@pytest.mark.parametrize("partitions", [0, 1, 3, 40, pytest.param(150, marks=pytest.mark.long)])
def test_large_prefixes_are_listed_side_by_side(
    proxy: Proxy, other_client: Any, store: ObjectStore, root: str, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setitem(s3_requests._LIST, "max-keys", "3")
    names = [f"{number}.parquet" for number in range(5)]
    names += [f"p={number}/x/{file}" for number in range(partitions) for file in range(2 if partitions > 3 else 7)]
    other_client.pipe({f"{root}/{name}": b"1" for name in names})
    with proxy.answer(lambda *_: None) as plan:
        assert [file.path for file in store.walk(root, lambda _: True)] == sorted(names)
    assert all("list-type=2" in request for request in plan.seen)
    kept = store.walk(root, lambda part: not part.startswith("p=1"))
    assert [file.path for file in kept] == sorted(name for name in names if not name.startswith("p=1"))


def test_stores_that_ignore_where_a_listing_starts(
    other_client: Any, store: ObjectStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(s3_requests._LIST, "max-keys", "3")
    names = sorted(f"p={number}/x" for number in range(20))
    other_client.pipe({f"{root}/{name}": b"1" for name in names})
    page = s3_requests._Listing._page

    async def ignore_start(listing: Any, **parameters: str) -> Any:
        parameters.pop("start-after", None)
        return await page(listing, **parameters)

    monkeypatch.setattr(s3_requests._Listing, "_page", ignore_start)
    assert [file.path for file in store.walk(root, lambda _: True)] == names


def test_repeated_listings_parse_only_pages_that_changed(
    other_client: Any, store: ObjectStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(s3_requests._LIST, "max-keys", "3")
    parse, parsed = s3_requests._parse_page, []
    monkeypatch.setattr(s3_requests, "_parse_page", lambda text: parsed.append(text) or parse(text))
    names = [f"p={number}/{file}" for number in range(3) for file in "abcdefgh"]
    other_client.pipe({f"{root}/{name}": b"1" for name in names})

    def listing() -> list[FileStat]:
        parsed.clear()
        return list(store.walk(root, lambda _: True))

    first = listing()
    assert [file.path for file in first] == names
    assert len(parsed) > 6
    store.walk(f"{root}/p=0/a", lambda _: True)  # A short listing between does not count.
    assert listing() == first
    assert parsed == []
    other_client.pipe_file(f"{root}/p=1/e", b"22")
    again = listing()
    assert len(parsed) == 1
    assert [(old.path, new.size) for old, new in zip(first, again, strict=True) if old != new] == [("p=1/e", 2)]
    other_client.rm_file(f"{root}/p=0/a")
    assert [file.path for file in listing()] == names[1:]


def test_keys_are_decoded_as_they_are_quoted() -> None:
    listing = "<ListBucketResult>%s<IsTruncated>false</IsTruncated>%s</ListBucketResult>"
    entry = (
        "<Contents><Key>%s</Key><LastModified>2026-02-01T00:00:00Z</LastModified>"
        "<ETag>&quot;%s</ETag><Size>7</Size></Contents>"
    )
    cases = {
        True: {"d%3D1/a": "d=1/a", "d%3D1/b%2Bc+d": "d=1/b+c d", "d%3D1/%C3%A9&amp;": "d=1/é&", "e%2Ff/%0A": "e/f/\n"},
        False: {"d%3D1/a": "d%3D1/a", "d%3D1/b&amp;c": "d%3D1/b&c", "+": "+"},
    }
    for is_quoted, keys in cases.items():
        head = "<EncodingType>url</EncodingType>" if is_quoted else ""
        for chosen in [[key] for key in keys] + [list(keys), list(keys)[:2], list(keys)[::-1], []]:
            page = s3_requests._parse_page(listing % (head, "".join(entry % (key, key) for key in chosen)))
            assert page is not None
            assert page.objects.keys == [keys[key] for key in chosen]
            assert page.objects.tags == ['"' + key.replace("&amp;", "&") for key in chosen]


PAGE = """<?xml version="1.0"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated>
<Contents>%s</Contents><Contents>%s</Contents></ListBucketResult>"""
FIELDS = {
    "Key": "a &amp; b",
    "LastModified": "2026-01-31T00:00:00.000Z",
    "ETag": "&quot;x&quot;",
    "Size": "7",
    "Owner": "<ID>1</ID>",
}


@pytest.mark.parametrize("order", [list(FIELDS), list(reversed(FIELDS))], ids=["usual", "other"])
def test_pages_with_any_order_of_elements(order: list[str]) -> None:
    entry = "".join(f"<{name}>{FIELDS[name]}</{name}>" for name in order)
    page = s3_requests._parse_page(PAGE % (entry, entry))
    assert page is not None
    assert page.objects == (["a & b"] * 2, [7] * 2, [1769817600 * 10**9] * 2, ['"x"'] * 2)
    assert s3_requests._parse_page(PAGE % (entry, "<Key>a</Key>")) is None
    assert json.dumps(page.prefixes) == "[]"


@pytest.mark.parametrize(
    "text",
    ["", "<html></html>", "<Error><Code>InternalError</Code></Error>", PAGE.partition("</Contents>")[0]],
    ids=["empty", "html", "error", "cut"],
)
def test_other_documents_are_no_pages(text: str) -> None:
    assert s3_requests._parse_page(text) is None


def test_prefixes_and_encoded_names_of_pages() -> None:
    listing = "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>%s</ListBucketResult>"
    prefixes = "".join(
        f"<CommonPrefixes><Prefix>{name}/</Prefix></CommonPrefixes>" for name in ("a+b", "c%26d", "e&amp;f")
    )
    page = s3_requests._parse_page(listing % prefixes)
    assert page is not None
    assert page.prefixes == ["a b/", "c&d/", "e&f/"]
    odd = "<CommonPrefixes><Prefix><![CDATA[a/]]></Prefix></CommonPrefixes>"
    assert s3_requests._parse_page(listing % (prefixes + odd)) is None
