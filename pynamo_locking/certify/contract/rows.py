"""Terse low-level requests for the checks of the contract, and how a check fails."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator

REFUSED: Final = "ConditionalCheckFailedException"
INVALID: Final = "ValidationException"
CANCELED: Final = "TransactionCanceledException"

#: An error then brings the item as it was.
ALL_OLD: Final[dict[str, Any]] = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


class Failed(AssertionError):  # noqa: N818 - it is an answer
    """DynamoDB has done something else than this package needs."""


def same(found: Any, needed: Any, what: str = "") -> None:
    """Fail unless both are equal. An ``assert`` would look at nothing under ``python -O``."""
    if found != needed:
        raise Failed(f"{what}: {found!r}, and not {needed!r}".removeprefix(": "))


def holds(is_true: object, what: str) -> None:
    """Fail unless it is true."""
    if not is_true:
        raise Failed(what)


def wire(value: Any) -> Any:
    """Return a Python value as DynamoDB sends it: ``{"N": "1"}``."""
    return TypeSerializer().serialize(value)


def wire_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as DynamoDB sends it."""
    return {name: wire(value) for name, value in item.items()}


def plain_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return Python values for an item of DynamoDB."""
    return {name: TypeDeserializer().deserialize(value) for name, value in item.items()}


def code_of(error: ClientError) -> str:
    """Return the code of an error."""
    response: Any = error.response
    return str(response["Error"]["Code"])


class Refusal:
    """An error of DynamoDB that was expected."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.response: dict[str, Any] = {}

    @property
    def message(self) -> str:
        """The text of the error."""
        return str(self.response["Error"]["Message"])

    @property
    def item(self) -> dict[str, Any] | None:
        """The item that the error brings along; None without one."""
        return self._rows.plain(self.response["Item"]) if "Item" in self.response else None

    @property
    def codes(self) -> list[str]:
        """The codes of a cancelled transaction, action by action."""
        return [reason["Code"] for reason in self.response["CancellationReasons"]]

    @property
    def images(self) -> list[dict[str, Any] | None]:
        """The items of a cancelled transaction, action by action."""
        reasons = self.response["CancellationReasons"]
        return [self._rows.plain(reason["Item"]) if "Item" in reason else None for reason in reasons]


class Rows:
    """Items of a table with the key ``pk``. Every method is one request; ``pk`` is "a" unless given.

    Args:
        client: of boto3.
        name: of the table.
        space: what stands before the keys in the table, so that several checks can share it.
    """

    def __init__(self, client: Any, name: str, space: str = "") -> None:
        self.client = client
        self.name = name
        self.space = space

    def key(self, pk: Any = "a") -> dict[str, Any]:
        """Return the key of an item."""
        return {"pk": wire(self.space + pk if self.space else pk)}

    def plain(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return an item with the key as checks know it."""
        found = plain_item(item)
        if self.space and "pk" in found:
            found["pk"] = found["pk"].removeprefix(self.space)
        return found

    def stored(self, pk: Any = "a", /, **attributes: Any) -> dict[str, Any]:
        """Return an item as it is sent."""
        return {**self.key(pk), **wire_item(attributes)}

    def put(self, pk: Any = "a", /, **attributes: Any) -> None:
        """PutItem."""
        self.client.put_item(TableName=self.name, Item=self.stored(pk, **attributes))

    def get(self, pk: Any = "a", /, **options: Any) -> dict[str, Any] | None:
        """GetItem, consistent unless told otherwise."""
        answer = self.client.get_item(TableName=self.name, Key=self.key(pk), **{"ConsistentRead": True, **options})
        return self.plain(answer["Item"]) if "Item" in answer else None

    def request(
        self,
        pk: Any = "a",
        /,
        *,
        update: str | None = None,
        condition: str | None = None,
        names: dict[str, str] | None = None,
        values: dict[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Return the arguments of an UpdateItem, DeleteItem or ConditionCheck.

        Names and values that no expression uses are left out.
        """
        texts = {"UpdateExpression": update, "ConditionExpression": condition}
        expressions = {key: text for key, text in texts.items() if text is not None}
        used = set(re.findall(r"[#:]\w+", " ".join(expressions.values())))
        placeholders = {
            "ExpressionAttributeNames": {key: name for key, name in (names or {}).items() if key in used},
            "ExpressionAttributeValues": {key: wire(value) for key, value in (values or {}).items() if key in used},
        }
        given = {key: mapping for key, mapping in placeholders.items() if mapping}
        return {"TableName": self.name, "Key": self.key(pk), **expressions, **given, **options}

    def update(self, expression: str, condition: str | None = None, pk: Any = "a", **arguments: Any) -> dict[str, Any]:
        """UpdateItem; return the new image."""
        answer = self.client.update_item(
            **self.request(pk, update=expression, condition=condition, **{"ReturnValues": "ALL_NEW", **arguments})
        )
        return self.plain(answer.get("Attributes", {}))

    def holds(self, condition: str, pk: Any = "a", **arguments: Any) -> bool:
        """Tell whether an UpdateItem under this condition goes through. It then sets ``probe``."""
        arguments["values"] = {**arguments.get("values", {}), ":probe": 1}
        try:
            self.update("SET probe = :probe", condition, pk, **arguments)
        except ClientError as error:
            if code_of(error) != REFUSED:
                raise
            return False
        return True

    @contextmanager
    def refused(self, code: str = REFUSED) -> Iterator[Refusal]:
        """Fail unless the request inside is refused with this code."""
        refusal = Refusal(self)
        try:
            yield refusal
        except ClientError as error:
            refusal.response = dict(error.response)
            same(refusal.response["Error"]["Code"], code, "the code of the refusal")
        else:
            raise Failed(f"the request was accepted; {code} is needed")
