"""What a transaction does to one item: a value; and how several operations on an item become one write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io.model_doors import writer_of
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._items import conditions, effects, versions
from pynamo_locking._items.keys import key_of
from pynamo_locking._pynamodb import key_values_of
from pynamo_locking._writes.write import CHECK, DELETE, SAVE, Write

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._core.write_outcome import Known
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._items.versions import VersionPart
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._writes.writer import Writer


class Unread:
    """The stored item has not been read by the transaction."""


UNREAD: Final = Unread()


class Basis(NamedTuple):
    """What the write of an item is planned from: its instance, and what is known of the stored item.

    Attributes:
        key: in DynamoDB's form.
        base: the stored item; None if there is none.
        before: its version and write id.
        token: of the transaction, from which the write ids are derived.
        extents: where the write takes place, for locks of ranges; None if the instance shows it.
    """

    instance: GuardedMixin
    key: Image
    base: Image | Unread | None
    before: Known
    token: str
    extents: Sequence[LockMode] | None

    @property
    def stored(self) -> Image:
        """The stored item; empty if there is none, or it was not read."""
        return self.base if isinstance(self.base, dict) else {}

    def writer(self) -> Writer:
        """Return a new writer of the item, under the locks that are held now."""
        writer: Writer | None = writer_of(self.instance, self.extents)
        if writer is None:
            name = type(self.instance).__name__
            raise ConfigurationError(f"{name} cannot take part in a transaction: it has no version.")
        writer.token = self.token
        return writer

    def strict(self, condition: Condition | None, part: VersionPart) -> Condition | None:
        """Add a condition where the version alone is ambiguous: no item, no version, or no write id."""
        write_id = part.shape.write_id
        if not part.is_checked or write_id is None:
            return condition
        if self.before.version is not None:
            return condition if self.before.write_id else conditions.both(condition, write_id.does_not_exist())
        if isinstance(self.base, Unread):
            return condition
        path = Place(next(iter(self.key)))
        absent = part.shape.or_expired(path.does_not_exist())
        return conditions.both(condition, absent if self.base is None else path.exists())


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

    def requiring(self, condition: Condition | None) -> Plan:
        """Return the plan with one more condition of the caller, also of the write that is planned already."""
        if condition is None:
            return self
        effects.check(condition)
        write = self.write
        if write is not None:
            write = write.but(condition=conditions.both(write.condition, condition))
        return self._replace(condition=conditions.both(self.condition, condition), write=write)

    def keeping_undeclared(self, basis: Basis) -> Plan:
        """Keep undeclared attributes of an item that was read after a save that is sent as an update."""
        write, after = self.write, self.after
        if write is None or write.operation is not SAVE or write.attributes is not None or not isinstance(after, dict):
            return self
        return self._replace(after=undeclared(type(basis.instance), basis.stored) | after)

    # Several operations become one write.

    def saving(self, basis: Basis, extra: Image | None, *, replaces: bool) -> Plan:
        """Store the instance as it is now; for `extra` and `replaces` see `complete_save`."""
        writer, stored = basis.writer(), basis.stored
        with versions.planned_as(basis.instance, basis.before):
            write = writer.plan_save(
                self.condition,
                checks_version=self.is_checked,
                error=TransactWriteError,
                stored=stored if self.is_checked else None,
            )
        write, after = complete_save(write, stored, extra, replaces=replaces)
        return self._replace(write=write, writer=writer, after=after)

    def updating(self, basis: Basis, actions: list[Action]) -> Plan:
        """Apply actions to the stored item."""
        writer = basis.writer()
        with versions.planned_as(basis.instance, basis.before):
            write = writer.plan_update(actions, self.condition, checks_version=self.is_checked)
        return self._replace(write=write, writer=writer)

    def deleting(self, basis: Basis) -> Plan:
        """Delete the stored item."""
        writer = basis.writer()
        with versions.planned_as(basis.instance, basis.before):
            write = writer.plan_delete(self.condition, checks_version=self.is_checked)
        return self._replace(write=write, writer=writer)

    def again(self, basis: Basis) -> Plan:
        """Do the same on condition that the stored item is the one that is known."""
        write, after, same = self.write, self.after, self._replace(is_checked=True)
        if write is None:
            return same
        if write.operation is SAVE:
            with versions.planned_as(basis.instance, basis.before):
                part = versions.part_of(basis.instance, is_checked=True, token=basis.token)
            return same._replace(write=saved_again(write, part, self.condition))
        if write.operation is DELETE:
            return same.deleting(basis)
        if isinstance(after, Unread):
            return same.updating(basis, [*self.pending] or [conditions.nothing()])
        return same.updating(basis, changes(basis.stored, after or {}, basis.key))

    def final(self, basis: Basis, *, is_shown: bool) -> Write:
        """Return the write or check that DynamoDB will do, with all of its conditions; see `Write` for `is_shown`."""
        instance, write = basis.instance, self.write
        check_key(instance, basis.key)
        if write is None:
            with versions.planned_as(instance, basis.before):
                part = versions.part_of(instance, is_checked=True)
            condition = basis.strict(part.shape.or_expired(part.condition()), part)
            return Write(instance, CHECK, part, conditions.both(self.condition, condition))
        return write.but(
            condition=conditions.both(basis.strict(write.condition, write.part), self.expected),
            unique_rows=None,  # the rows are items of the transaction: see `TransactionItems.take_values`
            is_shown=self.is_checked and is_shown,
            is_strict=True,
        )


def check_key(instance: GuardedMixin, key: Image) -> None:
    """Refuse an instance whose key was changed: the operation would apply to another item."""
    now = key_of(type(instance), *key_values_of(instance))
    if now != key and effects.difference(key, now) != ({}, []):
        raise ConfigurationError(
            f"the key of this {type(instance).__name__} was changed after it was given to the transaction, which would "
            f"write another item: use an instance for each item. Nothing was written."
        )


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
    condition = part.shape.or_expired(conditions.both(condition, part.condition()))
    again = old.but(part=part, condition=condition, return_values=None)
    if old.attributes is None:
        return again.but(actions=[*old.actions[: len(old.actions) - len(old.part.actions())], *part.actions()])
    attributes = dict(old.attributes)
    part.complete_put(attributes)
    return again.but(attributes=attributes)
