"""Locks inside locks of the same thread or task: one entry, several blocks, and copies of the item that get old."""

from __future__ import annotations

import asyncio
import itertools
import threading
from functools import partial
from typing import Any

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import DoesNotExist, PutError

from pynamo_locking import NamedLock, TransactWrite, locked_all, transaction
from pynamo_locking.exceptions import ConfigurationError, ItemNotFound, LockLost, OutcomeUnknown, StaleVersion
from pynamo_locking_testing import VirtualClock
from tests.support.models import Locks, declare
from tests.support.parties import in_thread, shifted_clock
from tests.support.wire import Chosen, count_requests, on
from tests.support.workers import until

pytestmark = pytest.mark.core


Inside = declare("Inside", lock=True, numbers="v w")
Beside = declare("Beside", numbers="v w", lock_table=Locks)
Reading = declare("Reading", hash_key="device", range_key="number", numbers="value", lock_table=Locks)


KINDS: list[Any] = [Inside, Beside]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request, memory):
    """A model of each kind, with one item."""
    memory.bind(request.param, Locks)
    request.param("a").save()
    return request.param


@pytest.fixture
def readings(memory):
    """Items with ranges."""
    memory.bind(Reading, Locks)
    for number in (1, 5, 25):
        Reading("d", number).save()


class OopsError(Exception):
    """What goes wrong in a block."""


def stored(model: Any) -> tuple[Any, Any]:
    """What DynamoDB has."""
    item = model.get("a", consistent_read=True)
    return item.v, item.w


def write_through_another_copy(model: Any, writer: str) -> None:
    """Add 10 to `v`, not through the instance that the lock has handed out."""
    copy = model.get("a", consistent_read=True)
    if writer == "save":
        copy.v += 10
        copy.save()
    elif writer == "update":
        copy.update([model.v.add(10)])
    elif writer == "key":
        model("a").update([model.v.add(10)], add_version_condition=False)
    elif writer == "batch":
        copy.v += 10
        with TransactWrite(connection=Connection()) as batch:
            batch.save(copy)
    else:
        with transaction() as tx:
            item = tx.get(model, "a")
            item.v += 10
            tx.save(item)


WRITERS = ["save", "update", "key", "batch"]


# An inner edit that fails


async def test_an_inner_edit_that_fails_takes_back_its_own_changes_only(kind, way):
    """The outer edit goes on with its own changes, and saves them."""
    async with way(kind.edit("a")) as outer:
        outer.v = 5
        with pytest.raises(OopsError):
            async with way(kind.edit("a")) as inner:
                inner.w = 9
                raise OopsError
        outer.v += 1
    assert stored(kind) == (6, 0)


def test_each_of_three_edits_takes_back_its_own_changes(kind):
    """However deep they are nested, and whatever became of those inside."""
    with kind.edit("a") as outer:
        outer.v = 1
        with pytest.raises(OopsError), kind.edit("a") as middle:
            middle.v = 2
            with pytest.raises(OopsError), kind.edit("a") as inner:
                inner.v = 3
                raise OopsError
            assert middle.v == 2
            raise OopsError
        assert outer.v == 1

    assert stored(kind) == (1, 0)


def test_what_a_failing_inner_edit_has_saved_is_not_taken_back_by_the_outer_one(kind):
    """What it saved in its block is stored; the outer copy is from before that, and is refused until refreshed."""
    with kind.locked("a") as lock:
        item = lock.item
        with pytest.raises(OopsError), kind.edit("a") as inner:
            inner.w = 9
            inner.save()
            inner.w = 10
            raise OopsError
        item.v = 5
        with pytest.raises(StaleVersion):
            item.save()
        item.refresh()
        item.v = 6
        item.save()

    assert stored(kind) == (6, 9)


