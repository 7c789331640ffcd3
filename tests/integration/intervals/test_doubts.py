"""Rows that must not overlap, after a call of which nothing is known: the same call again, and another one."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import PutError, QueryError, UpdateError

from pynamo_locking.exceptions import Conflict, LockingError, OutcomeUnknown, OverlapError, StaleVersion
from tests.integration.intervals.conftest import others_before
from tests.support.interval_models import Lease, Slot, slots, stored_slots
from tests.support.transaction_models import make_long_from, rows_of
from tests.support.wire import ALL, count_requests, on

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.core


@pytest.fixture
def unknown(in_memory):
    """Make a call whose caller does not hear whether it was done; it is done, unless said otherwise."""

    def lose(call: Callable[[], Any], *, is_done: bool = True) -> None:
        writes = on("TransactWriteItems", times=ALL)
        with writes.lose_response() if is_done else writes.lose_request(), pytest.raises(OutcomeUnknown):
            call()

    return lose


def test_the_error_tells_and_keeps_the_rows_out(in_memory):
    """The guard of the hash key is a row that the call has read, so its late copy is refused."""
    Slot.intervals.insert_disjoint([Slot("d", 0, end=1)])
    with on("TransactWriteItems", times=ALL).delay() as late, pytest.raises(OutcomeUnknown) as caught:
        Slot.intervals.insert_disjoint([Slot("d", 2, end=3)])
    assert caught.value.resolve() == "not applied"
    for land in late:
        land()
    assert len(stored()) == 1
    with on("TransactWriteItems", times=99).lose_response(), pytest.raises(OutcomeUnknown) as caught:
        Slot.intervals.insert_disjoint([Slot("d", 2, end=3)])
    assert caught.value.resolve() == "applied"
    assert len(stored()) == 2


def stored() -> list[tuple[int, int, str | None, int]]:
    """What is stored, with the versions."""
    rows = sorted(Slot.query("d", consistent_read=True), key=lambda row: row.begin)
    return [(int(row.begin), int(row.end), row.note, int(row.version)) for row in rows]


def ended(row: Slot, end: int, note: str | None = None) -> Slot:
    """The row with another end."""
    row.end, row.note = end, note
    return row


CALLS: dict[str, tuple[Callable[[], Slot], Callable[[Slot], Any], tuple[int, int, str | None, int]]] = {
    "insert": (lambda: slots((50, 60))[0], lambda row: Slot.intervals.insert_disjoint([row]), (50, 60, None, 1)),
    "save new": (lambda: slots((50, 60))[0], lambda row: row.save(), (50, 60, None, 1)),
    "update new": (lambda: slots((50, 60))[0], lambda row: row.update([Slot.end.set(61)]), (50, 61, None, 1)),
    "move elsewhere": (lambda: Slot.get("d", 10), lambda row: Slot.intervals.move(row, 50, 60), (50, 60, None, 1)),
    "move in place": (lambda: Slot.get("d", 10), lambda row: Slot.intervals.move(row, 10, 15), (10, 15, None, 2)),
    "save blindly": (
        lambda: ended(Slot.get("d", 10), 15),
        lambda row: row.save(add_version_condition=False),
        (10, 15, None, 2),
    ),
    "save if": (
        lambda: ended(Slot.get("d", 10), 15, "x"),
        lambda row: row.save(Slot.note.does_not_exist()),
        (10, 15, "x", 2),
    ),
    "update if": (
        lambda: Slot.get("d", 10),
        lambda row: row.update([Slot.end.set(15), Slot.note.set("x")], Slot.note.does_not_exist()),
        (10, 15, "x", 2),
    ),
    "update blindly": (
        lambda: Slot("d", 10),
        lambda row: row.update([Slot.end.set(15), Slot.note.set("x")], add_version_condition=False),
        (10, 15, "x", 2),
    ),
}


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize(("make", "call", "expected"), CALLS.values(), ids=CALLS)
def test_the_same_call_again_tells(unknown, make, call, expected, is_done):
    """Whatever was called, and whether it was done: it is done once, and the instance is the stored row."""
    Slot.intervals.insert_disjoint(slots((10, 20)))
    row = make()
    unknown(lambda: call(row), is_done=is_done)

    call(row)

    assert expected in stored()
    assert (int(row.begin), int(row.end), row.note, row.version) == expected
    row.note = "mine"
    row.save()
    assert Slot.get("d", row.begin).note == "mine"


@pytest.mark.parametrize("name", ["save if", "move in place", "update if"])
def test_another_party_was_faster(unknown, name):
    """The write was not done, and another one was: the second call says that the row is stale."""
    Slot.intervals.insert_disjoint(slots((10, 20)))
    make, call, _ = CALLS[name]
    row = make()
    unknown(lambda: call(row), is_done=False)
    Slot.intervals.move(Slot.get("d", 10), 10, 15)

    with pytest.raises(StaleVersion):
        call(row)
    assert stored() == [(10, 15, None, 2)]


@pytest.mark.parametrize(
    ("operation", "nth"), [("GetItem", 1), ("Query", 1), ("GetItem", 2), ("TransactWriteItems", 1)]
)
@pytest.mark.parametrize("name", ["insert", "move elsewhere", "save if"])
def test_the_first_call_is_done_during_the_second(in_memory, name, operation, nth):
    """Its transaction arrives late, right before a request of the second one, which notices at any of them."""
    Slot.intervals.insert_disjoint(slots((10, 20)))
    make, call, expected = CALLS[name]
    row = make()
    with on("TransactWriteItems", times=ALL).delay() as late, pytest.raises(OutcomeUnknown):
        call(row)
    with others_before(operation, late[-1], nth=nth) as arrived:
        call(row)

    assert arrived.hits
    assert expected in stored()
    assert (int(row.begin), int(row.end), row.note, row.version) == expected


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("again", [lambda row: row.save(), lambda row: Slot.intervals.insert_disjoint([row])])
def test_an_amended_row_is_written(unknown, again, new):
    """The first write was done; the second one asks for something else, and that is what is stored then."""
    if not new:
        Slot.intervals.insert_disjoint(slots((10, 20)))
    row = ended(slots((10, 20))[0] if new else Slot.get("d", 10), 25, "a")
    unknown(row.save)
    ended(row, 30, "b")

    if new:
        again(row)
    else:
        row.save()

    assert stored() == [(10, 30, "b", 2 if new else 3)]
    assert (row.end, row.note) == (30, "b")
    row.save()


def test_an_amended_row_is_checked(unknown):
    """Against the others, and by the caller's condition; a refusal leaves the instance as it was given."""
    Slot.intervals.insert_disjoint(slots((40, 50)))
    row = slots((10, 20))[0]
    unknown(lambda: Slot.intervals.insert_disjoint([row]))
    row.end = 45
    with pytest.raises(OverlapError) as caught:
        Slot.intervals.insert_disjoint([row])
    assert [each.begin for each in caught.value.rows] == [40]
    row.end = 20
    with pytest.raises(Conflict):
        row.save(Slot.note == "never")
    assert (row.end, row.version) == (20, None)
    assert stored() == [(10, 20, None, 1), (40, 50, None, 1)]

    Slot.intervals.insert_disjoint([row])
    assert stored() == [(10, 20, None, 1), (40, 50, None, 1)]


