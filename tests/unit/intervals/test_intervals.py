"""Intervals that must not overlap, without any database: compared with sets of single points."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pynamo_locking._core.dynamodb import LARGEST_KEYS
from pynamo_locking._core.row_keys import guard_name, row_name
from pynamo_locking._intervals.intervals import Edge, Span, begin_of, colliding, enclosing, gaps, joined
from tests.unit.helpers import steady

POINTS = range(12)
fifty = settings(steady, max_examples=50)


def span(lower: int | None, upper: int | None) -> Span:
    return Span(*(None if end is None else Edge(end, f"at {end}") for end in (lower, upper)))


def points(it: Span) -> set[int]:
    """What of the points from 0 to 11 lies in it."""
    lower = 0 if it.lower is None else it.lower.at
    upper = len(POINTS) if it.upper is None else it.upper.at
    return set(range(max(lower, 0), min(upper, len(POINTS))))


ENDS = st.one_of(st.none(), st.integers(0, 12))
WINDOWS = st.tuples(ENDS, ENDS).map(lambda ends: span(*ends)).filter(lambda window: not window.is_empty)


def disjoint(cuts: list[int], taken: list[bool]) -> list[Span]:
    """Some of the pieces between the cuts; the first has no beginning, the last no end."""
    pairs = itertools.pairwise([None, *sorted(set(cuts)), None])
    return [span(*ends) for ends, is_taken in zip(pairs, taken, strict=False) if is_taken]


DISJOINT = st.builds(disjoint, st.lists(st.integers(0, 12), min_size=2), st.lists(st.booleans(), min_size=12))


@fifty
@given(WINDOWS, WINDOWS)
def test_two_overlap_where_they_have_a_point_in_common(one: Span, other: Span) -> None:
    """Half-open: what only touches does not overlap; an open end goes on for ever."""
    expected = bool(points(one) & points(other))
    if one.upper is other.upper is None or one.lower is other.lower is None:
        expected = True

    assert one.overlaps(other) is other.overlaps(one) is expected


@fifty
@given(st.lists(WINDOWS, max_size=6))
def test_a_collision_is_found_if_there_is_one(spans: list[Span]) -> None:
    """And the two that are named do overlap."""
    expected = any(one.overlaps(other) for one, other in itertools.combinations(spans, 2))

    pair = colliding(spans)

    assert (pair is not None) is expected
    if pair is not None:
        assert pair[0] < pair[1]
        assert spans[pair[0]].overlaps(spans[pair[1]])


@fifty
@given(DISJOINT)
def test_joined_spans_have_the_same_points_and_do_not_touch(spans: list[Span]) -> None:
    """Whatever touches is one."""
    result = joined(reversed(spans))

    assert set().union(*map(points, result)) == set().union(*map(points, spans))
    assert all(one.upper < other.lower for one, other in itertools.pairwise(result) if one.upper and other.lower)


@fifty
@given(st.lists(WINDOWS, min_size=1))
def test_what_encloses_spans(spans: list[Span]) -> None:
    """It has all points of the spans, and the ends of two of them."""
    result = enclosing(spans)

    assert points(result) >= set().union(*map(points, spans))
    assert result.lower in [each.lower for each in spans]
    assert result.upper in [each.upper for each in spans]


@fifty
@given(DISJOINT, WINDOWS)
def test_gaps_are_what_is_free(spans: list[Span], window: Span) -> None:
    """In order, none empty, and their ends are those of the window or of rows."""
    result = gaps(sorted(spans, key=begin_of), window)

    assert set().union(*map(points, result)) == points(window) - set().union(*map(points, spans))
    assert not any(gap.is_empty for gap in result)
    assert all(one.upper < other.lower for one, other in itertools.pairwise(result) if one.upper and other.lower)


def test_gaps_of_open_windows_are_open() -> None:
    """A window without ends has gaps without ends."""
    assert gaps([], span(None, None)) == [span(None, None)]
    assert gaps([span(2, 4)], span(None, None)) == [span(None, 2), span(4, None)]
    assert gaps([span(2, 4)], span(3, None)) == [span(4, None)]
    assert gaps([span(2, 4)], span(2, 4)) == []


def test_edges_compare_by_what_is_stored() -> None:
    """The value that the model has may not sort at all."""
    assert Edge(1, object()) < Edge(2, object())
    assert Edge(1, "one") == Edge(1, "1.0")


@pytest.mark.parametrize("size", [1, 1000, 2036, 2037, 2042, 3000])
def test_names_of_guards_are_no_names_of_items(size: int) -> None:
    """Nor those of two hash keys the same; and all of them fit into a key."""
    names = {guard_name("table", ("S", key * size)) for key in "ab/#"}
    items = {row_name("table", (("S", key * size),)) for key in "ab/#"}

    assert len(names) == 4
    assert not names & items
    assert all(len(name) <= LARGEST_KEYS["hash"] for name in names)
    assert guard_name("table", ("N", "1.0")) == guard_name("table", ("N", "1"))
