"""Shared locks, semaphores, ranges, and taking what is free, on every engine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest
from pynamodb.attributes import BinaryAttribute, UTCDateTimeAttribute

from pynamo_locking import TransactWrite, locked_all, transaction
from pynamo_locking._io import client, lock_requests
from pynamo_locking.exceptions import (
    ConfigurationError,
    InvalidInput,
    ItemLocked,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
)
from tests.integration.locks.conftest import granted_in_turn, until_waiting
from tests.support.models import Account, Device, Document, Locks, declare
from tests.support.parties import abandoned, held_elsewhere, in_thread, shifted_clock
from tests.support.wire import count_requests, on

pytestmark = pytest.mark.core

UTC = timezone.utc

Booking = declare(
    "Booking", hash_key="device_id", texts="note", lock_table=Locks, begin=UTCDateTimeAttribute(range_key=True)
)
Reading = declare("Reading", hash_key="device_id", range_key="number", numbers="value", lock_table=Locks)
Chunk = declare("Chunk", hash_key="file", lock_table=Locks, at=BinaryAttribute(range_key=True, legacy_encoding=False))
#: Bytes that are stored in base 64, which sorts otherwise.
Old = declare(
    "Old", table_name="old", hash_key="file", lock_table=Locks, at=BinaryAttribute(range_key=True, legacy_encoding=True)
)


# In memory, and where their requests are new on each engine: an account with 100 in it, locks without items, and a
# device with three readings.


def with_account(engine):
    engine.bind(Account)
    Account("a", balance=100).save()
    return Account


def with_readings(engine):
    engine.bind(Reading, Locks)
    for number in range(3):
        Reading("d", number).save()
    return Reading


@pytest.fixture
def account(memory):
    return with_account(memory)


@pytest.fixture
def account_anywhere(engine):
    return with_account(engine)


@pytest.fixture
def locks(memory):
    return memory.bind(Locks)


@pytest.fixture
def locks_anywhere(engine):
    return engine.bind(Locks)


@pytest.fixture
def reading(memory):
    return with_readings(memory)


@pytest.fixture
def reading_anywhere(engine):
    return with_readings(engine)


def hour(n):
    return datetime(2026, 1, 1, n, tzinfo=UTC)


def transact(model=None):
    return TransactWrite(connection=(model or Reading)._get_connection().connection)


def is_free(lock):
    """Whether another party gets a lock at once."""

    def attempt():
        try:
            lock.acquire(wait=0)
        except LockTimeout:
            return False
        lock.release()
        return True

    return in_thread(attempt)


# Shared


async def test_readers_hold_together_and_writers_alone(account_anywhere, way):
    """Any number of readers, none beside a writer, and the item as it was when each came."""
    account = account_anywhere
    with held_elsewhere(account.locked("a", shared=True)):
        async with way(account.locked("a", shared=True, wait=0)) as lock:
            assert lock.item.balance == 100
            assert [holder.mode for holder in account.lock_state("a").holders] == ["shared", "shared"]
            assert not await way.is_free(account.locked("a"))
            assert await way.is_free(account.locked("a", shared=True))
        with pytest.raises(ItemLocked):  # a reader is protected like a holder
            account.get("a").update([Account.balance.add(1)])
    async with way(account.locked("a")):
        assert not await way.is_free(account.locked("a", shared=True))
    assert account.lock_state("a").entries == ()


def test_no_writes_under_a_shared_lock(account):
    """Refused before any request, with what to do instead; checks of other items may name it."""
    with account.locked("a", shared=True) as lock:
        for write in (
            lock.item.save,
            lock.item.delete,
            lambda: lock.item.update([Account.balance.add(1)]),
            account("a").save,
        ):
            with pytest.raises(ConfigurationError, match="acquire it exclusively"):
                write()
        with transact(Account) as together:
            lock.add_check_to(together)
            together.save(account("b", balance=1))
    assert (account.get("a").balance, account.get("b").balance) == (100, 1)


def test_a_transaction_inside_a_shared_lock(memory):
    """It may read the item and write others, and must not write this one."""
    memory.bind(Device, Locks)
    for key in "ab":
        Device(key).save()
    with Device.locked("a", shared=True):
        with transaction() as tx:
            assert tx.get(Device, "a").total == 0
            tx.update(tx.get(Device, "b"), [Device.total.add(5)])
        with pytest.raises(ConfigurationError, match="acquire it exclusively"), transaction() as tx:
            tx.update(tx.get(Device, "a"), [Device.total.add(5)])
    assert [Device.get(key).total for key in "ab"] == [0, 5]


def test_no_upgrade(account):
    """Two readers who both want to write would wait for each other: refused at once, and the lock is kept."""
    with account.locked("a", shared=True) as lock:
        for other in (account.locked("a"), account.locked("a", permits=2)):
            with pytest.raises(ConfigurationError, match="not upgraded"):
                other.acquire()
        assert lock.is_held
        with account.locked("a", shared=True) as again:
            assert again.ticket == lock.ticket
        assert lock.is_held


def test_who_has_it_alone_may_read(account):
    """Asking again for less gets the same ticket."""
    with account.locked("a") as lock, account.locked("a", shared=True) as again:
        assert again.ticket == lock.ticket
        again.item.balance = 5
        lock.item.save()


async def test_downgrade(account_anywhere, way):
    """Readers who wait get in, writers do not, and the one who wrote cannot write any more."""
    account, entered, done = account_anywhere, threading.Event(), threading.Event()

    def read():
        with account.locked("a", shared=True):
            entered.set()
            done.wait()

    with ThreadPoolExecutor(1) as pool:
        async with way(account.locked("a")) as lock:
            pool.submit(read)
            until_waiting(account, "a")
            lock.item.update([Account.balance.add(1)])
            await way.call(lock, "downgrade")
            assert entered.wait(60)
            with count_requests() as counted:  # the reader waits no more, so it sends nothing
                await way.call(lock, "downgrade")
            assert counted.total == 0
            assert lock.is_held
            assert not await way.is_free(account.locked("a"))
            with pytest.raises(ConfigurationError, match="acquire it exclusively"):
                lock.item.save()
            done.set()
    assert account.get("a").balance == 101


def test_a_transaction_that_was_prepared_before_a_downgrade(memory):
    """Its commit is refused like any write under a shared lock."""
    memory.bind(Document)
    Document("f", 1, body="old").save()
    with Document.locked("f", 1) as lock:
        with pytest.raises(ConfigurationError, match="acquire it exclusively"), transaction() as tx:
            item = tx.get(Document, "f", 1)
            item.body = "new"
            tx.save(item)
            lock.downgrade()
        with Document.locked("f", 1, shared=True) as again:
            assert again.ticket == lock.ticket
    assert Document.get("f", 1).body == "old"


def test_a_downgrade_that_is_not_answered(account):
    """It may have arrived: nothing is written any more, and doing it again is safe; once it is answered it is done."""
    with account.locked("a") as lock:
        with on("UpdateItem", times=4).lose_response(), pytest.raises(OutcomeUnknown):
            lock.downgrade()
        with pytest.raises(ConfigurationError, match="acquire it exclusively"):
            lock.item.save()
        with on("UpdateItem", times=1).lose_response():
            lock.downgrade()
        with count_requests() as counted:
            lock.downgrade()
        assert counted.total == 0
        assert account.lock_state("a").holders[0].mode == "shared"
    assert account.lock_state("a").entries == ()


def test_a_downgrade_of_what_is_lost(account):
    """Who was evicted is told."""
    lock = account.locked("a", heartbeat=False).acquire()
    assert account.break_lock("a", ticket=lock.ticket)
    with pytest.raises(LockLost):
        lock.downgrade()
    with pytest.raises(LockLost):
        lock.release()


def test_a_reader_waits_behind_a_waiting_writer(account):
    """First come, first served, so that readers do not starve it."""
    holder, writer, reader = account.locked("a", shared=True), account.locked("a"), account.locked("a", shared=True)
    assert granted_in_turn(account, "a", holder, ("writer", writer), ("reader", reader)) == ["writer", "reader"]


def test_dead_readers_are_evicted_all_at_once(account_anywhere):
    """And all of them are told, as they held it."""
    with shifted_clock() as clock:
        readers = [abandoned(account_anywhere.locked("a", shared=True, heartbeat=False)) for _ in range(3)]
        clock.shift += 200
        with account_anywhere.locked("a", wait=5) as lock:
            state = account_anywhere.lock_state("a")
            assert [entry.ticket for entry in state.entries] == [lock.ticket]
            assert [state.was_evicted(reader.ticket) for reader in readers] == [True] * 3


def test_readers_that_are_evicted_out_of_order(account):
    """Of two whose traces share a place the younger one's stays: it must not be told that it left by itself."""
    with shifted_clock() as clock:
        old = abandoned(account.locked("a", shared=True, heartbeat=False, lease=500))
        others = [abandoned(account.locked("a", shared=True, heartbeat=False)) for _ in range(8)]
        clock.shift += 200
        with pytest.raises(LockTimeout):
            account.locked("a", wait=0.05).acquire()  # evicts the dead, and finds the oldest alive
        clock.shift += 400
        assert others[-1].ticket == old.ticket + 8
        with account.locked("a", wait=5):
            state = account.lock_state("a")
            assert len(state.entries) == 1
    assert [state.was_evicted(one.ticket) for one in others] == [True] * 8
    assert state.was_evicted(old.ticket) is None


