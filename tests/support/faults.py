"""What can happen to a request on its way, and what an engine serves of it: for taps on clients, and for proxies."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Fault(Enum):
    """What can happen to a request on its way."""

    LOST_REQUEST = "closed before it was forwarded"
    LOST_RESPONSE = "served, and closed without an answer"
    CUT_RESPONSE = "served, and closed in the middle of the answer"
    STALLED_REQUEST = "not forwarded, and silence until the client hangs up"
    STALLED_RESPONSE = "served, and silence until the client hangs up"
    RESET_BEFORE = "connection reset before it was forwarded"
    RESET_AFTER = "served, and connection reset"
    DUPLICATED = "served and answered, and a second copy arrives later"
    DOUBLED = "served twice, and answered by the second answer"
    LATE = "closed, and the request arrives later"
    THROTTLED = "not forwarded: 400 ThrottlingException"
    FAILED_BEFORE = "not forwarded: 500 InternalServerError"
    FAILED_AFTER = "served, and answered by 500 InternalServerError"
    UNAVAILABLE_BEFORE = "not forwarded: 503 of something that is not DynamoDB"
    UNAVAILABLE_AFTER = "served, and answered by 503 of something that is not DynamoDB"
    BLOCKED_BEFORE = "not forwarded: 200 with a page of something that is not DynamoDB"
    BLOCKED_AFTER = "served, and answered by 200 with a page of something that is not DynamoDB"

    @property
    def is_slow(self) -> bool:
        """Whether the client needs its whole read timeout to notice."""
        return self in {Fault.STALLED_REQUEST, Fault.STALLED_RESPONSE}

    @property
    def reaches_engine(self) -> bool:
        """Whether the engine serves the spoilt request, at once or later."""
        return self not in _NOT_FORWARDED or self is Fault.LATE

    @property
    def arrives_later(self) -> bool:
        """Whether a copy is kept, to be forwarded later."""
        return self in {Fault.DUPLICATED, Fault.LATE}


#: Whose request does not go to the engine at once.
_NOT_FORWARDED: Final = frozenset(
    {
        Fault.LOST_REQUEST,
        Fault.STALLED_REQUEST,
        Fault.RESET_BEFORE,
        Fault.LATE,
        Fault.THROTTLED,
        Fault.FAILED_BEFORE,
        Fault.UNAVAILABLE_BEFORE,
        Fault.BLOCKED_BEFORE,
    }
)


def serve(
    fault: Fault | None,
    forward: Callable[[], T],
    keep: Callable[[], object],
    between: Callable[[], object] = lambda: None,
) -> T | None:
    """Let an engine serve a request as often as a fault wants it; return the last answer, if it was served at all.

    Args:
        fault: what happens to the request.
        forward: lets the engine serve it.
        keep: keeps a copy that arrives later.
        between: is called before the second copy of a request that is served twice.
    """
    if fault is Fault.DOUBLED:
        forward()
        between()
    answer = None if fault in _NOT_FORWARDED else forward()
    if fault is not None and fault.arrives_later:
        keep()
    return answer
