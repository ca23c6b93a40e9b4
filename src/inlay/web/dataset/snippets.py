"""Code snippets that read a dataset from other programs."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nicegui import html, ui

from inlay.errors import UnauthorizedError
from inlay.server.auth import identify
from inlay.web.dataset.views import show_views
from inlay.web.shell import CopyButton, Visitor

if TYPE_CHECKING:
    from inlay.catalog import Snapshot

__all__ = ["KEY_VARIABLE", "Snippet", "Target", "first_rows_sql", "show_snippets", "snippets"]

KEY_VARIABLE = "INLAY_API_KEY"


class Snippet(NamedTuple):
    title: str
    note: str
    code: str


@dataclass(frozen=True, slots=True)
class Target:
    """A dataset of a service. If `version` is None, snippets read the current version."""

    url: str  # without a trailing slash
    dataset_id: str
    table_name: str
    version: int | None = None
    needs_key: bool = False
    is_on_s3: bool = False

    @property
    def sql(self) -> str:
        return first_rows_sql(self.table_name, self.version)

    @property
    def address(self) -> str:
        return f"{self.url}/v1/datasets/{self.dataset_id}{self._query('?')}"

    def download(self, kind: str) -> str:
        return f"{self.url}/v1/datasets/{self.dataset_id}/data?format={kind}{self._query('&')}"

    def _query(self, mark: str) -> str:
        return "" if self.version is None else f"{mark}version={self.version}"


def first_rows_sql(table_name: str, version: int | None) -> str:
    table = table_name if version is None else f'"{table_name}@{version}"'
    return f"SELECT * FROM datasets.{table} LIMIT 100"  # noqa: S608  (table names need no quotes)


def snippets(target: Target) -> list[Snippet]:
    return [make(target) for make in (_sql, _curl, _httpx, _files, _spark)]


def _sql(target: Target) -> Snippet:
    older = f'datasets."{target.table_name}@1"'
    note = f"Run this on the SQL page or with `inlay query`. To query an older version, use {older}."
    return Snippet("SQL", note, target.sql)


def _curl(target: Target) -> Snippet:
    key = f' -H "Authorization: Bearer ${KEY_VARIABLE}"' if target.needs_key else ""
    body = json.dumps({"sql": target.sql})
    return Snippet(
        "curl",
        "The Accept header selects CSV, JSON, Parquet, or Arrow. The second command downloads all rows.",
        f"curl --fail-with-body{key} -H 'Content-Type: application/json' -H 'Accept: text/csv' \\\n"
        f"  -d {shlex.quote(body)} {shlex.quote(target.url + '/v1/query')}\n"
        f"curl --fail-with-body{key} -o {target.table_name}.parquet {shlex.quote(target.download('parquet'))}",
    )


def _httpx(target: Target) -> Snippet:
    return Snippet(
        "Python: query with SQL",
        "This uses httpx. Any other HTTP client works as well.",
        f"{_imports(target, 'httpx')}\n\n{_headers(target)}"
        f"sql = {json.dumps(target.sql)}\n"
        f"url = {json.dumps(target.url + '/v1/query')}\n"
        f'response = httpx.post(url, json={{"sql": sql}}{_headers_argument(target)})\n'
        "response.raise_for_status()\n"
        'for row in response.json()["rows"]:\n'
        "    print(row)",
    )


def _files(target: Target) -> Snippet:
    return Snippet(
        "Python: read the Parquet files",
        "Every program that can access the storage can read the plain Parquet files. The service returns the files of "
        "a version, which never change.",
        f"{_imports(target, 'httpx', 'pyarrow as pa', 'pyarrow.parquet as pq')}\n\n{_headers(target)}"
        f"{_lookup(target)}"
        'table = pa.concat_tables([pq.read_table(file["url"]) for file in dataset["files"]])\n'
        "frame = table.to_pandas()\n"
        "print(frame.describe())",
    )


def _spark(target: Target) -> Snippet:
    url = 'file["url"].replace("s3://", "s3a://")' if target.is_on_s3 else 'file["url"]'
    return Snippet(
        "Spark",
        "This reads the same Parquet files with Spark, which needs access to the storage.",
        f"{_imports(target, 'httpx')}\nfrom pyspark.sql import SparkSession\n\n{_headers(target)}"
        "spark = SparkSession.builder.getOrCreate()\n"
        f"{_lookup(target)}"
        f'frame = spark.read.parquet(*[{url} for file in dataset["files"]])\n'
        "frame.show()",
    )


def _imports(target: Target, *modules: str) -> str:
    needed = ("os", *modules) if target.needs_key else modules
    text = "\n".join(f"import {module}" for module in needed)
    return text.replace("import os\n", "import os\n\n")


def _headers(target: Target) -> str:
    return f'headers = {{"Authorization": f"Bearer {{os.environ[\'{KEY_VARIABLE}\']}}"}}\n' if target.needs_key else ""


def _headers_argument(target: Target) -> str:
    return ", headers=headers" if target.needs_key else ""


def _lookup(target: Target) -> str:
    return f"dataset = httpx.get({json.dumps(target.address)}{_headers_argument(target)}).raise_for_status().json()\n"


# ------------------------------------------------------------------------------------------------------------------ tab
async def show_snippets(visitor: Visitor, snapshot: Snapshot) -> None:
    target = await _target_of(visitor, snapshot)
    if target.needs_key:
        with html.div().classes("inlay-card inlay-key-note"):
            ui.label("This service requires an API key.")
            ui.label(f"Run `inlay keys create NAME` to create one, and set {KEY_VARIABLE} to it.")
    for snippet in snippets(target):
        _show(snippet)
    dataset_id = snapshot.dataset.id
    views = await visitor.read(lambda w: w.publisher.views(dataset_id))
    address = await visitor.read(lambda w: w.publisher.address(dataset_id))
    show_views(views, address)


async def _target_of(visitor: Visitor, snapshot: Snapshot) -> Target:
    is_current = snapshot.version.version == snapshot.dataset.version
    return Target(
        _origin(),
        snapshot.dataset.id,
        snapshot.dataset.table_name,
        version=None if is_current else snapshot.version.version,
        needs_key=await _needs_key(visitor),
        is_on_s3=snapshot.version.parquet_url.startswith("s3://"),
    )


def _origin() -> str:
    """Return the address of the service as the browser sees it, which may be the address of a proxy."""
    client = ui.context.client
    return (client.environ or {}).get("HTTP_ORIGIN") or str(client.request.base_url).rstrip("/")


async def _needs_key(visitor: Visitor) -> bool:
    try:
        await identify(visitor.service, None)
    except UnauthorizedError:
        return True
    return False


def _show(snippet: Snippet) -> None:
    with html.section(**{"aria-label": snippet.title}).classes("inlay-card inlay-snippet"):
        with html.div().classes("inlay-snippet-head"):
            html.h3(snippet.title)
            CopyButton(snippet.code, f"Copy {snippet.title}")
        html.p(snippet.note).classes("inlay-note")
        html.pre(snippet.code, tabindex=0).classes("inlay-code")
