"""Locks that are detached in one process, and attached in another."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute, UTCDateTimeAttribute
from pynamodb.exceptions import UpdateError

from pynamo_locking import ExpiringMixin, LockableModel, LockSettings, TTLAttribute, events
from pynamo_locking.exceptions import (
    ConfigurationError,
    InvalidInput,
    ItemLocked,
    ItemNotFound,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
)
from pynamo_locking_testing import VirtualClock
from tests.integration.locks.conftest import bind
from tests.support.models import declare
from tests.support.parties import in_thread
from tests.support.wire import Chosen, count_requests, on, tapped
from tests.support.workers import Beside, Enforced, Locks, Plain, Versioned, Worker, crew, until, until_queued

if TYPE_CHECKING:
    from tests.support.wire import Answer, Forward


class OneWayAttribute(UnicodeAttribute):
    """Reads back something other than was stored."""

    def serialize(self, value: Any) -> Any:
        return "p#" + value


#: All attempts of one request.
ALL = 16
FAST = LockSettings(lease=100, wait=100, poll_interval=0.01, request_timeout=5)


@pytest.fixture(params=[Plain, Versioned, Beside, Locks])
def model(request, concurrent_engine):
    bind(concurrent_engine, request.param, *(() if request.param is Locks else "a"))
    return request.param


@pytest.fixture
def plain(memory):
    bind(memory, Plain, "a")
    return Plain


@pytest.mark.processes
def test_a_lock_goes_through_three_processes(real_engine):
    """Acquired in one, passed on through JSON, released in the third; the ticket and the place stay."""
    real_engine.bind(Plain)
    Plain("a").save()
    with crew(real_engine, 4, Plain) as (first, second, third, waiter):
        ticket = first.call("enter", Plain, "a").ticket
        first.call("add", "a", 1)
        waiter.start("edit", Plain, ["a"])
        until_queued(Plain, "a", 2)
        state = json.dumps({"order": "a", "token": first.call("detach", "a")})
        assert [entry.is_detached for entry in Plain.lock_state("a").entries] == [True, False]
        first.kill()

        assert second.call("attach", Plain, "a", json.loads(state)["token"]).ticket == ticket
        assert second.call("add", "a", 10) == 11
        assert not Plain.lock_state("a").entries[0].is_detached
        token = second.call("detach", "a")
        assert third.call("attach", Plain, "a", token).ticket == ticket
        assert third.call("add", "a", 100) == 111
        third.call("leave", "a")
        assert waiter.result()[0].value == 112
    assert Plain.lock_state("a").entries == ()


@pytest.mark.processes
def test_a_twin_that_goes_on_is_refused(real_engine):
    """A step that runs twice attaches its token twice. The second run fences the first: its writes and its release."""
    real_engine.bind(Plain)
    Plain("a").save()
    with crew(real_engine, 3, Plain) as (first, twin, late):
        first.call("enter", Plain, "a")
        token = first.call("detach", "a")
        late.call("attach", Plain, "a", token)
        late.call("add", "a", 1)
        twin.call("attach", Plain, "a", token)
        assert twin.call("add", "a", 10) == 11
        late.start("add", "a", 100)
        assert isinstance(late.failure(), LockLost)
        late.start("leave", "a")
        assert isinstance(late.failure(), LockLost)
        assert twin.call("add", "a", 1000) == 1011
        newest = twin.call("detach", "a")
        late.start("attach", Plain, "a", token)
        assert "detached again" in str(late.failure())
        late.call("attach", Plain, "a", newest)
        late.call("leave", "a")


@pytest.mark.processes
@pytest.mark.waits
@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3], ids=["attach", "add", "detach"])
def test_a_step_is_killed_at_each_request(real_engine, number, is_sent, monkeypatch):
    """Its retry goes on with the same token. If that was detached again, the lock ends with its lease."""
    is_without_token = is_sent and number == 3
    monkeypatch.setattr(Plain.Meta, "lock_settings", LockSettings(request_timeout=0.4), raising=False)
    real_engine.bind(Plain)
    Plain("a").save()
    with crew(real_engine, 3, Plain) as (first, killed, retry):
        ticket = first.call("enter", Plain, "a").ticket
        token = first.call("detach", "a", 300)
        killed.call("die_at", number, is_sent=is_sent)
        with pytest.raises(AssertionError, match="died"):
            take_step(killed, token, 3 if is_without_token else 300)
        if is_without_token:
            retry.start("attach", Plain, "a", token)
            assert "detached again" in str(retry.failure())
        else:
            added = 1 if number == 3 or (number == 2 and is_sent) else 0
            with Plain.attach(take_step(retry, token, 300)) as lock:
                assert (lock.ticket, lock.item.value) == (ticket, added + 1)
        with Plain.locked("a", wait=60) as following:
            assert following.ticket > ticket
    assert Plain.lock_state("a").entries == ()


def take_step(worker: Worker, token: str, lease: float) -> str:
    """Attach the lock, write under it, and detach it again; return the next token."""
    worker.call("attach", Plain, "a", token)
    worker.call("add", "a", 1)
    newest: str = worker.call("detach", "a", lease)
    return newest


def test_what_it_costs(model):
    """One write to detach, one to attach; a second attach is refused once before."""
    with model.locked("a") as lock, count_requests() as counted:
        token = lock.detach()
    assert counted.by_operation == {"UpdateItem": 1}
    with count_requests() as counted:
        attached = model.attach(token).acquire()
    assert counted.by_operation == {"UpdateItem": 1}
    assert attached.ticket == lock.ticket
    with count_requests() as counted:
        again = in_thread(model.attach(token).acquire)
    assert counted.by_operation == {"UpdateItem": 2}
    with pytest.raises(LockLost):
        attached.release()
    again.release()
    assert model.lock_state("a").entries == ()


@pytest.fixture
def clock():
    """Time that moves by itself: pauses between attempts take none."""
    with VirtualClock() as clock:
        yield clock


@pytest.mark.parametrize("fault", [Chosen.lose_request, Chosen.lose_response])
def test_a_lost_answer(plain, clock, fault):
    """To a request that detaches or attaches: what it did is found in the queue."""
    lock = plain.locked("a", settings=FAST).acquire()
    with fault(on("UpdateItem")):
        token = lock.detach()
    lock.release()
    with fault(on("UpdateItem")):
        attached = plain.attach(token, settings=FAST).acquire()
    attached.item.update([plain.value.add(1)])
    attached.release()
    assert plain.get("a").value == 1


@pytest.mark.parametrize("fault", [Chosen.lose_request, Chosen.lose_response])
def test_no_answer_at_all(plain, clock, fault):
    """A detach gives the lock up, and no entry is left. The token of an attach is attached again."""
    lock = plain.locked("a", settings=FAST).acquire()
    with fault(on("UpdateItem", times=ALL)), pytest.raises(OutcomeUnknown, match="given up"):
        lock.detach()
    lock.release()
    until(lambda: not plain.lock_state("a").entries, "the removal of the entry")

    with plain.locked("a", settings=FAST) as lock:
        token = lock.detach()
    attached = plain.attach(token, settings=FAST)
    with fault(on("UpdateItem", times=ALL)), pytest.raises(LockTimeout, match="trying again is safe"):
        attached.acquire(wait=0)
    attached.acquire()
    attached.item.update([plain.value.add(1)])
    attached.release()
    assert plain.get("a").value == 1


def test_a_release_in_doubt_that_is_throttled_and_then_refused_is_no_loss(plain, clock):
    """The first request has removed the entry, whose place another process may take without a trace: it was held."""
    with plain.locked("a", settings=FAST) as lock:
        token = lock.detach()
    attached = plain.attach(token, settings=FAST).acquire()
    with on("UpdateItem").lose_response(), on("UpdateItem", nth=2).answer("ThrottlingException"):
        attached.release()
    assert not attached.lost.is_set()
    assert plain.lock_state("a").entries == ()


def test_a_late_copy_of_a_write_is_refused(plain):
    """Of one that was sent before the lock was detached."""
    lock = plain.locked("a", settings=FAST).acquire()
    with on("UpdateItem", times=ALL).delay() as late, pytest.raises(OutcomeUnknown):
        lock.item.update([plain.value.add(1)])
    token = lock.detach()
    for arrive in late:
        arrive()
    lock.release()
    with plain.attach(token) as attached:
        assert attached.item.value == 0


async def test_in_tasks(plain):
    async with plain.locked("a") as lock:
        with pytest.raises(ConfigurationError, match="adetach"):
            lock.detach()
        token = await lock.adetach(lease=50)
    [entry] = plain.lock_state("a").entries
    assert (entry.is_detached, entry.lease) == (True, 50)
    async with plain.attach(token) as attached:
        assert attached.ticket == lock.ticket
        item = await attached.aitem()
        item.value = 7
        await item.asave()
    assert plain.get("a").value == 7


def test_the_lease_of_a_detached_lock_ends(memory):
    """The next waiter has the lock then, and the token is refused."""
    bind(memory, Plain, "a")
    with VirtualClock() as clock:
        with Plain.locked("a", settings=FAST) as lock:
            token = lock.detach(lease=300)
        clock.sleep(200)
        with pytest.raises(ItemLocked):
            Plain("a", value=1).save()
        with Plain.locked("a", wait=1000) as later:
            assert later.ticket > lock.ticket
            with pytest.raises(LockLost, match="no longer in the queue"):
                in_thread(Plain.attach(token).acquire)


def test_ttl_spares_a_lock_that_is_detached_for_longer_than_a_day(memory):
    """Whoever tries it has a shorter lease, and does not set the time at which DynamoDB deletes the row before it."""
    memory.bind(Locks)
    patient = LockSettings(lease=100, request_timeout=5, max_lease=timedelta(days=30))
    with VirtualClock():
        with Locks.locked("job", settings=patient) as lock:
            lock.detach(lease=timedelta(days=10))
        [entry] = Locks.lock_state("job").entries
        with pytest.raises(LockTimeout):
            in_thread(Locks.locked("job", settings=patient, wait=1).acquire)
        assert Locks.get("job").expires.timestamp() * 1000 > entry.until_ms


def test_shared_locks_and_permits(memory, plain):
    """They are attached in their mode."""
    memory.bind(Locks)
    readers = [in_thread(plain.locked("a", shared=True).acquire) for _ in range(2)]
    token = readers[0].detach()
    with plain.attach(token) as attached:
        assert [entry.mode for entry in plain.lock_state("a").holders] == ["shared", "shared"]
        with pytest.raises(ConfigurationError, match="held shared here"):
            attached.item.save()
    for reader in readers:
        reader.release()
    one = in_thread(Locks.locked("pool", permits=2).acquire)
    two = in_thread(Locks.locked("pool", permits=2).acquire)
    three = in_thread(Locks.attach(one.detach()).acquire)
    assert {three.ticket, two.ticket} == {entry.ticket for entry in Locks.lock_state("pool").holders}
    for lock in (one, two, three):
        lock.release()


def test_callers_behind_a_lock_that_is_detached(plain):
    """They enter the queue, and wait for whoever attaches it."""
    with ThreadPoolExecutor(3) as pool, plain.locked("a", settings=FAST) as lock:
        works = [pool.submit(lambda: plain.locked("a", settings=FAST).acquire().release()) for _ in range(3)]
        until_queued(plain, "a", 1)
        token = lock.detach()
        until(lambda: len(plain.lock_state("a").entries) == 2, "an entry for them")
        assert not any(work.done() for work in works)
        in_thread(lambda: plain.attach(token).acquire().release())
        for work in works:
            work.result()


async def test_a_task_that_is_cancelled(plain):
    """In `adetach` it gives the lock up, as nobody gets the token. In `attach` it leaves it to the next one."""
    lock = await plain.locked("a").aacquire()
    with cancelling("UpdateItem"), pytest.raises(asyncio.CancelledError):
        await lock.adetach(lease=1000)
    await lock.arelease()
    await asyncio.to_thread(until, lambda: not plain.lock_state("a").entries, "the removal of the entry")

    async with plain.locked("a") as lock:
        token = await lock.adetach()
    with cancelling("UpdateItem"), pytest.raises(asyncio.CancelledError):
        await plain.attach(token).aacquire()
    async with plain.attach(token) as attached:
        assert attached.ticket == lock.ticket


def cancelling(operation: str) -> Any:
    """Cancel the task that calls this, when the next such request has been applied."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    cancel = task.cancel
    return on(operation).after(lambda: loop.call_soon_threadsafe(cancel))


