"""The HTML of plans and results in notebooks: well-formed, inert, small, and with the right counts."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inlay
from inlay.incremental import FilePlan, MergeFileMetadata, MergePlan, MergeResult
from tests import lake

INERT_TAGS = {"div", "span", "b", "table", "tr", "th", "td", "details", "summary"}
INERT_ATTRIBUTES = {"style", "title", "role", "aria-label"}
ATTACK = "<img src=x onerror=alert(1)>\"'&</span><script>"


class ParsedHtml(HTMLParser):
    """A parser of the HTML that rejects scripts, unknown attributes and unclosed elements."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, dict[str, str]]] = []
        self.blocks: list[dict[str, str]] = []
        self.rows: dict[str, int] = {}
        self.kinds: dict[str, int] = {}
        self.titles: list[str] = []
        self.styled: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        assert tag in INERT_TAGS
        assert len(found) == len(attrs)
        assert all(name in INERT_ATTRIBUTES or name.startswith("data-") for name in found)
        assert "url" not in found.get("style", "")
        self.open.append((tag, found))
        self.titles.append(found.get("title", ""))
        self.styled.append((found.get("style", ""), found.get("title", "")))
        if "data-kind" in found or "data-files" in found:
            self.blocks.append(found)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "
        _, attributes = self.open[-1]
        for name, numbers in (("data-rows", self.rows), ("data-count", self.kinds)):
            if name in attributes:
                numbers[attributes[name]] = int(data.replace(",", ""))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def parse(summary: Any) -> ParsedHtml:
    return ParsedHtml(summary._repr_html_())


def counts(summary: MergePlan | MergeResult) -> dict[str, int]:
    return {
        "source": summary.source_count,
        "inserted": summary.inserted,
        "updated": summary.updated,
        "unchanged": summary.unchanged,
        "deleted": summary.deleted,
        "before": summary.target_count_before,
        "after": summary.target_count_after,
    }


def result_with(files: list[MergeFileMetadata], **more: Any) -> MergeResult:
    numbers = dict.fromkeys(
        ("source_count", "target_count_before", "target_count_after", "inserted", "updated", "deleted"), 0
    )
    return MergeResult.of(files, **({"strategy": "upsert"} | numbers | more))


# ------------------------------------------------------------------------------------------------------ a real dataset
@pytest.fixture
def path(tmp_path: Path) -> str:
    """Five files with three row groups each, except the last, which has one."""
    files = {f"{i}.parquet": lake.table(range(30 * i, 30 * i + 30), w=pa.array(range(30))) for i in range(4)}
    lake.write(tmp_path / "d", files, row_group_size=10)
    return lake.write(tmp_path / "d", {"4.parquet": lake.table(range(120, 125), w=pa.array(range(5)))})


def updates(ids: list[int]) -> pa.Table:
    """Rows that differ from the dataset in every column except the key."""
    return lake.table(ids, [f"new {i}" for i in ids], w=pa.array([-1 - i for i in ids], pa.int64()))


def test_a_plan_and_its_result_show_the_same_files_and_counts(path: str) -> None:
    source = updates([5, 6, 120, 121, 122, 123, 124, 500])
    plan = inlay.plan_merge(source, path, "upsert", ["id"])
    result = inlay.merge(source, path, "upsert", ["id"])
    for summary in (plan, result):
        page = parse(summary)
        assert page.rows == counts(summary)
        assert page.kinds == {"untouched": 3, "spliced": 2, "new": 1}
        assert [block["data-kind"] for block in page.blocks] == ["spliced", *["untouched"] * 3, "spliced", "new"]
        assert "3 files touched" in page.text
        assert path in page.text
    assert "nothing was changed" in parse(plan).text
    assert "2 matching rows in 1 of 3 row groups" in parse(plan).text


def test_a_file_that_cannot_be_spliced_is_rewritten(path: str) -> None:
    source = updates([0]).append_column("more", pa.array([1]))
    plan = inlay.plan_merge(source, path, "upsert", ["id"], schema_mode="evolve")
    result = inlay.merge(source, path, "upsert", ["id"], schema_mode="evolve")
    for summary in (plan, result):
        assert parse(summary).kinds == {"untouched": 4, "rewritten": 1}


