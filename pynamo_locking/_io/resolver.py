"""What to do about the mark of a transaction: look at its header, then finish, drop, wait or abort."""

from __future__ import annotations

import contextlib
import logging
import math
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.errors import LockingError
from pynamo_locking._core.lease import PATIENCE_S, Deadline, LockSettings, backoff
from pynamo_locking._core.naming import plain
from pynamo_locking._core.transaction import Fate, Header, Meeting, State, fate, meet, reason_to_abort
from pynamo_locking._io import event_stream, header_requests, mark_requests, reports, runtime, trust
from pynamo_locking._io.retries import Unavailable, persistently
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pynamo_locking._core.queue import Mark
    from pynamo_locking._io.header_requests import HeaderTable
    from pynamo_locking._io.lock_document import LockRow

logger = logging.getLogger("pynamo_locking")

#: How often the same is done about a mark that stays. For a sound mark, once is enough.
_MOST_TRIES: Final = 5


class StillPending(Exception):  # noqa: N818 - an answer, not an error
    """A live transaction has the item, and there is no time left to wait for it."""

    def __init__(self, header: Header) -> None:
        super().__init__(
            f"the transaction {plain(header.id)} of {plain(header.owner)} has the item, and is not decided yet; "
            f"nothing was written"
        )
        self.header = header


@contextlib.contextmanager
def conflicts(
    kind: type[Exception],
    error: Exception | None = None,
    unknown: Callable[[Exception], Exception] | None = None,
    *,
    told: str = "",
) -> Iterator[None]:
    """Turn a mark that stays in the way into the `TransactionConflict` for the caller.

    Args:
        kind: PynamoDB's error class that the conflict must also have.
        error: the refusal by which the mark was met, if any.
        unknown: given if the refused write may have been applied: returns the error to raise instead of any other.
        told: what could not be done, before the reason.
    """
    try:
        yield
    except (StillPending, Unavailable, LockingError) as reason:
        if unknown is not None and error is not None:
            raise unknown(error) from reason
        if isinstance(reason, LockingError):
            raise
        raise also(TransactionConflict, kind)(f"{told}{reason}. A retry is safe.", cause=error) from reason


def reason_now(header: Header, meeting: Meeting, priority: str | None = None) -> str | None:
    """As `reason_to_abort`, at this moment."""
    return reason_to_abort(
        header,
        meeting,
        now=runtime.current.monotonic(),
        now_ms=runtime.current.time_ms(),
        max_clock_skew=LockSettings().max_clock_skew,
        priority=priority,
    )


