"""Lock documents that another program has broken: what counts as broken, and what a repair leaves as it is."""

from __future__ import annotations

from typing import Any, Final

import pytest

from pynamo_locking import LockSettings
from pynamo_locking._core.dynamodb import MOST_WAITERS
from pynamo_locking._core.lock_modes import LockMode
from pynamo_locking._io import lock_record, wakeups
from pynamo_locking._locks import inspection
from pynamo_locking._locks.acquire import Acquisition
from pynamo_locking._locks.options import make_options
from pynamo_locking.exceptions import CorruptRow, LockingError, LockLost, LockTimeout
from pynamo_locking.testing import VirtualClock
from tests.support.models import Locks
from tests.support.poisoned import document, entry, mark, native, place, put, save, update
from tests.support.shell import prepared
from tests.support.transaction_models import Purse, Transactions, existing, stored

#: Of the arguments of `locked()`.
NOTHING: Final[dict[str, Any]] = dict.fromkeys(("wait", "lease", "heartbeat", "owner"))


@pytest.fixture
def clock(memory):
    """Virtual time, and a database."""
    memory.bind(Purse, Transactions, Locks)
    with VirtualClock() as clock:
        yield clock


def changed(lock: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """A lock document with other parts."""
    return {"M": {**lock["M"], **parts}}


def next_is(ticket: int) -> dict[str, Any]:
    """A counter as it is stored."""
    return {"L": [{"N": str(ticket)}]}


@pytest.mark.parametrize(
    ("lock", "flaw"),
    [
        (changed(document(), next=next_is(10**30 + 1)), "next.0 is {'N': '1"),  # a repair would lower it
        (changed(document(), next=next_is(10**38)), "next.0 is {'N': '1"),  # DynamoDB could not count on
        (changed(document(), next={"N": "5"}), "next is {'N': '5'}"),
        (changed(document(), next={"L": next_is(5)["L"] * 2}), "next is {'L': ["),
        (document(e=entry(0)), "queue.e.0 is {'N': '0'}"),
        (document(e=entry(-5)), "queue.e.0 is {'N': '-5'}"),
        (document(e=entry(2), f={"L": entry()["L"][1:]}), "queue.f is {'L': [{'M': {"),
        (document(e=entry(2), f={"M": {}}), "queue.f is {'M': {}}"),
        (document(e=entry(2), f=entry(2)), "queue is {'M': {'"),  # both hold it
    ],
    ids=["above", "far above", "no list", "two", "zero", "negative", "none", "no entry", "twice"],
)
def test_tickets(clock, lock, flaw):
    """Each is that of one entry, above zero, and not so large that the next one could not be read."""
    image = place(lock)
    assert Purse.lock_state("p0").unreadable.startswith(flaw)
    with pytest.raises(CorruptRow, match="is broken: "), Purse.locked("p0", wait=1):
        pass
    assert stored(Purse, "p0") in (image, changed_next(image))
    if lock["M"]["queue"]["M"]:
        for operation in (update, save, native):
            with pytest.raises(LockingError, match="is broken: "):
                operation()
    assert Purse.break_lock("p0", force=True) is True
    with Purse.locked("p0", wait=70, settings=LockSettings()) as held:
        assert held.ticket is not None
        assert held.ticket >= 10**15


def changed_next(image: dict[str, Any]) -> dict[str, Any]:
    """The item after a request to enter that was taken back."""
    lock = image["lock"]
    counter = lock["M"]["next"].get("L", [])
    if not counter:
        return image
    following = [{"N": str(int(counter[0]["N"]) + 1)}, *counter[1:]]
    return {**image, "lock": changed(lock, next={"L": following})}


def test_the_largest_tickets_are_not_lowered(clock):
    """Each that was given out can be read: it is refused before a holder gets one that a repair would forget."""
    for next_ticket in (10**30 - 1, 10**30, 10**30 + 1):
        place(changed(document(), next=next_is(next_ticket)))
        given = 0
        try:
            with Purse.locked("p0", wait=0) as held:
                assert held.ticket is not None
                given = held.ticket
        except CorruptRow:
            assert next_ticket >= 10**30
        image = existing(Purse, "p0")
        put(Purse, {**image, "lock": changed(image["lock"], evicted={"S": "x"})})
        assert Purse.break_lock("p0", force=True) is True
        state = Purse.lock_state("p0")
        assert not state.unreadable
        assert state.next_ticket > given


def test_a_repair_leaves_who_can_be_read(clock):
    """A holder that lives goes on, whatever another program has put behind it."""
    Purse("p0", balance=1).save()
    with Purse.locked("p0") as held:
        image = existing(Purse, "p0")
        lock = image["lock"]["M"]
        assert held.ticket is not None
        bad = lock_record.new_entry("bad", LockMode(), 60, 0, ticket=held.ticket + 1)
        del bad["L"][1]["M"]["o"]
        lock["queue"]["M"]["bad"] = bad
        lock["next"] = next_is(held.ticket + 2)
        put(Purse, image)
        assert Purse.break_lock("p0", force=True) is True
        state = Purse.lock_state("p0")
        assert [entry.ticket for entry in state.entries] == [held.ticket]
        assert state.next_ticket > held.ticket + 1
        assert Purse.break_lock("p0", force=True) is False
        clock.sleep(600)
        held.item.balance = 7
        held.item.save()
    assert Purse.get("p0").balance == 7
    assert Purse.lock_state("p0").entries == ()


def test_a_repair_of_two_holders(clock):
    """Where two entries have one ticket, which of them holds the lock is not known: neither does then."""
    Purse("p0", balance=1).save()
    with pytest.raises(LockLost), Purse.locked("p0", heartbeat=False) as held:
        image = existing(Purse, "p0")
        lock = image["lock"]["M"]
        lock["queue"]["M"]["twin"] = lock_record.new_entry("twin", LockMode(), 60, 0, ticket=held.ticket)
        put(Purse, image)
        assert Purse.break_lock("p0", force=True) is True
        assert Purse.lock_state("p0").entries == ()
        held.item.balance = 7
        held.item.save()
    assert Purse.get("p0").balance == 1


def test_an_end_in_the_far_future_says_nothing(clock):
    """Of an entry of another kind neither: it is watched for its lease, and then evicted."""
    place(document(e=entry(u={"N": str(10**30)}, p={"N": "2"})))
    with Purse.locked("p0", wait=100, settings=LockSettings()):
        assert 60 <= clock.elapsed <= 70


def test_how_many_entries_there_are(memory):
    """Holders of a semaphore count among the most that fit into half of an item."""
    memory.bind(Locks)
    settings = LockSettings(max_waiters=MOST_WAITERS)
    for permits, most in ((1, MOST_WAITERS + 1), (MOST_WAITERS, MOST_WAITERS + 1)):
        options = make_options(Locks, **NOTHING, settings=settings, lock_mode=LockMode(permits=permits))
        assert options.capacity == most


def test_who_leaves_a_broken_lock_was_not_refused(memory):
    """The last save of a lock is applied, and then the waiters of the process are told: they see what is broken."""
    memory.bind(Purse, Transactions)
    Purse("p0", balance=1).save()
    row = Purse.locked("p0")._handle.target.row
    with Purse.edit("p0") as purse:
        mailbox = Acquisition(row, make_options(Purse, **NOTHING, settings=None))._mailbox
        wakeups.open_mailbox(row, mailbox)
        purse.balance = 7
        image = existing(Purse, "p0")
        mailbox.put(image)
        put(Purse, {**image, "lock": changed(image["lock"], evicted={"S": "x"})})
    wakeups.close_mailbox(row, mailbox)
    assert Purse.get("p0").balance == 7
    assert mailbox.wait(0) == image


@pytest.fixture
def shell(memory, capsys, monkeypatch):
    """The program, on the database in memory."""
    return prepared(memory, capsys, monkeypatch)


@pytest.mark.parametrize("lock", [{"S": "x"}, {"M": {"foo": {"N": "1"}}}, {"M": {}}], ids=str)
def test_the_command_does_not_call_sound_what_is_no_lock(memory, shell, lock):
    """It only says that there is none that is broken."""
    memory.bind(Locks)
    put(Locks, {"name": {"S": "n"}, "lock": lock})
    code, out, _ = shell.run("locks", "repair", "n", "--yes", "--table", Locks.Meta.table_name)
    assert (code, out.strip()) == (0, "n has no broken lock; nothing was changed.")


@pytest.mark.parametrize(
    ("facts", "flaw"),
    [
        ({"e": {"N": "1.5"}}, "queue.e.1.e is {'N': '1.5'}"),
        ({"e": {"S": "5"}}, "queue.e.1.e is {'S': '5'}"),
        ({"r": {"S": "x"}}, "queue.e.1.r is {'S': 'x'}"),
        ({"g": {"NULL": True}}, "queue.e.1.g is {'NULL': True}"),
    ],
    ids=["part of a ms", "text", "no number", "null"],
)
def test_times(clock, facts, flaw):
    """Each is a whole number, or the entry is broken, also if no lock relies on it."""
    place(document(e=entry(**facts)))
    assert Purse.lock_state("p0").unreadable == flaw
    assert Purse.break_lock("p0", force=True) is True
    with Purse.locked("p0", wait=0):
        pass


@pytest.mark.parametrize("facts", [{"e": 10**37}, {"r": 10**37}, {"g": 10**37}, {"g": -(10**37)}])
def test_times_that_no_calendar_has(clock, facts):
    """They are shown as well as possible, and change nothing: who waits sees that the entry is not renewed."""
    stored_facts: dict[str, Any] = {name: {"N": str(value)} for name, value in facts.items()}
    place(document(e=entry(l={"N": "5000"}, **stored_facts)))
    (holder,) = Purse.lock_state("p0").holders
    assert min(holder.queued_for, holder.held_for) >= 0
    [shown] = inspection.listed(Purse)
    assert shown["holders"][0]["entered_at"] is None or "e" not in facts
    with pytest.raises(LockTimeout, match=r"held by o \(ticket 1\) for \d+ s"):
        Purse.locked("p0", wait=1).acquire()
    with Purse.locked("p0", wait=30):
        assert 4 < clock.elapsed < 12


@pytest.mark.parametrize("content", ["x", ["op"], 5, None], ids=str)
def test_an_intent_without_a_map(content):
    """The flaw is there, and not in what was read before it. DynamoDB stores no such map: an image from a file may."""
    lock = document(mark("T", "transactions"))
    lock["M"]["tx"]["M"]["intent"] = {"M": content}
    purse = Purse.from_raw_data({"purse_id": {"S": "p0"}, "lock": lock})
    assert purse.lock.unreadable == f"tx.intent is {{'M': {content!r}}}"
