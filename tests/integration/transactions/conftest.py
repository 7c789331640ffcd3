"""Fixtures of the tests of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.transaction_models import Entry, Purse, Transactions

if TYPE_CHECKING:
    from tests.engines.engine import Engine


@pytest.fixture
def purses_and_entries(memory: Engine) -> None:
    """Their tables, in memory."""
    memory.bind(Purse, Entry, Transactions)