def saved(row: Slot) -> None:
    """A save of another value."""
    row.note = "saved"
    row.save()


#: What a second write asks for, and what the row is after it; a save may have got its value from the instance.
FIRST: dict[str, tuple[Callable[[Slot], Any], tuple[int, int, str | None]]] = {
    "save": (lambda row: ended(row, 15, "first").save(), (10, 15, "first")),
    "move in place": (lambda row: Slot.intervals.move(row, 10, 15), (10, 15, None)),
    "move elsewhere": (lambda row: Slot.intervals.move(row, 50, 60), (50, 60, None)),
    "update": (lambda row: row.update([Slot.end.set(15), Slot.note.set("first")]), (10, 15, "first")),
}
SECOND: dict[str, tuple[Callable[[Slot], Any], Callable[[int, int, str | None], tuple[int, int, str | None]]]] = {
    "save": (saved, lambda begin, end, note: (begin, end, "saved")),
    "save another end": (lambda row: ended(row, 16, "saved").save(), lambda begin, end, note: (begin, 16, "saved")),
    "move in place": (lambda row: Slot.intervals.move(row, 10, 17), lambda begin, end, note: (10, 17, note)),
    "move elsewhere": (lambda row: Slot.intervals.move(row, 70, 80), lambda begin, end, note: (70, 80, note)),
    "update": (lambda row: row.update([Slot.end.set(18)]), lambda begin, end, note: (begin, 18, note)),
    "update a value": (lambda row: row.update([Slot.note.set("x")]), lambda begin, end, note: (begin, end, "x")),
}


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("first", FIRST)
def test_no_write_takes_back_one_in_doubt(unknown, first, is_done):
    """Of any two: the second one is done on top of the first one, or refused, and then the first one stands.

    A save is of the values that the instance has, so it is refused after what the instance does not show.
    """
    write, done = FIRST[first]
    before: tuple[int, int, str | None] = done if is_done else (10, 20, None)
    for second, (again, expected) in SECOND.items():
        for each in Slot.query("d", consistent_read=True):
            each.delete()
        Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
        unknown(lambda row=row: write(row), is_done=is_done)
        refused = False
        try:
            again(row)
        except (StaleVersion, OverlapError):
            refused = True

        after = [each[:3] for each in stored()]
        shown = done if first == "save" and "update" not in second else before  # what an earlier save has left there
        assert after == [before if refused else expected(*shown)], second
        assert is_done or not refused, second


