"""What a load would do: counts, what becomes of every file and why, and some of the rows that change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inlay.catalog import DataFile, Snapshot
from inlay.engines.base import Engine
from inlay.incremental.changes import Changes, first_rows
from inlay.incremental.options import MergeOptions
from inlay.incremental.plan import FilePlan
from inlay.incremental.versions import Draft, check_append, plan_draft
from inlay.pipeline import Conversion
from inlay.storage import Location
from inlay.workspace.changes import MOST_ROWS, changes_json
from inlay.workspace.places import Places

__all__ = ["Planner"]

_BECOME = {
    "append": ("preserved", "new rows go into files of their own"),
    "replace": ("removed", "the source takes the place of all rows"),
}


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans for one version of a dataset, of which the draft would make the next one."""

    places: Places
    snapshot: Snapshot
    draft: Draft
    engine: Engine

    def by_key(self, options: MergeOptions, rows: str) -> dict[str, Any]:
        """A merge of rows that lie at an address."""
        plan, changes = plan_draft(rows, self.draft, options, self.engine, most=MOST_ROWS)
        return {
            "inserted": plan.inserted,
            "updated": plan.updated,
            "deleted": plan.deleted,
            "unchanged": plan.unchanged,
            "row_count": plan.target_count_after,
            "files_rewritten": sum(file.operation != "preserved" for file in plan.files),
            "bytes_rewritten": plan.bytes_to_rewrite,
            "files": [self._file(file) for file in plan.files],
            "changes": changes_json(changes, options.key_columns),
        }

    def _file(self, file: FilePlan) -> dict[str, Any]:
        path = self.places.in_storage(self.snapshot.dataset.id, self.draft.location.relative(file.path))
        return {
            "path": self.places.address(path),
            "operation": file.operation,
            "reason": file.reason,
            "rows": file.row_count,
            "bytes": file.size_bytes,
        }

    def whole(self, strategy: str, converted: Conversion, scratch: Location, rows: str) -> dict[str, Any]:
        """Append or replace: all that was converted comes, and nothing or everything goes."""
        schema = self.snapshot.dataset.schema
        if not converted.schema.equals(schema):
            check_append(rows, self.draft, self.engine)
        gone = self.snapshot.files if strategy == "replace" else ()
        deleted = sum(file.rows for file in gone)
        coming = [file.path for file in converted.files if file.rows]
        going = [self.places.in_dataset(self.snapshot.dataset.id, file.path) for file in gone if file.rows]
        changes = Changes(
            inserted=first_rows(self.engine, scratch, coming, schema, MOST_ROWS),
            old=schema.empty_table(),
            new=schema.empty_table(),
            deleted=first_rows(self.engine, self.draft.location, going, schema, MOST_ROWS),
        )
        return {
            "inserted": converted.rows,
            "updated": 0,
            "deleted": deleted,
            "unchanged": 0,
            "row_count": self.snapshot.version.row_count + converted.rows - deleted,
            "files_rewritten": 0,
            "bytes_rewritten": 0,
            "files": [self._whole_file(file, *_BECOME[strategy]) for file in self.snapshot.files],
            "changes": changes_json(changes, ()),
        }

    def _whole_file(self, file: DataFile, operation: str, reason: str) -> dict[str, Any]:
        path = self.places.address(file.path)
        return {"path": path, "operation": operation, "reason": reason, "rows": file.rows, "bytes": file.bytes}
