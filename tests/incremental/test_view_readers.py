"""DuckDB reads every version of published views. Its extensions fit another release than the supported one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow.compute as pc
import pytest

import inlay

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-ducklake/bin/python"
READ = """
import glob, json, os, sys, duckdb
connection = duckdb.connect()
for name in ("avro", "iceberg", "delta"):
    folder = os.path.dirname(__import__(f"duckdb_extension_{name}").__file__)
    connection.execute(f"load '{glob.glob(folder + '/**/*.duckdb_extension', recursive=True)[0]}'")
found = {}
for version in map(int, sys.argv[2:]):
    views = f"delta_scan('{sys.argv[1]}.delta', version={version})", (
        f"iceberg_scan('{sys.argv[1]}.iceberg', snapshot_from_id={version or 1 << 62})"
    )
    for view in views:
        rows = connection.execute(f"SELECT id, v, k, count(*) OVER () FROM {view} ORDER BY id").fetchall()
        pruned = connection.execute(f"SELECT count(*) FROM {view} WHERE k = 'x' AND id < 3").fetchall()
        found.setdefault(version, []).append([rows, pruned[0][0]])
print(json.dumps(found))
"""


@pytest.mark.long  # needs the environment .venv-ducklake, which only `make test-all` creates
def test_duckdb_reads_each_version_of_both_views(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    inlay.merge({"id": [1, 2, 3], "v": ["a", "b", None], "k": ["x", "y z/%", None]}, path, "upsert", "id", ["k"])
    inlay.keep(path, versions=20)
    inlay.publish(path, "delta")
    inlay.publish(path, "iceberg")
    for number in range(15):
        inlay.merge({"id": [2, 9 + number], "v": [f"b{number}", "n"], "k": ["y z/%", "x"]}, path, "upsert", "id")
    inlay.delete(path, pc.field("id") == 1)
    inlay.undo(path)
    inlay.compact(path)
    inlay.forget(path, before=4)
    numbers = [entry.version for entry in inlay.history(path)]
    command = [PYTHON, "-c", READ, path, *map(str, numbers)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for number in numbers:
        table = inlay.read_parquet(path, version=number).sort_by("id")
        rows = [[*row.values(), table.num_rows] for row in table.select(["id", "v", "k"]).to_pylist()]
        matching = table.filter((pc.field("k") == "x") & (pc.field("id") < 3)).num_rows
        assert found[str(number)] == [[rows, matching]] * 2
