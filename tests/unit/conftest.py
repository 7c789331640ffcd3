"""Fixtures of the unit tests."""

from tests.unit.helpers import no_requests
from tests.unit.world import world

__all__ = ["no_requests", "world"]
