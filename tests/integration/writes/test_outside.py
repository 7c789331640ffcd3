"""Writes from outside of a lock."""

from __future__ import annotations

import pytest

from tests.support.parties import in_thread
from tests.support.wire import between_attempts, is_save, on

pytestmark = pytest.mark.core


def test_an_item_that_got_another_key_is_another_item(account):
    """It is written from outside; the lock of the first key stays what it is."""
    with account.locked("a") as lock:
        lock.item.account_id = "b"
        lock.item.version = None  # of the item with the other key
        lock.item.save()
        assert not lock.lost.is_set()
        assert account.lock_state("a").holders[0].writes == 0
    assert account.get("b").balance == 100


def test_a_write_from_outside_that_was_repeated_is_not_called_refused(account):
    """Applied, answer lost, another party locks, the repetition is refused: the write id tells that it was applied."""
    item = account.get("a")
    item.balance = 77
    lock = account.locked("a")
    comes = between_attempts(lambda: in_thread(lock.acquire))
    with comes, on("UpdateItem", where=is_save).lose_response():
        item.save()
    assert account.get("a").balance == 77
    lock.release()
