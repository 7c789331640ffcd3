"""Taking, keeping and giving back locks, on every engine."""

from __future__ import annotations

import contextvars
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest

from pynamo_locking import LockSettings, locked_all
from pynamo_locking._io import lock_requests, runtime
from pynamo_locking._writes.send import ItemWork
from pynamo_locking.exceptions import ConfigurationError, ItemNotFound, LockLost, LockTimeout
from tests.integration.locks.conftest import granted_in_turn, until_waiting
from tests.support.models import APART, QUICK, Account, Device, Document, Locks
from tests.support.parties import abandoned, held_elsewhere, in_thread, shifted_clock

pytestmark = pytest.mark.core


@pytest.fixture
def account(engine):
    """An account with 100 in it."""
    engine.bind(Account)
    Account("a", balance=100).save()
    return Account


def test_the_item_is_the_image_that_came_with_the_lock(account):
    """`lock.item` is the stored item, and the lock shows its holder."""
    with account.locked("a", owner="me") as lock:
        assert lock.is_held
        assert 0 < lock.remaining <= 60
        assert lock.item.balance == 100
        assert lock.item is lock.item
        (holder,) = account.lock_state("a").holders
        assert (holder.owner, holder.ticket, holder.lease, holder.mode) == ("me", lock.ticket, 60.0, "exclusive")
        assert lock.item.lock.holders[0].ticket == lock.ticket
    assert not lock.is_held
    assert account.lock_state("a").entries == ()


def test_tickets_only_grow(account):
    """Every holder has a larger ticket than every earlier one, also after the item was made anew."""
    tickets = []
    for _ in range(3):
        with account.locked("a") as lock:
            tickets.append(lock.ticket)
    account.get("a").delete()
    account("a").save()
    with account.locked("a") as lock:
        tickets.append(lock.ticket)
    assert tickets == sorted(set(tickets))


class Slow(runtime.Runtime):
    """The real world, but for a wall clock that goes on when it is told to."""

    us = 1_795_000_000_000_000

    def time_us(self):
        return self.us


def test_tickets_of_an_item_that_is_made_anew_begin_at_its_microsecond(account, monkeypatch):
    """Three tickets, a deletion and a new document within a ms: no ticket is given twice."""
    monkeypatch.setattr(runtime, "current", Slow())
    account("b").save()
    tickets = []
    for _ in range(2):
        for _ in range(3):
            with account.locked("b", wait=0) as lock:
                tickets.append(lock.ticket)
        runtime.current.us += 3
        account.get("b").delete()
        account("b").save()
    assert tickets == [1_795_000_000_000_000 + n for n in range(6)]
    assert float(tickets[-1]) == tickets[-1] < 2**53  # also for those who know no integers


def test_waiters_are_served_in_the_order_of_their_entries(account):
    """First come, first served, whichever waiter looks first after a release."""
    locks = [account.locked("a", settings=APART) for _ in range(5)]
    holder = account.locked("a", settings=APART)
    assert granted_in_turn(account, "a", holder, *enumerate(locks)) == [0, 1, 2, 3, 4]
    tickets = [lock.ticket for lock in locks]
    assert tickets == sorted(tickets)
    assert account.lock_state("a").entries == ()


def test_no_wait_fails_at_once_and_leaves_nothing(account):
    """`wait=0` names who holds the lock, and enters no queue."""
    with held_elsewhere(account.locked("a", owner="somebody")) as other:
        with pytest.raises(LockTimeout, match="1 ahead; held by somebody") as caught:
            account.locked("a", wait=0).acquire()
        assert [entry.ticket for entry in account.lock_state("a").entries] == [other.ticket]
        assert caught.value.queue.holders[0].owner == "somebody"
        assert isinstance(caught.value, TimeoutError)


def test_a_bounded_wait_ends_and_leaves_nothing(account):
    """After `wait` seconds the entry is gone again."""
    with held_elsewhere(account.locked("a")) as other:
        with pytest.raises(LockTimeout, match="1 ahead"):
            account.locked("a", wait=timedelta(milliseconds=60)).acquire()
        assert [entry.ticket for entry in account.lock_state("a").entries] == [other.ticket]


def test_an_infinite_wait_ends_with_the_turn(account):
    """`math.inf` waits until it is our turn."""
    waiter = account.locked("a", wait=math.inf)
    assert granted_in_turn(account, "a", account.locked("a", settings=APART), ("waiter", waiter)) == ["waiter"]


