"""Files as sources: paths, directories and globs of Parquet, Arrow, CSV and JSON files."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from inlay.commit.snapshot import hold_snapshot
from inlay.engines.text_files import TextFile, open_text
from inlay.errors import InvalidArgumentError, NotFoundError, UnreadableFileError, UnreadableSourceError, unknown
from inlay.parquet.footers import has_nanoseconds, int96_columns, require_nanoseconds
from inlay.parquet.layout import data_files, parse_hive_partition_path, visible_files
from inlay.schema import null_column, unify
from inlay.storage import Location, ObjectStore, expand_glob, locate
from inlay.text.decode import RawFile
from inlay.text.options import ReadOptions

__all__ = ["SCAN_OPTIONS", "open_path", "scan_fragments", "unreadable_source"]

Options: TypeAlias = Mapping[str, Any] | None

_SUFFIXES = {
    "csv": (".csv", ".tsv"),
    "json": (".json", ".jsonl", ".ndjson"),
    "parquet": (".parquet", ".parq", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
}
_TEXT_FORMATS = ("csv", "json")
_COMPRESSED = (".gz", ".gzip", ".zst", ".zstd")
_KNOWN_NAMES = (
    "inlay reads files named .csv, .tsv, .json, .jsonl, .ndjson, .arrow, .feather and .ipc in their formats, and all"
    ' other files as Parquet. Pass read_options={"format": "csv"} (--source-format csv) to set another format.'
)
# By default pyarrow reads 16 batches and 4 files ahead, which can take much memory.
SCAN_OPTIONS: dict[str, Any] = {
    "batch_size": 32_768,
    "batch_readahead": 1,
    "fragment_readahead": 1,
    "use_threads": False,
}


class _Files(NamedTuple):
    """Files of one format. `root` is the directory that the user passed, or None."""

    format: str
    paths: list[str]
    root: Location | None = None


@contextlib.contextmanager
def open_path(path: str, like: pa.Schema | None, storage_options: Options, read_options: Options) -> Iterator[Any]:
    """Yield the rows of a file, directory or glob: a pyarrow dataset of Parquet files, or a stream of batches.

    The rows of a directory of Parquet files are those of one snapshot: a pending commit is completed first.
    """
    requested = dict(read_options or {})
    files = _list_files(path, storage_options, requested.pop("format", None))
    if requested and files.format not in _TEXT_FORMATS:
        raise InvalidArgumentError(
            f"The read option {next(iter(requested))!r} applies to CSV and JSON files, but {path!r} is {files.format}.",
            hint="Remove the option.",
        )
    with contextlib.ExitStack() as stack:
        with _naming_errors(path):
            opened = stack.enter_context(
                _open_text(files, like, storage_options, requested)
                if files.format in _TEXT_FORMATS
                else _OPEN_TYPED[files.format](files, storage_options)
            )
        yield opened


@contextlib.contextmanager
def _naming_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (NotFoundError, UnreadableFileError):
        raise
    except FileNotFoundError as error:
        raise _missing(path) from error
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise unreadable_source(error, path) from error


def _missing(path: str) -> NotFoundError:
    return NotFoundError(f"The source {path!r} does not exist.", hint="Check the path.")


def unreadable_source(error: Exception, path: str | None = None) -> UnreadableSourceError:
    """Return the error to raise for an error of Arrow."""
    text = str(error).splitlines()[0]
    name = "the source" if path is None else f"the source {path!r}"
    if "Parquet magic bytes not found" in text or "Parquet file size is" in text:
        return UnreadableSourceError(f"Cannot read {name}: it is not a Parquet file.", hint=_KNOWN_NAMES)
    return UnreadableSourceError(f"Cannot read {name}: {text}")


# ------------------------------------------------------------------------------------------------- names and formats
def _suffixes(path: str) -> tuple[str, bool]:
    """Return the suffix that tells the format of a file, and whether a suffix of a compression follows it."""
    stem, suffix = os.path.splitext(posixpath.basename(path).lower())
    return (os.path.splitext(stem)[1], True) if suffix in _COMPRESSED else (suffix, False)


def _format_of(path: str) -> str | None:
    """Return the format that the name of a file tells. Only text files may be compressed."""
    suffix, is_compressed = _suffixes(path)
    formats = _TEXT_FORMATS if is_compressed else _SUFFIXES
    return next((kind for kind in formats if suffix in _SUFFIXES[kind]), None)


def _list_files(path: str, storage_options: Options, requested: str | None) -> _Files:
    """List the files of a path or glob. `requested` is the format that the user passed."""
    if requested is not None and requested not in _SUFFIXES:
        raise unknown("format", requested, _SUFFIXES)
    if any(c in path for c in "*?["):
        files = list(expand_glob(path, storage_options))
        return _of_one_format(path, {file: requested or _format_of(file) or "parquet" for file in files})
    location = locate(path, storage_options=storage_options)
    if not location.store.is_directory(location.path):
        _reject_stream(path)
        return _Files(requested or _format_of(path) or "parquet", [path])
    formats = {file.path: requested or _format_of(file.path) for file in visible_files(location)}
    if requested is None:
        formats |= {file.path: "parquet" for file in data_files(location)}
    known = {location.display(name): kind for name, kind in formats.items() if kind is not None}
    found = _of_one_format(path, known)._replace(root=location)
    if found.format != "parquet":
        _reject_partitions(path, list(formats))
    return found


def _reject_stream(path: str) -> None:
    if os.path.exists(path) and not os.path.isfile(path):
        raise UnreadableSourceError(
            f"The source {path!r} is a pipe or a device, which can be read only once.",
            hint="Write the rows to a file first, or run `inlay merge`, which reads pipes.",
        )


def _reject_partitions(path: str, names: Sequence[str]) -> None:
    """Reject directories such as `day=1` above files that are not Parquet, because the value would be lost."""
    for name in names:
        for column in parse_hive_partition_path(name):
            raise UnreadableSourceError(
                f"The source {path!r} contains {name!r}, whose path has a value of the column {column!r}. inlay reads"
                " such columns only with Parquet files.",
                hint="Add the column to the files, or pass the directories one by one.",
            )


def _of_one_format(path: str, formats: Mapping[str, str]) -> _Files:
    if not formats:
        raise NotFoundError(
            f"The source {path!r} has no files to read.", hint=f"Check the path. In a directory, {_KNOWN_NAMES}"
        )
    examples = {kind: file for file, kind in reversed(list(formats.items()))}
    if len(examples) > 1:
        listed = " and ".join(f"{file!r} ({kind})" for kind, file in sorted(examples.items()))
        raise UnreadableSourceError(
            f"The source {path!r} has files of several formats: {listed}.",
            hint="Pass a glob that matches the files of one format, such as 'directory/*.csv'.",
        )
    return _Files(next(iter(examples)), list(formats))


# -------------------------------------------------------------------------------------------------------------- text
@contextlib.contextmanager
def _open_text(
    files: _Files, like: pa.Schema | None, storage_options: Options, read_options: Mapping[str, Any]
) -> Iterator[pa.RecordBatchReader]:
    found = []
    for path in files.paths:
        tabs = {"delimiter": "\t"} if _suffixes(path)[0] == ".tsv" else {}
        options = ReadOptions.of(files.format, tabs | dict(read_options))
        found.append(TextFile(path, _raw_file(path, storage_options), options))
    with open_text(found, like) as reader:
        yield reader


def _raw_file(path: str, storage_options: Options) -> RawFile:
    location = locate(path, storage_options=storage_options)
    status = location.store.stat(location.path)
    if status is None:
        raise _missing(path)
    directory, name = posixpath.split(location.path)
    return RawFile(replace(location, path=directory), name, status.size)


# ------------------------------------------------------------------------------------------------------------- Arrow
@contextlib.contextmanager
def _open_arrow(files: _Files, storage_options: Options) -> Iterator[pa.RecordBatchReader]:
    """Yield the batches of Arrow IPC files or streams, such as Feather files."""
    locations = [locate(path, storage_options=storage_options) for path in files.paths]
    schemas = []
    for location in locations:
        with _ipc_reader(location) as (reader, _):
            schemas.append(reader.schema)
    schema = unify(schemas, files.paths)
    yield pa.RecordBatchReader.from_batches(schema, _arrow_batches(locations, schema))


@contextlib.contextmanager
def _ipc_reader(location: Location) -> Iterator[tuple[Any, Iterator[pa.RecordBatch]]]:
    with location.store.open_arrow(location.path) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        with pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source) as reader:
            numbers = range(reader.num_record_batches) if is_file else ()
            yield reader, (map(reader.get_batch, numbers) if is_file else iter(reader))


def _arrow_batches(locations: Sequence[Location], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for location in locations:
        with _ipc_reader(location) as (_, batches):
            for batch in batches:
                yield from _widened(pa.Table.from_batches([batch]), schema).to_batches()


def _widened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows in the schema that unifies all files."""
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(null_column(len(table), field.type))
        else:
            column = table.column(field.name)
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.table(columns, schema=schema)


