"""Requests that DynamoDB refuses: table definitions, queries with indexes, scans, keys, transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.helpers import INVALID, refused

if TYPE_CHECKING:
    from tests.engines.engine import Engine

#: The engines that take such a request although DynamoDB does not. Asserted, so a mended engine shows.
DEVIANT: dict[str, set[str]] = {
    "range key first": {"moto"},
    "local index of another hash key": {"moto"},
    "two indexes of one name": {"moto"},
    "filter that the index lacks": {"moto", "dynoxide"},
    "projection that the index lacks": {"moto", "dynoxide"},
    "start in another partition": {"moto", "dynoxide"},
    "start with an attribute too few": {"moto"},
    "start of another type": {"moto"},
    "one item read twice": {"moto"},
    "action of two kinds": {"dynoxide"},
}
PK, SK, G = {"S": "a"}, {"S": "s"}, {"S": "g"}
ITEM = {"pk": PK, "sk": SK}
HASH = {"ExpressionAttributeValues": {":p": PK}, "KeyConditionExpression": "pk = :p"}
BY_G = {"IndexName": "by-g", "ExpressionAttributeValues": {":g": G}, "KeyConditionExpression": "g = :g"}


def schema(*names: str) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in zip(names, ("HASH", "RANGE"), strict=False)]


def index(name: str, *names: str) -> dict[str, Any]:
    return {"IndexName": name, "KeySchema": schema(*names), "Projection": {"ProjectionType": "KEYS_ONLY"}}


def definition(attributes: str, **changes: Any) -> dict[str, Any]:
    return {
        "AttributeDefinitions": [{"AttributeName": each, "AttributeType": "S"} for each in attributes.split()],
        "KeySchema": schema("pk", "sk"),
        "BillingMode": "PAY_PER_REQUEST",
        **changes,
    }


def get(**key: Any) -> dict[str, Any]:
    return {"Get": {"TableName": "", "Key": key}}


#: operation, arguments, and what the in-memory DynamoDB says.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "range key first": (
        "create_table",
        definition("pk", KeySchema=[{"AttributeName": "pk", "KeyType": "RANGE"}]),
        "not a HASH key type",
    ),
    "key not defined": ("create_table", definition("pk"), "not defined in AttributeDefinitions"),
    "definition not used": ("create_table", definition("pk sk x"), "Some AttributeDefinitions are not used"),
    "local index of another hash key": (
        "create_table",
        definition("pk sk x", LocalSecondaryIndexes=[index("one", "x", "sk")]),
        "same leading hash key",
    ),
    "two indexes of one name": (
        "create_table",
        definition("pk sk x", GlobalSecondaryIndexes=[index("one", "x"), index("one", "x", "sk")]),
        "Duplicate index name",
    ),
    "consistent read of a global index": ("query", {**BY_G, "ConsistentRead": True}, "Consistent reads are not"),
    "projection beside COUNT": ("query", {**HASH, "ProjectionExpression": "x", "Select": "COUNT"}, "Cannot specify"),
    "filter that the index lacks": ("query", {**BY_G, "FilterExpression": "x = :g"}, "filter attributes: [x]"),
    "projection that the index lacks": ("query", {**BY_G, "ProjectionExpression": "x"}, "does not project [x]"),
    "all attributes of a global index": ("query", {**BY_G, "Select": "ALL_ATTRIBUTES"}, "Select type ALL_ATTRIBUTES"),
    "no key condition": ("query", {}, "KeyConditionExpression parameter must be specified"),
    "start in another partition": (
        "query",
        {**HASH, "ExclusiveStartKey": {"pk": {"S": "b"}, "sk": SK}},
        "outside query boundaries",
    ),
    "start with an attribute too few": ("query", {**HASH, "ExclusiveStartKey": {"pk": PK}}, "starting key is invalid"),
    "start of another type": ("scan", {"ExclusiveStartKey": {"pk": PK, "sk": {"N": "1"}}}, "starting key is invalid"),
    "three key conditions": (
        "query",
        {**HASH, "KeyConditionExpression": "pk = :p AND sk = :p AND x = :p"},
        "length 1 or 2 only",
    ),
    "key condition on two attributes": ("query", {**HASH, "KeyConditionExpression": "pk = sk AND x = :p"}, "supported"),
    "key condition on a nested attribute": (
        "query",
        {**HASH, "KeyConditionExpression": "pk.x = :p"},
        "conditions on nested attributes",
    ),
    "segment without segments": ("scan", {"Segment": 0}, "The TotalSegments parameter is required"),
    "segments without segment": ("scan", {"TotalSegments": 2}, "The Segment parameter is required"),
    "segment beyond the last": ("scan", {"Segment": 2, "TotalSegments": 2}, "Segment: 2 is not less than"),
    "item without range key": ("put_item", {"Item": {"pk": PK}}, "Missing the key sk in the item"),
    "item with a key of another type": (
        "put_item",
        {"Item": {"pk": PK, "sk": {"N": "1"}}},
        "Type mismatch for key sk expected: S actual: N",
    ),
    "range key too long": ("put_item", {"Item": {"pk": PK, "sk": {"S": "x" * 1025}}}, "size limit of 1024 bytes"),
    "hash key too long": ("put_item", {"Item": {"pk": {"S": "x" * 2049}, "sk": SK}}, "limit of2048 bytes"),
    "empty index key": ("put_item", {"Item": {**ITEM, "g": {"S": ""}}}, "cannot contain an empty string value"),
    "key with an attribute too few": ("get_item", {"Key": {"pk": PK}}, "does not match the schema"),
    "one item read twice": ("transact_get_items", {"TransactItems": [get(**ITEM)] * 2}, "operations on one item"),
    "action of two kinds": (
        "transact_write_items",
        {"TransactItems": [{"Put": {"Item": ITEM}, "Delete": {"Key": {"pk": PK, "sk": G}}}]},
        "can only contain one of Check, Put, Update or Delete",
    ),
}


def located(arguments: dict[str, Any], table: str) -> dict[str, Any]:
    """The arguments of a request, for this table."""
    if "TransactItems" not in arguments:
        return {**arguments, "TableName": table}
    actions = arguments["TransactItems"]
    return {"TransactItems": [{kind: {**one, "TableName": table} for kind, one in each.items()} for each in actions]}


@pytest.mark.parametrize("case", CASES)
def test_a_request_that_is_refused(engine: Engine, case: str) -> None:
    """Each engine refuses it as invalid, but for known deviations; the in-memory one says why."""
    operation, arguments, message = CASES[case]
    client, name = engine.client(), engine.new_name()
    if operation != "create_table":
        indexes = {"GlobalSecondaryIndexes": [index("by-g", "g")]}
        client.create_table(TableName=name, **definition("pk sk g", **indexes))
        engine.await_table(name)
    with refused(INVALID, unless=engine.name in DEVIANT.get(case, ())) as refusal:
        getattr(client, operation)(**located(arguments, name))
    if engine.name == "memory":
        assert message in refusal.message
