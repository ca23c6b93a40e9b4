"""Misspelled names: every error suggests the closest known name with the same sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inlay
from inlay.errors import InlayError, InvalidArgumentError, SchemaMismatchError, close_matches, did_you_mean, unknown
from inlay.incremental import confirm_affected_files, validate_no_null_keys
from inlay.settings import Settings
from inlay.text.options import ReadOptions
from inlay.type_grammar import parse_type

ROWS = pa.table({"id": [1, 2], "day": ["mon", "tue"], "price": [1.0, 2.0]})


def merge(path: str, **options: Any) -> Any:
    return inlay.merge(ROWS, path, **({"strategy": "upsert", "key_columns": ["id"]} | options))


def write(path: str, **options: Any) -> Any:
    return inlay.write_dataset(ROWS, path, **options)


#: Argument -> (call, misspelled name, expected name).
ARGUMENTS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "strategy": (lambda d: merge(d, strategy="upsrt"), "upsrt", "upsert"),
    "strategy, case": (lambda d: merge(d, strategy="FULL-MERGE"), "FULL-MERGE", "full_merge"),
    "strategy of a plan": (lambda d: inlay.plan_merge(ROWS, d, "udpate", ["id"]), "udpate", "update"),
    "engine": (lambda d: merge(d, engine="pyarow"), "pyarow", "pyarrow"),
    "engine of a write": (lambda d: write(d, engine="duck"), "duck", "duckdb"),
    "engine of a compaction": (lambda d: inlay.compact(d, engine="sprak"), "sprak", "spark"),
    "schema_mode": (lambda d: merge(d, schema_mode="evolv"), "evolv", "evolve"),
    "compression": (lambda d: merge(d, compression="zst"), "zst", "zstd"),
    "compression of a write": (lambda d: write(d, compression="snapy"), "snapy", "snappy"),
    "mode": (lambda d: write(d, mode="overwite"), "overwite", "overwrite"),
    "rewrite_mode": (
        lambda d: inlay.PyArrowDatasetIO().write_parquet_dataset(ROWS, d, rewrite_mode="incremetal"),
        "incremetal",
        "incremental",
    ),
    "partition column of a dataset": (lambda d: merge(d, partition_columns=["dya"]), "dya", "day"),
    "format of an upload": (lambda _: ReadOptions.of("jsn"), "jsn", "json"),
    "option of an upload": (lambda _: ReadOptions.of("csv", {"delimeter": ";"}), "delimeter", "delimiter"),
    "layout of an upload": (lambda _: ReadOptions.of("json", {"layout": "arry"}), "arry", "array"),
    "type": (lambda _: parse_type("struct<a: integr>"), "integr", "integer"),
    "type, decimal": (lambda _: parse_type("decimel(10,2)"), "decimel", "decimal"),
}
COLUMNS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "key column": (lambda d: merge(d, key_columns=["idd"]), "idd", "id"),
    "key column, case": (lambda d: merge(d, key_columns=["ID"]), "ID", "id"),
    "key column of a plan": (lambda d: inlay.plan_merge(ROWS, d, "upsert", ["iid"]), "iid", "id"),
    "key column of a check": (lambda _: validate_no_null_keys(ROWS, ["pirce"]), "pirce", "price"),
    "key column of a search": (
        lambda d: confirm_affected_files(inlay.list_dataset_files(d), ["prce"], [1.0]),
        "prce",
        "price",
    ),
    "dedup_order_by": (lambda d: merge(d, strategy="deduplicate", dedup_order_by="prise"), "prise", "price"),
    "partition column": (lambda d: write(f"{d}-new", partition_columns=["dya"]), "dya", "day"),
    "partition column of a merge": (lambda d: merge(f"{d}-new", partition_columns=["dy"]), "dy", "day"),
    "sort column": (lambda d: inlay.compact(d, sort_by=["Price"]), "Price", "price"),
    "column to read": (lambda d: inlay.read_parquet(d, columns=["id", "prices"]), "prices", "price"),
    "column of a filter": (lambda d: inlay.read_parquet(d, filter=ds.field("proce") > 1), "proce", "price"),
    "partition column to read": (lambda d: inlay.read_parquet(d, columns=["days"]), "days", "day"),
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    write(str(tmp_path / "d"), partition_columns=["day"])
    return str(tmp_path / "d")


def failure(call: Callable[[], Any], kind: type[InlayError]) -> InlayError:
    with pytest.raises(kind) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("name", ARGUMENTS)
def test_misspelled_argument(path: str, name: str) -> None:
    call, written, meant = ARGUMENTS[name]
    error = failure(lambda: call(path), InvalidArgumentError)
    assert written in error.message
    assert error.hint == f"Did you mean {meant!r}?"


@pytest.mark.parametrize("name", COLUMNS)
def test_misspelled_column(path: str, name: str) -> None:
    call, written, meant = COLUMNS[name]
    error = failure(lambda: call(path), SchemaMismatchError)
    assert repr(written) in error.message
    assert error.hint == f"Did you mean {meant!r}?"


def test_unknown_column_without_a_match_lists_the_columns(path: str) -> None:
    error = failure(lambda: inlay.read_parquet(path, columns=["zebra"]), SchemaMismatchError)
    assert error.message == "The column 'zebra' does not exist in the dataset."
    assert error.hint == "The columns are: id, price, day."


def test_misspelled_column_of_the_source(path: str) -> None:
    error = failure(lambda: inlay.merge(ROWS.rename_columns(["id", "day", "prize"]), path, "upsert", ["id"]),
                    SchemaMismatchError)  # fmt: skip
    assert "'prize' (did you mean 'price'?)" in error.message


def test_nested_column_is_known(tmp_path: Path) -> None:
    rows = pa.table({"place": [{"city": "Ulm"}]})
    inlay.write_dataset(rows, str(tmp_path / "places"))
    assert inlay.read_parquet(str(tmp_path / "places"), columns=["place.city"])["city"].to_pylist() == ["Ulm"]


def test_partition_columns_that_do_not_match_the_paths(path: str) -> None:
    error = failure(lambda: merge(path, partition_columns=[]), InvalidArgumentError)
    assert error.hint == "Omit partition_columns to keep the partition columns of the dataset."


def test_misspelled_setting(tmp_path: Path) -> None:
    file = tmp_path / "inlay.toml"
    file.write_text("prot = 9000\n")
    error = failure(lambda: Settings.load(file=file), InvalidArgumentError)
    assert error.hint == "Did you mean 'port'?"


# --------------------------------------------------------------------------------------------------------- helpers
def test_unknown_lists_the_known_names() -> None:
    error = unknown("fruit", "aple", ["apple", "pear"])
    assert str(error) == "Unknown fruit 'aple'; known: apple, pear.\nHint: Did you mean 'apple'?"
    assert str(unknown("fruit", "nut", ["apple", "pear"])) == "Unknown fruit 'nut'; known: apple, pear."
    assert str(unknown("fruit", None, [])) == "Unknown fruit None; known: none."


def test_hint_can_list_several_names() -> None:
    assert did_you_mean("orders", ["orders_1", "orders_2", "x"], 3, str.upper) == "Did you mean ORDERS_2 or ORDERS_1?"


@pytest.mark.parametrize("name", [None, 5, ["id"], b"id", "x" * 201], ids=repr)
def test_values_that_are_not_names_match_nothing(name: object) -> None:
    assert close_matches(name, ["id", "x" * 200]) == []


NAMES = st.lists(st.text(min_size=1, max_size=12), max_size=6, unique_by=str.casefold)


@given(name=st.text(max_size=12), known=NAMES)
def test_matches_are_known_names(name: str, known: list[str]) -> None:
    meant = close_matches(name, known, 3)
    assert set(meant) <= set(known)
    assert len(meant) <= 3
    for each in known:
        assert close_matches(each, known) == [each]


@given(
    known=st.lists(st.from_regex("[a-z_]{5,12}", fullmatch=True), min_size=1, max_size=6, unique=True), data=st.data()
)
def test_one_wrong_letter_or_another_case_matches(known: list[str], data: Any) -> None:
    meant = data.draw(st.sampled_from(known))
    at = data.draw(st.integers(0, len(meant) - 1))
    for written in (meant.upper(), meant[:at] + meant[at + 1 :], meant[:at] + "é" + meant[at:]):
        assert meant in close_matches(written, known, len(known))


def test_rejected_calls_write_nothing(path: str) -> None:
    for call, _, _ in (*ARGUMENTS.values(), *COLUMNS.values()):
        failure(lambda call=call: call(path), InlayError)  # type: ignore[misc]
    assert sorted(name for name in os.listdir(os.path.dirname(path)) if not name.startswith(".")) == ["d"]
