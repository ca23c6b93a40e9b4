"""A view as a table of Apache Iceberg: a metadata file, and a snapshot for each version of the dataset.

    metadata/v<k>.metadata.json, version-hint.text      the table, with its newest snapshots
    metadata/<table>-snapshot-<n>.avro                  the manifests of version n
    metadata/<table>-manifest-<bucket>-<n>.avro         the files of a bucket, as they are from version n on
    data/                                               the data files

The name of a file decides its bucket, so a commit writes only the manifests of the files that it changes. The number of
a version is the ID of its snapshot, and its tag is `v<n>`. The package pyiceberg writes the Avro files.
"""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
import re
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, cast

import pyarrow as pa

from inlay.errors import EngineNotInstalledError, InvalidArgumentError
from inlay.schema import storage_type
from inlay.views import DataFile, Folder, Version, Versions, can_continue, inexpressible_error
from inlay.views.columns import Shape, Statistics, partition_values, plain_values, read_statistics
from inlay.views.iceberg_types import Ids, Numbering, all_ids, iceberg_type, is_promotion, name_mapping, signature_of

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import PrimitiveType

__all__ = ["IcebergView"]

_METADATA, _DATA = "metadata", "data"
_TABLE = re.compile(r"v([0-9]+)\.metadata\.json")
_MANIFEST = re.compile(r"-manifest-([0-9]+)-")
_FILES_PER_BUCKET = 500
_FIRST_PARTITION_ID = 1000
_ID_OF_0 = 1 << 62
_STATE = "inlay"  # the property of the table with the state of the view


class IcebergView:
    """A view as a table of Apache Iceberg."""

    data: ClassVar = _DATA

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def newest(self) -> int | None:
        table = self._read_table()
        return None if table is None else _State.load(table).version

    def _numbers(self) -> list[int]:
        return sorted(int(match[1]) for name in self._folder.names(_METADATA) if (match := _TABLE.fullmatch(name)))

    def _read_table(self) -> dict[str, Any] | None:
        numbers = self._numbers()
        if not numbers:
            return None
        with self._folder.open(f"{_METADATA}/v{numbers[-1]}.metadata.json") as file:
            table: dict[str, Any] = json.load(file)
        if _STATE not in table["properties"] or table["current-snapshot-id"] != _id(_State.load(table).version):
            raise InvalidArgumentError(
                f"Another program has written to the table in {self._folder.path!r}, which is a view and follows the"
                " dataset only.",
                hint="Run inlay.unpublish(path), then inlay.publish(path, format) to write the view again.",
            )
        return table

    def publish(self, versions: Versions, *, exact: bool = False) -> None:
        _require_pyiceberg()
        oldest = versions.numbers[0]
        table = self._read_table()
        state = None if table is None else _State.load(table)
        if table is not None and state is not None and not state.is_of(versions, table, self._folder.path):
            if not exact:
                raise InvalidArgumentError(
                    f"{self._folder.path!r} shows versions of another history, or has moved.",
                    hint='Run inlay.publish(path, "iceberg") to write the view again.',
                )
            state = None
        if state is not None and not can_continue(versions, state.version):
            state = None
        steps = list(_steps(versions, state))
        if state is None or (steps and steps[0].is_start):
            state, table = _State(table=uuid.uuid4().hex[:8]), None
        writer = _Writer(self._folder, versions, state, table)
        for step in steps:
            writer.add(step)
        if steps or exact:
            self._commit(writer.table(oldest), is_new=bool(steps), exact=exact)
        for step in steps:
            if step.version.number == oldest:
                self._folder.release(step.version.removed, _DATA)
        if exact:
            first = steps[0].version.number if steps and steps[0].is_start else oldest
            kept = [number for number in versions.numbers if number >= first]
            later = (file for number in kept[1:] for file in versions.read(number).added)
            self._folder.retain(itertools.chain(versions.files(kept[0]), later), _DATA)

    def _commit(self, table: dict[str, Any], *, is_new: bool, exact: bool) -> None:
        """Replace the table, which is one file, then delete what only older tables need."""
        numbers = self._numbers()
        if is_new or table["snapshots"] != (self._read_table() or {}).get("snapshots"):
            number = max(numbers, default=0) + 1
            self._folder.write(f"{_METADATA}/v{number}.metadata.json", json.dumps(table).encode())
            numbers.append(number)
        self._folder.write(f"{_METADATA}/version-hint.text", str(numbers[-1]).encode())
        tables = {f"v{number}.metadata.json" for number in (numbers[-1:] if exact else numbers[-2:])}
        needed = {name for snapshot in table["snapshots"] for name in _files_of(snapshot)} | tables
        unneeded = set(self._folder.names(_METADATA)) - needed - {"version-hint.text"}
        self._folder.delete(f"{_METADATA}/{name}" for name in unneeded)


