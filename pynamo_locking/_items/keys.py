"""Keys, bounds and names of items, checked before any request; keys as people write them."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.attributes import BinaryAttribute, UTCDateTimeAttribute

from pynamo_locking._core.dynamodb import LARGEST_KEYS
from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._core.row_keys import canonical_number, cut, row_name, spelled
from pynamo_locking._core.values import Refusal, canonical_item
from pynamo_locking._io.stored_rows import encoded
from pynamo_locking._pynamodb import key_attributes_of, range_attribute_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pynamodb.attributes import Attribute
    from pynamodb.models import Model

    from pynamo_locking._core.lock_modes import Bound
    from pynamo_locking._io.stored_rows import Image


def stored_keys(model: type[Model]) -> list[Attribute[Any]]:
    """Return a model's hash key, and its range key if it has one."""
    return [key for key in key_attributes_of(model) if key is not None]


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
    return encoded(value) if isinstance(value, bytes) else str(value)


def is_base_64(attribute: Attribute[Any]) -> bool:
    """Tell whether the stored bytes are base 64 already, which sorts unlike the values."""
    return isinstance(attribute, BinaryAttribute) and attribute.legacy_encoding


class ItemKey(NamedTuple):
    """The identity of an item. Keys that DynamoDB treats as equal are equal, however their numbers are written."""

    table: str
    values: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, table: str, key: Mapping[str, Mapping[str, Any]]) -> ItemKey:
        """Return the identity for a key in DynamoDB's form."""
        values = [
            (name, canonical_number(content) if kind == "N" else content)
            for name, value in key.items()
            for kind, content in value.items()  # the one
        ]
        return cls(table, tuple(sorted(values)))

    def __str__(self) -> str:
        return f"{self.table}({', '.join(cut(repr(value)) for _, value in self.values)})"


@contextmanager
def as_input() -> Iterator[None]:
    """Turn DynamoDB's refusal of a value, found out here, into `InvalidInput`."""
    try:
        yield
    except Refusal as refusal:
        raise InvalidInput(f"DynamoDB does not store this value: {refusal.message}.") from refusal


def storable(image: Mapping[str, Any]) -> Image:
    """Return an image in its canonical form; `InvalidInput` for a value that DynamoDB does not store, such as NaN."""
    with as_input():
        return canonical_item(image)


def check_place(model: type[Model]) -> None:
    """Refuse a model without a table name."""
    if getattr(getattr(model, "Meta", None), "table_name", None) is None:
        raise ConfigurationError(
            f"{model.__name__} does not say which table it is about: derive a class from it with a `class Meta:` that "
            f"has a `table_name`."
        )


def key_of(model: type[Model], hash_key: Any, range_key: Any) -> dict[str, Any]:
    """Return an item's key in DynamoDB's form; `InvalidInput` if the values do not fit the model."""
    hash_attribute, range_attribute = key_attributes_of(model)
    if hash_attribute is None:
        raise ConfigurationError(f"{model.__name__} has no hash key, so none of its items can be locked.")
    key = {hash_attribute.attr_name: _value(model, hash_attribute, hash_key, "hash")}
    if range_attribute is None and range_key is not None:
        raise ConfigurationError(f"{model.__name__} has no range key, but one was given: {range_key!r:.80}.")
    if range_attribute is not None:
        if range_key is None and is_implied(range_attribute):
            range_key = hash_key
        key[range_attribute.attr_name] = _value(model, range_attribute, range_key, "range")
    return key


