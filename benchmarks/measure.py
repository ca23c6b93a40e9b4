"""The protocol of a contestant: a JSON spec as argument, one measured call, a JSON result on stdout."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import processes


@dataclass(frozen=True)
class Spec:
    """The task of a contestant. `touched_files`, `key_ranges` and `days` are hints that only some may use."""

    target: str
    source: str
    work: str
    strategy: str
    key_columns: list[str]
    partition_columns: list[str]
    touched_files: list[str] = field(default_factory=list)
    key_ranges: list[list[int | str]] = field(default_factory=list)
    days: list[str] = field(default_factory=list)
    row_group_size: int = 100_000
    newer_by: str | None = None
    updated_columns: list[str] = field(default_factory=list)
    rehearsal: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def require_upsert(self) -> None:
        """Reject the workloads that only a merge with deletions or conditions can do."""
        if self.strategy == "delete":
            raise UnsupportedError("cannot delete rows by the keys of a source")
        if self.newer_by is not None:
            raise UnsupportedError("cannot compare source rows with stored rows")

    def load_source(self) -> pa.Table:
        """Read the source table into memory, without a memory map. Leave out columns that the workload keeps."""
        rows = self.load_rows()
        return rows.select([*self.key_columns, *self.updated_columns]) if self.updated_columns else rows

    def load_rows(self) -> pa.Table:
        with pa.OSFile(self.source, "rb") as file:
            return pa.ipc.open_file(file).read_all()


class Contestant(Protocol):
    """A contestant: `__init__` prepares, `run` is measured, `files` lists the data files."""

    packages: ClassVar[tuple[str, ...]]

    def __init__(self, spec: Spec) -> None: ...
    def run(self) -> dict[str, Any] | None: ...
    def files(self) -> list[str]: ...
    def verified_files(self) -> list[str]:
        """Return the result as plain Parquet files, which are `files` by default."""
        return self.files()


class UnsupportedError(Exception):
    """The contestant lacks the operation."""


def dataset_files(path: str) -> list[str]:
    """List the data files below a directory, without hidden and underscore names."""
    root = Path(path)
    found = (p for p in sorted(root.rglob("*.parquet")) if p.is_file())
    return [str(p) for p in found if not any(part[0] in "._" for part in p.relative_to(root).parts)]


def measure(call: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """Measure time, memory and written bytes of one call, including descendant processes."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    processes.settle(os.getpid())
    reset = processes.reset_peak()
    with processes.Tree() as tree:
        resident, before, wall = tree.resident(), tree.usage(), time.perf_counter()
        detail = call()
        wall, after = time.perf_counter() - wall, tree.usage()
    cpu = {role: after.cpu[role] - before.cpu[role] for role in after.cpu}
    return {
        "wall": wall,
        "cpu": sum(cpu.values()),
        "cpu_by": cpu,
        "peak_mb": tree.peak / 2**20,
        "growth_mb": (tree.peak - resident) / 2**20,
        "peak_was_reset": reset,
        "written_mb": (after.written - before.written) / 1e6,
        "to_disk_mb": (after.stored - before.stored) / 1e6,
        "detail": detail or {},
    }


def _stamps(files: list[str]) -> dict[str, tuple[int, int, int]]:
    stats = ((f, os.stat(f)) for f in files)
    return {f: (s.st_ino, s.st_size, s.st_mtime_ns) for f, s in stats}


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "source tree"
    return found


def _rehearse(kind: type[Contestant], spec: Spec) -> None:
    """Merge 20 rows into 10, so that the measurement excludes lazy imports and start-up work."""
    work = Path(tempfile.mkdtemp(prefix="rehearsal-", dir=spec.work))
    folder = work.joinpath("target", *(f"day={day}" for day in spec.days[:1]))
    folder.mkdir(parents=True)
    rows = spec.load_rows().slice(0, 20)
    with pa.OSFile(str(work / "source.arrow"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    pq.write_table(rows.slice(0, 10).drop_columns(spec.partition_columns), folder / "part-0.parquet")
    file = str((folder / "part-0.parquet").relative_to(work / "target"))
    small = replace(spec, target=f"{work}/target", source=f"{work}/source.arrow", work=str(work))
    kind(replace(small, touched_files=[file], rehearsal=True)).run()


def _result(kind: type[Contestant], spec: Spec) -> dict[str, Any]:
    _rehearse(kind, spec)
    contestant = kind(spec)
    before = _stamps(contestant.files())
    result = measure(contestant.run)
    after = _stamps(contestant.files())
    changed = [f for f in after if before.get(f) != after[f]]
    result["new_data_mb"] = sum(after[f][1] for f in changed) / 1e6
    return {"status": "ok", **result, "files": contestant.verified_files(), "versions": _versions(kind.packages)}


def main(kind: type[Contestant]) -> None:
    """Run a contestant script. Redirect stray output of libraries to stderr, away from the JSON."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spec = Spec(**json.loads(sys.argv[1]))
    try:
        result = _result(kind, spec)
    except UnsupportedError as reason:
        result = {"status": "unsupported", "reason": str(reason)}
    except Exception as error:  # noqa: BLE001  (any error of a peer is its result)
        result = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:500]}
    out.write(json.dumps(result))
    out.flush()
    os._exit(0)
