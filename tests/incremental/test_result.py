"""Plans and results: the operation and reason of each file, and counts that add up."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import inlay
from inlay.errors import InlayError
from inlay.incremental.plan import FilePlan, MergePlan
from inlay.incremental.result import compute_merge_stats
from tests import lake


def test_a_plan_has_an_operation_and_a_reason_for_every_file(tmp_path: Path) -> None:
    lake.write(
        tmp_path / "d",
        {
            "a.parquet": lake.table(range(10)),
            "b.parquet": lake.table(range(10, 40, 2)),
            "c.parquet": lake.table(range(40, 60)),
            "d.parquet": lake.table(range(60, 70)),
            "e.parquet": lake.table([]),
        },
        row_group_size=5,
    )
    equal = lake.table([61])
    updates = pa.concat_tables([lake.table([11, 41, 46], ["x", "y", "z"]), equal])
    plan = inlay.plan_merge(updates, str(tmp_path / "d"), "upsert", ["id"])
    size = {name: (tmp_path / "d" / name).stat().st_size for name in map("{}.parquet".format, "abcde")}
    found = {Path(file.path).name: file for file in plan.files}
    assert [Path(file.path).name for file in plan.files] == list(size)
    copied = found["c.parquet"].bytes_copied
    assert 0 < copied < size["c.parquet"]
    paths = {name: str(tmp_path / "d" / name) for name in size}
    excluded = "statistics or partition exclude the source's keys"
    assert found == {
        "a.parquet": FilePlan(paths["a.parquet"], "preserved", excluded, 10, size["a.parquet"]),
        "b.parquet": FilePlan(
            paths["b.parquet"], "preserved", "no source key found in 1 of 3 row groups", 15, size["b.parquet"]
        ),
        "c.parquet": FilePlan(
            paths["c.parquet"], "rewritten", "2 matching rows in 2 of 4 row groups", 20, size["c.parquet"], 2, (0, 1),
            copied,
        ),
        "d.parquet": FilePlan(
            paths["d.parquet"], "preserved", "1 matching row in 1 of 2 row groups, all equal to their source rows", 10,
            size["d.parquet"], 1, (0,),
        ),
        "e.parquet": FilePlan(paths["e.parquet"], "preserved", "the file has no rows", 0, size["e.parquet"]),
    }  # fmt: skip
    assert plan.affected_files == [paths["c.parquet"]]
    assert plan.unaffected_files == [paths[name] for name in size if name != "c.parquet"]
    assert (plan.rows_to_rewrite, plan.bytes_to_rewrite) == (10, size["c.parquet"] - copied)
    assert (plan.inserted, plan.updated, plan.unchanged, plan.affected_rows) == (1, 3, 1, 20)


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge"])
def test_a_plan_has_the_counts_of_its_merge(tmp_path: Path, strategy: str) -> None:
    lake.write(tmp_path / "d", {"a.parquet": lake.table(range(5)), "b.parquet": lake.table(range(5, 10))})
    updates = pa.concat_tables([lake.table([3, 20], ["x", "y"]), lake.table([4])])
    plan = inlay.plan_merge(updates, str(tmp_path / "d"), strategy, ["id"])
    result = inlay.merge(updates, str(tmp_path / "d"), strategy, ["id"])
    counts = (
        "source_count",
        "target_count_before",
        "target_count_after",
        "inserted",
        "updated",
        "deleted",
        "unchanged",
    )
    assert {name: getattr(plan, name) for name in counts} == {name: getattr(result, name) for name in counts}
    assert result.target_count_after == len(lake.all_rows(tmp_path / "d"))
    assert result.bytes_copied == sum(file.bytes_copied for file in result.files)


def test_new_files_of_a_plan_have_a_directory_and_a_placeholder_name(tmp_path: Path) -> None:
    rows = pa.table({"id": range(5), "day": list("aabba")})
    flat = inlay.plan_merge(rows, str(tmp_path / "flat"), "upsert", ["id"], max_rows_per_file=3)
    assert flat.new_files == [str(tmp_path / "flat" / f"part-*-{n:05}.parquet") for n in range(2)]
    by_day = inlay.plan_merge(rows, str(tmp_path / "days"), "upsert", ["id"], partition_columns=["day"])
    assert by_day.new_files == [str(tmp_path / f"days/day={day}/part-*-{n:05}.parquet") for n, day in enumerate("ab")]


def test_a_printed_plan_lists_the_first_touched_files(tmp_path: Path) -> None:
    lake.write(tmp_path / "d", {f"{n:02}.parquet": lake.table([n, n + 100]) for n in range(23)})
    plan = inlay.plan_merge(lake.table(range(21), ["new"] * 21), str(tmp_path / "d"), "upsert", ["id"])
    head, *lines = repr(plan).split("\n")
    assert head == (
        "MergePlan(upsert: 0 to insert, 21 to update (0 unchanged), 0 to delete; 46 -> 46 rows;"
        f" 42 rows, {plan.bytes_to_rewrite:,} bytes to rewrite)"
    )
    reason = "1 matching row in 1 of 1 row groups"
    assert lines[:20] == [f"  rewritten {tmp_path / 'd' / f'{n:02}.parquet'}: {reason}" for n in range(20)]
    assert lines[20:] == ["  ... and 1 more", "  2 files unchanged"]
    few = inlay.plan_merge(lake.table([1], ["new"]), str(tmp_path / "d"), "upsert", ["id"])
    assert repr(few).count("\n") == 2
    assert "more" not in repr(few)


def test_a_plan_explains_removed_files(tmp_path: Path) -> None:
    rows = {"p=1/a.parquet": [1, 2], "p=1/b.parquet": [8, 9], "p=2/c.parquet": [1]}
    path = lake.write(tmp_path / "d", {name: lake.table(ids) for name, ids in rows.items()})
    source = lake.table([1], ["x"], p=pa.array([1]))
    plan = inlay.plan_merge(source, path, "full_merge", ["id", "p"])
    excluded = "statistics or partition exclude the source's keys"
    assert [(file.operation, file.reason) for file in plan.files] == [
        ("rewritten", "1 matching row in 1 of 1 row groups"),
        ("removed", f"no source key: all 2 rows are deleted ({excluded})"),
        ("removed", f"no source key: all 1 rows are deleted ({excluded} (partition not in the source))"),
    ]


@pytest.mark.parametrize("ids", [[1], []])
def test_row_groups_without_a_key_of_the_source_lose_their_rows(tmp_path: Path, ids: list[int]) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(10))}, row_group_size=5)
    result = inlay.merge(lake.table(ids), path, "full_merge", ["id"])
    assert (result.deleted, result.target_count_after) == (10 - len(ids), len(ids))
    assert [row["id"] for row in lake.all_rows(path)] == ids
    assert len(list((tmp_path / "d").glob("*.parquet"))) == 1, "a dataset without rows still has a schema"


def test_counts_that_do_not_add_up_are_an_error() -> None:
    good = {"target_before": 10, "target_after": 11, "inserted_rows": 2, "updated_rows": 3, "deleted_rows": 1}
    stats = compute_merge_stats(strategy="upsert", **good)
    assert stats == {"inserted": 2, "updated": 3, "deleted": 1, "total": 11}
    assert (stats.inserted, stats.total) == (2, 11)
    with pytest.raises(AttributeError, match="rows"):
        _ = stats.rows
    with pytest.raises(InlayError, match=r"10 before \+ 2 inserted - 1 deleted is not 12 after"):
        compute_merge_stats(strategy="upsert", **good | {"target_after": 12})
    for name in good:
        with pytest.raises(InlayError, match="A row count of 'upsert' is negative"):
            compute_merge_stats(strategy="upsert", **good | {name: -1})


def test_a_printed_result_is_one_line(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {f"{n}.parquet": lake.table(range(n, n + 1000)) for n in (0, 1000, 2000)})
    source = pa.concat_tables([lake.table([5], ["new"]), lake.table([6, 9_000])])
    assert repr(inlay.merge(source, path, "upsert", ["id"])) == (
        "MergeResult(upsert: 1 inserted, 2 updated (1 unchanged), 0 deleted; 3,000 -> 3,001 rows;"
        " files: 1 rewritten, 1 new, 0 removed, 2 untouched)"
    )


def test_a_plan_explains_files_that_are_not_read(tmp_path: Path) -> None:
    one, none = (
        pa.table({"id": [1], "v": ["a"]}),
        pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.string())}),
    )
    tables = {"p=1/one.parquet": one, "p=1/none.parquet": none, "p=2/one.parquet": one, "p=2/none.parquet": none}
    path = lake.write(tmp_path / "d", tables)
    source = pa.table({"id": [7], "v": ["x"], "p": [1]})
    plan = inlay.plan_merge(source, path, "upsert", ["id"])
    assert (plan.source_count, plan.inserted) == (1, 1)
    assert {file.path.removeprefix(f"{path}/"): file.reason for file in plan.files} == {
        "p=1/one.parquet": "statistics or partition exclude the source's keys",
        "p=1/none.parquet": "the file has no rows",
        "p=2/one.parquet": "statistics or partition exclude the source's keys (partition not in the source)",
        "p=2/none.parquet": "the file has no rows",
    }


def test_a_result_converts_to_a_dict(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    result = inlay.merge(lake.table([1, 3], ["x", "y"]), path, "upsert", ["id"])
    document = json.loads(json.dumps(result.to_dict()))
    assert (document["strategy"], document["inserted"], document["updated"]) == ("upsert", 1, 1)
    assert [file["operation"] for file in document["files"]] == ["rewritten", "inserted"]
    written = inlay.write_dataset(lake.table([4]), path).to_dict()
    assert (written["mode"], written["row_count"], len(written["files"])) == ("append", 1, 1)


def test_bytes_written_and_copied_are_counted(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {f"{n}.parquet": lake.table(range(n, n + 10)) for n in (0, 10)})
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "d").iterdir()}
    plan = inlay.plan_merge(lake.table([3, 99], ["x", "y"]), path, "upsert", ["id"])
    assert (plan.source_count, plan.new_files[0].removeprefix(f"{path}/").startswith("part-")) == (2, True)
    assert plan.bytes_to_rewrite == sizes["0.parquet"] - plan.files[0].bytes_copied
    result = inlay.merge(lake.table([3, 99], ["x", "y"]), path, "upsert", ["id"])
    by_name = {Path(file.path).name: file for file in result.files}
    assert by_name["10.parquet"].size_bytes == sizes["10.parquet"]
    changed = [file for file in result.files if file.operation != "preserved"]
    assert result.bytes_written == sum(Path(file.path).stat().st_size for file in changed)


@pytest.mark.parametrize(("touched", "listed"), [(20, 20), (21, 20)])
def test_a_printed_plan_names_some_files(touched: int, listed: int) -> None:
    files = [FilePlan(f"d/{n:02}", "rewritten", "why", 1, 9) for n in range(touched)]
    text = repr(MergePlan([], [], [], 0, "upsert", explain=lambda: files))
    assert text.count("why") == listed
    assert ("more" in text) is (touched > listed)
