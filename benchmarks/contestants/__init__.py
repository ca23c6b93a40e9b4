"""The contestants: one module for each, with its environment and description in `CONTESTANTS`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Entry:
    """A contestant: the module to run, its environment, and its description in the report."""

    module: str
    environment: Literal["inlay", "bench", "ducklake", "delta"]
    about: str
    options: dict[str, Any] = field(default_factory=dict)
    leaves_target: bool = False
    only: tuple[str, ...] = ()  # the workloads it runs in by default
    needs: str = ""  # an environment variable that it requires


ON_SPARK = ("random-1m", "clustered")
CONTESTANTS = {
    "inlay": Entry("inlay_merge", "inlay", "`inlay.merge`, pyarrow engine; commits with fsync and a journal"),
    "inlay-duckdb": Entry("inlay_merge", "inlay", "`inlay.merge`, duckdb engine", {"engine": "duckdb"}),
    "inlay-spark": Entry(
        "inlay_merge", "inlay", "`inlay.merge`, spark engine on `local[*]`, warm session", {"engine": "spark"}
    ),
    "inlay-whole-rows": Entry(
        "inlay_merge",
        "inlay",
        "`inlay.merge`, pyarrow engine, of a source that has all columns",
        {"whole_rows": True},
        only=("given-columns",),
    ),
    "inlay-replayed": Entry(
        "inlay_merge",
        "inlay",
        "`inlay.merge`, pyarrow engine, with a transaction that is already committed",
        {"transaction": "benchmark"},
        only=("replay",),
    ),
    "limit": Entry(
        "limit",
        "bench",
        "no merge: copies the touched files once and forces them to disk, the minimum time that the disk needs",
        leaves_target=True,
    ),
    "inlay-plan": Entry(
        "inlay_merge",
        "inlay",
        "only `inlay.plan_merge`, pyarrow engine; the first row includes this cost",
        {"plan_only": True},
        leaves_target=True,
    ),
    "reference": Entry(
        "reference",
        "bench",
        "plain pyarrow rewrite of the touched files, whose list it gets; inserts into one new file",
    ),
    "delta-rs": Entry("delta", "bench", "`DeltaTable.merge` with defaults, predicate on the keys only"),
    "delta-rs-tuned": Entry(
        "delta", "bench", "`DeltaTable.merge` with literal key ranges (or the day) in the predicate", {"tuned": True}
    ),
    "pyiceberg": Entry("iceberg", "bench", "`Table.upsert`, SQLite catalog, snappy"),
    "ducklake": Entry(
        "ducklake",
        "ducklake",
        "`MERGE` into a DuckLake table over the same files, DuckDB catalog; writes new files and delete files",
        needs="INLAY_BENCH_DUCKLAKE_PYTHON",
    ),
    "lance": Entry("lance_merge", "bench", "`merge_insert` into the same rows in Lance's own format, without Parquet"),
    "duckdb": Entry(
        "duckdb_rewrite",
        "bench",
        "reads everything, anti-join + union, `COPY` to one file (per partition), `preserve_insertion_order=false`",
    ),
    "polars": Entry(
        "polars_rewrite",
        "bench",
        "reads everything, anti-join + concat, streaming `sink_parquet` to one file (per partition), snappy",
    ),
    "spark": Entry(
        "spark_rewrite",
        "inlay",
        "plain Spark in the session of `inlay-spark` with Java's default options: reads everything, "
        "broadcast anti-join + union, writes everything",
        only=ON_SPARK,
    ),
    "spark-delta": Entry(
        "spark_delta",
        "delta",
        "Delta Lake's MERGE on the Spark version that its jars support, warm session",
        only=ON_SPARK,
        needs="INLAY_BENCH_DELTA_JARS",
    ),
}

# The engines in the workloads of cost against size.
SCALING = {
    "inlay": Entry("scaling", "inlay", "pyarrow engine"),
    "inlay-duckdb": Entry("scaling", "inlay", "duckdb engine", {"engine": "duckdb"}),
    "inlay-spark": Entry("scaling", "inlay", "spark engine", {"engine": "spark"}),
}


def contestants_of(kind: str) -> dict[str, Entry]:
    return SCALING if kind == "scaling" else CONTESTANTS


def takes_part(name: str, workload: str, kind: str) -> bool:
    """Return True if a contestant runs in a workload by default."""
    entry = contestants_of(kind).get(name)
    return (
        entry is not None
        and (not entry.only or workload in entry.only)
        and (not entry.needs or entry.needs in os.environ)
    )
