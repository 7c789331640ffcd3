"""The heartbeat renews every lock in time, whatever happens to one of them. Time is virtual, threads are real."""

from __future__ import annotations

import random

import pytest

from pynamo_locking._core.lease import LeaseClock
from pynamo_locking._core.lock_queue import EntryOwnership
from pynamo_locking._io.client import Unavailable
from pynamo_locking._locks import heartbeat
from pynamo_locking._locks.heartbeat import MAX_THREADS, HeartbeatThread
from pynamo_locking._locks.lock_events import HoldReport
from pynamo_locking.exceptions import LockLost
from tests.unit.helpers import entry
from tests.unit.world import World


class Own:
    """What the heartbeat asks of a `HeldEntry`; its renewal does what the test says."""

    def __init__(self, world, lease, log, name=""):
        self.world = world
        self.name = name
        self.entry = entry(lease_ms=int(lease * 1000))
        self.clock = LeaseClock(lease, world.now, 0)
        self.clock.has_heartbeat = True
        self.ownership = EntryOwnership("id1", 1, 1)
        self.log = log
        self.gate = None
        self.report = HoldReport()
        self.errors = []

    def __str__(self):
        return self.name

    @property
    def remaining(self):
        return max(0.0, self.clock.deadline - self.world.now)

    def is_allowed(self):
        return self.ownership.is_held

    def renew(self):
        self.log.append((self.name, round(self.world.now - 1000, 6)))
        if self.gate is not None:
            self.gate.pass_through()
        if self.errors:
            if isinstance(self.errors[0], Unavailable):
                self.report.renewal_failed(self, self.errors[0])
            raise self.errors.pop(0)
        self.clock.renewed(self.world.now)
        self.report.renewed(self, self.world.now, self.clock.deadline)


class Ward:
    """A heartbeat, and a log of the renewals it made: name, and seconds since the beginning."""

    def __init__(self, world):
        self.world = world
        self.heartbeat = HeartbeatThread()
        self.log = []
        self.held_entries = []

    def own(self, name, lease=9.0, *, is_blocked=False, errors=()):
        own = Own(self.world, lease, self.log, name)
        own.gate = self.world.gate() if is_blocked else None
        own.errors = list(errors)
        self.held_entries.append(own)
        return own

    def add(self, name, lease=9.0, **options):
        own = self.own(name, lease, **options)
        self.heartbeat.add(own)
        self.world.settle()
        return own

    def end(self, own):
        own.ownership = own.ownership.ended()
        self.heartbeat.remove(own)

    def names_after(self, seconds):
        """The renewals begun within that time."""
        self.log.clear()
        self.world.advance(seconds)
        return [name for name, _ in self.log]

    def fill_with_idle_threads(self, count):
        """Let so many threads be idle: each served a renewal while the others were held."""
        for own in [self.add(f"busy{i}", 3.0, is_blocked=True) for i in range(count)]:
            own.name = "busy"
        self.world.advance(1.0)
        for own in self.held_entries:
            own.gate.open()
            self.end(own)
        self.world.settle()
        assert self.world.threads >= count


def check_renewals(made, due):
    """Compare the renewals that were made with those that were due; a failure says so, and shows all of both."""
    assert made == due, f"not renewed in time. Renewals made: {made}; due: {due}"


@pytest.fixture
def ward(world):
    """A heartbeat in a virtual world, whose threads have left when the test ends."""
    ward = Ward(world)
    yield ward
    for gate in world.gates:
        gate.open()
    for own in ward.held_entries:
        own.ownership = own.ownership.ended()
    world.advance(10_000)
    assert world.threads == 0
    assert ward.heartbeat._due == []


# In time


def test_a_lease_is_renewed_each_third(ward):
    """Again and again, a third of the lease after the last renewal began."""
    ward.add("a", 9.0)
    ward.world.advance(12)

    check_renewals(ward.log, [("a", 3.0), ("a", 6.0), ("a", 9.0), ("a", 12.0)])