def test_what_blocks_save_or_note_is_not_detached(plain):
    """`edit` saves at its end, and `once` notes the success: of a lock that is detached they could not."""
    with plain.edit("a") as item:
        item.value = 5
        with plain.locked("a") as lock, pytest.raises(ConfigurationError, match="acquired 2 times"):
            lock.detach()
    edit = plain.edit("a")
    with edit as item:
        item.value = 6
        with pytest.raises(ConfigurationError, match="inside of `edit"):
            edit.lock.detach()
    assert plain.get("a").value == 6


def test_an_entry_of_another_hold_is_not_taken_for_the_token(plain):
    """A thread that holds the lock already attaches no token."""
    with plain.locked("a", shared=True) as one:
        token = in_thread(lambda: plain.locked("a", shared=True).acquire().detach())
        with pytest.raises(ConfigurationError, match="by another entry than that of the token"):
            plain.attach(token).acquire()
        other = in_thread(plain.attach(token).acquire)
        assert other.ticket > one.ticket
        other.release()


def written(body: Any) -> str:
    """Return the token with that content."""
    return "lock1." + base64.urlsafe_b64encode(json.dumps(body).encode()).decode()


def test_what_is_attached_is_not_downgraded(plain):
    """A second attach of the token would hold alone, beside the readers."""
    with plain.locked("a", settings=FAST) as lock:
        token = lock.detach()
    with plain.attach(token) as attached:
        with pytest.raises(ConfigurationError, match="Downgrade it before it is detached"):
            attached.downgrade()
        assert attached.is_held
        attached.item.update([plain.value.add(1)])


