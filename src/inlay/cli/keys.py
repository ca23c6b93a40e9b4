"""`inlay keys`: the API keys of a catalog, which is used directly, since the first key cannot come from the service."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options as o
from inlay.cli import output
from inlay.cli.client import required_packages
from inlay.cli.connection import require_data_dir
from inlay.cli.output import plain

if TYPE_CHECKING:
    from datetime import datetime

    from inlay.catalog import ApiKey, Catalog

__all__ = ["app"]

app = typer.Typer(help="Make, list and revoke the API keys of the service.", no_args_is_help=True)


class ScopeName(StrEnum):
    read = "read"
    write = "write"


Name = Annotated[str, typer.Argument(metavar="NAME", help="Who or what the key is for.", show_default=False)]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `inlay keys list` shows it.")]
Scopes = Annotated[
    list[ScopeName] | None,
    typer.Option("--scope", help="What it may do; repeatable. Without it both.", show_default=False),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "--data-dir", metavar="PATH", help="Where the catalog is [INLAY_DATA_DIR, else .inlay].", show_default=False
    ),
]


@app.command()
def create(
    name: Name,
    scope: Scopes = None,
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001  (read where errors are shown)
) -> None:
    """Make a key and show its secret, once."""
    with _catalog(data_dir, creates=True) as catalog:
        made = catalog.keys.create(name, [each.value for each in scope or ScopeName])
    if json:
        output.print_json(_document(made.key) | {"secret": made.secret})
        return
    out = output.console()
    out.print(f"Made the key {made.key.id} for {plain(name)}: {', '.join(made.key.scopes)}.")
    out.print("Its secret is shown only now. Send it as `Authorization: Bearer ...`, or set INLAY_API_KEY:")
    out.print(made.secret, soft_wrap=True)


@app.command("list")
def list_keys(
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """List the keys, the revoked ones too."""
    with _catalog(data_dir) as catalog:
        keys = list(_all(catalog))
    if json:
        output.print_json({"keys": [_document(key) for key in keys], "count": len(keys)})
        return
    rows = [(key.id, plain(key.name), ", ".join(key.scopes), _day(key.created_at), _state(key)) for key in keys]
    headers = ("id", "name", "scopes", "made", "state")
    styles = ["dim" if key.revoked_at else "" for key in keys]
    out = output.console()
    if rows:
        out.print(output.table(headers, rows, left=("name", "scopes", "state"), styles=styles))
    else:
        out.print("There are no keys: a service on loopback is open to everybody on this machine.")


@app.command()
def revoke(
    key_id: KeyId,
    data_dir: DataDir = None,
    json: o.Json = False,
    debug: o.Debug = False,  # noqa: ARG001
) -> None:
    """Make a key invalid, at once and for good."""
    with _catalog(data_dir) as catalog:
        key = catalog.keys.revoke(key_id)
    output.print_json(_document(key)) if json else typer.echo(f"{key.id} ({plain(key.name)}) is revoked.")


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
        page = catalog.keys.list(limit=1000, offset=offset)
        yield from page.items
        offset, more = offset + len(page.items), page.has_more


def _document(key: ApiKey) -> dict[str, Any]:
    times = ("created_at", "last_used_at", "revoked_at")
    told = {name: getattr(key, name) for name in times}
    return {"id": key.id, "name": key.name, "scopes": list(key.scopes)} | {
        name: time.isoformat() if time else None for name, time in told.items()
    }


def _day(time: datetime) -> str:
    return time.date().isoformat()


def _state(key: ApiKey) -> str:
    if key.revoked_at:
        return f"revoked {_day(key.revoked_at)}"
    return f"used {_day(key.last_used_at)}" if key.last_used_at else "never used"
