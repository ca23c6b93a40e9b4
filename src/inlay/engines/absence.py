"""Fields that only some rows of a source lack, as hidden columns.

A record of JSON, or a dict, that lacks a field differs from one in which the field is null. For each field that some
rows lack, the source has a hidden column. In an opened source, it locates each row that lacks the field, such as
`row 3`, and is NULL for other rows. In a loaded source, it is boolean: True where the field is absent. A field inside
the objects of a column has a hidden column of its own, which only an opened source has.
"""

from __future__ import annotations

from inlay.schema import Path

__all__ = ["absence_column", "absent_path"]

_PREFIX = "\x1fabsent:"  # no program writes a column name that begins with a control character
_SEPARATOR = "\x1f"


def absence_column(*path: str) -> str:
    """Return the name of the hidden column of a field, which is named by its path from the column."""
    return _PREFIX + _SEPARATOR.join(path)


def absent_path(column: str) -> Path | None:
    """Return the path of the field of a hidden column, or None for another column."""
    return tuple(column.removeprefix(_PREFIX).split(_SEPARATOR)) if column.startswith(_PREFIX) else None