# ----------------------------------------------------------------------------------------------------------- Parquet
@contextlib.contextmanager
def _open_parquet(files: _Files, storage_options: Options) -> Iterator[Any]:
    """Yield a pyarrow dataset whose schema can hold the values of each file."""
    if files.root is None:
        locations = [locate(path, storage_options=storage_options) for path in files.paths]
        yield _parquet_dataset(locations[0], [location.path for location in locations], files.paths, None)
        return
    with hold_snapshot(files.root) as snapshot:
        location = snapshot.location
        paths = [location.full(file.path) for file in snapshot.files]
        names = [location.display(file.path) for file in snapshot.files]
        if not paths:
            raise NotFoundError(f"The source {location.uri!r} has no files to read.")
        yield _parquet_dataset(location, paths, names, location.root)


def _parquet_dataset(location: Location, paths: Sequence[str], names: Sequence[str], root: str | None) -> Any:
    import pyarrow.dataset as ds  # slow to import: it imports pandas if it is installed

    def make(**options: Any) -> Any:
        store = location.store.filesystem if isinstance(location.store, ObjectStore) else None
        options |= {"format": "parquet", "filesystem": store, "partitioning": "hive", "partition_base_dir": root}
        return ds.dataset(list(paths), **options)

    with _naming_errors(names[0]):  # pyarrow reads the footer of the first file
        dataset = make()
    schema = _unified_schema(dataset, names)
    if any(has_nanoseconds(field.type) for field in schema):
        _check_timestamps(dataset, names)
    return make(schema=schema)


