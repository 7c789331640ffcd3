"""Reads inside and beside locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.connection import Connection

from pynamo_locking import (
    ConfigurationError,
    LockableModel,
)
from pynamo_locking.testing._botocore import client_error
from tests.support.models import Account, Device, Locks
from tests.support.transaction_models import Robot, RowLocks

if TYPE_CHECKING:
    from tests.engines.engine import Engine


def test_reads_of_other_models_inside_a_lock(account, engine):
    """A model without a place for locks, and a key that cannot be, read as they do outside."""

    class Plain(LockableModel):
        class Meta:
            table_name = "plain"

        account_id = Account.account_id

    engine.bind(Plain)
    with account.locked("a"):
        with pytest.raises(Plain.DoesNotExist):
            Plain.get("x")
        with pytest.raises(Exception) as caught:
            assert account.get("") is None
        assert not isinstance(caught.value, ConfigurationError)


def test_reads_beside_a_lock_are_transactional(device):
    """get() and refresh() of an item whose lock is in another row, inside that lock."""
    from tests.support.faults import count_requests

    with device.locked("d"), count_requests() as counted:
        item = device.get("d")
        item.refresh()
    assert counted.by_operation == {"TransactGetItems": 2}


def test_a_read_that_comes_late_does_not_replace_the_item(memory: Engine) -> None:
    """A task was cancelled while it read, and read again: changes of the item it has then must not get lost."""
    memory.bind(Locks, Device)
    Device("d").save()
    with Device.locked("d") as lock:
        read, items = lock._target.read, list[Any]()

        def read_late() -> Any:
            object.__setattr__(lock._target, "read", read)
            items.append(lock.item)
            return read()

        object.__setattr__(lock._target, "read", read_late)
        items.append(lock.item)
        items[0].state = "changed"
        items[0].save()
    assert items[0] is items[1]
    assert Device.get("d").state == "changed"


@pytest.mark.usefixtures("purses_and_entries")
def test_a_read_beside_a_lock_is_repeated_on_a_conflict(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore does not repeat a TransactGetItems that another transaction has cancelled."""
    memory.bind(Robot, RowLocks)
    Robot("r").save()
    send, left = Connection.dispatch, [True]

    def busy(self: Any, operation: str, kwargs: Any) -> Any:
        if operation == "TransactGetItems" and left:
            left.clear()
            reasons = {"CancellationReasons": [{"Code": "TransactionConflict", "Message": "made up"}]}
            raise client_error(operation, "TransactionCanceledException", "made up", reasons)
        return send(self, operation, kwargs)

    monkeypatch.setattr(Connection, "dispatch", busy)
    with Robot.edit("r"):
        assert not left
