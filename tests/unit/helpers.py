"""What several unit tests share. Nothing here makes a request."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from pynamodb.connection import Connection

from pynamo_locking import NamedLock
from pynamo_locking._core.lock_modes import WHOLE
from pynamo_locking._core.lock_queue import FREE, LockState, QueueEntry
from pynamo_locking._io import runtime, wakeups
from pynamo_locking._io.wakeups import Mailbox
from pynamo_locking._locks import context
from pynamo_locking._locks.held_lock import HeldEntry
from tests.support.models import declare
from tests.support.runtime import installed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking._io.lock_record import LockRow

#: Hypothesis, the same examples in every run, however long they take.
steady = settings(
    derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)


def entry(ticket: int = 1, **facts: Any) -> QueueEntry:
    """An entry with lease 60 s that entered at the epoch."""
    defaults = {
        "id": f"id{ticket}",
        "owner": f"owner{ticket}",
        "lock_mode": WHOLE,
        "lease_ms": 60_000,
        "heartbeats": 0,
        "until_ms": 60_000,
        "writes": 0,
        "read_ms": 0,
    }
    return QueueEntry(ticket=ticket, **(defaults | facts))


def queue(*entries: QueueEntry, since: int = 1, evicted: dict[int, int] | None = None) -> LockState:
    """A lock document with these entries."""
    return LockState(entries, max([since, *(e.ticket for e in entries)]) + 1, since, evicted or {})


Account = declare(
    "Account", table_name="accounts", hash_key="account_id", lock=True, region="us-east-1", lock_settings=None
)
Locks = declare("Locks", NamedLock, table_name="locks", region="us-east-1", lock_settings=None)


def row(key: str = "a-1") -> LockRow:
    """The row of an account."""
    return Account.locked(key)._handle.target.row


def opened(row: LockRow) -> Mailbox:
    """A new mailbox in which releases of that lock are heard."""
    mailbox = Mailbox(state=row.state)
    wakeups.open_mailbox(row, mailbox)
    return mailbox


def own_entry(key: str = "a-1", *, started: float | None = None, **facts: Any) -> HeldEntry:
    """Our granted entry in the queue of an account."""
    at = runtime.current.monotonic() if started is None else started
    return HeldEntry(row(key), entry(**facts), at, 0, FREE.since, {"account_id": {"S": key}})


@contextmanager
def held_here(own: HeldEntry) -> Iterator[HeldEntry]:
    """Let the context of the block hold an entry."""
    context.add(own)
    yield own
    own.ended()
    context.remove(own)


@pytest.fixture
def no_requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fails the test at its first request."""

    def dispatch(connection: Connection, operation: str, kwargs: dict[str, Any]) -> Any:
        raise AssertionError(f"a request was made: {operation} {kwargs}")

    monkeypatch.setattr(Connection, "dispatch", dispatch)
    return []


class Crowded(runtime.Runtime):
    """A machine on which only so many threads can be started."""

    def __init__(self, threads):
        super().__init__()
        self.left = threads

    def spawn(self, target, name):
        if self.left == 0:
            raise RuntimeError("can't start new thread")
        self.left -= 1
        super().spawn(target, name)


@pytest.fixture
def crowded():
    """Let no more than that many threads be started from now on."""
    with ExitStack() as stack:
        yield lambda threads: stack.enter_context(installed(Crowded(threads)))
