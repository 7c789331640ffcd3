"""Fixtures for transactions: ``few``, by which five items make a long one; ``clock``, with tables in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pynamo_locking.testing import VirtualClock
from tests.support.transaction_models import Purse, Transactions, make_long_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than four actions make a transaction long, and more than four items two reads."""
    make_long_from(monkeypatch)


@pytest.fixture
def clock(memory: Engine) -> Iterator[VirtualClock]:
    """Virtual time, in a database with the items."""
    memory.bind(Purse, Transactions)
    with VirtualClock() as clock:
        yield clock
