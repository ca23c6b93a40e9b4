"""Scenarios of datasets with published views, and an independent check of the views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import inlay
from inlay.commit.history import History
from inlay.commit.kept import link_name
from inlay.commit.local import LocalJournal
from inlay.storage import locate
from tests.faults.merges import build_dataset, read_rows, table
from tests.faults.scenarios import Scenario, dataset, sidecar


def view_folder(root: Path, format_: str) -> Path:
    return root / f"ds.{format_}"


def _build_versions(root: Path) -> None:
    """Build a dataset with versions 1 and 2, of which the next commit drops one."""
    build_dataset(root)
    _merge(root, [0, 50], "first")
    inlay.keep(dataset(root), versions=2)
    _merge(root, [100], "second")


def _merge(root: Path, ids: list[int], text: str) -> None:
    inlay.merge(table(ids, text), str(dataset(root)), "upsert", ["id"], ["day"])


def _build_published(root: Path) -> None:
    _build_versions(root)
    for format_ in ("delta", "iceberg"):
        inlay.publish(dataset(root), format_)


def _apply_commit(root: Path) -> None:
    _merge(root, [1, 101, 300], "third")


def _apply_publish(root: Path) -> None:
    for format_ in ("delta", "iceberg"):
        inlay.publish(dataset(root), format_)


def _apply_unpublish(root: Path) -> None:
    inlay.unpublish(dataset(root))


def _apply_forget(root: Path) -> None:
    inlay.forget(dataset(root), before=2)


def _read_published(root: Path) -> Any:
    return read_rows(root), [shown_version(root, format_) == 2 for format_ in ("delta", "iceberg")]


def _read_both(root: Path) -> Any:
    """Return the rows, and whether both views are complete: a call publishes one view after the other."""
    rows, complete = _read_published(root)
    return rows, all(complete)


def _read_folders(root: Path) -> Any:
    return read_rows(root), not any(view_folder(root, format_).exists() for format_ in ("delta", "iceberg"))


def _read_kept(root: Path) -> Any:
    history = _history(root)
    return read_rows(root), min(history.numbers())


VIEWS = {
    scenario.name: scenario
    for scenario in (
        Scenario("commit-published", _build_published, _apply_commit, read_rows),
        Scenario("publish", _build_versions, _apply_publish, _read_both),
        Scenario("unpublish", _build_published, _apply_unpublish, _read_folders),
        Scenario("forget-published", _build_published, _apply_forget, _read_kept),
    )
}


# ------------------------------------------------------------------------------------------------------- the check
def _history(root: Path) -> History:
    history = LocalJournal(locate(dataset(root))).history
    assert history is not None
    return history


def shown_version(root: Path, format_: str) -> int | None:
    """Return the newest version in a view, without inlay."""
    shown = shown_versions(root, format_)
    return max(shown, default=None)


def shown_versions(root: Path, format_: str) -> dict[int, set[str]]:
    """Return the files of each version in a view, without inlay."""
    folder = view_folder(root, format_)
    return _delta_versions(folder) if format_ == "delta" else _iceberg_versions(folder)


def _delta_versions(folder: Path) -> dict[int, set[str]]:
    entries = sorted((folder / "_delta_log").glob("[0-9]*.json")) if folder.exists() else []
    found, files = {}, set[str]()
    for entry in entries:
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for kind, action in (pair for each in actions for pair in each.items()):
            if kind == "add":
                files.add(unquote(action["path"]))
            if kind == "remove":
                files.discard(unquote(action["path"]))
        is_empty = actions[0]["commitInfo"]["operation"] == "DROP"
        if not is_empty and "this-version-is-dropped" not in files:
            found[int(entry.stem)] = set(files)
    return found


def _iceberg_versions(folder: Path) -> dict[int, set[str]]:
    from pyiceberg.table import StaticTable

    tables = sorted((folder / "metadata").glob("v*.metadata.json"), key=lambda path: int(path.name.split(".")[0][1:]))
    if not tables:
        return {}
    table = StaticTable.from_metadata(str(tables[-1]))
    found = {}
    for snapshot in table.snapshots():
        manifests = snapshot.manifests(table.io)
        entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]
        files = {entry.data_file.file_path.removeprefix(f"{folder}/data/") for entry in entries}
        found[int(snapshot.summary["inlay.version"])] = files
    return found


def wrong_views(root: Path, *, is_recovered: bool) -> list[str]:
    """Describe versions in views that have wrong or missing files and, after the recovery, lost and leaked files."""
    history = _history(root)
    kept = {
        number: {link_name(path, file.link) for path, file in history.files(history.read(number)).items()}
        for number in history.numbers()
    }
    found = []
    listed = [entry[0] for entry in json.loads(_text(sidecar(root) / "views.json"))]
    for format_ in ("delta", "iceberg"):
        folder = view_folder(root, format_)
        data = folder / ("data" if format_ == "iceberg" else "")
        shown = shown_versions(root, format_)
        found += [f"{format_}: {n} has wrong files" for n, files in shown.items() if n in kept and files != kept[n]]
        readable = {number: files for number, files in shown.items() if number in kept or number == max(shown)}
        if (sidecar(root) / "views.json").exists() and _is_removed(root, format_):
            continue
        for number, files in readable.items():
            missing = {name for name in files if not (data / name).exists()}
            found += [f"{format_}: version {number} lacks {name}" for name in missing]
        if is_recovered and format_ in listed and folder.exists():
            if set(kept) - set(shown):
                found.append(f"{format_}: versions {set(kept) - set(shown)} are missing")
            present = {str(path.relative_to(data)) for path in data.rglob("*.parquet.*")}
            found += [f"{format_}: {name} is leaked" for name in present - set().union(*kept.values())]
        if is_recovered and format_ not in listed and folder.exists():
            found.append(f"{format_}: the folder is leaked")
    return found


def _is_removed(root: Path, format_: str) -> bool:
    return any(entry[0] == format_ and entry[3] for entry in json.loads(_text(sidecar(root) / "views.json")))


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else "[]"
