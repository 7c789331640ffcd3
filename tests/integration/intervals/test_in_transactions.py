"""Rows that must not overlap, stored, moved and deleted in a transaction with other items: all of it, or nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import TransactWriteError
from pynamodb.models import Model

from pynamo_locking import TransactWrite, atransaction, transaction, transactional
from pynamo_locking.exceptions import (
    ConfigurationError,
    Conflict,
    LockTimeout,
    OverlapError,
    StaleVersion,
    TransactionConflict,
    also,
)
from pynamo_locking.transactions import Transaction
from tests.integration.intervals.conftest import shown_until_it_is_settled
from tests.support.interval_models import (
    Booking,
    Lease,
    Slot,
    SlotLocks,
    SlotTransactions,
    overlaps_in,
    slots,
    stored_slots,
    unapplied,
)
from tests.support.models import declare
from tests.support.parties import held_elsewhere, in_thread, shifted_clock
from tests.support.transaction_models import make_long_from, rows_of
from tests.support.wire import on

if TYPE_CHECKING:
    from collections.abc import Callable


#: What is written together with the rows.
Invoice = declare(
    "Invoice",
    hash_key="number",
    numbers="total",
    version=True,
    lock=True,
    lock_table=SlotLocks,
    transaction_table=SlotTransactions,
)


TABLES = (Slot, Booking, Lease, SlotLocks, SlotTransactions, Invoice)


@pytest.fixture
def in_memory(in_memory, memory):
    """With invoices."""
    memory.bind(Invoice)


def count(number: str = "n") -> int:
    """The total of an invoice, 0 if there is none."""
    try:
        return int(Invoice.get(number, consistent_read=True).total)
    except Invoice.DoesNotExist:
        return 0


def bill(tx: Transaction, amount: int = 1) -> None:
    """Add to the total of the invoice."""
    invoice = tx.get_or_none(Invoice, "n") or Invoice("n")
    invoice.total += amount
    tx.save(invoice)


# All or none


def test_every_engine(engine):
    """What is asked of DynamoDB, all engines understand: insert, move, delete, and an overlap."""
    engine.bind(*TABLES)
    Slot.intervals.insert_disjoint(slots((0, 5), (5, 9)))
    first, second = Slot.get("d", 0), Slot.get("d", 5)
    with transaction() as tx:
        tx.delete(first)
        tx.move(second, 0, 3)
        tx.insert_disjoint(Slot, slots((3, 9)))
        bill(tx)
    with pytest.raises(OverlapError), transaction() as tx:
        bill(tx)
        tx.insert_disjoint(Slot, slots((8, 10)))
    assert (stored_slots(), count()) == ([(0, 3), (3, 9)], 1)
    leases = [Lease("o", f"{i:04}", after=f"{i + 1:04}") for i in range(120)]
    with transaction() as tx:
        tx.insert_disjoint(Lease, leases)
        bill(tx)
    assert (Lease.count("o"), count()) == (120, 2)


def test_rows_invoice_and_counter_in_one_request(in_memory, sent):
    """One row and one save: as many requests as the insert alone."""
    with transaction() as tx:
        tx.insert_disjoint(Slot, slots((0, 5)))
        tx.save(Invoice("n", total=1))
    assert sent == ["GetItem", "Query", "TransactWriteItems"]
    sent.clear()
    with transaction() as tx:
        tx.insert_disjoint(Slot, slots((5, 6)))
        tx.insert_disjoint(Slot, slots((6, 7)))
        assert tx.plan().path == "native"
    assert sent == ["GetItem", "Query", "Query", "TransactWriteItems"]


@pytest.mark.parametrize("rows", [3, 15])
def test_all_or_none(in_memory, monkeypatch, rows):
    """The rows, the invoice: another writer has changed the invoice, so there is none of it."""
    make_long_from(monkeypatch, 10)
    Invoice("n", total=1).save()
    leases = [Lease("o", f"{i:04}", after=f"{i + 1:04}") for i in range(rows)]
    with pytest.raises(StaleVersion), transaction() as tx:
        bill(tx)
        tx.insert_disjoint(Lease, leases)
        Invoice.get("n").touch()
    assert (Lease.count("o"), count()) == (0, 1)
    with transaction() as tx:
        bill(tx)
        tx.insert_disjoint(Lease, leases)
    assert (Lease.count("o"), count()) == (rows, 2)
    assert {row.version for row in leases} == {1}


def test_an_overlap_leaves_the_transaction_as_it_was(in_memory):
    """Also the hash keys that were free: all rows of a call, or none. The transaction goes on."""
    Slot.intervals.insert_disjoint(slots((0, 5)))
    with transaction() as tx:
        bill(tx)
        with pytest.raises(OverlapError) as caught:
            tx.insert_disjoint(Slot, [*slots((0, 5), device="a"), *slots((4, 6)), *slots((0, 5), device="z")])
        assert [row.begin for row in caught.value.rows] == [0]
        tx.insert_disjoint(Slot, slots((5, 6)))
    assert (stored_slots(), stored_slots("a"), stored_slots("z"), count()) == ([(0, 5), (5, 6)], [], [], 1)


def test_an_error_in_the_middle_of_a_call_ends_the_transaction(in_memory):
    """It has a part of the rows by then, which must not be committed alone."""
    bad = Lease("o", "5", after="6")
    with suppress(StaleVersion), transaction() as tx:
        tx.insert_disjoint(Lease, [bad])
        tx.update(bad, [Lease.note.set("uncommitted")])
        raise also(StaleVersion, TransactWriteError)("rolled back")
    with pytest.raises(ConfigurationError, match="has ended"), transaction() as tx:
        bill(tx)
        with pytest.raises(StaleVersion, match="refresh"):
            tx.insert_disjoint(Lease, [Lease("a", "1", after="2"), bad])
        bill(tx)
    assert (Lease.count("a"), count()) == (0, 0)


def test_seed_004_optimistic_locking(memory):
    """The request of the text: a row for each element, or none and a rollback; here with other changes as well."""
    memory.bind(*TABLES)
    stored = [("100", "01T12", "01T15"), ("100", "01T18", "01T21")]
    request = [("100", "01T19", "01T20"), ("101", "01T22", "02T23")]

    @transactional()
    def answer(tx: Transaction, elements: list[tuple[str, str, str]]) -> None:
        bill(tx, len(elements))
        tx.insert_disjoint(Lease, [Lease(device, begin, after=end) for device, begin, end in elements])

    answer(stored)
    with pytest.raises(OverlapError) as caught:
        answer(request)
    assert [(row.owner, row.first) for row in caught.value.rows] == [("100", "01T18")]
    assert (Lease.count("100"), Lease.count("101"), count()) == (2, 0, 2)
    answer([("100", "01T21", "01T22"), request[1]])
    assert (Lease.count("100"), Lease.count("101"), count()) == (3, 1, 4)


# What the transaction has done before counts


def insert(tx: Transaction, *ends: tuple[int, int]) -> None:
    tx.insert_disjoint(Slot, slots(*ends))


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda tx, row: (tx.delete(row), insert(tx, (12, 18))), [(12, 18)]),
        (lambda tx, row: (tx.delete(row), insert(tx, (10, 30))), [(10, 30)]),
        (lambda tx, row: (tx.delete(row), insert(tx, (0, 12), (12, 90))), [(0, 12), (12, 90)]),
        (lambda tx, row: (tx.delete(row, add_version_condition=False), insert(tx, (12, 18))), [(12, 18)]),
        (lambda tx, row: (tx.move(row, 40, 50), insert(tx, (10, 20))), [(10, 20), (40, 50)]),
        (lambda tx, row: (tx.move(row, 10, 12), insert(tx, (12, 20))), [(10, 12), (12, 20)]),
        (lambda tx, row: (tx.move(row, 40, 50), tx.move(row, 15, 25)), [(15, 25)]),
        (lambda tx, row: (tx.move(row, 40, 50), tx.move(row, 10, 15), insert(tx, (15, 50))), [(10, 15), (15, 50)]),
        (lambda tx, row: (insert(tx, (0, 9)), tx.delete(tx.get(Slot, "d", 0)), insert(tx, (5, 9))), [(5, 9), (10, 20)]),
        (lambda tx, row: (insert(tx, (0, 9)), tx.move(tx.get(Slot, "d", 0), 5, 10)), [(5, 10), (10, 20)]),
        (lambda tx, row: (tx.delete(row), insert(tx, (10, 12)), tx.move(tx.get(Slot, "d", 10), 30, 40)), [(30, 40)]),
        (lambda tx, row: (tx.save(row), tx.move(row, 11, 21)), [(11, 21)]),
        (lambda tx, row: (tx.get(Slot, "d", 10), tx.move(row, 11, 21)), [(11, 21)]),
        (lambda tx, row: (tx.move(tx.get(Slot, "d", 10), 11, 21), insert(tx, (10, 11))), [(10, 11), (11, 21)]),
        (lambda tx, row: (tx.update(row, [Slot.note.set("x")]), tx.move(row, 11, 21)), [(11, 21)]),
        (lambda tx, row: (tx.move(row, 10, 30), tx.update(row, [Slot.note.set("x")]), tx.save(row)), [(10, 30)]),
        (lambda tx, row: (tx.get_or_none(Slot, "d", 30), insert(tx, (30, 31))), [(10, 20), (30, 31)]),
    ],
)  # fmt: skip
def test_what_was_done_before_frees_its_place(in_memory, act, expected):
    """Rows that the transaction has deleted or moved are in no row's way, in whatever form it did that."""
    Slot.intervals.insert_disjoint(slots((10, 20)))
    row = Slot.get("d", 10)
    with transaction() as tx:
        act(tx, row)
        bill(tx)
    assert (stored_slots(), count()) == (expected, 1)
    for begin, _ in expected:  # the guard names what is there, and nothing else
        with pytest.raises(OverlapError):
            Slot.intervals.insert_disjoint(slots((begin, begin + 1)))
    Slot.intervals.insert_disjoint(slots((100, 101)))


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda tx, row: (insert(tx, (30, 40)), insert(tx, (35, 45))), OverlapError),
        (lambda tx, row: (insert(tx, (30, 40)), insert(tx, (30, 40))), OverlapError),
        (lambda tx, row: (tx.move(row, 30, 40), insert(tx, (35, 45))), OverlapError),
        (lambda tx, row: (tx.move(row, 10, 40), insert(tx, (35, 45))), OverlapError),
        (lambda tx, row: (insert(tx, (30, 40)), tx.move(row, 35, 45)), OverlapError),
        (lambda tx, row: (tx.delete(row), insert(tx, (12, 18)), tx.save(row)), ConfigurationError),
        (lambda tx, row: (tx.delete(row), tx.update(row, [Slot.note.set("x")])), ConfigurationError),
        (lambda tx, row: (tx.delete(row), insert(tx, (12, 18)), insert(tx, (10, 13))), OverlapError),
        (lambda tx, row: (tx.save(row), setattr(row, "end", 60), tx.save(row)), ConfigurationError),
        (lambda tx, row: (tx.move(row, 10, 15), setattr(row, "end", 60), tx.save(row)), ConfigurationError),
        (lambda tx, row: tx.update(row, [Slot.end.set(60)]), ConfigurationError),
        (lambda tx, row: tx.save(slots((30, 40))[0]), ConfigurationError),
        (lambda tx, row: tx.move(slots((30, 40))[0], 50, 60), ConfigurationError),
        (lambda tx, row: tx.insert_disjoint(Slot, [row]), ConfigurationError),
        (lambda tx, row: tx.insert_disjoint(Slot, slots((30, 40), (35, 45))), OverlapError),
        (lambda tx, row: tx.insert_disjoint(Invoice, [Invoice("x")]), ConfigurationError),
        (lambda tx, row: tx.move(Invoice("x"), 1, 2), ConfigurationError),
        (lambda tx, row: tx.insert_disjoint("Slot", slots((30, 40))), ConfigurationError),
        (lambda tx, row: tx.insert_disjoint(Model, slots((30, 40))), ConfigurationError),
        (lambda tx, row: tx.move("row", 1, 2), ConfigurationError),
        (lambda tx, row: tx.move(Slot, 1, 2), ConfigurationError),
    ],
)  # fmt: skip
def test_what_would_overlap_is_refused_at_the_call(in_memory, act, error):
    """Two calls of one transaction see each other; no other method goes around the check."""
    Slot.intervals.insert_disjoint(slots((10, 20)))
    row = Slot.get("d", 10)
    with pytest.raises(error), transaction() as tx:
        bill(tx)
        act(tx, row)
    assert (stored_slots(), count()) == ([(10, 20)], 0)


