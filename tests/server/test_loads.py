"""Loads, versions and restores over HTTP."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

import pytest

import inlay
from inlay.commit.entries import Entry
from inlay.commit.sidecar import Record
from inlay.incremental.versions import version_of
from tests.service import Api, expect, expect_problem

BASE = "id,name\n1,ann\n2,bob\n3,cid\n"
NEW = "id,name\n2,BOB\n4,dan\n"


def people(api: Api, **more: Any) -> dict[str, Any]:
    return api.create(BASE, "people", **more)


def rows_of(api: Api, dataset: dict[str, Any], version: int | None = None) -> list[list[Any]]:
    name = dataset["table_name"] if version is None else f"{dataset['table_name']}@{version}"
    return api.rows(f'SELECT * FROM datasets."{name}" ORDER BY id, name')


@pytest.mark.parametrize(
    ("strategy", "counts", "ids"),
    [
        ("append", (2, 0, 0), [1, 2, 2, 3, 4]),
        ("replace", (2, 0, 3), [2, 4]),
        ("insert", (1, 0, 0), [1, 2, 3, 4]),
        ("update", (0, 1, 0), [1, 2, 3]),
        ("upsert", (1, 1, 0), [1, 2, 3, 4]),
        ("full_merge", (1, 1, 2), [2, 4]),
        ("deduplicate", (1, 1, 0), [1, 2, 3, 4]),
    ],
)
def test_every_strategy(api: Api, strategy: str, counts: tuple[int, int, int], ids: list[int]) -> None:
    dataset = people(api)
    keys = [] if strategy in ("append", "replace") else ["id"]
    planned = api.load(dataset["id"], NEW, strategy, *keys, dry_run=True)
    assert rows_of(api, dataset) == [[1, "ann"], [2, "bob"], [3, "cid"]]
    done = api.load(dataset["id"], NEW, strategy, *keys)
    for answer in (planned, done):
        assert (answer["inserted"], answer["updated"], answer["deleted"]) == counts
        assert (answer["row_count"], answer["source_count"], answer["rejected_count"]) == (len(ids), 2, 0)
        assert (answer["strategy"], answer["dataset_id"]) == (strategy, dataset["id"])
    assert (planned["dry_run"], planned["version"], done["version"]) == (True, 1, 2)
    assert [row[0] for row in rows_of(api, dataset)] == ids
    assert rows_of(api, dataset, 1) == [[1, "ann"], [2, "bob"], [3, "cid"]]


def test_a_load_returns_file_counts(api: Api) -> None:
    dataset = people(api)
    answer = api.try_to_load(dataset["id"], "id,name\n9,zoe\n", "append")
    done = expect(answer, 201)
    assert answer.headers["location"] == f"/v1/datasets/{dataset['id']}?version=2"
    assert (done["files_added"], done["files_kept"], done["files_rewritten"], done["files_removed"]) == (1, 1, 0, 0)
    planned = api.load(dataset["id"], "id,name\n9,ZOE\n", "upsert", "id", dry_run=True)
    assert planned["files_rewritten"] == 1
    assert planned["bytes_rewritten"] > 0
    assert sorted(file["operation"] for file in planned["files"]) == ["preserved", "rewritten"]
    assert planned["changes"] == {
        "columns": ["id", "name"],
        "inserted": [],
        "updated": [{"key": {"id": 9}, "cells": [{"column": "name", "old": "zoe", "new": "ZOE"}], "more_cells": 0}],
        "deleted": [],
    }
    done = api.load(dataset["id"], "id,name\n9,ZOE\n", "upsert", "id")
    assert (done["files_rewritten"], done["files_kept"]) == (1, 1)


@pytest.mark.on_servers
def test_sources_of_every_kind(api: Api) -> None:
    dataset = people(api)
    upload_id = api.upload("name,id\nzoe,9\n")
    api.load(dataset["id"], {"upload_id": upload_id}, "upsert", "id")
    assert api.get(f"/v1/files/{upload_id}")["status"] == "consumed"
    api.load(dataset["id"], {"inline": {"format": "json", "content": '{"id": 8, "name": "yan"}'}}, "upsert", "id")
    sql = f"SELECT id + 100 AS id, upper(name) AS name FROM datasets.{dataset['table_name']} WHERE id < 3"
    api.load(dataset["id"], {"sql": sql}, "upsert", "id")
    assert rows_of(api, dataset)[3:] == [[8, "yan"], [9, "zoe"], [101, "ANN"], [102, "BOB"]]


@pytest.mark.parametrize("strategy", ["update", "upsert", "full_merge", "deduplicate"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_json_rows_that_lack_a_field_never_set_stored_values_to_null(api: Api, strategy: str, dry_run: bool) -> None:
    dataset = people(api)
    before = rows_of(api, dataset)
    rows = {"inline": {"format": "json", "content": '{"id": 2, "name": null}\n{"id": 1}\n{"id": 3}\n'}}
    answer = api.try_to_load(dataset["id"], rows, strategy, "id", dry_run=dry_run)
    problem = expect_problem(answer, 422, "bad_rows")
    assert "line 2, column 'name': the field is missing" in problem["detail"]
    assert [(e["line"], e["column"]) for e in problem["errors"]] == [(2, "name"), (3, "name")]
    nowhere = {"inline": {"format": "json", "content": '[{"id": 1}]'}}
    expect_problem(api.try_to_load(dataset["id"], nowhere, strategy, "id", dry_run=dry_run), 422, "bad_rows")
    assert rows_of(api, dataset) == before


def test_an_explicit_null_is_loaded_and_a_row_that_lacks_a_field_goes_to_quarantine(api: Api) -> None:
    dataset = people(api)
    rows = {"inline": {"format": "json", "content": '{"id": 2, "name": null}\n{"id": 1}\n'}}
    done = api.load(dataset["id"], rows, "upsert", "id", on_error="quarantine")
    assert (done["updated"], done["rejected_count"]) == (1, 1)
    assert rows_of(api, dataset) == [[1, "ann"], [2, None], [3, "cid"]]


@pytest.mark.parametrize(("strategy", "expected"), [("append", 4), ("insert", 4), ("replace", 1)])
def test_a_field_that_a_new_row_lacks_is_null(api: Api, strategy: str, expected: int) -> None:
    dataset = people(api)
    key = ["id"] if strategy == "insert" else []
    done = api.load(dataset["id"], {"inline": {"format": "json", "content": '{"id": 9}'}}, strategy, *key)
    assert done["row_count"] == expected
    assert rows_of(api, dataset)[-1] == [9, None]


def test_dedup_order_by_accepts_one_column_or_several(api: Api) -> None:
    dataset = api.create("id,name,at\n1,ann,1\n", "people")
    twice = "id,name,at\n1,late,9\n1,early,2\n"
    api.load(dataset["id"], twice, "deduplicate", "id", dedup_order_by="at")
    assert api.rows(f"SELECT name FROM datasets.{dataset['table_name']}") == [["late"]]
    api.load(dataset["id"], twice, "deduplicate", "id", dedup_order_by=["name", "at"])
    assert api.rows(f"SELECT name FROM datasets.{dataset['table_name']}") == [["late"]]


def test_a_dry_run_keeps_the_upload(api: Api) -> None:
    dataset = people(api)
    source = {"upload_id": api.upload(NEW)}
    api.load(dataset["id"], source, "upsert", "id", dry_run=True)
    assert api.load(dataset["id"], source, "upsert", "id")["updated"] == 1


@pytest.mark.parametrize(
    ("change", "status", "code", "message"),
    [
        ({"strategy": "merge"}, 400, "invalid_request", "strategy"),
        ({"key_columns": []}, 400, "invalid_argument", "requires key_columns"),
        ({"strategy": "append"}, 400, "invalid_argument", "does not accept key_columns"),
        ({"key_columns": ["nope"]}, None, None, "nope"),
        ({"source": {"inline": {"format": "csv", "content": "id,name\n,x\n"}}}, 422, "null_key", "id"),
        ({"source": {"inline": {"format": "csv", "content": "id,name\n5,x\n5,y\n"}}}, 422, "duplicate_key", "5"),
        ({"source": {"inline": {"format": "csv", "content": "id,nam\n5,x\n"}}}, None, None, "nam"),
        ({"source": {"inline": {"format": "csv", "content": "id,name\nfive,x\n"}}}, 422, "bad_rows", "five"),
        ({"source": {"upload_id": "upld_nope"}}, 404, "not_found", "upld_nope"),
        ({"scope": {"name": ["ann"]}}, 400, "invalid_argument", "scope needs strategy"),
        ({"strategy": "delete", "scope": {}}, 400, "invalid_argument", "Invalid scope: {}"),
        ({"strategy": "full_merge", "scope": {"name": []}}, 400, "invalid_argument", "no values for column 'name'"),
        ({"strategy": "append", "key_columns": [], "scope": {}}, 400, "invalid_argument", "does not accept scope"),
    ],
)
def test_an_invalid_load_changes_nothing(
    api: Api, change: dict[str, Any], status: int | None, code: str | None, message: str
) -> None:
    dataset = people(api)
    body = {"source": {"inline": {"format": "csv", "content": NEW}}, "strategy": "upsert", "key_columns": ["id"]}
    for dry_run in (True, False):
        answer = api.http.post(f"/v1/datasets/{dataset['id']}/loads", json=body | change | {"dry_run": dry_run})
        problem = expect_problem(answer, status or answer.status_code, code)
        assert problem["status"] in (400, 404, 422)
        assert message in str(problem)
    assert api.get(f"/v1/datasets/{dataset['id']}")["version"] == 1
    assert rows_of(api, dataset) == [[1, "ann"], [2, "bob"], [3, "cid"]]


def test_the_strategy_delete_deletes_rows_by_key_and_shows_no_path_of_the_storage(api: Api) -> None:
    dataset = people(api)
    problem = expect_problem(
        api.try_to_load(dataset["id"], "id\n1\n2\n", "delete", "id", scope={"name": ["ann"]}), 422, "outside_scope"
    )
    assert problem["detail"].endswith("have keys outside the scope in 'v1/data.parquet': 1, the first with id=2.")
    for scope, hint in (("nam", "Did you mean 'name'?"), ("zzz", "The columns are: id, name.")):
        answer = api.try_to_load(dataset["id"], "id\n1\n", "delete", "id", scope={scope: ["ann"]})
        assert expect_problem(answer, 422, "schema_mismatch")["hint"] == hint
    done = api.load(dataset["id"], "id\n1\n", "delete", "id", scope={"name": ["ann"]}, max_deleted=1)
    assert (done["deleted"], done["row_count"]) == (1, 2)
    assert rows_of(api, dataset) == [[2, "bob"], [3, "cid"]]


@pytest.mark.on_servers
def test_a_load_can_quarantine_invalid_rows(api: Api) -> None:
    dataset = people(api)
    done = api.load(dataset["id"], "id,name\n4,dan\nfive,eve\n", "upsert", "id", on_error="quarantine")
    assert (done["inserted"], done["rejected_count"], done["source_count"]) == (1, 1, 2)
    rejects = api.get(f"/v1/datasets/{dataset['id']}/rejects")["rejects"]
    assert [(r["line"], r["column"], r["value"]) for r in rejects] == [(3, "id", "five")]
    assert api.get(f"/v1/datasets/{dataset['id']}/rejects", version=1)["rejects"] == []


@pytest.mark.on_servers
def test_versions_and_restore(api: Api) -> None:
    dataset = people(api)
    url = f"/v1/datasets/{dataset['id']}"
    api.load(dataset["id"], NEW, "upsert", "id")
    answer = api.http.post(f"{url}/restore", json={"version": 1})
    restored = expect(answer, 201)
    assert answer.headers["location"] == f"{url}?version=3"
    assert (restored["version"], restored["current_version"], restored["row_count"]) == (3, 3, 3)
    assert rows_of(api, dataset) == [[1, "ann"], [2, "bob"], [3, "cid"]]
    versions = api.get(f"{url}/versions")
    assert [(v["version"], v["operation"], v["strategy"]) for v in versions["versions"]] == [
        (3, "restore", None),
        (2, "merge", "upsert"),
        (1, "create", None),
    ]
    load = versions["versions"][1]
    assert (load["inserted"], load["updated"], load["row_count"], load["source"]["type"]) == (1, 1, 4, "inline")
    assert versions["count"] == 3
    assert [v["version"] for v in api.get(f"{url}/versions", limit=1, offset=1)["versions"]] == [2]
    older = api.get(url, version=2)
    assert (older["version"], older["current_version"], older["row_count"]) == (2, 3, 4)
    assert api.get(url)["files"] == api.get(url, version=1)["files"]


@pytest.mark.on_servers
def test_a_version_has_the_facts_of_the_library(api: Api) -> None:
    dataset_id = people(api)["id"]
    api.load(dataset_id, NEW, "upsert", "id", headers={"Idempotency-Key": f"first-{dataset_id}"})
    api.load(dataset_id, "id,name\n9,zoe\n", "append")
    expect(api.http.post(f"/v1/datasets/{dataset_id}/deletes", json={"where": "id = 9"}), 201)
    expect(api.http.post(f"/v1/datasets/{dataset_id}/restore", json={"version": 3}), 201)
    api.load(dataset_id, "id,name\n1,x\n", "replace")
    listed = api.get(f"/v1/datasets/{dataset_id}/versions")["versions"]
    storage, facts = api.workspace.storage, [each.name for each in fields(inlay.Version)]
    for version in listed:
        snapshot = api.workspace.dataset(dataset_id, version["version"])
        path = str(snapshot.version.manifest_path)
        assert path.endswith(f"/v{version['version']}/manifest.json")
        manifest = storage.root.store.read_bytes(storage.root.full(path))
        found = version_of(Entry.of(Record.load(manifest, path)))
        expected = found.to_dict() | {"at": found.at.replace("+00:00", "Z")}
        assert {name: version[name] for name in facts} == expected
        assert (version["at"], version["rows"]) == (version["created_at"], version["row_count"])
        shown = api.get(f"/v1/datasets/{dataset_id}", version=version["version"])
        files = shown["files"]
        assert shown["manifest_url"] == storage.address(path)
        assert json.loads(manifest)["files"] == files
        assert (len(files), sum(file["bytes"] for file in files)) == (version["files"], version["bytes"])
    assert [(v["operation"], v["key_columns"], v["restores"], v["rows"]) for v in listed] == [
        ("overwrite", [], None, 1),
        ("restore", [], 3, 5),
        ("delete", [], None, 4),
        ("append", [], None, 5),
        ("merge", ["id"], None, 4),
        ("create", [], None, 3),
    ]
    assert [v["transaction"] for v in listed] == [*[None] * 4, f"first-{dataset_id}", None]


def test_unknown_versions_are_404(api: Api) -> None:
    url = f"/v1/datasets/{people(api)['id']}"
    expect_problem(api.http.get(url, params={"version": 2}), 404, "not_found")
    expect_problem(api.http.get(url, params={"version": 0}), 400, "invalid_request")
    expect_problem(api.http.post(f"{url}/restore", json={"version": 7}), 404, "not_found")
    expect_problem(api.http.post(f"{url}/restore", json={"version": "1"}), 400, "invalid_request")
    expect_problem(api.http.post(f"{url}/restore", json={}), 400, "invalid_request")
    for path in ("versions", "rejects"):
        expect_problem(api.http.get(f"/v1/datasets/data_nope/{path}"), 404, "not_found")
    expect_problem(api.try_to_load("data_nope", NEW, "append"), 404, "not_found")


def test_no_concurrent_load_is_lost(api: Api) -> None:
    dataset = people(api)

    def load(number: int) -> int:
        return api.try_to_load(dataset["id"], f"id,name\n{number},x\n", "upsert", "id").status_code

    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(load, range(10, 16)))
    assert set(statuses) <= {201, 409}
    done = [10 + at for at, status in enumerate(statuses) if status == 201]
    assert [row[0] for row in rows_of(api, dataset)] == [1, 2, 3, *done]
    assert api.get(f"/v1/datasets/{dataset['id']}")["version"] == 1 + len(done)


def test_a_repeated_load_runs_once(api: Api) -> None:
    dataset = people(api)
    key = {"Idempotency-Key": f"load-{dataset['id']}"}
    source = {"upload_id": api.upload("id,name\n7,gus\n")}
    first, again = (api.try_to_load(dataset["id"], source, "append", headers=key) for _ in range(2))
    assert expect(first, 201) == expect(again, 201)
    assert rows_of(api, dataset)[3:] == [[7, "gus"]]


def test_load_and_restore_async(api: Api) -> None:
    dataset = people(api)
    prefer = {"Prefer": "respond-async"}
    job = api.wait(expect(api.try_to_load(dataset["id"], NEW, "upsert", "id", headers=prefer), 202))
    assert (job["kind"], job["state"], job["result"]["updated"]) == ("load", "succeeded", 1)
    answer = api.http.post(f"/v1/datasets/{dataset['id']}/restore", json={"version": 1}, headers=prefer)
    job = api.wait(expect(answer, 202))
    assert (job["kind"], job["state"], job["result"]["version"]) == ("restore", "succeeded", 3)
    bad = api.wait(expect(api.try_to_load(dataset["id"], "id,name\n,x\n", "upsert", "id", headers=prefer), 202))
    assert (bad["state"], bad["error"]["code"], bad["error"]["status"]) == ("failed", "null_key", 422)


def test_a_load_maps_the_columns_of_the_file(api: Api) -> None:
    dataset = api.create("id,name\n1,ann\n")["id"]
    columns = {"Customer": "id", "comment": None, "Land": {"name": "country", "type": "text"}}
    source = "Customer,name,comment,Land\n2,bob,x,FR\n"
    planned = api.load(dataset, source, "upsert", "id", columns=columns, dry_run=True)
    assert planned["changes"]["inserted"] == [[2, "bob", "FR"]]
    assert api.load(dataset, source, "upsert", "id", columns=columns)["inserted"] == 1
    found = api.get(f"/v1/datasets/{dataset}")
    assert [column["name"] for column in found["schema"]["columns"]] == ["id", "name", "country"]
    assert [c["name"] for c in api.get(f"/v1/datasets/{dataset}", version=1)["schema"]["columns"]] == ["id", "name"]
    unknown = api.try_to_load(dataset, source, "upsert", "id", columns={"Customer": "ident"})
    assert "no column 'ident'" in expect_problem(unknown, 400)["detail"]


# ------------------------------------------------------------------------------------------------------------- deletes
def test_rows_are_deleted_by_their_keys(api: Api) -> None:
    made = api.create("id,day,name\n1,2025-01-01,ann\n2,2025-01-01,bob\n2,2025-01-02,eve\n")
    url = f"/v1/datasets/{made['id']}/deletes"
    keys = [{"id": 2, "day": "2025-01-02"}, {"id": 9, "day": "2025-01-01"}]
    plan = expect(api.http.post(url, json={"keys": keys, "dry_run": True}), 200)
    assert (plan["deleted"], plan["row_count"], plan["version"]) == (1, 2, 1)
    assert (plan["columns"], plan["rows"]) == (["id", "day", "name"], [[2, "2025-01-02", "eve"]])
    answer = api.http.post(url, json={"keys": keys})
    assert expect(answer, 201) == {
        "dataset_id": made["id"], "deleted": 1, "row_count": 2, "version": 2,
        "files_rewritten": 1, "files_removed": 0, "files_kept": 0, "bytes_written": answer.json()["bytes_written"],
    }  # fmt: skip
    assert answer.headers["Location"] == f"/v1/datasets/{made['id']}?version=2"
    assert api.rows(f"SELECT name FROM datasets.{made['table_name']} ORDER BY 1") == [["ann"], ["bob"]]
    expect(api.http.post(f"/v1/datasets/{made['id']}/restore", json={"version": 1}), 201)
    assert api.get(f"/v1/datasets/{made['id']}")["row_count"] == 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "exactly one of keys and where"),
        ({"keys": [{"id": 1}], "where": "id = 1"}, "exactly one of keys and where"),
        ({"keys": [{}]}, "Key 1 is empty"),
        ({"keys": [{"id": 1}, {"name": "x"}]}, "Key 2 has the columns name, but the first key has id"),
        ({"keys": [{"ident": 1}]}, "'ident' does not exist in the dataset"),
        ({"keys": [{"id": "x"}]}, "not an integer that fits bigint"),
        ({"keys": [{"id": None}]}, "NULL"),
        ({"where": "id = 'x'"}, "'x' is not a value of column 'id'"),
        ({"where": "ident = 1"}, "no column 'ident'"),
    ],
)
def test_invalid_deletions_are_explained(api: Api, body: dict[str, Any], message: str) -> None:
    made = api.create("id,name\n1,ann\n")
    answer = api.http.post(f"/v1/datasets/{made['id']}/deletes", json=body)
    assert message in expect_problem(answer, answer.status_code)["detail"]
    assert 400 <= answer.status_code < 500
    assert api.get(f"/v1/datasets/{made['id']}")["version"] == 1


def test_rows_are_deleted_by_a_condition(api: Api) -> None:
    made = api.create("id,day,name\n1,2025-01-01,ann\n2,2025-01-01,bob\n3,2025-01-02,eve\n")
    url, table = f"/v1/datasets/{made['id']}/deletes", f"datasets.{made['table_name']}"
    where = "day = '2025-01-01' AND (name LIKE 'b%' OR id > 7)"
    plan = expect(api.http.post(url, json={"where": where, "dry_run": True}), 200)
    assert (plan["deleted"], plan["row_count"], plan["columns"], plan["rows"]) == (
        1, 2, ["id", "day", "name"], [[2, "2025-01-01", "bob"]]
    )  # fmt: skip
    assert plan["files"][0]["reason"] == "1 matching row in 1 of 1 row groups"
    result = expect(api.http.post(url, json={"where": where}), 201)
    assert (result["deleted"], result["row_count"], result["version"]) == (1, 2, 2)
    version = api.get(f"/v1/datasets/{made['id']}/versions")["versions"][0]
    assert (version["strategy"], version["deleted"], version["source"]) == (
        "delete", 1, {"type": "condition", "where": where}
    )  # fmt: skip
    assert api.rows(f"SELECT id FROM {table} ORDER BY id") == [[1], [3]]
    everything = expect(api.http.post(url, json={"where": "TRUE"}), 201)
    assert (everything["deleted"], everything["row_count"]) == (2, 0)
    assert api.rows(f"SELECT count(*) FROM {table}") == [[0]]
    expect(api.http.post(f"/v1/datasets/{made['id']}/restore", json={"version": 1}), 201)
    assert api.rows(f"SELECT id FROM {table} ORDER BY id") == [[1], [2], [3]]


def test_a_deletion_can_run_as_a_job(api: Api) -> None:
    made = api.create("id\n1\n")
    job = api.http.post(
        f"/v1/datasets/{made['id']}/deletes", json={"where": "id = 1"}, headers={"Prefer": "respond-async"}
    )
    assert expect(job, 202)["kind"] == "delete"
    assert api.wait(expect(job, 202))["result"]["deleted"] == 1


def test_deletions_beyond_the_limit_are_refused(api: Api) -> None:
    made = api.create("id,name\n1,ann\n2,bob\n3,eve\n4,joe\n")
    url = f"/v1/datasets/{made['id']}/deletes"
    for body in ({"where": "id > 2"}, {"keys": [{"id": 3}, {"id": 4}]}):
        for limit in (1, 0.49):
            refused = api.http.post(url, json=body | {"max_deleted": limit})
            assert "2 of 4 rows would be deleted" in expect_problem(refused, 422, "deletion_limit")["detail"]
    rows = "id,name\n1,ann\n2,bob\n"
    refused = api.try_to_load(made["id"], rows, "full_merge", "id", max_deleted=1, dry_run=True)
    expect_problem(refused, 422, "deletion_limit")
    expect_problem(api.try_to_load(made["id"], rows, "append", max_deleted=1), 400)
    assert api.load(made["id"], rows, "full_merge", "id", max_deleted=0.5)["deleted"] == 2
