"""Fixtures of the unit tests."""

from tests.unit.helpers import crowded, no_requests
from tests.unit.world import world

__all__ = ["crowded", "no_requests", "world"]
