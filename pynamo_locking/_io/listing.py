"""The items of a table, and keys as people write and see them: for the command line and for web frameworks."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from pynamodb.attributes import BinaryAttribute

from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model


def scan(
    model: type[Model], condition: Condition | None, attributes: list[str] | None = None, *, is_consistent: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield the items of a table that meet a condition, as stored, page by page."""
    connection = model._get_connection()
    start: Any = None
    while True:
        answer = connection.scan(
            filter_condition=condition,
            attributes_to_get=attributes,
            consistent_read=is_consistent,
            exclusive_start_key=start,
        )
        yield from answer["Items"]
        start = answer.get("LastEvaluatedKey")
        if start is None:
            return


def with_tables(models: Iterable[type[Model]]) -> list[type[Model]]:
    """Return models, each once, and the tables of locks and transactions that they name in their ``Meta``."""
    found: dict[type[Model], None] = {}
    for model in models:
        found[model] = None
        for name in ("lock_table", "transaction_table"):
            table = getattr(model.Meta, name, None)
            if isinstance(table, type):
                found[table] = None
    return list(found)


def key_attributes(model: type[Model]) -> list[Attribute[Any]]:
    """Return a model's hash key, and its range key if it has one."""
    return [key for key in (model._hash_key_attribute(), model._range_key_attribute()) if key is not None]


def key_to_text(attribute: Attribute[Any], stored: Any) -> str:
    """Return a stored key as text that `keys_from_text` takes: bytes in base 64, all others as they are stored.

    Args:
        attribute: the key.
        stored: its value in DynamoDB's form, without the type.
    """
    return stored.decode() if isinstance(stored, bytes) and _is_base_64(attribute) else text_of(stored)


def text_of(value: Any) -> str:
    """Return a value as text: bytes in base 64."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def keys_from_text(model: type[Model], texts: Sequence[str]) -> list[Any]:
    """Return the hash key, and the range key if there is a text for it, as the model takes them.

    Raises:
        ConfigurationError: they are no key of the model.
    """
    keys = key_attributes(model)
    if not 1 <= len(texts) <= len(keys):
        names = " and ".join([*(key.attr_name for key in keys), "no range key"][:2])
        raise ConfigurationError(f"the key of {model.__name__} is {names}: {len(texts)} values were given.")
    return [_from_text(key, text) for key, text in zip(keys, texts, strict=False)]


def _from_text(attribute: Attribute[Any], text: str) -> Any:
    try:
        if attribute.attr_type != "B":
            return attribute.deserialize(text)
        decoded = base64.b64decode(text, validate=True)
        return attribute.deserialize(text.encode() if _is_base_64(attribute) else decoded)
    except Exception as error:  # whatever an application's own attribute raises
        raise ConfigurationError(
            f"{text!r} is no {attribute.attr_name} ({type(attribute).__name__}): {error}"
        ) from error


def _is_base_64(attribute: Attribute[Any]) -> bool:
    """Tell whether the bytes that are stored are text in base 64 already."""
    return isinstance(attribute, BinaryAttribute) and attribute.legacy_encoding
