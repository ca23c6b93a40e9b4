"""One module per contestant; `CONTESTANTS` says which environment each runs in and how it is described."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Entry:
    """A contestant as the harness sees it: a module to run and what the report says about it."""

    module: str
    environment: Literal["inlay", "bench"]
    about: str
    options: dict[str, Any] = field(default_factory=dict)
    leaves_target: bool = False


CONTESTANTS = {
    "inlay": Entry("inlay_merge", "inlay", "`inlay.merge`, pyarrow engine; commits with fsync and a journal"),
    "inlay-plan": Entry(
        "inlay_merge",
        "inlay",
        "`inlay.plan_merge` alone: what planning costs, included in the row above",
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
}
