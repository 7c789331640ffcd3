"""Requests about tables."""

from __future__ import annotations

import re
from copy import deepcopy
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._expressions.refusals import Refusal, invalid, invalid_value
from pynamo_locking.testing._dynamodb.refusals import IN_USE, unfit
from pynamo_locking.testing._dynamodb.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking.testing._dynamodb.tables import Store

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
_KEPT: Final = (
    "TableName",
    "AttributeDefinitions",
    "KeySchema",
    "LocalSecondaryIndexes",
    "GlobalSecondaryIndexes",
    "BillingMode",
    "ProvisionedThroughput",
)
_INDEXES: Final = ("LocalSecondaryIndexes", "GlobalSecondaryIndexes")
_MOST_NAMES: Final = 100


def create_table(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a CreateTable. The table can be used at once."""
    name = request["TableName"]
    if not _NAME.fullmatch(name):
        constraint = "satisfy regular expression pattern: [a-zA-Z0-9_.-]+ and have a length of 3 to 255"
        raise unfit("tableName", constraint, name)
    if name in store.tables:
        raise Refusal(IN_USE, f"Table already exists: {name}")
    _check_keys(request)
    description = {key: deepcopy(request[key]) for key in _KEPT if request.get(key)}
    description["CreationDateTime"] = datetime.fromtimestamp(store.time_ms() / 1000, timezone.utc)
    store.tables[name] = Table(description)
    return {"TableDescription": _described(store.tables[name])}


def _check_keys(request: Mapping[str, Any]) -> None:
    defined = [each["AttributeName"] for each in request["AttributeDefinitions"]]
    indexes = [index for kind in _INDEXES for index in request.get(kind) or ()]
    schemas = [request["KeySchema"], *(index["KeySchema"] for index in indexes)]
    used = {key["AttributeName"] for schema in schemas for key in schema}
    for schema in schemas:
        roles = [key["KeyType"] for key in schema]
        if roles not in (["HASH"], ["HASH", "RANGE"]):
            raise invalid_value("The first KeySchemaElement is not a HASH key type, or the second not a RANGE key type")
    if not used <= set(defined):
        raise invalid_value(
            "Some index key attributes are not defined in AttributeDefinitions. "
            f"Keys: {sorted(used)}, AttributeDefinitions: {sorted(defined)}"
        )
    if used != set(defined):
        raise invalid_value(
            "Some AttributeDefinitions are not used. "
            f"AttributeDefinitions: {sorted(defined)}, keys used: {sorted(used)}"
        )
    hash_name = request["KeySchema"][0]["AttributeName"]
    for index in request.get("LocalSecondaryIndexes") or ():
        if index["KeySchema"][0]["AttributeName"] != hash_name:
            raise invalid_value(
                "Index KeySchema does not have the same leading hash key as table KeySchema for index: "
                f"{index['IndexName']}"
            )
    if len({index["IndexName"] for index in indexes}) < len(indexes):
        raise invalid_value("Duplicate index name")


def _described(table: Table, status: str = "ACTIVE") -> dict[str, Any]:
    arn = f"arn:aws:dynamodb:memory:000000000000:table/{table.name}"
    description: dict[str, Any] = {
        **deepcopy(table.description),
        "TableStatus": status,
        "TableArn": arn,
        "ItemCount": len(table.primary),
        "TableSizeBytes": table.primary.sizes(),
    }
    throughput = {"ReadCapacityUnits": 0, "WriteCapacityUnits": 0, "NumberOfDecreasesToday": 0}
    description["ProvisionedThroughput"] = {**throughput, **description.get("ProvisionedThroughput", {})}
    if description.pop("BillingMode", "PROVISIONED") == "PAY_PER_REQUEST":
        description["BillingModeSummary"] = {"BillingMode": "PAY_PER_REQUEST"}
    for kind in _INDEXES:
        for index in description.get(kind, ()):
            index["IndexArn"] = f"{arn}/index/{index['IndexName']}"
            index["ItemCount"] = len(table.indexes[index["IndexName"]])
            if kind == "GlobalSecondaryIndexes":
                index["IndexStatus"] = "ACTIVE"
                index["ProvisionedThroughput"] = {**throughput, **index.get("ProvisionedThroughput", {})}
    return description


def describe_table(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a DescribeTable."""
    return {"Table": _described(store.table_itself(request["TableName"]))}


def delete_table(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a DeleteTable. The table is deleted at once."""
    table = store.table_itself(request["TableName"])
    del store.tables[table.name]
    return {"TableDescription": _described(table, "DELETING")}


def list_tables(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a ListTables."""
    after, limit = request.get("ExclusiveStartTableName", ""), request.get("Limit", _MOST_NAMES)
    names = [name for name in sorted(store.tables) if name > after]
    more = {"LastEvaluatedTableName": names[limit - 1]} if len(names) > limit else {}
    return {"TableNames": names[:limit], **more}


def update_time_to_live(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve an UpdateTimeToLive. Nothing expires by itself: DynamoDB may take days, too."""
    table = store.table_itself(request["TableName"])
    specification = request["TimeToLiveSpecification"]
    name = specification["AttributeName"]
    if specification["Enabled"] is (table.ttl is not None):
        raise invalid(f"TimeToLive is already {'enabled' if table.ttl else 'disabled'}")
    if table.ttl not in {None, name}:
        raise invalid(f"TimeToLive is active on a different AttributeName: current AttributeName is {table.ttl}")
    table.ttl = name if specification["Enabled"] else None
    return {"TimeToLiveSpecification": {"Enabled": specification["Enabled"], "AttributeName": name}}


def describe_time_to_live(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a DescribeTimeToLive."""
    table = store.table_itself(request["TableName"])
    described = {"TimeToLiveStatus": "DISABLED"}
    if table.ttl is not None:
        described = {"TimeToLiveStatus": "ENABLED", "AttributeName": table.ttl}
    return {"TimeToLiveDescription": described}
