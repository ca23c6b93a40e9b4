"""Clients of a service that may crash, each with a model of the service's expected state.

A client sends one request at a time. An acknowledged request updates the client's model. A request without a response
is unresolved until the client either repeats it with the same Idempotency-Key, or reads the state of the service, which
must equal the state before the request or the state after it. All other state must equal the model.
"""

from __future__ import annotations

import io
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import httpx
import pyarrow as pa

Rows = Mapping[int, tuple[str, int]]  # id -> (text, n)
KEEP = 4  # INLAY_KEEP_VERSIONS of the service
TIMEOUT_SECONDS = 60.0
STRATEGIES = ("append", "replace", "insert", "update", "upsert", "full_merge", "deduplicate")
ARROW = "application/vnd.apache.arrow.stream"
_CHUNK = 64 << 10


class NoResponseError(Exception):
    """A request got no response, or an error response, so its outcome is unknown."""


class ViolationError(AssertionError):
    """The service is in a state that contradicts the model."""


def require(condition: object, *message: object) -> None:
    if not condition:
        raise ViolationError(" ".join(map(str, message)))


# ---------------------------------------------------------------------------------------------------- expected state
@dataclass
class Table:
    id: str
    label: str
    name: str
    versions: list[Rows] = field(repr=False)

    @property
    def rows(self) -> Rows:
        return self.versions[-1]


@dataclass(frozen=True)
class PendingUpload:
    """An upload that no request has used yet."""

    id: str
    rows: Rows = field(repr=False)
    size: int


def expected_result(strategy: str, target: Rows, source: Rows) -> tuple[Rows, dict[str, int]]:
    """Return the rows of the table after a load, and the counts that the load must report."""
    matched, new, missing = target.keys() & source.keys(), source.keys() - target.keys(), target.keys() - source.keys()
    inserts, updates = strategy != "update", strategy != "insert"
    rows = dict(target)
    rows |= {key: source[key] for key in source if (key in new and inserts) or (key in matched and updates)}
    counts = {"inserted": len(new) if inserts else 0, "updated": len(matched) if updates else 0, "deleted": 0}
    if strategy == "full_merge":
        return dict(source), counts | {"deleted": len(missing)}
    if strategy == "replace":
        return dict(source), {"inserted": len(source), "updated": 0, "deleted": len(target)}
    return rows, counts


def as_csv(rows: Rows) -> bytes:
    return ("id,text,n\n" + "".join(f"{key},{text},{n}\n" for key, (text, n) in rows.items())).encode()


# ----------------------------------------------------------------------------------------------------------- attempts
class Attempt(Protocol):
    """A change that a client requests once."""

    can_repeat: ClassVar[bool]  # a repeated request has no further effect

    def send(self, client: Client) -> Any:
        """Send the request and return the body of the response."""

    def accept(self, client: Client, response: Any) -> None:
        """Check the response of an acknowledged request and update the client's model."""

    def resolve(self, client: Client) -> None:
        """Read from the service whether the request took effect, and update the client's model."""


@dataclass
class CreateUpload:
    token: str
    rows: Rows = field(repr=False)
    chunked: bool
    can_repeat: ClassVar[bool] = False

    def send(self, client: Client) -> Any:
        content = as_csv(self.rows)
        body = _chunks(content) if self.chunked else content
        headers = {"Content-Type": f"text/csv; t={self.token}"}
        return client.call("POST", "/v1/files", 201, content=body, headers=headers)

    def accept(self, client: Client, response: Any) -> None:
        size = len(as_csv(self.rows))
        require(response["size_bytes"] == size, "an upload of", size, "bytes is reported as", response)
        client.uploads[self.token] = PendingUpload(response["id"], self.rows, size)

    def resolve(self, client: Client) -> None:
        """An upload that exists must be complete."""
        found = client.pending_uploads().get(self.token)
        if found is not None:
            self.accept(client, found)


def _chunks(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), _CHUNK):
        yield content[start : start + _CHUNK]


@dataclass
class DeleteUpload:
    token: str
    can_repeat: ClassVar[bool] = False

    def send(self, client: Client) -> Any:
        return client.call("DELETE", f"/v1/files/{client.uploads[self.token].id}", 204)

    def accept(self, client: Client, response: Any) -> None:
        del client.uploads[self.token]

    def resolve(self, client: Client) -> None:
        if self.token not in client.pending_uploads():
            self.accept(client, None)