@pytest.mark.parametrize("lose", [Chosen.lose_request, Chosen.lose_response])
def test_an_inner_edit_whose_save_is_not_answered(kind, lose):
    """What is stored is unknown: the version tells when the outer edit saves."""

    def work() -> None:
        with kind.edit("a") as outer:
            outer.v = 5
            edit = kind.edit("a")
            edit.__enter__().w = 9
            with lose(on("UpdateItem", "TransactWriteItems", times=200)), pytest.raises(OutcomeUnknown):
                edit.__exit__(None, None, None)
            assert outer.w == 0

    if lose is Chosen.lose_request:
        work()
        assert stored(kind) == (5, 0)
    else:
        with pytest.raises(StaleVersion):
            work()
        assert stored(kind) == (5, 9)


def test_the_outer_edit_saves_what_a_good_inner_one_did(kind):
    """As ever: one instance, saved by each of them."""
    with kind.edit("a") as outer:
        outer.v = 5
        with kind.edit("a") as inner:
            assert inner is outer
            inner.w = 9
        assert stored(kind) == (5, 9)
        assert len(kind.lock_state("a").entries) == 1
        outer.v += 1
    assert stored(kind) == (6, 9)
    assert kind.lock_state("a").entries == ()


# A copy that another one has made old


def test_a_copy_from_before_the_lock_is_not_saved(kind):
    """The most common mistake: read, lock, change, save. Another writer's change is not taken back."""
    copy = kind.get("a")
    in_thread(lambda: write_through_another_copy(kind, "save"))
    with kind.locked("a"):
        copy.w = 1
        with pytest.raises(StaleVersion):
            copy.save()
    assert stored(kind) == (10, 0)


@pytest.mark.parametrize(
    ("kind", "writer"), [*itertools.product(KINDS, WRITERS), (Inside, "transaction")], indirect=["kind"]
)
def test_an_inner_edit_does_not_save_away_what_another_copy_has_written(kind, writer):
    """It is given the instance of the outer block, which DynamoDB refuses until it is refreshed."""
    with kind.locked("a") as lock:
        assert lock.item.v == 0
        write_through_another_copy(kind, writer)
        with pytest.raises(StaleVersion), kind.edit("a") as inner:
            assert inner is lock.item
            inner.w = 1
        lock.item.refresh()
        with kind.edit("a") as inner:
            inner.w = 1
    assert stored(kind) == (10, 1)


async def test_an_inner_block_of_a_task_has_the_instance_of_the_outer_one(kind):
    """The same for tasks: no read is needed."""
    async with kind.locked("a") as lock:
        item = await lock.aitem()
        async with kind.locked("a") as nested:
            assert nested.item is item


@pytest.mark.parametrize("writer", WRITERS)
def test_an_old_copy_is_not_saved(kind, writer):
    """DynamoDB refuses it, until it is refreshed."""
    with kind.locked("a") as lock:
        item = lock.item
        item.w = 1
        write_through_another_copy(kind, writer)
        assert lock.item is item  # no other copy's changes are replaced without a word
        with pytest.raises(StaleVersion) as refused:
            item.save()
        assert isinstance(refused.value, PutError)
        item.refresh()
        item.w = 2
        item.save()

    assert stored(kind) == (10, 2)


def test_an_edit_does_not_save_what_another_copy_has_made_old(kind):
    """An update through another instance in the block of an edit is not lost: the edit says so."""
    with pytest.raises(StaleVersion, match="refresh"), kind.edit("a") as item:
        write_through_another_copy(kind, "key")
        item.w = 1

    assert stored(kind) == (10, 0)


def test_what_the_copy_itself_writes_does_not_make_it_old(kind):
    """A save, an update, a refused write, a transaction: it goes on being the item of the inner block too."""
    with kind.locked("a") as lock:
        item = lock.item
        item.v = 1
        item.save()
        item.update([kind.v.add(1)])
        with pytest.raises(PutError):
            item.save(kind.v == 77)
        item.v += 1
        with TransactWrite(connection=Connection()) as batch:
            batch.save(item)
        with kind.edit("a") as inner:
            assert inner is item
            inner.w = 1

    assert stored(kind) == (3, 1)


