"""API keys: secrets, hashes, scopes and revocation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inlay.catalog import Catalog, new_id
from inlay.errors import InvalidArgumentError, NotFoundError
from tests.catalog.conftest import Clock


def test_a_key_is_verified_by_its_secret(catalog: Catalog, connect: Callable[..., Catalog]) -> None:
    made = catalog.api_keys.create("Büro", ["read"])
    other = catalog.api_keys.create("other")
    assert len(made.secret) > 43
    assert made.secret.startswith("inlay_")
    found = connect().api_keys.verify(made.secret)
    assert found is not None
    assert (found.id, found.name, found.scopes, found.revoked_at) == (made.key.id, "Büro", ["read"], None)
    assert other.key.scopes == ["read", "write"]
    assert made.secret not in repr(made)


def test_a_malformed_secret_is_invalid(catalog: Catalog) -> None:
    one, two = catalog.api_keys.create("one"), catalog.api_keys.create("two")
    mark, key_id, token = one.secret.split("_", 2)
    mixed = f"{mark}_{key_id}_{two.secret.split('_', 2)[2]}"
    wrong = ["", "_", "__", "inlay", mixed, one.secret[:-1], one.secret + "x", one.secret.upper(), token, one.key.id]
    for secret in [*wrong, f"inlay_{new_id('key')[4:]}_{token}", "inlay_\0_x", "inlay_a_\udcff", "ä" * 10_000]:
        assert catalog.api_keys.verify(secret) is None, secret


def test_the_database_contains_no_secret(catalog: Catalog) -> None:
    made = catalog.api_keys.create("one")
    with catalog._database.read() as connection:
        (row,) = connection.exec_driver_sql("SELECT * FROM api_keys").all()
    assert made.secret.split("_", 2)[2] not in str(row)


def test_a_revoked_key_is_invalid_immediately_and_still_listed(catalog: Catalog) -> None:
    assert not catalog.api_keys.exist()
    assert not catalog.api_keys.have_existed()
    made = catalog.api_keys.create("one")
    assert catalog.api_keys.exist()
    revoked = catalog.api_keys.revoke(made.key.id)
    assert revoked.revoked_at is not None
    assert catalog.api_keys.verify(made.secret) is None
    assert not catalog.api_keys.exist()
    assert catalog.api_keys.have_existed()
    assert catalog.api_keys.revoke(made.key.id) == revoked
    assert catalog.api_keys.list().items == (revoked,)
    for wrong in (new_id("key"), "x"):
        with pytest.raises(NotFoundError, match="API key"):
            catalog.api_keys.revoke(wrong)


def test_the_last_use_is_recorded_once_a_minute(catalog: Catalog, clock: Clock) -> None:
    made = catalog.api_keys.create("one")
    seen = []
    for _ in range(4):
        key = catalog.api_keys.verify(made.secret)
        assert key is not None
        if catalog.api_keys.is_use_due(key):
            catalog.api_keys.record_use(key)
        seen.append(catalog.api_keys.list().items[0].last_used_at)
        clock.advance(seconds=25)
    assert None not in seen
    assert seen[0] == seen[1] == seen[2] < seen[3]  # type: ignore[operator]


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"name": "a\0"}, {"name": "x" * 201}, {"scopes": []}, {"scopes": ["admin"]}]
)
def test_an_invalid_name_or_scope_is_rejected(catalog: Catalog, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        catalog.api_keys.create(**({"name": "x"} | wrong))  # type: ignore[arg-type]
    assert catalog.api_keys.list().count == 0
