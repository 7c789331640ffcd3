"""Transactions that only read, beside long ones that are under way: they look past what is not decided."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import transaction
from pynamo_locking.exceptions import StaleVersion, TransactionConflict
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support import runtime
from tests.support.deeds import deeds, dying_at
from tests.support.parties import in_thread
from tests.support.transaction_helpers import committed_balances
from tests.support.transaction_models import (
    Purse,
    Transactions,
    make_long_from,
    marked_rows,
    purses,
    survive,
)
from tests.support.wire import Send, intercepted, on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.engines.engine import Engine

pytestmark = [pytest.mark.core, pytest.mark.usefixtures("few")]


#: All are marked, but for those that the decision writes: three, of which the new ones come first.
OLD, NEW = ([f"{kind}{i}" for i in range(5)] for kind in ("p", "new"))
READS = {"GetItem", "TransactGetItems"}


def write_all(**options: Any) -> Transaction:
    """Update five and create five, in one long transaction."""
    tx = Transaction(workers=1, **options)
    for key in OLD:
        tx.update(tx.get(Purse, key), [Purse.balance.set(200)])
    for key in NEW:
        tx.save(Purse(key, balance=200))
    return tx


def commit(tx: Transaction, *, meanwhile: Callable[[], None]) -> None:
    """Commit, and do something else when all marks are there, right before the decision."""
    with on("TransactWriteItems", where=is_decision).before(meanwhile) as decisions:
        tx.commit()
    assert decisions.hits, "the commit was none of a long transaction"


def is_decision(body: Mapping[str, Any]) -> bool:
    return deeds("TransactWriteItems", body) == ["decision"]


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None] = lambda _: None) -> Iterator[list[Any]]:
    """Note all requests; call before each transactional read, with its number."""
    sent: list[tuple[str, Any]] = []

    def answer(send: Send, operation: str, kwargs: Any) -> Any:
        if operation == "TransactGetItems":
            before(sum(operation == "TransactGetItems" for operation, _ in sent))
        sent.append((operation, kwargs))
        return send()

    with intercepted(answer), runtime.changed(sleep=lambda _: pytest.fail("it waits")):
        yield sent


def together(sent: list[Any]) -> list[int]:
    """How many items and headers each transactional read has read."""
    return [len(kwargs["TransactItems"]) for operation, kwargs in sent if operation == "TransactGetItems"]


def seen(tx: Transaction, keys: list[str]) -> dict[str, int | None]:
    """What a transaction reads."""
    found = {key: tx.get_or_none(Purse, key) for key in keys}
    return {key: None if item is None else int(item.balance) for key, item in found.items()}


def before(keys: list[str]) -> dict[str, int | None]:
    """What there is before `write_all`."""
    return {key: 100 if key in OLD else None for key in keys}


# While the other one is alive


@pytest.mark.parametrize("options", [{"isolation": "snapshot"}, {"read_only": True}], ids=["snapshot", "read only"])
def test_a_snapshot_neither_waits_nor_wounds(
    cheap: Engine, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """It sees what is committed beside the marks, by reads alone; the older writer and the younger one commit."""
    purses(5)
    reader, keys = Transaction(**options), ["p0", "p1", "new4"]

    def look() -> None:
        assert len(marked_rows(Purse)) == len([*OLD, *NEW]) - 3
        with watched(monkeypatch) as sent:
            for tx in (reader, Transaction(**options)):  # older than the writer, and younger
                assert seen(tx, keys) == before(keys)
                tx.commit()
        assert {operation for operation, _ in sent} == READS

    writer = write_all()
    commit(writer, meanwhile=look)
    assert Transactions.outcome(writer.id) == "finished"
    with transaction(**options) as tx:
        assert seen(tx, [*OLD, "new0", "new4"]) == dict.fromkeys([*OLD, "new0", "new4"], 200)


def test_a_snapshot_costs_a_read_for_each_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item beside a mark is read with its header; the header takes a place in the read at the commit."""
    purses(5)

    def look() -> None:
        tx = Transaction(isolation="snapshot")
        with watched(monkeypatch) as sent:
            seen(tx, ["p0", "p1"])
            assert [operation for operation, _ in sent] == ["GetItem"] * 4
            tx.commit()
        assert together(sent) == [3]

    commit(write_all(), meanwhile=look)


