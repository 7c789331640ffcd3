"""What goes wrong with PynamoDB's versions and transactions, and what happens here instead.

The numbers are those of the table of hazards in the reference on PynamoDB, section A.2: first PynamoDB's
own behaviour with a stock model, then ours with the same model on another base class.
"""

from __future__ import annotations

import itertools
import json
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from pynamodb.attributes import DiscriminatorAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.attributes import TTLAttribute as StockTTLAttribute
from pynamodb.attributes import VersionAttribute as StockVersionAttribute
from pynamodb.exceptions import (
    DeleteError,
    GetError,
    PutError,
    PynamoDBException,
    TableError,
    TransactWriteError,
    UpdateError,
)
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import (
    BatchError,
    ConfigurationError,
    Conflict,
    ExpiringMixin,
    LockableModel,
    LockAttribute,
    LockLost,
    OutcomeUnknown,
    StaleVersion,
    TransactionConflict,
    TransactWrite,
    TTLAttribute,
    VersionAttribute,
    VersionedMixin,
)
from pynamo_locking._io import runtime
from tests.support.faults import _tapped, count_requests
from tests.support.models import QUICK, Locks

STOCK = (Model,)
VERSIONED = (VersionedMixin, Model)
LOCKABLE = (LockableModel,)
OURS = {"versioned": VERSIONED, "lockable": LOCKABLE}
EVERYBODY = {"stock": STOCK, **OURS}
FAILED = "ConditionalCheckFailedException"


class Settings:
    """What the models of this module have in common."""

    lock_settings = QUICK
    max_retry_attempts = 0  # of botocore: the attempts that a test counts are ours


def version_of(bases, attr_name=None):
    """Return the version attribute that goes with the base classes."""
    return (StockVersionAttribute if bases == STOCK else VersionAttribute)(attr_name=attr_name)


def document(bases, *, renamed=False):
    """Return a model with a version, and a lock in the item where the base knows of locks."""

    class Doc(*bases):
        class Meta(Settings):
            table_name = "docs"

        pk = UnicodeAttribute(hash_key=True)
        body = UnicodeAttribute(null=True)
        total = NumberAttribute(default=0)
        version = version_of(bases, "v" if renamed else None)
        if bases == LOCKABLE:
            lock = LockAttribute()

    return Doc


def inherited(bases):
    """Return a model whose version comes from a base class of its own."""

    class Versioned(*bases):
        version = version_of(bases, "v")

    class Doc(Versioned):
        class Meta(Settings):
            table_name = "docs"

        pk = UnicodeAttribute(hash_key=True)
        total = NumberAttribute(default=0)
        if bases == LOCKABLE:
            lock = LockAttribute()

    return Doc


def family(bases):
    """Return two classes of one table."""

    class Animal(*bases):
        class Meta(Settings):
            table_name = "animals"

        pk = UnicodeAttribute(hash_key=True)
        kind = DiscriminatorAttribute()
        legs = NumberAttribute(default=0)
        version = version_of(bases)
        if bases == LOCKABLE:
            lock = LockAttribute()

    class Cat(Animal, discriminator="cat"):
        pass

    class Dog(Animal, discriminator="dog"):
        pass

    return Animal, Cat, Dog


def session(bases):
    """Return a model whose items expire."""
    if bases != STOCK:
        bases = (ExpiringMixin, *bases)

    class Session(*bases):
        class Meta(Settings):
            table_name = "sessions"

        pk = UnicodeAttribute(hash_key=True)
        total = NumberAttribute(default=0)
        expires = (StockTTLAttribute if bases == STOCK else TTLAttribute)(null=True)
        version = version_of(bases)
        if LockableModel in bases:
            lock = LockAttribute()

    return Session


SHAPES = {"plain": document, "renamed": lambda bases: document(bases, renamed=True), "inherited": inherited}


@pytest.fixture
def stock(engine):
    """PynamoDB's model."""
    return engine.bind(document(STOCK))


@pytest.fixture(params=OURS.values(), ids=OURS.keys())
def ours(request, engine):
    """The same model on our base classes, and with a lock in the item."""
    return engine.bind(document(request.param))


@pytest.fixture(params=EVERYBODY.values(), ids=EVERYBODY.keys())
def everybody(request, engine):
    """Each of them, for what is the same everywhere."""
    return engine.bind(document(request.param))


@pytest.fixture(params=[StockTransactWrite, TransactWrite], ids=["stock-transaction", "our-transaction"])
def transact(request):
    """Make transactions of each class for a model."""
    return lambda model, **options: request.param(connection=connection_of(model), **options)


def connection_of(model):
    """Return PynamoDB's connection of a model."""
    return model._get_connection().connection


def item_of(engine, model, pk="a"):
    """Return the stored item in DynamoDB's form."""
    key = {"pk": {"S": pk}}
    return engine.client().get_item(TableName=model.Meta.table_name, Key=key, ConsistentRead=True).get("Item")


def saved(model, pk="a", version=1, **values):
    """Return an item that has been written as many times as its version says."""
    item = model(pk, **values)
    for _ in range(version):
        item.save()
    assert item.version == version
    return item


def stale(model, pk="a"):
    """Return a copy in version 1 of an item that is stored in version 2."""
    copy = saved(model, pk)
    model.get(pk).update([model.body.set("newer")])
    return copy


def recreated(model, pk="a"):
    """Return a copy of an item that has been deleted and created again since, to the same version."""
    saved(model, pk, body="old")
    copy = model.get(pk)
    model.get(pk).delete()
    saved(model, pk, body="new")
    return copy


# 1: stale writes


def test_01_stale_writes_are_refused(everybody):
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


