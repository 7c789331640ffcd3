"""Taking, keeping and giving back locks, in threads and in tasks."""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from pynamo_locking import LockSettings, locked_all
from pynamo_locking.exceptions import ConfigurationError, ItemLocked, ItemNotFound, LockLost, LockTimeout
from pynamo_locking_testing import VirtualClock
from tests.integration.locks.conftest import granted_in_turn, until_waiting
from tests.support.models import APART, QUICK, Account, Device, Document, Locks
from tests.support.parties import SLOW_CLOCK, abandoned, held_elsewhere, in_thread, shifted_clock
from tests.support.wire import ALL, count_requests, on
from tests.support.workers import until

pytestmark = pytest.mark.core

#: Only silence that was watched proves that an entry is dead.
NO_HINT = LockSettings(max_clock_skew=None, poll_interval=0.5, max_poll_interval=0.5, max_callers_per_entry=1)


def with_account(engine):
    """An account with 100 in it, and a lock document."""
    engine.bind(Account)
    Account("a", balance=100).save()
    with Account.locked("a"):
        pass
    return Account


@pytest.fixture
def account(memory):
    return with_account(memory)


@pytest.fixture
def account_anywhere(engine):
    return with_account(engine)


@pytest.fixture
def clock():
    with VirtualClock() as clock:
        yield clock


async def test_the_facts_and_the_cost_of_a_lock(account_anywhere, way):
    """The item comes with the lock, which shows its holder; 1 write to enter, 1 to leave, no read."""
    lock = account_anywhere.locked("a", lease=50, owner="me")
    assert (lock.is_held, lock.remaining, lock.owner) == (False, 0.0, "me")
    with count_requests() as counted:
        async with way(lock) as same:
            assert same is lock
            assert lock.is_held
            assert 0 < lock.remaining <= 50
            assert lock.item.balance == 100
            assert lock.item is lock.item
            assert str(lock.ticket) in repr(lock)
            assert lock.item.lock.holders[0].ticket == lock.ticket
    assert counted.by_operation == {"UpdateItem": 2}
    assert not lock.is_held
    async with way(lock):
        (holder,) = account_anywhere.lock_state("a").holders
        assert (holder.owner, holder.ticket, holder.lease, holder.mode) == ("me", lock.ticket, 50.0, "exclusive")
    assert account_anywhere.lock_state("a").entries == ()


def test_tickets_only_grow(account_anywhere):
    """Every holder has a larger ticket than every earlier one, also after the item was made anew."""
    tickets = []
    for _ in range(3):
        with account_anywhere.locked("a") as lock:
            tickets.append(lock.ticket)
    account_anywhere.get("a").delete()
    account_anywhere("a").save()
    with account_anywhere.locked("a") as lock:
        tickets.append(lock.ticket)
    assert tickets == sorted(set(tickets))


def test_tickets_of_an_item_that_is_made_anew_begin_at_its_microsecond(account):
    """Three tickets, a deletion and a new document within a ms: no ticket is given twice."""
    account("b").save()
    tickets = []
    with VirtualClock(auto_jump=False) as clock:
        for _ in range(2):
            for _ in range(3):
                with account.locked("b", wait=0, heartbeat=False) as lock:
                    tickets.append(lock.ticket)
            clock.jump(0.001)
            account.get("b").delete()
            account("b").save()
    assert tickets[:3] == [tickets[0] + n for n in range(3)]
    assert tickets[3] >= tickets[0] + 1000
    assert float(tickets[-1]) == tickets[-1] < 2**53  # also for those who know no integers


def test_waiters_are_served_in_the_order_of_their_entries(account_anywhere):
    """First come, first served, whichever waiter looks first after a release."""
    locks = [account_anywhere.locked("a", settings=APART) for _ in range(5)]
    holder = account_anywhere.locked("a", settings=APART)
    assert granted_in_turn(account_anywhere, "a", holder, *enumerate(locks)) == [0, 1, 2, 3, 4]
    tickets = [lock.ticket for lock in locks]
    assert tickets == sorted(tickets)
    assert account_anywhere.lock_state("a").entries == ()


@pytest.mark.parametrize("wait", [0, timedelta(milliseconds=60)])
async def test_a_wait_ends_and_leaves_nothing(account_anywhere, way, wait):
    """The error names who holds the lock, and no entry is left in the queue; with `wait=0` none was there."""
    with held_elsewhere(account_anywhere.locked("a", owner="somebody")) as other:
        with pytest.raises(LockTimeout, match="1 ahead; held by somebody") as caught:
            await way.call(account_anywhere.locked("a", wait=wait), "acquire")
        assert [entry.ticket for entry in account_anywhere.lock_state("a").entries] == [other.ticket]
        assert caught.value.queue.holders[0].owner == "somebody"
        assert isinstance(caught.value, TimeoutError)