class Resolver:
    """Removes marks of other transactions, for one operation that meets them.

    A header that is decided is read once. That is safe although it may change afterwards: an aborted or finished one
    can only disappear, which means the same for a mark. A committed one becomes finished once all its marks are gone,
    and no mark of it comes after that (R1, R8); to finish a mark that is gone already is refused. A pending header is
    read again for each look. So is that of a mark that stays, whatever was done.

    Args:
        deadline: until when to wait for live transactions, by the monotonic clock; None for `PATIENCE_S` from the first
            one on.
        priority: of the transaction that has to wait; None if the operation belongs to none.
        pulse: called before each wait, to renew leases that would end meanwhile; may raise.
    """

    def __init__(
        self,
        *,
        deadline: Deadline | None = None,
        priority: str | None = None,
        pulse: Callable[[], None] = lambda: None,
    ) -> None:
        self._deadline = deadline
        self._priority = priority
        self._pulse = pulse
        self._decided: dict[tuple[str, str], Header | None] = {}
        self._met: dict[str, Meeting] = {}
        self._waits = 0
        self._tried: dict[tuple[Any, ...], int] = {}

    def resolve(self, *marked: tuple[LockRow, Mark]) -> None:
        """Do what can be done about marks now, or wait a little for each transaction; the caller then looks again.

        Raises:
            StillPending: the deadline has passed.
            Unavailable: no answer came.
            LockingError: a mark cannot be resolved: it names what is not to be trusted, it stays whatever is done, or
                DynamoDB refused.
        """
        groups: dict[tuple[str, str], list[tuple[LockRow, Mark]]] = {}
        for row, mark in marked:
            groups.setdefault((mark.table, mark.id), []).append((row, mark))
        for group in groups.values():
            self.act(self.header(*group[0]), group)

    def act(self, header: Header | None, marked: Sequence[tuple[LockRow, Mark]]) -> None:
        """As `resolve`, of marks of one transaction with that header."""
        wait = self.begin(header, marked)
        if wait is not None:
            runtime.current.sleep(wait)

    def header(self, row: LockRow, mark: Mark) -> Header | None:
        """Return the header of a mark: read now, or decided when it was read before."""
        header_table = trust.header_table_of(row, mark)
        known = (mark.table, mark.id)
        if known in self._decided:
            return self._decided[known]
        header = persistently(lambda: header_requests.read(header_table, mark.id))
        if fate(header) is not Fate.WAIT:
            self._decided[known] = header
        return header

    def begin(self, header: Header | None, marked: Sequence[tuple[LockRow, Mark]]) -> float | None:
        """As `act`, but return how long to wait, in seconds, if at all."""
        row, mark = marked[0]
        header_tables = [trust.header_table_of(*each) for each in marked]
        what = fate(header)
        if what is Fate.WAIT:
            assert header is not None  # noqa: S101 - it is pending
            wait = self._wait_or_abort(header_tables[0], header)
            return self._try_again(marked[:1], what) if wait is None else wait
        if what is Fate.DROP:
            logger.info("dropping marks of the transaction %s: %d, the first from %s", mark.id, len(marked), row.label)
        gone = mark_requests.settle(header_tables[0], what, marked)
        if event_stream.listeners and len(gone) < len(marked):
            outcome = "finished" if what is Fate.FINISH else "aborted"
            reports.recovered(header_tables[0], header, mark.id, outcome=outcome, by="reader")
        return self._try_again(marked, what)

    def _try_again(self, marked: Sequence[tuple[LockRow, Mark]], what: Fate) -> float | None:
        """Let the caller look again: at once after the first time, later each time if a mark stays."""
        tried = [self._count((row.identity, mark.id, what)) for row, mark in marked]
        times = max(tried)
        row, mark = marked[tried.index(times)]
        if times == 1:
            return None
        self._decided.pop((mark.table, mark.id), None)
        left = math.inf if self._deadline is None else self._deadline.at - runtime.current.monotonic()
        is_late = left <= 0 and what is not Fate.WAIT  # a live transaction may have been renewed just then
        if is_late or times >= _MOST_TRIES:
            raise stuck(row, mark, what)
        self._pulse()
        return max(0.0, min(left, backoff(times, runtime.current.jitter())))

    def _count(self, done: tuple[Any, ...]) -> int:
        self._tried[done] = self._tried.get(done, 0) + 1
        return self._tried[done]

    def _wait_or_abort(self, header_table: HeaderTable, header: Header) -> float | None:
        now = runtime.current.monotonic()
        meeting = self._met[header.id] = meet(self._met.get(header.id), header, now)
        reason = reason_now(header, meeting, self._priority)
        if reason is not None:
            logger.warning("aborting the transaction %s of %s: %s", plain(header.id), plain(header.owner), reason)
            stored = header_requests.abort(
                header_table, header.id, reason, beat=header.beat if reason == "expired" else None
            )
            if event_stream.listeners and stored.state is State.ABORTED:
                reports.recovered(header_table, header, header.id, outcome="aborted", by="reader", reason=reason)
            return None
        if self._deadline is None:
            self._deadline = Deadline(now + PATIENCE_S)
        left = self._deadline.at - now
        if left <= 0:
            raise StillPending(header)
        self._pulse()
        self._waits += 1
        return min(left, backoff(min(self._waits, 4), runtime.current.jitter()))


def stuck(row: LockRow, mark: Mark, what: Fate) -> LockingError:
    why = {
        Fate.WAIT: "is pending without a sign of life, and cannot be aborted",
        Fate.DROP: "was aborted or is not known any more, and its mark cannot be removed",
        Fate.FINISH: "is committed, and cannot be put in place"
        + (f": the row {mark.spill} of {mark.table}, which has the new values, is gone" if mark.spill else ""),
    }[what]
    return LockingError(
        f"{row.label} carries the mark of the transaction {mark.id!r}, which {why}. Restore its rows in "
        f"{mark.table}, or remove tx from the attribute {row.attribute!r} of the item, which then stays what it is."
    )