def _value(model: type[Model], attribute: Attribute[Any], value: Any, kind: str) -> dict[str, Any]:
    def wrong(why: str) -> InvalidInput:
        return InvalidInput(f"{value!r:.80} cannot be the {kind} key of {model.__name__}: {why}.")

    if value is None:
        raise wrong("a value is needed")
    try:
        stored = attribute.serialize(value)
    except Exception as error:
        raise wrong(f"{type(attribute).__name__} does not accept it ({error!s:.80})") from error
    if attribute.attr_type == "N":
        if isinstance(value, bool) or not isinstance(stored, str):
            raise wrong("it must be a number")
        try:
            return {"N": canonical_number(stored)}
        except InvalidInput as error:
            raise wrong(str(error).rstrip(".")) from error
    if not isinstance(stored, bytes if attribute.attr_type == "B" else str):
        raise wrong(f"it must be a {'bytes value' if attribute.attr_type == 'B' else 'string'}")
    try:
        size = len(stored.encode() if isinstance(stored, str) else stored)
    except UnicodeEncodeError as error:
        raise wrong(str(error)) from error
    begin = len(getattr(attribute, "begin", "").encode())  # of a row of ours in a table of other items
    if not begin < size <= LARGEST_KEYS[kind]:
        raise wrong(f"DynamoDB allows 1 to {LARGEST_KEYS[kind] - begin} bytes, and it has {size - begin}")
    return {attribute.attr_type: stored}


def deserialized_key(model: type[Model], key: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the values of a key in DynamoDB's form: the hash key, and the range key or None."""
    values = [each.deserialize(each.get_value(key[each.attr_name])) for each in stored_keys(model)]
    hash_key, range_key = (*values, None)[:2]
    return hash_key, range_key


def hash_key_of(model: type[Model], hash_key: Any) -> dict[str, Any]:
    """Return an item's hash key in DynamoDB's form; `ConfigurationError` for a model without a range key."""
    hash_attribute, range_attribute = key_attributes_of(model)
    if hash_attribute is None or range_attribute is None:
        raise ConfigurationError(
            f"{model.__name__} has no range key, so there are no ranges of it to lock. Use locked(), or "
            f"locked_range() of a NamedLock for a name of your own."
        )
    return {hash_attribute.attr_name: _value(model, hash_attribute, hash_key, "hash")}


def bound_of(model: type[Model], value: Any) -> Bound | None:
    """Return a value of the range key as the end of a range, None for an open end; refuse an unsuitable value."""
    attribute = range_attribute_of(model)
    if value is None or attribute is None:
        return None
    refuse_naive(value)
    if is_base_64(attribute):
        raise ConfigurationError(
            f"the range key of {model.__name__} is stored in a form that sorts unlike its values, so it has no ranges: "
            f"use BinaryAttribute(legacy_encoding=False)."
        )
    return position_of(model, value)


def position_of(model: type[Model], value: Any) -> Bound:
    """Return the position of an item among those of its hash key."""
    attribute = range_attribute_of(model)
    assert attribute is not None  # noqa: S101 - there are ranges of it
    bound: Bound = next(iter(_value(model, attribute, value, "range").items()))
    return bound


def free_bound(value: Any) -> Bound | None:
    """Return a number, string, bytes or time as the end of a range of a name; None for an open end."""
    if value is None:
        return None
    refuse_naive(value)
    try:
        if isinstance(value, datetime):
            return "S", UTCDateTimeAttribute().serialize(value)
        if isinstance(value, str):
            value.encode()
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidInput(f"{value!r:.80} cannot be the end of a range: {error}.") from error
    if isinstance(value, (str, bytes)):
        return "S" if isinstance(value, str) else "B", value
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return "N", canonical_number(spelled(value) if isinstance(value, int) else str(value))
    raise InvalidInput(f"a range of a name goes from and to numbers, strings, bytes or datetimes, not {value!r:.80}.")


def refuse_naive(value: Any) -> None:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise InvalidInput(f"{value!r:.80} has no time zone: give a timezone-aware datetime, such as one in UTC.")


def label_of(model: type[Model], values: Iterable[Any]) -> str:
    """Return an item for people, by the values of its key; None for no range key."""
    return f"{model.__name__}({', '.join(cut(repr(value)) for value in values if value is not None)})"


def name_of(model: type[Model], key: dict[str, Any], longest: int = LARGEST_KEYS["hash"]) -> str:
    """Return the unique name of an item, for its lock row and messages, of so many bytes at most."""
    parts = [next(iter(value.items())) for value in key.values()]
    return row_name(model.Meta.table_name, tuple(parts), longest)