def test_an_infinite_wait_ends_with_the_turn(account):
    """`math.inf` waits until it is our turn."""
    waiter = account.locked("a", wait=math.inf)
    assert granted_in_turn(account, "a", account.locked("a", settings=APART), ("waiter", waiter)) == ["waiter"]


async def test_an_exception_in_the_block_gives_the_lock_back(account, way):
    """Leaving by an exception removes the entry and lets the exception through."""
    with pytest.raises(ZeroDivisionError):
        async with way(account.locked("a")):
            _ = 1 / 0
    assert account.lock_state("a").entries == ()


async def test_the_same_party_enters_again_with_the_same_ticket(account, way):
    """Re-entry counts, and costs nothing; the last release removes the entry. Another party waits, and writes not."""

    async def other():
        assert not await way.is_free(account.locked("a"))
        with pytest.raises(ItemLocked):
            account.get("a").save()

    async with way(account.locked("a")) as outer:
        with count_requests() as counted:
            async with way(account.locked("a", wait=0)) as inner:
                assert inner.ticket == outer.ticket
                assert inner.item is outer.item
        assert counted.total == 0
        assert outer.is_held
        assert not inner.is_held
        assert len(account.lock_state("a").entries) == 1
        in_thread(lambda: asyncio.run(other()))
    assert account.lock_state("a").entries == ()


async def test_one_lock_object_counts_its_takes(account, way):
    """acquire() twice needs release() twice, and the object can be used again."""
    lock = account.locked("a")
    for _ in range(2):
        assert await way.call(lock, "acquire") is lock
    await way.call(lock, "release")
    assert lock.is_held
    await way.call(lock, "release")
    assert not lock.is_held
    first = lock.ticket
    async with way(lock):
        assert lock.ticket > first
    with pytest.raises(ConfigurationError, match="not held"):
        await way.call(lock, "release")


def test_a_copied_context_is_the_same_holder(account):
    """It enters again, and gives back what it took."""
    with account.locked("a") as lock:
        context = contextvars.copy_context()
        again = context.run(lambda: account.locked("a", wait=0).acquire())
        assert again.ticket == lock.ticket
        context.run(again.release)


async def test_a_lock_object_is_for_one_party(account, way):
    """Using one Lock object from two threads or tasks is refused with a reason."""
    async with way(account.locked("a")) as lock:
        with pytest.raises(ConfigurationError, match=r"in use|another thread"):
            await way.apart(lambda: way.call(lock, "acquire"))


def test_a_dead_entry_is_skipped_at_once_by_its_hint(account_anywhere):
    """No caller waits for a process that died long ago, not even with `wait=0`; one that may live is not evicted."""
    with shifted_clock() as clock:
        dead = abandoned(account_anywhere.locked("a", lease=6))
        clock.shift += 6 + 9.5  # less than the clock skew ago
        with pytest.raises(LockTimeout):
            account_anywhere.locked("a", wait=0).acquire()
        clock.shift += 0.6
        with account_anywhere.locked("a", wait=0) as lock:
            assert lock.ticket > dead.ticket
        state = account_anywhere.lock_state("a")
        assert state.was_evicted(dead.ticket) is True
        assert state.was_evicted(lock.ticket) is False


def test_without_the_hint_a_whole_lease_is_watched(account, clock):
    """With `max_clock_skew=None` only an unchanged beat counts, from our own first look."""
    with clock.another_process():
        dead = in_thread(account.locked("a", lease=6, heartbeat=False, settings=NO_HINT).acquire)
    clock.sleep(3600)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ItemLocked):
        patch.setattr(account.Meta, "lock_settings", NO_HINT)
        account.get("a").save()  # nothing proves to a plain save that the holder is dead
    began = clock.elapsed
    with account.locked("a", wait=1000, lease=30, settings=NO_HINT) as lock:
        assert 6 * SLOW_CLOCK <= clock.elapsed - began < 7.5
        assert lock.ticket > dead.ticket