def test_many_rows_that_go_hide_none_that_stays(in_memory):
    """More rows are deleted than an error names, and the last one of that place is still in the way."""
    rows = slots(*((i, i + 1) for i in range(40)))
    Slot.intervals.insert_disjoint(rows)
    with pytest.raises(OverlapError) as caught, transaction() as tx:
        for row in rows[1:]:
            tx.delete(row)
        insert(tx, (0, 40))
    assert [row.begin for row in caught.value.rows] == [0]
    with transaction() as tx:
        for row in rows[1:]:
            tx.delete(row)
        insert(tx, (1, 40))
    assert stored_slots() == [(0, 1), (1, 40)]


def test_an_expired_row_that_was_read_is_deleted(in_memory):
    """Read as absent, and still deleted by the insert over it, so that a late save of it is refused."""
    Lease.intervals.insert_disjoint([Lease("o", "1", after="5", expires=datetime(2020, 1, 1, tzinfo=timezone.utc))])
    with transaction() as tx:
        assert tx.get_or_none(Lease, "o", "1") is None
        tx.insert_disjoint(Lease, [Lease("o", "2", after="3")])
    assert [row["first"] for row in rows_of(Lease)] == [{"S": "2"}]


def test_an_expiring_row_is_moved_on(in_memory):
    """That it is alive is checked where it is stored, and not where the transaction has put it first."""
    row = Lease("o", "1", after="2", expires=datetime(2100, 1, 1, tzinfo=timezone.utc))
    with transaction() as tx:
        tx.insert_disjoint(Lease, [row])
        tx.move(row, "3", "4")
    assert [row["first"] for row in rows_of(Lease)] == [{"S": "3"}]