def test_an_eviction_seen_from_an_old_image_does_not_lower_a_trace(account):
    """A party that did not know of the later trace looks again."""
    with shifted_clock() as clock:
        first = abandoned(account.locked("a", shared=True, heartbeat=False))
        image = account.lock_state("a")
        others = [abandoned(account.locked("a", shared=True, heartbeat=False)) for _ in range(8)]
        assert account.break_lock("a", ticket=others[-1].ticket)
        row = first._handle.target.row
        with pytest.raises(client.Refused):
            lock_requests.evict(row, image.entries, image.evicted)
        lock_requests.evict(row, image.entries, account.lock_state("a").evicted)
        clock.shift += 200
        state = account.lock_state("a")
        assert (state.was_evicted(others[-1].ticket), state.was_evicted(first.ticket)) == (True, None)


# Semaphores


async def test_a_semaphore_has_so_many_holders(locks_anywhere, way):
    """And the next one waits for any of them."""
    with held_elsewhere(locks_anywhere.locked("s", permits=2)):
        async with way(locks_anywhere.locked("s", permits=2)) as mine:
            assert len(locks_anywhere.lock_state("s").holders) == 2
            assert not await way.is_free(locks_anywhere.locked("s", permits=2))
            item = await mine.aitem()
            with pytest.raises(ConfigurationError, match="acquire it exclusively"):
                item.save()
            with pytest.raises(ConfigurationError, match="semaphore"):
                await way.call(mine, "downgrade")
        assert await way.is_free(locks_anywhere.locked("s", permits=2))