def test_a_renewed_entry_is_not_evicted(account, clock):
    """Each beat that a waiter sees starts the lease anew for it."""
    with held_elsewhere(account.locked("a", lease=6, settings=NO_HINT)) as holder:
        with pytest.raises(LockTimeout):
            account.locked("a", wait=60, lease=30, settings=NO_HINT).acquire()
        assert clock.elapsed >= 60
        assert [entry.ticket for entry in account.lock_state("a").entries] == [holder.ticket]


async def test_renew_and_ensure_prolong_the_lease(account, way):
    """Without a heartbeat, the caller renews; `ensure_remaining` renews only when too little is left."""
    with shifted_clock() as clock:
        async with way(account.locked("a", lease=12, heartbeat=False)) as lock:
            clock.shift += 8
            assert 3 < lock.remaining <= 4
            await way.call(lock, "ensure_remaining", 2)
            assert lock.remaining <= 4
            await way.call(lock, "ensure_remaining", 5)
            assert lock.remaining > 11
            clock.shift += 8
            with count_requests() as counted:
                await way.call(lock, "renew")
            assert counted.by_operation == {"UpdateItem": 1}
            assert lock.remaining > 11
            with pytest.raises(ConfigurationError, match="can never hold"):
                await way.call(lock, "ensure_remaining", 12)


@pytest.mark.parametrize("operation", ["enter", "renew"])
def test_the_lease_counts_from_before_the_write(account, operation):
    """Time that a request takes is not ours: the answer says nothing about when it was applied."""
    with shifted_clock() as clock:

        def pass_time():
            clock.shift += 5

        lock = account.locked("a", lease=1000, heartbeat=False)
        with on("UpdateItem", nth=1 if operation == "enter" else 2).after(pass_time) as slow, lock:
            if operation == "renew":
                lock.renew()
            assert slow.hits == 1
            assert lock.remaining <= 995


def test_the_lease_of_a_waiter_counts_from_before_its_renewal(account):
    """Time that the answer to its renewal takes is not its own, when it is granted the lock then."""

    def is_renewal(body):
        return ":beat" in body["ExpressionAttributeValues"]

    def pass_time():
        clock.shift += 30

    waiter = account.locked("a", lease=60, wait=1000, settings=APART)
    slow = on("UpdateItem", where=is_renewal).after(pass_time)
    lost = on("UpdateItem", where=is_renewal, nth=2, times=ALL).lose_request()
    with shifted_clock() as clock, slow as renewal, lost, ThreadPoolExecutor(1) as pool:
        with held_elsewhere(account.locked("a", lease=1000, heartbeat=False, settings=APART)):
            entering = pool.submit(waiter.acquire)
            until_waiting(account, "a")
            clock.shift += 21
            until(lambda: renewal.hits, "a renewal")
        entering.result()
        assert 0 < waiter.remaining <= 30
        waiter.release()


def test_the_lease_of_a_newcomer_counts_from_when_it_got_in(account):
    """Time spent outside of a full queue is not taken off the lease."""
    full = LockSettings(max_waiters=1, max_clock_skew=None, max_callers_per_entry=1, poll_interval=0.01)
    waiter = account.locked("a", settings=full, lease=9000, wait=60)
    late = account.locked("a", settings=full, lease=10_000, wait=9000, heartbeat=False)
    with shifted_clock() as clock, ThreadPoolExecutor(2) as pool:
        with held_elsewhere(account.locked("a", settings=full, lease=9000)):
            waiting = pool.submit(waiter.acquire)
            (before,) = until_waiting(account, "a")
            # Between two requests of the newcomer: one that was under way could enter, with a lease from before it.
            refused = threading.Event()

            def pass_time():
                clock.shift += 300
                refused.set()

            with on("UpdateItem").after(pass_time):
                entering = pool.submit(late.acquire)
                assert refused.wait(60)
            assert isinstance(waiting.exception(60), LockTimeout)
            until(lambda: until_waiting(account, "a")[0].ticket > before.ticket, "the newcomer")
        entering.result()
        assert late.remaining > 9_800
        late.release()


async def test_loss_is_proven_by_the_next_renewal(account_anywhere, way):
    """A broken lock sets `lost`, calls back with the reason, and ends the block with `LockLost`."""
    reasons, called = [], threading.Event()

    def on_lost(reason):
        reasons.append(reason)
        called.set()

    with pytest.raises(LockLost) as caught:
        async with way(account_anywhere.locked("a", heartbeat=False, on_lost=on_lost)) as lock:
            assert account_anywhere.break_lock("a", ticket=lock.ticket)
            assert not account_anywhere.break_lock("a", ticket=lock.ticket)
            assert not lock.lost.is_set()
            with pytest.raises(LockLost):
                await way.call(lock, "renew")
            assert lock.lost.is_set()
            assert not lock.is_held
            called.wait()
    assert reasons == ["evicted"]
    assert (caught.value.reason, caught.value.ticket) == ("evicted", lock.ticket)


