"""Lists of actions, and TransactWrite: what goes wrong with PynamoDB's does not happen here."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch
from uuid import uuid4

import pytest
from pynamodb.exceptions import PutError, TransactWriteError
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import ConfigurationError, StaleVersion
from tests.support.versioned_models import (
    EVERYBODY,
    FAILED,
    STOCK,
    VERSIONED,
    connection_of,
    document,
    saved,
    stale,
    versioned,
)
from tests.support.wire import count_requests
from tests.support.workers import Beside, Locks, Plain

pytestmark = pytest.mark.core


def test_ours_leaves_the_list_of_actions(transacted):
    """It can be used again, by updates and transactions."""
    ours, transact = transacted
    item, other = saved(ours), saved(ours, "b")
    actions = [ours.total.add(1)]
    before = [*actions]
    item.update(actions)
    item.update(actions, add_version_condition=False)
    with transact() as transaction:
        transaction.update(item, actions)
        transaction.update(other, actions)
    assert len(actions) == 1
    assert actions[0] is before[0]
    assert (ours.get("a").total, ours.get("b").total) == (3, 1)


@pytest.mark.parametrize("item", [None, "a", object()])
def test_ours_refuses_what_is_no_item(engine, item):
    """Such as what a lookup has not found."""
    stock = engine.bind(document(STOCK))
    with pytest.raises(ConfigurationError, match="writes items of models"):
        TransactWrite(connection=connection_of(stock)).save(item)


def test_ours_leaves_the_list_of_an_unversioned_model(engine):
    """Nor does a model without a version, or PynamoDB's model in our transaction, get its list changed."""
    doc = engine.bind(document(STOCK))
    item, actions = saved(doc), [doc.total.add(1)]
    with TransactWrite(connection=connection_of(doc)) as transaction:
        transaction.update(item, actions)
    assert len(actions) == 1
    assert doc.get("a").version == 2


def test_ours_save_after_a_transaction_needs_a_refresh(transacted):
    """Refused without a request, in both kinds of transaction, until the copy has been refreshed."""
    ours, transact = transacted
    item = saved(ours, body="old")
    with transact() as transaction:
        transaction.update(item, [ours.body.set("new")])
    assert item.version == ours.get("a").version == 2
    with count_requests() as requests:
        with pytest.raises(PutError) as refused:
            item.save()
        with pytest.raises(TransactWriteError), transact() as transaction:
            transaction.save(item)
    assert requests.total == 0
    assert isinstance(refused.value, StaleVersion)
    assert refused.value.cause_response_code == FAILED
    assert ours.get("a").body == "new"
    item.refresh()
    item.total = 5
    item.save()
    assert (ours.get("a").body, ours.get("a").total, ours.get("a").version) == ("new", 5, 3)


def test_ours_update_after_a_transaction(transacted):
    """update() and delete() name what they change, and need no refresh; an update brings the copy up to date."""
    ours, transact = transacted
    item = saved(ours, body="old")
    with transact() as transaction:
        transaction.update(item, [ours.body.set("new")])
    item.update([ours.total.add(1)])
    assert (item.body, item.total, item.version) == ("new", 1, 3)
    item.save()
    assert ours.get("a").version == 4


def test_ours_save_after_a_transactional_save(transacted):
    """A copy that a transaction has stored as it is can be saved again."""
    ours, transact = transacted
    item = saved(ours, body="old")
    with transact() as transaction:
        transaction.save(item)
    item.body = "new"
    item.save()
    assert (ours.get("a").body, ours.get("a").version) == ("new", 3)


def test_ours_save_after_a_transactional_delete(transacted):
    """The deleted item does not come back, and its successor is not overwritten."""
    ours, transact = transacted
    item = saved(ours, body="old")
    with transact() as transaction:
        transaction.delete(item)
    with pytest.raises(StaleVersion):
        item.save()
    assert list(ours.scan(consistent_read=True)) == []
    saved(ours, body="new")
    with pytest.raises(StaleVersion):
        item.save()
    assert ours.get("a").body == "new"


@pytest.mark.parametrize("is_refused", [False, True], ids=["applied", "refused"])
def test_ours_transaction_says_that_it_is_used_up(ours, is_refused):
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


def test_ours_checks_an_item_whose_model_cannot_lock_it(engine):
    """A lock attribute alone, as of a model that reads what another model locks."""
    doc = engine.bind(versioned("Doc", VERSIONED, lock=True))
    saved(doc)
    with TransactWrite(connection=connection_of(doc)) as transaction:
        transaction.condition_check(doc, "a", condition=doc.version == 1)
        transaction.save(doc("b"))
    assert doc.get("b").version == 1


