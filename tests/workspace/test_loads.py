"""Creates, loads, versions and restores of a workspace."""

from __future__ import annotations

import csv
import io
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.catalog import Dataset, Job
from inlay.errors import (
    BadRowsError,
    DuplicateKeyError,
    InvalidArgumentError,
    JobCancelledError,
    NotFoundError,
    NullKeyError,
    QueryCancelledError,
    SchemaMismatchError,
    TableNameTakenError,
    UploadConsumedError,
    UploadInUseError,
)
from inlay.type_grammar import column_type_name
from inlay.workspace import Inline, Load, NewDataset, Source, Workspace
from tests import oracle
from tests.pipeline_data import parquet_bytes

pytestmark = pytest.mark.spark
numbers = itertools.count()


def as_csv(rows: list[dict[str, Any]], header: str = "id,name,n") -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, header.split(","), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def row(key: int, name: str, number: int | None = 0) -> dict[str, Any]:
    return {"id": key, "name": name, "n": number}


def inline(rows: list[dict[str, Any]]) -> Source:
    return Source(inline=Inline("csv", as_csv(rows)))


def made(workspace: Workspace, rows: list[dict[str, Any]]) -> Dataset:
    columns = [("id", "bigint"), ("name", "text"), ("n", "bigint")]
    job = workspace.create_dataset(NewDataset(f"Test {next(numbers)}", inline(rows), columns=columns)).wait()
    return workspace.catalog.datasets.get(str(job.dataset_id))


def content(workspace: Workspace, dataset: Dataset, version: int | None = None) -> list[dict[str, Any]]:
    table = dataset.table_name if version is None else f'"{dataset.table_name}@{version}"'
    with workspace.query(f"SELECT id, name, n FROM datasets.{table} ORDER BY id") as result:
        return result.read_all().to_pylist()


def stored(workspace: Workspace, dataset: Dataset) -> set[str]:
    return {file.path for file in workspace.storage.files_below(f"datasets/{dataset.id}")}


def upload(workspace: Workspace, text: str | bytes, content_type: str = "text/csv") -> str:
    with workspace.receive(content_type) as writer:
        writer.write(text if isinstance(text, bytes) else text.encode())
        return writer.finish().id


def load(workspace: Workspace, dataset: Dataset, source: Source, strategy: str, **more: Any) -> Job:
    keys = () if strategy in ("append", "replace") else ("id",)
    return workspace.load(dataset.id, Load(source, strategy, keys, **more)).wait()


# ------------------------------------------------------------------------------------------------------------- create
@pytest.mark.parametrize("strategy", ["append", "upsert"])
def test_required_parquet_columns_stay_required(workspace: Workspace, strategy: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False),
                        ("n", pa.int64())])  # fmt: skip
    upload_id = upload(workspace, parquet_bytes(pa.table([[1], ["a"], [1]], schema=schema)), "application/parquet")
    job = workspace.create_dataset(NewDataset(f"Strict {next(numbers)}", Source(upload_id=upload_id))).wait()
    dataset = workspace.catalog.datasets.get(str(job.dataset_id))
    rows = inline([row(2, "b", None), row(3, "", 4)])
    with pytest.raises(BadRowsError, match="line 3, column 'name': NULL"):
        load(workspace, dataset, rows, strategy)
    result = load(workspace, dataset, rows, strategy, on_error="quarantine").result or {}
    assert (result["inserted"], result["rejected_count"], result["row_count"]) == (1, 1, 2)
    assert content(workspace, dataset) == [row(1, "a", 1), row(2, "b", None)]
    assert workspace.dataset(dataset.id).dataset.schema == schema


def test_length_and_second_constraints_apply_to_later_loads(workspace: Workspace) -> None:
    def csv_of(name: str, second: str) -> Source:
        return Source(inline=Inline("csv", f"id,name,t\n1,{name},2024-01-31 10:00:{second}\n"))

    def sql_of(name: str, second: str) -> Source:
        return Source(sql=f"SELECT 2 AS id, '{name}' AS name, TIMESTAMP '2024-01-31 10:00:{second}' AS t")

    columns = [("name", "varchar(2)"), ("t", "timestamp(0)")]
    job = workspace.create_dataset(NewDataset(f"Narrow {next(numbers)}", csv_of("ab", "01"), columns=columns)).wait()
    dataset = workspace.catalog.datasets.get(str(job.dataset_id))
    for strategy, name, second in (("append", "abc", "01"), ("upsert", "ab", "01.5")):
        with pytest.raises(BadRowsError):
            load(workspace, dataset, csv_of(name, second), strategy)
        with pytest.raises(SchemaMismatchError):
            load(workspace, dataset, sql_of(name, second), strategy)
        load(workspace, dataset, sql_of("é", "02.000"), strategy)
    schema = workspace.dataset(dataset.id).dataset.schema
    assert [column_type_name(field) for field in schema] == ["bigint", "varchar(2)", "timestamp(0)"]
    with workspace.query(f"SELECT DISTINCT arrow_typeof(t) AS t FROM datasets.{dataset.table_name}") as result:
        assert result.read_all().to_pylist() == [{"t": "Timestamp(s)"}]


