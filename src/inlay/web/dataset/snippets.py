"""Ways to use a dataset from elsewhere, ready to be copied."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["KEY_VARIABLE", "Snippet", "Target", "first_rows_sql", "snippets"]

KEY_VARIABLE = "INLAY_API_KEY"


class Snippet(NamedTuple):
    title: str
    note: str
    code: str


@dataclass(frozen=True, slots=True)
class Target:
    """A dataset at a service's address: its current version, or with `version` that one."""

    url: str  # without a slash at the end
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
    return f"SELECT * FROM datasets.{table} LIMIT 100"  # noqa: S608  (names of tables are plain words)


def snippets(target: Target) -> list[Snippet]:
    return [make(target) for make in (_sql, _curl, _httpx, _files, _spark)]


def _sql(target: Target) -> Snippet:
    older = f'datasets."{target.table_name}@1"'
    return Snippet("SQL", f"On the SQL page, or with `inlay query`. An older version is {older}.", target.sql)


def _curl(target: Target) -> Snippet:
    key = f' -H "Authorization: Bearer ${KEY_VARIABLE}"' if target.needs_key else ""
    body = json.dumps({"sql": target.sql})
    return Snippet(
        "curl",
        "Answers come as CSV, JSON, Parquet or Arrow, as the Accept header says. The second line gets all rows.",
        f"curl --fail-with-body{key} -H 'Content-Type: application/json' -H 'Accept: text/csv' \\\n"
        f"  -d {shlex.quote(body)} {shlex.quote(target.url + '/v1/query')}\n"
        f"curl --fail-with-body{key} -o {target.table_name}.parquet {shlex.quote(target.download('parquet'))}",
    )


def _httpx(target: Target) -> Snippet:
    return Snippet(
        "Python: ask SQL",
        "With httpx, or any other client for HTTP.",
        f"{_imports(target, 'httpx')}\n\n{_headers(target)}"
        f"sql = {json.dumps(target.sql)}\n"
        f'answer = httpx.post({json.dumps(target.url + "/v1/query")}, json={{"sql": sql}}{_given(target)})\n'
        "answer.raise_for_status()\n"
        'for row in answer.json()["rows"]:\n'
        "    print(row)",
    )


def _files(target: Target) -> Snippet:
    return Snippet(
        "Python: the Parquet files, with pyarrow and pandas",
        "The data is plain Parquet, for every program that can reach the storage. Versions never change: the service "
        "says which files are the data now.",
        f"{_imports(target, 'httpx', 'pyarrow as pa', 'pyarrow.parquet as pq')}\n\n{_headers(target)}"
        f"{_lookup(target)}"
        'table = pa.concat_tables([pq.read_table(file["url"]) for file in dataset["files"]])\n'
        "frame = table.to_pandas()\n"
        "print(frame.describe())",
    )


def _spark(target: Target) -> Snippet:
    place = 'file["url"].replace("s3://", "s3a://")' if target.is_on_s3 else 'file["url"]'
    return Snippet(
        "Spark",
        "The same files, where Spark can reach the storage.",
        f"{_imports(target, 'httpx')}\nfrom pyspark.sql import SparkSession\n\n{_headers(target)}"
        "spark = SparkSession.builder.getOrCreate()\n"
        f"{_lookup(target)}"
        f'frame = spark.read.parquet(*[{place} for file in dataset["files"]])\n'
        "frame.show()",
    )


# --------------------------------------------------------------------------------------------------------------- pieces
def _imports(target: Target, *modules: str) -> str:
    needed = ("os", *modules) if target.needs_key else modules
    text = "\n".join(f"import {module}" for module in needed)
    return text.replace("import os\n", "import os\n\n")


def _headers(target: Target) -> str:
    return f'headers = {{"Authorization": f"Bearer {{os.environ[\'{KEY_VARIABLE}\']}}"}}\n' if target.needs_key else ""


def _given(target: Target) -> str:
    return ", headers=headers" if target.needs_key else ""


def _lookup(target: Target) -> str:
    return f"dataset = httpx.get({json.dumps(target.address)}{_given(target)}).raise_for_status().json()\n"
