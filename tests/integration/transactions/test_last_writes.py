"""The commit of a transaction is the last write under its locks: it removes their entries from the queues."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import TransactWrite, atransaction, transaction, transactional
from pynamo_locking._locks import local_queue
from pynamo_locking.events import Lost, Released, TransactionCommitted, TransactionRolledBack, subscribe
from pynamo_locking.exceptions import Conflict, LockLost, OutcomeUnknown, StaleVersion, TransactionConflict
from pynamo_locking.transactions import Transaction
from tests.support import runtime
from tests.support.models import APART, QUICK
from tests.support.parties import held_elsewhere, in_parallel, in_thread, without_pauses
from tests.support.transaction_helpers import WRITES, add_fillers, tx_delete
from tests.support.transaction_models import (
    Purse,
    Robot,
    RowLocks,
    Seat,
    Transactions,
    dying_where,
    stored,
    survive,
)
from tests.support.wire import count_requests, on
from tests.support.workers import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking import LockSettings
    from pynamo_locking_testing import VirtualClock
    from tests.engines.engine import Engine
    from tests.support.wire import Body, Requests

#: In this order the locks are acquired, by one write each that brings the item, and all items are written.
TOGETHER = ["UpdateItem", "UpdateItem", "TransactWriteItems"]


@pytest.fixture(autouse=True)
def _tables(database: Engine) -> None:
    """Store items, of which each has a lock document: the first lock of a row costs a write more."""
    database.bind(Purse, Seat, Robot, RowLocks, Transactions)
    for model, *names in ((Purse, "p0", "p1"), (Seat, "a", "b"), (Robot, "r")):
        for name in names:
            model(name).save()
            with model.locked(name):
                pass


def sent(counted: Requests) -> list[str]:
    """Return what was sent, in that order."""
    return [operation for operation, _ in counted.bodies]


def is_release(body: Body) -> bool:
    return str(body.get("UpdateExpression", "")).startswith("REMOVE #l.#q.#me")


def entries(*names: str, model: Any = Purse) -> list[str]:
    """Return the owners of the entries in the queues of these items."""
    return [entry.owner for name in names for entry in model.lock_state(name).entries]


def change(tx: Transaction, *names: str, model: Any = Purse) -> None:
    for name in names:
        tx.touch(tx.get(model, name, for_update=True))


def is_waiting(settings: LockSettings) -> bool:
    """Tell whether a second caller waits for the lock of the first item: in the queue, or in line in this process."""
    if settings is APART:
        return len(entries("p0")) == 2
    queue = local_queue.local_queues.get(Purse.locked("p0")._handle.target.row.identity)
    return queue is not None and len(queue.waiting) == 1


WAITING = pytest.mark.parametrize("settings", [APART, QUICK], ids=["apart", "in-one-entry"])

# What it costs


@pytest.mark.parametrize("write", WRITES)
def test_two_items_are_given_back_by_their_native_transaction(cheap: Engine, write: Callable[..., None]) -> None:
    """Two grants, which bring the items, and one transaction; a deleted item takes its queue along."""
    free = list[bool]()
    with count_requests() as counted, transaction() as tx:
        for name in ("p0", "p1"):
            write(tx, tx.get(Purse, name, for_update=True))
        tx.after_commit(lambda: free.append(entries("p0", "p1") == []))
    assert sent(counted) == [*TOGETHER, "GetItem", "GetItem"]  # the last two by the callback
    assert free == [True]


@pytest.mark.parametrize("write", WRITES)
def test_one_item_is_given_back_by_its_write(cheap: Engine, write: Callable[..., None]) -> None:
    """As in `edit`."""
    with count_requests() as counted, transaction() as tx:
        write(tx, tx.get(Purse, "p0", for_update=True))
    assert sent(counted) == ["UpdateItem", "DeleteItem" if write is tx_delete else "UpdateItem"]
    assert entries("p0") == []
    assert stored(Purse, "p0") is None or Purse.get("p0").version == 2


@pytest.mark.parametrize("write", WRITES)
def test_a_lock_in_a_row_of_its_own_is_given_back_too(cheap: Engine, write: Callable[..., None]) -> None:
    """The row that is checked loses the entry; it stays, with its tickets, also if the item is deleted."""
    ticket = Robot.lock_state("r").next_ticket
    with count_requests() as counted, transaction() as tx:
        write(tx, tx.get(Robot, "r", for_update=True))
        tx.touch(tx.get(Purse, "p0", for_update=True))
    assert sent(counted) == ["UpdateItem", "GetItem", "UpdateItem", "TransactWriteItems"]
    assert (entries("r", model=Robot), entries("p0")) == ([], [])
    assert Robot.lock_state("r").next_ticket == ticket + 1


@pytest.mark.parametrize("how", ["for_update", "for_share"])
def test_what_is_only_read_is_released_by_itself(cheap: Engine, how: str) -> None:
    """The commit checks it, and a check changes nothing."""
    with count_requests() as counted, transaction() as tx:
        change(tx, "p0")
        tx.get(Purse, "p1", **{how: True})
    assert sent(counted) == [*TOGETHER, "UpdateItem"]
    assert is_release(counted.bodies[-1][1])
    assert entries("p0", "p1") == []


def test_a_long_commit_gives_back_what_its_decision_writes(cheap: Engine, few: None) -> None:
    """Three items. The fourth has an intent: when that was rolled forward, its lock is released by itself."""
    names, left = [f"p{number}" for number in range(4)], list[int]()
    for name in names[2:]:
        Purse(name).save()
    tx = Transaction()
    change(tx, *names)
    add_fillers(tx, "long")
    roll_forward = on("BatchExecuteStatement").before(lambda: left.append(len(entries(*names))))
    with roll_forward, on(where=is_release).watch() as releases:
        tx.commit()
    assert (left, len(releases.bodies)) == ([1], 1)
    assert entries(*names) == []


async def test_tasks_do_the_same(cheap: Engine) -> None:
    with count_requests() as counted:
        async with atransaction() as tx:
            for name in ("p0", "p1"):
                await tx.touch(await tx.get(Purse, name, for_update=True))
    assert sent(counted) == TOGETHER
    assert entries("p0", "p1") == []


def test_a_transaction_that_may_share_its_commit_gives_back_its_own(cheap: Engine) -> None:
    """One that holds locks commits alone."""

    @transactional(combine=True)
    def both(tx: Transaction) -> None:
        change(tx, "p0", "p1")

    with count_requests() as counted:
        both()
    assert sent(counted) == TOGETHER
    assert entries("p0", "p1") == []


def test_a_commit_in_the_middle_of_a_block(cheap: Engine) -> None:
    """From then on the locks are free; the end of the block has nothing left to do."""
    with transaction() as tx:
        change(tx, "p0", "p1")
        with count_requests() as counted:
            tx.commit()
        with held_elsewhere(Purse.locked("p0", wait=0)), count_requests() as after:
            tx.rollback()
    assert (sent(counted), sent(after)) == (["TransactWriteItems"], [])


def test_what_a_savepoint_has_taken_back_is_released_by_itself(cheap: Engine) -> None:
    """The lock stays until the end, and nothing is written under it."""
    with transaction() as tx:
        change(tx, "p0")
        before = tx.savepoint()
        change(tx, "p1")
        before.rollback()
        assert len(entries("p1")) == 1
        with on(where=is_release).watch() as releases:
            tx.commit()
    assert [body["Key"]["purse_id"]["S"] for body in releases.bodies] == ["p1"]
    assert [Purse.get(name).version for name in ("p0", "p1")] == [2, 1]
    assert entries("p0", "p1") == []


# What an outer block needs


@pytest.mark.parametrize("path", ["single", "native", "long"])
@pytest.mark.parametrize("model", [Seat, Robot], ids=["in-the-item", "in-a-row"])
def test_the_lock_of_an_outer_block_stays(cheap: Engine, few: None, model: Any, path: str) -> None:
    """The block goes on to write under it, whether the transaction has asked for the lock or not."""
    name = "a" if model is Seat else "r"
    with model.locked(name, owner="outer") as lock:
        for for_update in (True, False):
            with transaction() as tx:
                tx.touch(tx.get(model, name, for_update=for_update))
                add_fillers(tx, path)
            assert entries(name, model=model) == ["outer"]
            item = model.get(name, consistent_read=True)
            item.save()
        with TransactWrite() as writes:
            writes.save(item)
        assert entries(name, model=model) == ["outer"]
        assert lock.is_held
    assert entries(name, model=model) == []
    assert model.get(name).version == 6


def test_one_of_two_is_needed_outside(cheap: Engine) -> None:
    with Purse.locked("p1", owner="outer") as lock, count_requests() as counted:
        with transaction() as tx:
            change(tx, "p0", "p1")
        assert sent(counted) == ["UpdateItem", "GetItem", "TransactWriteItems"]
        assert (entries("p0", "p1"), lock.is_held) == (["outer"], True)
    assert entries("p1") == []


@WAITING
async def test_a_task_that_acquires_the_lock_during_the_commit_waits_for_its_turn(
    cheap: Engine, settings: LockSettings
) -> None:
    """It has read the item with the lock, and another task commits: that ends what it holds by the transaction."""
    commits, is_inside = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    seen = list[Any]()

    async def read_and_go_on(tx: Any) -> None:
        for name in ("p0", "p1"):
            await tx.touch(await tx.get(Purse, name, for_update=True))
        is_inside.set()
        await commits.wait()
        async with Purse.locked("p0", owner="block", settings=settings) as lock:
            seen.append((entries("p0"), lock.is_held))
            (await lock.aitem()).touch()

    def let_it_acquire() -> None:
        loop.call_soon_threadsafe(commits.set)
        until(lambda: is_waiting(settings), "the task")

    async with atransaction() as tx:
        task = asyncio.create_task(read_and_go_on(tx))
        await is_inside.wait()
        with on("TransactWriteItems").before(let_it_acquire):
            await tx.commit()
        await task
    assert seen == [(["block"], True)]
    assert entries("p0", "p1") == []
    assert [Purse.get(name).version for name in ("p0", "p1")] == [3, 2]


@WAITING
@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("names", [["p0"], ["p0", "p1"]])
async def test_a_task_does_not_acquire_again_what_may_be_gone(
    cheap: Engine, names: list[str], is_applied: bool, settings: LockSettings
) -> None:
    """The commit got no answer, and the task comes before what is held is released: perhaps others hold it by now."""
    goes_on, is_inside = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    seen = list[Any]()

    async def read_and_go_on(tx: Any) -> None:
        for name in names:
            await tx.touch(await tx.get(Purse, name, for_update=True))
        is_inside.set()
        await goes_on.wait()
        async with Purse.locked("p0", owner="block", settings=settings):
            seen.append(entries("p0"))

    def let_it_acquire(_: object) -> None:
        loop.call_soon_threadsafe(goes_on.set)
        until(lambda: seen or ("block" in entries("p0") if settings is APART else is_waiting(settings)), "the task")

    spoil = on(where=is_commit, times=ALL_ATTEMPTS)
    async with atransaction() as tx:
        task = asyncio.create_task(read_and_go_on(tx))
        await is_inside.wait()
        with (
            subscribe(let_it_acquire, of=TransactionRolledBack),
            without_pauses(),
            spoil.lose_response() if is_applied else spoil.lose_request(),
            pytest.raises(OutcomeUnknown),
        ):
            await tx.commit()
        await task
    assert seen == [["block"]]
    assert entries("p0", "p1") == []


class _Meanwhile(runtime.Runtime):
    """Calls something once, as soon as this thread looks at the clock."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        here, real, calls = threading.get_ident(), self.monotonic, [call]

        def monotonic() -> float:
            if threading.get_ident() == here and calls:
                calls.pop()()
            return real()

        self.monotonic = monotonic


