"""Long transactions that mark and finish their items by batches of statements: requests, outcomes, refusals."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from pynamo_locking import LockSettings, transaction
from pynamo_locking._io import batch_requests
from pynamo_locking._io.batch_requests import StatementResult, StatementWrite
from pynamo_locking.exceptions import Conflict, StaleVersion
from pynamo_locking.transactions import Transaction
from tests.support.parties import in_thread
from tests.support.statements import (
    BATCH,
    answered,
    answering,
    denied,
    denied_each,
    failed_in_part,
    lost_after,
    lost_before,
    lost_half,
    throttled_in_part,
    unknown,
    unknown_each,
)
from tests.support.transaction_helpers import costs
from tests.support.transaction_models import (
    Purse,
    Sheet,
    Transactions,
    dying_after,
    make_long_from,
    marked_rows,
    purses,
    rows_of,
    stored,
    survive,
)
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking_testing import VirtualClock
    from tests.engines.engine import Engine


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five items make a long transaction, and up to four statements a batch."""
    make_long_from(monkeypatch, statements=4)


def raise_all(count: int, tx: Transaction | None = None) -> Transaction:
    """Return a transaction that adds 1 to each purse, and deletes the last one."""
    tx = tx or Transaction(workers=1)
    *found, last = tx.get_all(Purse, [f"p{i}" for i in range(count)])
    for item in found:
        assert item is not None
        item.balance += 1
        item.note = "raised"
        tx.save(item)
    assert last is not None
    tx.delete(last)
    return tx


def assert_raised(count: int) -> None:
    assert marked_rows(Purse) == []
    assert {row["purse_id"]["S"]: row["balance"]["N"] for row in rows_of(Purse)} == dict.fromkeys(
        [f"p{i}" for i in range(count - 1)], "101"
    )
    assert {row["note"]["S"] for row in rows_of(Purse)} == {"raised"}


