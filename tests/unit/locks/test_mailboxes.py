"""Whom a bell of another process wakes, and for whom this process rings."""

from __future__ import annotations

from typing import Any

import pytest

from pynamo_locking._core.claims import SHARED, Claim
from pynamo_locking._io import bell, lock_document
from pynamo_locking._locks import mailboxes
from tests.unit.helpers import opened, row


def test_a_bell_wakes_the_waiter_that_it_names() -> None:
    waiters = [opened(row(key)) for key in ("a-1", "a-1", "a-2")]
    for i, waiter in enumerate(waiters):
        mailboxes.hear_bells(waiter, f"entry-{i}")
    mailboxes.wake("entry-1")
    mailboxes.wake("entry")
    mailboxes.wake("")
    assert [waiter._must_look for waiter in waiters] == [False, True, False]
    for key, waiter in zip(("a-1", "a-1", "a-2"), waiters, strict=True):
        mailboxes.close_mailbox(row(key), waiter)


def image(*claims: Claim) -> dict[str, Any]:
    """An item whose lock has these claims, each under the next ticket; the last one comes first in the map."""
    stored = [lock_document.new_entry("owner", claim, 60, 0, ticket=99 + i) for i, claim in enumerate(claims)]
    document = lock_document.new_document("0", stored[0], 99, len(claims))["M"]
    queue = {str(i): entry for i, entry in reversed(tuple(enumerate(stored)))}
    return {"lock": {"M": {**document, lock_document.QUEUE: {"M": queue}}}}


ALONE, READER, SEAT = Claim(), Claim(SHARED), Claim(permits=2)


@pytest.mark.parametrize(
    ("claims", "holders"),
    [
        ([ALONE, ALONE, READER], ["0"]),
        ([READER, READER, ALONE, READER], ["0", "1"]),
        ([SEAT, SEAT, SEAT], ["0", "1"]),
        ([Claim(upper=("N", "5")), Claim(lower=("N", "5")), Claim(lower=("N", "9"))], ["0", "1"]),
    ],
)
def test_who_is_next(monkeypatch: Any, claims: list[Claim], holders: list[str]) -> None:
    rung: list[str] = []
    monkeypatch.setattr(bell, "ring", rung.extend)
    mailboxes.tell_waiters(row(), image(*claims))
    assert rung == holders
    assert [entry.id for entry in lock_document.state_in(image(*claims), "lock").holders] == holders


@pytest.mark.parametrize(
    "broken", [{}, {"lock": {"NULL": True}}, {"lock": {"M": {}}}, {"lock": {"M": {"queue": {"M": {"a": {}}}}}}]
)
def test_a_broken_document_names_no_holder(broken: dict[str, Any]) -> None:
    assert list(lock_document.holders_in(broken, "lock")) == []