def test_an_item_without_room(plain):
    """Neither gives the lock up, nor tries again for ever: the error says that the item is full."""
    with plain.locked("a", settings=FAST, owner="x") as lock:
        fill(plain, lock)
        with pytest.raises(ConfigurationError, match="400 KB"):
            lock.detach()
        lock.item.update([plain.by.set("y")])
        token = lock.detach()
    attached = in_thread(plain.attach(token, owner="x", settings=FAST).acquire)
    fill(plain, attached)
    with count_requests() as counted, pytest.raises(ConfigurationError, match="400 KB"):
        in_thread(plain.attach(token, owner="x" * 40, settings=FAST).acquire)
    assert counted.total == 2
    attached.item.update([plain.by.set("z")])
    attached.release()


def fill(model: Any, lock: Any) -> None:
    """Write as much into the item as goes into it."""
    size = step = 2**18
    while step:
        try:
            lock.item.update([model.by.set("y" * size)])
            size += step
        except UpdateError:
            size -= step
        step //= 2


@pytest.mark.parametrize("kind", [BinaryAttribute, NumberAttribute, UTCDateTimeAttribute, OneWayAttribute])
def test_keys(memory, kind):
    """A token names each key that reads back; for another kind `detach` says so, and the lock stays held."""
    key = {BinaryAttribute: b"\x00\xff", NumberAttribute: -0.1, OneWayAttribute: "a"}.get(
        kind, datetime(2026, 1, 1, tzinfo=timezone.utc)
    )
    options = {"legacy_encoding": False} if kind is BinaryAttribute else {}
    model: Any = declare("Keyed", key=kind(hash_key=True, **options), lock=True, numbers="value")
    memory.bind(model)
    model(key).save()
    with model.locked(key, settings=FAST) as lock:
        if kind is OneWayAttribute:
            with pytest.raises(ConfigurationError, match="do not store again what they have read"):
                lock.detach()
            assert lock.is_held
            return
        token = lock.detach()
    with model.attach(token) as attached:
        attached.item.update([model.value.add(1)])
    assert model.get(key).value == 1


