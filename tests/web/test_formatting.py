"""Tests of formatted numbers and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.web.formatting import ago, count, duration, size, until

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1_500, "1.5 KB"), (120_000_000_000, "120 GB")],
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"), (0.0354, "35 ms"), (1, "1.0 s"), (2.44, "2.4 s"), (42.2, "42 s"), (60, "1 min"),
        (185, "3 min 5 s"), (3600, "1 h"), (7_500, "2 h 5 min"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.sampled_from([1, 10, 60, 3600]).flatmap(lambda edge: st.floats(edge * 0.99, edge * 1.01)))
def test_durations_are_rounded_to_the_next_unit(seconds: float) -> None:
    """59.99 s is not shown as 60 s, nor 999.9 ms as 1000 ms."""
    text = duration(seconds)
    assert not text.startswith(("1000 ms", "60 s", "60 min", "10.0 s"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "just now"), (3, "just now"), (59, "59 seconds ago"), (60, "1 minute ago"), (7_200, "2 hours ago"),
     (86_400, "1 day ago"), (86_400 * 400, "1 year ago")],
)  # fmt: skip
def test_past_times(seconds: int, text: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "soon"), (3, "soon"), (59, "in 59 seconds"), (86_400 * 7 - 1, "in 6 days"), (86_400 * 7, "in 7 days")],
)
def test_future_times(seconds: int, text: str) -> None:
    assert until(NOW + timedelta(seconds=seconds), NOW) == text


def test_counts() -> None:
    assert (count(1, "row"), count(2_000, "row")) == ("1 row", "2,000 rows")