def test_a_deleted_row_that_is_still_shown_is_settled(in_memory):
    """DynamoDB has put the new row into its place, and not yet removed the old one: the guard names that as well."""
    Slot.intervals.insert_disjoint(slots((10, 20)))
    [old] = rows_of(Slot)
    for begin in range(100, 110):  # the guard forgets the first row
        Slot.intervals.insert_disjoint(slots((begin, begin + 1)))
    with transaction() as tx:
        tx.delete(Slot.get("d", 10))
        insert(tx, (12, 14))
    with shown_until_it_is_settled(Slot, old, "pk", "sk"):
        Slot.intervals.insert_disjoint(slots((11, 12)))
    assert stored_slots()[:2] == [(11, 12), (12, 14)]


def test_an_expired_row_that_was_deleted_for_a_new_row_is_settled(in_memory):
    """It still shows, and the next writer's clock is behind: for that writer it is alive, and hides the new row."""
    with shifted_clock() as world:
        soon = datetime.fromtimestamp(world.time_ms() / 1000 + 60, timezone.utc)
        Lease.intervals.insert_disjoint([Lease("o", "1", after="2", expires=soon)])
        [old] = rows_of(Lease)
        world.shift = 120
        with transaction() as tx:
            tx.insert_disjoint(Lease, [Lease("o", "0", after="5")])
    with shown_until_it_is_settled(Lease, old, "owner", "first"), pytest.raises(OverlapError):
        Lease.intervals.insert_disjoint([Lease("o", "3", after="4")])


