"""The layout of spliced files: offsets, indexes, bloom filters, sizes, sorting and chunk settings."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.parquet import splice
from inlay.parquet.raw import chunk_extent
from inlay.parquet.splice import ParquetBytes, Splicer, SpliceRefused
from inlay.parquet.thrift import BINARY, I32, I64, Raw, Struct, decode, encode
from tests.parquet.splicing import (
    GROUP,
    READERS,
    ask_datafusion,
    changed,
    chunk_pages,
    copied,
    fresh_like,
    needs_bloom_filters,
    refooted,
    sample,
    spliced,
    table_bytes,
    write_pyarrow_rich,
)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("rich") / "rich.parquet"
    write_pyarrow_rich(sample(), path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def moved(rich: bytes) -> bytes:
    """Replace row group 0 with a longer one, which moves all later offsets."""
    base = ParquetBytes(rich)
    longer = pa.concat_tables([sample(0, GROUP), sample(-500, 500)])
    fresh = fresh_like(base, longer)
    return spliced(base, [lambda s: s.replace(base, 0, fresh), *copied(base, [1, 2])])


def chunks(data: bytes, row_group: int) -> list[Struct]:
    return ParquetBytes(data).row_groups[row_group].structs(1)


def pages_by_index(data: bytes, chunk: Struct) -> list[bytes]:
    start, length = chunk.number(4), chunk.number(5)
    index, _ = decode(data[start : start + length], {1: [{1: int, 2: int}]})
    return [data[page.number(1) : page.number(1) + page.number(2)] for page in index.structs(1)]


def test_offset_indexes_point_at_the_same_pages(rich: bytes, moved: bytes) -> None:
    seen = 0
    for group in (1, 2):
        for old, new in zip(chunks(rich, group), chunks(moved, group), strict=True):
            assert old.number(4) != new.number(4)
            assert pages_by_index(moved, new) == pages_by_index(rich, old)
            seen += len(pages_by_index(moved, new))
    assert seen > 100


@needs_bloom_filters
def test_column_indexes_and_bloom_filters_are_the_same_bytes(rich: bytes, moved: bytes) -> None:
    filters = 0
    for group in (1, 2):
        for old, new in zip(chunks(rich, group), chunks(moved, group), strict=True):
            before, after = old.number(6), new.number(6)
            assert moved[after : after + new.number(7)] == rich[before : before + old.number(7)]
            before, after = old.struct(3).number(14, 0), new.struct(3).number(14, 0)
            if before:
                length = old.struct(3).number(15)
                assert moved[after : after + length] == rich[before : before + length]
                filters += 1
    assert filters == 4


WINDOW = f"id >= {2 * GROUP - 30} AND id < {2 * GROUP - 20}"


def test_control_unmoved_page_index_is_detected(
    rich: bytes, moved: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With unmoved page offsets, DataFusion fails, so the tests that query it are meaningful."""
    target = tmp_path / "moved.parquet"
    target.write_bytes(moved)
    assert ask_datafusion(target, f"SELECT id FROM t WHERE {WINDOW}").num_rows == 10
    monkeypatch.setattr(splice, "_moved_offset_index", lambda data, *_: data)
    base = ParquetBytes(rich)
    fresh = fresh_like(base, pa.concat_tables([sample(0, GROUP), sample(-500, 500)]))
    target.write_bytes(spliced(base, [lambda s: s.replace(base, 0, fresh), *copied(base, [1, 2])]))
    with pytest.raises(Exception, match=r"(?i)parquet|eof|external|arrow"):
        ask_datafusion(target, f"SELECT * FROM t WHERE {WINDOW}")


def probe(path: Path, column: str, value: str) -> list[bool]:
    """Return for each row group whether its bloom filter excludes a value."""
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT * FROM parquet_bloom_probe(?, ?, ?)", [str(path), column, value])
        return [row[-1] for row in rows.fetchall()]


@needs_bloom_filters
def test_bloom_filters_exclude_the_same_values(rich: bytes, moved: bytes, tmp_path: Path) -> None:
    before, after = tmp_path / "before.parquet", tmp_path / "after.parquet"
    before.write_bytes(rich)
    after.write_bytes(moved)
    for i in range(1, 6000, 397):
        text = f"text number {i}"
        assert probe(after, "text", text)[1:] == probe(before, "text", text)[1:]
        assert i % 13 == 0 or not all(probe(after, "text", text))
        found = ask_datafusion(after, f"SELECT id FROM t WHERE text = '{text}'")
        assert found.to_pylist() == ([] if i % 13 == 0 else [{"id": i}])
    assert probe(after, "text", "is nowhere") == [True] * 3


