"""Property test: splices with any layout and any choice of replaced columns."""

from __future__ import annotations

import datetime as dt
import io
import tempfile
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, note
from hypothesis import strategies as st

from inlay.parquet.splice import ParquetBytes, Splicer
from tests.parquet.splicing import READERS, ask_datafusion, chunk_pages, rows_of, supported, table_bytes

_DAY = st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1))
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint8": (pa.uint8(), st.integers(0, 255)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "few words": (pa.string(), st.sampled_from(["one", "two", "three"])),
    "text": (pa.string(), _TEXT),
    "bytes": (pa.binary(), st.binary(max_size=20)),
    "day": (pa.date32(), _DAY),
    "instant": (
        pa.timestamp("ms", "UTC"),
        st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)).map(  # noqa: DTZ001
            lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
        ),
    ),
    "decimal": (
        pa.decimal128(12, 3),
        st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-3)),
    ),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(0, 9) | st.none(), max_size=3)),
    "struct": (
        pa.struct({"a": pa.int32(), "b": pa.list_(pa.string())}),
        st.fixed_dictionaries({"a": st.integers(0, 9) | st.none(), "b": st.lists(_TEXT, max_size=2)}),
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(0, 9), max_size=2).map(
            lambda pairs: list(pairs.items())
        ),
    ),
}


@dataclass
class Step:
    group: int
    kind: str
    fresh: pa.Table | None = None
    columns: list[str] = field(default_factory=list)


@dataclass
class Plan:
    groups: list[pa.Table]
    options: dict[str, Any]
    fresh_options: dict[str, Any]
    steps: list[Step]

    def expected(self) -> pa.Table:
        parts = []
        for step in self.steps:
            kept = self.groups[step.group]
            if step.fresh is None:
                parts.append(kept)
            elif step.kind == "columns":
                for name in step.columns:
                    kept = kept.set_column(kept.column_names.index(name), name, step.fresh[name])
                parts.append(kept)
            else:
                parts.append(step.fresh)
        whole = pa.concat_tables(parts) if parts else self.groups[0].slice(0, 0)
        return whole.set_column(0, "id", pa.array(range(whole.num_rows), pa.int64()))


@st.composite
def tables(draw: st.DrawFn, names: list[str], rows: int) -> pa.Table:
    columns = {"id": pa.array(range(rows), pa.int64())}
    for at, name in enumerate(names):
        kind, values = TYPES[name]
        column = draw(st.lists(values | st.none(), min_size=rows, max_size=rows))
        columns[f"{name} {at}"] = pa.array(column, kind)
    return pa.table(columns)


def write_options() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "compression": st.sampled_from(["none", "snappy", "zstd"]),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "use_dictionary": st.booleans(),
            "write_page_index": st.booleans(),
            "write_page_checksum": st.booleans(),
            "write_statistics": st.booleans(),
            "write_batch_size": st.sampled_from([1, 5, 1024]),
            "data_page_size": st.sampled_from([8, 1 << 20]),
            "bloom_filter_options": st.sampled_from([None, {"id": {"ndv": 20}}]),
        }
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    names = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4))
    groups = [draw(tables(names, rows)) for rows in draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))]
    steps = []
    for group in draw(st.lists(st.integers(0, len(groups) - 1), max_size=5)):
        step = Step(group, draw(st.sampled_from(["copy", "replace", "columns"])))
        if step.kind == "replace":
            step.fresh = draw(tables(names, draw(st.integers(1, 12))))
        elif step.kind == "columns":
            step.fresh = draw(tables(names, groups[group].num_rows))
            step.columns = draw(st.lists(st.sampled_from(step.fresh.column_names), unique=True, min_size=1))
        steps.append(step)
    return Plan(groups, draw(write_options()), draw(write_options()), steps)


def write_groups(plan: Plan) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, plan.groups[0].schema, **supported(plan.options)) as writer:
        for group in plan.groups:
            writer.write_table(group)
    return sink.getvalue()


def fresh_file(plan: Plan, step: Step, all_columns: bool) -> ParquetBytes:
    assert step.fresh is not None
    rows = step.fresh if step.kind == "replace" or all_columns else step.fresh.select(step.columns)
    options = dict(plan.fresh_options)
    if "id" not in rows.column_names:
        options["bloom_filter_options"] = None
    return ParquetBytes(table_bytes(rows, **options))


def carry_out(plan: Plan, base: ParquetBytes, all_columns: bool) -> bytes:
    out = io.BytesIO()
    splicer = Splicer(out, base)
    for step in plan.steps:
        if step.kind == "copy":
            splicer.copy(base, step.group)
        else:
            fresh = fresh_file(plan, step, all_columns)
            columns = step.columns if step.kind == "columns" else None
            splicer.replace(base, step.group, fresh, columns)
    splicer.finish()
    return out.getvalue()


def number_through(plan: Plan) -> bytes:
    """Return the spliced file. A second splice of `id` alone makes every row unique."""
    base = ParquetBytes(write_groups(plan))
    first = carry_out(plan, base, all_columns=len(plan.steps) % 2 == 0)
    again, out, at = ParquetBytes(first), io.BytesIO(), 0
    splicer = Splicer(out, again)
    for group in range(again.num_row_groups):
        rows = again.row_group_rows(group)
        ids = pa.table({"id": pa.array(range(at, at + rows), pa.int64())})
        splicer.replace(again, group, ParquetBytes(table_bytes(ids, **plan.fresh_options)), ["id"])
        at += rows
    splicer.finish()
    check_pages(first, out.getvalue())
    return out.getvalue()


def check_pages(before: bytes, after: bytes) -> None:
    for old, new in zip(chunk_pages(before), chunk_pages(after), strict=True):
        assert new[1:] == old[1:]


@given(plans(), st.integers(0, 30), st.integers(0, 10))
def test_any_splice_contains_the_planned_rows(plan: Plan, low: int, width: int) -> None:
    data = number_through(plan)
    expected = rows_of(plan.expected())
    note(f"{plan.options}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spliced.parquet"
        path.write_bytes(data)
        for name, read in READERS.items():
            assert rows_of(read(path)) == expected, name
        found = ask_datafusion(path, f"SELECT * FROM t WHERE id >= {low} AND id < {low + width}")
        assert rows_of(found) == [row for row in expected if low <= row["id"] < low + width]
