"""Processes that move money in transactions of any size are killed at random moments: everything stays true.

What is watched and checked stands in `tests.support.bank_audit`. With ``BANK_ACCOUNTS=1000`` the largest transactions
have so many items, and ``BANK_CLERKS=4`` has fewer processes, for a busy machine.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from tests.support.bank_audit import run_bank

pytestmark = [pytest.mark.alone, pytest.mark.slow]

SECONDS: Final = 30.0


@pytest.mark.timeout(SECONDS + 600)
def test_killed_processes_lose_no_money_and_show_nothing_uncommitted(real_engine):
    """Snapshots are right while 8 processes are killed, plain readers see committed values only, a sweep ends it."""
    run = run_bank(real_engine, SECONDS, seed=str(random.random()))
    assert run.swept.failed == {}
    assert run.swept.pending == 0
    print(run)  # noqa: T201 - shown by pytest -s
