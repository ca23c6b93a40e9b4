"""The command line: every command, its JSON, its exit codes, and what it never does."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import subprocess
import sys
import threading
import typing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import typer

import inlay
from inlay.cli import options, output, run
from inlay.cli.commands import app
from inlay.commit.local import LocalJournal
from inlay.commit.sidecar import Record, StagedFile
from inlay.commit.transaction import IncrementalFileManager
from inlay.incremental import STRATEGIES
from inlay.incremental.validate import SchemaMode
from inlay.storage import locate

COMMANDS = (
    "serve", "upload", "datasets", "load", "query", "doctor", "keys create", "keys list", "keys revoke",
    "merge", "plan", "write", "delete", "alter", "compact", "recover", "inspect", "history", "undo", "restore", "diff",
    "keep", "forget", "publish", "unpublish",
)  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Keys 1 to 30 in three files, and three sources."""
    path = tmp_path / "lake"
    for start in (1, 11, 21):
        rows = pa.table({"id": range(start, start + 10), "name": [f"n{i}" for i in range(start, start + 10)]})
        inlay.write_dataset(rows, str(path))
    (tmp_path / "new.csv").write_text("id,name\n5,five\n31,new\n")
    (tmp_path / "bad.csv").write_text("id,name\n,five\n31,new\n")
    (tmp_path / "twice.csv").write_text("id,name,at\n7,first,1\n7,last,2\n")
    return path


def names_of(lake: Path) -> dict[int, str]:
    table = inlay.read_parquet(str(lake))
    return dict(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))


# ------------------------------------------------------------------------------------------------------- the commands
def test_merge_prints_counts(cli: Any, lake: Path) -> None:
    answer = cli("merge", "new.csv", lake, "--strategy", "upsert", "--key", "id")
    assert "1 inserted, 1 updated (0 unchanged), 0 deleted; 30 -> 31 rows" in answer.out
    assert "1 rewritten, 1 new, 0 removed, 2 untouched" in answer.out
    assert answer.err == ""
    assert names_of(lake)[5] == "five"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_merge_accepts_every_strategy(cli: Any, lake: Path, strategy: str) -> None:
    answer = cli("merge", "new.csv", lake, "-s", strategy, "-k", "id", "--json")
    assert answer.json["strategy"] == strategy


@pytest.mark.parametrize("command", ["merge", "plan"])
def test_updating_a_missing_dataset_prints_a_note(cli: Any, lake: Path, command: str) -> None:
    answer = cli(command, "new.csv", lake.with_name("lakes"), "-s", "update", "-k", "id")
    assert f"note: {str(lake.with_name('lakes'))!r} holds no Parquet files" in answer.out.replace("\n", "")
    assert "note:" not in cli(command, "new.csv", lake, "-s", "update", "-k", "id").out
    assert "note:" not in cli(command, "new.csv", lake.with_name("new"), "-s", "upsert", "-k", "id").out


def test_merge_json_is_the_result(cli: Any, lake: Path) -> None:
    answer = cli("merge", "new.csv", lake, "-s", "upsert", "-k", "id", "--json")
    assert set(answer.json) == set(inlay.MergeResult.__dataclass_fields__)
    assert answer.json["inserted"] == answer.json["updated"] == 1
    assert answer.err == ""


@pytest.mark.parametrize("command", [("plan",), ("merge", "--dry-run")])
def test_plan_changes_nothing_and_gives_reasons(cli: Any, lake: Path, command: tuple[str, ...]) -> None:
    before = {path: path.read_bytes() for path in lake.rglob("*.parquet")}
    answer = cli(*command, "new.csv", lake, "-s", "upsert", "-k", "id")
    assert "1 to insert, 1 to update" in answer.out
    assert "1 of 3 files; nothing changed" in answer.out
    assert "exclude" in answer.out
    assert {path: path.read_bytes() for path in lake.rglob("*.parquet")} == before


def test_plan_json_agrees_with_the_merge_that_follows(cli: Any, lake: Path) -> None:
    planned = cli("plan", "new.csv", lake, "-s", "upsert", "-k", "id", "--json").json
    done = cli("merge", "new.csv", lake, "-s", "upsert", "-k", "id", "--json").json
    assert planned["affected_files"] == done["rewritten_files"]
    assert all(file["reason"] for file in planned["files"])
    for count in ("inserted", "updated", "deleted", "unchanged", "target_count_before", "target_count_after"):
        assert planned[count] == done[count]


def test_plan_and_merge_accept_the_same_options() -> None:
    taken = {name: {p.name for p in command_named(name).params} for name in ("merge", "plan")}
    assert taken["merge"] - taken["plan"] == {"dry_run"}
    assert not taken["plan"] - taken["merge"]