def test_an_exception_in_the_block_gives_the_lock_back(account):
    """Leaving by an exception removes the entry and lets the exception through."""
    with pytest.raises(ZeroDivisionError), account.locked("a"):
        _ = 1 / 0
    assert account.lock_state("a").entries == ()


def test_the_same_context_enters_again_with_the_same_ticket(account):
    """Re-entry counts; the last release removes the entry."""
    with account.locked("a") as outer:
        with account.locked("a", wait=0) as inner:
            assert inner.ticket == outer.ticket
            assert inner.item is outer.item
        assert outer.is_held
        assert not inner.is_held
        assert len(account.lock_state("a").entries) == 1
    assert account.lock_state("a").entries == ()


def test_one_lock_object_counts_its_takes(account):
    """acquire() twice needs release() twice, and the object can be used again."""
    lock = account.locked("a")
    lock.acquire().acquire()
    lock.release()
    assert lock.is_held
    lock.release()
    assert not lock.is_held
    first = lock.ticket
    with lock:
        assert lock.ticket > first
    with pytest.raises(ConfigurationError, match="not held"):
        lock.release()


def test_another_context_does_not_hold_the_lock(account):
    """A thread of the same process waits like everybody else; a copied context is the same holder."""
    with account.locked("a") as lock:
        with pytest.raises(LockTimeout):
            in_thread(lambda: account.locked("a", wait=0).acquire())
        context = contextvars.copy_context()
        again = context.run(lambda: account.locked("a", wait=0).acquire())
        assert again.ticket == lock.ticket
        context.run(again.release)


def test_a_lock_object_is_for_one_context(account):
    """Using one Lock object from two threads is refused with a reason."""
    with account.locked("a") as lock, pytest.raises(ConfigurationError, match="another thread"):
        in_thread(lock.acquire)


def test_a_dead_entry_is_skipped_at_once_by_its_hint(account):
    """No caller waits for a process that died long ago, not even with `wait=0`."""
    with shifted_clock() as clock:
        dead = abandoned(account.locked("a", lease=6))
        clock.shift += 6 + 10.1
        with account.locked("a", wait=0) as lock:
            assert lock.ticket > dead.ticket
        state = account.lock_state("a")
        assert state.was_evicted(dead.ticket) is True
        assert state.was_evicted(lock.ticket) is False


def test_a_hint_within_the_clock_skew_proves_nothing(account):
    """An entry whose end lies less than the clock skew back is not evicted by its hint."""
    with shifted_clock() as clock:
        abandoned(account.locked("a", lease=6))
        clock.shift += 6 + 9.5
        with pytest.raises(LockTimeout):
            account.locked("a", wait=0).acquire()


@pytest.mark.waits
def test_without_the_hint_a_whole_lease_is_watched(account):
    """With `max_clock_skew=None` only an unchanged beat counts, from our own first look."""
    settings = LockSettings(max_clock_skew=None, poll_interval=0.01, max_poll_interval=0.01, request_timeout=1)
    with shifted_clock() as clock:
        dead = abandoned(account.locked("a", lease=6, settings=settings))
        clock.shift += 3600
        waiter = account.locked("a", wait=1000, lease=30, settings=settings)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(waiter.acquire)
            until_waiting(account, "a")
            clock.shift += 6 * 1.05
        assert waiter.ticket > dead.ticket
        assert account.lock_state("a").holders[0].ticket == waiter.ticket
        waiter.release()


def test_a_renewed_entry_is_not_evicted(account):
    """Each beat that a waiter sees starts the lease anew for it."""
    settings = LockSettings(
        max_clock_skew=None, poll_interval=0.01, max_poll_interval=0.01, request_timeout=1, max_callers_per_entry=1
    )
    looks = threading.Semaphore(0)
    with shifted_clock() as clock:
        holder = account.locked("a", lease=6, heartbeat=False, settings=settings)
        holder.acquire()
        waiter = account.locked("a", wait=1000, lease=6000, settings=settings)
        with ThreadPoolExecutor(1) as pool, _counted_looks(looks):
            pool.submit(waiter.acquire)
            for _ in range(4):
                for _ in range(2):
                    looks.acquire()  # the second look began after the beat was stored
                clock.shift += 4
                holder.renew()
            assert account.lock_state("a").holders[0].ticket == holder.ticket
            holder.release()
    assert waiter.ticket > holder.ticket
    waiter.release()


@contextmanager
def _counted_looks(looks):
    original = lock_requests.read

    def look(*arguments, **options):
        image = original(*arguments, **options)
        looks.release()
        return image

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock_requests, "read", look)
        yield


