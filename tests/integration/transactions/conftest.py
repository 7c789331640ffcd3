"""Fixtures for transactions. Every test has the tables of `Purse` and of `Transactions`.

``database``  the engine that the test names, or the one in memory
``few``       five items make a long transaction
``clock``     virtual time, in memory
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pynamo_locking_testing import VirtualClock
from tests.support.transaction_models import Purse, Transactions, make_long_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine

ENGINES = ("engine", "cheap", "concurrent_engine", "real_engine", "dynoxide")


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Engine:
    """The engine that the test names, or the one in memory."""
    named = next((name for name in ENGINES if name in request.fixturenames), "memory")
    engine: Engine = request.getfixturevalue(named)
    return engine


@pytest.fixture(autouse=True)
def _purses(database: Engine) -> None:
    database.bind(Purse, Transactions)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than four actions make a transaction long, and more than four items two reads."""
    make_long_from(monkeypatch)


@pytest.fixture
def clock(memory: Engine) -> Iterator[VirtualClock]:
    """Virtual time, in a database with the items."""
    with VirtualClock() as clock:
        yield clock