@pytest.mark.on_servers
def test_creating_a_dataset_consumes_its_upload(workspace: Workspace) -> None:
    upload_id = upload(workspace, "code,share\n007,1.5\n008,2.25\n")
    job = workspace.create_dataset(NewDataset("Agents of 2024", Source(upload_id=upload_id))).wait()
    snapshot = workspace.dataset(str(job.dataset_id))
    assert snapshot.dataset.table_name == "agents_of_2024"
    assert (snapshot.version.version, snapshot.version.row_count, snapshot.version.operation) == (1, 2, "create")
    assert snapshot.dataset.source_config["upload_id"] == upload_id
    assert snapshot.dataset.source_config["original_format"] == "csv"
    assert snapshot.dataset.parquet_url.endswith(f"/datasets/{snapshot.dataset.id}/v1/data.parquet")
    with workspace.query("SELECT code, share FROM datasets.agents_of_2024 ORDER BY code") as result:
        assert result.read_all().to_pydict() == {"code": ["007", "008"], "share": [1.5, 2.25]}
    assert workspace.upload(upload_id).status == "consumed"
    with pytest.raises(UploadConsumedError):
        workspace.create_dataset(NewDataset("Again", Source(upload_id=upload_id)))


def test_managed_files_are_written_with_managed_settings(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "a")])
    path = f"datasets/{dataset.id}/v1/data.parquet"
    with workspace.storage.root.store.open_arrow(workspace.storage.root.full(path)) as file:
        metadata = pq.read_metadata(file)
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_one_of_many_concurrent_uses_of_an_upload_succeeds(workspace: Workspace) -> None:
    upload_id = upload(workspace, "id\n1\n")
    outcomes: list[str] = []

    def use(number: int) -> None:
        try:
            workspace.create_dataset(NewDataset(f"Race {number}", Source(upload_id=upload_id))).wait()
            outcomes.append("won")
        except (UploadInUseError, UploadConsumedError) as error:
            outcomes.append(error.code)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(use, range(6)))
    assert outcomes.count("won") == 1
    assert len(outcomes) == 6


def test_a_failed_conversion_keeps_the_upload_pending_and_removes_its_files(workspace: Workspace) -> None:
    upload_id = upload(workspace, "id,name\n1,a\nx,b\n")
    before = {file.path for file in workspace.storage.files_below("datasets")}
    request = NewDataset("Bad", Source(upload_id=upload_id), columns=[("id", "bigint")])
    with pytest.raises(BadRowsError) as caught:
        workspace.create_dataset(request).wait()
    assert [(cell["line"], cell["column"], cell["value"]) for cell in caught.value.errors] == [(3, "id", "x")]
    assert {file.path for file in workspace.storage.files_below("datasets")} == before
    assert workspace.upload(upload_id).status == "pending"
    job = workspace.create_dataset(NewDataset("Good", Source(upload_id=upload_id))).wait()
    assert job.state == "succeeded"


