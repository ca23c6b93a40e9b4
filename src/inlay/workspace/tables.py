"""The catalog's datasets as tables of a query."""

from __future__ import annotations

from functools import lru_cache

from inlay.catalog import Catalog
from inlay.errors import NotFoundError
from inlay.query import Table
from inlay.workspace.places import Places

__all__ = ["DatasetTables"]

_REMEMBERED = 128


class DatasetTables:
    """Every query asks anew which version is current, so that a load, a rename or a deletion is visible at once.

    What a version holds never changes: that of current ones is remembered, others may be forgotten any time.
    """

    def __init__(self, catalog: Catalog, places: Places) -> None:
        self._catalog, self._places = catalog, places
        self._current = lru_cache(_REMEMBERED)(self._version)

    def find(self, name: str, version: int | None) -> Table | None:
        dataset = self._catalog.datasets.find(name)
        if dataset is None:
            return None
        try:
            if version is not None:
                return self._version(dataset.id, version)
            return self._current(dataset.id, dataset.version)
        except NotFoundError:
            if version is not None or dataset == self._catalog.datasets.find(name):
                return None
            return self.find(name, None)

    def names(self) -> list[str]:
        return list(self._catalog.datasets.table_names())

    def _version(self, dataset_id: str, version: int) -> Table:
        snapshot = self._catalog.versions.snapshot(dataset_id, version)
        return Table(snapshot.version.schema, self._places.addresses(snapshot.files), exact_float_bounds=True)