def test_a_commit_that_begins_while_the_lock_is_acquired_again(cheap: Engine) -> None:
    """The thread has found that it holds the lock, and another one commits before it has counted that."""
    tx = Transaction()
    change(tx, "p0", "p1")
    is_sent, here, seen = threading.Event(), copy_context(), list[Any]()
    lock = Purse.locked("p0", owner="block", settings=APART)

    def let_it_wait() -> None:
        is_sent.set()
        until(lambda: seen or "block" in entries("p0"), "the block")

    with ThreadPoolExecutor(1) as pool, on("TransactWriteItems").before(let_it_wait):

        def commit() -> None:
            committing.append(pool.submit(here.run, tx.commit))
            is_sent.wait(PATIENCE)

        committing = list[Any]()
        with runtime.installed(_Meanwhile(commit)), lock:
            seen.append(entries("p0"))
        committing[0].result(PATIENCE)
    assert seen == [["block"]]
    assert entries("p0", "p1") == []


# What goes wrong


def test_a_refused_commit_leaves_its_entries_to_be_released(cheap: Engine) -> None:
    """Nothing was written, so nothing was removed with it."""
    with on(where=is_release).watch() as releases, pytest.raises(StaleVersion), transaction() as tx:
        change(tx, "p0", "p1")
        tx.touch(tx.get(Seat, "a"))
        in_thread(Seat.get("a").save)
    assert [body["Key"]["purse_id"]["S"] for body in releases.bodies] == ["p1", "p0"]
    assert entries("p0", "p1") == []
    assert [Purse.get(name).version for name in ("p0", "p1")] == [1, 1]


