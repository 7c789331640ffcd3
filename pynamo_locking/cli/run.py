"""``run``: a program under a lock."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typing_extensions import Self

from pynamo_locking._facade import inspection, logger, plain, text_of_ms
from pynamo_locking.cli import terminal
from pynamo_locking.cli.command import LOCKS, Commands
from pynamo_locking.cli.session import Session  # noqa: TC001 - typer reads the signatures
from pynamo_locking.cli.terminal import EXPECTED, Exit, Handlers, Problem, Stopped, stop, usage
from pynamo_locking.exceptions import ConfigurationError, InvalidInput, LockLost, LockTimeout, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from pynamo_locking import Lock, NamedLock
    from pynamo_locking.recipes import OnceRun


def period_of(
    once_per: str | None, zone: str | None, at_least: str | None, *, since_success: bool
) -> dict[str, Any] | None:
    """Return the options of a period, as `NamedLock.once` takes them; None without one."""
    if once_per is None:
        if zone is not None or at_least is not None or since_success:
            raise usage("--zone, --at-least and --since-success say more about a --once-per, which is missing.")
        return None
    least = 0 if at_least is None else terminal.seconds_of(at_least, "--at-least")
    period = terminal.seconds_of(once_per, "--once-per")
    return {"period": period, "zone": zone, "since_success": since_success, "at_least": least}


class Turn:
    """The turn of one program.

    Attributes:
        lock: which it runs under.
        news: set when the lock is lost; and by others who have news for those who watch it.
        run: of a period, once the answer is there; None without a period.
    """

    def __init__(self, locks: type[NamedLock], name: str, terms: dict[str, Any], period: dict[str, Any] | None) -> None:
        self.news: threading.Event = threading.Event()
        self.run: OnceRun[Any] | None = None
        terms = {**terms, "on_lost": lambda _: self.news.set()}
        if period is None and terms.get("wait") is None:
            terms["wait"] = 60
        self._once = None if period is None else locks.once(name, **period, **terms)
        self.lock: Lock[Any] = locks.locked(name, **terms) if self._once is None else self._once.lock

    def take(self) -> bool:
        """Acquire the lock; return whether the program is to run.

        Raises:
            LockTimeout: another process, thread or task has had the lock for all of the wait.
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
            self.run.discard()
        self._once.__exit__(None, None, None)

    @property
    def skipped(self) -> str:
        """Why the program was not started: it has succeeded already."""
        assert self.run is not None  # noqa: S101 - only a run of a period is skipped
        assert self.run.last is not None  # noqa: S101 - because of that
        last, name = self.run.last, plain(self.lock.name)
        began, ended = text_of_ms(last.began_ms), text_of_ms(last.ended_ms)
        who = f"{plain(last.owner)} (ticket {last.ticket})"
        if self.run.status == "done":
            return f"{name} is done for this period: {who} has succeeded at {ended}."
        return f"it is too soon for {name}: the last run that has succeeded, of {who}, began at {began}."


def busy(program: str, lock: Lock[Any], error: LockTimeout, exit_code: int) -> Problem:
    """Return what to tell when another process has the lock."""
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


def shown(run: OnceRun[Any] | None, *, has_run: bool, counts: bool) -> Mapping[str, Any]:
    """Return what ``--json`` shows of a run of a period; nothing without a period."""
    if run is None:
        return {}
    return {
        "status": run.status,
        "has_run": has_run,
        "counts": counts,
        "period_began_at": text_of_ms(int(run.period_begins.timestamp() * 1000)),
        "last_success": None if run.last is None else inspection.shown_success(run.last),
    }


#: The pause between two checks whether a group has ended.
_POLL_OF_GROUP_S: Final = 0.02
#: A killed process ends in microseconds, unless it hangs in the kernel.
_GONE_S: Final = 5.0

#: Those that ask the program to end, as far as the system has them.
STOPPING: Final = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
]
#: The signals that are passed on to the program.
FORWARDED: Final = [*STOPPING, *(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))]


