"""The stored form of a lock document, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pynamodb.attributes import UnicodeAttribute

from pynamo_locking import LockableModel, LockAttribute, VersionAttribute
from pynamo_locking._core.dynamodb import LARGEST_ENTRY, LARGEST_ITEM, MOST_WAITERS
from pynamo_locking._core.lock_modes import WHOLE, LockMode
from pynamo_locking._core.lock_queue import FREE, RunRecord, WriteIntent
from pynamo_locking._core.row_keys import LONGEST_OWNER
from pynamo_locking._core.values import item_size
from pynamo_locking._io import lock_record, runtime, stored_rows, transaction_record
from pynamo_locking._io.lock_requests import NewEntry
from pynamo_locking.inspection import LockState
from tests.support.models import meta
from tests.support.runtime import changed
from tests.unit.helpers import entry, steady

OWNERS = st.sampled_from(["", "host:1:main", "日本 🔒", "a\x00b"])
TICKETS = st.integers(1, 2**62)
ENTRIES = st.builds(
    entry,
    TICKETS,
    id=st.integers(0, 2**56 - 1).map("{:014x}".format),
    owner=OWNERS,
    lease_ms=st.integers(0, 10**9),
    heartbeats=st.integers(0, 10**9),
    until_ms=st.integers(0, 10**14),
    writes=st.integers(0, 10**9),
    read_ms=st.just(1_000_000),
    entered_ms=st.integers(0, 10**14),
    granted_ms=st.none() | st.integers(0, 10**14),
)
QUEUES = st.lists(ENTRIES, max_size=6, unique_by=(lambda e: e.id, lambda e: e.ticket))


def stored(entries, next_ticket, since, evicted):
    """A document as DynamoDB returns it, its maps in any order."""
    number = stored_rows.number
    return {
        "next": {"L": [number(next_ticket)]},
        "since": number(since),
        "evicted": {"M": {str(slot): number(ticket) for slot, ticket in evicted.items()}},
        "queue": {"M": {e.id: {"L": [number(e.ticket), {"M": facts(e)}]} for e in reversed(entries)}},
    }


def facts(e):
    number = stored_rows.number
    found = {"o": {"S": e.owner}, "b": number(e.heartbeats), "e": number(e.entered_ms), "w": number(e.writes)}
    found |= {"r": number(e.until_ms - e.lease_ms - e.entered_ms)}
    found |= {} if e.granted_ms is None else {"g": number(e.granted_ms - e.entered_ms)}
    return found if e.lease_ms == 60_000 else {**found, "l": number(e.lease_ms)}


@steady
@given(QUEUES, TICKETS, TICKETS, st.dictionaries(st.integers(0, 7), TICKETS))
def test_documents_are_read_whole(entries, next_ticket, since, evicted):
    """Every fact of a stored document is in its state, entries in ticket order, read at our wall clock."""
    next_ticket += max((e.ticket for e in entries), default=0)  # it is above all others
    raw = stored(entries, next_ticket, since, evicted)
    state = lock_record.state_of(raw)

    assert [e.ticket for e in state.entries] == sorted(e.ticket for e in entries)
    assert all(e.read_ms > 1_600_000_000_000 for e in state.entries)
    assert {unread(e) for e in state.entries} == set(entries)
    assert (state.next_ticket, state.since, state.evicted) == (next_ticket, since, evicted)
    assert state.raw is raw


def unread(it):
    return entry(**{name: getattr(it, name) for name in it.__dataclass_fields__} | {"read_ms": 1_000_000})


@steady
@given(OWNERS, st.floats(0.6, 10**6), st.integers(0, 10**14), TICKETS)
def test_a_new_document_has_us_first(owner, lease, now_ms, ticket):
    """A document made for an entry reads back as that entry, with the next ticket after it."""
    fresh = lock_record.new_entry(owner, WHOLE, lease, now_ms, ticket=ticket)
    state = lock_record.state_of(lock_record.new_document("me", fresh, ticket)["M"])
    (mine,) = state.entries

    assert (mine.id, mine.ticket, mine.owner, mine.mode) == ("me", ticket, owner, "exclusive")
    assert (mine.heartbeats, mine.writes) == (0, 0)
    assert (mine.entered_ms, mine.granted_ms, mine.until_ms - mine.lease_ms) == (now_ms, None, now_ms)
    assert lease - 0.001 < mine.lease <= lease
    assert (state.next_ticket, state.since, state.evicted) == (ticket + 1, ticket, {})


def test_a_long_label_is_cut_when_it_is_read():
    """In a queue, and in the header of a transaction."""
    fresh = lock_record.new_entry("x" * 100_000, WHOLE, 60, 0, ticket=1)
    (mine,) = lock_record.state_of(lock_record.new_document("me", fresh, 1)["M"]).entries
    header = transaction_record.record_in({"id": {"S": "T"}, "state": {"S": "pending"}, "owner": {"S": "x" * 100_000}})

    assert mine.owner == header.owner == "x" * 256 + "..."


def test_a_full_queue_takes_half_of_an_item():
    """Of the largest entries, with the longest label and numbers of all their digits. So no more may wait."""
    longest = {"N": "1" * 38}
    [fresh] = lock_record.new_entry("x" * LONGEST_OWNER, LockMode("shared", 400), 59, 0, 400)["L"]
    fresh["M"] |= {"r": longest, "g": longest}  # of a renewal under the lock
    facts = {name: longest if "N" in value else value for name, value in fresh["M"].items()}
    entry = {"L": [longest, {"M": facts}]}

    assert {"l", "b", "e", "r", "g", "w", "p", "n", "m", "o"} == facts.keys()
    assert size_of_queue(entry, 2) - size_of_queue(entry, 1) <= LARGEST_ENTRY
    assert LARGEST_ITEM * 0.3 < size_of_queue(entry, MOST_WAITERS) <= LARGEST_ITEM / 2


def size_of_queue(entry, entries):
    document = lock_record.new_document("", entry, 1)["M"]
    queue = {f"{number:014x}": entry for number in range(entries)}
    return item_size({"lock": {"M": document | {"queue": {"M": queue}}}})


@pytest.mark.parametrize(
    "label", ["", "ip-10-0-12-34:12345", "ip-10-0-12-34:12345:pool-0_12", "orders-7d9f8b6c5d-x2x7k:7"]
)
def test_a_waiter_takes_less_than_80_bytes(label):
    """With labels as `Runtime.owner` makes them: 50 bytes and the label; 4 more if the lease is not 60 s.

    Renewals add up to nine bytes, so that a waiter with the default label still takes less than 80.
    """
    waiter = NewEntry(runtime.current.entry_id(), label, 60.0).stored(1_795_000_000_123, 1_795_000_000_123_456)
    hasty = NewEntry(runtime.current.entry_id(), label, 30.0).stored(1_795_000_000_123, 1_795_000_000_123_456)

    size = size_of_queue(waiter, 101) - size_of_queue(waiter, 100)
    assert size == 50 + len(label) < 80
    assert size_of_queue(hasty, 101) - size_of_queue(hasty, 100) == size + 4
    waiter["L"][1]["M"] |= {"r": stored_rows.number(86_123_456), "b": stored_rows.number(4321)}
    renewed = size_of_queue(waiter, 101) - size_of_queue(waiter, 100)
    assert renewed == size + 9
    assert renewed < 80 or len(label) > len("ip-10-0-12-34:12345")


def test_no_document():
    """No image, no attribute and a removed attribute are a free lock; the state tells whether there is an item."""
    for image in (None, {}, {"lock": {"NULL": True}}, {"other": {"M": {}}}):
        state = lock_record.state_in(image, "lock")
        assert (state, state.is_item_without_lock) == (FREE, bool(image))
    assert lock_record.state_of(None) is FREE


def test_a_map_that_is_no_document():
    """An empty map is a free lock, and keeps what is stored for the guard of a Put."""
    assert lock_record.state_of({}) == FREE
    assert lock_record.state_of({}).raw == {}


def test_an_image_is_read_by_the_name_of_its_attribute():
    """A model may have renamed the attribute."""
    raw = stored([entry(7)], 8, 1, {})

    assert lock_record.state_in({"guard": {"M": raw}}, "guard").holders[0].ticket == 7
    assert lock_record.state_in({"guard": {"M": raw}}, "lock") == FREE


@pytest.mark.parametrize(
    "stored_entry",
    [
        {"L": []},
        {"L": [{"N": "1"}]},
        {"L": [{"N": "1"}, {"M": {}}]},
        {"L": [{"S": "1"}, {"M": facts(entry(1))}]},
        {"L": [{"N": "0"}, {"M": facts(entry(1))}]},
        {"L": [{"N": "1"}, {"M": facts(entry(1)) | {"l": {"S": "?"}}}]},
        {"L": [{"N": "1"}, {"M": facts(entry(1)) | {"m": {"S": "?"}}}]},
        {"L": [{"N": "1"}, {"M": facts(entry(1)) | {"e": {"N": "1.5"}}}]},
        {"M": facts(entry(1))},
    ],
)
def test_half_an_entry(stored_entry):
    """It is in the queue, so writes from outside are refused; and the queue is named."""
    raw = stored([entry(1)], 4, 1, {})
    raw["queue"]["M"]["id1"] = stored_entry
    assert lock_record.state_of(raw).unreadable.startswith("queue is {'M': ")


@pytest.mark.parametrize(
    ("part", "flaw"),
    [
        ({"next": {"L": [{"N": str(10**30 + 1)}]}}, "next is {'L': "),
        ({"next": {"N": "5"}}, "next is {'N': '5'}"),
        ({"since": {"S": "x"}}, "since is {'S': 'x'}"),
        ({"evicted": {"L": []}}, "evicted is {'L': []}"),
        ({"tx": {"S": "x"}}, "tx is {'S': 'x'}"),
        ({"tx": {"M": {"f": {"N": "0"}}}}, "tx is {'M': "),
        ({"f": {"N": "0"}}, "f is {'N': '0'}"),
    ],
)
def test_a_part_that_cannot_be_read(part, flaw):
    assert lock_record.state_of(stored([], 4, 1, {}) | part).unreadable.startswith(flaw)


def test_a_part_that_is_missing():
    assert lock_record.state_of({"next": {"L": [{"N": "1"}]}}).unreadable == "queue is missing"


def test_states_round_trip():
    """What was read can be written as it was: the raw map is the stored form."""
    raw = stored([entry(1)], 2, 1, {})

    with changed(time_ms=lambda: 1000):  # an entry has its age at the time of the read
        assert lock_record.state_of(lock_record.state_of(raw).raw) == lock_record.state_of(raw)
        assert isinstance(lock_record.state_of(raw), LockState)


def document_with(callers, *others, next_ticket=None):
    """A document with one entry under ticket 5 for so many callers, and the next ticket behind them."""
    first = entry(5, id="id1")
    raw = stored([first, *others], next_ticket or 5 + callers, 5, {})
    raw["queue"]["M"]["id1"]["L"][1]["M"]["n"] = stored_rows.number(callers)
    return raw


def test_an_entry_may_stand_for_several_callers():
    state = lock_record.state_of(document_with(3))
    assert (state.entries[0].callers, state.entries[0].last_ticket, state.unreadable) == (3, 7, "")


@pytest.mark.parametrize(
    "raw",
    [
        document_with(0),
        document_with(401),
        document_with(3, next_ticket=7),
        document_with(3, entry(7, id="id2"), next_ticket=9),
    ],
)
def test_two_callers_have_no_ticket_in_common(raw):
    assert lock_record.state_of(raw).unreadable


MARK = {"f": {"N": "1"}, "id": {"S": "T"}, "table": {"S": "tx"}}
SAVE = {"op": {"S": "save"}, "set": {"M": {"a": {"N": "1"}}}, "remove": {"L": [{"S": "b"}]}}


@pytest.mark.parametrize(
    ("mark", "intent"),
    [
        (WriteIntent("T", "tx", "save", set={"a": {"N": "1"}}, remove=("b",)), SAVE),
        (WriteIntent("T", "tx", "save", is_placeholder=True), {"op": {"S": "save"}, "ghost": {"BOOL": True}}),
        (WriteIntent("T", "tx", "save", changes_row="T!00000"), {"op": {"S": "save"}, "spill": {"S": "T!00000"}}),
        (WriteIntent("T", "tx", "delete"), {"op": {"S": "delete"}}),
    ],
)
def test_a_mark_is_stored_as_ever_and_read_back(mark, intent):
    """What it does not say is not stored."""
    stored_intent = lock_record.stored_intent(mark)
    read = lock_record.state_of({"tx": stored_intent}).intent

    assert stored_intent == {"M": {**MARK, "intent": {"M": intent}}}
    assert (read, read.set) == (mark, mark.set)


def test_the_changes_of_a_mark_may_be_in_another_row():
    mark = WriteIntent("T", "tx", "save", set={"a": {"N": "1"}}, remove=("b",))
    whole = lock_record.with_changes(replace(mark, set={}, remove=()), lock_record.stored_changes(mark))

    assert {"op": {"S": "save"}, **lock_record.stored_changes(mark)} == SAVE
    assert (whole, whole.set) == (mark, mark.set)


def test_a_success_is_stored_as_ever_and_read_back():
    success = RunRecord(ticket=7, owner="host", period_ms=1, began_ms=2, ended_ms=3)
    numbers = {"ticket": "7", "period_ms": "1", "began_ms": "2", "ended_ms": "3", "kept_s": "9"}
    stored_success = lock_record.stored_success(success, 9)
    raw = stored([], 1, 1, {}) | {"success": stored_success}

    assert stored_success == {"M": {"owner": {"S": "host"}, **{name: {"N": n} for name, n in numbers.items()}}}
    assert lock_record.state_of(raw).success == success
    del stored_success["M"]["period_ms"]
    assert lock_record.state_of({**raw}).unreadable.startswith("success is {'M': ")


# What tells one lock from others in this process


def job(access_key):
    """Return a model of one table, in the account of that key."""

    class Job(LockableModel):
        Meta = meta("jobs", region="us-east-1", aws_access_key_id=access_key, aws_secret_access_key="secret")

        job_id = UnicodeAttribute(hash_key=True)
        version = VersionAttribute()
        lock = LockAttribute()

    return Job


def identity(model):
    """Return what tells the lock of one item from others in this process."""
    return model.locked("j")._handle.target.row.identity


def test_tables_of_two_accounts_are_not_one():
    """Two accounts may have a table of the same name: a lock in the one is not held with that in the other."""
    here = job("A")
    assert identity(here) != identity(job("B"))
    assert identity(here) != identity(job(None))
    assert identity(here) == identity(job("A"))


def test_a_lock_outlives_the_session_it_was_taken_with():
    """A holder that assumes its role anew gets another key, and writes under the lock all the same."""
    model = job("A")
    before = identity(model)
    model.Meta.aws_access_key_id, model._connection = "A2", None
    assert identity(model) == before

    class Late(model):
        class Meta(model.Meta):
            table_name = "jobs"

    assert identity(Late) == before