# 2: backwards


def behind(model):
    """Return a copy in version 2 of an item in version 6, and one in version 3."""
    saved(model, version=2)
    second = model.get("a")
    model.get("a").save()
    third = model.get("a")
    for _ in range(3):
        model.get("a").save()
    return second, third


def test_02_stock_save_without_check_goes_backwards(stock):
    """6 becomes 3, and whoever still has the old version 3 passes the check afterwards."""
    second, third = behind(stock)
    second.save(add_version_condition=False)
    assert stock.get("a").version == 3
    third.save()


def test_02_ours_save_without_check_counts_up(ours):
    """6 becomes 7, on the server and in the copy, which goes on from there; the old version 3 is refused."""
    second, third = behind(ours)
    second.body = "mine"
    second.save(add_version_condition=False)
    assert (second.version, ours.get("a").version, ours.get("a").body) == (7, 7, "mine")
    with pytest.raises(StaleVersion):
        third.save()
    second.save()
    assert ours.get("a").version == 8


def test_02_ours_save_without_check_in_a_transaction(ours):
    """The same through TransactWrite.save, which PynamoDB does not offer."""
    second, third = behind(ours)
    second.body = "mine"
    with TransactWrite(connection=connection_of(ours)) as transaction:
        transaction.save(second, add_version_condition=False)
    assert (ours.get("a").version, ours.get("a").body) == (7, "mine")
    with pytest.raises(StaleVersion):
        third.save()


def test_02_ours_save_without_check_creates(ours):
    """Where there is no item, it is created in version 1, also from a copy that knows another version."""
    ours("a").save(add_version_condition=False)
    assert ours.get("a").version == 1
    old = saved(ours, "b", version=4)
    ours.get("b").delete()
    old.save(add_version_condition=False)
    assert old.version == ours.get("b").version >= 1


# 3: reset


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_03_stock_key_only_update_resets_the_version(engine, shape):
    """Version 3 becomes 1, however the attribute is declared."""
    model = engine.bind(shape(STOCK))
    saved(model, version=3)
    model("a").update([model.total.add(1)], add_version_condition=False)
    assert model.get("a").version == 1


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("bases", OURS.values(), ids=OURS.keys())
def test_03_ours_key_only_update_counts_up(engine, shape, bases):
    """3, 4, 5, 6: by update and in both kinds of transaction, however the attribute is declared."""
    model = engine.bind(shape(bases))
    saved(model, version=3)
    model("a").update([model.total.add(1)], add_version_condition=False)
    assert model.get("a").version == 4
    for kind, version in ((TransactWrite, 5), (StockTransactWrite, 6)):
        with kind(connection=connection_of(model)) as transaction:
            transaction.update(model("a"), [model.total.add(1)], add_version_condition=False)
        assert (model.get("a").version, model.get("a").total) == (version, version - 3)
    stored = item_of(engine, model)
    assert stored[model.version.attr_name] == {"N": "6"}


def test_03_ours_key_only_update_with_pynamodbs_attribute(engine):
    """The base class alone is enough: the attribute may stay PynamoDB's."""

    class Doc(VersionedMixin, Model):
        class Meta(Settings):
            table_name = "docs"

        pk = UnicodeAttribute(hash_key=True)
        total = NumberAttribute(default=0)
        version = StockVersionAttribute()

    engine.bind(Doc)
    saved(Doc, version=3)
    Doc("a").update([Doc.total.add(1)], add_version_condition=False)
    assert Doc.get("a").version == 4


# 4: the caller's list


def test_04_stock_changes_the_list_of_actions(stock):
    """The list has grown, and using it again is an error."""
    item, actions = saved(stock), [stock.body.set("m")]
    item.update(actions)
    assert len(actions) == 2
    with pytest.raises(UpdateError) as refused:
        item.update(actions)
    assert refused.value.cause_response_code == "ValidationException"


def test_04_ours_leaves_the_list_of_actions(ours, transact):
    """It can be used again, by updates and transactions."""
    item, other = saved(ours), saved(ours, "b")
    actions = [ours.total.add(1)]
    before = [*actions]
    item.update(actions)
    item.update(actions, add_version_condition=False)
    with transact(ours) as transaction:
        transaction.update(item, actions)
        transaction.update(other, actions)
    assert len(actions) == 1
    assert actions[0] is before[0]
    assert (ours.get("a").total, ours.get("b").total) == (3, 1)


def test_04_ours_leaves_the_list_of_an_unversioned_model(engine):
    """Nor does a model without a version, or PynamoDB's model in our transaction, get its list changed."""
    doc = engine.bind(document(STOCK))
    item, actions = saved(doc), [doc.total.add(1)]
    with TransactWrite(connection=connection_of(doc)) as transaction:
        transaction.update(item, actions)
    assert len(actions) == 1
    assert doc.get("a").version == 2


# 5: delete and recreate


def test_05_stock_old_copy_overwrites_the_recreated_item(stock):
    """Both are version 1, so the old copy wins."""
    old = recreated(stock)
    old.save()
    assert stock.get("a").body == "old"


def test_05_ours_old_copy_of_a_recreated_item_is_refused(ours, transact):
    """Versions are equal, lives are not: save, update, delete and transactions are refused."""
    old = recreated(ours)
    for write in (old.save, lambda: old.update([ours.body.set("old")]), old.delete):
        with pytest.raises(StaleVersion) as refused:
            write()
        assert (refused.value.expected, refused.value.actual, refused.value.current.body) == (1, 1, "new")

    def update(transaction):
        transaction.update(old, [ours.body.set("old")])

    for add in (lambda t: t.save(old), update, lambda t: t.delete(old)):
        with pytest.raises(TransactWriteError) as refused, transact(ours) as transaction:
            add(transaction)
        assert [reason.code for reason in refused.value.cancellation_reasons] == ["ConditionalCheckFailed"]
    assert (ours.get("a").body, ours.get("a").version) == ("new", 1)


