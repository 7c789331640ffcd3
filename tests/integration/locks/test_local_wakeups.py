"""Waiters that are woken by other processes of their machine."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import LockSettings
from pynamo_locking.transactions import Transaction
from tests.support import runtime
from tests.support.local_wakeups import names, own_wakeups, throw
from tests.support.wire import count_requests, intercepted
from tests.support.workers import PATIENCE, Beside, Locks, Plain, Remote, Versioned, crew, steps_of, until, until_queued

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.processes

#: No caller that waits for a look of its own gets through in time.
LAZY = LockSettings(
    wait=1e6,
    lease=1e6,
    max_lease=1e6,
    min_poll_interval=5e4,
    poll_interval=5e4,
    max_poll_interval=5e4,
    request_timeout=10,
)
#: A caller that looks often gets through.
EAGER = LockSettings(wait=1e6, lease=1e6, max_lease=1e6, min_poll_interval=0.01, poll_interval=0.02, request_timeout=10)


@pytest.fixture
def folder():
    with own_wakeups() as folder:
        yield folder


def wait_lazily(worker: Remote, folder: Path, model: Any, key: str, place: int, **options: Any) -> None:
    """Let a worker wait; return when it is at that place in the queue, and listens."""
    worker.start("enter", model, key, settings=LAZY, **options)
    until_queued(model, key, place)
    entry = model.lock_state(key).entries[-1]
    until(lambda: runtime.process_of(entry.id) in names(folder), "the socket of the waiter")


def test_processes_hand_over_by_bells_alone(dynoxide, folder):
    """By a release, a last save, and a transaction, which shows no image; to readers together, to a forked child."""
    dynoxide.bind(Locks, Plain, Beside)
    Plain("a").save()
    Beside("a").save()
    with crew(dynoxide, 2, Locks, Plain, Beside) as (second, third):
        for model in (Plain, Beside):
            lock = model.locked("a", settings=LAZY).acquire()
            second.start("edit", model, ["a"])
            until_queued(model, "a", 2)
            wait_lazily(third, folder, model, "a", 3)
            lock.release()
            assert second.result()[0].ticket < third.result().ticket
            third.call("leave", "a")

        lock = Plain.locked("a", settings=LAZY).acquire()
        for place, reader in ((2, second), (3, third)):
            wait_lazily(reader, folder, Plain, "a", place, shared=True)
        lock.release()
        for reader in (second, third):
            reader.result()
        for reader in (second, third):
            reader.call("leave", "a")

        child = third.fork()
        lock.acquire()
        wait_lazily(third, folder, Plain, "a", 2)
        wait_lazily(child, folder, Plain, "a", 3)
        lock.release()
        third.result()
        third.call("leave", "a")
        child.result()
        assert len(names(folder)) == 3  # of both, and of the child


@pytest.mark.parametrize("is_known", [True, False])
def test_a_commit_wakes_the_waiter_of_another_process(dynoxide, folder, is_known):
    """A native transaction shows no image. The waiter may have come after the grant, so that nobody knows of it."""
    dynoxide.bind(Versioned)
    for name in "ab":
        Versioned(name).save()
    with crew(dynoxide, 2, Versioned) as (before, waiter), ThreadPoolExecutor(1) as pool:
        # The pool has one thread, whose context holds the locks.
        if is_known:
            before.call("enter", Versioned, "a", settings=LAZY)
            begun = pool.submit(committing)
            until_queued(Versioned, "a", 2)
            wait_lazily(waiter, folder, Versioned, "a", 3)
            before.call("leave", "a")
            tx = begun.result()
        else:
            tx = pool.submit(committing).result()
            wait_lazily(waiter, folder, Versioned, "a", 2)
        pool.submit(tx.commit).result()
        waiter.result()
        waiter.call("leave", "a")


def committing() -> Transaction:
    """Return a transaction that has locked and changed two items."""
    tx = Transaction()
    for name in "ab":
        tx.touch(tx.get(Versioned, name, for_update=True))
    return tx


def waiter(model: Any, settings: LockSettings, *, is_task: bool) -> int:
    """Take the lock of "a" in a thread or a task, and give it back."""
    lock = model.locked("a", settings=settings)

    async def wait() -> int:
        async with lock:
            return int(lock.ticket)

    if is_task:
        return asyncio.run(wait())
    with lock:
        return int(lock.ticket)


def test_a_waiter_that_is_woken_makes_no_read(dynoxide, folder):
    """The wake-up brings the item as the holder in the other process has left it."""
    dynoxide.bind(Plain)
    Plain("a", by="\u2028").save()

    def wait() -> tuple[int, str]:
        with Plain.locked("a", settings=LAZY) as lock:
            item = lock.item
            return int(item.value), item.by

    with crew(dynoxide, 1, Plain) as [holder], count_requests() as counted, ThreadPoolExecutor(1) as pool:
        holder.call("enter", Plain, "a", settings=LAZY)
        found = pool.submit(wait)
        until(lambda: len(names(folder)) > 0 and counted.by_operation["UpdateItem"], "a waiter that listens")
        holder.call("add", "a", 7)
        before = dict(counted.by_operation)
        holder.call("leave", "a")
        assert found.result() == (7, "\u2028")
        assert dict(counted.by_operation) == {**before, "UpdateItem": before["UpdateItem"] + 1}  # its own release


def test_a_release_before_the_waiter_has_slept(dynoxide, folder):
    """It comes between the answer to the request that enters the queue, and the first pause."""
    dynoxide.bind(Plain)
    Plain("a").save()
    Plain("b").save()
    with crew(dynoxide, 1, Plain) as [holder], ThreadPoolExecutor(2) as pool:
        for key in "ab":
            holder.call("enter", Plain, key, settings=LAZY)
        other = pool.submit(lambda: Plain.locked("b", settings=LAZY).acquire().release())
        until(lambda: names(folder), "a waiter of this process that listens")
        [socket] = folder.iterdir()

        def release_at_once(send: Any, operation: str, kwargs: dict[str, Any]) -> Any:
            answer = send()
            if operation == "UpdateItem" and left:
                holder.call("leave", left.pop())
                throw(socket, Plain.lock_state("b").entries[1].id.encode())  # its look follows that wake-up
                until(lambda: counted.by_operation["GetItem"] == 2, "a look")
            return answer

        left = ["a"]
        try:
            with intercepted(release_at_once), count_requests() as counted:
                ticket = waiter(Plain, replace(LAZY, wait=PATIENCE), is_task=False)
        finally:
            holder.call("leave", "b")
        assert (ticket, left) == (Plain.lock_state("a").next_ticket - 1, [])
        assert counted.by_operation == {"UpdateItem": 2, "GetItem": 2}  # the latter for "b"
        other.result()


@pytest.mark.parametrize("is_task", [False, True])
def test_a_forged_bell_costs_a_read(dynoxide, folder, is_task):
    """And one that names no waiter of this process costs nothing."""
    dynoxide.bind(Plain)
    Plain("a").save()
    with count_requests() as counted, ThreadPoolExecutor(1) as pool:
        with Plain.locked("a", settings=replace(LAZY, max_callers_per_entry=1)) as lock:
            ticket = pool.submit(waiter, Plain, LAZY, is_task=is_task)
            until(lambda: names(folder), "a socket")
            [socket], entry = list(folder.iterdir()), Plain.lock_state("a").entries[1]
            before = counted.by_operation["GetItem"]
            for datagram in (b"", b"x" * 5000, b"\xff", socket.name.encode(), entry.id[1:].encode(), b"\0" * 20):
                throw(socket, datagram)
            for forged in range(1, 4):
                throw(socket, entry.id.encode())
                until(lambda: counted.by_operation["GetItem"] - before == forged, "a look")  # noqa: B023
            looks = [body for operation, body in counted.bodies if operation == "GetItem"][-3:]
            assert [look["ConsistentRead"] for look in looks] == [True] * 3  # an old image could show it as held
            assert Plain.lock_state("a").holders[0].ticket == lock.ticket
            assert not ticket.done()
        assert ticket.result() == lock.ticket + 1


@pytest.mark.parametrize("model", [Plain, Beside])
def test_a_waiter_that_is_woken_seldom_looks(dynoxide, folder, model):
    """While its process and those of all that are ahead listen; else, or for a lock in another row, by the pace."""
    dynoxide.bind(Locks, Plain, Beside)
    model("a").save()
    waiting = model.locked(
        "a", settings=LockSettings(lease=100, wait=100, min_poll_interval=0.001, poll_interval=1, request_timeout=10)
    )
    with crew(dynoxide, 1, Locks, model) as [holder]:
        holder.call("enter", model, "a", settings=LAZY)
        steps = steps_of(waiting)
        next(steps)
        pauses = [next(steps).seconds]
        of_holder = folder / runtime.process_of(model.lock_state("a").entries[0].id)
        for change in (of_holder.touch, lambda: folder.chmod(0o755), lambda: folder.chmod(0o700), of_holder.unlink):
            change()
            pauses.append(next(steps).seconds)
        steps.close()
        holder.call("leave", "a")
    assert [pause >= 0.5 for pause in pauses] == [False, model is Plain, False, model is Plain, False], pauses


def test_without_bells_the_waiter_polls(dynoxide, folder):
    dynoxide.bind(Plain)
    Plain("a").save()
    with crew(dynoxide, 1, Plain) as [holder]:
        for because in ("off", "lost", "not our directory"):
            if because == "not our directory":
                folder.chmod(0o755)
            holder.call("enter", Plain, "a", settings=LAZY)
            with ThreadPoolExecutor(1) as pool:
                ticket = pool.submit(waiter, Plain, replace(EAGER, local_wakeups=because != "off"), is_task=False)
                until_queued(Plain, "a", 2)
                if because == "lost":
                    until(lambda: names(folder), "a socket")
                    next(folder.iterdir()).unlink()
                holder.call("leave", "a")
                ticket.result()
            assert folder.exists() == (because != "off")
            assert names(folder) == []