def test_invalid_rows_can_be_quarantined(workspace: Workspace) -> None:
    request = NewDataset(
        "Quarantined", inline([row(1, "a"), {"id": "x", "name": "b", "n": 2}, row(3, "c")]),
        columns=[("id", "bigint")], on_error="quarantine",
    )  # fmt: skip
    job = workspace.create_dataset(request).wait()
    assert job.result is not None
    assert (job.result["row_count"], job.result["rejected_count"], job.result["source_count"]) == (2, 1, 3)
    version, rejects = workspace.rejects(str(job.dataset_id))
    assert version.rejected_count == 1
    assert [(r["line"], r["column"], r["value"]) for r in rejects] == [(3, "id", "x")]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (NewDataset(" ", Source(inline=Inline("csv", "a\n1\n"))), "label is empty"),
        (NewDataset("x", Source()), "exactly one of"),
        (NewDataset("x", Source(inline=Inline("csv", "a"), sql="SELECT 1")), "exactly one of"),
        (NewDataset("x", Source(inline=Inline("xml", "a"))), "csv or json"),
        (NewDataset("x", Source(inline=Inline("csv", "a\n" + "1" * (1 << 20)))), "limit of 1,048,576 bytes"),
        (NewDataset("x", Source(inline=Inline("csv", "a\n1\n")), table_name="select"), "reserved"),
        (NewDataset("x", Source(inline=Inline("csv", "a\n1\n")), columns=[("a", "money")]), "Unknown type 'money'"),
        (NewDataset("x", Source(inline=Inline("csv", "a\n1\n"), options={"delim": ";"})), "Unknown option 'delim'"),
    ],
)
def test_an_invalid_request_is_rejected_before_a_job_is_created(
    workspace: Workspace, request_: NewDataset, message: str
) -> None:
    before = workspace.jobs(limit=1).count
    with pytest.raises(InvalidArgumentError, match=message):
        workspace.create_dataset(request_)
    assert workspace.jobs(limit=1).count == before


def test_a_format_is_never_guessed(workspace: Workspace) -> None:
    upload_id = upload(workspace, "id\n1\n", "application/octet-stream")
    with pytest.raises(InvalidArgumentError, match="is not a known format"):
        workspace.create_dataset(NewDataset("Unknown", Source(upload_id=upload_id)))
    job = workspace.create_dataset(NewDataset("Known", Source(upload_id=upload_id, format="csv"))).wait()
    assert job.state == "succeeded"


def test_a_taken_table_name_is_rejected(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "a")])
    with pytest.raises(TableNameTakenError):
        workspace.create_dataset(NewDataset("x", inline([row(1, "b")]), table_name=dataset.table_name.upper()))


# -------------------------------------------------------------------------------------------------------------- loads
rows_of = st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc")), max_size=6, unique_by=lambda pair: pair[0])


@settings(max_examples=8)
@given(target=rows_of, source=rows_of, strategy=st.sampled_from(sorted(oracle.TRUTH)))
def test_loads_and_merges_have_equal_results(
    workspace: Workspace, target: list[Any], source: list[Any], strategy: str
) -> None:
    before = [row(key, name, 1) for key, name in target] or [row(100, "z")]
    rows = [row(key, name, 2) for key, name in source]
    dataset = made(workspace, before)
    if not rows:
        return
    expected = oracle.merge([("all", before)], rows, strategy, ["id"])
    plan = load(workspace, dataset, inline(rows), strategy, dry_run=True).result
    result = load(workspace, dataset, inline(rows), strategy).result
    assert plan is not None
    assert result is not None
    for each in (plan, result):
        counts = (each["inserted"], each["updated"], each["deleted"], each["row_count"])
        assert counts == (expected.inserted, expected.updated, expected.deleted, expected.after)
    left = [r for rows_ in [*expected.files.values(), *expected.inserts.values()] for r in rows_]
    assert content(workspace, dataset) == sorted(left, key=lambda r: r["id"])
    assert content(workspace, dataset, 1) == sorted(before, key=lambda r: r["id"])


@pytest.mark.parametrize(
    "nothing",
    [
        Source(inline=Inline("csv", "name,n,id\n")),
        Source(inline=Inline("csv", "id,name,n\n")),
        Source(sql="SELECT 1 AS id, 'x' AS name, 7 AS n WHERE 1 > 2"),
    ],
    ids=["other order", "header", "query"],
)
def test_a_dataset_without_rows_keeps_its_columns(workspace: Workspace, nothing: Source) -> None:
    dataset = made(workspace, [row(1, "a")])
    workspace.load(dataset.id, Load(nothing, "replace")).wait()
    now = workspace.dataset(dataset.id)
    assert (now.version.row_count, now.version.file_count) == (0, 1)
    wrong = Source(inline=Inline("csv", "id,surname\n1,x\n"))
    for strategy, keys in (("append", ()), ("upsert", ("id",))):
        with pytest.raises(SchemaMismatchError):
            workspace.load(dataset.id, Load(wrong, strategy, key_columns=keys)).wait()
    workspace.load(dataset.id, Load(inline([row(5, "e")]), "append")).wait()
    assert workspace.dataset(dataset.id).version.row_count == 1


