"""Which thread or task of a process holds a lock."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor

import pytest

from pynamo_locking.exceptions import ConfigurationError, LockTimeout
from tests.integration.locks.conftest import until_waiting
from tests.support.models import APART
from tests.support.parties import in_thread

pytestmark = pytest.mark.core


def test_who_inherits_a_context_does_not_hold_the_lock(account):
    """A thread or task started inside a lock writes under it, and waits for it like everybody else."""
    with account.locked("a") as lock:
        context = contextvars.copy_context()
        with pytest.raises(LockTimeout):
            in_thread(lambda: context.run(account.locked("a", wait=0).acquire))
        in_thread(lambda: context.run(account.get("a").save))
        assert account.lock_state("a").holders[0].writes == 1

        async def in_a_task():
            account.locked("a", wait=0).acquire()

        with pytest.raises(LockTimeout):
            asyncio.run(in_a_task())
        assert lock.is_held


async def test_tasks_of_one_thread_exclude_each_other(account):
    """asyncio tasks that share a thread and inherited a context are different parties."""

    async def party():
        with account.locked("a", wait=0):
            entered.set()
            await done.wait()

    entered, done = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(party())
    await entered.wait()
    with pytest.raises(LockTimeout):
        await asyncio.create_task(party())
    done.set()
    await first


def test_a_lock_object_is_taken_by_one_thread_at_a_time(account):
    """A second thread is refused also while the first one still waits."""
    lock = account.locked("a")
    with ThreadPoolExecutor(1) as pool:
        holder = account.locked("a", settings=APART).acquire()
        pool.submit(lock.acquire)
        until_waiting(account, "a")
        with pytest.raises(ConfigurationError, match="in use"):
            in_thread(lock.acquire)
        holder.release()
    lock.release()
