"""One rule for every retry: the next attempt holds the locks of what has refused the last one, and reads under them."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import TransactWrite, atransactional, transaction, transactional
from pynamo_locking.exceptions import ItemLocked, StaleVersion
from pynamo_locking_testing import VirtualClock
from tests.support.parties import held_elsewhere, in_parallel, in_thread
from tests.support.transaction_models import Purse, purses
from tests.support.wire import Send, count_requests, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking.transactions import AsyncTransaction, Transaction
    from tests.engines.engine import Engine
    from tests.support.wire import Requests


def documents(*keys: str) -> None:
    """Let items have a lock document: the first lock of an item makes one more request."""
    for key in keys:
        with Purse.locked(key):
            pass


def party_adds(key: str) -> None:
    Purse.get(key, consistent_read=True).update([Purse.balance.add(1)])


def move(tx: Transaction, *keys: str, rival: Callable[[], object] = lambda: None) -> None:
    """Add one to some items, after a rival has done something."""
    items = [tx.get(Purse, key) for key in keys]
    rival()
    for item in items:
        item.balance += 1
        tx.save(item)


def refused_once() -> Callable[[], None]:
    """A transaction of two items, the first of which a rival changes during the first attempt."""
    rivals = [partial(party_adds, "p0")]

    @transactional()
    def run(tx: Transaction) -> None:
        move(tx, "p0", "p1", rival=lambda: in_thread(rivals.pop()) if rivals else None)

    return run


def sent(requests: Requests) -> list[tuple[str, str]]:
    """The requests, each with the key of its item."""
    return [(name, body.get("Key", {}).get("purse_id", {}).get("S", "")) for name, body in requests.bodies]


def test_the_first_attempt_costs_what_it_did(cheap: Engine) -> None:
    """Without contention nothing is locked: two reads, one native transaction of 4 units."""
    purses(2)
    with count_requests() as requests:
        transactional()(move)("p1", "p0")
    assert sent(requests) == [("GetItem", "p1"), ("GetItem", "p0"), ("TransactWriteItems", "")]
    with count_requests() as requests:
        Purse.modify("p0", lambda purse: None)
    assert sent(requests) == [("GetItem", "p0"), ("UpdateItem", "p0")]


@pytest.mark.parametrize("refused_by", [["p0"], ["p1", "p0"]])
def test_the_second_attempt_locks_what_has_refused_the_first(cheap: Engine, refused_by: list[str]) -> None:
    """In one order, whatever the order of the function. The grants bring the items."""
    purses(2)
    documents("p0", "p1")
    requests: list[Any] = []

    @transactional()
    def run(tx: Transaction) -> None:
        requests.append(None)
        rivals = partial(in_thread, lambda: [party_adds(key) for key in refused_by])
        move(tx, "p1", "p0", rival=rivals if len(requests) == 1 else lambda: None)

    with count_requests() as counted:
        run()
    second = sent(counted)[sent(counted).index(("TransactWriteItems", "")) + 1 :]
    grants = [("UpdateItem", key) for key in sorted(refused_by)]
    reads = [("GetItem", key) for key in ("p1", "p0") if key not in refused_by]
    expected = [*grants, *reads, ("TransactWriteItems", "")]
    assert second == expected, "the commit releases the locks"
    assert [Purse.get(key).balance for key in ("p0", "p1")] == [101 + ("p0" in refused_by), 101 + ("p1" in refused_by)]
    assert [Purse.lock_state(key).entries for key in ("p0", "p1")] == [(), ()]


def test_the_locks_of_several_refusals_are_acquired_in_one_order(cheap: Engine) -> None:
    """Whichever item was the first to refuse: two calls cannot wait for each other."""
    purses(2)
    documents("p0", "p1")
    rivals = [partial(party_adds, "p0"), partial(party_adds, "p1")]

    @transactional()
    def run(tx: Transaction) -> None:
        move(tx, "p0", "p1", rival=lambda: in_thread(rivals.pop()) if rivals else None)

    with count_requests() as counted:
        run()
    commits = [i for i, each in enumerate(sent(counted)) if each == ("TransactWriteItems", "")]
    grants = sent(counted)[commits[2] - 2 : commits[2]]
    assert grants == [("UpdateItem", "p0"), ("UpdateItem", "p1")]
    assert [Purse.get(key).balance for key in ("p0", "p1")] == [102, 102]


def test_the_second_attempt_of_a_commit_of_one_item_locks_it(cheap: Engine) -> None:
    """The commit is a single write, also under the lock."""
    purses(1)
    documents("p0")
    rivals = [partial(party_adds, "p0")]

    @transactional()
    def run(tx: Transaction) -> None:
        move(tx, "p0", rival=lambda: in_thread(rivals.pop()) if rivals else None)

    with count_requests() as counted:
        run()
    names = [name for name, _ in sent(counted)]
    assert names == ["GetItem", *["GetItem", "UpdateItem"], "UpdateItem", *["UpdateItem", "UpdateItem"]]
    assert Purse.get("p0").balance == 102
    assert Purse.lock_state("p0").entries == ()


async def test_tasks_do_the_same(cheap: Engine) -> None:
    """They await the lock."""
    purses(2)
    documents("p0")
    rivals = [partial(party_adds, "p0")]

    @atransactional()
    async def run(tx: AsyncTransaction) -> None:
        items = [await tx.get(Purse, key) for key in ("p0", "p1")]
        if rivals:
            in_thread(rivals.pop())
        for item in items:
            item.balance += 1
            await tx.save(item)

    with count_requests() as counted:
        await run()
    second = sent(counted)[sent(counted).index(("TransactWriteItems", "")) + 1 :]
    assert second == [("UpdateItem", "p0"), ("GetItem", "p1"), ("TransactWriteItems", "")]
    assert Purse.get("p0").balance == 102
    assert Purse.lock_state("p0").entries == ()


def test_a_lock_that_was_seen_is_not_written_against(cheap: Engine) -> None:
    """The read shows the holder: the commit, which would be refused, is not sent."""
    purses(2)
    lock = Purse.locked("p0").acquire()
    runs: list[int] = []

    @transactional()
    def run(tx: Transaction) -> None:
        runs.append(requests.by_operation["TransactWriteItems"])
        move(tx, "p0", "p1")
        if len(runs) == 1:
            lock.release()

    with count_requests() as requests:
        in_thread(run)
    assert runs == [0, 0]
    assert Purse.get("p0").balance == 101


@pytest.mark.parametrize("keys", [("p0",), ("p0", "p1")])
def test_wait_is_the_deadline_of_the_call(memory: Engine, keys: tuple[str, ...]) -> None:
    """A lock that is held ends the call when `wait` is over, whatever `attempts` says. The error says what to do."""
    purses(2)
    with VirtualClock() as clock, held_elsewhere(Purse.locked("p0", owner="other", lease=600)):
        with pytest.raises(ItemLocked) as caught:
            transactional(wait=40, attempts=2)(move)(*keys)
        assert 40 <= clock.elapsed < 43
    said = str(caught.value)
    assert said.startswith("transactional() gave up when its `wait` was over (pass a longer one): ")
    assert "/p0 is locked by other" in said
    assert "for_update=True" in said
    assert "edit()" not in said
    assert caught.value.holder == "other"


def test_it_goes_on_when_the_lock_is_free(memory: Engine) -> None:
    """However long that takes, within `wait`."""
    purses(2)
    held = threading.Event()

    def hold() -> None:
        with Purse.locked("p0"):
            held.set()
            clock.sleep(20)

    def run() -> None:
        held.wait()
        transactional(attempts=2)(move)("p0", "p1")
        assert clock.elapsed >= 20

    with VirtualClock() as clock:
        in_parallel(hold, run)
    assert Purse.get("p0").balance == 101


def test_no_pause_passes_the_deadline(memory: Engine) -> None:
    """A caller that may not queue, since it holds a lock, looks for the last time when `wait` is over."""
    purses(3)
    with VirtualClock() as clock, held_elsewhere(Purse.locked("p0", lease=600)), Purse.locked("p2", lease=600):
        begun = clock.elapsed
        with pytest.raises(ItemLocked, match="when its `wait` was over"):
            transactional(wait=40)(move)("p0", "p1")
        assert clock.elapsed - begun == pytest.approx(40)


def test_no_lock_is_acquired_after_the_deadline(memory: Engine) -> None:
    """Nor that of an item that has refused an earlier attempt: the last ones read it, and their commits check it."""
    purses(2)
    documents("p0", "p1")
    rivals = [partial(party_adds, "p1"), partial(party_adds, "p0")]
    locked: list[bool] = []

    @transactional(wait=20)
    def run(tx: Transaction) -> None:
        locked.append(bool(Purse.lock_state("p0").entries))
        if len(locked) == 2:
            clock.sleep(21)
        move(tx, "p0", "p1", rival=lambda: in_thread(rivals.pop()) if rivals else None)

    with VirtualClock() as clock:
        run()
    assert locked == [False, True, False]
    assert Purse.get("p0").balance == 102


def test_attempts_bound_conflicts(memory: Engine) -> None:
    """Of writers that do not lock: each of them refuses an attempt."""
    purses(2)
    runs: list[int] = []

    @transactional(attempts=3, wait=0)
    def run(tx: Transaction) -> None:
        runs.append(1)
        move(tx, "p0", "p1", rival=lambda: in_thread(partial(party_adds, "p0")))

    with VirtualClock(), pytest.raises(StaleVersion, match="after attempt 3 of 3"):
        run()
    assert len(runs) == 3


def test_one_attempt_is_one_run(memory: Engine) -> None:
    """Whatever refuses it: its effects are not to be repeated."""
    purses(1)
    runs: list[int] = []

    @transactional(attempts=1)
    def run(tx: Transaction) -> None:
        runs.append(1)
        move(tx, "p0")

    with held_elsewhere(Purse.locked("p0")), pytest.raises(ItemLocked):
        run()
    assert len(runs) == 1


def test_a_caller_that_holds_a_lock_takes_no_other(cheap: Engine) -> None:
    """The order could be another one, so two callers could wait for each other."""
    purses(3)
    run = refused_once()

    with Purse.locked("p2"), count_requests() as counted:
        run()
    assert counted.by_operation["TransactWriteItems"] == 2
    assert counted.by_operation["UpdateItem"] == 1, "that of the rival"


def test_a_call_that_blocks_an_event_loop_takes_no_lock(cheap: Engine) -> None:
    """Those before it in the queue may be tasks of that loop."""
    purses(2)
    run = refused_once()

    async def blocked() -> None:
        run()

    with count_requests() as counted:
        asyncio.run(blocked())
    assert counted.by_operation["UpdateItem"] == 1, "that of the rival"


def test_the_error_of_a_transaction_names_for_update(cheap: Engine) -> None:
    """Outside of one it names what a single writer can do."""
    purses(2)
    with Purse.locked("p0"):
        with pytest.raises(ItemLocked, match="for_update=True"):
            in_thread(partial(in_block, "p0", "p1"))
        with pytest.raises(ItemLocked, match=r"locked\(\) or edit\(\)"):
            in_thread(partial(write_together, "p0", "p1"))


def in_block(*keys: str) -> None:
    with transaction() as tx:
        move(tx, *keys)


def write_together(*keys: str) -> None:
    with TransactWrite(connection=Purse._get_connection().connection) as write:
        for key in keys:
            write.save(Purse.get(key))


def test_callers_of_hot_items_lose_no_update(concurrent_engine: Engine) -> None:
    """Threads that want the same two items, in both orders, with an `edit` in between."""
    purses(2)
    both = transactional(attempts=50)(move)

    def edit() -> None:
        with Purse.edit("p0") as purse:
            purse.balance += 1

    works: list[Callable[[], object]] = [partial(both, "p0", "p1"), partial(both, "p1", "p0"), edit]
    works += [lambda: Purse.modify("p1", add)]
    in_parallel(*works * 3)
    assert [Purse.get(key, consistent_read=True).balance for key in ("p0", "p1")] == [109, 109]
    assert [Purse.lock_state(key).entries for key in ("p0", "p1")] == [(), ()]


def add(purse: Any) -> None:
    purse.balance += 1


def test_without_the_lock_it_reads_again(memory: Engine) -> None:
    """A retry that has waited in vain does not go on with what came with the refusal, which is old by then."""
    purses(2)
    documents("p0")
    seen: list[int] = []
    refused, held = threading.Event(), threading.Event()

    def hold() -> None:
        assert refused.wait(10)
        with Purse.locked("p0"):
            held.set()
            clock.sleep(10)
            party_adds("p0")
            clock.sleep(20.5)  # together more than half of `wait`

    @transactional(attempts=2, wait=60)
    def run(tx: Transaction) -> None:
        items = [tx.get(Purse, key) for key in ("p0", "p1")]
        seen.append(items[0].balance)
        if len(seen) == 1:
            in_thread(partial(party_adds, "p0"))
        elif clock.elapsed < 31:
            clock.sleep(2)  # until the lock is free
        for item in items:
            item.balance += 1
            tx.save(item)

    def let_hold(send: Send, operation: str, kwargs: dict[str, Any]) -> Any:
        try:
            return send()
        finally:
            if operation == "TransactWriteItems" and not refused.is_set():
                refused.set()
                held.wait()

    with VirtualClock() as clock, intercepted(let_hold):
        in_parallel(hold, run)
    assert seen == [100, 102]
    assert Purse.get("p0").balance == 103


def test_without_time_it_does_not_hurry(memory: Engine) -> None:
    """With `wait=0` no lock is acquired, so a second refusal by another item is followed by a pause."""
    purses(2)
    rivals = [partial(party_adds, "p1"), partial(party_adds, "p0")]

    @transactional(wait=0)
    def run(tx: Transaction) -> None:
        move(tx, "p0", "p1", rival=lambda: in_thread(rivals.pop()) if rivals else None)

    with VirtualClock() as clock:
        run()
        assert clock.elapsed > 0
    assert [Purse.get(key).balance for key in ("p0", "p1")] == [102, 102]
