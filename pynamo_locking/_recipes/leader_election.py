"""A leader: one of many processes, for terms that the tickets of a lock number.

What is offered is what the elections of others have in common: kazoo (``Election``), Curator (``LeaderLatch``,
``LeaderSelector``), client-go (``leaderelection``), Spring (``LockRegistryLeaderInitiator``).
"""

from __future__ import annotations

import contextlib
import math
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import RENEW_AFTER, Duration, seconds
from pynamo_locking._io import runtime
from pynamo_locking._io.concurrency import Pause, arun_steps, run_steps
from pynamo_locking._io.runtime import logger
from pynamo_locking._io.wakeups import Mailbox
from pynamo_locking._locks.lock import Lock, handle_of
from pynamo_locking.exceptions import LockLost, LockTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.expressions.condition import Condition
    from pynamodb.transactions import TransactWrite

    from pynamo_locking._io.concurrency import Steps
    from pynamo_locking._io.runtime import Event


#: A leader whose renewals are not answered steps down when this part of its lease is left.
_LAST_PART: Final = 1 / 4

#: The campaign that this thread, or task, was started by.
_started_by: ContextVar[LeaderElection | None] = ContextVar("pynamo_locking_started_by", default=None)


class _Course:
    """Whether a term goes on: as long as its lock is held, renewals are answered, and nobody has wished for its end."""

    def __init__(self, lock: Lock[Any], tell: Callable[[], None]) -> None:
        self._handle = handle_of(lock)
        self._tell = tell
        self.wish: str = ""
        self.is_working = False

    def end_with(self, wish: str) -> None:
        self.wish = self.wish or wish
        self._tell()

    def why_over(self) -> str:
        held = self._handle.last_entry()
        held.is_allowed()  # notes what the heartbeat is about to note
        return held.ownership.reason or self.wish or ("" if self.left > 0 else "unanswered")

    @property
    def left(self) -> float:
        """How long it lasts unless the lease is renewed."""
        held = self._handle.last_entry()
        return held.remaining - held.entry.lease * _LAST_PART


class LeaderTerm:
    """The time for which a process leads, from its election until it loses the lock or resigns.

    Under the faults that `Lock` names, at most one process is in a term, by its own clock. Work that does not ask, or
    is paused after it has asked, may continue when the next term has begun: guard its writes.

    Attributes:
        ticket: the number of the term, and fencing token: larger than that of each earlier term.
        ended: an event of `threading`, set as soon as the term has ended. Its wait() blocks an event loop.
        reason: why it has ended; empty before. One of `LockLost`; ``"unanswered"``: no renewal was answered, and a
            quarter of the lease is left; ``"resigned"``; ``"failed"``: `on_elected` has raised an error.
    """

    def __init__(self, lock: Lock[Any], course: _Course) -> None:
        self.ticket: int = lock.ticket
        self.ended: Event = runtime.current.event()
        self.reason = ""
        self._lock = lock
        self._course = course
        self._label = handle_of(lock).target.row.label

    @property
    def is_leader(self) -> bool:
        """Whether the term lasts, by this process's own clock: False before another process can be elected."""
        return not self._course.wish and not self.reason and self._lock.is_held

    def held_condition(self) -> Condition:
        """Return the condition that the term lasts, for writes of the row that carries the lock: `Lock.held_condition`.

        Raises:
            LockLost: the term has ended.
        """
        return self._lasting().held_condition()

    def add_check_to(self, transaction: TransactWrite) -> None:
        """Let a transaction fail once the term has ended, whatever this process believes: `Lock.add_check_to`.

        Raises:
            LockLost: the term has ended.

        Cost: that of one more action in the transaction.
        """
        self._lasting().add_check_to(transaction)

    def resign(self) -> None:
        """End the term. The process is a candidate again, behind the waiting ones."""
        self._course.end_with("resigned")

    def _lasting(self) -> Lock[Any]:
        """Return the lock, after a check of the clock: the campaign's thread may come later, after a pause."""
        if reason := self.reason or self._course.why_over():
            self._course.end_with(reason)
            message = f"term {self.ticket} of {self._label} has ended ({reason}). Stop the work of the leader."
            raise LockLost(message, reason=reason, ticket=self.ticket)
        return self._lock

    def __repr__(self) -> str:
        return f"<LeaderTerm {self.ticket} of {self._label}{f' {self.reason}' if self.reason else ''}>"


