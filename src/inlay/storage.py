"""Where bytes live: the local disk with real durability, or any fsspec filesystem treated as an object store.

The only module that knows fsspec. A `Location` is one dataset's root in one store; paths inside it are relative
and "/"-separated, and are shown to people joined to the path as they gave it.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import re
import shutil
import stat
import unicodedata
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, cast

from inlay.errors import InlayError, InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FileStat", "LocalStore", "Location", "ObjectStore", "PathValidator", "Store", "discard_tree", "locate"]


class FileStat(NamedTuple):
    """What identifies one state of a file: the same four values mean the same bytes."""

    path: str
    size: int
    mtime_ns: int
    tag: int | str  # inode, or etag


_PATH = operator.itemgetter(0)


class Store(Protocol):
    """What a dataset needs of the place that holds it. Paths are absolute within the store."""

    is_local: bool

    def walk(self, root: str, keep: Callable[[str], bool]) -> list[FileStat]: ...
    def stat(self, path: str) -> FileStat | None: ...
    def open_read(self, path: str) -> BinaryIO: ...
    def open_arrow(self, path: str) -> pa.NativeFile: ...
    def open_write(self, path: str) -> BinaryIO: ...
    def read_bytes(self, path: str) -> bytes: ...
    def read_range(self, path: str, offset: int, length: int) -> bytes: ...
    def create(self, path: str, data: bytes) -> None: ...
    def move(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...  # a directory that is not there is fine
    def is_directory(self, path: str) -> bool: ...


class LocalStore:
    """The local filesystem. Nothing here is durable until `sync_file` and `sync_directory` say so."""

    is_local = True

    def walk(self, root: str, keep: Callable[[str], bool]) -> list[FileStat]:
        found: list[FileStat] = []
        seen: set[tuple[int, int]] = set()
        pending = deque([("", root)])
        while pending:
            prefix, directory = pending.pop()
            if _revisits(directory, seen):
                continue
            try:
                entries = os.scandir(directory)
            except FileNotFoundError:
                continue
            with entries:
                for entry in entries:
                    if not keep(entry.name):
                        continue
                    if entry.is_dir():
                        # links come last: what can be reached without one is known by its own path
                        add = pending.appendleft if entry.is_symlink() else pending.append
                        add((f"{prefix}{entry.name}/", entry.path))
                        continue
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue  # gone between listing and looking
                    if stat.S_ISREG(status.st_mode):
                        found.append(FileStat(prefix + entry.name, status.st_size, status.st_mtime_ns, status.st_ino))
        found.sort(key=_PATH)
        return found

    def stat(self, path: str) -> FileStat | None:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(path, status.st_size, status.st_mtime_ns, status.st_ino)

    def open_read(self, path: str) -> BinaryIO:
        return open(path, "rb")

    def open_arrow(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.OSFile(path, "rb")

    def open_write(self, path: str) -> BinaryIO:
        return open(path, "xb")

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(length)

    def create(self, path: str, data: bytes) -> None:
        with open(path, "xb") as file:
            file.write(data)

    def move(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        while os.path.isdir(path):  # what others take away meanwhile makes rmtree give up half way
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directories(self, path: str) -> list[str]:
        """Make a directory and its missing parents; returns those made, outermost first."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            os.makedirs(directory, exist_ok=True)
        return missing[::-1]

    def make_durable_directories(self, path: str) -> list[str]:
        """The same, with names that survive a power cut."""
        made = self.make_directories(path)
        for directory in made:
            self.sync_directory(os.path.dirname(directory))
        return made

    def remove_empty_directory(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(path)

    def sync_file(self, path: str) -> None:
        _fsync(path, os.O_RDONLY)

    def sync_directory(self, path: str) -> None:
        _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def _revisits(directory: str, seen: set[tuple[int, int]]) -> bool:
    """Whether a directory was walked already (symbolic links can make loops)."""
    try:
        status = os.stat(directory)
    except OSError:
        return False  # listing it says why
    identity = (status.st_dev, status.st_ino)
    if identity in seen:
        return True
    seen.add(identity)
    return False


def _fsync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Client:
    """A filesystem, or a file of one, whose failures are OSErrors, whatever its client raises."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or "r" in getattr(self._inner, "mode", "r"):
            self.close()
        else:
            self._forget()

    def _forget(self) -> None:
        """An object appears when its file is closed: one that is not whole must not, neither now nor when the file is
        collected as garbage."""
        with contextlib.suppress(Exception):
            self._inner.discard()
        self._inner.closed = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pickle asks before there is anything to ask
            raise AttributeError(name)
        method = getattr(self._inner, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return method(*arguments, **options)
            except OSError:
                raise
            except Exception as error:
                raise OSError(errno.EIO, f"{type(error).__name__}: {error}", *arguments[:1]) from error

        return call


class ObjectStore:
    """Any fsspec filesystem, used as an object store is: whole objects, conditional create, no rename."""

    is_local = False

    def __init__(self, filesystem: Any, *, single_writer: bool = False) -> None:
        self.filesystem = filesystem
        self._client = _Client(filesystem)
        self.single_writer = single_writer

    def walk(self, root: str, keep: Callable[[str], bool]) -> list[FileStat]:
        self._client.invalidate_cache()
        found = []
        for path, info in self._client.find(root, detail=True).items():
            relative = path[len(root) :].lstrip("/") if path.startswith(root) else path
            if all(keep(part) for part in relative.split("/")):
                found.append(_object_stat(relative, info))
        found.sort(key=_PATH)
        return found

    def stat(self, path: str) -> FileStat | None:
        self._client.invalidate_cache()
        try:
            return _object_stat(path, self._client.info(path))
        except FileNotFoundError:
            return None

    def open_read(self, path: str) -> BinaryIO:
        try:
            return cast(BinaryIO, _Client(self._client.open(path, "rb")))
        except FileNotFoundError:  # or a listing that the client remembers is older than the object
            self._client.invalidate_cache()
            return cast(BinaryIO, _Client(self._client.open(path, "rb")))

    def open_arrow(self, path: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.PythonFile(self.open_read(path), mode="r")

    def open_write(self, path: str) -> BinaryIO:
        return cast(BinaryIO, _Client(self._client.open(path, "wb")))

    def read_bytes(self, path: str) -> bytes:
        return bytes(self._client.cat_file(path))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return bytes(self._client.cat_file(path, start=offset, end=offset + length))

    def create(self, path: str, data: bytes) -> None:
        """Create an object only if there is none; FileExistsError otherwise.

        A client that lost the answer of its own success retries and is told "exists": callers read back.
        """
        try:
            self._client.pipe_file(path, data, mode="create")
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno == errno.EINVAL or "Precondition" in str(error) or "Conditional" in str(error):
                raise FileExistsError(errno.EEXIST, "exists", path) from error
            raise

    def move(self, source: str, target: str) -> None:
        self._client.cp_file(source, target)  # `copy` would read "[" or "*" in a name as a pattern

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._client.rm_file(path)

    def remove_tree(self, path: str) -> None:
        self._client.invalidate_cache()
        for name in self._client.find(path):
            self.remove(name)

    def is_directory(self, path: str) -> bool:
        self._client.invalidate_cache()
        return bool(self._client.isdir(path))

    def require_conditional_create(self, directory: str) -> None:
        """Refuse a store that would let two writers both believe that they won."""
        if self.single_writer:
            return
        if self._creates_in_one_request() and self._refuses_second(f"{directory}/.probe_{uuid.uuid4().hex}"):
            return
        raise InlayError(
            "This store ignores conditional writes (If-None-Match), so concurrent writers could lose data.",
            hint='If you are its only writer, pass storage_options={"single_writer": True}.',
        )

    def _creates_in_one_request(self) -> bool:
        """fsspec's own `pipe_file` looks first and writes then, which lets two writers win."""
        from fsspec import AbstractFileSystem

        return getattr(self.filesystem.pipe_file, "__func__", None) is not AbstractFileSystem.pipe_file

    def _refuses_second(self, probe: str) -> bool:
        try:
            self.create(probe, b"1")
            self.create(probe, b"2")
        except FileExistsError:
            return True
        finally:
            self.remove(probe)
        return False


def discard_tree(store: Store, path: str) -> None:
    """Remove what is needed no more, as far as possible: others clear away what is left."""
    with contextlib.suppress(OSError):
        store.remove_tree(path)


# What listings of S3, Azure, Google and others call it.
_MODIFIED = ("LastModified", "last_modified", "mtime", "updated", "created", "creation_time")


def _object_stat(path: str, info: Mapping[str, Any]) -> FileStat:
    modified = next((info[name] for name in _MODIFIED if info.get(name)), 0)
    nanoseconds = int(modified.timestamp() * 1e9) if hasattr(modified, "timestamp") else int(modified * 1e9)
    tag = info.get("ETag") or info.get("etag") or info.get("ino") or nanoseconds
    return FileStat(path, int(info["size"] or 0), nanoseconds, str(tag))


@dataclass(frozen=True, slots=True)
class Location:
    """A directory in a store, and how its owner wrote it."""

    store: Store
    path: str
    given: str

    def full(self, relative: str) -> str:
        return f"{self.path}/{relative}" if self.path else relative

    def shown(self, relative: str) -> str:
        return f"{self.given}/{relative}"

    def relative(self, shown: str) -> str:
        """The path inside this location of a path as people write it."""
        for root in (self.given, self.path):
            if shown.startswith(root + "/"):
                return shown[len(root) + 1 :]
        if isinstance(self.store, LocalStore) and os.path.realpath(shown).startswith(self.path + "/"):
            return os.path.realpath(shown)[len(self.path) + 1 :]
        raise InvalidArgumentError(f"{shown!r} does not lie in the dataset {self.given!r}.")


def locate(
    path: str | os.PathLike[str], filesystem: Any = None, storage_options: Mapping[str, Any] | None = None
) -> Location:
    """Find the store that a path, URL or path on a given filesystem belongs to."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgumentError(
            f"{type(path).__name__} is no path.", hint="Rows come first, the path of the dataset after them."
        )
    given = re.sub(r"(?<![:/])/+$", "", os.fspath(path)) or "/"
    if "\x00" in given:
        raise InvalidArgumentError(f"The path {given!r} contains a NUL character.")
    options = dict(storage_options or {})
    single_writer = bool(options.pop("single_writer", False))
    if filesystem is None:
        if "://" not in given or given.startswith(("file://", "local://")):
            return _local(given)
        filesystem, _ = _filesystem_of(given, options)
    filesystem, path_there = _unwrapped(filesystem, given)
    filesystem = _as_fsspec(filesystem)
    if _is_local(filesystem):
        return _local(given, path_there)
    return Location(
        ObjectStore(filesystem, single_writer=single_writer),
        str(filesystem._strip_protocol(path_there)).rstrip("/"),
        given,
    )


def _local(given: str, path: str | None = None) -> Location:
    bare = os.path.expanduser(re.sub(r"^(file|local)://", "", path or given))
    return Location(LocalStore(), os.path.realpath(bare), given)


def _unwrapped(filesystem: Any, path: str) -> tuple[Any, str]:
    """A filesystem that shows one directory of another (of fsspec, of pyarrow) is that other one and a longer path."""
    kind = type(filesystem).__name__
    if kind == "DirFileSystem":
        return _unwrapped(filesystem.fs, f"{filesystem.path}/{path.lstrip('/')}")
    if kind == "SubTreeFileSystem":
        return _unwrapped(filesystem.base_fs, f"{filesystem.base_path.rstrip('/')}/{path.lstrip('/')}")
    return filesystem, path


def _filesystem_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    import fsspec

    try:
        return cast("tuple[Any, str]", fsspec.url_to_fs(url, **options))
    except (ImportError, ValueError) as error:
        raise InvalidArgumentError(f"Cannot open {url!r}: {error}") from error


def _as_fsspec(filesystem: Any) -> Any:
    """Accept a pyarrow filesystem as well as an fsspec one."""
    if type(filesystem).__module__.startswith("pyarrow"):
        from fsspec.implementations.arrow import ArrowFSWrapper

        return ArrowFSWrapper(filesystem)
    return filesystem


def _is_local(filesystem: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    wrapped = getattr(filesystem, "fs", None)  # of pyarrow
    return isinstance(filesystem, LocalFileSystem) or type(wrapped).__name__ == "LocalFileSystem"


def filesystem_of(paths: Sequence[str], storage_options: Mapping[str, Any] | None = None) -> tuple[Any, list[str]]:
    """The filesystem, as pyarrow takes it, of paths that lie in one place, and the paths on it."""
    locations = [locate(path, storage_options=storage_options) for path in paths]
    store = locations[0].store
    return (store.filesystem if isinstance(store, ObjectStore) else None), [place.path for place in locations]


def expand_glob(pattern: str, storage_options: Mapping[str, Any] | None = None) -> Iterator[str]:
    """The paths that a pattern with `*`, `?` or `[...]` stands for, sorted, as their owner would write them."""
    scheme, found, _ = pattern.rpartition("://")
    options = dict(storage_options or {}) if found else {}
    options.pop("single_writer", None)
    filesystem, bare = _filesystem_of(pattern, options)
    for path in sorted(_Client(filesystem).glob(bare)):
        yield f"{scheme}://{path}" if found else path


class PathValidator:
    """Paths that may be named in SQL. Values are bound parameters besides; this is the second lock on the door."""

    _FORBIDDEN = re.compile(r"['\"`;]|--|/\*|\*/|(^|[/\\])\.\.([/\\]|$)")
    # format characters include the bidirectional overrides that make a path read as another one
    _SUSPICIOUS_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})

    @classmethod
    def validate_path_for_sql(cls, path: str) -> None:
        forbidden = cls._FORBIDDEN.search(path)
        if forbidden:
            raise InvalidArgumentError(
                f"The path {path!r} contains {forbidden.group()!r}, which is not allowed in SQL.",
                hint="Rename the path, or use the pyarrow engine.",
            )
        for character in path:
            if unicodedata.category(character) in cls._SUSPICIOUS_CATEGORIES:
                raise InvalidArgumentError(
                    f"The path {path!r} contains the invisible character U+{ord(character):04X}."
                )

    @classmethod
    def escape_for_sql(cls, path: str) -> str:
        cls.validate_path_for_sql(path)
        return path.replace("'", "''")
