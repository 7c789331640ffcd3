"""What a transaction does to one item: a value; and how several operations on an item become one write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._items import conditions, effects, expiry, versions

if TYPE_CHECKING:
    from collections.abc import Collection

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model
    from typing_extensions import Self

    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._items.versions import VersionPart
    from pynamo_locking._writes.write import Write
    from pynamo_locking._writes.writer import Writer


class Unread:
    """The stored item has not been read by the transaction."""


UNREAD: Final = Unread()


class Plan(NamedTuple):
    """What a transaction does to one item. An operation makes the next plan, or raises, and this one stays.

    Attributes:
        after: the item as the transaction sees it; None if the transaction deleted it, or it never existed.
        write: what the commit will do; None if the item is only read.
        writer: of that write.
        condition: the callers' conditions.
        is_checked: whether the stored item must be the one that is known.
        pending: the actions of an update that was not evaluated yet.
        has_values: whether the transaction has changed values of the item.
        expected: the condition that an item which was not read has the unique values that its instance has noted.
    """

    after: Image | Unread | None
    write: Write | None = None
    writer: Writer | None = None
    condition: Condition | None = None
    is_checked: bool = False
    pending: tuple[Action, ...] = ()
    has_values: bool = False
    expected: Condition | None = None

    def requiring(self, condition: Condition | None) -> Self:
        """Return the plan with one more condition of the caller."""
        if condition is None:
            return self
        effects.check(condition)
        return self._replace(condition=conditions.both(self.condition, condition))


# The attributes that a write of a transaction's item keeps, sets and removes.


def undeclared(model: type[Model], image: Image) -> Image:
    """Return the attributes of an image that are neither declared nor the write id."""
    if not image:
        return {}
    shape = versions.shape_of(model)
    ours = {*shape.declared, shape.write_id_name}
    return {name: value for name, value in image.items() if name not in ours}


def changes(before: Image, after: Image, keys: Collection[str]) -> list[Action]:
    """Return the actions that turn one image into another; an action that changes nothing if they are equal."""
    set_, removed = effects.difference(before, after, keys=keys)
    actions: list[Action] = [Place(name).set(Stored(value)) for name, value in set_.items()]
    actions += [Place(name).remove() for name in removed]
    return actions or [conditions.nothing()]


def complete_save(write: Write, stored: Image, extra: Image | None, *, replaces: bool) -> tuple[Write, Image]:
    """Return a save that keeps or sets undeclared attributes too, and the item after it, apart from its version.

    `extra` are the undeclared attributes after the save, None for those of the `stored` item as far as it was read. If
    it `replaces` the item, a Put removes them.
    """
    kept = dict[str, Any]()
    if write.attributes is None:
        old = undeclared(type(write.item), stored)
        extra = old if extra is None else extra
        if extra != old:
            write = write.but(actions=[*changes(old, extra, ()), *write.actions])
        write_id = write.part.shape.write_id_name
        kept = {name: value for name, value in stored.items() if name == write_id}
    else:
        extra = {} if replaces or extra is None else extra
        write = write.but(attributes={**write.attributes, **extra})
    return write, {**kept, **extra, **write.values}


def saved_again(old: Write, part: VersionPart, condition: Condition | None) -> Write:
    """Return the same save with another `VersionPart`."""
    condition = expiry.or_expired(type(old.item), conditions.both(condition, part.condition()))
    again = old.but(part=part, condition=condition, return_values=None)
    if old.attributes is None:
        return again.but(actions=[*old.actions[: len(old.actions) - len(old.part.actions())], *part.actions()])
    attributes = dict(old.attributes)
    part.complete_put(attributes)
    return again.but(attributes=attributes)
