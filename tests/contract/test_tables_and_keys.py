"""Tables, keys and reads."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.helpers import INVALID, Table, deviates, lock_map, plain_item, refused, wire_item

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

NOT_FOUND = "ResourceNotFoundException"


def test_a_missing_table(engine: Engine) -> None:
    """The same code for every operation."""
    request = {"TableName": engine.new_name(), "Key": {"pk": {"S": "a"}}}
    update = {**request, "UpdateExpression": "SET x = :x", "ExpressionAttributeValues": {":x": {"N": "1"}}}
    client = engine.client()
    operations: list[Callable[[], Any]] = [
        lambda: client.get_item(**request),
        lambda: client.update_item(**update),
        lambda: client.transact_write_items(TransactItems=[{"Update": update}]),
        lambda: client.transact_get_items(TransactItems=[{"Get": request}]),
    ]
    for operation in operations:
        with refused(NOT_FOUND):
            operation()


def test_a_key_of_the_wrong_type(table: Table) -> None:
    """A number where the table has texts is invalid, for reading and writing."""
    with refused(INVALID):
        table.update("SET x = :x", pk=1, values={":x": 1})
    with refused(INVALID, unless=deviates(table.engine, "accepts a wrong key type in GetItem")):
        table.get(1)


def test_an_empty_key(table: Table) -> None:
    """The empty text is no key."""
    with refused(INVALID):
        table.get("")
    with refused(INVALID):
        table.put("")
    with refused(INVALID, unless=deviates(table.engine, "accepts an empty key in UpdateItem")):
        table.update("SET x = :x", pk="", values={":x": 1})


def test_the_key_cannot_be_updated(table: Table) -> None:
    """Not even to the value it has."""
    table.put()
    with refused(INVALID):
        table.update("SET pk = :pk", values={":pk": "a"})


@pytest.mark.parametrize("text", ["1", "1.0", "1e0", "10E-1", "01"])
def test_number_keys_are_compared_by_value(engine: Engine, text: str) -> None:
    """However a client writes 1, it is the same item: a name made of a key has to be normalised."""
    table = Table(engine, "N")
    table.put(1, n=5)
    key = {"TableName": table.name, "Key": {"pk": {"N": text}}}
    assert plain_item(table.client.get_item(**key, ConsistentRead=True)["Item"]) == {"pk": 1, "n": 5}
    table.client.update_item(**key, UpdateExpression="SET n = :n", ExpressionAttributeValues={":n": {"N": "6"}})
    assert table.client.scan(TableName=table.name, ConsistentRead=True)["Count"] == 1
    assert table.get(Decimal("1.00")) == {"pk": 1, "n": 6}


def test_binary_keys(engine: Engine) -> None:
    """Bytes that are no text make a key too."""
    table = Table(engine, "B")
    key = bytes([0, 255, 254])
    table.update("SET n = :n", pk=key, values={":n": 1})
    item = table.get(key) or {}
    assert item["n"] == 1
    assert item["pk"].value == key
    assert table.get(b"\x00") is None


def test_an_update_creates_the_item(table: Table) -> None:
    """An UpdateItem without a condition is an upsert, so each one of ours has a condition that says
    otherwise.
    """
    assert table.update("SET n = :n", values={":n": 1}) == {"pk": "a", "n": 1}


@pytest.mark.parametrize("consistent", [True, False], ids=["consistent", "eventual"])
def test_reads(table: Table, consistent: bool) -> None:
    """Both kinds of GetItem, of the whole item and of the lock alone."""
    table.put(balance=5, lock=lock_map(7))
    item = {"pk": "a", "balance": 5, "lock": lock_map(7)}
    options: dict[str, Any] = {"ConsistentRead": consistent}
    if table.engine.is_aws and not consistent:
        pytest.skip("an eventually consistent read may be older on AWS")
    assert table.get("a", **options) == item
    options |= {"ProjectionExpression": "#lock", "ExpressionAttributeNames": {"#lock": "lock"}}
    assert table.get("a", **options) == {"lock": lock_map(7)}
    table.put()
    assert table.get("a", **options) == {}
    assert table.get("missing", **options) is None


def test_create_a_table_twice(engine: Engine) -> None:
    """The second creator is told so."""
    name = engine.create_table()
    with refused("ResourceInUseException"):
        engine.client().create_table(
            TableName=name,
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )


def test_enable_ttl_twice(table: Table) -> None:
    """DynamoDB refuses: a table has to be asked before its TTL is set."""
    specification = {"Enabled": True, "AttributeName": "expires"}
    request = {"TableName": table.name, "TimeToLiveSpecification": specification}
    table.client.update_time_to_live(**request)
    described = table.client.describe_time_to_live(TableName=table.name)["TimeToLiveDescription"]
    assert described["AttributeName"] == "expires"
    assert described["TimeToLiveStatus"] in {"ENABLED", "ENABLING"}
    with refused(INVALID, unless=deviates(table.engine, "enables TTL twice")):
        table.client.update_time_to_live(**request)


def test_an_expired_item_is_still_there(table: Table) -> None:
    """DynamoDB may take days to remove it: expiry has to be looked at by the reader."""
    table.client.update_time_to_live(
        TableName=table.name, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"}
    )
    table.client.put_item(TableName=table.name, Item=wire_item({"pk": "a", "expires": 1_000_000_000}))
    assert table.get() == {"pk": "a", "expires": 1_000_000_000}
