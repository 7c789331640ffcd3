"""Rows that must not overlap: what is stored, what is refused, and what that costs."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pynamodb.attributes import DiscriminatorAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import PutError, UpdateError
from pynamodb.models import Model

from pynamo_locking import TransactWrite, VersionAttribute, transaction
from pynamo_locking.exceptions import BatchError, ConfigurationError, Conflict, InvalidInput, OverlapError, StaleVersion
from pynamo_locking.intervals import IntervalMixin
from tests.support.interval_models import Booking, Lease, Slot, SlotLocks, SlotTransactions, slots, stored_slots
from tests.support.models import declare, meta
from tests.support.transaction_helpers import units
from tests.support.transaction_models import make_long_from, rows_of

pytestmark = pytest.mark.core

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@pytest.fixture
def tables(cheap):
    cheap.bind(Slot, Booking, Lease, SlotLocks, SlotTransactions)


INSERT = ["GetItem", "Query", "TransactWriteItems"]


def test_every_engine(engine):
    """What is asked of DynamoDB, they all understand."""
    engine.bind(Slot, SlotLocks)
    Slot.intervals.insert_disjoint(slots((0, 5), (5, 9)))
    with pytest.raises(OverlapError):  # the rows are settled first
        Slot.intervals.insert_disjoint(slots((8, 10)))
    rows = slots((10, 20), (30, 40))
    rows[0].save()
    rows[1].save()
    rows[0].update([Slot.end.set(15)])
    Slot.intervals.move(rows[1], 16, 18)
    rows[1].delete()
    assert stored_slots() == [(0, 5), (5, 9), (10, 15)]
    assert Slot.intervals.free("d", 0, 12) == [(9, 10)]


# Inserting


@pytest.mark.parametrize(
    ("begin", "end", "others"),
    [
        (0, 10, []),
        (20, 30, []),
        (10, 20, [(10, 20)]),
        (0, 11, [(10, 20)]),
        (19, 30, [(10, 20)]),
        (12, 13, [(10, 20)]),
        (0, 100, [(10, 20), (30, 40), (40, 50)]),
        (35, 45, [(30, 40), (40, 50)]),
        (50, 60, []),
    ],
)
def test_a_row_is_refused_where_others_are(in_memory, begin, end, others):
    """All of them are named, in order; what only touches is no overlap; a refusal writes nothing."""
    Slot.intervals.insert_disjoint(slots((10, 20), (30, 40), (40, 50)))
    for row in slots((0, 100), device="other"):
        row.save()
    before = stored_slots()

    if others:
        with pytest.raises(OverlapError) as caught:
            Slot.intervals.insert_disjoint(slots((begin, end), note="mine"))
        assert [(row.begin, row.end) for row in caught.value.rows] == others
        assert (caught.value.requested.begin, caught.value.requested.end) == (begin, end)
        assert str(begin) in str(caught.value)
        assert stored_slots() == before
    else:
        Slot.intervals.insert_disjoint(slots((begin, end), note="mine"))
        assert stored_slots() == sorted([*before, (begin, end)])


@pytest.mark.parametrize(
    ("begin", "end", "others"),
    [(-2, -1, []), (-2, 0, []), (-1, 0.5, [0]), (1, 2, []), (1, 2.5, [2]), (0.5, 9, [0, 2])],
)
def test_the_end_may_be_the_range_key(in_memory, begin, end, others):
    """With times, and a number as hash key; the same rules: a row that ends where the new one begins hides none."""
    Booking.intervals.insert_disjoint(
        [Booking(7, NOON + HOUR, begin=NOON), Booking(7, NOON + 3 * HOUR, begin=NOON + 2 * HOUR)]
    )
    row = Booking(7, NOON + end * HOUR, begin=NOON + begin * HOUR)

    if not others:
        Booking.intervals.insert_disjoint([row])
    else:
        with pytest.raises(OverlapError) as caught:
            Booking.intervals.insert_disjoint([row])
        assert [each.begin for each in caught.value.rows] == [NOON + other * HOUR for other in others]
    assert len(rows_of(Booking)) == 2 + (not others)


def test_all_rows_or_none(tables):
    """Over several hash keys: one row in the way keeps all of them out."""
    Slot.intervals.insert_disjoint(slots((10, 20), device="b"))

    with pytest.raises(OverlapError) as caught:
        Slot.intervals.insert_disjoint([*slots((0, 5), (5, 9)), *slots((15, 25), device="b")])

    assert caught.value.requested.device == "b"
    assert stored_slots() == []
    Slot.intervals.insert_disjoint(rows := [*slots((0, 5), (5, 9)), *slots((20, 25), device="b")])
    assert stored_slots() == [(0, 5), (5, 9)]
    assert [row.version for row in rows] == [1, 1, 1]
    rows[0].note = "changed"
    rows[0].save()


def test_at_most_twenty_rows_are_told(in_memory, sent):
    """However many are in the way, and so a refusal costs a bounded number of requests as well."""
    Slot.intervals.insert_disjoint(slots(*((i, i + 1) for i in range(60))))
    sent.clear()

    with pytest.raises(OverlapError) as caught:
        Slot.intervals.insert_disjoint(slots((0, 60)))

    assert len(caught.value.rows) == 20
    assert len(sent) <= 8


def test_an_overlap_error_can_be_sent_elsewhere(in_memory):
    """It pickles, with its rows, and is PynamoDB's error as well."""
    Slot.intervals.insert_disjoint(slots((10, 20), note="first"))
    with pytest.raises(OverlapError) as caught:
        slots((15, 25))[0].save()

    copy = pickle.loads(pickle.dumps(caught.value))

    assert isinstance(copy, PutError)
    assert [row.note for row in copy.rows] == ["first"]
    assert copy.requested.end == 25
    assert OverlapError("nothing known").requested is None


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (list, ConfigurationError, "at least one"),
        (lambda: 5, ConfigurationError, "at least one"),
        (lambda: slots((5, 5)), InvalidInput, "begin before it ends"),
        (lambda: slots((6, 5)), InvalidInput, "begin before it ends"),
        (lambda: [Slot("d", 5)], InvalidInput, "'end' of a Slot has no value"),
        (lambda: [Slot("d", end=5)], InvalidInput, "'begin' of a Slot has no value"),
        (lambda: [Slot("d", "a", end=5)], InvalidInput, "'begin' of Slot"),
        (lambda: [Slot("d", 5, end="b")], InvalidInput, "'end' of Slot"),
        (lambda: [Slot(None, 5, end=6)], InvalidInput, "hash key"),
        (lambda: [*slots((5, 6)), Booking(1)], ConfigurationError, "rows of that model"),
        (lambda: [*slots((5, 6)), *slots((5, 7))], OverlapError, "from 5 to 7 .* another row of the same call"),
        (lambda: slots((5, 6)) * 2, OverlapError, "another row of the same call"),
        (lambda: [*slots((5, 9)), *slots((0, 6))], OverlapError, "another row of the same call"),
        (lambda: slots(*((i, i + 1) for i in range(100))), ConfigurationError, "100 rows, and 1 guards"),
        (lambda: [Slot(str(i), 1, end=2) for i in range(100)], ConfigurationError, "100 hash keys"),
    ],
)
def test_rows_that_cannot_be_are_refused_before_any_request(in_memory, sent, make, error, match):
    """With an error that says what is wrong."""
    sent.clear()

    with pytest.raises(error, match=match):
        Slot.intervals.insert_disjoint(make())

    assert sent == []


