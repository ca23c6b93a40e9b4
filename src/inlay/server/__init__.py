"""The HTTP service: a thin shell over `inlay.workspace`. Nothing heavy is imported before it answers."""

from inlay.server.app import create_app
from inlay.server.run import serve

__all__ = ["create_app", "serve"]
