"""A table on each engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.helpers import Table

if TYPE_CHECKING:
    from tests.engines.engine import Engine


@pytest.fixture
def table(engine: Engine) -> Table:
    """A new table with the key ``pk``, on each engine in turn."""
    return Table(engine)


@pytest.fixture
def concurrent_table(concurrent_engine: Engine) -> Table:
    """A new table with the key ``pk``, on each engine that takes concurrent requests as DynamoDB does."""
    return Table(concurrent_engine)
