"""Errors that the storage causes, and the reserve of free disk space."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inlay.errors import (
    CatalogUnavailableError,
    CommitStateUnknownError,
    ConversionFailedError,
    DatasetIOError,
    InlayError,
    InvalidArgumentError,
    QueryFailedError,
    QueryTimeoutError,
    StorageFullError,
    StorageUnavailableError,
    UnreadableUploadError,
)
from inlay.workspace.health import Check, require_answer, states
from inlay.workspace.storage import ServiceStorage
from inlay.workspace.storage_faults import DiskReserve, storage_faults


@pytest.fixture
def storage(tmp_path: Path) -> ServiceStorage:
    made = ServiceStorage(str(tmp_path / "data"))
    made.prepare()
    made.claim("catalog")
    return made


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, "No space left on device")
FAULTS: list[tuple[Exception, type[InlayError]]] = [
    (OSError(errno.EIO, "Input/output error"), StorageUnavailableError),
    (PermissionError(errno.EACCES, "Permission denied"), StorageUnavailableError),
    (FULL, StorageFullError),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), StorageFullError),
    (caused_by(DatasetIOError("The read failed."), TimeoutError(errno.ETIMEDOUT, "timeout")), StorageUnavailableError),
    (caused_by(DatasetIOError("The merge failed."), FULL), StorageFullError),
    (ConversionFailedError("The Spark job failed: OSError: [Errno 28] No space left on device"), StorageFullError),
    (ConversionFailedError("The Spark job failed: OSError: [Errno 5] ConnectionError"), StorageUnavailableError),
    (QueryFailedError("Object Store error: Generic S3 error: http://127.0.0.1:1/bucket"), StorageUnavailableError),
]  # fmt: skip


@pytest.mark.parametrize(("error", "expected"), FAULTS)
def test_an_error_that_the_storage_causes_is_an_error_of_the_storage(
    storage: ServiceStorage, error: Exception, expected: type[InlayError]
) -> None:
    with pytest.raises(expected) as caught, storage_faults(storage):
        raise error
    assert caught.value.__cause__ is error
    assert "127.0.0.1" not in str(caught.value)


SUSPECTS = [UnreadableUploadError("The file is damaged."), QueryTimeoutError("The query took longer than 3 seconds.")]


@pytest.mark.parametrize("error", SUSPECTS)
def test_an_error_with_an_unknown_cause_is_an_error_of_a_storage_that_is_missing(
    storage: ServiceStorage, error: InlayError
) -> None:
    with pytest.raises(type(error)), storage_faults(storage):
        raise error
    storage.remove("owner")  # as if the disk was not mounted
    with pytest.raises(StorageUnavailableError, match="lacks the files"), storage_faults(storage):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgumentError("No."),
        CommitStateUnknownError("Perhaps."),
        caused_by(InvalidArgumentError("No."), FULL),
        OSError("Couldn't deserialize thrift"),  # pyarrow's error for a damaged file
        ValueError("[Errno 5]"),
    ],
)
def test_other_errors_stay(storage: ServiceStorage, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, storage_faults(storage):
        raise error
    assert caught.value is error


def test_the_reserve_of_every_disk_must_be_free(tmp_path: Path) -> None:
    DiskReserve([tmp_path], 0).require()
    with pytest.raises(StorageFullError, match="less than") as caught:
        DiskReserve([tmp_path], 1 << 62).require()
    assert caught.value.http_status == 507


def test_a_catalog_that_never_answers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    catalog: Any = SimpleNamespace(ping=go_on.wait, location="postgresql://db")
    monkeypatch.setattr("inlay.workspace.health._START_SECONDS", 0.1)
    with pytest.raises(CatalogUnavailableError, match=r"did not answer within 0\.1 seconds"):
        require_answer(catalog)
    go_on.set()
    require_answer(catalog)


def test_a_check_that_hangs_is_reported_and_runs_once_at_a_time() -> None:
    go_on, runs = threading.Event(), []

    def hang() -> None:
        runs.append(1)
        go_on.wait()

    def fail() -> None:
        raise InlayError("The part is broken.")

    checks = {"hanging": Check(hang), "broken": Check(fail), "good": Check(lambda: None), "other": Check(lambda: "x")}
    for _ in range(2):
        expected = {"hanging": "no answer", "broken": "The part is broken.", "good": "ready", "other": "x"}
        assert states(checks, 0.2) == expected
    assert len(runs) == 1
    go_on.set()
    assert states(checks, 20)["hanging"] == "ready"
