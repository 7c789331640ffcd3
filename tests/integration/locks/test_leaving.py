"""What fails or interrupts on the way to a lock, or out of it, leaves no entry that goes on being renewed."""

from __future__ import annotations

import pytest

from pynamo_locking._io import lock_requests, runtime, wakeups
from pynamo_locking._locks import held_lock
from pynamo_locking._locks.heartbeat import heartbeat_thread
from pynamo_locking.exceptions import LockingError, LockLost

pytestmark = pytest.mark.core


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LockingError("expired token")])
def test_who_failed_to_release_does_not_go_on_renewing(account, error):
    """Whatever interrupts a release, the heartbeat of that entry ends, and its lease with it."""
    lock = account.locked("a").acquire()

    def fail(*arguments, **options):
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock_requests, "release", fail)
        with pytest.raises(type(error)):
            lock.release()
    assert lock._handle.entry.possession.is_over
    with pytest.raises(LockLost):
        lock._handle.entry.renew()


def test_a_lock_that_cannot_get_a_heartbeat_is_not_taken(account):
    """If no thread can be started, the entry is removed again and no thread renews it."""

    class Crowded(runtime.Runtime):
        def spawn(self, target, name):
            raise RuntimeError("can't start new thread")

    real, threads = runtime.current, heartbeat_thread._threads
    runtime.install(Crowded())
    heartbeat_thread._threads, heartbeat_thread._idle, idle = 0, 0, heartbeat_thread._idle
    try:
        with pytest.raises(RuntimeError, match="new thread"):
            account.locked("a").acquire()
    finally:
        runtime.install(real)
        heartbeat_thread._threads, heartbeat_thread._idle = threads, idle
    assert account.lock_state("a").entries == ()


def _interrupted(function):
    """Return a function that does its work, and is interrupted before it returns."""

    def act(*arguments, **options):
        function(*arguments, **options)
        raise KeyboardInterrupt

    return act


@pytest.mark.parametrize("name", ["open_mailbox", "close_mailbox"])
def test_an_interrupt_around_the_way_to_a_lock_leaves_nothing_behind(account, name):
    """Ctrl-C right before the first request, and between the grant and its use: no entry, and no open mailbox."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        original = getattr(wakeups, name)
        first = iter([_interrupted(original)])

        def interrupted_once(*arguments):
            return next(first, original)(*arguments)

        patch.setattr(wakeups, name, interrupted_once)
        account.locked("a").acquire()
    assert account.lock_state("a").entries == ()
    assert not wakeups.has_waiters(account.locked("a")._handle.target.row)


@pytest.mark.parametrize(("module", "name"), [(held_lock, "remove_from_context"), (wakeups, "has_waiters")])
def test_an_interrupt_of_a_release_ends_the_heartbeat(account, module, name):
    """Ctrl-C before its request was sent: the entry would have been renewed for as long as the process lives."""
    lock = account.locked("a").acquire()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, name, _interrupted(getattr(module, name)))
        lock.release()
    assert lock._handle.entry.possession.is_over
    assert held_lock.held_in_context(lock._handle.target.row) is None
