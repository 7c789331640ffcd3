"""The arguments that operations take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES: Final = {"ExpressionAttributeNames"}
_PLACEHOLDERS: Final = {*_NAMES, "ExpressionAttributeValues"}
_REPORT: Final = {"ReturnConsumedCapacity", "ReturnItemCollectionMetrics"}
_CONDITION: Final = {"ConditionExpression", *_PLACEHOLDERS, "ReturnValuesOnConditionCheckFailure"}
_WRITE: Final = {"TableName", "ReturnValues", *_CONDITION, *_REPORT}
_PAGE: Final = {
    *("TableName", "IndexName", "Limit", "Select", "ConsistentRead", "ExclusiveStartKey"),
    *("FilterExpression", "ProjectionExpression", "ReturnConsumedCapacity", *_PLACEHOLDERS),
}

#: By operation, what must be given, and what may.
_ARGUMENTS: Final[dict[str, tuple[set[str], set[str]]]] = {
    "GetItem": ({"TableName", "Key"}, {"ConsistentRead", "ProjectionExpression", "ReturnConsumedCapacity", *_NAMES}),
    "PutItem": ({"TableName", "Item"}, _WRITE),
    "UpdateItem": ({"TableName", "Key"}, {"UpdateExpression", *_WRITE}),
    "DeleteItem": ({"TableName", "Key"}, _WRITE),
    "Query": ({"TableName"}, {"KeyConditionExpression", "ScanIndexForward", *_PAGE}),
    "Scan": ({"TableName"}, {"Segment", "TotalSegments", *_PAGE}),
    "BatchGetItem": ({"RequestItems"}, {"ReturnConsumedCapacity"}),
    "BatchWriteItem": ({"RequestItems"}, _REPORT),
    "BatchExecuteStatement": ({"Statements"}, {"ReturnConsumedCapacity"}),
    "TransactGetItems": ({"TransactItems"}, {"ReturnConsumedCapacity"}),
    "TransactWriteItems": ({"TransactItems"}, {"ClientRequestToken", *_REPORT}),
    "CreateTable": (
        {"TableName", "KeySchema", "AttributeDefinitions"},
        {
            *("LocalSecondaryIndexes", "GlobalSecondaryIndexes", "BillingMode", "ProvisionedThroughput"),
            *("Tags", "SSESpecification", "TableClass", "DeletionProtectionEnabled"),  # without effect
        },
    ),
    "DescribeTable": ({"TableName"}, set()),
    "DeleteTable": ({"TableName"}, set()),
    "ListTables": (set(), {"Limit", "ExclusiveStartTableName"}),
    "UpdateTimeToLive": ({"TableName", "TimeToLiveSpecification"}, set()),
    "DescribeTimeToLive": ({"TableName"}, set()),
}


def check_arguments(operation: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a request that the in-memory DynamoDB would not understand."""
    if operation not in _ARGUMENTS:
        raise ConfigurationError(f"MemoryDynamoDB does not know the operation {operation}")
    required, optional = _ARGUMENTS[operation]
    given = arguments.keys()
    if not required <= given:
        raise ConfigurationError(f"{operation} needs {', '.join(sorted(required - given))}")
    unknown = given - required - optional
    if unknown:
        raise ConfigurationError(f"MemoryDynamoDB does not know {', '.join(sorted(unknown))} of {operation}")