def test_who_only_reads_does_not_wait_at_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that could have written, and has only read, looks past marks that came after its reads."""
    purses(5)
    tx, keys = Transaction(), ["p0", "new4", "p1"]
    assert seen(tx, keys) == before(keys)

    def look() -> None:
        with watched(monkeypatch) as sent:
            tx.commit()
        assert together(sent) == [3, 4]  # the marks are seen, and then their header

    commit(write_all(), meanwhile=look)


def test_a_writer_waits_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may write must not look past a mark: neither in its reads nor at the commit."""
    purses(5)
    checked = Transaction(wait=0)
    checked.get(Purse, "p0")
    checked.save(Purse("else"))
    early = Transaction(wait=0, workers=1)
    seen(early, OLD)
    for i in range(5):
        early.save(Purse(f"q{i}"))
    assert early.plan().validated

    def look() -> None:
        with pytest.raises(TransactionConflict):
            Transaction(wait=0).get(Purse, "p0")
        for tx in (checked, early):
            with pytest.raises(TransactionConflict):
                tx.commit()

    commit(write_all(), meanwhile=look)


def test_more_items_than_fit_into_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers push items into the next read, none of which is larger than DynamoDB allows; absent ones come first."""
    purses(5)
    keys = [*OLD, "new4", "no such"]

    def look() -> None:
        with watched(monkeypatch) as sent, transaction(isolation="snapshot") as tx:
            assert seen(tx, keys) == before(keys)
        reads = [kwargs["TransactItems"] for operation, kwargs in sent if operation == "TransactGetItems"]
        assert max(map(len, reads)) == 4
        absent = {"new4", "no such"}
        assert {_key(get) for get in reads[0]} > absent
        assert len(reads) == 3
        assert all(not {_key(get) for get in read} & absent for read in reads[1:])
        assert {operation for operation, _ in sent} == READS

    commit(write_all(), meanwhile=look)


def _key(get: Any) -> str:
    return str(next(iter(get["Get"]["Key"].values()))["S"])


def test_marks_of_several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each header is read together with the items that lead to it, however many there are."""
    purses(5)
    purses(5, "q")
    keys = ["p0", "q0", "p1", "q1"]
    other = Transaction(workers=1)
    for i in range(5):
        other.update(other.get(Purse, f"q{i}"), [Purse.balance.set(300)])

    def look() -> None:
        with watched(monkeypatch) as sent, transaction(isolation="snapshot") as tx:
            assert seen(tx, keys) == dict.fromkeys(keys, 100)
        assert max(together(sent)) == 4

    commit(write_all(), meanwhile=lambda: commit(other, meanwhile=look))


def test_too_many_placeholders_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent items are checked by one read, which has to have room for the headers; those that do not fit wait."""
    purses(5)
    placeholders: list[str] = []

    def look() -> None:
        placeholders.extend(row["purse_id"]["S"] for row in marked_rows(Purse) if "balance" not in row)
        make_long_from(monkeypatch, 2)
        reading, checking = (Transaction(isolation="snapshot", wait=0) for _ in range(2))
        with pytest.raises(TransactionConflict):
            seen(reading, placeholders)
        seen(checking, [placeholders[0], "no such"])
        with pytest.raises(TransactionConflict):
            checking.commit()

    commit(write_all(), meanwhile=look)
    assert len(placeholders) == 2


def test_items_that_marks_have_made_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that fitted into one read without their marks are read in two."""
    large = [Purse(f"l{i:02}", note="a" * 180_000) for i in range(21)]
    for purse in large:
        purse.save()
    reader, writer = Transaction(), Transaction(workers=1)
    make_long_from(monkeypatch, 100)
    for purse in large:
        reader.get(Purse, purse.purse_id)
        writer.update(writer.get(Purse, purse.purse_id), [Purse.note.set("b" * 180_000)])

    def look() -> None:
        make_long_from(monkeypatch, 100)
        with watched(monkeypatch) as sent:
            reader.commit()
        assert together(sent) == [21, 10, 11, 11, 12]

    make_long_from(monkeypatch)
    commit(writer, meanwhile=look)


