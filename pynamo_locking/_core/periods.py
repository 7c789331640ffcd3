"""When a job that runs once in a period is due. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import IDLE_TTL_S, LONGEST_LEASE_S, Duration, seconds

if TYPE_CHECKING:
    from pynamo_locking._core.queue import Success

#: What became of the question whether a run is ours.
Answer: TypeAlias = Literal["due", "done", "too soon", "busy"]

_DAY_S: Final = 24 * 3600
_HOUR_S: Final = 3600
#: The longest period: the row of the lock is kept for so long.
_LONGEST_S: Final = 366 * _DAY_S


@dataclass(frozen=True)
class Period:
    """How often a job is to succeed.

    Attributes:
        length_s: of a period.
        zone: whose clock begins the periods of a grid; None if a period begins with each success.
        at_least_s: no run begins within this time of the beginning of the last successful run.
    """

    length_s: int
    zone: tzinfo | None
    at_least_s: float

    def kept_s(self, max_lease: float) -> int:
        """For how long after the last lease a row is kept that has a success: longer than it counts, and any lease."""
        return int(max(self.length_s, self.at_least_s) + IDLE_TTL_S + max(LONGEST_LEASE_S, max_lease))

    def begin_ms(self, now_ms: int) -> int:
        """Return when the period began that a wall clock shows: in ms since the epoch, so that any two compare.

        A period of several days begins at midnight, a shorter one is counted from there by the clock on the wall. So a
        day may have 23 or 25 hours. Of an hour that a clock shows twice, a period of an hour or less begins twice, and
        a longer one once.
        """
        if self.zone is None:
            return now_ms
        local = datetime.fromtimestamp(now_ms / 1000, tz=self.zone)
        if self.length_s % _DAY_S == 0:
            days = self.length_s // _DAY_S
            number = local.date().toordinal() - 1  # day 0 was a Monday, so weeks begin on Mondays
            begin = datetime.combine(date.fromordinal(number - number % days + 1), time(), self.zone)
        else:
            past = timedelta(hours=local.hour, minutes=local.minute, seconds=local.second)
            midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
            begin = midnight + past // timedelta(seconds=self.length_s) * timedelta(seconds=self.length_s)
            begin = begin.replace(fold=local.fold if self.length_s <= _HOUR_S else 0)
            if begin.timestamp() * 1000 > now_ms:  # the clock was put forward past it, and not from it
                begin = begin.replace(fold=1)  # by the clock as it is now
        return int(begin.timestamp()) * 1000

    def answer(self, begin_ms: int, now_ms: int, last: Success | None) -> Answer:
        """Tell whether a run is due in the period that began then, by the last success.

        Periods are compared by their order, and not for equality: a machine whose clock is behind would run the job of
        a period that is over once more.
        """
        if last is None:
            return "due"
        if (begin_ms <= last.period_ms) if self.zone is not None else now_ms - last.ended_ms < self.length_s * 1000:
            return "done"
        return "too soon" if self.at_least_s > 0 and now_ms - last.began_ms < self.at_least_s * 1000 else "due"


def make_period(period: Duration, zone: str | tzinfo | None, *, since_success: bool, at_least: Duration) -> Period:
    """Return the arguments of `once()`, checked.

    Raises:
        ConfigurationError: for a period that no calendar divides well, or arguments that contradict each other.
    """
    length, least = seconds(period, "period"), seconds(at_least, "at_least")
    if length % 1 or not 1 <= length <= _LONGEST_S:
        raise ConfigurationError(f"period must be a whole number of seconds, from 1 s to 366 days, not {period!r}.")
    if not least <= _LONGEST_S:
        raise ConfigurationError(f"at_least must be at most 366 days, not {at_least!r}.")
    if not isinstance(since_success, bool):
        raise ConfigurationError(f"since_success must be True or False, got {since_success!r}.")
    if since_success:
        if zone is not None:
            raise ConfigurationError("with since_success the periods follow no calendar: leave out the zone.")
        return Period(int(length), None, least)
    if length % _DAY_S and _DAY_S % length:
        raise ConfigurationError(
            f"period must divide a day, or be a number of whole days, so that all days have the same periods: 15 min, "
            f"1 h, 6 h, 1 day or 7 days, for example; not {length:g} s. A calendar's months and years are no periods. "
            f"With since_success=True any length will do."
        )
    return Period(int(length), _zone("UTC" if zone is None else zone), least)


def _zone(zone: object) -> tzinfo:
    if hasattr(zone, "localize"):  # its `combine` takes the offset of the year 1850
        raise ConfigurationError(f"pytz.timezone({str(zone)!r}) computes no midnights: give zone={str(zone)!r}.")
    if isinstance(zone, tzinfo):
        return zone
    if zone == "UTC":
        return timezone.utc  # needs no database
    if isinstance(zone, str):
        try:
            return ZoneInfo(zone)
        except (OSError, ValueError):  # an unknown name is an OSError, as is one that names a directory
            pass
        except KeyError:
            pass
    raise ConfigurationError(
        f"there is no time zone {zone!r} here. Name one as Europe/Zurich is named; where the system has no database of "
        f"time zones, as in small containers, `pip install tzdata` brings one."
    )