def test_limit_shortens_the_list(cli: Any, lake: Path) -> None:
    short = cli("plan", "new.csv", lake, "-s", "upsert", "-k", "id", "--limit", "1").out
    assert "... and 3 more files; --limit 0 shows all" in short
    assert "more file" not in cli("plan", "new.csv", lake, "-s", "upsert", "-k", "id", "--limit", "0").out


def test_keys_are_repeated_or_separated_by_commas(cli: Any, lake: Path) -> None:
    for keys in (["--key", "id", "--key", "name"], ["--key", "id,name"], ["-k", "id, name"]):
        plan = cli("plan", "new.csv", lake, "-s", "insert", *keys, "--json").json
        assert plan["inserted"] == 2  # (5, "five") is another key than (5, "n5")


def test_dedup_order_by(cli: Any, lake: Path) -> None:
    options_ = ("-s", "deduplicate", "-k", "id", "--dedup-order-by", "at", "--schema-mode", "evolve")
    cli("merge", "twice.csv", lake, *options_)
    assert names_of(lake)[7] == "last"


def test_write_appends_and_overwrites(cli: Any, lake: Path) -> None:
    appended = cli("write", "new.csv", lake, "--json").json
    assert (appended["mode"], appended["row_count"], appended["removed_files"]) == ("append", 2, [])
    replaced = cli("write", "new.csv", lake, "--mode", "overwrite", "--json").json
    assert len(replaced["removed_files"]) == 4
    assert names_of(lake) == {5: "five", 31: "new"}
    assert "append: 2 rows in 1 file written" in cli("write", "new.csv", lake).out


def test_write_accepts_settings_of_new_files(cli: Any, tmp_path: Path, lake: Path) -> None:
    settings = ("--compression", "zstd", "--row-group-size", "1", "--max-rows-per-file", "2")
    cli("write", lake, "out", *settings, "--engine", "pyarrow", "--partition-by", "name", "--limit", "1")
    files = sorted((tmp_path / "out").rglob("*.parquet"))
    assert len(files) == 30
    assert files[0].parent.name == "name=n1"
    assert pq.read_metadata(files[0]).row_group(0).column(0).compression == "ZSTD"


def test_compact_combines_files(cli: Any, lake: Path) -> None:
    answer = cli("compact", lake, "--target-file-size", "1MB", "--sort-by", "name", "--json").json
    assert answer["mode"] == "compact"
    assert len(answer["files"]) == 1
    assert len(answer["removed_files"]) == 3
    assert inlay.read_parquet(str(lake))["name"].to_pylist() == sorted(f"n{i}" for i in range(1, 31))
    assert "compact: 0 rows in 0 files written" in cli("compact", lake).out


def interrupted_commit(lake: Path) -> str:
    """A dataset as a crash right after the commit point leaves it; returns the staged file's target."""
    with IncrementalFileManager() as files:
        location = locate(str(lake))
        files.open(location)
        stage = files.stage_path()
        pq.write_table(pa.table({"id": [99], "name": ["late"]}), stage)
        journal = LocalJournal(location)
        puts = journal.prepare([StagedFile(stage[len(journal.staged_path("")) :], "late.parquet")])
        record = Record(files.id, puts)
        journal._write_draft(record)
        journal._publish(record)
    return "late.parquet"


def test_recover_prints_the_completed_commit(cli: Any, lake: Path) -> None:
    target = interrupted_commit(lake)
    answer = cli("recover", lake)
    assert "Completed the commit" in answer.out
    assert target in answer.out
    assert names_of(lake)[99] == "late"
    assert cli("recover", lake).out == "Nothing to recover.\n"


def test_recover_json(cli: Any, lake: Path) -> None:
    interrupted_commit(lake)
    report = cli("recover", lake, "--json").json
    assert set(report) == {"completed", "files", "swept", "undone"}
    assert report["files"] == [f"{lake}/late.parquet"]
    assert cli("recover", lake, "--json").json == {"completed": None, "files": [], "swept": [], "undone": None}


def test_recover_undo(cli: Any, lake: Path) -> None:
    interrupted_commit(lake)
    assert "Undid the commit" in cli("recover", lake, "--undo").out
    assert not (lake / "late.parquet").exists()
    assert "Nothing to recover" in cli("recover", lake, "--undo").out


# ------------------------------------------------------------------------------------------------------------ inspect
def hints(cli: Any, *arguments: Any) -> dict[str, dict[str, str]]:
    return {hint["code"]: hint for hint in cli("inspect", *arguments, "--json").json["hints"]}