# 6 to 8: absent and incomplete items


def test_06_save_after_own_delete_fails(everybody):
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


def test_07_save_of_a_projection_fails(everybody):
    """A copy that was loaded without its version cannot overwrite the item."""
    saved(everybody, body="whole")
    part = everybody.get("a", attributes_to_get=["pk", "total"])
    assert part.version is None
    with pytest.raises(PutError) as refused:
        part.save()
    assert refused.value.cause_response_code == FAILED
    assert everybody.get("a").body == "whole"


def test_07_items_without_a_version_get_one(engine, everybody):
    """The first who saves an item from before the version existed makes it version 1; the second fails."""
    engine.client().put_item(TableName=everybody.Meta.table_name, Item={"pk": {"S": "a"}, "body": {"S": "old"}})
    first, second = everybody.get("a"), everybody.get("a")
    assert first.version is None
    first.save()
    assert (first.version, everybody.get("a").version, everybody.get("a").body) == (1, 1, "old")
    with pytest.raises(PutError) as refused:
        second.save()
    assert refused.value.cause_response_code == FAILED


def test_08_delete_of_what_was_never_saved(everybody):
    """It succeeds and does nothing; an existing item is not deleted that way."""
    everybody("a").delete()
    saved(everybody, "b")
    with pytest.raises(DeleteError) as refused:
        everybody("b").delete()
    assert refused.value.cause_response_code == FAILED
    assert everybody.get("b").version == 1


# 9 and 10: batches


def test_09_stock_batch_overwrites_newer_items(stock):
    """No condition, no count: newer content is lost and 2 becomes 1."""
    copy = stale(stock)
    with stock.batch_write() as batch:
        batch.save(copy)
    assert (stock.get("a").version, stock.get("a").body) == (1, None)


def test_09_ours_batch_has_to_be_asked_for(ours):
    """batch_write() refuses to start; with unguarded=True it is PynamoDB's; guarded_batch() keeps the conditions."""
    copy, fresh = stale(ours), saved(ours, "b")
    with pytest.raises(ConfigurationError, match="unguarded=True"):
        ours.batch_write()
    with pytest.raises(BatchError) as failed, ours.guarded_batch() as batch:
        batch.save(copy)
        batch.save(fresh)
    assert [result.is_applied for result in failed.value.results] == [False, True]
    assert isinstance(failed.value.results[0].error, StaleVersion)
    assert (ours.get("a").body, ours.get("b").version) == ("newer", 2)
    with ours.batch_write(unguarded=True) as batch:
        batch.save(copy)
    assert (ours.get("a").version, ours.get("a").body) == (1, None)


def test_10_stock_batch_is_written_although_the_block_raised(stock):
    """What was collected before the exception is committed."""
    with pytest.raises(ZeroDivisionError), stock.batch_write() as batch:
        batch.save(stock("a"))
        1 / 0  # noqa: B018
    assert stock.get("a").pk == "a"


def test_10_ours_nothing_is_written_if_the_block_raised(ours):
    """Neither guarded_batch() nor a transaction sends anything."""
    opened = [
        ours.guarded_batch,
        lambda: ours.guarded_batch(transactions=True),
        lambda: TransactWrite(connection=connection_of(ours)),
    ]
    for begin in opened:
        with count_requests() as requests, pytest.raises(ZeroDivisionError), begin() as batch:
            batch.save(ours("a"))
            1 / 0  # noqa: B018
        assert requests.total == 0
    assert list(ours.scan(consistent_read=True)) == []


# 11: copies that a transaction has left behind


def test_11_stock_save_reverts_the_transaction(stock, transact):
    """The copy has the new version and the old attributes, so saving it takes the transaction back."""
    item = saved(stock, body="old")
    with transact(stock) as transaction:
        transaction.update(item, [stock.body.set("new")])
    item.save()
    assert stock.get("a").body == "old"


def test_11_ours_save_after_a_transaction_needs_a_refresh(ours, transact):
    """Refused without a request, in both kinds of transaction, until the copy has been refreshed."""
    item = saved(ours, body="old")
    with transact(ours) as transaction:
        transaction.update(item, [ours.body.set("new")])
    assert item.version == ours.get("a").version == 2
    with count_requests() as requests:
        with pytest.raises(PutError) as refused:
            item.save()
        with pytest.raises(TransactWriteError), transact(ours) as transaction:
            transaction.save(item)
    assert requests.total == 0
    assert isinstance(refused.value, StaleVersion)
    assert refused.value.cause_response_code == FAILED
    assert ours.get("a").body == "new"
    item.refresh()
    item.total = 5
    item.save()
    assert (ours.get("a").body, ours.get("a").total, ours.get("a").version) == ("new", 5, 3)


def test_11_ours_update_after_a_transaction(ours, transact):
    """update() and delete() name what they change, and need no refresh; an update brings the copy up to date."""
    item = saved(ours, body="old")
    with transact(ours) as transaction:
        transaction.update(item, [ours.body.set("new")])
    item.update([ours.total.add(1)])
    assert (item.body, item.total, item.version) == ("new", 1, 3)
    item.save()
    assert ours.get("a").version == 4


def test_11_ours_save_after_a_transactional_save(ours, transact):
    """A copy that a transaction has stored as it is can be saved again."""
    item = saved(ours, body="old")
    with transact(ours) as transaction:
        transaction.save(item)
    item.body = "new"
    item.save()
    assert (ours.get("a").body, ours.get("a").version) == ("new", 3)


