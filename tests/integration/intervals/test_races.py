"""Rows that must not overlap, while others are at it: races, lost answers, and rows that are not in their place yet."""

from __future__ import annotations

import functools
import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking.exceptions import (
    ConfigurationError,
    ItemLocked,
    LockTimeout,
    OverlapError,
    StaleVersion,
    TransactionConflict,
)
from pynamo_locking_testing import VirtualClock
from tests.engines import one_table
from tests.integration.intervals.conftest import others_before, shown_until_it_is_settled
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
from tests.support.parties import held_elsewhere, in_thread, shifted_clock
from tests.support.transaction_models import rows_of
from tests.support.wire import Send, intercepted, on

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
#: A guard that names more rows is settled.
MOST_TOUCHED = 8


def elsewhere(begins: int = 100) -> Callable[[], None]:
    """Return what another party does: insert a row after the one before, beside what a test is about."""
    rows = itertools.count(begins)

    def other() -> None:
        begin = next(rows)
        Slot.intervals.insert_disjoint(slots((begin, begin + 1)))

    return other


# Another party in between


def test_a_row_that_appears_between_the_look_and_the_write_is_noticed(in_memory):
    """The race of the story: both have looked, both write. One of them is refused, and says by whom."""
    other = others_before("TransactWriteItems", lambda: Slot.intervals.insert_disjoint(slots((15, 25))))
    with other, pytest.raises(OverlapError) as caught:
        Slot.intervals.insert_disjoint(slots((10, 20)))

    assert [row.begin for row in caught.value.rows] == [15]
    assert stored_slots() == [(15, 25)]


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda row: Slot.intervals.insert_disjoint(slots((50, 60))), (10, 20)),
        (lambda row: Slot.intervals.move(row, 11, 21), (11, 21)),
        (lambda row: Slot.intervals.move(row, 10, 19), (10, 19)),
        (lambda row: row.save(), (10, 18)),
        (lambda row: row.update([Slot.end.set(17)]), (10, 17)),
        (lambda row: row.update([Slot.end.set(17)], add_version_condition=False), (10, 17)),
    ],
    ids=["insert", "move", "move in place", "save", "update", "blind update"],
)
def test_a_row_that_appears_elsewhere_only_costs_another_attempt(in_memory, sent, act, expected):
    """Whatever is done, three times over; the instance is what it should be afterwards."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    row.end = expected[1] if expected == (10, 18) else 20
    sent.clear()
    with others_before("TransactWriteItems", elsewhere(), times=3):
        act(row)

    assert sent.count("TransactWriteItems") == 4 + 3
    assert {expected, (100, 101), (101, 102), (102, 103)} <= set(stored_slots())
    assert (row.begin, row.end) == expected
    row.note = "mine"
    row.save()


def test_the_wait_is_bounded(in_memory, sent):
    """A caller that always finds others faster gives up with an error that says that nothing was written."""
    others = others_before("TransactWriteItems", elsewhere(), times=100)
    with others, pytest.raises(TransactionConflict, match="nothing was written"):
        Slot.intervals.insert_disjoint(slots((10, 20)), wait=0)

    assert (10, 20) not in stored_slots()
    assert sent.count("TransactWriteItems") == 2


def test_a_stale_row_is_no_reason_to_try_again(in_memory, sent):
    """The row was changed in between, and the guard was not."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    sent.clear()
    with others_before("TransactWriteItems", lambda: Slot.get("d", 10).touch()), pytest.raises(StaleVersion):
        Slot.intervals.move(row, 50, 60)

    assert sent.count("TransactWriteItems") == 1
    assert (row.begin, row.end, row.version) == (10, 20, 1)


def test_a_locked_row_is_no_reason_to_try_again(in_memory, sent):
    """Its holder says when it is free, and not the guard."""
    Lease.intervals.insert_disjoint([row := Lease("o", "a", after="b")])
    with held_elsewhere(Lease.locked("o", "a")):
        sent.clear()
        with pytest.raises(ItemLocked):
            Lease.intervals.move(row, "x", "z")
        assert sent == ["GetItem", "Query", "TransactWriteItems"]


def test_an_expired_row_that_ttl_deletes_first_is_no_reason_to_give_up(in_memory):
    """The insert over it would have deleted it, and finds that it has gone."""
    Lease.intervals.insert_disjoint([Lease("o", "c", after="e", expires=datetime(2020, 1, 1, tzinfo=timezone.utc))])
    place = {"TableName": Lease.Meta.table_name, "Key": {"owner": {"S": "o"}, "first": {"S": "c"}}}
    ttl = functools.partial(Lease._get_connection().connection.dispatch, "DeleteItem", place)
    with others_before("TransactWriteItems", ttl):
        Lease.intervals.insert_disjoint([Lease("o", "d", after="f")])
    assert [row["first"] for row in rows_of(Lease)] == [{"S": "d"}]


# Taking turns


