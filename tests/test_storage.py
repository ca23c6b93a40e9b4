"""Where bytes live: which store a path belongs to, what is listed there, and what its failures look like."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.errors import InlayError, InvalidArgumentError
from inlay.parquet.layout import data_files
from inlay.storage import (
    FileStat,
    Listing,
    LocalStore,
    Location,
    ObjectStore,
    PathValidator,
    expand_glob,
    locate,
    resolve_filesystem,
)
from tests import lake


def private_memory() -> MemoryFileSystem:
    """Create an in-memory store that no other test uses."""

    class Private(MemoryFileSystem):
        store: dict[str, Any] = {}  # noqa: RUF012
        pseudo_dirs: list[str] = [""]  # noqa: RUF012
        cachable = False

    return Private()


def listed(location: Location) -> list[str]:
    return [file.path for file in data_files(location)]


# --------------------------------------------------------------------------------------------------------- locating
def test_local_paths_become_absolute_and_keep_their_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for address, path in {
        "d": tmp_path / "d",
        "./d/": tmp_path / "d",
        "d/../e": tmp_path / "e",
        str(tmp_path / "d"): tmp_path / "d",
        "~/d": tmp_path / "home" / "d",
        f"file://{tmp_path}/d": tmp_path / "d",
        f"local://{tmp_path}/d//": tmp_path / "d",
        "/": Path("/"),
        "file:///": Path("/"),
    }.items():
        location = locate(address)
        assert isinstance(location.store, LocalStore)
        assert location.path == str(path.resolve())
        assert location.uri.rstrip("/") == address.rstrip("/")
    assert locate(tmp_path / "d").path == str(tmp_path / "d")


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("memory://", ""),
        ("memory://d", "/d"),
        ("memory:///a/b/", "/a/b"),
        ("s3://bucket", "bucket"),
        ("s3://bucket/", "bucket"),
        ("s3://bucket/a=1/ä b/", "bucket/a=1/ä b"),
        ("s3a://bucket/d", "bucket/d"),
    ],
)
def test_urls_select_object_stores(address: str, path: str) -> None:
    location = locate(address)
    assert isinstance(location.store, ObjectStore)
    assert not location.store.is_local
    assert location.path == path


def test_storage_options_reach_the_client_except_those_of_inlay() -> None:
    options = {"key": "k", "secret": "s", "single_writer": True}
    location = locate("s3://bucket/d", storage_options=options)
    assert isinstance(location.store, ObjectStore)
    assert location.store.single_writer
    assert location.store.filesystem.key == "k"
    assert options == {"key": "k", "secret": "s", "single_writer": True}


@pytest.mark.parametrize("url", ["nope://bucket/d", "gs://bucket/d"])
def test_unknown_protocol_is_an_invalid_argument(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=url):
        locate(url)


def test_path_with_a_nul_character_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="NUL"):
        locate("a\0b")


#: Filesystems that wrap the local disk: functions from a directory to (filesystem, path on it).
LOCAL_FILESYSTEMS: dict[str, Callable[[Path], tuple[Any, str]]] = {
    "fsspec": lambda folder: (LocalFileSystem(), str(folder)),
    "fsspec with a URL": lambda folder: (LocalFileSystem(), f"file://{folder}"),
    "pyarrow": lambda folder: (pafs.LocalFileSystem(), str(folder)),
    "part of fsspec": lambda folder: (DirFileSystem(str(folder.parent), LocalFileSystem()), folder.name),
    "part of pyarrow": lambda folder: (pafs.SubTreeFileSystem(str(folder.parent), pafs.LocalFileSystem()), folder.name),
    "part of a part": lambda folder: (
        DirFileSystem(folder.parent.name, DirFileSystem(str(folder.parent.parent), LocalFileSystem())),
        f"/{folder.name}",
    ),
}


@pytest.mark.parametrize("kind", LOCAL_FILESYSTEMS)
def test_local_filesystems_select_the_local_store(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "d"
    filesystem, path = LOCAL_FILESYSTEMS[kind](folder)
    location = locate(path, filesystem)
    assert isinstance(location.store, LocalStore)
    assert location.path == str(folder)
    inlay.merge(lake.table([1]), path, "insert", ["id"], filesystem=filesystem)
    assert lake.id_values(lake.all_rows(folder)) == [(1, "v1")]
    assert sorted(os.listdir(tmp_path)) == [".d.txn", "d"]


@pytest.mark.parametrize("kind", ["fsspec", "part of fsspec", "pyarrow around fsspec"])
def test_other_filesystems_select_an_object_store(kind: str) -> None:
    memory = private_memory()
    filesystem, path = {
        "fsspec": (memory, "/top/d"),
        "part of fsspec": (DirFileSystem("/top", memory), "d"),
        "pyarrow around fsspec": (pafs.PyFileSystem(pafs.FSSpecHandler(memory)), "/top/d"),
    }[kind]
    memory.pipe_file("/top/d/a.parquet", b"x")
    location = locate(path, filesystem)
    assert isinstance(location.store, ObjectStore)
    assert listed(location) == ["a.parquet"]
    assert location.store.read_bytes(location.full("a.parquet")) == b"x"
    with location.store.open_arrow(location.full("a.parquet")) as file:
        assert file.read() == b"x"
    assert location.display("a.parquet") == f"{path}/a.parquet"


def test_relative_path_does_not_depend_on_the_spelling(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    location = locate(tmp_path / "link")
    for shown in (
        tmp_path / "link/p=1/f.parquet",
        tmp_path / "real/p=1/f.parquet",
        tmp_path / "x/../real/p=1/f.parquet",
    ):
        assert location.relative(str(shown)) == "p=1/f.parquet"
    assert locate("memory://d").relative("memory://d/p=1/f.parquet") == "p=1/f.parquet"
    for elsewhere in (tmp_path / "other/f.parquet", tmp_path / "real2/f.parquet"):
        with pytest.raises(InvalidArgumentError, match="is not inside the dataset"):
            location.relative(str(elsewhere))


def test_glob_results_are_sorted_and_keep_the_spelling_of_the_pattern(tmp_path: Path, memory: MemoryFileSystem) -> None:
    for name in ("b.csv", "a.csv", "c.txt"):
        (tmp_path / name).touch()
    names = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    assert list(expand_glob(f"{tmp_path}/*.csv")) == names
    assert list(expand_glob(f"file://{tmp_path}/[ab].csv", {"single_writer": True})) == [f"file://{n}" for n in names]
    memory.pipe_file("/storage-test/x1.csv", b"")
    assert [locate(path).path for path in expand_glob("memory://storage-test/x?.csv")] == ["/storage-test/x1.csv"]


def test_resolve_filesystem_for_pyarrow(tmp_path: Path) -> None:
    assert resolve_filesystem([f"file://{tmp_path}/a", str(tmp_path / "b")]) == (
        None,
        [str(tmp_path / "a"), str(tmp_path / "b")],
    )
    filesystem, paths = resolve_filesystem(["memory://d/a"])
    assert isinstance(filesystem, MemoryFileSystem)
    assert paths == ["/d/a"]


# --------------------------------------------------------------------------------------------------------- walking
LAYOUT = {
    "a.parquet": True,
    "B.PARQUET": True,
    "c.parq": True,
    "d.pq": True,
    "deep/er/e.parquet": True,
    "_day=1/f.parquet": True,
    "day=1/_hour=2/g.parquet": True,
    "p=a b/h.parquet": True,
    "notes.txt": False,
    "i.parquet.tmp": False,
    "j.parquet.crc": False,
    ".hidden.parquet": False,
    "_temporary.parquet": False,
    "_SUCCESS": False,
    "_temporary/k.parquet": False,
    ".staging/l.parquet": False,
    "deep/.inlay.txn/m.parquet": False,
    "deep/_temporary/0/n.parquet": False,
}
DATA = sorted(name for name, wanted in LAYOUT.items() if wanted)


def test_walk_lists_the_data_files_of_a_local_directory(tmp_path: Path) -> None:
    for name in LAYOUT:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"xy")
    (tmp_path / "directory.parquet").mkdir()
    os.mkfifo(tmp_path / "pipe.parquet")
    (tmp_path / "broken.parquet").symlink_to("nowhere")
    files = data_files(locate(tmp_path))
    assert [file.path for file in files] == DATA
    for file in files:
        status = os.stat(tmp_path / file.path)
        assert file == FileStat(file.path, 2, status.st_mtime_ns, status.st_ino)


def test_walk_lists_the_data_files_of_an_object_store() -> None:
    memory = private_memory()
    for name in LAYOUT:
        memory.pipe_file(f"/top/d/{name}", b"xy")
    memory.pipe_file("/top/d2/other.parquet", b"xy")
    location = locate("/top/d", memory)
    assert listed(location) == DATA
    assert {file.size for file in data_files(location)} == {2}
    assert listed(locate("/top/d/day=1", memory)) == ["_hour=2/g.parquet"]


def test_walk_accepts_the_root_of_a_store() -> None:
    memory = private_memory()
    memory.pipe_file("/a.parquet", b"")
    assert listed(locate("memory://", memory)) == ["a.parquet"]


def test_walk_of_a_missing_directory_is_empty(tmp_path: Path) -> None:
    assert listed(locate(tmp_path / "missing")) == []
    assert listed(locate("/missing", private_memory())) == []
    assert LocalStore().stat(str(tmp_path / "missing")) is None
    (tmp_path / "file").touch()
    assert LocalStore().stat(str(tmp_path / "file" / "below")) is None


def test_walk_follows_links_to_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "elsewhere/sub").mkdir(parents=True)
    (tmp_path / "elsewhere/sub/x.parquet").touch()
    (tmp_path / "d").mkdir()
    (tmp_path / "d/p=1").symlink_to("../elsewhere")
    (tmp_path / "d/y.parquet").symlink_to("../elsewhere/sub/x.parquet")
    assert listed(locate(tmp_path / "d")) == ["p=1/sub/x.parquet", "y.parquet"]


@pytest.mark.parametrize("target", [".", "..", "../..", "../p=1", "/"])
def test_walk_lists_a_linked_directory_once(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "d"
    for name in ("a=0/p=1/x.parquet", "a=0/p=1/y/z.parquet", "top.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    expected = listed(locate(folder))
    (folder / "a=0/p=1/loop").symlink_to(folder if target == "/" else target)
    (folder / "a=0/0first").symlink_to("p=1")
    assert expected == ["a=0/p=1/x.parquet", "a=0/p=1/y/z.parquet", "top.parquet"]
    assert listed(locate(folder)) == expected


def test_walk_ends_at_circular_links(tmp_path: Path) -> None:
    for name in ("d", "one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.parquet").touch()
    (tmp_path / "d/one").symlink_to("../one")
    (tmp_path / "one/two").symlink_to("../two")
    (tmp_path / "two/one").symlink_to("../one")
    assert listed(locate(tmp_path / "d")) == ["d.parquet", "one/one.parquet", "one/two/two.parquet"]


def test_walk_raises_if_a_directory_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    opened = os.open

    def refusing(path: str, flags: int) -> int:
        if path.endswith("sub"):
            raise PermissionError(errno.EACCES, "no", path)
        return opened(path, flags)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(PermissionError):
        listed(locate(tmp_path))


# ------------------------------------------------------------------------------------------- moves that keep the GIL
@pytest.fixture
def counter() -> Iterator[list[int]]:
    """A number that another thread increases whenever it gets the GIL. Only a thread that releases it passes it on."""
    count, stop, usual = [0], threading.Event(), sys.getswitchinterval()

    def increase() -> None:
        while not stop.is_set():
            count[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=increase)
    thread.start()
    while not count[0]:
        time.sleep(0)
    sys.setswitchinterval(100)
    yield count
    sys.setswitchinterval(usual)
    stop.set()
    thread.join()


def test_no_other_thread_runs_between_the_steps_of_a_commit(tmp_path: Path, counter: list[int]) -> None:
    store, names = LocalStore(), [str(tmp_path / f"{number}") for number in range(300)]
    for name in names:
        Path(name).touch()
    before = counter[0]
    for name in names:
        store.move(name, f"{name}.parquet")
    for name in names:
        store.unlink(f"{name}.parquet")
    assert counter[0] == before
    assert os.listdir(tmp_path) == []


def test_move_and_unlink_raise_the_errors_of_the_os_module(tmp_path: Path) -> None:
    store, missing, directory = LocalStore(), str(tmp_path / "missing"), str(tmp_path)
    with pytest.raises(FileNotFoundError) as ours:
        store.move(missing, f"{directory}/new")
    with pytest.raises(FileNotFoundError) as theirs:
        os.replace(missing, f"{directory}/new")
    assert str(ours.value) == str(theirs.value)
    assert (ours.value.filename, ours.value.filename2) == (missing, f"{directory}/new")
    with pytest.raises(OSError, match="directory") as ours_of_unlink:
        store.unlink(directory)
    assert ours_of_unlink.value.filename == directory
    store.unlink(missing)


def test_move_and_unlink_accept_names_that_are_not_utf_8(tmp_path: Path) -> None:
    name = str(tmp_path / "caf\udce9 \u00e9.parquet")
    (tmp_path / "a").write_bytes(b"1")
    LocalStore().move(str(tmp_path / "a"), name)
    assert os.listdir(os.fsencode(tmp_path)) == [b"caf\xe9 \xc3\xa9.parquet"]
    LocalStore().unlink(name)
    assert os.listdir(tmp_path) == []


def test_move_and_unlink_reject_a_path_with_a_nul_character(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(ValueError, match="NUL"):
        LocalStore().unlink(f"{tmp_path}/a\0.parquet")
    with pytest.raises(ValueError, match="NUL"):
        LocalStore().move(f"{tmp_path}/a", f"{tmp_path}/b\0.parquet")
    assert os.listdir(tmp_path) == ["a"]


AUDIT = """
import sys
from inlay.storage import LocalStore
sys.addaudithook(lambda event, arguments: event in ("os.rename", "os.remove") and print(event, *arguments))
LocalStore().move("a", "b")
LocalStore().unlink("b")
"""


def test_move_and_unlink_raise_audit_events(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    done = subprocess.run([sys.executable, "-c", AUDIT], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "os.rename a b -1 -1\nos.remove b -1\n"


# --------------------------------------------------------------------------------------------------- the two stores
def stores(tmp_path: Path) -> list[tuple[Any, str]]:
    (tmp_path / "d").mkdir()
    return [(LocalStore(), str(tmp_path / "d")), (ObjectStore(private_memory()), "/d")]


def test_both_stores_write_read_move_and_remove(tmp_path: Path) -> None:
    for store, root in stores(tmp_path):
        with store.open_write(f"{root}/a") as file:
            file.write(b"12345")
        with store.open_read(f"{root}/a") as file:
            file.seek(2)
            assert file.read(2) == b"34"
        with store.open_arrow(f"{root}/a") as file:
            assert isinstance(file, pa.NativeFile)
            assert (file.size(), file.read_at(3, 1)) == (5, b"234")
        assert store.read_bytes(f"{root}/a") == b"12345"
        assert store.stat(f"{root}/a").size == 5
        store.move(f"{root}/a", f"{root}/b[1]*")
        assert store.read_bytes(f"{root}/b[1]*") == b"12345"
        assert store.is_directory(root)
        assert not store.is_directory(f"{root}/b[1]*")
        for _ in range(2):
            store.remove(f"{root}/b[1]*")
        assert store.stat(f"{root}/b[1]*") is None
        store.create(f"{root}/t/x" if not store.is_local else f"{root}/x", b"")
        for _ in range(2):
            store.remove_tree(root)
        assert store.walk(root, lambda _: True) == []


def test_a_link_to_a_directory_of_many_files_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for number in range(40):
        (tmp_path / "kept" / str(number)).touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with pytest.raises(OSError, match="symbolic link"):
        LocalStore().remove_tree(str(tmp_path / "link"))
    assert len(list((tmp_path / "kept").iterdir())) == 40


def test_a_directory_of_many_files_is_removed_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    directory = tmp_path / "d"
    (directory / "inner").mkdir(parents=True)
    for number in range(40):
        (directory / str(number)).touch()
        (directory / "inner" / str(number)).touch()
    (directory / "link").symlink_to(tmp_path / "kept")
    LocalStore().remove_tree(str(directory))
    assert not directory.exists()
    assert (tmp_path / "kept" / "file").exists()


def test_both_stores_refuse_to_create_an_existing_file(tmp_path: Path) -> None:
    for store, root in stores(tmp_path):
        store.create(f"{root}/one", b"first")
        with pytest.raises(FileExistsError):
            store.create(f"{root}/one", b"second")
        assert store.read_bytes(f"{root}/one") == b"first"


def test_changed_object_has_another_identity() -> None:
    store = ObjectStore(private_memory())
    store.create("/d/a", b"1")
    before = store.stat("/d/a")
    store.remove("/d/a")
    store.create("/d/a", b"2")
    assert store.stat("/d/a") != before


def test_make_directories_returns_the_created_parents(tmp_path: Path) -> None:
    made = LocalStore().make_directories(str(tmp_path / "a/b/c"))
    assert made == [str(tmp_path / name) for name in ("a", "a/b", "a/b/c")]
    assert LocalStore().make_directories(str(tmp_path / "a/b/c")) == []
    LocalStore().sync_directory(str(tmp_path / "a"))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        LocalStore().sync_directory(str(tmp_path / "file"))


# ---------------------------------------------------------------------------------------------- conditional creation
class Obedient(MemoryFileSystem):
    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs: list[str] = [""]  # noqa: RUF012


class Heedless(Obedient):
    """A store that ignores If-None-Match and overwrites."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value, mode="overwrite", **options)


