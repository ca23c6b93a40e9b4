"""The mapping of the columns of a file to the columns of a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from inlay.errors import InvalidArgumentError, did_you_mean
from inlay.text.reader import Survey

__all__ = ["ColumnMapping"]


@dataclass(frozen=True)
class ColumnMapping:
    """The names that the columns of a file get, or None for columns to ignore. Other columns keep their names."""

    names: Mapping[str, str | None] = field(default_factory=dict)
    added: tuple[pa.Field, ...] = ()  # the columns that the dataset gets

    def in_file(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a schema that the file can have, with their names in the file."""
        sources = {name: source for source, name in self.names.items() if name is not None}
        taken = {source for source, name in self.names.items() if name != source}
        fields = [each.with_name(sources.get(each.name, each.name)) for each in schema]
        return pa.schema([each for each in fields if each.name in sources.values() or each.name not in taken])

    def evolved(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the dataset with the added columns."""
        return pa.schema([*schema, *self.added], schema.metadata)

    def required(self, schema: pa.Schema) -> set[str]:
        """Return the names in the file of the columns that the dataset already has."""
        added = {each.name for each in self.added}
        return set(self.in_file(pa.schema([each for each in schema if each.name not in added])).names)

    def renamed(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a file with their names in the dataset."""
        pairs = [(each, self.names.get(each.name, each.name)) for each in schema]
        return pa.schema([each.with_name(name) for each, name in pairs if name is not None], schema.metadata)

    def __call__(self, table: pa.Table) -> pa.Table:
        kept = [name for name in table.column_names if self.names.get(name, name) is not None]
        return table.select(kept).rename_columns([str(self.names.get(name, name)) for name in kept])

    def check(self, survey: Survey) -> None:
        """Raise if the file lacks a column of the mapping, or if two of its columns get one name."""
        known = survey.kinds if survey.schema is None else survey.schema.names
        if survey.options.format != "json":  # JSON records can have a field that the first ones lack
            self._require_columns(known)
        counts = Counter(name for each in known if (name := self.names.get(each, each)) is not None)
        if repeated := [name for name, count in counts.items() if count > 1]:
            raise InvalidArgumentError(
                f"Two columns of the file become the column {repeated[0]!r}.",
                hint="Ignore one of them: map it to null.",
            )
        if survey.schema is not None:
            self._require_types(self.renamed(survey.schema))

    def _require_columns(self, known: Iterable[str]) -> None:
        names = list(known)
        missing = [name for name in self.names if name not in names]
        if missing:
            raise InvalidArgumentError(
                f"The mapping names the column {missing[0]!r}, which the file does not have.",
                hint=did_you_mean(missing[0], names) or f"The columns of the file are: {', '.join(names[:20])}.",
            )

    def _require_types(self, schema: pa.Schema) -> None:
        """Raise if a new column has another type in a Parquet file, whose types never change."""
        for each in self.added:
            found = schema.field(each.name).type if each.name in schema.names else each.type
            if not found.equals(each.type):
                raise InvalidArgumentError(
                    f"The new column {each.name!r} is {found} in the file, not {each.type}.",
                    hint="The types of a Parquet file don't change. Add the column with its type in the file.",
                )
