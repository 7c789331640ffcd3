"""A job that is to succeed once in each period, and when it is due."""

from __future__ import annotations

import contextlib
import functools
import warnings
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from typing_extensions import ParamSpec

from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lease import IDLE_TTL_S, LONGEST_LEASE_S, Duration, seconds
from pynamo_locking._core.lock_queue import HoldState, RunRecord
from pynamo_locking._io import client, concurrency, lock_record, lock_requests, runtime, wakeups
from pynamo_locking._io.client import Refused, Unavailable
from pynamo_locking._io.runtime import logger
from pynamo_locking._locks import held_lock
from pynamo_locking._locks.lock import handle_of
from pynamo_locking._locks.options import M
from pynamo_locking._models.writes import open_here
from pynamo_locking.exceptions import LockLost, LockTimeout, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pynamo_locking._core.lock_queue import LockState
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._locks.lock import Lock


_T = TypeVar("_T")
_P = ParamSpec("_P")


# When a job that runs once in a period is due. Pure.


#: Whether a run is ours, or why not.
RunStatus: TypeAlias = Literal["due", "done", "too_soon", "busy"]

_DAY_S: Final = 24 * 3600
_HOUR_S: Final = 3600
#: The longest period: the row of the lock is kept for so long.
_LONGEST_S: Final = 366 * _DAY_S


class Period(NamedTuple):
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

        A period of several days begins at midnight, a shorter one is counted from there by local time. So a
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

    def status(self, begin_ms: int, now_ms: int, last: RunRecord | None) -> RunStatus:
        """Tell whether a run is due in the period that began then, by the last success.

        Periods are compared by their order, and not for equality: a machine whose clock is behind would run the job of
        a period that is over once more.
        """
        if last is None:
            return "due"
        if (begin_ms <= last.period_ms) if self.zone is not None else now_ms - last.ended_ms < self.length_s * 1000:
            return "done"
        return "too_soon" if self.at_least_s > 0 and now_ms - last.began_ms < self.at_least_s * 1000 else "due"


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
        from zoneinfo import ZoneInfo  # noqa: PLC0415 - half of this module's import

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


# A job that is to succeed once in each period, whatever the number of machines that start it.


#: A success that is dated later than our clock by more than that is reported, where settings trust no clock.
_SKEW_S: Final = 10.0


@dataclass
class _Verdict:
    """Whether a run is ours; what its block has said of it is noted here."""

    status: RunStatus
    was_asked: bool = False
    counts: bool = True


class OnceRun(Generic[M]):
    """What `NamedLock.once` yields: true if this run is ours, and why not otherwise.

    Attributes:
        lock: of the job. It is held if the run is ours: for `Lock.add_check_to`, `Lock.renew`, `Lock.lost` and
            `Lock.item`.
        last: the last successful run before this one; None if none is known, or the run is busy.
        period_begins: the beginning of the period of this run, in its time zone; without a grid, now, in UTC.
        timeout: the `LockTimeout` of the wait for a busy lock, which names the holder; None otherwise.
    """

    def __init__(self, lock: Lock[M], verdict: _Verdict, last: RunRecord | None, period_begins: datetime) -> None:
        self.lock = lock
        self._verdict = verdict
        self._label = handle_of(lock).target.row.label
        self.last = last
        self.period_begins = period_begins
        self.timeout: LockTimeout | None = None

    @property
    def status(self) -> RunStatus:
        """``"due"`` if the run is ours. ``"done"``: the job has succeeded in this period, or in a later one.

        ``"too_soon"``: its last successful run began less than `at_least` ago. ``"busy"``: another caller held the lock
        for all of `wait`.
        """
        self._verdict.was_asked = True
        return self._verdict.status

    def __bool__(self) -> bool:
        return self.status == "due"

    @property
    def ticket(self) -> int:
        """The ticket of our run, its fencing token: larger than that of every earlier run.

        Raises:
            ConfigurationError: the program does not run here.
        """
        if not self:
            raise ConfigurationError(f"{self._label} does not run here ({self.status}), so there is no ticket.")
        return self.lock.ticket

    def discard(self) -> None:
        """Record no success at the end of the block, as if it raised: the next caller runs the job."""
        self._verdict.counts, self._verdict.was_asked = False, True

    def __repr__(self) -> str:
        return f"<OnceRun of {self._label}: {self._verdict.status}>"