class LooksFirst(Obedient):
    """The default of fsspec: it checks and then writes, so two writers can both succeed."""

    pipe_file = fsspec.AbstractFileSystem.pipe_file


@pytest.mark.parametrize("kind", [Heedless, LooksFirst])
def test_stores_without_conditional_create_are_rejected(kind: type[MemoryFileSystem]) -> None:
    with pytest.raises(InlayError, match="conditional writes") as caught:
        ObjectStore(kind()).require_conditional_create("/d")
    assert "single_writer" in str(caught.value.hint)
    ObjectStore(kind(), single_writer=True).require_conditional_create("/d")
    with pytest.raises(InlayError, match="conditional writes"):
        inlay.merge(lake.table([1]), "/d", "insert", ["id"], filesystem=kind())
    options = {"single_writer": True}
    result = inlay.merge(
        lake.table([1]), f"/d/{kind.__name__}", "upsert", ["id"], filesystem=kind(), storage_options=options
    )
    assert result.inserted == 1


def test_probe_leaves_no_objects() -> None:
    filesystem = private_memory()
    ObjectStore(filesystem).require_conditional_create("/d")
    assert filesystem.find("/") == []


def test_one_of_many_concurrent_creates_succeeds() -> None:
    store = ObjectStore(private_memory())
    won: list[int] = []
    ready = threading.Barrier(8)

    def create(number: int) -> None:
        ready.wait()
        try:
            store.create("/d/entry", str(number).encode())
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read_bytes("/d/entry") == str(won[0]).encode()
    assert len(won) == 1


