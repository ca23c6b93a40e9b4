"""The rows that differ between two versions of a dataset."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from inlay.catalog import Catalog, DataFile
from inlay.errors import DamagedVersionError, InlayError, NotFoundError
from inlay.incremental.diff import CHANGE_COLUMN, common_keys
from inlay.incremental.result import Changes
from inlay.query import Answer, Format, QueryEngine, QueryResult, VersionPair
from inlay.workspace.plans import MAX_ROWS, changes_json
from inlay.workspace.storage import ServiceStorage
from inlay.workspace.storage_faults import find_fault, storage_faults

__all__ = ["Diff", "DiffSample", "Diffs"]


@dataclass(frozen=True, slots=True)
class Diff:
    """Rows that differ between two versions, encoded, and the counts of all of them.

    An update counts once, and has two rows: before and after.
    """

    pair: VersionPair
    answer: Answer

    @property
    def counts(self) -> dict[str, int]:
        return {name: int(self.answer.fields[name]) for name in ("inserted", "updated", "deleted")}

    @property
    def row_count(self) -> int:
        """The number of all rows that differ."""
        counts = self.counts
        return counts["inserted"] + 2 * counts["updated"] + counts["deleted"]


@dataclass(frozen=True, slots=True)
class DiffSample:
    """The counts of the rows that differ, and the first of each kind as JSON."""

    inserted: int
    updated: int
    deleted: int
    key_columns: Sequence[str]
    changes: Mapping[str, Any]


class Diffs:
    """Compares versions in query processes, with the limits of queries."""

    def __init__(self, catalog: Catalog, storage: ServiceStorage, queries: QueryEngine) -> None:
        self._catalog, self._storage, self._queries = catalog, storage, queries

    def sample(self, dataset_id: str, old: int, new: int, cancel: Event | None = None) -> DiffSample:
        """Return the counts, and the first rows of each kind."""
        pair = self._pair(dataset_id, old, new)
        try:
            with storage_faults(self._storage):
                answer = self._queries.compare(pair, sample=MAX_ROWS, cancel=cancel)
        except DamagedVersionError:
            self._require_versions(dataset_id, pair)
            raise
        with QueryResult(answer) as result:
            changes = changes_json(_by_kind(result.read_all()), pair.key_columns)
        return DiffSample(**Diff(pair, answer).counts, key_columns=pair.key_columns, changes=changes)

    async def answer(
        self, dataset_id: str, old: int, new: int, form: Format, *, offset: int = 0, limit: int | None = None
    ) -> Diff:
        """Return the rows from position `offset` on: deletions, then updates, then insertions."""
        pair = await asyncio.to_thread(self._pair, dataset_id, old, new)
        try:
            return Diff(pair, await self._queries.answer_comparison(pair, form, offset=offset, limit=limit))
        except DamagedVersionError:
            await asyncio.to_thread(self._require_versions, dataset_id, pair)
            raise
        except InlayError as error:
            fault = await asyncio.to_thread(find_fault, error, self._storage)
            if fault is None:
                raise
            raise fault from error

    def _pair(self, dataset_id: str, old: int, new: int) -> VersionPair:
        versions = self._catalog.versions
        before, after = (versions.snapshot(dataset_id, number) for number in (old, new))
        kept = versions.key_columns(dataset_id)

        def keys_of(number: int) -> tuple[Sequence[str], int | None]:
            if number not in kept:
                raise NotFoundError(f"Version {number} has expired.")
            return kept[number]

        return VersionPair(
            self._storage.address(self._storage.in_storage(dataset_id, "")).rstrip("/"),
            before.dataset.table_name,
            old,
            new,
            self._files(dataset_id, before.files),
            self._files(dataset_id, after.files),
            common_keys(keys_of, old, new),
            self._storage.options,
        )

    def _files(self, dataset_id: str, files: Sequence[DataFile]) -> list[tuple[str, int]]:
        return [(self._storage.in_dataset(dataset_id, file.path), file.bytes) for file in files]

    def _require_versions(self, dataset_id: str, pair: VersionPair) -> None:
        """Raise if a version has expired since its files were listed."""
        for number in (pair.old, pair.new):
            self._catalog.versions.get(dataset_id, number)


def _by_kind(rows: pa.Table) -> Changes:
    kinds = rows.column(CHANGE_COLUMN)
    rows = rows.drop_columns([CHANGE_COLUMN])

    def of(kind: str) -> pa.Table:
        return rows.filter(pc.equal(kinds, kind))

    return Changes(inserted=of("insert"), old=of("update_before"), new=of("update_after"), deleted=of("delete"))
