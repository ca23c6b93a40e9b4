"""Datasets over HTTP: create, show, rename, delete; and their errors."""

from __future__ import annotations

import csv
import io
import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.server.dependencies import _THREADS
from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.service import Api, expect, expect_problem, running
from tests.spark import cluster

_NUMBERS = itertools.count()


def fresh(name: str = "t") -> str:
    """Return a unique table name."""
    return f"{name}_{next(_NUMBERS)}"


# -------------------------------------------------------------------------------------------------------------- create
@pytest.mark.on_servers
def test_create_from_an_upload(api: Api) -> None:
    name = fresh("sales")
    upload_id = api.upload("id,revenue\n1,10.50\n2,\n")
    schema = {"columns": [{"name": "revenue", "type": "DECIMAL(10, 2)"}]}
    answer = api.try_to_create({"upload_id": upload_id}, "Sales", table_name=name, schema=schema)
    made = expect(answer, 201)
    assert answer.headers["location"] == f"/v1/datasets/{made['id']}"
    assert made == {
        "id": made["id"], "label": "Sales", "table_name": name, "status": "ready",
        "version": 1, "row_count": 2, "rejected_count": 0, "warnings": [],
    }  # fmt: skip
    assert api.rows(f"SELECT * FROM datasets.{name} ORDER BY id") == [[1, "10.50"], [2, None]]
    assert api.get(f"/v1/files/{upload_id}")["status"] == "consumed"


def test_show_a_dataset(api: Api) -> None:
    name = fresh()
    made = api.create({"inline": {"format": "json", "content": '[{"a": 1, "b": {"c": [true]}}]'}}, table_name=name)
    found = api.get(f"/v1/datasets/{made['id']}")
    assert found["schema"] == {
        "columns": [
            {"name": "a", "type": "bigint", "nullable": True},
            {"name": "b", "type": "struct<c: list<boolean>>", "nullable": True},
        ]
    }
    assert (found["source_type"], found["source_config"]["original_format"]) == ("inline", "json")
    assert (found["version"], found["current_version"], found["row_count"]) == (1, 1, 1)
    assert found["schema_name"] == "default"
    [file] = found["files"]
    assert file == {"url": found["parquet_url"], "rows": 1, "bytes": found["size_bytes"]}
    assert file["url"].endswith(f"/datasets/{made['id']}/v1/data.parquet")
    assert found["created_at"] == found["updated_at"]
    assert found["created_at"].endswith("Z")


def test_a_query_can_be_a_source(api: Api) -> None:
    source, target = fresh(), fresh()
    api.create("a,b\n1,x\n2,y\n3,z\n", table_name=source)
    made = api.create({"sql": f"SELECT a * 10 AS ten, b FROM datasets.{source} WHERE a > 1"}, table_name=target)
    assert made["row_count"] == 2
    assert api.rows(f"SELECT ten, b FROM datasets.{target} ORDER BY 1") == [[20, "y"], [30, "z"]]
    assert api.get(f"/v1/datasets/{made['id']}")["source_type"] == "query"


def test_parquet_is_rewritten_and_keeps_its_types(api: Api) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array([1, None], pa.int16()), "t": ["x", "y"]}), sink)
    name = fresh()
    made = api.create({"upload_id": api.upload(sink.getvalue(), "application/vnd.apache.parquet")}, table_name=name)
    columns = api.get(f"/v1/datasets/{made['id']}")["schema"]["columns"]
    assert [(c["name"], c["type"]) for c in columns] == [("n", "smallint"), ("t", "text")]


def test_the_table_name_is_derived_from_the_label(api: Api) -> None:
    label = f"2024 Q1: Sales & Returns {next(_NUMBERS)}!"
    first, second = api.create("a\n1\n", label), api.create("a\n1\n", label)
    assert first["table_name"].startswith("_2024_q1_sales_returns_")
    assert second["table_name"] == first["table_name"] + "_2"


