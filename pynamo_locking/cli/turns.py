"""When ``run`` may start its program: as soon as the lock is ours, or once in a period."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._edge import inspection, plain, text_of_ms
from pynamo_locking.cli.problems import Problem, usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking import Lock, LockTimeout, NamedLock, Run

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds_of(text: str, option: str) -> int:
    """Return the seconds of a text such as ``15m`` or ``1d``."""
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if found is None:
        raise usage(f"{option} takes a whole number and one of s, m, h, d and w, as in 10m or 1d; not {text!r}.")
    return int(found[1]) * _UNITS[found[2]]


def period_of(
    once_per: str | None, zone: str | None, at_least: str | None, *, since_success: bool
) -> dict[str, Any] | None:
    """Return the options of a period, as `NamedLock.once` takes them; None without one."""
    if once_per is None:
        if zone is not None or at_least is not None or since_success:
            raise usage("--zone, --at-least and --since-success say more about a --once-per, which is missing.")
        return None
    least = 0 if at_least is None else seconds_of(at_least, "--at-least")
    period = seconds_of(once_per, "--once-per")
    return {"period": period, "zone": zone, "since_success": since_success, "at_least": least}


class Turn:
    """The turn of one program.

    Attributes:
        lock: which it runs under.
        run: of a period, once the answer is there; None without a period.
    """

    def __init__(self, locks: type[NamedLock], name: str, terms: dict[str, Any], period: dict[str, Any] | None) -> None:
        self.run: Run[Any] | None = None
        self._once = None if period is None else locks.once(name, **period, **terms)
        if self._once is None and terms.get("wait") is None:
            terms = {**terms, "wait": 60}
        self.lock: Lock[Any] = locks.locked(name, **terms) if self._once is None else self._once.lock

    def take(self) -> bool:
        """Acquire the lock; return whether the program is to run.

        Raises:
            LockTimeout: another party has had the lock for all of the wait.
        """
        if self._once is None:
            self.lock.acquire()
            return True
        self.run = self._once.__enter__()
        if self.run.timeout is not None:
            raise self.run.timeout
        return bool(self.run)

    def leave(self, *, has_succeeded: bool) -> None:
        """Release the lock, and note a success."""
        if self._once is None or self.run is None:  # or a signal came right after the grant
            self.lock.release()
            return
        if not has_succeeded:
            self.run.does_not_count()
        self._once.__exit__(None, None, None)

    @property
    def skipped(self) -> str:
        """Why the program was not started: it has succeeded already."""
        assert self.run is not None  # noqa: S101 - only a run of a period is skipped
        assert self.run.last is not None  # noqa: S101 - because of that
        last, name = self.run.last, plain(self.lock.name)
        began, ended = text_of_ms(last.began_ms), text_of_ms(last.ended_ms)
        who = f"{plain(last.owner)} (ticket {last.ticket})"
        if self.run.answer == "done":
            return f"{name} is done for this period: {who} has succeeded at {ended}."
        return f"it is too soon for {name}: the last run that has succeeded, of {who}, began at {began}."


def busy(program: str, lock: Lock[Any], error: LockTimeout, exit_code: int) -> Problem:
    """Return what to tell when another party has the lock."""
    holder = next(iter(error.queue.holders), None) if error.queue is not None else None
    if holder is None:
        return Problem("not_obtained", str(error), exit_code)
    message = (
        f"{program} was not started: {plain(lock.name)} is running elsewhere. {plain(holder.owner)} (ticket "
        f"{holder.ticket}) has held the lock for {holder.held_for:.0f} s."
    )
    return Problem("not_obtained", message, exit_code)


def ended(program: str, code: int) -> str:
    """Say how a program has failed, as a shell user knows it."""
    by_signal = code > 128  # noqa: PLR2004 - as a shell says it
    return f"{program} was killed by signal {code - 128}" if by_signal else f"{program} ended with exit code {code}"


def shown(run: Run[Any], *, has_run: bool, counts: bool) -> Mapping[str, Any]:
    """Return what ``--json`` shows of a run of a period."""
    return {
        "answer": run.answer,
        "has_run": has_run,
        "counts": counts,
        "period_began_at": text_of_ms(int(run.period_begins.timestamp() * 1000)),
        "last_success": None if run.last is None else inspection.shown_success(run.last),
    }
