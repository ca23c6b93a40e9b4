"""What a workspace stands on and how much it holds, for those who look after it."""

from __future__ import annotations

import platform
import re
import shutil
from dataclasses import dataclass
from importlib import metadata
from typing import get_args

from inlay.choices import JobState
from inlay.workspace.places import Places
from inlay.workspace.services import Services

__all__ = ["About", "Place", "about"]

_PACKAGES = {"inlay": "inlay", "PyArrow": "pyarrow", "DataFusion": "datafusion"}
_USER = re.compile(r"(?<=://)[^/@]*@")
_DRIVER = re.compile(r"\+\w+(?=://)")
_KINDS = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "s3": "S3"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is kept. The address holds no secrets."""

    kind: str
    address: str
    free_bytes: int | None = None  # where that can be known


@dataclass(frozen=True, slots=True)
class About:
    versions: dict[str, str]
    spark_master: str
    storage: Place
    catalog: Place
    datasets: int
    rows: int  # of current versions, as are the bytes
    bytes: int
    uploads: int  # that wait to be used
    jobs: dict[str, int]  # by state


def about(services: Services) -> About:
    catalog = services.catalog
    datasets, rows, size = catalog.datasets.totals()
    return About(
        versions=_versions() | services.spark.versions(),
        spark_master=services.spark.master,
        storage=_storage(services.places),
        catalog=_catalog(catalog.location),
        datasets=datasets,
        rows=rows,
        bytes=size,
        uploads=catalog.uploads.list(status="pending", limit=1).count,
        jobs={state: catalog.jobs.list(state=state, limit=1).count for state in get_args(JobState)},
    )


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(package) for name, package in _PACKAGES.items()}
    return {"inlay": packages.pop("inlay"), "Python": platform.python_version()} | packages


def _catalog(location: str) -> Place:
    kind = _kind(location)
    return Place(kind, location.partition(":///")[2] if kind == "SQLite" else _DRIVER.sub("", location))


def _storage(places: Places) -> Place:
    root = places.root
    if root.store.is_local:
        return Place("Local disk", root.path, shutil.disk_usage(root.path).free)
    return Place(_kind(root.given), _USER.sub("", root.given))


def _kind(address: str) -> str:
    scheme = re.split(r"[+:]", address, maxsplit=1)[0]
    return _KINDS.get(scheme, scheme)