def test_an_attach_that_fails_leaves_the_lock(memory):
    """Its item has expired, and the entry stays for whoever attaches the token next."""
    model: Any = declare("Expiring", ExpiringMixin, LockableModel, lock=True, expires=TTLAttribute(null=True))
    memory.bind(model)
    model("a").save()
    with model.locked("a", settings=FAST) as lock:
        lock.item.update([model.expires.set(datetime(2020, 1, 1, tzinfo=timezone.utc))])
        token = lock.detach()
    with pytest.raises(ItemNotFound):
        in_thread(model.attach(token).acquire)
    assert [entry.ticket for entry in model.lock_state("a").entries] == [lock.ticket]


def test_an_attached_lock_is_as_any_other_once_it_is_acquired(plain):
    """If its release is interrupted, a thread removes the entry: nobody else goes on with it."""
    with plain.locked("a", settings=FAST) as lock:
        token = lock.detach()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with on("UpdateItem", nth=2).before(interrupted), pytest.raises(KeyboardInterrupt), plain.attach(token):
        pass  # the first one has attached it
    until(lambda: not plain.lock_state("a").entries, "the removal of the entry")


def test_a_renewal_that_a_detach_refuses_proves_no_loss(plain):
    """The heartbeat may send one before the answer to the detach is here."""
    reasons: list[str] = []
    with plain.locked("a", on_lost=reasons.append) as lock:

        def renew() -> None:
            with pytest.raises(LockLost):
                in_thread(lock.renew)

        with on("UpdateItem").after(renew) as renewed:
            token = lock.detach()
        assert not lock.lost.is_set()
    assert (renewed.hits, reasons) == (1, [])
    in_thread(lambda: plain.attach(token).acquire().release())