def test_a_thousand_items_in_less_than_a_hundred_requests(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read, changed, committed; and each item for two write units and what the header takes."""
    monkeypatch.setattr(Purse.Meta, "lock_settings", LockSettings(lease=120, request_timeout=15))
    keys = [f"p{i:03}" for i in range(1000)]
    for start in range(0, 1000, 100):
        with transaction() as tx:
            for key in keys[start : start + 100]:
                tx.save(Purse(key, balance=1))
    tx = Transaction(lease=600)
    for item in tx.get_all(Purse, keys):
        assert item is not None
        item.balance += 1
        tx.save(item)
    requests, written, _ = costs(tx.commit)
    assert requests == 78
    assert written <= 2100
    assert {row["balance"]["N"] for row in rows_of(Purse)} == {"2"}
    assert marked_rows(Purse) == []


def test_marks_and_finishes_are_sent_together(concurrent_engine: Engine, batched: None) -> None:
    """In batches by table; of two tables two; what is alone is sent alone; with the same result."""
    concurrent_engine.bind(Sheet)
    purses(9, note="x")
    Sheet("a", 1).save()
    tx = raise_all(9)
    tx.update(tx.get(Sheet, "a", 1), [Sheet.body.set("b")])
    with count_requests() as counted:
        tx.commit()
    assert counted.by_operation[BATCH] in (3, 4)  # 7 marks and finishes, one of them perhaps of the sheet
    assert_raised(9)
    assert Sheet.get("a", 1).body == "b"


# Each statement does what the single request does


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Items, by what is different from the one that was read."""
    lock = {"M": {"queue": {"M": {}}, "tickets": {"M": {}}}}
    item = {"balance": {"N": "100"}, "version": {"N": "1"}, "version_write_id": {"S": "w"}, "lock": lock}
    entry = {"M": {"e": {"M": {"beat": {"N": "1"}}}}}
    mark = {"M": {"id": {"S": "other"}, "table": {"S": "t"}}}
    yield "as it was", item
    yield "another version", {**item, "version": {"N": "2"}}
    yield "another write", {**item, "version_write_id": {"S": "v"}}
    yield "no version", {name: value for name, value in item.items() if name != "version"}
    yield "no lock", {name: value for name, value in item.items() if name != "lock"}
    yield "a lock without a queue", {**item, "lock": {"M": {}}}
    yield "a lock that is no map", {**item, "lock": {"S": "mine"}}
    yield "locked", {**item, "lock": {"M": {**lock["M"], "queue": entry}}}
    yield "marked", {**item, "lock": {"M": {**lock["M"], "tx": mark}}}
    yield "marked by this one", {**item, "lock": {"M": {"tx": {"M": {"id": {"S": "mine"}, "table": {"S": "t"}}}}}}
    yield "absent", {}


MARK = {
    "UpdateExpression": "SET #0.#1 = :0",
    "ConditionExpression": "((#2 = :1 AND #3 = :2) AND ((attribute_exists (#4) AND ((attribute_not_exists (#0.#5) "
    "OR #0.#5 = :3) AND attribute_not_exists (#0.#1))) AND attribute_exists (#0)))",
    "ExpressionAttributeNames": {
        "#0": "lock",
        "#1": "tx",
        "#2": "version",
        "#3": "version_write_id",
        "#4": "purse_id",
        "#5": "queue",
    },
    "ExpressionAttributeValues": {
        ":0": {"M": {"id": {"S": "mine"}}},
        ":1": {"N": "1"},
        ":2": {"S": "w"},
        ":3": {"M": {}},
    },
}
FINISH = {
    "UpdateExpression": "SET #s0 = :s0, #s1 = :s1 REMOVE #l.#tx",
    "ConditionExpression": "#l.#tx.#id = :id",
    "ExpressionAttributeNames": {
        "#l": "lock",
        "#tx": "tx",
        "#id": "id",
        "#s0": "a-b",
        "#s1": "version",
    },
    "ExpressionAttributeValues": {":id": {"S": "mine"}, ":s0": {"L": [{"B": b"\x00"}]}, ":s1": {"N": "2.50"}},
}
DELETE = {
    "ConditionExpression": "#l.#tx.#id = :id OR attribute_not_exists(#v)",
    "ExpressionAttributeNames": {"#l": "lock", "#tx": "tx", "#id": "id", "#v": "version"},
    "ExpressionAttributeValues": {":id": {"S": "mine"}},
}


@pytest.mark.parametrize(
    ("operation", "request_"), [("UpdateItem", MARK), ("UpdateItem", FINISH), ("DeleteItem", DELETE)]
)
def test_a_statement_is_the_single_request(concurrent_engine: Engine, operation: str, request_: dict[str, Any]) -> None:
    """Whatever is stored: applied or not alike, and what is stored afterwards is the same."""
    connection = Purse._get_connection().connection
    table, written = Purse._get_connection().table_name, list[StatementWrite]()
    alone = list[bool]()
    for number, (_, item) in enumerate(cases()):
        for kind in ("alone", "together"):
            key = {"purse_id": {"S": f"{kind}-{number}"}}
            if item:
                connection.dispatch("PutItem", {"TableName": table, "Item": {**key, **item}})
            write = StatementWrite(connection, operation, {**request_, "TableName": table, "Key": key})
            if kind == "together":
                written.append(write)
                continue
            try:
                connection.dispatch(operation, dict(write.kwargs))
            except ClientError:
                alone.append(False)
            else:
                alone.append(True)
    results = batch_requests.send(written)
    assert [result is StatementResult.APPLIED for result in results] == alone
    assert StatementResult.UNKNOWN not in results
    assert 0 < sum(alone) < len(alone)
    for number in range(len(alone)):
        found = [stored(Purse, f"{kind}-{number}") for kind in ("alone", "together")]
        assert [item and {**item, "purse_id": None} for item in found[:1]] == [
            item and {**item, "purse_id": None} for item in found[1:]
        ]


@pytest.mark.parametrize(
    "changed",
    [
        {"ConditionExpression": "size(#l) > :id"},
        {"ConditionExpression": "#l[0] = :id"},
        {"ConditionExpression": "#l BETWEEN :id AND :id"},
        {"UpdateExpression": "ADD #l :id"},
        {"UpdateExpression": "REMOVE #l, #tx"},
        {"ExpressionAttributeNames": {"#l": 'a"b', "#tx": "tx", "#id": "id"}},
        {"ExpressionAttributeNames": {"#l": "a.b", "#tx": "tx", "#id": "id"}},
        {"ExpressionAttributeNames": {"#l": "a b", "#tx": "tx", "#id": "id"}},
        {"ExpressionAttributeNames": {"#l": "x" * 9000, "#tx": "tx", "#id": "id"}},
        {"ExpressionAttributeValues": {":id": {"S": "x" * 50_000}}},
    ],
)
def test_what_cannot_be_said_is_not_sent(changed: dict[str, Any]) -> None:
    """Expressions that no statement of ours has, long ones, and large values: the write is sent alone."""
    kwargs = {"TableName": Purse._get_connection().table_name, "Key": {"purse_id": {"S": "p"}}, **DELETE, **changed}
    kwargs["ConditionExpression"] = changed.get("ConditionExpression", "#l.#tx.#id = :id")
    write = StatementWrite(Purse._get_connection().connection, "UpdateItem", kwargs)
    with count_requests() as counted:
        assert batch_requests.send([write, write]) == [StatementResult.NOT_APPLIED] * 2
    assert counted.total == 0


# What goes wrong


@pytest.mark.parametrize("answer", [denied, denied_each, unknown, unknown_each])
def test_a_table_of_which_statements_are_refused(
    batched: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    """One batch is refused, once it is logged, no commit fails, and later commits know for a while."""
    purses(9, note="x")
    caplog.set_level(logging.WARNING, "pynamo_locking")
    with answering(monkeypatch, answer) as batches:
        raise_all(9).commit()
        assert_raised(9)
        tx = Transaction()
        for item in tx.get_all(Purse, [f"p{i}" for i in range(8)]):
            assert item is not None
            tx.touch(item)
        with count_requests() as counted:
            tx.commit()
    assert counted.total == 4 + 2 * 5
    assert len(batches) == 1
    [told] = [record.getMessage() for record in caplog.records]
    assert "are sent one by one" in told
    assert ("knows no such statements" if answer in (unknown, unknown_each) else "PartiQLUpdate") in told


@pytest.mark.parametrize("answer", [lost_before, lost_after, lost_half, throttled_in_part, failed_in_part])
def test_what_a_batch_has_not_applied_is_sent_alone(
    batched: None, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """A lost answer is one about each of its writes; a refusal is one about its own; batches go on afterwards."""
    purses(9, note="x")
    with answering(monkeypatch, answer) as batches:
        raise_all(9).commit()
    assert len(batches) == 4
    assert_raised(9)


@pytest.mark.parametrize("answer", [answered, lost_before, lost_after, lost_half])
def test_a_mark_that_may_still_arrive_is_left_to_a_sweep(
    batched: None, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """The header of an aborted transaction is not noted as clean while a batch of its marks is under way."""
    purses(6)
    tx = raise_all(6)
    Purse("p5").update([Purse.note.set("changed")], add_version_condition=False)
    with answering(monkeypatch, answer), pytest.raises(StaleVersion):
        tx.commit()
    assert marked_rows(Purse) == []
    [header] = [row for row in rows_of(Transactions) if row["id"]["S"] == tx.id]
    assert ("clean" in header) is (answer is answered)


def test_one_item_that_has_changed_refuses_all(concurrent_engine: Engine, batched: None) -> None:
    """By the error that the single mark raises, with what is stored; nothing was written, no mark is left."""
    purses(7, note="x")
    for i in range(7):
        tx = raise_all(7)
        Purse(f"p{i}").update([Purse.tags.set({"changed"})], add_version_condition=False)
        with pytest.raises(StaleVersion) as caught:
            tx.commit()
        assert (caught.value.expected, caught.value.actual) == (1, 2)
        assert marked_rows(Purse) == []
    assert {row["balance"]["N"] for row in rows_of(Purse)} == {"100"}


def test_a_process_that_dies_leaves_all_or_nothing(
    clock: VirtualClock, batched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each request of a commit; a lock in the way, and a reader who finishes what was decided."""
    del clock
    fates = list[tuple[bool, bool]]()
    for requests in range(12):
        for row in rows_of(Purse):
            Purse(row["purse_id"]["S"]).delete(add_version_condition=False)
        purses(9, note="x")
        tx = raise_all(9)
        with dying_after(monkeypatch, requests) as process:
            in_thread(lambda tx=tx: survive(tx.commit))  # type: ignore[misc]
        is_committed = Transactions.outcome(tx.id) in ("committed", "finished")
        fates.append((not process.is_dead, is_committed))
        with transaction(isolation="read_committed") as reader:
            found = reader.get_all(Purse, [f"p{i}" for i in range(9)])
        assert [item and item.balance for item in found] == ([101] * 8 + [None] if is_committed else [100] * 9)
    assert fates[-1] == (True, True)  # the last one had requests enough


def test_a_lock_in_the_way_is_waited_for(clock: VirtualClock, batched: None) -> None:
    """A holder that stays is an error after a short wait, one that has died is evicted."""
    purses(6, note="x")
    lock = Purse.locked("p5", heartbeat=False, lease=30)
    in_thread(lambda: lock._handle.begin_block(1))
    with pytest.raises(Conflict, match="lock"):
        raise_all(6).commit()
    assert marked_rows(Purse) == []
    clock.sleep(120)
    raise_all(6).commit()
    assert_raised(6)
