"""Every page. Importing a page's module registers it."""

from __future__ import annotations

from importlib import import_module, resources

from nicegui import app

from inlay.web.shell import ICON, STATIC

__all__ = ["ICON", "register"]

_PAGES = ("home", "sql", "jobs", "status", "login")


def register() -> None:
    app.add_static_files(STATIC, str(resources.files("inlay.web").joinpath("static")))
    for name in _PAGES:
        import_module(f"inlay.web.{name}")
