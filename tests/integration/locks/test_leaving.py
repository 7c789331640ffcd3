"""What fails or interrupts on the way to a lock, or out of it, leaves no entry that goes on being renewed."""

from __future__ import annotations

import pytest

from pynamo_locking.exceptions import LockingError
from pynamo_locking_testing import VirtualClock
from tests.support import runtime
from tests.support.models import Account
from tests.support.wire import Chosen, count_requests, on
from tests.support.workers import until

pytestmark = pytest.mark.core


@pytest.fixture
def clock(memory):
    """Virtual time, and an account with a lock document in it."""
    memory.bind(Account)
    Account("a").save()
    with Account.locked("a"):
        pass
    with VirtualClock() as clock:
        yield clock


def test_who_failed_to_release_does_not_go_on_renewing(clock):
    """The heartbeat of that entry ends, and its lease with it."""
    lock = Account.locked("a").acquire()
    with on("UpdateItem").answer("ExpiredTokenException", always=True), pytest.raises(LockingError):
        lock.release()
    with count_requests() as counted:
        clock.sleep(200)
    assert counted.total == 0
    with Account.locked("a", wait=0) as later:
        assert later.ticket > lock.ticket


def test_a_release_without_any_answer_is_gone_on_with(clock):
    """By a thread, so that nobody has to wait for the end of the lease."""
    lock = Account.locked("a").acquire()
    with on("UpdateItem", times=4).lose_request() as lost:
        lock.release()
        assert lost.hits == 4
    until(lambda: Account.lock_state("a").entries == (), "the removal of the entry")


def test_a_lock_that_cannot_get_a_heartbeat_is_not_taken(clock):
    """If no thread can be started, the entry is removed again and no thread renews it."""
    with runtime.no_thread_starts(), pytest.raises(RuntimeError, match="new thread"):
        Account.locked("a").acquire()
    assert Account.lock_state("a").entries == ()


@pytest.mark.parametrize("request_", [1, 2], ids=["enter", "release"])
@pytest.mark.parametrize("moment", [Chosen.before, Chosen.after])
def test_an_interrupt_leaves_nothing_behind(clock, request_, moment):
    """Ctrl-C before a request is sent, or when it was applied: no entry stays, and nothing is renewed."""

    def interrupt():
        raise KeyboardInterrupt

    with moment(on("UpdateItem", nth=request_), interrupt), pytest.raises(KeyboardInterrupt), Account.locked("a"):
        pass
    until(lambda: Account.lock_state("a").entries == (), "an empty queue")
    with Account.locked("a", wait=0) as lock:
        assert lock.is_held
    with count_requests() as counted:
        clock.sleep(200)
    assert counted.total == 0
