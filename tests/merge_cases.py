"""Random merges for hypothesis: schemas, keys, layouts, writers, sources and strategies."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import and_, or_
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import strategies as st

from inlay.pyarrow_features import WRITES_BLOOM_FILTERS
from tests import oracle
from tests.arrow_types import SCALARS, TYPES, array_of

# DuckDB writes Bloom filters, which inlay refuses to rewrite with a pyarrow that cannot write them.
WRITERS = ["pyarrow v1", "pyarrow v2", "polars", *(["duckdb"] if WRITES_BLOOM_FILTERS else [])]
SIMPLE = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "string",
    "large_string",
    "binary",
    "bool",
    "date32",
    "time64_us",
    "timestamp_ms",
    "timestamp_us",
    "timestamp_ns",
    "decimal128",
    "dictionary",
    "list",
    "struct",
]

SORTABLE = {"int8", "int64", "uint64", "float64", "string", "large_string", "date32", "timestamp_us", "decimal128"}


def _decimal(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    digits = st.integers(-limit, limit)
    return digits.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


def _key_values(name: str, kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Draw values of a scalar type, all of one Python type, so that equal keys are equal values."""
    if pa.types.is_integer(kind):
        bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
        return st.integers(-(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if name == "uuid" or pa.types.is_fixed_size_binary(kind):
        size = 16 if name == "uuid" else kind.byte_width
        return st.binary(min_size=size, max_size=size)
    if "binary" in name:
        return st.binary(max_size=12) | st.binary(min_size=64, max_size=300)
    if "string" in name or "dictionary" in name:
        return st.text(max_size=8) | st.text("aé", min_size=60, max_size=70)
    if pa.types.is_time(kind):
        return st.integers(0, 86_399_999)
    return st.integers(-700_000, 2_900_000)  # dates in days, timestamps in their unit


KEY_VALUES = {name: _key_values(name, kind) for name, (kind, _) in SCALARS.items()}


@dataclass(frozen=True)
class Case:
    """One merge; `files` are (partition value, table without the partition column)."""

    strategy: str
    keys: list[str]
    partitions: list[str]
    order_by: list[str]
    files: list[tuple[Any, pa.Table]]
    source: pa.Table
    writer: str
    row_group_size: int
    compression: str
    type_names: frozenset[str]
    missing_columns: str
    schema_mode: str
    operation_column: str | None = None
    newer_by: str | None = None
    scope: dict[str, list[Any]] | None = None
    max_deleted: float | None = None
    transaction: str | None = None
    has_expression: bool = False  # The merge gets the scope as an expression.

    @property
    def options(self) -> dict[str, Any]:
        """The options of the merge, named like arguments of `inlay.merge` and of the oracle."""
        names = ("missing_columns", "operation_column", "newer_by", "scope", "max_deleted")
        return {name: getattr(self, name) for name in names}

    @property
    def scope_argument(self) -> dict[str, list[Any]] | pc.Expression | None:
        if self.scope is None or not self.has_expression:
            return self.scope
        return functools.reduce(and_, (functools.reduce(or_, _tests(*item)) for item in self.scope.items()))

    def write(self, root: Path) -> dict[str, Any]:
        """Write the target and return the partition value of each relative path."""
        where = {}
        for number, (part, table) in enumerate(self.files):
            folder = f"p={'__HIVE_DEFAULT_PARTITION__' if part is None else part}/" if self.partitions else ""
            name = f"{folder}f{number}.parquet"
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            write_as(self.writer, table, root / name, self.row_group_size, self.compression)
            where[name] = part
        return where

    def with_partition(self, rows: list[oracle.Row], part: Any) -> list[oracle.Row]:
        return [row | {"p": part} for row in rows] if self.partitions else rows


def _tests(name: str, values: list[Any]) -> list[pc.Expression]:
    field = pc.field(name)
    return [field.is_null() if value is None else field == value for value in values]


def write_as(writer: str, table: pa.Table, path: Path, rows: int, compression: str) -> None:
    if writer == "polars":
        pl.from_arrow(table).write_parquet(path, row_group_size=rows, compression=compression)
    elif writer == "duckdb":
        with duckdb.connect() as connection:
            connection.register("t", table)
            connection.execute(f"COPY t TO '{path}' (FORMAT parquet, COMPRESSION {compression})")
    else:
        page = "2.0" if writer.endswith("v2") else "1.0"
        pq.write_table(table, path, row_group_size=rows, compression=compression, data_page_version=page)


def canonical(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(oracle.key_part, key))


@dataclass
class Columns:
    """The drawn schema: key columns k0, k1, ..., value columns c0, c1, ..., and their possible values."""

    key_types: list[str]
    value_types: list[str]
    nullable: list[bool]
    pool: list[tuple[Any, ...]]  # distinct keys
    palettes: list[list[Any]]  # values per value column

    def table(self, rows: Sequence[tuple[int | None, tuple[int, ...]]]) -> pa.Table:
        """Draw rows as (index into pool, or None for a NULL key; index into each palette)."""
        arrays, fields = [], []
        for i, name in enumerate(self.key_types):
            values = [None if k is None else self.pool[k % len(self.pool)][i] for k, _ in rows]
            arrays.append(array_of(SCALARS[name][0], values))
            fields.append(pa.field(f"k{i}", SCALARS[name][0]))
        for i, name in enumerate(self.value_types):
            palette = self.palettes[i]
            values = [None if v[i] is None else palette[v[i] % len(palette)] for _, v in rows]
            arrays.append(array_of(TYPES[name][0], values))
            note = {b"note": name.encode()}
            fields.append(pa.field(f"c{i}", TYPES[name][0], nullable=self.nullable[i], metadata=note))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata={b"made": b"by tests"}))