def test_inline_data_rejects_an_encoding(workspace: Workspace) -> None:
    source = Source(inline=Inline("csv", "id,name\n1,é\n"), options={"encoding": "latin-1"})
    with pytest.raises(InvalidArgumentError, match="does not apply to inline data"):
        workspace.create_dataset(NewDataset("Encoded", source)).wait()


def test_append_and_replace_require_no_keys(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "a")])
    appended = load(workspace, dataset, inline([row(1, "again"), row(2, "b")]), "append")
    assert appended.result is not None
    assert (appended.result["inserted"], appended.result["row_count"], appended.result["version"]) == (2, 3, 2)
    replaced = load(workspace, dataset, inline([row(9, "z")]), "replace")
    assert replaced.result is not None
    assert (replaced.result["inserted"], replaced.result["deleted"], replaced.result["row_count"]) == (1, 3, 1)
    assert content(workspace, dataset) == [row(9, "z")]
    assert [r["name"] for r in content(workspace, dataset, 2)] == ["a", "again", "b"]


def test_a_load_accepts_columns_in_another_order(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "a", 5)])
    source = Source(inline=Inline("csv", "n,name,id\n6,b,2\n"))
    job = load(workspace, dataset, source, "append")
    assert job.result is not None
    assert (job.result["files_added"], job.result["row_count"]) == (1, 2)
    assert content(workspace, dataset) == [row(1, "a", 5), row(2, "b", 6)]
    files = {file.path for file in workspace.dataset(dataset.id).files}
    data = {path for path in stored(workspace, dataset) if path.endswith(".parquet")}
    assert {f"datasets/{dataset.id}/{path}" for path in data} == files


@pytest.mark.parametrize("strategy", ["append", "insert"])
def test_a_missing_json_field_is_null(workspace: Workspace, strategy: str) -> None:
    dataset = made(workspace, [row(1, "a", 5)])
    source = Source(inline=Inline("json", '{"name": "b", "id": 2}\n{"id": 3, "name": "c"}\n'))
    assert load(workspace, dataset, source, strategy).state == "succeeded"
    assert content(workspace, dataset) == [row(1, "a", 5), row(2, "b", None), row(3, "c", None)]
    more = Source(inline=Inline("json", '{"id": 4, "name": "d", "n": 1, "more": 1}\n'))
    with pytest.raises(SchemaMismatchError, match="more"):
        load(workspace, dataset, more, strategy)


@pytest.mark.parametrize("strategy", ["append", "replace"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_executors_convert_other_columns_orders_and_types(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, strategy: str, dry_run: bool
) -> None:
    dataset = made(workspace, [row(1, "a", 5)])

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("the service reads rows")

    for name in ("iter_batches", "read_row_group", "read_row_groups", "read"):
        monkeypatch.setattr(pq.ParquetFile, name, fail)  # in this process, not in the processes of executors
    for name in ("open_rows", "open_source", "load_source"):
        monkeypatch.setattr(f"inlay.engines.spark.engine.{name}", fail)
    narrow = pa.table({"n": pa.array([7], pa.int8()), "name": ["b"], "id": pa.array([2], pa.uint16())})
    sources = [
        Source(upload_id=upload(workspace, parquet_bytes(narrow), "application/parquet")),
        Source(inline=Inline("csv", "name,n,id\nb,7,2\n")),
    ]
    for source in sources:
        assert load(workspace, dataset, source, strategy, dry_run=dry_run).state == "succeeded"
    monkeypatch.undo()
    if dry_run:
        assert content(workspace, dataset) == [row(1, "a", 5)]
    else:
        added = [row(2, "b", 7)] * (2 if strategy == "append" else 1)
        assert content(workspace, dataset) == [*([row(1, "a", 5)] if strategy == "append" else []), *added]
        root, path = workspace.storage.root, workspace.dataset(dataset.id).files[-1].path
        with root.store.open_arrow(root.full(path)) as file:
            assert pq.read_schema(file).equals(dataset.schema)


def test_a_load_rewrites_only_affected_files(workspace: Workspace) -> None:
    dataset = made(workspace, [row(key, "a") for key in range(10)])
    load(workspace, dataset, inline([row(100, "b")]), "append")
    job = load(workspace, dataset, inline([row(100, "B")]), "upsert")
    assert job.result is not None
    assert (job.result["files_rewritten"], job.result["files_kept"]) == (1, 1)
    files = [file.path for file in workspace.dataset(dataset.id).files]
    assert files[0].endswith("/v1/data.parquet")
    assert "/v3/" in files[1]


def test_a_dry_run_stores_nothing(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "a")])
    upload_id = upload(workspace, as_csv([row(1, "b"), row(2, "c")]))
    before = stored(workspace, dataset)
    plan = load(workspace, dataset, Source(upload_id=upload_id), "upsert", dry_run=True).result
    assert plan is not None
    assert (plan["inserted"], plan["updated"], plan["files_rewritten"]) == (1, 1, 1)
    assert (stored(workspace, dataset), workspace.dataset(dataset.id).version.version) == (before, 1)
    assert workspace.upload(upload_id).status == "pending"
    assert load(workspace, dataset, Source(upload_id=upload_id), "upsert").state == "succeeded"