@pytest.mark.parametrize("new", [True, False])
def test_a_doubt_is_not_forgotten_for_another_one(unknown, new):
    """The first write was done, the second one was not, and neither was answered: the third one tells."""
    if not new:
        Slot.intervals.insert_disjoint(slots((10, 20)))
    row = ended(slots((10, 20))[0] if new else Slot.get("d", 10), 25, "a")
    unknown(row.save)
    unknown(ended(row, 30, "b").save, is_done=False)
    ended(row, 35, "c").save()

    assert stored() == [(10, 35, "c", 2 if new else 3)]


@pytest.mark.parametrize(
    ("refusal", "end", "condition"), [(OverlapError, 45, None), (Conflict, 20, Slot.note == "never")]
)
def test_a_doubt_is_not_forgotten_for_a_refusal(unknown, refusal, end, condition):
    """The first write was done without an answer, the second one is refused for good, and the third one tells."""
    Slot.intervals.insert_disjoint(slots((40, 50)))
    row = slots((10, 20))[0]
    unknown(row.save)
    with pytest.raises(refusal):
        ended(row, end, "b").save(condition)
    ended(row, 20, None).save()

    assert stored() == [(10, 20, None, 1), (40, 50, None, 1)]
    assert row.version == 1


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_write_that_was_interrupted_is_in_doubt(in_memory):
    """Ctrl-C arrives after the write was done and before its answer: the same call again tells."""
    [row] = slots((10, 20))
    with on("TransactWriteItems").after(interrupt), pytest.raises(KeyboardInterrupt):
        row.save()
    row.save()

    assert stored() == [(10, 20, None, 1)]


def test_a_doubt_that_is_over_costs_nothing(unknown):
    """A save is one plain write again."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    unknown(ended(row, 25).save)
    row.save()
    with count_requests() as counted:
        row.save()
    assert counted.by_operation == {"PutItem": 1}


def test_an_attempt_that_sent_no_write_leaves_no_doubt(in_memory):
    """The first attempt was refused, and the second one found no answer to its query: a save is one plain write."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    others = others_before("TransactWriteItems", lambda: Slot.intervals.insert_disjoint(slots((100, 101))))
    with others as arrived, on("Query", nth=3, times=ALL).lose_request() as lost, pytest.raises(QueryError):
        Slot.intervals.move(row, 50, 60)
    assert arrived.hits
    assert lost.hits
    with count_requests() as counted:
        row.save()
    assert counted.by_operation == {"PutItem": 1}


