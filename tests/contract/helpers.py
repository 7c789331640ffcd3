"""Terse low-level requests for the contract tests, and the engines' known deviations from DynamoDB."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine

REFUSED = "ConditionalCheckFailedException"
INVALID = "ValidationException"
CANCELED = "TransactionCanceledException"

#: What an engine lets pass, or does otherwise, although DynamoDB does not. The tests assert the deviation,
#: so a mended engine shows.
DEVIATIONS: dict[str, set[str]] = {
    "accepts a wrong key type in GetItem": {"moto"},
    "accepts an empty key in UpdateItem": {"moto"},
    "accepts an empty transaction": {"moto"},
    "accepts transactions above 4 MB": {"moto"},
    "accepts conditions above 4 KB": {"moto"},
    "accepts conditions of more than 300 operators": {"moto", "dynoxide"},
    "accepts maps 33 levels deep": {"moto"},
    "accepts numbers of 39 digits": {"moto"},
    "accepts a sum of three terms in SET": {"moto"},
    "accepts REMOVE below a missing map": {"dynoxide"},
    "crashes on an update of 320 clauses": {"moto"},
    "crashes on size() of a missing path": {"moto"},
    "crashes on an order between types": {"moto"},
    "misses overlapping paths two levels apart": {"moto"},
    "enables TTL twice": {"moto", "dynoxide"},
    "ignores ClientRequestToken": {"moto"},
    "ignores projections in TransactGetItems": {"moto"},
    "adds the key to projections in TransactGetItems": {"dynoxide"},
    "refuses items above 405,000 bytes": {"moto"},
    "checks conditions before it looks for one item written twice": {"dynamodb-local"},
}


def deviates(engine: Engine, deviation: str) -> bool:
    return engine.name in DEVIATIONS[deviation]


def wire(value: Any) -> Any:
    """A Python value as DynamoDB sends it: ``{"N": "1"}``."""
    return TypeSerializer().serialize(value)


def wire_item(item: dict[str, Any]) -> dict[str, Any]:
    return {name: wire(value) for name, value in item.items()}


def plain_item(item: dict[str, Any]) -> dict[str, Any]:
    return {name: TypeDeserializer().deserialize(value) for name, value in item.items()}


class Table:
    """A table with the key ``pk``. Every method is one request; ``pk`` is "a" unless given."""

    def __init__(self, engine: Engine, hash_type: str = "S") -> None:
        self.engine = engine
        self.name = engine.create_table(hash_type)
        self.client = engine.client()

    def put(self, pk: Any = "a", /, **attributes: Any) -> None:
        self.client.put_item(TableName=self.name, Item=wire_item({"pk": pk, **attributes}))

    def get(self, pk: Any = "a", /, **options: Any) -> dict[str, Any] | None:
        options = {"ConsistentRead": True, **options}
        answer = self.client.get_item(TableName=self.name, Key=wire_item({"pk": pk}), **options)
        return plain_item(answer["Item"]) if "Item" in answer else None

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
        """The arguments of an UpdateItem, DeleteItem or ConditionCheck.

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
        return {"TableName": self.name, "Key": wire_item({"pk": pk}), **expressions, **given, **options}

    def update(self, expression: str, condition: str | None = None, pk: Any = "a", **arguments: Any) -> dict[str, Any]:
        """UpdateItem, answered with the new image."""
        answer = self.client.update_item(
            **self.request(pk, update=expression, condition=condition, **{"ReturnValues": "ALL_NEW", **arguments})
        )
        return plain_item(answer.get("Attributes", {}))

    def holds(self, condition: str, pk: Any = "a", **arguments: Any) -> bool:
        """Whether an UpdateItem under this condition goes through (it then sets ``probe``)."""
        arguments["values"] = {**arguments.get("values", {}), ":probe": 1}
        try:
            self.update("SET probe = :probe", condition, pk, **arguments)
        except ClientError as error:
            if error.response["Error"]["Code"] != REFUSED:
                raise
            return False
        return True


class Refusal:
    """The error answer caught by ``refused``."""

    response: dict[str, Any]

    @property
    def message(self) -> str:
        text: str = self.response["Error"]["Message"]
        return text

    @property
    def item(self) -> dict[str, Any]:
        return plain_item(self.response["Item"])

    @property
    def codes(self) -> list[str]:
        return [reason["Code"] for reason in self.response["CancellationReasons"]]


@contextmanager
def refused(code: str = REFUSED, *, unless: bool = False) -> Iterator[Refusal]:
    """The request inside must fail with this code; where the engine deviates (``unless``), it must go
    through.
    """
    refusal = Refusal()
    if unless:
        yield refusal
        return
    with pytest.raises(ClientError) as caught:
        yield refusal
    refusal.response = dict(caught.value.response)
    assert refusal.response["Error"]["Code"] == code, refusal.response
