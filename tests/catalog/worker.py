"""A worker process that uses a catalog, for tests of races and kills.

python -m tests.catalog.worker COMMAND URL [ARGUMENT...]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from inlay.catalog import Catalog
from tests.catalog import steps


def say(text: object) -> None:
    print(text, flush=True)


def wait() -> None:
    """Wait until the test releases all workers."""
    say("ready")
    sys.stdin.readline()


def migrate(catalog: Catalog) -> None:
    wait()
    catalog.migrate()
    catalog.check()
    say("done")


def load(catalog: Catalog, dataset_id: str, count: str) -> None:
    """Commit `count` versions, each on the current one."""
    wait()
    for _ in range(int(count)):
        job = catalog.jobs.create("load", {}, dataset_id=dataset_id).job
        while not catalog.jobs.start(job.id):
            time.sleep(0.002)
        current = catalog.datasets.get(dataset_id).version
        new = steps.new_version(dataset_id, current + 1, inserted=1)
        catalog.versions.commit(dataset_id, current, new, job_id=job.id)
    say("done")


def create(catalog: Catalog, label: str, count: str) -> None:
    """Create `count` datasets with the same label."""
    wait()
    say(" ".join(steps.dataset(catalog, label).table_name for _ in range(int(count))))


def claim(catalog: Catalog, upload_id: str, dataset_id: str) -> None:
    """Start a load of this upload and never end it."""
    job = steps.running(catalog, "load", dataset_id=dataset_id, upload_id=upload_id)
    say(job.id)
    sys.stdin.readline()


def hold(catalog: Catalog, dataset_id: str) -> None:
    """Change all tables in one transaction and never commit it."""
    with catalog._database.write() as connection:
        connection.exec_driver_sql("DELETE FROM version_files")
        connection.exec_driver_sql(f"UPDATE datasets SET label = 'half done' WHERE id = '{dataset_id}'")
        connection.exec_driver_sql("CREATE TABLE half_done (x INTEGER)")
        say("inside")
        sys.stdin.readline()


def churn(catalog: Catalog, dataset_id: str) -> None:
    """Load in an endless loop, printing each acknowledged version."""
    while True:
        upload = steps.upload(catalog)
        job = steps.running(catalog, "load", dataset_id=dataset_id, upload_id=upload.id)
        current = catalog.datasets.get(dataset_id).version
        version = catalog.versions.commit(
            dataset_id, current, steps.new_version(dataset_id, current + 1), job_id=job.id
        )
        say(version.version)


COMMANDS: dict[str, Callable[..., None]] = {f.__name__: f for f in (migrate, load, create, claim, hold, churn)}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](Catalog(sys.argv[2]), *sys.argv[3:])
