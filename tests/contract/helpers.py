"""Terse low-level requests for the contract tests, and the engines' known deviations from DynamoDB."""

from __future__ import annotations

import re
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pytest
from boto3.dynamodb.types import TypeDeserializer, TypeSerializer
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine

REFUSED: Final = "ConditionalCheckFailedException"
INVALID: Final = "ValidationException"
CANCELED: Final = "TransactionCanceledException"

#: An error then brings the item as it was.
ALL_OLD: Final[dict[str, Any]] = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}

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
    "enables TTL twice": {"moto", "dynoxide"},
    "ignores projections in TransactGetItems": {"moto"},
    "adds the key to projections in TransactGetItems": {"dynoxide"},
    "refuses items above 405,000 bytes": {"moto"},
    "checks conditions before it looks for one item written twice": {"dynamodb-local"},
}


def deviates(engine: Engine, deviation: str) -> bool:
    return engine.name in DEVIATIONS[deviation]


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


class Table:
    """A new table with the key ``pk`` on an engine. Every method is one request; ``pk`` is "a" unless given."""

    def __init__(self, engine: Engine, hash_type: str = "S") -> None:
        self.engine = engine
        self.client = engine.client()
        self.name = engine.create_table(hash_type)

    def key(self, pk: Any = "a") -> dict[str, Any]:
        """Return the key of an item."""
        return {"pk": wire(pk)}

    def stored(self, pk: Any = "a", /, **attributes: Any) -> dict[str, Any]:
        """Return an item as it is sent."""
        return {**self.key(pk), **wire_item(attributes)}

    def put(self, pk: Any = "a", /, **attributes: Any) -> None:
        """PutItem."""
        self.client.put_item(TableName=self.name, Item=self.stored(pk, **attributes))

    def get(self, pk: Any = "a", /, **options: Any) -> dict[str, Any] | None:
        """GetItem, consistent unless told otherwise."""
        answer = self.client.get_item(TableName=self.name, Key=self.key(pk), **{"ConsistentRead": True, **options})
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
        return plain_item(answer.get("Attributes", {}))

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


class Refusal:
    """The error answer caught by ``refused``."""

    response: dict[str, Any]

    @property
    def message(self) -> str:
        text: str = self.response["Error"]["Message"]
        return text

    @property
    def item(self) -> dict[str, Any] | None:
        """The item that the error brings along; None without one."""
        return image_in(self.response)

    @property
    def codes(self) -> list[str]:
        """The codes of a cancelled transaction, action by action."""
        return [reason["Code"] for reason in self.response["CancellationReasons"]]

    @property
    def images(self) -> list[dict[str, Any] | None]:
        """The items of a cancelled transaction, action by action."""
        return [image_in(reason) for reason in self.response["CancellationReasons"]]


def image_in(answer: dict[str, Any]) -> dict[str, Any] | None:
    return plain_item(answer["Item"]) if "Item" in answer else None


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


# The requests of the lock document, as the design spells them, in plain expressions.


QUEUE: Final = "#lock.#queue"
NEXT: Final = "#lock.#next"
MINE: Final = f"{QUEUE}.#me"
_WORDS: Final = {"#lock": "lock", "#queue": "queue", "#next": "next", "#beat": "b", "#renewed": "r"}

ENTER: Final = f"SET {MINE} = list_append({NEXT}, :entry), {NEXT}[0] = {NEXT}[0] + :one"
MAY_ENTER: Final = f"attribute_exists({NEXT}) AND attribute_not_exists({MINE}) AND size({QUEUE}) < :max"
RELEASE: Final = f"REMOVE {MINE}"
MAY_RELEASE: Final = f"attribute_exists({MINE})"
CREATE: Final = "SET #lock = :map"
RENEW: Final = f"SET {MINE}[1].#beat = :beat, {MINE}[1].#renewed = :renewed"
MAY_RENEW: Final = f"{MINE}[0] = :ticket AND {MINE}[1].#beat < :beat"


def names(me: str = "e1", **more: str) -> dict[str, str]:
    """Return the names of expressions, for the entry of this caller."""
    return {**_WORDS, "#me": me, **{f"#{key}": name for key, name in more.items()}}


def entry(owner: str = "o", beat: int = 0) -> dict[str, Any]:
    """Return what an entry says."""
    return {"o": owner, "l": 30_000, "b": beat, "e": 1_000, "w": 0}


def lock_map(next_ticket: int = 7, **beats: int) -> dict[str, Any]:
    """Return a lock map with entries of these heartbeats; they hold the tickets just before ``next_ticket``."""
    first = next_ticket - len(beats)
    return {
        "next": [next_ticket],
        "queue": {me: [first + place, entry(beat=beat)] for place, (me, beat) in enumerate(beats.items())},
    }


def enter(table: Table, me: str = "e1", pk: str = "a", *, max_waiters: int = 100, **options: Any) -> dict[str, Any]:
    """Enter the queue; return the lock map after it."""
    values = {":entry": [entry(me)], ":one": 1, ":max": max_waiters}
    item = table.update(ENTER, MAY_ENTER, pk, names=names(me), values=values, **ALL_OLD, **options)
    lock: dict[str, Any] = item["lock"]
    return lock


def release(table: Table, me: str = "e1", pk: str = "a") -> dict[str, Any]:
    """Leave the queue; return the item after it."""
    return table.update(RELEASE, MAY_RELEASE, pk, names=names(me), **ALL_OLD)


def renew(table: Table, me: str, ticket: int, beat: int) -> dict[str, Any]:
    """Renew an entry; return the item after it."""
    values = {":ticket": Decimal(ticket), ":beat": beat, ":renewed": 2_000}
    return table.update(RENEW, MAY_RENEW, names=names(me), values=values, **ALL_OLD)
