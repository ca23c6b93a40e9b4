"""Formats numbers, sizes and times for people."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["ago", "count", "duration", "plural", "size", "until"]


_STEPS = ((60, "second"), (60, "minute"), (24, "hour"), (30, "day"), (12, "month"))


def size(number: int) -> str:
    """Format a number of bytes: 999 bytes, 1.5 MB, 120 GB."""
    amount, unit = float(number), "bytes"
    for larger in ("KB", "MB", "GB", "TB", "PB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return (
        f"{number:,} {plural(number, 'byte')}" if unit == "bytes" else f"{amount:.{0 if amount >= 100 else 1}f} {unit}"
    )


def count(number: int, noun: str) -> str:
    """Format a count with its noun: 1 row, 2,000 rows."""
    return f"{number:,} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


def ago(moment: datetime, now: datetime | None = None) -> str:
    """Format a past moment: just now, 5 minutes ago, 2 days ago."""
    amount = max(0, int(((now or datetime.now(UTC)) - moment).total_seconds()))
    return "just now" if amount < 10 else f"{_largest_unit(amount)} ago"


def until(moment: datetime, now: datetime | None = None) -> str:
    """Format a future moment, rounded down: soon, in 5 minutes, in 2 days."""
    amount = int((moment - (now or datetime.now(UTC))).total_seconds())
    return "soon" if amount < 10 else f"in {_largest_unit(amount)}"


def _largest_unit(amount: int) -> str:
    """Format seconds as a number of the largest unit that fits."""
    for limit, noun in _STEPS:
        if amount < limit:
            return count(amount, noun)
        amount //= limit
    return count(amount, "year")


def duration(seconds: float) -> str:
    """Format a duration: 35 ms, 2.4 s, 42 s, 3 min 5 s, 2 h."""
    milliseconds, whole = round(seconds * 1000), round(seconds)
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if whole < 60:
        return f"{milliseconds / 1000:.1f} s" if milliseconds < 9950 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