def test_inspect_json(cli: Any, lake: Path) -> None:
    found = cli("inspect", lake, "--key", "id", "--json").json
    assert (found["file_count"], found["row_count"], found["row_group_count"]) == (3, 30, 3)
    assert found["codecs"] == ["snappy"]
    assert found["columns"][0] == {"name": "id", "type": "int64", "nullable": True}
    ranges = sorted(
        (f["keys"]["id"]["min"], f["keys"]["id"]["max"], f["keys"]["id"]["exactness"]) for f in found["files"]
    )
    assert ranges == [(1, 10, "exact"), (11, 20, "exact"), (21, 30, "exact")]
    assert found["size_bytes"] == sum(path.stat().st_size for path in lake.glob("*.parquet"))


def test_inspect_text(cli: Any, lake: Path) -> None:
    out = cli("inspect", lake, "-k", "id").out
    assert "11 to 20" in out
    assert "3 files, 30 rows, 3 row groups" in out
    assert "columns: id int64, name string" in out


def test_control_characters_in_a_dataset_are_escaped(cli: Any, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07"
    rows = pa.table({f"a{evil}": ["x", f"y{evil}"]})
    inlay.write_dataset(rows, str(tmp_path / "d"))
    for command in (("inspect", "d", "-k", f"a{evil}"), ("compact", "d", "--sort-by", f"a{evil}")):
        out = cli(*command).out
        assert "\x1b" not in out
        assert "\x07" not in out
    assert "x to y\\x1b]0;owned\\x07" in cli("inspect", "d", "-k", f"a{evil}").out.replace("\n", "")


def test_inspect_shows_partitions(cli: Any, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "day": ["a", "a", "b"]})
    inlay.write_dataset(rows, str(tmp_path / "days"), partition_columns=["day"])
    assert "2 partitions by day" in cli("inspect", "days").out
    found = cli("inspect", "days", "-k", "id,day", "--json").json
    assert (found["partition_columns"], found["partition_count"]) == (["day"], 2)
    assert [file["partition"] for file in found["files"]] == [{"day": "a"}, {"day": "b"}]


def test_inspect_changes_nothing_and_reports_a_pending_commit(cli: Any, lake: Path) -> None:
    interrupted_commit(lake)
    assert hints(cli, lake)["pending_commit"]["severity"] == "warning"
    assert not (lake / "late.parquet").exists()


def test_inspect_reports_problems(cli: Any, lake: Path) -> None:
    assert set(hints(cli, lake)) == {"small_files"}
    pq.write_table(
        pa.table({"id": [5, None], "name": ["x", "y"], "more": [1, 2]}), lake / "z.parquet", row_group_size=1
    )
    (lake / "broken.parquet").write_bytes(b"PAR1 not really PAR1")
    found = hints(cli, lake, "--key", "id")
    assert set(found) == {
        "small_files", "unreadable_file", "differing_schemas", "tiny_row_groups", "null_keys", "overlapping_key_ranges",
    }  # fmt: skip
    assert "2 of 4 files" in found["overlapping_key_ranges"]["message"]
    assert "broken.parquet" in found["unreadable_file"]["message"]
    assert "unreadable" in cli("inspect", lake).out


def test_inspect_reports_incompatible_schemas(cli: Any, lake: Path) -> None:
    pq.write_table(pa.table({"id": ["text"], "name": ["x"]}), lake / "z.parquet")
    assert hints(cli, lake)["incompatible_schemas"]["severity"] == "error"


def test_inspect_reports_keys_without_ranges(cli: Any, tmp_path: Path) -> None:
    inlay.write_dataset(pa.table({"x": [1.5, float("nan")]}), str(tmp_path / "floats"))
    assert set(hints(cli, "floats", "-k", "x")) == {"unknown_key_range"}
    assert "unknown" in cli("inspect", "floats", "-k", "x").out


def test_inspect_shows_every_kind_of_range(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "kinds").mkdir()
    long = "long" * 40
    rows = pa.table({
        "d": pa.array([1], pa.date32()), "b": pa.array([b"\xff"]), "n": pa.array([None], pa.int64()), "s": [long],
    })  # fmt: skip
    pq.write_table(rows, tmp_path / "kinds/a.parquet")
    [file] = cli("inspect", "kinds", "-k", "d,b,n,s", "--json").json["files"]
    assert file["keys"]["d"]["min"] == "1970-01-02"
    assert file["keys"]["b"]["min"] == "\\xff"
    assert file["keys"]["n"] == {"min": None, "max": None, "null_count": 1, "exactness": "exact"}
    assert file["keys"]["s"]["exactness"] == "inexact"
    text = cli("inspect", "kinds", "-k", "n,s").out
    assert "all NULL" in text
    assert "(inexact)" in text


# ------------------------------------------------------------------------------------------------------------- source
@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> typing.Callable[[bytes], None]:
    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