class Child:
    """A program in a session, and so in a process group, of its own.

    When the program has ended, `on_end` is called on a thread of its own. An OSError says that the program could not be
    started.
    """

    def __init__(
        self, command: Sequence[str], path: str, environment: Mapping[str, str], on_end: Callable[[], None]
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - what the person asked for
            command, executable=path, env=environment, start_new_session=True
        )
        self._on_end = on_end
        self._waiter = threading.Thread(target=self._wait, name="pynamo-locking-child", daemon=True)
        self._waiter.start()

    def _wait(self) -> None:
        self._process.wait()
        self._on_end()

    @property
    def has_ended(self) -> bool:
        """Whether the program itself has ended; processes that it started may still run."""
        return self._process.returncode is not None

    @property
    def exit_code(self) -> int:
        """That of the program, as a shell has it: 128 and the number of the signal that killed it."""
        self._waiter.join()
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def send(self, number: int) -> bool:
        """Send a signal to the program and all that it started; return whether anything of it was there."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS says so of zombies; or it runs as another user
            return not self.has_ended
        return True

    def end(self, grace: float) -> None:
        """Tell all processes of the group to stop, and kill those that are still there after so many seconds."""
        ends = time.monotonic() + grace
        if self.send(signal.SIGTERM):
            self.send(signal.SIGCONT)  # a stopped process could not end
        self._wait_until_gone(ends)
        self.close()

    def _wait_until_gone(self, ends: float) -> None:
        while time.monotonic() < ends and self.send(0) and _does_something(self._process.pid):
            time.sleep(_POLL_OF_GROUP_S)

    def close(self) -> None:
        """Kill what is left of the group."""
        if self.send(signal.SIGKILL):
            self._wait_until_gone(time.monotonic() + _GONE_S)


def _does_something(group: int) -> bool:
    """Tell whether a process group has a live process. Dead ones may wait for a slow init process to reap them."""
    if not Path("/proc/self/stat").exists():
        return True  # not Linux: there is no way to tell
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
            state, _, its_group = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


class Signals(Handlers):
    """Takes the signals that are meant for the program, and passes them on.

    While the lock is waited for, the first signal is raised as `Stopped`, and later ones are dropped. After `keep`
    they are kept for the program. Ctrl-Z is ignored: a stopped process renews no lock. `has_stopped` says whether one
    came that asks the program to end.
    """

    def __init__(self) -> None:
        super().__init__()
        self._child: Child | None = None
        self._kept: list[int] = []
        self._raise = True
        self.has_stopped: bool = False

    def __enter__(self) -> Self:
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` wants it
                self.handle(number, self._take)
        if hasattr(signal, "SIGTSTP"):
            self.handle(signal.SIGTSTP, lambda *_: None)
        return self

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self.has_stopped = self.has_stopped or number in STOPPING
        if self._child is not None:
            self._child.send(number)
        elif self._raise:
            stop(number)
        else:
            self._kept.append(number)

    def keep(self) -> None:
        """From now on keep what arrives for the program, which is about to be started."""
        self._raise = False

    def raise_again(self) -> None:
        """From now on raise the first signal again: the lock is waited for once more."""
        self._kept.clear()
        self._raise = True

    def pass_on_to(self, child: Child | None) -> None:
        """From now on pass on what arrives, and what was kept. With None the program has ended: drop both."""
        self._child = child
        while child is not None and self._kept:
            child.send(self._kept.pop(0))


#: How long a program has to stop by itself, unless given; and at most this part of the lease.
_GRACE_S: Final = 5.0
_MOST_OF_LEASE: Final = 0.5
#: The pause between two checks of the rest of the lease.
_POLL_OF_LEASE_S: Final = 1.0

#: How a lock was lost, for people who do not write Python.
_LOSSES: Final = {
    "evicted": "an operator broke it, or no renewal arrived for a whole lease",
    "deleted": "its row was deleted from the table",
    "replaced": "another writer has replaced its row, without the lock",
    "max_hold": "it was held for as long as --max-hold allows",
}

_WAIT: Final = "How long to wait for our turn; inf for ever. 60, or with --once-per one period."
_MAX_HOLD: Final = "How long to hold the lock at most; then the program is ended."
_LEAD: Final = "Run the program on the leader: wait for ever, and wait again when the lock was lost."
_GRACE: Final = (
    "How long the program has to stop by itself before it is killed; at most half of the lease. 5 s, or a quarter of "
    "the lease if that is less."
)
_ONCE: Final = "Only if no run has succeeded yet in this period, such as 15m, 6h, 1d or 1w."
_SINCE: Final = "Count the period from the end of the last run that has succeeded."
_AT_LEAST: Final = "No run within this time, such as 10m, of the beginning of the last run that has succeeded."
_BUSY: Final = "Exit code if the lock is held elsewhere for all of the wait."

_Program = Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARGS]...", help="The program to run.")]
_Lock = Annotated[str, typer.Option(metavar="NAME", help="Name of the lock.")]
_Wait = Annotated[float | None, typer.Option(metavar="SECONDS", help=_WAIT)]
_Lease = Annotated[float, typer.Option(metavar="SECONDS", help="How long the lock survives without a renewal.")]
_MaxHold = Annotated[float | None, typer.Option(metavar="SECONDS", help=_MAX_HOLD)]
_Lead = Annotated[bool, typer.Option("--lead", help=_LEAD)]
_Grace = Annotated[float | None, typer.Option(metavar="SECONDS", help=_GRACE)]
_Permits = Annotated[int, typer.Option(metavar="NUMBER", help="How many may run at once.")]
_Shared = Annotated[bool, typer.Option("--shared", help="Together with other shared holders.")]
_OncePer = Annotated[str | None, typer.Option(metavar="PERIOD", help=_ONCE)]
_Zone = Annotated[str | None, typer.Option(metavar="NAME", help="Time zone in whose midnight days begin. UTC.")]
_Since = Annotated[bool, typer.Option("--since-success", help=_SINCE)]
_AtLeast = Annotated[str | None, typer.Option(metavar="TIME", help=_AT_LEAST)]
_BusyExit = Annotated[int, typer.Option(metavar="NUMBER", help=_BUSY, min=0, max=255)]
_Quiet = Annotated[bool, typer.Option("--quiet", help="Do not say why the program was not started, or does not count.")]
_Owner = Annotated[str | None, typer.Option(metavar="TEXT", help="Label for people, of at most 256 bytes.")]

app: Final = Commands("", settings=LOCKS)


@app.add(
    "run --lock nightly-report --once-per 1d --zone Europe/Zurich -- make report",
    "run --lock import --wait 0 -- ./import.sh  # not while it runs elsewhere",
    "run --lock scheduler --lead --lease 15 -- ./scheduler",
    "run --lock import --permits 3 --wait inf --lease 30 -- ./import.sh --all",
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
    terms = {"wait": wait, "lease": lease, "permits": permits, "shared": shared, "owner": owner, "max_hold": max_hold}
    period = period_of(once_per, zone, at_least, since_success=since_success)
    if lead:
        if period is not None or wait is not None or permits != 1 or shared:
            raise usage("--lead waits for ever and leads alone: leave out --once-per, --wait, --permits and --shared.")
        terms["wait"] = math.inf
    command = [_found(program[0], session.environment), *program]
    with Signals() as signals:
        while True:
            try:
                turn = Turn(session.locks(), lock, terms, period)
            except (ConfigurationError, InvalidInput) as error:
                raise usage(str(error)) from error
            patience = _grace(grace, lease)
            try:
                return _run_once(session, turn, signals, command, patience, busy_exit, quiet=quiet)
            except Problem as problem:
                if not (lead and problem.facts.get("was_ended")):
                    raise
                signals.raise_again()
                if signals.has_stopped:
                    raise
                _tell(session, problem.document(), "" if quiet else f"{problem.message} The campaign goes on.")


def _run_once(
    session: Session,
    turn: Turn,
    signals: Signals,
    command: list[str],
    patience: float,
    busy_exit: int,
    *,
    quiet: bool,
) -> int:
    """Wait for the lock, and run the program, whose path is before its name; return the exit code."""
    path, *program = command
    lock, name = turn.lock, plain(turn.lock.name)
    facts: dict[str, Any] = {"table": session.settings.table, "name": lock.name}
    began = time.monotonic()
    try:
        is_ours = _acquire(turn, signals)
    except LockTimeout as error:
        if error.queue is None or error.cause is not None:  # no answer at the end
            raise
        problem = busy(program[0], lock, error, busy_exit)
        if quiet and not session.as_json:
            return problem.exit_code
        raise problem from error
    if not is_ours:
        document = {**facts, "exit_code": Exit.OK.value, **shown(turn.run, has_run=False, counts=False)}
        _tell(session, document, "" if quiet else f"{turn.skipped} {program[0]} was not started.")
        return Exit.OK
    waited = time.monotonic() - began
    why_lost, code = None, -1  # until it has one
    try:

        def start() -> Child:
            return Child(program, path, _environment(session, turn), turn.news.set)

        why_lost, code = _run_under(lock, signals, start, turn.news, patience)
    finally:
        loss = _release(turn, has_succeeded=code == 0 and why_lost is None)
    held = time.monotonic() - began - waited
    facts |= {"ticket": lock.ticket, "waited_s": round(waited, 3), "held_s": round(held, 3)}
    if why_lost or loss:
        message = (
            f"the lock {name} was lost while {program[0]} ran, which was ended: {why_lost}"
            if why_lost
            else f"{program[0]} ended by itself with exit code {code}, but the lock {name} had been lost before that "
            f"was noticed: {loss}. Another program may have run under it meanwhile; check the result."
        )
        message += " This run does not count." if turn.run is not None else ""
        exit_code = Exit.LOST if why_lost else code or Exit.LOST  # 0 would say that all is well
        raise Problem("lock_lost", message, exit_code, **facts, program_exit_code=code, was_ended=bool(why_lost))
    is_said = turn.run is not None and code and not quiet
    facts |= {"exit_code": code, "program_exit_code": code, **shown(turn.run, has_run=True, counts=code == 0)}
    _tell(session, facts, f"{ended(program[0], code)}, so this run does not count." if is_said else "")
    return code


def _tell(session: Session, document: Mapping[str, Any], message: str) -> None:
    """Tell how a run has gone: as JSON, or what is to be said. Standard output is the program's."""
    if session.as_json:
        terminal.report(document)
    elif message:
        terminal.say(message)


