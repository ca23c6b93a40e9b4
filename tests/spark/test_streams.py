"""Streams into datasets: each micro-batch is merged exactly once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import inlay
from inlay.errors import InvalidArgumentError
from inlay.spark import InlayDataSource, merge_batch
from tests.spark.test_format import sidecar, sorted_rows

SINKS = ["format", "foreachBatch"]
COLUMNS = "id long, value string, position long"


@pytest.fixture(scope="module")
def session(spark):
    spark.dataSource.register(InlayDataSource)
    return spark


class Stream:
    """A stream of JSON files, each of which is a micro-batch."""

    def __init__(self, session, folder, sink):
        self.session, self.sink = session, sink
        self.source, self.checkpoint, self.path = folder / "in", folder / "checkpoint", str(folder / "table")
        self.source.mkdir()
        self.options = {"strategy": "deduplicate", "dedup_order_by": "position"}
        self.keys = "id"

    def put(self, name, *rows):
        """Let a file with rows appear in the source."""
        text = "".join(f"{json.dumps(dict(zip(('id', 'value', 'position'), row, strict=True)))}\n" for row in rows)
        (self.source / f".{name}").write_text(text)
        os.rename(self.source / f".{name}", self.source / f"{name}.json")

    def run(self, files=1):
        """Merge all new files, and end."""
        rows = self.session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", files).json(str(self.source))
        write = rows.writeStream.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        if self.sink == "format":
            query = write.format("inlay").options(keys=self.keys, **self.options).start(self.path)
        else:
            options = dict(self.options)
            query = write.foreachBatch(merge_batch(self.path, self.keys, **options)).start()
        query.awaitTermination()
        return query

    def forget_last_batch(self):
        """Leave the checkpoint as if Spark died after the merge of the last batch, before it recorded its end."""
        last = max(int(name.name) for name in (self.checkpoint / "commits").iterdir() if name.name.isdigit())
        (self.checkpoint / "commits" / str(last)).unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
        return last


@pytest.fixture(params=SINKS)
def stream(request, session, tmp_path):
    return Stream(session, tmp_path, request.param)


def row(id_, value, position):
    return {"id": id_, "value": value, "position": position}


def test_a_repeated_batch_changes_nothing(stream):
    stream.put("a", (1, "a", 1), (2, "a", 2))
    stream.put("b", (2, "b", 3), (3, "b", 4), (3, "old", 0))
    stream.run()
    assert sorted_rows(stream.path) == [row(1, "a", 1), row(2, "b", 3), row(3, "b", 4)]
    inlay.merge({"id": [3], "value": ["later"], "position": [9]}, stream.path, "upsert", "id")
    inlay.merge({"id": [2]}, stream.path, "delete", "id")
    expected = sorted_rows(stream.path)
    assert stream.forget_last_batch() == 1
    stream.run()
    assert sorted_rows(stream.path) == expected
    stream.put("c", (2, "c", 5))
    stream.run()
    assert sorted_rows(stream.path) == [row(1, "a", 1), row(2, "c", 5), row(3, "later", 9)]
    assert sidecar(stream.path) == []


def test_a_batch_that_failed_is_merged_after_the_restart(stream):
    stream.put("a", (1, "a", 1))
    stream.run()
    stream.put("b", (2, "b", 2), (2, "b", 3))
    stream.options = {"strategy": "upsert"}
    with pytest.raises(Exception, match=r"DuplicateKeyError|more than once"):
        stream.run()
    assert sorted_rows(stream.path) == [row(1, "a", 1)]
    assert sidecar(stream.path) == []
    stream.options = {"strategy": "deduplicate"}
    stream.run()
    assert sorted_rows(stream.path) == [row(1, "a", 1), row(2, "b", 3)]


def test_files_in_one_batch_are_deduplicated(stream):
    for number in range(5):
        stream.put(f"file-{number}", *((i, f"file {number}", number) for i in range(number, 5)))
    stream.run(files=5)
    assert sorted_rows(stream.path) == [row(i, f"file {i}", i) for i in range(5)]


def test_a_change_feed_deletes_rows(stream):
    stream.options = {"strategy": "deduplicate", "dedup_order_by": "position", "operation_column": "value"}
    stream.put("a", (1, "insert", 1), (2, "insert", 2), (3, "c", 3))
    stream.put("b", (1, "delete", 5), (1, "update", 4), (2, "d", 6), (2, "c", 7))
    stream.run()
    expected = [{"id": 2, "position": 7}, {"id": 3, "position": 3}]
    assert sorted_rows(stream.path) == expected
    inlay.merge({"id": [1], "position": [1]}, stream.path, "insert", "id")
    stream.forget_last_batch()
    stream.run()
    assert sorted_rows(stream.path) == [{"id": 1, "position": 1}, *expected]


def test_a_stream_without_new_files_changes_nothing(stream):
    stream.run()
    assert not Path(stream.path).exists()


def test_two_streams_do_not_share_batches(session, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        each = Stream(session, tmp_path / name, "format")
        each.path = str(tmp_path / "table")
        each.put("a", (1 if name == "one" else 2, name, 1))
        each.run()
    assert sorted_rows(str(tmp_path / "table")) == [row(1, "one", 1), row(2, "two", 1)]


def test_an_aggregation_updates_its_groups(session, tmp_path):
    stream = Stream(session, tmp_path, "foreachBatch")
    stream.put("a", (1, "x", 1), (2, "y", 2))
    stream.put("b", (3, "x", 3))
    counts = (
        session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(stream.source)).groupBy("value")
    ).count()
    write = counts.writeStream.foreachBatch(merge_batch(stream.path, "value")).outputMode("update")
    write.option("checkpointLocation", str(stream.checkpoint)).trigger(availableNow=True).start().awaitTermination()
    found = {each["value"]: each["count"] for each in inlay.read_parquet(stream.path).to_pylist()}
    assert found == {"x": 2, "y": 1}


def test_one_batch_cannot_be_merged_twice_into_a_dataset(session, tmp_path):
    stream = Stream(session, tmp_path, "foreachBatch")
    stream.put("a", (1, "x", 1), (2, "y", 2))

    def handle(rows, batch):
        merge_batch(stream.path, "id")(rows.where("id = 1"), batch)
        merge_batch(stream.path, "id")(rows.where("id = 2"), batch)

    read = session.readStream.schema(COLUMNS).json(str(stream.source))
    query = read.writeStream.foreachBatch(handle).option("checkpointLocation", str(stream.checkpoint))
    with pytest.raises(Exception, match=r"Batch 0 is merged into .* already"):
        query.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "full_merge"}, "'full_merge' deletes the rows that the source lacks"),
        ({"transaction": "t"}, "sets the transaction token of each micro-batch itself"),
        ({"startegy": "upsert"}, "Unknown option 'startegy'.*\n.*strategy"),
        ({"engine": "duckdb"}, "Unknown option 'engine'"),
    ],
)
def test_options_without_meaning_for_a_stream_are_refused(options, message):
    source = InlayDataSource({"path": "p", "keys": "id", **options})
    with pytest.raises(InvalidArgumentError, match=message):
        source.streamWriter(None, False)
    with pytest.raises(InvalidArgumentError, match=message.split(".*")[0]):
        merge_batch("p", "id", **options)


def test_a_stream_needs_keys_and_passes_changes():
    with pytest.raises(InvalidArgumentError, match="A stream needs key columns"):
        InlayDataSource({"path": "p"}).streamWriter(None, False)
    with pytest.raises(InvalidArgumentError, match="complete"):
        InlayDataSource({"path": "p", "keys": "id"}).streamWriter(None, True)


def test_foreach_batch_needs_a_stream(session):
    with pytest.raises(InvalidArgumentError, match="foreachBatch in a classic session"):
        merge_batch("p", "id")(session.range(1), 0)
