"""Uploads in the catalog: list, consume and delete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from inlay.catalog import Catalog, new_id
from inlay.errors import (
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    UploadConsumedError,
    UploadInUseError,
)
from tests.catalog import steps
from tests.catalog.conftest import Clock


def test_an_upload_is_pending_with_all_its_fields(catalog: Catalog) -> None:
    made = steps.upload(catalog, storage_url="s3://bucket/uploads/ü/raw", content_encoding="gzip", size_bytes=2**40)
    got = catalog.uploads.get(made.id)
    assert got == made
    assert (got.status, got.size_bytes, got.content_type, got.content_encoding) == (
        "pending",
        2**40,
        "text/csv",
        "gzip",
    )
    assert got.storage_url == "s3://bucket/uploads/ü/raw"
    assert got.consumed_at is None
    assert got.created_at.tzinfo is UTC


def test_ids_are_short_safe_and_have_a_prefix() -> None:
    ids = {new_id("upload") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(i.startswith("upld_") and i == i.lower() and i[5:].isalnum() for i in ids)
    assert new_id("dataset").startswith("data_")
    assert new_id("job").startswith("job_")


@pytest.mark.parametrize(
    "upload_id", ["", "upld_", "upld_nothinghere", "data_aaaa", "upld_a\0b", "upld_\ud800", "upld_ABC", "x" * 10_000]
)
def test_an_unknown_upload_is_not_found(catalog: Catalog, upload_id: str) -> None:
    for call in (catalog.uploads.get, catalog.uploads.delete):
        with pytest.raises(NotFoundError, match="There is no upload"):
            call(upload_id)


def test_pending_uploads_are_listed_in_pages_newest_first(catalog: Catalog) -> None:
    uploads = [steps.upload(catalog) for _ in range(5)]
    job = steps.create_job(catalog, upload_id=uploads[0].id)
    steps.finish_creation(catalog, job)
    pending = [upload.id for upload in reversed(uploads[1:])]

    page = catalog.uploads.list(limit=3)
    assert [upload.id for upload in page.items] == pending[:3]
    assert (page.count, page.limit, page.offset, page.has_more) == (4, 3, 0, True)
    page = catalog.uploads.list(limit=3, offset=3)
    assert [upload.id for upload in page.items] == pending[3:]
    assert not page.has_more
    assert catalog.uploads.list(offset=100).items == ()
    assert [upload.id for upload in catalog.uploads.list(status="consumed").items] == [uploads[0].id]
    assert catalog.uploads.list(status="all").count == 5


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 1001}, {"offset": -1}, {"offset": 2**63}, {"status": "x"}])
def test_an_invalid_page_is_rejected(catalog: Catalog, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        catalog.uploads.list(**wrong)  # type: ignore[arg-type]


def test_a_consumed_upload_is_rejected_and_its_file_becomes_garbage(catalog: Catalog, clock: Clock) -> None:
    upload = steps.upload(catalog)
    steps.finish_creation(catalog, steps.create_job(catalog, upload_id=upload.id))
    consumed = catalog.uploads.get(upload.id)
    assert consumed.status == "consumed"
    assert consumed.consumed_at is not None
    assert consumed.consumed_at > upload.created_at

    with pytest.raises(UploadConsumedError) as caught:
        catalog.jobs.create("create", {}, upload_id=upload.id)
    assert (caught.value.http_status, caught.value.code) == (400, "upload_consumed")
    with pytest.raises(UploadConsumedError):
        catalog.uploads.delete(upload.id)
    clock.advance(seconds=61)
    assert [item.path for item in catalog.garbage.due()] == [f"uploads/{upload.id}"]


def test_an_upload_in_use_is_a_conflict_that_names_the_job(catalog: Catalog) -> None:
    upload = steps.upload(catalog)
    job = catalog.jobs.create("create", {}, upload_id=upload.id).job
    for use in (
        lambda: catalog.jobs.create("load", {}, upload_id=upload.id),
        lambda: catalog.uploads.delete(upload.id),
    ):
        with pytest.raises(UploadInUseError, match=job.id) as caught:
            use()
        assert caught.value.http_status == 409


def test_an_unknown_upload_is_not_claimed(catalog: Catalog) -> None:
    with pytest.raises(NotFoundError):
        catalog.jobs.create("create", {}, upload_id=new_id("upload"))
    assert catalog.jobs.list().count == 0


@pytest.mark.parametrize("end", ["fail", "stop", "cancel"])
def test_an_unsuccessful_job_releases_its_upload(catalog: Catalog, end: str) -> None:
    upload = steps.upload(catalog)
    job = catalog.jobs.create("create", {}, upload_id=upload.id).job
    {
        "fail": lambda: catalog.jobs.fail(job.id, {"code": "x"}),
        "stop": lambda: catalog.jobs.stop(job.id),
        "cancel": lambda: catalog.jobs.cancel(job.id),
    }[end]()
    assert catalog.uploads.get(upload.id).status == "pending"
    assert catalog.jobs.create("create", {}, upload_id=upload.id).is_new


def test_the_file_of_a_deleted_upload_is_garbage_immediately(catalog: Catalog) -> None:
    upload, other = steps.upload(catalog), steps.upload(catalog)
    catalog.uploads.delete(upload.id)
    assert [item.id for item in catalog.uploads.list(status="all").items] == [other.id]
    (item,) = catalog.garbage.due()
    assert (item.path, item.is_directory) == (f"uploads/{upload.id}", True)
    with pytest.raises(NotFoundError):
        catalog.uploads.delete(upload.id)


def test_an_upload_id_is_unique(catalog: Catalog) -> None:
    upload = steps.upload(catalog)
    with pytest.raises(ConflictError):
        catalog.uploads.create(upload.id, storage_url="x", size_bytes=1)


@pytest.mark.parametrize("content_type", ["text/\0csv", "  ", "x" * 5000, "\udcff"])
def test_text_that_a_database_cannot_store_is_rejected(catalog: Catalog, content_type: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Content-Type"):
        steps.upload(catalog, content_type=content_type)


def test_unknown_returns_only_valid_upload_ids(catalog: Catalog) -> None:
    upload, orphan = steps.upload(catalog), new_id("upload")
    found = catalog.uploads.unknown([upload.id, orphan, "lost+found", "upld_\udcff", ""])
    assert found == {orphan}
    many = {new_id("upload") for _ in range(1200)}
    assert catalog.uploads.unknown([*many, upload.id]) == many


def test_times_are_returned_in_utc(catalog: Catalog, clock: Clock) -> None:
    clock.time = datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    upload = steps.upload(catalog)
    got = catalog.uploads.get(upload.id).created_at
    assert got == upload.created_at == datetime(2026, 3, 28, 20, 45, 0, 1000, tzinfo=UTC)
    assert got.utcoffset() == timedelta(0)
