"""The error of a lock that is ours no more, in words."""

from __future__ import annotations

from typing import Final

from pynamo_locking._io import runtime
from pynamo_locking.exceptions import LockLost

_REASONS: Final = {
    "evicted": (
        "no renewal of it arrived for a whole lease (a pause, an outage), or an operator broke it; "
        "somebody else may hold the lock by now"
    ),
    "deleted": "the item that carries it is gone",
    "": "it was released or its item deleted",
}


def loss(label: str, ticket: int, reason: str, pid: int) -> LockLost:
    """Return the error that says what happened.

    Args:
        label: the name of the lock.
        ticket: ours.
        reason: as in `LockLost`; empty if it is not known.
        pid: the process that took it.
    """
    what = f"ticket {ticket} of {label}"
    if reason == "forked":
        what += (
            f" belongs to process {pid}, which took it before this process {runtime.pid()} was forked, and may still "
            f"hold it. A child process has none of the locks of its parent: take one here, with locked() or a new "
            f"lock(), and read again."
        )
    else:
        what += (
            f" is no longer in the queue: {_REASONS[reason]}. Stop writing. Leave the `with` block (or release the "
            f"lock), take it again, and read again."
        )
    return LockLost(what, reason=reason or "deleted", ticket=ticket)