def test_11_stock_save_after_a_transactional_delete(stock, transact):
    """An item that was created again meanwhile is silently overwritten by the copy of the deleted one."""
    item = saved(stock, body="old")
    with transact(stock) as transaction:
        transaction.delete(item)
    saved(stock, body="new")
    item.save()
    assert stock.get("a").body == "old"


def test_11_ours_save_after_a_transactional_delete(ours, transact):
    """The deleted item does not come back, and its successor is not overwritten."""
    item = saved(ours, body="old")
    with transact(ours) as transaction:
        transaction.delete(item)
    with pytest.raises(StaleVersion):
        item.save()
    assert list(ours.scan(consistent_read=True)) == []
    saved(ours, body="new")
    with pytest.raises(StaleVersion):
        item.save()
    assert ours.get("a").body == "new"


# 12: committed twice


def test_12_stock_transaction_is_sent_again(stock):
    """Its actions stay in it, so that using it a second time repeats the first use."""
    transaction = StockTransactWrite(connection=connection_of(stock))
    with transaction:
        transaction.save(stock("a"))
    with pytest.raises(TransactWriteError) as refused, transaction:
        pass
    assert refused.value.cause_response_code == "TransactionCanceledException"


@pytest.mark.parametrize("is_refused", [False, True], ids=["applied", "refused"])
def test_12_ours_transaction_says_that_it_is_used_up(ours, is_refused):
    """Whether it was applied or refused: adding to it or committing it again is an error, and sends nothing."""
    if is_refused:
        saved(ours)
    transaction = TransactWrite(connection=connection_of(ours))
    with ExitStack() as stack:
        if is_refused:
            stack.enter_context(pytest.raises(StaleVersion))
        with transaction:
            transaction.save(ours("a"))
    with count_requests() as requests:
        with pytest.raises(ConfigurationError, match="once only"), transaction:
            pass
        with pytest.raises(ConfigurationError, match="once only"):
            transaction.save(ours("b"))
    assert requests.total == 0
    assert ours.get("a").version == 1


# 13: the order of reasons

ORDERS = [
    ("update", "save", "delete", "check"),
    ("save", "check", "update", "delete"),
    ("delete", "update", "check", "save"),
    ("check", "save", "delete", "update"),
]


def refused_reasons(kind, model, order, failing):
    """Return the codes of a transaction with actions in some order, of which some fail."""
    with pytest.raises(TransactWriteError) as refused, kind(connection=connection_of(model)) as transaction:
        for name in order:
            item = stale(model, name) if name in failing else saved(model, name)
            if name == "check":
                absent = model.pk.does_not_exist()
                transaction.condition_check(model, name if name in failing else "absent", condition=absent)
            elif name == "update":
                transaction.update(item, [model.body.set("mine")])
            else:
                getattr(transaction, name)(item)
    return [reason and reason.code for reason in refused.value.cancellation_reasons]


def codes(order, failing):
    """Return the reasons that belong to an order."""
    return ["ConditionalCheckFailed" if name in failing else None for name in order]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_13_stock_reasons_have_an_order_of_their_own(stock, order):
    """Checks, deletes, puts, updates, whatever the order of the calls."""
    failing = {order[0], order[1]}
    expected = codes(("check", "delete", "save", "update"), failing)
    assert refused_reasons(StockTransactWrite, stock, order, failing) == expected


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_13_ours_reasons_have_the_callers_order(everybody, order):
    """The n-th reason is that of the n-th action, for models of each kind in our transaction."""
    failing = {order[0], order[1]}
    assert refused_reasons(TransactWrite, everybody, order, failing) == codes(order, failing)


def test_13_ours_reasons_with_reads_and_several_of_a_kind(ours):
    """Also with several actions of one kind, and reads between them."""
    fresh = [saved(ours, f"fresh {n}") for n in range(3)]
    old = [stale(ours, f"old {n}") for n in range(2)]
    with pytest.raises(TransactWriteError) as refused, TransactWrite(connection=connection_of(ours)) as transaction:
        transaction.save(fresh[0])
        transaction.read(old[0])
        transaction.delete(fresh[1])
        transaction.save(old[1])
        transaction.read(fresh[2])
    failed = "ConditionalCheckFailed"
    reasons = [reason and reason.code for reason in refused.value.cancellation_reasons]
    assert reasons == [None, failed, None, failed, None]
    assert isinstance(refused.value, StaleVersion)
    assert refused.value.current.pk == "old 0"


# 14: write skew


def doctors(model):
    """Return how two doctors go off duty at once, each since he has seen the other on duty."""
    for name in ("ann", "bob"):
        saved(model, name, body="on duty")
    return [(model.get(me), model.get(other)) for me, other in (("ann", "bob"), ("bob", "ann"))]


def on_duty(model):
    """Return who is on duty."""
    return [item.pk for item in model.scan(consistent_read=True) if item.body == "on duty"]


def test_14_stock_write_skew(stock):
    """Each write is right by what its writer has read, and nobody is left on duty."""
    for me, other in doctors(stock):
        assert other.body == "on duty"
        with StockTransactWrite(connection=connection_of(stock)) as transaction:
            transaction.update(me, [stock.body.set("off duty")])
    assert on_duty(stock) == []