def test_removed_files_are_displayed(path: str) -> None:
    plan = inlay.plan_merge(lake.table([0]), path, "full_merge", ["id"], missing_columns="null")
    result = inlay.merge(lake.table([0]), path, "full_merge", ["id"], missing_columns="null")
    assert parse(plan).kinds == parse(result).kinds == {"rewritten": 1, "removed": 4}


def test_displayed_bytes_equal_the_bytes_written(path: str) -> None:
    result = inlay.merge(updates([5]), path, "upsert", ["id"])
    left = sum(file.size_bytes or 0 for file in result.files if file.operation == "preserved")
    share = left / (left + result.bytes_written)
    text = parse(result).text
    assert result.bytes_copied < result.bytes_written < 10_000
    for count in (result.bytes_written, result.bytes_written - result.bytes_copied, result.bytes_copied, left):
        assert f"{count / 1000:.1f} kB" in text or f"{count} bytes" in text
    assert f"({share:.0%}) saved compared with rewriting the dataset" in text


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.long_on("duckdb-union", "spark")  # all engines copy bytes with the same kernels
def test_a_plan_predicts_the_copied_bytes(path: str, engine: Any) -> None:
    """A merge copies the key columns of matched rows and all other row groups."""
    source = updates([5, 65, 120])
    plan = inlay.plan_merge(source, path, "upsert", ["id"], engine=engine)
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine)
    planned = {file.path: file.bytes_copied for file in plan.files}
    done = {file.path: file.bytes_copied for file in result.files}
    assert planned == done
    assert sum(done.values()) == result.bytes_copied > 0
    touched = [file for file in plan.files if file.operation == "rewritten"]
    assert plan.bytes_to_rewrite == sum((file.size_bytes or 0) - file.bytes_copied for file in touched)
    assert [file.bytes_copied > 0 for file in plan.files] == [True, False, True, False, True]


