"""What an application's own unit tests do with PynamoDB, they do with our classes: no engine, stand-ins, and clocks.

PynamoDB's own tests do it, too (tests/pynamodb_suite); here each difference that they once showed has a test.
"""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone
from unittest import mock

import pytest
from botocore.exceptions import ClientError
from pynamodb.attributes import DiscriminatorAttribute, MapAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.attributes import VersionAttribute as StockVersionAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import CancellationReason, TransactWriteError, VerboseClientError
from pynamodb.models import Model

from pynamo_locking import (
    ExpiringMixin,
    LockableModel,
    LockAttribute,
    TransactWrite,
    TTLAttribute,
    VersionAttribute,
    VersionedMixin,
)
from pynamo_locking.exceptions import Conflict
from tests.support.models import declare, meta

pytestmark = pytest.mark.usefixtures("no_requests")


# Models that are read and shown, and never stored


def models_without_meta(*bases, version=VersionAttribute, **others):
    """A model, and one with a subclass of its own, which have no `Meta`."""
    attributes = {
        "key": UnicodeAttribute(hash_key=True),
        "number": NumberAttribute(null=True),
        "map": MapAttribute(null=True),
        "version": version(),
    }
    kind = {"key": UnicodeAttribute(hash_key=True), "kind": DiscriminatorAttribute()}
    animal = type("Animal", bases, kind)
    return type("Item", bases, attributes | others), animal, type("Cat", (animal,), {}, discriminator="cat")


RAW = {"key": {"S": "k"}, "number": {"N": "5"}, "version": {"N": "3"}, "map": {"M": {"a": {"S": "b"}}}}


def from_raw_data(item, *_):
    return item.from_raw_data(dict(RAW)).attribute_values


def from_dynamodb_dict(item, *_):
    instance = item()
    instance.from_dynamodb_dict(dict(RAW))
    return instance.attribute_values


def from_simple_dict(item, *_):
    instance = item()
    instance.from_simple_dict({"key": "k", "number": 5, "version": 3})
    return instance.attribute_values


def deserialize(item, *_):
    instance = item()
    instance.deserialize(dict(RAW))
    return instance.attribute_values


def shown(item, *_):
    instance = item("k", number=5, map={"a": "b"}, version=3)
    return instance.serialize(), instance.to_dynamodb_dict(), instance.to_simple_dict(), repr(instance)


def of_a_subclass(_, animal, cat):
    return type(animal.from_raw_data({"key": {"S": "k"}, "kind": {"S": "cat"}})) is cat


@pytest.mark.parametrize(
    "use", [from_raw_data, from_dynamodb_dict, from_simple_dict, deserialize, shown, of_a_subclass]
)
@pytest.mark.parametrize(
    ("bases", "others"),
    [
        ((VersionedMixin, Model), {}),
        ((LockableModel,), {}),
        ((LockableModel,), {"lock": LockAttribute}),
        ((ExpiringMixin, LockableModel), {"expires": lambda: TTLAttribute(null=True)}),
    ],
    ids=["versioned", "lockable", "embedded", "expiring"],
)
def test_a_model_without_meta_can_be_read_and_shown(use, bases, others):
    """As PynamoDB's, which asks for a `Meta` at the first request."""
    plain = lambda value: repr(value).replace(" object", "").split(" at 0x")[0]  # noqa: E731 - maps have no repr
    expected = use(*models_without_meta(Model, version=StockVersionAttribute))
    found = use(*models_without_meta(*bases, **{name: make() for name, make in others.items()}))
    assert plain(found) == plain(expected)


# Clocks that tests patch


def test_a_time_of_expiry_follows_a_patched_clock(monkeypatch):
    """`time.time` is what PynamoDB's attribute asks, and what tests of applications patch; once, and one value."""

    class Session(ExpiringMixin, LockableModel):
        Meta = meta("sessions", region="us-east-1")

        key = UnicodeAttribute(hash_key=True)
        expires = TTLAttribute(null=True)

    moment = datetime(2019, 6, 5, tzinfo=timezone.utc)
    real, here, asked = time.time, threading.get_ident(), []

    def now():
        if threading.get_ident() != here:  # a thread that is not this test's
            return real()
        asked.append(moment)
        return moment.timestamp()

    monkeypatch.setattr(time, "time", now)
    session = Session("s", expires=timedelta(minutes=1))
    text = TTLAttribute().serialize(timedelta(minutes=1))
    monkeypatch.undo()
    assert session.expires == moment + timedelta(minutes=1)
    assert text == str(int(moment.timestamp()) + 60)
    assert len(asked) == 2, "once for each"