def test_an_update_of_an_expired_row_is_not_forgotten(in_memory):
    """It may make the row last, so no other one takes its place in the same transaction; a delete makes room."""
    row = Lease("o", "1", after="5", expires=datetime(2020, 1, 1, tzinfo=timezone.utc))
    Lease.intervals.insert_disjoint([row])
    with transaction() as tx:
        tx.update(row, [Lease.expires.remove()])
        with pytest.raises(ConfigurationError, match=r"expired.*leave the update out"):
            tx.insert_disjoint(Lease, [Lease("o", "2", after="3")])
        tx.rollback()
    assert [each["first"] for each in rows_of(Lease)] == [{"S": "1"}]
    with transaction() as tx:
        tx.delete(row)
        tx.insert_disjoint(Lease, [Lease("o", "2", after="3")])
    assert [each["first"] for each in rows_of(Lease)] == [{"S": "2"}]


# Idempotency keys


@pytest.mark.parametrize("size", [1, 15])
def test_a_repeated_transaction_does_not_find_its_own_rows_in_the_way(in_memory, monkeypatch, size):
    """The key tells whose rows they are, so the second transaction writes nothing, and is told of no overlap."""
    make_long_from(monkeypatch, 10)
    stored = Lease("m", "1", after="2")
    Lease.intervals.insert_disjoint([stored])

    def book(key: str) -> bool:
        row = Lease.get("m", "1", consistent_read=True) if Lease.count("m", Lease.first == "1") else stored
        with transaction(idempotency_key=key) as tx:
            tx.insert_disjoint(Lease, [Lease("o", f"{i:04}", after=f"{i + 1:04}") for i in range(size)])
            bill(tx)
            tx.move(row, "3", "4")
        return tx.is_repeated

    assert [book("k"), book("k")] == [False, True]
    assert (Lease.count("o"), count(), {row.first for row in Lease.query("m")}) == (size, 1, {"3"})
    with pytest.raises(OverlapError):
        book("another")
    assert count() == 1


