"""What threads and contexts of one process know of each other's locks, and a held entry tells its holder."""

from __future__ import annotations

import contextvars
import threading

import pytest

from pynamo_locking._io import runtime, wakeups
from pynamo_locking._locks import context
from tests.support.parties import in_thread
from tests.unit.helpers import opened, own_entry, row

IMAGE = {"account_id": {"S": "a-1"}}


@pytest.fixture(autouse=True)
def _in_a_context_of_its_own(monkeypatch):
    """Nothing is held and no thread waits when a test begins."""
    token = context.held_by_context.set({})
    monkeypatch.setattr(wakeups, "_mailboxes", {})
    yield
    context.held_by_context.reset(token)


# Mailboxes


@pytest.mark.parametrize("is_told", [True, False])
def test_a_waiter_wakes(world, is_told):
    """As soon as it is told; else by itself, after its time, with nothing."""
    mailbox = opened(row())
    received = []
    world.spawn(lambda: received.append(mailbox.wait(100)), "waiter")
    world.advance(99)
    assert received == []
    if is_told:
        wakeups.tell_waiters(row(), IMAGE)
    else:
        world.advance(1)
    world.settle()

    assert received == [IMAGE if is_told else None]


@pytest.mark.parametrize("image", [IMAGE, None], ids=["image", "wake-up"])
def test_the_first_of_the_queue_is_told(image):
    """The one with the smallest ticket, and one that does not know its place yet; the others sleep on."""
    boxes = [opened(row()) for _ in range(4)]
    boxes[0].ticket, boxes[1].ticket, boxes[2].ticket = 9, 7, 8
    wakeups.tell_waiters(row(), image)

    assert [box._is_woken for box in boxes] == [False, True, False, True]
    assert [box.wait(0) for box in boxes] == [None, image, None, image]


def test_other_locks_are_not_told():
    """A mailbox hears of its own lock only, and of each release once."""
    mailbox, other = opened(row("a-1")), opened(row("a-2"))
    wakeups.tell_waiters(row("a-1"), IMAGE)

    assert other.wait(0) is None
    assert [mailbox.wait(0), mailbox.wait(0)] == [IMAGE, None]


def test_closed_mailboxes_are_forgotten():
    """Nothing is left of a lock for which no thread waits."""
    first, second = opened(row()), opened(row())
    assert wakeups.has_waiters(row())
    wakeups.close_mailbox(row(), first)
    assert wakeups.has_waiters(row())
    assert not wakeups.has_waiters(row("a-2"))
    wakeups.close_mailbox(row(), second)
    wakeups.close_mailbox(row(), second)

    assert not wakeups.has_waiters(row())
    assert wakeups._mailboxes == {}


# Contexts


def test_a_context_holds_what_it_took():
    """Until it gives it back."""
    own = own_entry()
    assert context.holds_nothing()
    context.add(own)

    assert context.entry_in(row()) is own
    assert context.entry_in(row("a-2")) is None
    assert not context.holds_nothing()

    context.remove(own)

    assert context.entry_in(row()) is None
    assert context.holds_nothing()


def test_a_copied_context_holds_and_another_does_not():
    """A task begun inside a lock is inside it, also in another thread, which begins with an empty context."""
    own = own_entry()
    context.add(own)
    copied = contextvars.copy_context()

    assert copied.run(context.entry_in, row()) is own
    assert in_thread(lambda: copied.run(context.entry_in, row())) is own
    assert in_thread(lambda: context.entry_in(row())) is None
    assert in_thread(context.holds_nothing)


def test_a_copied_context_does_not_give_back():
    """What a task takes or gives back is not seen by the context it was copied from, unless it has ended."""
    own, other = own_entry(), own_entry("a-2")
    context.add(own)
    copied = contextvars.copy_context()
    copied.run(context.remove, own)
    copied.run(context.add, other)

    assert context.entry_in(row()) is own
    assert context.entry_in(row("a-2")) is None
    own.ended()
    assert context.entry_in(row()) is None


def test_what_is_lost_is_still_known():
    """Writes have to be refused with LockLost, so a lost lock is not forgotten."""
    own = own_entry()
    context.add(own)
    own.lose("evicted")

    assert context.entry_in(row()) is own


def test_forgetting_an_older_lock_keeps_the_newer():
    """The same lock taken anew is not forgotten with the old one."""
    old, new = own_entry(ticket=1), own_entry(ticket=2)
    context.add(old)
    context.add(new)
    context.remove(old)

    assert context.entry_in(row()) is new


def test_a_context_does_not_collect_what_ended_elsewhere():
    """A lock taken here and given back by another thread leaves nothing behind for ever."""
    for i in range(20):
        own = own_entry(f"a-{i}")
        context.add(own)
        own.ended()  # as a release in another context does
    context.add(own_entry("last"))

    assert len(context.held_by_context.get()) == 1


def test_a_context_keeps_what_it_holds_in_many_parts():
    """To take or release one of 300, it copies a few of the others: some of a 256th of them, by their names."""
    held = [own_entry(f"a-{i}") for i in range(300)]
    for own in held:
        context.add(own)
    assert max(map(len, context.held_by_context.get().values())) < 30
    for own in held[::-1]:
        context.remove(own)
    assert context.holds_nothing()


def test_a_forked_child_has_no_waiters(monkeypatch):
    """No thread of the parent lives in a child, and its mutex may be held for ever."""
    guard = threading.Lock()
    monkeypatch.setattr(wakeups, "_mutex", guard)
    opened(row())
    guard.acquire()
    wakeups._forget_after_fork()

    assert not wakeups.has_waiters(row())


def test_a_thread_is_not_taken_for_one_that_has_ended():
    """Python gives the idents of ended threads to new ones: a thread does not hold the locks of an earlier one."""
    threads = [in_thread(runtime.current.thread_or_task) for _ in range(100)]
    assert len({*threads}) == 100
    assert in_thread(lambda: runtime.current.thread_or_task() == runtime.current.thread_or_task())


# Losses


def test_a_loss_is_told_although_no_thread_can_be_started(crowded):
    """`on_lost` is called, by the thread that finds out; what it raises keeps no other callback from being called."""
    own, heard = own_entry(), []

    def on_lost(reason):
        heard.append(reason)
        raise ValueError

    own.report.on_lost += [on_lost, on_lost]
    crowded(0)
    own.lose("evicted")
    assert heard == ["evicted", "evicted"]
