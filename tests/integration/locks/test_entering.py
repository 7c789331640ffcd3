"""On the way into a queue a request is in doubt, and then something else happens.

Each of these tests fails by a mistake of one line that no other test of the real engines had found.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pynamo_locking import LockSettings
from pynamo_locking._core.dynamodb import LARGEST_ITEM
from pynamo_locking._core.row_keys import LONGEST_OWNER
from pynamo_locking._core.values import item_size
from pynamo_locking._io import lock_record, lock_requests
from pynamo_locking._locks.acquire import Acquisition
from pynamo_locking.exceptions import ConfigurationError, LockLost, LockTimeout
from pynamo_locking_testing import VirtualClock
from tests.support.models import QUICK, Account, Device, Document, Locks
from tests.support.parties import held_elsewhere, in_thread, shifted_clock, without_pauses
from tests.support.wire import count_requests, on
from tests.support.workers import PATIENCE, until_in_line

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def _no_pauses_between_attempts():
    """Back-off without the waiting: the order of events stays what it is."""
    with without_pauses():
        yield


@pytest.fixture
def account(engine):
    """An account with 100 in it, and a lock document."""
    engine.bind(Account, Locks, Device)
    Account("a", balance=100).save()
    Device("d", total=100).save()
    for lock in (Account.locked("a"), Device.locked("d")):
        with lock:
            pass
    return Account


@pytest.mark.parametrize("heartbeat", [True, False])
@pytest.mark.parametrize("way", ["broken", "evicted"])
def test_an_entry_that_is_gone_when_its_turn_comes(account, way, heartbeat):
    """Between the look that shows us first and the renewal before we hold the lock, another one takes our place."""
    other = account.locked("a", heartbeat=False)

    def let_the_lease_end():
        clock.shift += 17  # and it is renewed before it counts

    def come_first():
        if way == "broken":
            assert account.break_lock("a", ticket=account.lock_state("a").entries[0].ticket)
        in_thread(other.acquire)

    late = on("UpdateItem").after(let_the_lease_end)
    lost = on("UpdateItem", nth=2).before(come_first)
    with shifted_clock() as clock:
        with late, lost, pytest.raises(LockTimeout):
            account.locked("a", lease=6, wait=0, heartbeat=heartbeat).acquire()
        assert [entry.ticket for entry in account.lock_state("a").entries] == [other.ticket]


@pytest.mark.parametrize("after", ["a place is free", "a late copy has entered"])
def test_a_newcomer_looks_before_it_tries_again_to_enter(account, after):
    """A refused write costs as much as a write of the whole item, so while the queue is full it only looks."""
    late = account.locked("a", settings=LockSettings(max_waiters=1, max_callers_per_entry=1), wait=60)
    with held_elsewhere(account.locked("a")) as holder, count_requests() as counted:
        row, attempt = holder._handle.target.row, Acquisition(late._handle.target.row, late._handle.options)
        lock_requests.enter(row, lock_requests.NewEntry("waiter", "waiter", 60.0), 2)
        before, steps = counted.by_operation["UpdateItem"], attempt.steps()
        for looks in (0, 0, 1, 2):  # at first it has not begun
            next(steps)
            assert counted.by_operation["GetItem"] == looks
        assert counted.by_operation["UpdateItem"] == before + 1

        lock_requests.release(row, "waiter", want_image=False)
        if after == "a late copy has entered":
            lock_requests.enter(row, attempt._entry.new, 2)
        assert next(steps).mailbox is not None, "it does not know that it is in the queue"
        assert [entry.id for entry in account.lock_state("a").waiters] == [attempt._entry.new.id]
        steps.close()


def test_an_entry_in_doubt_is_removed_though_the_next_copy_is_refused(account):
    """The first request to enter is on its way, the next one is refused since the queue is full; then it arrives."""
    other = account.locked("a", heartbeat=False)

    def arrive():
        in_thread(other.release)
        late[0]()

    with (
        on("UpdateItem").delay() as late,
        on("UpdateItem").before(lambda: in_thread(other.acquire)),
        on("UpdateItem", nth=2).after(arrive),
        pytest.raises(LockTimeout, match="1 ahead"),
    ):
        account.locked("a", wait=0).acquire()
    assert account.lock_state("a").entries == ()


def test_an_entry_in_doubt_is_removed_though_the_next_copies_are_throttled(account):
    """The answer to the first request to enter got lost: its entry is in the queue, and nobody is to wait for it."""
    throttled = on("UpdateItem", nth=2).answer(*["ThrottlingException"] * 3)
    with on("UpdateItem").lose_response(), throttled as refused, pytest.raises(LockTimeout):
        account.locked("a", wait=0).acquire()
    assert len(refused) > 3
    assert account.lock_state("a").entries == ()


def test_a_late_copy_of_the_request_to_enter_does_not_bring_a_lost_lock_back(account):
    """It puts our entry into the queue again, under another ticket, after an operator has broken the lock."""
    lock = account.locked("a", heartbeat=False)
    with on("UpdateItem").delay() as late:
        lock.acquire()
    assert account.break_lock("a", ticket=lock.ticket)
    late[0]()
    (revived,) = account.lock_state("a").entries
    assert revived.ticket > lock.ticket
    for method in (lock.renew, lock.release):
        with pytest.raises(LockLost):
            method()
    account.break_lock("a", ticket=revived.ticket)


def test_a_delete_in_doubt_that_is_throttled_and_then_refused_was_applied(memory, monkeypatch):
    """All three are attempts of botocore: what the first one has deleted refuses the last."""
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    memory.bind(Document)
    document = Document("f", 1)
    document.save()
    with on("DeleteItem").lose_response(), on("DeleteItem", nth=2).answer("ThrottlingException"):
        document.delete()
    assert Document.count() == 0


def test_a_lease_counts_from_the_first_copy_that_may_have_been_applied(account):
    """The answer to the request to enter gets lost, and most of the lease passes before the next copy finds us in."""

    def let_most_of_it_pass():
        clock.shift += 5

    lost = on("UpdateItem").lose_response(let_most_of_it_pass)
    with shifted_clock() as clock, lost, account.locked("a", lease=6) as lock:
        assert 0 < lock.remaining <= 1


#: Each thread enters the queue for itself.
_EACH = replace(QUICK, max_callers_per_entry=1)


def _locked(**options):
    """A lock whose entry the next caller of its process could not replace by a larger one."""
    return Account.locked("full", settings=_EACH, owner="n" * LONGEST_OWNER, **options)


def _fill(engine, entries):
    """Store an account whose item has room for so many entries more; moto counts otherwise, dynoxide 30 bytes more."""

    def size():
        return item_size(Account._get_connection().get_item("full")["Item"])

    engine.bind(Account)
    account = Account("full", balance=100)
    account.save()
    with held_elsewhere(_locked()):
        locked = size()
    empty = size()
    account.update([Account.note.set("n" * int(LARGEST_ITEM - empty - len("note") - entries * (locked - empty)))])


def test_a_waiter_whose_entry_has_no_room_waits_outside_the_queue(concurrent_engine):
    """At the deadline the error says why it was not in the queue; when the holder has left there is room again."""
    _fill(concurrent_engine, entries=1.9)
    with held_elsewhere(_locked()) as holder:
        with pytest.raises(LockTimeout, match=r"1 ahead; held by .* no further entry of the queue fits") as timeout:
            _locked(wait=0.05).acquire()
        assert timeout.value.queue is not None
        assert [entry.ticket for entry in timeout.value.queue.entries] == [holder.ticket]
    with _locked():
        pass


def test_an_item_without_room_for_any_entry_is_refused_at_once(concurrent_engine):
    _fill(concurrent_engine, entries=0.5)
    with pytest.raises(ConfigurationError, match="so close to DynamoDB's limit of 400 KB"):
        _locked().acquire()


@pytest.mark.parametrize("others", [0, 2], ids=["alone", "behind others"])
def test_what_has_entered_can_be_renewed(memory, others):
    """However many bytes an item with the entry in it has left: all that a holder does fits, or it does not enter."""
    memory.bind(Account)
    account, refused = Account("full"), list[tuple[int, str]]()
    # A number that ends in zeros is some bytes shorter.
    spares = range(4, (lock_record.GROWTH + 20) * (1 + others), 1 + 3 * others)
    account.save()

    def lock(note):
        if note is not None:
            account.update([Account.note.set(note)])
        with ExitStack() as ahead:
            for _ in range(others):
                ahead.enter_context(held_elsewhere(_locked(shared=True)))
            with _locked(wait=5, shared=bool(others)) as held:
                size = item_size(Account._get_connection().get_item("full")["Item"])
                clock.jump(1e6)
                held.renew()
                if not others:
                    held.downgrade()
                token = held.detach(lease=599.999)
            attached = Account.attach(token, owner="n" * LONGEST_OWNER, lease=599.999).acquire()
            clock.jump(1e6)
            attached.renew()
            Account.attach(attached.detach()).acquire().release()
            return size

    with VirtualClock() as clock:
        room = LARGEST_ITEM - lock(None) - len("note")
        for spare in spares:
            try:
                lock("n" * (room - spare))
            except (ConfigurationError, LockTimeout) as error:
                refused.append((spare, str(error)))
            assert Account.lock_state("full").entries == ()
    assert [spare for spare, _ in refused] == [*spares[: len(refused)]]
    assert abs(refused[-1][0] - lock_record.GROWTH * (others + 1)) < 8
    said = "no further entry of the queue fits" if others else r"an entry would need \d+ bytes more as it grows"
    assert all(re.search(said, message) for _, message in refused)


def test_what_takes_over_an_entry_can_be_renewed(memory):
    """The next caller of the process may have the longest label: what has entered has room for it, or is refused."""
    memory.bind(Account)
    account, longest, served = Account("full"), "n" * LONGEST_OWNER, []
    account.save()
    with Account.locked("full", owner="n"):
        room = int(LARGEST_ITEM - item_size(Account._get_connection().get_item("full")["Item"]) - len("note"))
    spares = range(8, LONGEST_OWNER + 2 * lock_record.GROWTH, 8)

    def take_over():
        with Account.locked("full", owner=longest, lease=599.999, wait=1) as lock:
            lock.renew()

    with ThreadPoolExecutor() as pool:
        for spare in spares:
            account.update([Account.note.set("n" * (room - spare))])
            with suppress(ConfigurationError), Account.locked("full", owner="n"):
                served.append((spare, pool.submit(take_over)))
                until_in_line(Account, "full", 1)
            if served:
                served[-1][1].result(PATIENCE)
            assert Account.lock_state("full").entries == ()
    assert [spare for spare, _ in served] == [*spares[-len(served) :]]


def test_room_that_is_made_between_the_refusal_and_the_look_is_used(concurrent_engine):
    """An empty queue alone does not show that the item is too large."""
    _fill(concurrent_engine, entries=1.9)
    holder = _locked()
    in_thread(holder.acquire)
    with on("GetItem").before(holder.release) as looked, _locked() as lock:
        assert looked.hits == 1
        assert lock.ticket > holder.ticket