def test_a_refused_write_of_another_copy_makes_nothing_old(kind):
    """Nothing was changed, so nothing is refused."""
    with kind.locked("a") as lock:
        lock.item.v = 5
        copy = kind.get("a")
        with pytest.raises(PutError):
            copy.save(kind.v == 77)
        copy.refresh()
        lock.item.save()

    assert stored(kind) == (5, 0)


def test_a_lock_that_is_taken_again_reads_again(kind):
    """What a lock has handed out belongs to that time it was held."""
    lock = kind.locked("a")
    with lock:
        first = lock.item
    in_thread(lambda: write_through_another_copy(kind, "save"))
    with lock:
        assert lock.item is not first
        assert lock.item.v == 10


# Taking again what is over, or nearly


def _with_a_lease_that_is_over(model: Any) -> Any:
    return model.locked("a", heartbeat=False, lease=20)


def test_what_is_taken_again_is_held(kind):
    """A lease that is over is renewed, if no other party has come; the outer lock has it, too."""
    with shifted_clock() as world, _with_a_lease_that_is_over(kind) as outer:
        world.shift += 30
        assert not outer.is_held
        with kind.try_locked("a") as inner:
            assert inner.is_held
            assert outer.is_held


@pytest.mark.parametrize("take", ["locked", "try_locked", "edit"])
async def test_what_is_lost_is_not_taken_again(kind, take, way):
    """Another party has it by now: no caller is told that it is held, and a task makes its request in a thread."""
    asked: list[int] = []
    with shifted_clock() as world, pytest.raises(LockLost):
        async with way(_with_a_lease_that_is_over(kind)):
            world.shift += 30
            in_thread(lambda: kind.locked("a", wait=60, heartbeat=False).acquire().release())
            with on("UpdateItem").before(lambda: asked.append(threading.get_ident())), pytest.raises(LockLost):
                async with way(getattr(kind, take)("a")):
                    pytest.fail("it is not held")
    assert len(asked) == 1
    assert (asked[0] == threading.get_ident()) is not way.is_awaited


def test_a_renewal_that_fails_leaves_the_outer_lock_as_it_was(kind):
    """The take is given back: the last release of the outer lock still empties the queue."""
    with shifted_clock() as world, _with_a_lease_that_is_over(kind) as outer:
        world.shift += 30
        with on("UpdateItem", times=100).lose_request(), pytest.raises(OutcomeUnknown):
            kind.locked("a").acquire()
        outer.renew()

    assert kind.lock_state("a").entries == ()


def test_a_renewal_that_fails_after_the_outer_lock_was_released(kind):
    """Another thread has released it meanwhile: what is given back is the last, so the queue is empty."""
    with shifted_clock() as world:
        outer = _with_a_lease_that_is_over(kind).acquire()
        world.shift += 30
        released = partial(in_thread, outer.release)
        with on("UpdateItem").lose_request(released), pytest.raises(OutcomeUnknown):
            kind.locked("a").acquire()

        until(lambda: not kind.lock_state("a").entries, "the thread that removes the entry")


async def test_an_inner_lock_with_a_heartbeat_is_renewed(kind, way):
    """Once in its time, however often it is taken again; from then on the outer one is, too."""
    with VirtualClock() as clock, on(where=lambda body: ":beat" in str(body)).watch() as renewals:

        def renewed() -> int:
            before = renewals.hits
            clock.sleep(15)
            return renewals.hits - before

        async with way(kind.locked("a", heartbeat=False, lease=60)):
            async with way(kind.locked("a", heartbeat=False)):
                assert renewed() == 0
            async with way(kind.locked("a")), way(kind.locked("a")):
                assert renewed() == 1  # after a third of the lease
            assert renewed() == 1
        assert renewed() == renewed() == 0


