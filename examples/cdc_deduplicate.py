"""Apply a change stream (CDC) with several events per key, out of order, with deletions.

python examples/cdc_deduplicate.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import inlay

# The change events of a database. `lsn` is the log sequence number: a larger number is a later event.
# The events come from several queues, so they are not sorted by `lsn`.
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

    # `deduplicate` keeps the event with the largest lsn for each key, and upserts it.
    result = inlay.merge(EVENTS, path, "deduplicate", ["customer"], dedup_order_by="lsn")
    print(f"{result.source_count} events: {result.inserted} customers inserted, {result.updated} updated")

    # A deletion marks the row as deleted, and readers filter marked rows out.
    active = inlay.read_parquet(path, filter=~pc.field("deleted"))
    for row in active.sort_by("customer").to_pylist():
        print(f"  customer {row['customer']} lives in {row['city']} (as of lsn {row['lsn']})")

    # To delete the marked rows, make the dataset equal to the active rows while no other writer runs.
    cleanup = inlay.merge(active, path, "full_merge", ["customer"])
    print(f"{cleanup.deleted} marked row deleted, {cleanup.target_count_after} rows left")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="inlay-example-")))
