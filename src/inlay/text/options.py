"""Read options of a file, as the user passes them or as inlay detects them."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from inlay.constants import FORMATS, MAX_COLUMNS, MAX_DECODED_BYTES, MAX_NAME_BYTES
from inlay.errors import InvalidArgumentError, UnreadableUploadError, did_you_mean, unknown

__all__ = ["Limits", "ReadOptions"]

_LAYOUTS = ("lines", "array", "objects")
_NOT_A_MARK = frozenset("\r\n\0")
_NOT_FOR_FILES = frozenset({"unicode-escape", "raw-unicode-escape", "idna", "punycode"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a file. Data that grows beyond them is an attack or a mistake."""

    decoded_bytes: int = MAX_DECODED_BYTES
    columns: int = MAX_COLUMNS  # each field of a nested column counts
    name_bytes: int = MAX_NAME_BYTES
    ratio: int = 1_000
    ratio_from: int = 256 << 20  # smaller content may have any ratio
    record_bytes: int = 64 << 20
    held_bytes: int = 256 << 20  # of a compressed Parquet file, which a preview holds in memory

    @classmethod
    def none(cls) -> Limits:
        """Return the limits of a user's own files: the memory and the disk of the machine limit them."""
        return cls(decoded_bytes=sys.maxsize, columns=sys.maxsize, name_bytes=sys.maxsize)

    def check_size(self, decoded: int, encoded: int) -> None:
        """Reject a file of `encoded` bytes whose content takes `decoded` bytes or more."""
        if decoded > self.decoded_bytes:
            raise UnreadableUploadError(
                f"The decoded file exceeds the limit of {self.decoded_bytes:,} bytes.",
                hint="Upload the data in parts, or increase INLAY_MAX_DECODED_BYTES.",
            )
        if decoded > self.ratio_from and decoded > encoded * self.ratio:
            raise UnreadableUploadError(
                f"The decoded file exceeds {self.ratio:,} times the {encoded:,} bytes of the upload.",
                hint="Upload the data in another format, for example as CSV.",
            )

    def check_count(self, columns: int) -> None:
        if columns > self.columns:
            raise UnreadableUploadError(
                f"The file has {columns:,} columns, more than the limit of {self.columns:,}.",
                hint="Check the delimiter, remove columns, or increase INLAY_MAX_COLUMNS.",
            )

    def check_names(self, names: Iterable[str]) -> None:
        for number, name in enumerate(names, 1):
            if len(name) > self.name_bytes or (not name.isascii() and len(name.encode()) > self.name_bytes):
                raise UnreadableUploadError(
                    f"The name of column {number:,} exceeds {self.name_bytes:,} bytes: {name[:50]!r} ...",
                    hint="Check whether the file has a header, shorten the name, or increase INLAY_MAX_NAME_BYTES.",
                )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of one format. inlay detects an option that is None."""

    format: str
    delimiter: str | None = None
    header: bool | None = None
    quote: str | None = None  # "" treats quotes as ordinary characters
    escape: str | None = None  # in addition to doubled quotes
    null_values: tuple[str, ...] = ()
    encoding: str | None = None
    layout: str | None = None  # JSON: one record per line, one array, or consecutive objects
    day_first: bool | None = None  # the order of 01/02/2024; None reads it only if the file proves the order

    @classmethod
    def of(cls, format: str, options: Mapping[str, Any] | None = None) -> ReadOptions:  # noqa: A002
        """Check options as the user passes them."""
        name = str(format).strip().lower()
        if name not in FORMATS:
            raise unknown("format", format, FORMATS)
        known = _OPTIONS[name]
        passed = dict(options or {})
        for key in sorted(str(key) for key in passed if key not in known):
            raise InvalidArgumentError(
                f"Unknown option {key!r} for {name}. Options: {', '.join(sorted(known)) or 'none'}.",
                hint=did_you_mean(key, known),
            )
        checked = {key: _CHECKS[key](key, value) for key, value in passed.items() if value is not None}
        return _distinct(cls(name, **checked))

    def with_detected(self, **detected: Any) -> ReadOptions:
        """Fill in detected values for options that the user did not pass."""
        more = {name: value for name, value in detected.items() if getattr(self, name) is None}
        return _distinct(replace(self, **more))

    def to_dict(self) -> dict[str, Any]:
        """Return the options of this format as JSON values."""
        known = _OPTIONS[self.format]
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name in known}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _distinct(options: ReadOptions) -> ReadOptions:
    """Require distinct characters. Drop an escape equal to the quote: doubled quotes are always read."""
    escape = "" if options.quote and options.escape == options.quote else options.escape
    special = [character for character in (options.delimiter, options.quote, escape) if character]
    if len(special) != len(set(special)):
        raise InvalidArgumentError(
            f"delimiter, quote and escape must be different characters, not {', '.join(map(repr, special))}."
        )
    return replace(options, escape=escape)


def _character(name: str, value: Any) -> str:
    text = {"\\t": "\t", "tab": "\t"}.get(value, value) if isinstance(value, str) else value
    if not isinstance(text, str) or len(text) != 1 or text in _NOT_A_MARK or ord(text) > 127:
        raise InvalidArgumentError(f"{name} must be one ASCII character other than a line end or NUL, not {value!r}.")
    return text


def _optional_character(name: str, value: Any) -> str:
    return "" if value == "" else _character(name, value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be true or false, not {value!r}.")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not all(isinstance(item, str) for item in values):
        raise InvalidArgumentError(f"{name} must be a list of strings, not {value!r}.")
    return tuple(dict.fromkeys(values))


def _encoding(name: str, value: Any) -> str:
    try:
        found = codecs.lookup(value)
        bytes(4).decode(found.name)  # fails for codecs such as base64 that do not decode to text
        if found.name in _NOT_FOR_FILES:
            raise LookupError(value)
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"Unknown {name} {value!r}.", hint="Use a name such as utf-8, utf-16, latin-1 or cp1252."
        ) from error
    return found.name


def _layout(name: str, value: Any) -> str:
    if value not in _LAYOUTS:
        raise InvalidArgumentError(
            f"{name} must be one of {', '.join(_LAYOUTS)}, not {value!r}.", hint=did_you_mean(value, _LAYOUTS)
        )
    return str(value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "delimiter": _character,
    "header": _flag,
    "quote": _optional_character,
    "escape": _optional_character,
    "null_values": _texts,
    "encoding": _encoding,
    "layout": _layout,
    "day_first": _flag,
}
_OPTIONS: dict[str, frozenset[str]] = {
    "csv": frozenset({"delimiter", "header", "quote", "escape", "null_values", "encoding", "day_first"}),
    "json": frozenset({"layout", "encoding", "day_first"}),
    "parquet": frozenset(),
}
