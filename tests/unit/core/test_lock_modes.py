"""Which claims stand in each other's way, and who is granted: the rule behind all modes."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynamo_locking._core.lock_modes import (
    EXCLUSIVE,
    SHARED,
    WHOLE,
    LockMode,
    Mode,
    are_compatible,
    blockers,
    disagreement,
    front,
    spanning,
)
from pynamo_locking._core.lock_queue import eviction_traces
from pynamo_locking._core.values import item_size
from pynamo_locking._io import lock_record
from tests.unit.helpers import entry, queue, steady


def span(lower, upper, mode=EXCLUSIVE, kind="N"):
    """A range of whole numbers; None is an open end."""
    ends = (None if end is None else (kind, str(end)) for end in (lower, upper))
    return LockMode(mode, 1, *ends)


SHARE = LockMode(SHARED)
ENDS = st.one_of(st.none(), st.integers(-3, 12))
SPANS = st.builds(
    lambda pair, mode: span(*pair, mode),
    st.tuples(ENDS, ENDS).filter(lambda pair: None in pair or pair[0] < pair[1]),
    st.sampled_from([EXCLUSIVE, SHARED]),
)


def members(claim):
    """The whole and half numbers from -5 to 15 that lie in a range."""
    halves = [n / 2 for n in range(-10, 31)]
    return {n for n in halves if claim.contains(("N", str(n)))}


@steady
@given(SPANS, SPANS)
def test_ranges_overlap_if_they_have_a_value_in_common(one, other):
    """Half-open, with open ends, whichever is asked."""
    assert one.overlaps(other) == other.overlaps(one) == bool(members(one) & members(other))


MODES: tuple[Mode, ...] = get_args(Mode)


@pytest.mark.parametrize(("one", "other"), [*itertools.product(MODES, MODES)])
def test_the_matrix_of_modes_is_symmetric(one: Mode, other: Mode):
    """Who came first makes no difference; each row is complete; exclusive excludes all, however they come."""
    assert are_compatible(one, other) is are_compatible(other, one)
    assert LockMode(one).conflicts(LockMode(other)) is LockMode(other).conflicts(LockMode(one))
    if EXCLUSIVE in (one, other):
        assert not are_compatible(one, other)


@steady
@given(SPANS, SPANS)
def test_conflict(one, other):
    """Where they overlap, unless both only read."""
    both_read = one.mode == other.mode == SHARED
    assert one.conflicts(other) == other.conflicts(one) == (one.overlaps(other) and not both_read)


@steady
@given(SPANS, SPANS)
def test_who_holds_one_claim_holds_what_it_covers(one, other):
    """All of its values, and no less than its mode."""
    inside = (one.lower is None or (other.lower is not None and int(other.lower[1]) >= int(one.lower[1]))) and (
        one.upper is None or (other.upper is not None and int(other.upper[1]) <= int(one.upper[1]))
    )
    assert one.covers(other) == (inside and (one.mode == EXCLUSIVE or other.mode == SHARED))
    assert not one.covers(LockMode(other.mode, 2, other.lower, other.upper))


@pytest.mark.parametrize(
    ("lower", "upper"), [(("N", "9"), ("N", "10")), (("S", "Z"), ("S", "a")), (("S", "\uffff"), ("S", "\U0001f600"))]
)
def test_values_are_in_the_order_of_dynamodb(lower, upper):
    """Numbers by value, strings by code point: above the surrogates too, where UTF-16 would differ."""
    assert LockMode(lower=lower).contains(upper)
    assert not LockMode(lower=upper).contains(lower)


def test_bytes_are_unsigned():
    """As DynamoDB compares them."""
    assert LockMode(lower=("B", b"\x7f")).contains(("B", b"\x80"))


@steady
@given(st.lists(SPANS, max_size=8))
def test_holders_are_compatible_and_no_waiter_overtakes(claims):
    """Two holders never conflict; a waiter conflicts with one that came before."""
    granted = list(front(claims))
    for one, other in itertools.combinations(granted, 2):
        assert not claims[one].conflicts(claims[other])
    for i in set(range(len(claims))) - set(granted):
        assert any(claims[i].conflicts(claims[j]) for j in range(i))


def test_a_reader_waits_behind_a_waiting_writer():
    """Else readers who keep coming would starve the writer."""
    assert list(front([SHARE, SHARE, WHOLE, SHARE])) == [0, 1]


def test_a_small_range_waits_behind_a_large_one():
    """Else small ranges that keep coming would starve it. One that touches no other is granted at once."""
    assert list(front([span(0, 2), span(0, 10), span(5, 6), span(10, 11)])) == [0, 3]


@steady
@given(st.integers(1, 5), st.integers(0, 9))
def test_a_semaphore_has_as_many_holders_as_permits(permits, length):
    """The first ones."""
    assert list(front([LockMode(permits=permits)] * length)) == list(range(min(permits, length)))


def test_disagreement_blocks():
    """Who asks for more permits than those ahead is not granted beside them; he is told so."""
    assert blockers(LockMode(permits=5), [LockMode(permits=3)]) == [0]
    assert "permits=5" in str(disagreement(LockMode(permits=5), LockMode(permits=3)))
    assert "permits=3" in str(disagreement(LockMode(permits=5), LockMode(permits=3)))


@pytest.mark.parametrize(("one", "other"), [(span(1, 2), span("a", "b", kind="S")), (WHOLE, LockMode(permits=2))])
def test_who_cannot_share_a_queue(one, other):
    """Ranges of unlike values, and the whole lock beside a semaphore: they are told, and do not overlap silently."""
    assert disagreement(one, other)
    assert disagreement(other, one)
    assert blockers(one, [other]) == [0]


@pytest.mark.parametrize("other", [WHOLE, SHARE, span(3, None), span(None, None, SHARED)])
def test_modes_and_ranges_mix(other):
    """The whole lock, readers, and ranges of one kind of value."""
    assert disagreement(span(1, 2), other) is None


@steady
@given(st.lists(SPANS, min_size=2, max_size=5))
def test_the_order_of_taking_several(claims):
    """Total, and a claim that covers another one of the same place comes first."""
    ordered = sorted(claims, key=lambda claim: claim.sort_key)
    for earlier, later in itertools.combinations(ordered, 2):
        assert not (later.covers(earlier) and not earlier.covers(later) and later.lower == earlier.lower)
    assert [c.sort_key for c in ordered] == sorted(c.sort_key for c in reversed(claims))


@steady
@given(st.lists(SPANS, min_size=1, max_size=5))
def test_what_spans_several(claims):
    """It covers each of them, and nothing that all of them leave out at its ends."""
    wide = spanning(claims)
    assert all(wide.covers(claim) for claim in claims)
    assert (wide.mode == SHARED) == all(claim.mode == SHARED for claim in claims)
    assert wide.lower in [claim.lower for claim in claims]
    assert wide.upper in [claim.upper for claim in claims]


def test_no_field_of_an_entry_is_forgotten_in_its_growth():
    """An entry with all that later writes may add is no larger than the room that was kept for it: see `GROWTH`."""
    small = lock_record.new_entry("o", WHOLE, 60.0, 0, ticket=7)
    [entry] = lock_record.state_of(lock_record.new_document("me", small, 7)["M"]).entries
    grown = {"heartbeats": 10**10, "writes": 10**10, "renewed_ms": 10**10, "granted_ms": 10**10}
    handed_over = {"owner": "o" * 256, "entered_ms": 0, "lease_ms": 60_000, "callers": 1, "token_id": "t" * 14}
    # A new field fails here: say how far it grows, here and in `GROWTH`.
    stored = lock_record._FACTS.encode(SimpleNamespace(**grown, **handed_over)) | lock_record.LOCK_MODE.encode(SHARE)
    added = item_size({"x": {"M": stored}}) - item_size({"x": small["L"][1]})
    assert lock_record.growth(entry) - 50 <= added <= lock_record.growth(entry)


def test_claims_are_stored_and_read():
    """All of it, and nothing more than is needed."""
    for claim in (
        WHOLE,
        SHARE,
        LockMode(permits=3),
        span(1, None, SHARED),
        LockMode(lower=("B", b"\x00"), upper=("B", b"1")),
    ):
        document = lock_record.new_document("me", lock_record.new_entry("o", claim, 1.0, 0, ticket=7), 7)
        (stored,) = lock_record.state_of(document["M"]).entries
        assert stored.lock_mode == claim
    [whole] = lock_record.new_entry("o", WHOLE, 60.0, 0)["L"]
    assert whole["M"].keys() == {"o", "b", "e", "w"}


# What an eviction leaves


def test_all_evicted_holders_leave_a_trace():
    """Readers hold together; a writer behind them did not hold."""
    readers = [entry(ticket, lock_mode=SHARE) for ticket in (1, 2)]
    assert eviction_traces([*readers, entry(3)], {}) == {1: 1, 2: 2}
    assert eviction_traces([entry(1), entry(2)], {}) == {1: 1}


def test_the_younger_of_two_in_one_slot_is_remembered():
    """Whether the older one was evicted is unknown then, which is the truth."""
    readers = [entry(ticket, lock_mode=SHARE) for ticket in (1, 9)]
    assert eviction_traces(readers, {}) == {1: 9}
    state = queue(entry(20), since=1, evicted=eviction_traces(readers, {}))
    assert (state.was_evicted(9), state.was_evicted(1)) == (True, None)
    assert eviction_traces(readers[:1], {1: 9, 2: 10}) == {}
    assert eviction_traces(readers[1:], {1: 1}) == {1: 9}


def test_words_for_a_claim():
    """In errors and logs."""
    texts = [str(claim) for claim in (WHOLE, SHARE, LockMode(permits=3), span(1, None, SHARED))]
    assert texts == ["exclusive", "shared", "permits=3", "shared [1, ...)"]
