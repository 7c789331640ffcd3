"""Requests that get no answer, or that DynamoDB refuses for now: sent again for a while, and given up truthfully.

The answers are made in the client; the engine only keeps the items.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from types import SimpleNamespace
from uuid import uuid4

import pytest
from botocore.exceptions import ReadTimeoutError
from pynamodb.exceptions import (
    DeleteError,
    GetError,
    PutError,
    PynamoDBException,
    TransactWriteError,
    UpdateError,
)

from pynamo_locking import LockableModel, TransactWrite, transaction
from pynamo_locking.exceptions import Conflict, LockLost, LockTimeout, OutcomeUnknown, TransactionConflict
from tests.support import runtime
from tests.support.models import Locks, declare
from tests.support.transaction_models import FEW, Purse, Transactions, make_long_from
from tests.support.versioned_models import (
    LOCKABLE,
    VERSIONED,
    connection_of,
    document,
    saved,
)
from tests.support.wire import on

WRITES = ("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems")
READS = ("GetItem", "TransactGetItems")


class Recording(runtime.Runtime):
    """The real world, where pauses take no time and are written down."""

    def __init__(self):
        super().__init__()
        self.pauses = []

    def jitter(self):
        return 1.0

    def sleep(self, seconds):
        self.pauses.append(seconds)


def recording():
    """Run the block with the longest pauses and without waiting."""
    return runtime.installed(Recording())


def transaction_of(model, add, **options):
    """Run a transaction with one action."""
    with TransactWrite(connection=connection_of(model), **options) as transaction:
        add(transaction)


def requests_of(model):
    """Return every kind of request to an item that exists, by name."""
    item = model.get("a")
    set_body = [model.body.set("mine")]
    return {
        "save": item.save,
        "save unchecked": lambda: item.save(add_version_condition=False),
        "update": lambda: item.update(set_body[:]),
        "update unchecked": lambda: item.update([model.total.add(1)], add_version_condition=False),
        "delete": item.delete,
        "transaction": lambda: transaction_of(model, lambda t: t.update(item, set_body[:])),
        "get": lambda: model.get("a"),
        "refresh": item.refresh,
    }


NAMES = ["save", "save unchecked", "update", "update unchecked", "delete", "transaction", "get", "refresh"]


@pytest.mark.parametrize("name", NAMES)
def test_ours_code_of_an_error_without_answer_is_none(ours, name):
    """PynamoDB's error as before, and its code and message can be asked for."""
    saved(ours)
    act = requests_of(ours)[name]
    with (
        recording(),
        on(*WRITES, *READS).answer(ReadTimeoutError, always=True),
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


# Refused for now

CONFLICT = "TransactionConflictException"
#: A write of another Region was in the way, in a global table with strong consistency.
REPLICATED = "ReplicatedWriteConflictException"
BUSY = [CONFLICT, REPLICATED]
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


#: The lock in a row of its own.
Machine = declare(
    "Machine", hash_key="pk", texts="body", numbers="total", version=True, lock_table=Locks, max_retry_attempts=0
)


@pytest.fixture(params=["versioned", "lockable", "locked inside", "locked in a row"])
def place(request, cheap):
    """A model with an item, outside of its lock or inside, and the request that a write of it is."""
    with ExitStack() as stack:
        if request.param == "locked in a row":
            model, _ = cheap.bind(Machine, Locks)
            operations = ("TransactWriteItems",)
        else:
            model = cheap.bind(document(VERSIONED if request.param == "versioned" else LOCKABLE))
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
    return BUSY[number % 2]


@pytest.mark.parametrize("name", SINGLE)
def test_busy_writes_are_sent_again(place, name):
    """Refused eight times for now, with each of the reasons in turn: applied once, by the ninth."""
    item = place.model.get("a")
    act = requests_of(place.model)[name]
    answers = [busy(place, number) for number in range(8)]
    with recording() as world, on(*place.operations).answer(*answers) as sent:
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
        act = requests_of(place.model)[name]
        with (
            recording() as world,
            on(*place.operations).answer(busy(place, number), always=True) as sent,
            pytest.raises(ERRORS[name[0]]) as refused,
        ):
            act()
        assert (len(sent), world.pauses) == (9, LONGEST)
        assert not isinstance(refused.value, OutcomeUnknown)
        code = busy(place, number)[0] if place.is_transaction else busy(place, number)
        assert refused.value.cause_response_code == code
        assert isinstance(refused.value, TransactionConflict)
    item.refresh(consistent_read=True)
    assert (item.version, item.body, item.total) == (1, None, 0)
    item.save()


#: How often a request of the package's own is sent while other writes have the item.
AT_ONCE = 5


@pytest.fixture
def model(cheap):
    """A model with its lock in the item, and an item with a lock document."""
    model = cheap.bind(document(LOCKABLE))
    saved(model)
    with model.locked("a", heartbeat=False):
        pass
    return model


@pytest.mark.parametrize(
    ("code", "times"), [*itertools.product(BUSY, [1, AT_ONCE - 1]), *((code, 1) for code in THROTTLED)]
)
def test_requests_of_a_lock_are_sent_again(model, code, times):
    """Refused for now, once or several times: each does what it is for, and is in doubt only where no other is sent."""

    def refused(act):
        with recording() as world, on("UpdateItem").answer(*[code] * times) as sent:
            result = act()
        assert len(sent) == times + 1
        assert code in THROTTLED or world.pauses == [0.05, 0.1, 0.2, 0.4][:times]
        return result

    lock = model.locked("a", wait=0, heartbeat=False)
    refused(lock.acquire)
    if code in THROTTLED:
        with on("UpdateItem").answer(code), pytest.raises(OutcomeUnknown):
            lock.renew()  # by hand it is one request, and the caller does it again
        lock.renew()
    else:
        refused(lock.renew)
    assert model.lock_state("a").holders[0].heartbeats >= 1
    refused(lock.downgrade)
    refused(lock.release)
    assert model.lock_state("a").entries == ()

    broken = model.locked("a", heartbeat=False)
    broken.acquire()
    refused(lambda: model.break_lock("a", ticket=broken.ticket))
    assert model.lock_state("a").entries == ()
    with pytest.raises(LockLost):
        refused(broken.release)  # what is refused for good is no copy of a release that was applied
    assert model.get("a").version == 1


@pytest.mark.parametrize("code", BUSY)
def test_a_renewal_that_always_meets_other_writes_is_given_up(model, code):
    """The error says that it was refused, and how much of the lease is certain; a later renewal succeeds."""
    lock = model.locked("a", heartbeat=False)
    lock.acquire()
    with recording(), on("UpdateItem").answer(*[code] * AT_ONCE) as sent:
        with pytest.raises(OutcomeUnknown, match=r"refused for now the renewal of .* of the lease are certain"):
            lock.renew()
        lock.renew()
    lock.release()
    assert len(sent) == AT_ONCE + 1


@pytest.mark.parametrize("code", BUSY)
def test_a_release_that_meets_other_writes_is_not_in_doubt(cheap, model, code):
    """However often it was refused for now: no attempt has removed the entry, so the lock was lost with its item."""
    lock = model.locked("a", heartbeat=False)
    lock.acquire()
    cheap.client().delete_item(TableName=model.Meta.table_name, Key={"pk": {"S": "a"}})
    with recording(), on("UpdateItem").answer(*[code] * AT_ONCE) as sent, pytest.raises(LockLost):
        lock.release()
    assert len(sent) == AT_ONCE + 1


@pytest.mark.parametrize("code", BUSY)
def test_a_lock_that_does_not_wait_meets_other_writes(model, code):
    """It tries for a while, and then times out: nothing is held, and nothing is left to be removed."""
    with recording(), on("UpdateItem").answer(code, always=True) as sent, pytest.raises(LockTimeout, match=code):
        model.locked("a", wait=0, heartbeat=False).acquire()
    assert len(sent) == 4 * AT_ONCE  # no request to leave a queue that it has not entered
    assert model.lock_state("a").entries == ()


@pytest.mark.parametrize("code", BUSY)
def test_long_transactions_meet_other_writes(cheap, monkeypatch, code):
    """Every other request for headers, rows and marks is refused for now: the transaction is committed all the same."""
    make_long_from(monkeypatch, statements=1)
    cheap.bind(Purse, Transactions)
    keys = [f"k{number}" for number in range(3 * FEW)]
    for key in keys:
        Purse(key, balance=0).save()
    with (
        recording(),
        on("PutItem", "UpdateItem", "DeleteItem").answer(code, None, always=True) as sent,
        transaction(Transactions) as tx,
    ):
        for key in keys:
            tx.update(tx.get(Purse, key), [Purse.balance.set(1)])
    assert len(sent) > 4 * 2 * FEW  # a mark and its removal for those that the decision does not write itself
    assert [Purse.get(key, consistent_read=True).balance for key in keys] == [1] * len(keys)


@pytest.mark.parametrize("code", BUSY)
def test_modify_reads_again_after_a_conflict_that_stays(ours, code):
    """Nine attempts of the save are one of `modify`; the next one acquires the lock, which is the first of the item."""
    saved(ours)
    with recording(), on(*WRITES).answer(*[code] * 9) as sent:
        changed = ours.modify("a", change=lambda item: setattr(item, "body", "changed"))
    assert len(sent) == (12 if issubclass(ours, LockableModel) else 10)
    assert (changed.version, ours.get("a").body) == (2, "changed")


def test_botocores_own_attempts_are_not_multiplied_by_conflicts(cheap):
    """With PynamoDB's default of three retries in botocore a conflict is still sent nine times in all."""
    model = document(VERSIONED)
    model.Meta.max_retry_attempts = 3
    cheap.bind(model)
    item = saved(model)
    with recording(), on(*WRITES).answer(CONFLICT, always=True) as sent, pytest.raises(TransactionConflict):
        item.save()
    assert len(sent) == 9


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
    with recording() as world, on(*WRITES).answer(*[answer] * 8) as sent:
        transaction_of(everybody, lambda t: t.update(item, [everybody.total.add(1)]), **options)
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
            on(*WRITES).answer((code, None, why), always=True) as sent,  # deletes are sent before updates
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
    answers = (ReadTimeoutError, BUSY_TRANSACTIONS[0], BUSY_TRANSACTIONS[0])
    with recording(), on(*WRITES).answer(*answers) as sent:
        transaction_of(ours, lambda t: t.save(item))
    assert len(sent) == 4
    assert len(set(tokens(sent))) == 1
    assert ours.get("a").version == 2


def test_failed_conditions_are_not_sent_again(ours):
    """A conflict beside a failed condition is no reason to wait."""
    item, other = saved(ours), saved(ours, "b")
    with (
        recording() as world,
        on(*WRITES).answer((CANCELLED, "TransactionConflict", "ConditionalCheckFailed"), always=True) as sent,
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
        act = requests_of(ours)[name]
        with recording(), on(*WRITES).answer(code, always=True) as sent, pytest.raises(ERRORS[name[0]]) as refused:
            act()
        assert len(sent) == 1
        assert not isinstance(refused.value, OutcomeUnknown)
        assert refused.value.cause_response_code == code
        assert (item.version, ours.get("a").version) == (1, 1)
    act = requests_of(ours)["update unchecked"]
    with recording() as world, on(*WRITES).answer(*[code] * 8) as sent:
        act()
    assert (len(sent), world.pauses) == (9, LONGEST)
    assert (ours.get("a").total, ours.get("a").version) == (1, 2)


@pytest.mark.parametrize("code", THROTTLED_TRANSACTIONS)
def test_throttled_transactions_are_left_to_botocore(ours, code):
    """They end in PynamoDB's error, and nothing has changed."""
    item = saved(ours)
    with on(*WRITES).answer(code, always=True) as sent, pytest.raises(TransactWriteError) as refused:
        transaction_of(ours, lambda t: t.save(item))
    assert (len(sent), refused.value.cause_response_code) == (1, code)
    assert not isinstance(refused.value, OutcomeUnknown)
    assert (item.version, ours.get("a").version) == (1, 1)