@pytest.mark.parametrize("name", ["1st", "a-b", "a b", "select", "x" * 129, "é", ""])
def test_an_invalid_table_name_is_400(api: Api, name: str) -> None:
    expect_problem(api.try_to_create("a\n1\n", table_name=name), 400, "invalid_table_name")


def test_a_taken_table_name_is_409_ignoring_case(api: Api) -> None:
    name = fresh("taken")
    api.create("a\n1\n", table_name=name)
    problem = expect_problem(api.try_to_create("a\n1\n", table_name=name.upper()), 409, "table_name_taken")
    assert name.upper() in problem["detail"]


INLINE = {"format": "csv", "content": "a\n1\n"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "label"),
        ({"label": "x"}, "source"),
        ({"label": 5, "source": {"inline": INLINE}}, "label"),
        ({"label": "", "source": {"inline": INLINE}}, "label"),
        ({"label": "x", "source": {"inline": {"format": "parquet", "content": ""}}}, "source.inline.format"),
        ({"label": "x", "source": {"inline": INLINE}, "schema": {}}, "schema.columns"),
        ({"label": "x", "source": {"inline": INLINE}, "on_error": "skip"}, "on_error"),
        ({"label": "x", "source": {"inline": INLINE}, "schema": {"columns": [{"name": "a"}]}}, "schema.columns.0.type"),
    ],
)
def test_an_invalid_body_names_its_field(api: Api, body: dict[str, Any], field: str) -> None:
    problem = expect_problem(api.http.post("/v1/datasets", json=body), 400, "invalid_request")
    assert field in [error["field"] for error in problem["errors"]]
    assert field in problem["detail"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": {}}, "exactly one of upload_id, inline and sql"),
        ({"source": {"inline": INLINE, "sql": "SELECT 1"}}, "exactly one"),
        ({"source": {"inline": INLINE, "options": {"delimeter": ";"}}}, "Unknown option 'delimeter'"),
        ({"source": {"inline": INLINE, "options": {"delimiter": ";;"}}}, "one ASCII character"),
        ({"schema": {"columns": [{"name": "a", "type": "integr"}]}}, "Unknown type 'integr'"),
        ({"schema": {"columns": [{"name": "b", "type": "int"}]}}, "'b'"),
        ({"schema": {"columns": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}}, "twice"),
        ({"source": {"inline": {"format": "csv", "content": "a,b\n"}}}, ""),
        ({"source": {"inline": {"format": "csv", "content": ""}}}, ""),
        ({"source": {"inline": {"format": "json", "content": "[]"}}}, ""),
        ({"label": "   "}, "label"),
        ({"source": {"sql": "SELECT * FROM datasets.nowhere_at_all"}}, "nowhere_at_all"),
    ],
)
def test_an_unreadable_source_is_400(api: Api, change: dict[str, Any], message: str) -> None:
    count = api.get("/v1/datasets")["count"]
    answer = api.http.post("/v1/datasets", json={"label": "x", "source": {"inline": INLINE}, **change})
    assert message in expect_problem(answer, 400)["detail"]
    assert api.get("/v1/datasets")["count"] == count


def test_invalid_rows_are_reported_and_the_upload_stays_pending(api: Api) -> None:
    upload_id = api.upload("id,n\n1,2\n2,two\n3,4\n")
    schema = {"columns": [{"name": "n", "type": "int"}]}
    problem = expect_problem(api.try_to_create({"upload_id": upload_id}, schema=schema), 422, "bad_rows")
    assert [(e["line"], e["column"], e["value"]) for e in problem["errors"]] == [(3, "n", "two")]
    assert api.get(f"/v1/files/{upload_id}")["status"] == "pending"
    made = api.create({"upload_id": upload_id}, schema=schema, on_error="quarantine")
    assert (made["row_count"], made["rejected_count"]) == (2, 1)


def test_inline_data_over_the_limit_is_400_and_a_larger_body_413(api: Api) -> None:
    content = "a\n" + "x" * (1 << 20)
    assert "POST /v1/files" in expect_problem(api.try_to_create(content), 400, "invalid_argument")["hint"]
    expect_problem(api.try_to_create(content * 9), 413, "request_too_large")