# Whose order is fixed before the decision


def test_a_snapshot_does_not_look_past_early_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One checks its reads and then decides. Who sees what it read changed, and its writes not yet, fits nowhere."""
    purses(8)
    writer = Transaction(workers=1)
    for i in range(3, 8):
        writer.get(Purse, f"p{i}")
    for i in range(3):
        writer.update(writer.get(Purse, f"p{i}"), [Purse.balance.set(200)])
    assert writer.plan().validated

    def look() -> None:
        Purse.get("p3").update([Purse.balance.set(300)])  # it is not marked, and was checked already
        with pytest.raises(TransactionConflict), transaction(isolation="snapshot", wait=0) as tx:
            seen(tx, ["p3", "p0"])
        assert committed_balances("p0") == [100]

    commit(writer, meanwhile=look)
    with transaction(isolation="snapshot") as tx:
        assert seen(tx, ["p3", "p0"]) == {"p3": 300, "p0": 200}


# When it is decided in between


class Left:
    """A transaction whose process died when all marks were there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        purses(5)
        tx = write_all()
        with dying_at(monkeypatch, "decision") as process:
            in_thread(lambda: survive(tx.commit))
        self._decision = process.sent[-1]
        self.id = tx.id
        self.marked = [row["purse_id"]["S"] for row in marked_rows(Purse) if "balance" in row]
        assert Transactions.outcome(tx.id) == "pending"

    def commit(self) -> None:
        """Send the request at which its process died."""
        Transactions._get_connection().connection.dispatch(*self._decision)

    def abort(self) -> None:
        """Store in its header that somebody has aborted it."""
        change = {
            "TableName": Transactions.Meta.table_name,
            "Key": {"id": {"S": self.id}},
            "UpdateExpression": "SET #state = :aborted",
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": {":aborted": {"S": "aborted"}},
        }
        Transactions._get_connection().connection.dispatch("UpdateItem", change)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[Left]:
    """A transaction that is pending, and dead, which no reader knows."""
    with VirtualClock():
        yield Left(monkeypatch)


@pytest.mark.parametrize("read", range(2))
def test_what_is_committed_in_between_is_seen(left: Left, monkeypatch: pytest.MonkeyPatch, read: int) -> None:
    """A header that is committed at the moment of the read makes the snapshot old, and the items are finished."""

    def decide(number: int) -> None:
        if number == read:
            left.commit()

    tx = Transaction(isolation="snapshot")
    assert seen(tx, left.marked) == before(left.marked)
    with watched(monkeypatch, before=decide) as sent, pytest.raises(StaleVersion):
        tx.commit()
    assert {"UpdateItem", "BatchExecuteStatement"} & {operation for operation, _ in sent}
    with transaction(isolation="snapshot") as tx:
        assert seen(tx, left.marked) == dict.fromkeys(left.marked, 200)


@pytest.mark.parametrize("read", range(2))
def test_what_is_aborted_in_between_changes_nothing(left: Left, monkeypatch: pytest.MonkeyPatch, read: int) -> None:
    """The values beside the mark of an aborted transaction are the committed ones as well."""

    def decide(number: int) -> None:
        if number == read:
            left.abort()

    tx = Transaction(isolation="snapshot")
    assert seen(tx, left.marked) == before(left.marked)
    with watched(monkeypatch, before=decide) as sent:
        tx.commit()
    assert {operation for operation, _ in sent} == {"UpdateItem", "TransactGetItems"}  # that of the abort


def test_a_header_that_is_gone_is_one_of_an_aborted_transaction(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark without a header is an orphan, beside which stands what is committed."""
    tx = Transaction(isolation="snapshot")
    assert seen(tx, left.marked) == before(left.marked)
    Transactions._get_connection().delete_item(left.id)
    with watched(monkeypatch) as sent:
        tx.commit()
    assert {operation for operation, _ in sent} == {"TransactGetItems"}
