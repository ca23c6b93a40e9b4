"""The OpenAPI document is complete and valid, and responses match it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import CHECKS

from inlay.server import create_app
from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.service import BACKENDS, Api, running, settings_for
from tests.spark import cluster

METHODS = ("get", "post", "put", "delete")
EXPECTED = {
    "/v1/files": {"get": "list_files", "post": "upload_file"},
    "/v1/files/{upload_id}": {"get": "get_file", "delete": "delete_file"},
    "/v1/files/{upload_id}/preview": {"post": "preview_file"},
    "/v1/datasets": {"get": "list_datasets", "post": "create_dataset"},
    "/v1/datasets/{dataset_id}": {"get": "get_dataset", "put": "update_dataset", "delete": "delete_dataset"},
    "/v1/datasets/{dataset_id}/data": {"get": "get_data"},
    "/v1/datasets/{dataset_id}/loads": {"post": "load_dataset"},
    "/v1/datasets/{dataset_id}/deletes": {"post": "delete_rows"},
    "/v1/datasets/{dataset_id}/versions": {"get": "list_versions"},
    "/v1/datasets/{dataset_id}/diff": {"get": "diff_versions"},
    "/v1/datasets/{dataset_id}/restore": {"post": "restore_dataset"},
    "/v1/datasets/{dataset_id}/rejects": {"get": "list_rejects"},
    "/v1/query": {"post": "query"},
    "/v1/jobs": {"get": "list_jobs"},
    "/v1/jobs/{job_id}": {"get": "get_job", "delete": "cancel_job"},
    "/v1/jobs/{job_id}/events": {"get": "follow_job"},
    "/v1/session": {"post": "sign_in", "delete": "sign_out"},
    "/healthz": {"get": "healthz"},
    "/readyz": {"get": "readyz"},
    "/metrics": {"get": "metrics"},
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    def never(_: Settings) -> Any:
        raise AssertionError("the description needs no workspace")

    return create_app(Settings(), never).openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def test_every_operation_has_its_operation_id(document: dict[str, Any]) -> None:
    found = {p: {m: o["operationId"] for m, o in methods.items()} for p, methods in document["paths"].items()}
    assert found == EXPECTED


def test_every_operation_has_a_summary_and_its_errors(document: dict[str, Any]) -> None:
    for path, operation in operations(document):
        assert operation["summary"]
        assert len(operation["tags"]) == 1
        if not path.startswith("/v1/"):
            continue
        assert operation.get("security") == (
            None if path == "/v1/session" else [{"ApiKey": []}]
        )  # the body contains the key
        for status in ("400", "401", "403", "500", "503"):
            content = operation["responses"][status]["content"]
            assert content == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    assert document["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"


def test_no_schema_of_fastapi_is_left(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    assert "HTTPValidationError" not in text
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in document["components"]["schemas"]


def test_examples_of_request_bodies_are_valid(document: dict[str, Any]) -> None:
    from inlay.server import requests

    for kind in (requests.DatasetBody, requests.LoadBody):
        examples = kind.model_json_schema()["examples"]
        for example in examples:
            assert kind.model_validate(example).request()


def test_the_service_serves_the_same_document(plain_api: Api, document: dict[str, Any]) -> None:
    assert plain_api.get("/openapi.json") == json.loads(json.dumps(document))


# ------------------------------------------------------------------------------------------------------------- fuzzing
KEY = {"Authorization": "Bearer of-the-fuzzer"}


@pytest.fixture(scope="module", params=BACKENDS)
def locked_api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service with an API key, so that operations without one fail."""
    cluster.local_session()
    directory = tmp_path_factory.mktemp("fuzzed")
    settings = settings_for(request.param, request, directory, max_upload_bytes=1 << 20, api_keys=("of-the-fuzzer",))
    with running(Workspace(settings)) as found:
        found.wait_until_ready()
        yield found


# A schema cannot describe valid SQL, existing names or matching data: requests that match it may get 4xx.
_UNDESCRIBABLE = {"positive_data_acceptance", "missing_required_header", "unsupported_method"}


def fuzz(api: Api, examples: int) -> int:
    """Send valid and invalid requests; every response must match the OpenAPI document.

    Clients do not send parameters with an empty value, so the service cannot reject an unknown one.
    """
    schema = schemathesis.openapi.from_url(f"{api.url}/openapi.json")
    checks = [check for check in CHECKS.get_all() if check.__name__ not in _UNDESCRIBABLE]
    requests = 0
    for result in schema.exclude(path_regex="/events$").get_all_operations():
        operation = result.ok()
        strategy = operation.as_strategy()
        if operation.path.startswith("/v1/"):  # the other paths accept any parameters
            strategy |= operation.as_strategy(generation_mode=NEGATIVE)

        @hypothesis.settings(max_examples=examples, database=None, derandomize=True)
        @hypothesis.given(case=strategy)
        def ask(case: Any) -> None:
            nonlocal requests
            hypothesis.assume(all(value not in ([], {}, None) for value in (case.query or {}).values()))
            requests += 1
            case.call_and_validate(checks=checks, headers=KEY, timeout=60)

        ask()
    return requests


NEGATIVE = schemathesis.GenerationMode.NEGATIVE


@pytest.mark.spark
def test_responses_match_the_openapi_document(locked_api: Api) -> None:
    assert fuzz(locked_api, 8) > 50


@pytest.mark.long  # short runs send 8 requests of each kind above, instead of 300
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_many_responses_match_the_openapi_document(locked_api: Api) -> None:
    assert fuzz(locked_api, 300) > 1000


def test_an_app_can_be_created_from_a_workspace(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=str(tmp_path)), Workspace)
    assert app.title == "inlay"
