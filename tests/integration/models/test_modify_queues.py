"""`modify` of a model with a `LockAttribute`: after a refusal it queues for the item's lock, and reads under it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import VersionAttribute, VersionedMixin
from pynamo_locking.exceptions import Conflict, ItemLocked, ItemNotFound, LockLost, LockTimeout, StaleVersion
from pynamo_locking_testing import VirtualClock
from tests.support.interval_models import Lease, SlotLocks, SlotTransactions
from tests.support.models import declare
from tests.support.parties import held_elsewhere, in_parallel, in_thread
from tests.support.wire import count_requests
from tests.support.workers import until_in_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

Ledger: Any = declare("Ledger", hash_key="pk", lock=True, version=True, numbers="n")


class Own(Ledger):  # type: ignore[misc]
    """A model with a save of its own."""

    class Meta(Ledger.Meta):  # type: ignore[misc]
        table_name = "own"

    saves = 0

    def save(self, *args: Any, **options: Any) -> Any:
        """Count the saves."""
        type(self).saves += 1
        return super().save(*args, **options)


@pytest.fixture(autouse=True)
def _tables(cheap: Engine) -> None:
    cheap.bind(Ledger, Own)
    for model in (Ledger, Own):
        model("a").save()
        with model.locked("a"):  # so that it has a lock document
            pass


def add_one(item: Any) -> None:
    item.n += 1


def party_adds(model: Any = Ledger) -> None:
    model.get("a", consistent_read=True).update([model.n.add(10)])


def after(*rivals: Callable[[], object]) -> Callable[[Any], None]:
    """A change before which rivals write, one in each attempt."""
    left = list(rivals)

    def change(item: Any) -> None:
        if left:
            in_thread(left.pop(0))
        add_one(item)

    return change


def sent(change: Callable[[], Any]) -> list[str]:
    with count_requests() as counted:
        change()
    return [operation for operation, _ in counted.bodies]


def test_the_second_attempt_is_an_edit() -> None:
    """A grant that brings the item, and a save that gives the lock back."""
    operations = sent(lambda: Ledger.modify("a", after(party_adds)))
    assert operations == ["GetItem", *["GetItem", "UpdateItem"], "UpdateItem", "UpdateItem", "UpdateItem"]
    assert Ledger.get("a").n == 11
    assert Ledger.lock_state("a").entries == ()


def test_a_task_does_the_same() -> None:
    """It awaits the lock, and the function is called in a thread."""
    operations = sent(lambda: asyncio.run(Ledger.amodify("a", after(party_adds))))
    assert operations == ["GetItem", *["GetItem", "UpdateItem"], "UpdateItem", "UpdateItem", "UpdateItem"]
    assert Ledger.get("a").n == 11
    assert Ledger.lock_state("a").entries == ()


def test_a_model_that_overrides_save_takes_no_lock() -> None:
    """The release could not save it."""
    Own.saves = 0
    operations = sent(lambda: Own.modify("a", after(partial(party_adds, Own))))
    assert operations == ["GetItem", *["GetItem", "UpdateItem"], "UpdateItem", "UpdateItem"]
    assert Own.saves == 2
    assert Own.get("a").n == 11
    assert Own.lock_state("a").entries == ()


def test_an_interval_can_be_changed(cheap: Engine) -> None:
    """Its save compares it with other rows, so the attempts take no lock."""
    cheap.bind(Lease, SlotLocks, SlotTransactions)
    Lease("o", "a", after="b").save()

    def party() -> None:
        Lease.get("o", "a", consistent_read=True).touch()

    def extend(lease: Lease) -> None:
        if not rivals:
            rivals.append(1)
            in_thread(party)
        lease.after = "c"

    rivals: list[int] = []
    assert Lease.modify("o", "a", change=extend).after == "c"
    assert Lease.get("o", "a").after == "c"


def test_the_item_can_be_saved_again() -> None:
    """It was read under a lock that is over."""
    item = Ledger.modify("a", after(party_adds))
    add_one(item)
    item.save()
    assert Ledger.get("a").n == 12


def test_a_call_that_blocks_an_event_loop_takes_no_lock() -> None:
    """Those before it in the queue may be tasks of that loop."""

    async def blocked() -> None:
        Ledger.modify("a", after(party_adds))

    operations = sent(lambda: asyncio.run(blocked()))
    assert operations == ["GetItem", *["GetItem", "UpdateItem"], "UpdateItem", "UpdateItem"]


def other_tasks(count: int) -> list[asyncio.Task[Any]]:
    """Tasks that add one, and do not inherit the locks of this one."""
    return [contextvars.Context().run(asyncio.create_task, Ledger.amodify("a", add_one, wait=20)) for _ in range(count)]


async def test_tasks_that_wait_for_the_lock_leave_threads_to_its_holder() -> None:
    """The package has fewer threads than there are tasks here."""
    async with Ledger.edit("a") as item:
        tasks = other_tasks(40)
        await asyncio.to_thread(until_in_line, Ledger, "a", 40)
        add_one(item)
    await asyncio.gather(*tasks)
    assert Ledger.get("a").n == 41


async def test_a_task_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    """It has written nothing, and is in no queue."""
    async with Ledger.edit("a") as item:
        [task] = other_tasks(1)
        await asyncio.to_thread(until_in_line, Ledger, "a", 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(Ledger.lock_state("a").entries) == 1
        item.n += 100
    assert Ledger.get("a").n == 100


def test_what_the_function_raises_under_the_lock_is_raised() -> None:
    """As it is, even if it could be an error of the package; nothing is saved, and the lock is released."""
    errors: list[Exception] = [StaleVersion("mine"), ItemNotFound("mine"), LockTimeout("mine")]
    for error in errors:
        calls: list[int] = []

        def change(item: Any, error: Exception = error, calls: list[int] = calls) -> None:
            calls.append(1)
            if len(calls) == 2:
                raise error
            in_thread(party_adds)

        with pytest.raises(type(error), match=r"^mine$"):
            Ledger.modify("a", change)
        assert len(calls) == 2
        assert Ledger.lock_state("a").entries == ()
    assert Ledger.get("a").n == 30


def test_with_wait_0_it_takes_no_lock() -> None:
    """The second attempt changes the item that came with the refusal."""
    operations = sent(lambda: Ledger.modify("a", after(party_adds), wait=0))
    assert operations == ["GetItem", *["GetItem", "UpdateItem"], "UpdateItem", "UpdateItem"]


def test_a_caller_that_holds_a_lock_takes_no_other() -> None:
    """The order could be another one."""
    Ledger("b").save()
    with Ledger.locked("b"):
        operations = sent(lambda: Ledger.modify("a", after(party_adds)))
    assert operations == ["GetItem", *["GetItem", "UpdateItem"], "UpdateItem", "UpdateItem"]


def test_a_lock_is_waited_for_however_long_it_is_held() -> None:
    """A refusal by a lock is followed by the wait for it, and what is changed is the item of the grant."""
    calls: list[int] = []
    held = threading.Event()

    def hold() -> None:
        with Ledger.edit("a") as item:
            held.set()
            clock.sleep(20)
            item.n += 100

    def change(item: Any) -> None:
        calls.append(item.n)
        add_one(item)

    def run() -> None:
        held.wait()
        Ledger.modify("a", change, attempts=2)

    with VirtualClock() as clock:
        in_parallel(hold, run)
    assert calls in ([0, 100], [100]), "the clock may be faster than the first read of a server"
    assert Ledger.get("a").n == 101


@pytest.mark.parametrize("is_awaited", [False, True])
def test_wait_is_the_deadline(is_awaited: bool) -> None:
    """A lock that is held ends the call when `wait` is over, whatever `attempts` says."""

    def modify() -> None:
        if is_awaited:
            asyncio.run(Ledger.amodify("a", add_one, attempts=2, wait=5))
        else:
            Ledger.modify("a", add_one, attempts=2, wait=5)

    with VirtualClock() as clock, held_elsewhere(Ledger.locked("a", owner="other", lease=600)):
        with pytest.raises(
            ItemLocked,
            match=r"^modify\(\) gave up when its `wait` was over \(pass a longer one\): .*/a is locked by other",
        ) as caught:
            modify()
        assert 5 <= clock.elapsed < 6
    assert caught.value.holder == "other"
    assert isinstance(caught.value.__cause__, LockTimeout)


def test_what_the_function_raises_is_no_refusal() -> None:
    """Of another write, for example: there is no retry."""
    calls: list[int] = []

    def change(item: Any) -> None:
        calls.append(1)
        raise StaleVersion("of the function")

    with pytest.raises(StaleVersion, match=r"^of the function"):
        Ledger.modify("a", change)
    assert calls == [1]


def test_a_condition_holds_under_the_lock_too() -> None:
    """If it is false, there is no retry, and the lock is released."""
    with pytest.raises(Conflict) as caught:
        Ledger.modify("a", after(party_adds), condition=Ledger.n == 0)
    assert not isinstance(caught.value, StaleVersion)
    assert Ledger.get("a").n == 10
    assert Ledger.lock_state("a").entries == ()


def test_a_lock_that_is_lost_ends_the_call() -> None:
    """As it ends `edit`: nothing was written."""

    def break_it() -> None:
        for entry in Ledger.lock_state("a").entries:
            Ledger.break_lock("a", ticket=entry.ticket)

    with pytest.raises(LockLost):
        Ledger.modify("a", after(party_adds, break_it))
    assert Ledger.get("a").n == 10
    assert Ledger.lock_state("a").entries == ()


def test_an_item_that_is_deleted_meanwhile() -> None:
    """There is nothing to lock: it is absent, or made anew."""
    delete = lambda: Ledger.get("a").delete()  # noqa: E731
    with pytest.raises(Ledger.DoesNotExist):
        Ledger.modify("a", after(delete))
    Ledger("a", n=5).save()
    assert Ledger.modify("a", after(delete), create=True).n == 1


def test_many_callers_are_served_in_their_order() -> None:
    """None of them is refused twice."""
    calls: list[int] = []

    def change(item: Any) -> None:
        calls.append(1)
        add_one(item)

    in_parallel(*[lambda: Ledger.modify("a", change, attempts=2)] * 12)
    assert Ledger.get("a", consistent_read=True).n == 12
    assert len(calls) <= 24
    assert Ledger.lock_state("a").entries == ()


class Bare(VersionedMixin, Model):
    """The same items, for a program that knows no lock yet."""

    class Meta(Ledger.Meta):  # type: ignore[misc]
        pass

    pk = UnicodeAttribute(hash_key=True)
    n = NumberAttribute(default=0)
    version = VersionAttribute()


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_writer_that_knows_no_lock(is_awaited: bool) -> None:
    """It may refuse the attempt under the lock as well: then there are further ones."""

    def modify(attempts: int) -> Any:
        change = after(*[partial(party_adds, Bare)] * 2)
        if is_awaited:
            return asyncio.run(Ledger.amodify("a", change, attempts=attempts))
        return Ledger.modify("a", change, attempts=attempts)

    Bare.Meta.table_name = Ledger.Meta.table_name
    assert modify(attempts=3).n == 21
    with pytest.raises(StaleVersion, match=r"^modify\(\) gave up after attempt 2 of 2"):
        modify(attempts=2)
    assert Ledger.get("a").n == 41
    assert Ledger.lock_state("a").entries == ()
