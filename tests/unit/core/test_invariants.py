"""Each change of a lock document that no request of this package makes is named, and each that one makes is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from pynamo_locking._core import invariants
from pynamo_locking._core.lock_modes import LockMode
from pynamo_locking._core.lock_queue import LockState, QueueEntry, RunRecord


def entry(ticket: int, **changes: Any) -> QueueEntry:
    made = QueueEntry(
        id=f"id-{ticket}",
        ticket=ticket,
        owner="a",
        lock_mode=LockMode(),
        lease_ms=60_000,
        heartbeats=0,
        until_ms=0,
        writes=0,
        read_ms=0,
    )
    return replace(made, **changes)


def broken() -> LockState:
    state = LockState()
    object.__setattr__(state, "unreadable", "next is missing")
    return state


SUCCESS: Final = RunRecord(ticket=5, owner="a", period_ms=0, began_ms=1, ended_ms=2)
HELD: Final = LockState((entry(7), entry(8)), next_ticket=9, since=5, evicted={6: 6}, success=SUCCESS)


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (HELD, HELD, []),
        (HELD, replace(HELD, entries=(entry(8),)), []),
        (HELD, replace(HELD, entries=(*HELD.entries, entry(9)), next_ticket=10), []),
        (HELD, replace(HELD, entries=(entry(7, heartbeats=1, writes=2), entry(8))), []),
        (HELD, replace(HELD, success=replace(SUCCESS, ticket=7)), []),
        (broken(), HELD, []),
        (LockState(), HELD, []),
        (HELD, broken(), ["lock_broken"]),
        (HELD, LockState(), ["lock_lost"]),
        (HELD, replace(HELD, since=6), ["lock_lost"]),
        (HELD, replace(HELD, next_ticket=8), ["tickets_back"]),
        (HELD, replace(HELD, evicted={}), ["evictions_lost"]),
        (HELD, replace(HELD, success=None), ["success_lost"]),
        (HELD, replace(HELD, success=replace(SUCCESS, ticket=4)), ["success_lost"]),
        (HELD, replace(HELD, entries=(entry(7, owner="b"), entry(8))), ["entry_changed"]),
        (
            replace(HELD, entries=(entry(7, heartbeats=2),)),
            replace(HELD, entries=(entry(7, heartbeats=1),)),
            ["entry_changed"],
        ),
        (HELD, replace(HELD, entries=(*HELD.entries, entry(3))), ["queue_changed"]),
        (HELD, replace(HELD, next_ticket=12), ["queue_changed"]),
        (HELD, replace(HELD, entries=()), ["queue_changed"]),
    ],
)
def test_a_lock_document(before: LockState, after: LockState, kinds: list[str]) -> None:
    assert [breach.kind for breach in invariants.of_lock(before, after)] == kinds
