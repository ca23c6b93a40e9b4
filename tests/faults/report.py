"""Record the counts of fault tests, and print their sums.

Usage: python -m tests.faults.report counts.jsonl
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

GROUPS = {
    "test_crash.py": "faults at system calls of bare commits",
    "test_crash_in_recovery.py": "faults at system calls of recovery",
    "test_merge_crash.py": "faults at system calls of merges, writes and compaction",
    "test_power_cut.py": "disk states after a power cut",
    "test_soak.py": "acknowledged commits of eight writers under random kills",
    "test_version_soak.py": "versions of eight writers and a compactor beside eight readers, under random kills",
    "test_s3.py": "faults at S3 requests",
    "test_merge_soak.py": "merges on all engines, with kills, full disks and lost responses",
    "test_service_kills.py": "acknowledged requests to services that were killed, stopped and deprived of resources",
    "test_object_store.py": "faults at requests to an in-memory store",
}


def record_case(test: str, case: str, tried: int, violations: list[str]) -> None:
    """Fail on violations. If INLAY_FAULT_COUNTS is set, append the counts to that file."""
    if path := os.environ.get("INLAY_FAULT_COUNTS"):
        line = {"test": test, "case": case, "tried": tried, "violations": len(violations)}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    assert tried > 0
    assert not violations, f"{len(violations)} violations in {tried} tries:\n" + "\n".join(violations[:20])


def table(path: Path) -> str:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        name = Path(entry["test"].partition("::")[0]).name
        sums[name][0] += entry["tried"]
        sums[name][1] += entry["violations"]
    rows = [f"| {text} | {sums[name][0]:,} | {sums[name][1]} |" for name, text in GROUPS.items() if name in sums]
    return "\n".join(["| test | cases | violations |", "|---|---:|---:|", *rows])


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
