"""Dataset uploads: one test for each acceptance criterion, against a running service."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.workspace import Workspace
from tests.postgres import postgres  # noqa: F401  (a fixture)
from tests.s3 import s3  # noqa: F401  (a fixture)
from tests.service import BACKENDS, Api, expect, expect_problem, running, settings_for
from tests.spark import cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module", params=BACKENDS)
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    cluster.local_session()
    settings = settings_for(request.param, request, tmp_path_factory.mktemp("service"), max_upload_bytes=100_000)
    with running(Workspace(settings)) as found:
        yield found


def table(api: Api, dataset_id: str) -> pa.Table:
    """Read the data file without inlay."""
    location = api.workspace.storage.root
    with location.store.open_arrow(location.full(f"datasets/{dataset_id}/v1/data.parquet")) as file:
        return pq.read_table(file)


def parquet(content: dict[str, Any], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(content), sink, **options)
    return sink.getvalue()


def types(api: Api, dataset_id: str) -> dict[str, str]:
    return {c["name"]: c["type"] for c in api.get(f"/v1/datasets/{dataset_id}")["schema"]["columns"]}


def test_post_v1_files_accepts_binary_data_and_returns_an_id(api: Api) -> None:
    content = bytes(range(256)) * 4
    upload = expect(api.http.post("/v1/files", content=content), 201)
    assert upload["id"].startswith("upld_")
    assert (upload["status"], upload["size_bytes"]) == ("pending", 1024)


def test_uploads_tracked_in_catalog_with_pending_status(api: Api) -> None:
    upload_id = api.upload("a\n1\n", "text/csv", **{"Content-Encoding": "identity"})
    upload = api.workspace.catalog.uploads.get(upload_id)
    assert (upload.status, upload.size_bytes, upload.content_type) == ("pending", 4, "text/csv")
    assert upload.storage_url.endswith(f"/uploads/{upload_id}/raw")
    assert upload.consumed_at is None


def test_get_v1_files_returns_list_of_pending_uploads(api: Api) -> None:
    waiting, used = api.upload("a\n1\n"), api.upload("a\n1\n")
    api.create({"upload_id": used})
    listed = {upload["id"]: upload for upload in api.get("/v1/files")["uploads"]}
    assert used not in listed
    fields = {"id", "status", "size_bytes", "content_type", "created_at", "consumed_at"}
    assert fields <= set(listed[waiting])
    assert listed[waiting]["consumed_at"] is None


@pytest.mark.on_servers
def test_post_v1_datasets_creates_dataset_from_upload_id(api: Api) -> None:
    body = {
        "label": "Q1 Sales Report",
        "table_name": "q1_sales",
        "source": {
            "upload_id": api.upload("id,revenue\n1,10.5\n2,NULL\n"),
            "format": "csv",
            "options": {"delimiter": ",", "header": True, "null_values": ["", "NULL"]},
        },
        "schema": {"columns": [{"name": "revenue", "type": "decimal(10,2)"}]},
    }
    made = expect(api.http.post("/v1/datasets", json=body), 201)
    assert made["id"].startswith("data_")
    assert (made["label"], made["table_name"], made["status"]) == ("Q1 Sales Report", "q1_sales", "ready")
    assert api.rows("SELECT * FROM datasets.q1_sales ORDER BY id") == [[1, "10.50"], [2, None]]


def test_post_v1_datasets_supports_inline_data_for_csv_json(api: Api) -> None:
    content = "code,name\nUS,United States\nCA,Canada"
    made = api.create({"inline": {"format": "csv", "content": content}}, "Country Codes")
    assert made["table_name"] == "country_codes"
    assert api.rows("SELECT name FROM datasets.country_codes ORDER BY code") == [["Canada"], ["United States"]]
    documents = '[{"code": "US"}, {"code": "CA"}]'
    assert api.create({"inline": {"format": "json", "content": documents}})["row_count"] == 2
    too_much = "a\n" + "x" * 1_048_576
    assert len(too_much) > 1_048_576
    expect_problem(api.try_to_create(too_much), 400)


def test_upload_id_is_consumed_cannot_be_reused_after_dataset_creation(api: Api) -> None:
    source = {"upload_id": api.upload("a\n1\n")}
    made = api.create(source)
    upload = api.get(f"/v1/files/{source['upload_id']}")
    assert upload["status"] == "consumed"
    assert upload["consumed_at"] is not None
    expect_problem(api.try_to_create(source), 400, "upload_consumed")
    expect_problem(api.try_to_load(made["id"], source, "append"), 400, "upload_consumed")


def test_csv_json_uploads_converted_to_parquet_on_dataset_creation(api: Api) -> None:
    for kind, content in [("text/csv", "a,b\n1,x\n2,y\n"), ("application/json", '{"a":1,"b":"x"}\n{"a":2,"b":"y"}\n')]:
        made = api.create({"upload_id": api.upload(content, kind)})
        assert table(api, made["id"]).to_pydict() == {"a": [1, 2], "b": ["x", "y"]}
        url = api.get(f"/v1/datasets/{made['id']}")["parquet_url"]
        assert url.endswith(f"/datasets/{made['id']}/v1/data.parquet")


def test_parquet_uploads_rewritten_with_standard_settings(api: Api) -> None:
    raw = parquet({"a": list(range(100))}, compression="gzip", data_page_version="1.0", row_group_size=10)
    made = api.create({"upload_id": api.upload(raw, None), "format": "parquet"})
    location = api.workspace.storage.root
    with location.store.open_arrow(location.full(f"datasets/{made['id']}/v1/data.parquet")) as file:
        metadata = pq.read_metadata(file)
    assert (metadata.num_rows, metadata.num_row_groups) == (100, 1)
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert metadata.format_version.startswith("2.")
    assert table(api, made["id"])["a"].to_pylist() == list(range(100))


def test_schema_inference_works_for_csv_json(api: Api) -> None:
    row = "1,1.5,true,2024-01-31,2024-01-31 10:00:00,x,007\n"
    made = api.create("i,f,b,d,t,s,z\n" + row + row)
    assert types(api, made["id"]) == {
        "i": "bigint", "f": "double", "b": "boolean", "d": "date", "t": "timestamp", "s": "text", "z": "text"
    }  # fmt: skip
    document = '{"i": 1, "f": 1.5, "b": true, "s": "x", "o": {"n": [1]}}'
    made = api.create({"inline": {"format": "json", "content": document}})
    assert types(api, made["id"]) == {
        "i": "bigint", "f": "double", "b": "boolean", "s": "text", "o": "struct<n: list<bigint>>"
    }  # fmt: skip


def test_schema_overrides_work_for_csv_json(api: Api) -> None:
    schema = {"columns": [{"name": "n", "type": "Decimal(10, 2)"}, {"name": "i", "type": "VARCHAR"}]}
    for source in ("i,n,o\n1,2.5,3\n", {"inline": {"format": "json", "content": '{"i": "1", "n": 2.5, "o": 3}'}}):
        made = api.create(source, schema=schema)
        assert types(api, made["id"]) == {"i": "text", "n": "decimal(10,2)", "o": "bigint"}
        assert str(table(api, made["id"])["n"][0]) == "2.50"
    config = api.get(f"/v1/datasets/{made['id']}")["source_config"]
    assert config["schema_overrides"] == {"n": "Decimal(10, 2)", "i": "VARCHAR"}


def test_parquet_schema_modification_returns_error(api: Api) -> None:
    upload_id = api.upload(parquet({"a": [1]}), "application/vnd.apache.parquet")
    schema = {"columns": [{"name": "a", "type": "text"}]}
    problem = expect_problem(api.try_to_create({"upload_id": upload_id}, schema=schema), 400)
    assert problem["detail"] == "altering parquet schema is currently unsupported"
    assert api.get(f"/v1/files/{upload_id}")["status"] == "pending"


def test_table_name_validation_enforced(api: Api) -> None:
    for name in ("1a", "-a", "a b", "a.b", "select", "SELECT", "x" * 129, ""):
        expect_problem(api.try_to_create("a\n1\n", table_name=name), 400, "invalid_table_name")
    for name in ("_a", "A1_b", "x" * 128):
        assert api.create("a\n1\n", table_name=name)["table_name"] == name
        expect_problem(api.try_to_create("a\n1\n", table_name=name.swapcase()), 409, "table_name_taken")


def test_table_name_auto_generated_from_label_when_omitted(api: Api) -> None:
    names = [
        api.create("a\n1\n", label)["table_name"] for label in ("Auto Name", "auto name!", "2nd Try", "Select", "?")
    ]
    assert names[:4] == ["auto_name", "auto_name_2", "_2nd_try", "_select"]
    assert names[4]


def test_get_v1_datasets_lists_all_datasets(api: Api) -> None:
    made = api.create("a\n1\n", "Listed")
    listed = {dataset["id"]: dataset for dataset in api.get("/v1/datasets", limit=1000)["datasets"]}
    found = listed[made["id"]]
    assert (found["label"], found["table_name"], found["source_type"]) == ("Listed", made["table_name"], "inline")
    assert {"created_at", "updated_at"} <= set(found)


def test_get_v1_datasets_id_returns_dataset_details(api: Api) -> None:
    upload_id = api.upload("a\n1\n")
    made = api.create({"upload_id": upload_id}, "Details")
    found = api.get(f"/v1/datasets/{made['id']}")
    fields = {"id", "label", "table_name", "parquet_url", "schema", "source_type", "source_config"}
    assert fields | {"created_at", "updated_at"} <= set(found)
    assert (found["id"], found["label"], found["source_type"]) == (made["id"], "Details", "upload")
    assert found["source_config"]["upload_id"] == upload_id
    assert found["source_config"]["original_format"] == "csv"
    expect_problem(api.http.get("/v1/datasets/data_unknown"), 404, "not_found")


def test_put_v1_datasets_id_updates_label_and_table_name(api: Api) -> None:
    made = api.create("a\n1\n", "Q1 Sales")
    body = {"label": "Q1 Sales Report (Final)", "table_name": "quarterly_sales"}
    changed = expect(api.http.put(f"/v1/datasets/{made['id']}", json=body), 200)
    assert {name: changed[name] for name in ("id", "label", "table_name")} == {"id": made["id"], **body}
    assert api.rows("SELECT * FROM datasets.quarterly_sales") == [[1]]


@pytest.mark.on_servers
def test_delete_v1_datasets_id_removes_dataset_and_files(api: Api) -> None:
    made = api.create("a\n1\n", table_name="to_be_deleted")
    assert any(made["id"] in path for path in api.files())
    assert api.http.delete(f"/v1/datasets/{made['id']}").status_code == 204
    expect_problem(api.http.get(f"/v1/datasets/{made['id']}"), 404)
    assert made["id"] not in {dataset["id"] for dataset in api.get("/v1/datasets", limit=1000)["datasets"]}
    expect_problem(api.http.post("/v1/query", json={"sql": "SELECT * FROM datasets.to_be_deleted"}), 400)
    deadline = time.monotonic() + 60
    while any(made["id"] in path for path in api.files()):  # the grace period of these tests is none
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_datasets_queryable_via_select_from_datasets_table_name(api: Api) -> None:
    api.create("a,b\n1,x\n2,y\n", table_name="queryable")
    assert api.rows("SELECT * FROM datasets.queryable ORDER BY a") == [[1, "x"], [2, "y"]]
    assert api.rows("SELECT sum(a) FROM datasets.default.queryable") == [[3]]
    assert api.rows("SELECT count(*) FROM datasets.QUERYABLE") == [[2]]


def test_uploads_exceeding_size_limit_default_2gb_rejected(api: Api) -> None:
    from inlay.settings import Settings

    assert Settings().max_upload_bytes == 2 * 1024**3
    before = api.files()
    expect_problem(api.http.post("/v1/files", content=b"x" * 100_001), 413, "upload_too_large")
    expect_problem(api.http.post("/v1/files", content=iter([b"x" * 60_000] * 2)), 413, "upload_too_large")
    assert api.files() == before
    assert expect(api.http.post("/v1/files", content=b"x" * 100_000), 201)["size_bytes"] == 100_000


def test_format_resolution_explicit_content_type_hint_error(api: Api) -> None:
    csv = "a\n1\n"
    assert api.create({"upload_id": api.upload(csv, "application/json"), "format": "csv"})["row_count"] == 1
    assert api.create({"upload_id": api.upload(csv, "text/csv; charset=utf-8")})["row_count"] == 1
    for unknown in (None, "application/octet-stream"):
        expect_problem(api.try_to_create({"upload_id": api.upload(csv, unknown)}), 400, "invalid_argument")