def test_contenders_must_agree_on_the_permits(locks):
    """Both numbers are named, nothing is left behind, and once all have left another number will do."""
    with held_elsewhere(locks.locked("s", permits=3)):
        for other in (locks.locked("s", permits=2), locks.locked("s"), locks.locked("s", shared=True)):
            for wait in (0, 5):
                with pytest.raises(ConfigurationError, match=r"permits=[12] .* permits=3"):
                    other.acquire(wait=wait)
        assert len(locks.lock_state("s").entries) == 1
    with locks.locked("s", permits=2):
        pass


def test_who_died_long_ago_does_not_decide_on_the_permits(locks):
    """Otherwise a crash would forbid another number for ever."""
    with shifted_clock() as clock:
        abandoned(locks.locked("s", permits=3, heartbeat=False))
        clock.shift += 200
        with locks.locked("s", permits=1, wait=5):
            assert len(locks.lock_state("s").entries) == 1


@pytest.mark.parametrize(
    "options", [{"permits": 0}, {"permits": 1.5}, {"permits": 401}, {"permits": True}, {"permits": 2, "shared": True}]
)
def test_permits_that_cannot_be(options):
    """Refused where the lock is made."""
    with pytest.raises(ConfigurationError, match="permits"):
        Locks.locked("s", **options)


@pytest.mark.parametrize("way", ["locked", "edit", "try_locked", "locked_first"])
def test_an_option_that_there_is_not(way):
    """A slip of the pen is refused before any request, in whatever way it is handed on."""
    with count_requests() as counted, pytest.raises(TypeError, match="unexpected keyword argument 'wayt'"):
        getattr(Device, way)(["a"] if way == "locked_first" else "a", wayt=3)
    assert counted.total == 0


@pytest.mark.parametrize("options", [{"shared": True}, {"permits": 2}])
def test_an_edit_is_alone(options):
    """It writes."""
    with pytest.raises(ConfigurationError, match=r"edit\(\) writes"):
        Account.edit("a", **options)


