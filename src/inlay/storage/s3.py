"""S3 as an object store, with few and cheap requests."""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import hashlib
import io
import threading
import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO, Generic, TypeVar, cast
from xml.sax.saxutils import escape

import pyarrow as pa

from inlay.storage.base import FileStat, Listing
from inlay.storage.objects import SMALL_OBJECT, Client, ObjectStore, Upload, with_path
from inlay.storage.s3_requests import CHECKSUM, DirectRequests, Response, quote_key

__all__ = ["S3Store"]

_MAX_PUT = 50 << 20  # bytes; the client uploads more in parts
_MAX_KEPT = 64 << 20  # bytes of small objects in memory
_KEPT_OVERHEAD = 500  # bytes of the identity of an object in memory
_MAX_DELETED = 1000  # objects in one request
_MAX_COPIED = 5 << 30  # bytes in one request
_MAX_REMEMBERED = 10_000  # objects of a listing
_MAX_LISTINGS = 16  # that a store remembers
_READ_AHEAD = 4 << 20
_MAX_READ = 32 << 20  # bytes in one request, which has a time limit
_COPY_SOURCE = "x-amz-copy-source"
_K = TypeVar("_K")


class S3Store(ObjectStore):
    """An s3fs filesystem. Each common request goes to S3 directly, and to s3fs if it needs more than one attempt."""

    def __init__(self, filesystem: Any, *, single_writer: bool = False) -> None:
        super().__init__(filesystem, single_writer=single_writer)
        self._requests = DirectRequests(filesystem)
        self._small: _RecentObjects[FileStat] = _RecentObjects()
        self._listings: dict[str, Listing] = {}  # the newest listing of each root
        self._confirmed: _RecentObjects[str] = _RecentObjects()  # whose checksum the store has returned
        self._lock = threading.Lock()

    def _send(self, method: str, path: str, *arguments: Any, **options: Any) -> Response | None:
        try:
            return self._requests.send(method, path, *arguments, **options)
        except Exception as error:
            raise with_path(error, path) from error

    # ---------------------------------------------------------------------------------------------------- reading
    def walk(self, root: str, keep: Callable[[str], bool]) -> Listing:
        self._client.invalidate_cache()
        try:
            objects = self._requests.list_objects(root)
        except Exception as error:
            raise with_path(error, root) from error
        if objects is None:
            return super().walk(root, keep)
        skip = len(root.partition("/")[2]) + 1 if "/" in root else 0
        is_kept = functools.cache(lambda directory: not directory or all(map(keep, directory.split("/"))))
        parts = (key[skip:].rpartition("/") for key in objects.keys)
        kept = objects.filter([bool(name) and is_kept(directory) and keep(name) for directory, _, name in parts])
        found = Listing([key[skip:] for key in kept.keys], kept.sizes, kept.modified_ns, kept.tags).sorted()
        self._remember(root, found)
        return found

    def _remember(self, root: str, files: Listing) -> None:
        """Let later reads, also those of the client, know the listed objects."""
        with self._lock:
            self._listings.pop(root, None)
            self._listings[root] = files
            if len(self._listings) > _MAX_LISTINGS:
                del self._listings[next(iter(self._listings))]
        if len(files) > _MAX_REMEMBERED:
            return
        for file in files:
            path = f"{root}/{file.path}"
            self.filesystem.dircache[path] = [
                {"name": path, "Key": path, "type": "file", "size": file.size, "Size": file.size, "ETag": file.tag}
            ]

    def _forget(self, path: str) -> None:
        """Forget the content of an object that this store changes, and the listings that may contain the object."""
        self._confirmed.pop(path)
        self.filesystem.invalidate_cache(path)
        for root in list(self._listings):
            if path.startswith(f"{root}/"):
                self._listings.pop(root, None)

    def _known(self, path: str) -> FileStat | None:
        for root, files in list(self._listings.items()):
            if path.startswith(f"{root}/"):
                relative = path[len(root) + 1 :]
                at = bisect_left(files.paths, relative)
                if at < len(files) and files[at].path == relative:
                    return files[at]._replace(path=path)
        return None

    def stat(self, path: str) -> FileStat | None:
        self._client.invalidate_cache()
        try:
            response = self._send("HEAD", path) if "/" in path else None
        except FileNotFoundError:
            return None
        if response is None or "content-length" not in response.headers:
            return super().stat(path)
        return _stat(path, response.headers)

    def _open(self, path: str) -> BinaryIO:
        if not self._requests.serves(path):
            return super()._open(path)
        stat = self._known(path) or self.stat(path)
        if stat is None:
            raise FileNotFoundError(errno.ENOENT, "The object does not exist", path)
        if stat.size <= SMALL_OBJECT:
            data = self._small.get(stat)
            if data is None:
                data = self.read_version(stat, 0, stat.size)
                self._small.add(stat, data)
            return io.BytesIO(data)
        return cast(BinaryIO, io.BufferedReader(_Reader(self, stat), min(_READ_AHEAD, stat.size)))

    def open_read(self, path: str) -> BinaryIO:
        try:
            return self._open(path)
        except FileNotFoundError:  # A listing may be older than the object.
            self._listings.clear()
            self._client.invalidate_cache()
            return self._open(path)

    def open_arrow(self, path: str, size: int | None = None) -> pa.NativeFile:
        if (confirmed := self._confirmed.pop(path)) is not None:
            return pa.BufferReader(confirmed)
        if size is not None and size <= SMALL_OBJECT:
            return pa.BufferReader(self.read_range(path, 0, size))
        return super().open_arrow(path, size)

    def read_ahead(self, files: Sequence[FileStat]) -> None:
        """Read small objects side by side. An object that cannot be read is left to `open_read`."""
        small = [file for file in files if 0 < file.size <= SMALL_OBJECT and self._small.get(file) is None]
        responses = self._requests.send_all([("GET", file.path, _version(file, 0, file.size)) for file in small])
        for file, response in zip(small, responses, strict=True):
            if isinstance(response, Response) and len(response.body) == file.size:
                self._small.add(file, response.body)

    def read_bytes(self, path: str) -> bytes:
        response = self._send("GET", path)
        return super().read_bytes(path) if response is None else response.body

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        if not length:
            return b""
        response = self._send("GET", path, headers={"Range": f"bytes={offset}-{offset + length - 1}"})
        if response is None or len(response.body) > length:  # Some stores ignore the range.
            return super().read_range(path, offset, length)
        return response.body

    def is_directory(self, path: str) -> bool:
        bucket, _, key = path.partition("/")
        query = f"list-type=2&max-keys=1&prefix={quote_key(key).replace('/', '%2F')}%2F"
        try:
            response = self._send("GET", bucket, query) if key else None
        except FileNotFoundError:  # There is no bucket.
            return False
        if response is None or b"ListBucketResult" not in response.body:
            return super().is_directory(path)
        return b"<Contents>" in response.body

    # ---------------------------------------------------------------------------------------------------- writing
    def open_write(self, path: str) -> BinaryIO:
        return cast(BinaryIO, Client(_Writer(self, path)))

    def put(self, path: str, data: bytes, headers: Mapping[str, str] | None = None) -> Response | None:
        """Create or replace an object. Returns None if the client must do it."""
        if len(data) > _MAX_PUT:
            return None
        self._forget(path)
        checksum = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
        response = self._send("PUT", path, headers={CHECKSUM: checksum, **(headers or {})}, body=data)
        if len(data) <= SMALL_OBJECT and response is not None and _confirms(response, data, checksum):
            self._confirmed.add(path, data)
        return response

    def _create(self, path: str, data: bytes, *, replace: bool) -> None:
        if self.put(path, data, {} if replace else {"If-None-Match": "*"}) is None:
            super()._create(path, data, replace=replace)
        self._confirmed.pop(path)  # Only written files are opened again.

    def move(self, source: str, target: str, size: int | None = None) -> None:
        """Copy an object with one request if the size is known."""
        if size is None or size > _MAX_COPIED:
            super().move(source, target, size)
            return
        self._forget(target)
        response = self._send("PUT", target, headers={_COPY_SOURCE: quote_key(source)})
        if not _is_copy(response):
            bucket, key, _ = self.filesystem.split_path(target)
            copied = dict(zip(("Bucket", "Key"), self.filesystem.split_path(source)[:2], strict=True))
            self._client.call_s3("copy_object", Bucket=bucket, Key=key, CopySource=copied)

    def copy_all(self, copies: Sequence[tuple[str, str, int]]) -> list[bool]:
        for _, target, _ in copies:
            self._forget(target)
        small = [copy for copy in copies if copy[2] <= _MAX_COPIED]
        sent = [("PUT", target, {_COPY_SOURCE: quote_key(source)}) for source, target, _ in small]
        responses = dict(zip(small, self._requests.send_all(sent), strict=True))
        return [self._finish_copy(responses.get(copy), *copy) for copy in copies]

    def _finish_copy(self, response: Response | Exception | None, source: str, target: str, size: int) -> bool:
        """Return whether the source of a copy exists. Copy it with the client if that is necessary."""
        if isinstance(response, FileNotFoundError):
            return False
        if isinstance(response, Exception):
            raise with_path(response, target) from response
        return _is_copy(response) or self._copy(source, target, size)

    def remove(self, path: str) -> None:
        self._forget(path)
        with contextlib.suppress(FileNotFoundError):
            if self._send("DELETE", path) is None:
                super().remove(path)

    def remove_all(self, paths: Sequence[str]) -> None:
        """Delete objects, up to 1,000 with one request."""
        rest = list(paths)
        if len(rest) > 1:
            with contextlib.suppress(OSError):  # Some stores reject the checksum of this request.
                starts = range(0, len(rest), _MAX_DELETED)
                rest = [path for start in starts for path in self._delete(rest[start : start + _MAX_DELETED])]
        super().remove_all(rest)

    def _delete(self, paths: Sequence[str]) -> list[str]:
        """Delete objects with one request. Returns the paths that it could not delete."""
        keys = {self.filesystem.split_path(path)[1]: path for path in paths}
        bucket = self.filesystem.split_path(paths[0])[0]
        for path in paths:
            self._forget(path)
        entries = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys)
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        body = f'<Delete xmlns="{space}"><Quiet>true</Quiet>{entries}</Delete>'.encode()
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        plain = all(key.isprintable() for key in keys)
        response = self._send("POST", bucket, "delete", {"Content-MD5": digest}, body) if plain else None
        if response is not None and b"DeleteResult" in response.body and b"<Error" not in response.body:
            return []
        parsed = self._client.call_s3(
            "delete_objects", Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
        )
        return [keys[each["Key"]] for each in parsed.get("Errors", ())]

    def remove_tree(self, path: str) -> None:
        self.remove_all([f"{path}/{file.path}" for file in self.walk(path, lambda _: True)])

    # ------------------------------------------------------------------------------------------ multipart uploads
    def uploads(self, directory: str) -> list[Upload]:
        bucket, _, prefix = directory.partition("/")
        with contextlib.suppress(OSError):
            response = self._send("GET", bucket, f"uploads&prefix={quote_key(prefix).replace('/', '%2F')}%2F")
            body = b"" if response is None else response.body
            if b"ListMultipartUploadsResult" in body and b"<Upload>" not in body:
                return []
        return self._list_uploads(directory)

    def _list_uploads(self, directory: str) -> list[Upload]:
        bucket, prefix, _ = self.filesystem.split_path(f"{directory}/")
        found: list[Upload] = []
        page: Mapping[str, Any] = {"IsTruncated": True}
        with contextlib.suppress(OSError):
            while page.get("IsTruncated"):
                markers = {name[4:]: page[name] for name in ("NextKeyMarker", "NextUploadIdMarker") if name in page}
                page = self._client.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **markers)
                for each in page.get("Uploads", ()):
                    started = int(each["Initiated"].timestamp() * 1e9)
                    found.append(Upload(f"{bucket}/{each['Key']}", each["UploadId"], started))
        return found

    def abort(self, upload: Upload) -> None:
        bucket, key, _ = self.filesystem.split_path(upload.path)
        with contextlib.suppress(OSError):  # Another process has aborted it, or a later cleanup does.
            self._client.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)

    def read_version(self, stat: FileStat, start: int, end: int) -> bytes:
        """Read bytes of an object, or raise OSError if it was replaced."""
        if start == end:
            return b""
        response = self._send("GET", stat.path, headers=_version(stat, start, end))
        if response is not None and len(response.body) == end - start:  # Some stores ignore the range.
            return response.body
        with Client(self._client.open(stat.path, "rb", cache_type="none")) as file:
            if file.details.get("ETag") != stat.tag:
                raise OSError(errno.ESTALE, "The object was replaced", stat.path)
            file.seek(start)
            return bytes(file.read(end - start))