@needs_bloom_filters
def test_control_misplaced_bloom_filter_is_detected(moved: bytes, tmp_path: Path) -> None:
    """The bloom filter of another column excludes existing rows, so these tests are meaningful."""

    def swap(footer: Struct) -> None:
        for group in footer.structs(4):
            word, text = (group.structs(1)[at].struct(3) for at in (2, 3))
            word[14], text[14], word[15], text[15] = text[14], word[14], text[15], word[15]

    target = tmp_path / "swapped.parquet"
    target.write_bytes(refooted(moved, swap))
    assert ask_datafusion(target, "SELECT id FROM t WHERE text = 'text number 1'").num_rows == 0


def test_checksums_still_match_their_pages(moved: bytes, tmp_path: Path) -> None:
    target = tmp_path / "moved.parquet"
    target.write_bytes(moved)
    assert READERS["pyarrow"](target).num_rows == pq.ParquetFile(target).metadata.num_rows
    at = pq.ParquetFile(target).metadata.row_group(2).column(0).data_page_offset + 200
    target.write_bytes(moved[:at] + bytes([moved[at] ^ 1]) + moved[at + 1 :])
    with pytest.raises(OSError, match="CRC"):
        READERS["pyarrow"](target)


def test_offsets_ordinals_and_sizes(rich: bytes, moved: bytes) -> None:
    metadata = pq.ParquetFile(pa.BufferReader(moved)).metadata
    base = ParquetBytes(moved)
    assert metadata.num_rows == 3 * GROUP + 500
    for at, group in enumerate(base.row_groups):
        first = metadata.row_group(at).column(0)
        assert group.number(7) == at
        assert group.number(5) == min(o for o in (first.dictionary_page_offset, first.data_page_offset) if o)
        assert group.number(6) == sum(len(pages) for pages in chunk_pages(moved)[at])
        assert group.number(2) == sum(c.struct(3).number(6) for c in group.structs(1))


def test_deprecated_chunk_offset_moves_or_becomes_zero(rich: bytes) -> None:
    def set_offsets(footer: Struct) -> None:
        for chunk in footer.structs(4)[1].structs(1):
            chunk.put(2, I64, chunk.struct(3).number(9))
        for chunk in footer.structs(4)[2].structs(1):
            chunk.put(2, I64, chunk_extent(chunk.struct(3))[1])  # right behind the chunk, as some writers do

    base = ParquetBytes(refooted(rich, set_offsets))
    result = ParquetBytes(spliced(base, copied(base, [1, 2])))
    for chunk in result.row_groups[0].structs(1):
        assert chunk.number(2) == chunk.struct(3).number(9)
    assert [chunk.number(2) for chunk in result.row_groups[1].structs(1)] == [0] * len(result.schema.leaves)


def test_ordinals_stop_at_the_limit_of_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    base = ParquetBytes(table_bytes(pa.table({"id": range(4)}), row_group_size=1))
    numbered = ParquetBytes(spliced(base, copied(base)))
    assert [group.number(7) for group in numbered.row_groups] == [0, 1, 2, 3]
    monkeypatch.setattr(splice, "_MAX_ORDINAL", 1)
    result = spliced(numbered, copied(numbered))
    assert [group.number(7, -1) for group in ParquetBytes(result).row_groups] == [0, 1, -1, -1]
    assert pq.read_table(pa.BufferReader(result))["id"].to_pylist() == [0, 1, 2, 3]


@needs_bloom_filters
def test_bytes_copied_counts_kept_chunks(rich: bytes) -> None:
    base = ParquetBytes(rich)
    fresh = fresh_like(base, changed(sample(0, GROUP)).select(["word"]))
    splicer = Splicer(io.BytesIO(), base)
    splicer.replace(base, 0, fresh, ["word"])
    kept = sum(len(p) for i, p in enumerate(chunk_pages(rich)[0]) if i != 2)
    bloom = chunks(rich, 0)[3].struct(3).number(15)
    assert splicer.bytes_copied == kept + bloom
    assert splicer.bytes_written > splicer.bytes_copied