def test_locks_take_actions_too(in_memory, sent):
    """With the range locks, 99 rows of one hash key are one too many; said before any lock is taken."""
    sent.clear()
    with pytest.raises(ConfigurationError, match="99 rows, and 2 guards and locks"):
        Slot.intervals.insert_disjoint(slots(*((i, i + 1) for i in range(99))), pessimistic=True)
    assert sent == []


def test_a_time_needs_a_zone(in_memory):
    """Both ends, and everywhere."""
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the point
    for begin, end in ((naive, NOON), (NOON, naive)):
        with pytest.raises(InvalidInput, match="time zone"):
            Booking.intervals.insert_disjoint([Booking(1, end, begin=begin)])
        with pytest.raises(InvalidInput, match="time zone"):
            Booking.intervals.overlapping(1, begin, end)


def test_an_update_takes_a_time_without_a_zone_for_utc(in_memory):
    """PynamoDB has stored it so in the action, before we see it: documented, and so the row is kept apart by that."""
    Booking.intervals.insert_disjoint([row := Booking(1, NOON + HOUR, begin=NOON), Booking(1, NOON, begin=NOON - HOUR)])
    row.update([Booking.begin.set(datetime(2026, 1, 1, 12, 30))])  # noqa: DTZ001 - that is the point
    assert row.begin == NOON + HOUR / 2
    with pytest.raises(OverlapError):
        row.update([Booking.begin.set(datetime(2026, 1, 1, 11, 59))])  # noqa: DTZ001 - that is the point