def test_renew_and_ensure_prolong_the_lease(account):
    """Without a heartbeat, the caller renews; `ensure_remaining` renews only when too little is left."""
    with shifted_clock() as clock, account.locked("a", lease=12, heartbeat=False) as lock:
        clock.shift += 8
        assert 3 < lock.remaining <= 4
        lock.ensure_remaining(2)
        assert lock.remaining <= 4
        lock.ensure_remaining(5)
        assert lock.remaining > 11
        clock.shift += 8
        lock.renew()
        assert lock.remaining > 11
        with pytest.raises(ConfigurationError, match="can never hold"):
            lock.ensure_remaining(12)


@pytest.mark.parametrize("operation", ["enter", "renew"])
def test_the_lease_counts_from_before_the_write(account, operation):
    """Time that a request takes is not ours: the answer says nothing about when it was applied."""
    original = getattr(lock_requests, operation)
    with account.locked("a"):  # so that there is a document to enter
        pass
    with shifted_clock() as clock, pytest.MonkeyPatch.context() as patch:

        def slow(*arguments, **options):
            result = original(*arguments, **options)
            clock.shift += 5
            return result

        patch.setattr(lock_requests, operation, slow)
        with account.locked("a", lease=1000, heartbeat=False) as lock:
            if operation == "renew":
                lock.renew()
            assert lock.remaining <= 995


def test_the_lease_of_a_newcomer_counts_from_when_it_got_in(account):
    """Time spent outside of a full queue is not taken off the lease."""
    settings = LockSettings(max_waiters=1, max_clock_skew=None, max_callers_per_entry=1)
    original, refused = lock_requests.enter, threading.Event()
    with shifted_clock() as clock, pytest.MonkeyPatch.context() as patch:
        holder = abandoned(account.locked("a", lease=9000, settings=settings))
        waiter = original(holder._handle.target.row, lock_requests.NewEntry("waiter", "waiter", 9000.0), 2)
        late = account.locked("a", settings=settings, wait=9000, lease=10_000, heartbeat=False)

        def enter(*arguments):
            try:
                return original(*arguments)
            finally:
                refused.set()

        patch.setattr(lock_requests, "enter", enter)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(late.acquire)
            refused.wait()
            clock.shift += 300
            for entry in holder._handle.target.row.state(waiter).entries:
                account.break_lock("a", ticket=entry.ticket)
        assert late.remaining > 9_800
        late.release()


def test_loss_is_proven_by_the_next_renewal(account):
    """A broken lock sets `lost`, calls back with the reason, and ends the block with `LockLost`."""
    reasons, called = [], threading.Event()

    def on_lost(reason):
        reasons.append(reason)
        called.set()

    with pytest.raises(LockLost) as caught, account.locked("a", heartbeat=False, on_lost=on_lost) as lock:
        assert account.break_lock("a", ticket=lock.ticket)
        assert not account.break_lock("a", ticket=lock.ticket)
        assert not lock.lost.is_set()
        with pytest.raises(LockLost):
            lock.renew()
        assert lock.lost.is_set()
        assert not lock.is_held
        called.wait()
    assert reasons == ["evicted"]
    assert (caught.value.reason, caught.value.ticket) == ("evicted", lock.ticket)


def test_a_loss_never_hides_the_exception_of_the_block(account):
    """If the block raises as well, its exception is the one that is seen."""
    with pytest.raises(ZeroDivisionError), account.locked("a", heartbeat=False) as lock:
        account.break_lock("a", ticket=lock.ticket)
        _ = 1 / 0


def test_the_heartbeat_finds_the_loss(account):
    """With a heartbeat the holder does not have to ask: the event is set by the next beat."""
    settings = LockSettings(request_timeout=0.2, poll_interval=0.01)
    with pytest.raises(LockLost), account.locked("a", lease=1.2, settings=settings) as lock:
        account.break_lock("a", ticket=lock.ticket)
        assert lock.lost.wait(60)


def test_the_heartbeat_ends_with_the_table(account):
    """A table that is deleted takes its locks along; no heartbeat renews them for ever."""
    settings = LockSettings(request_timeout=0.2)
    lock = account.locked("a", lease=1.2, settings=settings).acquire()
    account.delete_table()
    assert lock.lost.wait(60)
    with pytest.raises(LockLost) as caught:
        lock.release()
    assert caught.value.reason == "deleted"


