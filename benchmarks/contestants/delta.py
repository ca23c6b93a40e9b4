"""delta-rs: converts the files to a Delta table in place, then runs one MERGE."""

from __future__ import annotations

from typing import Any, ClassVar

from deltalake import DeltaTable, Schema, convert_to_deltalake

from benchmarks.measure import Contestant, Spec, UnsupportedError, main


class Delta(Contestant):
    packages: ClassVar[tuple[str, ...]] = ("deltalake", "pyarrow")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.source = spec.load_source()
        self.predicate = self._predicate()
        partitions = Schema.from_arrow(self.source.select(spec.partition_columns).schema)
        if spec.partition_columns:
            convert_to_deltalake(spec.target, partition_by=partitions, partition_strategy="hive")
        else:
            convert_to_deltalake(spec.target)
        self.table = DeltaTable(spec.target)

    def _predicate(self) -> str:
        terms = [f"target.{key} = source.{key}" for key in self.spec.key_columns]
        if self.spec.options.get("tuned"):
            terms.append(self._literal())
        return " AND ".join(terms)

    def _literal(self) -> str:
        """Return the extra condition that an experienced user adds, which needs to know the key ranges."""
        if self.spec.strategy == "full_merge":
            raise UnsupportedError("a key range in the predicate would change the rows that full_merge deletes")
        if self.spec.days:
            return "target.day IN (" + ", ".join(f"'{day}'" for day in self.spec.days) + ")"
        if not self.spec.key_ranges:
            raise UnsupportedError("the keys have no ranges")
        key = f"target.{self.spec.key_columns[0]}"
        ranges = (f"({key} >= {low} AND {key} <= {high})" for low, high in self.spec.key_ranges)
        return "(" + " OR ".join(ranges) + ")"

    def run(self) -> dict[str, Any]:
        merger = self.table.merge(self.source, self.predicate, source_alias="source", target_alias="target")
        if self.spec.strategy == "delete":
            return dict(merger.when_matched_delete().execute())
        if self.spec.updated_columns:
            values = {name: f"source.{name}" for name in self.spec.updated_columns}
            return dict(merger.when_matched_update(values).execute())
        newer = None if self.spec.newer_by is None else f"source.{self.spec.newer_by} > target.{self.spec.newer_by}"
        merger = merger.when_matched_update_all(newer).when_not_matched_insert_all()
        if self.spec.strategy == "full_merge":
            merger = merger.when_not_matched_by_source_delete()
        return dict(merger.execute())

    def files(self) -> list[str]:
        self.table.update_incremental()
        return [uri.removeprefix("file://") for uri in self.table.file_uris()]


if __name__ == "__main__":
    main(Delta)
