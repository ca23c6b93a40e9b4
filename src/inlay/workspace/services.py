"""The parts that every use case of the service is made of."""

from __future__ import annotations

from dataclasses import dataclass

from inlay.catalog import Catalog
from inlay.query import QueryEngine
from inlay.settings import Settings
from inlay.workspace.places import Places
from inlay.workspace.spark import Spark

__all__ = ["Services"]


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    catalog: Catalog
    places: Places
    spark: Spark
    query: QueryEngine
