"""Stores that hold datasets: the local disk, and every fsspec filesystem as an object store.

No other module imports fsspec. A `Location` is a directory in a store. Paths inside it are relative and separated
by "/".
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import stat
import sys
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast
from urllib.parse import quote, unquote

from inlay.errors import InvalidArgumentError
from inlay.storage.base import Content, FileStat, Listing, Store
from inlay.storage.objects import Client, ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa
    from fsspec import AbstractFileSystem
    from pyarrow.fs import FileSystem

__all__ = [
    "Content",
    "FileStat",
    "Filesystem",
    "Listing",
    "LocalStore",
    "Location",
    "ObjectStore",
    "PathValidator",
    "Store",
    "discard_tree",
    "locate",
    "object_store",
]

Filesystem: TypeAlias = "AbstractFileSystem | FileSystem"

_TAIL = 64 << 10  # bytes at the end of a file, enough for most footers
_FOOTER = 16 << 10  # bytes that cost no more to read than a few of them


_MANY_FILES, _DELETED_AT_ONCE = 16, 8


class LocalStore:
    """The local filesystem. Changes are durable only after `sync_file` and `sync_directory`."""

    is_local = True

    def walk(self, root: str, keep: Callable[[str], bool]) -> Listing:
        columns: tuple[list[str], list[int], list[int], list[int]] = [], [], [], []
        seen: set[tuple[int, int]] = set()
        pending = deque([("", root)])
        while pending:
            prefix, directory = pending.pop()
            if _is_revisit(directory, seen):
                continue
            inner = _list_directory(directory, prefix, keep, *columns)
            links = [name for name in inner if os.path.islink(f"{directory}/{name}")]
            # Links come last, so that files reachable without a link get the path without it.
            pending.extendleft((f"{prefix}{name}/", f"{directory}/{name}") for name in links)
            pending.extend((f"{prefix}{name}/", f"{directory}/{name}") for name in reversed(inner) if name not in links)
        return Listing(*columns).sorted()

    def stat(self, path: str) -> FileStat | None:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(path, status.st_size, status.st_mtime_ns, status.st_ino)

    def read_ahead(self, files: Sequence[FileStat]) -> None:
        """Let the kernel read the ends of files into memory, unless the first and the last file are there."""
        if all(map(_is_in_memory, (*files[:1], *files[-1:]))):
            return
        for file in files:
            with contextlib.suppress(OSError):
                descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(descriptor, max(file.size - _TAIL, 0), _TAIL, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(descriptor)

    def open_read(self, path: str) -> BinaryIO:
        return open(path, "rb")

    def open_arrow(self, path: str, size: int | None = None) -> pa.NativeFile:  # noqa: ARG002
        import pyarrow as pa

        return pa.OSFile(path, "rb")

    def open_footer(self, path: str) -> pa.NativeFile:
        """Open a Parquet file to read its footer: the end of the file in memory, if it holds the footer."""
        import pyarrow as pa

        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            tail = os.pread(descriptor, _FOOTER, max(size - _FOOTER, 0))
        finally:
            os.close(descriptor)
        is_whole = tail.endswith(b"PAR1") and int.from_bytes(tail[-8:-4], "little") <= len(tail) - 8
        return pa.BufferReader(tail) if is_whole else self.open_arrow(path)

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
        sys.audit("os.rename", source, target, -1, -1)
        _call_with_gil("rename", source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def unlink(self, path: str) -> None:
        """Remove a file like `remove`, but keep the GIL: only for files whose content has another link or is small."""
        sys.audit("os.remove", path, -1)
        with contextlib.suppress(FileNotFoundError):
            _call_with_gil("unlink", path)

    def remove_tree(self, path: str) -> None:
        while os.path.isdir(path):  # rmtree stops half way if another process deletes files at the same time.
            with contextlib.suppress(FileNotFoundError):
                if not os.path.islink(path):  # rmtree refuses a link.
                    files = (file for file in os.scandir(path) if not file.is_dir(follow_symlinks=False))
                    _unlink_side_by_side([file.path for file in files])
                shutil.rmtree(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directories(self, path: str) -> list[str]:
        """Create a directory and its missing parents, all or none. Returns those created, outermost first."""
        missing: list[str] = []
        while not os.path.isdir(path):
            missing.insert(0, path)
            path = os.path.dirname(path)
        try:
            for directory in missing:
                os.makedirs(directory, exist_ok=True)
        except OSError:
            for directory in reversed(missing):
                self.remove_empty_directory(directory)
            raise
        return missing

    def make_durable_directories(self, path: str) -> list[str]:
        """Create a directory and its missing parents so that they survive a power cut."""
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


def _is_in_memory(file: FileStat) -> bool:
    """Return whether the kernel can read the end of a file without the disk."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.preadv(descriptor, [bytearray(1)], max(file.size - 1, 0), os.RWF_NOWAIT) == 1
        finally:
            os.close(descriptor)
    except OSError:  # EAGAIN, if the kernel would have to wait
        return False


