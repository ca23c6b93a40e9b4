"""Keep a dataset current that is partitioned by day: every day a file with new and corrected orders arrives.

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
ORDERS_A_DAY = 1000


def orders_of(day: int) -> pa.Table:
    """The orders of one day; their numbers go on from day to day."""
    numbers = range(day * ORDERS_A_DAY, (day + 1) * ORDERS_A_DAY)
    return pa.table(
        {
            "order_id": list(numbers),
            "day": [FIRST_DAY + dt.timedelta(days=day)] * ORDERS_A_DAY,
            "amount": [number % 50 + 0.5 for number in numbers],
        }
    )


def main(folder: Path) -> None:
    orders = str(folder / "orders")

    # A month of orders, one directory per day: orders/day=2025-01-01/part-....parquet
    month = pa.concat_tables([orders_of(day) for day in range(31)])
    inlay.write_dataset(month, orders, partition_columns=["day"])
    print(f"wrote {month.num_rows:,} orders of 31 days to {orders}")

    # Today's file: one correction of an order of two days ago, one of yesterday's, and two new orders.
    (folder / "today.csv").write_text(
        "order_id,day,amount\n29007,2025-01-30,99.0\n30500,2025-01-31,12.5\n31000,2025-02-01,7.0\n31001,2025-02-01,8.0\n"
    )

    # What would happen? Nothing is written by a plan. Every file has a reason.
    plan = inlay.plan_merge(str(folder / "today.csv"), orders, "upsert", ["order_id"])
    for file in plan.files:
        if file.operation != "preserved":
            print(f"  would be {file.operation}: {Path(file.path).parent.name} ({file.reason})")

    # Do it. All of it becomes visible in one moment, or none of it.
    result = inlay.merge(str(folder / "today.csv"), orders, "upsert", ["order_id"])
    print(f"{result.updated} corrected, {result.inserted} new, {len(result.preserved_files)} files not touched")

    # The job ran twice? Rows that are equal already are not written again.
    again = inlay.merge(str(folder / "today.csv"), orders, "upsert", ["order_id"])
    print(f"once more: {again.unchanged} of {again.updated} were equal already, {again.bytes_written} bytes written")

    # It is plain Parquet: pandas, polars, DuckDB and Spark read it as it is.
    print(f"orders now: {inlay.read_parquet(orders, columns=['order_id']).num_rows:,}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="inlay-example-")))
