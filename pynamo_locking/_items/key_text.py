"""Keys as people write and see them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from pynamodb.attributes import BinaryAttribute

if TYPE_CHECKING:
    from pynamodb.attributes import Attribute
    from pynamodb.models import Model


def stored_keys(model: type[Model]) -> list[Attribute[Any]]:
    """Return a model's hash key, and its range key if it has one."""
    return [key for key in (model._hash_key_attribute(), model._range_key_attribute()) if key is not None]


def key_attributes(model: type[Model]) -> list[Attribute[Any]]:
    """Return the same, as people give values for them: without a range key that follows from the hash key."""
    return [key for key in stored_keys(model) if not is_implied(key)]


def is_implied(range_attribute: Attribute[Any] | None) -> bool:
    """Tell whether a range key follows from the hash key: see `OwnKeys`."""
    return getattr(range_attribute, "is_implied", False)


def key_to_text(attribute: Attribute[Any], stored: Any) -> str:
    """Return a stored key value as text for `keys_from_text`: bytes in base 64, other values as they are stored."""
    return stored.decode() if isinstance(stored, bytes) and is_base_64(attribute) else text_of(stored)


def text_of(value: Any) -> str:
    """Return a value as text: bytes in base 64."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def is_base_64(attribute: Attribute[Any]) -> bool:
    """Tell whether the stored bytes are base 64 already, which sorts unlike the values."""
    return isinstance(attribute, BinaryAttribute) and attribute.legacy_encoding
