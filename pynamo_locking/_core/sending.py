"""When a request is sent again, and when its sender stops. Pure: it neither sends nor waits.

An attempt without a definite answer may have been applied. From then on the request is in doubt: a refusal of a later
copy does not prove that nothing was written.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from pynamo_locking._core.error_codes import PASSING, Answer

#: How often a request that conflicts with other writes is sent again (a heartbeat is such a write).
MOST_CONFLICTS: Final = 8


class Next(Enum):
    """What the sender does after an attempt that failed."""

    SETTLE = "judge by the stored item, which came with the refusal"
    AGAIN = "send it again: no attempt was applied"
    REPEAT = "send a copy: an attempt may have been applied"
    LOOK = "read the item to find out whether it was applied"
    FAIL = "report that it was not applied"
    UNKNOWN = "report that it may have been applied"


class Step(NamedTuple):
    """What is next, and the `lease.backoff` number of the pause before it; None for no pause."""

    next: Next
    pause: int | None = None


class Policy(NamedTuple):
    """How a request may be sent again.

    Attributes:
        repeats: how many copies follow attempts without a definite answer.
        first_pause: the number of the pause before the first copy; None if copies follow at once.
        is_single: whether botocore sends each attempt only once, so that the sender repeats throttled ones.
        looks: whether the sender reads the item instead of sending a copy, which could be applied as well.
    """

    repeats: int = 1
    first_pause: int | None = None
    is_single: bool = False
    looks: bool = False


class Sending:
    """One request, from its first attempt to its end.

    Attributes:
        in_doubt: whether an attempt may have been applied.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.in_doubt = False
        self._conflicts = 0
        self._repeats = 0

    def after(self, answer: Answer, *, was_repeated: bool = False) -> Step:
        """Return what follows a failed attempt; `was_repeated` if an earlier try of botocore may have been applied."""
        self.in_doubt = self.in_doubt or was_repeated
        if answer is Answer.REFUSED:
            return Step(Next.SETTLE)
        passes = answer in PASSING if self.policy.is_single else answer is Answer.CONFLICT
        if passes and self._conflicts < MOST_CONFLICTS:
            self._conflicts += 1
            return Step(Next.REPEAT if self.in_doubt else Next.AGAIN, self._conflicts)
        if answer is not Answer.UNANSWERED and not self.in_doubt:
            return Step(Next.FAIL)
        self.in_doubt = True
        if self.policy.looks or self._repeats >= self.policy.repeats:
            return Step(Next.LOOK if self.policy.looks else Next.UNKNOWN)
        number, first = self._repeats, self.policy.first_pause
        self._repeats += 1
        return Step(Next.REPEAT, None if first is None else first + number)