# Connections that tests replace


Account = declare("Account", table_name="accounts", version=True, region="us-east-1")


class Office(Account):
    Meta = meta("offices", region="us-east-1")


def patched():
    """One method of a real connection is replaced."""
    connection = Connection()
    connection.transact_write_items = mock.create_autospec(connection.transact_write_items, return_value={})
    return connection


def autospecced():
    """A stand-in that has what the class has."""
    connection = mock.create_autospec(Connection, instance=True)
    connection.transact_write_items.return_value = {}
    return connection


@pytest.fixture(params=[patched, autospecced, mock.MagicMock])
def replaced(request, monkeypatch):
    """A connection whose transactions go nowhere, on a machine where none has been configured."""
    for variable in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    return request.param()


def write(connection, **options):
    with TransactWrite(connection=connection, **options) as transaction:
        transaction.update(Account("c"), [Account.version.set(1)], add_version_condition=False)
        transaction.save(Account("a"))
        transaction.delete(Office("b"))
        transaction.condition_check(Office, "d", condition=Office.key.exists())


def test_a_transaction_goes_through_the_connection_that_a_test_replaced(replaced):
    """PynamoDB calls `transact_write_items`, with the actions sorted by kind."""
    write(replaced, client_request_token="token", return_consumed_capacity="TOTAL")
    replaced.transact_write_items.assert_called_once()
    arguments = dict(replaced.transact_write_items.call_args.kwargs)
    keys = [
        [(action["TableName"], (action.get("Key") or action["Item"])["key"]["S"]) for action in arguments.pop(kind)]
        for kind in ("condition_check_items", "delete_items", "put_items", "update_items")
    ]
    assert keys == [[("offices", "d")], [("offices", "b")], [("accounts", "a")], [("accounts", "c")]]
    assert arguments == {
        "client_request_token": "token",
        "return_consumed_capacity": "TOTAL",
        "return_item_collection_metrics": None,
    }


def test_a_refusal_that_a_test_makes_up(replaced):
    """As PynamoDB raises it: with a cause, which says why each action of the request was refused."""
    reasons = [
        {"Code": "None"},
        {"Code": "None"},
        {"Code": "ConditionalCheckFailed", "Message": "no"},
        {"Code": "None"},
    ]
    response = {
        "Error": {"Code": "TransactionCanceledException", "Message": "refused"},
        "CancellationReasons": reasons,
        "ResponseMetadata": {"HTTPHeaders": {"x-amzn-requestid": "R-1"}},
    }
    cause = VerboseClientError({"Error": response["Error"]}, "TransactWriteItems", {})
    cause.__cause__ = ClientError(response, "TransactWriteItems")
    replaced.transact_write_items.side_effect = TransactWriteError("Failed", cause)
    with pytest.raises(Conflict) as refused:
        write(replaced)
    assert isinstance(refused.value, TransactWriteError)
    assert refused.value.cause is cause
    assert [reason and reason.code for reason in refused.value.cancellation_reasons] == [
        *(None, "ConditionalCheckFailed"),
        *(None, None),
    ]


def test_a_refusal_with_reasons_and_no_answer_that_a_test_makes_up(replaced):
    """What PynamoDB shows of the answer is all that a test needs to make up; it is passed on."""
    reasons = [CancellationReason(code="ConditionalCheckFailed", message="no"), None, None, None]
    response = {"Error": {"Code": "TransactionCanceledException", "Message": "refused"}}
    cause = VerboseClientError(response, "TransactWriteItems", cancellation_reasons=reasons)
    replaced.transact_write_items.side_effect = TransactWriteError("Failed", cause)
    with pytest.raises(TransactWriteError) as refused:
        write(replaced)
    assert refused.value.cause_response_code == "TransactionCanceledException"
    assert refused.value.cancellation_reasons == reasons


def test_an_error_without_a_cause_that_a_test_makes_up(replaced):
    """It is passed on."""
    error = TransactWriteError("made up")
    replaced.transact_write_items.side_effect = error
    with pytest.raises(TransactWriteError) as raised:
        write(replaced)
    assert raised.value is error
    assert not isinstance(raised.value, Conflict)
