"""Bytes on their way in: streamed to storage, counted, and an upload only when they are all there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType

from inlay.catalog import Catalog, Upload, new_id
from inlay.errors import CommitStateUnknownError, InvalidArgumentError, StorageUnavailableError, UploadTooLargeError
from inlay.workspace.places import Places

__all__ = ["UploadWriter", "encoding_of"]

_ENCODINGS = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd", "identity": None, "": None}


def encoding_of(content_encoding: str | None) -> str | None:
    """How the bytes are compressed; what cannot be undone later is refused now."""
    stated = (content_encoding or "").strip().lower()
    if stated not in _ENCODINGS:
        raise InvalidArgumentError(f"Unknown Content-Encoding {content_encoding!r}; known: gzip, zstd, identity.")
    return _ENCODINGS[stated]


class UploadWriter:
    """Takes the bytes of one upload. Leaving the block without `finish` leaves nothing behind."""

    def __init__(
        self, catalog: Catalog, places: Places, most: int, content_type: str | None, content_encoding: str | None
    ) -> None:
        self._catalog, self._places, self._most = catalog, places, most
        self._content_type = content_type or None
        self._encoding = encoding_of(content_encoding)
        self.id = new_id("upload")
        self._path = places.upload(self.id)
        self._size = 0
        self._finished = False

    def __enter__(self) -> UploadWriter:
        with _kept():
            self._file = self._places.open_write(self._path)
        return self

    def write(self, data: bytes) -> None:
        self._size += len(data)
        require_size(self._size, self._most)
        with _kept():
            self._file.write(data)

    def finish(self) -> Upload:
        if not self._size:
            raise InvalidArgumentError("The body is empty.", hint="Send the file's bytes as the body of the request.")
        with _kept():
            self._file.close()
            self._places.make_durable(self._path)
        upload = self._catalog.uploads.create(
            self.id,
            storage_url=self._places.address(self._path),
            size_bytes=self._size,
            content_type=self._content_type,
            content_encoding=self._encoding,
        )
        self._finished = True
        return upload

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished and not isinstance(error, CommitStateUnknownError):  # which may have happened
            with contextlib.suppress(OSError):
                self._file.close()
            self._places.remove(self._path.rpartition("/")[0])


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """A full disk or a store that does not answer is nothing the client did."""
    try:
        yield
    except OSError as error:
        raise StorageUnavailableError(
            f"The upload cannot be stored: {error.strerror or error}", hint="Try again when there is room for it."
        ) from error


def require_size(size: int, most: int) -> None:
    if size > most:
        raise UploadTooLargeError(
            f"The upload is larger than the {most:,} bytes that are allowed.",
            hint="Split the file, or raise INLAY_MAX_UPLOAD_BYTES.",
        )
