"""Eight writers, eight readers and a compactor that are killed at random.

No reader may see a mixture, no version may be lost, and each kept version must always have the rows of its commit.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import inlay
from inlay.commit.transaction import recover
from tests.faults.inject import Zygote
from tests.faults.scenarios import dataset, leftovers
from tests.faults.test_soak import Tally, seconds, soak
from tests.faults.version_soak import KEPT, Oracle, build, digest

pytestmark = pytest.mark.faults
ROLES = ["write versions"] * 8 + ["read versions"] * 8 + ["compact versions"]


@pytest.mark.timeout(5400)
def test_versions_under_random_kills(zygote: Zygote, tmp_path: Path, tally: Tally, thorough: bool) -> None:
    build(tmp_path)
    oracle = Oracle()

    def watch() -> None:
        oracle.record(inlay.history(dataset(tmp_path)))

    kills, lines = soak(zygote, "versions", tmp_path, seconds(thorough, quick=4), 0.25, ROLES, watch)
    recover(dataset(tmp_path))
    watch()
    counts = Counter(line.split()[0] for line in lines)
    tally(
        f"versions ({kills} kills, {counts['read']} reads, {counts['undone'] + counts['restored']} undone and restored,"
        f" {counts['compacted']} compactions)",
        len(oracle.states),
        violations_of(tmp_path, oracle, lines),
    )
    assert kills > 3
    assert counts["acked"] > 5
    assert counts["read"] > 5


def violations_of(root: Path, oracle: Oracle, lines: list[str]) -> list[str]:
    expected = oracle.checksums()
    found = oracle.violations + [line for line in lines if line.startswith("failed ")]
    for number, rows in (line.split(maxsplit=2)[1:] for line in lines if line.startswith("read ")):
        if rows != expected.get(int(number)):
            found.append(f"version {number} was read as {rows}")
    kept = [version.version for version in inlay.history(dataset(root))]
    for number in kept:
        if digest(inlay.read_parquet(dataset(root), version=number)) != expected[number]:
            found.append(f"version {number} has changed")
    if digest(inlay.read_parquet(dataset(root))) != expected[kept[0]]:
        found.append("the dataset is not its newest version")
    tokens = Counter(oracle.tokens)
    found += [f"{token} was committed {times} times" for token, times in tokens.items() if times > 1]
    acked = [line.split()[1] for line in lines if line.startswith("acked set:")]
    found += [f"{token} is lost" for token in acked if not tokens[token]]
    found += [f"{len(kept)} versions are kept"] * (len(kept) > KEPT + 1)
    return found + [name for name in leftovers(root) if "/log-" not in name and not name.endswith("/stop")]