@dataclass
class Source:
    """The rows of a load, in an upload or within the request."""

    rows: Rows = field(repr=False)
    token: str | None = None

    def body(self, client: Client) -> dict[str, Any]:
        if self.token is not None:
            return {"upload_id": client.uploads[self.token].id}
        return {"inline": {"format": "csv", "content": as_csv(self.rows).decode()}}

    def consume(self, client: Client) -> None:
        if self.token is not None:
            del client.uploads[self.token]


@dataclass
class CreateDataset:
    label: str
    key: str
    source: Source
    body: dict[str, Any] | None = field(default=None, repr=False)
    can_repeat: ClassVar[bool] = True

    def send(self, client: Client) -> Any:
        self.body = self.body or {"label": self.label, "source": self.source.body(client)}
        return client.call("POST", "/v1/datasets", 201, json=self.body, headers={"Idempotency-Key": self.key})

    def accept(self, client: Client, response: Any) -> None:
        reported = (response["label"], response["version"], response["row_count"])
        require(reported == (self.label, 1, len(self.source.rows)), "creating", self.label, "reported", response)
        self.source.consume(client)
        client.tables[response["id"]] = Table(response["id"], self.label, response["table_name"], [self.source.rows])

    def resolve(self, client: Client) -> None:
        found = [each for each in client.datasets() if each["label"] == self.label]
        require(len(found) <= 1, "one request created", found)
        if found:
            self.accept(client, found[0])


@dataclass
class Load:
    table: Table
    strategy: str
    key: str
    source: Source
    is_async: bool
    job: str | None = None
    body: dict[str, Any] | None = field(default=None, repr=False)
    can_repeat: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.before = len(self.table.versions)
        self.rows, self.counts = expected_result(self.strategy, self.table.rows, self.source.rows)

    def send(self, client: Client) -> Any:
        keyed = {} if self.strategy in ("append", "replace") else {"key_columns": ["id"]}
        self.body = self.body or {"source": self.source.body(client), "strategy": self.strategy, **keyed}
        path, headers = f"/v1/datasets/{self.table.id}/loads", {"Idempotency-Key": self.key}
        if not self.is_async:
            return client.call("POST", path, 201, json=self.body, headers=headers)
        job = client.call("POST", path, 202, json=self.body, headers=headers | {"Prefer": "respond-async"})
        self.job = job["id"]
        ended = client.wait_for_job(self.job)
        if ended["state"] != "succeeded":
            raise NoResponseError(ended["error"])
        return ended["result"]

    def accept(self, client: Client, response: Any) -> None:
        reported = {name: response[name] for name in self.counts}
        load = (self.strategy, "of", self.table.name, "at version", self.before)
        require(reported == self.counts, *load, "reported", reported, "instead of", self.counts)
        require(response["version"] == self.before + 1, *load, "created version", response["version"])
        require(response["row_count"] == len(self.rows), *load, "reported", response["row_count"], "rows")
        self._advance(client)

    def _advance(self, client: Client) -> None:
        self.source.consume(client)
        self.table.versions.append(self.rows)

    def resolve(self, client: Client) -> None:
        state = client.wait_for_job(self.job)["state"] if self.job is not None else None
        took_effect = client.version_of(self.table) == self.before + 1
        if state is not None:
            require(
                took_effect == (state == "succeeded"),
                "the job",
                self.job,
                state,
                "but the load took effect:",
                took_effect,
            )
        if took_effect:
            self._advance(client)


@dataclass
class Restore:
    table: Table
    version: int
    key: str
    can_repeat: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.before = len(self.table.versions)

    def send(self, client: Client) -> Any:
        body, headers = {"version": self.version}, {"Idempotency-Key": self.key}
        return client.call("POST", f"/v1/datasets/{self.table.id}/restore", 201, json=body, headers=headers)

    def accept(self, client: Client, response: Any) -> None:
        reported = (response["version"], response["row_count"])
        rows = self.table.versions[self.version - 1]
        require(reported == (self.before + 1, len(rows)), "restoring", self.version, "reported", reported)
        self.table.versions.append(rows)

    def resolve(self, client: Client) -> None:
        if client.version_of(self.table) == self.before + 1:
            self.table.versions.append(self.table.versions[self.version - 1])