@pytest.mark.waits
def test_the_heartbeat_keeps_a_lock_beyond_its_lease(account):
    """Renewals go on until the block ends."""
    settings = LockSettings(request_timeout=0.2, poll_interval=0.01)
    with account.locked("a", lease=1.2, settings=settings) as lock:
        while account.lock_state("a").holders[0].heartbeats < 4:
            assert not lock.lost.is_set()
        assert lock.is_held


@pytest.mark.parametrize("way", ["release", "edit", "delete"])
def test_a_heartbeat_that_comes_while_we_leave_proves_no_loss(account, way):
    """A renewal that finds our entry gone by our own doing neither sets `lost` nor calls back."""
    reasons = []
    edit = account.edit("a", on_lost=reasons.append)
    lock = edit.lock

    def beat_afterwards(original):
        def call(*arguments, **options):
            result = original(*arguments, **options)
            with pytest.raises(LockLost):
                lock._handle.entry.renew()
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        if way == "release":
            with lock:
                patch.setattr(lock_requests, "release", beat_afterwards(lock_requests.release))
        else:
            with edit as item:
                patch.setattr(ItemWork, "dispatch", beat_afterwards(ItemWork.dispatch))
                if way == "delete":
                    item.delete()
    assert not lock.lost.is_set()
    assert reasons == []


@pytest.mark.waits
def test_a_waiter_renews_its_entry(account):
    """Waiting longer than the lease keeps the place in the queue, however rare the looks are."""
    settings = LockSettings(
        request_timeout=0.2, min_poll_interval=60, poll_interval=60, max_poll_interval=60, max_clock_skew=0
    )
    waiter = account.locked("a", lease=1.2, settings=settings)
    with ThreadPoolExecutor(1) as pool, held_elsewhere(account.locked("a", settings=APART)):
        pool.submit(waiter.acquire)
        while (waiting := until_waiting(account, "a")[0]).heartbeats < 4:
            pass
    assert waiter.ticket == waiting.ticket
    waiter.release()


def test_a_waiter_that_was_evicted_enters_again(account):
    """A waiter that lost its place goes to the end of the queue instead of failing."""
    waiter = account.locked("a", wait=60)
    with ThreadPoolExecutor(1) as pool, held_elsewhere(account.locked("a", settings=APART)):
        pool.submit(waiter.acquire)
        before = until_waiting(account, "a")[0].ticket
        assert account.break_lock("a", ticket=before)
        while until_waiting(account, "a")[0].ticket == before:
            pass
    assert waiter.ticket > before
    waiter.release()


def test_a_waiter_learns_that_the_item_was_deleted(account):
    """Deleting an item under its lock sends its waiters away with `DoesNotExist`."""
    with ThreadPoolExecutor(1) as pool:
        with account.locked("a", settings=APART) as lock:
            waiter = pool.submit(account.locked("a").acquire)
            until_waiting(account, "a")
            lock.item.delete()
        with pytest.raises(account.DoesNotExist) as caught:
            waiter.result()
    assert isinstance(caught.value, ItemNotFound)


def test_a_full_queue_keeps_newcomers_outside(account):
    """Beyond `max_waiters` no caller enters; one that cannot wait is told, and the queue stays as it was."""
    settings = LockSettings(max_waiters=2, poll_interval=0.01, max_callers_per_entry=1)

    def take_and_release():
        with account.locked("a", settings=settings):
            pass

    with ThreadPoolExecutor(3) as pool:
        with held_elsewhere(account.locked("a", settings=settings)):
            waiters = [pool.submit(take_and_release) for _ in range(2)]
            until_waiting(account, "a", 2)
            with pytest.raises(LockTimeout, match="3 ahead"):
                account.locked("a", wait=0.05, settings=settings).acquire()
            assert len(account.lock_state("a").entries) == 3
            waiters.append(pool.submit(take_and_release))
        for waiter in waiters:
            waiter.result()
    assert account.lock_state("a").entries == ()


def test_named_locks_need_no_item(engine):
    """A name is enough; its row is made by the first lock and keeps its tickets."""
    engine.bind(Locks)
    with Locks.locked("nightly", wait=0) as lock:
        assert lock.name == "nightly"
        assert lock.item.name == "nightly"
        first = lock.ticket
        with pytest.raises(LockTimeout):
            in_thread(lambda: Locks.locked("nightly", wait=0).acquire())
        with Locks.locked("other", wait=0):
            pass
    with Locks.locked("nightly") as lock:
        assert lock.ticket == first + 1