def test_renewals_are_in_the_order_of_their_deadlines(ward):
    """Whatever the order in which locks were taken."""
    for name, lease in [("slow", 25.5), ("fast", 6.0), ("middle", 15.0)]:
        ward.add(name, lease)
    ward.world.advance(9)

    check_renewals(
        ward.log,
        [
            ("fast", 2.0),
            ("fast", 4.0),
            ("middle", 5.0),
            ("fast", 6.0),
            ("fast", 8.0),
            ("slow", 8.5),
        ],
    )


def test_a_lease_that_began_long_ago_is_renewed_at_once(ward):
    """The first renewal counts from the beginning of the lease, not from when the heartbeat was told of it."""
    own = ward.own("waited long", 9.0)
    own.clock.deadline = ward.world.now + 1
    ward.heartbeat.add(own)
    ward.world.settle()

    check_renewals(ward.log, [("waited long", 0.0)])


def test_a_slow_renewal_counts_from_its_beginning(ward):
    """The lease runs from before the request; so does the time until the next renewal."""
    own = ward.add("a", 9.0, is_blocked=True)
    ward.world.advance(5.5)
    own.gate.open()
    ward.world.advance(1.5)

    check_renewals(ward.log, [("a", 3.0), ("a", 6.0)])


# Slow renewals and others


@pytest.mark.parametrize("lease", [9.0, 9.3, 30.0])
def test_others_are_helped_by_another_thread(ward, lease):
    """A renewal that hangs does not hold up one that is due at the same time, or becomes due while it hangs."""
    ward.add("hangs", 9.0, is_blocked=True)
    ward.add("other", lease)

    check_renewals(sorted(ward.names_after(3.0 + lease)), ["hangs"] + ["other"] * int((3.0 + lease) / (lease / 3)))


def test_others_that_are_added_later_are_helped_too(ward):
    """A renewal that hangs does not hold up one that is added while it hangs."""
    ward.add("hangs", 9.0, is_blocked=True)
    ward.world.advance(4)
    ward.add("other", 6.0)

    check_renewals(ward.names_after(5), ["other", "other"])


def test_no_more_threads_than_the_limit(ward):
    """With more slow renewals than threads the rest wait, and go on when the first answer."""
    held_entries = [ward.add(f"{i}", 9.0, is_blocked=True) for i in range(MAX_THREADS + 3)]
    ward.world.advance(3)

    assert len(ward.log) == ward.world.threads == MAX_THREADS

    ward.add("one more", 0.6)
    ward.world.advance(1)

    assert len(ward.log) == ward.world.threads == MAX_THREADS

    for own in held_entries:
        own.gate.open()
    ward.world.settle()

    assert len(ward.log) == MAX_THREADS + 4


def test_helpers_leave_again(ward):
    """A few seconds after the last slow renewal one thread, and perhaps one that stands by, are enough."""
    held_entries = [ward.add(f"{i}", 9.0, is_blocked=True) for i in range(5)]
    ward.world.advance(3)
    assert ward.world.threads >= 5
    for own in held_entries:
        own.gate.open()
    for own in held_entries[1:]:
        ward.end(own)
    ward.world.advance(30)

    assert ward.world.threads <= 2


@pytest.mark.parametrize("last_wakes_first", [True, False])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_short_lease_among_idle_threads(ward, threads, last_wakes_first):
    """However many threads are idle, a new entry is renewed when it is due, not when the last of them wakes."""
    ward.world.last_wakes_first = last_wakes_first
    ward.fill_with_idle_threads(threads)
    ward.log.clear()
    added_at = ward.world.now - 1000
    ward.add("short", 0.6)
    ward.world.advance(0.65)

    check_renewals(ward.log, [("short", pytest.approx(added_at + due)) for due in (0.2, 0.4, 0.6)])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_slow_renewal_leaves_the_watch_to_an_idle_thread(ward, threads):
    """An idle thread that never heard of the next entry is told when the one that did is held up."""
    ward.fill_with_idle_threads(threads)
    ward.add("hangs", 0.6, is_blocked=True)
    ward.add("next", 0.9)

    check_renewals(ward.names_after(0.95), ["hangs", "next", "next", "next"])


