"""The rows that differ between two versions, over HTTP."""

from __future__ import annotations

import csv
import io
import os
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.settings import Settings
from inlay.workspace import Workspace
from tests import managed
from tests.service import Api, expect, expect_problem, running

BASE = "id,name\n1,ann\n2,bob\n3,cid\n"


@pytest.fixture
def plain(plain_api: Api) -> Api:
    """Return a service without Spark whose workspace is open."""
    plain_api.get("/v1/datasets")
    return plain_api


def diff(api: Api, dataset_id: str, old: int, new: int, **params: Any) -> Any:
    return api.get(f"/v1/datasets/{dataset_id}/diff", old=old, new=new, **params)


@pytest.mark.on_servers
def test_a_diff_of_loads(api: Api) -> None:
    dataset_id = api.create(BASE, "people")["id"]
    api.load(dataset_id, "id,name\n2,BOB\n4,dan\n", "upsert", "id")
    api.load(dataset_id, "id,name\n1,x\n", "delete", "id")
    found = diff(api, dataset_id, 1, 3)
    assert [column["name"] for column in found["columns"]] == ["_change", "id", "name"]
    assert found["rows"] == [
        ["delete", 1, "ann"],
        ["update_before", 2, "bob"],
        ["update_after", 2, "BOB"],
        ["insert", 4, "dan"],
    ]
    assert (found["inserted"], found["updated"], found["deleted"], found["key_columns"]) == (1, 1, 1, ["id"])
    assert (found["old"], found["new"], found["count"], found["has_more"]) == (1, 3, 4, False)
    back = diff(api, dataset_id, 3, 1)
    assert [row[0] for row in back["rows"]] == ["delete", "update_before", "update_after", "insert"]
    assert (back["rows"][0], back["rows"][3]) == (["delete", 4, "dan"], ["insert", 1, "ann"])
    sample = api.workspace.diff(dataset_id, 1, 3)
    assert (sample.inserted, sample.updated, sample.deleted) == (1, 1, 1)
    cells = [{"column": "name", "old": "bob", "new": "BOB"}]
    assert sample.changes == {
        "columns": ["id", "name"],
        "inserted": [[4, "dan"]],
        "updated": [{"key": {"id": 2}, "cells": cells, "more_cells": 0}],
        "deleted": [[1, "ann"]],
    }


def numbers(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64()), "square": pa.array([v * v for v in values], pa.int64())})


def test_pages_of_a_diff_are_its_rows(plain: Api) -> None:
    workspace = plain.workspace
    dataset_id = managed.create(workspace, numbers(*range(1000)))
    changed = numbers(*range(10, 990)).set_column(1, "square", pa.array([0] * 980, pa.int64()))
    managed.commit(workspace, dataset_id, changed, numbers(2000, 2001), key_columns=["id"])
    whole = diff(plain, dataset_id, 1, 2, limit=1000)
    assert (whole["deleted"], whole["updated"], whole["inserted"], whole["count"]) == (20, 980, 2, 1982)
    pages = [diff(plain, dataset_id, 1, 2, limit=331, offset=start) for start in range(0, 1982, 331)]
    rows = [row for page in pages for row in page["rows"]]
    assert rows[:1000] == whole["rows"]
    assert Counter(row[0] for row in rows) == {"delete": 20, "update_before": 980, "update_after": 980, "insert": 2}
    assert [page["has_more"] for page in pages] == [True] * 5 + [False]
    assert diff(plain, dataset_id, 1, 2, offset=10**18)["rows"] == []
    assert len(workspace.diff(dataset_id, 1, 2).changes["updated"]) == 20


