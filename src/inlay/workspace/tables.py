"""The catalog's datasets as tables of a query."""

from __future__ import annotations

from inlay.catalog import Catalog
from inlay.errors import NotFoundError
from inlay.query import Table
from inlay.workspace.places import Places

__all__ = ["DatasetTables"]


class DatasetTables:
    """Asked anew by every query, so that a load, a rename or a deletion is visible at once."""

    def __init__(self, catalog: Catalog, places: Places) -> None:
        self._catalog, self._places = catalog, places

    def find(self, name: str, version: int | None) -> Table | None:
        try:
            snapshot = self._catalog.datasets.snapshot(name, version)
        except NotFoundError:
            return None
        if snapshot is None:
            return None
        files = self._places.addresses(snapshot.files)
        return Table(snapshot.version.schema, files, exact_float_bounds=True)

    def names(self) -> list[str]:
        return list(self._catalog.datasets.table_names())