class LeaderElection:
    """The candidacy of this process for one name, made by `NamedLock.lead`, for ``with`` and ``async with``.

    A thread waits for its turn, leads for a term, and waits again, until the block is left. One object is for one
    process; a forked child does not lead.

    When the block is left, the leader resigns: the term ends, `on_lost` is called, and when `on_elected` has returned
    the lock is released, so that the next process is elected at once.

    Guaranteed: what `Lock` guarantees for holders. So the numbers of terms grow, and another process is elected when
    the lease of a leader has expired that was killed, stopped or cut off. A leader whose work hangs leads on, until
    `max_hold` if that is set.

    Cost: 1 write to begin a term and 1 to end it; 1 write in each third of a lease for each process; for waiting
    processes 1 eventually consistent read for each poll.
    """

    def __init__(
        self,
        lock: Lock[Any],
        on_elected: Callable[[LeaderTerm], object] | None,
        on_lost: Callable[[str], object] | None,
    ) -> None:
        self._pattern = lock
        self._label = handle_of(lock).target.row.label
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._term: LeaderTerm | None = None
        self._candidate = lock
        self._is_running = self._is_stopping = False
        self._forks = runtime.forks
        self._mailboxes: list[Mailbox] = []

    # For users

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now, by its own clock: False before another process can be elected."""
        return self.term is not None

    @property
    def term(self) -> LeaderTerm | None:
        """The term for which this process leads now; None if it does not."""
        term = self._term
        return term if term is not None and term.is_leader else None

    def elected(self, timeout: Duration | None = None) -> LeaderTerm | None:
        """Wait until this process leads.

        Args:
            timeout: seconds or a timedelta; without end unless given.

        Returns:
            The term; None if the campaign has ended, or no term began in time.
        """
        return run_steps(self._until_elected(timeout))

    async def aelected(self, timeout: Duration | None = None) -> LeaderTerm | None:
        """As `elected`, awaited, with the same argument `timeout`."""
        return await arun_steps(self._until_elected(timeout))

    def start(self) -> None:
        """Begin the campaign, where there is no block; `stop` ends it.

        Raises:
            ConfigurationError: it has begun already.
            RuntimeError: no thread can be started.
        """
        if not self._is_over:
            raise ConfigurationError(f"the election for {self._label} has begun already.")
        self._is_running, self._is_stopping, self._forks, self._term = True, False, runtime.forks, None
        try:
            runtime.current.spawn(self._run, name="pynamo-locking-campaign")
        except BaseException:
            self._is_running = False
            raise

    def stop(self, *, wait: bool = True) -> None:
        """End the campaign; a leader resigns.

        Args:
            wait: until the lock is released, which is when `on_lost` and `on_elected` have returned; if `on_elected`
                does not return, until the lock is lost, as after `max_hold`. False for a signal handler, and inside
                these two.

        Raises:
            ConfigurationError: it would wait for itself, inside one of these two. The election continues.
        """
        if wait and _started_by.get() is self:
            raise ConfigurationError(
                f"on_elected and on_lost of the campaign for {self._label} would wait for themselves: call "
                f"stop(wait=False) there, and return."
            )
        self._stop()
        if wait:
            run_steps(self._until(lambda: self._is_over))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stop()
        await arun_steps(self._until(lambda: self._is_over))

    # Waiting

    @property
    def _is_over(self) -> bool:
        return not self._is_running or self._forks != runtime.forks  # no thread of the parent lives in the child

    def _tell(self) -> None:
        for mailbox in tuple(self._mailboxes):
            mailbox.put(None)

    def _until(self, is_true: Callable[[], bool], left: Callable[[], float] = lambda: math.inf) -> Steps[None]:
        """Wait until something is true, and check again when it was told of a change, or that time is over."""
        mailbox = Mailbox()
        self._mailboxes.append(mailbox)
        try:
            while not is_true():
                yield Pause(left(), mailbox)
        finally:
            self._mailboxes.remove(mailbox)

    def _until_elected(self, timeout: Duration | None) -> Steps[LeaderTerm | None]:
        timeout_s = math.inf if timeout is None else seconds(timeout, "timeout")
        yield from self._until_or_over(lambda: self.is_leader or self._is_over, timeout_s)
        return self.term

    def _until_or_over(self, is_true: Callable[[], bool], timeout_s: float) -> Steps[None]:
        ends = runtime.current.monotonic() + timeout_s

        def left() -> float:
            return ends - runtime.current.monotonic()

        yield from self._until(lambda: is_true() or left() <= 0, left)

    def _stop(self) -> None:
        self._is_stopping = True
        if self._term is not None:
            self._term.resign()
        handle_of(self._candidate).cut_short()
        self._tell()

    # The campaign's thread

    def _run(self) -> None:
        _started_by.set(self)
        try:
            while not self._is_stopping:
                pattern = handle_of(self._pattern)
                lock = Lock(pattern.target, pattern.options, lambda _: self._tell())
                self._candidate = lock
                if self._is_stopping:
                    handle_of(lock).cut_short()
                is_well = False
                try:
                    lock.acquire()
                    is_well = self._lead(lock)
                except LockTimeout:  # `stop` has cut it short
                    is_well = True
                except Exception:
                    logger.exception("the campaign for %s goes on after an error", lock.name)
                if not is_well:  # let another process lead
                    pause_s = handle_of(lock).options.lease * RENEW_AFTER
                    run_steps(self._until_or_over(lambda: self._is_stopping, pause_s))
        finally:
            self._is_running = False
            self._tell()

    def _lead(self, lock: Lock[Any]) -> bool:
        """Lead for one term; tell whether its work has gone well."""
        course = _Course(lock, self._tell)
        term = LeaderTerm(lock, course)
        try:
            self._term = term
            self._begin_work(term, course)
            self._tell()
            run_steps(self._until(lambda: self._is_stopping or bool(course.why_over()), lambda: course.left))
            term.reason = course.why_over() or "resigned"
            term.ended.set()
            if self._on_lost is not None:
                try:
                    self._on_lost(term.reason)
                except Exception:
                    logger.exception("on_lost failed")
            run_steps(
                self._until(
                    lambda: not course.is_working or (self._is_stopping and not lock.is_held),
                    lambda: lock.remaining or math.inf,
                )
            )
        finally:
            self._term = None
            with contextlib.suppress(LockLost):  # the log has it
                lock.release()
        return course.wish != "failed"

    def _begin_work(self, term: LeaderTerm, course: _Course) -> None:
        on_elected = self._on_elected
        if on_elected is None:
            return

        def work() -> None:
            _started_by.set(self)
            try:
                on_elected(term)
            except Exception as error:
                if not (isinstance(error, LockLost) and error.ticket == term.ticket):  # else it has heard of its end
                    logger.exception("on_elected failed in %r", term)
                    course.end_with("failed")
            except BaseException:
                course.end_with("failed")
                raise
            finally:
                course.is_working = False
                self._tell()

        course.is_working = True
        try:
            runtime.current.spawn(work, name=f"leader-{term.ticket}")
        except BaseException:
            course.is_working = False
            raise
