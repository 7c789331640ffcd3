"""How a transaction is committed, whatever is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._io.headers import HeaderTable


@dataclass(frozen=True)
class TransactionOptions:
    """How a transaction is committed, whatever is in it.

    Attributes:
        id: names the attempt.
        priority: tells how old the transaction is.
        owner: label for people.
        lease: how long it lives without a renewal, in seconds.
        deadline: until when to wait for others, by the monotonic clock.
        workers: how many requests at once.
        idempotency_key: names what it does.
        on_progress: called with the number of items done and of all.
        header_table: the table of transactions; None if there is none.
    """

    id: str
    priority: str
    owner: str
    lease: float
    deadline: float
    workers: int
    idempotency_key: str | None = None
    on_progress: Callable[[int, int], object] | None = None
    header_table: HeaderTable | None = None
