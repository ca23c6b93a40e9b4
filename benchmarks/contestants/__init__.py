"""One module per contestant; `CONTESTANTS` says which environment each runs in and how it is described."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Entry:
    """A contestant as the harness sees it: a module to run and what the report says about it."""

    module: str
    environment: Literal["inlay", "bench", "ducklake", "delta"]
    about: str
    options: dict[str, Any] = field(default_factory=dict)
    leaves_target: bool = False
    only: tuple[str, ...] = ()  # workloads it takes part in unless it is asked for by name
    needs: str = ""  # a variable of the environment without which it cannot run


ON_SPARK = ("random-1m", "clustered")
CONTESTANTS = {
    "inlay": Entry("inlay_merge", "inlay", "`inlay.merge`, pyarrow engine; commits with fsync and a journal"),
    "inlay-duckdb": Entry("inlay_merge", "inlay", "the same, duckdb engine", {"engine": "duckdb"}),
    "inlay-spark": Entry(
        "inlay_merge", "inlay", "the same, spark engine on `local[*]`, warm session", {"engine": "spark"}
    ),
    "limit": Entry(
        "limit",
        "bench",
        "no merge: the touched files copied once and forced to disk, what a disk needs for the bytes that must move",
        leaves_target=True,
    ),
    "inlay-plan": Entry(
        "inlay_merge",
        "inlay",
        "`inlay.plan_merge` alone, pyarrow engine: what planning costs, included in the first row",
        {"plan_only": True},
        leaves_target=True,
    ),
    "reference": Entry(
        "reference",
        "bench",
        "plain pyarrow rewrite of exactly the touched files, told which they are; inserts as one new file",
    ),
    "delta-rs": Entry("delta", "bench", "`DeltaTable.merge` with defaults, predicate on the keys only"),
    "delta-rs-tuned": Entry(
        "delta", "bench", "the same with literal key ranges (or the day) in the predicate", {"tuned": True}
    ),
    "pyiceberg": Entry("iceberg", "bench", "`Table.upsert`, SQLite catalog, snappy"),
    "ducklake": Entry(
        "ducklake",
        "ducklake",
        "`MERGE` into a DuckLake table over the same files, DuckDB catalog; changed rows go into new and delete files",
        needs="INLAY_BENCH_DUCKLAKE_PYTHON",
    ),
    "lance": Entry("lance_merge", "bench", "`merge_insert` into the same rows in Lance's own format, no Parquet"),
    "duckdb": Entry(
        "duckdb_rewrite",
        "bench",
        "reads all, anti-join + union, `COPY` to one new file (one per partition), `preserve_insertion_order=false`",
    ),
    "polars": Entry(
        "polars_rewrite",
        "bench",
        "reads all, anti-join + concat, streaming `sink_parquet` to one new file (one per partition), snappy",
    ),
    "spark": Entry(
        "spark_rewrite",
        "inlay",
        "Spark's own: reads all, anti-join (keys broadcast) + union, writes all; the session of `inlay-spark`",
        only=ON_SPARK,
    ),
    "spark-delta": Entry(
        "spark_delta",
        "delta",
        "Delta Lake's MERGE on the Spark that its jars are for, warm session",
        only=ON_SPARK,
        needs="INLAY_BENCH_DELTA_JARS",
    ),
}

# The engines again, measured step by step where cost is plotted against size.
SCALING = {
    "inlay": Entry("scaling", "inlay", "pyarrow engine"),
    "inlay-duckdb": Entry("scaling", "inlay", "duckdb engine", {"engine": "duckdb"}),
    "inlay-spark": Entry("scaling", "inlay", "spark engine", {"engine": "spark"}),
}


def contestants_of(kind: str) -> dict[str, Entry]:
    return SCALING if kind == "scaling" else CONTESTANTS


def takes_part(name: str, workload: str, kind: str) -> bool:
    """Whether a contestant is measured in a workload when none was asked for by name."""
    entry = contestants_of(kind).get(name)
    return (
        entry is not None
        and (not entry.only or workload in entry.only)
        and (not entry.needs or entry.needs in os.environ)
    )
