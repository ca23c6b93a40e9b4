"""Object stores: every fsspec filesystem that is not a local disk."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from inlay.errors import InlayError
from inlay.storage.base import FileStat, Listing

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SMALL_OBJECT", "Client", "ObjectStore", "Upload", "with_path"]


# A merge opens each data file several times. The content of small objects is kept, at most 64 MiB per store.
SMALL_OBJECT = 256 << 10
_KEPT_OBJECTS = 256
# A store rejects a conditional create like this if the object exists, or if another request is creating it.
_EXISTS_STATUSES = {412: "PreconditionFailed", 409: "ConditionalRequestConflict"}
_UNSUPPORTED_STATUSES = (400, 405, 501)
_UNSUPPORTED_ERRNOS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_MAY_LOSE_DATA = "so concurrent writers could lose data."
_SINGLE_WRITER_HINT = 'If no other program writes to the dataset, pass storage_options={"single_writer": True}.'
_ERRNO = {
    PermissionError: errno.EACCES,
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    TimeoutError: errno.ETIMEDOUT,
}


class Upload(NamedTuple):
    """A multipart upload that is not complete."""

    path: str
    id: str
    started_ns: int


class Client:
    """A wrapper of an fsspec filesystem or file that raises every failure as an OSError with its path."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or "r" in getattr(self._inner, "mode", "r"):
            self.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Discard an incomplete object, which closing or garbage collection would otherwise create."""
        with contextlib.suppress(Exception):
            self._inner.discard()
        self._inner.closed = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pickle looks up dunder methods before `_inner` is set.
            raise AttributeError(name)
        method = getattr(self._inner, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return method(*arguments, **options)
            except Exception as error:
                if isinstance(error, io.UnsupportedOperation) or getattr(error, "filename", None) is not None:
                    raise
                bucket = options.get("Bucket")
                path = arguments[0] if arguments else getattr(self._inner, "path", None)
                raise with_path(error, f"{bucket}/{options.get('Key', '')}" if bucket else path) from error

        return call


def with_path(error: Exception, path: object) -> OSError:
    """Return an error of a client as an OSError that names the reason and the path."""
    path = path if isinstance(path, str) else None
    number = getattr(error, "errno", None) or next((n for kind, n in _ERRNO.items() if isinstance(error, kind)), None)
    reason = getattr(error, "strerror", None) or str(error)
    if not isinstance(error, OSError):
        reason = f"{type(error).__name__}: {reason}"
    elif reason in ("", path):
        reason = os.strerror(number or errno.EIO)
    return OSError(number or errno.EIO, reason, path)


def _http_status(error: BaseException | None) -> int | None:
    """Return the HTTP status of the response that caused an error, or None."""
    while error is not None:
        response = getattr(error, "response", None)
        metadata = response.get("ResponseMetadata", {}) if isinstance(response, Mapping) else {}
        status = metadata.get("HTTPStatusCode") or getattr(error, "status_code", getattr(error, "code", None))
        if isinstance(status, int):
            return status
        error = error.__cause__
    return None


def _means_exists(error: OSError) -> bool:
    status = _http_status(error)
    if status is None:  # Some clients report only the text of the response.
        return any(code in str(error) for code in _EXISTS_STATUSES.values())
    return status in _EXISTS_STATUSES


class ObjectStore:
    """An fsspec filesystem used as an object store: whole objects, conditional create, no rename."""

    is_local = False

    def __init__(self, filesystem: Any, *, single_writer: bool = False) -> None:
        self.filesystem = filesystem
        self._client = Client(filesystem)
        self.single_writer = single_writer
        self._read_small = functools.lru_cache(_KEPT_OBJECTS)(functools.partial(_read_object, self._client))

    def __reduce__(self) -> Any:
        return functools.partial(type(self), single_writer=self.single_writer), (self.filesystem,)

    def walk(self, root: str, keep: Callable[[str], bool]) -> Listing:
        self._client.invalidate_cache()
        found = []
        for path, info in self._client.find(root, detail=True).items():
            relative = path[len(root) :].lstrip("/") if path.startswith(root) else path
            if all(keep(part) for part in relative.split("/")):
                found.append(_object_stat(relative, info))
        return Listing.of(found).sorted()

    def stat(self, path: str) -> FileStat | None:
        """Return the identity of an object, or None if there is no object, even if there is a directory."""
        self._client.invalidate_cache()
        try:
            info = self._client.info(path)
        except FileNotFoundError:
            return None
        return None if info["type"] == "directory" else _object_stat(path, info)

    def open_read(self, path: str) -> BinaryIO:
        try:
            return self._open(path)
        except FileNotFoundError:  # The client's cached listing may be older than the object.
            self._client.invalidate_cache()
            return self._open(path)

    def _open(self, path: str) -> BinaryIO:
        stat = _object_stat(path, self._client.info(path))
        if stat.size <= SMALL_OBJECT:
            return io.BytesIO(self._read_small(stat))
        return cast(BinaryIO, Client(self._client.open(path, "rb")))

    def open_arrow(self, path: str, size: int | None = None) -> pa.NativeFile:  # noqa: ARG002  (for S3Store)
        import pyarrow as pa

        return pa.PythonFile(self.open_read(path), mode="r")

    def open_footer(self, path: str) -> pa.NativeFile:
        return self.open_arrow(path)

    def open_write(self, path: str) -> BinaryIO:
        return cast(BinaryIO, Client(self._client.open(path, "wb")))

    def read_bytes(self, path: str) -> bytes:
        return bytes(self._client.cat_file(path))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return bytes(self._client.cat_file(path, start=offset, end=offset + length))

    def create(self, path: str, data: bytes) -> None:
        """Create an object, or raise FileExistsError if one exists or another request is creating it.

        The existing object may be this call's own: a client that loses the response to a successful create retries.
        So callers must read the object.
        """
        if self.single_writer:
            if self.stat(path) is not None:
                raise FileExistsError(errno.EEXIST, "exists", path)
            self._create(path, data, replace=True)
            return
        try:
            self._create(path, data, replace=False)
        except FileExistsError:
            raise
        except OSError as error:
            if _means_exists(error):
                raise FileExistsError(errno.EEXIST, "exists", path) from error
            raise

    def write_bytes(self, path: str, data: bytes) -> None:
        """Create or replace an object, as a whole."""
        self._create(path, data, replace=True)

    def _create(self, path: str, data: bytes, *, replace: bool) -> None:
        self._client.pipe_file(path, data, **({} if replace else {"mode": "create"}))

    def copy_all(self, copies: Sequence[tuple[str, str, int]]) -> list[bool]:
        """Copy objects from tuples of source, target and size. Returns for each one whether its source exists."""
        return [self._copy(*copy) for copy in copies]

    def _copy(self, source: str, target: str, size: int) -> bool:
        try:
            self.move(source, target, size)
        except FileNotFoundError:
            return False
        return True

    def read_ahead(self, files: Sequence[FileStat]) -> None:
        """Begin to read small objects, or the ends of large ones."""

    def move(self, source: str, target: str, size: int | None = None) -> None:  # noqa: ARG002  (for S3Store)
        """Copy an object. The source remains."""
        self._client.cp_file(source, target)  # `copy` would treat "[" and "*" in a name as a pattern.

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._client.rm_file(path)

    def remove_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.remove(path)

    def remove_tree(self, path: str) -> None:
        self._client.invalidate_cache()
        self.remove_all(self._client.find(path))

    def is_directory(self, path: str) -> bool:
        self._client.invalidate_cache()
        return bool(self._client.isdir(path))

    # --------------------------------------------------------------------------------------- multipart uploads
    def uploads(self, directory: str) -> list[Upload]:  # noqa: ARG002  (for S3Store)
        """List the incomplete multipart uploads below a directory, or nothing if the store cannot list them."""
        return []

    def abort(self, upload: Upload) -> None:
        """Discard an incomplete multipart upload."""

    # -------------------------------------------------------------------------------------- conditional creates
    def require_conditional_create(self, directory: str) -> None:
        """Reject a store on which two writers could commit the same log entry."""
        proven = vars(self.filesystem).setdefault("_inlay_conditional", set())  # as long as the client exists
        if self.single_writer or directory in proven:
            return
        if not self._creates_in_one_request():
            raise InlayError(
                f"{self._client_name()} does not support conditional writes (If-None-Match), {_MAY_LOSE_DATA}",
                hint=f"Pass the URL of the dataset without `filesystem`. {_SINGLE_WRITER_HINT}",
            )
        problem = self._find_problem(f"{directory}/.probe_{uuid.uuid4().hex}")
        if problem is not None:
            raise InlayError(f"The store of {directory!r} {problem}, {_MAY_LOSE_DATA}", hint=_SINGLE_WRITER_HINT)
        proven.add(directory)

    def _find_problem(self, probe: str) -> str | None:
        """Return how the store fails to create an object conditionally, or None if it succeeds."""
        problem: str | None = "ignores conditional writes (If-None-Match)"
        try:
            self.create(probe, b"1")
            self.create(probe, b"2")
        except FileExistsError:
            problem = None
        except OSError as error:
            if _http_status(error) not in _UNSUPPORTED_STATUSES and error.errno not in _UNSUPPORTED_ERRNOS:
                raise
            self._create(probe, b"1", replace=True)  # If this fails too, the condition is not the cause.
            problem = f"rejects conditional writes (If-None-Match: {error.strerror})"
        self.remove(probe)
        return problem

    def _creates_in_one_request(self) -> bool:
        """Return False for fsspec's default `pipe_file`, which checks and then writes in two requests."""
        from fsspec import AbstractFileSystem

        return getattr(self.filesystem.pipe_file, "__func__", None) is not AbstractFileSystem.pipe_file

    def _client_name(self) -> str:
        name = type(self.filesystem).__name__
        return f"pyarrow.fs.{type(self.filesystem.fs).__name__}" if name == "ArrowFSWrapper" else name


def _read_object(client: Client, stat: FileStat) -> bytes:
    with Client(client.open(stat.path, "rb")) as file:
        return bytes(file.read())


# The names of the modification time in listings of S3, Azure, Google Cloud Storage and other stores.
_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "created", "creation_time")


def _object_stat(path: str, info: Mapping[str, Any]) -> FileStat:
    modified = next((info[name] for name in _MODIFIED if info.get(name)), 0)
    nanoseconds = int(modified.timestamp() * 1e9) if hasattr(modified, "timestamp") else int(modified * 1e9)
    tag = info.get("ETag") or info.get("etag") or info.get("ino") or nanoseconds
    return FileStat(path, int(info["size"] or 0), nanoseconds, str(tag))