def test_a_key_that_is_not_in_its_place_yet_is_found(in_memory):
    """DynamoDB has stored the rows of the first transaction, and not yet its key; the second one runs in a task."""

    async def again() -> bool:
        async with atransaction(SlotTransactions, idempotency_key="k") as tx:
            await tx.insert_disjoint(Slot, slots((0, 6)))
            await tx.save(Invoice("n", total=9))
        return tx.is_repeated

    with unapplied(SlotTransactions):
        with transaction(SlotTransactions, idempotency_key="k") as tx:
            tx.insert_disjoint(Slot, slots((0, 5)))
            bill(tx)
        assert asyncio.run(again())
    assert (stored_slots(), count()) == ([(0, 5)], 1)


# Rollback


def test_a_rollback_leaves_the_instances(in_memory):
    """A moved row is where it was, a new one is new; both can be used again."""
    Slot.intervals.insert_disjoint(rows := slots((10, 20), (30, 40)))
    new = slots((50, 60))[0]
    tx = Transaction()
    tx.move(rows[0], 1, 5)
    tx.move(rows[1], 30, 45)
    tx.insert_disjoint(Slot, [new])
    tx.rollback()
    assert [(row.begin, row.end, row.version) for row in [*rows, new]] == [(10, 20, 1), (30, 40, 1), (50, 60, None)]
    for row in rows:
        row.save()
    Slot.intervals.insert_disjoint([new])
    assert stored_slots() == [(10, 20), (30, 40), (50, 60)]


def test_a_savepoint_takes_moves_and_inserts_back(in_memory):
    """The instance, the place in the transaction, and what may overlap."""
    Slot.intervals.insert_disjoint(slots((10, 20)))
    with transaction() as tx:
        row = tx.get(Slot, "d", 10)
        insert(tx, (0, 5))
        before = tx.savepoint()
        tx.move(row, 30, 40)
        insert(tx, (10, 20), (50, 60))
        before.rollback()
        assert (row.begin, row.end, row.version) == (10, 20, 1)
        assert tx.get(Slot, "d", 10) is row
        insert(tx, (30, 40))
        with pytest.raises(OverlapError):
            insert(tx, (19, 25))
        row.note = "mine"
        tx.save(row)
    assert stored_slots() == [(0, 5), (10, 20), (30, 40)]
    assert Slot.get("d", 10).note == "mine"
    outside = Slot.get("d", 10)  # an instance that the transaction has not read
    with transaction() as tx:
        before = tx.savepoint()
        tx.move(outside, 60, 70)
        before.rollback()
        tx.move(outside, 60, 70)
        tx.move(outside, 80, 90)
        tx.get(Slot, "d", 80)
        before.rollback()
        bill(tx)
    assert (outside.begin, outside.end, outside.version, count()) == (10, 20, 2, 1)
    outside.save()


# Other writers