@given(
    keys=st.lists(st.integers(0, 140), unique=True, max_size=12),
    strategy=st.sampled_from(["insert", "update", "upsert", "full_merge", "deduplicate"]),
    equal=st.booleans(),
)
def test_any_merge_is_displayed_with_its_counts(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], strategy: str, equal: bool
) -> None:
    root = tmp_path_factory.mktemp("lake")
    files = {f"p={i}/x.parquet": lake.table(range(20 * i, 20 * i + 20)) for i in range(6)}
    path = lake.write(root / "d", files, row_group_size=7)
    parts = pa.array([min(key // 20, 5) for key in keys], pa.int64())
    source = lake.table(keys, None if equal else ["new"] * len(keys), p=parts)
    plan = inlay.plan_merge(source, path, strategy, ["id"])
    result = inlay.merge(source, path, strategy, ["id"])
    done = {file.path: file.bytes_copied for file in result.files}
    assert all(done[file.path] == file.bytes_copied for file in plan.files)
    pages = [parse(plan), parse(result)]
    assert pages[0].kinds == pages[1].kinds
    for summary, page in zip((plan, result), pages, strict=True):
        assert page.rows == counts(summary)
        assert Counter(block["data-kind"] for block in page.blocks) == page.kinds
    assert sum(pages[1].kinds.values()) == len(result.files)


# ------------------------------------------------------------------------------------------------------- a whole page
FILES = [
    FilePlan("d/a/keep.parquet", "preserved", "why not", 10, 5_000),
    FilePlan("d/a/part.parquet", "rewritten", "2 matching rows", 1_000, 4_000, 2, (0,), 3_000),
    FilePlan("d/b/whole.parquet", "rewritten", "another schema", 10, 1_000, 2, (0,), 0),
    FilePlan("d/b/old.parquet", "removed", "", 10, 700),
]
LONG = "d/b/" + "x" * 117  # 119 characters behind `d/`
NEW = [LONG, LONG + "xy"]


def test_the_whole_html_of_a_plan() -> None:
    plan = MergePlan([], [], NEW, 4, "upsert", source_count=3, bytes_to_rewrite=2_000, explain=lambda: FILES)
    page = parse(plan)
    blocks = {block["title"]: block["style"].partition("background:")[2] for block in page.blocks}
    assert blocks == {
        "untouched: a/keep.parquet (10 rows, 5.0 kB): why not": "#8b949e55",
        "spliced: a/part.parquet (1,000 rows, 4.0 kB): 2 matching rows": (
            "linear-gradient(to top,#2f81f7 55%,#8b949e55 55%)"
        ),
        "removed: b/old.parquet (10 rows, 700 bytes)": "none;box-shadow:inset 0 0 0 2px #d1242f",
        "rewritten: b/whole.parquet (10 rows, 1.0 kB): another schema": "#d9822b",
        f"new: {LONG[2:]}: new keys": "#2da44e",
        f"new: ...{NEW[1][-120:]}: new keys": "#2da44e",
    }
    assert " ".join(page.text.split()) == (
        "upsert: plan, nothing was changed d 1 untouched 1 spliced 1 rewritten 2 new 1 removed"
        " source inserted updated unchanged deleted before after rows 3 0 0 0 0 0 0"
        " 2.0 kB to encode (without new rows), 3.0 kB to copy;"
        " 5.0 kB (50%) saved compared with rewriting the dataset 5 files touched"
        " spliced a/part.parquet 1,000 rows 4.0 kB 2 matching rows"
        " removed b/old.parquet 10 rows 700 bytes"
        " rewritten b/whole.parquet 10 rows 1.0 kB another schema"
        f" new {LONG[2:]} new keys new ...{NEW[1][-120:]} new keys"
    )
    shares = [style for style, title in page.styled if title.endswith(("encoded", "copied", "kB untouched"))]
    assert [style.partition("background:")[2] for style in shares] == [
        "#d9822b;width:20.00%",
        "#2f81f7;width:30.00%",
        "#8b949e55;width:50.00%",
    ]
    assert [title for _, title in page.styled if title in ("untouched", "spliced", "rewritten", "new", "removed")] == [
        "untouched", "spliced", "rewritten", "new", "removed",
    ]  # fmt: skip


def test_files_of_unknown_size_are_displayed_without_sizes() -> None:
    unknown = [
        MergeFileMetadata("a.parquet", 1, "rewritten", None),
        MergeFileMetadata("b.parquet", 1, "preserved", None),
    ]
    page = parse(result_with(unknown))
    assert [block["title"] for block in page.blocks] == ["rewritten: a.parquet", "untouched: b.parquet"]
    assert page.text.split()[:7] == ["upsert:", "done", "1", "untouched", "1", "rewritten", "source"]
    assert page.text.split()[-5:] == ["1", "file", "touched", "rewritten", "a.parquet"]
    assert "0 bytes (0%) saved" in page.text
    assert not any("width:0" in style or "height:8px" in style for style, _ in page.styled), "there is nothing to share"


@pytest.mark.parametrize(("count", "rest"), [(20, ""), (21, "... and 1 more"), (22, "... and 2 more")])
def test_the_first_touched_files_are_listed(count: int, rest: str) -> None:
    page = parse(result_with([MergeFileMetadata(f"d/{i:02}", 1, "rewritten", 9) for i in range(count)]))
    _, text = page.text.split(" files touched ")
    assert text.split("rewritten ")[-1].strip().split(maxsplit=5)[5:] == ([rest] if rest else [])
    assert text.count("rewritten") == 20


def test_adjacent_files_share_a_block() -> None:
    kinds: list[Any] = ["preserved", "preserved", "preserved", "inserted"]
    files = [MergeFileMetadata(f"d/{i:05}", 1, kinds[i % 4], 9) for i in range(160 * 4)]
    blocks = parse(result_with(files)).blocks
    assert len(blocks) == 160
    assert {block["title"].partition(": ")[2] for block in blocks} == {"3 untouched, 1 new"}
    assert {block["style"].partition("background:")[2] for block in blocks} == {
        "linear-gradient(#8b949e55 0% 75%,#2da44e 75% 100%)"
    }
    one_in_ten = [MergeFileMetadata(f"d/{i:05}", 1, "removed" if i % 10 else "inserted", 9) for i in range(1600)]
    assert {block["style"].partition("background:")[2] for block in parse(result_with(one_in_ten)).blocks} == {
        "linear-gradient(#2da44e 0% 22%,#d1242f 22% 100%)"
    }


# -------------------------------------------------------------------------------------------------------- hostile names
def test_file_names_are_escaped() -> None:
    path = f"d/p={ATTACK}/{ATTACK}.parquet"
    result = result_with([MergeFileMetadata(path, 1, "rewritten", 10)], strategy=ATTACK)
    plan = MergePlan([path], [], [path], 1, ATTACK, explain=lambda: [FilePlan(path, "rewritten", ATTACK, 1, 10)])
    for page in (parse(result), parse(plan)):
        assert "<img src=x onerror=alert(1)>" in page.text
        assert any("<script>" in title for title in page.titles)


def test_a_real_directory_name_is_escaped(tmp_path: Path) -> None:
    rows = lake.table([1, 2], p=pa.array(["<img src=x onerror=alert(1)>", "b"]))
    path = str(tmp_path / "<img src=x onerror=alert(1)>")
    inlay.write_dataset(rows, path, partition_columns=["p"])
    page = parse(inlay.merge(rows.slice(0, 1), path, "upsert", ["id"]))
    assert "<img src=x onerror=alert(1)>" in page.text


@given(st.lists(st.tuples(st.text(), st.sampled_from(["rewritten", "inserted", "preserved", "removed"])), max_size=30))
def test_any_path_can_be_displayed(files: list[tuple[str, Any]]) -> None:
    page = parse(result_with([MergeFileMetadata(path, 1, operation, 5) for path, operation in files]))
    assert len(page.blocks) == len(files)
    assert sum(page.kinds.values()) == len(files)


# ------------------------------------------------------------------------------------------------------ many, and none
def test_the_html_of_ten_thousand_files_is_small() -> None:
    operations: list[Any] = ["preserved", "rewritten", "inserted", "removed", "preserved"]
    files = [
        MergeFileMetadata(f"s3://bucket/data/day={i // 40}/part-{i:06}.parquet", 1000, operations[i * 7919 % 5], 50_000)
        for i in range(10_000)
    ]
    result = result_with(files)
    assert len(result._repr_html_()) < 60_000
    page = parse(result)
    assert sum(int(block["data-files"]) for block in page.blocks) == 10_000
    assert page.kinds == {"untouched": 4000, "rewritten": 2000, "new": 2000, "removed": 2000}
    assert "... and 5,980 more" in page.text
    assert page.text.split()[:3] == ["upsert:", "done", "s3://bucket/data"]


def test_one_rewritten_file_among_thousands_is_visible() -> None:
    files = [MergeFileMetadata(f"d/{i:05}", 1, "rewritten" if i == 7777 else "preserved", 9) for i in range(10_000)]
    marked = [block for block in parse(result_with(files)).blocks if "1 rewritten" in block["title"]]
    assert len(marked) == 1
    assert marked[0]["title"] == "files 7,750 to 7,812: 62 untouched, 1 rewritten"
    assert "#d9822b" in marked[0]["style"]


@pytest.mark.parametrize(("length", "expected"), [(120, "p" * 120), (121, "..." + "p" * 120)])
def test_long_paths_are_shortened(length: int, expected: str) -> None:
    page = parse(result_with([MergeFileMetadata("p" * length, 1, "rewritten", None)]))
    assert [block["title"] for block in page.blocks] == [f"rewritten: {expected}"]


def test_the_html_of_long_names_is_small() -> None:
    files = [MergeFileMetadata(f"d/{'<' * 5000}{i}", 1, "rewritten", 9) for i in range(160)]
    assert len(result_with(files)._repr_html_()) < 200_000


def test_an_empty_result_can_be_displayed() -> None:
    page = parse(MergeResult("update", 0, 0, 0, 0, 0, 0))
    assert page.blocks == []
    assert " ".join(page.text.split()) == (
        "update: done no files source inserted updated unchanged deleted before after rows 0 0 0 0 0 0 0"
        " 0 bytes written: 0 bytes encoded, 0 bytes copied unchanged;"
        " 0 bytes (0%) saved compared with rewriting the dataset"
    )
    assert parse(MergePlan([], [], [], 0)).rows == dict.fromkeys(page.rows, 0)
