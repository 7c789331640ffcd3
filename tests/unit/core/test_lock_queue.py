"""Who is first, who is dead, when to look again."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pynamo_locking import LockSettings
from pynamo_locking._core.lock_queue import (
    EVICTION_SLOTS,
    FREE,
    HeartbeatObservation,
    QueueProgress,
    dead_among,
    observe,
    poll_delay,
)
from pynamo_locking.inspection import LockState
from tests.unit.helpers import entry, queue, steady

BEATS = st.lists(st.integers(0, 6), min_size=1, max_size=30)


# LockState


def test_an_entry_knows_its_lease_and_age():
    """Lease in seconds; age since the last renewal, by the clocks of owner and reader."""
    it = entry(lease_ms=30_500, until_ms=100_500, read_ms=71_000)

    assert it.lease == 30.5
    assert it.age == 1.0


def test_an_entry_knows_how_long_it_has_waited_and_held():
    """By the clocks of owner and reader. Until its grant is stored it counts from the last sign of life before it."""
    waited = entry(lease_ms=30_000, entered_ms=10_000, until_ms=70_000, read_ms=50_000)
    held = entry(lease_ms=30_000, entered_ms=10_000, granted_ms=42_000, until_ms=70_000, read_ms=50_000)

    assert (waited.queued_for, waited.held_for) == (40.0, 10.0)
    assert (held.queued_for, held.held_for) == (40.0, 8.0)


@pytest.mark.parametrize("granted_ms", [None, 63_000])
def test_nothing_has_lasted_for_less_than_no_time(granted_ms):
    """The owner's clock may be ahead of the reader's."""
    it = entry(lease_ms=30_000, entered_ms=60_000, granted_ms=granted_ms, until_ms=95_000, read_ms=50_000)

    assert (it.queued_for, it.held_for) == (0.0, 0.0)


def test_free():
    """A lock that never was has neither holders nor waiters nor a document."""
    assert LockState() == FREE
    assert (FREE.holders, FREE.waiters, FREE.exists, FREE.find("x")) == ((), (), False, None)


def test_the_first_holds_and_the_others_wait():
    """In the order of tickets."""
    first, second, third = entry(1), entry(2), entry(3)
    state = queue(first, second, third)

    assert state.holders == (first,)
    assert state.waiters == (second, third)
    assert state.exists


def test_an_empty_queue_is_free_and_exists():
    """A document whose queue is empty has no holder."""
    state = queue(since=5)

    assert (state.holders, state.waiters, state.exists) == ((), (), True)


@pytest.mark.parametrize(
    ("name", "ticket", "is_found"), [("id2", None, True), ("id2", 2, True), ("id2", 3, False), ("id9", None, False)]
)
def test_an_entry_is_found_by_name_and_ticket(name, ticket, is_found):
    """A revived entry, of the same name but with another ticket, is not ours."""
    state = queue(entry(1), entry(2))

    assert state.find(name, ticket) == (entry(2) if is_found else None)


@pytest.mark.parametrize("order", list(itertools.permutations([3, 5, 9])))
def test_only_smaller_tickets_are_ahead(order):
    """The grant rule does not depend on the order in which entries are stored."""
    entries = {ticket: entry(ticket) for ticket in order}
    state = queue(*(entries[ticket] for ticket in order))

    assert state.ahead_of(entries[3]) == ()
    assert state.ahead_of(entries[5]) == (entries[3],)
    assert set(state.ahead_of(entries[9])) == {entries[3], entries[5]}


@pytest.mark.parametrize(
    ("since", "slot", "expected"),
    [
        (100, None, False),  # no trace: not evicted
        (100, 103, True),
        (103, 103, True),  # the document's first ticket
        (100, 103 - EVICTION_SLOTS, False),  # an older ticket in the slot
        (100, 103 + EVICTION_SLOTS, None),  # a younger one has overwritten what was there
        (104, None, None),  # the document is younger than the ticket
        (104, 103, None),
    ],
)
def test_was_evicted(since, slot, expected):
    """The trace of a ticket, in the slot that it shares with every eighth other."""
    evicted = {} if slot is None else {103 % EVICTION_SLOTS: slot}

    assert queue(entry(200), since=since, evicted=evicted).was_evicted(103) is expected


@pytest.mark.parametrize(("since", "expected"), [(100, False), (99, None), (101, None), (0, None)])
def test_a_document_tells_of_its_own_tickets_only(since, expected):
    """One that was made anew by a clock that is behind may have come to larger tickets, and never had the holder."""
    assert queue(entry(200), since=100).was_evicted(103, since) is expected


@pytest.mark.parametrize("since", [None, 100])
def test_a_ticket_that_is_still_to_come_was_not_released(since):
    """An old copy of the document, written over it by code that checks nothing, does not know the holder yet."""
    assert queue(entry(102), since=100).was_evicted(103, since) is None


def test_was_evicted_without_a_document():
    """Nothing is known without a document."""
    assert FREE.was_evicted(103) is None


@steady
@given(st.lists(st.integers(1, 200), unique=True, max_size=40).map(sorted))
def test_evictions_are_never_confused(tickets):
    """Whatever was evicted, in order: a ticket that was is never called released, nor the other way round."""
    evicted = {ticket % EVICTION_SLOTS: ticket for ticket in tickets}
    state = queue(entry(300), since=1, evicted=evicted)

    for ticket in range(1, 210):
        assert state.was_evicted(ticket) in ({True, None} if ticket in tickets else {False, None})
    for ticket in tickets[-1:]:
        assert state.was_evicted(ticket) is True


def test_states_are_values():
    """They compare without the raw map, pickle, and cannot be changed."""
    state = LockState((entry(1),), 2, 1, {1: 1}, raw={"next": {"N": "2"}})

    assert state == LockState((entry(1),), 2, 1, {1: 1})
    assert pickle.loads(pickle.dumps(state)).raw == state.raw
    assert "raw" not in repr(state)
    with pytest.raises(FrozenInstanceError):
        state.next_ticket = 5


# observe


def test_who_left_is_forgotten():
    """The sightings do not grow with the history of the queue."""
    assert observe({"id1": HeartbeatObservation(4, 10.0)}, [entry(2)], 20.0) == {"id2": HeartbeatObservation(0, 20.0)}


@steady
@given(BEATS)
@example([4])
@example([4, 4])
@example([4, 5])
@example([4, 3, 4])
def test_a_sighting_is_the_first_of_the_highest_beat(beats):
    """Whatever order images arrive in, an entry is as old as the first image of its highest beat.

    The same beat again is no sign of life; a lower one, of an old image, neither is one nor makes the next image one.
    """
    seen = {}
    for now, beat in enumerate(beats):
        seen = observe(seen, [entry(1, heartbeats=beat)], float(now))

    assert seen == {"id1": HeartbeatObservation(max(beats), float(beats.index(max(beats))))}


# dead_among


def test_the_living_are_not_dead():
    """Not seen before, or seen within the lease, or over by less than the clock skew."""
    living = [entry(1), entry(2), entry(3, until_ms=95_000)]
    seen = {"id2": HeartbeatObservation(0, 40.0), "id3": HeartbeatObservation(0, 100.0)}

    assert dead_among(living, seen, 100.0, 60_000, 10.0) == ()


def test_the_silent_are_dead():
    """After a lease of silence, and its margin, on our own clock; whatever the wall clock says."""
    seen = {"id1": HeartbeatObservation(0, 0.0)}

    assert dead_among([entry(1)], seen, 62.9, 0, None) == ()
    assert dead_among([entry(1)], seen, 63.0, 0, None) == (entry(1),)


def test_each_lease_counts_for_its_own_entry():
    """A long lease is not judged by a short one."""
    short, long = entry(1, lease_ms=10_000), entry(2, lease_ms=100_000)
    seen = {"id1": HeartbeatObservation(0, 0.0), "id2": HeartbeatObservation(0, 0.0)}

    assert dead_among([short, long], seen, 50.0, 0, None) == (short,)


def test_the_long_over_are_dead_at_once():
    """By the stored end of the lease, without having been watched; not if no wall clock is trusted."""
    assert dead_among([entry(1)], {}, 0.0, 70_001, 10.0) == (entry(1),)
    assert dead_among([entry(1)], {}, 0.0, 70_001, None) == ()


def test_a_lease_beyond_belief_counts_as_the_longest():
    """By silence, and by the stored end: from the last renewal on. One that is believed does not change."""
    poisoned = entry(1, lease_ms=10**30, until_ms=10**30)  # renewed at 0
    seen = {"id1": HeartbeatObservation(0, 0.0)}

    assert dead_among([poisoned], seen, 104.9, 0, None, 100.0) == ()
    assert dead_among([poisoned], seen, 105.0, 0, None, 100.0) == (poisoned,)
    assert dead_among([poisoned], {}, 0.0, 110_000, 10.0, 100.0) == ()
    assert dead_among([poisoned], {}, 0.0, 110_001, 10.0, 100.0) == (poisoned,)
    assert dead_among([poisoned], {}, 0.0, 86_410_000, 10.0) == ()
    assert dead_among([poisoned], {}, 0.0, 86_410_001, 10.0) == (poisoned,)
    assert dead_among([entry(1)], seen, 62.9, 0, None, 100.0) == ()


# poll_delay


@steady
@given(
    position=st.integers(1, 200),
    min_poll_interval=st.floats(0.001, 2),
    poll_interval=st.floats(0.001, 2),
    waited=st.floats(0, 100),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_poll_delay(position, min_poll_interval, poll_interval, waited, jitter):
    """Between half and the whole of the interval, which grows with the wait, up to a longest for each position."""
    settings = LockSettings(min_poll_interval=min_poll_interval, poll_interval=poll_interval, max_poll_interval=2)
    pace = QueueProgress(position, 10.0)
    delay = poll_delay(pace, 10 + waited, settings, jitter)
    longest = min(poll_interval * position, 2)

    assert min(min_poll_interval, longest) / 2 <= delay <= longest
    assert poll_delay(pace, 11 + waited, settings, jitter) >= delay
    assert poll_delay(pace, 10, settings, 0) == min(min_poll_interval, longest) / 2
    assert poll_delay(pace, 1e9, settings, 0) == longest / 2
    woken = poll_delay(pace, 10 + waited, settings, jitter, is_woken=True)
    assert woken == pytest.approx(poll_interval * position * (0.5 + jitter / 2))


def test_the_first_waiter_polls_after_a_sixteenth_of_the_time_it_has_waited():
    """However long the holder takes, the waiter is late by a small part of that; up to `poll_interval`."""
    settings = LockSettings(min_poll_interval=0.01, poll_interval=0.1)
    pace = QueueProgress(1, 5.0)

    delays = [poll_delay(pace, 5 + waited, settings, 0) * 2 for waited in (0, 0.02, 0.16, 0.32, 0.8, 1.6, 10)]

    assert delays == pytest.approx([0.01, 0.01, 0.01, 0.02, 0.05, 0.1, 0.1])


def test_the_first_waiter_expects_a_turn_as_long_as_the_last():
    settings = LockSettings(min_poll_interval=0.01, poll_interval=10, max_poll_interval=10)
    pace = QueueProgress(2, 4.0).seen(1, 5.0)

    delays = [poll_delay(pace, 5 + waited, settings, 0) * 2 for waited in (0, 0.5, 0.9, 1, 1.6)]

    assert delays == pytest.approx([0.5, 0.25, 0.9 / 16, 1 / 16, 0.1])


def test_those_behind_look_by_the_pace_of_the_queue():
    """The last one has gone in 0.1 s, so four and a half more take 0.45 s; once none goes any more, longer."""
    settings = LockSettings(min_poll_interval=0.01, poll_interval=0.1, max_poll_interval=2)
    pace = QueueProgress(8, 4.0).seen(6, 5.2).seen(5, 5.3)

    assert pace.seen(7, 5.4) is pace, "an older image tells nothing"
    assert poll_delay(pace, 5.3, settings, 0) * 2 == pytest.approx(4.5 * 0.1)
    assert poll_delay(pace, 5.41, settings, 0) * 2 == pytest.approx(4.5 * 0.11)
    assert poll_delay(pace, 50.0, settings, 0) * 2 == pytest.approx(5 * 0.1)
    assert poll_delay(pace.seen(1, 5.5), 5.5, settings, 0) * 2 == pytest.approx(0.2 / 4 / 2)
