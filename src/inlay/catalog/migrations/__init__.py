"""Migrations of the catalog, in order. They are data of the package: no command line of Alembic is needed."""
