"""An answer with status 200 that is not DynamoDB's, through the clients of each engine.

`writes/test_answers_of_others` has the table of all pages and all requests, in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pynamodb.exceptions import PynamoDBException

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import OutcomeUnknown
from tests.support.models import declare
from tests.support.parties import without_pauses
from tests.support.wire import Page, on

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.core

Item = declare("Item", lock=True, version=True, numbers="value")

PAGES = {
    "null": Page(None),
    "list": Page([]),
    "text": Page("x"),
    "capacity": Page({"ConsumedCapacity": "blocked"}),
    "length": Page({"ConsumedCapacity": {}}, headers=(("Content-Length", "long"),)),
}


@pytest.fixture(autouse=True)
def _bound(engine):
    engine.bind(Item)
    with without_pauses():
        yield


def native() -> None:
    with TransactWrite(connection=Item._get_connection().connection) as tx:
        tx.update(Item.get("a"), [Item.value.add(1)])


def batch() -> None:
    assert len([*Item.batch_get(["a"])]) == 1


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    ("way", "operation", "error"),
    [
        (lambda: Item.get("a").update([Item.value.add(1)]), "UpdateItem", OutcomeUnknown),
        (native, "TransactWriteItems", OutcomeUnknown),
        (lambda: Item.get("a"), "GetItem", PynamoDBException),
        (batch, "BatchGetItem", PynamoDBException),
    ],
    ids=["update", "transaction", "get", "batch"],
)
def test_a_page_is_no_answer(page: str, way: Callable[[], object], operation: str, error: type[Exception]) -> None:
    """The next answer counts. If none comes, nothing is said to be done, or absent."""
    Item("a", value=0).save()
    with on(operation).answer(PAGES[page]):
        way()
    value = Item.get("a").value
    with on(operation).answer(PAGES[page], always=True), pytest.raises(error):
        way()
    assert Item.get("a").value == value == (1 if error is OutcomeUnknown else 0)
