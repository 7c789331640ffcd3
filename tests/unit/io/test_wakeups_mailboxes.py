"""Whom a bell of another process wakes, and for whom this process rings."""

from __future__ import annotations

from typing import Any

import pytest

from pynamo_locking._core.lock_modes import SHARED, LockMode
from pynamo_locking._io import lock_record, wakeups
from tests.unit.helpers import opened, row


def test_a_bell_wakes_the_waiter_that_it_names() -> None:
    waiters = [opened(row(key)) for key in ("a-1", "a-1", "a-2")]
    for i, waiter in enumerate(waiters):
        wakeups.listen_for_wakeups(waiter, f"entry-{i}")
    wakeups.wake("entry-1")
    wakeups.wake("entry")
    wakeups.wake("")
    assert [waiter._must_look for waiter in waiters] == [False, True, False]
    for key, waiter in zip(("a-1", "a-1", "a-2"), waiters, strict=True):
        wakeups.close_mailbox(row(key), waiter)


def image(*claims: LockMode) -> dict[str, Any]:
    """An item whose lock has these claims, each under the next ticket; the last one comes first in the map."""
    stored = [lock_record.new_entry("owner", claim, 60, 0, ticket=99 + i) for i, claim in enumerate(claims)]
    document = lock_record.new_document("0", stored[0], 99, len(claims))["M"]
    queue = {str(i): entry for i, entry in reversed(tuple(enumerate(stored)))}
    return {"lock": {"M": {**document, lock_record.QUEUE: {"M": queue}}}}


ALONE, READER, SEAT = LockMode(), LockMode(SHARED), LockMode(permits=2)


@pytest.mark.parametrize(
    ("claims", "holders"),
    [
        ([ALONE, ALONE, READER], ["0"]),
        ([READER, READER, ALONE, READER], ["0", "1"]),
        ([SEAT, SEAT, SEAT], ["0", "1"]),
        ([LockMode(upper=("N", "5")), LockMode(lower=("N", "5")), LockMode(lower=("N", "9"))], ["0", "1"]),
    ],
)
def test_who_is_next(monkeypatch: Any, claims: list[LockMode], holders: list[str]) -> None:
    rung: list[str] = []
    monkeypatch.setattr(wakeups, "send_wakeup", rung.extend)
    wakeups.tell_waiters(row(), image(*claims))
    assert rung == holders
    assert [entry.id for entry in lock_record.state_in(image(*claims), "lock").holders] == holders


@pytest.mark.parametrize(
    "broken", [{}, {"lock": {"NULL": True}}, {"lock": {"M": {}}}, {"lock": {"M": {"queue": {"M": {"a": {}}}}}}]
)
def test_a_broken_document_names_no_holder(broken: dict[str, Any]) -> None:
    assert list(lock_record.holders_in(broken, "lock")) == []