class _RecentObjects(Generic[_K]):
    """The content of the small objects that were used last."""

    def __init__(self) -> None:
        self._content: dict[_K, bytes] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._content)

    def pop(self, name: _K) -> bytes | None:
        with self._lock:
            return self._pop(name)

    def get(self, name: _K) -> bytes | None:
        with self._lock:
            content = self._pop(name)
            if content is not None:
                self._add(name, content)
            return content

    def add(self, name: _K, content: bytes) -> None:
        with self._lock:
            self._pop(name)
            self._add(name, content)
            while self._bytes > _MAX_KEPT:
                self._pop(next(iter(self._content)))

    def _pop(self, name: _K) -> bytes | None:
        content = self._content.pop(name, None)
        if content is not None:
            self._bytes -= len(content) + _KEPT_OVERHEAD
        return content

    def _add(self, name: _K, content: bytes) -> None:
        self._content[name] = content
        self._bytes += len(content) + _KEPT_OVERHEAD


def _version(stat: FileStat, start: int, end: int) -> dict[str, str]:
    """Return the headers of a request for bytes of an object, which fails if the object was replaced."""
    return {"Range": f"bytes={start}-{end - 1}", "If-Match": str(stat.tag)}


def _is_copy(response: Response | None) -> bool:
    """Return whether a copy succeeded. It can fail after the status was sent."""
    return response is not None and b"CopyObjectResult" in response.body


