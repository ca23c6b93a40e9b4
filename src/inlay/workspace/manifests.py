"""The manifest of a version: the record that a plain dataset has of its versions, and a list of all files.

Programs that read `files` need no inlay. `Record.load` reads the record, whose checksum does not cover the list.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from inlay.catalog import DataFile, NewManifest
from inlay.commit.sidecar import Change, Put, Record
from inlay.workspace.storage import ServiceStorage

__all__ = ["write_manifest"]


def write_manifest(
    storage: ServiceStorage,
    directory: str,
    number: int,
    files: Sequence[DataFile],
    base: Sequence[DataFile] | None,
    change: Change,
    token: str | None,
) -> NewManifest:
    """Write `manifest.json` of a version to a directory in the storage.

    Args:
        storage: The storage of the service.
        directory: The directory of the new version.
        number: The number of the new version.
        files: All files of the new version.
        base: All files of the version before, or None if there is none.
        change: What the commit means.
        token: The token of the transaction.
    """
    dataset = directory.rpartition("/")[0]
    before, after = ({file.path for file in each} for each in (base or (), files))
    record = Record(
        uuid.uuid4().hex,
        puts=[Put("", _relative(file, dataset), file.bytes) for file in files if file.path not in before],
        removes=[_relative(file, dataset) for file in base or () if file.path not in after],
        token=token,
        change=change,
        version=number,
        is_first=base is None,
        at=datetime.now(UTC).isoformat(),
        file_count=len(files),
        total_bytes=sum(file.bytes for file in files),
    )
    listed = [{"url": storage.address(file.path), "rows": file.rows, "bytes": file.bytes} for file in files]
    path = f"{directory}/manifest.json"
    storage.remove(path)
    storage.create(path, json.dumps(json.loads(record.dump()) | {"files": listed}, indent=1).encode())
    url = files[0].path if len(files) == 1 else path
    return NewManifest(path, storage.address(url), datetime.fromisoformat(record.at))


def _relative(file: DataFile, dataset: str) -> str:
    return file.path.removeprefix(f"{dataset}/")
