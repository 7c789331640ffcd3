"""In which class an item is handed out that has an instance already, which several callers share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._items.keys import label_of
from pynamo_locking._pynamodb import class_named_by, key_values_of

if TYPE_CHECKING:
    from pynamodb.models import Model

_M = TypeVar("_M", bound="Model")


def class_made(model: type[_M], instance: Any) -> type[_M]:
    """Return the class of which PynamoDB's ``model.get`` makes an instance, of the item that this instance shows.

    Raises:
        ValueError: as there: the item names a class of which no instance is one of the model.
    """
    named = class_named_by(instance)
    if named is None or issubclass(named, model):
        return named or model
    raise ValueError(f"Cannot instantiate a {model.__name__} from the returned class: {named.__name__}")


def shared_as(model: type[_M], instance: Any, by: str, remedy: str) -> _M:
    """Return the instance that an item has already, to a caller who asks for the item in a class.

    Args:
        model: the class that is asked for.
        instance: of the item.
        by: what has the instance.
        remedy: what to do if the caller cannot get it.

    Raises:
        ValueError: as `class_made`.
        ConfigurationError: the instance is none of the class that would be made.
    """
    made, has = class_made(model, instance), type(instance)
    if not isinstance(instance, made):
        raise ConfigurationError(
            f"{label_of(has, key_values_of(instance))} is in use {by} as {has.__name__}, and {made.__name__} was asked "
            f"for. There is one instance, since of two one would lose what is set on the other: {remedy}."
        )
    return instance
