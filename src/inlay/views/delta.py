"""A view as a table of Delta Lake: a log of JSON files, of which number n describes version n of the dataset.

    _delta_log/<n>.json     the files that version n adds and removes

The log begins with the oldest kept version, whose entry has all files. Delta Lake counts from 0, and checkpoints, which
could replace older entries, are either files whose names end in `.parquet`, so that they look like data to readers of
the parent directory, or a feature that polars does not know. So empty entries stand for older versions: their table
has one file that does not exist, so that no reader takes them for data. An unknown writer feature keeps other programs
from writing to the table.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime as dt
import decimal
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote

import pyarrow as pa

from inlay.errors import InvalidArgumentError
from inlay.schema import storage_type
from inlay.views import DataFile, Folder, Version, Versions, can_continue, inexpressible_error
from inlay.views.columns import Shape, Statistics, Value, partition_values, read_statistics

__all__ = ["DeltaView"]

_LOG = "_delta_log"
_READ_ONLY = "inlayView"  # No writer knows this feature, so none writes to the table.
_ENTRY = re.compile(r"([0-9]{20})\.json")
_DROPPED = "this-version-is-dropped"  # the file of the versions before the first, which does not exist
# The dropped versions that the log may contain, before it is written again from a later version.
_FEW_DROPPED, _MANY_DROPPED, _FILES_PER_DROPPED = 10, 1_000, 10
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_Action = dict[str, Any]
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class DeltaView:
    """A view as a table of Delta Lake."""

    data: ClassVar = ""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def newest(self) -> int | None:
        head = self._read_newest()
        return None if head is None else head.version

    def _numbers(self) -> list[int]:
        return sorted(int(match[1]) for name in self._folder.names(_LOG) if (match := _ENTRY.fullmatch(name)))

    def publish(self, versions: Versions, *, exact: bool = False) -> None:
        oldest, last = versions.numbers[0], versions.numbers[-1]
        head = self._read_newest()
        is_other = head is not None and not head.is_of(versions)
        if is_other and not exact:
            raise InvalidArgumentError(
                f"{self._folder.path!r} shows versions of another history.",
                hint='Run inlay.publish(path, "delta") to write the view again.',
            )
        start = None if is_other or head is None else self._first_entry(head)
        entries = []  # All columns are checked before the first write.
        before = head if head is not None and not is_other and can_continue(versions, head.version) else None
        for number in range(oldest if before is None else before.version + 1, last + 1):
            entries.append(_Entry.of(versions, number, before, head))
            before = entries[-1].head
        if is_other:
            self._folder.delete(f"{_LOG}/{name}" for name in sorted(self._folder.names(_LOG), reverse=True))
        for entry in entries:
            self._write_entry(versions, entry)
        start = entries[0].version.number if start is None else start
        self._trim(start, oldest, exact=exact or any(entry.is_start for entry in entries))
        if exact:
            files = (file for number in versions.numbers for file in _new_files(versions, number))
            self._folder.retain(files, beside=_LOG)

    def _read_newest(self) -> _Head | None:
        """Return what the newest entry says about its version. An interrupted call may have added empty entries."""
        heads = (self._read_head(number) for number in reversed(self._numbers()))
        return next((head for head in heads if head is not None), None)

    def _first_entry(self, head: _Head) -> int:
        """Return the first version that the log shows. The entries of dropped versions before it are empty."""
        numbers = [number for number in self._numbers() if number <= head.version]
        return numbers[bisect.bisect_left(numbers, True, key=lambda number: self._read_head(number) is not None)]

    def _read_head(self, number: int) -> _Head | None:
        """Return what an entry says about its version, or None if it is empty."""
        with self._folder.open(_entry(number)) as file:
            info = json.loads(file.readline()).get("commitInfo", {})
        if "inlay" not in info:
            raise InvalidArgumentError(
                f"Another program has written version {number} of the table in {self._folder.path!r}, which is a view"
                " and follows the dataset only.",
                hint="Run inlay.unpublish(path), then inlay.publish(path, format) to write the view again.",
            )
        return None if info["inlay"] is None else _Head.load(info["inlay"])

    def _write_entry(self, versions: Versions, entry: _Entry) -> None:
        version, table = entry.version, entry.table
        definition = [_encode(action) for action in table.definition(entry.head.table, version)]
        is_change = version.operation != "compact"
        adds = [_encode(action) for action in table.adds(versions, entry.files, is_change=is_change)]
        self._folder.add(entry.files)
        removed = [_quote(file) for file in entry.removed]
        if entry.is_start:
            present = self._numbers()
            for number in range(max(present, default=version.number) + 1, version.number):
                self._write_empty(number, version.at, [])  # as the version before, until the entry below is complete
            before = self._replay(0, present[-1]).adds.keys() if present else set()
            removed = [*(before - set(map(_quote, entry.files))), *([_DROPPED] if version.number else [])]
        removes = [_encode(_remove(path, version.at, is_change=is_change)) for path in removed]
        info = _encode(_commit_info(version, entry.head))
        lines = [info, *(definition if entry.is_redefined else []), *removes, *adds]
        self._write(_entry(version.number), lines, version.at)
        if version.number == versions.numbers[0]:
            self._folder.release(entry.removed)

    def _write(self, name: str, lines: Iterable[str], at: str) -> None:
        self._folder.write(name, "".join(f"{line}\n" for line in lines).encode(), at)

    def _write_empty(self, number: int, at: str, actions: Iterable[str]) -> None:
        info = {"timestamp": _milliseconds(at), "operation": "DROP", "operationParameters": {}, "inlay": None}
        self._write(_entry(number), [_encode({"commitInfo": info}), *actions], at)

    # --------------------------------------------------------------------------------------------------- trimming
    def _trim(self, start: int, oldest: int, *, exact: bool) -> None:
        """Begin the log with the oldest version, unless so few versions are dropped that it is not worth it."""
        numbers = self._numbers()
        dropped = oldest - start
        if dropped > 0 and (exact or dropped > _FEW_DROPPED):
            state = self._replay(start, oldest)
            if exact or dropped > min(_MANY_DROPPED, len(state.adds) // _FILES_PER_DROPPED):
                removes = [_encode(_remove(path, state.at, is_change=False)) for path in state.removed | {_DROPPED}]
                self._write(_entry(oldest), [state.info, *state.definition, *removes, *state.adds.values()], state.at)
                # In this order, the first new entry hides all dropped versions, and the others change no state.
                for number in range(start, oldest):
                    self._write_empty(number, state.at, [] if number else _dropped_table(state.definition))
                start = oldest
        if start and numbers[0]:  # A new or interrupted log lacks the empty entries.
            state = self._replay(start, start)
            for number in reversed(range(numbers[0])):
                self._write_empty(number, state.at, [] if number else _dropped_table(state.definition))

    def _replay(self, start: int, end: int) -> _State:
        """Return the state after an entry."""
        definition: dict[str, str] = {}
        state = _State()
        for number in range(start, end + 1):
            for line in self._lines(number):
                [(kind, action)] = json.loads(line).items()
                if kind == "add":
                    state.adds[action["path"]] = line
                    state.removed.discard(action["path"])
                elif kind == "remove":
                    state.adds.pop(action["path"], None)
                    state.removed.add(action["path"])
                elif kind == "commitInfo":
                    state.info = line
                    state.at = dt.datetime.fromtimestamp(action["timestamp"] / 1000, dt.UTC).isoformat()
                else:
                    definition[kind] = line
        state.definition = list(definition.values())
        return state

    def _lines(self, number: int) -> Iterator[str]:
        with self._folder.open(_entry(number)) as file:
            for line in file:
                yield line.decode().rstrip("\n")


@dataclass(slots=True)
class _State:
    """The lines of an entry that has the state of a version."""

    adds: dict[str, str] = field(default_factory=dict)  # by path
    removed: set[str] = field(default_factory=set)
    definition: list[str] = field(default_factory=list)
    info: str = ""
    at: str = ""


def _dropped_table(definition: Sequence[str]) -> list[str]:
    """Return the definition of a table whose only file does not exist."""
    columns = next(json.loads(line)["metaData"]["partitionColumns"] for line in definition if '"metaData"' in line)
    add = {"path": _DROPPED, "partitionValues": dict.fromkeys(columns), "size": 1, "modificationTime": 0}
    return [*definition, _encode({"add": add | {"dataChange": True}})]


def _remove(path: str, at: str, *, is_change: bool) -> _Action:
    return {"remove": {"path": path, "deletionTimestamp": _milliseconds(at), "dataChange": is_change}}


def _entry(number: int) -> str:
    return f"{_LOG}/{number:020d}.json"


def _new_files(versions: Versions, number: int) -> Sequence[DataFile]:
    return versions.files(number) if number == versions.numbers[0] else versions.read(number).added


@dataclass(frozen=True, slots=True)
class _Head:
    """What an entry says about its version."""

    version: int
    id: str
    table: str  # the identity of the table
    shape: Shape

    @classmethod
    def load(cls, content: _Action) -> _Head:
        return cls(content["version"], content["id"], content["table"], Shape.load(content["shape"]))

    def dump(self) -> _Action:
        return {"version": self.version, "id": self.id, "table": self.table, "shape": self.shape.dump()}

    def is_of(self, versions: Versions) -> bool:
        """Return whether the version is, or may have been, one of these versions."""
        if self.version > versions.numbers[-1]:
            return False
        return self.version < versions.numbers[0] or versions.read(self.version).id == self.id


@dataclass(frozen=True, slots=True)
class _Entry:
    """A version that the log lacks."""

    version: Version
    head: _Head
    table: _Table
    files: Sequence[DataFile]
    removed: Sequence[DataFile]
    is_start: bool  # The log begins with this version.
    is_redefined: bool  # The columns differ from those of the version before.

    @classmethod
    def of(cls, versions: Versions, number: int, before: _Head | None, published: _Head | None) -> _Entry:
        version = versions.read(number)
        if before is None:
            files, shape = versions.files(number), Shape()
            identity = str(uuid.uuid4()) if published is None else published.table
            shape = shape.changed(versions.location, files, [])
            head = _Head(number, version.id, identity, shape)
            return cls(version, head, _Table(shape), files, [], is_start=True, is_redefined=True)
        shape = before.shape.changed(versions.location, version.added, version.removed)
        table, head = _Table(shape), _Head(number, version.id, before.table, shape)
        is_redefined = not table.is_defined_like(_Table(before.shape))
        return cls(version, head, table, version.added, version.removed, is_start=False, is_redefined=is_redefined)


def _commit_info(version: Version, head: _Head) -> _Action:
    info = {
        "timestamp": _milliseconds(version.at),
        "operation": version.operation.upper(),
        "operationParameters": {},
        "engineInfo": "inlay",
        "userMetadata": _encode({"inlay.version": version.number}),
    }
    return {"commitInfo": info | {"inlay": head.dump()}}


def _milliseconds(at: str) -> int:
    return int(dt.datetime.fromisoformat(at).timestamp() * 1000)


def _quote(file: DataFile) -> str:
    return quote(file.name, safe="/=")


class _Table:
    """The columns of the table in one version."""

    def __init__(self, shape: Shape) -> None:
        self.schema, self._partitions = shape.schema(), shape.partition_columns
        names: dict[str, str] = {}
        for name in self.schema.names:
            if (other := names.setdefault(name.lower(), name)) != name:
                raise inexpressible_error("delta", name, f"its name differs from {other!r} only in case")
        self._fields = [_field(each, each.name) for each in self.schema]
        for name in self._partitions:
            if not isinstance(_type(self.schema.field(name).type, name), str):
                raise inexpressible_error("delta", name, "a partition column cannot be nested")
        shape.require_one_type(self.schema, lambda type_: _type(type_, ""), "delta")

    def is_defined_like(self, other: _Table) -> bool:
        return self._fields == other._fields and self._partitions == other._partitions

    def definition(self, table: str, version: Version) -> list[_Action]:
        """Return the protocol and the columns of the table."""
        features = ["timestampNtz"] if "timestamp_ntz" in _encode(self._fields) else []
        protocol: _Action = {"minReaderVersion": 3 if features else 1, "minWriterVersion": 7}
        protocol |= {"readerFeatures": features} if features else {}
        metadata = {
            "id": table,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": _encode({"type": "struct", "fields": self._fields}),
            "partitionColumns": self._partitions,
            "configuration": {},
            "createdTime": _milliseconds(version.at),
        }
        return [{"protocol": protocol | {"writerFeatures": [*features, _READ_ONLY]}}, {"metaData": metadata}]

    def adds(self, versions: Versions, files: Sequence[DataFile], *, is_change: bool) -> list[_Action]:
        found = read_statistics(versions.location, files, self.schema, self._partitions)
        return [self._add(file, stats, is_change) for file, stats in zip(files, found, strict=True)]

    def _add(self, file: DataFile, statistics: Statistics, is_change: bool) -> _Action:
        add = {
            "path": _quote(file),
            "partitionValues": self._partition_values(file),
            "size": file.size,
            "modificationTime": file.mtime_ns // 1_000_000,
            "dataChange": is_change,
            "stats": self._stats(statistics),
        }
        return {"add": add}

    def _partition_values(self, file: DataFile) -> dict[str, str | None]:
        values = partition_values(file, self.schema, self._partitions)
        texts = {name: value.cast(pa.string()).as_py() for name, value in values.items()}
        for name, text in texts.items():
            if text == "":
                raise inexpressible_error("delta", name, f"the path {file.path!r} has an empty value, which means NULL")
        return texts

    def _stats(self, statistics: Statistics) -> str:
        bounds: list[dict[str, Any]] = [{}, {}]
        for name, pair in statistics.bounds.items():
            type_ = storage_type(self.schema.field(name).type)
            with contextlib.suppress(OverflowError):  # Python has no such date, and Delta no text for it.
                for side, value in zip(bounds, [_bound(each, type_) for each in pair], strict=True):
                    side[name] = value
        low, high = bounds
        stats: dict[str, Any] = {"numRecords": statistics.rows}
        if low:
            stats |= {"minValues": low, "maxValues": high}
        return _encode(stats | {"nullCount": statistics.nulls})


def _bound(value: Value, type_: pa.DataType) -> int | float | str:
    if isinstance(value, int) and pa.types.is_timestamp(type_):
        moment = _EPOCH + dt.timedelta(microseconds=value)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0") + ("Z" if type_.tz else "")
    if isinstance(value, int) and pa.types.is_date(type_):
        return (_EPOCH + dt.timedelta(days=value)).date().isoformat()
    if isinstance(value, decimal.Decimal):
        if len(value.as_tuple().digits) > 15:  # JSON readers may use floats.
            raise OverflowError
        return float(value)
    return value


_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.uint8(): "short",
    pa.uint16(): "integer",
    pa.uint32(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
}


def _field(each: pa.Field, column: str) -> _Action:
    return {"name": each.name, "type": _type(each.type, column), "nullable": True, "metadata": {}}


def _type(arrow: pa.DataType, column: str) -> Any:
    """Return the type of Delta Lake for an Arrow type, or raise an error that names the column."""
    type_, types = storage_type(arrow), pa.types
    found: Any = _TYPES.get(type_)
    if types.is_fixed_size_binary(type_):
        found = "binary"
    elif types.is_decimal(type_) and type_.precision <= 38 and 0 <= type_.scale <= type_.precision:
        found = f"decimal({type_.precision},{type_.scale})"
    elif types.is_timestamp(type_) and type_.unit != "ns":
        found = "timestamp" if type_.tz else "timestamp_ntz"
    elif types.is_struct(type_) and type_.num_fields:
        found = {"type": "struct", "fields": [_field(type_.field(at), column) for at in range(type_.num_fields)]}
    elif types.is_map(type_):
        key, value = _type(type_.key_type, column), _type(type_.item_type, column)
        found = {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    elif types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        found = {"type": "array", "elementType": _type(type_.value_type, column), "containsNull": True}
    if found is None:
        raise inexpressible_error("delta", column, f"it has no type for {arrow}")
    return found
