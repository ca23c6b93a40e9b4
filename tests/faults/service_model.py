"""Clients of a service that may die at any moment, each with a model of what it must find there.

A client does one thing at a time. What was acknowledged moves its model; what was not answered is in doubt, until the
client asks again with the same Idempotency-Key, or looks: then it must find exactly the state before or exactly the one
after. Everything else must be as the model says, by value.
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

Rows = Mapping[int, tuple[str, int]]  # by id
KEEP = 4
PATIENCE = 60.0
STRATEGIES = ("append", "replace", "insert", "update", "upsert", "full_merge", "deduplicate")
ARROW = "application/vnd.apache.arrow.stream"
_CHUNK = 64 << 10


class UnansweredError(Exception):
    """What became of a request is not known."""


class ViolationError(AssertionError):
    """The service is not in a state that the model allows."""


def require(condition: object, *told: object) -> None:
    if not condition:
        raise ViolationError(" ".join(map(str, told)))


# ------------------------------------------------------------------------------------------------------ what there is
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
class Pending:
    """An upload that waits to be used."""

    id: str
    rows: Rows = field(repr=False)
    size: int


def merged(strategy: str, target: Rows, source: Rows) -> tuple[Rows, dict[str, int]]:
    """What a load makes of a table, and what it counts."""
    both, new, gone = target.keys() & source.keys(), source.keys() - target.keys(), target.keys() - source.keys()
    takes_new, takes_both = strategy != "update", strategy != "insert"
    rows = dict(target)
    rows |= {key: source[key] for key in source if (key in new and takes_new) or (key in both and takes_both)}
    counts = {"inserted": len(new) if takes_new else 0, "updated": len(both) if takes_both else 0, "deleted": 0}
    if strategy == "full_merge":
        return dict(source), counts | {"deleted": len(gone)}
    if strategy == "replace":
        return dict(source), {"inserted": len(source), "updated": 0, "deleted": len(target)}
    return rows, counts


def as_csv(rows: Rows) -> bytes:
    return ("id,text,n\n" + "".join(f"{key},{text},{n}\n" for key, (text, n) in rows.items())).encode()


# ----------------------------------------------------------------------------------------------------------- attempts
class Attempt(Protocol):
    """Something that a client wants to happen once."""

    can_repeat: ClassVar[bool]  # asked for again it happens once all the same

    def send(self, client: Client) -> Any:
        """Ask for it; the answer, if one comes."""

    def accept(self, client: Client, answer: Any) -> None:
        """It was acknowledged."""

    def look(self, client: Client) -> None:
        """It was not: find out."""


@dataclass
class Uploading:
    token: str
    rows: Rows = field(repr=False)
    chunked: bool
    can_repeat: ClassVar[bool] = False

    def send(self, client: Client) -> Any:
        content = as_csv(self.rows)
        body = _chunks(content) if self.chunked else content
        headers = {"Content-Type": f"text/csv; t={self.token}"}
        return client.call("POST", "/v1/files", 201, content=body, headers=headers)

    def accept(self, client: Client, answer: Any) -> None:
        size = len(as_csv(self.rows))
        require(answer["size_bytes"] == size, "an upload of", size, "bytes has", answer)
        client.uploads[self.token] = Pending(answer["id"], self.rows, size)

    def look(self, client: Client) -> None:
        """One that is there is there completely."""
        found = client.pending_uploads().get(self.token)
        if found is not None:
            self.accept(client, found)


def _chunks(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), _CHUNK):
        yield content[start : start + _CHUNK]


@dataclass
class DeletingUpload:
    token: str
    can_repeat: ClassVar[bool] = False

    def send(self, client: Client) -> Any:
        return client.call("DELETE", f"/v1/files/{client.uploads[self.token].id}", 204)

    def accept(self, client: Client, answer: Any) -> None:
        del client.uploads[self.token]

    def look(self, client: Client) -> None:
        if self.token not in client.pending_uploads():
            self.accept(client, None)


@dataclass
class Source:
    """Rows on their way into a table: of an upload, or within the request."""

    rows: Rows = field(repr=False)
    token: str | None = None

    def body(self, client: Client) -> dict[str, Any]:
        if self.token is not None:
            return {"upload_id": client.uploads[self.token].id}
        return {"inline": {"format": "csv", "content": as_csv(self.rows).decode()}}

    def used(self, client: Client) -> None:
        if self.token is not None:
            del client.uploads[self.token]


@dataclass
class Creating:
    label: str
    key: str
    source: Source
    body: dict[str, Any] | None = field(default=None, repr=False)
    can_repeat: ClassVar[bool] = True

    def send(self, client: Client) -> Any:
        self.body = self.body or {"label": self.label, "source": self.source.body(client)}
        return client.call("POST", "/v1/datasets", 201, json=self.body, headers={"Idempotency-Key": self.key})

    def accept(self, client: Client, answer: Any) -> None:
        told = (answer["label"], answer["version"], answer["row_count"])
        require(told == (self.label, 1, len(self.source.rows)), "created", self.label, "and was told", answer)
        self.source.used(client)
        client.tables[answer["id"]] = Table(answer["id"], self.label, answer["table_name"], [self.source.rows])

    def look(self, client: Client) -> None:
        found = [each for each in client.datasets() if each["label"] == self.label]
        require(len(found) <= 1, "one request made", found)
        if found:
            self.accept(client, found[0])


@dataclass
class Loading:
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
        self.rows, self.counts = merged(self.strategy, self.table.rows, self.source.rows)

    def send(self, client: Client) -> Any:
        keyed = {} if self.strategy in ("append", "replace") else {"key_columns": ["id"]}
        self.body = self.body or {"source": self.source.body(client), "strategy": self.strategy, **keyed}
        path, headers = f"/v1/datasets/{self.table.id}/loads", {"Idempotency-Key": self.key}
        if not self.is_async:
            return client.call("POST", path, 201, json=self.body, headers=headers)
        job = client.call("POST", path, 202, json=self.body, headers=headers | {"Prefer": "respond-async"})
        self.job = job["id"]
        ended = client.ended(self.job)
        if ended["state"] != "succeeded":
            raise UnansweredError(ended["error"])
        return ended["result"]

    def accept(self, client: Client, answer: Any) -> None:
        told = {name: answer[name] for name in self.counts}
        require(told == self.counts, self.strategy, "of", self.table.name, "should count", self.counts, "not", told)
        require(answer["version"] == self.before + 1, "a load of version", self.before, "made", answer["version"])
        require(answer["row_count"] == len(self.rows), "rows", answer["row_count"], "instead of", len(self.rows))
        self._advance(client)

    def _advance(self, client: Client) -> None:
        self.source.used(client)
        self.table.versions.append(self.rows)

    def look(self, client: Client) -> None:
        state = client.ended(self.job)["state"] if self.job is not None else None
        happened = client.version_of(self.table) == self.before + 1
        if state is not None:
            require(happened == (state == "succeeded"), "the job", self.job, state, "but it happened:", happened)
        if happened:
            self._advance(client)


@dataclass
class Restoring:
    table: Table
    version: int
    key: str
    can_repeat: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.before = len(self.table.versions)

    def send(self, client: Client) -> Any:
        body, headers = {"version": self.version}, {"Idempotency-Key": self.key}
        return client.call("POST", f"/v1/datasets/{self.table.id}/restore", 201, json=body, headers=headers)

    def accept(self, client: Client, answer: Any) -> None:
        told = (answer["version"], answer["row_count"])
        rows = self.table.versions[self.version - 1]
        require(told == (self.before + 1, len(rows)), "restored", self.version, "and was told", told)
        self.table.versions.append(rows)

    def look(self, client: Client) -> None:
        if client.version_of(self.table) == self.before + 1:
            self.table.versions.append(self.table.versions[self.version - 1])


@dataclass
class Renaming:
    table: Table
    name: str
    can_repeat: ClassVar[bool] = False

    def send(self, client: Client) -> Any:
        body = {"label": self.name, "table_name": self.name}
        return client.call("PUT", f"/v1/datasets/{self.table.id}", 200, json=body)

    def accept(self, client: Client, answer: Any) -> None:
        told = (answer["label"], answer["table_name"])
        require(told == (self.name, self.name), "renamed to", self.name, "and was told", told)
        self.table.label = self.table.name = self.name

    def look(self, client: Client) -> None:
        found = client.call("GET", f"/v1/datasets/{self.table.id}", 200)
        if found["table_name"] != self.table.name:
            self.accept(client, found)


@dataclass
class Deleting:
    table: Table
    can_repeat: ClassVar[bool] = False

    def send(self, client: Client) -> Any:
        return client.call("DELETE", f"/v1/datasets/{self.table.id}", 204)

    def accept(self, client: Client, answer: Any) -> None:
        del client.tables[self.table.id]

    def look(self, client: Client) -> None:
        if self.table.id not in {each["id"] for each in client.datasets()}:
            self.accept(client, None)


@dataclass
class Noting:
    """A row appended to the one table that all clients share."""

    ledger: Table
    row: int
    key: str
    can_repeat: ClassVar[bool] = True

    def send(self, client: Client) -> Any:
        source = Source({self.row: ("note", self.row)}).body(client)
        body, headers = {"source": source, "strategy": "append"}, {"Idempotency-Key": self.key}
        return client.call("POST", f"/v1/datasets/{self.ledger.id}/loads", 201, json=body, headers=headers)

    def accept(self, client: Client, answer: Any) -> None:
        require(answer["inserted"] == 1, "one row was appended, not", answer)
        client.notes.append(self.row)

    def look(self, client: Client) -> None:
        if self.row in client.noted():
            client.notes.append(self.row)


# ------------------------------------------------------------------------------------------------------------- clients
@dataclass
class Client:
    number: int
    url: str
    seed: int
    largest: int  # rows of an upload
    ledger: Table | None = None
    is_hasty = False  # it does not wait long for answers, and asks only for what can be asked for again
    tables: dict[str, Table] = field(default_factory=dict)
    uploads: dict[str, Pending] = field(default_factory=dict)
    notes: list[int] = field(default_factory=list)
    doubt: Attempt | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed} {self.number}")
        self._numbers = itertools.count(1)
        self._http = httpx.Client(timeout=PATIENCE)

    def close(self) -> None:
        self._http.close()

    # ----------------------------------------------------------------------------------------------------- requests
    def call(self, method: str, path: str, status: int, **request: Any) -> Any:
        try:
            answer = self._http.request(method, self.url + path, timeout=self._timeout(), **request)
        except httpx.TransportError as error:
            raise UnansweredError(repr(error)) from error
        self._require_answer(answer, status, method, path)
        return answer.json() if answer.content else None

    def _require_answer(self, answer: httpx.Response, status: int, *asked: object) -> None:
        """The service may say that it cannot; but it may not be surprised."""
        told = answer.status_code
        if told >= 500:
            is_problem = answer.headers["content-type"] == "application/problem+json"
            code = answer.json()["code"] if is_problem else "without a problem"  # a server that gives up at its end
            require(code != "failure", *asked, "failed unexpectedly:", answer.text)
            self.counts[f"answered {told} {code}"] += 1
            raise UnansweredError(answer.text)
        require(told == status, *asked, "was answered", told, answer.text)

    def _timeout(self) -> float:
        return 4.0 if self.is_hasty else PATIENCE

    def ended(self, job_id: str) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            job = self.call("GET", f"/v1/jobs/{job_id}", 200)
            if job["state"] not in ("queued", "running"):
                return job
            require(time.monotonic() < deadline, "a job does not end:", job)
            time.sleep(0.05)

    def datasets(self) -> list[dict[str, Any]]:
        page = self.call("GET", "/v1/datasets?limit=1000", 200)
        return list(page["datasets"])

    def pending_uploads(self) -> dict[str, dict[str, Any]]:
        """Those of this client, by the token that it gave them."""
        found = self.call("GET", "/v1/files?limit=1000", 200)["uploads"]
        tokens = {each["content_type"].partition("t=")[2]: each for each in found}
        return {token: each for token, each in tokens.items() if token.startswith(f"{self.number}-")}

    def version_of(self, table: Table) -> int:
        """Before or after one change, nothing else."""
        version = self.call("GET", f"/v1/datasets/{table.id}", 200)["version"]
        known = len(table.versions)
        require(version in (known, known + 1), table.name, "is at version", version, "but should be at", known, "or +1")
        return int(version)

    def rows(self, name: str) -> pa.Table:
        sql = {"sql": f'SELECT id, text, n FROM datasets."{name}"'}
        try:
            answer = self._http.post(
                f"{self.url}/v1/query", json=sql, headers={"Accept": ARROW}, timeout=self._timeout()
            )
        except httpx.TransportError as error:
            raise UnansweredError(repr(error)) from error
        self._require_answer(answer, 200, "a query of", name)
        return pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()

    def noted(self) -> list[int]:
        assert self.ledger is not None
        found = self.rows(self.ledger.name)["id"].to_pylist()
        return sorted(row for row in found if row // 1_000_000 == self.number)

    # -------------------------------------------------------------------------------------------------------- a step
    def step(self) -> None:
        """Do one thing. If no answer comes it is in doubt, and the next thing to do is `settle`."""
        attempt = self._choose()
        while self.is_hasty and attempt is not None and not attempt.can_repeat:
            attempt = self._choose()
        if attempt is None:
            self._read_one()
            self.counts["queries"] += 1
            return
        self._do(attempt)

    def _do(self, attempt: Attempt) -> None:
        self.doubt = attempt
        attempt.accept(self, attempt.send(self))
        self.doubt = None
        self.counts[type(attempt).__name__.lower()] += 1
        self.counts["acknowledged"] += 1

    def settle(self) -> None:
        """After a crash: was it done? Ask again, or look."""
        attempt = self.doubt
        if attempt is None:
            return
        if attempt.can_repeat and (self.is_hasty or self.random.random() < 0.5):
            self._do(attempt)
            self.counts["asked again"] += 1
        else:
            attempt.look(self)
            self.doubt = None
            self.counts["looked"] += 1

    def _choose(self) -> Attempt | None:
        number, chance = next(self._numbers), self.random.random()
        key = f"key-{self.seed}-{self.number}-{number}"
        tables = list(self.tables.values())
        if chance < 0.2:
            token = f"{self.number}-{number}"
            return Uploading(token, self._some_rows(number), chunked=self.random.random() < 0.5)
        if len(tables) < 2 or (chance < 0.3 and len(tables) < 4):
            return Creating(f"label {self.number} {number}", key, self._source(number, {}))
        table = self.random.choice(tables)
        if len(table.versions) > 12 or chance < 0.33:
            return Deleting(table)
        if chance < 0.72:
            strategy = self.random.choice(STRATEGIES)
            source = self._source(number, {} if strategy == "append" else table.rows)
            return Loading(table, strategy, key, source, is_async=self.random.random() < 0.25)
        if chance < 0.79:
            last = len(table.versions)
            return Restoring(table, self.random.randint(max(1, last - KEEP + 1), last), key)
        if chance < 0.84:
            return Renaming(table, f"name_{self.number}_{number}")
        if chance < 0.90 and self.ledger is not None:
            return Noting(self.ledger, self.number * 1_000_000 + number, key)
        if chance < 0.92 and self.uploads:
            return DeletingUpload(self.random.choice(list(self.uploads)))
        return None

    def _source(self, number: int, target: Rows) -> Source:
        """Rows of an upload that waits, or new ones; for a load by key some of them are in the table already."""
        if self.uploads and self.random.random() < (0.4 if target else 0.7):
            token = self.random.choice(list(self.uploads))
            return Source(self.uploads[token].rows, token)
        rows = dict(self._some_rows(number, most=200))
        if target:
            again = self.random.sample(sorted(target), min(len(target), self.random.randint(0, 100)))
            rows |= dict.fromkeys(again, (f"again {number}", number))
        return Source(rows)

    def _some_rows(self, number: int, most: int | None = None) -> Rows:
        """New ids, so that rows of different loads are different rows."""
        few = self.random.randint(1, 50)
        many = self.random.choice([few, few, self.largest // 10, self.largest]) if most is None else min(few, most)
        start = number * 1_000_000
        return {start + i: (f"text {self.number} {number} {i} " + "x" * 100, i) for i in range(many)}

    # --------------------------------------------------------------------------------------------------------- checks
    def _read_one(self) -> None:
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
        require(same, table.name, "version", version, "has", found.num_rows, "rows, should have", len(expected))

    def check(self, *, thoroughly: bool = False) -> None:
        """Everything of this client is as its model says."""
        found = {each["id"]: each for each in self.datasets()}
        for table in self.tables.values():
            require(table.id in found, "lost:", table.name, table.id)
            shown = found[table.id]
            told = (shown["label"], shown["table_name"], shown["version"], shown["row_count"])
            expected = (table.label, table.name, len(table.versions), len(table.rows))
            require(told == expected, "shown as", told, "instead of", expected)
            self._check_versions(table, thoroughly=thoroughly)
        pending = {token: (each["id"], each["size_bytes"]) for token, each in self.pending_uploads().items()}
        known = {token: (each.id, each.size) for token, each in self.uploads.items()}
        require(pending == known, "pending uploads are", pending, "instead of", known)
        if self.ledger is not None:
            require(self.noted() == sorted(self.notes), "noted", self.noted(), "instead of", sorted(self.notes))

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
    """The files that live versions and pending uploads need, as the service itself tells."""
    uploads = client.call("GET", "/v1/files?limit=1000", 200)["uploads"]
    needed = {address(f"uploads/{each['id']}/raw") for each in uploads}
    for dataset in client.datasets():
        path = f"/v1/datasets/{dataset['id']}"
        for version in client.call("GET", f"{path}/versions?limit=1000", 200)["versions"]:
            shown = client.call("GET", f"{path}?version={version['version']}", 200)
            needed |= {file["url"] for file in shown["files"]} | {shown["parquet_url"]}
    return needed
