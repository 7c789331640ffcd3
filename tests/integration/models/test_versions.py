"""Versions: what goes wrong with those of PynamoDB does not with the same model on our classes."""

from __future__ import annotations

import pytest
from pynamodb.attributes import VersionAttribute as StockVersionAttribute
from pynamodb.exceptions import DeleteError, PutError, TransactWriteError, UpdateError

from pynamo_locking import TransactWrite, VersionedMixin
from pynamo_locking.exceptions import ConfigurationError, StaleVersion
from tests.support.models import declare
from tests.support.versioned_models import (
    FAILED,
    OURS,
    SHAPES,
    STOCK,
    connection_of,
    item_of,
    recreated,
    saved,
    stale,
)

pytestmark = pytest.mark.core


def test_stale_writes_are_refused(everybody):
    """The error and its code are PynamoDB's everywhere, and the local copy does not change."""
    copy = stale(everybody)
    writes = [
        (PutError, copy.save),
        (UpdateError, lambda: copy.update([everybody.body.set("mine")])),
        (DeleteError, copy.delete),
    ]
    for error, write in writes:
        with pytest.raises(error) as refused:
            write()
        assert refused.value.cause_response_code == FAILED
        assert (copy.version, copy.body) == (1, None)
        if everybody.__bases__ != STOCK:
            assert isinstance(refused.value, StaleVersion)
            assert (refused.value.expected, refused.value.actual, refused.value.current.body) == (1, 2, "newer")
    assert everybody.get("a").version == 2


def behind(model):
    """Return a copy in version 2 of an item in version 6, and one in version 3."""
    saved(model, version=2)
    second = model.get("a")
    model.get("a").save()
    third = model.get("a")
    for _ in range(3):
        model.get("a").save()
    return second, third


@pytest.mark.parametrize("in_transaction", [False, True])
def test_ours_save_without_check_counts_up(ours, in_transaction):
    """6 becomes 7, on the server and in the copy, which goes on from there; the old version 3 is refused."""
    second, third = behind(ours)
    second.body = "mine"
    if in_transaction:
        with TransactWrite(connection=connection_of(ours)) as transaction:
            transaction.save(second, add_version_condition=False)
    else:
        second.save(add_version_condition=False)
        assert second.version == 7
    assert (ours.get("a").version, ours.get("a").body) == (7, "mine")
    with pytest.raises(StaleVersion):
        third.save()
    if not in_transaction:
        second.save()
        assert ours.get("a").version == 8


def test_ours_save_without_check_creates(ours):
    """Where there is no item, it is created in version 1, also from a copy that knows another version."""
    ours("a").save(add_version_condition=False)
    assert ours.get("a").version == 1
    old = saved(ours, "b", version=4)
    ours.get("b").delete()
    old.save(add_version_condition=False)
    assert old.version == ours.get("b").version >= 1


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("bases", OURS.values(), ids=OURS.keys())
def test_ours_key_only_update_counts_up(engine, shape, bases):
    """3, 4, 5: by update and in a transaction, however the attribute is declared."""
    model = engine.bind(shape(bases))
    saved(model, version=3)
    model("a").update([model.total.add(1)], add_version_condition=False)
    assert model.get("a").version == 4
    with TransactWrite(connection=connection_of(model)) as transaction:
        transaction.update(model("a"), [model.total.add(1)], add_version_condition=False)
    assert (model.get("a").version, model.get("a").total) == (5, 2)
    stored = item_of(engine, model)
    assert stored[model.version.attr_name] == {"N": "5"}


def test_ours_key_only_update_with_pynamodbs_attribute(engine):
    """The base class alone is enough: the attribute may stay PynamoDB's."""
    doc = engine.bind(declare("Doc", VersionedMixin, hash_key="pk", numbers="total", version=StockVersionAttribute()))
    saved(doc, version=3)
    doc("a").update([doc.total.add(1)], add_version_condition=False)
    assert doc.get("a").version == 4


def test_ours_old_copy_of_a_recreated_item_is_refused(transacted):
    """Versions are equal, lives are not: save, update, delete and transactions are refused."""
    ours, transact = transacted
    old = recreated(ours)
    for write in (old.save, lambda: old.update([ours.body.set("old")]), old.delete):
        with pytest.raises(StaleVersion) as refused:
            write()
        assert (refused.value.expected, refused.value.actual, refused.value.current.body) == (1, 1, "new")

    def update(transaction):
        transaction.update(old, [ours.body.set("old")])

    for add in (lambda t: t.save(old), update, lambda t: t.delete(old)):
        with pytest.raises(TransactWriteError) as refused, transact() as transaction:
            add(transaction)
        assert [reason.code for reason in refused.value.cancellation_reasons] == ["ConditionalCheckFailed"]
    assert (ours.get("a").body, ours.get("a").version) == ("new", 1)


def test_save_after_own_delete_fails(everybody):
    """A deleted item does not come back by saving the copy, which knows its version."""
    item = saved(everybody)
    item.delete()
    with pytest.raises(PutError) as refused:
        item.save()
    assert refused.value.cause_response_code == FAILED
    if everybody.__bases__ != STOCK:
        assert isinstance(refused.value, StaleVersion)
        assert (refused.value.expected, refused.value.actual, refused.value.current) == (1, None, None)
    assert list(everybody.scan(consistent_read=True)) == []


def test_save_of_a_projection_fails(everybody):
    """A copy that was loaded without its version cannot overwrite the item."""
    saved(everybody, body="whole")
    part = everybody.get("a", attributes_to_get=["pk", "total"])
    assert part.version is None
    with pytest.raises(PutError if everybody.__bases__ == STOCK else ConfigurationError):
        part.save()
    assert everybody.get("a").body == "whole"


def test_items_without_a_version_get_one(engine, everybody):
    """The first who saves an item from before the version existed makes it version 1; the second fails."""
    engine.client().put_item(TableName=everybody.Meta.table_name, Item={"pk": {"S": "a"}, "body": {"S": "old"}})
    first, second = everybody.get("a"), everybody.get("a")
    assert first.version is None
    first.save()
    assert (first.version, everybody.get("a").version, everybody.get("a").body) == (1, 1, "old")
    with pytest.raises(PutError) as refused:
        second.save()
    assert refused.value.cause_response_code == FAILED


def test_delete_of_what_was_never_saved(everybody):
    """It succeeds and does nothing; an existing item is not deleted that way."""
    everybody("a").delete()
    saved(everybody, "b")
    with pytest.raises(DeleteError) as refused:
        everybody("b").delete()
    assert refused.value.cause_response_code == FAILED
    assert everybody.get("b").version == 1


def test_ours_version_none_says_that_the_item_is_new(ours):
    """It is accepted; the next save creates the item or is refused."""
    ours("a", version=None).save()
    item = ours.get("a")
    item.version = None
    for write in (item.save, lambda: item.update([ours.body.set("x")]), item.delete):
        with pytest.raises(StaleVersion) as refused:
            write()
        assert (refused.value.expected, refused.value.actual) == (None, 1)
    with pytest.raises(StaleVersion), TransactWrite(connection=connection_of(ours)) as transaction:
        transaction.save(item)
    item.version = 1
    item.save()
    assert ours.get("a").version == 2
