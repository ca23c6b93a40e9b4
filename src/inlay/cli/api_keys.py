"""`inlay keys`: create, list and revoke API keys, directly in the catalog.

The service cannot create the first key, because its HTTP API requires a key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options as o
from inlay.cli import output
from inlay.cli.client import require_data_dir, required_packages
from inlay.cli.output import plain

if TYPE_CHECKING:
    from datetime import datetime

    from inlay.catalog import ApiKey, Catalog

__all__ = ["app"]


app = typer.Typer(help="Create, list and revoke the API keys of the service.", no_args_is_help=True)


class ScopeName(StrEnum):
    read = "read"
    write = "write"


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the person or program that uses the key.", show_default=False)
]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as `inlay keys list` shows it.")]
Scopes = Annotated[
    list[ScopeName] | None,
    typer.Option("--scope", help="Permission of the key. Repeatable. Default: read and write.", show_default=False),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        metavar="PATH",
        help="Data directory with the catalog [INLAY_DATA_DIR, else .inlay].",
        show_default=False,
    ),
]


@app.command()
def create(
    name: Name,
    scope: Scopes = None,
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001  (`inlay.cli.run` reads it)
) -> None:
    """Create a key and show its secret once."""
    with _catalog(data_dir, creates=True) as catalog:
        created = catalog.api_keys.create(name, [each.value for each in scope or ScopeName])
    if json:
        output.print_json(_document(created.key) | {"secret": created.secret})
        return
    out = output.console()
    out.print(f"Created the key {created.key.id} for {plain(name)}: {', '.join(created.key.scopes)}.")
    out.print("inlay shows the secret only once. Send it as `Authorization: Bearer ...`, or set INLAY_API_KEY:")
    out.print(created.secret, soft_wrap=True)


@app.command("list")
def list_keys(
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """List all keys, including revoked ones."""
    with _catalog(data_dir) as catalog:
        keys = list(_all(catalog))
    if json:
        output.print_json({"keys": [_document(key) for key in keys], "count": len(keys)})
        return
    rows = [(key.id, plain(key.name), ", ".join(key.scopes), _day(key.created_at), _state(key)) for key in keys]
    headers = ("id", "name", "scopes", "created", "state")
    styles = ["dim" if key.revoked_at else "" for key in keys]
    out = output.console()
    if rows:
        out.print(output.table(headers, rows, left=("name", "scopes", "state"), styles=styles))
    else:
        out.print("There are no API keys. Everyone on this machine can use a service on loopback.")


@app.command()
def revoke(
    key_id: KeyId,
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Revoke a key immediately and permanently."""
    with _catalog(data_dir) as catalog:
        key = catalog.api_keys.revoke(key_id)
        is_last = not catalog.api_keys.exist()
    output.print_json(_document(key)) if json else typer.echo(f"Revoked the key {key.id} ({plain(key.name)}).")
    if is_last:
        typer.echo(
            "No valid key is left in the catalog. The service now accepts only keys in INLAY_API_KEYS.\n"
            "Create a key with `inlay keys create`.",
            err=True,
        )


@contextlib.contextmanager
def _catalog(data_dir: str | None, *, creates: bool = False) -> Iterator[Catalog]:
    from inlay.settings import Settings

    settings = Settings.load({"data_dir": data_dir})
    require_data_dir(settings, creates=creates)
    with required_packages():
        from inlay.catalog import Catalog
    with contextlib.closing(Catalog(settings.catalog)) as catalog:
        catalog.migrate()
        yield catalog


def _all(catalog: Catalog) -> Iterator[ApiKey]:
    offset, more = 0, True
    while more:
        page = catalog.api_keys.list(limit=1000, offset=offset)
        yield from page.items
        offset, more = offset + len(page.items), page.has_more


def _document(key: ApiKey) -> dict[str, Any]:
    times = {"created_at": key.created_at, "last_used_at": key.last_used_at, "revoked_at": key.revoked_at}
    return {"id": key.id, "name": key.name, "scopes": list(key.scopes)} | {
        name: time.isoformat() if time else None for name, time in times.items()
    }


def _day(time: datetime) -> str:
    return time.date().isoformat()


def _state(key: ApiKey) -> str:
    if key.revoked_at:
        return f"revoked {_day(key.revoked_at)}"
    return f"used {_day(key.last_used_at)}" if key.last_used_at else "never used"