def encoded(kind: str) -> bytes:
    rows = pa.table({"id": [5, 31], "name": ["five", "new"]})
    sink = pa.BufferOutputStream()
    if kind == "parquet":
        pq.write_table(rows, sink)
    elif kind == "arrow":
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
    elif kind == "json":
        return b'{"id": 5, "name": "five"}\n{"id": 31, "name": "new"}\n'
    else:
        return b"id,name\n5,five\n31,new\n"
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "arrow", "CSV", None])
def test_source_may_be_standard_input(cli: Any, stdin: Any, lake: Path, kind: str | None) -> None:
    stdin(encoded(kind or "csv"))
    flags = ("--source-format", kind) if kind else ()
    assert cli("merge", "-", lake, "-s", "upsert", "-k", "id", *flags, "--json").json["inserted"] == 1
    assert names_of(lake)[31] == "new"


@pytest.mark.parametrize("source", ["-", "rows.txt"])
def test_cells_are_read_with_the_types_of_the_columns(
    cli: Any, stdin: Any, tmp_path: Path, lake: Path, source: str
) -> None:
    """Wherever they come from: a code stays a code, and NA is a name."""
    content = b"id,name\n5,007\n6,NA\n"
    stdin(content)
    (tmp_path / "rows.txt").write_bytes(content)
    cli("merge", source, lake, *MERGE, "--source-format", "csv")
    assert (names_of(lake)[5], names_of(lake)[6]) == ("007", "NA")


def test_errors_name_standard_input(cli: Any, stdin: Any, lake: Path) -> None:
    stdin(b"id,name\nfive,x\n")
    printed = cli("merge", "-", lake, *MERGE, code=3).err
    assert "standard input, line 2, column 'id': 'five' is not an integer that fits bigint" in printed
    assert "inlay-stdin" not in printed
    stdin(b"id,name\nfive,x\n")
    assert "inlay-stdin" not in cli("merge", "-", lake, *MERGE, "--json", code=3).out
    stdin(b"id,name\n\xff,x\n")
    assert "Cannot read standard input: Invalid UTF-8" in cli("merge", "-", lake, *MERGE, code=3).err


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_source_format_overrides_the_file_name(cli: Any, tmp_path: Path, lake: Path, kind: str) -> None:
    (tmp_path / "rows.txt").write_bytes(encoded(kind))
    for source in ("rows.txt", "rows.*"):
        done = cli("plan", source, lake, "-s", "upsert", "-k", "id", "--source-format", kind, "--json").json
        assert done["inserted"] == done["updated"] == 1