@pytest.mark.parametrize("form", ["csv", "parquet", "arrow"])
def test_a_diff_can_be_downloaded(plain: Api, form: str) -> None:
    workspace = plain.workspace
    dataset_id = managed.create(workspace, numbers(*range(20_000)))
    managed.commit(workspace, dataset_id, numbers(*range(5, 20_005)))
    answer = plain.http.get(f"/v1/datasets/{dataset_id}/diff", params={"old": 1, "new": 2, "format": form})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"].endswith(f'-v1-v2.{form}"')
    assert (answer.headers["x-row-count"], answer.headers["x-truncated"]) == ("10", "false")
    if form == "csv":
        rows = [tuple(row) for row in csv.reader(io.StringIO(answer.text))][1:]
    else:
        read = pq.read_table if form == "parquet" else (lambda file: pa.ipc.open_stream(file).read_all())
        rows = [tuple(map(str, row.values())) for row in read(io.BytesIO(answer.content)).to_pylist()]
    expected = [("delete", i) for i in range(5)] + [("insert", i) for i in range(20_000, 20_005)]
    assert rows == [(kind, str(i), str(i * i)) for kind, i in expected]


def test_a_large_diff_is_streamed(plain: Api) -> None:
    workspace = plain.workspace
    dataset_id = managed.create(workspace, numbers(*range(50_000)))
    managed.commit(workspace, dataset_id, numbers(*range(50_000, 100_000)))
    answer = plain.http.get(
        f"/v1/datasets/{dataset_id}/diff", params={"old": 1, "new": 2}, headers={"Accept": "text/csv"}
    )
    assert answer.text.count("\n") == 100_001
    page = diff(plain, dataset_id, 1, 2, limit=1000, offset=49_500)
    assert Counter(row[0] for row in page["rows"]) == {"delete": 500, "insert": 500}


def test_equal_versions_and_loads_without_common_keys(plain: Api) -> None:
    workspace = plain.workspace
    dataset_id = managed.create(workspace, numbers(1, 2))
    managed.commit(workspace, dataset_id, numbers(3), kept=[0], operation="append")
    found = diff(plain, dataset_id, 1, 1)
    assert (found["count"], found["rows"], [c["name"] for c in found["columns"]]) == (
        0,
        [],
        ["_change", "id", "square"],
    )
    found = diff(plain, dataset_id, 1, 2)
    assert (found["key_columns"], found["inserted"], found["updated"]) == ([], 1, 0)
    changed = numbers(3).set_column(1, "square", pa.array([0], pa.int64()))
    managed.commit(workspace, dataset_id, changed, kept=[0], key_columns=["id"])
    managed.commit(workspace, dataset_id, kept=[0, 1], key_columns=["square"])
    assert diff(plain, dataset_id, 2, 3)["updated"] == 1
    both = diff(plain, dataset_id, 2, 4)
    assert (both["key_columns"], both["deleted"], both["inserted"]) == ([], 1, 1)


def test_a_diff_of_random_versions_equals_a_count_of_rows(plain: Api) -> None:
    random_ = random.Random(20)
    workspace, contents = plain.workspace, list[list[int]]()

    def draw() -> list[int]:
        return [random_.randrange(30) for _ in range(random_.randrange(1, 250))]

    parts = [draw(), draw()]
    dataset_id = managed.create(workspace, *(numbers(*part) for part in parts))
    contents.append([value for part in parts for value in part])
    for _ in range(5):
        kept = [at for at in range(len(parts)) if random_.random() < 0.5]
        parts = [parts[at] for at in kept] + [draw()]
        managed.commit(workspace, dataset_id, numbers(*parts[-1]), kept=kept)
        contents.append([value for part in parts for value in part])
    for _ in range(8):
        old, new = random_.randrange(6), random_.randrange(6)
        found = diff(plain, dataset_id, old + 1, new + 1, limit=1000)
        before, after = Counter(contents[old]), Counter(contents[new])
        assert Counter(row[1] for row in found["rows"] if row[0] == "delete") == before - after
        assert Counter(row[1] for row in found["rows"] if row[0] == "insert") == after - before