def test_hash_keys_that_are_the_same_are_one(in_memory):
    """1 and 1.0 are one room, within a call and between calls."""
    rows = [Booking(1, NOON + HOUR, begin=NOON), Booking(1.0, NOON + 2 * HOUR, begin=NOON)]
    with pytest.raises(OverlapError, match="same call"):
        Booking.intervals.insert_disjoint(rows)
    Booking.intervals.insert_disjoint(rows[:1])
    with pytest.raises(OverlapError, match="stored"):
        Booking.intervals.insert_disjoint(rows[1:])


@pytest.mark.parametrize("count", [1, 200])
def test_requests_do_not_grow_with_the_stored_rows(in_memory, sent, count):
    """A read, a query of one page, a transaction; each ninth time a transactional read."""
    with Slot.batch_write(unguarded=True) as batch:
        for i in range(count):
            batch.save(slots((20 * i, 20 * i + 10))[0])
    sent.clear()
    for i in range(10):
        begin = 20 * (i * count // 10) + 10 + i
        Slot.intervals.insert_disjoint(slots((begin, begin + 1)))

    assert sent.count("TransactGetItems") == 1
    assert [each for each in sent if each != "TransactGetItems"] == INSERT * 10


# Moving, saving, updating, deleting


@pytest.mark.parametrize(("begin", "end"), [(0, 5), (10, 30), (12, 15), (5, 12)])
def test_a_row_moves_where_it_is_free(in_memory, begin, end):
    """Also over itself; with its other values; the instance is the moved row, and can be saved."""
    Slot.intervals.insert_disjoint([row := slots((10, 20), note="kept")[0], *slots((30, 40))])

    Slot.intervals.move(row, begin, end)

    assert stored_slots() == sorted([(begin, end), (30, 40)])
    row.note += "!"
    row.save()
    assert Slot.get("d", begin).note == "kept!"
    assert (row.begin, row.end) == (begin, end)


def test_a_row_is_not_in_its_own_way(in_memory, sent):
    """What its guard says of it need not be settled first: the transaction writes it anyhow."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    sent.clear()
    for end in (15, 25):
        Slot.intervals.move(row, 10, end)
    assert sent == INSERT * 2


@pytest.mark.parametrize(("begin", "end"), [(0, 31), (35, 36), (10, 31), (30, 40)])
def test_a_row_does_not_move_where_others_are(in_memory, begin, end):
    """It stays where it is, and so does the instance."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0], *slots((30, 40))])

    with pytest.raises(OverlapError) as caught:
        Slot.intervals.move(row, begin, end)

    assert [each.begin for each in caught.value.rows] == [30]
    assert (caught.value.requested.begin, caught.value.requested.end) == (begin, end)
    assert (row.begin, row.end, row.version) == (10, 20, 1)
    assert stored_slots() == [(10, 20), (30, 40)]
    row.save()


def test_a_stale_row_does_not_move(in_memory):
    """In place or not: another writer changed it."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    Slot.get("d", 10).touch()

    for ends in ((0, 5), (10, 15)):
        with pytest.raises(StaleVersion):
            Slot.intervals.move(row, *ends)
        assert (row.begin, row.end) == (10, 20)
    with pytest.raises(ConfigurationError, match="needs a stored Slot"):
        Slot.intervals.move(slots((50, 60))[0], 50, 61)


def test_a_save_within_its_interval_and_a_delete_are_one_write(in_memory, sent):
    """As without the mixin; a delete makes room."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    sent.clear()

    row.note = "x"
    row.save()
    assert sent == ["PutItem"]
    row.save(add_version_condition=False)
    assert Slot.get("d", 10).version == 3
    Slot("d", 10).delete(add_version_condition=False)
    assert sent[1:] == ["UpdateItem", "GetItem", "DeleteItem"]
    Slot.intervals.insert_disjoint(slots((15, 25)))


def test_a_save_that_changes_the_interval_is_guarded(tables):
    """Whether the row is new, or known, or overwritten whatever its version."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0], *slots((30, 40))])
    row.end = 35
    with pytest.raises(OverlapError) as caught:
        row.save()
    assert isinstance(caught.value, PutError)
    row.end = 30
    row.save()
    assert stored_slots() == [(10, 30), (30, 40)]
    assert row.version == 2
    for end, is_free in ((31, False), (25, True)):
        blind = slots((10, end), note="blind")[0]
        if is_free:
            blind.save(add_version_condition=False)
            assert (blind.version, Slot.get("d", 10).note) == (3, "blind")
            blind.save()
        else:
            with pytest.raises(OverlapError):
                blind.save(add_version_condition=False)
    with pytest.raises(OverlapError):
        slots((10, 11))[0].save()
    new = slots((25, 30))[0]
    new.save(add_version_condition=False)
    assert stored_slots() == [(10, 25), (25, 30), (30, 40)]


def test_a_save_of_a_row_that_others_changed_is_refused(in_memory):
    """Stale is stale, whatever became of its interval; the errors are those of a save."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    Slot.intervals.move(Slot.get("d", 10), 10, 15)
    for end in (20, 15, 12):
        row.end = end
        with pytest.raises(StaleVersion) as caught:
            row.save()
        assert isinstance(caught.value, PutError)
    Slot.get("d", 10).delete()
    with pytest.raises(StaleVersion):
        row.save()
    assert stored_slots() == []


def test_the_callers_condition_counts_on_both_ways(in_memory):
    """In the plain write, and in the guarded one."""
    Slot.intervals.insert_disjoint([row := slots((10, 20), note="a")[0]])
    for end in (20, 15):
        row.end = end
        with pytest.raises(Conflict):
            row.save(Slot.note == "b")
        row.save(Slot.note == "a")
        with pytest.raises(Conflict):
            row.update([Slot.end.set(end)], Slot.note == "b")
    assert stored_slots() == [(10, 15)]


def test_an_update_of_the_end_is_guarded(tables, sent):
    """By its value; with and without the version; the instance has the result."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0], *slots((30, 40))])
    with pytest.raises(OverlapError) as caught:
        row.update([Slot.end.set(31)])
    assert isinstance(caught.value, UpdateError)
    assert (row.end, row.version) == (20, 1)

    row.update([Slot.end.set(25), Slot.note.set("n")])
    assert (row.end, row.note, row.version) == (25, "n", 2)
    blind = Slot("d", 10)
    with pytest.raises(OverlapError):
        blind.update([Slot.end.set(31)], add_version_condition=False)
    blind.update([Slot.end.set(22)], add_version_condition=False)
    assert (blind.end, blind.note, blind.version) == (22, "n", 3)
    assert stored_slots() == [(10, 22), (30, 40)]
    blind.save()

    sent.clear()
    blind.update([Slot.note.set("m")])
    assert sent == ["UpdateItem"]


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (lambda: Slot.end.add(5), "only DynamoDB knows"),
        (lambda: Slot.end.set(Slot.end + 5), "only DynamoDB knows"),
        (Slot.end.remove, "must have one"),
        (lambda: Slot.end.set(Slot.begin), "only DynamoDB knows"),
        (lambda: Slot.begin.set(5), r"range key.*move\(\)"),
        (lambda: Slot.end.set(9), "begin before it ends"),
    ],
)
def test_updates_that_cannot_be_checked_are_refused(in_memory, sent, action, match):
    """Before any request."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    sent.clear()

    with pytest.raises((ConfigurationError, InvalidInput), match=match):
        row.update([action()])

    assert sent == []


def test_an_update_creates_no_row_without_an_interval(in_memory):
    """Nor does `touch`."""
    for checks in (True, False):
        with pytest.raises(UpdateError):
            Slot("d", 1).update([Slot.note.set("x")], add_version_condition=checks)
    assert rows_of(Slot) == []


# Ways round


def test_transactions_do_not_get_round_the_guard(tables):
    """New rows are refused, other intervals are refused, everything else is written."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0], other := slots((20, 30))[0]])
    with pytest.raises(ConfigurationError, match="insert_disjoint"), transaction() as tx:
        tx.save(slots((12, 13))[0])
    with (
        pytest.raises(ConfigurationError, match="insert_disjoint"),
        TransactWrite(connection=Slot._get_connection().connection) as write,
    ):
        write.save(slots((12, 13))[0])
    with pytest.raises(ConfigurationError, match="move"), transaction() as tx:
        tx.update(row, [Slot.end.set(25)])
    row.end = 25
    with pytest.raises(Conflict), transaction() as tx:
        tx.save(row)
    with pytest.raises(Conflict), TransactWrite(connection=Slot._get_connection().connection) as write:
        write.save(row)
    with pytest.raises(BatchError), row.guarded_batch(transactions=True) as batch:
        batch.save(row)
    row.end = 20
    with transaction() as tx:
        tx.update(row, [Slot.note.set("changed")])
        tx.delete(other)
    for write_absent in (transaction, lambda: TransactWrite(connection=Slot._get_connection().connection)):
        with pytest.raises(Conflict), write_absent() as tx:
            tx.update(Slot("d", 1), [Slot.note.set("no interval")], add_version_condition=False)
    assert stored_slots() == [(10, 20)]
    with pytest.raises(ConfigurationError, match="unguarded"):
        Slot.batch_write()


def test_edit_does_not_get_round_the_guard(in_memory):
    """It saves with the lock's own request: the interval must be as it is stored."""
    Slot.intervals.insert_disjoint(slots((10, 20), (20, 30)))
    Lease.intervals.insert_disjoint([Lease("o", "a", after="b")])
    with Slot.edit("d", 10) as row:
        row.note = "x"
    with pytest.raises(Conflict, match=r"use move\(\) of the model's intervals"), Slot.edit("d", 10) as row:
        row.end = 25
    with pytest.raises(Conflict, match=r"use move\(\) of the model's intervals"), Lease.edit("o", "a") as lease:
        lease.after = "c"
    with Slot.locked("d", 10) as lock:
        lock.item.end = 15
        lock.item.save()
    with Lease.locked("o", "a") as lock:
        lock.item.after = "c"
        lock.item.save()
    assert stored_slots() == [(10, 15), (20, 30)]
    assert Lease.get("o", "a").after == "c"


@pytest.mark.parametrize("write", ["delete", "update"])
def test_a_condition_that_is_false_beside_a_changed_end(in_memory, write):
    """These writes do not touch the interval: the error speaks of the condition."""
    [row] = slots((10, 20))
    row.save()
    row.end = 30
    false = Slot.note == "x"
    with pytest.raises(Conflict, match="its condition was not met"):
        row.delete(false) if write == "delete" else row.update([Slot.note.set("y")], false)


def test_a_row_moves_under_its_own_lock(in_memory):
    """The moved row is not under that lock any more, wherever it was kept."""
    Slot.intervals.insert_disjoint(slots((10, 20)))
    Lease.intervals.insert_disjoint([Lease("o", "a", after="b", note="kept")])
    with Slot.locked("d", 10) as lock:
        row = lock.item
        Slot.intervals.move(row, 50, 60)
    row.save()
    with Lease.locked("o", "a") as lock:
        lease = lock.item
        Lease.intervals.move(lease, "x", "y")
        assert lease.lock.entries == ()
        lease.save()
    assert stored_slots() == [(50, 60)]
    assert Lease.get("o", "x").note == "kept"
    assert not Lease.lock_state("o", "x").holders


# Looking


def test_what_overlaps_and_what_is_free(tables):
    """In order, with open ends, by begin and by end."""
    Slot.intervals.insert_disjoint(slots((10, 20), (20, 30), (40, 50)))

    def rows(begin: Any, end: Any) -> list[int]:
        return [int(row.begin) for row in Slot.intervals.overlapping("d", begin, end)]

    assert rows(None, None) == [10, 20, 40]
    assert rows(15, 41) == [10, 20, 40]
    assert rows(20, 40) == [20]
    assert rows(None, 20) == [10]
    assert rows(30, None) == [40]
    assert rows(30, 40) == []
    assert Slot.intervals.free("d", None, None) == [(None, 10), (30, 40), (50, None)]
    assert Slot.intervals.free("d", 15, 45) == [(30, 40)]
    assert Slot.intervals.free("d", 10, 30) == []
    assert Slot.intervals.free("e", 1, 2) == [(1, 2)]
    Booking.intervals.insert_disjoint([Booking(7, NOON + HOUR, begin=NOON)])
    assert Booking.intervals.free(7, NOON - HOUR, NOON + 2 * HOUR) == [
        (NOON - HOUR, NOON),
        (NOON + HOUR, NOON + 2 * HOUR),
    ]
    assert [row.begin for row in Booking.intervals.overlapping(7, None, None)] == [NOON]
    with pytest.raises(InvalidInput, match="begin before it ends"):
        Slot.intervals.free("d", 5, 5)
    with pytest.raises(InvalidInput, match="hash key"):
        Slot.intervals.overlapping(None, 1, 2)


def test_a_look_reads_what_it_returns(in_memory, monkeypatch):
    """Rows of 1 KB, four to a unit: besides the ten rows of the answer at most as many again, and 16.

    An insert reads five rows, and the guard.
    """
    with Slot.batch_write(unguarded=True) as batch:
        for row in slots(*((i, i + 1) for i in range(200)), note="x" * 1000):
            batch.save(row)

    for call in (Slot.intervals.overlapping, Slot.intervals.free):
        requests, _, read_units = units(monkeypatch, lambda call=call: call("d", 70, 80))
        assert (requests, read_units <= 5) == (1, True)
    requests, _, read_units = units(monkeypatch, lambda: Slot.intervals.overlapping("d", 10, 90))
    assert (requests, read_units <= (2 * 80 + 16) / 4 + 1) == (3, True)
    requests, _, read_units = units(monkeypatch, lambda: Slot.intervals.insert_disjoint(slots((300, 301))))
    assert (requests, read_units <= 3) == (3, True)


def test_rows_that_expired_are_in_no_ones_way(tables):
    """They are replaced under their own key, and say nothing about where others are."""
    gone = datetime.now(timezone.utc) - HOUR
    Lease.intervals.insert_disjoint(
        [Lease("o", "c", after="e", expires=gone), Lease("o", "e", after="g", expires=gone)]
    )
    Lease.intervals.insert_disjoint([Lease("o", "a", after="f")])
    with pytest.raises(OverlapError) as caught:  # the expired row between does not end the search
        Lease.intervals.insert_disjoint([Lease("o", "e", after="g")])
    assert [row.first for row in caught.value.rows] == ["a"]
    Lease.intervals.insert_disjoint([Lease("o", "f", after="g")])
    Lease.get("o", "a").delete()
    Lease.intervals.insert_disjoint([Lease("o", "e", after="f", note="replaced")])
    assert Lease.intervals.free("o", "a", "z") == [("a", "e"), ("g", "z")]
    assert Lease.get("o", "e").note == "replaced"


def test_rows_without_an_interval_are_not_looked_at(in_memory):
    """Others have stored them, without an end, or with the end first."""
    put = Slot._get_connection().connection.dispatch
    for begin, end in ((12, {}), (14, {"e": {"N": "3"}})):
        item = {"pk": {"S": "d"}, "sk": {"N": str(begin)}, **end}
        put("PutItem", {"TableName": Slot.Meta.table_name, "Item": item})
    Slot.intervals.insert_disjoint(slots((0, 20)))
    with pytest.raises(OverlapError):
        Slot.intervals.insert_disjoint(slots((15, 16)))


# More than a native transaction holds


def test_any_number_of_rows(tables, monkeypatch):
    """With a lock in the row and a table of transactions; all or none, and guarded all the same."""
    make_long_from(monkeypatch)
    rows = [Lease("o", f"{i:02}", after=f"{i + 1:02}") for i in range(10)]
    Lease.intervals.insert_disjoint([*rows, Lease("p", "a", after="b")])

    with pytest.raises(OverlapError):
        Lease.intervals.insert_disjoint(
            [Lease("q", f"{i:02}", after=f"{i + 1:02}") for i in range(9)] + [Lease("o", "095", after="x")]
        )

    assert Lease.intervals.free("o", "00", "11") == [("10", "11")]
    assert Lease.intervals.overlapping("q", None, None) == []
    with pytest.raises(ConfigurationError, match="LockAttribute"):
        Slot.intervals.insert_disjoint(slots(*((i, i + 1) for i in range(6))))


class Event(IntervalMixin, Model):
    """Of two kinds in one table."""

    Meta = meta("events", lock_table=SlotLocks, interval=("begin", "end"))

    place = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    kind = DiscriminatorAttribute()
    version = VersionAttribute()


class Concert(Event, discriminator="concert"):
    """Music."""


class Lecture(Event, discriminator="lecture"):
    """Words."""


def test_rows_of_several_classes_keep_apart(memory):
    """And a row that is in the way is shown as what it is."""
    memory.bind(Event, SlotLocks)
    for model in (Concert, Lecture):
        model._connection = None
    Concert("hall", 1, end=3).save()
    with pytest.raises(OverlapError) as caught:
        Lecture("hall", 2, end=4).save()
    assert [type(row) for row in caught.value.rows] == [Concert]
    assert isinstance(caught.value.requested, Lecture)
    assert [type(row) for row in Lecture.intervals.overlapping("hall", 0, 9)] == [Concert]


def test_attributes_may_be_called_as_methods_of_intervals(memory):
    """The model has one name of them, which an attribute must not hide; a member of the user's may."""
    ends = {"range_key": "begin", "numbers": "end move", "version": True}
    parts = {**ends, "lock_table": SlotLocks, "interval": ("begin", "end")}
    seat = declare("Seat", IntervalMixin, hash_key="overlapping", texts="free insert_disjoint close_at", **parts)
    memory.bind(seat, SlotLocks)

    seat.intervals.insert_disjoint([seat("a", 1, end=3, move=7, free="yes")])
    [row] = seat.intervals.overlapping("a", 2, 9)
    assert (row.move, row.free, row.intervals.free("a", 0, 5)) == (7, "yes", [(0, 1), (3, 5)])
    with pytest.raises(AttributeError):  # made for each use, so a change would be lost
        seat.intervals.free = list
    hidden = type("Hidden", (seat,), {"intervals": ()})
    with pytest.raises(OverlapError):
        hidden("a", 2, end=4).save()
    with pytest.raises(ConfigurationError, match="attribute called 'intervals'"):
        declare("Wrong", IntervalMixin, texts="intervals", **parts)