def test_a_refused_write_of_one_item_too(cheap: Engine) -> None:
    with on(where=is_release).watch() as releases, pytest.raises(Conflict), transaction() as tx:
        tx.save(tx.get(Purse, "p0", for_update=True), Purse.balance == 7)
    assert (len(releases.bodies), entries("p0")) == (1, [])


def test_work_that_was_done_before_releases_its_locks(cheap: Engine) -> None:
    """The idempotency key is stored already, so the transaction writes nothing."""
    for is_repeated in (False, True):
        with count_requests() as counted, transaction(idempotency_key="once") as tx:
            change(tx, "p0", "p1")
        assert tx.is_repeated is is_repeated
        assert len([body for _, body in counted.bodies if is_release(body)]) == 2 * is_repeated
        assert entries("p0", "p1") == []
    assert [Purse.get(name).version for name in ("p0", "p1")] == [2, 2]


@pytest.mark.parametrize(("names", "broken"), [(["p0"], "p0"), (["p0", "p1"], "p0"), (["p0", "p1"], "p1")])
def test_a_lock_that_is_lost_refuses_the_commit(cheap: Engine, names: list[str], broken: str) -> None:
    """One of the entries is gone, so nothing is written, and the other ones are released."""
    tx = Transaction()
    change(tx, *names)
    [entry] = Purse.lock_state(broken).entries
    Purse.break_lock(broken, ticket=entry.ticket)
    with pytest.raises(LockLost):
        tx.commit()
    assert [Purse.get(name).version for name in names] == [1] * len(names)
    assert entries(*names) == []