def _require_pyiceberg() -> None:
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise EngineNotInstalledError(
            "Views of the format 'iceberg' need the package pyiceberg.", hint='Run: pip install "inlay[iceberg]".'
        ) from error


@dataclass(frozen=True, slots=True)
class _State:
    """What the view must know to add a version. It is a property of the table."""

    table: str  # begins the names of all Avro files, which are never replaced by those of another table
    version: int = -1
    id: str = ""
    shape: Shape = field(default_factory=Shape)
    ids: Ids = field(default_factory=dict)
    buckets: int = 1

    @classmethod
    def load(cls, table: Mapping[str, Any]) -> _State:
        content = json.loads(table["properties"][_STATE])
        return cls(**content | {"shape": Shape.load(content["shape"])})

    def dump(self) -> str:
        return json.dumps(asdict(self) | {"shape": self.shape.dump()})

    def is_of(self, versions: Versions, table: Mapping[str, Any], path: str) -> bool:
        if table["location"] != path or self.version > versions.numbers[-1]:
            return False
        return self.version < versions.numbers[0] or versions.read(self.version).id == self.id


@dataclass(frozen=True, slots=True)
class _Step:
    """A version that the table lacks."""

    version: Version
    shape: Shape
    columns: pa.Schema
    partitions: Sequence[str]
    is_start: bool  # The table begins with this version.


def _steps(versions: Versions, state: _State | None) -> Iterator[_Step]:
    """Return the versions to add. Begin behind a change of columns that a table of Iceberg cannot have."""
    steps: list[_Step] = []
    before = None if state is None else _checked(state.shape)
    shape = Shape() if state is None else state.shape
    for number in range(versions.numbers[0] if state is None else state.version + 1, versions.numbers[-1] + 1):
        version = versions.read(number)
        if before is None:
            shape = Shape().changed(versions.location, versions.files(number), [])
        else:
            shape = shape.changed(versions.location, version.added, version.removed)
        columns = _checked(shape)
        is_start = before is None or not _can_follow(before, columns)
        if is_start:
            steps.clear()
        steps.append(_Step(version, shape, *columns, is_start))
        before = columns
    return iter(steps)


def _checked(shape: Shape) -> tuple[pa.Schema, list[str]]:
    """Return the columns and the partition columns. Reject those that Iceberg cannot express."""
    schema, partitions = shape.schema(), shape.partition_columns
    for each in schema:
        _require_no_ids(each, each.name)
        type_ = storage_type(each.type)
        signature_of(type_, each.name)
        if each.name in partitions and pa.types.is_nested(type_):
            raise inexpressible_error("iceberg", each.name, "a partition column cannot be nested")
    shape.require_one_type(schema, lambda type_: signature_of(type_, ""), "iceberg")
    return schema, partitions


def _require_no_ids(each: pa.Field, column: str) -> None:
    """Reject files of an Iceberg table. Readers prefer the field IDs in the files to the names."""
    if b"PARQUET:field_id" in (each.metadata or {}):
        raise inexpressible_error("iceberg", column, "its files have the field IDs of another table")


