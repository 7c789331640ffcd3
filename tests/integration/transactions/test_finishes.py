"""Many marks of one transaction: what a reader, `recover` and `sweep` send to remove them, and what may go wrong."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking import transaction
from pynamo_locking._core.lock_queue import WriteIntent
from pynamo_locking._core.transactions import TransactionRecord, TransactionStatus, row_of_participants
from pynamo_locking._io import lock_record, transaction_record
from pynamo_locking.exceptions import LockingError, TransactionConflict
from tests.support.parties import in_thread
from tests.support.poisoned import name_of, put
from tests.support.statements import BATCH, answering, denied, lost_half, throttled_in_part
from tests.support.transaction_helpers import costs
from tests.support.transaction_models import (
    Sheet,
    Transactions,
    dying_after,
    existing,
    make_long_from,
    marked_rows,
    rows_of,
    survive,
)
from tests.support.wire import Send, count_requests, intercepted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking_testing import VirtualClock
    from tests.engines.engine import Engine

#: How many marks at most.
MOST: Final = 1000
STATES: Final = [TransactionStatus.COMMITTED, TransactionStatus.ABORTED]


@pytest.fixture
def sheets(clock: VirtualClock, memory: Engine) -> VirtualClock:
    """Sheets in memory, and virtual time."""
    memory.bind(Sheet)
    return clock


def leave(count: int, state: TransactionStatus, *, name: str = "t", placeholders: int = 0, **header: Any) -> None:
    """Leave the rows of a transaction of so many items that are marked, of which the last are placeholders."""
    table = transaction_record.record_table_of(Transactions)
    for row in rows_of(Transactions):
        if row["id"]["S"].partition("#")[0] == name:
            Transactions._get_connection().delete_item(row["id"]["S"])
    Sheet("a", 10**6, body="old").save()
    template = existing(Sheet, "a", 10**6)
    Sheet("a", 10**6).delete(add_version_condition=False)
    named = []
    for i in range(count):
        key = {"pk": {"S": "a"}, "sk": {"N": str(i)}}
        is_new = i >= count - placeholders
        mark = WriteIntent(name, table.table, "save", is_new, {"b": {"S": "new"}, "v": {"N": "2"}})
        put(Sheet, {**({} if is_new else template), **key, "lck": {"M": {"tx": lock_record.stored_intent(mark)}}})
        named.append({"M": {"table": {"S": name_of(Sheet)}, "key": {"M": key}, "lock": {"S": "lck"}}})
    rows = range(0, count, 1000)
    for number, start in enumerate(rows):
        some = {"items": {"L": named[start : start + 1000]}}
        transaction_record.put_row(table, row_of_participants(name, number), some, expires=True)
    facts = {"lease_ms": 10_000, "items": count, "rows": len(rows), **header}
    transaction_record.begin(table, TransactionRecord(name, state, "0", "owner", **facts))


def assert_settled(count: int, state: TransactionStatus, *, placeholders: int = 0) -> None:
    assert marked_rows(Sheet, "lck") == []
    is_committed = state is TransactionStatus.COMMITTED
    expected = ["new"] * count if is_committed else ["old"] * (count - placeholders)
    assert [row["b"]["S"] for row in rows_of(Sheet)] == expected


def get_all(count: int) -> None:
    with transaction(isolation="read_committed") as tx:
        assert len({item and item.body for item in tx.get_all(Sheet, [("a", i) for i in range(count)])}) in (1, 2)


def query(_: int) -> None:
    with transaction(isolation="read_committed") as tx:
        assert len({item.body for item in tx.query(Sheet, "a")}) == 1


#: What each sends beside the statements: for the header and its rows, and for the items, by hundreds.
DEEDS: Final[dict[str, tuple[Callable[[int], Any], int, int]]] = {
    "get_all": (get_all, 1, 2),
    "query": (query, 2, 1),
    "recover": (lambda _: Transactions.recover("t"), 2, 1),
    "sweep": (lambda _: Transactions.sweep(), 2, 1),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("deed", DEEDS)
def test_requests_by_the_hundred(memory: Engine, deed: str, state: TransactionStatus) -> None:
    """The header is read once, items by the hundred, and 25 marks are removed by each request, for a unit each."""
    for count in (10, 100):
        check_requests(memory, deed, state, count)


@pytest.mark.slow
@pytest.mark.parametrize(("deed", "state"), [*zip(DEEDS, STATES * 2, strict=True)])
def test_requests_of_a_thousand(memory: Engine, deed: str, state: TransactionStatus) -> None:
    """They grow with what is removed, and with nothing else."""
    check_requests(memory, deed, state, MOST)


@pytest.mark.parametrize(("deed", "state"), [*zip(DEEDS, STATES * 2, strict=True)])
def test_requests_and_units_elsewhere(dynoxide: Engine, deed: str, state: TransactionStatus) -> None:
    """On an engine that is not ours: a write unit for each mark, and two for the header."""
    assert 100 <= check_requests(dynoxide, deed, state, 100) <= 102


def check_requests(engine: Engine, deed: str, state: TransactionStatus, count: int) -> float:
    """Check what a deed sends; return the units that its writes take."""
    engine.bind(Sheet)
    placeholders = count // 10
    leave(count, state, placeholders=placeholders)
    act, few, reads = DEEDS[deed]
    with count_requests() as counted:
        _, written, _ = costs(lambda: act(count))
    if deed in ("recover", "sweep"):
        few += -(-count // 1000)  # rows of participants
    pages = max(1, counted.by_operation["Query"])  # of 1 MB: each is completed for itself
    assert -(-count // 25) <= counted.by_operation[BATCH] < -(-count // 25) + pages
    assert counted.total - counted.by_operation[BATCH] <= few + reads * (-(-count // 100) + pages - 1) + pages - 1
    assert_settled(count, state, placeholders=placeholders)
    return written


@pytest.mark.parametrize("deed", DEEDS)
def test_without_statements_one_request_for_each_mark(
    memory: Engine, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    """As for an engine that refuses them."""
    memory.bind(Sheet)
    make_long_from(monkeypatch, 100, statements=1)
    leave(30, TransactionStatus.COMMITTED)
    act, few, reads = DEEDS[deed]
    with count_requests() as counted:
        act(30)
    assert counted.total == few + (deed in ("recover", "sweep")) + reads + 30
    assert_settled(30, TransactionStatus.COMMITTED)


def test_a_commit_that_meets_many_marks(sheets: VirtualClock) -> None:
    """It is refused by all of them at once, removes them together, and is sent again."""
    leave(50, TransactionStatus.COMMITTED)
    with count_requests() as counted, transaction() as tx:
        for i in range(50):
            tx.update(Sheet("a", i), [Sheet.body.set("newer")], add_version_condition=False)
    assert dict(counted.by_operation) == {"TransactWriteItems": 2, "GetItem": 1, BATCH: 2}
    assert {row["b"]["S"] for row in rows_of(Sheet)} == {"newer"}
    assert {row["v"]["N"] for row in rows_of(Sheet)} == {"3"}


# A transaction that is not decided


def test_who_looks_past_marks_reads_the_header_once(sheets: VirtualClock) -> None:
    """For all the marks that one request has found."""
    leave(100, TransactionStatus.PENDING, until_ms=sheets.time_ms() + 10_000)
    with count_requests() as counted, transaction(isolation="read_committed") as tx:
        assert {item.body for item in tx.query(Sheet, "a")} == {"old"}
    assert counted.total == 2


def test_who_waits_looks_at_one_mark(sheets: VirtualClock) -> None:
    """The header and the first of its items are read again after each pause; at last the dead one is aborted."""
    leave(100, TransactionStatus.PENDING, until_ms=sheets.time_ms() + 10_000)
    with count_requests() as counted, transaction() as tx:
        assert {item and item.body for item in tx.get_all(Sheet, [("a", i) for i in range(100)])} == {"old"}
    assert_settled(100, TransactionStatus.ABORTED)
    assert counted.by_operation["GetItem"] < 2 * 40
    assert counted.by_operation["BatchGetItem"] == 2
    assert counted.by_operation[BATCH] == 4


def test_the_time_to_wait_is_one_for_all(sheets: VirtualClock) -> None:
    """A pending transaction is waited for until the deadline, whatever the number of its marks."""
    leave(10, TransactionStatus.PENDING, until_ms=sheets.time_ms() + 10**6, lease_ms=10**6)
    before = sheets.elapsed
    with pytest.raises(TransactionConflict), transaction(wait=5) as tx:
        tx.get_all(Sheet, [("a", i) for i in range(10)])
    assert 4.99 <= sheets.elapsed - before < 6
    assert len(marked_rows(Sheet, "lck")) == 10


def test_marks_of_several_transactions(sheets: VirtualClock) -> None:
    """Each is judged by its own header."""
    leave(30, TransactionStatus.COMMITTED, name="t")
    leave(0, TransactionStatus.ABORTED, name="u", items=0, rows=0)
    for i in range(0, 30, 3):
        row = existing(Sheet, "a", i)
        row["lck"]["M"]["tx"]["M"]["id"] = {"S": "u"}
        put(Sheet, row)
    with transaction() as tx:
        found = tx.get_all(Sheet, [("a", i) for i in range(30)])
    assert [item and item.body for item in found] == (["old", "new", "new"] * 10)
    assert marked_rows(Sheet, "lck") == []


# What goes wrong


def refused_each(_: Any, kwargs: Any) -> Any:
    error = {"Code": "ConditionalCheckFailed", "Message": "it says"}
    return {"Responses": [{"Error": error} for _ in kwargs["Statements"]]}


@pytest.mark.parametrize("answer", [denied, lost_half, throttled_in_part, refused_each])
@pytest.mark.parametrize(("deed", "state"), [*zip(DEEDS, STATES * 2, strict=True)])
def test_what_a_batch_has_not_removed_is_sent_alone(
    sheets: VirtualClock, monkeypatch: pytest.MonkeyPatch, deed: str, state: TransactionStatus, answer: Any
) -> None:
    """A refused or unknown statement goes the way of a refused single request; without permission all do."""
    monkeypatch.setattr("pynamo_locking._io.write_intents.WORKERS", 1)  # else both batches may be under way when denied
    leave(40, state, placeholders=5)
    with answering(monkeypatch, answer) as batches:
        DEEDS[deed][0](40)
    assert len(batches) == (1 if answer is denied else 2)
    assert_settled(40, state, placeholders=5)


@pytest.mark.parametrize("state", STATES)
def test_a_process_that_dies_in_the_middle(
    sheets: VirtualClock, monkeypatch: pytest.MonkeyPatch, state: TransactionStatus
) -> None:
    """Before and after each request of a recovery: a header is final only when no mark is left; the next goes on."""
    monkeypatch.setattr("pynamo_locking._io.write_intents.WORKERS", 1)
    for requests in range(1, 8):
        name = f"t{requests}"
        leave(26, state, name=name)
        with dying_after(monkeypatch, requests):
            in_thread(lambda name=name: survive(lambda: Transactions.recover(name)))  # type: ignore[misc]
        header = existing(Transactions, name)
        if header["state"]["S"] == "finished" or "clean" in header:
            assert marked_rows(Sheet, "lck") == []
        Transactions.recover(name)
        assert_settled(26, state)


@pytest.mark.parametrize("deed", ["get_all", "query"])
def test_a_header_that_was_read_may_disappear(sheets: VirtualClock, deed: str) -> None:
    """Between any two requests a sweep completes the transaction, its header expires, and its items are changed."""

    def complete() -> None:
        Transactions.recover("t")
        Transactions._get_connection().delete_item("t")
        for item in Sheet.query("a", consistent_read=True):
            item.update([Sheet.body.set("newer")])

    for before in range(5):
        leave(26, TransactionStatus.COMMITTED)
        seen, numbers = list[str](), itertools.count()  # each thread that sends gets another number

        def answer(
            send: Send, operation: str, _: Any, seen: list[str] = seen, numbers: Any = numbers, before: int = before
        ) -> Any:
            seen.append(operation)
            if next(numbers) == before:
                in_thread(complete)
            return send()

        with intercepted(answer):
            DEEDS[deed][0](26)
        if len(seen) <= before:
            complete()
        assert {row["b"]["S"] for row in rows_of(Sheet)} == {"newer"}


def test_a_broken_item_does_not_keep_the_others(sheets: VirtualClock) -> None:
    """All the others are finished, the error names it, and the transaction is not finished."""
    leave(30, TransactionStatus.COMMITTED)
    broken = existing(Sheet, "a", 3)
    broken["lck"]["M"]["queue"] = {"S": "broken"}
    put(Sheet, broken)
    with pytest.raises(LockingError):
        Transactions.recover("t")
    assert [row["sk"]["N"] for row in marked_rows(Sheet, "lck")] == ["3"]
    assert existing(Transactions, "t")["state"]["S"] == "committed"


def test_an_item_that_is_named_twice(sheets: VirtualClock) -> None:
    """Nothing that is sent together may have it twice."""
    leave(30, TransactionStatus.COMMITTED)
    row = existing(Transactions, row_of_participants("t", 0))
    row["content"]["M"]["items"]["L"] *= 2
    put(Transactions, row)
    Transactions.recover("t")
    assert_settled(30, TransactionStatus.COMMITTED)


@pytest.mark.parametrize("deed", ["query", "recover"])
def test_batches_of_reads_are_not_needed(sheets: VirtualClock, monkeypatch: pytest.MonkeyPatch, deed: str) -> None:
    """Who may not send them reads item by item, after a query as well."""
    leave(10, TransactionStatus.COMMITTED)
    with answering(monkeypatch, denied, "BatchGetItem") as batches:
        DEEDS[deed][0](10)
    assert len(batches) == 1
    assert_settled(10, TransactionStatus.COMMITTED)


def test_items_that_a_batch_has_left_out_are_read_again(sheets: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """DynamoDB was busy: the header says finished only when all were looked at."""
    leave(30, TransactionStatus.COMMITTED)

    def some(send: Any, kwargs: Any) -> Any:
        [[name, asked]] = kwargs["RequestItems"].items()
        answer = send({"RequestItems": {name: {**asked, "Keys": asked["Keys"][:7]}}})
        left = asked["Keys"][7:]
        return {**answer, "UnprocessedKeys": {name: {**asked, "Keys": left}} if left else {}}

    with answering(monkeypatch, some, "BatchGetItem") as batches:
        assert Transactions.recover("t") == "finished"
    assert len(batches) == 5
    assert_settled(30, TransactionStatus.COMMITTED)