def _unified_schema(dataset: Any, names: Sequence[str]) -> pa.Schema:
    """Return the columns of all files in types that can hold the values of each file."""

    def read_schema(named: tuple[str, Any]) -> pa.Schema:
        with _naming_errors(named[0]):
            return named[1].physical_schema

    with ThreadPoolExecutor(8, "inlay-source") as pool:
        schemas = list(pool.map(read_schema, zip(names, dataset.get_fragments(), strict=True)))
    inside = unify(schemas, names)
    stored = set(inside.names)
    return pa.schema([*inside, *(field for field in dataset.schema if field.name not in stored)], inside.metadata)


def _check_timestamps(dataset: Any, names: Sequence[str]) -> None:
    """Raise if a file has INT96 timestamps outside the range of nanoseconds."""
    import pyarrow.parquet as pq

    for name, fragment in zip(names, dataset.get_fragments(), strict=True):
        if columns := int96_columns(fragment.metadata.schema):
            require_nanoseconds(lambda f=fragment, **o: pq.ParquetFile(f.open(), **o), name, None, columns)


def scan_fragments(fragments: Iterable[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Scan one file after another, because a dataset scan keeps many row groups in memory."""
    for fragment in fragments:
        yield from fragment.to_batches(schema=schema, **SCAN_OPTIONS)


_OPEN_TYPED = {"arrow": _open_arrow, "parquet": _open_parquet}