def beside(count: int, then: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """Return what others do: insert so many times elsewhere on both hash keys, then something else."""
    begins = iter(range(100, 100 + count))

    def other() -> None:
        begin = next(begins, None)
        if begin is None:
            then()
        else:
            Slot.intervals.insert_disjoint([*slots((begin, begin + 1)), *slots((begin, begin + 1), device="a")])

    return other


def test_a_writer_that_was_refused_often_takes_its_turn(in_memory, sent):
    """It enters the queue of each hash key, and increments each guard: who has read it before that is refused."""
    with others_before("TransactWriteItems", beside(3), times=3):
        Slot.intervals.insert_disjoint([*slots((10, 20)), *slots((10, 20), device="a")])

    enter, count, leave = ["UpdateItem"] * 2, ["UpdateItem"], ["UpdateItem"]
    turn = [*enter, *enter, *count, *count, "Query", "Query", "TransactWriteItems", *leave, *leave]
    assert sent[-len(turn) :] == turn
    guards = [row for row in rows_of(SlotLocks) if row["name"]["S"].startswith("guard#")]
    assert [row["version"]["N"] for row in guards] == [str(3 + 1 + 1)] * 2
    assert [SlotLocks.lock_state(f"turn#{Slot.Meta.table_name}/{device}").entries for device in "da"] == [(), ()]


def test_a_turn_in_one_table(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guards and the locks are in one table with other items, where keys have two parts."""
    monkeypatch.setenv(one_table.VARIABLE, "1")
    memory.bind(Slot, SlotLocks, SlotTransactions)
    with VirtualClock(), others_before("TransactWriteItems", beside(3), times=3):
        Slot.intervals.insert_disjoint(slots((10, 20)))
    assert (10, 20) in stored_slots()


def test_a_turn_that_does_not_come_in_time(in_memory):
    """Whoever is before us stays there: nothing was written."""
    with (
        others_before("TransactWriteItems", beside(3), times=3),
        held_elsewhere(SlotLocks.locked(f"turn#{Slot.Meta.table_name}/d")),
        pytest.raises(TransactionConflict, match="until the time to wait was over; nothing was written"),
    ):
        Slot.intervals.insert_disjoint(slots((10, 20)), wait=0.2)
    assert (10, 20) not in stored_slots()


def test_a_stale_row_ends_a_turn(in_memory, sent):
    """That we have incremented the guard ourselves does not count as a change by others."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    others = beside(3, then=lambda: Slot.get("d", 10).touch())
    sent.clear()
    with others_before("TransactWriteItems", others, times=4), pytest.raises(StaleVersion):
        Slot.intervals.move(row, 50, 60)
    assert sent.count("TransactWriteItems") == 2 * 3 + 1


# Rows that are decided, and not in their place yet


@pytest.mark.parametrize("between", [0, 3, MOST_TOUCHED + 2])
def test_a_row_that_is_not_in_its_place_yet_is_in_the_way(in_memory, sent, between):
    """DynamoDB applies a transaction item by item: the guard shows a row that no query finds. However long ago."""
    with unapplied(Slot, refusals=1 if between <= MOST_TOUCHED else 2):
        Slot.intervals.insert_disjoint(slots((10, 20)))
        assert stored_slots() == []
        for i in range(between):
            Slot.intervals.insert_disjoint(slots((100 + i, 101 + i)))

        with pytest.raises(OverlapError) as caught:
            Slot.intervals.insert_disjoint(slots((15, 25)))

    assert [row.begin for row in caught.value.rows] == [10]
    assert len(stored_slots()) == 1 + between
    assert "TransactGetItems" in sent


def test_a_row_that_has_left_and_still_shows_is_waited_for(in_memory):
    """The delete of a move may come last as well: a refusal would name a row that is not there any more."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    [old] = rows_of(Slot)
    for i in range(MOST_TOUCHED + 1):  # until the guard names the insert no more
        Slot.intervals.insert_disjoint(slots((100 + i, 101 + i)))
    Slot.intervals.move(row, 30, 40)
    with shown_until_it_is_settled(Slot, old, "pk", "sk"):
        Slot.intervals.insert_disjoint([new := slots((10, 20))[0]])

    assert new.version == 1
    assert {(10, 20), (30, 40)} <= set(stored_slots())


def test_a_guard_that_is_not_in_its_place_yet_is_waited_for(in_memory):
    """A row of another transaction is there, its guard is not: that is an overlap, and not a stale row."""
    Slot.intervals.insert_disjoint(slots((1, 2)))
    [old], state = rows_of(SlotLocks), {"began": False, "hides": False}

    def hide(send: Send, name: str, kwargs: dict[str, Any]) -> Any:
        if name == "TransactWriteItems" and not state["began"]:
            state["began"] = True
            in_thread(lambda: Slot.intervals.insert_disjoint(slots((10, 20))))
            state["hides"] = True
        is_guard = SlotLocks.Meta.table_name in repr(kwargs)
        if name == "TransactGetItems" and is_guard:
            state["hides"] = False
        return {"Item": old} if name == "GetItem" and is_guard and state["hides"] else send()

    with intercepted(hide), pytest.raises(OverlapError):
        Slot.intervals.insert_disjoint(slots((10, 20)))

    assert state == {"began": True, "hides": False}


def test_rows_elsewhere_are_not_waited_for(in_memory, sent):
    """What the guard says of them is enough."""
    with unapplied(Slot):
        Slot.intervals.insert_disjoint(slots((10, 20)))
        Slot.intervals.insert_disjoint(slots((20, 30), (0, 10)))

    assert "TransactGetItems" not in sent


def test_a_refusal_names_rows_that_are_there(in_memory):
    """A row that was moved away, and deleted since, is in no row's way, whatever the guard says."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    Slot.intervals.move(row, 30, 40)
    Slot.intervals.insert_disjoint(slots((10, 20)))
    row.delete()
    Slot.intervals.insert_disjoint(slots((30, 40)))
    assert stored_slots() == [(10, 20), (30, 40)]


# Lost answers


# Locks


def test_pessimistic_callers_wait_for_the_range(in_memory):
    """One range lock for each hash key; one deadline; nothing is left behind."""
    with held_elsewhere(Slot.locked_range("d", 15, 30)):
        with pytest.raises(LockTimeout):
            Slot.intervals.insert_disjoint(
                [*slots((10, 20)), *slots((10, 20), device="a")], pessimistic=True, wait=0.05
            )
        Slot.intervals.insert_disjoint(slots((10, 15), (30, 40)), wait=0)
        Slot.intervals.insert_disjoint(slots((40, 50)), pessimistic=True, wait=0)
    assert stored_slots() == [(10, 15), (30, 40), (40, 50)]
    Slot.intervals.insert_disjoint([*slots((15, 20), (22, 25)), *slots((10, 20), device="a")], pessimistic=True)
    with pytest.raises(OverlapError):
        Slot.intervals.insert_disjoint(slots((15, 20)), pessimistic=True)
    Slot.intervals.move(Slot.get("d", 15), 16, 18, pessimistic=True)
    assert stored_slots() == [(10, 15), (16, 18), (22, 25), (30, 40), (40, 50)]
    Slot.intervals.insert_disjoint(slots(*((i, i + 1) for i in range(98)), device="many"), pessimistic=True)
    assert len(stored_slots("many")) == 98
    with pytest.raises(ConfigurationError, match="LockableModel"):
        Booking.intervals.insert_disjoint([Booking(1, NOON, begin=NOON - timedelta(hours=1))], pessimistic=True)


@pytest.mark.parametrize("pessimistic", [False, True])
def test_threads_that_insert_at_random_never_overlap(concurrent_engine, pessimistic):
    """Four of them, on two hash keys, with moves and deletes among it; each refusal names rows that do overlap."""
    concurrent_engine.bind(Slot, SlotLocks)
    done, refusals = list[str](), list[OverlapError]()

    def work(seed: int) -> None:
        random_ = random.Random(seed)
        for _ in range(8):
            begin = random_.randrange(60)
            rows = slots((begin, begin + random_.randrange(1, 8)), device=random_.choice("de"))
            try:
                Slot.intervals.insert_disjoint(rows, pessimistic=pessimistic, wait=30)
                done.append("inserted")
                if random_.random() < 0.3:
                    Slot.intervals.move(rows[0], begin + 3, begin + 6, pessimistic=pessimistic, wait=30)
                    done.append("moved")
                if random_.random() < 0.3:
                    rows[0].delete()
            except OverlapError as refused:
                refusals.append(refused)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))

    assert overlaps_in(Slot, "pk", "sk", "e") == []
    assert {"inserted", "moved"} == set(done)
    assert refusals
    for refused in refusals:
        asked = refused.requested
        assert refused.rows
        assert all(row.begin < asked.end and asked.begin < row.end for row in refused.rows)