def _can_follow(before: tuple[pa.Schema, list[str]], after: tuple[pa.Schema, list[str]]) -> bool:
    """Return whether Iceberg allows a change of columns: the types of columns with the same name hardly change."""
    (old, old_partitions), (new, new_partitions) = before, after
    if old_partitions != new_partitions or any(old.field(n).type != new.field(n).type for n in old_partitions):
        return False
    shared = set(old.names) & set(new.names)
    pairs = ((signature_of(old.field(n).type, n), signature_of(new.field(n).type, n)) for n in shared)
    return all(is_promotion(*pair) for pair in pairs)


# ------------------------------------------------------------------------------------------------------------- writing
class _Writer:
    """Adds snapshots to a table that `table` returns."""

    def __init__(self, folder: Folder, versions: Versions, state: _State, table: dict[str, Any] | None) -> None:
        self._folder, self._versions, self._state = folder, versions, state
        self._schemas: list[Any] = [] if table is None else table["schemas"]
        self._specs: list[Any] = [] if table is None else table["partition-specs"]
        self._snapshots: list[Any] = [] if table is None else table["snapshots"]
        self._uuid = str(uuid.uuid4()) if table is None else table["table-uuid"]
        self._avro = _Avro(folder)
        self._columns = pa.schema([])

    def add(self, step: _Step) -> None:
        """Write the manifests of a version, and add its snapshot."""
        fields = [(each.name, signature_of(each.type, each.name)) for each in step.columns]
        ids = Numbering(self._state.ids).add(self._state.ids, fields)
        number, last = step.version.number, self._snapshots[-1] if self._snapshots else None
        files = self._versions.files(number) if step.is_start else step.version.added
        removed = [] if step.is_start else step.version.removed
        buckets = max(1, len(files) // _FILES_PER_BUCKET) if step.is_start else self._state.buckets
        self._state = replace(
            self._state, version=number, id=step.version.id, shape=step.shape, ids=ids, buckets=buckets
        )
        schema = self._add_schema(fields)
        spec = self._spec(step.partitions)
        self._folder.add(files, _DATA)
        manifests = {} if last is None else self._avro.read_manifests(last)
        changed = self._changed(step, files, removed, schema, spec)
        for bucket, (added, gone) in sorted(changed.items()):
            name = f"{self._state.table}-manifest-{bucket}-{number}.avro"
            previous = manifests.pop(bucket, None)
            written = self._avro.write_manifest(name, _id(number), schema, spec, previous, added, gone)
            if written is not None:
                manifests[bucket] = written
        self._add_snapshot(step, last, schema.schema_id, [manifests[bucket] for bucket in sorted(manifests)])

    def _add_schema(self, fields: Sequence[tuple[str, Any]]) -> Schema:
        from pyiceberg.schema import Schema
        from pyiceberg.types import NestedField

        ids = self._state.ids
        nested = [NestedField(ids[n][0], n, iceberg_type(s, ids[n][1]), required=False) for n, s in fields]
        known = [Schema.model_validate(each) for each in self._schemas]
        same = next((each for each in known if list(each.fields) == nested), None)
        if same is not None:
            return same
        schema = Schema(*nested, schema_id=len(known), identifier_field_ids=[])
        self._schemas.append(json.loads(schema.model_dump_json()))
        return schema

    def _spec(self, partitions: Sequence[str]) -> PartitionSpec:
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        fields = [
            PartitionField(self._state.ids[name][0], _FIRST_PARTITION_ID + at, IdentityTransform(), name)
            for at, name in enumerate(partitions)
        ]
        spec = PartitionSpec(*fields, spec_id=0)
        self._specs = [json.loads(spec.model_dump_json())]
        return spec

    def _changed(
        self, step: _Step, files: Sequence[DataFile], removed: Sequence[DataFile], schema: Schema, spec: PartitionSpec
    ) -> dict[int, tuple[list[IcebergFile], set[str]]]:
        """Return the added files and the paths of removed files by bucket."""
        changed: dict[int, tuple[list[IcebergFile], set[str]]] = {}
        for file in removed:
            changed.setdefault(self._bucket(file), ([], set()))[1].add(self._path(file))
        found = read_statistics(self._versions.location, files, step.columns, step.partitions)
        for file, statistics in zip(files, found, strict=True):
            added = self._iceberg_file(step, file, statistics, schema, spec)
            changed.setdefault(self._bucket(file), ([], set()))[0].append(added)
        return changed

    def _bucket(self, file: DataFile) -> int:
        return zlib.crc32(file.path.encode("utf-8", "surrogateescape")) % self._state.buckets

    def _path(self, file: DataFile) -> str:
        return self._folder.full(file, _DATA)

    def _iceberg_file(
        self, step: _Step, file: DataFile, statistics: Statistics, schema: Schema, spec: PartitionSpec
    ) -> IcebergFile:
        from pyiceberg.conversions import to_bytes
        from pyiceberg.manifest import DataFile as IcebergFile
        from pyiceberg.manifest import DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        values = partition_values(file, step.columns, step.partitions)
        partition = [plain_values(pa.array([value.as_py()], value.type))[0] for value in values.values()]
        ids = {name: self._state.ids[name][0] for name in step.columns.names}
        bounds: list[dict[int, bytes]] = [{}, {}]
        for name, pair in statistics.bounds.items():
            for side, value in zip(bounds, pair, strict=True):
                side[ids[name]] = to_bytes(cast("PrimitiveType", schema.find_type(ids[name])), value)
        made = IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._path(file),
            file_format=FileFormat.PARQUET,
            partition=Record(*partition),
            record_count=statistics.rows,
            file_size_in_bytes=file.size,
            column_sizes={},
            value_counts={ids[name]: statistics.rows for name in statistics.nulls},
            null_value_counts={ids[name]: count for name, count in statistics.nulls.items()},
            nan_value_counts={},
            lower_bounds=bounds[0],
            upper_bounds=bounds[1],
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
        )
        made.spec_id = spec.spec_id
        return made

    def _add_snapshot(
        self, step: _Step, last: dict[str, Any] | None, schema_id: int, manifests: Sequence[ManifestFile]
    ) -> None:
        number = step.version.number
        sequence = 1 if last is None else last["sequence-number"] + 1
        name = f"{self._state.table}-snapshot-{number}.avro"
        parent = None if last is None else last["snapshot-id"]
        self._avro.write_manifest_list(name, _id(number), parent, sequence, manifests)
        at = int(dt.datetime.fromisoformat(step.version.at).timestamp() * 1000)
        summary = {
            "operation": _operation(step),
            "inlay.version": str(number),
            "inlay.manifests": " ".join(each.manifest_path.rpartition("/")[2] for each in manifests),
        }
        snapshot = {
            "snapshot-id": _id(number),
            "sequence-number": sequence,
            "timestamp-ms": at if last is None else max(at, last["timestamp-ms"]),
            "manifest-list": f"{self._folder.path}/{_METADATA}/{name}",
            "summary": summary,
            "schema-id": schema_id,
        }
        self._snapshots.append(snapshot | ({} if parent is None else {"parent-snapshot-id": parent}))

    def table(self, oldest: int) -> dict[str, Any]:
        """Return the metadata of the table with the snapshots from a version on."""
        snapshots = [each for each in self._snapshots if int(each["summary"]["inlay.version"]) >= oldest]
        last = snapshots[-1]
        ids = list(all_ids(self._state.ids))
        properties = {
            _STATE: self._state.dump(),
            "schema.name-mapping.default": json.dumps(name_mapping(self._state.ids)),
        }
        tags = {
            f"v{each['summary']['inlay.version']}": {"snapshot-id": each["snapshot-id"], "type": "tag"}
            for each in snapshots
        }
        return {
            "format-version": 2,
            "table-uuid": self._uuid,
            "location": self._folder.path,
            "last-sequence-number": last["sequence-number"],
            "last-updated-ms": last["timestamp-ms"],
            "last-column-id": max(ids, default=0),
            "current-schema-id": last["schema-id"],
            "schemas": self._schemas,
            "default-spec-id": 0,
            "partition-specs": self._specs,
            "last-partition-id": _FIRST_PARTITION_ID + len(self._specs[0]["fields"]) - 1,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": properties,
            "current-snapshot-id": last["snapshot-id"],
            "refs": {"main": {"snapshot-id": last["snapshot-id"], "type": "branch"}} | tags,
            "snapshots": snapshots,
            "snapshot-log": [{key: each[key] for key in ("snapshot-id", "timestamp-ms")} for each in snapshots],
            "metadata-log": [],
            "statistics": [],
        }