@st.composite
def columns(draw: st.DrawFn, names: Sequence[str]) -> Columns:
    scalars = [name for name in names if name in KEY_VALUES]
    key_types = draw(st.lists(st.sampled_from(scalars), min_size=1, max_size=2))
    value_types = draw(st.lists(st.sampled_from(list(names)), max_size=4))
    one_key = st.tuples(*(KEY_VALUES[name] for name in key_types))
    pool = draw(st.lists(one_key, min_size=3, max_size=12, unique_by=canonical))
    nullable = [name == "null" or draw(st.booleans()) for name in value_types]
    palettes = []
    for name, nulls in zip(value_types, nullable, strict=True):
        values = [*TYPES[name][1], *([None] if nulls else [])]
        palettes.append(draw(st.lists(st.sampled_from(values), min_size=1, max_size=4)))
    return Columns(key_types, value_types, nullable, pool, palettes)


def rows(
    width: int, minimum: int, maximum: int, *, nulls: bool
) -> st.SearchStrategy[list[tuple[Any, tuple[int, ...]]]]:
    index = st.integers(0, 11)
    key = st.one_of(index, index, index, st.none()) if nulls else index
    return st.lists(st.tuples(key, st.tuples(*[st.integers(0, 3)] * width)), min_size=minimum, max_size=maximum)


def _files(drawn: Sequence[Any], shape: Columns, parts: Sequence[Any], per_file: int) -> list[tuple[Any, pa.Table]]:
    """Split rows by the partition of their key, then into files of `per_file` rows."""
    by_part: dict[Any, list[Any]] = {}
    for row in drawn:
        where = parts[0] if row[0] is None else parts[row[0] % len(shape.pool) % len(parts)]
        by_part.setdefault(where, []).append(row)
    return [
        (part, shape.table(members[start : start + per_file]))
        for part, members in by_part.items()
        for start in range(0, len(members), per_file)
    ]


def _source(
    shape: Columns, drawn: Sequence[Any], parts: Sequence[Any], fault: str, kind: Any, *, in_key: bool
) -> pa.Table:
    """Build the source table, with a NULL key or a moved row if `fault` requires it.

    Rows without values have no partition either, unless it is `in_key`.
    """
    chosen = list(drawn)
    if fault == "null" and chosen:
        chosen[0] = (None, chosen[0][1])
    table = shape.table(chosen)
    if kind is None:
        return table
    shift = [int(fault == "move" and i == 0) for i in range(len(chosen))]
    where = [parts[((row[0] or 0) % len(shape.pool) + s) % len(parts)] for row, s in zip(chosen, shift, strict=True)]
    if not in_key:
        where = [None if None in row[1] else part for row, part in zip(chosen, where, strict=True)]
    return table.append_column("p", pa.array(where, kind))


def _unique(drawn: Sequence[Any], size: int) -> list[Any]:
    return list({row[0] % size: row for row in drawn}.values())


