"""The parts of PynamoDB and botocore without a public name that the package relies on.

When one of these fails after an upgrade, look at the named places in the package before anything else.
"""

from __future__ import annotations

import inspect
import pathlib
import re

import botocore.session
import pytest
from botocore.endpoint import Endpoint
from botocore.exceptions import ClientError
from pynamodb.attributes import NumberAttribute, TTLAttribute, UnicodeAttribute, VersionAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import PynamoDBException, VerboseClientError
from pynamodb.expressions import condition, operand, update
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

import pynamo_locking
import pynamo_locking_testing
from pynamo_locking._core import dynamodb
from pynamo_locking._io import client, responses
from pynamo_locking._items import effects


class Item(Model):
    class Meta:
        table_name = "items"
        region = "us-east-1"
        aws_access_key_id = "x"
        aws_secret_access_key = "x"

    key = UnicodeAttribute(hash_key=True, attr_name="k")
    part = NumberAttribute(range_key=True)
    version = VersionAttribute(attr_name="v")
    expires = TTLAttribute(null=True)


SESSION = botocore.session.get_session()


@pytest.fixture(autouse=True)
def _one_session(monkeypatch):
    """A session reads the description of DynamoDB once, which takes as long as all of these tests."""
    monkeypatch.setattr("pynamodb.connection.base.get_session", lambda: SESSION)


PACKAGES = [pathlib.Path(each.__file__).parent for each in (pynamo_locking, pynamo_locking_testing)]
SOURCES = [(path, path.read_text()) for package in PACKAGES for path in sorted(package.rglob("*.py"))]


def parameters(function):
    return list(inspect.signature(function).parameters)


def pin(where, what):
    """Fail with a message that says where to look; and if the package does not use it any more."""
    users = ["/".join(path.parts[-3:]) for path, text in SOURCES if re.search(rf"\b{what}\b", text)]

    assert users, f"the package does not use {what} any more: nothing has to hold it here"
    assert hasattr(where, what), f"PynamoDB has no {where!r}.{what} any more; it is used in {', '.join(users)}"


# Connections, for the transport


@pytest.mark.parametrize(
    "name",
    [
        "_client",
        "_local",
        "_connect_timeout_seconds",
        "_read_timeout_seconds",
        "_retry_configuration",
        "_max_pool_connections",
        "_aws_access_key_id",
        "host",
        "region",
        "client",
        "session",
        "dispatch",
    ],
)
def test_a_connection_has(name):
    """A twin of a connection is made by setting these."""
    pin(Connection(region="us-east-1"), name)