# -------------------------------------------------------------------------------------------------------------- errors
MERGE = ("-s", "upsert", "-k", "id")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("merge", "new.csv", "lake", "-s", "upsert"), 2, "--key"),
        (("merge", "new.csv", "lake", "-s", "unheard-of", "-k", "id"), 2, "unheard-of"),
        (("merge", "new.csv", "lake", *MERGE, "--no-such-option"), 2, "--no-such-option"),
        (("unheard-of",), 2, "unheard-of"),
        (("merge", "new.csv", "lake", *MERGE, "--engine", "unheard-of"), 2, "unheard-of"),
        (("merge", "new.csv", "lake", *MERGE, "--compression", "zip"), 2, "zip"),
        (("merge", "new.csv", "lake", *MERGE, "--row-group-size", "0"), 2, "--row-group-size"),
        (("merge", "new.csv", "lake", *MERGE, "--dedup-order-by", "id"), 2, "dedup_order_by"),
        (("merge", "new.csv", "lake", *MERGE, "--lock-timeout", "-1"), 2, "--lock-timeout"),
        (("merge", "new.csv", "lake", *MERGE, "--storage-option", "novalue"), 2, "novalue"),
        (("merge", "new.csv", "lake", *MERGE, "--storage-option", "a={"), 2, "JSON"),
        (("merge", "new.csv", "lake", "-s", "upsert", "-k", ","), 2, "key column"),
        (
            ("merge", "new.csv", "lake", "-s", "upsrt", "-k", "id"),
            2,
            "'upsrt' is not one of 'insert', 'update', 'upsert',",
        ),
        (("merge", "new.csv", "new.csv", *MERGE), 2, "is a file"),
        (("write", "new.csv", "new.csv"), 2, "is a file"),
        (("compact", "new.csv"), 2, "is a file"),
        (("recover", "new.csv"), 2, "is a file"),
        (("inspect", "new.csv"), 2, "is a file"),
        (("compact", "lake", "--target-file-size", "large"), 2, "large"),
        (("merge", "bad.csv", "lake", *MERGE), 3, "NULL"),
        (("plan", "bad.csv", "lake", *MERGE), 3, "NULL"),
        (("merge", "twice.csv", "lake", *MERGE), 3, "at"),
        (("merge", "new.csv", "lake", "-s", "upsert", "-k", "nam"), 3, "Did you mean 'name'?"),
        (("inspect", "lake", "-k", "nam"), 3, "Did you mean 'name'?"),
        (("merge", "new.csv", "lake", *MERGE, "--source-format", "parquet"), 3, "Cannot read the source"),
        (("merge", "nowhere.csv", "lake", *MERGE), 5, "nowhere.csv"),
        (("merge", "nowhere.csv", "lake", *MERGE, "--source-format", "json"), 5, "nowhere.csv"),
        (("merge", "nowhere.*", "lake", *MERGE), 5, "nowhere.*"),
        (("merge", "nowhere.*", "lake", *MERGE, "--source-format", "json"), 5, "nowhere.*"),
        (("compact", "nowhere"), 5, "nowhere"),
        (("recover", "nowhere"), 5, "nowhere"),
        (("inspect", "nowhere"), 5, "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_errors_have_a_message_and_an_exit_code(
    cli: Any, lake: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    answer = cli(*arguments, code=code)
    assert answer.out == ""
    assert answer.err.startswith("Error: ")
    assert says in answer.err
    problem = cli(*arguments, "--json", code=code).problem
    assert {"code", "message", "hint"} <= set(problem)
    assert says in problem["message"] + (problem["hint"] or "")
    assert names_of(lake) == {i: f"n{i}" for i in range(1, 31)}
    assert not Path("nowhere").exists()
    assert not Path(".nowhere.txn").exists()
    assert not Path(".new.csv.txn").exists()


def test_a_held_lock_is_a_conflict(cli: Any, lake: Path) -> None:
    with IncrementalFileManager() as files:
        files.open(locate(str(lake)))
        answer = cli("merge", "new.csv", lake, *MERGE, "--lock-timeout", "0.1", code=4)
        assert f"process {os.getpid()}" in answer.err
        assert (
            cli("merge", "new.csv", lake, *MERGE, "--lock-timeout", "0", "--json", code=4).problem["code"]
            == "lock_timeout"
        )
        assert cli("plan", "new.csv", lake, *MERGE).code == 0  # a dry run waits for nobody


@pytest.mark.parametrize("command", ["merge", "plan", "compact"])
def test_an_unreadable_file_is_a_failure(cli: Any, lake: Path, command: str) -> None:
    (lake / "broken.parquet").write_bytes(b"PAR1 not really PAR1")
    arguments = (lake,) if command == "compact" else ("new.csv", lake, *MERGE)
    problem = cli(command, *arguments, "--json", code=1).problem
    assert problem["code"] == "unreadable_file"
    assert problem["files"] == [f"{lake}/broken.parquet"]


def test_debug_shows_the_traceback(lake: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = str(lake.parent / "bad.csv")
    assert run(["merge", source, str(lake), *MERGE, "--debug"]) == 3
    assert "Traceback" in capfd.readouterr().err
    assert run(["merge", source, str(lake), *MERGE, "--debug", "--json"]) == 3
    assert "Traceback" in json.loads(capfd.readouterr().err)["traceback"]


def test_an_unexpected_error_has_a_message(cli: Any, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlay, "merge", lambda *_, **__: 1 / 0)
    answer = cli("merge", "new.csv", lake, *MERGE, code=1)
    hint = "Hint: Run the command again with --debug to see the traceback."
    assert answer.err == f"Error: ZeroDivisionError: division by zero\n{hint}\n"


def test_an_interrupt_exits_with_130(cli: Any, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inlay, "merge", interrupt)
    assert cli("merge", "new.csv", lake, *MERGE, code=130).err.startswith("Error: Interrupted.")
    assert cli("merge", "new.csv", lake, *MERGE, "--json", code=130).problem["code"] == "interrupted"


# ------------------------------------------------------------------------------------------------------------ terminal
@pytest.mark.parametrize("width", [60, 80, 120])
def test_output_fits_the_terminal(cli: Any, lake: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    printed = [
        cli("inspect", lake, "-k", "id,name").out,
        cli("plan", "new.csv", lake, *MERGE).out,
        cli("merge", "new.csv", lake, *MERGE).out,
        cli("write", "new.csv", lake).out,
        cli("compact", lake).out,
        cli("recover", lake).out,
        *(cli(*command.split(), "--help").out for command in COMMANDS),
    ]
    for line in "".join(printed).splitlines():
        assert len(line) <= width, line
    for number in ("30 rows", "1 updated"):
        assert number in "".join(printed).replace("\n", " ")


def test_brackets_in_paths_are_printed_unchanged(cli: Any, tmp_path: Path) -> None:
    inlay.write_dataset(pa.table({"id": [1], "p": ["[red]"]}), str(tmp_path / "odd"), partition_columns=["p"])
    assert "[red]" in cli("inspect", "odd").out.replace("%5B", "[").replace("%5D", "]")


def in_terminal(arguments: list[str], cwd: Path, **environment: str) -> bytes:
    """What a command writes to a terminal."""
    import pty

    master, slave = pty.openpty()
    fcntl.ioctl(slave, 0x5414, b"\x28\x00\x50\x00\x00\x00\x00\x00")  # TIOCSWINSZ: 40 lines of 80
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "inlay", *arguments],
        cwd=cwd, stdin=slave, stdout=slave, stderr=slave, env=clean | {"TERM": "xterm"} | environment,
    )  # fmt: skip
    os.close(slave)
    found = b""
    try:
        while block := os.read(master, 65536):
            found += block
    except OSError:  # how Linux says that the other side is closed
        pass
    finally:
        os.close(master)
    assert process.wait() == 0
    return found


def test_color_and_progress_appear_on_a_terminal_only(lake: Path) -> None:
    arguments = ["merge", "new.csv", str(lake), *MERGE]
    coloured = in_terminal(arguments, lake.parent)
    assert b"\x1b[3" in coloured
    assert b"commit" in coloured
    plain = in_terminal([*arguments, "--quiet"], lake.parent, NO_COLOR="1")
    assert not re.search(rb"\x1b\[\d*;?3\dm", plain)
    assert b"commit " not in plain


# ----------------------------------------------------------------------------------------------------------- a process
def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


HEAVY = ("pyarrow", "numpy", "rich.progress", "rich", "fsspec", "pandas", "inlay.incremental", "httpx", "fastapi")


@pytest.mark.parametrize(
    "code",
    [
        "import inlay",
        "from inlay.cli import run; run(['--help'])",
        *(f"from inlay.cli import run; run([*'{command}'.split(), '--help'])" for command in COMMANDS),
        "from inlay.cli import run; run(['--version'])",
    ],
)
def test_no_heavy_package_is_imported(code: str) -> None:
    found = python(f"{code}\nimport sys\nprint('heavy:', [m for m in {HEAVY!r} if m in sys.modules])")
    assert found.splitlines()[-1] == "heavy: []"


def test_the_command_runs_as_a_process(lake: Path) -> None:
    command = [sys.executable, "-m", "inlay", "merge", "-", str(lake), *MERGE, "--json"]
    done = subprocess.run(command, input=b"id,name\n5,five\n", capture_output=True, check=True)
    assert json.loads(done.stdout)["updated"] == 1
    assert done.stderr == b""
    failed = subprocess.run([*command[:4], "nowhere.csv", *command[5:]], capture_output=True, check=False)
    assert failed.returncode == 5
    assert failed.stdout == b""


def test_a_closed_pipe_prints_no_traceback(lake: Path) -> None:
    command = f"{sys.executable} -m inlay inspect {lake} --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr


def test_version_and_bare_call(cli: Any) -> None:
    assert cli("--version").out == f"inlay {inlay.__version__}\n"
    assert "Usage: inlay" in cli(code=2).out


# -------------------------------------------------------------------------------------------- in step with the library
def command_named(name: str) -> Any:
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]
    return command