def _may_be_missing(name: str, missing: str, shape: Columns) -> bool:
    if missing == "null":
        return name.startswith("c") and shape.nullable[int(name[1:])]
    return missing == "keep"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    strategy = draw(st.sampled_from(list(oracle.TRUTH)))
    writer = draw(st.sampled_from(WRITERS))
    shape = draw(columns(list(TYPES) if writer.startswith("pyarrow") else SIMPLE))
    layouts = [(None, [None]), (pa.string(), ["x", "y z", None]), (pa.int32(), [1, 20, None])]
    kind, parts = draw(st.sampled_from(layouts))
    part_in_key = kind is not None and draw(st.booleans())
    if part_in_key:
        parts = parts[:-1]  # NULL is no key
    width = len(shape.value_types)
    files = _files(
        draw(rows(width, draw(st.sampled_from([8, 4, 0])), 20, nulls=True)),
        shape,
        parts,
        draw(st.sampled_from([2, 5, 20])),
    )
    drawn = draw(rows(width, draw(st.sampled_from([4, 2, 0])), 8, nulls=False))
    fault = draw(st.sampled_from([""] * 17 + ["null", "duplicate", "move"]))
    if strategy != "deduplicate" and fault != "duplicate":
        drawn = _unique(drawn, len(shape.pool))
    operations = None
    if strategy in ("upsert", "deduplicate") and draw(st.booleans()):
        words = st.lists(st.sampled_from(list(oracle.OPERATIONS)), min_size=len(drawn), max_size=len(drawn))
        operations = draw(words)
        bare = draw(st.booleans())
        drawn = [
            (key, (None,) * width if bare and oracle.OPERATIONS[word] else values)
            for (key, values), word in zip(drawn, operations, strict=True)
        ]
    source = _source(shape, drawn, parts, fault, kind, in_key=part_in_key)
    if operations is not None:
        source = pa.table(dict(zip(source.column_names, source.columns, strict=True)))  # every column is nullable
        source = source.append_column("op", pa.array(operations, pa.string()))
    keys = [f"k{i}" for i in range(len(shape.key_types))] + ["p"] * part_in_key
    partitions = [] if kind is None else ["p"]
    sortable = [f"c{i}" for i, name in enumerate(shape.value_types) if name in SORTABLE]
    order_by = sortable if strategy == "deduplicate" and draw(st.booleans()) else []
    is_ordered = bool(sortable) and strategy in ("update", "upsert", "deduplicate", "delete")
    newer_by = draw(st.sampled_from([None, *sortable])) if is_ordered else None
    missing = draw(st.sampled_from(["error", "null", "keep", "keep"])) if files else "error"
    scope = None
    if kind is not None and files and strategy in ("full_merge", "delete") and draw(st.booleans()):
        inside = draw(st.lists(st.sampled_from(parts), min_size=1, unique=True))
        scope = {"p": inside}
        if draw(st.sampled_from([True, True, False])):
            kept = [source.slice(at, 1) for at, part in enumerate(source.column("p").to_pylist()) if part in inside]
            source = pa.concat_tables([source.slice(0, 0), *kept])
    needed = {*keys, *order_by, "op", newer_by, *(scope or ())}
    lacking = [
        name
        for name in source.column_names
        if _may_be_missing(name, missing, shape) and name not in needed and draw(st.booleans())
    ]
    if strategy == "delete" and draw(st.booleans()):
        source = source.select([*keys, *([] if newer_by is None else [newer_by])])
        lacking = []
    return Case(
        strategy=strategy,
        keys=keys,
        partitions=partitions,
        order_by=order_by,
        files=files,
        source=source.drop_columns(lacking),
        writer=writer,
        row_group_size=draw(st.sampled_from([1, 2, 3, 100])),
        compression=draw(st.sampled_from(["zstd", "snappy"])),
        type_names=frozenset([*shape.key_types, *shape.value_types]),
        missing_columns=missing,
        schema_mode=draw(st.sampled_from(["strict", "evolve"])),
        operation_column=None if operations is None else "op",
        newer_by=newer_by,
        scope=scope,
        max_deleted=draw(st.sampled_from([None, None, None, None, 1, 4, 0.29, 0.5])),
        transaction=draw(st.sampled_from([None, "batch"])),
        has_expression=draw(st.booleans()),
    )
