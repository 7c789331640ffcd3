"""The locks of a table, and keys as people write and see them: for the command line and for web frameworks."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.attributes import BinaryAttribute

from pynamo_locking._io import records
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model

    from pynamo_locking._core.queue import LockState


class Found(NamedTuple):
    """An item that carries a lock.

    Attributes:
        key: of the item, as stored: hash key, then range key.
        state: of its lock.
    """

    key: dict[str, Any]
    state: LockState

    @property
    def values(self) -> list[Any]:
        """The key as stored, without the types."""
        return [next(iter(value.values())) for value in self.key.values()]


def locks_in(model: Any, condition: Condition, *, is_consistent: bool) -> Iterator[Found]:
    """Yield the items of a table whose lock meets a condition, also those whose lock is broken.

    Args:
        model: with a lock attribute.
        condition: of `inspection`.
        is_consistent: whether to see all that was written before; costs twice as much.

    Cost: a scan of the table.
    """
    lock = model._lock_attribute().attr_name
    names = [key.attr_name for key in key_attributes(model)]
    for image in scan(model, condition, [*names, lock], is_consistent=is_consistent):
        yield Found({name: image[name] for name in names}, records.state_in(image, lock))


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


def key_attributes(model: type[Model]) -> list[Attribute[Any]]:
    """Return a model's hash key, and its range key if it has one."""
    return [key for key in (model._hash_key_attribute(), model._range_key_attribute()) if key is not None]


def key_to_text(attribute: Attribute[Any], stored: Any) -> str:
    """Return a stored key as text that `key_from_text` takes: bytes in base 64, all others as they are stored.

    Args:
        attribute: the key.
        stored: its value in DynamoDB's form, without the type.
    """
    if not isinstance(stored, bytes):
        return str(stored)
    return (stored if _is_base_64(attribute) else base64.b64encode(stored)).decode()


def key_from_text(attribute: Attribute[Any], text: str) -> Any:
    """Return a key as the model takes it.

    Raises:
        ConfigurationError: the text is no such key.
    """
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