def test_fields_of_newer_writers_survive(rich: bytes) -> None:
    def add(footer: Struct) -> None:
        footer[90] = (BINARY, b"of the file")
        group = footer.structs(4)[1]
        group[91] = (BINARY, b"of the row group")
        group.structs(1)[0][92] = (BINARY, b"of the chunk")
        group.structs(1)[0].struct(3)[93] = (I32, -7)

    base = ParquetBytes(refooted(rich, add))
    result = ParquetBytes(spliced(base, copied(base, [1])))
    group = result.row_groups[0]
    chunk = group.structs(1)[0]
    assert result.footer[90] == (BINARY, Raw(b"\x0bof the file"))
    assert group[91] == (BINARY, Raw(b"\x10of the row group"))
    assert chunk[92] == (BINARY, Raw(b"\x0cof the chunk"))
    assert chunk.struct(3)[93] == (I32, Raw(b"\x0d"))


@pytest.mark.parametrize(
    ("columns", "fresh_sorting", "expected"),
    [
        (["word"], None, [0]),  # the sorting column is not touched
        (["id"], None, []),  # it is, and nobody knows
        (["id"], "id", [0]),  # it is, and the new values are sorted
        (["word", "id"], "id", [0]),
        (["word", "id"], "word", [2]),  # numbered as in the target
        (None, None, []),
        (None, "word", [2]),
    ],
)
def test_sorting_columns(
    rich: bytes, columns: list[str] | None, fresh_sorting: str | None, expected: list[int]
) -> None:
    base = ParquetBytes(rich)
    rows = sample(0, GROUP) if columns is None else sample(0, GROUP).select(columns)
    sorting = None if fresh_sorting is None else [pq.SortingColumn(rows.column_names.index(fresh_sorting))]
    fresh = fresh_like(base, rows, sorting_columns=sorting)
    result = spliced(base, [lambda s: s.replace(base, 0, fresh, columns), *copied(base, [1])])
    metadata = pq.ParquetFile(pa.BufferReader(result)).metadata
    assert [column.column_index for column in metadata.row_group(0).sorting_columns] == expected
    assert [column.column_index for column in metadata.row_group(1).sorting_columns] == [0]


def test_sorting_by_a_column_missing_in_the_target_is_dropped(rich: bytes) -> None:
    base = ParquetBytes(rich)
    rows = sample(0, GROUP).select(["id"]).append_column("other", pa.array(range(GROUP)))
    fresh = ParquetBytes(table_bytes(rows, sorting_columns=[pq.SortingColumn(1)]))
    result = spliced(base, [lambda s: s.replace(base, 0, fresh, ["id"])])
    metadata = pq.ParquetFile(pa.BufferReader(result)).metadata
    assert metadata.row_group(0).sorting_columns == ()
    assert metadata.num_columns == len(base.schema.leaves)


def test_optional_fields_of_a_row_group_stay_absent(rich: bytes) -> None:
    def leave_out(footer: Struct) -> None:
        for group in footer.structs(4):
            group.pop(5)  # where it begins
            group.pop(6)  # how long it is

    base = ParquetBytes(refooted(rich, leave_out))
    fresh = fresh_like(base, sample(0, GROUP).select(["word"]))
    result = spliced(base, [lambda s: s.replace(base, 0, fresh, ["word"]), *copied(base, [1, 2])])
    assert [(5 in group, 6 in group) for group in ParquetBytes(result).row_groups] == [(False, False)] * 3
    lengthless = ParquetBytes(refooted(rich, lambda footer: [group.pop(6) for group in footer.structs(4)]))
    moved = ParquetBytes(spliced(lengthless, copied(lengthless, [2, 1])))
    assert moved.row_groups[0].number(5) == 4 != lengthless.row_groups[2].number(5)
    assert pq.read_table(pa.BufferReader(result)).equals(sample())


def test_sizes_of_a_mixed_row_group(rich: bytes) -> None:
    base = ParquetBytes(rich)
    fresh = fresh_like(base, sample(0, GROUP).select(["text", "score"]), compression="none", use_dictionary=True)
    result = spliced(base, [lambda s: s.replace(base, 0, fresh, ["text", "score"])])
    (group,) = ParquetBytes(result).row_groups
    metadata = pq.ParquetFile(pa.BufferReader(result)).metadata.row_group(0)
    columns = [metadata.column(at) for at in range(metadata.num_columns)]
    assert metadata.total_byte_size == sum(column.total_uncompressed_size for column in columns)
    assert group.number(6) == sum(column.total_compressed_size for column in columns)
    assert group.number(2) != base.row_groups[0].number(2)
    assert group.number(6) != base.row_groups[0].number(6)


