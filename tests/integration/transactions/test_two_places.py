"""Two tables of one name, in two Regions, on two hosts or in two accounts: no transaction takes one for the other."""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import TransactWrite, atransaction, transaction
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking.transactions import Transaction
from tests.support.interval_models import Slot, SlotLocks, SlotTransactions
from tests.support.models import Device, Locks
from tests.support.transaction_models import Plain, Purse, Transactions
from tests.support.unique_models import Uniques, User
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

PLACES: dict[str, dict[str, str]] = {
    "region": {"region": "eu-west-3"},
    "host": {"host": "http://localhost:1"},
    "account": {"aws_access_key_id": "another", "aws_secret_access_key": "another"},
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, memory: Engine) -> dict[str, str]:
    """Where another table of the same name is."""
    memory.bind(Locks, Purse, Plain, Transactions, Device, Uniques, User, SlotLocks, SlotTransactions, Slot)
    Purse("a", balance=1).save()
    return PLACES[request.param]


def elsewhere(model: Any, place: dict[str, str], **options: Any) -> Any:
    """The same model, and the same name of its table, in another place."""
    meta = type("Meta", (model.Meta,), {**place, **options})
    return types.new_class("There", (model,), exec_body=lambda body: body.update({"Meta": meta, "_connection": None}))


def get_and_save(tx: Any, there: Any) -> None:
    tx.save(tx.get(there, "a"))


#: Each reads or writes an item in the other place, after one of this place.
USES: dict[str, Callable[[Any, Any], object]] = {
    "get": lambda tx, there: tx.get(there, "a"),
    "get for update": lambda tx, there: tx.get(there, "a", for_update=True),
    "get_or_none": lambda tx, there: tx.get_or_none(there, "b"),
    "get_all": lambda tx, there: tx.get_all(there, ["a", "b"]),
    "save": lambda tx, there: tx.save(there("b")),
    "update": lambda tx, there: tx.update(there("a"), [there.balance.add(1)], add_version_condition=False),
    "delete": lambda tx, there: tx.delete(there("a"), add_version_condition=False),
    "touch": lambda tx, there: tx.touch(there("a"), add_version_condition=False),
    "check": lambda tx, there: tx.check(there("a")),
}
FIRST: dict[str, Callable[[Any], object]] = {
    "got": lambda tx: tx.get(Purse, "a"),
    "saved": lambda tx: tx.save(Purse("c")),
    "of another table": lambda tx: tx.save(Plain("c")),
}
APART = "There is in .* and .* in|.* is in .*, and There in"


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_an_item_of_another_place(
    place: dict[str, str], first: Callable[[Any], object], use: Callable[[Any, Any], object]
) -> None:
    """The first use of the second place is refused, before a request of it, and the transaction changes nothing."""
    there, before = elsewhere(Purse, place), Purse.get("a").version
    with pytest.raises(ConfigurationError, match=APART), transaction() as tx:
        first(tx)
        with count_requests() as requests:
            try:
                use(tx, there)
            finally:
                assert requests.total == 0
    assert {(each.purse_id, each.version) for each in Purse.scan()} == {("a", before)}
    assert list(Plain.scan()) == []


def test_a_savepoint_goes_back_on_the_place(place: dict[str, str]) -> None:
    """The place is free again if nothing in it is left; what was read is left."""
    there, tx = elsewhere(Purse, place), Transaction()
    before = tx.savepoint()
    tx.save(Purse("c"))
    before.rollback()
    tx.save(there("b"))
    before.rollback()
    tx.get(Purse, "a")
    before.rollback()
    with pytest.raises(ConfigurationError, match=APART):
        tx.save(there("b"))
    tx.rollback()


def test_an_awaited_transaction(place: dict[str, str]) -> None:
    """As the other one."""

    async def main() -> None:
        async with atransaction() as tx:
            await tx.save(await tx.get(Purse, "a"))
            await tx.save(elsewhere(Purse, place)("b"))

    with pytest.raises(ConfigurationError, match=APART):
        asyncio.run(main())


def test_a_query_in_another_place(place: dict[str, str]) -> None:
    """Its rows are not taken for items of this place."""
    with pytest.raises(ConfigurationError, match=APART), transaction(isolation="read_committed") as tx:
        tx.get(Purse, "a")
        tx.query(elsewhere(Purse, place), "a")


def test_records_in_another_place(place: dict[str, str]) -> None:
    """No native transaction includes both."""
    there = elsewhere(Transactions, place)
    with pytest.raises(ConfigurationError, match=APART), transaction(there, idempotency_key="k") as tx:
        tx.save(Purse("c"))
    assert [each.purse_id for each in Purse.scan()] == ["a"]


ACTIONS: dict[str, Callable[[Any, Any], object]] = {
    "save": lambda tx, there: tx.save(there("b")),
    "update": lambda tx, there: tx.update(there("a"), [there.balance.add(1)], add_version_condition=False),
    "delete": lambda tx, there: tx.delete(there("a"), add_version_condition=False),
    "check": lambda tx, there: tx.check(there("a")),
    "condition_check": lambda tx, there: tx.condition_check(there, "a", condition=there.balance == 1),
}


@pytest.mark.parametrize("act", ACTIONS.values(), ids=ACTIONS)
def test_actions_in_two_places(place: dict[str, str], act: Callable[[Any, Any], object]) -> None:
    """`TransactWrite` sends all of them over one connection."""
    there = elsewhere(Purse, place)
    with (
        pytest.raises(ConfigurationError, match=r"There is in .*, and the connection of this transaction sends to"),
        TransactWrite(connection=Purse._get_connection().connection) as tx,
    ):
        tx.save(Purse("c"))
        act(tx, there)
    assert [each.purse_id for each in Purse.scan()] == ["a"]


def test_rows_of_a_model_in_another_place(place: dict[str, str]) -> None:
    """Locks and unique values are written together with the item."""
    device = elsewhere(Device, place)
    with pytest.raises(ConfigurationError, match=APART):
        device.locked("d").acquire()
    with pytest.raises(ConfigurationError, match=APART):
        elsewhere(User, place)("u", email="e").save()


def test_intervals_in_two_places(place: dict[str, str]) -> None:
    """An insert takes part in a transaction as other writes do."""
    with pytest.raises(ConfigurationError, match=APART), transaction(SlotTransactions) as tx:
        tx.insert_disjoint(Slot, [Slot("blue", 1, end=2)])
        tx.save(elsewhere(Purse, place)("b"))
    assert list(Slot.scan()) == []


def test_a_single_write_in_another_place(place: dict[str, str]) -> None:
    """An open transaction has an item of that table and key, but it is another one."""
    there = elsewhere(Purse, place)
    with transaction() as tx:
        tx.get(Purse, "a")
        there.modify("a", lambda item: setattr(item, "note", "there"))
        with pytest.raises(ConfigurationError, match="is in an open transaction"):
            Purse.modify("a", lambda item: setattr(item, "note", "here"))
        tx.save(Purse("c"))
        Purse.get("a").delete()  # what the modify has changed is the same table here
        tx.rollback()


def test_one_place_that_two_models_name(place: dict[str, str]) -> None:
    """Two models of one place take part together, also where both have credentials of their own."""
    here, there = elsewhere(Purse, place), elsewhere(Plain, place)
    with transaction(elsewhere(Transactions, place)) as tx:
        tx.get(here, "a")
        tx.save(there("b"))
    assert len(list(Plain.scan())) == 1