def _list_directory(
    directory: str,
    prefix: str,
    keep: Callable[[str], bool],
    paths: list[str],
    sizes: list[int],
    mtimes_ns: list[int],
    inodes: list[int],
) -> list[str]:
    """Append the files of a directory, sorted by name. Returns the names of its directories."""
    directories = []
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        for name in sorted(filter(keep, os.listdir(descriptor))):
            try:
                status = os.stat(name, dir_fd=descriptor)  # The kernel finds a name faster than a path.
            except FileNotFoundError:
                continue  # The file was deleted after the listing.
            if stat.S_ISREG(status.st_mode):
                paths.append(prefix + name)
                sizes.append(status.st_size)
                mtimes_ns.append(status.st_mtime_ns)
                inodes.append(status.st_ino)
            elif stat.S_ISDIR(status.st_mode):
                directories.append(name)
    finally:
        os.close(descriptor)
    return directories


def _is_revisit(directory: str, seen: set[tuple[int, int]]) -> bool:
    """Return whether a directory was walked before, because symbolic links can form loops."""
    try:
        status = os.stat(directory)
    except OSError:
        return False  # Listing the directory raises the error.
    identity = (status.st_dev, status.st_ino)
    if identity in seen:
        return True
    seen.add(identity)
    return False


@functools.cache
def _c_function(name: str) -> Callable[..., int]:
    """Return a function of the C library that keeps the GIL while it runs."""
    import ctypes

    return cast("Callable[..., int]", getattr(ctypes.PyDLL(None, use_errno=True), name))


def _call_with_gil(name: str, *paths: str) -> None:
    """Call a function of the C library that takes paths, without releasing the GIL.

    The functions of `os` release it, and then a thread that computes can keep it for 5 ms after each call: 200 ms for
    the 40 files of a commit, in which other readers see some files old and others new.
    """
    if any("\0" in path for path in paths):
        raise ValueError("A path contains a NUL character, where a path of the C library ends.")
    if _c_function(name)(*map(os.fsencode, paths)):
        import ctypes

        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), paths[0], None, *paths[1:])


def _fsync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink_side_by_side(paths: Sequence[str]) -> None:
    """Delete many files in threads, because the kernel needs long to free the memory that caches a large file."""
    if len(paths) >= _MANY_FILES:
        with ThreadPoolExecutor(_DELETED_AT_ONCE, "inlay-delete") as pool:
            list(pool.map(os.unlink, paths))


def discard_tree(store: Store, path: str) -> None:
    """Delete a directory. Ignore errors: a later cleanup deletes the rest."""
    with contextlib.suppress(OSError):
        store.remove_tree(path)


# Patterns such as `/data/**/*.parquet` also match inside hidden directories, so links must have another suffix.
_LINK_SUFFIX = ".link"


