"""Locks that a transaction takes with what it reads: alone or among readers, also of items that do not exist."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import atransaction, atransactional, transaction, transactional
from pynamo_locking.exceptions import ConfigurationError, Conflict, ItemLocked, LockLost, LockTimeout, StaleVersion
from pynamo_locking.transactions import AsyncTransaction, Transaction
from pynamo_locking_testing import VirtualClock
from tests.support.deeds import dying_at
from tests.support.models import APART
from tests.support.parties import abandoned, in_parallel, in_thread
from tests.support.transaction_helpers import add_fillers
from tests.support.transaction_models import (
    Purse,
    Robot,
    RowLocks,
    Seat,
    Visit,
    locks_of_names,
    make_long_from,
    purses,
    rows_of,
    stored,
    survive,
)
from tests.support.wire import Send, count_requests, intercepted
from tests.support.workers import until

if TYPE_CHECKING:
    from tests.engines.engine import Engine

HOMES = pytest.mark.parametrize("model", [Seat, Robot], ids=["in-the-item", "in-a-row"])


@pytest.fixture(autouse=True)
def _tables(database: Engine) -> None:
    database.bind(Seat, Robot, RowLocks)


# Shared with other readers


@HOMES
def test_readers_share_an_item_and_keep_writers_out(engine: Engine, model: type[Any], path: str) -> None:
    """Two transactions read with for_share at once; who wants the item alone waits until both are over."""
    model("a").save()
    with transaction() as tx:
        assert tx.get(model, "a", for_share=True) is tx.get_all(model, ["a"], for_share=True)[0]

        def read_too() -> int:
            with transaction() as other:
                other.get(model, "a", for_share=True)
                return len(model.lock_state("a").holders)

        assert in_thread(read_too) == 2
        with pytest.raises(LockTimeout):
            in_thread(lambda: Transaction(wait=0).get(model, "a", for_update=True))
        add_fillers(tx, path)
    assert model.lock_state("a").entries == ()


def test_a_writer_without_a_lock_is_refused_while_readers_share(cheap: Engine) -> None:
    """The lock is in the item, so DynamoDB refuses its writes, those of other transactions too."""
    Seat("a", users="x").save()
    with transaction() as tx:
        tx.get(Seat, "a", for_share=True)
        with pytest.raises(ItemLocked):
            in_thread(Seat.get("a").save)

        def write() -> None:
            with transaction() as other:
                other.touch(other.get(Seat, "a"))

        with pytest.raises(ItemLocked):
            in_thread(write)


@HOMES
@pytest.mark.parametrize("does", ["save", "update", "delete", "touch"])
def test_there_is_no_upgrade(model: type[Any], does: str) -> None:
    """Who shares an item and wants to write it is refused at once, whether others share it or not."""
    model("a").save()
    with transaction() as tx:
        item = tx.get(model, "a", for_share=True)
        for refused in (item, model("a")):
            arguments = [[model.version.set(7)]] if does == "update" else []
            with count_requests() as counted, pytest.raises(ConfigurationError, match=r"no upgrade.*for_update=True"):
                getattr(tx, does)(refused, *arguments)
            assert counted.total == 0
        with count_requests() as counted, pytest.raises(ConfigurationError, match="not upgraded"):
            tx.get(model, "a", for_update=True)
        assert counted.total == 0
        tx.check(item)
    assert model.get("a").version == 1


@HOMES
def test_who_has_an_item_alone_shares_it_for_nothing(model: type[Any]) -> None:
    """The other way round costs no request, and leaves the right to write."""
    model("a").save()
    with transaction() as tx:
        item = tx.get(model, "a", for_update=True)
        with count_requests() as counted:
            assert tx.get(model, "a", for_share=True) is item
        assert counted.total == 0
        tx.touch(item)
    with model.locked("a"), transaction() as tx:
        tx.touch(tx.get(model, "a", for_share=True))
    assert model.get("a").version == 3
    with model.locked("a", shared=True), transaction() as tx, pytest.raises(ConfigurationError, match="not upgraded"):
        tx.get(model, "a", for_update=True)


@HOMES
@pytest.mark.parametrize("exists", [True, False])
def test_a_write_before_for_share_is_refused_too(model: type[Any], exists: bool) -> None:
    """It would be written under a shared lock, of the item or of its name."""
    if exists:
        model("a").save()
    with pytest.raises(ConfigurationError, match="no upgrade"), transaction() as tx:
        tx.save(model.get("a") if exists else model("a"))
        tx.get(model, "a", for_share=True)
    assert model.lock_state("a").entries == state_of_absent(model).entries == ()
    assert [item.version for item in model.scan()] == [1] * exists


def test_what_is_asked_for_with_for_share_is_checked_under_a_lock_alone_too() -> None:
    """The transaction, or its caller, has the item alone already; a lock that is lost protects nothing."""
    for key in ("own", "outer"):
        Seat(key).save()
        tx = Transaction(isolation="read_committed")
        lock = Seat.locked(key)
        if key == "own":
            tx.get(Seat, key, for_update=True)
        else:
            lock.acquire()
        tx.get(Seat, key, for_share=True)
        [entry] = Seat.lock_state(key).entries
        Seat.break_lock(key, ticket=entry.ticket)
        in_thread(Seat.get(key).save)
        tx.save(Purse(key))
        with pytest.raises(StaleVersion):
            tx.commit()
        if key == "outer":
            with pytest.raises(LockLost):
                lock.release()
    assert rows_of(Purse) == []


def test_both_at_once_are_refused() -> None:
    """No request tells which of the two was meant."""
    with transaction() as tx, count_requests() as counted:
        for read in (tx.get, tx.get_or_none, lambda model, key, **how: tx.get_all(model, [key], **how)):
            with pytest.raises(ConfigurationError, match="exclude each other"):
                read(Seat, "a", for_update=True, for_share=True)
    assert counted.total == 0


def break_and_write() -> None:
    for entry in Seat.lock_state("a").entries:
        Seat.break_lock("a", ticket=entry.ticket)
    in_thread(Seat.get("a").save)


@pytest.mark.parametrize("isolation", ["serializable", "snapshot", "read_committed"])
def test_what_is_shared_is_checked_at_the_commit(cheap: Engine, isolation: str) -> None:
    """Under every isolation: a lock can be lost, and a writer that comes then is noticed."""
    Seat("a").save()
    tx = Transaction(isolation=isolation)
    tx.get(Seat, "a", for_share=True)
    break_and_write()
    if isolation != "snapshot":
        tx.save(Purse("rests on it"))
    with pytest.raises(StaleVersion):
        tx.commit()
    assert rows_of(Purse) == []


@pytest.mark.parametrize("before", ["nothing", "for_update"])
async def test_what_a_task_shares_is_checked_at_the_commit_too(before: str) -> None:
    """Its locks are awaited, and its reads take place in a thread."""
    Seat("a").save()

    with pytest.raises(StaleVersion):
        async with atransaction(isolation="read_committed") as tx:
            if before != "nothing":
                await tx.get(Seat, "a", for_update=True)
            await tx.get(Seat, "a", for_share=True)
            break_and_write()
            await tx.save(Purse("rests on it"))


# Items that do not exist


@HOMES
@pytest.mark.parametrize("end", ["commit", "rollback", "outside"])
def test_two_creators_of_an_absent_item_queue(
    engine: Engine, model: type[Any], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one waits for the end of the first, and then sees what is there: nothing, or an item that it locks.

    A plain save does not wait for the lock of a name.
    """
    monkeypatch.setattr(model.Meta, "lock_settings", APART)

    def second() -> tuple[Any, int]:
        with transaction(wait=20) as other:
            found = other.get_or_none(model, "a", for_update=True)
            holders = len(model.lock_state("a").holders)
            other.save(found or model("a"))
        return found, holders

    with ThreadPoolExecutor(1) as pool, transaction() as tx:
        assert tx.get_or_none(model, "a", for_update=True) is None
        future = pool.submit(second)
        until(lambda: len(state_of_absent(model).entries) == 2, "the second one")
        assert stored(model, "a") is None
        if end == "commit":
            tx.save(model("a"))
        elif end == "outside":
            in_thread(model("a").save)
        if end != "commit":
            tx.rollback()
    found, holders = future.result()
    assert (found is None) is (end == "rollback")
    assert holders == (0 if end == "rollback" and model is Seat else 1)
    assert model.get("a", consistent_read=True).version == (1 if end == "rollback" else 2)
    assert model.lock_state("a").entries == ()
    assert locks_of_names() == []


