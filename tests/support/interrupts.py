"""What is interrupted, by tests of interrupts, and what must be left of it."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

from pynamo_locking._locks import context, heartbeat, local_queue, release
from tests.support.workers import Locks, Plain, until

if TYPE_CHECKING:
    from collections.abc import Callable


def until_at_rest() -> None:
    """Wait for the threads that an interrupted caller has left at work."""
    until(lambda: not (release._unfinished or _of_tasks()), "the threads that remove entries")


def _of_tasks() -> list[threading.Thread]:
    """Return the threads of tasks that run: the package does not count one whose caller was interrupted."""
    return [each for each in threading.enumerate() if each.name == "pynamo-locking-asyncio" and each.is_alive()]


def none_left(*rows: tuple[Any, str]) -> Callable[[str], None]:
    def check(where: str) -> None:
        if any(model.lock_state(key).entries for model, key in rows):
            gc.collect()  # a block whose end never began is given back by a finalizer
            until_at_rest()
        left = {f"{model.__name__} {key}": model.lock_state(key).entries for model, key in rows}
        left = {name: entries for name, entries in left.items() if entries}
        assert left == {}, f"{where}: {left}"
        led = [cohort for cohort in local_queue.local_queues.values() if cohort.leader and cohort.leader.acts]
        assert not led, f"{where}: the next caller of this process would wait behind the interrupted one"
        mine = [own for mine in context.held_by_context.get().values() for own in mine if not own.ownership.is_over]
        assert mine == [], f"{where}: an entry is still noted as held here"
        due = [own for _, _, own in heartbeat.heartbeat_thread._due if not own.ownership.is_over]
        assert due == [], f"{where}: the heartbeat would renew an entry that nothing releases"

    return check


def in_a_block() -> None:
    with Locks.locked("a"):
        pass


def in_an_edit() -> None:
    with Plain.edit("a") as item:
        item.value += 1


def by_acquire_and_release() -> None:
    lock = Locks.locked("a").acquire()
    try:
        pass
    finally:
        lock.release()


async def in_a_block_of_a_task() -> None:
    async with Locks.locked("a"):
        pass


async def in_an_edit_of_a_task() -> None:
    async with Plain.edit("a") as item:
        item.value += 1


async def by_acquire_and_release_of_a_task() -> None:
    lock = Locks.locked("a")
    await lock.aacquire()
    try:
        pass
    finally:
        await lock.arelease()
