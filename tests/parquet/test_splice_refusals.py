"""Refused splices: different schemas, encryption, and broken or hostile footers."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inlay.parquet.raw import chunk_extent
from inlay.parquet.splice import _OFFSET_INDEX, ParquetBytes, Splicer, SpliceRefused
from inlay.parquet.thrift import BINARY, I32, I64, LIST, STRUCT, FooterError, Raw, Struct, decode, encode
from tests.parquet.splicing import (
    copied,
    needs_bloom_filters,
    refooted,
    sample,
    schemas_match,
    spliced,
    table_bytes,
    write_duckdb,
    write_pyarrow_rich,
)

COLUMN = {"id": [1, 2, 3]}


def one(values: Any, kind: pa.DataType, name: str = "v", nullable: bool = True, **options: Any) -> ParquetBytes:
    schema = pa.schema([pa.field(name, kind, nullable)])
    return ParquetBytes(table_bytes(pa.table([pa.array(values, kind)], schema=schema), **options), str(kind))


class TestSchemas:
    @pytest.mark.parametrize(
        ("left", "right"),
        [
            (pa.timestamp("ms"), pa.timestamp("us")),
            (pa.timestamp("us"), pa.timestamp("ns")),
            (pa.timestamp("us"), pa.timestamp("us", "UTC")),
            (pa.time64("us"), pa.time64("ns")),
            (pa.time32("ms"), pa.int32()),
            (pa.duration("ms"), pa.duration("us")),
            (pa.duration("ms"), pa.int64()),
            (pa.list_(pa.duration("s")), pa.list_(pa.duration("ns"))),
            (pa.date32(), pa.int32()),
            (pa.int32(), pa.uint32()),
            (pa.int8(), pa.int16()),
            (pa.int32(), pa.int64()),
            (pa.string(), pa.binary()),
            (pa.binary(4), pa.binary(5)),
            (pa.float32(), pa.float64()),
            (pa.float16(), pa.binary(2)),
            (pa.decimal128(10, 2), pa.decimal128(10, 3)),
            (pa.decimal128(10, 2), pa.decimal128(11, 2)),
            (pa.list_(pa.int64()), pa.int64()),
            (pa.list_(pa.int64()), pa.list_(pa.list_(pa.int64()))),
            (pa.struct({"a": pa.int64()}), pa.struct({"b": pa.int64()})),
            (pa.struct({"a": pa.int64()}), pa.struct({"a": pa.int64(), "b": pa.int64()})),
            (
                pa.map_(pa.string(), pa.int64()),
                pa.list_(pa.struct({"key": pa.string(), "value": pa.int64()})),
            ),
        ],
        ids=str,
    )
    def test_different_types(self, left: pa.DataType, right: pa.DataType) -> None:
        base, other = one([None], left), one([None], right)
        for a, b in ((base, other), (other, base)):
            assert not schemas_match(a, b)
            with pytest.raises(SpliceRefused, match="column v"):
                spliced(a, copied(b))

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            (pa.string(), pa.large_string()),
            (pa.string(), pa.string_view()),
            (pa.string(), pa.dictionary(pa.int32(), pa.string())),
            (pa.duration("ms"), pa.duration("ms")),
            (pa.list_(pa.int64()), pa.large_list(pa.int64())),
            (pa.decimal128(10, 2), pa.decimal256(10, 2)),
        ],
        ids=str,
    )
    def test_same_type_in_the_file(self, left: pa.DataType, right: pa.DataType) -> None:
        base, other = one([None], left), one([None], right)
        assert schemas_match(base, other)
        result = pq.read_table(pa.BufferReader(spliced(base, copied(base) + copied(other))))
        assert result["v"].to_pylist() == [None, None]

    def test_null_and_not_null(self) -> None:
        with pytest.raises(SpliceRefused, match="repetition"):
            spliced(one([1], pa.int64()), copied(one([1], pa.int64(), nullable=False)))

    def test_other_columns(self) -> None:
        with pytest.raises(SpliceRefused, match=r"\['v'\] instead of \['w'\]"):
            spliced(one([1], pa.int64()), copied(one([1], pa.int64(), name="w")))

    def test_other_order_of_columns(self) -> None:
        table = pa.table({"a": [1], "b": [2]})
        base, other = ParquetBytes(table_bytes(table)), ParquetBytes(table_bytes(table.select(["b", "a"])))
        assert not schemas_match(base, other)

    def test_annotations_of_other_writers_match(self, tmp_path: Path) -> None:
        """DuckDB writes converted types where pyarrow writes logical types or none."""
        table = pa.table(
            {
                "small": pa.array([1], pa.int8()),
                "unsigned": pa.array([1], pa.uint16()),
                "int": pa.array([1], pa.int32()),
                "long": pa.array([1], pa.int64()),
                "text": ["x"],
                "day": pa.array([1], pa.date32()),
                "at": pa.array([1], pa.timestamp("us")),
                "list": [["x"]],
                "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            }
        )
        write_duckdb(table, tmp_path / "duckdb")
        pl.DataFrame(table.drop(["map"])).write_parquet(tmp_path / "polars")
        read = pq.read_table(tmp_path / "duckdb")
        own = ParquetBytes(table_bytes(read, use_compliant_nested_type=False))
        duck = ParquetBytes((tmp_path / "duckdb").read_bytes())
        assert schemas_match(own, duck)
        assert schemas_match(duck, own)
        read = pq.read_table(tmp_path / "polars")
        own = ParquetBytes(table_bytes(read, use_compliant_nested_type=False))
        assert schemas_match(own, ParquetBytes((tmp_path / "polars").read_bytes()))

    def test_converted_type_matches_any_zone_but_only_its_unit(self) -> None:
        def drop_logical_type(footer: Struct) -> None:
            footer.structs(2)[1].pop(10)

        def converted(unit: str) -> ParquetBytes:
            data = table_bytes(pa.table({"v": pa.array([1], pa.timestamp(unit, "UTC"))}), store_schema=False)
            return ParquetBytes(refooted(data, drop_logical_type))

        for zone in (None, "UTC"):
            assert schemas_match(converted("us"), one([1], pa.timestamp("us", zone)))
            assert not schemas_match(converted("ms"), one([1], pa.timestamp("us", zone)))

    def test_decimal_as_converted_type(self) -> None:
        data = table_bytes(pa.table({"v": [Decimal("1.25")]}))
        old = ParquetBytes(refooted(data, lambda footer: footer.structs(2)[1].pop(10)))
        assert schemas_match(old, ParquetBytes(data))
        assert not schemas_match(old, one([None], pa.decimal128(3, 1)))

    def test_meaningless_length_is_ignored(self) -> None:
        data = table_bytes(pa.table(COLUMN))
        odd = ParquetBytes(refooted(data, lambda footer: footer.structs(2)[1].put(2, I32, 64)))
        assert schemas_match(odd, ParquetBytes(data))

    def test_inner_group_of_an_old_map(self) -> None:
        data = table_bytes(pa.table({"v": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}))
        old = ParquetBytes(refooted(data, lambda footer: footer.structs(2)[2].put(6, I32, 2)))
        assert schemas_match(old, ParquetBytes(data))

    def test_statistics_in_another_order(self) -> None:
        data = table_bytes(pa.table(COLUMN))
        base = ParquetBytes(data)
        total_order = Struct({2: (STRUCT, Raw(b"\0"))})
        other = ParquetBytes(refooted(data, lambda footer: footer.put(7, LIST, [total_order])))
        unknown = ParquetBytes(refooted(data, lambda footer: footer.pop(7)))
        assert not schemas_match(base, other)
        assert not schemas_match(base, unknown)
        assert schemas_match(unknown, base)
        with pytest.raises(SpliceRefused, match="statistics of column id are ordered differently"):
            spliced(base, copied(unknown))


class TestReplacedColumns:
    base = ParquetBytes(table_bytes(pa.table({"a": [1, 2], "b": ["x", "y"]})), "base")

    def refused(self, fresh: pa.Table, columns: list[str], match: str) -> None:
        parsed = ParquetBytes(table_bytes(fresh), "fresh")
        with pytest.raises(SpliceRefused, match=match):
            Splicer(io.BytesIO(), self.base).replace(self.base, 0, parsed, columns)

    def test_other_number_of_rows(self) -> None:
        self.refused(pa.table({"a": [1]}), ["a"], "1 rows cannot replace columns of 2 rows")

    def test_other_type(self) -> None:
        self.refused(pa.table({"a": ["1", "2"]}), ["a"], "column a")

    def test_missing_column(self) -> None:
        self.refused(pa.table({"a": [1, 2]}), ["b"], "0 columns are named 'b'")
        self.refused(pa.table({"a": [1, 2], "c": [1, 2]}), ["c"], "0 columns are named 'c'")

    def test_repeated_column_name(self) -> None:
        twice = pa.Table.from_arrays([pa.array([1, 2]), pa.array([1, 2])], names=["a", "a"])
        self.refused(twice, ["a"], "2 columns are named 'a'")

    def test_piece_may_have_more_columns(self) -> None:
        fresh = ParquetBytes(table_bytes(pa.table({"b": ["not", "used"], "a": [3, 4]})))
        result = spliced(self.base, [lambda s: s.replace(self.base, 0, fresh, {"a"})])
        assert pq.read_table(pa.BufferReader(result)).to_pydict() == {"a": [3, 4], "b": ["x", "y"]}

    def test_no_columns_is_a_copy(self) -> None:
        result = spliced(self.base, [lambda s: s.replace(self.base, 0, self.base, [])])
        assert result == spliced(self.base, copied(self.base))


class _Keys(pe.KmsClient):  # type: ignore[misc]
    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        return base64.b64encode(key_bytes).decode()

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize(
    ("plaintext_footer", "message"), [(True, "encrypted or signed"), (False, "footer is encrypted")]
)
def test_encrypted_files(plaintext_footer: bool, message: str) -> None:
    factory = pe.CryptoFactory(lambda _: _Keys())
    config = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["id"]}, plaintext_footer=plaintext_footer
    )
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    data = table_bytes(pa.table(COLUMN), encryption_properties=properties)
    with pytest.raises(SpliceRefused, match=message):
        ParquetBytes(data)


def first_chunk(footer: Struct) -> Struct:
    return footer.structs(4)[0].structs(1)[0]


def first_meta(footer: Struct) -> Struct:
    return first_chunk(footer).struct(3)


def _nest_schema(footer: Struct) -> None:
    group = Struct({3: (I32, 1), 4: (BINARY, b"g"), 5: (I32, 1)})
    footer.put(2, LIST, [*footer.structs(2)[:1], *[group] * 5000, *footer.structs(2)[1:]])


def _other_chunk(footer: Struct) -> None:
    """Let two chunks share their bytes."""
    groups = footer.structs(4)
    groups[1].put(1, LIST, groups[0].structs(1))


BROKEN: dict[str, tuple[Callable[[Struct], Any], str]] = {
    "external file": (lambda f: first_chunk(f).__setitem__(1, (BINARY, b"elsewhere")), "another file"),
    "encrypted column": (lambda f: first_chunk(f).put(8, STRUCT, Struct()), "is encrypted"),
    "encrypted column metadata": (lambda f: first_chunk(f).__setitem__(9, (BINARY, b"")), "is encrypted"),
    "no column metadata": (lambda f: first_chunk(f).pop(3), "field 3 is missing"),
    "no data page offset": (lambda f: first_meta(f).pop(9), "field 9 is missing"),
    "no path": (lambda f: first_meta(f).pop(3), "field 3 is missing"),
    "other path": (lambda f: first_meta(f).__setitem__(3, (LIST, Raw(b"\x18\x01x"))), "does not match column"),
    "other type": (lambda f: first_meta(f).put(1, I32, 6), "does not match column"),
    "chunks share bytes": (_other_chunk, "overlap"),
    "chunk behind the footer": (lambda f: first_meta(f).put(7, I64, 1 << 40), "outside the data"),
    "chunk of negative size": (lambda f: first_meta(f).put(7, I64, -5), "outside the data"),
    "chunk over the magic bytes": (lambda f: first_meta(f).put(11, I64, 1), "outside the data"),
    "page behind its chunk": (lambda f: first_meta(f).put(10, I64, 1 << 40), "outside its column chunk"),
    "index without length": (lambda f: first_chunk(f).pop(5), "field 5 is missing"),
    "index over pages": (lambda f: first_chunk(f).put(4, I64, 5), "overlap"),
    "bloom filter over pages": (lambda f: first_meta(f).put(14, I64, 5), "overlap|field 1 is missing"),
    "bloom filter outside": (lambda f: first_meta(f).put(14, I64, 1 << 50), "outside"),
    "negative rows": (lambda f: f.structs(4)[0].put(3, I64, -1), "does not match the schema"),
    "chunk missing": (lambda f: f.structs(4)[0].put(1, LIST, []), "does not match the schema"),
    "no size": (lambda f: f.structs(4)[0].pop(2), "does not match the schema"),
    "no row groups": (lambda f: f.pop(4), "field 4 is missing"),
    "no schema": (lambda f: f.put(2, LIST, []), "no root"),
    "root is a leaf": (lambda f: f.structs(2)[0].put(1, I32, 1), "no root"),
    "schema too deep": (_nest_schema, "nested more than"),
    "more children than elements": (lambda f: f.structs(2)[0].put(5, I32, 1 << 30), "fewer elements"),
    "fewer children than elements": (lambda f: f.structs(2)[0].put(5, I32, 0), "more elements"),
    "negative children": (lambda f: f.structs(2)[1].put(5, I32, -3), "neither a group nor a leaf"),
    "logical type of nothing": (lambda f: f.structs(2)[1].put(10, STRUCT, Struct()), "exactly one"),
    "column orders of others": (lambda f: f.put(7, LIST, []), "column orders"),
    "old parquet-mr": (
        lambda f: f.__setitem__(6, (BINARY, b"parquet-mr version 1.2.8 (build 1)")),
        "workarounds",
    ),
    "parquet-mr of no version": (lambda f: f.__setitem__(6, (BINARY, b"parquet-mr")), "workarounds"),
    "old parquet-cpp": (
        lambda f: f.__setitem__(6, (BINARY, b"parquet-cpp version 1.5.1-SNAPSHOT")),
        "workarounds",
    ),
}


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _rich(tmp_path_factory.mktemp("rich") / "rich.parquet")


def _rich(path: Path) -> bytes:
    write_pyarrow_rich(sample(0, 5000), path)
    return path.read_bytes()


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_footers(rich: bytes, fault: str) -> None:
    change, message = BROKEN[fault]
    with pytest.raises(SpliceRefused, match=message):
        ParquetBytes(refooted(rich, change), "broken")


def test_offset_index_of_other_pages(rich: bytes) -> None:
    def swap(footer: Struct) -> None:
        a, b = footer.structs(4)[1].structs(1)[:2]
        a[4], a[5], b[4], b[5] = b[4], b[5], a[4], a[5]

    base = ParquetBytes(refooted(rich, swap))
    with pytest.raises(SpliceRefused, match="offset index points outside"):
        spliced(base, copied(base, [1]))


def test_offset_index_of_the_page_behind(rich: bytes) -> None:
    def behind(data: bytes) -> bytes:
        parsed = ParquetBytes(data)
        chunk = parsed.row_groups[1].structs(1)[0]
        at, length = chunk.number(4), chunk.number(5)
        index, _ = decode(data[at : at + length], _OFFSET_INDEX)
        index.structs(1)[-1].put(1, I64, chunk_extent(chunk.struct(3))[1])
        changed = encode(index)
        assert len(changed) == length
        return data[:at] + changed + data[at + length :]

    base = ParquetBytes(behind(rich))
    with pytest.raises(SpliceRefused, match="offset index points outside"):
        spliced(base, copied(base, [1]))


def _broken(*_: Any) -> Any:
    raise FooterError("broken")


# Name -> (broken function, call that must fail, file that the message must name).
NAMED: dict[str, tuple[str, Callable[[Splicer, ParquetBytes, ParquetBytes], None], str]] = {
    "copy": ("Splicer._append", lambda s, other, _: s.copy(other, 0), "other"),
    "replace": ("Splicer._append", lambda s, other, fresh: s.replace(other, 0, fresh), "fresh"),
    "a piece": ("_pick_columns", lambda s, other, fresh: s.replace(other, 0, fresh, ["id"]), "fresh"),
    "a mixture": ("Splicer._mix", lambda s, other, fresh: s.replace(other, 0, fresh, ["id"]), "other"),
    "the end": ("encode", lambda s, *_: s.finish(), "base"),
}


@pytest.mark.parametrize("name", NAMED)
def test_broken_file_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    function, call, named = NAMED[name]
    base, other, fresh = (ParquetBytes(table_bytes(pa.table(COLUMN)), each) for each in ("base", "other", "fresh"))
    splicer = Splicer(io.BytesIO(), base)
    monkeypatch.setattr(f"inlay.parquet.splice.{function}", _broken)
    with pytest.raises(SpliceRefused, match=f"^{named}: broken"):
        call(splicer, other, fresh)


def test_file_with_an_incomparable_schema_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    base, other = (ParquetBytes(table_bytes(pa.table(COLUMN)), each) for each in ("base", "other"))
    monkeypatch.setattr(type(base.schema), "difference", _broken)
    with pytest.raises(SpliceRefused, match=r"^other: broken"):
        Splicer(io.BytesIO(), base).copy(other, 0)


def test_files_with_another_schema_are_refused() -> None:
    base, other = ParquetBytes(table_bytes(pa.table(COLUMN)), "base"), one(["a", "b", "c"], pa.string(), "id")
    with pytest.raises(SpliceRefused, match=r"^string does not match base"):
        Splicer(io.BytesIO(), base).replace(base, 0, other)
    with pytest.raises(SpliceRefused, match=r"^string does not match base"):
        Splicer(io.BytesIO(), base).replace(other, 0, other, ["id"])


@needs_bloom_filters
def test_bloom_filter_length_against_its_header(rich: bytes) -> None:
    def shorten(footer: Struct) -> None:
        meta = footer.structs(4)[0].structs(1)[3].struct(3)
        meta.put(15, I32, meta.number(15) - 20)

    base = ParquetBytes(refooted(rich, shorten))
    with pytest.raises(SpliceRefused, match="bloom filter does not match"):
        spliced(base, copied(base, [0]))


@needs_bloom_filters
def test_bloom_filter_without_length_is_measured(rich: bytes) -> None:
    base = ParquetBytes(refooted(rich, lambda f: f.structs(4)[0].structs(1)[3].struct(3).pop(15)))
    result = spliced(base, copied(base, [0]))
    assert result == spliced(ParquetBytes(rich), copied(ParquetBytes(rich), [0]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "too few for a Parquet file"),
        (b"PAR1", "too few for a Parquet file"),
        (b"PAR1" + b"x" * 100 + b"NOPE", "not a Parquet file"),
        (b"PAR1" + b"\0" * 8 + b"\xff\xff\xff\xffPAR1", "footer length of 4294967295 bytes"),
        (b"PAR1" + b"\0" * 8 + b"\0\0\0\0PAR1", "footer length of 0 bytes"),
        (b"PAR1" + b"\0\0" + b"\2\0\0\0PAR1", "1 bytes follow"),
    ],
)
def test_files_that_are_not_parquet(data: bytes, message: str) -> None:
    with pytest.raises(SpliceRefused, match=message):
        ParquetBytes(data, "thing")


def file_of(footer: bytes) -> bytes:
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


HUGE = b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"


@pytest.mark.parametrize(
    "footer",
    [
        b"\x29\xfc" + HUGE,  # a schema of 2^63 elements
        b"\x49\xfc" + HUGE + b"\0" * 1000,  # row groups
        b"\x58" + HUGE,  # an unknown string
        b"\x19\xf8" + HUGE,  # an unknown list of strings
        b"\x19\xf1" + HUGE,  # of booleans
        b"\x19\xf7" + HUGE,  # of doubles
        b"\x1b" + HUGE + b"\x55",  # a map
        b"\x35" + b"\xff" * 100,  # a number without end
        b"\x1c" * 100_000,  # structs in structs
        b"\x19" + b"\x19" * 100_000,  # lists in lists
        b"\x1b\x01\xbb" + b"\x01\xbb" * 100_000,  # maps in maps
        b"\x15\x02\x05\x02\x02\0",  # the same field twice
        b"\x1f\0",  # no such type
        b"\x25\x02\0",  # a number where the schema belongs
        b"\x29\x18\x01x\0",  # strings where the schema belongs
    ],
)
def test_hostile_footers(footer: bytes) -> None:
    with pytest.raises(SpliceRefused):
        ParquetBytes(file_of(footer))


def test_numbers_of_more_than_64_bits() -> None:
    with pytest.raises(SpliceRefused, match="more than 64 bits"):
        ParquetBytes(file_of(b"\x35" + b"\xff" * 9 + b"\x7f\0"))


def outcome(data: bytes) -> str:
    """Use every operation on a file. Only SpliceRefused may be raised."""
    try:
        base = ParquetBytes(data)
        for i in range(base.num_row_groups):
            base.chunk_settings(i)
        schemas_match(base, base)
        schemas_match(base, REFERENCE)
        result = ParquetBytes(spliced(base, copied(base)))
    except SpliceRefused as refusal:
        return f"refused: {refusal}"
    assert [g.number(3) for g in result.row_groups] == [g.number(3) for g in base.row_groups]
    assert schemas_match(result, base)
    return "spliced"


REFERENCE = ParquetBytes(table_bytes(pa.table({"id": [1], "d": pa.array([1], pa.duration("s"))})))
SMALL = {
    name: table_bytes(
        pa.table(
            {
                "id": pa.array(range(40)),
                "d": pa.array([None, 2] * 20, pa.duration("ms")),
                "l": [["x"], []] * 20,
            }
        ),
        row_group_size=20,
        **options,
    )
    for name, options in {
        "plain": {"compression": "none"},
        "rich": {
            "write_page_index": True,
            "bloom_filter_options": {"id": {"ndv": 20}},
            "data_page_version": "2.0",
            "sorting_columns": [pq.SortingColumn(0)],
        },
    }.items()
}


@given(
    st.sampled_from(sorted(SMALL)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=4),
    st.booleans(),
)
@example("rich", [(0.5, 255)], True)
def test_flipped_bytes_are_refused_or_harmless(name: str, flips: list[tuple[float, int]], only_footer: bool) -> None:
    data = bytearray(SMALL[name])
    low = ParquetBytes(SMALL[name]).end if only_footer else 0
    for where, mask in flips:
        data[min(low + int(where * (len(data) - low)), len(data) - 1)] ^= mask
    assert outcome(bytes(data)) is not None


@given(st.sampled_from(sorted(SMALL)), st.floats(0, 1), st.floats(0, 1))
def test_truncated_files_are_refused(name: str, start: float, length: float) -> None:
    """Remove a range of bytes from a file, with or without its end."""
    data = SMALL[name]
    at = int(start * len(data))
    cut = data[:at] + data[at + 1 + int(length * (len(data) - at)) :]
    assert outcome(cut) != "spliced" or cut[-8:] == data[-8:]


@given(st.binary(max_size=400))
def test_any_footer_is_refused_or_parsed(footer: bytes) -> None:
    assert outcome(file_of(footer)) is not None