def test_the_sweep_sees_an_overlap(in_memory):
    """Or its silence would mean nothing."""
    with Slot.batch_write(unguarded=True) as batch:
        for row in [*slots((10, 20), (20, 30)), *slots((19, 21), device="e")]:
            batch.save(row)
    assert overlaps_in(Slot, "pk", "sk", "e") == []
    with Slot.batch_write(unguarded=True) as batch:
        batch.save(slots((29, 31))[0])
    assert len(overlaps_in(Slot, "pk", "sk", "e")) == 1


def test_a_row_whose_life_is_prolonged_too_late(memory):
    """It was sent in time and arrives when another row is there: what had expired has gone, so it is refused."""
    memory.bind(Lease, SlotLocks, SlotTransactions)
    with shifted_clock() as clock:
        row = Lease("o", "a", after="k", expires=timedelta(seconds=5))
        row.save()
        row.expires = timedelta(seconds=1000)

        def another() -> None:
            clock.shift += 10
            in_thread(lambda: Lease.intervals.insert_disjoint([Lease("o", "c", after="d", note="other")]))

        with on().before(another), pytest.raises(StaleVersion):
            row.save()
        assert [each.note for each in Lease.intervals.overlapping("o", None, None)] == ["other"]
        assert len(rows_of(Lease)) == 1
