"""Requests about tables: whether one is that of a model, and how its expired items are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TableError

from pynamo_locking._io import listing, runtime, transport
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.models import Model

#: Between two looks whether a table is ready, in seconds; on AWS that takes some ten.
_LOOK_S: Final = 1.0


def describe(model: type[Model]) -> dict[str, Any]:
    """Return DynamoDB's description of a model's table. 1 DescribeTable.

    Raises:
        VerboseClientError, BotoCoreError: there is no such table, or no answer.
    """
    connection = model._get_connection()
    answer = connection.connection.dispatch("DescribeTable", {"TableName": connection.table_name})
    description: dict[str, Any] = answer["Table"]
    return description


def keys_in(description: Mapping[str, Any]) -> str:
    """Return the keys of a table, for people."""
    types = {each["AttributeName"]: each["AttributeType"] for each in description["AttributeDefinitions"]}
    names = {each["KeyType"]: each["AttributeName"] for each in description["KeySchema"]}
    return ", ".join(f"{names[role]} ({types[names[role]]})" for role in ("HASH", "RANGE") if role in names)


def keys_of(model: type[Model]) -> str:
    """Return the keys that a model says, in the form of `keys_in`."""
    return ", ".join(f"{each.attr_name} ({each.attr_type})" for each in listing.key_attributes(model))


def check_keys(model: type[Model], *, wait: bool) -> None:
    """Compare the keys of a model's table with those that it says. 1 DescribeTable.

    Args:
        model: the model.
        wait: until the table is ready, if another process is making it.

    Raises:
        ConfigurationError: they are others.
        TableError: the table could not be described.
    """
    try:
        description = describe(model)
        while wait and description["TableStatus"] == "CREATING":
            runtime.current.sleep(_LOOK_S)
            description = describe(model)
    except transport.BOTOCORE_EXCEPTIONS as error:
        raise TableError(f"Unable to describe table: {error}", error) from error
    found, wanted = keys_in(description), keys_of(model)
    if found != wanted:
        raise ConfigurationError(
            f"the table {model.Meta.table_name!r} is not one of {model.__name__}: its keys are {found}, and "
            f"{model.__name__} needs {wanted}. Nothing was changed. Name another table in Meta.table_name, or correct "
            f"the model: the keys of a table cannot be changed."
        )


def ttl_of(model: type[Model]) -> str | None:
    """Return by which attribute DynamoDB deletes expired items of a table; None if it does not. 1 DescribeTimeToLive.

    Raises:
        VerboseClientError, BotoCoreError: no answer, or no permission.
    """
    connection = model._get_connection()
    client: Any = connection.connection.client  # PynamoDB's own way to send a request adds what this one refuses
    answer = client.describe_time_to_live(TableName=connection.table_name)
    found: dict[str, Any] = answer.get("TimeToLiveDescription", {})
    is_on = found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    return found.get("AttributeName") if is_on else None


def is_empty(model: type[Model]) -> bool:
    """Tell whether a table is known to have no item. 1 Scan of a single item."""
    connection = model._get_connection()
    kwargs = {"TableName": connection.table_name, "Limit": 1, "ConsistentRead": True}
    try:
        return not connection.connection.dispatch("Scan", kwargs)["Items"]
    except transport.BOTOCORE_EXCEPTIONS:
        return False
