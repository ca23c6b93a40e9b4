"""Arrow schemas as JSON: columns that people and programs can read, and the exact schema beside them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["schema_from_json", "schema_to_json"]


def schema_to_json(schema: pa.Schema) -> str:
    columns = [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]
    return json.dumps({"columns": columns, "ipc": base64.b64encode(schema.serialize().to_pybytes()).decode()})


def schema_from_json(text: str) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(json.loads(text)["ipc"])))
