"""Settings: precedence of flags, environment, file and defaults, and their validation."""

from __future__ import annotations

from pathlib import Path

import pytest

from inlay.errors import InvalidArgumentError
from inlay.settings import Settings, is_loopback


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.load(environ={})
    assert (settings.host, settings.port, settings.spark_master) == ("127.0.0.1", 8000, "local[*]")
    assert settings.storage == str(tmp_path / ".inlay")
    assert settings.catalog == f"sqlite:///{tmp_path}/.inlay/catalog.db"
    assert settings.max_upload_bytes == 2 * 1024**3
    assert settings.is_loopback
    assert (settings.catalog_timeout_seconds, settings.storage_timeout_seconds) == (30, 30)
    assert (settings.disk_reserve_bytes, settings.query_spill_bytes) == (256 << 20, 4 << 30)
    assert settings.upload_expiry_seconds == 7 * 86_400


def test_flags_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inlay.toml").write_text(
        f'port = 1\nhost = "h1"\ndata_dir = "d1"\napi_keys = ["{"a" * 16}", "{"b" * 16}"]\n'
    )
    environ = {"INLAY_PORT": "2", "INLAY_HOST": "h2"}
    settings = Settings.load({"port": 3, "host": None}, environ)
    assert (settings.port, settings.host, settings.data_dir, settings.api_keys) == (3, "h2", "d1", ("a" * 16, "b" * 16))
    assert not settings.is_loopback
    assert "api_keys" not in repr(settings)


def test_api_keys_are_separated_by_commas() -> None:
    one, two = "one-secret-of-many", "two-secret-of-many"
    assert Settings.load(environ={"INLAY_API_KEYS": f"{one}, {two},,"}).api_keys == (one, two)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"INLAY_API_KEYS": "a-long-secret-of-a-service,a"}, "fewer than 16 characters"),
        ({"INLAY_PORT": "many"}, "INLAY_PORT is 'many'; it must be a whole number"),
        ({"INLAY_PORT": "99999"}, "port is 99999; it must be between 0 and 65,535"),
        ({"INLAY_QUERY_TIMEOUT_SECONDS": "-1"}, "must be at least 0"),
        ({"INLAY_QUERY_TIMEOUT_SECONDS": "nan"}, "must be at least 0"),
        ({"INLAY_KEEP_VERSIONS": "0"}, "must be at least 1"),
        ({"INLAY_KEEP_DAYS": "100000"}, "between 0 and 36,500"),
        ({"INLAY_CONCURRENT_JOBS": "0"}, "must be at least 1"),
        ({"INLAY_LEASE_SECONDS": "0"}, "must be at least 1"),
        ({"INLAY_CATALOG_TIMEOUT_SECONDS": "0"}, "must be at least 1"),
        ({"INLAY_STORAGE_TIMEOUT_SECONDS": "0"}, "must be at least 1"),
        ({"INLAY_DISK_RESERVE_BYTES": "-1"}, "must be at least 0"),
        ({"INLAY_UPLOAD_EXPIRY_SECONDS": "-1"}, "between 0 and"),
    ],
)
def test_invalid_value_is_rejected_and_its_origin_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Settings.load(environ=environ)


@pytest.mark.parametrize(
    ("content", "message"),
    [("prot = 1", "Unknown setting 'prot'"), ("port = ", "Cannot read"), ("port = true", "must be a whole number")],
)
def test_invalid_settings_file_is_rejected(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "other.toml").write_text(content)
    with pytest.raises(InvalidArgumentError, match=message):
        Settings.load(environ={}, file=tmp_path / "other.toml")


def test_explicit_settings_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="does not exist"):
        Settings.load(environ={}, file=tmp_path / "none.toml")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "a.localhost"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1234:1", "localhost.example.com", "127.example.com", "", "h"])
def test_addresses_that_only_resemble_loopback(host: str) -> None:
    assert not is_loopback(host)