@pytest.mark.parametrize(
    "error",
    [
        FileExistsError(errno.EEXIST, "exists"),
        OSError(errno.EINVAL, "An error occurred (PreconditionFailed)"),
        OSError(errno.EIO, "PreconditionFailed: At least one of the pre-conditions did not hold"),
        OSError(errno.EIO, "ConditionalRequestConflict"),
        RuntimeError("PreconditionFailed"),
    ],
    ids=str,
)
def test_every_error_that_means_exists_is_recognized(error: Exception) -> None:
    class Failing(Obedient):
        def pipe_file(self, *_: Any, **__: Any) -> None:
            raise error

    with pytest.raises(FileExistsError):
        ObjectStore(Failing()).create("/d/a", b"")


# -------------------------------------------------------------------------------------------------- client failures
class ClientError(Exception):
    """An error of a client library that is not an OSError."""


class Breaking(Obedient):
    """A client that fails in one of its methods, or in a method of the files that it opens."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self.broken = broken

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == super().__getattribute__("__dict__").get("broken"):
            return self._fail
        return value

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise ClientError("connection reset")

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super().open(path, mode, **options)
        broken = self.broken.removeprefix(f"{mode}.")
        return BreakingFile(file, broken) if broken != self.broken else file


class BreakingFile:
    def __init__(self, file: Any, broken: str) -> None:
        self._file, self._broken = file, broken

    def __getattr__(self, name: str) -> Any:
        if name == self._broken:
            raise_it: Callable[..., Any] = Breaking._fail
            return lambda *_: raise_it(self)
        return getattr(self._file, name)


CALLS: dict[str, Callable[[ObjectStore], Any]] = {
    "find": lambda store: store.walk("/d", lambda _: True),
    "info": lambda store: store.stat("/d/a"),
    "open": lambda store: store.open_read("/d/a"),
    "rb.read": lambda store: store.open_read("/d/a").read(1),
    "rb.seek": lambda store: store.open_arrow("/d/a").size(),
    "wb.write": lambda store: store.open_write("/d/b").write(b"x"),
    "wb.close": lambda store: store.open_write("/d/b").close(),
    "cat_file": lambda store: store.read_bytes("/d/a"),
    "pipe_file": lambda store: store.create("/d/b", b""),
    "cp_file": lambda store: store.move("/d/a", "/d/b"),
    "rm_file": lambda store: store.remove("/d/a"),
    "isdir": lambda store: store.is_directory("/d"),
}


@pytest.mark.parametrize("broken", CALLS)
def test_every_client_error_becomes_an_os_error(broken: str) -> None:
    Obedient().pipe_file("/d/a", bytes(1 << 20))
    with pytest.raises(OSError, match="ClientError: connection reset") as caught:
        CALLS[broken](ObjectStore(Breaking(broken)))
    assert caught.value.errno == errno.EIO
    assert isinstance(caught.value.__cause__, ClientError)


@pytest.mark.parametrize("broken", ["find", "rb.read", "wb.write", "wb.close", "pipe_file"])
def test_client_failure_during_a_merge_is_a_merge_error(broken: str) -> None:
    path = f"/merge-{broken}"
    inlay.merge(lake.table([1, 2]), path, "insert", ["id"], filesystem=Obedient())
    before = {name: Obedient().cat_file(name) for name in Obedient().find(path)}
    with pytest.raises(inlay.DatasetMergeError, match="connection reset") as caught:
        inlay.merge(lake.table([2, 3], ["x", "y"]), path, "upsert", ["id"], filesystem=Breaking(broken))
    assert isinstance(caught.value, OSError)
    assert (caught.value.strategy, caught.value.key_columns) == ("upsert", ["id"])
    assert {name: Obedient().cat_file(name) for name in Obedient().find(path)} == before


def test_os_errors_of_a_client_are_unchanged() -> None:
    store = ObjectStore(private_memory())
    with pytest.raises(FileNotFoundError):
        store.open_read("/missing")
    with pytest.raises(FileNotFoundError):
        store.open_arrow("/missing")
    with pytest.raises(FileNotFoundError):
        store.read_bytes("/missing")


def test_interrupts_are_not_client_failures() -> None:
    class Interrupted(Obedient):
        def find(self, *_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ObjectStore(Interrupted()).walk("/d", lambda _: True)


# --------------------------------------------------------------------------------------------------- paths in SQL
ALLOWED = [
    "/data/table/*.parquet",
    "s3://bucket/a=1/b=x%20y/part-0.parquet",
    "C:\\data\\table",
    "/data/with space/ümläut/日本.parquet",
    "/data/a..b/file.parquet",
    "/data/...",
    "/data/-/a-b.parquet",
    "relative/path",
    "/data/[x]{y}(z)!@#$%^&+=,.parquet",
]
REFUSED = [
    "/data/it's.parquet",
    '/data/a"b.parquet',
    "/data/a`b",
    "/data; DROP TABLE x",
    "/data/--comment",
    "/data/a -- b",
    "/data/*/../../etc",
    "/data/*/x",
    "/data/x*/",
    "..",
    "../etc/passwd",
    "/data/..",
    "a\\..\\b",
    "/data/\0",
    "/data/a\nb",
    "/data/a\tb",
    "/data/\u202egpj.parquet",
    "/data/a\u200bb",
    "/data/a\u2028b",
    "/data/\ue000",
    "/data/\ud800",
]


@pytest.mark.parametrize("path", [path for path in ALLOWED if "*/" not in path and "/*" not in path])
def test_safe_paths_are_allowed_in_sql(path: str) -> None:
    PathValidator.validate_path_for_sql(path)
    assert PathValidator.escape_for_sql(path) == path


@pytest.mark.parametrize("path", REFUSED, ids=ascii)
def test_unsafe_paths_are_rejected_in_sql(path: str) -> None:
    for check in (PathValidator.validate_path_for_sql, PathValidator.escape_for_sql):
        with pytest.raises(InvalidArgumentError) as caught:
            check(path)
        assert isinstance(caught.value, ValueError)
        assert repr(path) in str(caught.value)


@pytest.mark.parametrize("path", ["/data/*.parquet", "/data/*/x.parquet"])
def test_globs_that_look_like_sql_comments_are_rejected(path: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"/\*|\*/"):
        PathValidator.validate_path_for_sql(path)


# ----------------------------------------------------------------------------------------------------------- listings
def test_a_listing_is_a_sequence_of_files() -> None:
    files = [FileStat("b/x", 1, 2, 3), FileStat("a", 4, 5, "tag"), FileStat("b.x", 6, 7, 8)]
    listing = Listing.of(files)
    assert list(listing) == files == listing[:] == [listing[0], listing[1], listing[-1]]
    assert listing == files
    assert listing == Listing.of(tuple(files))
    assert Listing.of(listing) is listing
    assert [file.path for file in listing.sorted()] == ["a", "b.x", "b/x"]
    assert listing.sorted() != listing
    assert list(listing.sorted().filter([True, False, True])) == [files[1], files[0]]
    assert listing.directories == ["b", "", ""]
    assert list(Listing.of([])) == []
    for field in FileStat._fields:
        assert listing != [files[0]._replace(**{field: 0}), *files[1:]]


def test_walk_sorts_directories_and_files_that_mix(tmp_path: Path) -> None:
    names = [f"{prefix}{name}.parquet" for prefix in ("", "a/", "a.b/", "a/c/", "B/", "ä/") for name in "zaÄ~"]
    names += ["a.parquet", "a-.parquet", "a0.parquet"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert listed(locate(tmp_path)) == sorted(set(names))


def test_walk_lists_odd_names_and_times(tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff.parquet")
    times = {odd: 0, "line\nend.parquet": -1, "old.parquet": -(2**33), "new.parquet": 2**33}
    for name, seconds in times.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    found = {file.path: file.mtime_ns for file in data_files(locate(tmp_path))}
    assert found == {name: os.stat(tmp_path / name).st_mtime_ns for name in times}
    assert found["new.parquet"] > 2**62


def test_walk_leaves_out_files_that_disappear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("p=1/a", "p=1/b", "p=2/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.parquet").touch()
    opened = os.open

    def deleting(path: str, flags: int) -> int:
        if path.endswith("p=2"):
            Path(path, "c.parquet").unlink()
            Path(path).rmdir()
        return opened(path, flags)

    def keep(name: str) -> bool:
        if name == "b.parquet":
            (tmp_path / "p=1/b.parquet").unlink()
        return True

    monkeypatch.setattr(os, "open", deleting)
    assert [file.path for file in LocalStore().walk(str(tmp_path), keep)] == ["p=1/a.parquet"]
