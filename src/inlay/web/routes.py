"""Every page. Importing a page's module registers it."""

from __future__ import annotations

from importlib import import_module, resources

from fastapi.exceptions import RequestValidationError
from nicegui import app

from inlay.web.shell import ICON, STATIC, show_missing

__all__ = ["ICON", "register"]

_PAGES = ("home", "dataset", "preview", "rejects", "load", "sql", "jobs", "status", "login")


def register() -> None:
    app.add_static_files(STATIC, str(resources.files("inlay.web").joinpath("static")))
    for kind in (404, RequestValidationError):
        app.add_exception_handler(kind, show_missing)
    for name in _PAGES:
        import_module(f"inlay.web.{name}")
