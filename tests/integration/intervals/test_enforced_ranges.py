"""Locks of ranges that every writer meets, as in seed 004 `FOR UPDATE` makes plain inserts wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import DeleteError, PutError, UpdateError

from pynamo_locking import ExpiringMixin, LockableModel, TransactWrite, TTLAttribute, VersionAttribute, transaction
from pynamo_locking.exceptions import (
    BatchError,
    ConfigurationError,
    ItemLocked,
    LockLost,
    LockTimeout,
    StaleVersion,
    TransactionConflict,
)
from pynamo_locking.intervals import IntervalMixin
from tests.support.interval_models import SlotLocks
from tests.support.models import declare, meta
from tests.support.parties import abandoned, held_elsewhere, in_thread, shifted_clock
from tests.support.transaction_models import Entry, Purse, Transactions, make_long_from
from tests.support.wire import count_requests, on
from tests.support.workers import until

if TYPE_CHECKING:
    from collections.abc import Callable


class Plan(IntervalMixin, LockableModel):
    """Every write meets the locks of ranges."""

    Meta = meta(
        "plans", lock_table=SlotLocks, transaction_table=Transactions, interval=("begin", "end"), enforce_locks="ranges"
    )

    device = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    note = UnicodeAttribute(null=True)
    version = VersionAttribute()


#: The end is the range key.
Stay = declare(
    "Stay",
    IntervalMixin,
    LockableModel,
    hash_key="device",
    end=NumberAttribute(range_key=True),
    begin=NumberAttribute(),
    version=True,
    lock_table=SlotLocks,
    interval=("begin", "end"),
    enforce_locks="ranges",
)

#: They expire, and may have no end.
Passing = declare(
    "Passing",
    IntervalMixin,
    ExpiringMixin,
    LockableModel,
    hash_key="device",
    begin=NumberAttribute(range_key=True),
    end=NumberAttribute(null=True),
    expires=TTLAttribute(null=True),
    version=True,
    lock_table=SlotLocks,
    interval=("begin", "end"),
    enforce_locks="ranges",
)


#: Every write meets the locks of ranges and of the table; no versions.
Seat = declare("Seat", hash_key="hall", range_key="number", texts="guest", lock_table=SlotLocks, enforce_locks="table")


def stored() -> list[tuple[int, int, str | None]]:
    return [(int(row.begin), int(row.end), row.note) for row in Plan.query("d", consistent_read=True)]


def planned(begin: int, end: int, **values: Any) -> Plan:
    return Plan("d", begin, end=end, **values)


def in_transaction(write: Callable[[Any], object], **options: Any) -> None:
    with transaction(**options) as tx:
        write(tx)


def in_long_transaction(row: Plan) -> None:
    """Write a row and more items than a native transaction holds: the rest is marked."""
    with transaction(Transactions) as tx:
        row.note = "new"
        tx.save(row)
        for number in range(5):
            tx.save(Purse(f"p{number}"))


def in_batch(row: Plan, **options: Any) -> None:
    with Plan.guarded_batch(**options) as batch:
        row.note = "new"
        batch.save(row)


def saved(row: Plan) -> None:
    row.note = "new"
    row.save()


def saved_in(tx: Any, row: Plan) -> None:
    row.note = "new"
    tx.save(row)


def edited(row: Plan) -> None:
    with Plan.edit(row.device, row.begin) as item:
        item.note = "new"


def write_together(add: Callable[[TransactWrite], object]) -> None:
    with TransactWrite(connection=Plan._get_connection().connection) as tx:
        add(tx)


#: Each writes between 14 and 17 of "d", where a row from 14 to 15 is stored.
WAYS: dict[str, Callable[[Plan], object]] = {
    "save new": lambda _: planned(16, 17).save(),
    "save": saved,
    "save unchecked": lambda row: row.save(add_version_condition=False),
    "update": lambda row: row.update([Plan.note.set("new")]),
    "update end": lambda row: row.update([Plan.end.set(16)]),
    "delete": lambda row: row.delete(),
    "touch": lambda row: row.touch(),
    "modify": lambda row: Plan.modify(row.device, row.begin, change=lambda it: setattr(it, "note", "new"), attempts=1),
    "edit": edited,
    "insert_disjoint": lambda _: Plan.intervals.insert_disjoint([planned(16, 17)]),
    "move away": lambda row: Plan.intervals.move(row, 30, 31),
    "move into": lambda _: Plan.intervals.move(Plan.get("d", 40), 16, 17),
    "close_at": lambda row: Plan.intervals.close_at(row, 14.5),
    "TransactWrite": lambda row: write_together(lambda tx: saved_in(tx, row)),
    "TransactWrite delete": lambda row: write_together(lambda tx: tx.delete(row)),
    "Transaction": lambda row: in_transaction(lambda tx: saved_in(tx, row)),
    "Transaction get": lambda _: in_transaction(lambda tx: tx.update(tx.get(Plan, "d", 14), [Plan.note.set("new")])),
    "Transaction insert_disjoint": lambda _: in_transaction(lambda tx: tx.insert_disjoint(Plan, [planned(16, 17)])),
    "Transaction move": lambda row: in_transaction(lambda tx: tx.move(row, 16, 17)),
    "long Transaction": in_long_transaction,
    "guarded_batch": in_batch,
    "guarded_batch of transactions": lambda row: in_batch(row, transactions=True),
}


@pytest.fixture
def tables(memory, monkeypatch):
    memory.bind(Plan, SlotLocks, Purse, Entry, Transactions)
    make_long_from(monkeypatch)
    Plan.intervals.insert_disjoint([planned(14, 15)])
    planned(40, 41).save()


def refusal_of(write: Callable[[], object]) -> BaseException | None:
    """Return why a write was refused; of a batch, why its first write was."""
    try:
        write()
    except BatchError as error:
        return error.results[0].error
    except (ItemLocked, LockLost) as error:
        return error
    return None


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_write_meets_a_locked_range(tables, way):
    """A holder keeps it out; a dead one is evicted by the first writer, and one that is not in the way stays."""
    row, before = Plan.get("d", 14), stored()
    with shifted_clock() as world:
        abandoned(Plan.locked_range("d", 12, 18, lease=6))
        abandoned(Plan.locked_range("d", 20, 22, lease=6))
        assert isinstance(refusal_of(lambda: WAYS[way](row)), ItemLocked)
        assert stored() == before

        world.shift = 6 + 60 + 1  # the lease, and what clocks may differ by
        assert refusal_of(lambda: WAYS[way](Plan.get("d", 14))) is None
        assert len(Plan.lock_state("d").entries) == 1
    assert stored() != before or way in ("touch", "save unchecked")


@pytest.mark.parametrize("way", WAYS)
def test_the_holder_writes_in_each_way_and_no_longer_when_the_lock_is_lost(tables, way):
    row, before = Plan.get("d", 14), stored()

    lock = Plan.locked_range("d", 12, 41, heartbeat=False).acquire()
    Plan.break_lock("d", ticket=lock.ticket)
    assert isinstance(refusal_of(lambda: WAYS[way](row)), LockLost)
    assert stored() == before
    with pytest.raises(LockLost):
        lock.release()

    with Plan.locked_range("d", 12, 41):
        WAYS[way](Plan.get("d", 14))
        assert stored() != before or way in ("touch", "save unchecked")


def saved_until(row: Plan, end: int) -> None:
    row.end = end
    row.save()


#: Each writes a row that begins before 12 and reaches to 13, beside a row from 8 to 9.
WAYS_IN: dict[str, Callable[[], object]] = {
    "insert": lambda: Plan.intervals.insert_disjoint([planned(10, 13)]),
    "insert around": lambda: Plan.intervals.insert_disjoint([planned(11, 20)]),
    "insert in a transaction": lambda: in_transaction(lambda tx: tx.insert_disjoint(Plan, [planned(10, 13)])),
    "save new": lambda: planned(10, 13).save(),
    "save longer": lambda: saved_until(Plan.get("d", 8), 13),
    "update": lambda: Plan.get("d", 8).update([Plan.end.set(13)]),
    "move": lambda: Plan.intervals.move(Plan.get("d", 40), 10, 13),
    "move longer": lambda: Plan.intervals.move(Plan.get("d", 8), 8, 13),
    "move in a transaction": lambda: in_transaction(lambda tx: tx.move(Plan.get("d", 8), 8, 13)),
}

#: Each writes the row from 8 to 14, or takes a part of its time away.
WAYS_OUT: dict[str, Callable[[], object]] = {
    "save": lambda: saved(Plan.get("d", 8)),
    "update": lambda: Plan.get("d", 8).update([Plan.note.set("new")]),
    "delete": lambda: Plan.get("d", 8).delete(),
    "close_at": lambda: Plan.intervals.close_at(Plan.get("d", 8), 10),
    "save shorter": lambda: saved_until(Plan.get("d", 8), 10),
    "update shorter": lambda: Plan.get("d", 8).update([Plan.end.set(10)]),
    "move shorter": lambda: Plan.intervals.move(Plan.get("d", 8), 8, 10),
    "move away": lambda: Plan.intervals.move(Plan.get("d", 8), 60, 61),
    "edit": lambda: edited(Plan.get("d", 8)),
    "transaction": lambda: in_transaction(lambda tx: saved_in(tx, tx.get(Plan, "d", 8))),
    "transaction delete": lambda: in_transaction(lambda tx: tx.delete(Plan.get("d", 8))),
    "transaction move": lambda: in_transaction(lambda tx: tx.move(Plan.get("d", 8), 8, 10)),
    "batch": lambda: in_batch(Plan.get("d", 8)),
}


@pytest.mark.parametrize(("end", "way"), [*((9, way) for way in WAYS_IN), *((14, way) for way in WAYS_OUT)])
def test_a_row_that_reaches_into_a_locked_range_meets_it(tables, end, way):
    """Its begin, the range key, lies outside."""
    write = (WAYS_IN if end == 9 else WAYS_OUT)[way]
    Plan.get("d", 14).delete()
    planned(8, end).save()
    before = stored()

    with held_elsewhere(Plan.locked_range("d", 12, 18)):
        assert isinstance(refusal_of(write), ItemLocked)
        assert stored() == before
    with Plan.locked_range("d", 12, 18), pytest.raises((ConfigurationError, BatchError), match="one range"):
        write()
    assert stored() == before
    with held_elsewhere(Plan.locked_range("d", 20, 39)), Plan.locked_range("d", 0, 20, wait=0):
        assert way in ("move", "move away") or refusal_of(write) is None
    if way in ("move", "move away"):
        write()  # the row leaves a place that is not locked here
    assert stored() != before


def test_rows_that_only_touch_a_locked_range_do_not_meet_it(tables):
    with held_elsewhere(Plan.locked_range("d", 12, 14)):
        planned(10, 12).save()
        Plan.get("d", 14).delete()
        Plan.intervals.insert_disjoint([planned(14, 15)])
    assert [(begin, end) for begin, end, _ in stored()] == [(10, 12), (14, 15), (40, 41)]


def test_whose_end_is_the_range_key_the_rows_are_met_by_their_interval_too(engine):
    """The end of the last row is the end of the locked range, which no range contains."""
    engine.bind(Stay, SlotLocks)
    with held_elsewhere(Stay.locked_range("d", 12, 18)):
        for begin, end in ((17, 20), (11, 19), (12, 18), (11, 13)):
            with pytest.raises(ItemLocked):
                Stay("d", end, begin=begin).save()
        Stay("d", 20, begin=18).save()
        Stay("d", 12, begin=11).save()
    with Stay.locked_range("d", 12, 18):
        Stay.intervals.insert_disjoint([Stay("d", 14, begin=12), Stay("d", 18, begin=15)])
    assert [int(row.end) for row in Stay.query("d")] == [12, 14, 18, 20]


def test_an_expired_row_that_reaches_into_a_locked_range_is_in_no_ones_way(memory):
    """The insert that replaces it deletes it: under the lock of the place of the new row."""
    memory.bind(Passing, SlotLocks)
    past = datetime(2000, 1, 1, tzinfo=timezone.utc)
    Passing("d", 10, end=20).save()
    Passing.get("d", 10).update([Passing.expires.set(past)])
    with held_elsewhere(Passing.locked_range("d", 15, 18)):
        Passing.intervals.insert_disjoint([Passing("d", 11, end=12)], pessimistic=True)
    assert [int(row.begin) for row in Passing.query("d")] == [11]


def test_a_row_without_an_end_reaches_into_each_later_range(memory):
    memory.bind(Passing, SlotLocks)
    with held_elsewhere(Passing.locked_range("d", 1000, 1001)):
        with pytest.raises(ItemLocked):
            Passing("d", 10).save()
        Passing("d", 10, end=20).save()
        with pytest.raises(ItemLocked):
            Passing.get("d", 10).update([Passing.end.remove()])


def test_every_engine(engine):
    engine.bind(Plan, SlotLocks, Transactions)
    Plan.intervals.insert_disjoint([planned(14, 15)])
    row = Plan.get("d", 14)

    with held_elsewhere(Plan.locked_range("d", 12, 18)):
        with pytest.raises(ItemLocked) as found:
            row.save()
        assert isinstance(found.value, PutError)
        with pytest.raises(UpdateError, match="is locked by"):
            row.update([Plan.note.set("new")])
        with pytest.raises(DeleteError, match="locked_range"):
            row.delete()
        with pytest.raises(ItemLocked):
            Plan.intervals.insert_disjoint([planned(16, 17)])
        with count_requests() as requests:
            planned(18, 19).save()
            Plan("e", 14, end=15).save()
        assert requests.by_operation["TransactWriteItems"] == 3  # the first one once more: there is an entry
        with transaction() as tx:
            tx.update(tx.get(Plan, "d", 18), [Plan.note.set("new")])
    row.note = "new"
    row.save()
    with Plan.locked_range("d", 12, 18):
        planned(16, 17).save()
        row.delete()

    assert stored() == [(16, 17, None), (18, 19, "new")]


def test_seed_004_pessimistic_locking_the_second_session_waits_for_the_first(engine):
    """ "Clause FOR UPDATE ... rows as well as gaps between the rows in the index are locked."

    An open lower end locks all rows that begin before the upper end, as the index range of the seed's query does.
    """
    engine.bind(Plan, SlotLocks, Transactions)
    Plan.intervals.insert_disjoint([planned(12, 15), planned(18, 21)])
    entered = threading.Event()

    def second_session() -> None:
        entered.set()
        with Plan.locked_range("d", None, 36, wait=60):
            assert [row.begin for row in Plan.intervals.overlapping("d", 12, 36)] == [12, 15, 18]

    with ThreadPoolExecutor(1) as pool:
        with Plan.locked_range("d", None, 24):
            assert [row.begin for row in Plan.intervals.overlapping("d", 0, 24)] == [12, 18]
            with pytest.raises(ItemLocked):  # a plain insert of a program that locks nothing
                in_thread(planned(15, 17).save)
            session = pool.submit(second_session)
            entered.wait()
            Plan.intervals.insert_disjoint([planned(15, 16)])
        session.result()


def test_insert_disjoint_waits_for_the_range_if_it_is_pessimistic(tables):
    def insert() -> list[Any]:
        Plan.intervals.insert_disjoint([planned(16, 17)], pessimistic=True, wait=60)
        return stored()

    with ThreadPoolExecutor(1) as pool:
        with Plan.locked_range("d", 12, 18):
            inserted = pool.submit(insert)
            until(lambda: len(Plan.lock_state("d").entries) == 2)
            Plan.get("d", 14).delete()
        assert inserted.result() == [(16, 17, None), (40, 41, None)]


def test_a_pessimistic_move_locks_the_place_that_it_leaves_too(tables, monkeypatch):
    """One transaction writes at both places. Writes that it had before are under the lock as well."""
    make_long_from(monkeypatch, 9)
    Plan.intervals.move(Plan.get("d", 14), 30, 31, pessimistic=True)
    with transaction() as tx:
        saved_in(tx, Plan.get("d", 30))
        tx.insert_disjoint(Plan, [planned(29, 30), planned(31, 32)], pessimistic=True)
    assert stored() == [(29, 30, None), (30, 31, "new"), (31, 32, None), (40, 41, None)]
    with held_elsewhere(Plan.locked_range("d", 40, 41)), pytest.raises(LockTimeout):
        Plan.intervals.move(Plan.get("d", 40), 14, 15, pessimistic=True, wait=0)


def test_rows_whose_end_is_the_range_key_are_inserted_pessimistically(memory):
    memory.bind(Stay, SlotLocks)
    Stay.intervals.insert_disjoint([Stay("d", end, begin=end - 1) for end in (2, 5, 9)], pessimistic=True)
    Stay.intervals.move(Stay.get("d", 9), 3, 4, pessimistic=True)
    assert [int(row.end) for row in Stay.query("d")] == [2, 4, 5]


def test_a_waiter_and_readers_keep_writers_out_as_well(tables):
    with held_elsewhere(Plan.locked_range("d", 12, 18, shared=True)):
        with pytest.raises(ItemLocked):
            Plan.get("d", 14).save()
        with Plan.locked_range("d", 13, 15, shared=True), pytest.raises(ConfigurationError):
            Plan.get("d", 14).save()


def test_one_transaction_writes_inside_or_outside_of_a_range_that_is_held(tables):
    with Plan.locked_range("d", 12, 18):
        for begin in (TransactWrite(connection=Plan._get_connection().connection), transaction()):
            with pytest.raises(ConfigurationError, match="inside and outside"), begin as tx:
                tx.delete(Plan.get("d", 14))
                tx.delete(Plan.get("d", 40))
        Plan.get("d", 40).delete()
    assert len(stored()) == 1


def test_a_transaction_checks_each_hash_key_once(tables):
    with held_elsewhere(Plan.locked_range("d", 12, 18)), count_requests() as requests, transaction() as tx:
        tx.update(Plan.get("d", 40), [Plan.note.set("x")])
    assert requests.by_operation["TransactWriteItems"] == 2

    rows = [Plan.get("d", begin) for begin in (14, 40)]
    with count_requests() as requests:
        write_together(lambda tx: [tx.delete(row) for row in rows])  # 3 actions: one check
    assert requests.by_operation == {"TransactWriteItems": 1}
    assert not stored()


@pytest.mark.parametrize("begins", [(14, 40), (40, 14)], ids=["first", "second"])
@pytest.mark.parametrize("begin", [write_together, in_transaction])
def test_each_item_of_a_transaction_meets_a_locked_range(tables, begin, begins):
    """Also one whose range is locked, behind one whose place is free: both share the check of the lock."""
    rows, before = [Plan.get("d", each) for each in begins], stored()
    with held_elsewhere(Plan.locked_range("d", 12, 18)):
        refusal = refusal_of(lambda: begin(lambda tx: [tx.delete(row) for row in rows]))
    assert isinstance(refusal, ItemLocked), "an item in a locked range was written, together with one outside of it"
    assert stored() == before


def test_a_lost_response_is_no_refusal(tables):
    """Nor is a check that fails for a reason that no read shows: that is a conflict."""
    row = Plan.get("d", 14)
    row.note = "new"
    with on("TransactWriteItems").lose_response():
        row.save()
    assert stored()[0] == (14, 15, "new")
    refused = "TransactionCanceledException", "ConditionalCheckFailed", None
    with on("TransactWriteItems").answer(refused, always=True), pytest.raises(TransactionConflict):
        row.save()


def test_other_refusals_are_told_as_without_locks(tables):
    row, stale = Plan.get("d", 14), Plan.get("d", 14)
    row.save()
    with held_elsewhere(Plan.locked_range("d", 30, 31)):
        for write in (stale.save, stale.delete, lambda: in_transaction(lambda tx: tx.save(stale))):
            with pytest.raises(StaleVersion):
                write()


@pytest.fixture
def seats(memory):
    memory.bind(Seat, SlotLocks)
    Seat("A", 1).save()


def test_the_lock_of_a_table_is_met_by_every_writer_of_every_hash_key(seats):
    seat = Seat.get("A", 1)
    with held_elsewhere(Seat.locked_table()):
        with pytest.raises(ItemLocked):
            Seat("B", 7).save()
        with pytest.raises(ItemLocked), Seat.locked_range("A", 1, 2):
            seat.save()
        assert Seat.count("B") == 0
    with Seat.locked_table(lease=60):
        seat.save()
        Seat("B", 7).save()
        with held_elsewhere(Seat.locked_range("B", 5, 9)), pytest.raises(ItemLocked):
            Seat("B", 8).save()
    lock = Seat.locked_table(heartbeat=False).acquire()
    SlotLocks.break_lock(f"table#{Seat.Meta.table_name}", ticket=lock.ticket)
    with pytest.raises(LockLost):
        Seat("C", 1).save()
    with pytest.raises(LockLost):
        lock.release()
    with count_requests() as requests:
        Seat("C", 1).save()
    assert requests.by_operation == {"TransactWriteItems": 1}


def test_what_enforced_writes_cost(seats):
    """As in the table of costs."""
    seat = Seat.get("A", 1)
    writes = {"TransactWriteItems": 1}
    for write, expected in (
        (seat.save, writes),
        (lambda: seat.update([Seat.guest.set("Ada")]), {**writes, "GetItem": 1}),
        (seat.delete, writes),
    ):
        with count_requests() as requests:
            write()
        assert requests.by_operation == expected
    with count_requests() as requests, Seat.locked_table():
        pass
    assert requests.by_operation == {"UpdateItem": 3}  # the first lock of a name is one write more
    with held_elsewhere(Seat.locked_range("A", 1, 2)), count_requests() as requests, pytest.raises(ItemLocked):
        Seat("A", 1).save()
    assert requests.by_operation == writes


Wrong = declare("Wrong", hash_key="pk", range_key="sk", lock_table=SlotLocks, enforce_locks="always")
Inside = declare("Inside", hash_key="pk", range_key="sk", lock=True, lock_table=SlotLocks, enforce_locks="ranges")


@pytest.mark.parametrize("model", [Wrong, Inside])
def test_a_model_that_cannot_enforce_is_refused(model):
    for call in (model("a", 1).save, Plan.locked_table):
        with pytest.raises(ConfigurationError, match=r"Meta\.enforce_locks"):
            call()