# Failures


@pytest.mark.parametrize(
    "error", [Unavailable("no answer"), ValueError("x"), KeyError("x"), RuntimeError(), MemoryError(), RecursionError()]
)
def test_a_failed_renewal_is_tried_again(ward, error, caplog):
    """Whatever it raised: soon, often, and then at the usual pace."""
    own = ward.add("a", 9.0, errors=[error] * 3)
    ward.world.advance(7.5)

    # retry_delay: a twentieth of the lease, times three quarters with the jitter of this world
    check_renewals(ward.log, [("a", pytest.approx(3 + due)) for due in (0.0, 0.3375, 0.675, 1.0125, 4.0125)])
    assert not own.errors
    first, last = caplog.messages
    assert first.startswith("a (holder owner1) could not be renewed for 3.0 s: 6.0 s of its lease of 9 s are left.")
    assert last == "a (holder owner1) is renewed again after 4.0 s"
    assert "The heartbeat goes on trying." in first
    assert (caplog.records[0].exc_info is None) is isinstance(error, Unavailable)
    assert ward.world.killed_by == []


def test_a_renewal_that_fails_after_the_release_is_no_news(ward, caplog):
    """Its lease has not ended: the lock was given back while the answer was awaited."""
    own = ward.add("a", 9.0, is_blocked=True, errors=[Unavailable("no answer")])
    ward.world.advance(3)
    ward.end(own)
    own.gate.open()
    ward.world.settle()

    assert not own.errors
    assert caplog.messages == []


def test_a_lost_lock_is_renewed_no_more(ward):
    """After a LockLost there is nothing to renew."""
    ward.add("lost", 9.0, errors=[LockLost("gone")])

    check_renewals(ward.names_after(100), ["lost"])
    assert ward.heartbeat._due == []


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("lease", [9.0, 12.0])
def test_the_others_go_on_whatever_a_renewal_raises(ward, error, lease):
    """A thread that is killed is replaced by another one, also if it was the only one; what killed it goes on too."""
    ward.add("kills", 9.0, errors=[error])
    ward.add("other", lease)
    ward.world.advance(lease)

    assert ward.world.killed_by == ([] if isinstance(error, ValueError) else [error])
    check_renewals([at for name, at in ward.log if name == "other"], [lease / 3, lease * 2 / 3, lease])
    assert len([name for name, _ in ward.log if name == "kills"]) > 1


@pytest.mark.parametrize("limit", [1, 2, MAX_THREADS])
def test_they_go_on_if_all_threads_are_killed(ward, limit, monkeypatch):
    """All that there may be, at the same time: every entry is renewed again, those that killed them as well."""
    monkeypatch.setattr(heartbeat, "MAX_THREADS", limit)
    held_entries = [ward.add(f"{i}", 9.0, is_blocked=True, errors=[SystemExit()]) for i in range(limit)]
    ward.world.advance(3)
    for own in held_entries:
        own.gate.open()
    ward.log.clear()

    assert set(ward.names_after(5)) == {own.name for own in held_entries}
    assert len(ward.world.killed_by) == limit


# The end


def test_nothing_is_renewed_after_it_ended(ward):
    """Neither a released entry nor one whose loss is known."""
    released, lost = ward.add("released", 9.0), ward.add("lost", 9.0)
    meanwhile = ward.add("released during its renewal", 3.0, is_blocked=True)
    ward.end(released)
    lost.ownership = lost.ownership.lost("evicted")
    assert ward.names_after(1) == ["released during its renewal"]
    ward.end(meanwhile)
    meanwhile.gate.open()

    assert ward.names_after(100) == []