def _environment(session: Session, turn: Turn) -> dict[str, str]:
    """Return the environment of the program."""
    ours = {"PYNAMO_LOCKING_TICKET": str(turn.lock.ticket), "PYNAMO_LOCKING_NAME": turn.lock.name}
    if turn.run is not None:
        ours["PYNAMO_LOCKING_PERIOD"] = turn.run.period_begins.isoformat(timespec="seconds")
    return {**session.environment, **ours}


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
        try:
            lock.ensure_remaining(0)  # no request, unless the lease has ended while this process was stopped
        except LockLost as loss:
            return f"{_LOSSES.get(loss.reason, loss)}."
        except OutcomeUnknown:
            return "the lease has ended, and no renewal was answered."
        left = lock.remaining
        if left <= grace:
            return f"no renewal was answered, and the lease would have ended in {left:.1f} s."
        news.wait(min(_POLL_OF_LEASE_S, left - grace))
    return None


def _release(turn: Turn, *, has_succeeded: bool) -> str | None:
    """Release the lock; return how it was lost before, if it was. No failure here hides the program's exit code."""
    name = turn.lock.name
    try:
        turn.leave(has_succeeded=has_succeeded)
    except LockLost as loss:
        return _LOSSES.get(loss.reason, str(loss))
    except OutcomeUnknown as error:
        logger.warning("%s", error)
    except EXPECTED as error:
        logger.warning("cannot release %s, so the next waiter waits until the lease ends: %s", name, error)
    return None