def test_what_is_refused(plain):
    lock = plain.locked("a")
    with pytest.raises(ConfigurationError, match="acquire it first"):
        lock.detach()
    with lock:
        with lock, pytest.raises(ConfigurationError, match="acquired 2 times"):
            lock.detach()
        with pytest.raises(ConfigurationError, match="too short"):
            lock.detach(lease=0.0001)
        assert lock.is_held
        token = lock.detach()
        assert not lock.is_held
        for method in (lock.detach, lock.renew, lambda: lock.ensure_remaining(1)):
            with pytest.raises(ConfigurationError, match="was detached"):
                method()
        assert not lock.lost.is_set()
        with pytest.raises(ConfigurationError, match="attach it with the model"):
            Versioned.attach(token)
        body = json.loads(base64.urlsafe_b64decode(token.removeprefix("lock1.") + "=="))
        for wrong in ("", "lock1.", "lock1.bm9uZQ", "lock1.W10", None, 5, token[:-9], "x" + token):
            with pytest.raises(InvalidInput, match="no token of a lock"):
                Plain.attach(wrong)
        for forged in ("", None, 5, []):  # an empty one is that of each entry that was never detached
            body[2] = forged
            with pytest.raises(InvalidInput, match="no token of a lock"):
                Plain.attach(written(body))
        body[2] = "forged"
        with pytest.raises(LockLost):
            in_thread(Plain.attach(written(body)).acquire)
    in_thread(lambda: Plain.attach(token).acquire().release())


def test_a_waiter_cannot_be_taken_for_a_detached_lock(plain):
    """A token that names the entry of a waiter changes nothing."""
    with plain.locked("a", settings=FAST) as lock, ThreadPoolExecutor(1) as pool:
        token = lock.detach()
        waiter = pool.submit(lambda: plain.locked("a", settings=FAST).acquire().release())
        until_queued(plain, "a", 2)
        entry = plain.lock_state("a").entries[1]
        body = json.loads(base64.urlsafe_b64decode(token.removeprefix("lock1.") + "=="))
        body[2:4] = [entry.id, entry.ticket]
        with pytest.raises(LockLost):
            in_thread(plain.attach(written(body)).acquire)
        assert plain.lock_state("a").entries[1].id == entry.id
        in_thread(lambda: plain.attach(token).acquire().release())
        waiter.result()


def test_a_late_copy_of_an_attach_is_refused(plain):
    """Of one that has been fenced meanwhile."""
    with plain.locked("a", settings=FAST) as lock:
        token = lock.detach()
    with on("UpdateItem", times=ALL).delay() as late, pytest.raises(LockTimeout):
        plain.attach(token, settings=FAST, wait=0).acquire()
    twin = in_thread(plain.attach(token, settings=FAST).acquire)
    for arrive in late:
        arrive()
    twin.item.update([plain.value.add(1)])
    twin.release()


def test_a_late_copy_of_an_attach_is_refused_after_another_one(plain):
    """Two processes attach one token at once. A late copy of what the fenced one has sent does not bring it back."""
    with plain.locked("a", settings=FAST) as lock:
        token = lock.detach()
    one, two = (plain.attach(token, settings=FAST) for _ in range(2))
    sent: list[Forward] = []

    def keep(_endpoint: object, _request: object, _operation: str, forward: Forward) -> Answer:
        sent.append(forward)
        return forward()

    def attach_meanwhile() -> None:
        with tapped(keep):
            in_thread(two.acquire)

    with on("UpdateItem").lose_response(attach_meanwhile):
        one.acquire()
    assert len(sent) == 2
    sent[1]()
    one.item.update([plain.value.add(1)])
    with pytest.raises(LockLost):
        two.item.update([plain.value.add(10)])
    one.release()
    assert plain.get("a").value == 1


