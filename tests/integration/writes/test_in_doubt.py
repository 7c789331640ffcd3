"""A copy of a write is still on its way when another copy is refused: "refused" is said only if that is final."""

from __future__ import annotations

from contextlib import contextmanager, suppress

import pytest
from pynamodb.exceptions import PutError, TransactWriteError

from pynamo_locking import TransactWrite, VersionedMixin
from pynamo_locking.exceptions import Conflict, ItemLocked, LockingError, OutcomeUnknown, StaleVersion
from tests.support.models import Locks, declare
from tests.support.parties import held_elsewhere
from tests.support.wire import on

pytestmark = pytest.mark.core

Page = declare("Page", lock=True, version=True, numbers="n")
Note = declare("Note", VersionedMixin, version=True, numbers="n")
Beside = declare("Beside", version=True, numbers="n", lock_table=Locks)


@pytest.fixture(autouse=True)
def _tables(engine):
    engine.bind(Page, Note, Locks, Beside)
    for model in (Page, Note, Beside):
        model("k").save()


def transaction():
    return TransactWrite(connection=Note._get_connection().connection)


def changed(model):
    item = model.get("k", consistent_read=True)
    item.n += 1
    return item


def stored(model, key="k"):
    return model.get(key, consistent_read=True).n


def test_a_save_that_a_lock_refuses_may_still_arrive():
    """The lock is freed without a write, the first copy lands: "locked, nothing was written" would be a lie."""
    page = changed(Page)
    with (
        held_elsewhere(Page.locked("k")),
        on("UpdateItem", times=1).delay() as late,
        pytest.raises(OutcomeUnknown) as caught,
    ):
        page.save()
    assert isinstance(caught.value, PutError)
    assert stored(Page) == 0
    late[0]()
    assert stored(Page) == 1


def test_a_save_that_a_lock_refuses_is_refused_for_good_once_the_holder_has_written():
    """What was read is gone and its id never comes again, so no copy can pass."""
    page = changed(Page)
    with Page.locked("k") as lock:
        lock.item.n = 7
        lock.item.save()
    with held_elsewhere(Page.locked("k")), on("UpdateItem", times=1).delay() as late, pytest.raises(PutError) as caught:
        page.save()
    assert isinstance(caught.value, (ItemLocked, StaleVersion))
    late[0]()
    assert stored(Page) == 7


def test_a_save_that_was_sent_once_and_meets_a_lock_is_refused():
    """No earlier copy, no doubt."""
    page = changed(Page)
    with held_elsewhere(Page.locked("k")), pytest.raises(ItemLocked):
        page.save()
    assert stored(Page) == 0


def test_a_transaction_that_a_lock_refuses_may_still_arrive():
    """As a save; and then both items are written."""
    page, note = changed(Page), changed(Note)
    with on("TransactWriteItems", times=1).delay() as late:
        with held_elsewhere(Page.locked("k")), pytest.raises(OutcomeUnknown) as caught, transaction() as write:
            write.save(page)
            write.save(note)
        assert isinstance(caught.value, TransactWriteError)
        assert (stored(Page), stored(Note)) == (0, 0)
        late[0]()
    assert (stored(Page), stored(Note)) == (1, 1)


def test_a_transaction_that_creates_what_is_there_may_still_arrive():
    """The item in the way is deleted, and the first copy lands."""
    note = changed(Note)
    Page("new", n=5).save()
    with on("TransactWriteItems", times=1).delay() as late:
        with pytest.raises(OutcomeUnknown), transaction() as write:
            write.save(Page("new", n=9))
            write.save(note)
        Page.get("new").delete()
        late[0]()
    assert (stored(Page, "new"), stored(Note)) == (9, 1)


def test_a_condition_on_another_item_may_come_true():
    """A check that was not met is no refusal for good."""
    note = changed(Note)
    with on("TransactWriteItems", times=1).delay() as late:
        with pytest.raises(OutcomeUnknown), transaction() as write:
            write.condition_check(Page, "k", condition=Page.n == 3)
            write.save(note)
        changed(Page).update([Page.n.set(3)])
        late[0]()
    assert stored(Note) == 1


def test_a_transaction_with_an_item_that_has_changed_is_refused_for_good():
    """One id that is gone is enough: no copy can pass, whatever else refused it."""
    page, note = changed(Page), changed(Note)
    changed(Note).save()
    with on("TransactWriteItems", times=1).delay() as late:
        with pytest.raises(StaleVersion), transaction() as write:
            write.save(page)
            write.save(note)
        late[0]()
    assert (stored(Page), stored(Note)) == (0, 1)


def test_a_check_that_fails_at_once_is_a_conflict():
    """No earlier copy, no doubt."""
    with pytest.raises(Conflict), transaction() as write:
        write.condition_check(Page, "k", condition=Page.n == 3)
        write.save(changed(Note))
    assert stored(Note) == 0


def test_a_create_under_a_lock_in_another_row_may_still_arrive():
    """A writer without the lock deletes what was in the way, and the first copy lands."""
    with Beside.locked("k"):
        with on("TransactWriteItems", times=1).delay() as late, pytest.raises(OutcomeUnknown):
            Beside("k", n=9).save()
        Beside._get_connection().connection.client.delete_item(
            TableName=Beside.Meta.table_name, Key={"key": {"S": "k"}}
        )
        late[0]()
        assert stored(Beside) == 9


@contextmanager
def broken_meanwhile(operation, model):
    """Keep the first request of this operation, and break the lock of the item before the answer to the second."""

    def break_it():
        client, table = model._get_connection().connection.client, model.Meta.table_name
        image = client.get_item(TableName=table, Key={"key": {"S": "k"}})["Item"]
        image["lock"] = {"M": {**image["lock"]["M"], "queue": {"M": {"e": {"S": "x"}}}}}
        client.put_item(TableName=table, Item=image)

    with on(operation).lose_request(break_it) as lost:
        yield
    assert lost.hits


@pytest.mark.parametrize("inside", [False, True])
def test_a_save_that_a_broken_lock_refuses_may_still_arrive(inside):
    """Once a person has mended the lock."""
    with suppress(LockingError), Page.locked("k") as lock:
        item = lock.item if inside else changed(Page)
        item.n = 1
        if not inside:
            lock.release()
        with broken_meanwhile("UpdateItem", Page), pytest.raises(LockingError) as caught:
            item.save()
    assert isinstance(caught.value, OutcomeUnknown)
    assert isinstance(caught.value, PutError)


def test_a_transaction_that_a_broken_lock_refuses_may_still_arrive():
    """As above."""
    with Page.locked("k"):
        pass
    page = changed(Page)
    with (
        broken_meanwhile("TransactWriteItems", Page),
        pytest.raises(OutcomeUnknown) as caught,
        TransactWrite(connection=Page._get_connection().connection) as write,
    ):
        write.save(page)
    assert isinstance(caught.value, TransactWriteError)
