"""Each kind of event: what causes it, and the facts it carries."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import ANY

import pytest
from pynamodb.connection import Connection

from pynamo_locking import TransactWrite, events, transaction
from pynamo_locking.events import (
    Acquired,
    Event,
    Evicted,
    LockEvent,
    Lost,
    Released,
    RenewalFailed,
    Renewed,
    TimedOut,
    TransactionCommitted,
    TransactionRecovered,
    TransactionRolledBack,
    Waiting,
    WriteInDoubt,
    WriteRefused,
    subscribe,
)
from pynamo_locking.exceptions import (
    Conflict,
    ItemLocked,
    ItemNotFound,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
    StaleVersion,
    TransactionConflict,
)
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.integration.telemetry.conftest import left_open
from tests.support import workers
from tests.support.deeds import dying_at
from tests.support.models import APART, Account, Device, Document, Locks
from tests.support.parties import abandoned, held_elsewhere, in_thread
from tests.support.transaction_models import Purse, Session, Transactions, make_long_from, marked_rows, survive
from tests.support.wire import Send, count_requests, intercepted, on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine

E = TypeVar("E", bound=Event)

MODELS = (Locks, Account, Device, Document, Purse, Transactions)
#: Few looks in virtual time.
RARE = replace(APART, poll_interval=0.5, max_poll_interval=0.5)


class Heard:
    """What was told, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def only(self, kind: type[E]) -> E:
        [found] = self.all(kind)
        return found

    def all(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


def facts(event: Event) -> dict[str, Any]:
    """All facts but those that no test chooses."""
    return {name: value for name, value in asdict(event).items() if name not in ("time_ms", "monotonic_s", "entry_id")}


@pytest.fixture
def tables(memory: Engine) -> None:
    """Tables in memory, with an item in each."""
    memory.bind(*MODELS)
    fill()


def fill() -> None:
    Account("a", balance=1).save()
    Device("d").save()
    Document("f", 1).save()
    for lock in (Account.locked("a"), Device.locked("d"), Document.locked("f", 1), Locks.locked("n")):
        with lock:
            pass


@pytest.fixture
def clock(tables: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """Virtual time, for which no test really waits, with few looks."""
    shared = replace(RARE, max_callers_per_entry=Account.Meta.lock_settings.max_callers_per_entry)
    monkeypatch.setattr(Account.Meta, "lock_settings", shared)
    with VirtualClock() as clock:
        yield clock


@pytest.fixture
def heard(tables: None) -> Iterator[Heard]:
    """Everything that is told from the beginning of the test on."""
    heard = Heard()
    with subscribe(heard):
        yield heard


# Taking and giving back


def test_a_lock_that_is_free(clock: VirtualClock, heard: Heard) -> None:
    """One request to get it, none to look; held as long as it was held; the clocks are those of the runtime."""
    with Account.locked("a", owner="me", lease=30, heartbeat=False) as lock:
        ticket = lock.ticket
        clock.sleep(2)
    about = {"name": lock.name, "table": Account.Meta.table_name, "model": Account, "owner": "me", "ticket": ticket}
    acquired, released = heard.events
    assert isinstance(acquired, Acquired)
    assert isinstance(released, Released)
    assert facts(acquired) == {
        **about,
        "waited_ms": 0,
        "queue_depth": 1,
        "requests": 1,
        "polls": 0,
        "consumed_units": 1,
        "lease_ms": 30_000,
        "mode": "exclusive",
    }
    assert facts(released) == {
        **about,
        "held_ms": 2000,
        "renewals": 0,
        "writes": 0,
        "is_confirmed": True,
        "is_detached": False,
        "consumed_units": 1,
    }
    assert released.entry_id == acquired.entry_id
    assert released.time_ms - acquired.time_ms == 2000
    assert released.monotonic_s - acquired.monotonic_s == 2
    assert released.time_ms == clock.time_ms()


@pytest.mark.parametrize("name", ["new", "n"])
def test_events_tell_of_each_engine(cheap: Engine, name: str) -> None:
    """The requests are those on the wire, also of a lock that no caller has taken before."""
    cheap.bind(*MODELS)
    fill()
    heard = Heard()
    with subscribe(heard), count_requests() as counted, Locks.locked(name):
        sent = counted.total
    assert heard.kinds == ["Acquired", "Released"]
    assert heard.only(Acquired).requests == sent == (2 if name == "new" else 1)
    assert heard.only(Acquired).model is Locks


def test_a_lock_in_a_row_of_its_own_is_told_of_that_row(heard: Heard) -> None:
    """Name, table and model are those of the lock."""
    with Device.locked("d") as lock:
        pass
    acquired = heard.only(Acquired)
    assert (acquired.name, acquired.table, acquired.model) == (lock.name, Locks.Meta.table_name, Locks)


def test_a_lock_that_is_taken_again_is_not_told_again(heard: Heard) -> None:
    """There is one entry, which comes and goes once."""
    with Account.locked("a"), Account.locked("a"):
        pass
    assert heard.kinds == ["Acquired", "Released"]


def test_a_shared_lock_says_so(heard: Heard) -> None:
    """By its mode; a queue of two has a depth of two."""
    with held_elsewhere(Account.locked("a", shared=True)), Account.locked("a", shared=True):
        pass
    assert [(event.mode, event.queue_depth) for event in heard.all(Acquired)] == [("shared", 1), ("shared", 2)]


def test_an_edit_is_told_as_a_release_with_one_write(heard: Heard) -> None:
    """Its last write takes the entry away with it."""
    with Account.edit("a") as account:
        account.balance += 1
    assert heard.kinds == ["Acquired", "Released"]
    assert heard.only(Released).writes == 1


def test_who_subscribes_late_hears_of_the_end(tables: None) -> None:
    """And the subscriber does not learn how long it was held."""
    heard = Heard()
    lock = Account.locked("a").acquire()
    with subscribe(heard):
        lock.release()
    assert heard.only(Released).held_ms is None
    assert heard.kinds == ["Released"]


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_release_whose_answer_is_lost(clock: VirtualClock, heard: Heard, *, is_confirmed: bool) -> None:
    """A second request finds that the first one was applied; if none arrives, others may have to wait for the lease."""
    lock = Account.locked("a", heartbeat=False).acquire()
    with on("UpdateItem").lose_response() if is_confirmed else on("UpdateItem", times=100).lose_request():
        lock.release()
    assert heard.only(Released).is_confirmed is is_confirmed


# Waiting


def test_a_wait_for_a_live_holder(clock: VirtualClock, heard: Heard) -> None:
    """It begins with who is ahead, and ends with how long it took; the two stays have names of their own."""
    first = Account.locked("a", owner="first", settings=APART).acquire()
    clock.sleep(2)
    threads = [threading.Thread(target=lambda: in_queue(clock))]
    threads[0].start()
    until(clock, lambda: bool(heard.all(Waiting)))
    clock.sleep(4)
    first.release()
    threads[0].join()
    waiting = heard.only(Waiting)
    assert (waiting.owner, waiting.holder, waiting.holder_ticket) == ("second", "first", first.ticket)
    assert 2000 <= waiting.holder_held_ms <= clock.elapsed * 1000
    assert (waiting.ahead, waiting.queue_depth) == (1, 2)
    one, two = heard.all(Acquired)
    assert two.ticket == waiting.ticket == first.ticket + 1
    assert two.entry_id == waiting.entry_id != one.entry_id
    assert two.waited_ms >= 4000
    assert [type(event).__name__ for event in heard.events if event not in heard.all(Renewed)] == [
        "Acquired",
        "Waiting",
        "Released",
        "Acquired",
        "Released",
    ]


def test_a_wait_behind_a_caller_of_this_process(clock: VirtualClock, heard: Heard) -> None:
    """It is told with the queue as that caller has seen it, and without a request."""
    first = Account.locked("a", owner="first", lease=3600, heartbeat=False).acquire()
    clock.auto_jump = False  # or a slow machine lets the other's time to wait pass before the release
    with count_requests() as counted:
        thread = threading.Thread(target=lambda: in_queue(clock))
        thread.start()
        workers.until(lambda: heard.all(Waiting))
        clock.jump(10)
        assert counted.total == 0
    first.release()
    thread.join()
    waiting, (_, two) = heard.only(Waiting), heard.all(Acquired)
    assert (waiting.owner, waiting.holder, waiting.holder_ticket) == ("second", "first", first.ticket)
    assert (waiting.ahead, waiting.queue_depth, waiting.ticket) == (1, 1, None)
    assert (two.ticket, two.entry_id) == (first.ticket + 1, waiting.entry_id)
    assert two.waited_ms >= 10_000


def in_queue(clock: VirtualClock) -> None:
    with Account.locked("a", owner="second", wait=600):
        pass


def until(clock: VirtualClock, condition: Any) -> None:
    for _ in range(10_000):
        if condition():
            return
        clock.sleep(0.01)
    raise AssertionError("it did not happen")


def test_an_eviction(clock: VirtualClock, heard: Heard) -> None:
    """Whose entry it was; who evicts waits first, and every request and look is counted."""
    with Locks.locked("n"):
        me = heard.only(Acquired).owner
    heard.events.clear()
    dead = abandoned(Account.locked("a", owner="dead", lease=10, heartbeat=False))
    ticket = dead.ticket
    with count_requests() as counted, Account.locked("a", owner="heir", wait=60, heartbeat=False):
        sent, looks = counted.total, counted.by_operation["GetItem"]
    evicted = heard.only(Evicted)
    assert facts(evicted) == {
        "name": dead.name,
        "table": Account.Meta.table_name,
        "model": Account,
        "owner": "dead",
        "ticket": ticket,
        "by": me,
        "lease_ms": 10_000,
        "is_forced": False,
        "queued_ms": evicted.queued_ms,
    }
    assert evicted.queued_ms >= 10_000  # its lease, of which the caller of the same process knows the last sign of life
    acquired = heard.all(Acquired)[-1]
    assert acquired.waited_ms >= 10_000
    assert (acquired.requests, acquired.polls) == (sent, looks)
    assert looks > 1
    assert heard.kinds == ["Acquired", "Waiting", "Evicted", "Acquired", "Released"]


def evicts(body: dict[str, Any]) -> bool:
    """Whether a request removes an entry that has expired."""
    return "evicted" in str(body.get("UpdateExpression")) + str(body.get("ExpressionAttributeNames"))


def test_an_eviction_that_is_refused_is_none(clock: VirtualClock, heard: Heard) -> None:
    """The entry was renewed since a waiter found it dead: no entry was evicted."""
    with Account.locked("a", lease=10, heartbeat=False, settings=RARE) as lock:
        renewed = on("UpdateItem", where=evicts).before(lock.renew)
        with renewed as hits, pytest.raises(LockTimeout):
            in_thread(Account.locked("a", wait=15, settings=RARE).acquire)
    assert hits.hits
    assert heard.kinds == ["Acquired", "Waiting", "Renewed", "TimedOut", "Released"]


def test_an_eviction_whose_answer_is_lost_is_not_told(clock: VirtualClock, heard: Heard) -> None:
    """No process knows which of those that tried it was first; everything else is told once."""
    dead = abandoned(Account.locked("a", lease=10, heartbeat=False))
    with on("UpdateItem", where=evicts).lose_response() as lost:
        Account.locked("a", owner="heir", wait=60).acquire().release()
    assert lost.hits
    assert Account.lock_state("a").was_evicted(dead.ticket)
    assert heard.kinds == ["Acquired", "Waiting", "Acquired", "Released"]


def test_a_writer_evicts(clock: VirtualClock, heard: Heard) -> None:
    """A write from outside clears a queue of the dead."""
    account = Account.get("a")
    abandoned(Account.locked("a", owner="dead", lease=10, heartbeat=False))
    clock.sleep(60)
    account.save()
    assert heard.only(Evicted).owner == "dead"


def test_a_lock_that_is_broken(heard: Heard) -> None:
    """The eviction is told as one that was asked for; the loss when it is found out, and no release."""
    lock = Account.locked("a", owner="me", heartbeat=False).acquire()
    assert Account.break_lock("a", ticket=lock.ticket)
    with pytest.raises(LockLost):
        lock.renew()
    with pytest.raises(LockLost):
        lock.release()
    evicted, lost = heard.only(Evicted), heard.only(Lost)
    assert (evicted.owner, evicted.ticket, evicted.is_forced) == ("me", lock.ticket, True)
    assert (lost.owner, lost.ticket, lost.reason) == ("me", lock.ticket, "evicted")
    assert lost.held_ms is not None
    assert heard.kinds == ["Acquired", "Evicted", "Lost"]


def test_a_break_of_nothing_evicts_no_entry(heard: Heard) -> None:
    """An entry that is gone is not removed again."""
    assert not Account.break_lock("a", ticket=1)
    assert heard.events == []


def test_the_item_is_deleted_under_the_lock(heard: Heard) -> None:
    """That is a loss with another reason."""
    with suppress(LockLost), Account.locked("a", heartbeat=False):
        in_thread(lambda: Connection.dispatch(Account._get_connection().connection, "DeleteItem", whole("a")))
    assert heard.only(Lost).reason == "deleted"


def whole(key: str) -> dict[str, Any]:
    return {"TableName": Account.Meta.table_name, "Key": {"account_id": {"S": key}}}


def test_a_time_out(clock: VirtualClock, heard: Heard) -> None:
    """How long we waited, whatever it cost, and that the queue had an entry in it."""
    abandoned(Account.locked("a", lease=600, heartbeat=False))
    with count_requests() as counted, pytest.raises(LockTimeout):
        Account.locked("a", owner="me", wait=3).acquire()
    over = heard.only(TimedOut)
    assert (over.owner, over.ticket, over.wait_ms, over.queue_depth) == ("me", None, 3000, 2)
    assert over.waited_ms == pytest.approx(3000)
    # The last request takes our entry out of the queue.
    assert (over.requests, over.polls) == (counted.total, counted.by_operation["GetItem"])
    assert heard.kinds == ["Acquired", "Waiting", "TimedOut"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_try_does_not_wait(heard: Heard, *, shared: bool) -> None:
    """A lock that is taken is a time-out at once; a reader has to enter to see who is ahead, and leaves at once."""
    with held_elsewhere(Account.locked("a")), Account.try_locked("a", shared=shared) as lock:
        assert lock is None
    assert heard.only(TimedOut).wait_ms == 0
    assert heard.kinds == ["Acquired", "TimedOut", "Released"]


def test_a_full_queue_is_a_wait_without_a_ticket(clock: VirtualClock, heard: Heard, monkeypatch: Any) -> None:
    """A caller that is not let into the queue yet waits as well."""
    monkeypatch.setattr(Account.Meta, "lock_settings", replace(RARE, max_waiters=1))
    with held_elsewhere(Account.locked("a", owner="first")):
        second = threading.Thread(target=lambda: in_queue(clock))
        second.start()
        until(clock, lambda: bool(heard.all(Waiting)))
        heard.events.clear()
        with pytest.raises(LockTimeout):
            Account.locked("a", wait=1).acquire()
        waiting = heard.only(Waiting)
        assert (waiting.ticket, waiting.holder, waiting.queue_depth, waiting.ahead) == (None, "first", 2, 2)
    second.join()


# Renewals


def test_the_heartbeat_renews(clock: VirtualClock, heard: Heard) -> None:
    """Told with what is left: two thirds of the lease, since it is renewed after a third."""
    with Account.locked("a", lease=30):
        clock.sleep(25)
    first, second = heard.all(Renewed)
    assert (first.lease_ms, first.took_ms, first.is_late) == (30_000, 0, False)
    assert first.margin_ms == pytest.approx(20_000)
    assert (second.time_ms - first.time_ms) == 10_000
    assert heard.only(Released).renewals == 2


def test_a_late_renewal(clock: VirtualClock, heard: Heard) -> None:
    """The process stood still for longer than a lease, and no other party took the lock."""
    with Account.locked("a", lease=30, heartbeat=False) as lock:
        clock.jump(31)
        lock.renew()
    renewed = heard.only(Renewed)
    assert renewed.is_late
    assert renewed.margin_ms == pytest.approx(-1000)


def test_a_renewal_without_an_answer(clock: VirtualClock, heard: Heard) -> None:
    """Each attempt is told with what is left; then it succeeds."""
    with Account.locked("a", lease=30), on("UpdateItem", times=2).lose_request():
        until(clock, lambda: bool(heard.all(Renewed)))
    first, second = heard.all(RenewalFailed)
    assert (first.lease_ms, first.error) == (30_000, "ConnectionClosedError")
    assert first.remaining_ms == pytest.approx(20_000)
    assert second.remaining_ms < first.remaining_ms


def test_a_renewal_that_fails_in_an_odd_way(clock: VirtualClock, heard: Heard) -> None:
    """Whatever it was, it is told by its class, and tried again."""
    with Account.locked("a", lease=30), on("UpdateItem").before(lambda: 1 / 0):
        until(clock, lambda: bool(heard.all(Renewed)))
    assert heard.only(RenewalFailed).error == "ZeroDivisionError"


def test_a_renewal_of_the_callers_own_without_an_answer(heard: Heard) -> None:
    """It is told like one of the heartbeat."""
    with Account.locked("a", heartbeat=False) as lock:
        with on("UpdateItem").lose_request(), pytest.raises(OutcomeUnknown):
            lock.renew()
        lock.renew()
    assert heard.kinds == ["Acquired", "RenewalFailed", "Renewed", "Released"]


# Consumed units


def test_units_are_those_of_the_requests(cheap: Engine) -> None:
    """One write unit each; who waits also consumes half a read unit with each look."""
    cheap.bind(*MODELS)
    fill()
    heard = Heard()
    with subscribe(heard):
        with Account.locked("a", heartbeat=False) as lock:
            lock.renew()
        with held_elsewhere(Account.locked("a", settings=APART)), pytest.raises(LockTimeout):
            Account.locked("a", wait=1).acquire()  # long enough for a look, on a busy machine too
    assert heard.all(Acquired)[0].consumed_units == 1
    assert heard.only(Renewed).consumed_units == 1
    assert heard.all(Released)[0].consumed_units == 1
    over = heard.only(TimedOut)
    assert over.polls > 0
    assert over.consumed_units == over.requests - over.polls / 2


def test_a_refused_lock_counts_its_own_release(cheap: Engine) -> None:
    """The item has expired: the lock is taken, seen to be in vain, and given back by a request of its own."""
    cheap.bind(Session)
    Session("s", expires_at=timedelta(hours=-1)).save()
    heard = Heard()
    with subscribe(heard), pytest.raises(ItemNotFound):
        Session.locked("s").acquire()
    assert [event.consumed_units for event in heard.all(Released)] == [1]


def test_a_write_that_releases_counts(cheap: Engine) -> None:
    """It is the save of an edit."""
    cheap.bind(*MODELS)
    fill()
    heard = Heard()
    with subscribe(heard), Account.edit("a") as account:
        account.note = "x" * 2500
    assert heard.only(Released).consumed_units == 3


@pytest.mark.parametrize(("purses", "path"), [(0, "read"), (1, "single"), (2, "native"), (8, "long")])
def test_a_commit_counts_all_of_its_requests(cheap: Engine, monkeypatch: Any, purses: int, path: str) -> None:
    """On each path: what the responses to them say, and nothing that was consumed before it."""
    cheap.bind(*MODELS)
    make_long_from(monkeypatch)
    heard, said = Heard(), list[float]()

    def answer(send: Send, _operation: str, _arguments: dict[str, Any]) -> Any:
        found = send()
        consumed = found.get("ConsumedCapacity", [])
        said.extend(each["CapacityUnits"] for each in ([consumed] if isinstance(consumed, dict) else consumed))
        return found

    Purse("read").save()
    with intercepted(answer), subscribe(heard), transaction(Transactions) as tx:
        if not purses:
            tx.get(Purse, "read")
        for i in range(purses):
            tx.save(Purse(f"p{i}", balance=1))
        said.clear()
    committed = heard.only(TransactionCommitted)
    assert (committed.path, committed.consumed_units) == (path, sum(said))
    assert committed.consumed_units > 0


# Writes


def test_a_stale_version(heard: Heard) -> None:
    """Both versions, the operation, and the item by its key."""
    stale, fresh = Document.get("f", 1), Document.get("f", 1)
    fresh.save()
    with pytest.raises(StaleVersion):
        stale.delete()
    refused = heard.only(WriteRefused)
    assert facts(refused) == {
        "table": Document.Meta.table_name,
        "model": Document,
        "name": Document.locked("f", 1).name,
        "operation": "delete",
        "error": "StaleVersion",
        "expected": 1,
        "actual": 2,
        "holder": None,
        "holder_ticket": None,
        "reason": None,
        "transaction_id": None,
    }


def test_a_locked_item(heard: Heard) -> None:
    """Who holds it."""
    account = Account.get("a")
    with held_elsewhere(Account.locked("a", owner="holder")) as lock, pytest.raises(ItemLocked):
        account.update([Account.balance.add(1)])
    refused = heard.only(WriteRefused)
    assert (refused.error, refused.operation) == ("ItemLocked", "update")
    assert (refused.holder, refused.holder_ticket) == ("holder", lock.ticket)


def test_a_condition_of_the_callers_own(heard: Heard) -> None:
    """A plain conflict, once, also where the write goes out as a transaction with the lock's row."""
    with pytest.raises(Conflict):
        Account.get("a").save(Account.balance == 999)
    with Device.locked("d") as lock, pytest.raises(Conflict):
        lock.item.save(Device.total == 999)
    refused = heard.all(WriteRefused)
    assert [(event.model, event.error, event.operation) for event in refused] == [
        (Account, "Conflict", "put"),
        (Device, "Conflict", "put"),
    ]


def test_a_write_in_doubt(heard: Heard) -> None:
    """Named by its write id."""
    account = Account.get("a")
    with on("UpdateItem", times=100).lose_response(), pytest.raises(OutcomeUnknown) as caught:
        account.update([Account.balance.add(1)])
    doubt = heard.only(WriteInDoubt)
    assert (doubt.error, doubt.operation, doubt.write_id) == ("OutcomeUnknown", "update", caught.value.write_id)


def test_a_native_transaction_is_refused(heard: Heard) -> None:
    """One event for the whole of it, about the item that has refused it, with its token as the id."""
    stale = Document.get("f", 1)
    Document.get("f", 1).save()
    with (
        pytest.raises(StaleVersion),
        TransactWrite(
            connection=Document._get_connection().connection, client_request_token="token-of-mine"
        ) as transact,
    ):
        transact.save(stale)
    refused = heard.only(WriteRefused)
    assert (refused.operation, refused.error, refused.name) == (
        "transaction",
        "StaleVersion",
        Document.locked("f", 1).name,
    )
    assert (refused.table, refused.model) == (Document.Meta.table_name, Document)
    assert refused.transaction_id == "token-of-mine"


def test_a_lost_lock_is_no_conflict(heard: Heard) -> None:
    """It is told as a loss, once, although a write found it out."""
    with suppress(LockLost), Account.locked("a", heartbeat=False) as lock:
        item = lock.item
        Account.break_lock("a", ticket=lock.ticket)
        item.save()
    assert heard.kinds == ["Acquired", "Evicted", "Lost"]


# Transactions


@pytest.mark.parametrize(("purses", "expected"), [(0, "nothing"), (1, "single"), (2, "native"), (8, "long")])
def test_a_commit(clock: VirtualClock, heard: Heard, monkeypatch: Any, purses: int, expected: str) -> None:
    """On each path: how many items, how long, for whom."""
    make_long_from(monkeypatch)
    with transaction(Transactions, owner="me") as tx:
        for i in range(purses):
            tx.save(Purse(f"p{i}", balance=1))
        clock.sleep(3)
    committed = heard.only(TransactionCommitted)
    assert facts(committed) == {
        "transaction_id": tx.id,
        "owner": "me",
        "lasted_ms": pytest.approx(3000),
        "items": purses,
        "path": expected,
        "is_repeated": False,
        "consumed_units": None if purses == 0 else ANY,
    }
    assert heard.kinds == ["TransactionCommitted"]


def test_a_commit_under_a_key_that_is_known(heard: Heard) -> None:
    """The second one is told as repeated."""
    for _ in range(2):
        with transaction(Transactions, idempotency_key="k") as tx:
            tx.save(Purse("p"))
    assert [event.is_repeated for event in heard.all(TransactionCommitted)] == [False, True]


@pytest.mark.parametrize("interfere", ["save", "delete"])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_commit_that_is_refused(heard: Heard, monkeypatch: Any, count: int, interfere: str) -> None:
    """On each path one conflict, with the item that has refused, and that the transaction has ended uncommitted."""
    make_long_from(monkeypatch)
    for i in range(count):
        Purse(f"p{i}").save()
    heard.events.clear()
    last = f"p{count - 1}"
    with pytest.raises(StaleVersion), transaction() as tx:
        for i in range(count):
            tx.update(tx.get(Purse, f"p{i}"), [Purse.balance.add(1)])
        in_thread(getattr(Purse.get(last), interfere))
    refused = heard.only(WriteRefused)
    assert (refused.error, refused.model, refused.table) == ("StaleVersion", Purse, Purse.Meta.table_name)
    assert refused.name == Purse.locked(last).name
    assert refused.transaction_id == (None if count == 1 else tx.id)
    rolled_back = heard.only(TransactionRolledBack)
    assert (rolled_back.transaction_id, rolled_back.error, rolled_back.items) == (tx.id, "StaleVersion", count)


def test_a_commit_whose_reads_have_changed(heard: Heard) -> None:
    """The conflict names the item that was only read."""
    Purse("read").save()
    heard.events.clear()
    with pytest.raises(StaleVersion), transaction(read_only=True) as tx:
        tx.get(Purse, "read")
        tx.get_or_none(Purse, "absent")
        in_thread(Purse.get("read").save)
    refused = heard.only(WriteRefused)
    assert (refused.model, refused.name, refused.transaction_id) == (Purse, Purse.locked("read").name, tx.id)


def test_a_rollback(heard: Heard) -> None:
    """By the caller, without an error of its own and without a path."""
    with pytest.raises(ZeroDivisionError), transaction() as tx:
        tx.save(Purse("p"))
        raise ZeroDivisionError
    assert facts(heard.only(TransactionRolledBack))["error"] == ""
    assert heard.only(TransactionRolledBack).path == ""
    assert heard.kinds == ["TransactionRolledBack"]


def test_a_commit_of_unknown_outcome(heard: Heard) -> None:
    """It may be committed, and both events say so."""
    with on("TransactWriteItems", times=100).lose_response(), pytest.raises(OutcomeUnknown), transaction() as tx:
        tx.save(Purse("p"))
        tx.save(Purse("q"))
    assert heard.only(WriteInDoubt).name == tx.id
    assert heard.only(TransactionRolledBack).error == "OutcomeUnknown"


@pytest.mark.parametrize(("is_decided", "outcome"), [(False, "aborted"), (True, "finished")])
@pytest.mark.parametrize("by", ["recover", "sweep"])
def test_a_recovery(
    clock: VirtualClock, heard: Heard, monkeypatch: Any, outcome: str, by: str, *, is_decided: bool
) -> None:
    """By a person or by a job: once for the whole transaction, whose owner is dead."""
    tx = left_open(clock, monkeypatch, is_decided=is_decided)
    heard.events.clear()
    if by == "recover":
        Transactions.recover(tx.id)
    else:
        Transactions.sweep()
    assert facts(heard.only(TransactionRecovered)) == {
        "transaction_id": tx.id,
        "owner": "dead",
        "table": Transactions.Meta.table_name,
        "outcome": outcome,
        "recovered_by": by,
        "reason": "",
    }


@pytest.mark.parametrize(
    ("is_decided", "expected"), [(False, [("aborted", "lease_expired"), ("aborted", "")]), (True, [("finished", "")])]
)
def test_a_mark_in_the_way(
    clock: VirtualClock, heard: Heard, monkeypatch: Any, expected: list[tuple[str, str]], *, is_decided: bool
) -> None:
    """A writer that needs the item aborts the transaction if it may, and takes the mark off."""
    tx = left_open(clock, monkeypatch, is_decided=is_decided)
    heard.events.clear()
    with suppress(Conflict):
        Purse(marked_rows(Purse)[0]["purse_id"]["S"]).save()
    found = heard.all(TransactionRecovered)
    assert [(event.outcome, event.reason) for event in found] == expected
    assert {(event.recovered_by, event.transaction_id, event.owner) for event in found} == {("reader", tx.id, "dead")}


def test_a_transaction_that_others_keep_busy(heard: Heard, clock: VirtualClock, monkeypatch: Any) -> None:
    """A conflict of transactions, on a single write: nothing is known of a version."""
    make_long_from(monkeypatch)
    tx = Transaction(Transactions, owner="busy", workers=1, lease=600)
    for i in range(8):
        tx.save(Purse(f"p{i}"))
    with dying_at(monkeypatch, "decision"):
        assert not survive(tx.commit)
    heard.events.clear()
    with pytest.raises(TransactionConflict):
        Purse(marked_rows(Purse)[0]["purse_id"]["S"]).save()
    assert heard.only(WriteRefused).error == "TransactionConflict"


def test_events_are_the_same_by_kind_and_facts() -> None:
    """So a set of them has each once; what happened in another way is another event."""
    ended: dict[str, Any] = {"transaction_id": "t", "owner": "o", "lasted_ms": 3.0, "items": 1, "path": ""}
    about: dict[str, Any] = {"time_ms": 1, "monotonic_s": 2.0, "consumed_units": None, **ended}
    committed, again = (TransactionCommitted(**about, is_repeated=False) for _ in "ab")
    assert {committed, again} == {committed}
    assert TransactionCommitted(**about, is_repeated="") != TransactionRolledBack(**about, error="")  # type: ignore[arg-type]
    assert committed != TransactionCommitted(**{**about, "items": 2}, is_repeated=False)


@pytest.mark.parametrize(("margin_ms", "is_late"), [(0.0, False), (-0.1, True)])
def test_a_renewal_is_late_once_the_lease_has_ended(margin_ms: float, *, is_late: bool) -> None:
    lock: dict[str, Any] = {"name": "n", "table": "t", "model": None, "owner": "o", "entry_id": "e", "ticket": 1}
    took: dict[str, Any] = {"lease_ms": 1000, "took_ms": 1.0, "consumed_units": 1}
    assert Renewed(time_ms=1, monotonic_s=2.0, margin_ms=margin_ms, **took, **lock).is_late is is_late


# Who listens cannot do harm


def busy_day() -> None:
    """Something of everything."""
    with Account.locked("a", heartbeat=False) as lock:
        lock.renew()
        lock.item.save()
    with Account.edit("a") as account:
        account.balance += 1
    lock = Account.locked("a", heartbeat=False).acquire()
    Account.break_lock("a", ticket=lock.ticket)
    for call in (lock.renew, lock.release):
        with pytest.raises(LockLost):
            call()
    with held_elsewhere(Account.locked("a")), pytest.raises(LockTimeout):
        Account.locked("a", wait=0.01).acquire()
    stale = Document.get("f", 1)
    Document.get("f", 1).save()
    with pytest.raises(StaleVersion):
        stale.save()
    with transaction() as tx:
        tx.save(Purse("p"))
        tx.save(Purse("q"))


def test_a_subscriber_that_always_fails_harms_nothing(tables: None) -> None:
    """Every event meets an exception, and everything goes on as without."""
    calls: list[str] = []

    def fail(event: Event) -> None:
        calls.append(type(event).__name__)
        raise RuntimeError

    with subscribe(fail):
        busy_day()
    assert {"Acquired", "Renewed", "Released", "Lost", "Evicted", "TimedOut", "Waiting", "WriteRefused"} <= {*calls}
    assert Account.lock_state("a").holders == ()


def test_without_subscribers_nothing_is_made(tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No event."""
    made: list[str] = []
    for name in events.__all__:
        kind = getattr(events, name)
        if isinstance(kind, type) and issubclass(kind, Event):
            monkeypatch.setattr(kind, "__init__", lambda *_, name=name, **__: made.append(name))
    busy_day()
    assert made == []


#: What another thread may want of a lock at any time: to renew it, to write under it, and to know whether it is lost.
WANTED: list[Any] = [lambda lock: lock.renew(), lambda lock: lock.item.touch(), lambda lock: lock.remaining]


def is_free(lock: Any) -> bool:
    """Tell whether another thread gets through to the end, in which nobody listens, while this one waits."""
    done: list[bool] = []

    def use() -> None:
        for want in WANTED:
            with suppress(Exception):
                want(lock)
        done.append(True)

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(20)  # it is over at once, unless it waits for us
    return done == [True]


def test_no_mutex_is_held_while_a_subscriber_runs(tables: None) -> None:
    """Another thread can use the lock: it may be the heartbeat, or wait for what the subscriber has."""
    lock = Account.locked("a", heartbeat=False)
    free: dict[str, bool] = {}

    def try_all(event: Event) -> None:
        kind = type(event).__name__
        if kind not in free:
            free[kind] = False  # while another thread is told of what it does
            free[kind] = is_free(lock)

    with subscribe(try_all, LockEvent):
        lock.acquire()
        lock.renew()
        lock.release()
        lock.acquire()
        item = lock.item
        Account.break_lock("a", ticket=lock.ticket)
        with pytest.raises(LockLost):
            item.save()
    assert free == dict.fromkeys(["Renewed", "Released", "Acquired", "Evicted", "Lost"], True)


def test_no_mutex_is_held_when_an_edit_ends(tables: None) -> None:
    """Its release is part of a guarded write."""
    free: list[bool] = []
    edit = Account.edit("a")
    with subscribe(lambda _: free.append(is_free(edit.lock)), Released), edit as account:
        account.balance += 1
    assert free == [True]


def test_a_subscriber_may_use_locks(tables: None) -> None:
    """What it does is not told to it, so it ends."""
    taken: list[str] = []

    def note(event: Event) -> None:
        with Locks.locked("of the subscriber") as lock:
            taken.append(f"{type(event).__name__} {lock.name}")

    with subscribe(note), Account.locked("a"):
        pass
    assert taken == ["Acquired of the subscriber", "Released of the subscriber"]


def test_an_interrupt_in_a_subscriber_leaves_no_lock(tables: None) -> None:
    """A caller that is interrupted while it takes the lock does not have it."""

    def interrupted(_: Acquired) -> None:
        raise KeyboardInterrupt

    with subscribe(interrupted, Acquired), pytest.raises(KeyboardInterrupt):
        Account.locked("a").acquire()
    assert Account.lock_state("a").holders == ()


def test_a_key_that_cannot_be_named_harms_no_write(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If an event cannot be made, the caller gets the error of the write all the same."""
    stale = Document.get("f", 1)
    Document.get("f", 1).save()
    monkeypatch.setattr(WriteRefused, "__init__", lambda *_, **__: 1 / 0)
    with pytest.raises(StaleVersion):
        stale.save()
    assert heard.all(WriteRefused) == []
    assert "could not be reported" in caplog.text


# Tasks


def test_tasks_are_told_of_as_well(tables: None, heard: Heard) -> None:
    """The same events, with the requests that were made for them in threads; and when a task runs out of time."""

    async def work() -> None:
        async with Account.locked("a", owner="first", settings=APART) as lock:
            with suppress(LockTimeout):
                await asyncio.create_task(late())
            await lock.arenew()

    async def late() -> None:
        async with Account.locked("a", owner="late", wait=0.05):
            raise AssertionError("it is held")

    asyncio.run(work())

    assert heard.kinds == ["Acquired", "Waiting", "TimedOut", "Renewed", "Released"]
    acquired, timed_out = heard.only(Acquired), heard.only(TimedOut)
    assert (acquired.owner, acquired.requests, acquired.polls, acquired.queue_depth) == ("first", 1, 0, 1)
    assert (timed_out.owner, timed_out.requests, timed_out.wait_ms) == ("late", timed_out.polls + 2, 50)
    assert heard.only(Waiting).holder == "first"