@dataclass(frozen=True, slots=True)
class Location:
    """A directory in a store, and the URI or path that the user wrote for it."""

    store: Store
    path: str
    uri: str
    links: str | None = None  # a directory with hard links to the files of a snapshot
    objects: Mapping[str, str] | None = field(default=None, compare=False)  # the links of a version by path

    @property
    def root(self) -> str:
        """The directory from which files are opened."""
        return self.links or self.path

    def full(self, relative: str) -> str:
        if self.links is not None:
            name = f"{relative}{_LINK_SUFFIX}" if self.objects is None else self.objects[relative]
            return f"{self.links}/{name}"
        return f"{self.path}/{relative}" if self.path else relative

    def display(self, relative: str) -> str:
        return self.display_all([relative])[0]

    def display_all(self, relative: Iterable[str]) -> list[str]:
        uri, paths = self.uri, map(quote, relative) if _FILE_URI.match(self.uri) else relative
        return [f"{uri}/{path}" for path in paths]

    def relative(self, path: str) -> str:
        """Return a path or URI as a path relative to this location."""
        path = _decode_file_uri(path)
        for root in (self.uri, self.path):
            if path.startswith(root + "/"):
                return path[len(root) + 1 :]
        if isinstance(self.store, LocalStore) and os.path.realpath(path).startswith(self.path + "/"):
            return os.path.realpath(path)[len(self.path) + 1 :]
        raise InvalidArgumentError(f"{path!r} is not inside the dataset {self.uri!r}.")


