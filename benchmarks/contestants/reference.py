"""The reference: rewrites a list of files in full with plain pyarrow, without planning or splicing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.measure import Contestant, Spec, dataset_files, main


class Reference(Contestant):
    packages: ClassVar[tuple[str, ...]] = ("pyarrow",)

    def __init__(self, spec: Spec) -> None:
        spec.require_upsert()
        self.spec = spec
        self.source = spec.load_source().drop_columns(spec.partition_columns)

    def run(self) -> dict[str, Any]:
        source = self.source
        keys = self._key(source)
        first = source[self.spec.key_columns[0]]
        used = [self._rewrite(name, source, keys, first) for name in self.spec.touched_files]
        self._insert(source, keys, used)
        return {}

    def _key(self, table: pa.Table) -> pa.ChunkedArray:
        """Return one array that identifies each row: the key column, or the joined key columns."""
        columns = [table[name] for name in self.spec.key_columns]
        return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, "\x1f")

    def _rewrite(self, name: str, source: pa.Table, keys: pa.ChunkedArray, first: pa.ChunkedArray) -> pa.ChunkedArray:
        file = Path(self.spec.target, name)
        old = pq.ParquetFile(file).read()
        near = self._near(old, first)
        source, keys = source.filter(near), keys.filter(near)
        found = pc.index_in(self._key(old), value_set=keys)
        new = self._replaced(old, source, found)
        temporary = file.with_suffix(".new")
        pq.write_table(new, temporary, compression="snappy", row_group_size=self.spec.row_group_size)
        os.replace(temporary, file)
        return keys.take(found.drop_null())

    def _near(self, old: pa.Table, first: pa.ChunkedArray) -> pa.ChunkedArray:
        """Select source rows in the key range of the file, so that `index_in` need not hash the whole source."""
        bounds = pc.min_max(old[self.spec.key_columns[0]])
        return pc.and_(pc.greater_equal(first, bounds["min"]), pc.less_equal(first, bounds["max"]))

    def _replaced(self, old: pa.Table, source: pa.Table, found: pa.ChunkedArray) -> pa.Table:
        mask = found.is_valid().combine_chunks()
        rows = source.take(found.drop_null())
        columns = [
            pc.replace_with_mask(old[name].combine_chunks(), mask, rows[name].combine_chunks())
            if name in rows.column_names else old[name]
            for name in old.column_names
        ]  # fmt: skip
        new = pa.table(columns, schema=old.schema)
        return new.filter(mask) if self.spec.strategy == "full_merge" else new

    def _insert(self, source: pa.Table, keys: pa.ChunkedArray, used: list[pa.ChunkedArray]) -> None:
        """Write the new rows. For a snapshot, the key range of the hints tells which rows are new."""
        if self.spec.strategy == "full_merge":
            low = self.spec.key_ranges[-1][0]
            new = source.filter(pc.greater_equal(source[self.spec.key_columns[0]], low))
        else:
            existing = pa.chunked_array([chunk for array in used for chunk in array.chunks], keys.type)
            new = source.filter(pc.invert(pc.is_in(keys, value_set=existing)))
        if len(new):
            folder = Path(self.spec.target, self.spec.touched_files[0]).parent
            size = self.spec.row_group_size
            pq.write_table(new, folder / "inserted.parquet", compression="snappy", row_group_size=size)

    def files(self) -> list[str]:
        return dataset_files(self.spec.target)


if __name__ == "__main__":
    main(Reference)
