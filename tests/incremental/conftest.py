"""Fixtures of the tests of versions."""

from __future__ import annotations

from tests.s3 import s3  # noqa: F401  (a fixture)
from tests.versions import storage  # noqa: F401  (a fixture)
