"""Encodes rows in a worker process: a small result at once, a large result or a table part by part."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from inlay.pyarrow_features import byte_size
from inlay.query.csv_lines import csv_header, csv_rows
from inlay.query.result import arrow_file, json_rows

__all__ = ["ENCODERS", "encode_part"]

_PART_BYTES = 8 << 20  # of Arrow data
_BATCH_ROWS = 32_768
Batches = Sequence[pa.RecordBatch]


def _csv(schema: pa.Schema, batches: Batches) -> bytes:
    return csv_header(schema) + _csv_lines(schema, batches)


def _csv_lines(_: pa.Schema, batches: Batches) -> bytes:
    if len(batches) == 1:
        return csv_rows(batches[0])
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return b"".join(threads.map(csv_rows, batches))


def _json(_: pa.Schema, batches: Batches) -> bytes:
    return b",".join(filter(None, map(json_rows, batches)))


def _arrow(schema: pa.Schema, batches: Batches) -> bytes:
    return b"".join(arrow_file(schema, batches))


ENCODERS: Mapping[str, Callable[[pa.Schema, Batches], bytes]] = {"csv": _csv, "json": _json, "arrow": _arrow}


def encode_part(request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Encode the rows from position `at` on. `next` is the position of the next part, or None at the end.

    The rows are those of the file of a result (`answer`), or of the Parquet files of a table (`table`).
    """
    batches: list[pa.RecordBatch] = []
    size, next_position = 0, None
    source = _of_answer if "answer" in request else _of_table
    schema, positioned = source(request)
    for position, batch in positioned:
        if size >= _PART_BYTES:
            next_position = position
            break
        size += byte_size(batch)
        batches.append(batch)
    encode = ENCODERS[request["encode"]] if not request["at"] else _CONTINUATIONS[request["encode"]]
    return {"next": next_position}, encode(schema, batches)


_CONTINUATIONS: Mapping[str, Callable[[pa.Schema, Batches], bytes]] = {
    "csv": _csv_lines,
    "json": _json,
}
Positioned = Iterator[tuple[list[int], pa.RecordBatch]]


def _of_answer(request: Mapping[str, Any]) -> tuple[pa.Schema, Positioned]:
    reader = pa.ipc.open_stream(pa.memory_map(request["answer"]))
    [start] = request["at"] or [0]
    return reader.schema, (([number], batch) for number, batch in enumerate(reader) if number >= start)


def _of_table(request: Mapping[str, Any]) -> tuple[pa.Schema, Positioned]:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(request["table"]["schema"])))
    return schema, _table_batches(schema, request["table"]["files"], *(request["at"] or (0, 0, 0)))


def _table_batches(schema: pa.Schema, files: Sequence[str], file: int, group: int, batch: int) -> Positioned:
    """Yield the batches from a position on, which is the number of a file, of a row group and of a batch in it."""
    for at_file in range(file, len(files)):
        first_group = group if at_file == file else 0
        for at_group in range(first_group, _row_groups(files[at_file])):
            first = batch if (at_file, at_group) == (file, group) else 0
            for number, each in enumerate(_row_group(files[at_file], at_group, schema)[first:], first):
                yield [at_file, at_group, number], each


def _row_groups(file: str) -> int:
    return int(pq.read_metadata(file).num_row_groups)


@lru_cache(maxsize=1)  # the next part often begins in the same row group
def _row_group(file: str, number: int, schema: pa.Schema) -> Batches:
    [fragment] = ds.dataset(file, schema=schema, format="parquet").get_fragments()
    rows = fragment.subset(row_group_ids=[number]).to_table(schema=schema)
    return list(rows.to_batches(max_chunksize=_BATCH_ROWS))
