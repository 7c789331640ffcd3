"""Durations, settings and lease arithmetic."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynamo_locking import LockSettings
from pynamo_locking._core import lease
from pynamo_locking._core.lease import seconds
from pynamo_locking.exceptions import ConfigurationError
from tests.unit.helpers import steady

LENGTHS = st.floats(0.1, 86_400)
TIMES = st.floats(0, 1e9)
JITTER = st.floats(0, 1, exclude_max=True)


# Durations


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0.0), (2, 2.0), (0.25, 0.25), (math.inf, math.inf), (timedelta(minutes=1, milliseconds=5), 60.005)],
)
def test_durations_are_numbers_or_timedeltas(value, expected):
    """Both forms give float seconds."""
    result = seconds(value, "wait")

    assert result == expected
    assert type(result) is float


@pytest.mark.parametrize("value", ["5", None, True, False, [1], Decimal(1), 1j, b"1", object])
def test_what_is_no_duration_is_refused_by_name(value):
    """Other types, bool among them, are a ConfigurationError that names the argument and shows the value."""
    with pytest.raises(ConfigurationError) as caught:
        seconds(value, "lease")

    assert str(caught.value) == f"lease must be seconds (a number) or a timedelta, not {value!r}."


def test_a_duration_too_large_for_a_float_is_refused():
    """An integer no float can hold is a ConfigurationError as well, not an OverflowError."""
    with pytest.raises(ConfigurationError, match="wait"):
        seconds(10**400, "wait")


@pytest.mark.parametrize("value", [-1, -0.001, -math.inf, math.nan, timedelta(seconds=-1)])
def test_durations_below_zero_are_refused_by_name(value):
    """Negative durations and NaN are a ConfigurationError that names the argument and shows the value."""
    with pytest.raises(ConfigurationError, match=r"^poll_interval must not be negative.*, got ") as caught:
        seconds(value, "poll_interval")

    assert repr(value) in str(caught.value)


# LockSettings


def test_defaults():
    """The defaults are those of the documentation."""
    settings = LockSettings()

    assert settings == LockSettings(
        wait=60,
        lease=60,
        heartbeat=True,
        max_clock_skew=10,
        max_waiters=100,
        min_poll_interval=0.01,
        poll_interval=0.1,
        max_poll_interval=2,
        request_timeout=1,
        max_lease=86_400,
    )


@pytest.mark.parametrize(
    "name",
    [
        "wait",
        "lease",
        "min_poll_interval",
        "poll_interval",
        "max_poll_interval",
        "request_timeout",
        "max_clock_skew",
        "max_lease",
    ],
)
@pytest.mark.parametrize("value", [-1, math.nan, True, "1", [], timedelta(seconds=-1)])
def test_every_duration_is_checked_by_name(name, value):
    """A wrong duration is refused when the settings are made, and the message begins with its name."""
    with pytest.raises(ConfigurationError, match=rf"^{name} must "):
        LockSettings(**{name: value})


@pytest.mark.parametrize("value", [None, 0, -1, 1.5, True, "3", math.nan, math.inf])
def test_max_waiters_is_a_whole_number_above_zero(value):
    """Anything else is refused, with the value."""
    with pytest.raises(ConfigurationError, match=r"^max_waiters must be a whole number above 0, got ") as caught:
        LockSettings(max_waiters=value)

    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({"poll_interval": poll, "max_poll_interval": longest}, r"^poll_interval \(.*max_poll_interval \(")
            for poll, longest in ((0, 1), (2, 1))
        ),
        *(
            ({"poll_interval": poll, "max_poll_interval": math.inf}, r"^poll_interval \(.*max_poll_interval \(")
            for poll in (1, math.inf)
        ),
        *(({"min_poll_interval": min_poll_interval}, r"^min_poll_interval \(") for min_poll_interval in (0, math.inf)),
        *(({"request_timeout": value}, r"^request_timeout must be above 0 and finite") for value in (0, math.inf)),
        *(({"max_lease": endless}, r"^max_lease must be finite") for endless in (math.inf, 1e306)),
        ({"lease": math.inf}, r"^lease must be finite"),
        ({"lease": 1e-4, "request_timeout": 1e-5}, "whole milliseconds"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings, message):
    """No waiter looks without a pause, nor never; no request hangs for ever; a crashed process lets go some day.

    A lease of no millisecond would be stored as 0, and be renewed without a pause.
    """
    with pytest.raises(ConfigurationError, match=message):
        LockSettings(**settings)


def test_all_who_wait_fit_into_one_item():
    """With the longest labels they take half of it."""
    assert LockSettings(max_waiters=400).max_waiters == 400
    with pytest.raises(ConfigurationError, match=r"^max_waiters must be at most 400, got 401: "):
        LockSettings(max_waiters=401)


@pytest.mark.parametrize(
    ("longest", "length"), [(86_400, 86_401), (86_400, 1e30), (60, 60.001), (172_800, timedelta(days=3))]
)
def test_a_lease_must_be_one_that_others_believe(longest, length):
    """One above `max_lease` is refused; the message has both, and both ways out. A longer `max_lease` allows it."""
    with pytest.raises(ConfigurationError, match=r"is longer than max_lease \(.*heartbeat.*LockSettings\(max_lease"):
        LockSettings(lease=length, max_lease=longest)
    assert LockSettings(lease=longest, max_lease=longest).lease == longest
    assert LockSettings(lease=length, max_lease=1e31).max_lease == 1e31


@pytest.mark.parametrize(
    ("lease_ms", "until_ms", "expected"),
    [
        (60_000, 100_000, (60.0, 100_000)),
        (3_600_000, 4_000_000, (3600.0, 4_000_000)),
        (3_600_001, 4_000_000, (3600.0, 3_999_999)),
        (7_200_000, 7_200_000, (3600.0, 3_600_000)),
        (10**30, 10**30 + 5000, (3600.0, 3_605_000)),
        (10**125, 5000, (3600.0, 3_605_000 - 10**125)),
        (-60_000, 5000, (-60.0, 5000)),
    ],
)
def test_no_more_than_the_longest_lease_is_believed(lease_ms, until_ms, expected):
    """The rest is taken off its stored end as well, to the millisecond, so that it counts from the last renewal."""
    assert lease.believed(lease_ms, until_ms, 3600.0) == expected


@pytest.mark.parametrize("length", [0, 1, 5.999])
def test_a_lease_must_outlive_two_failed_renewals(length):
    """A lease below six request timeouts is refused; the message has both numbers and both ways out."""
    with pytest.raises(ConfigurationError, match=r"is too short") as caught:
        LockSettings(lease=length)

    message = str(caught.value)
    assert message.startswith(f"lease ({float(length)} s)")
    assert "at least 6.0 s" in message
    assert "request_timeout=" in message


def test_the_shortest_lease_is_six_request_timeouts():
    """Exactly six are enough."""
    assert LockSettings(lease=6).lease == 6
    assert LockSettings(lease=0.6, request_timeout=0.1, poll_interval=0.01).lease == 0.6
    with pytest.raises(ConfigurationError):
        LockSettings(lease=6, request_timeout=1.001)


def test_the_last_settings_that_can_work():
    """All durations are float seconds when read. wait and max_clock_skew may be infinite, the latter None."""
    settings = LockSettings(wait=math.inf, lease=timedelta(minutes=2), max_clock_skew=math.inf, max_lease=172_800)
    assert (settings.wait, settings.lease, settings.max_clock_skew) == (math.inf, 120.0, math.inf)
    assert type(settings.max_lease) is float
    assert LockSettings(wait=0, max_clock_skew=None).max_clock_skew is None
    assert LockSettings(lease=0.001, request_timeout=1e-5).lease == 0.001


def test_settings_are_values():
    """They compare, hash, pickle, cannot be changed, and `replace` checks again."""
    settings = LockSettings(wait=5)

    assert pickle.loads(pickle.dumps(settings)) == settings == LockSettings(wait=5.0)
    assert hash(settings) == hash(LockSettings(wait=5.0))
    with pytest.raises(FrozenInstanceError):
        settings.wait = 6
    with pytest.raises(ConfigurationError):
        replace(settings, lease=1)


# Arithmetic


def test_the_worst_request_connects_and_answers():
    """One request can take the timeout twice."""
    assert LockSettings(request_timeout=0.5).worst_request == 1.0


@steady
@given(since=TIMES, length=LENGTHS)
def test_silence_is_longer_than_the_lease(since, length):
    """Only more than a whole lease of silence is too long, with a margin for clocks of different rates."""
    margin = 1 + lease.RATE_MARGIN

    assert not lease.is_silent_for_too_long(since, since, length)
    assert not lease.is_silent_for_too_long(since, since + length, length)
    assert not lease.is_silent_for_too_long(since, since + length * margin * 0.999, length)
    assert lease.is_silent_for_too_long(since, since + length * margin * 1.001, length)


@pytest.mark.parametrize(
    ("now_ms", "skew", "expected"),
    [
        (0, 10.0, False),
        (50_000, 10.0, False),
        (60_000, 10.0, False),
        (60_001, 10.0, True),
        (50_000, 0.0, False),
        (50_001, 0.0, True),
        (10**15, None, False),
        (10**15, math.inf, False),
    ],
)
def test_the_hint_counts_beyond_the_clock_skew(now_ms, skew, expected):
    """An entry that ended at 50 s is over by its hint only once the skew is exceeded; never with None."""
    assert lease.is_over_by_hint(50_000, now_ms, skew) is expected


@steady
@given(started=TIMES, length=LENGTHS)
def test_renewals_leave_room_for_two_failures(started, length):
    """The next renewal is due a third into the lease."""
    assert lease.next_renewal(started, length) == pytest.approx(started + length / 3)


@steady
@given(length=st.floats(0.6, 86_400), jitter=JITTER)
def test_a_failed_renewal_is_tried_often(length, jitter):
    """At least ten more tries fit between the first renewal and the end of the lease; never a storm."""
    delay = lease.retry_delay(length, jitter)

    assert length / 3 + 10 * delay <= length
    assert min(1.0, length / 20) / 2 <= delay <= 1.0


@steady
@given(attempt=st.integers(0, 900), jitter=JITTER)
def test_backoff_has_full_jitter_and_a_cap(attempt, jitter):
    """Between 0 and 50 ms doubled at each attempt, at most 2 s."""
    delay = lease.backoff(attempt, jitter)

    assert delay == pytest.approx(min(2.0, 0.05 * 2 ** min(attempt, 10)) * jitter)
    assert 0 <= delay <= 2.0


@pytest.mark.parametrize("attempt", [1024, 100_000])
def test_backoff_survives_any_number_of_attempts(attempt):
    """A waiter that waits for ever through an outage makes more attempts than a float has exponents."""
    assert lease.backoff(attempt, 0.5) == 1.0


@steady
@given(now_ms=st.integers(0, 10**13), length=LENGTHS)
def test_a_lease_is_over_in_a_whole_second(now_ms, length):
    """TTL counts whole seconds: it never begins to count before the lease has ended, and not much later."""
    end = lease.lease_end_s(now_ms, length)

    assert isinstance(end, int)
    assert 0 < end - (now_ms / 1000 + length) <= 1.001
