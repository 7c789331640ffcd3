"""Fixtures of the unit tests, all of which `make check` runs."""

import pytest

from tests.unit.helpers import crowded, no_requests
from tests.unit.world import world

__all__ = ["crowded", "no_requests", "world"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """None of them needs the mark."""
    item.add_marker(pytest.mark.core)
