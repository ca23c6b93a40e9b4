"""API keys: shown once, kept as hashes, revoked for good."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inlay.catalog import Catalog, new_id
from inlay.errors import InvalidArgumentError, NotFoundError
from tests.catalog.conftest import Clock


def test_a_key_is_verified_by_its_secret(catalog: Catalog, connect: Callable[..., Catalog]) -> None:
    made = catalog.keys.create("Büro", ["read"])
    other = catalog.keys.create("other")
    assert len(made.secret) > 43
    assert made.secret.startswith("inlay_")
    found = connect().keys.verify(made.secret)
    assert found is not None
    assert (found.id, found.name, found.scopes, found.revoked_at) == (made.key.id, "Büro", ["read"], None)
    assert other.key.scopes == ["read", "write"]
    assert made.secret not in repr(made)


def test_what_is_not_exactly_a_secret_is_nothing(catalog: Catalog) -> None:
    one, two = catalog.keys.create("one"), catalog.keys.create("two")
    mark, key_id, token = one.secret.split("_", 2)
    mixed = f"{mark}_{key_id}_{two.secret.split('_', 2)[2]}"
    wrong = ["", "_", "__", "inlay", mixed, one.secret[:-1], one.secret + "x", one.secret.upper(), token, one.key.id]
    for secret in [*wrong, f"inlay_{new_id('key')[4:]}_{token}", "inlay_\0_x", "inlay_a_\udcff", "ä" * 10_000]:
        assert catalog.keys.verify(secret) is None, secret


def test_the_database_holds_no_secret(catalog: Catalog) -> None:
    made = catalog.keys.create("one")
    with catalog._database.read() as connection:
        (row,) = connection.exec_driver_sql("SELECT * FROM api_keys").all()
    assert made.secret.split("_", 2)[2] not in str(row)


def test_a_revoked_key_is_invalid_at_once_and_stays_listed(catalog: Catalog) -> None:
    assert not catalog.keys.exist()
    made = catalog.keys.create("one")
    assert catalog.keys.exist()
    revoked = catalog.keys.revoke(made.key.id)
    assert revoked.revoked_at is not None
    assert catalog.keys.verify(made.secret) is None
    assert not catalog.keys.exist()
    assert catalog.keys.revoke(made.key.id) == revoked
    assert catalog.keys.list().items == (revoked,)
    for wrong in (new_id("key"), "x"):
        with pytest.raises(NotFoundError, match="API key"):
            catalog.keys.revoke(wrong)


def test_the_last_use_is_noted_once_a_minute(catalog: Catalog, clock: Clock) -> None:
    made = catalog.keys.create("one")
    seen = []
    for _ in range(4):
        catalog.keys.verify(made.secret)
        seen.append(catalog.keys.list().items[0].last_used_at)
        clock.advance(seconds=25)
    assert None not in seen
    assert seen[0] == seen[1] == seen[2] < seen[3]  # type: ignore[operator]


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"name": "a\0"}, {"name": "x" * 201}, {"scopes": []}, {"scopes": ["admin"]}]
)
def test_a_key_that_cannot_be_is_refused(catalog: Catalog, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        catalog.keys.create(**({"name": "x"} | wrong))  # type: ignore[arg-type]
    assert catalog.keys.list().count == 0
