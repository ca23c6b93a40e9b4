"""Merge into a dataset on S3 or on a compatible store (MinIO, Ceph, R2 and others).

    export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...
    export AWS_ENDPOINT_URL=http://localhost:9000      # only for stores other than Amazon's
    python examples/s3_dataset.py s3://bucket/prefix

Needs: pip install 'inlay[s3]'. The store must support conditional writes; inlay checks this before it writes.
"""

from __future__ import annotations

import sys

import pyarrow as pa

import inlay


def main(url: str) -> None:
    path = f"{url.rstrip('/')}/stock"

    # The path is a URL, and the endpoint and credentials come from the environment.
    inventory = pa.table({"sku": [f"A{n:05}" for n in range(10_000)], "stock": [10] * 10_000})
    inlay.write_dataset(inventory, path, mode="overwrite", row_group_size=1000)
    print(f"wrote {inventory.num_rows:,} rows to {path}")

    changes = pa.table({"sku": ["A00007", "A09999", "B00001"], "stock": [9, 0, 40]})
    result = inlay.merge(changes, path, "upsert", ["sku"])
    share = result.bytes_copied / result.bytes_written
    print(f"{result.updated} updated, {result.inserted} inserted; {share:.0%} of the written bytes were copied")

    # An object can't be changed in place, so a rewritten file gets a new name. One conditional write commits the merge.
    for file in result.files:
        print(f"  {file.operation}: {file.path.rpartition('/')[2]} ({file.row_count:,} rows)")

    print(f"rows now: {inlay.read_parquet(path, columns=['sku']).num_rows:,}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or "://" not in sys.argv[1]:
        raise SystemExit(__doc__)
    main(sys.argv[1])