# Ranges


@pytest.mark.parametrize(
    ("bounds", "is_free_then"),
    [
        ((0, 10), True),  # adjacent: half-open
        ((20, 30), True),
        ((5, 15), False),
        ((12, 13), False),
        ((19, 40), False),
        ((None, None), False),
        ((None, 10), True),
        ((20, None), True),
        ((None, 11), False),
        ((Decimal("19.9"), None), False),
    ],
)
def test_ranges_conflict_where_they_overlap(locks, bounds, is_free_then):
    """Adjacent ones do not, and open ends reach to the end; `locked` is the whole."""
    with held_elsewhere(locks.locked_range("x", 10, 20)):
        assert is_free(locks.locked_range("x", *bounds)) is is_free_then
        assert not is_free(locks.locked("x"))
    assert is_free(locks.locked("x"))


@pytest.mark.parametrize(
    ("lower", "middle", "upper"),
    [("a", "b", "c"), (b"\x01", b"\x80", b"\xff"), (hour(1), hour(2), hour(3)), (9, 10, 11), (1.5, 2, 2.5)],
)
def test_ranges_of_names(locks_anywhere, lower, middle, upper):
    """Numbers, strings, bytes and times."""
    with held_elsewhere(locks_anywhere.locked_range("x", lower, middle)):
        assert is_free(locks_anywhere.locked_range("x", middle, upper))
        assert not is_free(locks_anywhere.locked_range("x", lower, upper))


def test_times_are_compared_as_moments(locks):
    """Whatever time zone they are given in."""
    east = timezone(timedelta(hours=5))
    with held_elsewhere(locks.locked_range("x", hour(1), hour(2))):
        assert is_free(locks.locked_range("x", hour(2).astimezone(east), hour(3).astimezone(east)))
        assert not is_free(locks.locked_range("x", hour(1).astimezone(east), None))


def test_shared_ranges(locks):
    """Readers of one part together, a writer of it not beside them, a writer of another part is."""
    with held_elsewhere(locks.locked_range("x", 0, 10, shared=True)):
        assert is_free(locks.locked_range("x", 5, 15, shared=True))
        assert not is_free(locks.locked_range("x", 5, 15))
        assert is_free(locks.locked_range("x", 10, 15))


def test_ranges_of_unlike_values(locks):
    """Who asks for strings where others have numbers is told, instead of being let in."""
    with held_elsewhere(locks.locked_range("x", 0, 10)), pytest.raises(ConfigurationError, match="another type"):
        locks.locked_range("x", "a", "b").acquire(wait=1)


def test_a_large_range_is_not_starved(locks):
    """A small one that came later waits behind it, though it does not overlap any holder."""
    holder, large, small = (locks.locked_range("x", *ends) for ends in ((0, 1), (0, 100), (50, 51)))
    assert granted_in_turn(locks, "x", holder, ("large", large), ("small", small)) == ["large", "small"]


@pytest.mark.parametrize("ends", [(0, 2), (None, None)], ids=["a part", "all"])
def test_writes_in_a_locked_range_are_guarded(reading_anywhere, ends):
    """Refused once the range is lost; beside it nothing is guarded; under a shared range nothing is written."""
    reading = reading_anywhere
    lock = reading.locked_range("d", *ends, heartbeat=False).acquire()
    with pytest.raises(ConfigurationError, match="has no item"):
        _ = lock.item
    inside, outside = reading.get("d", 1), reading.get("d", 2) if ends == (0, 2) else reading("e", 1)
    inside.update([Reading.value.add(1)])
    reading("d", 1.5, value=7).save()
    assert reading.break_lock("d", ticket=lock.ticket)
    outside.save()
    for write in (inside.save, inside.delete, reading("d", 1.7).save, lock.release):
        with pytest.raises(LockLost):
            write()
    assert [(row.number, row.value) for row in reading.query("d")] == [(0, 0), (1, 1), (1.5, 7), (2, 0)]
    shared = reading.locked_range("d", *ends, shared=True)
    with shared, pytest.raises(ConfigurationError, match="acquire it exclusively"):
        reading.get("d", 1).save()