def test_the_list_of_commands() -> None:
    every: Any = typer.main.get_command(app)
    assert set(every.commands) == {command.split()[0] for command in COMMANDS}
    assert set(every.commands["keys"].commands) == {"create", "list", "revoke"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_and_debug_and_documents_its_options(name: str) -> None:
    params = {param.name: param for param in command_named(name).params}
    assert {"json", "debug"} <= set(params)
    assert all(param.help for param in params.values())


def test_choices_are_those_of_the_library() -> None:
    assert {choice.value for choice in options.StrategyName} == set(STRATEGIES)
    assert {choice.value for choice in options.SchemaModeName} == set(typing.get_args(SchemaMode))


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("1000", 1000),
        ("1kB", 1000),
        ("1 KiB", 1024),
        ("128MB", 128_000_000),
        ("1.5g", 1_500_000_000),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text: str, bytes_: int) -> None:
    assert options.size(text) == bytes_


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, ""), (999, "999 B"), (1000, "1.0 kB"), (128_000_000, "128.0 MB"), (5 * 10**15, "5000.0 TB")],
)
def test_size_formatting(count: int | None, text: str) -> None:
    assert output.size(count) == text


def test_storage_options() -> None:
    texts = ["key=0123", "anon=true", 'client_kwargs={"region_name": "x"}', "endpoint_url=http://host?a=b"]
    assert options.storage_options(texts) == {
        "key": "0123",
        "anon": True,
        "client_kwargs": {"region_name": "x"},
        "endpoint_url": "http://host?a=b",
    }
    assert options.storage_options(None) is None


