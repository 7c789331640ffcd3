"""``run``: a program under a lock."""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from pynamo_locking import ConfigurationError, LockLost, LockTimeout, OutcomeUnknown
from pynamo_locking._edge import plain
from pynamo_locking.cli import output, turns
from pynamo_locking.cli.child import Child, Signals
from pynamo_locking.cli.command import argument, command, flag, option
from pynamo_locking.cli.ending import Stopped
from pynamo_locking.cli.problems import EXPECTED, Exit, Problem, usage
from pynamo_locking.cli.turns import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

    from pynamo_locking import Lock
    from pynamo_locking.cli.session import Session

#: In the environment of the program.
TICKET: Final = "PYNAMO_LOCKING_TICKET"
NAME: Final = "PYNAMO_LOCKING_NAME"
PERIOD: Final = "PYNAMO_LOCKING_PERIOD"

#: How long a program has to stop by itself, unless given; and at most this part of the lease.
_GRACE_S: Final = 5.0
_MOST_OF_LEASE: Final = 0.5
#: The pause between two checks of the rest of the lease.
_LOOK_S: Final = 1.0

#: How a lock was lost, for people who do not write Python.
_LOSSES: Final = {
    "evicted": "an operator broke it, or no renewal arrived for a whole lease",
    "deleted": "its row was deleted from the table",
    "max_hold": "it was held for as long as --max-hold allows",
}

_Program = Annotated[list[str], argument("-- COMMAND [ARGS]...", "The program to run.")]
_Lock = Annotated[str, option("--lock", "NAME", "Name of the lock.")]
_WAIT: Final = "How long to wait for our turn; inf for ever. 60, or with --once-per one period."
_Wait = Annotated[float | None, option("--wait", "SECONDS", _WAIT)]
_Lease = Annotated[float, option("--lease", "SECONDS", "How long the lock survives without a renewal.")]
_MaxHold = Annotated[
    float | None, option("--max-hold", "SECONDS", "How long to hold the lock at most; then the program is ended.")
]
_LEAD: Final = "Run the program on the leader: wait for ever, and wait again when the lock was lost."
_Lead = Annotated[bool, flag("--lead", _LEAD)]
_GRACE: Final = (
    "How long the program has to stop by itself before it is killed; at most half of the lease. 5 s, or a quarter of "
    "the lease if that is less."
)
_Grace = Annotated[float | None, option("--grace", "SECONDS", _GRACE)]
_Permits = Annotated[int, option("--permits", "NUMBER", "How many may run at once.")]
_Shared = Annotated[bool, flag("--shared", "Together with other shared holders.")]
_ONCE: Final = "Only if no run has succeeded yet in this period, such as 15m, 6h, 1d or 1w."
_OncePer = Annotated[str | None, option("--once-per", "PERIOD", _ONCE)]
_Zone = Annotated[str | None, option("--zone", "NAME", "Time zone in whose midnight days begin. UTC.")]
_Since = Annotated[bool, flag("--since-success", "Count the period from the end of the last run that has succeeded.")]
_AT_LEAST: Final = "No run within this time, such as 10m, of the beginning of the last run that has succeeded."
_AtLeast = Annotated[str | None, option("--at-least", "TIME", _AT_LEAST)]
_BUSY: Final = "Exit code if the lock is held elsewhere for all of the wait."
_BusyExit = Annotated[int, option("--busy-exit", "NUMBER", _BUSY, min=0, max=255)]
_Quiet = Annotated[bool, flag("--quiet", "Do not say why the program was not started, or does not count.")]
_Owner = Annotated[str | None, option("--owner", "TEXT", "Label for people, of at most 256 bytes.")]


def attach(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        run,
        "run --lock nightly-report --once-per 1d --zone Europe/Zurich -- make report",
        "run --lock import --wait 0 -- ./import.sh  # not while it runs elsewhere",
        "run --lock scheduler --lead --lease 15 -- ./scheduler",
        "run --lock import --permits 3 --wait inf --lease 30 -- ./import.sh --all",
        tables=("table",),
        context_settings={"allow_interspersed_args": False},
    )


