"""Processes are restored from one snapshot, as Lambda's SnapStart does it: none believes what is of others as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pynamo_locking import LockSettings
from pynamo_locking.exceptions import LockLost
from tests.support.restoring import Function, Report, restore, restore_untold
from tests.support.workers import Versioned, crew, until, until_next_beat

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

pytestmark = pytest.mark.processes

CLONES = 2
ROUNDS = 5


def counted() -> int:
    return int(Versioned.get("counter", consistent_read=True).value)


def reports_of(engine: Engine, fork: Callable[[], int]) -> list[Report]:
    """Let a process take a lock, wait for another, and begin a transaction; restore two from it, and let them work."""
    engine.bind(Versioned)
    for key in ("held", "waited", "read", "counter"):
        Versioned(key).save()
    with crew(engine, 1, Versioned) as [process]:
        with Versioned.locked("waited"):
            process.start("fork_many", Function, CLONES, fork=fork, rounds=ROUNDS)
            until(lambda: not process.is_waiting() or counted() == CLONES * ROUNDS)
        reports: list[Report] = process.result()[1:]
    assert len(reports) == CLONES
    return reports


def test_two_restored_processes_share_nothing(real_engine):
    """No lock, no entry, no transaction, no name of a process and no random pause."""
    first, second = reports = reports_of(real_engine, restore)

    assert [(each.held, each.written, each.transaction) for each in reports] == [("lost", "restored", "over")] * CLONES
    assert Versioned.get("held", consistent_read=True).value == 0
    assert first.process != second.process
    assert set(first.pauses).isdisjoint(second.pauses)
    assert len({*first.entries, *second.entries}) == CLONES * ROUNDS
    assert len({first.inherited, first.waited, second.waited}) == 3


def test_what_happens_if_nothing_tells_them(dynoxide):
    """The planted bug: without the hook both hold one lock, and a write vanishes; locks taken later are still apart."""
    first, second = reports = reports_of(dynoxide, restore_untold)

    assert [(each.held, each.written, each.transaction) for each in reports] == [("held", "written", "open")] * CLONES
    assert Versioned.get("held", consistent_read=True).value == 1
    assert first.process == second.process
    assert first.inherited in (first.waited, second.waited)
    assert set(first.pauses).isdisjoint(second.pauses)
    assert len({*first.entries, *second.entries}) == CLONES * ROUNDS


def test_threads_of_the_snapshot_go_on(dynoxide):
    """They hear that the lock is lost; its entry is not renewed any more, and locks that are taken anew are."""
    settings = LockSettings(lease=1.5, request_timeout=0.25, poll_interval=0.02)
    dynoxide.bind(Versioned)
    for key in ("a", "b"):
        Versioned(key).save()
    with crew(dynoxide, 1, Versioned) as [process]:
        taken = process.call("enter", Versioned, "a", settings=settings)
        until_next_beat(Versioned, "a", taken.ticket)
        process.call("be_restored")
        facts = process.call("wait_for_loss", "a")
        assert (facts.lost, facts.lost_before, facts.reasons, facts.is_held) == (True, True, ["restored"], False)
        with pytest.raises(LockLost, match="restored from a snapshot"):
            process.call("add", "a")
        with pytest.raises(LockLost):
            process.call("leave", "a")

        taken = process.call("enter", Versioned, "b", settings=settings)
        for _ in range(2):
            until_next_beat(Versioned, "b", taken.ticket)
        assert process.call("add", "b") == 1
        process.call("leave", "b")
        with Versioned.locked("a", settings=settings, wait=30) as lock:  # after the lease that nothing renews
            assert lock.item.value == 0