@pytest.mark.parametrize(
    ("portions", "expected"),
    [
        ([["text"], ["word", "place"]], [0]),  # the sorting column is not touched
        ([["id"], ["word"]], []),  # it is, and what a piece says of it says nothing of the others
    ],
)
def test_columns_may_come_from_several_files(rich: bytes, portions: list[list[str]], expected: list[int]) -> None:
    base, rows = ParquetBytes(rich), sample(5_000, GROUP)
    sorting = {"sorting_columns": [pq.SortingColumn(0)]}
    pieces = [(fresh_like(base, rows.select(names), **sorting), names) for names in portions]
    whole = fresh_like(base, rows)
    result = spliced(base, [lambda s: s.replace_columns(base, 0, pieces), *copied(base, [1])])
    names = [name for portion in portions for name in portion]
    at_once = spliced(base, [lambda s: s.replace(base, 0, whole, names), *copied(base, [1])])
    table, wanted = (pq.read_table(pa.BufferReader(data)) for data in (result, at_once))
    assert table.equals(wanted)
    assert table.slice(0, GROUP).select(names).equals(rows.select(names).cast(table.select(names).schema))
    first = pq.ParquetFile(pa.BufferReader(result)).metadata.row_group(0)
    assert [column.column_index for column in first.sorting_columns] == expected


def test_piece_with_another_number_of_rows_is_refused(rich: bytes) -> None:
    base = ParquetBytes(rich)
    good, short = (fresh_like(base, sample(0, count).select(["id"])) for count in (GROUP, GROUP - 1))
    with pytest.raises(SpliceRefused, match=f"{GROUP - 1} rows cannot replace columns of {GROUP} rows"):
        Splicer(io.BytesIO(), base).replace_columns(base, 0, [(good, ["id"]), (short, ["id"])])


def test_files_without_row_groups_or_rows() -> None:
    empty = sample().slice(0, 0)
    for options in ({}, {"use_dictionary": False}, {"write_page_index": True}):
        base = ParquetBytes(table_bytes(empty, **options))
        assert {s.page_version for s in base.chunk_settings(0)} == {1}
        for steps in ([], copied(base)):
            result = pq.read_table(pa.BufferReader(spliced(base, steps)))
            assert result.equals(pq.read_table(pa.BufferReader(base.read(0, base.input.size))))


def test_calls_after_finish_are_rejected(rich: bytes) -> None:
    base = ParquetBytes(rich)
    splicer = Splicer(io.BytesIO(), base)
    splicer.finish()
    with pytest.raises(ValueError, match="finished"):
        splicer.copy(base, 0)
    with pytest.raises(ValueError, match="finished"):
        splicer.finish()


