"""Merge into a dataset on S3, or on a store that speaks its protocol (MinIO, Ceph, R2 ...).

    export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...
    export AWS_ENDPOINT_URL=http://localhost:9000      # only if it is not Amazon's
    python examples/s3_dataset.py s3://bucket/prefix

Needs: pip install 'inlay[s3]'. The store must honour conditional writes; inlay finds out before it writes.
"""

from __future__ import annotations

import sys

import pyarrow as pa

import inlay


def main(url: str) -> None:
    path = f"{url.rstrip('/')}/stock"

    # Paths are URLs; endpoint and credentials come from the environment. Nothing else differs from a disk.
    shelf = pa.table({"sku": [f"A{n:05}" for n in range(10_000)], "stock": [10] * 10_000})
    inlay.write_dataset(shelf, path, mode="overwrite", row_group_size=1000)
    print(f"wrote {shelf.num_rows:,} rows to {path}")

    sold = pa.table({"sku": ["A00007", "A09999", "B00001"], "stock": [9, 0, 40]})
    result = inlay.merge(sold, path, "upsert", ["sku"])
    share = result.bytes_copied / result.bytes_written
    print(f"{result.updated} updated, {result.inserted} inserted; {share:.0%} of what was written was copied as it was")

    # Objects cannot be changed: a rewritten file gets a new name, and one conditional write makes it true.
    for file in result.files:
        print(f"  {file.operation}: {file.path.rpartition('/')[2]} ({file.row_count:,} rows)")

    print(f"rows now: {inlay.read_parquet(path, columns=['sku']).num_rows:,}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or "://" not in sys.argv[1]:
        raise SystemExit(__doc__)
    main(sys.argv[1])
