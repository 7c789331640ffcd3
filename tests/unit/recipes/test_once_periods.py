"""When a run is due: grids of periods in time zones, and what the last success says about them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynamo_locking._core.lock_queue import RunRecord
from pynamo_locking._recipes.once import make_period
from pynamo_locking.exceptions import ConfigurationError
from tests.unit.helpers import steady

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
ZONES = [
    "UTC",
    "Europe/Zurich",
    "America/New_York",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "America/Havana",
    "Pacific/Chatham",
]
LENGTHS = [1, 900, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 366 * 86400]


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def begin(text: str, period: Any, zone: str | None = None) -> str:
    """When the period began, in UTC."""
    made = make_period(period, zone, since_success=False, at_least=0)
    return datetime.fromtimestamp(made.begin_ms(ms(text)) / 1000, tz=timezone.utc).isoformat()[:16]


class OfPytz(tzinfo):
    """What `pytz.timezone` returns: by itself it has the offset that the zone had first."""

    def localize(self, local: datetime) -> datetime:
        raise NotImplementedError

    def __str__(self) -> str:
        return "Europe/Zurich"


def success(period: str, began: str | None = None, ended: str | None = None) -> RunRecord:
    return RunRecord(7, "web-1:811", ms(period), ms(began or period), ms(ended or began or period))


@pytest.mark.parametrize(
    ("now", "period", "zone", "expected"),
    [
        ("2026-11-23T08:13:59Z", DAY, None, "2026-11-23T00:00"),
        ("2026-11-23T23:13:59Z", DAY, "Europe/Zurich", "2026-11-23T23:00"),
        ("2026-11-23T22:59:59Z", DAY, "Europe/Zurich", "2026-11-22T23:00"),
        ("2026-11-23T08:13:59Z", HOUR, "Asia/Kathmandu", "2026-11-23T07:15"),  # 13:58 on the clock, from 13:00 on
        ("2026-11-23T08:13:59Z", 900, None, "2026-11-23T08:00"),
        ("2026-11-29T23:59:59Z", 7 * DAY, None, "2026-11-23T00:00"),  # a Monday
        ("2026-11-30T00:00:00Z", 7 * DAY, None, "2026-11-30T00:00"),
        # A day of 25 hours: the clocks go back from 3:00 to 2:00, at 01:00 UTC.
        ("2026-10-25T22:59:59Z", DAY, "Europe/Zurich", "2026-10-24T22:00"),
        ("2026-10-25T00:59:59Z", HOUR, "Europe/Zurich", "2026-10-25T00:00"),
        ("2026-10-25T01:00:00Z", HOUR, "Europe/Zurich", "2026-10-25T01:00"),
        ("2026-10-25T02:59:59Z", 2 * HOUR, "Europe/Zurich", "2026-10-25T00:00"),
        ("2026-10-25T11:00:00Z", 12 * HOUR, "Europe/Zurich", "2026-10-25T11:00"),
        # One of 23: from 2:00 to 3:00, at 01:00 UTC.
        ("2026-03-29T21:59:59Z", DAY, "Europe/Zurich", "2026-03-28T23:00"),
        ("2026-03-29T22:00:00Z", DAY, "Europe/Zurich", "2026-03-29T22:00"),
        ("2026-03-29T01:30:00Z", 2 * HOUR, "Europe/Zurich", "2026-03-29T01:00"),
        # A midnight that comes twice, and one that never comes: the clocks go back at 1:00, and forward at 0:00.
        ("2026-11-01T05:30:00Z", DAY, "America/Havana", "2026-11-01T04:00"),
        ("2026-03-08T12:00:00Z", DAY, "America/Havana", "2026-03-08T05:00"),
        # The clocks went from 2:45 to 3:45, so at 3:50 the hour that began at 2:00 is not over.
        ("2026-09-26T14:05:00Z", HOUR, "Pacific/Chatham", "2026-09-26T13:15"),
        ("2026-09-26T14:15:00Z", HOUR, "Pacific/Chatham", "2026-09-26T14:15"),
    ],
)
def test_the_beginning_of_a_period(now, period, zone, expected):
    """Days begin at midnight in the zone, shorter periods are counted from there by its clock."""
    assert begin(now, period, zone) == expected


@steady
@given(st.integers(0, 4_000_000_000), st.sampled_from(ZONES), st.sampled_from(LENGTHS))
def test_a_period_begins_before_now_and_not_long_ago(now_s, zone, length):
    """Whatever the zone does with its clocks, a period has begun, and lasts at most some hours longer than usual."""
    made = make_period(length, zone, since_success=False, at_least=0)
    began_s = made.begin_ms(now_s * 1000) / 1000

    assert began_s <= now_s
    assert now_s - began_s < length + 3 * 3600
    assert made.begin_ms(int(began_s) * 1000) <= began_s * 1000


@pytest.mark.parametrize("length", [3600, 86400])
@pytest.mark.parametrize("zone", ["Europe/Zurich", "America/New_York"])
def test_a_year_has_all_its_hours_and_days(zone, length):
    """Each real hour is a period of its own, also the one that a clock shows twice; a year has 365 days."""
    made = make_period(length, zone, since_success=False, at_least=0)
    start = int(datetime(2026, 1, 1, tzinfo=ZoneInfo(zone)).timestamp())
    begins = {made.begin_ms((start + passed) * 1000) for passed in range(0, 365 * 86400, length // 2)}

    assert len(begins) == 365 * 86400 // length


@pytest.mark.parametrize(
    ("begins", "now", "expected"),
    [
        ("2026-11-24", "2026-11-24T03:00Z", "due"),
        ("2026-11-23", "2026-11-23T03:00Z", "done"),
        ("2026-11-22", "2026-11-22T23:59Z", "done"),  # a clock that is behind: its period is over
        ("2026-11-24", "2026-11-24T00:09Z", "too_soon"),
        ("2026-11-24", "2026-11-24T00:10Z", "due"),
    ],
)
def test_a_run_is_due_in_a_later_period_only(begins, now, expected):
    """By the order of the periods; and not within `at_least` of the beginning of the last run."""
    made = make_period(DAY, None, since_success=False, at_least=timedelta(minutes=30))
    last = success("2026-11-23T00:00Z", "2026-11-23T23:40Z", "2026-11-23T23:59Z")

    assert made.status(ms(f"{begins}T00:00Z"), ms(now), last) == expected
    assert made.status(ms(f"{begins}T00:00Z"), ms(now), None) == "due"


@pytest.mark.parametrize(("now", "expected"), [("03:59:59", "done"), ("04:00:00", "due"), ("02:00:00", "done")])
def test_since_the_last_success(now, expected):
    """Counted from the end of the run; a clock that is behind it counts as too early."""
    made = make_period(HOUR, None, since_success=True, at_least=0)
    now_ms = ms(f"2026-11-23T{now}Z")

    assert made.begin_ms(now_ms) == now_ms
    assert made.status(now_ms, now_ms, success("2026-11-23T02:30Z", ended="2026-11-23T03:00Z")) == expected


def test_a_clock_behind_the_last_run_is_not_too_soon_for_a_later_period():
    """Without `at_least` the order of the periods alone decides."""
    made = make_period(DAY, None, since_success=False, at_least=0)
    last = success("2026-11-23T00:00Z", "2026-11-24T00:00:05Z")

    assert made.status(ms("2026-11-24T00:00Z"), ms("2026-11-24T00:00:01Z"), last) == "due"


def test_a_row_is_kept_for_longer_than_its_success_counts():
    """A day longer than the longer of both, and another for leases without a renewal."""
    assert make_period(7 * DAY, None, since_success=False, at_least=0).kept_s(86400) == 9 * 86400
    assert make_period(HOUR, None, since_success=True, at_least=3 * DAY).kept_s(60) == 5 * 86400
    assert make_period(7 * DAY, None, since_success=False, at_least=0).kept_s(7 * 86400) == 15 * 86400


@pytest.mark.parametrize(
    ("terms", "what"),
    [
        ({"period": 0}, "whole number of seconds, from 1 s"),
        ({"period": 0.5}, "whole number of seconds"),
        ({"period": 367 * DAY}, "366 days"),
        ({"period": "1d"}, "must be seconds"),
        ({"period": 5 * HOUR}, "must divide a day"),
        ({"period": 36 * HOUR}, "months and years are no periods"),
        ({"zone": "Europe/Zuerich"}, "no time zone 'Europe/Zuerich' here.*tzdata"),
        ({"zone": "../etc/passwd"}, "no time zone"),
        ({"zone": ""}, "no time zone"),
        ({"zone": 3}, "no time zone 3"),
        ({"zone": OfPytz()}, "pytz.*give zone='Europe/Zurich'"),
        ({"zone": "UTC", "since_success": True}, "leave out the zone"),
        ({"since_success": 1}, "True or False"),
        ({"at_least": -1}, "at_least must not be negative"),
        ({"at_least": float("inf")}, "at_least must be at most"),
    ],
)
def test_what_makes_no_sense(terms, what):
    """Is refused before any request."""
    terms = {"period": DAY, "zone": None, "since_success": False, "at_least": 0, **terms}
    with pytest.raises(ConfigurationError, match=what):
        make_period(terms.pop("period"), terms.pop("zone"), **terms)


def test_a_zone_of_ones_own():
    """Any tzinfo will do; and without a grid any length."""
    made = make_period(DAY, timezone(timedelta(hours=-5)), since_success=False, at_least=0)

    assert made.begin_ms(ms("2026-11-23T04:59Z")) == ms("2026-11-22T05:00Z")
    assert make_period(5 * HOUR, None, since_success=True, at_least=0).length_s == 18000