def test_the_settings_of_an_attached_lock_are_those_of_any_other(memory):
    """Its heartbeat renews it, and tells of a loss; `max_hold` begins again."""
    bind(memory, Plain, "a")
    with VirtualClock() as clock:
        with Plain.locked("a", settings=FAST, max_hold=150) as lock:
            clock.sleep(100)
            token = lock.detach(lease=50)
        reasons: list[str] = []
        attached = Plain.attach(token, lease=30, max_hold=150, on_lost=reasons.append).acquire()
        clock.sleep(100)
        attached.item.update([Plain.value.add(1)])
        clock.sleep(100)
        with pytest.raises(LockLost, match="max_hold"):
            attached.item.update([Plain.value.add(1)])
        assert reasons == ["max_hold"]
        with pytest.raises(LockLost, match="max_hold"):
            attached.release()


def test_once_notes_no_success_without_its_lock(memory):
    memory.bind(Locks)
    with (
        pytest.raises(ConfigurationError, match="acquired or detached"),
        Locks.once("job", period=timedelta(hours=1)) as run,
    ):
        run.lock.detach()
    assert Locks.lock_state("job").entries[0].is_detached


def test_what_is_told(plain):
    """A release that leaves the lock to others says so."""
    with events.subscribe((told := list[events.Event]()).append, of=(events.Released, events.Lost)):
        with plain.locked("a") as lock:
            token = lock.detach()
        with plain.attach(token):
            pass
    first, second = told
    assert isinstance(first, events.Released)
    assert isinstance(second, events.Released)
    assert (first.is_detached, second.is_detached) == (True, False)
    assert first.ticket == second.ticket


def test_ranges_cannot_be_detached(memory):
    memory.bind(Locks, Enforced)
    for lock in (Enforced.locked_range("k", 1, 5), Enforced.locked_range("k", None, None)):
        with lock, pytest.raises(ConfigurationError, match="only a lock of one item"):
            lock.detach()
    item = Enforced("k", 3)
    item.save()
    with Enforced.locked("k", 3) as lock:
        token = lock.detach()
    with Enforced.attach(token) as attached:
        assert attached.item.at == 3


def made_of(*parts: Any, region: Any = None) -> str:
    return "lock1." + base64.urlsafe_b64encode(json.dumps((*parts, region)).encode()).decode().rstrip("=")


@pytest.mark.parametrize("number", ["01", "nan", "NaN", "1e2", "", "1" * 5000, "x", 1, None, {"N": "1"}])
def test_a_forged_key(memory, number):
    """Whatever it is that the attribute makes of it: no request is sent."""
    model: Any = declare("Numbered", key=NumberAttribute(hash_key=True), lock=True)
    memory.bind(model)
    with count_requests() as requests, pytest.raises(InvalidInput, match="the token has"):
        model.attach(made_of(model.Meta.table_name, {"key": {"N": number}}, "e", 1, {}))
    assert requests.total == 0


@pytest.mark.parametrize(
    "text",
    [
        "lock1." + base64.urlsafe_b64encode(b"[" * 100_000).decode(),
        "lock1." + base64.urlsafe_b64encode(b'{"a":' * 100_000).decode(),
        made_of("t", {"key": {"S": "a"}}, "\ud800", 1, {}),
        made_of("t", {"key": {"S": "a"}}, "e" * 300, 1, {}),
        made_of("t", {"key": {"S": "a"}}, "e", 10**39, {}),
        made_of("t", {"key": {"S": "a"}}, "e", -1, {}),
        made_of("t", {"key": {"S": "a"}}, "e", True, {}),
        made_of("t", {"key": {"S": "a"}}, "e", 1, {}, region=[1]),
        made_of("t", {"key": {"S": "a"}}, "e", 1, {}, region="e" * 300),
        "lock1.\ud800",
        None,
        b"lock1.",
        math.nan,
    ],
)
def test_a_forged_token(memory, text):
    """Too deep for the parser, of names and numbers that DynamoDB does not take, and of another kind."""
    memory.bind(Plain)
    with count_requests() as requests, pytest.raises(InvalidInput, match="is no token of a lock"):
        Plain.attach(text)
    assert requests.total == 0
