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
from pynamodb.expressions.condition import Condition, size
from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import Update
from pynamodb.models import Model
from pynamodb.transactions import TransactGet, TransactWrite

import pynamo_locking
from pynamo_locking._core import dynamodb
from pynamo_locking._io import client, responses
from pynamo_locking._io.stored_rows import Stored


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


PACKAGE = pathlib.Path(pynamo_locking.__file__).parent
SOURCES = [(path, path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))]


def parameters(function):
    return list(inspect.signature(function).parameters)


def pin(where, what):
    """Fail with a message that says where to look; and if the package does not use it any more."""
    users = [str(path.relative_to(PACKAGE.parent)) for path, text in SOURCES if re.search(rf"\b{what}\b", text)]

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


def test_names_of_keys_and_version():
    """Key names and the version's are Python names; the attributes know the stored ones."""
    assert (Item._hash_keyname, Item._range_keyname, Item._version_attribute_name) == ("key", "part", "version")
    assert Item._hash_key_attribute().attr_name == "k"
    assert Item._range_key_attribute().attr_name == "part"
    assert Item._ttl_attribute() is Item.expires
    assert Item._get_discriminator_class({"k": {"S": "x"}}) is None


def test_keys_are_serialized_bare():
    """Without their type; `get_operation_kwargs` adds it."""
    keys = Item("x", 1)._get_hash_range_key_serialized_values()

    assert tuple(keys) == ("x", "1")


def test_the_connection_of_a_table():
    """It has the name of the table, builds requests, and holds the plain connection."""
    connection = Item._get_connection()
    kwargs = connection.get_operation_kwargs(
        "x",
        range_key="1",
        key="Key",
        actions=[Path("a").set(1)],
        condition=Path("b").exists(),
        return_values="ALL_NEW",
        return_values_on_condition_failure="ALL_OLD",
    )

    assert connection.table_name == "items"
    assert isinstance(connection.connection, Connection)
    assert kwargs == {
        "TableName": "items",
        "Key": {"k": {"S": "x"}, "part": {"N": "1"}},
        "ConditionExpression": "attribute_exists (#0)",
        "UpdateExpression": "SET #1 = :0",
        "ExpressionAttributeNames": {"#0": "b", "#1": "a"},
        "ExpressionAttributeValues": {":0": {"N": "1"}},
        "ReturnValues": "ALL_NEW",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


@pytest.mark.parametrize("checks", [True, False])
def test_a_put_with_or_without_the_version(checks):
    """`_get_save_args` is the only builder of a Put that can leave the version out."""
    keys, kwargs = Item("x", 1, version=3)._get_save_args(None, add_version_condition=checks)
    put = Item._get_connection().get_operation_kwargs(*keys, **kwargs | {"key": "Item"})

    assert put["Item"] == {"k": {"S": "x"}, "part": {"N": "1"}, "v": {"N": "4"}}
    assert put.get("ConditionExpression") == ("#0 = :0" if checks else None)


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


def test_a_transaction_commits_when_its_block_ends():
    """Through `_commit`, which ours overrides; not after an exception."""
    commits = []

    class Counting(TransactWrite):
        def _commit(self):
            commits.append(1)

    with Counting(connection=Connection(region="us-east-1")):
        pass
    with pytest.raises(KeyError), Counting(connection=Connection(region="us-east-1")):
        raise KeyError

    assert commits == [1]


def test_a_transactional_read_gives_a_future():
    """`Lock.item` reads a row whose lock is elsewhere with it."""
    with_get = TransactGet(connection=Connection(region="us-east-1"))

    assert hasattr(with_get.get(Item, "x", 1), "get")


# Expressions, for the guards


def test_a_stored_value_is_sent_as_it_is():
    """`Value.__init__` would take a map apart; ours is built without it from `attr_type` and `values`."""
    stored = {"M": {"a": {"L": [{"N": "1"}]}}}
    value, values = Stored(stored), {}
    condition = Path(["lock"]) == value

    assert isinstance(value, Value)
    assert (value.attr_type, value.value) == ("M", stored)
    assert condition.serialize({}, values) == "#0 = :0"
    assert values == {":0": stored}


def test_paths_take_names_as_they_are():
    """A list of names is not split at dots, and is indexed further."""
    names = {}
    path = Path(["lock", "queue", "a.b"])["writes"]

    assert (path < 5).serialize(names, {}) == "#0.#1.#2.#3 < :0"
    assert list(names) == ["lock", "queue", "a.b", "writes"]
    assert path.path == ["lock", "queue", "a.b", "writes"]


def test_paths_lead_into_lists():
    """A path of names takes an index and goes on; a stored list can be appended to the list at a path."""
    names, values = {}, {}
    entry, upcoming = Path(["lock", "queue", "a.b"]), Path(["lock", "next"])
    update = Update(entry.set(upcoming.append(Stored({"L": []}))), upcoming[0].set(upcoming[0] + 1))

    assert (entry[1]["w"] < 5).serialize(names, {}) == "#0.#1.#2[1].#3 < :0"
    assert list(names) == ["lock", "queue", "a.b", "w"]
    assert update.serialize({}, values) == "SET #0.#1.#2 = list_append (#0.#3, :0), #0.#3[0] = #0.#3[0] + :1"
    assert values == {":0": {"L": []}, ":1": {"N": "1"}}


def test_size_of_a_path():
    """The function of the expression language; it compares and joins like other conditions."""
    path = Path(["lock", "queue"])
    condition = path.does_not_exist() | (size(path) == 0)

    assert isinstance(condition, Condition)
    assert condition.serialize({}, {}) == "(attribute_not_exists (#0.#1) OR size (#0.#1) = :0)"


def test_a_version_that_may_be_missing():
    """`path | 0` is if_not_exists, and numbers can be added to it."""
    names, values = {}, {}
    update = Update(Path(["v"]).set((Path(["v"]) | Value(0)) + 1), Path(["w"]).remove())

    assert update.serialize(names, values) == "SET #0 = if_not_exists (#0, :0) + :1 REMOVE #1"


def test_actions_know_their_path():
    """Actions on the lock are recognised by the first name of their path."""
    path = Path(["lock", "next"])

    for action in (path.set(1), path.remove(), path.add(1), path.delete({1})):
        assert action.values[0].path[0] == "lock"


def test_errors_of_pynamodb_take_message_and_cause():
    """Ours are combined with them: `PynamoDBException.__init__` must be callable with the message alone."""
    assert parameters(PynamoDBException.__init__) == ["self", "msg", "cause"]
    assert PynamoDBException("x").cause is None
