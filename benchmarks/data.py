"""Seeded generation of target datasets and sources, written by pyarrow."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.workloads import Dataset, Kind, Workload

FIRST_DAY = dt.date(2024, 1, 1)
CATEGORIES = pa.array([f"category-{i:02}" for i in range(20)])
Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Delta:
    """The generated data of a workload: paths of target and source, and what the merge must touch."""

    target: str
    source: str
    touched_files: list[str]
    touched_row_groups: float
    key_ranges: list[list[int | str]]
    days: list[str]


def _rng(*parts: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(parts).encode()))


def _mix(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Map row numbers to distinct unordered keys with splitmix64, which is a bijection."""
    z = rows.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _hex(values: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> pa.StringArray:
    digits = values.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(len(values) + 1, dtype=np.int32) * 16
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(digits))


def _labelled(prefix: str, numbers: Rows) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def _timestamps(rows: Rows, rng: np.random.Generator) -> pa.Array:
    micros = rng.integers(1_700_000_000_000_000, 1_731_000_000_000_000, len(rows))
    return pa.array(micros).cast(pa.timestamp("us"))


MAKERS: dict[Kind, Callable[[Rows, np.random.Generator], pa.Array]] = {
    "id": lambda rows, _: pa.array(rows),
    "tenant": lambda rows, _: _labelled("tenant-", (_mix(rows) % np.uint64(1000)).astype(np.int64)),
    "order": lambda rows, _: _hex(_mix(rows)),
    "text": lambda rows, rng: _labelled("customer ", rng.integers(0, 10**9, len(rows))),
    "float": lambda rows, rng: pa.array(rng.normal(100.0, 25.0, len(rows))),
    "ts": _timestamps,
    "low": lambda rows, rng: CATEGORIES.take(pa.array(rng.integers(0, len(CATEGORIES), len(rows)))),
    "int": lambda rows, rng: pa.array(rng.integers(0, 1000, len(rows), dtype=np.int32)),
}


def table(dataset: Dataset, rows: Rows, seed: str) -> pa.Table:
    """Generate rows by row number. The number determines the key, and the seed all other values."""
    rng = _rng(seed, dataset.name, int(rows[0]) if len(rows) else 0)
    return pa.table({name: MAKERS[kind](rows, rng) for name, kind in dataset.columns})


def _day(index: int) -> str:
    return (FIRST_DAY + dt.timedelta(days=index)).isoformat()


def _file_name(dataset: Dataset, index: int) -> str:
    return f"day={_day(index)}/part-0.parquet" if dataset.by_day else f"part-{index:05}.parquet"


