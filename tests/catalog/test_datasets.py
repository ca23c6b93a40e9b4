"""Datasets in the catalog: create, find, rename and delete."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from inlay.catalog import Catalog, DataFile, NewVersion, new_id
from inlay.errors import (
    ConflictError,
    InvalidArgumentError,
    InvalidTableNameError,
    JobEndedError,
    NotFoundError,
    TableNameTakenError,
)
from tests.catalog import steps
from tests.catalog.conftest import Clock


def test_a_create_records_everything_in_one_transaction(catalog: Catalog) -> None:
    upload = steps.upload(catalog)
    job = steps.create_job(catalog, upload_id=upload.id)
    assert job.dataset_id is not None
    files = [DataFile(steps.path(job.dataset_id, 1, name), rows, rows * 8) for name, rows in (("a", 5), ("b", 7))]
    new = NewVersion(
        operation="create",
        files=files,
        schema=steps.SCHEMA,
        parquet_url="file:///manifest.json",
        manifest_path=steps.path(job.dataset_id, 1, "manifest.json"),
        inserted=12,
        rejected_count=2,
        reject_files=[steps.path(job.dataset_id, 1, "rejects.parquet")],
        source={"upload_id": upload.id, "original_format": "csv"},
    )
    config = {"upload_id": upload.id, "original_format": "csv", "schema_overrides": {"größe": "decimal(10,2)"}}
    made = steps.finish_creation(
        catalog, job, label="Q1 Sales Report", table_name="q1_Sales", source_config=config, version=new
    )

    got = catalog.datasets.get(job.dataset_id)
    assert got == made
    assert (got.label, got.table_name, got.schema_name) == ("Q1 Sales Report", "q1_Sales", "default")
    assert (got.source_type, got.source_config, got.parquet_url) == ("upload", config, "file:///manifest.json")
    assert (got.version, got.row_count, got.size_bytes) == (1, 12, 96)
    assert got.schema.equals(steps.SCHEMA, check_metadata=True)
    assert got.created_at == got.updated_at

    snapshot = catalog.versions.snapshot(got.id)
    assert (snapshot.dataset, snapshot.files) == (got, tuple(files))
    version = snapshot.version
    assert (version.version, version.operation, version.strategy, version.inserted) == (1, "create", None, 12)
    assert (version.row_count, version.size_bytes, version.file_count, version.rejected_count) == (12, 96, 2, 2)
    assert (version.reject_files, version.manifest_path) == (list(new.reject_files), new.manifest_path)
    assert (version.source, version.job_id) == (new.source, job.id)
    assert catalog.uploads.get(upload.id).status == "consumed"
    ended = catalog.jobs.get(job.id)
    assert (ended.state, ended.result) == (
        "succeeded",
        {"dataset_id": got.id, "version": 1, "table_name": "q1_Sales"},
    )


def test_a_failed_create_leaves_nothing(catalog: Catalog) -> None:
    steps.dataset(catalog, table_name="taken")
    upload = steps.upload(catalog)
    job = steps.create_job(catalog, upload_id=upload.id)
    assert job.dataset_id is not None
    foreign = steps.new_version(new_id("dataset"), 1)
    with pytest.raises(InvalidArgumentError, match="not a file of this dataset"):
        steps.finish_creation(catalog, job, version=foreign)
    with pytest.raises(TableNameTakenError):
        steps.finish_creation(catalog, job, table_name="TAKEN")
    with pytest.raises(InvalidTableNameError):
        steps.finish_creation(catalog, job, table_name="1st")
    for label in ("", " \n", "a\0b", "\ud800", "x" * 1001):
        with pytest.raises(InvalidArgumentError, match="label"):
            steps.finish_creation(catalog, job, label=label)
    with pytest.raises(NotFoundError):
        catalog.datasets.get(job.dataset_id)
    assert catalog.versions.live_paths(job.dataset_id) == set()
    assert catalog.uploads.get(upload.id).status == "pending"
    assert catalog.jobs.get(job.id).state == "running"
    assert steps.finish_creation(catalog, job).id == job.dataset_id


def test_only_a_running_create_job_creates_and_only_once(catalog: Catalog) -> None:
    job = catalog.jobs.create("create", {}, dataset_id=new_id("dataset")).job
    with pytest.raises(JobEndedError, match="has not started yet"):
        steps.finish_creation(catalog, job)
    catalog.jobs.start(job.id)
    made = steps.finish_creation(catalog, job)
    with pytest.raises(JobEndedError, match="has already succeeded"):
        steps.finish_creation(catalog, job)
    with pytest.raises(ConflictError, match="does not create a dataset"):
        steps.finish_creation(catalog, steps.running(catalog, "load", dataset_id=made.id))
    assert catalog.datasets.list().count == 1


@pytest.mark.parametrize(
    "wrong", ["elsewhere/x", "datasets/{id}/../../etc/passwd", "datasets/{id}x/v1/data.parquet", ""]
)
def test_files_outside_the_dataset_are_rejected(catalog: Catalog, wrong: str) -> None:
    job = steps.create_job(catalog)
    assert job.dataset_id is not None
    named = wrong.format(id=job.dataset_id)
    fine = [DataFile(steps.path(job.dataset_id, 1), 1, 1)]
    for fields in ({"files": [DataFile(named, 1, 1)]}, {"files": fine, "reject_files": [named, named]}):
        with pytest.raises(InvalidArgumentError, match="not a file of this dataset"):
            steps.finish_creation(catalog, job, version=steps.new_version(job.dataset_id, 1, **fields))
    with pytest.raises(InvalidArgumentError, match="twice"):
        steps.finish_creation(catalog, job, version=steps.new_version(job.dataset_id, 1, files=fine * 2))


def test_table_names_are_derived_from_labels_and_numbered(catalog: Catalog) -> None:
    labels = ["Q1 Sales", "Q1: sales!", "q1 SALES", "Q1 Sales 2", "Q1_Sälés", "User", "2026 Budget", "表", "数据"]
    names = [steps.dataset(catalog, label).table_name for label in labels]
    assert names == [
        "q1_sales",
        "q1_sales_2",
        "q1_sales_3",
        "q1_sales_2_2",
        "q1_sales_4",
        "_user",
        "_2026_budget",
        "dataset",
        "dataset_2",
    ]
    assert list(catalog.datasets.table_names()) == sorted(names)


def test_names_of_long_labels_are_short_and_distinct(catalog: Catalog) -> None:
    names = [steps.dataset(catalog, "x" * length).table_name for length in (128, 200, 300, 127)]
    assert names == ["x" * 128, "x" * 126 + "_2", "x" * 126 + "_3", "x" * 127]


def test_table_names_are_unique_ignoring_case(catalog: Catalog) -> None:
    made = steps.dataset(catalog, table_name="Country_Codes")
    with pytest.raises(TableNameTakenError, match="Country_codes") as caught:
        steps.dataset(catalog, table_name="Country_codes")
    assert caught.value.http_status == 409
    with pytest.raises(TableNameTakenError, match=made.id):
        catalog.datasets.check_table_name("COUNTRY_CODES")
    with pytest.raises(InvalidTableNameError):
        catalog.datasets.check_table_name("select")
    catalog.datasets.check_table_name("country")
    assert steps.dataset(catalog, "country codes").table_name == "country_codes_2"


def test_datasets_are_found_by_table_name(catalog: Catalog) -> None:
    made = steps.dataset(catalog, table_name="Country_Codes")
    assert catalog.datasets.find("country_codes") == catalog.datasets.find("COUNTRY_CODES") == made
    for name in ("country", "country%", "country_code_", "", "Ä", "a\0", "\udcff", "\u212aey"):
        assert catalog.datasets.find(name) is None


def test_datasets_are_listed_in_pages_newest_first(catalog: Catalog) -> None:
    made = [steps.dataset(catalog, f"number {n}").id for n in range(5)]
    page = catalog.datasets.list(limit=2, offset=1)
    assert [dataset.id for dataset in page.items] == made[::-1][1:3]
    assert (page.count, page.has_more) == (5, True)


def test_renaming_changes_label_and_table_name(catalog: Catalog) -> None:
    made, other = steps.dataset(catalog, "Early"), steps.dataset(catalog, "Other")
    renamed = catalog.datasets.rename(made.id, label="Größe — final", table_name="Quarterly")
    assert (renamed.label, renamed.table_name) == ("Größe — final", "Quarterly")
    assert renamed.updated_at > made.updated_at
    assert catalog.datasets.find("early") is None
    assert catalog.datasets.find("QUARTERLY") == renamed == catalog.datasets.get(made.id)
    assert catalog.datasets.rename(made.id, table_name="QUARTERLY").table_name == "QUARTERLY"
    assert catalog.datasets.rename(made.id, label="Again").table_name == "QUARTERLY"
    unchanged = catalog.datasets.get(made.id)
    assert catalog.datasets.rename(made.id) == unchanged
    with pytest.raises(TableNameTakenError):
        catalog.datasets.rename(other.id, table_name="quarterly", label="Lost")
    with pytest.raises(InvalidTableNameError):
        catalog.datasets.rename(other.id, table_name="a b")
    assert catalog.datasets.get(other.id) == other
    with pytest.raises(NotFoundError):
        catalog.datasets.rename(new_id("dataset"), label="x")
    assert steps.dataset(catalog, "Early").table_name == "early"


def test_deleting_removes_the_dataset_and_schedules_its_files(catalog: Catalog, clock: Clock) -> None:
    made = steps.dataset(catalog)
    steps.load(catalog, made.id)
    catalog.datasets.delete(made.id)
    for look in (catalog.datasets.get, catalog.versions.get, catalog.versions.list, catalog.datasets.delete):
        with pytest.raises(NotFoundError):
            look(made.id)
    assert catalog.datasets.list().count == 0
    assert catalog.datasets.find(made.table_name) is None
    assert catalog.garbage.due() == ()
    clock.advance(seconds=61)
    (item,) = catalog.garbage.due()
    assert (item.path, item.is_directory) == (f"datasets/{made.id}", True)
    assert item.due_at - item.created_at == timedelta(seconds=60)
    assert steps.dataset(catalog).table_name == made.table_name


def test_deleting_cancels_the_jobs_of_the_dataset(catalog: Catalog) -> None:
    made = steps.dataset(catalog)
    upload = steps.upload(catalog)
    busy = steps.running(catalog, "load", dataset_id=made.id)
    waiting = catalog.jobs.create("load", {}, dataset_id=made.id, upload_id=upload.id).job
    catalog.datasets.delete(made.id)
    assert catalog.jobs.get(waiting.id).state == "cancelled"
    assert catalog.jobs.get(busy.id).cancel_requested
    with pytest.raises(NotFoundError):
        catalog.versions.commit(made.id, 1, steps.new_version(made.id, 2), job_id=busy.id)
    assert catalog.versions.live_paths(made.id) == set()
    catalog.jobs.stop(busy.id)
    with pytest.raises(NotFoundError):
        catalog.jobs.create("load", {}, dataset_id=made.id)
    assert catalog.uploads.get(upload.id).status == "pending"


def test_unknown_excludes_existing_datasets_and_active_creates(catalog: Catalog) -> None:
    made, orphan = steps.dataset(catalog), new_id("dataset")
    being_made = steps.create_job(catalog)
    assert catalog.datasets.unknown([made.id, orphan, being_made.dataset_id or "", "strange"]) == {orphan}
    catalog.jobs.fail(being_made.id, {"code": "x"})
    assert catalog.datasets.unknown([being_made.dataset_id or ""]) == {being_made.dataset_id}


def test_unusual_schemas_and_configurations_are_stored_exactly(catalog: Catalog) -> None:
    schema = pa.schema(
        [
            pa.field("ts", pa.timestamp("ns", "Europe/Zürich"), metadata={"k": "v"}),
            pa.field("d", pa.dictionary(pa.int8(), pa.string())),
            pa.field("s", pa.struct([pa.field("x", pa.list_(pa.decimal256(60, 3)), nullable=False)])),
            pa.field("\0 \u202e 🦆", pa.map_(pa.string(), pa.large_binary())),
        ],
        metadata={b"\xff": b"\x00"},
    )
    job = steps.create_job(catalog)
    assert job.dataset_id is not None
    config = {"null_values": ["\0", "\ud800", "NaN", ""], "n": 2**70, "deep": [{"é": None}]}
    new = steps.new_version(job.dataset_id, 1, schema=schema)
    made = steps.finish_creation(catalog, job, version=new, source_config=config, label="🦆 Ente")
    got = catalog.datasets.get(made.id)
    assert got.schema.equals(schema, check_metadata=True)
    assert got.source_config == config
    assert got.label == "🦆 Ente"


def test_search_finds_datasets_by_words_of_their_names(catalog: Catalog) -> None:
    for label, table_name in (("Große Städte", "cities"), ("Sales 2024", "sales_24"), ("Sales 2025", "sales_25")):
        steps.dataset(catalog, label, table_name=table_name)

    def found(search: str, **page: int) -> list[str]:
        return [dataset.table_name for dataset in catalog.datasets.list(search=search, **page).items]

    assert found("  ") == found("s") == ["sales_25", "sales_24", "cities"]
    assert found("STÄDTE gross") == ["cities"]  # every word matches, ignoring case
    assert found("les_25 sales") == ["sales_25"]
    assert found("%") == found("_2%") == found("sales cities") == []
    page = catalog.datasets.list(search="sales", limit=1, offset=1)
    assert ([dataset.table_name for dataset in page.items], page.count) == (["sales_24"], 2)


def test_a_create_chooses_the_suggested_table_name(catalog: Catalog) -> None:
    for expected in ("sales", "sales_2", "sales_3"):
        assert catalog.datasets.suggest_table_name("Sales") == expected
        assert steps.dataset(catalog, "Sales").table_name == expected
