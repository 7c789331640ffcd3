"""An answer with status 200 that is not DynamoDB's: a page of a proxy, or nothing. It counts as no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.constants import NONE
from pynamodb.exceptions import GetError, PynamoDBException
from pynamodb.transactions import TransactGet

from pynamo_locking import NamedLock, TransactWrite, transaction
from pynamo_locking.exceptions import BatchError, LockingError, LockTimeout, OutcomeUnknown
from tests.support.models import declare
from tests.support.parties import without_pauses
from tests.support.transaction_models import Transactions
from tests.support.wire import Page, on

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.core

Item = declare("Item", lock=True, version=True, numbers="value", transaction_table=Transactions)
Names = declare("Names", NamedLock)

#: What comes in place of an answer. DynamoDB's own has at least what the request has consumed.
PAGES = {
    "a page": Page(b"<html>Blocked by your administrator</html>"),
    "nothing": Page(b""),
    "an empty object": Page({}),
    "an object": Page({"message": "blocked"}),
    "no UTF-8": Page(b"<html>gesperrt f\xfcr Sie</html>"),
    "deep": Page(b"[" * 100_000),
    "null": Page(None),
    "a list": Page([]),
    "a list of objects": Page([{"ConsumedCapacity": {}}]),
    "a text": Page("x"),
    "a number": Page(3),
    "true": Page(True),
    "a text as the capacity": Page({"ConsumedCapacity": "blocked"}),
    "a number in a list as the capacity": Page({"ConsumedCapacity": [3]}),
    "a text as the item": Page({"Item": "x", "Items": "x", "Attributes": "x", "Responses": "x"}),
    "a list as the item": Page({"Item": ["x"], "Items": ["x"], "Attributes": ["x"], "Responses": ["x"]}),
    "a number in the item": Page({"Item": {"id": 3}, "Items": [{"id": 3}], "Attributes": {"id": 3}, "Responses": [3]}),
    "binary values that are none": Page(
        {"Item": {"id": {"B": "x"}}, "Items": [{"id": {"B": "x"}}], "Attributes": {"id": {"B": "x"}}, "Responses": 3}
    ),
    "no length": Page({"ConsumedCapacity": {}}, headers=(("Content-Length", "long"),)),
    "a length below 0": Page({"ConsumedCapacity": {}}, headers=(("Content-Length", "-1"),)),
}


@pytest.fixture(autouse=True)
def _bound(engine):
    engine.bind(Item, Names, Transactions)
    with without_pauses():
        yield


# Each way adds 1 to the value of the item "a".


def save() -> None:
    item = Item.get("a")
    item.value += 1
    item.save()


def unchecked_save() -> None:
    Item("a", value=1).save(add_version_condition=False)


def update() -> None:
    Item.get("a").update([Item.value.add(1)])


def edit() -> None:
    with Item.edit("a", wait=0.2) as item:
        item.value += 1


def modify() -> None:
    Item.modify("a", change=lambda item: setattr(item, "value", item.value + 1))


def batch() -> None:
    item = Item.get("a")
    item.value += 1
    with Item.guarded_batch() as batch:
        batch.save(item)


def native() -> None:
    with TransactWrite(connection=Item._get_connection().connection) as tx:
        tx.update(Item.get("a"), [Item.value.add(1)])


def committed() -> None:
    with transaction() as tx:
        item = tx.get(Item, "a")
        item.value += 1
        tx.save(item)


WAYS: list[Callable[[], None]] = [save, unchecked_save, update, edit, modify, batch, native, committed]
WRITES = ("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems", "BatchExecuteStatement", "BatchWriteItem")


def said(act: Callable[[], object]) -> Any:
    try:
        act()
    except BatchError as error:
        return error.results[0].error
    except (LockingError, PynamoDBException) as error:
        return error
    return "applied"


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
@pytest.mark.parametrize("way", WAYS)
def test_a_write_that_a_proxy_has_answered(way, page):
    """If the next one is answered, it is applied. If none is, no way says that it was."""
    Item("a", value=0).save()
    with on(*WRITES).answer(page):
        outcome = said(way)
    value = Item.get("a", consistent_read=True).value
    assert value == 1 if outcome == "applied" else value == 0
    with on(*WRITES).answer(page, always=True):
        outcome = said(way)
    assert isinstance(outcome, (OutcomeUnknown, LockTimeout)), outcome
    assert Item.get("a", consistent_read=True).value == value


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
def test_what_is_not_written_either(page):
    """A new item, a deletion, and the lock of a name: nothing is said to be done."""
    Item("a", value=0).save()
    item = Item.get("a")
    with on(*WRITES).answer(page, always=True):
        for act in (Item("new").save, item.delete, Names.locked("n", wait=0).acquire):
            assert isinstance(said(act), (OutcomeUnknown, LockTimeout))
    assert Item.count() == 1
    assert Names.lock_state("n").entries == ()


#: What reads the item "a", by the name of its request.
READS: dict[str, Callable[[], object]] = {
    "get": lambda: Item.get("a"),
    "refresh": lambda: Item("a").refresh(),
    "query": lambda: [*Item.query("a")],
    "scan": lambda: [*Item.scan()],
    "count": lambda: Item.count("a"),
    "batch": lambda: [*Item.batch_get(["a", "b"])],
    "transaction": lambda: read_in_a_transaction(["a", "b"]),
    "native": lambda: native_read(["a", "b"]),
    "lock state": lambda: Item.lock_state("a"),
    "outcome": lambda: Transactions.outcome(idempotency_key="k"),
}
REQUESTS = ("GetItem", "Query", "Scan", "BatchGetItem", "TransactGetItems")


def read_in_a_transaction(names: list[str]) -> None:
    with transaction(read_only=True, isolation="snapshot") as tx:
        tx.get_all(Item, names)


def native_read(names: list[str]) -> None:
    with TransactGet(connection=Item._get_connection().connection) as tx:
        for name in names:
            tx.get(Item, name)


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
@pytest.mark.parametrize("way", READS)
def test_a_read_that_a_proxy_has_answered(way, page):
    """It is sent again. If no one answers, the item is not absent: nobody has said so."""
    Item("a", value=0).save()
    Item("b", value=0).save()
    with on(*REQUESTS).answer(page) as sent:
        READS[way]()
    assert len(sent) >= 2
    with on(*REQUESTS).answer(page, always=True), pytest.raises((PynamoDBException, LockingError)):
        READS[way]()


def test_a_refusal_of_others():
    """A status that says no is one, whatever comes with it."""
    Item("a", value=0).save()
    for page in (
        "x",
        [],
        None,
        {"__type": 3},
        {"__type": "x#TransactionCanceledException", "CancellationReasons": "x"},
    ):
        for status in (400, 403):
            with on("GetItem").answer(Page(page, status)), pytest.raises(GetError):
                Item.get("a")
        with on("GetItem").answer(Page(page, 503)):
            assert Item.get("a").value == 0


def test_a_request_that_asks_for_nothing(engine):
    """Whoever asks for no consumed capacity may get an empty answer."""
    Item("a", value=0).save()
    connection = Item._get_connection()
    connection.put_item("b", attributes={}, return_consumed_capacity=NONE)
    with on("PutItem").answer(Page({})):
        connection.put_item("c", attributes={}, return_consumed_capacity=NONE)
    assert Item.count() == 2
