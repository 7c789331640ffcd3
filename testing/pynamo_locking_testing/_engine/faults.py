"""What can go wrong at a request, and how often in one run."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Final

from pynamo_locking_testing._engine.partitions import READS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking_testing._engine.choices import Recorded


class Fault(Enum):
    """What happens at one request."""

    THROTTLED = "throttled"  # refused for now, not applied
    NO_CONNECTION = "no connection"  # never sent
    FAILED_BEFORE = "failed before"  # status 500, not applied
    FAILED_AFTER = "failed after"  # status 500, applied
    LOST_REQUEST = "lost request"  # time-out, not applied
    LOST_RESPONSE = "lost response"  # time-out, applied
    LATE = "late"  # time-out, applied at any later step
    CONFLICT = "conflict"  # another transaction is at work on the item, not applied
    STALE = "stale"  # an eventually consistent read shows an older item
    CRASH_BEFORE = "crash before"  # the process dies, not applied
    CRASH_AFTER = "crash after"  # the process dies, applied
    PAUSE_BEFORE = "pause before"  # the process stands still for more than a lease, then sends the request
    PAUSE_AFTER = "pause after"  # the request is applied, then the process stands still
    DOUBLED = "doubled"  # sent on twice by something on the way, which passes the second answer on: no sender knows
    HOT = "hot"  # others use up what a partition writes: this request and writes of a while are refused
    REPLICATED = "replicated"  # a write of another Region is at work on the item of a strong global table, not applied


_ONLY_WRITES: Final = frozenset({Fault.FAILED_AFTER, Fault.LOST_RESPONSE, Fault.LATE, Fault.CONFLICT, Fault.HOT})
#: What there is on a global table with strong consistency; transactions are refused there, whatever they are about.
_SINGLE_WRITES: Final = frozenset({"PutItem", "UpdateItem", "DeleteItem"})
#: What strikes a batch of statements as a whole; each of its statements may have a fault of its own as well.
_OF_BATCHES: Final = frozenset(
    {Fault.THROTTLED, Fault.FAILED_BEFORE, Fault.FAILED_AFTER, Fault.LOST_REQUEST, Fault.LOST_RESPONSE, Fault.LATE}
)
TIMEOUTS: Final = frozenset({Fault.LOST_REQUEST, Fault.LOST_RESPONSE, Fault.LATE})


class Faults:
    """The budget of a run.

    Args:
        choices: decide at each request.
        budget: how often each kind may happen.
        most: how many may happen at requests altogether; None for no limit.
    """

    def __init__(self, choices: Recorded, budget: Mapping[Fault, int], most: int | None = None) -> None:
        self._choices = choices
        self._left = Counter(budget)
        self._most = most
        self.happened: Counter[Fault] = Counter()
        self.last_at: float = 0.0
        self.are_over = False

    def at(
        self, operation: str, *, is_consistent: bool, may_conflict: bool, now: float, knows_itself: bool = False
    ) -> Fault | None:
        """Choose what happens to a request; None: nothing."""
        if self.are_over or (self._most is not None and self.happened.total() >= self._most):
            return None
        options = [fault for fault in self._left if self._left[fault] and _fits(fault, operation, is_consistent)]
        if not may_conflict and Fault.CONFLICT in options:
            options.remove(Fault.CONFLICT)
        if not knows_itself and Fault.DOUBLED in options:
            options.remove(Fault.DOUBLED)
        choice = self._choices.pick(len(options) + 1, "fault")
        if choice == 0:
            return None
        fault = options[choice - 1]
        self._left[fault] -= 1
        self.note(fault, now)
        return fault

    def note(self, fault: Fault, now: float) -> None:
        """Count a fault that has happened, drawn or not."""
        self.happened[fault] += 1
        self.last_at = now

    def age(self, n: int) -> int:
        """Choose by how many writes more than one a stale read is behind."""
        return self._choices.pick(n, "age")


def _fits(fault: Fault, operation: str, is_consistent: bool) -> bool:
    if fault is Fault.REPLICATED:
        return operation in _SINGLE_WRITES
    if fault is Fault.STALE:
        return operation == "GetItem" and not is_consistent
    if operation == "BatchExecuteStatement":
        return fault in _OF_BATCHES
    return operation not in READS or fault not in _ONLY_WRITES
