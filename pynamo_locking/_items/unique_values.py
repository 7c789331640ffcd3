"""Which values of a model are unique, and which row holds each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.row_keys import row_name
from pynamo_locking._io.model_doors import own_keys_of
from pynamo_locking._items.keys import ItemKey, storable, stored_keys
from pynamo_locking._pynamodb import ttl_attribute_of, version_name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.attributes import Attribute
    from pynamodb.models import Model

    from pynamo_locking._io.stored_rows import Image


#: Set on a model class: its `Unique`, or None, worked out once; in a tuple, since None is an answer.
_UNIQUE: Final = "_pynamo_locking_unique_values"

_SCALARS: Final = frozenset({"S", "N", "B"})


class Value(NamedTuple):
    """One unique value of an item: the Python names of its attributes, and what is stored in them."""

    model: type[Model]
    fields: tuple[str, ...]
    stored: tuple[Mapping[str, Any], ...]

    def python(self) -> tuple[Any, ...]:
        """Return the values as an instance shows them."""
        attributes = self.model.get_attributes()
        return tuple(
            attributes[field].deserialize(next(iter(stored.values())))
            for field, stored in zip(self.fields, self.stored, strict=True)
        )


class Unique(NamedTuple):
    """The declaration of a model.

    Attributes:
        table: the `UniqueTable` of its rows.
        groups: the Python names of the attributes of which each combination is unique.
        watched: the stored names of all these attributes, and of the time of expiry, without those of the key.
        expires: the stored name of the time of expiry, if the model has one.
    """

    table: type[Any]
    groups: tuple[tuple[str, ...], ...]
    watched: frozenset[str]
    expires: str | None


def unique_of(model: type[Model]) -> Unique | None:
    """Return what ``Meta.unique`` of a model says; None without it."""
    known: tuple[Unique | None] | None = vars(model).get(_UNIQUE)
    if known is None:
        scope = getattr(getattr(model, "Meta", None), "unique_scope", None)
        if scope is not None and not isinstance(scope, str):
            raise ConfigurationError(f"Meta.unique_scope of {model.__name__} is a text, not {scope!r}.")
        known = (_declared(model),)
        setattr(model, _UNIQUE, known)
    return known[0]


def _declared(model: type[Model]) -> Unique | None:
    meta = getattr(model, "Meta", None)
    given = getattr(meta, "unique", None)
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, (tuple, list)) or not given:
        raise _wrong(model, f"is a tuple of names of attributes, or of tuples of them, not {given!r}")
    groups = tuple((each,) if isinstance(each, str) else tuple(each) for each in given)
    attributes, keys = model.get_attributes(), stored_keys(model)
    for name in (name for group in groups for name in group):
        if getattr(attributes.get(name), "attr_type", None) not in _SCALARS:
            raise _wrong(model, f"names {name!r}, which is no attribute of strings, numbers or bytes")
        if attributes[name] is attributes.get(str(version_name_of(model))):
            raise _wrong(model, f"names {name!r}, the version")
    if len(set(groups)) < len(groups) or any(len(set(group)) < len(group) for group in groups):
        raise _wrong(model, f"names an attribute twice: {given!r}")
    if any(all(attributes[name].is_hash_key or attributes[name].is_range_key for name in group) for group in groups):
        raise _wrong(model, f"names nothing but keys, of which DynamoDB has one item anyway: {given!r}")
    table: Any = getattr(meta, "unique_table", None)
    if not getattr(table, "_holds_unique_values", False):
        raise _wrong(model, f"needs a subclass of UniqueTable in Meta.unique_table (it is {table!r})")
    if version_name_of(model) is None:
        raise _wrong(model, "needs a version: declare `version = VersionAttribute()`")
    ttl: Any = ttl_attribute_of(model)
    expires = None if ttl is None else ttl.attr_name
    watched = {attributes[name].attr_name for group in groups for name in group} - {key.attr_name for key in keys}
    return Unique(table, groups, frozenset(watched if expires is None else watched | {expires}), expires)


def _wrong(model: type[Model], what: str) -> ConfigurationError:
    return ConfigurationError(f"Meta.unique of {model.__name__} {what}.")


def held(model: type[Model], image: Mapping[str, Any]) -> dict[str, Value]:
    """Return the unique values in an image, by the names of their rows. A combination with a missing part is none."""
    unique, found = unique_of(model), dict[str, Value]()
    if unique is None:
        return found
    longest = own_keys_of(unique.table).longest_name
    for group in unique.groups:
        attributes: list[Attribute[Any]] = [model.get_attributes()[name] for name in group]
        stored = [image.get(attribute.attr_name, {}) for attribute in attributes]
        parts = [(kind, content) for each in stored for kind, content in each.items() if kind in _SCALARS]
        if len(parts) == len(group):
            found[row_name(_named(model, group), tuple(parts), longest)] = Value(model, group, tuple(stored))
    return found


def _named(model: type[Model], group: tuple[str, ...]) -> str:
    scope = getattr(model.Meta, "unique_scope", None) or model.Meta.table_name
    return f"{scope}#{'+'.join(model.get_attributes()[name].attr_name for name in group)}"


def prefix_of(model: type[Model], group: tuple[str, ...]) -> str:
    """Return what the names of the rows of a combination begin with."""
    return row_name(_named(model, group), ()) + "/"


def watched(model: type[Model], image: Mapping[str, Any] | None) -> Image:
    """Return of an image what its rows depend on."""
    unique = unique_of(model)
    names = frozenset[str]() if unique is None else unique.watched
    return storable({name: value for name, value in (image or {}).items() if name in names})


def holder_of(image: Mapping[str, Any] | None) -> ItemKey | None:
    """Return which item a row says it belongs to; None if it is no row of unique values."""
    try:
        stored = (image or {})["holder"]["M"]
        return ItemKey.of(stored["table"]["S"], stored["key"]["M"])
    except (KeyError, TypeError, AttributeError):
        return None
