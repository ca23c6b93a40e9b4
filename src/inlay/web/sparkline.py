"""A line so small that it stands in a row of a table."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["sparkline"]

_WIDTH, _HEIGHT, _MARGIN = 96, 24, 3


def sparkline(values: Sequence[int], label: str) -> str:
    """The values from left to right as SVG, scaled between the lowest and the highest. `label` is text of ours."""
    points = [(_across(at, len(values)), _up(value, min(values), max(values))) for at, value in enumerate(values)]
    if len(points) == 1:
        points = [(_MARGIN, points[0][1]), *points]
    line = " ".join(f"{x:g},{y:g}" for x, y in points)
    x, y = points[-1]
    return (
        f'<svg class="inlay-spark" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{label}"><polyline points="{line}"/><circle cx="{x:g}" cy="{y:g}" r="2.5"/></svg>'
    )


def _across(at: int, count: int) -> float:
    return round(_MARGIN + (_WIDTH - 2 * _MARGIN) * (at / (count - 1) if count > 1 else 1), 1)


def _up(value: int, low: int, high: int) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return round(_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * share, 1)
