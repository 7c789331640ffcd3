"""Lease arithmetic: when a lease ends, when it is renewed, and what durations must be to each other. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Union

from pynamo_locking._core.dynamodb import MOST_WAITERS
from pynamo_locking._core.errors import ConfigurationError

Duration = Union[float, int, timedelta]  # noqa: UP007 - evaluated at run time by Sphinx

#: A waiter's clock may run this much faster than the holder's before an eviction could come early. Quartz is a thousand
#: times better; virtual machines under load are not.
RATE_MARGIN: Final = 0.05

#: Leases are stored in whole milliseconds, and a lease of 0 ms would be renewed without a pause.
SHORTEST_LEASE_S: Final = 0.001

#: The longest lease, unless the settings of a lock say otherwise.
LONGEST_LEASE_S: Final = 24 * 3600.0

#: A lease is renewed after this part of it, which leaves room for two missed renewals.
RENEW_AFTER: Final = 1 / 3

#: DynamoDB's TTL may remove an idle lock row this long after the last lease in it has ended, if no success is in it.
IDLE_TTL_S: Final = 24 * 3600


def seconds(value: Duration, name: str) -> float:
    """Return a duration in seconds, or raise a `ConfigurationError` that names the argument."""
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif _is_number(value):
        try:
            result = float(value)
        except OverflowError:
            raise ConfigurationError(f"{name} is too large; use math.inf for a wait without end.") from None
    else:
        raise ConfigurationError(f"{name} must be seconds (a number) or a timedelta, not {value!r}.")
    if math.isnan(result) or result < 0:
        raise ConfigurationError(f"{name} must not be negative, got {value!r}.")
    return result


class Deadline:
    """Until when to wait, by the monotonic clock. Another thread may end the wait: it sets `at` to an earlier time."""

    def __init__(self, at: float) -> None:
        self.at = at


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Seconds:
    """A dataclass field that is given as a `Duration` and read as seconds; see `LockSettings.__post_init__`."""

    def __init__(self, default: float) -> None:
        self._default = default

    def __get__(self, instance: object, owner: type | None = None) -> float:
        return self._default  # of the class: an instance has another value

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: Duration) -> None: ...


@dataclass(frozen=True)
class LockSettings:
    """Settings of locks: for a whole application, or for one model in ``Meta.lock_settings``.

    Durations are given as ``float`` seconds or ``timedelta``, and read as seconds.

    Example::

        class Import(LockableModel):
            class Meta:
                table_name = "imports"
                lock_settings = LockSettings(wait=5, lease=timedelta(seconds=30))

            import_id = UnicodeAttribute(hash_key=True)
            version = VersionAttribute()
            lock = LockAttribute()

    Args:
        wait: how long `locked()` waits for the lock by default. 0 does not wait, ``math.inf`` waits for ever. 60 s, the
            usual lock timeout of relational databases.
        lease: how long a holder may stop renewing before it loses the lock. With a longer lease a holder survives a
            longer pause; with a shorter one waiters acquire the lock sooner after a crash. 60 s.
        max_lease: the longest lease that a caller may ask for. A longer stored lease counts as this long. Must be
            finite, and the same for all processes that use a lock. A day.
        heartbeat: True renews the lease in the background. With False the caller renews, or uses one long lease.
        max_hold: the longest time to hold the lock, counted from the grant. Then renewals stop and the lock is lost,
            with the reason ``"max_hold"``, even if the work hangs. The next waiter acquires it when the lease has
            expired. At least as long as the lease. ``math.inf``, no end.
        max_clock_skew: waiters evict an entry at once if its lease ended longer ago than this by their wall clock, so
            that they do not wait a whole lease for a process that died yesterday. With ``None`` they trust no wall
            clock and observe the entry for a full lease. Guarded writes are safe either way. 10 s.
        max_waiters: the most entries behind the holder. If callers share entries (`max_callers_per_entry`), an entry
            stands for one process. It takes 50 bytes of the item, and its owner label. If the queue is full, callers
            try again from time to time until their deadline. 100; at most 400, which with the longest labels take half
            of an item. Holders of a semaphore are not counted; of the holders of a shared lock or of ranges, all but
            one are.
        min_poll_interval: the shortest time between two polls of a waiter. While the queue moves fast, the next poll is
            at the estimated time of its turn. 0.01 s; `poll_interval` itself if that is shorter.
        poll_interval: the longest time between two polls of the first waiter, which polls after 1/16 of the time that
            it has waited; a poll costs half a read unit for each 4 KB of the item. Waiters further back poll less
            often. 0.1 s.
        max_poll_interval: the longest time between two polls of any waiter, unless it is woken (`local_wakeups`). 2 s.
        max_callers_per_entry: how many callers of one process may share an entry of the queue. The first one reserves a
            ticket for each of them. The entry passes from caller to caller, in the order of arrival and without
            polling; then the next entry of the queue is served. A caller that arrives later waits for the next entry of
            its process, which goes to the end of the queue. So up to `max_callers_per_entry` later callers of each
            other process are served before it, and as many more for each `max_callers_per_entry` callers of its process
            that are ahead of it. With 1 callers share no entry. 32.
        local_wakeups: whether a process may wake a waiter on the same machine, of the same user, as soon as its turn
            comes, by a socket in the directory for temporary files. Not on Windows. The wake-up brings the item, so the
            waiter needs no read, unless a native transaction has released the lock. It polls as well, in case a wake-up
            is lost: while all callers ahead of it can wake it, and for a lock in the item, after `poll_interval` for
            each of them.
        request_timeout: the time limit to connect, and again to receive the response, for each request of the lock. A
            lease must be at least six times as long, so that two renewals can fail before it ends. 1 s.

    Raises:
        ConfigurationError: if a value is out of range, or the values contradict each other.
    """

    wait: Seconds = Seconds(60.0)
    lease: Seconds = Seconds(60.0)
    heartbeat: bool = True
    max_clock_skew: float | None = 10.0
    max_waiters: int = 100
    min_poll_interval: Seconds = Seconds(0.01)
    poll_interval: Seconds = Seconds(0.1)
    max_poll_interval: Seconds = Seconds(2.0)
    request_timeout: Seconds = Seconds(1.0)
    max_lease: Seconds = Seconds(LONGEST_LEASE_S)
    max_callers_per_entry: int = 32
    local_wakeups: bool = True
    max_hold: Seconds = Seconds(math.inf)

    def __post_init__(self) -> None:
        durations = [name for name, each in vars(LockSettings).items() if isinstance(each, Seconds)]
        for name in durations if self.max_clock_skew is None else (*durations, "max_clock_skew"):
            object.__setattr__(self, name, seconds(getattr(self, name), name))
        if not _is_number(self.max_waiters) or self.max_waiters < 1 or self.max_waiters % 1:
            raise ConfigurationError(f"max_waiters must be a whole number above 0, got {self.max_waiters!r}.")
        if self.max_waiters > MOST_WAITERS:
            raise ConfigurationError(
                f"max_waiters must be at most {MOST_WAITERS}, got {self.max_waiters!r}: all are kept in one item."
            )
        if (
            not _is_number(self.max_callers_per_entry)
            or not 1 <= self.max_callers_per_entry <= MOST_WAITERS
            or self.max_callers_per_entry % 1
        ):
            raise ConfigurationError(
                f"max_callers_per_entry must be a whole number from 1 to {MOST_WAITERS}, "
                f"got {self.max_callers_per_entry!r}."
            )
        if not 0 < self.poll_interval <= self.max_poll_interval < math.inf:
            raise ConfigurationError(
                f"poll_interval ({self.poll_interval} s) must be above 0 and at most "
                f"max_poll_interval ({self.max_poll_interval} s)."
            )
        if not 0 < self.min_poll_interval < math.inf:
            raise ConfigurationError(f"min_poll_interval ({self.min_poll_interval} s) must be above 0 and finite.")
        if not 0 < self.request_timeout < math.inf:
            raise ConfigurationError("request_timeout must be above 0 and finite.")
        if self.max_lease * 1000 == math.inf:  # in ms, as it is compared
            raise ConfigurationError("max_lease must be finite: a crashed process must let go some day.")
        check_heartbeat(self.heartbeat)
        check_lease(self.lease, self)
        check_max_hold(self.max_hold, self.lease)

    @property
    def worst_request(self) -> float:
        """The longest time one request of the lock can take: to connect, then to answer."""
        return 2 * self.request_timeout


def shortest_lease(settings: LockSettings) -> float:
    """Return the shortest lease in which two renewals can fail."""
    return round(3 * settings.worst_request, 9)  # 3 * 0.4 is a little more than 1.2


def check_lease(lease: float, settings: LockSettings) -> None:
    """Refuse a lease that could end while its own renewal is still under way."""
    least = shortest_lease(settings)
    if lease == math.inf:
        raise ConfigurationError("lease must be finite: a crashed process must let go some day.")
    if lease < least:
        raise ConfigurationError(
            f"lease ({lease} s) is too short: one request can take {settings.worst_request} s "
            f"(request_timeout to connect and again to answer), and two renewals must be able to fail. "
            f"Use a lease of at least {least} s, or LockSettings(request_timeout=...) below {lease / 6:.3g} s."
        )
    if lease < SHORTEST_LEASE_S:
        raise ConfigurationError(f"lease ({lease} s) is too short: leases are stored in whole milliseconds.")
    if lease > settings.max_lease:
        raise ConfigurationError(
            f"lease ({lease} s) is longer than max_lease ({settings.max_lease} s), the longest for which waiters wait. "
            f"Use a shorter one with a heartbeat, or raise LockSettings(max_lease=...) for all that use the lock."
        )


def check_max_hold(max_hold: float, lease: float) -> None:
    """Refuse a longest hold that ends before a lease does, which nothing takes back."""
    if max_hold < lease:
        raise ConfigurationError(
            f"max_hold ({max_hold:g} s) is shorter than the lease ({lease:g} s), which keeps other parties out until "
            f"it ends. Make max_hold longer, or the lease shorter."
        )


def check_heartbeat(heartbeat: object) -> None:
    if not isinstance(heartbeat, bool):
        raise ConfigurationError(
            f"heartbeat must be True or False, not {heartbeat!r}. For work that may hang: max_hold."
        )


#: Of a model without `Meta.lock_settings`.
DEFAULT_SETTINGS: Final = LockSettings()


def believed(lease_ms: int, until_ms: int, max_lease: float) -> tuple[float, int]:
    """Return how much of a stored lease counts, see `LockSettings.max_lease`: its length in seconds, and its end."""
    excess_ms = max(0, lease_ms - int(max_lease * 1000))
    return (lease_ms - excess_ms) / 1000, until_ms - excess_ms


def is_silent_for_too_long(since: float, now: float, lease: float) -> bool:
    """Tell whether an unchanged heartbeat, first seen at `since`, proves that the lease has ended."""
    return now - since >= lease * (1 + RATE_MARGIN)


def is_over_by_hint(until_ms: int, now_ms: int, max_clock_skew: float | None) -> bool:
    """Tell whether the stored end of the lease is so old that no clock skew explains it."""
    return max_clock_skew is not None and now_ms - until_ms > max_clock_skew * 1000


def next_renewal(started: float, lease: float) -> float:
    """Return when to renew a lease whose last successful renewal began at `started`."""
    return started + lease * RENEW_AFTER


class LeaseClock:
    """Until when a held entry lasts, by this process's own monotonic clock.

    A lease counts from before the write that begins it, never from its answer: DynamoDB may have applied it at any
    moment between.

    Args:
        lease: in seconds.
        started: when the write began that created or last renewed the entry.
        heartbeats: number of the last renewal that was sent; the image may show an older one.

    Attributes:
        deadline: the end of the lease.
        ends_at: the end of `max_hold`.
        has_heartbeat: whether the heartbeat renews it.
    """

    def __init__(self, lease: float, started: float, heartbeats: int) -> None:
        self.lease = lease
        self.deadline: float = started + lease
        self.heartbeats = heartbeats
        self.ends_at: float = math.inf
        self.has_heartbeat = False

    @property
    def started(self) -> float:
        """When the write began that created or last renewed the entry."""
        return self.deadline - self.lease

    def remaining(self, now: float) -> float:
        """Return the seconds until the lease ends; 0 if it has ended, or `max_hold` has."""
        return max(0.0, self.deadline - now) if now < self.ends_at else 0.0

    def renewed(self, started: float) -> None:
        self.deadline = started + self.lease


def retry_delay(lease: float, jitter: float) -> float:
    """Return how soon a failed renewal is sent again: several times in a lease."""
    return min(1.0, lease / 20) * (0.5 + jitter / 2)


#: How long a read or a single write, which has no deadline, waits for others.
PATIENCE_S: Final = 30.0


def backoff(attempt: int, jitter: float) -> float:
    """Return a delay with full jitter: between 0 and 50 ms doubled at each attempt, at most 2 s.

    Source: the "full jitter" of the AWS Architecture Blog, Exponential Backoff and Jitter (2015).
    """
    return float(min(2.0, 0.05 * 2 ** min(attempt, 6)) * jitter)


def lease_end_s(now_ms: int, lease: float) -> int:
    """Return the epoch second in which a lease is over that begins now."""
    return int(now_ms / 1000 + lease) + 1
