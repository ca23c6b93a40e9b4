"""Downloads of the rows of a version."""

from __future__ import annotations

import csv
import io
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.server import create_app
from inlay.settings import Settings
from tests.service import Api, expect_problem

FIRST = "id,name,price\n" + "".join(f"{key},name {key},{key}.50\n" for key in range(3000))
SCHEMA = {"columns": [{"name": "price", "type": "decimal(9,2)"}]}


@pytest.fixture(scope="module")
def dataset(api: Api) -> dict[str, Any]:
    """Create a dataset of several files, one of them rewritten and one appended."""
    made = api.create(FIRST, "Down load", table_name="down_load", schema=SCHEMA)
    api.load(made["id"], 'id,name,price\n7,"a, ""b""\nc",\n', "upsert", "id")
    api.load(made["id"], "id,name,price\n-1,,0.10\n", "append")
    return made


def download(api: Api, dataset: dict[str, Any], **params: Any) -> httpx.Response:
    return api.http.get(f"/v1/datasets/{dataset['id']}/data", params=params)


def expected() -> list[tuple[int, str | None, str | None]]:
    """Rows are in storage order: updated rows keep their position, appended rows come last."""
    rows: list[tuple[int, str | None, str | None]] = [(key, f"name {key}", f"{key}.50") for key in range(3000)]
    rows[7] = (7, 'a, "b"\nc', None)
    return [*rows, (-1, None, "0.10")]


def table_of(content: bytes, kind: str) -> pa.Table:
    return pq.read_table(io.BytesIO(content)) if kind == "parquet" else pa.ipc.open_stream(content).read_all()


def test_csv(api: Api, dataset: dict[str, Any]) -> None:
    answer = download(api, dataset, format="csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="down_load-v3.csv"'
    assert answer.headers["x-row-count"] == "3001"
    header, *rows = csv.reader(io.StringIO(answer.text, newline=""))
    assert header == ["id", "name", "price"]
    assert rows == [[str(key), name or "", price or ""] for key, name, price in expected()]


@pytest.mark.parametrize(("kind", "version"), [("parquet", 3), ("parquet", 1), ("arrow", 3), ("arrow", 1)])
def test_typed_formats(api: Api, dataset: dict[str, Any], kind: str, version: int) -> None:
    answer = download(api, dataset, format=kind, version=version)
    assert answer.headers["content-disposition"] == f'attachment; filename="down_load-v{version}.{kind}"'
    table = table_of(answer.content, kind)
    assert table.schema.field("price").type == pa.decimal128(9, 2)
    rows = [(row["id"], row["name"], row["price"] and str(row["price"])) for row in table.to_pylist()]
    assert rows == (expected() if version == 3 else [(key, f"name {key}", f"{key}.50") for key in range(3000)])


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_download_keeps_the_schema_metadata(api: Api, kind: str) -> None:
    schema = pa.schema([("id", pa.int64())], metadata={"origin": "a test"})
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": [1]}, schema=schema), sink)
    upload_id = api.upload(sink.getvalue(), "application/vnd.apache.parquet")
    made = api.create({"upload_id": upload_id}, "Metadata")
    api.load(made["id"], "id\n2\n", "append")
    found = table_of(download(api, made, format=kind).content, kind)
    assert found["id"].to_pylist() == [1, 2]
    assert found.schema.metadata[b"origin"] == b"a test"


def test_the_accept_header_chooses_the_default_format(api: Api, dataset: dict[str, Any]) -> None:
    path = f"/v1/datasets/{dataset['id']}/data"
    media = "application/vnd.apache.parquet"
    assert api.http.get(path, headers={"Accept": media}).headers["content-type"] == media
    assert api.http.get(path).headers["content-type"].startswith("text/csv")
    expect_problem(api.http.get(path, headers={"Accept": "image/png"}), 406, "not_acceptable")


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_an_empty_dataset_can_be_downloaded(api: Api, kind: str) -> None:
    schema = {"columns": [{"name": "id", "type": "bigint"}]}
    content = download(api, api.create("id\n", "Nothing", schema=schema), format=kind).content
    if kind == "csv":
        assert content == b"id\r\n"
    else:
        assert table_of(content, kind).schema == pa.schema([("id", pa.int64())])


def test_an_unknown_dataset_or_version_is_404(api: Api, dataset: dict[str, Any]) -> None:
    expect_problem(download(api, dataset, version=9), 404)
    expect_problem(download(api, {"id": "data_aaaaaaaaaaaaaaaaaaaaaaaa"}), 404)
    expect_problem(download(api, dataset, format="xlsx"), 400, "invalid_request")
    assert download(api, dataset, format="CSV").content == download(api, dataset, format="csv").content


def test_the_download_is_in_the_openapi_document() -> None:
    document = create_app(Settings(), lambda _: pytest.fail("the description needs no workspace")).openapi()
    operation = document["paths"]["/v1/datasets/{dataset_id}/data"]["get"]
    assert set(operation["responses"]["200"]["content"]) == {
        "text/csv", "application/vnd.apache.parquet", "application/vnd.apache.arrow.stream",
    }  # fmt: skip