async def test_a_loss_never_hides_the_exception_of_the_block(account, way):
    """If the block raises as well, its exception is the one that is seen."""
    with pytest.raises(ZeroDivisionError):
        async with way(account.locked("a", heartbeat=False)) as lock:
            account.break_lock("a", ticket=lock.ticket)
            _ = 1 / 0


def test_the_heartbeat_finds_the_loss(account, clock):
    """With a heartbeat the holder does not have to ask: the event is set by the next beat."""
    with pytest.raises(LockLost), account.locked("a", lease=12) as lock:
        account.break_lock("a", ticket=lock.ticket)
        clock.sleep(4.1)
        assert lock.lost.is_set()


def test_the_heartbeat_ends_with_the_table(account, clock):
    """A table that is deleted takes its locks along; no heartbeat renews them for ever."""
    lock = account.locked("a", lease=12).acquire()
    account.delete_table()
    clock.sleep(4.1)
    assert lock.lost.is_set()
    with pytest.raises(LockLost) as caught:
        lock.release()
    assert caught.value.reason == "deleted"


async def test_the_heartbeat_keeps_a_lock_beyond_its_lease(account, clock, way):
    """Renewals go on until the block ends: one after each third of the lease."""
    async with way(account.locked("a", lease=12)) as lock:
        clock.sleep(41)
        assert account.lock_state("a").holders[0].heartbeats == 10
        assert lock.is_held


@pytest.mark.parametrize("end", ["release", "edit", "delete"])
def test_a_heartbeat_that_comes_while_we_leave_proves_no_loss(account, clock, end):
    """A renewal that finds our entry gone by our own doing neither sets `lost` nor calls back."""
    reasons = []
    edit = account.edit("a", on_lost=reasons.append, lease=60)
    leaving = on("UpdateItem", "DeleteItem", nth=2).after(lambda: clock.sleep(25))
    renewed = on("UpdateItem", nth=2 if end == "delete" else 3).watch()
    with leaving as left, renewed as renewals, edit.lock if end == "release" else edit as item:
        if end == "delete":
            item.delete()
    assert (left.hits, renewals.hits) == (1, 1)
    assert not edit.lock.lost.is_set()
    assert reasons == []


def test_a_waiter_renews_its_entry(account, clock):
    """Waiting longer than the lease keeps the place in the queue, however rare the looks are."""
    rare = LockSettings(min_poll_interval=60, poll_interval=60, max_poll_interval=60, max_clock_skew=0)
    waiter = account.locked("a", lease=12, wait=1000, settings=rare)
    with ThreadPoolExecutor(1) as pool, held_elsewhere(account.locked("a", settings=APART)):
        pool.submit(waiter.acquire)
        before = until_waiting(account, "a")[0]
        clock.sleep(50)
        (after,) = account.lock_state("a").waiters
        assert after.ticket == before.ticket
        assert after.heartbeats >= 4
    assert waiter.ticket == before.ticket
    waiter.release()


def test_a_waiter_that_was_evicted_enters_again(account):
    """A waiter that lost its place goes to the end of the queue instead of failing."""
    waiter = account.locked("a", wait=60)
    with ThreadPoolExecutor(1) as pool, held_elsewhere(account.locked("a", settings=APART)):
        pool.submit(waiter.acquire)
        before = until_waiting(account, "a")[0].ticket
        assert account.break_lock("a", ticket=before)
        until(lambda: until_waiting(account, "a")[0].ticket > before, "a new entry")
    assert waiter.ticket > before
    waiter.release()


def test_a_waiter_learns_that_the_item_was_deleted(account_anywhere):
    """Deleting an item under its lock sends its waiters away with `DoesNotExist`."""
    with ThreadPoolExecutor(1) as pool:
        with account_anywhere.locked("a", settings=APART) as lock:
            waiter = pool.submit(account_anywhere.locked("a").acquire)
            until_waiting(account_anywhere, "a")
            lock.item.delete()
        with pytest.raises(account_anywhere.DoesNotExist) as caught:
            waiter.result()
    assert isinstance(caught.value, ItemNotFound)


