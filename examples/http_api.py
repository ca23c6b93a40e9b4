"""Use the HTTP API with Python: upload a file, create a dataset, query it, load a correction, and undo it.

    make serve                                     # in another terminal
    python examples/http_api.py [URL]              # default: http://127.0.0.1:8000

If the service requires an API key, set INLAY_API_KEY. /docs of the service describes every request.
Needs: pip install httpx
"""

from __future__ import annotations

import os
import sys
from typing import Any

import httpx

SALES = "id,name,amount\n1,ann,10.50\n2,bob,7.25\n"
CORRECTION = "id,name,amount\n2,bob,8.00\n3,cy,1.00\n"


def parse(response: httpx.Response) -> Any:
    """Return the JSON of a response, or exit with the message and the hint of an error."""
    if response.is_error:
        problem = response.json()
        raise SystemExit(f"{problem['code']}: {problem['detail']} {problem.get('hint') or ''}")
    return response.json() if response.content else None


def main(url: str) -> None:
    key = os.environ.get("INLAY_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as http:
        # Upload the file. An upload can be used once.
        upload = parse(http.post("/v1/files", content=SALES.encode(), headers={"Content-Type": "text/csv"}))

        # Preview the columns and their inferred types. Types that you set override inferred types.
        preview = parse(http.post(f"/v1/files/{upload['id']}/preview", json={}))
        print("columns:", ", ".join(f"{column['name']} {column['type']}" for column in preview["columns"]))

        dataset = parse(
            http.post(
                "/v1/datasets",
                json={
                    "label": "Sales by Python",
                    "source": {"upload_id": upload["id"]},
                    "schema": {"columns": [{"name": "amount", "type": "decimal(10,2)"}]},
                },
            )
        )
        path, table = f"/v1/datasets/{dataset['id']}", dataset["table_name"]
        print(f"created the table datasets.{table} with {dataset['row_count']} rows")

        def query(sql: str) -> Any:
            return parse(http.post("/v1/query", json={"sql": sql}))["rows"]

        print("total:", query(f"SELECT sum(amount) FROM datasets.{table}"))  # noqa: S608  (the service chose the table name)

        # A load merges rows by key. With dry_run, it only reports what it would change.
        load = {
            "source": {"inline": {"format": "csv", "content": CORRECTION}},
            "strategy": "upsert",
            "key_columns": ["id"],
        }
        plan = parse(http.post(f"{path}/loads", json=load | {"dry_run": True}))
        print(f"the load would insert {plan['inserted']} row and update {plan['updated']} row")
        parse(http.post(f"{path}/loads", json=load))
        print("total:", query(f"SELECT sum(amount) FROM datasets.{table}"))  # noqa: S608

        # Each load creates a version. A restore copies no data.
        parse(http.post(f"{path}/restore", json={"version": 1}))
        print("after the restore:", query(f"SELECT sum(amount) FROM datasets.{table}"))  # noqa: S608
        parse(http.delete(path))
        print("deleted")


if __name__ == "__main__":
    service = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    try:
        main(service)
    except httpx.ConnectError:
        raise SystemExit(f"No service responds at {service}. Start one with `make serve`.") from None
