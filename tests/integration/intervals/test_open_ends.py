"""Rows without an end, or without a beginning: from now on, until now. Seed 004: tariffs, prices, contracts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute, UTCDateTimeAttribute
from pynamodb.exceptions import UpdateError

from pynamo_locking import LockableModel, VersionAttribute
from pynamo_locking.exceptions import (
    ConfigurationError,
    Conflict,
    InvalidInput,
    LockTimeout,
    OverlapError,
    StaleVersion,
)
from pynamo_locking.intervals import IntervalMixin
from tests.support.interval_models import SlotLocks, unapplied
from tests.support.models import declare, meta
from tests.support.parties import in_thread
from tests.support.transaction_models import rows_of
from tests.support.wire import count_requests


class Tariff(IntervalMixin, LockableModel):
    """The begin is the range key, the end may be open."""

    Meta = meta("tariffs", lock_table=SlotLocks, interval=("begin", "end"))

    name = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute(null=True, attr_name="e")
    price = NumberAttribute(null=True)
    version = VersionAttribute()


#: The end is the range key, the begin may be open.
Archive = declare(
    "Archive",
    IntervalMixin,
    hash_key="name",
    end=UTCDateTimeAttribute(range_key=True),
    begin=UTCDateTimeAttribute(null=True),
    version=True,
    lock_table=SlotLocks,
    interval=("begin", "end"),
)


NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@pytest.fixture
def tables(cheap):
    cheap.bind(Tariff, Archive, SlotLocks)


def tariffs(*ends: tuple[int, int | None], **values: Any) -> list[Tariff]:
    return [Tariff("t", begin, end=end, **values) for begin, end in ends]


def stored() -> list[tuple[float, float | None]]:
    return [(row.begin, row.end) for row in Tariff.intervals.overlapping("t", None, None)]


def test_every_engine(engine):
    """What is asked of DynamoDB, they all understand."""
    engine.bind(Tariff, SlotLocks)
    Tariff.intervals.insert_disjoint([row := tariffs((10, None))[0]])
    row.price = 1
    row.save()
    Tariff.intervals.close_at(row, 20)
    Tariff.intervals.insert_disjoint(tariffs((20, None)))
    with pytest.raises(OverlapError):
        row.update(actions=[Tariff.end.remove()])
    assert stored() == [(10, 20), (20, None)]


@pytest.mark.parametrize(
    ("begin", "end", "others"),
    [
        (0, 10, []),
        (20, 30, []),
        (5, None, [(10, 20), (30, None)]),
        (25, None, [(30, None)]),
        (40, None, [(30, None)]),
        (1000, 1001, [(30, None)]),
        (29, 31, [(30, None)]),
    ],
)
def test_a_row_without_an_end_takes_all_that_comes(tables, begin, end, others):
    """It keeps others away as any row does, and is refused where others are."""
    Tariff.intervals.insert_disjoint(tariffs((10, 20), (30, None)))
    row = tariffs((begin, end))[0]

    if others:
        with pytest.raises(OverlapError) as caught:
            Tariff.intervals.insert_disjoint([row])
        assert [(each.begin, each.end) for each in caught.value.rows] == others
        assert caught.value.requested.end == end
    else:
        Tariff.intervals.insert_disjoint([row])
    assert stored() == sorted([(10, 20), (30, None), *([] if others else [(begin, end)])], key=str)


def test_two_open_rows_of_one_call(tables):
    """They overlap, whatever their begins are."""
    with pytest.raises(OverlapError, match="another row of the same call"):
        Tariff.intervals.insert_disjoint(tariffs((10, None), (20, None)))
    assert stored() == []


def test_what_is_free_beside_open_rows(tables):
    """Nothing after a row without an end; nothing before one without a beginning."""
    Tariff.intervals.insert_disjoint(tariffs((10, 20), (30, None)))
    Archive.intervals.insert_disjoint([Archive("a", NOON), Archive("a", NOON + 2 * HOUR, begin=NOON + HOUR)])

    assert Tariff.intervals.free("t", None, None) == [(None, 10), (20, 30)]
    assert Tariff.intervals.free("t", 40, 50) == []
    assert Archive.intervals.free("a", None, None) == [(NOON, NOON + HOUR), (NOON + 2 * HOUR, None)]
    assert Archive.intervals.free("a", None, NOON) == []


def test_a_row_without_a_beginning(tables):
    """With the end as the range key: the same, in the other direction."""
    Archive.intervals.insert_disjoint([row := Archive("a", NOON)])

    for begin in (None, NOON - HOUR):
        with pytest.raises(OverlapError):
            Archive.intervals.insert_disjoint([Archive("a", NOON - HOUR / 2, begin=begin)])
    with pytest.raises(OverlapError):
        Archive.intervals.insert_disjoint([Archive("a", NOON + HOUR)])
    Archive.intervals.close_at(row, NOON - 2 * HOUR)
    Archive.intervals.close_at(row, NOON - HOUR)
    Archive.intervals.insert_disjoint([Archive("a", NOON - HOUR)])
    assert [(each.begin, each.end) for each in Archive.intervals.overlapping("a", None, None)] == [
        (None, NOON - HOUR),
        (NOON - HOUR, NOON),
    ]


def test_a_row_is_closed_by_one_write(tables):
    """Without a look at any other row: a row that becomes shorter is in no way. It makes room at once."""
    Tariff.intervals.insert_disjoint([row := tariffs((10, None), price=1)[0]])

    with count_requests() as sent:
        Tariff.intervals.close_at(row, 50)
        Tariff.intervals.close_at(row, 20)
    assert sent.by_operation == {"UpdateItem": 2}
    assert (row.end, row.version) == (20, 3)
    Tariff.intervals.insert_disjoint(tariffs((20, None)))


NOT_SHORTER = "would not make this Tariff shorter, which is from 10 to 30"


@pytest.mark.parametrize(
    ("at", "told"),
    [*((at, rf"close_at\({at}\) {NOT_SHORTER}") for at in (5, 10, 30, 40)), (None, NOT_SHORTER), ("x", "'end'")],
)
def test_a_row_is_closed_inside_of_its_interval(tables, at, told):
    """Nothing is sent otherwise."""
    Tariff.intervals.insert_disjoint([row := tariffs((10, 30))[0]])

    with count_requests() as sent, pytest.raises(InvalidInput, match=told):
        Tariff.intervals.close_at(row, at)
    assert sent.total == 0
    with pytest.raises(ConfigurationError, match="needs a stored Tariff"):
        Tariff.intervals.close_at(tariffs((10, None))[0], 20)


def test_closing_makes_no_row_longer(tables):
    """A stale row is refused, and so is one whose instance shows an end that is not stored."""
    Tariff.intervals.insert_disjoint([row := tariffs((10, 20))[0], *tariffs((20, 30))])
    row.end = None
    with pytest.raises(Conflict) as caught:
        Tariff.intervals.close_at(row, 25)
    assert isinstance(caught.value, UpdateError)
    stale = Tariff.get("t", 10)
    Tariff.intervals.close_at(row, 15)
    with pytest.raises(StaleVersion):
        Tariff.intervals.close_at(stale, 12)
    assert stored() == [(10, 15), (20, 30)]


def test_a_row_is_opened_if_nothing_follows(tables):
    """By update, by save, by move; each looks for what comes after."""
    Tariff.intervals.insert_disjoint([row := tariffs((10, 20))[0], last := tariffs((40, 50))[0]])

    with pytest.raises(OverlapError):
        Tariff.intervals.move(row, 12, None)
    row.end = None
    with pytest.raises(OverlapError):
        row.save()
    last.update(actions=[Tariff.end.remove()])
    last.update(actions=[Tariff.end.set(60)])
    last.end = None
    last.save()
    Tariff.intervals.move(last, 45, None)
    assert stored() == [(10, 20), (45, None)]


def test_a_save_keeps_an_open_end(tables):
    """One write while it is open as the instance shows; also without a check of its version."""
    Tariff.intervals.insert_disjoint([row := tariffs((10, None))[0]])
    with count_requests() as sent:
        row.save()
        row.save(add_version_condition=False)
    assert sent.by_operation == {"PutItem": 1, "UpdateItem": 1}
    Tariff.intervals.close_at(Tariff.get("t", 10), 20)
    Tariff.intervals.insert_disjoint(tariffs((20, None)))

    with pytest.raises(OverlapError):
        row.save(add_version_condition=False)
    Tariff.get("t", 10).delete()
    with pytest.raises(OverlapError):
        row.save(add_version_condition=False)
    assert stored() == [(20, None)]


def test_open_rows_that_are_not_in_their_place_yet(tables):
    """The guard names them with their open end."""
    with unapplied(Tariff):
        Tariff.intervals.insert_disjoint(tariffs((10, None)))
        with pytest.raises(OverlapError):
            Tariff.intervals.insert_disjoint(tariffs((100, None)))


def test_a_row_that_has_moved_away_is_in_no_way(tables):
    """The guard names it by its key alone, which is no row without an end."""
    Tariff.intervals.insert_disjoint([row := tariffs((10, 20))[0]])
    Tariff.intervals.move(row, 30, 40)

    with count_requests() as sent:
        Tariff.intervals.insert_disjoint(tariffs((50, 60)))
    assert sent.by_operation == {"GetItem": 1, "Query": 1, "TransactWriteItems": 1}
    assert stored() == [(30, 40), (50, 60)]


def test_range_locks_of_open_rows(tables):
    """They are open as well, so that rows without an end queue for each other."""
    Tariff.intervals.insert_disjoint(tariffs((10, 20)), pessimistic=True)

    def insert() -> None:
        with pytest.raises(LockTimeout):
            Tariff.intervals.insert_disjoint(tariffs((20, None)), pessimistic=True, wait=0)

    with Tariff.locked_range("t", 1000, 1001):
        in_thread(insert)
    Tariff.intervals.insert_disjoint(tariffs((20, None)), pessimistic=True)


def test_ends_that_may_not_be_open(tables):
    """The range key, and an attribute without null=True; rows of others that lack it have no interval."""

    names, end = {"hash_key": "name", "range_key": "begin"}, NumberAttribute(attr_name="e")
    closed = declare("Closed", IntervalMixin, **names, end=end, version=True)
    closed.Meta = Tariff.Meta
    with pytest.raises(InvalidInput, match="it is the range key"):
        Tariff.intervals.insert_disjoint([Tariff("t", end=5)])
    with pytest.raises(InvalidInput, match="not declared with null=True"):
        closed.intervals.insert_disjoint([closed("t", 5)])
    Tariff.intervals.insert_disjoint(tariffs((10, None)))
    assert closed.intervals.overlapping("t", None, None) == []


def test_null_is_open(tables):
    """Another program may have stored DynamoDB's null where PynamoDB stores nothing."""
    Tariff.intervals.insert_disjoint([row := tariffs((10, None))[0]])
    [image] = rows_of(Tariff)
    item = {**image, "e": {"NULL": True}}
    Tariff._get_connection().connection.dispatch("PutItem", {"TableName": Tariff.Meta.table_name, "Item": item})

    assert [each.end for each in Tariff.intervals.overlapping("t", 100, 200)] == [None]
    row.price = 5
    row.save()
    Tariff.intervals.close_at(row, 20)
    assert stored() == [(10, 20)]
