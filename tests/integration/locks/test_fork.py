"""A process forks inside of a lock: the lock stays with the parent, and the child starts anew."""

from __future__ import annotations

import pytest

from pynamo_locking import LockSettings
from pynamo_locking.exceptions import LockLost
from tests.integration.locks.conftest import bind
from tests.integration.telemetry.forked import in_child
from tests.support.workers import Beside, Plain, Versioned, crew, until_next_beat, until_queued

pytestmark = [pytest.mark.waits, pytest.mark.processes]

SETTINGS = LockSettings(lease=1.5, request_timeout=0.25, poll_interval=0.02)

all_models = pytest.mark.parametrize("model", [Plain, Versioned, Beside])


@all_models
def test_child_has_not_the_lock(real_engine, model):
    """In the child the lock is lost, and so is every write under it."""
    with crew(real_engine, 1, *bind(real_engine, model, "a")) as [parent]:
        taken = parent.call("enter", model, "a", settings=SETTINGS)
        child = parent.fork()
        facts = child.call("facts", "a")
        assert facts.lost
        assert facts.lost_before, "who keeps `lock.lost` at hand, to look at it in a loop, sees that it is set"
        assert not facts.is_held
        assert not parent.call("facts", "a").lost_before
        with pytest.raises(LockLost) as refused:
            child.call("add", "a", 100)
        assert (refused.value.reason, refused.value.ticket) == ("forked", taken.ticket)
        assert f"ticket {taken.ticket} of " in str(refused.value)
        assert f"belongs to process {parent.pid}, which took it before this process {child.pid} was forked" in str(
            refused.value
        )
        assert "take one here" in str(refused.value)
        assert model.get("a", consistent_read=True).value == 0
        child.close()


@all_models
def test_child_leaves_the_block(real_engine, model):
    """The child's way out of the with-block does not release the lock, and the parent works on."""
    with crew(real_engine, 1, *bind(real_engine, model, "a")) as [parent]:
        taken = parent.call("enter", model, "a", settings=SETTINGS)
        child = parent.fork()
        with pytest.raises(LockLost) as lost:
            child.call("leave", "a")
        assert lost.value.reason == "forked"
        child.close()

        assert [entry.ticket for entry in model.lock_state("a").entries] == [taken.ticket]
        until_next_beat(model, "a", taken.ticket)
        until_next_beat(model, "a", taken.ticket)
        assert parent.call("add", "a", 1) == 1
        facts = parent.call("facts", "a")
        assert (facts.lost, facts.reasons, facts.is_held) == (False, [], True)
        parent.call("leave", "a")
    assert model.get("a", consistent_read=True).value == 1
    assert model.lock_state("a").entries == ()


@all_models
def test_child_takes_locks_of_its_own(real_engine, model):
    """The child takes another lock, and its own heartbeat renews it, while the parent's goes on as well."""
    with crew(real_engine, 1, *bind(real_engine, model, "a", "b")) as [parent]:
        held = parent.call("enter", model, "a", settings=SETTINGS)
        child = parent.fork()
        taken = child.call("enter", model, "b", settings=SETTINGS)
        for _ in range(2):
            until_next_beat(model, "b", taken.ticket)
            until_next_beat(model, "a", held.ticket)
        assert child.call("add", "b", 1) == 1
        assert parent.call("add", "a", 1) == 1
        child.call("leave", "b")
        assert model.lock_state("b").entries == ()
        child.close()


def test_child_cannot_take_the_lock_object_that_its_parent_holds(memory):
    """It was counted as taken twice then: the second time could not be had any more, and the first was no loss."""
    bind(memory, Plain, "a")
    lock = Plain.locked("a").acquire()

    def child() -> str:
        Plain.break_lock("a", ticket=lock.ticket)  # the parent has left
        with pytest.raises(LockLost, match="take one here"):
            lock.acquire()
        assert Plain.lock_state("a").entries == ()
        with pytest.raises(LockLost):
            lock.release()
        for _ in range(2):
            with lock:
                assert lock.is_held
        return "right"

    assert in_child(child) == "right"
    lock.release()


@pytest.mark.parametrize("model", [Plain, Beside])
def test_child_queues_behind_its_parent(real_engine, model):
    """After the with-block the child asks for the same lock, and gets it when the parent has left."""
    with crew(real_engine, 1, *bind(real_engine, model, "a")) as [parent]:
        parent.call("enter", model, "a", settings=SETTINGS)
        child = parent.fork()
        with pytest.raises(LockLost):
            child.call("leave", "a")
        child.start("enter", model, "a", settings=SETTINGS)
        tickets = until_queued(model, "a", 2)
        assert parent.call("add", "a", 1) == 1
        assert child.is_waiting()
        parent.call("leave", "a")
        assert child.result().ticket == tickets[1]
        assert child.call("add", "a", 1) == 2
        assert not child.call("facts", "a").lost
        child.call("leave", "a")
        child.close()
    assert model.lock_state("a").entries == ()


@pytest.mark.parametrize("makes_lock", ["before", "after"])
@pytest.mark.parametrize("model", [Plain, Beside])
def test_child_has_connections_of_its_own(dynoxide, model, makes_lock):
    """No connection that was open at the fork serves both: one would read the other one's answers."""
    with crew(dynoxide, 1, *bind(dynoxide, model, "a")) as [parent]:
        parent.call("make_lock", model, "a")
        before = parent.call("ports")
        child = parent.fork()
        if makes_lock == "after":
            child.call("make_lock", model, "a")
        assert not child.call("ports") & before
        assert parent.call("ports") <= before
        child.close()


def test_forks_in_the_middle_of_renewals(real_engine):
    """Whatever the heartbeat is doing at the moment of a fork, the child's locks work."""
    held, edited = [f"held-{i}" for i in range(20)], [f"edited-{i}" for i in range(10)]
    with crew(real_engine, 1, *bind(real_engine, Plain, *held, *edited)) as [parent]:
        for key in held:
            parent.call("enter", Plain, key, settings=SETTINGS)
        assert parent.call("fork_often", Plain, edited) == [0] * len(edited)
        for key in held:
            assert not parent.call("facts", key).lost
            parent.call("leave", key)
    assert [Plain.get(key, consistent_read=True).value for key in edited] == [1] * len(edited)
