"""Examples of the texts that the project comes from, each named after its text and section.

Here are the examples that had no test
of their own; ``test_seed_examples.py`` has those of 002.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import TransactWriteError
from pynamodb.expressions.operand import Path

from pynamo_locking import TransactWrite, locked_all, transaction, transactional
from pynamo_locking.exceptions import LockLost, LockTimeout, OverlapError, StaleVersion
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support.interval_models import Lease, Slot, SlotLocks, SlotTransactions, slots, stored_slots
from tests.support.models import APART, Locks
from tests.support.parties import abandoned, held_elsewhere
from tests.support.transaction_helpers import add_fillers
from tests.support.transaction_models import (
    Entry,
    Plain,
    Purse,
    Sheet,
    Transactions,
    make_long_from,
    marked_rows,
    purses,
    stored,
)
from tests.support.versioned_models import connection_of
from tests.support.wire import count_requests
from tests.support.workers import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb.expressions.update import Action

    from pynamo_locking import Lock
    from tests.engines.engine import Engine


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    """Threads, which are other parties, as processes are."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def clock(memory: Engine) -> Iterator[VirtualClock]:
    memory.bind(Locks)
    with VirtualClock() as clock:
        yield clock


@pytest.mark.usefixtures("purses_and_entries")
def test_seed_000_introduction_the_sum_of_an_order_history(others: ThreadPoolExecutor) -> None:
    """One process computes the sum of a user's orders while another one adds an order: the stored sum is right."""
    sums = list[int]()

    @transactional()
    def order(tx: Transaction, number: int, amount: int) -> None:
        tx.save(Entry("ada", number, amount=amount))

    @transactional()
    def store_sum(tx: Transaction) -> None:
        sums.append(int(sum(each.amount for each in tx.query(Entry, "ada"))))
        if len(sums) == 1:
            others.submit(order, 3, 100).result()  # the other process, in the middle of it
        tx.save(Purse("ada", balance=sums[-1]), add_version_condition=False)

    order(1, 10)
    order(2, 20)
    store_sum()
    assert sums == [30, 130]
    assert Purse.get("ada").balance == 130


def test_seed_000_queueing_several_locks_of_one_entity(memory: Engine) -> None:
    """A prefix gives one entity several independent locks; who wants two of them takes them in one order."""
    memory.bind(Locks)
    printing, shipping = Locks.locked("order-7/print", wait=0), Locks.locked("order-7/ship", wait=0)
    with held_elsewhere(Locks.locked("order-7/print")):
        with shipping:
            pass
        for locks in ([printing, shipping], [shipping, printing]):
            with pytest.raises(LockTimeout), locked_all(*locks, wait=0):
                pass
    with locked_all(shipping, printing, wait=0):
        pass


def test_seed_000_queueing_several_guarded_locks_of_one_entity(memory: Engine) -> None:
    """Parts as items of their own: each has its queue and its guard, and the loss of one does not touch the other."""
    memory.bind(Sheet, Transactions)
    for part in (1, 2):
        Sheet("a-7", part, body="old").save()
    first = Sheet.locked("a-7", 1, heartbeat=False).acquire()
    with Sheet.edit("a-7", 2, wait=0) as other:
        assert Sheet.break_lock("a-7", 1, ticket=first.ticket)
        other.body = first.item.body = "new"
        with pytest.raises(LockLost):
            first.item.save()
    with pytest.raises(LockLost):
        first.release()
    assert [sheet.body for sheet in Sheet.query("a-7", consistent_read=True)] == ["old", "new"]


def test_seed_000_queueing_names_for_the_parts_of_one_item(memory: Engine) -> None:
    """A name for each part, proved by the transaction that writes the part: refused when that lock is lost."""
    memory.bind(Locks, Purse, Transactions)
    purses(1, note="old")

    def change(lock: Lock[Locks], action: Action) -> None:
        with TransactWrite(connection=connection_of(Purse)) as write:
            lock.add_check_to(write)
            write.update(Purse("p0"), [action], add_version_condition=False)

    balance = Locks.locked("p0/balance", wait=0, heartbeat=False)
    with Locks.locked("p0/note") as note, pytest.raises(LockLost, match="p0/balance"), balance:
        change(note, Purse.note.set("new"))
        Locks.break_lock("p0/balance", ticket=balance.ticket)
        with pytest.raises(TransactWriteError):
            change(balance, Purse.balance.add(1))
    purse = Purse.get("p0", consistent_read=True)
    assert (purse.note, purse.balance) == ("new", 100)


