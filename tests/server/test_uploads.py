"""Uploads over HTTP: streaming, limits, failures and previews."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import re
import socket
import time
from collections.abc import Iterator

import httpx
import pyarrow as pa
import pytest

from inlay.errors import CommitStateUnknownError
from tests.pipeline_data import parquet_bytes
from tests.service import Api, expect, expect_problem

MAX_BYTES = 4 << 20  # the limit of the fixtures


def chunks(count: int, size: int = 1 << 18) -> Iterator[bytes]:
    for _ in range(count):
        yield b"x" * size


def failed_uploads(api: Api) -> float:
    """Return the number of failed uploads."""
    counted = re.findall(r'route="/v1/files",status="(?:408|499)"} (\S+)', api.http.get("/metrics").text)
    return sum(map(float, counted))


@contextlib.contextmanager
def nothing_left(api: Api) -> Iterator[None]:
    """Expect one upload to fail inside the block, and to leave no files."""
    files, failed = api.files(), failed_uploads(api)
    yield
    deadline = time.monotonic() + 60
    while failed_uploads(api) == failed:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert api.files() <= files


@pytest.mark.on_servers
def test_an_upload_is_stored_byte_for_byte(api: Api) -> None:
    answer = api.http.post("/v1/files", content=b"a,b\n1,2\n", headers={"Content-Type": "text/csv; charset=utf-8"})
    upload = expect(answer, 201)
    assert upload["id"].startswith("upld_")
    assert (upload["status"], upload["size_bytes"], upload["consumed_at"]) == ("pending", 8, None)
    assert answer.headers["location"] == f"/v1/files/{upload['id']}"
    assert api.get(f"/v1/files/{upload['id']}") == upload
    path = api.workspace.storage.root.full(f"uploads/{upload['id']}/raw")
    with api.workspace.storage.root.store.open_read(path) as file:
        assert file.read() == b"a,b\n1,2\n"


def test_a_chunked_body_needs_no_length(api: Api) -> None:
    upload = expect(api.http.post("/v1/files", content=chunks(13)), 201)
    assert upload["size_bytes"] == 13 << 18
    assert upload["content_type"] is None


def test_every_content_type_and_compression_is_accepted(api: Api) -> None:
    headers = {"Content-Type": "application/x-unheard-of", "Content-Encoding": "gzip"}
    upload = expect(api.http.post("/v1/files", content=gzip.compress(b"a\n1\n"), headers=headers), 201)
    assert (upload["content_type"], upload["content_encoding"]) == ("application/x-unheard-of", "gzip")


def test_an_unknown_compression_is_rejected(api: Api) -> None:
    answer = api.http.post("/v1/files", content=b"x", headers={"Content-Encoding": "br"})
    assert "gzip, zstd" in expect_problem(answer, 400, "invalid_argument")["hint"]


@pytest.mark.parametrize("content", [b"", iter(())], ids=["length 0", "chunked"])
def test_an_empty_upload_is_rejected_and_removed(api: Api, content: bytes) -> None:
    before = api.files()
    problem = expect_problem(api.http.post("/v1/files", content=content), 400, "invalid_argument")
    assert "empty" in problem["detail"]
    assert api.files() == before


def test_an_upload_at_the_limit_is_accepted(api: Api) -> None:
    assert expect(api.http.post("/v1/files", content=chunks(16)), 201)["size_bytes"] == MAX_BYTES


@pytest.mark.parametrize("how", ["length", "chunked"])
@pytest.mark.on_servers
def test_an_upload_over_the_limit_is_413_and_removed(api: Api, how: str) -> None:
    before = api.files()
    count = len(api.get("/v1/files", status="all", limit=1000)["uploads"])
    body = b"x" * (MAX_BYTES + 1) if how == "length" else chunks(40)
    problem = expect_problem(api.http.post("/v1/files", content=body), 413, "upload_too_large")
    assert "INLAY_MAX_UPLOAD_BYTES" in problem["hint"]
    assert api.files() == before
    assert len(api.get("/v1/files", status="all", limit=1000)["uploads"]) == count


def test_a_content_length_over_the_limit_is_rejected_before_the_first_byte(api: Api) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(api.url).port)) as connection:
        connection.sendall(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("framing", [b"Content-Length: 3000000", b"Transfer-Encoding: chunked"])
@pytest.mark.on_servers
def test_an_upload_is_removed_when_its_client_disconnects(api: Api, framing: bytes) -> None:
    with nothing_left(api), socket.create_connection(("127.0.0.1", httpx.URL(api.url).port)) as connection:
        connection.sendall(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\n" + framing + b"\r\n\r\n")
        block = b"x" * 0x10000
        prefix, suffix = (b"10000\r\n", b"\r\n") if b"chunked" in framing else (b"", b"")
        for _ in range(30):
            connection.sendall(prefix + block + suffix)
        connection.close()
    assert api.get("/healthz") == {"status": "ok"}


def test_an_idle_upload_times_out(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inlay.server.middleware.IDLE_SECONDS", 0.2)
    with nothing_left(api), socket.create_connection(("127.0.0.1", httpx.URL(api.url).port)) as connection:
        connection.sendall(b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nsome")
        assert connection.recv(65536).startswith(b"HTTP/1.1 408")


def test_a_full_disk_is_503_and_the_upload_is_removed(plain_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    before = plain_api.files()
    monkeypatch.setattr(plain_api.workspace.storage, "open_write", lambda _: Full())
    problem = expect_problem(plain_api.http.post("/v1/files", content=b"x"), 503, "storage_unavailable")
    assert "No space left on device" in problem["detail"]
    assert plain_api.files() == before


def test_the_file_of_an_upload_stays_while_its_commit_is_unknown(
    plain_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise CommitStateUnknownError("The catalog did not confirm a commit.")

    before = plain_api.files()
    monkeypatch.setattr(plain_api.workspace.catalog.uploads, "create", lost)
    expect_problem(plain_api.http.post("/v1/files", content=b"x"), 500, "commit_state_unknown")
    assert len(plain_api.files() - before) == 1


@pytest.mark.on_servers
def test_list_pending_and_consumed_uploads_in_pages(api: Api) -> None:
    ids = [api.upload(f"a\n{number}\n") for number in range(3)]
    api.create({"upload_id": ids[0]})
    pending = api.get("/v1/files", limit=1000)
    assert pending["count"] == len(pending["uploads"])
    assert [u["id"] for u in pending["uploads"]][:2] == [ids[2], ids[1]]
    assert set(pending["uploads"][0]) == {
        "id", "status", "size_bytes", "content_type", "content_encoding", "created_at", "consumed_at"
    }  # fmt: skip
    consumed = api.get("/v1/files", status="consumed")["uploads"]
    assert ids[0] in {u["id"] for u in consumed}
    assert all(u["consumed_at"] and u["status"] == "consumed" for u in consumed)
    first = api.get("/v1/files", status="all", limit=2)
    assert (first["limit"], first["offset"], first["has_more"], len(first["uploads"])) == (2, 0, True, 2)
    last = api.get("/v1/files", status="all", limit=2, offset=first["count"] - 1)
    assert (last["has_more"], len(last["uploads"])) == (False, 1)


@pytest.mark.parametrize(
    "params", [{"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"offset": -1}, {"offset": 2**70}, {"status": "lost"}]
)
def test_invalid_pages_are_400(api: Api, params: dict[str, str]) -> None:
    problem = expect_problem(api.http.get("/v1/files", params=params), 400, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == list(params)


def test_delete_an_upload(api: Api) -> None:
    upload_id = api.upload("a\n1\n")
    assert api.http.delete(f"/v1/files/{upload_id}").status_code == 204
    expect_problem(api.http.get(f"/v1/files/{upload_id}"), 404, "not_found")
    expect_problem(api.http.delete(f"/v1/files/{upload_id}"), 404, "not_found")
    expect_problem(api.try_to_create({"upload_id": upload_id}), 404, "not_found")


def test_a_consumed_upload_cannot_be_deleted_or_previewed(api: Api) -> None:
    upload_id = api.upload("a\n1\n")
    api.create({"upload_id": upload_id})
    expect_problem(api.http.delete(f"/v1/files/{upload_id}"), 400, "upload_consumed")
    expect_problem(api.http.post(f"/v1/files/{upload_id}/preview"), 400, "upload_consumed")


# ------------------------------------------------------------------------------------------------------------ previews
def test_a_preview_returns_format_types_and_rows(api: Api) -> None:
    upload_id = api.upload('id;name;at\n007;"a;b";2024-01-31\n008;;2024-02-01\n', None)
    found = expect(api.http.post(f"/v1/files/{upload_id}/preview"), 200)
    assert found["format"] == "csv"
    assert found["options"]["delimiter"] == ";"
    assert found["options"]["header"] is True
    assert [(c["name"], c["type"]) for c in found["columns"]] == [("id", "text"), ("name", "text"), ("at", "date")]
    assert found["columns"][1]["null_share"] == 0.5
    assert found["rows"] == [["007", "a;b", "2024-01-31"], ["008", None, "2024-02-01"]]
    assert found["bad_cells"] == []


def test_a_preview_accepts_options_and_types(api: Api) -> None:
    upload_id = api.upload("1|x\n2|y\n3|\n")
    body = {
        "format": "csv",
        "options": {"delimiter": "|", "header": False},
        "schema": {"columns": [{"name": "column_1", "type": "decimal(5,2)"}, {"name": "column_2", "type": "int"}]},
    }
    found = expect(api.http.post(f"/v1/files/{upload_id}/preview", json=body), 200)
    assert [c["type"] for c in found["columns"]] == ["decimal(5,2)", "integer"]
    assert [(cell["line"], cell["column"], cell["value"]) for cell in found["bad_cells"]] == [
        (1, "column_2", "x"),
        (2, "column_2", "y"),
    ]
    assert found["rows"] == [["3.00", None]]
    assert api.get(f"/v1/files/{upload_id}")["status"] == "pending"


def test_a_preview_shows_years_outside_of_python_dates(api: Api) -> None:
    days = pa.array([0, 3_000_000], pa.int32()).cast(pa.date32())
    upload_id = api.upload(parquet_bytes(pa.table({"d": days})), "application/vnd.apache.parquet")
    found = expect(api.http.post(f"/v1/files/{upload_id}/preview"), 200)
    assert found["rows"] == [["1970-01-01"], ["10183-09-21"]]
    assert found["columns"][0]["samples"] == ["1970-01-01", "10183-09-21"]


def test_a_preview_for_a_dataset_uses_its_types(api: Api) -> None:
    dataset = api.create("code,price\n007,1.50\n", schema={"columns": [{"name": "price", "type": "decimal(8,2)"}]})
    upload_id = api.upload("code,price,more\n8,2.5,x\n9,much,y\n")
    found = expect(api.http.post(f"/v1/files/{upload_id}/preview", json={"dataset_id": dataset["id"]}), 200)
    types = [(column["name"], column["type"]) for column in found["columns"]]
    assert types == [("code", "text"), ("price", "decimal(8,2)"), ("more", "text")]
    assert found["rows"] == [["8", "2.50", "x"]]
    assert [(cell["line"], cell["column"], cell["value"]) for cell in found["bad_cells"]] == [(3, "price", "much")]


def test_the_charset_of_the_content_type_is_used(api: Api) -> None:
    upload_id = api.upload("name\ncafé €\n".encode("cp1252"), "text/csv; charset=windows-1252")
    found = expect(api.http.post(f"/v1/files/{upload_id}/preview"), 200)
    assert (found["rows"], found["options"]["encoding"], found["warnings"]) == ([["café €"]], "cp1252", [])
    made = api.create({"upload_id": upload_id})
    assert api.rows(f"SELECT name FROM datasets.{made['table_name']}") == [["café €"]]
    unknown_type = api.upload("name\nπ\n".encode("iso8859-7"), "text/plain; charset=iso-8859-7")
    assert expect(api.http.post(f"/v1/files/{unknown_type}/preview"), 200)["rows"] == [["π"]]
    explicit = {"upload_id": unknown_type, "format": "CSV", "options": {"encoding": "latin-1"}}
    made = api.create(explicit)
    assert api.rows(f"SELECT name FROM datasets.{made['table_name']}") == [["ð"]]
    klingon = api.upload("a\n1\n", "text/csv; charset=klingon")
    assert "klingon" in expect_problem(api.try_to_create({"upload_id": klingon}), 400)["detail"]


def test_an_invalid_preview_is_a_problem(api: Api) -> None:
    upload_id = api.upload("a\n1\n")
    url = f"/v1/files/{upload_id}/preview"
    expect_problem(api.http.post(url, json={"dataset_id": "data_nope"}), 404, "not_found")
    expect_problem(api.http.post(url, json={"options": {"delimeter": ";"}}), 400)
    unknown = {"schema": {"columns": [{"name": "a", "type": "integr"}]}}
    assert "Did you mean 'integer'?" in expect_problem(api.http.post(url, json=unknown), 400)["hint"]
    expect_problem(api.http.post("/v1/files/upld_nope/preview"), 404, "not_found")
