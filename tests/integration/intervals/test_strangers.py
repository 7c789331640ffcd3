"""Rows that cannot stand where they are asked to: expired, of another table, or inside of their own edit."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pynamo_locking import transaction
from pynamo_locking.exceptions import ConfigurationError, OverlapError, StaleVersion
from tests.support.interval_models import Lease, Slot, SlotLocks, SlotTransactions, slots, stored_slots
from tests.support.parties import shifted_clock


def test_a_row_that_has_expired_moves_until_another_one_is_in_its_place(memory):
    """A move ignores the time, and looks whether the new place is free; an insert deletes what has expired there."""
    memory.bind(Lease, SlotLocks, SlotTransactions)
    with shifted_clock() as clock:
        Lease.intervals.insert_disjoint([row := Lease("o", "a", after="c", expires=timedelta(seconds=5))])
        clock.shift += 10
        late = Lease.get("o", "a", include_expired=True)
        Lease.intervals.insert_disjoint([other := Lease("o", "b", after="d")])
        for each in (row, late):
            each.expires = datetime.now(timezone.utc) + timedelta(days=1)
            with pytest.raises(StaleVersion) as caught:
                Lease.intervals.move(each, "x", "z")
            assert caught.value.current is None
            assert (each.first, each.after) == ("a", "c")
        assert [each.first for each in Lease.intervals.overlapping("o", None, None)] == ["b"]
        other.update([Lease.expires.set(datetime(2020, 1, 1, tzinfo=timezone.utc))])
        other.expires = None
        Lease.intervals.move(other, "x", "z")
        assert [each.first for each in Lease.intervals.overlapping("o", None, None)] == ["x"]
        other.delete()
        Lease.intervals.insert_disjoint([new := Lease("o", "f", after="h", expires=timedelta(seconds=5))])
        Lease.intervals.move(new, "g", "i")
        assert [each.first for each in Lease.intervals.overlapping("o", None, None)] == ["g"]


class Archived(Slot):
    """In a table of its own."""

    class Meta(Slot.Meta):
        table_name = "archived-slots"


class Colored(Slot):
    """In the same table."""


class Abroad(Slot):
    """In a table of the same name, somewhere else."""

    class Meta(Slot.Meta):
        region = "eu-north-1"


class Otherwise(Slot):
    """In the same table; another attribute is the end."""

    class Meta(Slot.Meta):
        interval = ("begin", "until")

    until = Slot.end.__class__(attr_name="u")


@pytest.mark.parametrize("model", [Archived, Abroad, Otherwise])
def test_rows_of_another_table_are_refused(memory, model):
    """Their guards and their neighbours are elsewhere: the error says whose method it takes."""
    memory.bind(Slot, SlotLocks)
    row: Any = model("d", 10, end=20)
    row.until = 20
    with pytest.raises(ConfigurationError, match=rf"{model.__name__}\.intervals\.insert_disjoint"):
        Slot.intervals.insert_disjoint([*slots((50, 60)), row])
    row.version = 1
    with pytest.raises(ConfigurationError, match=rf"{model.__name__}\.intervals\.move"):
        Slot.intervals.move(row, 30, 40)
    assert stored_slots() == []


def test_rows_of_a_subclass_in_the_same_table_are_stored(memory):
    """They have the same guards."""
    memory.bind(Slot, SlotLocks)
    Colored._connection = None
    Slot.intervals.insert_disjoint([row := Colored("d", 10, end=20)])
    Slot.intervals.move(row, 30, 40)
    assert stored_slots() == [(30, 40)]


def test_a_row_does_not_move_inside_of_its_own_edit(memory):
    """The end of the block would not store what is changed after the move; in place it may, and after the block."""
    memory.bind(Slot, Lease, SlotLocks, SlotTransactions)
    Slot.intervals.insert_disjoint(slots((10, 20)))
    Lease.intervals.insert_disjoint([Lease("o", "a", after="b")])
    with pytest.raises(ConfigurationError, match="edit"), Slot.edit("d", 10) as row:
        Slot.intervals.move(row, 50, 60)
    with pytest.raises(ConfigurationError, match="edit"), Slot.edit("d", 10) as row:
        Slot.intervals.move(Slot.get("d", 10), 50, 60)
    with pytest.raises(ConfigurationError, match="edit"), Lease.edit("o", "a") as lease:
        Lease.intervals.move(lease, "x", "y")
    with Slot.edit("d", 10) as row:
        Slot.intervals.move(row, 10, 15)
        row.note = "kept"
    assert (Slot.get("d", 10).note, stored_slots()) == ("kept", [(10, 15)])
    with Slot.locked("d", 10) as lock:
        with Slot.edit("d", 10) as row:
            row.note = "more"
        Slot.intervals.move(lock.item, 50, 60)
    assert (Slot.get("d", 50).note, stored_slots()) == ("more", [(50, 60)])
    assert not Slot.lock_state("d", 10).holders


def of_another_program(device: str = "d") -> Slot:
    """Store a row without a version, and load it."""
    item = {"pk": {"S": device}, "sk": {"N": "1"}, "e": {"N": "3"}}
    connection = Slot._get_connection()
    connection.connection.dispatch("PutItem", {"TableName": connection.table_name, "Item": item})
    return Slot.get(device, 1)


def in_a_transaction(act: Any) -> Any:
    with transaction() as tx:
        return act(tx)


@pytest.mark.parametrize(
    "write",
    [
        lambda row: row.save(),
        lambda row: asyncio.run(row.asave()),
        lambda row: Slot.intervals.move(row, 5, 6),
        lambda row: asyncio.run(Slot.intervals.amove(row, 5, 6)),
        lambda row: Slot.intervals.close_at(row, 2),
        lambda row: Slot.intervals.insert_disjoint([row]),
        lambda row: in_a_transaction(lambda tx: tx.save(row)),
        lambda row: in_a_transaction(lambda tx: tx.move(row, 5, 6)),
        lambda row: in_a_transaction(lambda tx: tx.insert_disjoint(Slot, [row])),
    ],
    ids=["save", "asave", "move", "amove", "close_at", "insert", "tx.save", "tx.move", "tx.insert"],
)
def test_a_row_of_another_program_has_no_version_yet(cheap, write):
    """It is told from a new row, and what to do is said: touch() gives it a version."""
    cheap.bind(Slot, SlotLocks, SlotTransactions)
    row = of_another_program()
    with pytest.raises(ConfigurationError, match=r"'d', 1\) .*has no version yet: call touch\(\) first"):
        write(row)
    row.touch()
    row.note = "mine"
    row.save()
    Slot.intervals.move(row, 5, 6)
    assert (Slot.get("d", 5).note, stored_slots()) == ("mine", [(5, 6)])


def test_a_new_row_in_the_place_of_one_of_another_program_overlaps_it(cheap):
    """As any other row does; and an update and a delete of that one need no version."""
    cheap.bind(Slot, SlotLocks, SlotTransactions)
    row = of_another_program()
    for insert in (lambda new: new.save(), lambda new: Slot.intervals.insert_disjoint([new])):
        with pytest.raises(OverlapError):
            insert(slots((1, 3))[0])
    row.update([Slot.end.set(4)])
    assert stored_slots() == [(1, 4)]
    of_another_program().delete()
    assert stored_slots() == []
