"""``run``: a program under a lock."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from pynamo_locking import ConfigurationError, LockLost, LockTimeout
from pynamo_locking._edge import plain
from pynamo_locking.cli import output
from pynamo_locking.cli.child import Child, Signals
from pynamo_locking.cli.command import argument, command, flag, option
from pynamo_locking.cli.ending import Stopped
from pynamo_locking.cli.problems import EXPECTED, Exit, Problem, usage

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

    from pynamo_locking import Lock
    from pynamo_locking.cli.session import Session

#: In the environment of the program.
TICKET: Final = "PYNAMO_LOCKING_TICKET"
NAME: Final = "PYNAMO_LOCKING_NAME"

#: How long a program has to stop by itself, unless given; and at most this part of the lease.
_GRACE_S: Final = 5.0
_MOST_OF_LEASE: Final = 0.5
#: The pause between two checks of the rest of the lease.
_LOOK_S: Final = 1.0

#: How a lock was lost, for people who do not write Python.
_LOSSES: Final = {
    "evicted": "an operator broke it, or no renewal arrived for a whole lease",
    "deleted": "its row was deleted from the table",
}

_Program = Annotated[list[str], argument("-- COMMAND [ARGS]...", "The program to run.")]
_Lock = Annotated[str, option("--lock", "NAME", "Name of the lock.")]
_Wait = Annotated[float, option("--wait", "SECONDS", "How long to wait for our turn; inf for ever.")]
_Lease = Annotated[float, option("--lease", "SECONDS", "How long the lock survives without a renewal.")]
_GRACE: Final = (
    "How long the program has to stop by itself before it is killed; at most half of the lease. 5 s, or a quarter of "
    "the lease if that is less."
)
_Grace = Annotated[float | None, option("--grace", "SECONDS", _GRACE)]
_Permits = Annotated[int, option("--permits", "NUMBER", "How many may run at once.")]
_Shared = Annotated[bool, flag("--shared", "Together with other shared holders.")]
_Owner = Annotated[str | None, option("--owner", "TEXT", "Label for people, of at most 256 bytes.")]


def attach(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        run,
        "run --lock nightly-report -- make report",
        "run --lock nightly-report --wait 0 -- make report  # not while it runs elsewhere",
        "run --lock import --permits 3 --wait inf --lease 30 -- ./import.sh --all",
        tables=("table",),
        context_settings={"allow_interspersed_args": False},
    )


def run(  # noqa: PLR0913 - options of the command line
    session: Session,
    *,
    program: _Program,
    lock: _Lock,
    wait: _Wait = 60.0,
    lease: _Lease = 60.0,
    grace: _Grace = None,
    permits: _Permits = 1,
    shared: _Shared = False,
    owner: _Owner = None,
) -> int:
    """Run a program while holding a lock.

    The lock keeps two runs from overlapping. It does not keep the program from running twice, one run after the other.

    The exit code is the program's own, 128 + n if signal n killed it; 75 if it was not our turn in time. It is 70 if
    the lock was lost and the program was ended for that, or ended with 0 by itself. When the program ends, all that it
    has started in its process group is ended as well. Signals are passed on. PYNAMO_LOCKING_TICKET and
    PYNAMO_LOCKING_NAME tell it what it holds.
    """
    path = _found(program[0], session.environment)
    news = threading.Event()
    terms: dict[str, Any] = {"wait": wait, "lease": lease, "permits": permits, "shared": shared, "owner": owner}
    try:
        taken = session.locks().locked(lock, **terms, on_lost=lambda _: news.set())
    except ConfigurationError as error:
        raise usage(str(error)) from error
    patience = _grace(grace, lease)
    began = time.monotonic()
    with Signals() as signals:
        _acquire(taken, signals)
        waited = time.monotonic() - began
        try:

            def start() -> Child:
                return Child(program, path, _told(session, taken), taken.remaining, news.set)

            why_lost, code = _run_under(taken, signals, start, news, patience)
        finally:
            loss = _release(taken)
    facts: dict[str, Any] = {"table": session.settings.table, "name": lock, "ticket": taken.ticket}
    facts |= {"waited_s": round(waited, 3), "held_s": round(time.monotonic() - began - waited, 3)}
    if why_lost or loss:
        message = (
            f"the lock {plain(lock)} was lost while {program[0]} ran, which was ended: {why_lost}"
            if why_lost
            else f"{program[0]} ended by itself with exit code {code}, but the lock {plain(lock)} had been lost "
            f"before that was noticed: {loss}. Another program may have run under it meanwhile; check the result."
        )
        exit_code = Exit.LOST if why_lost else code or Exit.LOST  # 0 would say that all is well
        raise Problem("lock_lost", message, exit_code, **facts, program_exit_code=code, was_ended=bool(why_lost))
    if session.as_json:  # standard output is the program's
        document = {**facts, "exit_code": code, "program_exit_code": code}
        sys.stderr.write(output.dump(document, lines=True) + "\n")
    return code


def _told(session: Session, lock: Lock[Any]) -> dict[str, str]:
    """Return the environment of the program."""
    return {**session.environment, TICKET: str(lock.ticket), NAME: lock.name}


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


def _acquire(lock: Lock[Any], signals: Signals) -> None:
    """Acquire the lock; an interrupt leaves no entry behind."""
    try:
        lock.acquire()
        signals.keep()
    except LockTimeout as error:
        if error.queue is None:  # no answer at all
            raise
        raise Problem("not_obtained", str(error), Exit.NOT_OBTAINED) from error
    except Stopped as stopped:
        signals.keep()
        if lock.is_held:
            _release(lock)
        code = Exit.SIGNALLED + stopped.number
        raise Problem("interrupted", f"interrupted before it was our turn for {lock.name}.", code) from None


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
        child.end(grace if lock.lost.is_set() else min(grace, lock.remaining))
        return why_lost, child.exit_code
    finally:
        signals.pass_on_to(None)
        child.close()


def _watch(lock: Lock[Any], child: Child, news: threading.Event, grace: float) -> str | None:
    """Wait until the program has ended, or the lock is lost or may end soon; then return why."""
    while not child.has_ended:
        left = lock.remaining
        if lock.lost.is_set():
            return "an operator broke it, or no renewal arrived in time."
        if left <= grace:
            return f"no renewal was answered, and the lease would have ended in {left:.1f} s."
        child.is_guarded_for(left)
        news.wait(min(_LOOK_S, left - grace))
    return None


def _release(lock: Lock[Any]) -> str | None:
    """Release the lock; return how it was lost before, if it was. No failure here hides the program's exit code."""
    try:
        lock.release()
    except LockLost as loss:
        return _LOSSES.get(loss.reason, str(loss))
    except EXPECTED as error:
        output.logger.warning("cannot release %s, so the next waiter waits until the lease ends: %s", lock.name, error)
    return None