#: So often a request goes out before its outcome is unknown: botocore's attempts, twice.
ALL_ATTEMPTS = 8


def is_commit(body: Body) -> bool:
    """Whether it writes under a lock: it names the number of its write."""
    return ":write" in str(body)


def next_one(name: str = "p0", settings: LockSettings = APART) -> tuple[list[str], int]:
    """Wait for the lock of an item; return who is in its queue then, and the version under the lock."""
    with Purse.locked(name, owner="next", wait=100, settings=settings) as lock:
        return entries(name), lock.item.version


@pytest.mark.parametrize("names", [["p0"], ["p0", "p1"]])
@pytest.mark.parametrize("is_applied", [True, False])
def test_a_commit_without_an_answer(cheap: Engine, caplog: Any, names: list[str], is_applied: bool) -> None:
    """Whether its entries are gone is unknown. The release finds out, and takes that for no loss; the next one goes on.

    Then the outcome can still be asked for.
    """
    tx = Transaction()
    change(tx, *names)
    spoil = on(where=is_commit, times=ALL_ATTEMPTS)
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING), without_pauses():
        future = pool.submit(next_one)
        until(lambda: len(entries("p0")) == 2, "a waiter")
        with spoil.lose_response() if is_applied else spoil.lose_request(), pytest.raises(OutcomeUnknown) as caught:
            tx.commit()
        assert future.result() == (["next"], 1 + is_applied)
    assert caught.value.resolve() == ("applied" if is_applied else "not applied")
    assert not [record for record in caplog.records if "lost" in record.message]
    assert entries("p0", "p1") == []


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_decision_without_an_answer(cheap: Engine, few: None, is_applied: bool) -> None:
    """The record tells: nothing is left to release; or the transaction is aborted, and each lock is released."""
    tx = Transaction()
    change(tx, "p0", "p1")
    add_fillers(tx, "long")
    spoil = on("TransactWriteItems", where=is_commit, times=ALL_ATTEMPTS)
    aborted = contextlib.nullcontext() if is_applied else pytest.raises(TransactionConflict)
    with ThreadPoolExecutor(1) as pool, without_pauses(), on(where=is_release).watch() as releases:
        future = pool.submit(next_one)
        until(lambda: len(entries("p0")) == 2, "a waiter")
        with spoil.lose_response() if is_applied else spoil.lose_request(), aborted:
            tx.commit()
        assert future.result() == (["next"], 1 + is_applied)
    assert len(releases.bodies) == (1 if is_applied else 3)  # one is that of the waiter
    assert entries("p0", "p1") == []