class TestChunkSettings:
    @needs_bloom_filters
    def test_rich(self, rich: bytes) -> None:
        settings = {s.path: s for s in ParquetBytes(rich).chunk_settings(1)}
        assert list(settings)[-3:] == ["tags.list.element", "place.x", "place.name"]
        assert {path for path, s in settings.items() if s.dictionary} == {"word"}
        assert {s.codec for s in settings.values()} == {"zstd"}
        assert {s.page_version for s in settings.values()} == {2}
        assert all(s.page_checksums and s.statistics for s in settings.values())
        assert all(s.column_index and s.offset_index for s in settings.values())
        assert {path for path, s in settings.items() if s.bloom_filter_bytes} == {"text", "word"}
        assert settings["flag"].encoding == "RLE"
        assert settings["price"].physical_type == "FIXED_LEN_BYTE_ARRAY"

    @pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
    def test_codec_has_the_name_that_the_writer_accepts(self, codec: str) -> None:
        data = table_bytes(pa.table({"id": [1]}), compression=codec)
        (found,) = ParquetBytes(data).chunk_settings(0)
        assert found.codec == codec
        assert ParquetBytes(table_bytes(pa.table({"id": [1]}), compression=found.codec)).chunk_settings(0) == [found]

    @pytest.mark.parametrize(
        ("encoding", "values"),
        [
            ("PLAIN", [1, 2]),
            ("DELTA_BINARY_PACKED", [1, 2]),
            ("BYTE_STREAM_SPLIT", [1.5, 2.5]),
            ("DELTA_BYTE_ARRAY", ["a", "ab"]),
            ("DELTA_LENGTH_BYTE_ARRAY", ["a", "ab"]),
        ],
    )
    def test_encoding(self, encoding: str, values: list[Any]) -> None:
        data = table_bytes(
            pa.table({"v": values}),
            use_dictionary=False,
            column_encoding=encoding,
            write_statistics=False,
        )
        (found,) = ParquetBytes(data).chunk_settings(0)
        assert (found.encoding, found.dictionary, found.statistics) == (encoding, False, False)
        assert (found.page_version, found.page_checksums, found.bloom_filter_bytes) == (1, False, 0)

    @pytest.mark.parametrize("with_encoding_stats", [True, False])
    @pytest.mark.parametrize(("distinct", "dictionary"), [(10, True), (20_000, False)])
    def test_partly_used_dictionary_does_not_count(
        self, with_encoding_stats: bool, distinct: int, dictionary: bool
    ) -> None:
        table = pa.table({"v": [i % distinct for i in range(20_000)]})
        data = table_bytes(table, dictionary_pagesize_limit=10_000, data_page_size=4096, write_batch_size=512)
        if not with_encoding_stats:
            data = refooted(data, lambda footer: footer.structs(4)[0].structs(1)[0].struct(3).pop(13))
        (found,) = ParquetBytes(data).chunk_settings(0)
        assert (found.dictionary, found.encoding) == (dictionary, "PLAIN")

    def test_long_page_header(self) -> None:
        table = pa.table({"v": ["x" * 3000, "y" * 3000]})
        data = table_bytes(table, use_dictionary=False, compression="none", write_page_checksum=True)
        (found,) = ParquetBytes(data).chunk_settings(0)
        assert (found.page_version, found.page_checksums, found.encoding) == (1, True, "PLAIN")

    @pytest.mark.parametrize("ndv", [100, 5_000, 1_000_000])
    @needs_bloom_filters
    def test_bloom_filter_ndv_reproduces_the_size(self, ndv: int) -> None:
        table = pa.table({"v": [f"{i}" for i in range(100)]})
        first = ParquetBytes(table_bytes(table, bloom_filter_options={"v": {"ndv": ndv}})).chunk_settings(0)[0]
        options = {"v": {"ndv": first.bloom_filter_ndv()}}
        again = ParquetBytes(table_bytes(table, bloom_filter_options=options)).chunk_settings(0)[0]
        assert first.bloom_filter_bytes > 0
        assert again == first

    def test_unknown_codec_is_refused(self) -> None:
        def set_lzo(footer: Struct) -> None:
            footer.structs(4)[0].structs(1)[0].struct(3).put(4, I32, 3)

        base = ParquetBytes(refooted(table_bytes(pa.table({"id": [1]})), set_lzo))
        with pytest.raises(SpliceRefused, match="codec 3"):
            base.chunk_settings(0)


SPEC = {1: int, 2: {3: int}, 4: [{1: bytes}], 20: bool}
_TREES = st.recursive(
    st.dictionaries(st.integers(1, 40), st.integers(-(2**63), 2**63 - 1).map(lambda n: (I64, n)), max_size=4).map(
        Struct
    ),
    lambda inner: st.dictionaries(st.integers(1, 40), inner.map(lambda s: (12, s)), max_size=3).map(Struct),
    max_leaves=8,
)


@given(_TREES)
def test_thrift_trees_survive_without_a_spec(tree: Struct) -> None:
    data = encode(tree)
    raw, used = decode(data, {})
    assert used == len(data)
    assert raw.keys() == tree.keys()
    assert encode(raw) == data


@given(st.integers(-(2**63), 2**63 - 1), st.lists(st.binary(max_size=300), max_size=20), st.booleans())
def test_thrift_values_survive_with_a_spec(number: int, texts: list[bytes], flag: bool) -> None:
    tree = Struct({1: (I64, number), 2: (12, Struct({3: (I32, 5)})), 20: (1 if flag else 2, flag)})
    tree.put(4, 9, [Struct({1: (BINARY, text)}) for text in texts])
    found, _ = decode(encode(tree), SPEC)
    assert found == tree


def test_footers_of_real_files_survive(rich: bytes) -> None:
    parsed = ParquetBytes(rich)
    assert encode(parsed.footer) == rich[parsed.end : -8]
