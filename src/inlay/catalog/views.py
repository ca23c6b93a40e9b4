"""The state of the published views of datasets."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from inlay.catalog import records, tables
from inlay.catalog.database import Context
from inlay.catalog.records import View

__all__ = ["Views"]

_views = tables.views
_versions = tables.dataset_versions
_datasets = tables.datasets


class Views:
    def __init__(self, context: Context) -> None:
        self._context = context

    def list(self, dataset_id: str) -> tuple[View, ...]:
        query = records.select(View, _views).where(_views.c.dataset_id == dataset_id).order_by(_views.c.format)
        with self._context.read() as connection:
            return records.every(connection, View, query)

    def record(self, view: View) -> None:
        """Record the state of a view. A dataset that is deleted by now has none."""
        mine = (_views.c.dataset_id == view.dataset_id) & (_views.c.format == view.format)
        with self._context.write() as connection:
            connection.execute(_views.delete().where(mine))
            if connection.execute(sa.select(_datasets.c.id).where(_datasets.c.id == view.dataset_id)).first():
                connection.execute(_views.insert().values(records.values(view)))

    def outdated(self, formats: Sequence[str]) -> Sequence[str]:
        """Return the datasets that lack a view in one of the formats, or have other versions than their view."""
        kept = (
            sa.select(
                _versions.c.dataset_id,
                sa.func.min(_versions.c.version).label("oldest"),
                sa.func.max(_versions.c.version).label("newest"),
            )
            .group_by(_versions.c.dataset_id)
            .subquery()
        )
        up_to_date = (
            sa.select(kept.c.dataset_id)
            .join(_views, _views.c.dataset_id == kept.c.dataset_id)
            .where(_views.c.format.in_(formats), _views.c.oldest == kept.c.oldest, _views.c.newest == kept.c.newest)
            .group_by(kept.c.dataset_id)
            .having(sa.func.count() == len(formats))
        )
        query = sa.select(kept.c.dataset_id).where(kept.c.dataset_id.not_in(up_to_date)).order_by(kept.c.dataset_id)
        with self._context.read() as connection:
            return connection.execute(query).scalars().all()

    def others(self, formats: Sequence[str]) -> Sequence[View]:
        """Return the views in formats other than these."""
        query = records.select(View, _views).where(_views.c.format.not_in(formats))
        with self._context.read() as connection:
            return records.every(connection, View, query)

    def forget(self, view: View) -> None:
        mine = (_views.c.dataset_id == view.dataset_id) & (_views.c.format == view.format)
        with self._context.write() as connection:
            connection.execute(_views.delete().where(mine))