def run(  # noqa: PLR0913 - options of the command line
    session: Session,
    *,
    program: _Program,
    lock: _Lock,
    once_per: _OncePer = None,
    zone: _Zone = None,
    since_success: _Since = False,
    at_least: _AtLeast = None,
    busy_exit: _BusyExit = Exit.NOT_OBTAINED.value,
    quiet: _Quiet = False,
    wait: _Wait = None,
    lease: _Lease = 60.0,
    max_hold: _MaxHold = None,
    lead: _Lead = False,
    grace: _Grace = None,
    permits: _Permits = 1,
    shared: _Shared = False,
    owner: _Owner = None,
) -> int:
    """Run a program while holding a lock.

    The lock keeps two runs from overlapping. It does not keep the program from running twice, one run after the other:
    --once-per does. Then a run counts if it ends with 0 under the lock. After one that fails or dies, the next machine
    that waits runs the program.

    With --lead one of many machines runs the program. If the lock is lost, the program is ended, and the machine waits
    for its turn again. If the program ends by itself, or by a signal that was passed on, the next machine runs it, and
    this one has ended. The ticket is the term.

    The exit code is the program's own, 128 + n if signal n killed it; 0 if it was not started because it is done; 75,
    or --busy-exit, if it was not our turn in time. It is 70 if the lock was lost and the program was ended for that, or
    ended with 0 by itself. When the program ends, all that it has started in its process group is ended as well.
    Signals are passed on. PYNAMO_LOCKING_TICKET, PYNAMO_LOCKING_NAME and PYNAMO_LOCKING_PERIOD tell it what it holds.
    """
    terms: dict[str, Any] = {"wait": wait, "lease": lease, "permits": permits, "shared": shared, "owner": owner}
    terms["max_hold"] = max_hold
    period = turns.period_of(once_per, zone, at_least, since_success=since_success)
    if lead:
        if period is not None or wait is not None or permits != 1 or shared:
            raise usage("--lead waits for ever and leads alone: leave out --once-per, --wait, --permits and --shared.")
        terms["wait"] = math.inf
    path = _found(program[0], session.environment)
    with Signals() as signals:
        while True:
            news = threading.Event()
            try:
                turn = Turn(session.locks(), lock, {**terms, "on_lost": lambda _, news=news: news.set()}, period)
            except ConfigurationError as error:
                raise usage(str(error)) from error
            patience = _grace(grace, lease)
            try:
                return _run_once(session, turn, signals, news, [path, *program], patience, busy_exit, quiet=quiet)
            except Problem as problem:
                if not (lead and problem.facts.get("was_ended")):
                    raise
                signals.raise_again()
                if signals.has_stopped:
                    raise
                if session.as_json:
                    _tell(problem.document())
                elif not quiet:
                    _say(f"{problem.message} The campaign goes on.")


def _run_once(
    session: Session,
    turn: Turn,
    signals: Signals,
    news: threading.Event,
    command: list[str],
    patience: float,
    busy_exit: int,
    *,
    quiet: bool,
) -> int:
    """Wait for the lock, and run the program, whose path is before its name; return the exit code."""
    path, *program = command
    lock = turn.lock.name
    began = time.monotonic()
    try:
        is_ours = _acquire(turn, signals)
    except LockTimeout as error:
        if error.queue is None or error.cause is not None:  # no answer at the end
            raise
        problem = turns.busy(program[0], turn.lock, error, busy_exit)
        if quiet and not session.as_json:
            return problem.exit_code
        raise problem from error
    if not is_ours:
        return _skip(session, turn, program[0], quiet=quiet)
    taken, why_lost = turn.lock, None
    code = -1  # until it has one
    waited = time.monotonic() - began
    try:

        def start() -> Child:
            return Child(program, path, _told(session, turn), taken.remaining, news.set)

        why_lost, code = _run_under(taken, signals, start, news, patience)
    finally:
        loss = _release(turn, has_succeeded=code == 0 and why_lost is None)
    facts: dict[str, Any] = {"table": session.settings.table, "name": lock, "ticket": taken.ticket}
    facts |= {"waited_s": round(waited, 3), "held_s": round(time.monotonic() - began - waited, 3)}
    if why_lost or loss:
        message = (
            f"the lock {plain(lock)} was lost while {program[0]} ran, which was ended: {why_lost}"
            if why_lost
            else f"{program[0]} ended by itself with exit code {code}, but the lock {plain(lock)} had been lost "
            f"before that was noticed: {loss}. Another program may have run under it meanwhile; check the result."
        )
        message += " This run does not count." if turn.run is not None else ""
        exit_code = Exit.LOST if why_lost else code or Exit.LOST  # 0 would say that all is well
        raise Problem("lock_lost", message, exit_code, **facts, program_exit_code=code, was_ended=bool(why_lost))
    if session.as_json:  # standard output is the program's
        document = {**facts, "exit_code": code, "program_exit_code": code}
        _tell(document if turn.run is None else {**document, **turns.shown(turn.run, has_run=True, counts=code == 0)})
    elif turn.run is not None and code and not quiet:
        _say(f"{turns.ended(program[0], code)}, so this run does not count.")
    return code


