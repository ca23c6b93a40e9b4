"""Merges of a stream's micro-batches: their transaction tokens, and the function for `foreachBatch`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inlay import incremental
from inlay.engines import get_engine
from inlay.engines.spark.session import is_connect
from inlay.errors import InvalidArgumentError, unknown
from inlay.incremental import MergeStrategy
from inlay.spark.options import merge_options

__all__ = ["batch_token", "merge_batch", "require_stream_options"]

_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"  # local properties of the thread that runs a batch
_merged: dict[tuple[str, str], int] = {}  # the last batch of each (run, dataset)


def batch_token(query: str, batch: int) -> str:
    """Return the transaction token of a micro-batch. A restarted query keeps its id."""
    return f"spark/{query}/{batch}"


def require_stream_options(strategy: str | None, arguments: Mapping[str, Any]) -> None:
    """Raise unless each micro-batch can be merged with these arguments."""
    if strategy is None:
        raise InvalidArgumentError(
            "A stream needs key columns, by which inlay merges each micro-batch.",
            hint='Name them, separated by commas: option("keys", "id").',
        )
    if strategy == "full_merge":
        raise InvalidArgumentError(
            "strategy='full_merge' deletes the rows that the source lacks, and a micro-batch lacks most rows.",
            hint='Use strategy "upsert", "deduplicate" or "delete".',
        )
    if "transaction" in arguments:
        raise InvalidArgumentError(
            "A stream sets the transaction token of each micro-batch itself.", hint="Remove the option transaction."
        )


def merge_batch(
    path: str | os.PathLike[str],
    key_columns: str | Sequence[str],
    strategy: MergeStrategy = "upsert",
    **options: Any,
) -> Callable[[Any, int], None]:
    """Return a function for `foreachBatch` that merges each micro-batch exactly once.

    The transaction token of each merge names the query and the batch. After a crash, Spark repeats a batch whose end
    it has not recorded; if its merge is committed, the repetition changes nothing. The token decides, not the rows:
    a batch can be merged into a dataset only once.

    The function needs a classic Spark session. With Spark Connect, use `writeStream.format("inlay")`.

    Args:
        path: The directory of the dataset: a local path or a URL that fsspec supports.
        key_columns: The name, or the names, of the columns that identify a row.
        strategy: The strategy of `inlay.merge`, except `"full_merge"`. A restarted stream can put two files into one
            micro-batch, so a key can occur twice: `"deduplicate"` keeps its last row.
        **options: Other arguments of `inlay.merge`, except `transaction` and those that choose the engine.

    Returns:
        A function of a DataFrame and the number of its batch.

    Raises:
        InvalidArgumentError: An option is unknown, or has no meaning for a stream.

    Example:
        >>> import inlay.spark
        >>> merge = inlay.spark.merge_batch("people", "id", "deduplicate", dedup_order_by="at")
        >>> callable(merge)  # stream.writeStream.foreachBatch(merge).option("checkpointLocation", ...).start()
        True
    """
    known = merge_options()
    for name in options:
        if name not in known:
            raise unknown("option", name, known)
    require_stream_options(strategy, options)

    def merge(rows: Any, batch: int) -> None:
        query, run = _stream_of(rows)
        if _merged.get((run, str(path))) == batch:
            raise InvalidArgumentError(
                f"Batch {batch} is merged into {os.fspath(path)!r} already: inlay would take another merge for a "
                "repetition.",
                hint="Merge each batch once into a dataset. operation_column combines upserts and deletions.",
            )
        engine = get_engine("spark", spark=rows.sparkSession)
        incremental.merge(
            rows, path, strategy, key_columns, engine=engine, transaction=batch_token(query, batch), **options
        )
        _merged[run, str(path)] = batch

    return merge


def _stream_of(rows: Any) -> tuple[str, str]:
    """Return the ids of the query and of its run, which Spark sets in the thread of a classic session."""
    if not is_connect(rows.sparkSession):
        context = rows.sparkSession.sparkContext
        query, run = context.getLocalProperty(_QUERY), context.getLocalProperty(_RUN)
        if query is not None and run is not None:
            return query, run
    raise InvalidArgumentError(
        "merge_batch merges the micro-batches that Spark passes to foreachBatch in a classic session.",
        hint='With Spark Connect, use writeStream.format("inlay").',
    )