class Once(Generic[M]):
    """The context manager of `NamedLock.once`, for ``with`` and for ``async with``; also a decorator."""

    def __init__(self, make_lock: Callable[[], Lock[M]], period: Period) -> None:
        self.lock: Lock[M] = make_lock()
        self._handle = handle_of(self.lock)
        self._label = self._handle.target.row.label
        self._period = period
        self._make_lock = make_lock

    def __call__(self, job: Callable[_P, _T]) -> Callable[_P, _T | None]:
        """Make a function the job: a call runs it if it is due here, and returns None otherwise.

        Raises:
            ConfigurationError: the function is a coroutine or a generator: its call would not run its body.
        """
        if concurrency.is_lazy(job):
            raise ConfigurationError(f"once() decorates functions, and {job!r:.80} is none: use `async with`.")

        @functools.wraps(job)
        def run(*arguments: _P.args, **keywords: _P.kwargs) -> _T | None:
            with Once(self._make_lock, self._period) as due:
                return job(*arguments, **keywords) if due else None

        return run

    def __enter__(self) -> OnceRun[M]:
        self._begin()
        takes = self._handle.depth
        try:
            if self._is_done():
                self._handle.begin_block()
                if not self._judge():
                    self._leave_to_others()
        except BaseException as error:
            if self._handle.depth > takes:
                self._handle.end_block(error)
            if not self._is_busy(error):
                raise
        return self._run

    async def __aenter__(self) -> OnceRun[M]:
        self._begin()
        try:
            if await concurrency.call(self._is_done):
                await self._handle.abegin_block()
                await self._ajudge()
        except LockTimeout as error:
            if not self._is_busy(error):
                raise
        return self._run

    async def _ajudge(self) -> None:
        try:
            is_ours = self._judge()
        except BaseException as error:
            await self.lock.__aexit__(type(error), error, error.__traceback__)
            raise
        if not is_ours:
            await self._handle.aend_block(self._leave_to_others)

    def _leave_to_others(self) -> None:
        with contextlib.suppress(LockLost):  # nothing was done under the lock
            self._handle.end_block()

    def _begin(self) -> None:
        if self._handle.depth:
            raise self._held_already()
        if (here := open_here.get()) is not None and here.is_open:
            raise ConfigurationError(
                f"once() of {self._label} in an open transaction would note a success before the commit, which may "
                f"fail: open the transaction inside the block of once()."
            )

    def _held_already(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self._handle.target.row.label} is held here already: once() takes it itself, so that the end of its "
            f"block can note the success and release the lock in one request."
        )

    def _is_done(self) -> bool:
        """Note the answer without the lock: a success that is stored proves that no run is due, however old the image.

        Our period is that of now, and not that of the moment when the lock is granted: the run that we have waited for
        may have taken until the next period, whose run is not ours.
        """
        self._begin_ms = self._period.begin_ms(runtime.current.time_ms())
        row = self._handle.target.row
        try:
            image = lock_requests.read(row, consistent=False)
        except Unavailable:  # the request for the lock is sent more often
            image = None
        return self._note(lock_record.state_in(image, row.attribute))

    def _judge(self) -> bool:
        """Note the answer under the lock, by the image that showed us in front."""
        held = self._handle.held_entry()
        if not self._handle.is_outermost:
            raise self._held_already()
        self._ours = held
        return self._note(held.row.state(held.item.image))

    def _note(self, state: LockState) -> bool:
        now_ms, last = runtime.current.time_ms(), state.success
        if self._period.zone is None:
            self._begin_ms = now_ms
        status = self._period.status(self._begin_ms, now_ms, last)
        self._run = self._make_run(status, last)
        self._began_ms = now_ms
        if last is not None and status != "due":
            self._warn(last, now_ms)
        return status == "due"

    def _warn(self, last: RunRecord, now_ms: int) -> None:
        skew = self._handle.options.settings.max_clock_skew
        ahead_s = (last.began_ms - now_ms) / 1000
        if ahead_s > (_SKEW_S if skew is None else skew):
            logger.warning(
                "the last success of %s is dated %.0f s later than this clock, by %s: one of the two clocks is wrong, "
                "and no run is due until that time has come. To forget that success, delete the row of the name.",
                self._handle.target.row.label,
                ahead_s,
                last.owner,
            )

    def _is_busy(self, error: BaseException) -> bool:
        """Note that others held the lock to the end of the wait, if an error says that.

        If the last request got no response, whether the job runs is unknown.
        """
        if not isinstance(error, LockTimeout) or error.queue is None or error.cause is not None:
            return False
        self._run = self._make_run("busy", None)
        self._run.timeout = error
        return True

    def _make_run(self, status: RunStatus, last: RunRecord | None) -> OnceRun[M]:
        zone = self._period.zone or timezone.utc
        self._verdict = _Verdict(status)
        return OnceRun(self.lock, self._verdict, last, datetime.fromtimestamp(self._begin_ms / 1000, tz=zone))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._verdict.status == "due":
            self._leave(error)
        self._check_asked(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._verdict.status == "due":
            await self._handle.aend_block(partial(self._leave, error), error)
        self._check_asked(error)

    def _check_asked(self, error: BaseException | None) -> None:
        if error is None and not self._verdict.was_asked:
            warnings.warn(
                f"the block of once() of {self._label} has not asked whether the job runs here (it is "
                f"{self._verdict.status}), so it runs each time: write `with ... as run: if run: ...`.",
                stacklevel=3,
            )

    def _leave(self, error: BaseException | None) -> None:
        if error is None and self._verdict.counts:
            try:
                self._succeed()
            except BaseException as failure:
                self._handle.end_block(failure)
                raise
        self._handle.end_block(error)

    def _succeed(self) -> None:
        held = self._handle.held_entry()
        if held is not self._ours or not self._handle.is_outermost or held.ownership.state is HoldState.DETACHED:
            raise ConfigurationError(
                f"{held.row.label} was acquired or detached in the block of once(), so no success is noted: leave it "
                f"to once()."
            )
        now_ms = runtime.current.time_ms()
        success = RunRecord(held.entry.ticket, held.entry.owner, self._begin_ms, self._began_ms, now_ms)
        record_success(held, success, self._period.kept_s(self._handle.options.settings.max_lease))


_NOTE: Final = "request to note a success"
_MAY_BE_NOTED: Final = "the success may or may not be noted. If it is not, the job runs again in this period."


def record_success(held: HeldEntry, success: RunRecord, kept_s: int) -> None:
    """Leave the queue, and note in the same request that the job has succeeded; see `lock_requests.succeed`.

    Raises:
        LockLost: the entry is gone, and nothing was noted.
        OutcomeUnknown: no response. The entry is still to be removed.
    """
    with held.writing(), held.removing():
        try:
            image: Image | None = client.patiently(
                lambda: lock_requests.succeed(
                    held.row, held.entry, success, kept_s, want_image=wakeups.has_waiters(held.row)
                )
            )
        except Refused as refused:
            image = refused.image
            try:
                state = held.row.state(image)
            except LockingError as reason:  # broken, or of a newer release: nothing shows what became of a first copy
                if not refused.repeated:
                    raise
                first = f"no answer to the first {_NOTE} of {held}; {_MAY_BE_NOTED} Since then: {reason}"
                raise OutcomeUnknown(first, write_id=held.entry.id, cause=reason) from reason
            is_noted = state.success is not None and state.success.ticket == held.entry.ticket  # by a first copy
            # Or a later run has noted its own since: only that copy, or an eviction, can have removed our entry.
            if not is_noted and state.was_evicted(held.entry.ticket, held.ownership.since) is not False:
                raise held.absent_from(state, is_removal=True) from refused
        except Unavailable as error:
            raise held_lock.unanswered(held, _NOTE, error, _MAY_BE_NOTED) from error
    held_lock.note_left(held, image or None)


def as_lock_of_a_job(lock: Lock[M]) -> Lock[M]:
    """Let a lock hand nothing over: no request would be left to note the success with. Return it.

    Raises:
        ConfigurationError: several callers could hold the lock together.
    """
    handle = handle_of(lock)
    options = handle.options
    if not options.lock_mode.may_write:
        raise ConfigurationError("once() is for one run at a time: leave out shared and permits.")
    handle.options = options._replace(settings=replace(options.settings, max_callers_per_entry=1))
    return lock
