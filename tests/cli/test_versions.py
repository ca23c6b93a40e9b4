"""Commands on the versions of a dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.cli import run
from tests.versions import refuse_links


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = str(tmp_path / "prices")
    inlay.write_dataset({"id": [1, 2]}, path)
    inlay.merge({"id": [2, 3]}, path, "upsert", "id")
    return path


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(arguments) == 0
    return capsys.readouterr().out


def test_history_lists_versions(prices: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "history", prices)
    assert "2  20" in text
    assert "1, 1, 0" in text
    assert [entry["version"] for entry in json.loads(output(capsys, "history", prices, "--json"))] == [2, 1]


def test_undo_and_restore_make_versions(prices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "undo", prices) == "Version 3 has the rows of version 1.\n"
    assert inlay.read_parquet(prices).num_rows == 2
    assert json.loads(output(capsys, "restore", prices, "2", "--json"))["restores"] == 2
    assert inlay.read_parquet(prices).num_rows == 3
    assert output(capsys, "restore", prices, "2") == "Version 4 has the rows of version 2.\n"
    assert json.loads(output(capsys, "history", prices, "--json"))[0]["operation"] == "restore"


def test_keep_and_forget_drop_versions(prices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "keep", prices, "--versions", "5", "--days", "2", "--bytes", "1GiB").startswith(
        "Dropped 0 versions."
    )
    with inlay.open_dataset(prices, 1):
        assert "A running process reads version 1" in output(capsys, "forget", prices, "--before", "2")
    assert output(capsys, "forget", prices, "--before", "2").startswith("Dropped 1 version (1).\nFreed ")


def test_errors_name_the_reason(prices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restore", prices, "9"]) == 5
    assert "Version 9" in capsys.readouterr().err
    assert run(["forget", prices, "--before", "9"]) == 2
    assert run(["undo", f"{prices}-missing"]) == 5


def test_inspect_shows_what_the_history_costs(prices: str, capsys: pytest.CaptureFixture[str]) -> None:
    inlay.keep(prices, versions=5)
    inlay.undo(prices)
    found = json.loads(output(capsys, "inspect", prices, "--json"))
    assert found["version_count"] == 3
    assert found["history_bytes"] > 0
    assert "3 versions in the history, with " in output(capsys, "inspect", prices)


def test_publish_and_unpublish(prices: str, capsys: pytest.CaptureFixture[str]) -> None:
    view = f"{prices}.delta"
    assert output(capsys, "publish", prices, "delta") == f"Published version 2 as delta in {view}\n"
    assert f"delta view in {view} shows version 2\n" in output(capsys, "inspect", prices)
    found = json.loads(output(capsys, "publish", prices, "delta", "--no-on-commit", "--json"))
    assert found == {"format": "delta", "folder": view, "version": 2, "is_current": True, "on_commit": False}
    inlay.undo(prices)
    assert "shows version 2 (not up to date: run `inlay publish`)" in output(capsys, "inspect", prices)
    assert json.loads(output(capsys, "inspect", prices, "--json"))["views"][0]["is_current"] is False
    assert run(["publish", prices, "hudi"]) == 2
    assert "Choose one of 'delta', 'iceberg'" in capsys.readouterr().err
    assert output(capsys, "unpublish", prices) == f"Deleted the view in {view}\n"
    assert output(capsys, "unpublish", prices) == "The dataset has no published views.\n"
    assert (
        json.loads(output(capsys, "publish", prices, "delta", "--folder", f"{prices}-table", "--json"))["version"] == 3
    )
    assert json.loads(output(capsys, "unpublish", prices, "delta", "--json")) == {"folders": [f"{prices}-table"]}
    assert run(["unpublish", prices, "delta"]) == 5


def test_diff_shows_rows_and_counts(prices: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "diff", prices, "1", "2")
    assert text.splitlines() == [
        "_change  id  ",
        "insert    3  ",
        "Version 1 to version 2: 1 inserted, 0 updated, 0 deleted",
    ]
    found = json.loads(output(capsys, "diff", prices, "2", "1", "--json"))
    assert (found["deleted"], found["updated"], found["inserted"]) == (1, 0, 0)
    assert [column["name"] for column in found["columns"]] == ["_change", "id"]
    assert found["rows"] == [["delete", 3]]
    assert "... and 1 more row; --output FILE writes all rows" in output(
        capsys, "diff", prices, "1", "2", "--limit", "0"
    )
    assert output(capsys, "diff", prices, "2", "2").startswith("Version 2 to version 2: 0 inserted")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_diff_writes_rows_to_a_file(prices: str, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(f"{prices}-diff.{suffix}")
    assert f"Rows written to {file} (" in output(capsys, "diff", prices, "1", "2", "--output", str(file))
    table = pq.read_table(file) if suffix == "parquet" else pa.ipc.open_file(file.read_bytes()).read_all()
    assert table.to_pylist() == [{"_change": "insert", "id": 3}]
    found = json.loads(output(capsys, "diff", prices, "1", "2", "-o", str(file), "--json"))
    assert found["size_bytes"] == file.stat().st_size
    assert "rows" not in found
    assert [path.name for path in file.parent.glob(".*.partial")] == []


def test_diff_names_bad_output_files_and_versions(prices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", prices, "1", "2", "--output", f"{prices}.csv"]) == 2
    assert ".parquet or .arrow" in capsys.readouterr().err
    assert run(["diff", prices, "1", "2", "--output", f"{prices}-missing/rows.parquet"]) == 2
    assert "Cannot write" in capsys.readouterr().err
    assert run(["diff", prices, "1", "9"]) == 5


def test_forget_deletes_a_number_of_versions_or_all(prices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["forget", prices]) == 2
    assert run(["forget", prices, "--all", "--before", "2"]) == 2
    assert "--before or --all" in capsys.readouterr().err
    assert json.loads(output(capsys, "forget", prices, "--all", "--json"))["versions"] == [1, 2]
    assert json.loads(output(capsys, "history", prices, "--json")) == []


def test_keep_names_the_option_that_copies(
    prices: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_links(monkeypatch)
    assert run(["keep", prices, "--versions", "3"]) == 1
    assert "inlay keep DATASET --versions 10 --copies" in " ".join(capsys.readouterr().err.split())
    output(capsys, "keep", prices, "--versions", "3", "--copies")
    inlay.undo(prices)
    assert len(json.loads(output(capsys, "history", prices, "--json"))) == 3
