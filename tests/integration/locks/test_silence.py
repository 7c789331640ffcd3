"""A process stood still for longer than its lease, and the work goes on before the heartbeat's thread does."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import locked_all
from pynamo_locking._locks import heartbeat
from pynamo_locking.exceptions import LockLost
from tests.support.models import APART, Account, Locks
from tests.support.parties import in_thread, shifted_clock
from tests.support.wire import count_requests, on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking import Lock
    from tests.engines.engine import Engine
    from tests.support.parties import ShiftedRuntime

LEASE = 12.0
each_heartbeat = pytest.mark.parametrize("heartbeat", [True, False])


@pytest.fixture
def world(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShiftedRuntime]:
    """A clock that can be put forward, and a heartbeat whose thread comes too late."""
    memory.bind(Locks, Account)
    monkeypatch.setattr(heartbeat, "heartbeat_thread", heartbeat.HeartbeatThread())
    monkeypatch.setattr(heartbeat.HeartbeatThread, "_start_thread", lambda _: None)
    Account("a", balance=1).save()
    with shifted_clock() as world:
        yield world


def stand_still(world: ShiftedRuntime) -> None:
    world.shift += 2.5 * LEASE


def succeed(model: Any, key: str) -> None:
    """Let another party evict the silent holder."""
    in_thread(model.locked(key, wait=0, heartbeat=False, settings=APART).acquire)


#: What tells of a hold, or extends it.
METHODS = ["ensure_remaining", "chunks", "renew", "acquire"]


async def use(way: Any, lock: Lock[Any], method: str) -> None:
    if method != "chunks":
        await way.call(lock, method, *([0] if method == "ensure_remaining" else []))
    elif way.is_awaited:
        async for _ in lock.achunks([1, 2], every=1, remaining=0):
            raise AssertionError
    else:
        for _ in lock.chunks([1, 2], every=1, remaining=0):
            raise AssertionError


@each_heartbeat
@pytest.mark.parametrize("method", METHODS)
async def test_a_holder_that_was_succeeded(world, heartbeat, method, way):
    """Whatever it asks for first, it hears that the lock is lost."""
    with pytest.raises(LockLost):
        async with way(Locks.locked("job", lease=LEASE, heartbeat=heartbeat, settings=APART)) as lock:
            stand_still(world)
            succeed(Locks, "job")
            assert not lock.is_held
            with pytest.raises(LockLost):
                await use(way, lock, method)


@each_heartbeat
def test_a_holder_that_nobody_has_succeeded(world, heartbeat):
    """A renewal finds out, and the work goes on."""
    with Locks.locked("job", lease=LEASE, heartbeat=heartbeat, settings=APART) as lock:
        stand_still(world)
        assert not lock.is_held
        assert not lock.lost.is_set()
        with count_requests() as counted:
            lock.ensure_remaining(0)
        assert counted.total == 1
        assert lock.is_held
    assert not Locks.lock_state("job").entries


@each_heartbeat
async def test_an_edit_that_stood_still_saves_nothing(world, heartbeat, way):
    """After another party came."""
    with pytest.raises(LockLost):
        async with way(Account.edit("a", lease=LEASE, heartbeat=heartbeat, settings=APART)) as account:
            account.balance = 7
            stand_still(world)
            succeed(Account, "a")
    assert Account.get("a").balance == 1
    assert len(Account.lock_state("a").entries) == 1


@each_heartbeat
def test_a_job_that_stood_still_has_not_succeeded(world, heartbeat):
    """Another machine runs it, or the next caller does."""
    with (
        pytest.raises(LockLost),
        Locks.once("job", period=3600, since_success=True, lease=LEASE, heartbeat=heartbeat, settings=APART) as run,
    ):
        assert run
        stand_still(world)
        succeed(Locks, "job")
    assert Locks.lock_state("job").success is None


@pytest.mark.parametrize("is_succeeded", [False, True])
async def test_the_first_of_several_locks_expires_while_the_second_is_waited_for(world, is_succeeded, way):
    """It is renewed before the block begins, or the block is not entered."""
    first, second = (Locks.locked(name, lease=LEASE, heartbeat=False, settings=APART) for name in "ab")

    def come_late() -> None:
        stand_still(world)
        if is_succeeded:
            succeed(Locks, "a")

    of_second = on("UpdateItem", where=lambda body: body["Key"] == {"name": {"S": "b"}})
    with of_second.before(come_late), pytest.raises(LockLost) if is_succeeded else nullcontext():
        async with way(locked_all(first, second)):
            assert not is_succeeded
            assert first.is_held
            assert second.is_held
    assert not Locks.lock_state("b").entries