def _id(version: int) -> int:
    """Return the ID of the snapshot of a version. Readers take the ID 0 for the newest snapshot."""
    return version or _ID_OF_0


def _files_of(snapshot: dict[str, Any]) -> list[str]:
    """Return the names of the Avro files of a snapshot."""
    return [snapshot["manifest-list"].rpartition("/")[2], *snapshot["summary"]["inlay.manifests"].split()]


def _operation(step: _Step) -> str:
    if step.version.operation == "compact":
        return "replace"
    if step.is_start or not step.version.removed:
        return "append"
    return "overwrite" if step.version.added else "delete"


class _Avro:
    """Reads and writes the Avro files of a table."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def _name(self, path: str) -> str:
        return f"{_METADATA}/{path.rpartition('/')[2]}"

    def new_input(self, path: str) -> _Input:
        with self._folder.open(self._name(path)) as file:
            return _Input(path, file.read())

    def read_manifests(self, snapshot: dict[str, Any]) -> dict[int, ManifestFile]:
        """Return the manifests of a snapshot by bucket."""
        from pyiceberg.manifest import read_manifest_list

        found = read_manifest_list(self.new_input(snapshot["manifest-list"]))  # type: ignore[arg-type]
        return {int(_MANIFEST.search(each.manifest_path)[1]): each for each in found}  # type: ignore[index]

    def write_manifest(
        self,
        name: str,
        snapshot: int,
        schema: Schema,
        spec: PartitionSpec,
        previous: ManifestFile | None,
        added: Sequence[IcebergFile],
        gone: set[str],
    ) -> ManifestFile | None:
        """Write a manifest with the files of an older one and with changes. Return None if it has no files."""
        from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, write_manifest

        present: list[ManifestEntry] = [] if previous is None else previous.fetch_manifest_entry(self)  # type: ignore[arg-type]
        if not present and not added:
            return None
        output = _Output(f"{self._folder.path}/{_METADATA}/{name}")
        with write_manifest(2, spec, schema, output, snapshot, "deflate") as writer:  # type: ignore[arg-type]
            for entry in present:
                (writer.delete if entry.data_file.file_path in gone else writer.existing)(entry)
            for file in added:
                entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=snapshot, data_file=file)
                writer.add_entry(entry)
        self._folder.write(f"{_METADATA}/{name}", output.content)
        return writer.to_manifest_file()

    def write_manifest_list(
        self, name: str, snapshot: int, parent: int | None, sequence: int, manifests: Sequence[ManifestFile]
    ) -> None:
        from pyiceberg.manifest import write_manifest_list

        output = _Output(f"{self._folder.path}/{_METADATA}/{name}")
        with write_manifest_list(2, output, snapshot, parent, sequence, "deflate") as writer:  # type: ignore[arg-type]
            writer.add_manifests(list(manifests))
        self._folder.write(f"{_METADATA}/{name}", output.content)


class _Input:
    """A file in memory, as the Avro reader expects it."""

    def __init__(self, location: str, content: bytes) -> None:
        self.location, self._content = location, content

    def __len__(self) -> int:
        return len(self._content)

    def open(self, seekable: bool = True) -> BinaryIO:  # noqa: ARG002  (the reader's protocol)
        return io.BytesIO(self._content)


class _Output(io.BytesIO):
    """A file in memory, as the Avro writer expects it."""

    content = b""

    def __init__(self, location: str) -> None:
        super().__init__()
        self.location = location

    def __len__(self) -> int:
        return len(self.content) if self.closed else len(self.getvalue())

    def create(self, overwrite: bool = False) -> _Output:  # noqa: ARG002  (the writer's protocol)
        return self

    def close(self) -> None:
        if not self.closed:
            self.content = self.getvalue()
        super().close()