def test_items_that_have_no_ranges_beside_other_locks(memory):
    """Whose range key sorts otherwise, or is given without a time zone: written as ever while some lock is held."""
    memory.bind(Booking, Old, Locks)
    with Locks.locked("unrelated"):
        Old("f", b"a").save()
        Booking("d", datetime(2026, 1, 1, 13)).save()  # noqa: DTZ001 - PynamoDB takes it for UTC
    with Old.locked("f", b"a") as lock:
        lock.item.save()
        Old("f", b"b").save()
    assert Old.count("f") == 2


def test_a_key_without_time_zone_is_read_consistently_in_its_range(memory):
    """PynamoDB takes it for UTC, and so does the lock."""
    memory.bind(Booking, Locks)
    Booking("d", hour(1)).save()
    naive = hour(1).replace(tzinfo=None)
    with Booking.locked_range("d", hour(0), hour(2)), count_requests() as counted:
        Booking.get("d", naive).refresh()
        assert counted.by_operation == {"TransactGetItems": 2}


def test_a_transaction_in_a_locked_range(memory):
    """All its writes in the range are guarded by one check of the range."""
    memory.bind(Reading, Locks)
    lock = Reading.locked_range("d", 0, 5, heartbeat=False).acquire()
    with transact() as together:
        for number in range(3):
            together.save(Reading("d", number, value=1))
    assert Reading.break_lock("d", ticket=lock.ticket)
    with pytest.raises(LockLost), transact() as together:
        together.save(Reading("d", 3, value=1))
    assert [row.number for row in Reading.query("d")] == [0, 1, 2]


def test_a_transaction_as_large_as_can_be_in_a_locked_range(memory):
    """99 rows and the check of their range, which is one action for all of them."""
    memory.bind(Reading, Locks)
    with Reading.locked_range("d", 0, 100), transact() as together:
        for number in range(99):
            together.save(Reading("d", number, value=1))
        with pytest.raises(ConfigurationError, match="100 actions"):
            together.save(Reading("d", 99, value=1))
    assert Reading.count("d") == 99


def test_two_ranges_in_one_transaction(memory):
    """DynamoDB allows one action an item, and the lock row is one: said before any request."""
    memory.bind(Reading, Locks)
    with Reading.locked_range("d", 0, 5), Reading.locked_range("d", 10, 15):
        with (
            pytest.raises(ConfigurationError, match="one range that spans both"),
            transact() as together,
        ):
            together.save(Reading("d", 1))
            together.save(Reading("d", 11))
        Reading("d", 1).save()
        Reading("d", 11).save()
    assert [row.number for row in Reading.query("d")] == [1, 11]


async def test_ranges_held_by_one_party(locks, way):
    """Apart or inside each other: fine. Partly overlapping: it would wait for itself, so it is told."""
    async with way(locks.locked_range("x", 0, 10)) as wide, way(locks.locked_range("x", 20, 30)) as other:
        assert other.ticket > wide.ticket
        async with way(locks.locked_range("x", 2, 5, shared=True)) as inner:
            assert inner.ticket == wide.ticket
        with pytest.raises(ConfigurationError, match="Acquire the whole lock"):
            await way.call(locks.locked_range("x", 5, 15), "acquire")
        assert not await way.is_free(locks.locked_range("x", 9, 12))
        assert await way.is_free(locks.locked_range("x", 10, 20))
        with pytest.raises(ConfigurationError, match="has no item"):
            await wide.aitem()
    assert locks.lock_state("x").entries == ()


def test_several_ranges_at_once(locks):
    """As one range that spans them: in between, another party could wait for one and be ahead of the other."""
    inner, wide, apart = (locks.locked_range("x", *ends) for ends in ((2, 5), (0, 10), (20, 30)))
    with locked_all(apart, inner, wide, wait=1) as held:
        assert held == (apart, inner, wide)
        assert inner.ticket == wide.ticket == apart.ticket
        assert len(locks.lock_state("x").entries) == 1
        assert not is_free(locks.locked_range("x", 12, 13))
        assert is_free(locks.locked_range("x", 30, None))
    assert locks.lock_state("x").entries == ()
    with locked_all(wide, locks.locked_range("x", 20, 30, shared=True), locks.locked("y")):
        assert not is_free(locks.locked("y"))
    with held_elsewhere(apart), pytest.raises(LockTimeout), locked_all(inner, apart, wait=0):
        pass
    assert locks.lock_state("x").entries == ()