def test_a_lost_race_is_a_conflict_that_a_retry_solves(in_memory):
    """Another writer stores a row after the query: the commit refuses, and the next attempt sees the row."""
    seen = list[str]()

    @transactional()
    def book(tx: Transaction) -> None:
        seen.append("attempt")
        tx.insert_disjoint(Slot, slots((10, 20)))
        bill(tx)
        if len(seen) == 1:
            in_thread(lambda: Slot.intervals.insert_disjoint(slots((15, 25))))

    with pytest.raises(OverlapError):
        book()
    assert (len(seen), stored_slots(), count()) == (2, [(15, 25)], 0)
    seen.clear()
    with pytest.raises(TransactionConflict, match="a retry is safe"), transaction() as tx:
        insert(tx, (30, 40))
        in_thread(lambda: Slot.intervals.insert_disjoint(slots((60, 70))))


@pytest.mark.parametrize("size", [1, 15])
def test_transactions_that_race_for_one_place(in_memory, monkeypatch, size):
    """Each has looked before the others commit: one of them stores its rows, also on the long path."""
    make_long_from(monkeypatch, 10)
    running = [Transaction(SlotTransactions) for _ in range(4)]
    for i, tx in enumerate(running):
        leases = [Lease("o", f"{10 * n + i:05}", after=f"{10 * n + i + 8:05}") for n in range(size)]
        tx.insert_disjoint(Lease, leases)
        bill(tx)
    said = list[object]()
    for tx in running:
        try:
            tx.commit()
            said.append("stored")
        except Conflict as error:
            said.append(type(error).__name__)
    assert said.count("stored") == 1
    assert (overlaps_in(Lease, "owner", "first", "after"), Lease.count("o"), count()) == ([], size, 1)


@pytest.mark.parametrize("isolation", ["read_committed", "serializable"])
def test_every_isolation_that_writes_is_safe(in_memory, isolation):
    """The guard is checked whatever the transaction relies on."""
    with pytest.raises(TransactionConflict), transaction(isolation=isolation) as tx:
        insert(tx, (10, 20))
        in_thread(lambda: Slot.intervals.insert_disjoint(slots((15, 25))))
    assert stored_slots() == [(15, 25)]


@pytest.mark.parametrize("options", [{"read_only": True}, {"isolation": "snapshot"}])
def test_isolations_that_are_refused(in_memory, options, sent):
    """They write nothing. Nothing is sent."""
    with transaction(**options) as tx, pytest.raises(ConfigurationError):
        tx.insert_disjoint(Slot, slots((10, 20)), pessimistic=True)
    assert sent == []


# Locks


def test_range_locks_are_held_until_the_end(in_memory):
    """As the plain form takes them; another transaction waits for them."""
    with transaction() as tx:
        tx.insert_disjoint(Slot, slots((10, 20)), pessimistic=True)
        bill(tx)

        def other() -> None:
            with transaction(wait=0.05) as second:
                second.insert_disjoint(Slot, slots((15, 25)), pessimistic=True)

        with pytest.raises(LockTimeout):
            in_thread(other)
    with Slot.locked_range("d", 0, 100, wait=1):
        assert (stored_slots(), count()) == ([(10, 20)], 1)
    row = Slot.get("d", 10)
    with held_elsewhere(Slot.locked_range("d", 35, 36)), pytest.raises(LockTimeout), transaction(wait=0.05) as tx:
        tx.move(row, 30, 40, pessimistic=True)
    assert (row.begin, stored_slots()) == (10, [(10, 20)])


@pytest.mark.parametrize("again", [False, True])
def test_a_range_lock_is_given_back_by_the_commit(in_memory, again):
    """One entry guards several rows, however often the transaction has acquired it."""
    Slot.intervals.insert_disjoint(slots((90, 99)), pessimistic=True)
    with on("UpdateItem").watch() as updates, transaction() as tx:
        tx.insert_disjoint(Slot, slots((10, 20), (30, 40), (50, 60)), pessimistic=True)
        if again:
            tx.insert_disjoint(Slot, slots((20, 30)), pessimistic=True)
    assert len(updates.bodies) == 1
    with Slot.locked_range("d", 0, 100, wait=0):
        assert len(stored_slots()) == 4 + again


# Tasks