@pytest.mark.parametrize("names", [["p0"], ["p0", "p1"]])
def test_a_late_copy_of_a_commit_changes_nothing(cheap: Engine, names: list[str]) -> None:
    """Its entries were released after it got no answer, so DynamoDB refuses it."""
    tx = Transaction()
    change(tx, *names)
    with on(where=is_commit, times=ALL_ATTEMPTS).delay() as late, without_pauses(), pytest.raises(OutcomeUnknown):
        tx.commit()
    assert entries("p0", "p1") == []
    with Purse.locked("p0") as lock:
        for arrive in late:
            arrive()
        assert [Purse.get(name).version for name in names] == [1] * len(names)
        assert lock.is_held
    assert entries("p0", "p1") == []


@pytest.mark.parametrize("names", [["p0"], ["p0", "p1"]])
def test_a_lost_answer_is_found_by_the_next_attempt(cheap: Engine, names: list[str]) -> None:
    """The entries are gone, as the commit was to remove them: it was applied. Nothing is left to release."""
    with (
        on(where=is_commit).lose_response(),
        on(where=is_release).watch() as releases,
        without_pauses(),
        transaction() as tx,
    ):
        change(tx, *names)
    assert releases.bodies == [body for body in releases.bodies if is_commit(body)]
    assert [Purse.get(name).version for name in names] == [2] * len(names)
    assert entries("p0", "p1") == []


def test_an_answer_that_the_key_gives(cheap: Engine) -> None:
    """No attempt was answered, and the idempotency key shows that the transaction was committed."""
    spoil = on("TransactWriteItems", times=ALL_ATTEMPTS)
    with (
        spoil.lose_response(),
        on("UpdateItem").watch() as updates,
        without_pauses(),
        transaction(idempotency_key="once") as tx,
    ):
        change(tx, "p0", "p1")
    assert not tx.is_repeated
    assert len(updates.bodies) == 2  # the grants
    assert [Purse.get(name).version for name in ("p0", "p1")] == [2, 2]
    assert entries("p0", "p1") == []


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("names", [["p0"], ["p0", "p1"]])
def test_a_process_that_dies_in_its_commit(cheap: Engine, names: list[str], is_applied: bool) -> None:
    """What DynamoDB has applied has removed the entries; else they are there until their lease ends."""

    def commit() -> None:
        with transaction() as tx:
            change(tx, *names)

    with dying_where(None, lambda _, __, kwargs: is_commit(kwargs), is_answer_lost=is_applied):
        assert not in_thread(lambda: survive(commit))
    assert len(entries("p0", "p1")) == (0 if is_applied else len(names))
    assert [Purse.get(name).version for name in names] == [1 + is_applied] * len(names)