@dataclass
class Rename:
    table: Table
    name: str
    can_repeat: ClassVar[bool] = False

    def send(self, client: Client) -> Any:
        body = {"label": self.name, "table_name": self.name}
        return client.call("PUT", f"/v1/datasets/{self.table.id}", 200, json=body)

    def accept(self, client: Client, response: Any) -> None:
        reported = (response["label"], response["table_name"])
        require(reported == (self.name, self.name), "renaming to", self.name, "reported", reported)
        self.table.label = self.table.name = self.name

    def resolve(self, client: Client) -> None:
        found = client.call("GET", f"/v1/datasets/{self.table.id}", 200)
        if found["table_name"] != self.table.name:
            self.accept(client, found)


@dataclass
class DeleteDataset:
    table: Table
    can_repeat: ClassVar[bool] = False

    def send(self, client: Client) -> Any:
        return client.call("DELETE", f"/v1/datasets/{self.table.id}", 204)

    def accept(self, client: Client, response: Any) -> None:
        del client.tables[self.table.id]

    def resolve(self, client: Client) -> None:
        if self.table.id not in {each["id"] for each in client.datasets()}:
            self.accept(client, None)


@dataclass
class AppendToLedger:
    """Append a row to the ledger, a table that all clients share."""

    ledger: Table
    row: int
    key: str
    can_repeat: ClassVar[bool] = True

    def send(self, client: Client) -> Any:
        source = Source({self.row: ("note", self.row)}).body(client)
        body, headers = {"source": source, "strategy": "append"}, {"Idempotency-Key": self.key}
        return client.call("POST", f"/v1/datasets/{self.ledger.id}/loads", 201, json=body, headers=headers)

    def accept(self, client: Client, response: Any) -> None:
        require(response["inserted"] == 1, "an append of one row reported", response)
        client.ledger_rows.append(self.row)

    def resolve(self, client: Client) -> None:
        if self.row in client.read_ledger_rows():
            client.ledger_rows.append(self.row)