def _skip(session: Session, turn: Turn, program: str, *, quiet: bool) -> int:
    """Say that the program is not started, since that is done; return the exit code."""
    if session.as_json:
        assert turn.run is not None  # noqa: S101 - what is done has a period
        facts = {"table": session.settings.table, "name": turn.lock.name, "exit_code": Exit.OK.value}
        _tell({**facts, **turns.shown(turn.run, has_run=False, counts=False)})
    elif not quiet:
        _say(f"{turn.skipped} {program} was not started.")
    return Exit.OK


def _tell(document: dict[str, Any]) -> None:
    sys.stderr.write(output.dump(document, lines=True) + "\n")


def _say(message: str) -> None:
    sys.stderr.write(f"pynamo-locking: {output.lines_of(message)}\n")


def _told(session: Session, turn: Turn) -> dict[str, str]:
    """Return the environment of the program."""
    told = {**session.environment, TICKET: str(turn.lock.ticket), NAME: turn.lock.name}
    return told if turn.run is None else {**told, PERIOD: turn.run.period_begins.isoformat(timespec="seconds")}


def _grace(given: float | None, lease: float) -> float:
    grace = min(_GRACE_S, lease / 4) if given is None else given
    if not 0 <= grace <= lease * _MOST_OF_LEASE:
        raise usage(f"--grace must be between 0 and half of the lease, {lease * _MOST_OF_LEASE:g} s, not {grace:g} s.")
    return grace


def _found(name: str, environment: dict[str, str]) -> str:
    """Return the program's path; looked for before the lock is."""
    if not hasattr(os, "killpg"):
        raise usage("run needs a system with process groups, which this is not.")
    path = shutil.which(name, path=environment.get("PATH"))
    if path is not None:
        return path
    if os.path.sep in name and os.path.exists(name):  # noqa: PTH110 - as the shell sees it
        raise Problem("not_executable", f"{name} cannot be executed.", Exit.NOT_EXECUTABLE)
    raise Problem("not_found", f"there is no program {name}.", Exit.NOT_FOUND)


def _acquire(turn: Turn, signals: Signals) -> bool:
    """Acquire the lock, and tell whether the program is to run; an interrupt leaves no entry behind."""
    try:
        is_ours = turn.take()
        signals.keep()
    except Stopped as stopped:
        signals.keep()
        if turn.lock.is_held:
            _release(turn, has_succeeded=False)
        code = Exit.SIGNALLED + stopped.number
        raise Problem("interrupted", f"interrupted before it was our turn for {turn.lock.name}.", code) from None
    return is_ours


def _run_under(
    lock: Lock[Any], signals: Signals, start: Callable[[], Child], news: threading.Event, grace: float
) -> tuple[str | None, int]:
    """Run the program until it ends, or the lock is lost; return why the lock was lost, and the exit code."""
    try:
        child = start()
    except OSError as error:
        message = f"{error.filename} cannot be started: {error.strerror}."
        raise Problem("not_executable", message, Exit.NOT_EXECUTABLE) from error
    try:
        signals.pass_on_to(child)
        why_lost = _watch(lock, child, news, grace)
        if child.has_ended and (lock.remaining or lock.lost.is_set()):  # by itself, and the release tells the rest
            why_lost = None
        child.end(grace if lock.lost.is_set() else min(grace, lock.remaining))
        return why_lost, child.exit_code
    finally:
        signals.pass_on_to(None)
        child.close()


def _watch(lock: Lock[Any], child: Child, news: threading.Event, grace: float) -> str | None:
    """Wait until the program has ended, or the lock is lost or may end soon; then return why."""
    while not child.has_ended:
        left = lock.remaining
        try:
            lock.progress()  # no request; tells of a loss
        except LockLost as loss:
            return f"{_LOSSES.get(loss.reason, loss)}."
        if left <= grace:
            return f"no renewal was answered, and the lease would have ended in {left:.1f} s."
        child.is_guarded_for(left)
        news.wait(min(_LOOK_S, left - grace))
    return None


def _release(turn: Turn, *, has_succeeded: bool) -> str | None:
    """Release the lock; return how it was lost before, if it was. No failure here hides the program's exit code."""
    name = turn.lock.name
    try:
        turn.leave(has_succeeded=has_succeeded)
    except LockLost as loss:
        return _LOSSES.get(loss.reason, str(loss))
    except OutcomeUnknown as error:
        output.logger.warning("%s", error)
    except EXPECTED as error:
        output.logger.warning("cannot release %s, so the next waiter waits until the lease ends: %s", name, error)
    return None