def escaped(text: str) -> str:
    """Spell every character as JSON's longest escape, six bytes for one byte of ASCII text."""
    return '"' + "".join(f"\\u{ord(character):04x}" for character in text) + '"'


MEBIBYTE = 1 << 20


@pytest.mark.parametrize(
    ("content", "spell"),
    [
        pytest.param("a\n" + "é" * (MEBIBYTE // 2 - 1), json.dumps, id="accents"),
        pytest.param("a\n" + "1\n" * (MEBIBYTE // 2 - 1), json.dumps, id="line-ends"),
        pytest.param('a\n"' + '""' * (MEBIBYTE // 2 - 2) + '"', json.dumps, id="quotes"),
        pytest.param("a\n" + "1" * (MEBIBYTE - 2), escaped, id="everything"),
    ],
)
def test_the_limit_of_inline_data_counts_the_decoded_text(api: Api, content: str, spell: Callable[[str], str]) -> None:
    def create(text: str) -> httpx.Response:
        inline = '{"inline": {"format": "csv", "content": ' + spell(text) + "}}"
        body = '{"label": "large", "source": ' + inline + ', "schema": {"columns": [{"name": "a", "type": "text"}]}}'
        return api.http.post("/v1/datasets", content=body, headers={"Content-Type": "application/json"})

    content += "\n" * (MEBIBYTE - len(content.encode()))
    assert len(content.encode()) == MEBIBYTE
    expect(create(content), 201)
    problem = expect_problem(create(content + "\n"), 400, "invalid_argument")
    assert "1,048,577 bytes" in problem["detail"]


@pytest.mark.spark
def test_a_setting_changes_the_limit_of_inline_data(tmp_path: Path) -> None:
    cluster.local_session()
    settings = Settings(data_dir=str(tmp_path), spark_master="local[2]", max_inline_bytes=5 * MEBIBYTE)
    with running(Workspace(settings)) as api:
        content = "a\n" + "x\n" * (5 * MEBIBYTE // 2 - 1)
        assert api.create(content)["row_count"] == 5 * MEBIBYTE // 2 - 1
        expect_problem(api.try_to_create(content + "x"), 400, "invalid_argument")


def test_a_chunked_body_over_the_limit_is_413(api: Api) -> None:
    body = itertools.chain([b'{"label": "'], itertools.repeat(b"x" * 65536, 200), [b'"}'])
    headers = {"Content-Type": "application/json"}
    expect_problem(api.http.post("/v1/datasets", content=body, headers=headers), 413, "request_too_large")


def test_the_format_is_never_guessed(api: Api) -> None:
    upload_id = api.upload("a\n1\n", "application/octet-stream")
    problem = expect_problem(api.try_to_create({"upload_id": upload_id}), 400, "invalid_argument")
    assert "source.format" in problem["hint"]
    api.create({"upload_id": upload_id, "format": "csv"})


@pytest.mark.on_servers
def test_exactly_one_of_concurrent_uses_of_an_upload_succeeds(api: Api) -> None:
    upload_id = api.upload("a\n1\n")
    start = threading.Barrier(6)

    def use(_: int) -> int:
        start.wait()
        return api.try_to_create({"upload_id": upload_id}).status_code

    with ThreadPoolExecutor(6) as pool:
        statuses = sorted(pool.map(use, range(6)))
    assert statuses[0] == 201
    assert set(statuses[1:]) <= {400, 409}


def test_many_requests_can_wait_for_jobs(api: Api) -> None:
    """More requests than threads wait for jobs, and the service still answers others."""
    count, requests = api.get("/v1/datasets")["count"], _THREADS["catalog"] + 4
    with ThreadPoolExecutor(requests) as pool:
        waiting = [pool.submit(api.create, f"a\n{number}\n") for number in range(requests)]
        assert api.get("/healthz") == {"status": "ok"}
        assert api.get("/v1/datasets")["count"] >= count
        made = [each.result() for each in waiting]
    assert len({each["table_name"] for each in made}) == requests
    assert api.get("/v1/datasets")["count"] == count + requests


# ------------------------------------------------------------------------------------------------ async and idempotent
def test_respond_async(api: Api) -> None:
    answer = api.try_to_create("a\n1\n2\n", headers={"Prefer": "wait=5, respond-async"})
    job = expect(answer, 202)
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert answer.headers["preference-applied"] == "respond-async"
    assert job["kind"] == "create"
    done = api.wait(job)
    assert (done["state"], done["error"]) == ("succeeded", None)
    assert done["result"]["row_count"] == 2
    assert api.get(f"/v1/datasets/{done['dataset_id']}")["row_count"] == 2


@pytest.mark.on_servers
def test_an_idempotency_key_returns_the_first_result(api: Api) -> None:
    name, key = fresh(), {"Idempotency-Key": f"key-{next(_NUMBERS)}"}
    source = {"upload_id": api.upload("a\n1\n")}
    first = api.try_to_create(source, table_name=name, headers=key)
    again = api.try_to_create(source, table_name=name, headers=key)
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    assert first.headers["location"] == again.headers["location"]
    other = api.try_to_create(source, table_name=fresh(), headers=key)
    expect_problem(other, 422, "idempotency_key_reused")
    expect_problem(api.try_to_create(source, headers={"Idempotency-Key": "x" * 256}), 400, "invalid_request")


def test_concurrent_requests_with_one_key_create_one_dataset(api: Api) -> None:
    name, key = fresh(), {"Idempotency-Key": f"key-{next(_NUMBERS)}"}
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: api.try_to_create("a\n1\n", table_name=name, headers=key), range(5)))
    assert [answer.status_code for answer in answers] == [201] * 5
    assert len({answer.text for answer in answers}) == 1


def test_an_idempotency_key_returns_the_first_failure(api: Api) -> None:
    key = {"Idempotency-Key": f"key-{next(_NUMBERS)}"}
    source = {"sql": "SELECT nothing FROM datasets.nowhere"}
    first, again = (api.try_to_create(source, headers=key) for _ in range(2))
    problem = expect_problem(first, 400, "invalid_query")
    assert expect_problem(again, 400, "invalid_query") == problem


# ------------------------------------------------------------------------------------------- list, rename, delete
@pytest.mark.on_servers
def test_list_datasets_in_pages(api: Api) -> None:
    made = [api.create("a\n1\n")["id"] for _ in range(3)]
    page = api.get("/v1/datasets", limit=2)
    assert [dataset["id"] for dataset in page["datasets"]] == made[:0:-1]
    assert (page["has_more"], page["limit"], page["offset"]) == (True, 2, 0)
    assert set(page["datasets"][0]) >= {"id", "label", "table_name", "source_type", "created_at", "updated_at"}
    everything = api.get("/v1/datasets", limit=1000)
    assert (everything["count"], everything["has_more"]) == (len(everything["datasets"]), False)


def test_search_datasets(api: Api) -> None:
    name = fresh()
    made = api.create("a\n1\n", "Größen", table_name=name)["id"]
    for search in (f"GRÖSSEN {name.upper()}", f"größen {name}"):
        found = api.get("/v1/datasets", search=search)
        assert ([dataset["id"] for dataset in found["datasets"]], found["count"]) == ([made], 1)
    assert api.get("/v1/datasets", search=f"{name} other")["count"] == 0


def test_rename_a_dataset(api: Api) -> None:
    before, after = fresh(), fresh()
    made = api.create("a\n1\n", "old", table_name=before)
    url = f"/v1/datasets/{made['id']}"
    assert expect(api.http.put(url, json={"label": "new"}), 200)["table_name"] == before
    changed = expect(api.http.put(url, json={"label": "newer", "table_name": after}), 200)
    assert (changed["label"], changed["table_name"], changed["id"]) == ("newer", after, made["id"])
    assert changed["schema"]["columns"][0]["name"] == "a"
    assert api.get(url) == changed
    assert api.rows(f"SELECT a FROM datasets.{after}") == [[1]]
    expect_problem(api.http.post("/v1/query", json={"sql": f"SELECT a FROM datasets.{before}"}), 400, "invalid_query")
    same = expect(api.http.put(url, json={"table_name": after.upper()}), 200)
    assert same["table_name"] == after.upper()


def test_an_invalid_rename_is_rejected(api: Api) -> None:
    taken = fresh()
    api.create("a\n1\n", table_name=taken)
    made = api.create("a\n1\n")
    url = f"/v1/datasets/{made['id']}"
    expect_problem(api.http.put(url, json={"table_name": taken.upper()}), 409, "table_name_taken")
    expect_problem(api.http.put(url, json={"table_name": "select"}), 400, "invalid_table_name")
    expect_problem(api.http.put(url, json={"label": " "}), 400)
    expect_problem(api.http.put(url, json={}), 400, "invalid_request")
    expect_problem(api.http.put(url, json={"labl": "x"}), 400, "invalid_request")
    expect_problem(api.http.put("/v1/datasets/data_nope", json={"label": "x"}), 404, "not_found")


@pytest.mark.on_servers
def test_delete_a_dataset(api: Api) -> None:
    name = fresh()
    made = api.create("a\n1\n", table_name=name)
    url = f"/v1/datasets/{made['id']}"
    assert api.http.delete(url).status_code == 204
    for answer in (api.http.get(url), api.http.delete(url), api.http.get(f"{url}/versions")):
        expect_problem(answer, 404, "not_found")
    expect_problem(api.http.post("/v1/query", json={"sql": f"SELECT * FROM datasets.{name}"}), 400, "invalid_query")
    assert api.create("a\n2\n", table_name=name)["table_name"] == name


# ------------------------------------------------------------------------------------------------------------- rejects
@pytest.mark.on_servers
def test_rejects_in_pages_and_as_csv(api: Api) -> None:
    bad = {2, 5, 9}
    content = "id,n\n" + "\n".join(f'{n},"bad ""{n}"""' if n in bad else f"{n},{n}" for n in range(1, 11)) + "\n"
    schema = {"columns": [{"name": "n", "type": "int"}]}
    made = api.create(content, schema=schema, on_error="quarantine")
    assert (made["row_count"], made["rejected_count"]) == (7, 3)
    url = f"/v1/datasets/{made['id']}/rejects"
    page = api.get(url, limit=2)
    assert [(r["line"], r["column"], r["value"]) for r in page["rejects"]] == [(3, "n", 'bad "2"'), (6, "n", 'bad "5"')]
    assert (page["count"], page["limit"], page["offset"], page["has_more"], page["version"]) == (3, 2, 0, True, 1)
    assert [r["line"] for r in api.get(url, limit=2, offset=2)["rejects"]] == [10]
    for answer in (api.http.get(url, params={"format": "csv"}), api.http.get(url, headers={"Accept": "text/csv"})):
        assert answer.headers["content-type"].startswith("text/csv")
        assert "attachment" in answer.headers["content-disposition"]
        rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
        assert [(row["line"], row["value"]) for row in rows] == [("3", 'bad "2"'), ("6", 'bad "5"'), ("10", 'bad "9"')]
    expect_problem(api.http.get(url, headers={"Accept": "image/png"}), 406, "not_acceptable")
    assert api.http.get(url, params={"format": "csv"}, headers={"Accept": "image/png"}).status_code == 200
    expect_problem(api.http.get(url, params={"version": 2}), 404, "not_found")


def test_a_dataset_without_rejects_returns_an_empty_list(api: Api) -> None:
    made = api.create("a\n1\n")
    assert api.get(f"/v1/datasets/{made['id']}/rejects")["rejects"] == []
    text = api.http.get(f"/v1/datasets/{made['id']}/rejects", params={"format": "csv"}).text
    assert text == "line,column,value,reason,raw\r\n"