@pytest.mark.parametrize("path", ["native", "long"], indirect=True)
@pytest.mark.usefixtures("purses_and_entries")
def test_seed_001_item_images_an_update_that_cannot_be(path: str) -> None:
    """Adding 1 to a string is found out when it is applied: nothing of the transaction is written, nothing marked."""
    purses(2, note="text")
    with pytest.raises(TransactWriteError), transaction(Transactions) as tx:
        tx.update(Purse.get("p0"), [Purse.balance.add(1)])
        tx.update(Purse.get("p1"), [Path("note").add(1)])
        add_fillers(tx, path)
    assert [Purse.get(key).balance for key in ("p0", "p1")] == [100, 100]
    assert stored(Purse, "filler0") is None
    assert marked_rows(Purse) == []


@pytest.mark.usefixtures("purses_and_entries")
def test_seed_001_contention_with_other_coordinators(
    others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several coordinators complete the transaction of one that has gone; all find the same, and it counts once."""
    make_long_from(monkeypatch)

    def leave(done: int, total: int) -> None:
        if done == total - 2:
            raise RuntimeError

    items = purses(8)
    tx = Transaction(Transactions, on_progress=leave)
    for item in items:
        tx.update(item, [Purse.balance.add(1)])
    tx.commit()
    start = Barrier(4)

    def coordinate() -> str | None:
        start.wait(60)
        return Transactions.recover(tx.id)

    assert {each.result() for each in [others.submit(coordinate) for _ in range(4)]} == {"finished"}
    assert [purse.balance for purse in Purse.scan()] == [101] * 8
    assert marked_rows(Purse) == []


def test_seed_001_contention_with_other_coordinators_a_form_over_several_requests(
    memory: Engine, others: ThreadPoolExecutor
) -> None:
    """A coordinator begins a transaction, a second one adds requests to it, a third one commits it."""
    memory.bind(Purse, Transactions)
    purses(2)

    def begin() -> str:
        with transaction(Transactions) as tx:
            assert tx.get(Purse, "p0").balance == 100
            tx.update(tx.get(Purse, "p1"), [Purse.balance.add(-30)])
            return tx.suspend()

    def add(id_: str) -> str:
        with transaction(Transactions) as tx:
            tx.resume(id_, [Purse])
            tx.update(tx.get(Purse, "p0"), [Purse.balance.add(30)])
            return tx.suspend()

    def commit(id_: str) -> None:
        with transaction(Transactions) as tx:
            tx.resume(id_, [Purse])

    id_ = others.submit(begin).result()
    assert others.submit(add, id_).result() == id_
    assert [Purse.get(key, consistent_read=True).balance for key in ("p0", "p1")] == [100, 100]
    others.submit(commit, id_).result()
    assert [Purse.get(key, consistent_read=True).balance for key in ("p0", "p1")] == [130, 70]
    with pytest.raises(Transactions.DoesNotExist):
        commit(id_)


def test_seed_002_conditioning_on_the_version_the_write_succeeds(memory: Engine) -> None:
    """Without the condition an old copy updates and deletes whatever is there; the copies that it passes then fail."""
    memory.bind(Plain)
    Plain("a").save()
    old, other = Plain.get("a"), Plain.get("a")
    other.update([Plain.value.set(1)])
    with pytest.raises(StaleVersion):
        old.update([Plain.value.add(1)])
    old.update([Plain.value.add(1)], add_version_condition=False)
    assert (Plain.get("a").value, Plain.get("a").version) == (2, 3)
    with pytest.raises(StaleVersion):
        other.delete()
    other.delete(add_version_condition=False)
    assert Plain.count("a") == 0


def test_seed_003_conclusion_the_course_of_a_lock(clock: VirtualClock) -> None:
    """Taken where there is no row, refused while it is held, taken over once it has expired, gone when it is released.

    The row tells its name, the host, the end of the lease and a revision, which each renewal changes.
    """
    first = Locks.locked("report", lease=30, heartbeat=False, owner="host-a").acquire()
    held = Locks.lock_state("report").holders[0]
    assert (held.owner, held.until_ms) == ("host-a", clock.time_ms() + 30_000)
    with pytest.raises(LockTimeout):
        abandoned(Locks.locked("report", wait=0, settings=APART))

    clock.jump(20)
    first.renew()
    renewed = Locks.lock_state("report").holders[0]
    assert (renewed.heartbeats, renewed.until_ms) == (held.heartbeats + 1, clock.time_ms() + 30_000)

    clock.jump(60)
    second = abandoned(Locks.locked("report", owner="host-b", heartbeat=False, settings=APART))
    assert first.ticket < second.ticket
    assert [entry.owner for entry in Locks.lock_state("report").entries] == ["host-b"]


@pytest.mark.parametrize(("lease", "renews"), [(600, False), (30, True)])
def test_seed_003_tuning_a_long_lease_or_many_renewals(clock: VirtualClock, *, lease: int, renews: bool) -> None:
    """The longest time at the start costs two writes; a lease that is renewed as work goes on frees it sooner."""
    with Locks.locked("job"):
        pass
    with count_requests() as counted, Locks.locked("job", lease=lease, heartbeat=False) as lock:
        for _ in range(10):
            clock.jump(20)
            if renews:
                lock.renew()
    assert counted.by_operation == {"UpdateItem": 12 if renews else 2}

    abandoned(Locks.locked("job", lease=lease, heartbeat=False))
    clock.jump(lease - 1)
    with pytest.raises(LockTimeout):
        Locks.locked("job", wait=0).acquire()
    clock.jump(12)  # beyond the clock skew as well
    with Locks.locked("job", wait=1):
        pass


def until_waits(lock_state: Any) -> None:
    until(lambda: len(lock_state().waiters) == 1)


@pytest.fixture
def schedule(memory: Engine) -> type[Slot]:
    """The seed's two rows of device 100, in hours since the first of January."""
    memory.bind(Slot, SlotLocks)
    Slot.intervals.insert_disjoint(slots((12, 15), (18, 21), device="100"))
    return Slot


def rows_between(begin: int, end: int, device: str = "100") -> list[tuple[int, int]]:
    return [(int(row.begin), int(row.end)) for row in Slot.intervals.overlapping(device, begin, end)]


def test_seed_004_example_race_condition_the_rows_of_all_devices(memory: Engine) -> None:
    """The four steps of a request: the earliest begin and the latest end, the rows of all devices, verify, insert."""
    memory.bind(Lease, SlotLocks, SlotTransactions)
    stored_hours = [("2024-01-01T12:00:00.000Z", "2024-01-01T15:00:00.000Z")]
    stored_hours.append(("2024-01-01T18:00:00.000Z", "2024-01-01T21:00:00.000Z"))
    Lease.intervals.insert_disjoint([Lease("100", begin, after=end) for begin, end in stored_hours])
    request = [
        Lease("100", "2024-01-01T19:00:00.000Z", after="2024-01-01T20:00:00.000Z"),
        Lease("101", "2024-01-01T22:00:00.000Z", after="2024-01-02T23:00:00.000Z"),
    ]

    first, last = min(row.first for row in request), max(row.after for row in request)
    found = list(Lease.intervals.overlapping_in([row.owner for row in request], first, last))
    assert [(row.owner, row.first, row.after) for row in found] == [("100", *stored_hours[1])]
    with pytest.raises(OverlapError):
        Lease.intervals.insert_disjoint(request)
    assert list(Lease.intervals.overlapping_in(["101"], first, last)) == []
    Lease.intervals.insert_disjoint(request[1:])
    assert [row.owner for row in Lease.intervals.overlapping_in(["100", "101"], first, last)] == ["100", "101"]


def test_seed_004_pessimistic_locking_for_update_of_a_range(schedule: type[Slot], others: ThreadPoolExecutor) -> None:
    """A second query for update of an overlapping range, 12 hours of it, waits, and then reads what the first wrote."""

    def select_for_update() -> list[tuple[int, int]]:
        with schedule.locked_range("100", 12, 36, settings=APART):
            return rows_between(12, 36)

    with schedule.locked_range("100", 0, 24, settings=APART):
        assert rows_between(0, 24) == [(12, 15), (18, 21)]
        second = others.submit(select_for_update)
        until_waits(lambda: schedule.lock_state("100"))
        schedule.intervals.insert_disjoint(slots((22, 23), device="100"))
    assert second.result() == [(12, 15), (18, 21), (22, 23)]


def test_seed_004_pessimistic_locking_for_update_of_one_row(schedule: type[Slot], others: ThreadPoolExecutor) -> None:
    """A query by equality locks the row that it finds, and its neighbour stays free."""

    def can_have(begin: int) -> bool:
        try:
            with schedule.locked("100", begin, wait=0):
                return True
        except LockTimeout:
            return False

    with schedule.locked("100", 18):
        assert others.submit(can_have, 18).result() is False
        assert others.submit(can_have, 12).result() is True


def test_seed_004_pessimistic_locking_deadlock(schedule: type[Slot], others: ThreadPoolExecutor) -> None:
    """Two requests that name the same devices in opposite orders, at the same time, are served one after the other."""
    start = Barrier(2)

    def request(begin: int, devices: tuple[str, str]) -> None:
        rows = [Slot(device, begin, end=begin + 2) for device in devices]
        start.wait(60)
        schedule.intervals.insert_disjoint(rows, pessimistic=True)

    both: list[Future[None]] = [others.submit(request, 30, ("100", "101")), others.submit(request, 32, ("101", "100"))]
    for each in both:
        each.result()
    assert stored_slots("101") == [(30, 32), (32, 34)]
    assert stored_slots("100") == [(12, 15), (18, 21), (30, 32), (32, 34)]
