"""`inlay diff`: show or save the rows that differ between two versions of a dataset."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options as o
from inlay.cli import output, service_output
from inlay.errors import InlayError, InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["diff"]

_TABLE_ROWS = 20
_SUFFIXES = (".parquet", ".arrow")

OutputFile = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write all rows to this .parquet or .arrow file."),
]
RowLimit = Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Maximum number of rows to show.")]


def diff(
    dataset: o.Dataset,
    old: Annotated[int, typer.Argument(metavar="OLD", help="The number of a version.")],
    new: Annotated[int, typer.Argument(metavar="NEW", help="The number of the version to compare with it.")],
    limit: RowLimit = _TABLE_ROWS,
    output_file: OutputFile = None,
    storage_option: o.StorageOptions = None,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Show the rows of DATASET that were deleted, updated and inserted between two versions."""
    import inlay

    _require_suffix(output_file)
    rows = inlay.diff(dataset, old, new, storage_options=o.storage_options(storage_option))
    counts = {"delete": 0, "update_after": 0, "insert": 0}
    first: list[pa.RecordBatch] = []
    with _open_output(output_file, rows.schema) as writer:
        for batch in rows:
            first.append(batch.slice(0, limit - sum(each.num_rows for each in first)))
            for found in batch.column(0).value_counts().to_pylist():
                if found["values"] in counts:
                    counts[found["values"]] += found["counts"]
            if writer is not None:
                writer.write_batch(batch)
    summary: dict[str, Any] = {
        "old": old,
        "new": new,
        "deleted": counts["delete"],
        "updated": counts["update_after"],
        "inserted": counts["insert"],
    }
    if output_file is not None:
        summary |= {"output": output_file, "size_bytes": Path(output_file).stat().st_size}
    else:
        summary |= _rows_to_show(rows.schema, first)
    output.print_json(summary) if json else service_output.diff(summary)


def _require_suffix(file: str | None) -> None:
    if file is not None and Path(file).suffix not in _SUFFIXES:
        raise InvalidArgumentError(
            f"Cannot tell the format of the output from the name {file!r}.",
            hint="Choose a name that ends in .parquet or .arrow.",
        )


@contextlib.contextmanager
def _open_output(file: str | None, schema: pa.Schema) -> Iterator[Any]:
    """Yield a writer of record batches, or None without a file. Replace the file once all rows are written."""
    if file is None:
        yield None
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(file)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "xb") as out:
            is_parquet = path.suffix == ".parquet"
            with pq.ParquetWriter(out, schema) if is_parquet else pa.ipc.new_file(out, schema) as writer:
                yield writer
        os.replace(partial, path)
    except InlayError:
        raise
    except OSError as error:
        raise InvalidArgumentError(f"Cannot write {file!r}: {error.strerror or error}.") from error
    finally:
        partial.unlink(missing_ok=True)


def _rows_to_show(schema: pa.Schema, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    from inlay.query.values import json_values

    columns = [[value for batch in batches for value in json_values(batch.column(at))] for at in range(len(schema))]
    return {
        "columns": [{"name": field.name, "type": str(field.type)} for field in schema],
        "rows": [list(row) for row in zip(*columns, strict=True)],
    }
