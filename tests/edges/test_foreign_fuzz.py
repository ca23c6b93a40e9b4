"""Random merges into directories that pandas, polars, DuckDB, pyarrow and Spark wrote, compared with the oracle.

The sources are tables, frames, rows, batches and files of every kind that inlay accepts. A part of the merges adds and
omits columns with `schema_mode="evolve"`. Every case ends in the right rows for every reader that read the directory
before the merge, or in an error that leaves the directory unchanged. Run one case again with `INLAY_FUZZ_SEED=17`.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import inlay
from inlay.engines import get_engine
from inlay.errors import InlayError
from tests import lake, oracle
from tests.edges.readers import files

IS_LONG = os.environ.get("INLAY_TEST_LONG") == "1"
CASES = 500 if IS_LONG else 30
FIRST = int(os.environ.get("INLAY_FUZZ_SEED") or 0)

START = dt.datetime(2025, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
COLUMNS: dict[str, tuple[list[pa.DataType], Callable[[random.Random], Any]]] = {
    "n": ([pa.int16(), pa.int32(), pa.int64()], lambda r: r.randrange(-99, 99)),
    "s": ([pa.string(), pa.large_string()], lambda r: r.choice(["a", "b c", "é", "x'y", "007"])),
    "f": ([pa.float32(), pa.float64()], lambda r: r.randrange(99) / 4),
    "d": ([pa.date32()], lambda r: dt.date(2025, 1, 1) + dt.timedelta(r.randrange(9))),
    "t": ([pa.timestamp(unit) for unit in ("ms", "us", "ns")], lambda r: START + dt.timedelta(seconds=r.randrange(99))),
    "z": ([pa.timestamp("us", "UTC")], lambda r: (START + dt.timedelta(hours=r.randrange(9))).replace(tzinfo=dt.UTC)),
    "m": ([pa.decimal128(9, 2), pa.decimal128(20, 2)], lambda r: Decimal(r.randrange(999)).scaleb(-2)),
    "b": ([pa.bool_()], lambda r: r.random() < 0.5),
    "c": ([pa.dictionary(pa.int32(), pa.string())], lambda r: r.choice(["red", "green"])),
}
#: columns that only a source has, of types that every source keeps
NEW_COLUMNS: dict[str, Callable[[random.Random], Any]] = {
    "extra": lambda r: r.randrange(-99, 99),
    "note": lambda r: r.choice(["x", "y z", None]),
}
PARTITIONS: dict[str, list[Any]] = {
    "i": [1, 2, 13, -4],
    "w": ["a b", "x=y", "é", "50%", "a\\b", "q/r"],
    "y": [dt.date(2025, 1, 2), dt.date(2024, 12, 31)],
}


@dataclass
class Case:
    """One directory and one merge into it. The random generator decides every option."""

    seed: int
    path: Path
    work: Path
    fields: list[pa.Field] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    written: pa.Table | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        chosen = sorted(self.random.sample(sorted(COLUMNS), self.random.randrange(1, 5)))
        id_type = self.random.choice([pa.int32(), pa.int64()])
        self.fields = [pa.field("id", id_type), *(pa.field(n, self.random.choice(COLUMNS[n][0])) for n in chosen)]
        count = self.random.choice([0, 0, 1, 1, 2])
        self.partitions = self.random.sample(sorted(PARTITIONS), count)
        self.fields += [pa.field(n, pa.array(PARTITIONS[n]).type) for n in self.partitions]
        self.schema = pa.schema(self.fields)

    def row(self, number: int) -> oracle.Row:
        values: oracle.Row = {"id": number}
        for name in self.schema.names[1:]:
            if name in PARTITIONS:
                of_id = PARTITIONS[name][number % len(PARTITIONS[name])]
                values[name] = self.random.choice(PARTITIONS[name]) if self.random.random() < 0.004 else of_id
            else:
                values[name] = None if self.random.random() < 0.2 else COLUMNS[name][1](self.random)
        return values

    def table(self, numbers: list[int]) -> pa.Table:
        return pa.Table.from_pylist([self.row(number) for number in numbers], self.schema)

    def evolved(self, table: pa.Table) -> pa.Table:
        """Add a new column to a source, and perhaps remove one that is neither a key nor a partition column."""
        name = self.random.choice(sorted(NEW_COLUMNS))
        omitted = [other for other in self.schema.names[1:] if other not in PARTITIONS and self.random.random() < 0.2]
        values = pa.array([NEW_COLUMNS[name](self.random) for _ in range(len(table))])
        return table.drop_columns(omitted[:1]).append_column(name, values)


# --------------------------------------------------------------------------------------------------------- writers
def _pandas(case: Case, table: pa.Table) -> None:
    if "n" in table.column_names:  # pandas turns integers with NULL into floats
        position = table.column_names.index("n")
        table = case.written = table.set_column(position, "n", table["n"].fill_null(0))
    frame = table.to_pandas()
    if case.random.random() < 0.3:
        frame.index = [f"r{number}" for number in range(len(frame))]
    if case.partitions:
        frame.to_parquet(case.path, partition_cols=case.partitions)
    else:
        case.path.mkdir()
        frame.to_parquet(case.path / "part.parquet", row_group_size=case.random.choice([1, 3, 100]))


def _polars(case: Case, table: pa.Table) -> None:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    case.path.mkdir()
    options: Any = {"compression": case.random.choice(["snappy", "zstd", "uncompressed"]), "row_group_size": 3}
    options["statistics"] = case.random.choice([True, False, "full"])
    if case.partitions:
        frame.write_parquet(case.path, partition_by=case.partitions, **options)
    else:
        frame.lazy().sink_parquet(case.path / case.random.choice(["00000000.parquet", "000000_0"]), **options)


def _duckdb(case: Case, table: pa.Table) -> None:
    options = [f"ROW_GROUP_SIZE {case.random.choice([1, 2048])}", "FORMAT parquet"]
    options.append(f"COMPRESSION {case.random.choice(['snappy', 'zstd', 'gzip'])}")
    target = case.path
    if case.partitions:
        options.append(f"PARTITION_BY ({', '.join(case.partitions)})")
        options.append(f"WRITE_PARTITION_COLUMNS {case.random.random() < 0.4}")
    else:
        case.path.mkdir()
        target = case.path / "data.parquet"
    with duckdb.connect() as connection:
        connection.register("rows", table)
        connection.execute(f"COPY (SELECT * FROM rows) TO '{target}' ({', '.join(options)})")


def _pyarrow(case: Case, table: pa.Table) -> None:
    options = ds.ParquetFileFormat().make_write_options(
        version=case.random.choice(["1.0", "2.4", "2.6"]),
        data_page_version=case.random.choice(["1.0", "2.0"]),
        use_dictionary=case.random.random() < 0.5,
        write_statistics=case.random.random() < 0.7,
        use_deprecated_int96_timestamps=case.random.random() < 0.2,
        coerce_timestamps="us" if case.random.random() < 0.3 else None,
    )
    layout = ds.partitioning(table.select(case.partitions).schema, flavor="hive") if case.partitions else None
    ds.write_dataset(
        table, case.path, format="parquet", file_options=options, partitioning=layout, max_rows_per_group=3,
        max_rows_per_file=case.random.choice([3, 100]),
        basename_template=case.random.choice(["part-{i}.parquet", "{i}_0", "part-{i}.snappy.parquet", "{i}.PARQUET"]),
    )  # fmt: skip


def _pyarrow_with_summary(case: Case, table: pa.Table) -> None:
    collected: list[pq.FileMetaData] = []
    pq.write_to_dataset(table, case.path, partition_cols=case.partitions or None, metadata_collector=collected)
    schema = pa.schema([f for f in table.schema if f.name not in case.partitions])
    if case.random.random() < 0.5:
        pq.write_metadata(schema, case.path / "_metadata", collected)
    pq.write_metadata(schema, case.path / "_common_metadata")


def _several_files(case: Case, table: pa.Table) -> None:
    """Write files that differ in column order, types, nullability and missing columns."""
    case.path.mkdir()
    half = len(table) // 2
    first, second = table.slice(0, half), table.slice(half)
    change = case.random.choice(["order", "narrow", "missing", "required", "none"])
    if change == "order":
        second = second.select(second.column_names[::-1])
    if change == "narrow":
        second = second.set_column(0, "id", second["id"].cast(pa.int16()))
    if change == "required":
        second = second.cast(pa.schema([second.schema.field(0).with_nullable(False), *list(second.schema)[1:]]))
    if change == "missing" and not case.partitions:
        last = table.column_names[-1]
        table = pa.concat_tables([first, second.set_column(len(table.column_names) - 1, last, _nulls(second, last))])
        second = second.drop_columns([last])
    for name, part in (("a.parquet", first), ("b.parquet", second)):
        pq.write_to_dataset(part, case.path, partition_cols=case.partitions or None, basename_template=f"{{i}}-{name}")
    case.written = table


def _spark(case: Case, table: pa.Table) -> None:
    from pyspark.sql import SparkSession

    session = SparkSession.active()
    pq.write_table(_microseconds(_decoded(table)), case.work / "written.parquet")
    rows = session.read.parquet(str(case.work / "written.parquet")).repartition(case.random.choice([1, 3]))
    writer = rows.write.option("compression", case.random.choice(["snappy", "zstd", "none"]))
    kind = case.random.choice(["INT96", "TIMESTAMP_MICROS"])
    session.conf.set("spark.sql.parquet.outputTimestampType", kind)
    (writer.partitionBy(*case.partitions) if case.partitions else writer).parquet(str(case.path))


def _nulls(table: pa.Table, name: str) -> pa.Array:
    return pa.nulls(len(table), table.schema.field(name).type)


Writer = Callable[[Case, pa.Table], None]
WRITERS: list[Writer] = [_pandas, _polars, _duckdb, _pyarrow, _pyarrow_with_summary, _several_files]


# --------------------------------------------------------------------------------------------------------- sources
def _csv(table: pa.Table, path: Path, delimiter: str = ",") -> None:
    pc_csv.write_csv(_decoded(table), path, pc_csv.WriteOptions(delimiter=delimiter))


def _json(table: pa.Table, path: Path) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in _json_rows(table)))


def _json_array(table: pa.Table, path: Path) -> None:
    path.write_text(json.dumps(_json_rows(table)))


def _json_rows(table: pa.Table) -> list[dict[str, Any]]:
    return [{name: _json_value(value) for name, value in row.items()} for row in table.to_pylist()]


def _json_value(value: Any) -> Any:
    return value if value is None or isinstance(value, (int, float, str)) else str(value)


def _arrow(table: pa.Table, path: Path, new: Callable[..., Any] = pa.ipc.new_file) -> None:
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def _decoded(table: pa.Table) -> pa.Table:
    plain = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in table.schema]
    return table.cast(pa.schema(plain))


def _spark_frame(case: Case, table: pa.Table) -> Any:
    from pyspark.sql import SparkSession

    pq.write_table(_microseconds(_decoded(table)), case.work / "frame.parquet")
    return SparkSession.active().read.parquet(str(case.work / "frame.parquet"))


def _microseconds(table: pa.Table) -> pa.Table:
    """Cast nanoseconds, which Spark does not have."""
    plain = [f.with_type(pa.timestamp("us")) if f.type == pa.timestamp("ns") else f for f in table.schema]
    return table.cast(pa.schema(plain))


def _files(case: Case, table: pa.Table, name: str) -> Path | str:
    """Write a file, or a directory of up to three files that is the source itself or matches a glob."""
    layout = case.random.choice(["file", "directory", "glob"])
    if layout == "file":
        FILES[name](table, case.work / name)
        return case.work / name
    folder = case.work / "source"
    folder.mkdir()
    cuts = sorted(case.random.randrange(len(table) + 1) for _ in range(2))
    for start, end in itertools.pairwise([0, *cuts, len(table)]):
        if end > start or not table.num_rows:
            FILES[name](table.slice(start, end - start), folder / f"{start:02}{name}")  # in the order of the rows
    return folder if layout == "directory" else f"{folder}/*{name}"


#: name of a file -> function that writes it
FILES: dict[str, Callable[[pa.Table, Path], None]] = {
    "rows.parquet": pq.write_table,
    "rows.csv": _csv,
    "rows.tsv": lambda table, path: _csv(table, path, "\t"),
    "semicolons.csv": lambda table, path: _csv(table, path, ";"),
    "rows.jsonl": _json,
    "array.json": _json_array,
    "rows.arrow": _arrow,
    "rows.ipc": _arrow,
    "stream.arrow": lambda table, path: _arrow(table, path, pa.ipc.new_stream),
    "rows.feather": lambda table, path: feather.write_feather(table, str(path), compression="zstd"),
}
SOURCES: dict[str, Callable[[Case, pa.Table], Any]] = {
    "table": lambda _, table: table,
    "shuffled columns": lambda _, table: table.select(table.column_names[::-1]),
    "reader": lambda _, table: table.to_reader(max_chunksize=2),
    "pandas": lambda _, table: table.to_pandas(),
    "polars": lambda _, table: pl.from_arrow(table),
    "duckdb": lambda _, table: duckdb.from_arrow(table),
    "dicts": lambda _, table: table.to_pylist(),
    "list of batches": lambda _, table: table.to_batches(max_chunksize=2),
    "generator of batches": lambda _, table: (batch for batch in table.to_batches(max_chunksize=2)),
    **{name: lambda case, table, name=name: _files(case, table, name) for name in FILES},  # type: ignore[misc]
}


# --------------------------------------------------------------------------------------------------------- readers
def _read_dataset(path: Path) -> pa.Table:
    return ds.dataset(path, partitioning="hive").to_table()


def _read_unified(path: Path) -> pa.Table:
    """Read with the columns of all files."""
    first = ds.dataset(path, partitioning="hive")
    schemas = [first.schema, *(fragment.physical_schema for fragment in first.get_fragments())]
    return first.replace_schema(pa.unify_schemas(schemas, promote_options="permissive")).to_table()


def _read_files(path: Path) -> pa.Table:
    """Read each file with pyarrow, and take the partition values from its path."""
    tables = []
    for file in files(path):
        table = pq.ParquetFile(file).read()
        for part in file.relative_to(path).parts[:-1]:
            name, _, text = part.partition("=")
            if name in table.column_names:
                table = table.drop_columns([name])
            table = table.append_column(name, pa.array([unquote(text)] * len(table), pa.string()))
        tables.append(table)
    return pa.concat_tables(tables, promote_options="permissive")


def _read_polars(path: Path) -> pa.Table:
    options: Any = {"hive_partitioning": True, "missing_columns": "insert"}
    return pl.scan_parquet(files(path), **options).collect().to_arrow()


def _read_diagonal(path: Path) -> pa.Table:
    """Read each file with polars, and combine the columns of all files."""
    frames = [pl.read_parquet(file, hive_partitioning=True) for file in files(path)]
    return pl.concat(frames, how="diagonal_relaxed").to_arrow()


def _read_duckdb(path: Path) -> pa.Table:
    names = [str(file) for file in files(path)]
    with duckdb.connect() as connection:
        return connection.read_parquet(names, hive_partitioning=True, union_by_name=True).to_arrow_table()


def _read_pandas(path: Path) -> pa.Table:
    import pandas as pd

    return pa.Table.from_pandas(pd.read_parquet(path, dtype_backend="pyarrow"), preserve_index=False)


def _read_spark(path: Path) -> pa.Table:
    from pyspark.sql import SparkSession

    return SparkSession.active().read.parquet(str(path)).toArrow()


def _read_merged_spark(path: Path) -> pa.Table:
    from pyspark.sql import SparkSession

    return SparkSession.active().read.option("mergeSchema", True).parquet(str(path)).toArrow()


def _read_inlay(path: Path) -> pa.Table:
    return inlay.read_parquet(path)


Reader = Callable[[Path], pa.Table]
READERS: list[Reader] = [_read_dataset, _read_files, _read_polars, _read_duckdb, _read_pandas, _read_inlay]
# A merge that adds a column keeps the files whose rows it keeps, so only readers of all schemas find the column.
UNION_READERS: list[Reader] = [_read_unified, _read_files, _read_diagonal, _read_duckdb, _read_inlay]


def _readers(evolves: bool, on_spark: bool) -> list[Reader]:
    spark = _read_merged_spark if evolves else _read_spark
    return [*(UNION_READERS if evolves else READERS), *([spark] if on_spark else [])]


def _rows(case: Case, table: pa.Table) -> list[Any]:
    """Return sorted rows of exact values. Partition values are text, because each reader infers another type."""
    columns = []
    names = [*case.schema.names, *NEW_COLUMNS]
    for name in names:
        if name not in table.column_names:
            columns.append(pa.nulls(len(table)))
        elif name in case.partitions:
            columns.append(pa.chunked_array(table[name]).cast(pa.string()))
        else:
            columns.append(table[name])
    rows = lake.rows_of(pa.Table.from_arrays(columns, names))
    return sorted((oracle.exact_row(row) for row in rows), key=repr)


def _usable(case: Case, expected: list[Any], readers: list[Reader]) -> Iterator[Reader]:
    """Yield the readers that read the directory right before the merge."""
    for read in readers:
        try:
            if _rows(case, read(case.path)) == expected:
                yield read
        except Exception:  # noqa: BLE001  (other tools fail in many ways)
            continue


# ------------------------------------------------------------------------------------------------------------ cases
def _merge(seed: int, root: Path, engines: list[str]) -> str:
    """Run one case. Return "merged" or the reason of a refusal."""
    case = Case(seed, root / "d", root)
    rng = case.random
    known = rng.sample(range(30), rng.randrange(1, 12))
    case.written = case.table(known)
    on_spark = engines == ["spark"]
    rng.choice([_spark, _spark, *WRITERS] if on_spark else WRITERS)(case, case.written)
    before = _rows(case, case.written)
    mode = rng.choice(["strict", "strict", "strict", "evolve"])
    readers = list(_usable(case, before, _readers(mode == "evolve", on_spark)))
    assert len(readers) >= 3, [read.__name__ for read in readers]
    strategy = rng.choice(sorted(oracle.TRUTH))
    numbers = rng.sample(range(30), rng.randrange(9)) + rng.sample(known, len(known) // 2)
    unique = list(dict.fromkeys(numbers))
    source = case.table(numbers if strategy == "deduplicate" else unique)
    if mode == "evolve":
        source = case.evolved(source)
    keys = ["id", *rng.sample(case.partitions, rng.randrange(len(case.partitions) + 1))]
    kind, engine = rng.choice(sorted(SOURCES)), rng.choice(engines)
    if on_spark and rng.random() < 0.2:
        kind = "Spark DataFrame"
    data = _spark_frame(case, source) if kind == "Spark DataFrame" else SOURCES[kind](case, source)
    runner: Any = get_engine("duckdb", use_merge=False) if engine == "duckdb-union" else engine
    photograph = lake.photograph(case.path)
    location = data if isinstance(data, (str, Path)) else "memory"
    context = (
        f"seed {seed}: {strategy} ({mode}) by {keys} of {kind} ({location}) on {engine}, partitions {case.partitions}"
        f"\n{case.schema}"
    )
    try:
        inlay.merge(data, case.path, strategy, keys, engine=runner, schema_mode=mode)  # type: ignore[arg-type]
    except InlayError as error:
        assert lake.photograph(case.path) == photograph, context
        return f"{type(error).__name__}: {error.message} [{context.splitlines()[0]}]"
    except Exception as error:
        raise AssertionError(context) from error
    outcome = oracle.merge([("all", _full(case, case.written))], _full(case, source), strategy, keys, case.partitions)
    expected = _expected(case, outcome)
    for read in readers:
        assert _rows(case, read(case.path)) == expected, f"{read.__name__}, {context}"
    return "merged"


def _full(case: Case, table: pa.Table) -> list[oracle.Row]:
    """Return rows with all columns. A column that the table does not have is NULL."""
    return [dict.fromkeys([*case.schema.names, *NEW_COLUMNS]) | row for row in lake.rows_of(table)]


def _expected(case: Case, outcome: oracle.Outcome) -> list[Any]:
    texts = {n: {lake.plain(pa.scalar(v)): str(v) for v in values} for n, values in PARTITIONS.items()}
    rows = [{k: texts[k][v] if k in case.partitions else v for k, v in row.items()} for row in outcome.rows()]
    return sorted((oracle.exact_row(row) for row in rows), key=repr)


def _run(tmp_path: Path, seeds: range, engines: list[str]) -> None:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        root = tmp_path / str(seed)
        root.mkdir()
        outcomes[_merge(seed, root, engines)] += 1
    refused = [outcome for outcome in outcomes if outcome != "merged"]
    print(f"{sum(outcomes.values())} cases, {len(refused)} refused", *refused, sep="\n  ")
    assert outcomes["merged"] > 0.8 * sum(outcomes.values())


def test_merges_into_directories_of_other_tools(tmp_path: Path) -> None:
    seeds = range(FIRST, FIRST + (1 if "INLAY_FUZZ_SEED" in os.environ else CASES))
    _run(tmp_path, seeds, ["pyarrow", "duckdb", "duckdb-union"])


@pytest.mark.long  # short runs merge with the other engines above, and Spark's tasks run the same kernels
@pytest.mark.timeout(1200)
@pytest.mark.spark
def test_merges_on_spark_into_directories_of_other_tools(tmp_path: Path, spark_session: Any) -> None:
    assert spark_session is not None  # the engine uses this session
    _run(tmp_path, range(1000, 1040), ["spark"])
