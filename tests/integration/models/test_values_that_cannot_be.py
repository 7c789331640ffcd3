"""Values that DynamoDB cannot store: every way to write refuses them as it refuses others, and nothing is stored."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.attributes import ListAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import PynamoDBException

from pynamo_locking import LockableModel, TransactWrite, transaction
from pynamo_locking.exceptions import InvalidInput
from tests.support.models import declare
from tests.support.transaction_models import Transactions, make_long_from
from tests.support.unique_models import Uniques

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

ITEM: dict[str, Any] = {
    "number": NumberAttribute(null=True),
    "text": UnicodeAttribute(null=True),
    "deep": ListAttribute(null=True),
    "transaction_table": Transactions,
}
Embedded = declare("Embedded", LockableModel, lock=True, **ITEM)
Singular = declare("Singular", LockableModel, lock=True, unique=("number", "text"), unique_table=Uniques, **ITEM)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


REFUSED: Final = (PynamoDBException, InvalidInput)
VALUES: dict[str, dict[str, Any]] = {
    "not a number": {"number": float("nan")},
    "infinity": {"number": float("inf")},
    "39 digits": {"number": 10**39 + 1},
    "too large": {"number": 1e300},
    "lone surrogate": {"text": "\ud800"},
    "33 levels": {"deep": nested(33)},
}


def in_batch(item: Any) -> None:
    with type(item).guarded_batch() as batch:
        batch.save(item)
        batch.save(type(item)("other"))


def transacted(item: Any) -> None:
    with TransactWrite(connection=item._get_connection().connection) as transaction_:
        transaction_.save(item)


def committed(count: int) -> Callable[[Any], None]:
    def save(item: Any) -> None:
        with transaction() as tx:
            tx.save(item)
            for number in range(count - 1):
                tx.save(type(item)(f"other {number}"))

    return save


def committed_long(item: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        make_long_from(patch, 2)
        committed(3)(item)


def updated_long(item: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        make_long_from(patch, 2)
        updated_in_transaction(item, 3)


def given(item: Any) -> dict[str, Any]:
    return {name: value for name, value in item.attribute_values.items() if name in ("number", "text", "deep")}


def actions_for(item: Any) -> list[Any]:
    return [getattr(type(item), name).set(value) for name, value in given(item).items()]


def updated_in_transaction(item: Any, count: int = 1) -> None:
    with transaction() as tx:
        tx.update(type(item)("a"), actions_for(item))
        for number in range(count - 1):
            tx.save(type(item)(f"other {number}"))


def updated_and_read(item: Any) -> None:
    with transaction() as tx:
        tx.update(type(item)("a"), actions_for(item))
        tx.get(type(item), "a")


def suspended(item: Any) -> None:
    with transaction() as tx:
        tx.save(item)
        tx.suspend()


def suspended_update(item: Any) -> None:
    with transaction() as tx:
        tx.update(tx.get_or_none(type(item), "a") or type(item)("a"), actions_for(item))
        tx.suspend()


def edited(item: Any) -> None:
    type(item)("a").save()
    with type(item).edit("a") as stored:
        for name, value in given(item).items():
            setattr(stored, name, value)


def condition(item: Any) -> None:
    with transaction() as tx:
        found = tx.get_or_none(type(item), "a") or type(item)("a")
        [(name, value)] = given(item).items()
        tx.save(found, getattr(type(item), name) != value)
        tx.suspend()


WAYS: dict[str, Callable[[Any], object]] = {
    "save": lambda item: item.save(),
    "save unchecked": lambda item: item.save(add_version_condition=False),
    "update": lambda item: type(item)("a").update(actions_for(item)),
    "edit": edited,
    "get_or_create": lambda item: type(item).get_or_create("a", defaults=given(item)),
    "batch": in_batch,
    "TransactWrite": transacted,
    "transaction of one": committed(1),
    "transaction": committed(3),
    "long transaction": committed_long,
    "tx.update": updated_in_transaction,
    "long tx.update": updated_long,
    "tx.update and get": updated_and_read,
    "suspend": suspended,
    "suspend an update": suspended_update,
    "condition": condition,
}


#: A save of unique values checks the version.
EACH = [(model, way) for model in (Embedded, Singular) for way in WAYS if (model, way) != (Singular, "save unchecked")]


@pytest.mark.parametrize(("model", "way"), EACH)
@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_cannot_be_stored(cheap: Engine, model: Any, value: str, way: str) -> None:
    """It is PynamoDB's error, or `InvalidInput`. The engine decides of a text outside a key that is no Unicode."""
    cheap.bind(model, Transactions, Uniques)
    is_stored = value == "lone surrogate" and (model is Embedded or way == "condition")
    with contextlib.suppress(InvalidInput, PynamoDBException) if is_stored else pytest.raises(REFUSED):
        WAYS[way](model("a", **VALUES[value]))