@pytest.mark.parametrize("is_used", [True, False], ids=["used before", "never used"])
def test_a_twin_is_impatient(is_used):
    """The client of a lock connection has the short timeouts, one attempt, and room for many waiters."""
    # without credentials PynamoDB makes a new client each time
    connection = Connection(
        region="us-east-1",
        read_timeout_seconds=77,
        connect_timeout_seconds=78,
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    if is_used:
        assert connection.client is not None
    twin = client.lock_connection(connection, 0.7)
    config = twin.client.meta.config

    assert (config.connect_timeout, config.read_timeout) == (0.7, 0.7)
    assert config.retries == {"total_max_attempts": 1, "mode": "standard"}
    assert config.max_pool_connections == 50
    assert twin.client is not connection.client
    assert (twin.host, twin.region) == (connection.host, connection.region)


def test_a_twin_leaves_the_connection_alone():
    """The model's own requests keep what its Meta asks for."""
    connection = Connection(
        region="us-east-1", read_timeout_seconds=77, connect_timeout_seconds=78, max_retry_attempts=9
    )
    client.lock_connection(connection, 0.7)
    config = connection.client.meta.config

    assert (config.connect_timeout, config.read_timeout) == (78, 77)
    assert config.max_pool_connections == 10


def test_a_twin_keeps_a_large_pool():
    """It is never smaller than that of the model."""
    connection = Connection(region="us-east-1", max_pool_connections=200)

    assert client.lock_connection(connection, 0.7).client.meta.config.max_pool_connections == 200


def test_twins_are_made_once():
    """One for each timeout; they go with their connection."""
    connection = Connection(region="us-east-1")
    twin = client.lock_connection(connection, 0.7)

    assert client.lock_connection(connection, 0.7) is twin
    assert client.lock_connection(connection, 0.8) is not twin
    assert client.lock_connection(Connection(region="us-east-1"), 0.7) is not twin


def test_connections_can_be_keys():
    """Twins are kept in a weak dictionary: connections hash by identity and can be referred to weakly."""
    connection = Connection(region="us-east-1")
    client.lock_connection(connection, 0.7)
    before = len(client._twins)
    del connection

    assert len(client._twins) == before - 1


def test_pynamodb_keeps_botocores_exception():
    """The item and the count of attempts are only in botocore's, which is the cause of PynamoDB's."""
    connection = Connection(region="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    answer = {
        "Error": {"Code": "ConditionalCheckFailedException", "Message": "no"},
        "Item": {"k": {"S": "x"}},
        "ResponseMetadata": {"RetryAttempts": 2, "HTTPStatusCode": 400},
    }

    def fail(operation, kwargs):
        raise ClientError(answer, operation)

    connection.client._make_api_call = fail
    with pytest.raises(VerboseClientError) as caught:
        connection.dispatch("UpdateItem", {"TableName": "t", "Key": {}})

    assert responses.image_of(caught.value) == {"k": {"S": "x"}}
    assert responses.was_repeated(caught.value)
    assert responses.code_of(caught.value) == dynamodb.CONDITION_FAILED


def test_botocore_sends_one_attempt_a_call():
    """The tests lose requests here (tests/support/wire.py)."""
    assert parameters(Endpoint._do_get_response)[:3] == ["self", "request", "operation_model"]


# Models


@pytest.mark.parametrize(
    "name",
    [
        "_get_connection",
        "_hash_key_attribute",
        "_range_key_attribute",
        "_ttl_attribute",
        "_hash_keyname",
        "_range_keyname",
        "_get_hash_range_key_serialized_values",
        "_version_attribute_name",
        "_get_discriminator_class",
        "_get_save_args",
        "get_operation_kwargs_from_class",
        "get_save_kwargs_from_instance",
        "get_update_kwargs_from_instance",
        "get_delete_kwargs_from_instance",
        "update_local_version_attribute",
        "attribute_values",
        "DoesNotExist",
    ],
)
def test_a_model_has(name):
    """By that name, on an instance."""
    pin(Item("x", 1), name)


def test_overridden_methods_have_the_same_parameters():
    """Callers, PynamoDB among them, pass them by position or name."""
    from pynamo_locking import LockableModel
    from pynamo_locking import TransactWrite as Ours

    for ours, theirs in ((LockableModel, Model), (Ours, TransactWrite)):
        names = {name for base in ours.__mro__ if "pynamo_locking" in base.__module__ for name in vars(base)}
        public = [name for name in names if not name.startswith("_") and callable(getattr(theirs, name, None))]
        assert public
        for name in public:
            expected = [p for p in parameters(getattr(theirs, name)) if p != "settings"]
            assert parameters(getattr(ours, name))[: len(expected)] == expected, name


# Transactions


def test_a_transaction_keeps_its_actions_in_lists():
    """And sends them in the order checks, deletes, puts, updates; the reasons come back in that order."""
    sent = []

    class Recorder(Connection):
        def dispatch(self, operation, kwargs):
            sent.append((operation, kwargs))
            return {}

    transaction = TransactWrite(connection=Recorder(region="us-east-1"), client_request_token="token")
    for name in ("_update_items", "_put_items", "_delete_items", "_condition_check_items"):
        getattr(transaction, name).append({"TableName": "t", "Key": {}, "name": name})
    for name in ("_client_request_token", "_models_for_version_attribute_update", "_connection"):
        pin(transaction, name)
    item = Item("x", 1)
    transaction._models_for_version_attribute_update.append(item)
    transaction._commit()
    ((operation, kwargs),) = sent

    assert operation == "TransactWriteItems"
    assert kwargs["ClientRequestToken"] == "token"
    assert [next(iter(action)) for action in kwargs["TransactItems"]] == ["ConditionCheck", "Delete", "Put", "Update"]
    assert item.version == 1


def test_errors_of_pynamodb_take_message_and_cause():
    """Ours are combined with them: `PynamoDBException.__init__` must be callable with the message alone."""
    assert parameters(PynamoDBException.__init__) == ["self", "msg", "cause"]
    assert PynamoDBException("x").cause is None


# Conditions and actions, for transactions


def test_each_class_of_conditions_and_actions_is_evaluated():
    """By its operator, or by its name: `_items/effects.py` has to know each that a release of PynamoDB brings."""
    classes = {
        name
        for module in (condition, operand, update)
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
    }
    bases = {"Action", "Condition", "Update", "_ConditionOperand", "_ListAppendOperand", "_NumericOperand", "_Operand"}
    path, value = operand.Path("a"), operand.Value(1)
    made = [
        path.set(path + value),
        path.set(value - path),
        path.set((path | [1]).append(path)),
        path.remove(),
        path.add(1),
        path.delete({"a"}),
        ~(path == value) & path.between(1, 2) & path.is_in(1, 2) & path.exists(),
        path.does_not_exist() | path.is_type("N") | path.startswith("a") | path.contains("a"),
        condition.size("a") > value,
    ]

    effects.check(*made)
    assert {type(each).__name__ for each in parts_of(made)} == classes - bases


def parts_of(nodes):
    """Each part of conditions and actions."""
    for node in nodes:
        yield node
        if not isinstance(node, (operand.Path, operand.Value)):
            yield from parts_of(node.values)
