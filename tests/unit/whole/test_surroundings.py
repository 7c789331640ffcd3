"""What a test leaves behind is found, and named."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support import surroundings
from tests.support.surroundings import Surroundings
from tests.unit.helpers import Account


def test_nothing_is_left_behind():
    """A thread that has ended is no reason."""
    before = Surroundings()
    thread = threading.Thread(target=int)
    thread.start()
    assert before.left_behind() == []


def test_a_thread_that_goes_on(monkeypatch):
    """By its name; one that is about to end is waited for."""
    monkeypatch.setattr(surroundings, "PATIENCE_S", 0.1)
    before, ends = Surroundings(), threading.Event()
    thread = threading.Thread(target=ends.wait, name="forgotten", daemon=True)
    thread.start()
    left = before.left_behind()
    ends.set()
    thread.join()
    assert left == ["the thread forgotten, which has not ended in 0.1 s"]


def test_what_is_replaced():
    """Environment and clock; put back, they are no reason."""
    before = Surroundings()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Kathmandu")
        patch.setattr(time, "monotonic", lambda: 7.0)
        left = before.left_behind()
    assert left == ["another environment", "another time.monotonic"]
    assert before.left_behind() == []


def test_a_lock_that_is_renewed(memory_dynamodb):
    """One without a heartbeat stands for a holder that has died, and may be left."""
    Account.create_table()
    Account("a").save()
    Account("b").save()
    before = Surroundings()
    Account.locked("a", heartbeat=False).acquire()
    lock = Account.locked("b").acquire()
    assert before.left_behind() == ["lock accounts/b ticket " + str(lock.ticket) + ", which is still renewed"]
    assert not lock.is_held