def _stat(path: str, headers: Mapping[str, str]) -> FileStat:
    modified = parsedate_to_datetime(headers["last-modified"]) if "last-modified" in headers else None
    nanoseconds = int(modified.timestamp() * 1e9) if modified else 0
    return FileStat(path, int(headers["content-length"]), nanoseconds, headers.get("etag") or str(nanoseconds))


def _confirms(response: Response, data: bytes, checksum: str) -> bool:
    """Return whether a store has returned the checksum of the bytes that it received."""
    if response.headers.get(CHECKSUM) == checksum:
        return True
    return response.headers.get("etag") == f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class _Reader(io.RawIOBase):
    """One version of an object. Reading raises OSError after the object was replaced."""

    def __init__(self, store: S3Store, stat: FileStat) -> None:
        self._store, self._stat, self._position = store, stat, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._stat.size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + min(len(buffer), _MAX_READ), self._stat.size)
        if end <= self._position:
            return 0
        data = self._store.read_version(self._stat, self._position, end)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Writer:
    """A new object: one request when it is closed, or a file of the client if it is large."""

    mode = "wb"

    def __init__(self, store: S3Store, path: str) -> None:
        self._store, self.path = store, path
        self._buffer = io.BytesIO()
        self._file: Any = None
        self.closed = False

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return int(self._file.tell()) if self._file else self._buffer.tell()

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self._file is None and self._buffer.tell() + size > _MAX_PUT:
            self._open_file()
        (self._file or self._buffer).write(data)
        return size

    def _open_file(self) -> None:
        self._file = Client(self._store.filesystem.open(self.path, "wb"))
        self._file.write(self._buffer.getvalue())
        self._buffer = io.BytesIO()

    def flush(self) -> None:
        """Do nothing: an object exists when it is closed."""

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._file is None and self._store.put(self.path, self._buffer.getvalue()) is None:
            self._open_file()
        if self._file is not None:
            self._file.close()

    def discard(self) -> None:
        if self._file is not None:
            self._file.abort()