def test_an_instance_that_cannot_take_the_news(cheap: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is committed, and its locks are given back, whatever a method of a model raises then."""

    def fail(_: object) -> None:
        raise ZeroDivisionError

    with on(where=is_release).watch() as releases, pytest.raises(ZeroDivisionError), transaction() as tx:
        change(tx, "p0", "p1")
        monkeypatch.setattr(Purse, "update_local_version_attribute", fail)
        tx.save(tx.get(Purse, "p0"))
    assert [body for body in releases.bodies if not is_commit(body)] == []
    assert [Purse.get(name).version for name in ("p0", "p1")] == [2, 2]
    assert entries("p0", "p1") == []


# Who hears of it


@pytest.mark.parametrize("names", [["p0"], ["p0", "p1"]])
@WAITING
def test_the_next_caller_of_this_process_is_woken(cheap: Engine, names: list[str], settings: LockSettings) -> None:
    """As after a release: it does not wait until it would look, and sees what was committed."""
    lazy = replace(settings, min_poll_interval=500, poll_interval=500, max_poll_interval=500, lease=1000)
    tx = Transaction()
    change(tx, *names)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(next_one, settings=lazy)
        until(lambda: is_waiting(settings), "a waiter")
        tx.commit()
        assert future.result(PATIENCE) == (["next"], 2)
    assert entries("p0", "p1") == []


def test_who_comes_during_the_commit_is_woken(cheap: Engine) -> None:
    """The commit was prepared when nobody waited. Its response has the new version, which is not the whole item."""
    lazy = replace(APART, min_poll_interval=500, poll_interval=500, max_poll_interval=500, lease=1000)
    tx = Transaction(isolation="read_committed")
    tx.save(tx.get(Purse, "p0", for_update=True), add_version_condition=False)
    waiters = list[Any]()
    with ThreadPoolExecutor(1) as pool:

        def wait() -> None:
            waiters.append(pool.submit(next_one, settings=lazy))
            until(lambda: is_waiting(APART), "a waiter")

        with on(where=is_commit).before(wait):
            tx.commit()
        assert waiters[0].result(PATIENCE) == (["next"], 2)
    assert entries("p0") == []


@pytest.mark.parametrize(("names", "units"), [(["p0"], [1]), (["p0", "p1"], [None, None])])
def test_listeners_hear_of_each_release(memory: Engine, names: list[str], units: list[float | None]) -> None:
    """Before they hear of the commit, which tells what a native transaction has consumed."""
    heard: list[Any] = []
    with subscribe(heard.append, of=(Released, TransactionCommitted)), transaction() as tx:
        change(tx, *names)
    *released, committed = heard
    assert [(each.is_confirmed, each.writes, each.consumed_units) for each in released] == [
        (True, 1, each) for each in units
    ]
    assert committed.consumed_units == (1 if names == ["p0"] else 4)


@pytest.mark.parametrize("names", [["p0"], ["p0", "p1"]])
def test_a_renewal_that_finds_the_entry_gone_has_lost_nothing(clock: VirtualClock, names: list[str]) -> None:
    """It comes when DynamoDB has applied the commit, before the answer does."""
    heard: list[Lost] = []
    tx = Transaction()
    change(tx, *names)
    with (
        subscribe(heard.append, of=Lost),
        on(where=is_commit).after(lambda: clock.sleep(30)),
        on("UpdateItem", where=lambda body: ":beat" in str(body)).watch() as renewals,
    ):
        tx.commit()
    assert (len(renewals.bodies) >= len(names), heard) == (True, [])


def test_nothing_renews_what_was_given_back(clock: VirtualClock) -> None:
    """The transaction is still referenced."""
    tx = Transaction()
    change(tx, "p0", "p1")
    tx.commit()
    with count_requests() as counted:
        clock.sleep(1000)
    assert counted.total == 0


def test_callers_of_hot_items_lose_no_update(concurrent_engine: Engine) -> None:
    """Each waits for its turn, and nobody is refused."""

    @transactional(attempts=1)
    def add(tx: Transaction, *names: str) -> None:
        for purse in tx.get_all(Purse, names, for_update=True):
            assert purse is not None
            purse.balance += 1
            tx.save(purse)

    calls = [partial(add, "p0", "p1"), partial(add, "p1"), partial(add, "p1", "p0")]
    in_parallel(*[call for call in calls for _ in range(3)])
    assert [Purse.get(name, consistent_read=True).balance for name in ("p0", "p1")] == [6, 9]
    assert entries("p0", "p1") == []
