"""The HTTP service over `inlay.workspace`, which it imports only after it listens."""

from inlay.server.app import create_app, make_server, serve

__all__ = ["create_app", "make_server", "serve"]
