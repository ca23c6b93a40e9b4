"""Requests to S3: a client with a time limit, and common requests without the generic layers of the client.

For each request, the client resolves the endpoint, validates and serializes the parameters, emits events, and parses
XML by a model. This costs several times the CPU time of signing and sending it. `DirectRequests` signs a request with
the client's credentials and sends it over the client's connections. If the outcome is anything else than success or a
definite answer, the caller repeats the request with the client, which retries and follows redirects.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import hashlib
import html
import itertools
import os
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree as ET

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError, HTTPClientError
from fsspec.asyn import sync, sync_wrapper
from s3fs import S3FileSystem
from s3fs.errors import translate_boto_error

__all__ = [
    "CHECKSUM",
    "DeadlineS3FileSystem",
    "DirectRequests",
    "Objects",
    "Response",
    "StoreTimeoutError",
    "quote_key",
]

CONNECT_SECONDS = 10.0
_ATTEMPTS = 3
CHECKSUM = "x-amz-checksum-crc32"
_ANSWERS = (404, 409, 412)  # statuses that are the same after a retry
_TRANSIENT = re.compile(rb"<Code>(ExpiredToken|RequestTimeout|TokenRefreshRequired)</Code>")  # errors with status 400
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")  # not an access point
_NORMALIZED = re.compile(r"(^|/)\.{0,2}(/|$)")  # URL libraries change such keys
_SENT_AT_ONCE = 10  # connections of the client
_LISTED_AT_ONCE = 16  # prefixes
_RANGES = 64  # of a prefix with many sub-prefixes
_LIST = {"list-type": "2", "encoding-type": "url"}
_T = TypeVar("_T")


class StoreTimeoutError(OSError):
    """The store did not answer in time. A plain `TimeoutError` would make s3fs repeat the request."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"S3 did not answer within {seconds:g} seconds.")


class DeadlineS3FileSystem(S3FileSystem):  # type: ignore[misc]
    """An S3 filesystem whose requests end within `timeout_seconds`, including all their attempts."""

    protocol = ("s3", "s3a")
    retries = 2  # s3fs counts attempts, and repeats each request that the client has already repeated

    def __init__(self, *arguments: Any, timeout_seconds: float, config_kwargs: Any = None, **options: Any) -> None:
        defaults = {
            "connect_timeout": min(CONNECT_SECONDS, timeout_seconds),
            "read_timeout": timeout_seconds / self.retries,  # for a response that stops in the middle
            "retries": {"mode": "standard", "total_max_attempts": _ATTEMPTS},
        }
        super().__init__(*arguments, config_kwargs=defaults | (config_kwargs or {}), **options)
        self.timeout_seconds = timeout_seconds

    async def _call_s3(self, method: str, *arguments: Any, **options: Any) -> Any:
        request = super()._call_s3(method, *arguments, **options)
        try:
            return await asyncio.wait_for(request, self.timeout_seconds)
        except TimeoutError as error:
            raise StoreTimeoutError(self.timeout_seconds) from error

    call_s3 = sync_wrapper(_call_s3)


class Response(NamedTuple):
    """A response whose status means success. Names of headers are in lower case."""

    headers: Mapping[str, str]
    body: bytes


class Objects(NamedTuple):
    """Listed objects as columns, because a listing may have a million objects."""

    keys: list[str]
    sizes: list[int]
    modified_ns: list[int]
    tags: list[str]

    def filter(self, kept: Sequence[bool]) -> Objects:
        columns: Any = (list(itertools.compress(column, kept)) for column in cast("tuple[list[Any], ...]", self))
        return self if all(kept) else Objects(*columns)


class _Page(NamedTuple):
    objects: Objects
    prefixes: list[str]
    next: str | None  # the token of the next page


class _Endpoint(NamedTuple):
    url: str  # with the bucket
    region: str