@pytest.mark.parametrize("pessimistic", [False, True])
def test_in_a_task(in_memory, pessimistic):
    """The same, awaited."""
    Slot.intervals.insert_disjoint(slots((10, 20)))

    async def book() -> None:
        row = await Slot.aget("d", 10)
        async with atransaction() as tx:
            await tx.move(row, 40, 50, pessimistic=pessimistic)
            await tx.insert_disjoint(Slot, slots((10, 20), device="e"), pessimistic=pessimistic)
            await tx.save(Invoice("n", total=1))
        with pytest.raises(OverlapError):
            async with atransaction() as tx:
                await tx.save(Invoice("m", total=1))
                await tx.insert_disjoint(Slot, slots((45, 46)), pessimistic=pessimistic)

    asyncio.run(book())
    assert (stored_slots(), stored_slots("e"), count(), count("m")) == ([(40, 50)], [(10, 20)], 1, 0)


# TransactWrite


def put(write: TransactWrite, *ends: tuple[int, int]) -> None:
    write.insert_disjoint(Slot, slots(*ends))


def together(act: Callable[[TransactWrite], object], **options: Any) -> None:
    """Do something in a `TransactWrite` that also writes an invoice."""
    with TransactWrite(connection=Slot._get_connection().connection, **options) as write:
        act(write)
        write.save(Invoice("n", total=1))


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda write, row: put(write, (20, 30)), [(10, 20), (20, 30)]),
        (lambda write, row: write.move(row, 40, 50), [(40, 50)]),
        (lambda write, row: (write.move(row, 10, 12), put(write, (12, 20))), [(10, 12), (12, 20)]),
        (lambda write, row: (write.delete(row), put(write, (12, 90))), [(12, 90)]),
        (lambda write, row: (put(write, (1, 2)), put(write, (3, 4)), row.delete()), [(1, 2), (3, 4)]),
    ],
)  # fmt: skip
def test_a_native_transaction_of_the_caller(in_memory, act, expected, sent):
    """All in the one request that the caller makes; the instances know what was stored."""
    Slot.intervals.insert_disjoint(slots((10, 20)))
    row = Slot.get("d", 10)
    sent.clear()
    together(lambda write: act(write, row))
    assert (stored_slots(), count()) == (expected, 1)
    assert sent.count("TransactWriteItems") == 1
    for begin, _ in expected:
        with pytest.raises(OverlapError):
            Slot.intervals.insert_disjoint(slots((begin, begin + 1)))
    if row.begin != 10:
        row.note = "mine"
        row.save()


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda write, row: put(write, (19, 30)), OverlapError),
        (lambda write, row: [put(write, (30, 40)) for _ in "ab"], OverlapError),
        (lambda write, row: (write.move(row, 40, 50), write.delete(row)), ConfigurationError),
        (lambda write, row: (write.move(row, 40, 50), put(write, (45, 46))), OverlapError),
        (lambda write, row: put(write, *((i, i + 1) for i in range(60, 160))), ConfigurationError),
        (lambda write, row: write.insert_disjoint(Invoice, [Invoice("x")]), ConfigurationError),
        (lambda write, row: write.move(Invoice("x"), 1, 2), ConfigurationError),
        (lambda write, row: write.move(slots((30, 40))[0], 1, 2), ConfigurationError),
        (lambda write, row: (write.move(row, 40, 50), in_thread(slots((60, 61))[0].save)), TransactionConflict),
        (lambda write, row: (write.move(row, 40, 50), Slot.get("d", 10).touch()), StaleVersion),
    ],
)  # fmt: skip
def test_a_native_transaction_that_is_refused(in_memory, act, error):
    """Nothing of it is written, and the instance is where it was."""
    Slot.intervals.insert_disjoint(slots((10, 20)))
    row = Slot.get("d", 10)
    with pytest.raises(error):
        together(lambda write: act(write, row))
    assert ((10, 20) in stored_slots(), (40, 50) in stored_slots(), count()) == (True, False, 0)
    assert (row.begin, row.end, row.version) == (10, 20, 1)


def test_a_token_of_the_caller_is_refused(in_memory):
    """A repetition would find its own rows."""
    with pytest.raises(ConfigurationError, match="idempotency_key"):
        together(lambda write: write.insert_disjoint(Slot, slots((20, 30))), client_request_token="t")
    assert stored_slots() == []