def test_14_ours_reads_are_checked(ours):
    """With read() the second one is refused."""
    first, second = doctors(ours)
    for me, other in (first, second):
        assert other.body == "on duty"
        with ExitStack() as stack:
            if me is second[0]:
                stack.enter_context(pytest.raises(StaleVersion))
            with TransactWrite(connection=connection_of(ours)) as transaction:
                transaction.read(other)
                transaction.update(me, [ours.body.set("off duty")])
    assert on_duty(ours) == ["bob"]


# 15: another class


def test_15_stock_update_of_another_class_is_applied(engine):
    """The error comes after the item has been changed."""
    animal, cat, dog = family(STOCK)
    engine.bind(animal)
    saved(dog, legs=4)
    with pytest.raises(ValueError, match="Cannot update this item from the returned class: Dog"):
        cat("a", version=1).update([cat.legs.set(3)])
    assert animal.get("a").legs == 3


@pytest.mark.parametrize("checks", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("bases", OURS.values(), ids=OURS.keys())
def test_15_ours_update_of_another_class_changes_nothing(engine, bases, checks):
    """The same error, and the item is what it was; one's own class and subclass pass."""
    animal, cat, dog = family(bases)
    engine.bind(animal)
    saved(dog, legs=4)
    before = item_of(engine, animal)
    with pytest.raises(ValueError, match="Cannot update this item from the returned class: Dog"):
        cat("a", version=1).update([cat.legs.set(3)], add_version_condition=checks)
    assert item_of(engine, animal) == before
    animal.get("a").update([dog.legs.set(3)], add_version_condition=checks)
    assert (animal.get("a").legs, type(animal.get("a"))) == (3, dog)


# 16: create_table() again


@pytest.mark.parametrize("bases", EVERYBODY.values(), ids=EVERYBODY.keys())
def test_16_second_create_table_with_a_time_of_expiry(engine, bases):
    """PynamoDB's option for engines that refuse to enable TTL twice works for all; DynamoDB Local is one."""
    model = engine.bind(session(bases))
    if engine.name == "dynamodb-local":  # where `bind` leaves it off
        model.create_table(billing_mode="PAY_PER_REQUEST")
        with pytest.raises(TableError):
            model.create_table(billing_mode="PAY_PER_REQUEST")
    model.create_table(billing_mode="PAY_PER_REQUEST", ignore_update_ttl_errors=True)


# 17: expired items


def test_17_stock_expired_item_is_read_and_blocks_a_create(engine):
    """DynamoDB keeps it for days, and meanwhile it counts as any other item."""
    model = engine.bind(session(STOCK))
    saved(model, expires=timedelta(seconds=-100))
    assert model.get("a").pk == "a"
    with pytest.raises(PutError):
        model("a").save()


@pytest.mark.parametrize("bases", OURS.values(), ids=OURS.keys())
def test_17_ours_expired_item_counts_as_absent(engine, bases):
    """It is not read, and a create replaces it, by save and in a transaction; an old copy does not."""
    model = engine.bind(session(bases))
    for pk, create in (("a", lambda item: item.save()), ("b", transacted)):
        old = saved(model, pk, total=1, expires=timedelta(seconds=-100))
        with pytest.raises(model.DoesNotExist):
            model.get(pk)
        assert model.get(pk, include_expired=True).total == 1
        with pytest.raises(StaleVersion):
            old.save()
        create(model(pk, total=2))
        found = model.get(pk)
        assert (found.total, found.version, found.expires) == (2, 1, None)
        with pytest.raises(StaleVersion):
            old.save()


def transacted(item):
    """Save an item in a transaction."""
    with TransactWrite(connection=connection_of(type(item))) as transaction:
        transaction.save(item)


# 18: the size of transactions


def test_18_stock_sizes_are_not_checked(stock):
    """101 actions and none at all are both sent; what comes back depends on the engine for the latter."""
    with (
        count_requests() as requests,
        pytest.raises(TransactWriteError),
        StockTransactWrite(connection=connection_of(stock)) as transaction,
    ):
        for n in range(101):
            transaction.save(stock(str(n)))
    assert requests.by_operation["TransactWriteItems"] == 1
    # whether an empty one is an error depends on the engine
    with (
        count_requests() as requests,
        suppress(TransactWriteError),
        StockTransactWrite(connection=connection_of(stock)),
    ):
        pass
    assert requests.by_operation["TransactWriteItems"] == 1


def test_18_ours_sizes_are_checked(ours):
    """The 101st action is refused when it is added, and an empty transaction sends nothing."""
    with (
        count_requests() as requests,
        pytest.raises(ConfigurationError, match="100 actions"),
        TransactWrite(connection=connection_of(ours)) as transaction,
    ):
        for n in range(101):
            transaction.save(ours(str(n)))
    assert n == 100
    with count_requests() as empty, TransactWrite(connection=connection_of(ours)):
        pass
    assert (requests.total, empty.total) == (0, 0)


def test_18_ours_100_actions_are_fine(ours):
    """The limit itself is allowed."""
    with count_requests() as requests, TransactWrite(connection=connection_of(ours)) as transaction:
        for n in range(100):
            transaction.save(ours(f"{n:03}"))
    assert requests.by_operation == {"TransactWriteItems": 1}
    assert len(list(ours.scan(consistent_read=True))) == 100


# A version of None


def test_stock_version_none_is_a_type_error(stock):
    """PynamoDB cannot take back that an item has a version."""
    with pytest.raises(TypeError):
        stock("a", version=None)
    with pytest.raises(TypeError):
        saved(stock).version = None


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


def test_ours_versions_that_are_no_numbers_are_refused(ours):
    """Clearly, and at once."""
    item = saved(ours)
    for wrong in ("two", 1.5):
        with pytest.raises(ValueError, match=r"two|whole number"):
            item.version = wrong
    assert item.version == 1


# Answers that are made up here

URL = "http://dynamodb.invalid"


@contextmanager
def answered(operations, *answers, always=False):
    """Give these answers to the next requests instead of the engine; a None lets one through.

    Args:
        operations: names of the requests that are hit.
        answers: classes of exceptions for no answer at all, or DynamoDB's codes, alone or with reasons.
        always: whether to begin again after the last.
    """
    left = itertools.cycle(answers) if always else iter(answers)
    bodies = []

    def tap(endpoint, request, operation, forward):
        if operation not in operations:
            return forward()
        bodies.append(json.loads(request.body))
        answer = next(left, None)
        if answer is None:
            return forward()
        if isinstance(answer, type):
            return None, answer(endpoint_url=URL)
        return refused_by_dynamodb(answer), None

    with _tapped(tap):
        yield bodies


def refused_by_dynamodb(answer):
    """Return a response with that code, and the reasons of a cancelled transaction."""
    code, *reasons = answer if isinstance(answer, tuple) else (answer,)
    parsed = {
        "Error": {"Code": code, "Message": "made up"},
        "ResponseMetadata": {"HTTPStatusCode": 400, "HTTPHeaders": {}},
    }
    if reasons:
        parsed["CancellationReasons"] = [{"Code": reason or "None"} for reason in reasons]
    return SimpleNamespace(status_code=400, headers={}, content=b""), parsed


NO_ANSWER = {
    "ReadTimeoutError": ReadTimeoutError,
    "ConnectionClosedError": ConnectionClosedError,
}
WRITES = ("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems")
READS = ("GetItem", "TransactGetItems")


class Recording(runtime.Runtime):
    """The real world, where pauses take no time and are written down."""

    def __init__(self, jitter):
        super().__init__()
        self.fixed = jitter
        self.pauses = []

    def jitter(self):
        return self.fixed

    def sleep(self, seconds):
        self.pauses.append(seconds)


@contextmanager
def recording(jitter=1.0):
    """Run the block with that jitter and without waiting."""
    real, world = runtime.current, Recording(jitter)
    runtime.install(world)
    try:
        yield world
    finally:
        runtime.install(real)


def transaction_of(kind, model, add, **options):
    """Run a transaction with one action."""
    with kind(connection=connection_of(model), **options) as transaction:
        add(transaction)


def requests_of(model, kind):
    """Return every kind of request to an item that exists, by name."""
    item = model.get("a")
    set_body = [model.body.set("mine")]
    return {
        "save": item.save,
        "save unchecked": lambda: item.save(add_version_condition=False),
        "update": lambda: item.update(set_body[:]),
        "update unchecked": lambda: item.update([model.total.add(1)], add_version_condition=False),
        "delete": item.delete,
        "transaction": lambda: transaction_of(kind, model, lambda t: t.update(item, set_body[:])),
        "get": lambda: model.get("a"),
        "refresh": item.refresh,
    }


NAMES = ["save", "save unchecked", "update", "update unchecked", "delete", "transaction", "get", "refresh"]


@pytest.mark.parametrize("no_answer", NO_ANSWER.values(), ids=NO_ANSWER.keys())
@pytest.mark.parametrize("name", NAMES)
def test_stock_code_of_an_error_without_answer_crashes(stock, name, no_answer):
    """PynamoDB asks an exception without a response for the response's code."""
    saved(stock)
    act = requests_of(stock, StockTransactWrite)[name]
    with answered((*WRITES, *READS), no_answer, always=True), pytest.raises(PynamoDBException) as failed:
        act()
    with pytest.raises(AttributeError):
        failed.value.cause_response_code  # noqa: B018


@pytest.mark.parametrize("no_answer", NO_ANSWER.values(), ids=NO_ANSWER.keys())
@pytest.mark.parametrize("name", NAMES)
def test_ours_code_of_an_error_without_answer_is_none(ours, name, no_answer):
    """PynamoDB's error as before, and its code and message can be asked for."""
    saved(ours)
    act = requests_of(ours, TransactWrite)[name]
    with (
        recording(),
        answered((*WRITES, *READS), no_answer, always=True),
        pytest.raises(PynamoDBException) as failed,
    ):
        act()
    assert failed.value.cause_response_code is None
    assert failed.value.cause_response_message is None
    if name in ("get", "refresh"):
        assert isinstance(failed.value, GetError)
    else:
        assert isinstance(failed.value, OutcomeUnknown)
    assert ours.get("a").version == 1


def test_ours_code_of_a_stock_model_in_our_transaction(stock):
    """PynamoDB's models have it too, where our transaction sends them."""
    item = saved(stock)
    with (
        recording(),
        answered(WRITES, NO_ANSWER["ReadTimeoutError"], always=True),
        pytest.raises(TransactWriteError) as failed,
    ):
        transaction_of(TransactWrite, stock, lambda t: t.save(item))
    assert failed.value.cause_response_code is None


# Refused for now

CONFLICT = "TransactionConflictException"
#: A write of another Region was in the way, in a global table with strong consistency.
REPLICATED = "ReplicatedWriteConflictException"
#: These are repeated by botocore, and by us only where botocore must not.
THROTTLED = ["ThrottlingException", "ProvisionedThroughputExceededException", "RequestLimitExceeded"]
CANCELLED = "TransactionCanceledException"
BUSY_TRANSACTIONS = [
    (CANCELLED, "TransactionConflict"),
    (CANCELLED, "ThrottlingError"),
    (CANCELLED, "ProvisionedThroughputExceeded"),
]
THROTTLED_TRANSACTIONS = ["TransactionInProgressException", "ThrottlingException"]
#: The longest pauses between nine attempts.
LONGEST = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


class Machine(LockableModel):
    """The lock in a row of its own."""

    class Meta(Settings):
        table_name = "machines"
        lock_table = Locks

    pk = UnicodeAttribute(hash_key=True)
    body = UnicodeAttribute(null=True)
    total = NumberAttribute(default=0)
    version = VersionAttribute()


@pytest.fixture(params=["versioned", "lockable", "locked inside", "locked in a row"])
def place(request, engine):
    """A model with an item, outside of its lock or inside, and the request that a write of it is."""
    with ExitStack() as stack:
        if request.param == "locked in a row":
            model, _ = engine.bind(Machine, Locks)
            operations = ("TransactWriteItems",)
        else:
            model = engine.bind(document(VERSIONED if request.param == "versioned" else LOCKABLE))
            operations = ("PutItem", "UpdateItem", "DeleteItem")
        saved(model)
        if request.param.startswith("locked"):
            stack.enter_context(model.locked("a", heartbeat=False))
        yield SimpleNamespace(model=model, operations=operations, is_transaction=model is Machine)


SINGLE = ["save", "save unchecked", "update", "update unchecked", "delete"]
ERRORS = {"s": PutError, "u": UpdateError, "d": DeleteError}


def busy(place, number):
    """Return one of the refusals that this write can meet."""
    if place.is_transaction:
        return (*BUSY_TRANSACTIONS[number % len(BUSY_TRANSACTIONS)], None)
    return (CONFLICT, REPLICATED)[number % 2]


@pytest.mark.parametrize("name", SINGLE)
def test_busy_writes_are_sent_again(place, name):
    """Refused eight times for now, with each of the reasons in turn: applied once, by the ninth."""
    item = place.model.get("a")
    act = requests_of(place.model, TransactWrite)[name]
    answers = [busy(place, number) for number in range(8)]
    with recording() as world, answered(place.operations, *answers) as sent:
        act()
    assert len(sent) == 9
    assert world.pauses == LONGEST
    if name == "delete":
        with pytest.raises(place.model.DoesNotExist):
            item.refresh(consistent_read=True)
    else:
        item.refresh(consistent_read=True)
        assert (item.version, item.total) == (2, 1 if name == "update unchecked" else 0)


@pytest.mark.parametrize("name", SINGLE)
def test_busy_writes_are_given_up_after_nine(place, name):
    """The error is PynamoDB's, says what DynamoDB said, and nothing has changed, also locally."""
    item = place.model.get("a")
    for number in range(3):
        act = requests_of(place.model, TransactWrite)[name]
        with (
            recording() as world,
            answered(place.operations, busy(place, number), always=True) as sent,
            pytest.raises(ERRORS[name[0]]) as refused,
        ):
            act()
        assert (len(sent), world.pauses) == (9, LONGEST)
        assert not isinstance(refused.value, OutcomeUnknown)
        code = busy(place, number)[0] if place.is_transaction else busy(place, number)
        assert refused.value.cause_response_code == code
        if code in (CONFLICT, REPLICATED):
            assert isinstance(refused.value, TransactionConflict)
    item.refresh(consistent_read=True)
    assert (item.version, item.body, item.total) == (1, None, 0)
    item.save()


@pytest.mark.parametrize("code", [CONFLICT, REPLICATED, *THROTTLED])
def test_requests_of_a_lock_are_sent_again(engine, code):
    """botocore sends them once: each is refused for now, and then does what it is for."""
    model = engine.bind(document(LOCKABLE))
    saved(model)
    with model.locked("a", heartbeat=False):
        pass  # the first one of all also makes the document

    def refused(act):
        with recording(), answered(["UpdateItem"], code) as sent:
            result = act()
        assert len(sent) == 2
        return result

    lock = model.lock("a", heartbeat=False)
    refused(lock.acquire)
    with answered(["UpdateItem"], code), pytest.raises(OutcomeUnknown):
        lock.renew()  # by hand it is one request, and the caller does it again
    lock.renew()
    refused(lock.release)
    assert model.lock_state("a").entries == ()

    broken = model.lock("a", heartbeat=False)
    broken.acquire()
    refused(lambda: model.break_lock("a", ticket=broken.ticket))
    assert model.lock_state("a").entries == ()
    with pytest.raises(LockLost):
        broken.release()


@pytest.mark.parametrize("code", [CONFLICT, REPLICATED])
def test_modify_reads_again_after_a_conflict_that_stays(ours, code):
    """Nine attempts of the save are one of `modify`."""
    saved(ours)
    with recording(), answered(WRITES, *[code] * 9) as sent:
        changed = ours.modify("a", change=lambda item: setattr(item, "body", "changed"))
    assert len(sent) == 10
    assert (changed.version, ours.get("a").body) == (2, "changed")


def test_pauses_are_full_jitter(ours):
    """Each is anything between nothing and its longest."""
    item = saved(ours)
    for jitter in (0.0, 0.25, 1.0):
        with (
            recording(jitter) as world,
            answered(WRITES, CONFLICT, always=True),
            pytest.raises(TransactionConflict),
        ):
            item.save()
        assert world.pauses == pytest.approx([jitter * pause for pause in LONGEST])


def test_botocores_own_attempts_are_not_multiplied_by_conflicts(engine):
    """With PynamoDB's default of three retries in botocore a conflict is still sent nine times in all."""
    model = document(VERSIONED)
    model.Meta.max_retry_attempts = 3
    engine.bind(model)
    item = saved(model)
    with recording(), answered(WRITES, CONFLICT, always=True) as sent, pytest.raises(TransactionConflict):
        item.save()
    assert len(sent) == 9


def test_stock_gives_up_at_once(stock):
    """PynamoDB sends a write that met a transaction once."""
    item = saved(stock)
    with answered(WRITES, CONFLICT, always=True) as sent, pytest.raises(PutError):
        item.save()
    with (
        answered(WRITES, BUSY_TRANSACTIONS[0], always=True) as sent_transactions,
        pytest.raises(TransactWriteError),
    ):
        transaction_of(StockTransactWrite, stock, lambda t: t.save(item))
    assert (len(sent), len(sent_transactions)) == (1, 1)


def new_token():
    """Return a token of the caller's own; engines remember those of other tests."""
    return str(uuid4())


def tokens(bodies):
    """Return the tokens of some transactions."""
    return [body["ClientRequestToken"] for body in bodies]


@pytest.mark.parametrize("is_callers", [False, True], ids=["own-token", "callers-token"])
@pytest.mark.parametrize("answer", BUSY_TRANSACTIONS, ids=str)
def test_busy_transactions_are_sent_again(everybody, answer, is_callers):
    """Eight times refused for now, with the caller's token each time if there is one, and applied once."""
    item = saved(everybody)
    options = {"client_request_token": new_token()} if is_callers else {}
    with recording() as world, answered(WRITES, *[answer] * 8) as sent:
        transaction_of(TransactWrite, everybody, lambda t: t.update(item, [everybody.total.add(1)]), **options)
    assert (len(sent), world.pauses) == (9, LONGEST)
    assert len(set(tokens(sent))) == (1 if is_callers else 9)
    if is_callers:
        assert tokens(sent)[0] == options["client_request_token"]
    found = everybody.get("a")
    assert (found.total, found.version) == (1, 2)


@pytest.mark.parametrize("is_callers", [False, True], ids=["own-token", "callers-token"])
def test_busy_transactions_are_given_up_after_nine(ours, is_callers):
    """The reasons have the caller's order, and nothing has changed, also locally."""
    first, second = saved(ours), saved(ours, "b")
    options = {"client_request_token": new_token()} if is_callers else {}
    for code, why in BUSY_TRANSACTIONS:
        with (
            recording() as world,
            answered(WRITES, (code, None, why), always=True) as sent,  # deletes are sent before updates
            pytest.raises(TransactWriteError) as refused,
            TransactWrite(connection=connection_of(ours), **options) as transaction,
        ):
            transaction.update(first, [ours.total.add(1)])
            transaction.delete(second)
        assert (len(sent), world.pauses) == (9, LONGEST)
        assert isinstance(refused.value, TransactionConflict)
        assert refused.value.reasons == (why, None)
        assert [reason and reason.code for reason in refused.value.cancellation_reasons] == [why, None]
        assert refused.value.cause_response_code == CANCELLED
    assert (first.version, ours.get("a").version, ours.get("b").version) == (1, 1, 1)
    first.save()


def test_token_stays_the_same_while_an_earlier_copy_may_have_been_applied(ours):
    """After a lost answer the same token goes on, so that DynamoDB can tell the copies apart."""
    item = saved(ours)
    answers = (NO_ANSWER["ReadTimeoutError"], BUSY_TRANSACTIONS[0], BUSY_TRANSACTIONS[0])
    with recording(), answered(WRITES, *answers) as sent:
        transaction_of(TransactWrite, ours, lambda t: t.save(item))
    assert len(sent) == 4
    assert len(set(tokens(sent))) == 1
    assert ours.get("a").version == 2


def test_failed_conditions_are_not_sent_again(ours):
    """A conflict beside a failed condition is no reason to wait."""
    item, other = saved(ours), saved(ours, "b")
    with (
        recording() as world,
        answered(WRITES, (CANCELLED, "TransactionConflict", "ConditionalCheckFailed"), always=True) as sent,
        pytest.raises(Conflict),
        TransactWrite(connection=connection_of(ours)) as transaction,
    ):
        transaction.save(item)
        transaction.save(other)
    assert (len(sent), world.pauses) == (1, [])


@pytest.mark.parametrize("code", THROTTLED)
def test_throttled_writes_are_left_to_botocore(ours, code):
    """They end in PynamoDB's error, and nothing has changed; one that botocore must not repeat is repeated by us."""
    for name in ("save", "update", "delete"):
        item = ours.get("a") if name != "save" else saved(ours)
        act = requests_of(ours, TransactWrite)[name]
        with (
            recording(),
            answered(WRITES, code, always=True) as sent,
            pytest.raises(ERRORS[name[0]]) as refused,
        ):
            act()
        assert len(sent) == 1
        assert not isinstance(refused.value, OutcomeUnknown)
        assert refused.value.cause_response_code == code
        assert (item.version, ours.get("a").version) == (1, 1)
    act = requests_of(ours, TransactWrite)["update unchecked"]
    with recording() as world, answered(WRITES, *[code] * 8) as sent:
        act()
    assert (len(sent), world.pauses) == (9, LONGEST)
    assert (ours.get("a").total, ours.get("a").version) == (1, 2)


@pytest.mark.parametrize("code", THROTTLED_TRANSACTIONS)
def test_throttled_transactions_are_left_to_botocore(ours, code):
    """They end in PynamoDB's error, and nothing has changed."""
    item = saved(ours)
    with answered(WRITES, code, always=True) as sent, pytest.raises(TransactWriteError) as refused:
        transaction_of(TransactWrite, ours, lambda t: t.save(item))
    assert (len(sent), refused.value.cause_response_code) == (1, code)
    assert not isinstance(refused.value, OutcomeUnknown)
    assert (item.version, ours.get("a").version) == (1, 1)
