"""The datasets and workloads of the merge benchmarks, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Kind = Literal["id", "tenant", "order", "text", "float", "ts", "low", "int"]
Columns = tuple[tuple[str, Kind], ...]

SIX: Columns = (
    ("id", "id"),
    ("name", "text"),
    ("value", "float"),
    ("ts", "ts"),
    ("category", "low"),
    ("quantity", "int"),
)
STRINGS: Columns = (("tenant", "tenant"), ("order_no", "order"), *SIX[1:])


def wide(count: int) -> Columns:
    """Return `count` columns: the key, then a fixed rotation of value kinds, mostly floats."""
    kinds: tuple[Kind, ...] = ("float", "int", "text", "float", "low", "int", "float", "text", "float", "ts")
    return (("id", "id"), *((f"c{i:02}", kinds[i % len(kinds)]) for i in range(1, count)))


@dataclass(frozen=True)
class Dataset:
    """A target of `files` files with `rows` rows in `row_groups` row groups; row n has a key derived from n."""

    name: str
    files: int
    rows: int
    row_groups: int = 1
    columns: Columns = SIX
    keys: tuple[str, ...] = ("id",)
    by_day: bool = False
    scale_by: Literal["rows", "files"] = "rows"

    @property
    def total(self) -> int:
        return self.files * self.rows

    @property
    def partition_columns(self) -> list[str]:
        return ["day"] if self.by_day else []

    def scaled(self, scale: float) -> Dataset:
        if self.scale_by == "files":
            return replace(self, files=max(10, round(self.files * scale)))
        per_group = max(10, round(self.rows * scale / self.row_groups))
        return replace(self, rows=per_group * self.row_groups)


@dataclass(frozen=True)
class Workload:
    """A source of `keys` rows, a fraction `hits` of them existing keys, in a fraction `touched` of the files."""

    name: str
    title: str
    dataset: str
    touched: float = 1.0
    keys: int = 10_000
    hits: float = 0.9
    one_row_group: bool = False
    strategy: Literal["upsert", "full_merge", "delete"] = "upsert"
    newer_by: str | None = None  # the source rows are older than the stored ones
    updated_columns: tuple[str, ...] = ()  # the only columns that the source has, next to the keys
    kind: Literal["merge", "replan", "scaling"] = "merge"

    def scaled(self, scale: float) -> Workload:
        return replace(self, keys=max(100, round(self.keys * scale)))


DATASETS = {
    d.name: d
    for d in (
        Dataset("flat", files=100, rows=100_000),
        Dataset("grouped", files=10, rows=1_000_000, row_groups=10),
        Dataset("strings", files=100, rows=100_000, columns=STRINGS, keys=("tenant", "order_no")),
        Dataset("daily", files=100, rows=100_000, by_day=True),
        Dataset("wide", files=20, rows=100_000, columns=wide(50)),
        Dataset("twenty", files=20, rows=100_000, columns=wide(20)),
        Dataset("small", files=2_000, rows=1_000, scale_by="files"),
        *(Dataset(f"files-{n}", files=n, rows=1_000) for n in (100, 1_000, 10_000)),
        Dataset("footers", files=10_000, rows=40, row_groups=4, columns=wide(10), scale_by="files"),
    )
}

WORKLOADS = {
    w.name: w
    for w in (
        Workload("keys-1", "10M rows in 100 files, 10k keys in 1 file", "flat", touched=0.01),
        Workload("keys-10", "10M rows in 100 files, 10k keys in 10 files", "flat", touched=0.1),
        Workload("keys-100", "10M rows in 100 files, 10k keys in 100 files", "flat"),
        Workload(
            "clustered",
            "10M rows in 10 files of 10 row groups, 10k keys in one row group of each file",
            "grouped",
            one_row_group=True,
        ),
        Workload("random-1m", "10M rows in 100 files, 1M random keys", "flat", keys=1_000_000),
        Workload("strings", "two string keys, unordered, 10k keys in 10 of 100 files", "strings", touched=0.1),
        Workload("day", "10M rows partitioned by day (100 days), a delta for one day", "daily", touched=0.01),
        Workload("wide", "2M rows of 50 columns in 20 files, 10k keys in 2 files", "wide", touched=0.1),
        Workload("small", "2M rows in 2,000 files, 10k keys in 200 files", "small", touched=0.1),
        Workload("small-20", "2M rows in 2,000 files, 10k keys in 20 files", "small", touched=0.01),
        Workload(
            "full-clustered",
            "full_merge of a 10M-row snapshot, 1% changed, all in 1 of 100 row groups",
            "flat",
            touched=0.01,
            keys=100_000,
            strategy="full_merge",
        ),
        Workload(
            "full-scattered",
            "full_merge of a 10M-row snapshot, 1% changed, spread over all 100 row groups",
            "flat",
            keys=100_000,
            strategy="full_merge",
        ),
        Workload(
            "delete-1%",
            "delete 100k of 10M rows by key, spread over all 100 row groups",
            "flat",
            keys=100_000,
            hits=1.0,
            strategy="delete",
        ),
        Workload(
            "replay",
            "a batch of 100k rows of 10M that is all stale: newer_by, no byte to write",
            "flat",
            keys=100_000,
            hits=1.0,
            newer_by="ts",
        ),
        Workload(
            "given-columns",
            "2M rows of 20 columns in 20 files, one column updated for 100k rows in all row groups",
            "twenty",
            keys=100_000,
            hits=1.0,
            updated_columns=("c11",),
        ),
        Workload(
            "replan",
            "plan again: 10,000 files of 10 columns x 4 row groups, keys in 10 of them",
            "footers",
            touched=0.001,
            keys=100,
            kind="replan",
        ),
        *(
            Workload(
                f"files-{n}",
                f"{n:,} files of 1,000 rows, 1,000 keys in 10 of them",
                f"files-{n}",
                touched=10 / n,
                keys=1_000,
                kind="scaling",
            )
            for n in (100, 1_000, 10_000)
        ),
        *(
            Workload(
                f"changed-{n}",
                f"10,000 files of 1,000 rows, {100 * n:,} keys in {n:,} of them",
                "files-10000",
                touched=n / 10_000,
                keys=100 * n,
                kind="scaling",
            )
            for n in (100, 400)
        ),
        *(
            Workload(f"source-{n}", f"10M rows in 100 files, {n:,} random keys", "flat", keys=n, kind="scaling")
            for n in (1_000, 10_000, 100_000, 1_000_000)
        ),
    )
}


class Axis(NamedTuple):
    """A series of scaling workloads that differ in one number."""

    title: str
    label: str
    points: dict[str, int]


AXES = (
    Axis("All files", "files in the dataset, 10 of them changed", {f"files-{n}": n for n in (100, 1_000, 10_000)}),
    Axis("Changed files", "changed files of 10,000", {"files-10000": 10, "changed-100": 100, "changed-400": 400}),
    Axis(
        "Source",
        "rows in the source, keys in all of 100 files",
        {f"source-{n}": n for n in (1_000, 10_000, 100_000, 1_000_000)},
    ),
)
