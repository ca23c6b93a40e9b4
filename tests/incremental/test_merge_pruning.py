"""Conservative pruning: a file or row group is skipped exactly if statistics prove that it holds no key."""

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from tests import lake
from tests.merge_cases import WRITERS, write_as

LONG = "k" * 300


def one_file(folder, writer, kind, keys):
    table = pa.table({"id": pa.array(keys, kind), "v": [f"old {i}" for i in range(len(keys))]})
    folder.mkdir()
    write_as(writer, table, folder / "a.parquet", 100, "snappy")
    return str(folder)


#: what -> (type, keys of the file, the one that is updated)
KEYS = {
    "long strings that differ at the end": (pa.string(), [LONG + "a", LONG + "m", LONG + "z"], LONG + "m"),
    "long strings, the greatest": (pa.string(), [LONG + "a", LONG + "z"], LONG + "z"),
    "long strings, the least": (pa.string(), [LONG + "a", LONG + "z"], LONG + "a"),
    "the greatest character": (pa.string(), ["a", "\U0010ffff" * 100], "\U0010ffff" * 100),
    "strings beyond ASCII": (pa.string(), ["a", "é", "日本", "z"], "日本"),
    "the empty string": (pa.string(), ["", "b"], ""),
    "bytes beyond ASCII": (pa.binary(), [b"\x00", b"\x7f", b"\xff"], b"\xff"),
    "long bytes": (pa.binary(), [b"\xff" * 300, b"\xff" * 299], b"\xff" * 300),
    "large unsigned numbers": (pa.uint64(), [1, 2**63, 2**64 - 1], 2**64 - 1),
    "large unsigned 32": (pa.uint32(), [1, 2**32 - 1], 2**32 - 1),
    "the least number": (pa.int64(), [-(2**63), 0], -(2**63)),
    "negative zero": (pa.float64(), [-0.0], 0.0),
    "zero": (pa.float64(), [0.0, 5.0], -0.0),
    "not a number among numbers": (pa.float64(), [1.0, float("nan"), 5.0], float("nan")),
    "only not a number": (pa.float32(), [float("nan")], float("nan")),
    "infinity": (pa.float64(), [1.0, float("inf")], float("inf")),
    "negative decimals": (pa.decimal128(20, 2), [Decimal("-9.99"), Decimal("9.99")], Decimal("-9.99")),
    "true and false": (pa.bool_(), [True, False], True),
    "instants before 1970": (pa.timestamp("us"), [-(10**15), 0], -(10**15)),
    "nulls beside keys": (pa.int64(), [None, 3, None], 3),
}


@pytest.mark.long_on("duckdb-union", "spark")  # the planner prunes files before it calls an engine
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("case", KEYS)
def test_an_existing_key_is_found(tmp_path, engine, writer, case):
    kind, keys, wanted = KEYS[case]
    path = one_file(tmp_path / "d", writer, kind, keys)
    source = pa.table({"id": pa.array([wanted], kind), "v": ["new"]})
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (1, 0)
    assert [row["v"] for row in lake.all_rows(path)].count("new") == 1


WRITTEN = {
    "without statistics": {"write_statistics": False},
    "with statistics of other columns": {"write_statistics": ["v"]},
    "as INT96": {"use_deprecated_int96_timestamps": True},
}


@pytest.mark.parametrize("how", WRITTEN)
def test_an_existing_key_is_found_without_statistics(tmp_path, engine, how):
    table = pa.table({"id": pa.array([10**18, 5], pa.timestamp("ns")), "v": ["a", "b"]})
    path = lake.write(tmp_path / "d", {"a.parquet": table}, **WRITTEN[how])
    source = pa.table({"id": pa.array([5], pa.timestamp("ns")), "v": ["new"]})
    result = inlay.merge(source, path, "update", ["id"], engine=engine)
    assert (result.updated, lake.all_rows(path)[1]["v"]) == (1, "new")


@pytest.mark.parametrize(
    ("target", "source", "old", "new"),
    [
        (pa.decimal128(9, 2), pa.decimal128(18, 6), Decimal("1.50"), Decimal("1.500000")),
        (pa.decimal128(18, 6), pa.decimal128(9, 2), Decimal("1.500000"), Decimal("1.50")),
        (pa.timestamp("ms"), pa.timestamp("ns"), 7, 7_000_000),
        (pa.timestamp("ns", "UTC"), pa.timestamp("s", "Asia/Tokyo"), 7 * 10**9, 7),
        (pa.int8(), pa.int64(), -7, -7),
        (pa.date32(), pa.date64(), 1, 86_400_000),
        (pa.float32(), pa.float64(), 0.5, 0.5),
        (pa.string(), pa.dictionary(pa.int8(), pa.string()), "é", "é"),
    ],
    ids=str,
)
def test_bounds_are_compared_across_types(tmp_path, engine, target, source, old, new):
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": pa.array([old], target), "v": ["a"]})})
    updates = pa.table({"id": pa.array([new], source), "v": ["new"]})
    result = inlay.merge(updates, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (1, 0)


def test_a_composite_key_is_excluded_by_any_one_column(tmp_path, engine):
    """Column a overlaps, column b does not: the file, whose pages are damaged, is not read."""
    files = {
        "a.parquet": pa.table({"a": [1, 9], "b": ["k", "m"], "v": ["x", "y"]}),
        "b.parquet": pa.table({"a": [1, 9], "b": ["r", "t"], "v": ["x", "y"]}),
    }
    path = lake.write(tmp_path / "d", files)
    lake.spoil(tmp_path / "d/a.parquet")
    source = pa.table({"a": [9], "b": ["t"], "v": ["new"]})
    result = inlay.merge(source, path, "upsert", ["a", "b"], engine=engine)
    assert (result.updated, result.inserted) == (1, 0)
    assert [Path(file).name for file in result.rewritten_files] == ["b.parquet"]


def test_files_outside_the_range_of_every_key_are_not_read(tmp_path, engine):
    """The keys are below and above the range of file 1."""
    files = {f"{i}.parquet": lake.table([i * 10, i * 10 + 5]) for i in range(3)}
    path = lake.write(tmp_path / "d", files)
    lake.spoil(tmp_path / "d/1.parquet")
    result = inlay.merge(lake.table([0, 9, 20], ["x", "y", "z"]), path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (2, 1)


def test_row_groups_without_a_key_are_neither_decoded_nor_changed(tmp_path, engine):
    """Damaged pages of other row groups are copied unchanged."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(30))}, row_group_size=10)
    file = tmp_path / "d/a.parquet"
    lake.spoil(file, 0, 2)
    garbage = lake.chunk_bytes(file, 2, 1)
    result = inlay.merge(lake.table([15], ["new"]), path, "update", ["id"], engine=engine)
    assert result.updated == 1
    assert lake.chunk_bytes(file, 2, 1) == garbage
    with pa.OSFile(str(file)) as handle:
        group = pq.ParquetFile(handle).read_row_group(1)
    assert group["v"].to_pylist()[4:7] == ["v14", "new", "v16"]


def test_an_unreadable_file_is_named_and_nothing_changes(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1]), "b.parquet": lake.table([2])})
    lake.spoil(tmp_path / "d/b.parquet")
    before = lake.photograph(path)
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(inlay.InlayError, match=r"b\.parquet"):
            call(lake.table([1, 2], ["x", "y"]), path, "upsert", ["id"], engine=engine)
    assert lake.photograph(path) == before