def test_unknown_and_expired_versions(plain: Api) -> None:
    workspace = plain.workspace
    dataset_id = managed.create(workspace, numbers(1))
    for value in (2, 3):
        managed.commit(workspace, dataset_id, numbers(value))
    url = f"/v1/datasets/{dataset_id}/diff"
    problem = expect_problem(plain.http.get(url, params={"old": 1, "new": 9}), 404, "not_found")
    assert "has no version 9. Its current version is 3" in problem["detail"]
    workspace.catalog.versions.expire(keep_versions=2, keep_days=0)
    problem = expect_problem(plain.http.get(url, params={"old": 1, "new": 3}), 404, "not_found")
    assert "has no version 1" in problem["detail"]
    for params in ({"old": 1}, {"old": 0, "new": 1}, {"old": "x", "new": 1}, {"old": 2, "new": 3, "limit": 0}):
        expect_problem(plain.http.get(url, params=params), 400, "invalid_request")
    expect_problem(plain.http.get(url, params={"old": 2, "new": 3}, headers={"Accept": "image/png"}), 406)
    expect_problem(plain.http.get("/v1/datasets/data_nope/diff", params={"old": 1, "new": 1}), 404)


def test_a_damaged_file_is_named(plain: Api) -> None:
    workspace = plain.workspace
    dataset_id = managed.create(workspace, numbers(1))
    managed.commit(workspace, dataset_id, numbers(2))
    path = workspace.storage.address(workspace.dataset(dataset_id, 1).files[0].path)
    with open(path, "ab") as file:
        file.write(b"more")
    url = f"/v1/datasets/{dataset_id}/diff"
    for change in ("bytes instead of", "is missing"):
        problem = expect_problem(plain.http.get(url, params={"old": 2, "new": 1}), 500, "damaged_version")
        assert problem["detail"].startswith("Version 1 of 'managed_rows")
        assert change in problem["detail"]
        assert workspace.settings.data_dir not in str(problem)
        if os.path.exists(path):
            os.unlink(path)


def test_a_diff_has_the_limits_of_a_query(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = Settings(
        data_dir=str(tmp_path_factory.mktemp("limits")), query_memory_bytes=1 << 20, query_timeout_seconds=30.0,
        query_max_rows=10,
    )  # fmt: skip
    with running(Workspace(settings), spark=False) as api:
        api.get("/v1/datasets")  # waits until the workspace is open
        texts = pa.concat_tables([pa.table({"text": ["x" * 1000] * 10_000})] * 80)  # 800 MB when decoded
        dataset_id = managed.create(api.workspace, numbers(*range(500)), label="few")
        managed.commit(api.workspace, dataset_id, numbers(*range(500, 1000)))
        answer = api.http.get(f"/v1/datasets/{dataset_id}/diff", params={"old": 1, "new": 2, "format": "csv"})
        assert (answer.headers["x-row-count"], answer.headers["x-truncated"]) == ("10", "true")
        changes = api.workspace.diff(dataset_id, 1, 2).changes
        assert (len(changes["deleted"]), len(changes["inserted"])) == (20, 20)
        dataset_id = managed.create(api.workspace, texts.slice(0, 1), label="large")
        managed.commit(api.workspace, dataset_id, texts)
        answer = api.http.get(f"/v1/datasets/{dataset_id}/diff", params={"old": 1, "new": 2})
        problem = expect_problem(answer, 413, "query_limit")
        assert "INLAY_QUERY_MEMORY_BYTES" in problem["hint"]
        assert api.rows("SELECT 1") == [[1]]


def test_a_diff_that_takes_too_long_is_stopped(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("slow")), query_timeout_seconds=0.001)
    with running(Workspace(settings), spark=False) as api:
        api.get("/v1/datasets")  # waits until the workspace is open
        dataset_id = managed.create(api.workspace, numbers(*range(1000)))
        answer = api.http.get(f"/v1/datasets/{dataset_id}/diff", params={"old": 1, "new": 1})
        problem = expect(answer, answer.status_code)
        assert problem["code"] in ("query_timeout", "query_busy")