ORDERS = [("update", "save", "delete", "check"), ("check", "save", "delete", "update")]


def refused(model, order, failing):
    """Return the error of a transaction of which some actions fail, and the codes of its reasons."""
    with pytest.raises(TransactWriteError) as refused, TransactWrite(connection=connection_of(model)) as transaction:
        for name in order:
            item = stale(model, name) if name in failing else saved(model, name)
            if name == "check":
                absent = model.pk.does_not_exist()
                transaction.condition_check(model, name if name in failing else "absent", condition=absent)
            elif name == "update":
                transaction.update(item, [model.body.set("mine")])
            else:
                getattr(transaction, name)(item)
    return refused.value, [reason and reason.code for reason in refused.value.cancellation_reasons]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_ours_reasons_have_the_callers_order(everybody, order):
    """The n-th reason is that of the n-th action, for models of each kind, and sent sorted by kind as PynamoDB does."""
    failed = set(order[:2])
    with count_requests() as requests:
        error, found = refused(everybody, order, failed)
    assert found == ["ConditionalCheckFailed" if name in failed else None for name in order]
    kinds = [kind for action in requests.bodies[-1][1]["TransactItems"] for kind in action]
    assert kinds == sorted(kinds)
    if everybody.__bases__ != STOCK and order[0] != "check":
        assert error.current.pk == order[0]


def test_ours_reasons_with_reads_and_several_of_a_kind(ours):
    """Also with several actions of one kind, and reads between them."""
    fresh = [saved(ours, f"fresh {n}") for n in range(3)]
    old = [stale(ours, f"old {n}") for n in range(2)]
    with pytest.raises(TransactWriteError) as refused, TransactWrite(connection=connection_of(ours)) as transaction:
        transaction.save(fresh[0])
        transaction.check(old[0])
        transaction.delete(fresh[1])
        transaction.save(old[1])
        transaction.check(fresh[2])
    failed = "ConditionalCheckFailed"
    reasons = [reason and reason.code for reason in refused.value.cancellation_reasons]
    assert reasons == [None, failed, None, failed, None]
    assert isinstance(refused.value, StaleVersion)
    assert refused.value.current.pk == "old 0"


def test_ours_sizes_are_checked(ours):
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
    with count_requests() as empty_without_connection, TransactWrite():
        pass
    assert (requests.total, empty.total, empty_without_connection.total) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["stock", "versioned"])
def test_ours_needs_no_connection(engine, kind):
    """It sends by that of the first model, which has its client, with the options that PynamoDB's class takes."""
    model = engine.bind(document(EVERYBODY[kind]))
    connection, token = connection_of(model), str(uuid4())
    with patch.object(connection, "transact_write_items", wraps=connection.transact_write_items) as sent:
        with TransactWrite(token, "SIZE", return_consumed_capacity="TOTAL") as transaction:
            transaction.save(model("a"))
            transaction.save(model("b"))
        with TransactWrite() as transaction:
            transaction.save(model("c"))
    options = ["client_request_token", "return_item_collection_metrics", "return_consumed_capacity"]
    assert sent.call_count == 2
    assert [sent.call_args_list[0].kwargs[each] for each in options] == [token, "SIZE", "TOTAL"]
    assert sorted(each.pk for each in model.scan(consistent_read=True)) == ["a", "b", "c"]


def test_ours_100_actions_are_fine(ours):
    """The limit itself is allowed."""
    with count_requests() as requests, TransactWrite(connection=connection_of(ours)) as transaction:
        for n in range(100):
            transaction.save(ours(f"{n:03}"))
    assert requests.by_operation == {"TransactWriteItems": 1}
    assert len(list(ours.scan(consistent_read=True))) == 100


@pytest.mark.parametrize("model", [Plain, Beside], ids=["lock inside", "lock beside"])
@pytest.mark.parametrize("way", ["save", "update", "delete"])
def test_pynamodbs_own_class_refuses_what_can_be_locked(memory, model, way):
    """At the call, naming ours, before anything is sent: it would pass by the lock."""
    memory.bind(Locks, model)
    item = model("a")
    item.save()
    arguments = [[model.value.add(1)]] if way == "update" else []
    transaction = StockTransactWrite(connection=connection_of(model))
    with count_requests() as counted, pytest.raises(ConfigurationError, match=r"Use pynamo_locking\.TransactWrite"):
        getattr(transaction, way)(item, *arguments)
    assert counted.by_operation == {}
    assert model.get("a").value == 0