def test_memory_does_not_grow(ward):
    """Two thousand locks taken and released, some held throughout: the heap holds about what is held."""
    held = [ward.own(f"held{i}", 3600.0) for i in range(5)]
    for own in held:
        ward.heartbeat.add(own)
    most = 0
    for _ in range(2_000):
        own = Own(ward.world, 3600.0, ward.log)
        ward.heartbeat.add(own)
        ward.end(own)
        most = max(most, len(ward.heartbeat._due))

    assert most < 200
    assert {item[2] for item in ward.heartbeat._due} >= set(held)
    assert ward.world.threads <= MAX_THREADS


def test_threads_leave_when_there_is_nothing_to_do(ward):
    """And come back with the next lock."""
    ward.end(ward.add("a", 9.0))
    ward.world.advance(20)

    assert ward.world.threads == 0

    ward.add("b", 9.0)

    check_renewals(ward.names_after(3), ["b"])


def test_a_lock_taken_just_as_the_last_thread_leaves(ward):
    """It is renewed: the leaving thread or its successor sees it."""
    ward.end(ward.add("a", 9.0))
    ward.world.advance(3)
    for i in range(60):  # some of them fall on the moment of leaving
        own = ward.add(f"{i}", 1.5)
        check_renewals(ward.names_after(0.5), [f"{i}"])
        ward.end(own)
        ward.world.advance(4.5 + i * 0.01)


def test_no_thread_before_the_first_lock(ward):
    """A heartbeat that has nothing to renew costs nothing."""
    assert ward.heartbeat._threads == 0


def test_a_forked_child_has_a_heart_of_its_own(world, monkeypatch):
    """In a child no thread of the parent lives, and nothing of the parent's is renewed."""
    ward = Ward(world)
    monkeypatch.setattr(heartbeat, "heartbeat_thread", ward.heartbeat)
    theirs = ward.add("parent's", 9.0)
    heartbeat._reset_after_fork()

    assert heartbeat.heartbeat_thread is not ward.heartbeat
    assert (heartbeat.heartbeat_thread._due, heartbeat.heartbeat_thread._threads) == ([], 0)

    ward.heartbeat = heartbeat.heartbeat_thread
    own = ward.add("child's", 9.0)

    assert [item[2].name for item in heartbeat.heartbeat_thread._due] == ["child's"]
    ward.end(theirs)
    ward.end(own)
    ward.held_entries[1].ownership = ward.held_entries[1].ownership.ended()
    world.advance(100)


# Everything at once


def run_at_random(seed):
    """Take, release, hold up and fail at random; return what was overdue although a thread was free."""
    r = random.Random(seed)
    with World().installed() as world:
        ward = Ward(world)
        world.last_wakes_first = r.random() < 0.5
        overdue = []
        for step in range(30):
            live = [own for own in ward.held_entries if own.ownership.is_held]
            action = r.random()
            if action < 0.3:
                errors = [ValueError("x")] * (r.random() < 0.3)
                ward.add(f"{step}", r.choice([0.6, 3.0, 9.0, 60.0]), is_blocked=r.random() < 0.3, errors=errors)
            elif action < 0.4 and live:
                ward.end(r.choice(live))
            elif action < 0.6 and world.gates:
                r.choice(world.gates).open()
            else:
                world.advance(r.choice([0.1, 1.0, 3.0, 6.0]))
            world.settle()
            held = sum(gate.held for gate in world.gates)
            late = [own.name for due, _, own in ward.heartbeat._due if due < world.now and own.ownership.is_held]
            if held < MAX_THREADS and late:
                overdue.append((step, late))
        for own in ward.held_entries:
            own.ownership = own.ownership.ended()
        for gate in world.gates:
            gate.open()
        world.advance(100)
        assert world.threads == 0
    return overdue


def test_nothing_is_ever_late(caplog):
    """As long as fewer renewals hang than there may be threads, every other one is begun when it is due."""
    caplog.set_level("CRITICAL", logger="pynamo_locking")
    late = {seed: found for seed in range(40) if (found := run_at_random(seed))}

    assert late == {}, f"not renewed in time although a thread was free; by seed, (step, names): {late}"
