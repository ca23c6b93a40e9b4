"""polars: reads everything, anti-join + concat, writes a new directory that replaces the old one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from benchmarks.measure import Contestant, Spec, UnsupportedError, dataset_files, main


class Polars(Contestant):
    packages: ClassVar[tuple[str, ...]] = ("polars", "pyarrow")

    def __init__(self, spec: Spec) -> None:
        if spec.newer_by is not None:
            raise UnsupportedError("rewrites all rows")
        self.spec = spec
        source = pl.from_arrow(spec.load_source())
        assert isinstance(source, pl.DataFrame)
        self.source = source

    def _merged(self) -> pl.LazyFrame:
        source = self.source.lazy()
        if self.spec.strategy == "full_merge":
            return source
        target = pl.scan_parquet(f"{self.spec.target}/**/*.parquet", hive_partitioning=self._partitioned)
        if self.spec.strategy == "delete":
            return target.join(source, on=self.spec.key_columns, how="anti")
        if self.spec.updated_columns:
            return target.update(source, on=self.spec.key_columns, include_nulls=True)
        kept = target.select(self.source.columns).join(source, on=self.spec.key_columns, how="anti")
        return pl.concat([kept, source])

    @property
    def _partitioned(self) -> bool:
        return bool(self.spec.partition_columns)

    def run(self) -> dict[str, Any]:
        target = Path(self.spec.target)
        new, old = target.with_name("new"), target.with_name("old")
        output: str | pl.PartitionBy = f"{new}/data.parquet"
        if self._partitioned:
            output = pl.PartitionBy(new, key=self.spec.partition_columns, include_key=False)
        self._merged().sink_parquet(
            output, compression="snappy", row_group_size=self.spec.row_group_size, maintain_order=False,
            engine="streaming", mkdir=True,
        )  # fmt: skip
        target.rename(old)
        new.rename(target)
        shutil.rmtree(old)
        return {}

    def files(self) -> list[str]:
        return dataset_files(self.spec.target)


if __name__ == "__main__":
    main(Polars)