def test_a_load_can_come_from_a_query(workspace: Workspace) -> None:
    origin = made(workspace, [row(1, "a", 5), row(2, "b", 6)])
    dataset = made(workspace, [row(2, "old")])
    sql = f"SELECT id, upper(name) AS name, n FROM datasets.{origin.table_name}"
    job = load(workspace, dataset, Source(sql=sql), "upsert")
    assert job.result is not None
    assert (job.result["inserted"], job.result["updated"]) == (1, 1)
    assert content(workspace, dataset) == [row(1, "A", 5), row(2, "B", 6)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("id,name,n\n1,a,1\n1,b,1\n", DuplicateKeyError),
        ("id,name,n\n,a,1\n", NullKeyError),
        ("id,name\n1,a\n", SchemaMismatchError),
        ("id,name,n,more\n1,a,1,x\n", SchemaMismatchError),
        ("id,name,n\n1,a,many\n", BadRowsError),
    ],
)
@pytest.mark.parametrize("strategy", ["upsert", "append"])
def test_a_rejected_load_changes_nothing(
    workspace: Workspace, text: str, error: type[Exception], strategy: str
) -> None:
    if strategy == "append" and error in (DuplicateKeyError, NullKeyError):
        return
    dataset = made(workspace, [row(1, "a")])
    upload_id = upload(workspace, text)
    before = stored(workspace, dataset)
    with pytest.raises(error) as caught:
        load(workspace, dataset, Source(upload_id=upload_id), strategy)
    assert "schema_mode" not in str(caught.value)  # loads cannot change the schema
    assert (stored(workspace, dataset), workspace.dataset(dataset.id).version.version) == (before, 1)
    assert workspace.upload(upload_id).status == "pending"
    assert content(workspace, dataset) == [row(1, "a")]


def test_concurrent_loads_of_one_dataset_run_in_sequence(workspace: Workspace) -> None:
    dataset = made(workspace, [row(0, "a")])
    with ThreadPoolExecutor(4) as pool:
        jobs = list(pool.map(lambda n: load(workspace, dataset, inline([row(n, "b")]), "upsert"), range(1, 7)))
    assert {job.state for job in jobs} == {"succeeded"}
    assert [r["id"] for r in content(workspace, dataset)] == list(range(7))
    assert workspace.dataset(dataset.id).version.version == 7


def test_two_requests_with_one_idempotency_key_run_one_load(workspace: Workspace) -> None:
    dataset = made(workspace, [row(0, "a")])
    request = Load(inline([row(1, "b")]), "append")
    first = workspace.load(dataset.id, request, idempotency_key=f"key-{dataset.id}").wait()
    second = workspace.load(dataset.id, request, idempotency_key=f"key-{dataset.id}").wait()
    assert (first.id, first.result) == (second.id, second.result)
    assert workspace.dataset(dataset.id).version.version == 2


@pytest.mark.on_servers
def test_a_cancelled_load_leaves_no_files(workspace: Workspace) -> None:
    dataset = made(workspace, [row(0, "a")])
    before = stored(workspace, dataset)
    blocker = workspace.catalog.jobs.create("load", {"test": 1}, dataset_id=dataset.id).job
    assert workspace.catalog.jobs.start(blocker.id)
    submitted = workspace.load(dataset.id, Load(inline([row(1, "b")]), "append"))
    workspace.cancel_job(submitted.job.id)
    with pytest.raises(JobCancelledError):
        submitted.wait()
    workspace.catalog.jobs.succeed(blocker.id)
    assert workspace.job(submitted.job.id).state == "cancelled"
    assert (stored(workspace, dataset), content(workspace, dataset)) == (before, [row(0, "a")])
    assert load(workspace, dataset, inline([row(1, "b")]), "append").state == "succeeded"


