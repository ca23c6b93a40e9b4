"""Apply a stream of changes (CDC): several events for one key, in any order, deletions among them.

python examples/cdc_deduplicate.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import inlay

# What a database tells about its rows. `lsn` is its log sequence number: the larger, the later.
# The events come as they were read from several queues, so not in that order.
EVENTS = pa.table(
    {
        "customer": [1, 2, 1, 3, 2, 1],
        "city": ["Ulm", "Bonn", "Kiel", "Jena", "Bonn", "Trier"],
        "lsn": [101, 102, 107, 104, 106, 103],
        "deleted": [False, False, False, False, True, False],
    }
)


def main(folder: Path) -> None:
    path = str(folder / "customers")
    before = {"customer": [1, 4], "city": ["Köln", "Hof"], "lsn": [90, 91], "deleted": [False, False]}
    inlay.write_dataset(pa.table(before), path)

    # `deduplicate` keeps one event of each key, the one with the largest lsn, and upserts it.
    result = inlay.merge(EVENTS, path, "deduplicate", ["customer"], dedup_order_by="lsn")
    print(f"{result.source_count} events: {result.inserted} customers inserted, {result.updated} updated")

    # A deletion is an event like any other: the row stays and is marked. Readers leave it out.
    living = inlay.read_parquet(path, filter=~pc.field("deleted"))
    for row in living.sort_by("customer").to_pylist():
        print(f"  customer {row['customer']} lives in {row['city']} (as of lsn {row['lsn']})")

    # To be rid of the marked rows, make the dataset equal to the others, while nobody else writes to it.
    swept = inlay.merge(living, path, "full_merge", ["customer"])
    print(f"{swept.deleted} marked row removed, {swept.target_count_after} left")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="inlay-example-")))