class DirectRequests:
    """Common requests over the connections of an s3fs filesystem. Paths are `bucket/key`.

    Every method returns None if the client must send the request.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._endpoints: dict[str, _Endpoint | None] = {}  # by bucket; None if only the client can address it
        self._pages: dict[
            bytes, _Page
        ] = {}  # of the newest long listing, by digest: most listings repeat the one before

    def serves(self, path: str) -> bool:
        """Return whether requests for a path can be sent without the client."""
        if not self._is_plain(path):
            return False
        return self._run(self._find_endpoint(_split(path)[0])) is not None

    def send(
        self, method: str, path: str, query: str = "", headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Response | None:
        """Send one request for an object, or for a bucket if the path has no key."""
        if not self._is_plain(path):
            return None
        return self._run(self.request(method, path, query, headers or {}, body))

    def send_all(self, requests: Sequence[tuple[str, str, Mapping[str, str]]]) -> list[Response | Exception | None]:
        """Send requests side by side, from tuples of method, path and headers."""
        slots = asyncio.Semaphore(_SENT_AT_ONCE)

        async def send(method: str, path: str, headers: Mapping[str, str]) -> Response | Exception | None:
            if not self._is_plain(path):
                return None
            async with slots:
                try:
                    return await self.request(method, path, "", headers, b"")
                except Exception as error:  # noqa: BLE001  (the caller decides about each request)
                    return error

        async def send_each() -> list[Response | Exception | None]:
            return await asyncio.gather(*(send(*request) for request in requests))

        return self._run(send_each())

    def list_objects(self, path: str) -> Objects | None:
        """List the objects below a path in any order, large prefixes side by side."""
        bucket, key = _split(path)
        if not _has_plain_options(self._filesystem):
            return None
        listing = _Listing(self, bucket, self._pages)
        found = self._run(listing.all(f"{key}/" if key else ""))
        if len(listing.pages) > 1:
            self._pages = listing.pages
        return found

    def _is_plain(self, path: str) -> bool:
        _, slash, key = path.partition("/")
        return _has_plain_options(self._filesystem) and not (slash and _NORMALIZED.search(key))

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return cast("_T", sync(self._filesystem.loop, lambda: coroutine))

    async def _find_endpoint(self, bucket: str) -> _Endpoint | None:
        if bucket not in self._endpoints:
            client = await self._filesystem.set_session()
            self._endpoints[bucket] = await _resolve(client, bucket) if _BUCKET.fullmatch(bucket) else None
        return self._endpoints[bucket]

    async def request(
        self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> Response | None:
        limit = getattr(self._filesystem, "timeout_seconds", None)
        try:
            return await asyncio.wait_for(self._attempt(method, path, query, headers, body), limit)
        except TimeoutError as error:
            raise StoreTimeoutError(limit or 0) from error

    async def _attempt(
        self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> Response | None:
        client = await self._filesystem.set_session()
        bucket, key = _split(path)
        endpoint = await self._find_endpoint(bucket)
        if endpoint is None:
            return None
        url = f"{endpoint.url}/{quote_key(key)}{query and '?'}{query}"
        try:
            request = await _sign(client, endpoint, AWSRequest(method, url, dict(headers), body))
            if request is None:
                return None
            response = await _session(client).send(request)
            content = await response.content
        except HTTPClientError:
            if _attempts_once(self._filesystem, client):
                raise
            return None
        if response.status_code < 300:
            return Response(response.headers, content)
        if response.status_code in _ANSWERS or _attempts_once(self._filesystem, client):
            raise _error(method, response.status_code, content)
        if response.status_code <= 400 and not _TRANSIENT.search(content):
            self._endpoints[bucket] = None  # The client finds the region of the bucket.
        return None


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    return bucket, key


def quote_key(key: str) -> str:
    return quote(key, safe="/~")


def _has_plain_options(filesystem: Any) -> bool:
    """Return False if an option of a filesystem changes its requests."""
    return type(filesystem) in (S3FileSystem, DeadlineS3FileSystem) and not (
        filesystem.anon
        or filesystem.asynchronous
        or filesystem.cache_regions
        or filesystem.req_kw
        or filesystem.s3_additional_kwargs
        or filesystem.storage_options.get("session")
        or filesystem.version_aware
    )


def _attempts_once(filesystem: Any, client: Any) -> bool:
    """Return whether the user wants the first failure to be reported."""
    return filesystem.retries <= 1 and (client.meta.config.retries or {}).get("total_max_attempts") == 1


async def _resolve(client: Any, bucket: str) -> _Endpoint | None:
    """Return the URL and region of a bucket, or None if its requests need another signature or other headers."""
    config = client.meta.config
    context = {"client_region": client.meta.region_name, "client_config": config, "has_streaming_input": False}
    try:
        operation = client.meta.service_model.operation_model("GetObject")
        url, headers, _ = await client._resolve_endpoint_ruleset(operation, {"Bucket": bucket}, context)  # noqa: SLF001
        signing = cast("dict[str, Any]", context["signing"])
        plain = not headers and (context["auth_type"], signing["signing_name"]) == ("v4", "s3")
        _ = _credentials(client), _session(client)
        return _Endpoint(url, signing["region"]) if plain and config.signature_version == "s3v4" else None
    except (AttributeError, KeyError, TypeError, ValueError):  # another version of the client
        return None


def _credentials(client: Any) -> Any:
    return client._request_signer._credentials  # noqa: SLF001


def _session(client: Any) -> Any:
    return client._endpoint.http_session  # noqa: SLF001


async def _sign(client: Any, endpoint: _Endpoint, request: Any) -> Any:
    """Sign a request with the client's credentials, which refresh themselves. Returns None if there are none."""
    credentials = _credentials(client)
    if credentials is None:
        return None
    config = client.meta.config
    request.headers["User-Agent"] = config.user_agent
    request.context.update(
        client_config=config,
        has_streaming_input=bool(request.data),
        checksum={"request_algorithm": {"in": "header", "name": CHECKSUM}},
    )
    S3SigV4Auth(await credentials.get_frozen_credentials(), "s3", endpoint.region).add_auth(request)
    return request.prepare()