# Sharing from the inside


def test_a_part_of_a_range_cannot_be_shared_alone(readings):
    """A downgrade of an inner range would make readers of the outer one; it is refused before any request."""
    with Reading.locked_range("d", 0, 10):
        with Reading.locked_range("d", 2, 3) as inner:
            with count_requests() as counted, pytest.raises(ConfigurationError, match="part"):
                inner.downgrade()
            assert counted.total == 0
        Reading("d", 1, value=7).save(add_version_condition=False)

    assert Reading.get("d", 1).value == 7


def test_what_was_taken_shared_beside_an_exclusive_range_is_shared_already(readings):
    """A downgrade of it changes nothing, so the exclusive range may still be written."""
    ranges = Reading.locked_range("d", 0, 10, shared=True), Reading.locked_range("d", 20, 30)
    with locked_all(*ranges) as (shared, exclusive):
        with count_requests() as counted:
            shared.downgrade()
        assert counted.total == 0
        Reading("d", 25, value=7).save(add_version_condition=False)
        with pytest.raises(ConfigurationError, match="part"):
            exclusive.downgrade()

    assert Reading.get("d", 25).value == 7


def test_a_downgrade_inside_counts_for_all_blocks(kind):
    """All of them hold one entry, and the whole of it is shared from then on."""
    with kind.locked("a") as outer:
        with kind.locked("a") as inner:
            inner.downgrade()
            inner.downgrade()
        with pytest.raises(ConfigurationError, match="shared"):
            outer.item.save()
        outer.downgrade()


# Several, of which some are held


async def test_ranges_of_which_one_is_held_already(readings, way):
    """As each of them alone: the one is taken again, the other one anew, and nothing is left behind."""
    async with way(Reading.locked_range("d", 0, 10)) as outer:
        ranges = Reading.locked_range("d", 20, 30), Reading.locked_range("d", 2, 3)
        async with way(locked_all(*ranges)) as (new, again):
            assert again.ticket == outer.ticket
            assert new.ticket != outer.ticket
            assert new.is_held
            await asyncio.to_thread(Reading("d", 25, value=7).save, add_version_condition=False)
        assert outer.is_held
    assert Reading.lock_state("d").entries == ()


# The first one that is free


def test_the_lock_of_a_missing_item(memory):
    """Inside an item that does not exist there is none; in a lock table there is, and only `lock.item` says so."""
    memory.bind(Inside, Beside, Locks)
    for model in (Inside, Beside):
        model("a").save()

    with Inside.locked_first(["missing", "a"]) as lock:
        assert lock is not None
        assert lock.item.key == "a"
    with pytest.raises(ItemNotFound), Inside.try_locked("missing"):
        pytest.fail("there is none")
    with Beside.locked_first(["missing", "a"]) as lock:
        assert lock is not None
        with pytest.raises(DoesNotExist):
            _ = lock.item
    with Beside.try_locked("missing") as lock:
        assert lock is not None


def test_the_first_lock_that_this_thread_has_already(kind):
    """It counts as free, since it is taken again; one that the thread shares is an error, as it is alone."""
    kind("b").save()
    with kind.locked_first(["a", "b"]) as one, kind.locked_first(["a", "b"]) as two:
        assert one is not None
        assert two is not None
        assert one.ticket == two.ticket
        assert one.name == two.name
    with kind.locked("a", shared=True), pytest.raises(ConfigurationError), kind.locked_first(["a", "b"]):
        pytest.fail("it would have to be upgraded")


Renamed = declare("Renamed", NamedLock, texts="note", name=UnicodeAttribute(hash_key=True, attr_name="pk"))


def test_a_named_lock_with_a_renamed_key(memory):
    """It works as a lock on names, with its own attributes."""
    memory.bind(Renamed)

    with Renamed.edit("job") as row:
        row.note = "hello"
    with Renamed.locked("job") as lock:
        assert lock.item.note == "hello"
