"""The table of a NamedLock, made by several processes at once, and its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import TableError

from pynamo_locking import NamedLock
from tests.support.models import Locks, declare

if TYPE_CHECKING:
    from tests.engines.engine import Engine


TableLocks = declare("TableLocks", NamedLock)


def test_another_process_was_faster(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table came between the look and CreateTable: no error, and it is the one that is there."""
    locks = dynoxide.bind(TableLocks)
    exists, looks = locks.exists, list[bool]()

    def stale_once() -> Any:
        looks.append(exists())
        return False if len(looks) == 1 else looks[-1]

    monkeypatch.setattr(locks, "exists", stale_once)
    locks.create_table()
    assert looks[0]
    assert len(looks) > 1


def test_create_table_is_refused(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error other than that the table exists comes through."""
    locks = dynoxide.bind(TableLocks)
    monkeypatch.setattr(locks, "exists", lambda: False)
    with pytest.raises(TableError, match="ValidationException"):
        locks.create_table(billing_mode="PROVISIONED", read_capacity_units=0, write_capacity_units=0)


def test_ttl_is_refused(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error other than that TTL is enabled comes through."""
    locks = dynoxide.bind(TableLocks)
    monkeypatch.setattr(locks.Meta, "table_name", dynoxide.new_name())  # a table that is not there
    with pytest.raises(TableError, match="ResourceNotFoundException"):
        locks.update_ttl(ignore_update_ttl_errors=False)


def test_saving_a_lock_row_keeps_its_expiry(engine):
    """The copy of the expiry that was loaded long ago does not replace the one of the last renewal."""
    engine.bind(Locks)
    with Locks.locked("n", heartbeat=False) as lock:
        item = lock.item
        client = Locks._get_connection().connection.client
        later = {
            "TableName": Locks.Meta.table_name,
            "Key": {"name": {"S": "n"}},
            "UpdateExpression": "SET expires_s = :later",
            "ExpressionAttributeValues": {":later": {"N": "4102444800"}},
        }
        client._make_api_call("UpdateItem", later)
        item.save()
        assert Locks.get("n").expires.timestamp() == 4102444800