def _error(method: str, status: int, body: bytes) -> Exception:
    """Return the exception that s3fs raises for a response."""
    text = body.decode(errors="replace")
    found = {name: html.unescape(value) for name, value in re.findall(r"<(Code|Message|Condition)>(.*?)</", text)}
    error = {"Code": str(status), "Message": f"HTTP status {status}"} | found
    response = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}}
    return cast(Exception, translate_boto_error(ClientError(response, method)))


# ------------------------------------------------------------------------------------------------------- listings
class _Listing:
    """One listing of a bucket. Each method returns None if the client must list."""

    def __init__(self, requests: DirectRequests, bucket: str, known: Mapping[bytes, _Page]) -> None:
        self._requests = requests
        self._bucket = bucket
        self._known = known
        self.pages: dict[bytes, _Page] = {}
        self._slots = asyncio.Semaphore(_LISTED_AT_ONCE)

    async def all(self, prefix: str) -> Objects | None:
        """List a prefix by its sub-prefixes if it has more than one page."""
        page = await self._page(prefix=prefix)
        if page is None or page.next is None:
            return page and page.objects
        level = await self._rest(prefix=prefix, delimiter="/")
        if level is None or not level.prefixes:
            return level and level.objects
        if len(level.prefixes) < _LISTED_AT_ONCE:
            parts = await asyncio.gather(*map(self.all, level.prefixes))
            return _joined([level.objects, *parts])
        step = -(-len(level.prefixes) // _RANGES)
        starts = ["", *level.prefixes[step::step]]
        ranges = zip(starts, [*starts[1:], None], strict=True)
        return _joined(await asyncio.gather(*(self._range(prefix, start, end) for start, end in ranges)))

    async def _range(self, prefix: str, start: str, end: str | None) -> Objects | None:
        """List the keys after `start` and before `end`, which are sub-prefixes."""
        found: list[Objects | None] = []
        page = await self._page(prefix=prefix, **({"start-after": start} if start else {}))
        while page is not None:
            keys = page.objects.keys
            # Some stores ignore `start-after`.
            found.append(page.objects.filter([start < key and (end is None or key < end) for key in keys]))
            if page.next is None or (end is not None and keys and keys[-1] >= end):
                return _joined(found)
            page = await self._page(prefix=prefix, token=page.next)
        return None

    async def _rest(self, **parameters: str) -> _Page | None:
        """List all pages, one after the other."""
        objects: list[Objects | None] = []
        prefixes: list[str] = []
        page = await self._page(**parameters)
        while page is not None:
            objects.append(page.objects)
            prefixes += page.prefixes
            if page.next is None:
                joined = _joined(objects)
                return joined and _Page(joined, prefixes, None)
            page = await self._page(token=page.next, **parameters)
        return None

    async def _page(self, token: str | None = None, **parameters: str) -> _Page | None:
        if token is not None:
            parameters["continuation-token"] = token
        query = _LIST | parameters
        text = "&".join(f"{name}={quote(value, safe='~')}" for name, value in sorted(query.items()))
        async with self._slots:
            response = await self._requests.request("GET", self._bucket, text, {}, b"")
        return response and self._parse(response.body)

    def _parse(self, body: bytes) -> _Page | None:
        digest = hashlib.sha256(_TOKENS.sub(b"", body)).digest()
        page = self._known.get(digest)
        if page is None:
            page = _parse_page(body.decode())
        elif page.next is not None:
            page = page._replace(next=_next_token(body.decode()))
        if page is not None:
            self.pages[digest] = page
        return page


def _joined(parts: Sequence[Objects | None]) -> Objects | None:
    found = Objects([], [], [], [])
    for part in parts:
        if part is None:
            return None
        found.keys.extend(part.keys)
        found.sizes.extend(part.sizes)
        found.modified_ns.extend(part.modified_ns)
        found.tags.extend(part.tags)
    return found


_ENTRY = re.compile(
    r"<Contents>\s*<Key>([^<]*)</Key>\s*<LastModified>([^<]*)</LastModified>\s*<ETag>([^<]*)</ETag>"
    r"(?:(?!</?Contents>).)*?<Size>(\d+)</Size>",
    re.DOTALL,
)


_ENCODED = re.compile("[&%+]")
_TOKENS = re.compile(rb"<(?:Next)?ContinuationToken>[^<]*</")  # may differ each time


def _parse_page(text: str) -> _Page | None:
    """Parse a page of a listing, or return None for an unusual one."""
    if not text.rstrip().endswith("</ListBucketResult>"):  # Otherwise another document would be an empty listing.
        return None
    decode = _decode_name if "<EncodingType>url</EncodingType>" in text else _unescape
    found = _ENTRY.findall(text)
    if len(found) != text.count("<Contents>"):  # The elements have another order.
        found = list(_entries(text))
    keys, modified, tags, sizes = zip(*found, strict=True) if found else ((), (), (), ())
    try:
        objects = Objects(
            _decode_keys(keys, decode),
            list(map(int, sizes)),
            list(map(_nanoseconds, modified)),
            _unescape_all(tags),
        )
    except (TypeError, ValueError):
        return None
    prefixes = re.findall(r"<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>\s*</CommonPrefixes>", text)
    if len(prefixes) != text.count("<CommonPrefixes>"):
        return None
    is_truncated = "<IsTruncated>true" in text
    token = _next_token(text) if is_truncated else None
    if token is None and is_truncated:
        return None
    return _Page(objects, [decode(prefix) for prefix in prefixes], token)


def _next_token(text: str) -> str | None:
    token = re.search(r"<NextContinuationToken>([^<]*)</", text)
    return token and html.unescape(token[1])


def _decode_keys(keys: Sequence[str], decode: Callable[[str], str]) -> list[str]:
    """Decode keys, the directory that they share once."""
    shared = os.path.commonprefix([*keys[:1], *keys[-1:]]).rpartition("/")  # noqa: RUF071  (cut at a directory)
    head = "".join(shared[:2])
    if not all(key.startswith(head) for key in keys):  # Some stores do not sort.
        head = ""
    names = [key[len(head) :] for key in keys]
    head = decode(head)
    is_plain = not _ENCODED.search("".join(names))
    return [head + (name if is_plain else decode(name)) for name in names]


def _decode_name(name: str) -> str:
    name = _unescape(name)
    return unquote_plus(name) if "%" in name or "+" in name else name


def _unescape_all(texts: Sequence[str]) -> list[str]:
    joined = "\0".join(texts).replace("&quot;", '"')
    return [html.unescape(text) for text in texts] if "&" in joined else joined.split("\0") if texts else []


def _unescape(text: str) -> str:
    return html.unescape(text) if "&" in text else text


def _entries(text: str) -> Iterator[tuple[Any, ...]]:
    root = ET.fromstring(text)  # noqa: S314  (the endpoint is the user's)
    space = root.tag.partition("}")[0] + "}" if "}" in root.tag else ""
    for entry in root.iter(f"{space}Contents"):
        yield tuple(entry.findtext(f"{space}{name}") for name in ("Key", "LastModified", "ETag", "Size"))


@functools.lru_cache(1 << 12)
def _nanoseconds(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).timestamp() * 1e9)