def _write_target(dataset: Dataset, path: Path) -> None:
    for index in range(dataset.files):
        rows = np.arange(index * dataset.rows, (index + 1) * dataset.rows)
        file = path / _file_name(dataset, index)
        file.parent.mkdir(parents=True, exist_ok=True)
        data = table(dataset, rows, "target")
        pq.write_table(data, file, compression="snappy", row_group_size=dataset.rows // dataset.row_groups)


def _cached(path: Path, make: Callable[[Path], None]) -> Path:
    """Generate `path` if it is missing. A rename at the end keeps interrupted runs from leaving partial data."""
    if not path.exists():
        temporary = path.with_name(path.name + ".partial")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        make(temporary)
        temporary.rename(path)
    return path


def _touched(dataset: Dataset, workload: Workload) -> Rows:
    """Return evenly spread file numbers, starting in the middle of the first stride."""
    count = max(1, round(dataset.files * workload.touched))
    stride = dataset.files / count
    return np.unique((np.arange(count) * stride + stride / 2).astype(np.int64))


def _hits(dataset: Dataset, workload: Workload, files: Rows, count: int) -> list[Rows]:
    """Choose random rows to change in each touched file, or in one of its row groups."""
    group = dataset.rows // dataset.row_groups
    found = []
    for position, file in enumerate(files):
        share = (position + 1) * count // len(files) - position * count // len(files)
        first, width = int(file) * dataset.rows, dataset.rows
        if workload.one_row_group:
            first, width = first + int(file) * 3 % dataset.row_groups * group, group
        rng = _rng("hits", workload.name, int(file))
        found.append(np.sort(rng.choice(width, min(share, width), replace=False)) + first)
    return found


def _upsert_source(dataset: Dataset, hits: list[Rows], new: Rows, workload: Workload) -> pa.Table:
    rows = np.concatenate([*hits, new])
    rows = _rng("order", workload.name).permutation(rows)
    return table(dataset, rows, workload.name)


def _snapshot_source(dataset: Dataset, target: Path, hits: list[Rows], new: Rows, seed: str) -> pa.Table:
    """Build a snapshot in key order: a tenth of the changed rows deleted, the others replaced, new rows added."""
    rows = np.concatenate(hits)
    deleted = rows[::10]
    changed = np.setdiff1d(rows, deleted)
    keep = np.ones(dataset.total, dtype=bool)
    keep[rows] = False
    kept = pq.read_table(target).filter(pa.array(keep))
    parts = [kept, table(dataset, changed, seed), table(dataset, new, seed)]
    return pa.concat_tables(parts).sort_by("id").combine_chunks()


def _ranges(dataset: Dataset, hits: list[Rows], files: Rows, new: Rows) -> list[list[int | str]]:
    """Return bounds of the first key column: for each run of adjacent touched files, and for new keys."""
    if dataset.columns[0][1] != "id":
        return []
    breaks = np.flatnonzero(np.diff(files) > 1) + 1
    runs = np.split(np.arange(len(files)), breaks)
    found: list[list[int | str]] = [[int(hits[run[0]][0]), int(hits[run[-1]][-1])] for run in runs]
    return [*found, [int(new[0]), int(new[-1])]] if len(new) else found


def _row_group_share(dataset: Dataset, hits: list[Rows]) -> float:
    groups = np.concatenate(hits) // (dataset.rows // dataset.row_groups)
    return len(np.unique(groups)) / (dataset.files * dataset.row_groups)


def _write_source(data: pa.Table, file: Path) -> None:
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, data.schema) as writer:
        writer.write_table(data)


def _write_delta(dataset: Dataset, workload: Workload, target: Path, path: Path) -> None:
    files = _touched(dataset, workload)
    hits = _hits(dataset, workload, files, round(workload.keys * workload.hits))
    # At a small scale, some files get no hit.
    files, hits = files[[len(h) > 0 for h in hits]], [h for h in hits if len(h)]
    new = np.arange(dataset.total, dataset.total + workload.keys - sum(map(len, hits)))
    if workload.strategy == "full_merge":
        source = _snapshot_source(dataset, target, hits, new, workload.name)
    else:
        source = _upsert_source(dataset, hits, new, workload)
    if workload.strategy == "delete":
        source = source.select(list(dataset.keys))
    if workload.newer_by is not None:
        position = source.column_names.index(workload.newer_by)
        old = pa.array(np.zeros(len(source), np.int64)).cast(source.schema.field(position).type)
        source = source.set_column(position, workload.newer_by, old)
    days = [_day(int(f)) for f in files] if dataset.by_day else []
    if days:
        assert len(days) == 1, "the source of a dataset by day must have one day"
        day = pa.array([dt.date.fromisoformat(days[0])] * len(source), pa.date32())
        source = source.append_column("day", day)
    _write_source(source, path / "source.arrow")
    names = [_file_name(dataset, int(f)) for f in files]
    truth = {
        "touched_files": names,
        "touched_row_groups": _row_group_share(dataset, hits),
        "key_ranges": _ranges(dataset, hits, files, new),
        "days": days,
    }
    (path / "truth.json").write_text(json.dumps(truth))


def make(dataset: Dataset, workload: Workload, root: Path) -> Delta:
    """Return the target and source of a workload below `root`, and generate them if they are missing."""
    delta_id = f"{zlib.crc32(repr((asdict(dataset), asdict(workload))).encode()):08x}"
    data_id = f"{zlib.crc32(repr(asdict(dataset)).encode()):08x}"
    target = _cached(root / f"target-{dataset.name}-{data_id}", lambda p: _write_target(dataset, p))
    delta = _cached(root / f"delta-{workload.name}-{delta_id}", lambda p: _write_delta(dataset, workload, target, p))
    truth = json.loads((delta / "truth.json").read_text())
    return Delta(target=str(target), source=str(delta / "source.arrow"), **truth)
