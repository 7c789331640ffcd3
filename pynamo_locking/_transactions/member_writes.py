"""The attributes that a write of a transaction's item keeps, sets and removes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._expressions.values import copy_of
from pynamo_locking._io.stored import Place, Stored
from pynamo_locking._items import clauses, expiry, images, versions
from pynamo_locking._items.keys import key_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._core.outcome import Known
    from pynamo_locking._io.stored import Image
    from pynamo_locking._items.versions import VersionPart
    from pynamo_locking._models.writing import GuardedMixin
    from pynamo_locking._writes.write import Write


class Unread:
    """The stored item has not been read by the transaction."""


UNREAD: Final = Unread()


def check_key(item: GuardedMixin, key: Image) -> None:
    """Refuse an instance whose key was changed: the operation would apply to another item."""
    now = key_of(type(item), *item._key_values())
    if now != key and images.difference(key, now) != ({}, []):
        raise ConfigurationError(
            f"the key of this {type(item).__name__} was changed after it was given to the transaction, which would "
            f"write another item: use an instance for each item. Nothing was written."
        )


def values_of(item: Model, image: Image) -> dict[str, Any]:
    """Return the values of an image, but with the version of the instance: it changes at the commit."""
    fresh: dict[str, Any] = type(item).from_raw_data(copy_of(image)).attribute_values
    name = str(item._version_attribute_name)
    fresh.pop(name, None)
    if name in item.attribute_values:
        fresh[name] = item.attribute_values[name]
    return fresh


def _declared(item: Model) -> set[str]:
    return {attribute.attr_name for attribute in item.get_attributes().values()}


def undeclared(item: Model, image: Image) -> Image:
    """Return the attributes of an image that are neither declared nor the write id."""
    ours = {*_declared(item), versions.shape_of(type(item)).write_id_name}
    return {name: value for name, value in image.items() if name not in ours}


def are_undeclared(item: Model, actions: Sequence[Action]) -> bool:
    """Tell whether one of some actions is about an attribute that is not declared."""
    declared = _declared(item)
    return any(clauses.path_of(action)[0] not in declared for action in actions)


def changes(before: Image, after: Image, keys: Collection[str]) -> list[Action]:
    """Return the actions that turn one image into another; an action that changes nothing if they are equal."""
    set_, removed = images.difference(before, after, keys=keys)
    actions: list[Action] = [Place(name).set(Stored(value)) for name, value in set_.items()]
    actions += [Place(name).remove() for name in removed]
    return actions or [clauses.nothing()]


def complete_save(write: Write, stored: Image, extra: Image | None, *, replaces: bool) -> Image:
    """Make a save keep or set undeclared attributes; return the item after it, apart from its version.

    `extra` are the undeclared attributes after the save, None for those of the `stored` item as far as it was read. If
    it `replaces` the item, a Put removes them.
    """
    item, kept = write.item, dict[str, Any]()
    if write.attributes is None:
        old = undeclared(item, stored)
        extra = old if extra is None else extra
        write.actions = [*([] if extra == old else changes(old, extra, ())), *write.actions]
        write_id = versions.shape_of(type(item)).write_id_name
        kept = {name: value for name, value in stored.items() if name == write_id}
    else:
        extra = {} if replaces or extra is None else extra
        write.attributes |= extra
    return kept | extra | write.values


def saved_again(old: Write, part: VersionPart, condition: Condition | None) -> Write:
    """Return the same save with another `VersionPart`."""
    condition = expiry.for_save(type(old.item), clauses.both(condition, part.condition()))
    write = replace(old, part=part, condition=condition, return_values=None)
    if old.attributes is not None:
        write.attributes = dict(old.attributes)
        part.complete_put(write.attributes)
    else:
        write.actions = [*old.actions[: len(old.actions) - len(old.part.actions())], *part.actions()]
    return write


def strict(
    condition: Condition | None, part: VersionPart, before: Known, key_name: str, *, exists: bool | None
) -> Condition | None:
    """Add a condition where the version alone is ambiguous: no item, no version, or no write id.

    `exists` says whether the item existed when it was read; None if that is not known for certain.
    """
    write_id = part.shape.write_id
    if not part.is_checked or write_id is None:
        return condition
    if before.version is not None:
        return condition if before.write_id else clauses.both(condition, write_id.does_not_exist())
    if exists is None:
        return condition
    path = Place(key_name)
    return clauses.both(condition, path.exists() if exists else path.does_not_exist())
