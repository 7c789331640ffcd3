"""`edit` and `lock.item`: which instance a block gets, and what its end saves."""

from __future__ import annotations

import pytest

from pynamo_locking import TransactWrite
from tests.support.models import Account, Device, Locks
from tests.support.transaction_models import Robot, RowLocks
from tests.support.wire import is_save, on

pytestmark = pytest.mark.core


def test_the_item_is_asked_for_after_a_write(account):
    """`lock.item` is never older than the last write under the lock."""
    with account.locked("a") as lock:
        other = account.get("a")
        other.balance = 50
        other.save()
        assert lock.item.balance == 50


@pytest.mark.parametrize("how", ["delete", "our transaction"])
@pytest.mark.parametrize("model", [Account, Device], ids=["in-the-item", "in-a-row"])
def test_an_edit_that_deletes_does_not_save(engine, model, how):
    """However the block deleted the item, it stays deleted, and the lock was not lost."""
    engine.bind(Locks, Account, Device)
    model("x").save()
    edit = model.edit("x")
    with edit as item:
        if how == "delete":
            item.delete()
        else:
            with TransactWrite(connection=model._get_connection().connection) as write:
                write.delete(item)
    assert not edit.lock.lost.is_set()
    with pytest.raises(model.DoesNotExist):
        model.get("x")
    assert model.lock_state("x").entries == ()


@pytest.mark.parametrize("how", ["by itself", "in a transaction"])
def test_an_edit_saves_what_its_block_has_deleted_and_saved_again(memory, how):
    """The item is there at the end, so what the block has changed since is not left out."""
    memory.bind(RowLocks, Robot)
    Robot("r").save()
    with Robot.edit("r") as robot:
        robot.delete()
        robot.version = None
        if how == "by itself":
            robot.save()
        else:
            with TransactWrite(connection=Robot._get_connection().connection) as write:
                write.save(robot)
        robot.total = 7
    assert Robot.get("r").total == 7


def test_an_interrupt_after_an_applied_save_is_no_loss(account):
    """Ctrl-C while the answer to the last request of an edit is on its way."""
    reasons = []
    edit = account.edit("a", on_lost=reasons.append)

    def interrupt():
        raise KeyboardInterrupt

    with on("UpdateItem", where=is_save).after(interrupt), pytest.raises(KeyboardInterrupt), edit as item:
        item.balance = 1
    assert account.get("a").balance == 1
    assert not edit.lock.lost.is_set()
    assert reasons == []