# ------------------------------------------------------------------------------------------------------------- clients
@dataclass
class Client:
    number: int
    url: str
    seed: int
    max_upload_rows: int
    ledger: Table | None = None
    is_impatient = False  # uses a short timeout, and sends only requests that can be repeated
    tables: dict[str, Table] = field(default_factory=dict)
    uploads: dict[str, PendingUpload] = field(default_factory=dict)
    ledger_rows: list[int] = field(default_factory=list)
    unresolved: Attempt | None = None  # the attempt whose outcome is unknown
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed} {self.number}")
        self._numbers = itertools.count(1)
        self._http = httpx.Client(timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        self._http.close()

    # ----------------------------------------------------------------------------------------------------- requests
    def call(self, method: str, path: str, status: int, **request: Any) -> Any:
        try:
            response = self._http.request(method, self.url + path, timeout=self._timeout(), **request)
        except httpx.TransportError as error:
            raise NoResponseError(repr(error)) from error
        self._check_response(response, status, method, path)
        return response.json() if response.content else None

    def _check_response(self, response: httpx.Response, status: int, *request: object) -> None:
        """Check that the status is the expected one, or a 5xx error other than `failure`."""
        found = response.status_code
        if found >= 500:
            is_problem = response.headers["content-type"] == "application/problem+json"
            code = response.json()["code"] if is_problem else "without a problem"  # from a server that is shutting down
            require(code != "failure", *request, "failed unexpectedly:", response.text)
            self.counts[f"responses {found} {code}"] += 1
            raise NoResponseError(response.text)
        require(found == status, *request, "responded with", found, response.text)

    def _timeout(self) -> float:
        return 4.0 if self.is_impatient else TIMEOUT_SECONDS

    def wait_for_job(self, job_id: str) -> Any:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            job = self.call("GET", f"/v1/jobs/{job_id}", 200)
            if job["state"] not in ("queued", "running"):
                return job
            require(time.monotonic() < deadline, "the job did not finish in time:", job)
            time.sleep(0.05)

    def datasets(self) -> list[dict[str, Any]]:
        page = self.call("GET", "/v1/datasets?limit=1000", 200)
        return list(page["datasets"])

    def pending_uploads(self) -> dict[str, dict[str, Any]]:
        """Return the pending uploads of this client by their tokens."""
        found = self.call("GET", "/v1/files?limit=1000", 200)["uploads"]
        tokens = {each["content_type"].partition("t=")[2]: each for each in found}
        return {token: each for token, each in tokens.items() if token.startswith(f"{self.number}-")}

    def version_of(self, table: Table) -> int:
        """Return the version of a table, which must be the version before or after one change."""
        version = self.call("GET", f"/v1/datasets/{table.id}", 200)["version"]
        known = len(table.versions)
        require(
            version in (known, known + 1), table.name, "is at version", version, "instead of", known, "or", known + 1
        )
        return int(version)

    def rows(self, name: str) -> pa.Table:
        sql = {"sql": f'SELECT id, text, n FROM datasets."{name}"'}
        try:
            response = self._http.post(
                f"{self.url}/v1/query", json=sql, headers={"Accept": ARROW}, timeout=self._timeout()
            )
        except httpx.TransportError as error:
            raise NoResponseError(repr(error)) from error
        self._check_response(response, 200, "a query of", name)
        return pa.ipc.open_stream(io.BytesIO(response.content)).read_all()

    def read_ledger_rows(self) -> list[int]:
        """Return the rows of this client in the ledger."""
        assert self.ledger is not None
        found = self.rows(self.ledger.name)["id"].to_pylist()
        return sorted(row for row in found if row // 1_000_000 == self.number)

    # -------------------------------------------------------------------------------------------------------- steps
    def step(self) -> None:
        """Send one random request. If it gets no response, call `resolve` before the next step."""
        attempt = self._choose()
        while self.is_impatient and attempt is not None and not attempt.can_repeat:
            attempt = self._choose()
        if attempt is None:
            self._check_random_version()
            self.counts["queries"] += 1
            return
        self.perform(attempt)

    def perform(self, attempt: Attempt) -> None:
        self.unresolved = attempt
        attempt.accept(self, attempt.send(self))
        self.unresolved = None
        self.counts[type(attempt).__name__.lower()] += 1
        self.counts["acknowledged"] += 1

    def resolve(self) -> None:
        """Find the outcome of the unresolved attempt: repeat it, or read the state of the service."""
        attempt = self.unresolved
        if attempt is None:
            return
        if attempt.can_repeat and (self.is_impatient or self.random.random() < 0.5):
            self.perform(attempt)
            self.counts["repeated"] += 1
        else:
            attempt.resolve(self)
            self.unresolved = None
            self.counts["resolved by reading"] += 1

    def _choose(self) -> Attempt | None:
        number, chance = next(self._numbers), self.random.random()
        key = f"key-{self.seed}-{self.number}-{number}"
        tables = list(self.tables.values())
        if chance < 0.2:
            token = f"{self.number}-{number}"
            return CreateUpload(token, self._new_rows(number), chunked=self.random.random() < 0.5)
        if len(tables) < 2 or (chance < 0.3 and len(tables) < 4):
            return CreateDataset(f"label {self.number} {number}", key, self._source(number, {}))
        table = self.random.choice(tables)
        if len(table.versions) > 12 or chance < 0.33:
            return DeleteDataset(table)
        if chance < 0.72:
            strategy = self.random.choice(STRATEGIES)
            source = self._source(number, {} if strategy == "append" else table.rows)
            return Load(table, strategy, key, source, is_async=self.random.random() < 0.25)
        if chance < 0.79:
            last = len(table.versions)
            return Restore(table, self.random.randint(max(1, last - KEEP + 1), last), key)
        if chance < 0.84:
            return Rename(table, f"name_{self.number}_{number}")
        if chance < 0.90 and self.ledger is not None:
            return AppendToLedger(self.ledger, self.number * 1_000_000 + number, key)
        if chance < 0.92 and self.uploads:
            return DeleteUpload(self.random.choice(list(self.uploads)))
        return None

    def _source(self, number: int, target: Rows) -> Source:
        """Return a pending upload, or new rows, for a keyed load also with keys of the target."""
        if self.uploads and self.random.random() < (0.4 if target else 0.7):
            token = self.random.choice(list(self.uploads))
            return Source(self.uploads[token].rows, token)
        rows = dict(self._new_rows(number, limit=200))
        if target:
            matched = self.random.sample(sorted(target), min(len(target), self.random.randint(0, 100)))
            rows |= dict.fromkeys(matched, (f"again {number}", number))
        return Source(rows)

    def _new_rows(self, number: int, limit: int | None = None) -> Rows:
        """Return rows with new ids, so that different loads have different rows."""
        count = self.random.randint(1, 50)
        if limit is None:
            count = self.random.choice([count, count, self.max_upload_rows // 10, self.max_upload_rows])
        else:
            count = min(count, limit)
        start = number * 1_000_000
        return {start + i: (f"text {self.number} {number} {i} " + "x" * 100, i) for i in range(count)}

    # --------------------------------------------------------------------------------------------------------- checks
    def _check_random_version(self) -> None:
        if self.tables:
            table = self.random.choice(list(self.tables.values()))
            last = len(table.versions)
            self.check_rows(table, self.random.randint(max(1, last - KEEP + 1), last))

    def check_rows(self, table: Table, version: int) -> None:
        found = self.rows(f"{table.name}@{version}" if version != len(table.versions) else table.name)
        expected = table.versions[version - 1]
        columns = (found[name].to_pylist() for name in ("id", "text", "n"))
        values = {key: (text, n) for key, text, n in zip(*columns, strict=True)}
        same = found.num_rows == len(expected) and values == expected
        require(
            same,
            table.name,
            "version",
            version,
            "has",
            found.num_rows,
            "rows instead of",
            len(expected),
            "or other values",
        )

    def check(self, *, thoroughly: bool = False) -> None:
        """Check that the service's state of this client equals the model."""
        found = {each["id"]: each for each in self.datasets()}
        for table in self.tables.values():
            require(table.id in found, "missing table:", table.name, table.id)
            dataset = found[table.id]
            reported = (dataset["label"], dataset["table_name"], dataset["version"], dataset["row_count"])
            expected = (table.label, table.name, len(table.versions), len(table.rows))
            require(reported == expected, "the service reports", reported, "instead of", expected)
            self._check_versions(table, thoroughly=thoroughly)
        pending = {token: (each["id"], each["size_bytes"]) for token, each in self.pending_uploads().items()}
        known = {token: (each.id, each.size) for token, each in self.uploads.items()}
        require(pending == known, "pending uploads are", pending, "instead of", known)
        if self.ledger is not None:
            rows = sorted(self.ledger_rows)
            require(self.read_ledger_rows() == rows, "the ledger has", self.read_ledger_rows(), "instead of", rows)

    def _check_versions(self, table: Table, *, thoroughly: bool) -> None:
        page = self.call("GET", f"/v1/datasets/{table.id}/versions?limit=1000", 200)
        listed = {each["version"]: each["row_count"] for each in page["versions"]}
        last = len(table.versions)
        kept = set(range(max(1, last - KEEP + 1), last + 1))
        require(kept <= set(listed), table.name, "at", last, "lists the versions", sorted(listed))
        expected = {version: len(table.versions[version - 1]) for version in listed if version <= last}
        require(listed == expected, table.name, "lists", listed, "instead of", expected)
        old = sorted(kept - {last})
        for version in [last, *(old if thoroughly else self.random.sample(old, min(1, len(old))))]:
            self.check_rows(table, version)


def needed_files(client: Client, address: Callable[[str], str]) -> set[str]:
    """Return the files that the service lists for existing versions and pending uploads."""
    uploads = client.call("GET", "/v1/files?limit=1000", 200)["uploads"]
    needed = {address(f"uploads/{each['id']}/raw") for each in uploads}
    for dataset in client.datasets():
        path = f"/v1/datasets/{dataset['id']}"
        for version in client.call("GET", f"{path}/versions?limit=1000", 200)["versions"]:
            detail = client.call("GET", f"{path}?version={version['version']}", 200)
            needed |= {file["url"] for file in detail["files"]} | {detail["parquet_url"], detail["manifest_url"]}
    return needed