def test_object_stores(cli: Any) -> None:
    rows = pa.table({"id": [1], "name": ["a"]})
    inlay.write_dataset(rows, "memory://cli-test/lake")
    cli("merge", Path(__file__).parent / "nowhere", "memory://cli-test/lake", *MERGE, code=5)
    found = cli(
        "inspect", "memory://cli-test/lake", "-k", "id", "--storage-option", "single_writer=true", "--json"
    ).json
    assert found["row_count"] == 1
    assert pc.sum(inlay.read_parquet("memory://cli-test/lake")["id"]).as_py() == 1


# ------------------------------------------------------------------------------------------------------ guards and gaps
def empty(kind: str) -> bytes:
    if kind == "csv":
        return b"id,name\n"
    sink = pa.BufferOutputStream()
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(schema.empty_table())
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", ["csv", "arrow"])
def test_a_full_merge_of_an_empty_pipe_needs_a_flag(cli: Any, stdin: Any, lake: Path, kind: str) -> None:
    arguments = ("-", lake, "-s", "full_merge", "-k", "id", "--source-format", kind)
    stdin(empty(kind))
    refused = cli("merge", *arguments, code=3)
    assert "Standard input has no rows, and full_merge would delete all rows" in refused.err
    assert "--allow-empty" in refused.err
    stdin(empty(kind))
    assert "would delete 30 rows" in cli("plan", *arguments).out
    assert len(names_of(lake)) == 30
    stdin(empty(kind))
    assert "the source has no rows, so the merge deleted 30 rows" in cli("merge", *arguments, "--allow-empty").out
    assert names_of(lake) == {}


@pytest.mark.parametrize(("kind", "content"), [("json", b"[]"), ("json", b""), ("csv", b"")])
def test_an_empty_batch_of_a_known_format_changes_nothing(
    cli: Any, stdin: Any, lake: Path, kind: str, content: bytes
) -> None:
    arguments = ("-", lake, "-k", "id", "--source-format", kind)
    for more in (["-s", "upsert"], ["-s", "full_merge", "--allow-empty", "--scope", "name=nobody"]):
        stdin(content)
        cli("merge", *arguments, *more)
        assert len(names_of(lake)) == 30
    stdin(content)
    refused = cli("merge", *arguments, "-s", "full_merge", "--scope", "name=n1", "--scope", "id=1", code=3)
    assert f"would delete all rows of '{lake}' in the scope name=n1 id=1." in refused.err