def test_a_job_can_be_cancelled_while_its_query_runs(workspace: Workspace) -> None:
    dataset = made(workspace, [row(key, "a") for key in range(2000)])
    table = f"datasets.{dataset.table_name}"
    endless = f"SELECT a.id, a.name, a.n FROM {table} a, {table} b, {table} c WHERE a.id * b.id * c.id % 1000003 = 7"
    submitted = workspace.load(dataset.id, Load(Source(sql=endless), "append"))
    while workspace.job(submitted.job.id).state == "queued":
        threading.Event().wait(0.05)
    workspace.cancel_job(submitted.job.id)
    with pytest.raises(JobCancelledError) as caught:
        submitted.wait()
    assert isinstance(caught.value.__cause__, QueryCancelledError | JobCancelledError)  # not a timeout
    assert workspace.job(submitted.job.id).state == "cancelled"


# ------------------------------------------------------------------------------------------------- versions and names
@pytest.mark.on_servers
def test_every_version_can_be_queried_and_restored(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "a")])
    load(workspace, dataset, inline([row(1, "b")]), "upsert")
    load(workspace, dataset, inline([row(2, "c")]), "append")
    before = stored(workspace, dataset)
    job = workspace.restore(dataset.id, 1).wait()
    assert job.result is not None
    assert job.result["version"] == 4
    assert stored(workspace, dataset) == before | {"v4/manifest.json"}
    assert [content(workspace, dataset, n) for n in (1, 2, 3, 4)] == [
        [row(1, "a")],
        [row(1, "b")],
        [row(1, "b"), row(2, "c")],
        [row(1, "a")],
    ]
    operations = [(v.version, v.operation, v.strategy) for v in workspace.versions(dataset.id).items]
    assert operations == [(4, "restore", None), (3, "append", "append"), (2, "merge", "upsert"), (1, "create", None)]
    with pytest.raises(NotFoundError, match="no version 9"):
        workspace.restore(dataset.id, 9)


def test_a_repeated_restore_gets_its_job_after_the_version_expired(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "a")])
    load(workspace, dataset, inline([row(1, "b")]), "upsert")
    first = workspace.restore(dataset.id, 1, idempotency_key="repeated").wait()
    workspace.catalog.versions.expire(keep_versions=1, keep_days=0)
    assert workspace.restore(dataset.id, 1, idempotency_key="repeated").wait().id == first.id
    with pytest.raises(NotFoundError, match="no version 1"):
        workspace.restore(dataset.id, 1, idempotency_key="another")


def test_a_query_never_mixes_two_versions(workspace: Workspace) -> None:
    """Each load changes two files; a sum over both always belongs to one version."""
    dataset = made(workspace, [row(1, "a", 0)])
    load(workspace, dataset, inline([row(2, "b", 0)]), "append")
    ended = threading.Event()
    sums: set[tuple[int, int]] = set()

    def read() -> None:
        while not ended.is_set():
            with workspace.query(f"SELECT min(n) AS low, max(n) AS high FROM datasets.{dataset.table_name}") as found:
                low_high = found.read_all().to_pylist()[0]
            sums.add((low_high["low"], low_high["high"]))

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(1, 6):
        load(workspace, dataset, inline([row(1, "a", turn), row(2, "b", turn)]), "update")
    ended.set()
    reader.join()
    assert sums
    assert all(low == high for low, high in sums)


@pytest.mark.on_servers
def test_a_rename_and_a_deletion_are_visible_immediately(workspace: Workspace) -> None:
    dataset = made(workspace, [row(1, "a")])
    renamed = workspace.rename_dataset(dataset.id, "Other words", f"other_{dataset.table_name}")
    assert (renamed.label, renamed.table_name) == ("Other words", f"other_{dataset.table_name}")
    assert content(workspace, renamed) == [row(1, "a")]
    with pytest.raises(ValueError, match=r"not found|no table"):
        content(workspace, dataset)
    workspace.delete_dataset(dataset.id)
    with pytest.raises(NotFoundError):
        workspace.dataset(dataset.id)
    with pytest.raises(ValueError, match=r"not found|no table"):
        content(workspace, renamed)
    for _ in range(200):
        if not stored(workspace, dataset):
            break
        threading.Event().wait(0.1)
    assert stored(workspace, dataset) == set()
