"""The leader is killed, or stands still: another process leads, for a later term. Real processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from pynamodb.exceptions import TransactWriteError

from pynamo_locking import LockSettings
from pynamo_locking.exceptions import LockLost
from tests.support.workers import Locks, Plain, crew, until_queued

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

pytestmark = pytest.mark.processes

LEASE = 1.5
SETTINGS = LockSettings(lease=LEASE, request_timeout=0.25, poll_interval=0.02, max_clock_skew=None)
#: An upper bound for what takes about one lease, on a machine that does other things as well.
FEW_LEASES = 6


@pytest.mark.parametrize("fate", ["killed", "paused"])
def test_a_leader_that_fails(real_engine: Engine, fate: str, record_property: Callable[[str, object], None]) -> None:
    """A new term begins a lease later; the old leader knows, and a write of its term is refused."""
    real_engine.bind(Locks)
    real_engine.bind(Plain)
    Plain("a").save()
    with crew(real_engine, 2, Locks, Plain) as [first, second]:
        first.call("campaign", Locks, "scheduler", settings=SETTINGS)
        old = first.call("elected")
        assert first.call("write_as_leader", Plain, "a") == old.ticket
        second.call("campaign", Locks, "scheduler", settings=SETTINGS)
        second.start("elected")
        until_queued(Locks, "scheduler", 2)
        if fate == "killed":
            at = first.kill()
        else:
            at = time.monotonic()
            first.pause()
        new = second.result()
        leases = (new.at - at) / LEASE
        record_property("new_term_in_leases", round(leases, 2))
        print(f"\n{fate}: a new term {leases:.2f} leases after")  # noqa: T201 - seen with -s
        assert new.ticket > old.ticket
        assert leases < FEW_LEASES
        assert second.call("write_as_leader", Plain, "a") == new.ticket

        if fate != "killed":
            first.start("write_as_leader", Plain, "a")  # waits in the pipe
            first.resume()
            assert isinstance(first.failure(), (LockLost, TransactWriteError))
            is_leader, reasons = first.call("led")
            assert not is_leader
            assert set(reasons) <= {"evicted", "unanswered"}
            with pytest.raises((LockLost, TransactWriteError)):
                first.call("write_as_leader", Plain, "a", 0)
            assert Plain.get("a", consistent_read=True).value == new.ticket
            second.call("stop_campaign")
            first.call("stop_campaign")
        else:
            second.call("stop_campaign")
    assert not [entry for entry in Locks.lock_state("scheduler").entries if entry.ticket > old.ticket]