def locate(
    path: str | os.PathLike[str],
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Location:
    """Return the location of a path or URL, in the store that the URL or `filesystem` selects."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgumentError(
            f"The path must be a string or a path object, not {type(path).__name__}.",
            hint="Pass the rows as the first argument and the path of the dataset as the second.",
        )
    uri = re.sub(r"(?<![:/])/+$", "", os.fspath(path)) or "/"
    if "\x00" in uri:
        raise InvalidArgumentError(f"The path {uri!r} contains a NUL character.")
    options = dict(storage_options or {})
    single_writer = bool(options.pop("single_writer", False))
    if filesystem is None:
        if "://" not in uri or _FILE_URI.match(uri) or uri.startswith(("file://", "local://")):
            return _local(uri, uri)
        filesystem, _ = _open_filesystem(uri, options)
    base, path_in_base = _unwrap(filesystem, uri)
    base = _as_fsspec(base)
    if _is_local(base):
        return _local(uri, path_in_base)
    path = str(base._strip_protocol(path_in_base)).rstrip("/")
    return Location(object_store(base, single_writer=single_writer), path, uri)


def object_store(filesystem: Any, *, single_writer: bool = False) -> ObjectStore:
    """Return an fsspec filesystem as an object store."""
    if not hasattr(filesystem, "call_s3"):
        return ObjectStore(filesystem, single_writer=single_writer)
    from inlay.storage.s3 import S3Store  # needs s3fs

    return S3Store(filesystem, single_writer=single_writer)


_S3_URLS = ("s3://", "s3a://")
# file:/path, file:///path and file://localhost/path
_FILE_URI = re.compile(r"file:(?://(?:localhost)?)?(?=/)", re.IGNORECASE)


def _decode_file_uri(path: str) -> str:
    """Return the path of a `file:` URI without percent-encoding, and any other path unchanged."""
    found = _FILE_URI.match(path)
    return unquote(path[found.end() :]) if found else path


def _local(uri: str, path: str) -> Location:
    bare = os.path.expanduser(re.sub(r"^(file|local)://", "", _decode_file_uri(path)))
    return Location(LocalStore(), os.path.realpath(bare), uri)


def _unwrap(filesystem: Any, path: str) -> tuple[Any, str]:
    """Resolve a filesystem that exposes one directory of another: return the other filesystem and the full path."""
    kind = type(filesystem).__name__
    if kind == "DirFileSystem":
        return _unwrap(filesystem.fs, f"{filesystem.path}/{path.lstrip('/')}")
    if kind == "SubTreeFileSystem":
        return _unwrap(filesystem.base_fs, f"{filesystem.base_path.rstrip('/')}/{path.lstrip('/')}")
    return filesystem, path


def _open_filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    import fsspec

    options = dict(options)
    seconds = options.pop("timeout_seconds", None)
    try:
        if seconds is not None and url.startswith(_S3_URLS):
            from inlay.storage.s3_requests import DeadlineS3FileSystem

            filesystem = DeadlineS3FileSystem(timeout_seconds=seconds, **options)
            return filesystem, filesystem._strip_protocol(url)
        return cast("tuple[Any, str]", fsspec.url_to_fs(url, **options))
    except (ImportError, ValueError) as error:
        raise InvalidArgumentError(f"Cannot open {url!r}: {error}") from error


def _as_fsspec(filesystem: Any) -> Any:
    if type(filesystem).__module__.startswith("pyarrow"):
        from fsspec.implementations.arrow import ArrowFSWrapper

        return ArrowFSWrapper(filesystem)
    return filesystem


def _is_local(filesystem: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    wrapped = getattr(filesystem, "fs", None)  # ArrowFSWrapper keeps the pyarrow filesystem in `fs`.
    return isinstance(filesystem, LocalFileSystem) or type(wrapped).__name__ == "LocalFileSystem"


def resolve_filesystem(paths: Sequence[str], storage_options: Mapping[str, Any] | None = None) -> tuple[Any, list[str]]:
    """Return the filesystem of paths in one store for pyarrow (None if local), and their paths on it."""
    locations = [locate(path, storage_options=storage_options) for path in paths]
    store = locations[0].store
    return (store.filesystem if isinstance(store, ObjectStore) else None), [location.path for location in locations]


def expand_glob(pattern: str, storage_options: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield the sorted paths or URLs that match a pattern with `*`, `?` or `[...]`."""
    if uri := _FILE_URI.match(pattern):
        yield from (f"{uri[0]}{quote(path)}" for path in expand_glob(_decode_file_uri(pattern)))
        return
    scheme, found, _ = pattern.rpartition("://")
    options = dict(storage_options or {}) if found else {}
    options.pop("single_writer", None)
    filesystem, bare = _open_filesystem(pattern, options)
    for path in sorted(Client(filesystem).glob(bare)):
        yield f"{scheme}://{path}" if found else path


# Format characters include bidirectional overrides, which make a path look like another one.
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def is_visible(character: str) -> bool:
    return unicodedata.category(character) not in _INVISIBLE_CATEGORIES


class PathValidator:
    """Checks of paths before they are used in SQL statements.

    inlay passes values as bound parameters. These checks are a second line of defense for paths, which some
    statements cannot bind.

    Example:
        >>> import inlay
        >>> inlay.PathValidator.escape_for_sql("sales/day=1/a.parquet")
        'sales/day=1/a.parquet'
    """

    _FORBIDDEN = re.compile(r"['\"`;]|--|/\*|\*/|(^|[/\\])\.\.([/\\]|$)")

    @classmethod
    def validate_path_for_sql(cls, path: str | os.PathLike[str]) -> None:
        """Reject a path that is not safe inside an SQL statement.

        Args:
            path: The path or URL to check.

        Raises:
            InvalidArgumentError: The path contains quotes, semicolons, comment marks, "..", or invisible characters.

        Example:
            >>> import inlay
            >>> inlay.PathValidator.validate_path_for_sql("../a.parquet")
            Traceback (most recent call last):
                ...
            inlay.errors.InvalidArgumentError: The path '../a.parquet' contains '../', which is not allowed in SQL.
            Hint: Rename the path, or pass engine="pyarrow".
        """
        path = os.fspath(path)
        forbidden = cls._FORBIDDEN.search(path)
        if forbidden:
            raise InvalidArgumentError(
                f"The path {path!r} contains {forbidden.group()!r}, which is not allowed in SQL.",
                hint='Rename the path, or pass engine="pyarrow".',
            )
        for character in path:
            if not is_visible(character):
                raise InvalidArgumentError(
                    f"The path {path!r} contains the invisible character U+{ord(character):04X}.",
                    hint="Rename the path.",
                )

    @classmethod
    def escape_for_sql(cls, path: str | os.PathLike[str]) -> str:
        """Validate a path and escape it for use inside a single-quoted SQL string.

        Args:
            path: The path or URL to escape.

        Returns:
            The escaped path.

        Raises:
            InvalidArgumentError: `validate_path_for_sql` rejects the path.

        Example:
            >>> import inlay
            >>> f"SELECT * FROM '{inlay.PathValidator.escape_for_sql('sales/a.parquet')}'"
            "SELECT * FROM 'sales/a.parquet'"
        """
        cls.validate_path_for_sql(path)
        return os.fspath(path).replace("'", "''")