def test_several_ranges_have_the_best_of_their_terms(locks):
    """The longest lease, and a heartbeat if one of them has it."""
    short = locks.locked_range("x", 0, 1, lease=10, heartbeat=False)
    long = locks.locked_range("x", 5, 6, lease=100, heartbeat=True)
    with locked_all(short, long):
        assert short.remaining == pytest.approx(long.remaining, abs=5)
        assert short.remaining > 50
        (entry,) = locks.lock_state("x").entries
        assert entry.lease == 100


def test_a_lock_that_is_taken_twice_keeps_its_own_entry(locks):
    """Also if another one of the same party covers it."""
    one, two = locks.locked_range("x", 0, 5, shared=True), locks.locked_range("x", 0, 10, shared=True)
    with one, two, one:
        assert two.ticket > one.ticket
    assert locks.lock_state("x").entries == ()


def test_ranges_of_times_and_bytes(engine):
    """The range key's own type, and the row of the hash key."""
    engine.bind(Booking, Chunk, Locks)
    with held_elsewhere(Booking.locked_range("d", hour(1), hour(3))):
        assert not is_free(Booking.locked_range("d", hour(2), None))
        assert is_free(Booking.locked_range("d", hour(3), None))
        assert is_free(Booking.locked_range("e", hour(1), hour(3)))
        assert is_free(Booking.locked("d", hour(1)))
        assert len(Booking.lock_state("d").holders) == 1
    with held_elsewhere(Chunk.locked_range("f", b"\x00", b"\x80")):
        assert not is_free(Chunk.locked_range("f", b"\x7f", b"\xff"))
        assert is_free(Chunk.locked_range("f", b"\x80", None))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Locks.locked_range("x", 5, 5), "must be before"),
        (lambda: Locks.locked_range("x", 6, 5), "must be before"),
        (lambda: Locks.locked_range("x", 1, "b"), "one type"),
        (lambda: Locks.locked_range("x", datetime(2026, 1, 1), None), "time zone"),  # noqa: DTZ001 - the point
        (lambda: Locks.locked_range("x", True, None), "numbers, strings"),
        (lambda: Locks.locked_range("x", float("nan"), None), "finite"),
        (lambda: Booking.locked_range("d", datetime(2026, 1, 1), None), "time zone"),  # noqa: DTZ001
        (lambda: Booking.locked_range("d", 1, 2), "does not accept"),
        (lambda: Device.locked_range("d", 1, 2), "no range key"),
        (lambda: Reading.locked_range(None, 1, 2), "value is needed"),
        (lambda: Old.locked_range("f", b"a", b"b"), "sort"),
        (lambda: Locks.locked_range("x", "\ud800", None), "cannot be the end"),
        (lambda: Locks.locked_range("x", 1, 2, shared="no"), "shared must be True or False"),
        (lambda: Locks.locked_first("abc"), "list of keys"),
        (lambda: Reading.locked_first([("d", 1, 2)]), "pair of hash and range key"),
    ],
)
def test_ranges_that_cannot_be(make, says):
    """Refused where they are made, with what is wrong."""
    with pytest.raises((ConfigurationError, InvalidInput), match=says):
        make()


# Taking what is free


async def test_try_locked(account, way):
    """The lock, held, or None; other errors stay errors, and those of the block come through."""
    async with way(account.try_locked("a")) as lock:
        assert lock.item.balance == 100
    with held_elsewhere(account.locked("a")):
        async with way(account.try_locked("a")) as lock:
            assert lock is None
    with pytest.raises(account.DoesNotExist):
        async with way(account.try_locked("nobody")):
            pytest.fail("there is none")
    with pytest.raises(KeyError):
        async with way(account.try_locked("a")):
            raise KeyError
    assert account.lock_state("a").entries == ()


async def test_locked_first(account, way):
    """Those that are held, or gone, are skipped."""
    account("b").save()

    async def first(*keys):
        async with way(account.locked_first(keys)) as lock:
            return lock and lock.item.account_id

    assert await first("gone", "a", "b") == "a"
    assert await first("gone") is None
    with held_elsewhere(account.locked("a")):
        assert await first("gone", "a", "b") == "b"
        with held_elsewhere(account.locked("b")):
            assert await first("gone", "a", "b") is None


def test_locked_first_of_pairs(reading):
    """Hash and range key of each."""
    with (
        held_elsewhere(reading.locked("d", 0)),
        reading.locked_first([("d", 0), ("d", 1)], shared=True) as lock,
    ):
        assert lock.item.number == 1
