"""Queries over HTTP: formats, errors and cancellation."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import socket
import time
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.service import Api, expect, expect_problem

CONTENT = 'id,name,price,at\n1,"a, ""b""",1.10,2024-01-31T10:00:00Z\n2,,2.25,\n'
ENDLESS = "SELECT count(*) FROM generate_series(1, 1000000000000)"
SCHEMA = {"columns": [{"name": "price", "type": "decimal(9,2)"}]}


@pytest.fixture(scope="module")
def table(api: Api) -> str:
    return str(api.create(CONTENT, "things", schema=SCHEMA)["table_name"])


def ask(api: Api, sql: str, accept: str | None = None, **more: Any) -> httpx.Response:
    return api.http.post("/v1/query", json={"sql": sql, **more}, headers={"Accept": accept} if accept else {})


def test_json(api: Api, table: str) -> None:
    answer = ask(api, f"SELECT * FROM datasets.{table} ORDER BY id")
    assert answer.headers["content-type"] == "application/json"
    found = expect(answer, 200)
    assert [column["name"] for column in found["columns"]] == ["id", "name", "price", "at"]
    assert all(column["type"] for column in found["columns"])
    assert found["rows"] == [[1, 'a, "b"', "1.10", "2024-01-31T10:00:00.000000Z"], [2, None, "2.25", None]]
    assert (found["row_count"], found["truncated"]) == (2, False)
    assert found["execution_time_ms"] > 0


def test_datasets_are_listed(api: Api, table: str) -> None:
    assert [table] in expect(ask(api, "SHOW TABLES"), 200)["rows"]
    columns = "SELECT column_name, data_type FROM information_schema.columns"
    sql = f"{columns} WHERE table_name = '{table}' ORDER BY ordinal_position"
    expected = [["id", "bigint"], ["name", "text"], ["price", "decimal(9,2)"], ["at", "timestamp with time zone"]]
    assert expect(ask(api, sql), 200)["rows"] == expected
    names = expect(ask(api, "SELECT table_name FROM information_schema.tables"), 200)["rows"]
    assert [name for [name] in names] == [each["table_name"] for each in api.get("/v1/datasets")["datasets"]]


def test_csv(api: Api, table: str) -> None:
    answer = ask(api, f"SELECT id, name FROM datasets.{table} ORDER BY id", "text/csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert list(csv.reader(io.StringIO(answer.text, newline=""))) == [["id", "name"], ["1", 'a, "b"'], ["2", ""]]


def test_arrow(api: Api, table: str) -> None:
    answer = ask(api, f"SELECT id, price FROM datasets.{table} ORDER BY id", "application/vnd.apache.arrow.stream")
    found = pa.ipc.open_stream(answer.content).read_all()
    assert found.schema.field("price").type == pa.decimal128(9, 2)
    assert found["id"].to_pylist() == [1, 2]


@pytest.mark.on_servers
def test_parquet(api: Api, table: str) -> None:
    answer = ask(api, f"SELECT id FROM datasets.{table} ORDER BY id", "application/vnd.apache.parquet")
    assert answer.headers["x-row-count"] == "2"
    assert pq.read_table(io.BytesIO(answer.content))["id"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("*/*", "application/json"),
        ("text/html, */*;q=0.1", "application/json"),
        ("text/*", "text/csv; charset=utf-8"),
        ("application/json;q=0.5, text/csv", "text/csv; charset=utf-8"),
        ("text/csv;q=0, */*", "application/json"),
        ("application/vnd.apache.arrow.stream, application/json;q=0.9", "application/vnd.apache.arrow.stream"),
    ],
)
def test_the_accept_header_chooses_the_format(api: Api, table: str, accept: str, media: str) -> None:
    assert ask(api, "SELECT 1 AS one", accept).headers["content-type"] == media


def test_an_unknown_media_type_is_406(api: Api, table: str) -> None:
    assert "text/csv" in expect_problem(ask(api, "SELECT 1", "image/png"), 406, "not_acceptable")["hint"]


def test_limit_truncates(api: Api, table: str) -> None:
    answer = ask(api, f"SELECT id FROM datasets.{table} ORDER BY id", limit=1)
    assert (expect(answer, 200)["rows"], answer.json()["truncated"]) == ([[1]], True)
    assert answer.headers["x-truncated"] == "true"
    assert expect(ask(api, "SELECT 1", limit=0), 200)["rows"] == []


def test_a_small_result_has_a_content_length(api: Api, table: str) -> None:
    answer = ask(api, f"SELECT * FROM datasets.{table}")
    assert answer.headers["content-length"] == str(len(answer.content))
    assert "transfer-encoding" not in answer.headers


def test_a_large_result_is_streamed_completely(api: Api, table: str) -> None:
    sql = "SELECT value AS n, 'some text' AS t FROM generate_series(1, 1000000)"
    with api.http.stream("POST", "/v1/query", json={"sql": sql}, headers={"Accept": "text/csv"}) as answer:
        assert "content-length" not in answer.headers
        count = sum(1 for _ in answer.iter_lines())
    assert count == 1_000_001


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC 1", ""),
        ("", ""),
        ("SELECT * FROM datasets.thigns", "datasets.thigns"),
        ("SELECT nme FROM datasets.{table}", "nme"),
        ("SELECT 1; SELECT 2", ""),
        ("DROP TABLE datasets.{table}", ""),
        ("COPY (SELECT 1) TO '/tmp/x.csv'", ""),
        ("SELECT * FROM '/etc/passwd'", ""),
        ("SET x = 1", ""),
    ],
)
def test_an_invalid_query_is_400(api: Api, table: str, sql: str, message: str) -> None:
    problem = expect_problem(ask(api, sql.format(table=table)), 400)
    assert message in problem["detail"]


def test_query_errors_have_a_position_and_a_suggestion(api: Api, table: str) -> None:
    problem = expect_problem(ask(api, f"SELECT *\nFROM datasets.{table}x"), 400, "invalid_query")
    assert problem["position"] == {"line": 2, "column": 15}
    assert table in problem["hint"]


@pytest.mark.parametrize("body", [{}, {"sql": 1}, {"sql": "SELECT 1", "limit": -1}, {"sql": "SELECT 1", "limit": 1.5}])
def test_invalid_bodies_are_400(api: Api, body: dict[str, Any]) -> None:
    expect_problem(api.http.post("/v1/query", json=body), 400, "invalid_request")


def test_a_query_timeout_is_408(api: Api, table: str) -> None:
    expect_problem(ask(api, ENDLESS, timeout_seconds=0.5), 408, "query_timeout")


def test_a_result_that_parquet_cannot_represent_is_a_problem(api: Api, table: str) -> None:
    answer = ask(api, "SELECT INTERVAL '1 month' AS i", "application/vnd.apache.parquet")
    expect_problem(answer, 400, "invalid_query")


def test_a_disconnect_cancels_the_query(api: Api, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[type[BaseException]] = []
    real = api.workspace.query_engine.answer

    async def recorded(*arguments: Any, **more: Any) -> Any:
        try:
            return await real(*arguments, **more)
        except BaseException as error:
            ended.append(type(error))
            raise

    monkeypatch.setattr(api.workspace.query_engine, "answer", recorded)
    body = json.dumps({"sql": ENDLESS}).encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(api.url).port)) as connection:
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        connection.sendall(f"POST /v1/query HTTP/1.1\r\n{head}\r\n\r\n".encode() + body)
        time.sleep(0.5)
    deadline = time.monotonic() + 20
    while not ended:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert ended == [asyncio.CancelledError]