def test_a_row_in_doubt_that_is_not_in_its_place_yet(unknown):
    """The write is decided, and the row still shows as before: it is settled before it is looked at."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    [before] = rows_of(Slot)
    unknown(ended(row, 25).save)
    [after] = rows_of(Slot)
    put = functools.partial(Slot._get_connection().connection.dispatch, "PutItem")
    put({"TableName": Slot.Meta.table_name, "Item": before})
    arrive = functools.partial(put, {"TableName": Slot.Meta.table_name, "Item": after})
    with others_before("TransactGetItems", arrive), count_requests() as counted:
        row.save()
    assert stored() == [(10, 25, None, 2)]
    assert counted.by_operation["TransactWriteItems"] == 0


def test_a_row_that_was_found_counts_as_stored_whatever_becomes_of_it(unknown):
    """It is not looked at once more, when another party may have changed it: the first call was done all the same."""
    rows = slots((10, 20))
    unknown(lambda: Slot.intervals.insert_disjoint(rows))
    with others_before("GetItem", lambda: Slot.get("d", 10).touch(), nth=2):
        Slot.intervals.insert_disjoint(rows)
    assert rows[0].version == 1


def test_another_row_came_in_the_place_of_an_amended_one(unknown):
    """Each attempt looks for itself who is there."""
    row = slots((10, 20))[0]
    unknown(row.save)
    row.end = 15

    def replace() -> None:
        Slot.get("d", 10).delete()
        Slot.intervals.insert_disjoint(slots((10, 12), note="other"))

    with others_before("TransactWriteItems", replace), pytest.raises(OverlapError) as caught:
        row.save()
    assert [each.note for each in caught.value.rows] == ["other"]
    assert (row.end, row.version) == (15, None)


def test_a_row_in_doubt_that_has_expired_is_stored_anew(in_memory, unknown):
    """An expired row counts as absent, so it is not the row that the first call has stored."""
    row = Lease("o", "a", after="c", expires=timedelta(seconds=5))
    unknown(row.save)
    in_memory.jump(10)
    row.expires = timedelta(days=1)
    Lease.intervals.insert_disjoint([row])
    assert Lease.get("o", "a").version == row.version == 1


def test_a_row_that_was_read_again_is_in_no_doubt(unknown):
    """The caller knows by then what was stored: a save is a write."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    unknown(ended(row, 25).save)
    row.refresh()
    row.save()
    assert stored() == [(10, 25, None, 3)]


def test_a_long_call_again(unknown, monkeypatch):
    """More rows than a native transaction holds, of which one is amended: the others count as stored."""
    make_long_from(monkeypatch)
    rows = [Lease("o", f"{i:02}", after=f"{i + 1:02}") for i in range(10)]
    Lease.intervals.insert_disjoint(rows[1:])
    copies = [Lease("p", f"{i:02}", after=f"{i + 1:02}") for i in range(3)]
    unknown(lambda: Lease.intervals.insert_disjoint(copies))
    copies[1].note = "amended"

    Lease.intervals.insert_disjoint(copies)

    assert [row.note for row in Lease.query("p")] == [None, "amended", None]
    assert [row.version for row in copies] == [1, 2, 1]


# The errors of a single write


HUGE = "x" * 500_000


def test_every_error_of_a_save_is_a_put_error(in_memory):
    """Also where DynamoDB refuses the transaction, or a read before it, for a reason of its own; with that as cause."""
    Slot.intervals.insert_disjoint([row := slots((10, 20))[0]])
    for each, kind, call in [
        (slots((0, 5))[0], PutError, lambda each: each.save()),
        (row, PutError, lambda each: each.save()),
        (ended(Slot.get("d", 10), 15), PutError, lambda each: each.save()),
        (slots((0, 5))[0], PutError, lambda each: each.save(add_version_condition=False)),
        (Slot.get("d", 10), UpdateError, lambda each: each.update([Slot.end.set(15), Slot.note.set(HUGE)])),
    ]:
        each.note = HUGE
        with pytest.raises(kind) as caught:
            call(each)
        assert not isinstance(caught.value, LockingError)
        assert caught.value.cause_response_code in {"ValidationException", "TransactionCanceledException"}
    for operation in ("GetItem", "Query", "TransactGetItems"):
        with on(operation, times=ALL).lose_request():
            with pytest.raises(PutError):
                slots((15, 25))[0].save()
            with pytest.raises(UpdateError):
                Slot("d", 15).update([Slot.end.set(18)])
    assert stored_slots() == [(10, 20)]