def test_a_full_queue_keeps_newcomers_outside(account_anywhere):
    """Beyond `max_waiters` no caller enters; one that cannot wait is told, and the queue stays as it was."""
    settings = LockSettings(max_waiters=2, poll_interval=0.01, max_callers_per_entry=1)

    def take_and_release():
        with account_anywhere.locked("a", settings=settings):
            pass

    with ThreadPoolExecutor(3) as pool:
        with held_elsewhere(account_anywhere.locked("a", settings=settings)):
            waiters = [pool.submit(take_and_release) for _ in range(2)]
            until_waiting(account_anywhere, "a", 2)
            with pytest.raises(LockTimeout, match="3 ahead"):
                account_anywhere.locked("a", wait=0.05, settings=settings).acquire()
            assert len(account_anywhere.lock_state("a").entries) == 3
            waiters.append(pool.submit(take_and_release))
        for waiter in waiters:
            waiter.result()
    assert account_anywhere.lock_state("a").entries == ()


async def test_named_locks_need_no_item(engine, way):
    """A name is enough; its row is made by the first lock and keeps its tickets."""
    engine.bind(Locks)
    async with way(Locks.locked("nightly", wait=0)) as lock:
        assert lock.name == "nightly"
        assert lock.item.name == "nightly" if not way.is_awaited else (await lock.aitem()).name == "nightly"
        first = lock.ticket
        assert not await way.is_free(Locks.locked("nightly"))
        assert await way.is_free(Locks.locked("other"))
    async with way(Locks.locked("nightly")) as lock:
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


async def test_edit_saves_when_the_block_ends_well(engine, way):
    """`edit` reads, saves and releases, for two writes with the lock in the item; an exception saves nothing."""
    engine.bind(Locks, Account, Device, Document)
    with_account(engine)
    Device("d").save()
    Document("f", 1).save()
    with count_requests() as counted:
        async with way(Account.edit("a")) as account:
            account.balance += 1
    assert counted.by_operation == {"UpdateItem": 2}
    async with way(Device.edit("d")) as device:
        device.total += 5
    async with way(Document.edit("f", 1)) as document:
        document.body = "text"
    with pytest.raises(ZeroDivisionError):
        async with way(Account.edit("a")) as account:
            account.balance = 1 / 0
    assert (Account.get("a").balance, Device.get("d").total) == (101, 5)
    assert (Document.get("f", 1).body, Document.get("f", 1).version) == ("text", 2)
    for state in (Account.lock_state("a"), Device.lock_state("d"), Document.lock_state("f", 1)):
        assert state.entries == ()


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


async def test_several_locks_are_all_or_none(engine, way):
    """`locked_all` holds all of them, in any order of arguments, or none after its one deadline."""
    engine.bind(Locks, Account, Device)
    Account("a").save()
    Account("b").save()
    several = Account.locked("b"), Locks.locked("x"), Device.locked("d"), Account.locked("a"), Account.locked("a")
    async with way(locked_all(*several)) as held:
        assert [lock.is_held for lock in held] == [True] * 5
        assert held[0].item.account_id == "b"
    assert not any(lock.is_held for lock in held)
    with held_elsewhere(Account.locked("b")):
        with pytest.raises(LockTimeout, match=r" within 0(\.0[0-5]\d?)? s: "):  # what was left of it
            async with way(locked_all(Account.locked("a"), Account.locked("b"), wait=0.05)):
                pass
        assert Account.lock_state("a").entries == ()
        assert len(Account.lock_state("b").entries) == 1


async def test_opposite_orders_do_not_deadlock(memory, way):
    """Two parties that name the same locks in opposite orders both finish."""
    memory.bind(Account)
    Account("a").save()
    Account("b").save()

    async def work(names):
        for _ in range(5):
            async with way(locked_all(*(Account.locked(name) for name in names), wait=60)) as locks:
                for lock in locks:
                    lock.item.balance += 1
                    await asyncio.to_thread(lock.item.save)
                    await asyncio.to_thread(lock.item.refresh)

    if way.is_awaited:
        await asyncio.gather(work("ab"), work("ba"))
    else:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda names: asyncio.run(work(names)), ["ab", "ba"]))
    assert [Account.get(name).balance for name in "ab"] == [10, 10]


def test_settings_come_from_the_model_and_arguments_win(account):
    """Meta.lock_settings applies unless an argument says otherwise."""
    assert account.lock_settings() is QUICK
    with account.locked("a", lease=timedelta(minutes=2)) as lock:
        assert 119 < lock.remaining <= 120
