"""Of what a dead process has stored beside the record of a transaction, only rows with a time of expiry stay."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking.transactions import Transaction
from tests.support.deeds import dying_at, from_deed
from tests.support.parties import in_thread
from tests.support.transaction_models import (
    Purse,
    Transactions,
    dying_after,
    empty,
    make_long_from,
    marked_rows,
    purses,
    rows_of,
    survive,
)
from tests.support.wire import Send, count_requests, intercepted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking_testing import VirtualClock

pytestmark = pytest.mark.core

DAY_S: Final = 86_400


def large(size: int = 200_000) -> Transaction:
    """Begin a transaction of five items, whose changes do not fit into intents."""
    empty(Purse, Transactions)
    purses(5, note="x" * size)
    tx = Transaction(lease=3, workers=1)
    for i in range(5):
        item = tx.get(Purse, f"p{i}")
        item.note = "y" * size
        tx.save(item)
    return tx


def notes() -> set[str]:
    return {item.note[0] for item in Purse.scan(consistent_read=True)}


def without_expiry() -> list[str]:
    return [row["id"]["S"] for row in rows_of(Transactions) if "expires_s" not in row]


@pytest.fixture(autouse=True)
def _few_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    make_long_from(monkeypatch)


def deaths(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Let a process die in such a commit after no request, after one, and so on."""
    for requests in itertools.count():
        tx = large()
        with dying_after(monkeypatch, requests) as process:
            in_thread(lambda tx=tx: survive(tx.commit))
        yield requests
        if not process.is_dead:
            return


@pytest.mark.parametrize("is_late", [False, True], ids=["", "after TTL has removed the record"])
def test_only_rows_that_expire_are_left(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, *, is_late: bool) -> None:
    """Wherever the process dies: sweeps complete the transaction first, and lose no change that it needs."""
    seen = set[str]()
    for requests in deaths(monkeypatch):
        Transactions.sweep()
        assert marked_rows(Purse) == [], requests
        assert len(notes()) == 1, f"half of the transaction is stored (request {requests})"
        seen |= notes()
        if is_late:
            for row in Transactions.scan(Transactions.expires.exists()):
                Transactions._get_connection().delete_item(row.id)
        Transactions.sweep()
        assert without_expiry() == [], f"nothing will ever remove these rows (request {requests})"
    assert seen == {"x", "y"}


@pytest.mark.parametrize("deed", ["mark p3", "decision"])
def test_a_sweep_leaves_what_is_needed(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, deed: str) -> None:
    """It passes while the transaction lives; then the process dies, and only the rows have its changes.

    One read of the record tells of all of them.
    """
    tx, is_hit, reads = large(), from_deed(deed, 1), list[int]()

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if is_hit(0, operation, kwargs):
            with count_requests() as counted:
                in_thread(lambda: Transactions.sweep(older_than=DAY_S))
            assert len(without_expiry()) > 2
            reads.append(counted.by_operation["GetItem"])
        return send()

    with intercepted(answer), dying_at(monkeypatch, "finish p3"):
        in_thread(lambda: survive(tx.commit))
    assert reads == [1]
    Transactions.sweep()
    assert notes() == {"y"}


def test_a_dry_run_removes_nothing(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    for requests in deaths(monkeypatch):
        before = rows_of(Transactions)
        Transactions.sweep(dry_run=True)
        assert rows_of(Transactions) == before, requests
