"""The package sets one attribute on an instance, whatever is done with it, so a user's own names stay free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pynamo_locking import TransactWrite, transaction
from tests.support.transaction_models import Purse, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


def edit(purse: Purse) -> None:
    with Purse.edit(purse.purse_id) as edited:
        edited.balance += 1
    vars(purse).update(vars(edited))


def in_a_transaction(purse: Purse) -> None:
    with transaction() as tx:
        tx.update(purse, [Purse.balance.add(1)])


def by_transact_write(purse: Purse) -> None:
    with TransactWrite(connection=Purse._get_connection().connection) as actions:
        actions.save(purse)


@pytest.mark.parametrize(
    "write",
    [
        lambda purse: purse.save(),
        lambda purse: purse.update([Purse.balance.add(1)]),
        lambda purse: purse.refresh(),
        lambda purse: purse.delete(),
        edit,
        in_a_transaction,
        by_transact_write,
    ],
    ids=["save", "update", "refresh", "delete", "edit", "transaction", "TransactWrite"],
)
def test_one_attribute_is_set(memory: Engine, write: Callable[[Purse], None]) -> None:
    memory.bind(Purse, Transactions)
    Purse("a").save()
    item = Purse.get("a")
    item.remark = "the user's"  # type: ignore[attr-defined]
    write(item)
    assert set(vars(item)) <= {"attribute_values", "remark", "_pynamo_locking"}
