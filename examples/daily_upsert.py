"""Merge a daily file of new and corrected orders into a dataset partitioned by day.

python examples/daily_upsert.py [FOLDER]
"""

from __future__ import annotations

import datetime as dt
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import inlay

FIRST_DAY = dt.date(2025, 1, 1)
ORDERS_PER_DAY = 1000


def orders_of(day: int) -> pa.Table:
    """Create the orders of one day, with order ids that continue from day to day."""
    numbers = range(day * ORDERS_PER_DAY, (day + 1) * ORDERS_PER_DAY)
    return pa.table(
        {
            "order_id": list(numbers),
            "day": [FIRST_DAY + dt.timedelta(days=day)] * ORDERS_PER_DAY,
            "amount": [number % 50 + 0.5 for number in numbers],
        }
    )


def main(folder: Path) -> None:
    orders = str(folder / "orders")

    # A month of orders, one directory per day: orders/day=2025-01-01/part-....parquet
    month = pa.concat_tables([orders_of(day) for day in range(31)])
    inlay.write_dataset(month, orders, partition_columns=["day"])
    print(f"wrote {month.num_rows:,} orders of 31 days to {orders}")

    # Today's file corrects one order of January 30 and one of January 31, and adds two orders of February 1.
    (folder / "today.csv").write_text(
        "order_id,day,amount\n29007,2025-01-30,99.0\n30500,2025-01-31,12.5\n31000,2025-02-01,7.0\n31001,2025-02-01,8.0\n"
    )

    # Plan the merge. A plan writes nothing and states a reason for each file.
    plan = inlay.plan_merge(str(folder / "today.csv"), orders, "upsert", ["order_id"])
    for file in plan.files:
        if file.operation != "preserved":
            print(f"  to be {file.operation}: {Path(file.path).parent.name} ({file.reason})")

    # Merge. The whole change commits at once, or not at all.
    result = inlay.merge(str(folder / "today.csv"), orders, "upsert", ["order_id"])
    print(f"{result.updated} corrected, {result.inserted} new, {len(result.preserved_files)} files untouched")

    # If the job runs twice, inlay writes nothing, because all rows are already equal.
    again = inlay.merge(str(folder / "today.csv"), orders, "upsert", ["order_id"])
    print(f"second run: {again.unchanged} of {again.updated} rows unchanged, {again.bytes_written} bytes written")

    # The dataset is plain Parquet: pandas, polars, DuckDB and Spark can read it too.
    print(f"orders now: {inlay.read_parquet(orders, columns=['order_id']).num_rows:,}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="inlay-example-")))
