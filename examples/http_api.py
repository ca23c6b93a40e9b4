"""The HTTP API with Python: upload a file, make it a table, ask SQL, load a correction by key, undo it.

    make serve                                     # in another terminal
    python examples/http_api.py [URL]              # http://127.0.0.1:8000 unless given

A service that asks for a key finds it in INLAY_API_KEY. /docs of the service describes every request.
Needs: pip install httpx
"""

from __future__ import annotations

import os
import sys
from typing import Any

import httpx

SALES = "id,name,amount\n1,ann,10.50\n2,bob,7.25\n"
CORRECTION = "id,name,amount\n2,bob,8.00\n3,cy,1.00\n"


def told(answer: httpx.Response) -> Any:
    """The JSON of an answer. An error is a problem document: it says what is wrong and often what to do."""
    if answer.is_error:
        problem = answer.json()
        raise SystemExit(f"{problem['code']}: {problem['detail']} {problem.get('hint') or ''}")
    return answer.json() if answer.content else None


def main(url: str) -> None:
    key = os.environ.get("INLAY_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as http:
        # The bytes first. An upload is used once.
        upload = told(http.post("/v1/files", content=SALES.encode(), headers={"Content-Type": "text/csv"}))

        # What would become of it? Types are inferred; those that are given win.
        preview = told(http.post(f"/v1/files/{upload['id']}/preview", json={}))
        print("found:", ", ".join(f"{column['name']} {column['type']}" for column in preview["columns"]))

        dataset = told(
            http.post(
                "/v1/datasets",
                json={
                    "label": "Sales by Python",
                    "source": {"upload_id": upload["id"]},
                    "schema": {"columns": [{"name": "amount", "type": "decimal(10,2)"}]},
                },
            )
        )
        here, table = f"/v1/datasets/{dataset['id']}", dataset["table_name"]
        print(f"{dataset['row_count']} rows are now the table datasets.{table}")

        def ask(sql: str) -> Any:
            return told(http.post("/v1/query", json={"sql": sql}))["rows"]

        print("total:", ask(f"SELECT sum(amount) FROM datasets.{table}"))  # noqa: S608  (our own table)

        # A load brings rows in by key. With dry_run it only says what it would do.
        load = {
            "source": {"inline": {"format": "csv", "content": CORRECTION}},
            "strategy": "upsert",
            "key_columns": ["id"],
        }
        plan = told(http.post(f"{here}/loads", json=load | {"dry_run": True}))
        print(f"the load would insert {plan['inserted']} and update {plan['updated']}")
        told(http.post(f"{here}/loads", json=load))
        print("total:", ask(f"SELECT sum(amount) FROM datasets.{table}"))  # noqa: S608

        # Every load is a version; going back moves no data.
        told(http.post(f"{here}/restore", json={"version": 1}))
        print("after going back:", ask(f"SELECT sum(amount) FROM datasets.{table}"))  # noqa: S608
        told(http.delete(here))
        print("deleted")


if __name__ == "__main__":
    service = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    try:
        main(service)
    except httpx.ConnectError:
        raise SystemExit(f"Nobody answers at {service}. Is the service running? `make serve` starts it.") from None