def test_a_pipe_is_read_like_standard_input(cli: Any, lake: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for content, arguments in ((b"id,name\n1,x\n", []), (empty("arrow"), ["--source-format", "arrow"])):
        writer = threading.Thread(target=pipe.write_bytes, args=(content,))
        writer.start()
        cli("merge", pipe, lake, "-s", "upsert", "-k", "id", *arguments)
        writer.join()
    assert names_of(lake)[1] == "x"


@pytest.mark.parametrize("kind", ["csv", "arrow"])
def test_a_full_merge_of_a_pipe_reads_all_rows(cli: Any, stdin: Any, lake: Path, kind: str, tmp_path: Path) -> None:
    for path in (lake, tmp_path / "new"):
        stdin(encoded(kind))
        cli("merge", "-", path, "-s", "full_merge", "-k", "id", "--source-format", kind)
        assert names_of(path) == {5: "five", 31: "new"}


def test_columns_that_the_source_lacks(cli: Any, tmp_path: Path, lake: Path) -> None:
    (tmp_path / "keys.csv").write_text("id\n5\n31\n")
    arguments = ("merge", "keys.csv", lake, "-s", "upsert", "-k", "id")
    refused = cli(*arguments, code=3)
    assert "lacks 'name'" in refused.err
    assert "pass --missing-columns keep to keep" in " ".join(refused.err.split())
    assert "--missing-columns null to set" in cli(*arguments, "--json", code=3).problem["hint"]
    cli(*arguments, "--missing-columns", "keep")
    assert (names_of(lake)[5], names_of(lake)[31]) == ("n5", None)
    cli(*arguments, "--missing-columns", "null")
    assert names_of(lake)[5] is None


# ------------------------------------------------------------------------------------------------- deletes by condition
def test_rows_are_deleted_by_a_condition(cli: Any, lake: Path) -> None:
    condition = "id > 25 OR name = 'n3'"
    planned = cli("delete", lake, "--where", condition, "--dry-run")
    assert "6 to delete; 30 -> 24 rows" in planned.out
    assert cli("delete", lake, "--where", condition, "--dry-run", "--json").json["deleted"] == 6
    assert len(names_of(lake)) == 30
    assert "6 deleted; 30 -> 24 rows" in cli("delete", lake, "--where", condition).out
    assert sorted(names_of(lake)) == [n for n in range(1, 26) if n != 3]
    assert cli("delete", lake, "--where", "TRUE", "--json").json["deleted"] == 24


def test_an_invalid_condition_deletes_nothing(cli: Any, lake: Path) -> None:
    assert "Did you mean 'name'?" in cli("delete", lake, "--where", "nam = 'n3'", code=2).err
    assert cli("delete", lake, "--where", "id = 'x'", "--json", code=2).problem["code"] == "invalid_argument"
    assert len(names_of(lake)) == 30


def test_deleting_from_a_missing_dataset_changes_nothing_and_says_so(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "keys.csv").write_text("id\n1\n")
    nowhere = tmp_path / "nowhere"
    for command in (
        ["delete", nowhere, "--where", "id = 1"],
        ["delete", nowhere, "--where", "id = 1", "--dry-run"],
        ["merge", tmp_path / "keys.csv", nowhere, "-s", "delete", "-k", "id"],
        ["plan", tmp_path / "keys.csv", nowhere, "-s", "delete", "-k", "id"],
    ):
        shown = cli(*command)
        assert f"note: '{nowhere}' holds no Parquet files" in " ".join(shown.out.split())
        assert not nowhere.exists()
        assert cli(*command, "--json").json["deleted"] == 0


# --------------------------------------------------------------------------------------------------------- change feeds
def test_a_feed_with_guards(cli: Any, tmp_path: Path, lake: Path) -> None:
    (tmp_path / "feed.csv").write_text("op,id,name\nu,5,five\nd,6,\nc,31,new\n")
    arguments = ("feed.csv", lake, *MERGE, "--operation-column", "op")
    assert "2 rows would be" not in cli("plan", *arguments).out
    assert "max_deleted=0" in cli("merge", *arguments, "--max-deleted", "0", code=3).err
    result = cli("merge", *arguments, "--max-deleted", "0.04", "--transaction", "feed-1", "--json").json
    assert (result["inserted"], result["updated"], result["deleted"], result["replayed"]) == (1, 1, 1, False)
    again = cli("merge", *arguments, "--transaction", "feed-1")
    assert "this transaction is already committed" in again.out
    assert len(names_of(lake)) == 30
    assert "--max-deleted expects a number" in cli("merge", *arguments, "--max-deleted", "5%", code=2).err


def test_a_late_batch_is_stale(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "batch.csv").write_text("id,at\n1,5\n2,7\n")
    cli("write", "batch.csv", "feed")
    arguments = ("batch.csv", "feed", *MERGE, "--newer-by", "at")
    assert "0 to delete, 2 stale;" in cli("plan", *arguments).out
    assert "0 deleted, 2 stale;" in cli("merge", *arguments).out


def test_a_full_merge_of_a_scope(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("id,day\n1,2025-01-01\n2,2025-01-01\n3,2025-01-02\n4,2025-01-03\n")
    (tmp_path / "one.csv").write_text("id,day\n1,2025-01-01\n")
    cli("write", "all.csv", "days")
    scope = ("--scope", "day=2025-01-01", "--scope", "day=2025-01-02")
    assert cli("merge", "one.csv", "days", "-s", "full_merge", "-k", "id", *scope, "--json").json["deleted"] == 2
    assert sorted(inlay.read_parquet("days").column("id").to_pylist()) == [1, 4]
    assert "--scope expects NAME=VALUE" in cli("plan", "one.csv", "days", *MERGE, "--scope", "day", code=2).err


def test_columns_are_altered(cli: Any, tmp_path: Path) -> None:
    lake = tmp_path / "narrow"
    for start in (0, 10, 20):
        rows = pa.table({"id": pa.array(range(start, start + 10), pa.int32()), "name": ["x"] * 10})
        inlay.write_dataset(rows, str(lake))
    arguments = ("alter", lake, "--rename", "name=title", "--widen", "id=int64")
    assert "3 files to rewrite, 0 untouched" in cli(*arguments, "--dry-run").out
    assert cli(*arguments, "--dry-run", "--json").json["row_count"] == 30
    assert "3 files rewritten, 0 untouched" in cli(*arguments).out
    assert inlay.read_parquet(str(lake)).schema.names == ["id", "title"]
    assert cli("alter", lake, "--drop", "title", "--json").json["row_count"] == 30
    assert "'nam'" in cli("alter", lake, "--drop", "nam", code=3).err