def test_the_row_of_a_named_lock_outlives_its_lease(engine):
    """Every entry and renewal puts the row's TTL a day behind the end of the lease."""
    engine.bind(Locks)
    three_days = LockSettings(lease=3 * 24 * 3600, max_lease=3 * 24 * 3600, heartbeat=False)
    with Locks.locked("long", settings=three_days) as lock:
        expires = Locks.get("long").expires
        assert expires.timestamp() >= lock.item.lock.holders[0].until_ms / 1000 + 24 * 3600
        with shifted_clock() as clock:
            clock.shift += 3600
            lock.renew()
        assert Locks.get("long").expires.timestamp() >= expires.timestamp() + 3599


def test_a_lock_in_a_row_of_its_own(engine):
    """A model without a LockAttribute keeps its locks in Meta.lock_table, under a name of its own."""
    engine.bind(Locks, Device)
    Device("d/1", state="on").save()
    with Device.locked("d/1") as lock:
        assert lock.name == f"{Device.Meta.table_name}/d%2F1"
        assert lock.item.state == "on"
        assert Locks.lock_state(lock.name).holders[0].ticket == lock.ticket
        with pytest.raises(LockTimeout):
            in_thread(lambda: Device.locked("d/1", wait=0).acquire())
    assert Device.lock_state("d/1").entries == ()
    with Device.locked("new") as lock, pytest.raises(Device.DoesNotExist):
        _ = lock.item


def test_edit_saves_when_the_block_ends_well(engine):
    """`edit` reads, saves and releases; an exception saves nothing."""
    engine.bind(Locks, Account, Device, Document)
    Account("a", balance=1).save()
    Device("d").save()
    Document("f", 1).save()
    with Account.edit("a") as account:
        account.balance += 1
    with Device.edit("d") as device:
        device.total += 5
    with Document.edit("f", 1) as document:
        document.body = "text"
    with pytest.raises(ZeroDivisionError), Account.edit("a") as account:
        account.balance = 1 / 0
    assert Account.get("a").balance == 2
    assert Device.get("d").total == 5
    assert (Document.get("f", 1).body, Document.get("f", 1).version) == ("text", 2)
    assert not any(
        state.entries for state in (Account.lock_state("a"), Device.lock_state("d"), Document.lock_state("f", 1))
    )


def test_edit_gives_the_lock_back_when_the_save_is_refused(engine):
    """If the version moved behind the lock's back, nothing is saved and the lock is free."""
    engine.bind(Document)
    Document("f", 1).save()
    with pytest.raises(Exception, match="ConditionalCheckFailed"), Document.edit("f", 1) as document:
        document.body = "mine"
        engine.client().update_item(  # as a program does that knows nothing of locks
            TableName=Document.Meta.table_name,
            Key={"pk": {"S": "f"}, "sk": {"N": "1"}},
            UpdateExpression="SET v = :v",
            ExpressionAttributeValues={":v": {"N": "9"}},
        )
    assert Document.get("f", 1).body is None
    assert Document.lock_state("f", 1).entries == ()


def test_several_locks_are_all_or_none(engine):
    """`locked_all` holds all of them, in any order of arguments, or none after its one deadline."""
    engine.bind(Locks, Account, Device)
    Account("a").save()
    Account("b").save()
    with locked_all(
        Account.locked("b"), Locks.locked("x"), Device.locked("d"), Account.locked("a"), Account.locked("a")
    ) as all_:
        assert [lock.is_held for lock in all_] == [True] * 5
        assert all_[0].item.account_id == "b"
    assert not any(lock.is_held for lock in all_)
    with held_elsewhere(Account.locked("b")):
        with pytest.raises(LockTimeout), locked_all(Account.locked("a"), Account.locked("b"), wait=0.05):
            pass
        assert Account.lock_state("a").entries == ()
        assert len(Account.lock_state("b").entries) == 1


def test_opposite_orders_do_not_deadlock(engine):
    """Two parties that name the same locks in opposite orders both finish."""
    engine.bind(Account)
    Account("a").save()
    Account("b").save()

    def work(names):
        for _ in range(5):
            with locked_all(*(Account.locked(name) for name in names), wait=60) as locks:
                for lock in locks:
                    lock.item.balance += 1
                    lock.item.save()
                    lock.item.refresh()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, ["ab", "ba"]))
    assert [Account.get(name).balance for name in "ab"] == [10, 10]


def test_settings_come_from_the_model_and_arguments_win(account):
    """Meta.lock_settings applies unless an argument says otherwise."""
    assert account.lock_settings() is QUICK
    with account.locked("a", lease=timedelta(minutes=2)) as lock:
        assert 119 < lock.remaining <= 120
