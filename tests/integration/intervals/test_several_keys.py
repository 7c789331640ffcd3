"""Rows and gaps of several hash keys, and of all of a model by an index."""

from __future__ import annotations

import itertools
from datetime import datetime, timezone
from typing import Any

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex
from pynamodb.models import Model

from pynamo_locking import ExpiringMixin, TTLAttribute, VersionAttribute
from pynamo_locking.exceptions import ConfigurationError, InvalidInput
from pynamo_locking.intervals import IntervalMixin
from tests.support.interval_models import Booking, SlotLocks
from tests.support.models import meta
from tests.support.wire import count_requests


class ByBegin(GlobalSecondaryIndex[Any]):
    """All rows of a floor."""

    class Meta:
        projection = AllProjection()

    floor = NumberAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)


class ByRoom(GlobalSecondaryIndex[Any]):
    """An index that says nothing of when."""

    class Meta:
        projection = AllProjection()

    floor = NumberAttribute(hash_key=True)
    room = UnicodeAttribute(range_key=True)


class Stay(IntervalMixin, ExpiringMixin, Model):
    """An end may be open; rows expire."""

    Meta = meta("stays", lock_table=SlotLocks, interval=("begin", "end"))

    room = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute(null=True)
    floor = NumberAttribute(default=1)
    expires = TTLAttribute(null=True)
    version = VersionAttribute()
    by_begin = ByBegin()
    by_room = ByRoom()


def keys_of(rows: Any) -> list[tuple[str, int]]:
    return [(row.room, int(row.begin)) for row in rows]


@pytest.fixture
def stays(engine):
    engine.bind(Stay, SlotLocks)
    rows = [("red", 1, 3), ("red", 5, None), ("blue", 2, 4), ("blue", 4, 6), ("green", 0, 1)]
    Stay.intervals.insert_disjoint([Stay(room, begin, end=end) for room, begin, end in rows])
    Stay("grey", 1, end=9, expires=datetime(2000, 1, 1, tzinfo=timezone.utc)).save()


def test_rows_and_gaps_come_by_hash_key_in_the_order_given(stays):
    rooms = ["red", "grey", "green", "blue", "none"]

    assert keys_of(Stay.intervals.overlapping_in(rooms, 2, 6)) == [("red", 1), ("red", 5), ("blue", 2), ("blue", 4)]
    assert keys_of(Stay.intervals.overlapping_in(rooms, None, None, limit=3)) == [("red", 1), ("red", 5), ("green", 0)]
    assert list(Stay.intervals.free_in(("red", "blue", "grey"), 2, 7)) == [
        ("red", 3, 5),
        ("blue", 6, 7),
        ("grey", 2, 7),
    ]
    found = Stay.intervals.overlapping_in([1], 2, 5, index=Stay.by_begin)
    assert keys_of(found) == [("red", 1), ("blue", 2), ("blue", 4)]
    assert keys_of(Stay.intervals.overlapping_in([1, 2], 6, None, index=Stay.by_begin, limit=9)) == [("red", 5)]
    assert keys_of(Stay.intervals.overlapping_in([1], None, 1, index=Stay.by_begin)) == [("green", 0)]


def test_a_hash_key_is_asked_for_when_it_is_needed(stays):
    with count_requests() as requests:
        found = Stay.intervals.overlapping_in(itertools.cycle(["red", "blue"]), 2, 6)
        assert not requests.by_operation
        assert next(found).room == "red"
        assert requests.by_operation == {"Query": 1}
        assert keys_of(itertools.islice(found, 4)) == [("red", 5), ("blue", 2), ("blue", 4), ("red", 1)]
        assert requests.by_operation == {"Query": 3}


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: Stay.intervals.overlapping_in("red", 1, 2), "several hash keys"),
        (lambda: Stay.intervals.overlapping_in(None, 1, 2), "several hash keys"),  # type: ignore[arg-type]
        (lambda: Stay.intervals.free_in(b"red", 1, 2), "several hash keys"),  # type: ignore[arg-type]
        (lambda: Stay.intervals.overlapping_in(["red"], 2, 2), "before it ends"),
        (lambda: Stay.intervals.free_in(["red"], 3, 2), "before it ends"),
        (lambda: Stay.intervals.overlapping_in(["red"], 1, 2, limit=0), "limit must be"),
        (lambda: Stay.intervals.overlapping_in([1], 1, 2, index=Stay.by_room), "range key is 'begin'"),
        (lambda: Stay.intervals.overlapping_in([1], 1, 2, index="by_begin"), "index must be"),  # type: ignore[arg-type]
        (lambda: Booking.intervals.overlapping_in([1], None, None, index=Stay.by_begin), "index of Booking"),
    ],
)
def test_strange_arguments_are_refused_at_the_call(call, why):
    with pytest.raises((ConfigurationError, InvalidInput), match=why):
        call()
