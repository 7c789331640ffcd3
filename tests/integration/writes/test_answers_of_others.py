"""An answer with status 200 that is not DynamoDB's: a page of a proxy, or nothing. It counts as no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.constants import NONE
from pynamodb.exceptions import GetError, PynamoDBException, QueryError

from pynamo_locking import NamedLock, TransactWrite, transaction
from pynamo_locking.exceptions import BatchError, LockingError, LockTimeout, OutcomeUnknown
from tests.support.models import declare
from tests.support.parties import without_pauses
from tests.support.transaction_models import Transactions
from tests.support.wire import on

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.core

Page = declare("Page", lock=True, version=True, numbers="value", transaction_table=Transactions)
Names = declare("Names", NamedLock)

#: What comes in place of an answer. DynamoDB's own has at least what the request has consumed.
PAGES = [b"<html>Blocked by your administrator</html>", b"", b"{}", b'{"message": "blocked"}']


@pytest.fixture(autouse=True)
def _bound(engine):
    engine.bind(Page, Names, Transactions)
    with without_pauses():
        yield


# Each way adds 1 to the value of the item "a".


def save() -> None:
    item = Page.get("a")
    item.value += 1
    item.save()


def unchecked_save() -> None:
    Page("a", value=1).save(add_version_condition=False)


def update() -> None:
    Page.get("a").update([Page.value.add(1)])


def edit() -> None:
    with Page.edit("a", wait=0.2) as item:
        item.value += 1


def modify() -> None:
    Page.modify("a", change=lambda item: setattr(item, "value", item.value + 1))


def batch() -> None:
    item = Page.get("a")
    item.value += 1
    with Page.guarded_batch() as batch:
        batch.save(item)


def native() -> None:
    with TransactWrite(connection=Page._get_connection().connection) as tx:
        tx.update(Page.get("a"), [Page.value.add(1)])


def committed() -> None:
    with transaction() as tx:
        item = tx.get(Page, "a")
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


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("way", WAYS)
def test_a_write_that_a_proxy_has_answered(way, page):
    """If the next one is answered, it is applied. If none is, no way says that it was."""
    Page("a", value=0).save()
    with on(*WRITES).answer(page):
        outcome = said(way)
    value = Page.get("a", consistent_read=True).value
    assert value == 1 if outcome == "applied" else value == 0
    with on(*WRITES).answer(page, always=True):
        outcome = said(way)
    assert isinstance(outcome, (OutcomeUnknown, LockTimeout)), outcome
    assert Page.get("a", consistent_read=True).value == value


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_written_either(page):
    """A new item, a deletion, and the lock of a name: nothing is said to be done."""
    Page("a", value=0).save()
    item = Page.get("a")
    with on(*WRITES).answer(page, always=True):
        for act in (Page("new").save, item.delete, Names.locked("n", wait=0).acquire):
            assert isinstance(said(act), (OutcomeUnknown, LockTimeout))
    assert Page.count() == 1
    assert Names.lock_state("n").entries == ()


@pytest.mark.parametrize("page", PAGES)
def test_a_read_that_a_proxy_has_answered(page):
    """The item is not absent: nobody has said so."""
    Page("a", value=0).save()
    item = Page.get("a")
    with on("GetItem", "Query").answer(page, always=True):
        with pytest.raises(GetError):
            Page.get("a")
        with pytest.raises(GetError):
            item.refresh()
        with pytest.raises(QueryError):
            list(Page.query("a"))
    item.refresh()


def test_a_request_that_asks_for_nothing(engine):
    """Whoever asks for no consumed capacity may get an empty answer."""
    Page("a", value=0).save()
    connection = Page._get_connection()
    connection.put_item("b", attributes={}, return_consumed_capacity=NONE)
    with on("PutItem").answer(b"{}"):
        connection.put_item("c", attributes={}, return_consumed_capacity=NONE)
    assert Page.count() == 2