def state_of_absent(model: type[Any]) -> Any:
    """The queue of the item's name."""
    return model.lock_state("a") if model is Robot else RowLocks.lock_state(f"{Seat.Meta.table_name}/a")


@HOMES
def test_readers_share_that_an_item_is_absent(cheap: Engine, model: type[Any]) -> None:
    """Two may rely on it at once; who wants to create it waits, and neither of them may do it."""
    other = Transaction()
    with transaction() as tx:
        assert tx.get_or_none(model, "a", for_share=True) is None
        assert in_thread(lambda: other.get_all(model, ["a"], for_share=True)) == [None]
        with pytest.raises(LockTimeout):
            in_thread(lambda: Transaction(wait=0).get_or_none(model, "a", for_update=True))
        with pytest.raises(ConfigurationError, match="no upgrade"):
            tx.save(model("a"))
        with pytest.raises(ConfigurationError, match="not upgraded"):
            tx.get_or_none(model, "a", for_update=True)
    in_thread(other.rollback)


def test_who_waits_for_an_item_that_is_deleted_gets_its_name(cheap: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is deleted with the item; the waiter then has the absent item alone, and may create it."""
    monkeypatch.setattr(Seat.Meta, "lock_settings", APART)
    Seat("a", users="old").save()

    def second() -> tuple[Any, int]:
        with transaction(wait=20) as other:
            found = other.get_or_none(Seat, "a", for_update=True)
            holders = len(state_of_absent(Seat).holders)
            other.save(Seat("a", users="new"))
        return found, holders

    with ThreadPoolExecutor(1) as pool, transaction() as tx:
        tx.delete(tx.get(Seat, "a", for_update=True))
        future = pool.submit(second)
        until(lambda: len(Seat.lock_state("a").entries) == 2, "the waiter")
    assert future.result() == (None, 1)
    assert Seat.get("a", consistent_read=True).users == "new"
    assert locks_of_names() == []


def test_an_expired_item_is_locked_by_its_name(memory: Engine) -> None:
    """DynamoDB has not removed it yet. The way into its queue and out again is paid twice, and leaves nothing."""
    memory.bind(Visit)
    Visit("a", expires_at=datetime.now(timezone.utc) - timedelta(minutes=1)).save()
    tx = Transaction()
    assert tx.get_or_none(Visit, "a", for_update=True) is None
    with pytest.raises(LockTimeout):
        in_thread(lambda: Transaction(wait=0).get_or_none(Visit, "a", for_share=True))
    tx.rollback()
    tx = Transaction()
    with count_requests() as counted:
        assert tx.get_or_none(Visit, "a", for_update=True) is None
        tx.rollback()
    assert counted.by_operation == {"UpdateItem": 2 + 4, "GetItem": 1}
    with transaction() as tx:
        assert tx.get_or_none(Visit, "a", for_update=True) is None
        tx.save(Visit("a"))
    assert Visit.get("a").version == 1
    assert locks_of_names() == []


def test_many_creators_make_one_item(concurrent_engine: Engine) -> None:
    """Each adds its name to what the one before it has left, and none is refused."""
    attempts = list[str]()

    @transactional()
    def join(tx: Transaction, name: str) -> None:
        attempts.append(name)
        seat = tx.get_or_none(Seat, "a", for_update=True) or Seat("a", users="")
        seat.users += name
        tx.save(seat)

    in_parallel(*[partial(join, name) for name in "abcdef"])
    assert sorted(Seat.get("a", consistent_read=True).users) == sorted(attempts) == list("abcdef")


def test_nothing_is_left_of_an_item_that_was_not_created(cheap: Engine, path: str) -> None:
    """After a rollback, an error and a refused commit; and its name is free."""
    purses(1)
    for is_refused in (False, True):
        with pytest.raises(StaleVersion if is_refused else ZeroDivisionError), transaction() as tx:
            tx.touch(tx.get(Purse, "p0"))
            if tx.get_or_none(Seat, "a", for_update=True) is None:
                tx.save(Seat("a"))
            add_fillers(tx, path)
            if not is_refused:
                raise ZeroDivisionError
            in_thread(Purse.get("p0").save)
        assert rows_of(Seat) == []
        assert locks_of_names() == []


def test_the_name_of_a_dead_creator_is_free_after_its_lease() -> None:
    """Its item was never written, so there is nothing to sweep: the next creator evicts its entry."""
    with VirtualClock() as clock:
        abandoned(RowLocks.locked(f"{Seat.Meta.table_name}/a", lease=8))
        with transaction(wait=30) as tx:
            assert tx.get_or_none(Seat, "a", for_update=True) is None
            assert clock.elapsed >= 8
            tx.save(Seat("a"))
    assert Seat.get("a").version == 1
    assert locks_of_names() == []


def test_what_cannot_be_locked_is_refused() -> None:
    """The lock of a purse would be in the purse, and no table is named for its name."""
    purses(1)
    for how in ("for_update", "for_share"):
        with transaction() as tx:
            for read in (
                lambda: tx.get_or_none(Purse, "none", **{how: True}),  # noqa: B023
                lambda: tx.get_all(Purse, ["none", "p0"], **{how: True}),  # noqa: B023
            ):
                with pytest.raises(ConfigurationError, match=rf"{how}=True cannot lock it.*Meta\.lock_table of Purse"):
                    read()
            with pytest.raises(Purse.DoesNotExist):
                tx.get(Purse, "none", **{how: True})
    with transaction() as tx:
        tx.delete(tx.get(Purse, "p0", for_update=True))
        assert tx.get_or_none(Purse, "p0", for_update=True) is None
    assert rows_of(Purse) == []


# Against many small transactions


def add_one() -> None:
    with transaction(wait=0) as tx:
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
        add_fillers(tx, "native")


@pytest.mark.parametrize("locked", ["nothing", "p0", "p1", "outside"])
def test_a_long_transaction_against_a_storm(clock: VirtualClock, few: None, locked: str) -> None:
    """Another party writes one of its items before each of its requests: the second attempt locks that item.

    Not if the caller locks other items: the order could be another one.
    """
    purses(6, note="larger than p0, which gets an intent, unless it is locked")
    Purse("p0", balance=100).save(add_version_condition=False)
    told, busy = list[str](), list[bool]()

    def answer(send: Send, _: str, __: Any) -> Any:
        if not busy:
            busy.append(True)
            try:
                in_thread(add_one)
                told.append("added")
            except Conflict as conflict:
                told.append("locked" if isinstance(conflict, ItemLocked) else "refused")
            finally:
                busy.clear()
        return send()

    @transactional(workers=1)
    def add_to_all(tx: Transaction) -> None:
        for purse in [tx.get(Purse, f"p{i}", for_update=locked == f"p{i}") for i in range(6)]:
            tx.update(purse, [Purse.balance.add(1000)])

    wins = locked in ("nothing", "p0")
    outer, expected = nullcontext(), nullcontext() if wins else pytest.raises(StaleVersion, match="10")
    if locked == "outside":
        Seat("outside").save()
        outer = Seat.locked("outside")
    with outer, intercepted(answer), expected:
        add_to_all()
    assert stored(Purse, "p0")["balance"]["N"] == str(100 + told.count("added") + 1000 * wins)
    assert stored(Purse, "p5")["balance"]["N"] == str(100 + 1000 * wins)
    assert wins is ("locked" in told)
    assert Purse.lock_state("p0").entries == ()


class Bumps:
    """Adds 1000 to six purses; before the commit of its first attempt another party writes one of them."""

    def __init__(self) -> None:
        self.runs = 0

    def note(self) -> None:
        """Note an attempt: the second one holds the lock, and loses it."""
        self.runs += 1
        holders = Purse.lock_state("p0").holders
        assert [(each.lease, each.owner) for each in holders] == [(7.0, "mover")] * (self.runs > 1)
        if self.runs == 2:
            Purse.break_lock("p0", ticket=holders[0].ticket)
        if self.runs < 3:
            in_thread(add_one)

    def check(self) -> None:
        """Check that the third attempt was committed, and that nothing is locked."""
        assert self.runs == 3
        assert stored(Purse, "p0")["balance"]["N"] == "1102"
        assert Purse.lock_state("p0").entries == ()


def test_a_lock_that_only_helps_the_retry_may_be_lost(cheap: Engine, few: None) -> None:
    """It has the lease and the owner of the transaction. If it is lost, there is another attempt."""
    purses(6)
    bumps = Bumps()
    released = Purse.locked("p5").acquire()
    in_thread(released.release)  # this context has not noticed it

    @transactional(lease=7, owner="mover")
    def add_to_all(tx: Transaction) -> None:
        for purse in tx.get_all(Purse, [f"p{i}" for i in range(6)]):
            assert purse is not None
            tx.update(purse, [Purse.balance.add(1000)])
        bumps.note()

    add_to_all()
    bumps.check()


async def test_a_task_that_retries_a_long_transaction_waits_in_the_queue_too(cheap: Engine, few: None) -> None:
    """It awaits the locks."""
    purses(6)
    bumps = Bumps()

    @atransactional(lease=7, owner="mover")
    async def add_to_all(tx: AsyncTransaction) -> None:
        for purse in await tx.get_all(Purse, [f"p{i}" for i in range(6)]):
            assert purse is not None
            await tx.update(purse, [Purse.balance.add(1000)])
        await asyncio.to_thread(bumps.note)

    await add_to_all()
    bumps.check()


def test_a_long_transaction_that_saw_a_lock_only_reads(cheap: Engine, few: None) -> None:
    """Its commit would be in vain. What is only read may be locked."""
    purses(7)
    requests: list[dict[str, int]] = []

    @transactional(wait=5)
    def add_to_all(tx: Transaction, *keys: str) -> None:
        requests.append(dict(counted.by_operation))
        for key in keys:
            tx.get(Purse, key)
        for i in range(6):
            tx.update(tx.get(Purse, f"p{i}"), [Purse.balance.add(1000)])

    with VirtualClock(), Purse.locked("p0"), count_requests() as counted, pytest.raises(ItemLocked):
        in_thread(add_to_all)
    assert requests[0] == {}
    assert requests[1] == {"GetItem": 6}
    with Purse.locked("p6"):
        in_thread(lambda: add_to_all("p6"))
    assert stored(Purse, "p5")["balance"]["N"] == "1100"


def test_the_last_attempt_of_a_long_transaction_tries_to_commit(cheap: Engine, few: None) -> None:
    """Although it has seen a lock, which may be free by then."""
    purses(6)
    lock = Purse.locked("p0").acquire()

    @transactional(attempts=1)
    def add_to_all(tx: Transaction) -> None:
        for i in range(6):
            tx.update(tx.get(Purse, f"p{i}"), [Purse.balance.add(1000)])
        lock.release()

    in_thread(add_to_all)
    assert stored(Purse, "p0")["balance"]["N"] == "1100"


def test_a_loss_of_another_lock_ends_the_retries(cheap: Engine, few: None) -> None:
    """Only a lock that helps the retry may be lost."""
    purses(6)
    runs: list[bool] = []  # and whether the lock of the contended item was held

    @transactional(attempts=5)
    def add_to_all(tx: Transaction) -> None:
        for i in range(6):
            tx.update(tx.get(Purse, f"p{i}"), [Purse.balance.add(1000)])
        runs.append(Purse.lock_state("p0").holders != ())
        if len(runs) == 2:
            raise LockLost("of the function", reason="evicted", ticket=1)
        in_thread(add_one)

    with pytest.raises(LockLost, match="of the function"):
        add_to_all()
    assert runs == [False, True]


def test_a_retry_goes_without_a_lock_that_is_not_free_in_time(clock: VirtualClock, few: None) -> None:
    """It leaves half of the time to the attempt. The error of the last one says who has the lock."""
    purses(6)
    began: list[float] = []

    @transactional(attempts=3, wait=5)
    def add_to_all(tx: Transaction) -> None:
        began.append(clock.elapsed)
        for i in range(6):
            tx.update(tx.get(Purse, f"p{i}"), [Purse.balance.add(1000)])

    with Purse.locked("p0", owner="someone"), pytest.raises(ItemLocked, match="when its `wait` was over") as caught:
        in_thread(add_to_all)
    assert caught.value.holder == "someone"
    assert 2 < began[1] - began[0] < 4
    assert [each.owner for each in Purse.lock_state("p0").entries] == []


# Costs


@pytest.mark.parametrize(
    ("model", "exists", "expected"),
    [(Seat, True, (2, 0)), (Robot, True, (2, 1)), (Robot, False, (2, 1)), (Seat, False, (4, 1))],
)
@pytest.mark.parametrize("how", ["for_update", "for_share"])
def test_costs(model: type[Any], how: str, exists: bool, expected: tuple[int, int]) -> None:
    """Writes and reads of one item: to enter the queue and to leave it; 2 refused ones of an absent item.

    The grant of a lock in the item brings the item.
    """
    if exists:
        model("a").save()

    def read() -> None:
        tx = Transaction()
        tx.get_or_none(model, "a", **{how: True})
        tx.get_or_none(model, "a", **{how: True})
        tx.rollback()

    read()  # the first lock of a row makes its document as well
    with count_requests() as counted:
        read()
    assert (counted.by_operation["UpdateItem"], counted.by_operation["GetItem"]) == expected
    assert counted.total == sum(expected)


# Under a lock that was detached


@pytest.mark.waits
@pytest.mark.parametrize("is_decided", [False, True])
def test_an_attach_waits_for_the_commit_of_the_step_before(
    cheap: Engine, monkeypatch: pytest.MonkeyPatch, is_decided: bool
) -> None:
    """A step dies in its commit. Whoever attaches its token reads what has come of that, and may write."""
    token, name = left_by_a_step(monkeypatch, is_answer_lost=is_decided)
    with Seat.attach(token) as lock:
        assert lock.item.users == ("step" if is_decided else "nobody")
        lock.item.update([Seat.users.set("next")])
    assert Seat.get(name).users == "next"


def left_by_a_step(monkeypatch: pytest.MonkeyPatch, *, is_answer_lost: bool = False) -> tuple[str, str]:
    """Let a process that has attached locks die in its commit; return a token, and its item, which has an intent."""
    make_long_from(monkeypatch)
    tokens, held = dict[str, str](), []
    for name in "abcdef":
        Seat(name, users="nobody").save()
        tokens[name] = in_thread(lambda: Seat.locked(name).acquire().detach())  # noqa: B023

    def step() -> None:
        held.extend(Seat.attach(token, heartbeat=False).acquire() for token in tokens.values())
        with transaction(lease=3) as tx:
            for name in tokens:
                tx.update(tx.get(Seat, name), [Seat.users.set("step")])
            add_fillers(tx, "long")

    with dying_at(monkeypatch, "decision", is_answer_lost=is_answer_lost):
        in_thread(lambda: survive(step))
    name = next(name for name in tokens if Seat.lock_state(name).intent is not None)
    return tokens[name], name


@pytest.mark.waits
def test_the_later_of_two_attaches_has_the_lock(cheap: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wait for the transaction of the step before, and the earlier one does not take the entry back."""
    token, name = left_by_a_step(monkeypatch)

    def attach(owner: str) -> Any:
        return Seat.attach(token, owner=owner).acquire()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(attach, "first")
        until(lambda: Seat.lock_state(name).entries[0].owner == "first", "the first attach")
        second = pool.submit(attach, "second")
        with pytest.raises(LockLost, match="attached by another process"):
            first.result()
        lock = second.result()
    lock.item.update([Seat.users.set("next")])
    lock.release()
