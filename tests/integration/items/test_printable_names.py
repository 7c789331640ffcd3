"""Owner labels and names of locks are text of others: no line of a log is forged with them, and no terminal steered."""

from __future__ import annotations

import logging

import pytest

from pynamo_locking.exceptions import ItemLocked, LockTimeout
from pynamo_locking_testing import VirtualClock
from tests.support.parties import abandoned, held_elsewhere
from tests.support.workers import Locks, Plain

EVIL = "\x1b[2Jme\nWARNING all is well\u202e\x7f\r"
SHOWN = "\\x1b[2Jme\\x0aWARNING all is well\\u202e\\x7f\\x0d"


def test_errors_name_owners_on_one_line(memory):
    """Of a timeout and of a refused write; the attribute of the error has the label as it is."""
    memory.bind(Plain)
    Plain("a").save()
    with held_elsewhere(Plain.locked("a", owner=EVIL)):
        with pytest.raises(LockTimeout) as late:
            Plain.locked("a", wait=0).acquire()
        with pytest.raises(ItemLocked) as refused:
            Plain("a").save()
    for error in (late.value, refused.value):
        assert SHOWN in str(error)
        assert EVIL not in str(error)
    assert refused.value.holder == EVIL


def test_the_log_has_names_on_one_line(memory, caplog):
    """Of the holder that is evicted, and of the lock, whose `name` is as it is."""
    memory.bind(Locks)
    with VirtualClock(), caplog.at_level(logging.WARNING, "pynamo_locking"):
        dead = abandoned(Locks.locked(EVIL, owner=EVIL, heartbeat=False))
        with held_elsewhere(Locks.locked(EVIL, wait=1000)):
            pass
        lock = Locks.locked(EVIL)
        assert repr(Locks.locked("größe 量 / x")) == "<Lock größe 量 / x not held>"
    messages = [record.getMessage() for record in caplog.records]
    assert any(
        message.startswith(f"evicting from the lock {SHOWN}, as") and f"ticket {dead.ticket} of {SHOWN} (" in message
        for message in messages
    )
    assert all(message.isprintable() for message in messages)
    assert lock.name == EVIL
    assert repr(lock) == f"<Lock {SHOWN} not held>"
