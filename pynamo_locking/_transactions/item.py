"""One item of a transaction: as it is stored, as the transaction sees it, and the one write that results."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import values as values_module
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.values import copy_of
from pynamo_locking._core.write_outcome import Known
from pynamo_locking._io import responses
from pynamo_locking._io.model_doors import lock_attribute_of, lock_row_of_key, writer_of
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._items import conditions, effects, expiry, versions
from pynamo_locking._items.keys import ItemKey, key_of
from pynamo_locking._pynamodb import connection_of, key_values_of, version_name_of
from pynamo_locking._writes.write import CHECK, DELETE, SAVE, UPDATE, Write, error_of_refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._items.versions import VersionPart
    from pynamo_locking._models.isolation import IsolatedReader
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._writes.writer import Writer


# The attributes that a write of a transaction's item keeps, sets and removes.


class Unread:
    """The stored item has not been read by the transaction."""


UNREAD: Final = Unread()


def check_key(item: GuardedMixin, key: Image) -> None:
    """Refuse an instance whose key was changed: the operation would apply to another item."""
    now = key_of(type(item), *key_values_of(item))
    if now != key and effects.difference(key, now) != ({}, []):
        raise ConfigurationError(
            f"the key of this {type(item).__name__} was changed after it was given to the transaction, which would "
            f"write another item: use an instance for each item. Nothing was written."
        )


def values_of(item: Model, image: Image) -> dict[str, Any]:
    """Return the values of an image, but with the version of the instance: it changes at the commit."""
    fresh: dict[str, Any] = type(item).from_raw_data(copy_of(image)).attribute_values
    name = str(version_name_of(item))
    fresh.pop(name, None)
    if name in item.attribute_values:
        fresh[name] = item.attribute_values[name]
    return fresh


def _declared(item: Model) -> set[str]:
    return {attribute.attr_name for attribute in item.get_attributes().values()}


def undeclared(item: Model, image: Image) -> Image:
    """Return the attributes of an image that are neither declared nor the write id."""
    if not image:
        return {}
    ours = {*_declared(item), versions.shape_of(type(item)).write_id_name}
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
    item, kept = write.item, dict[str, Any]()
    if write.attributes is None:
        old = undeclared(item, stored)
        extra = old if extra is None else extra
        write = write.but(actions=[*([] if extra == old else changes(old, extra, ())), *write.actions])
        write_id = versions.shape_of(type(item)).write_id_name
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


# One item of a transaction: as it is stored, as the transaction sees it, and the one write that results.


#: What a transaction does to an item: what an operation that fails leaves as it was.
_CHANGE: Final = ("after", "write", "writer", "condition", "is_checked", "pending", "has_values")

#: The same, and the instances: what a savepoint goes back to.
_SAVED: Final = (*_CHANGE, "item", "expected", "_first", "_version", "_is_key")


class SavedItem(NamedTuple):
    """An item of a transaction at a savepoint; `values` are those of the instance, now and as they were read."""

    state: dict[str, Any]
    values: tuple[dict[str, Any], dict[str, Any]]
    is_current: bool
    is_shown: bool
    is_unread: bool


class TransactionItem:
    """One item of a transaction.

    All conditions are about the item as it is stored before the transaction: DynamoDB checks them at the commit. The
    stored item is read only when it must be known.

    Args:
        item: the instance that every caller of the transaction's `get` receives.
        key: the item's key, in DynamoDB's form.
        base: the stored item; None if there is none.
        token: of the transaction, from which the write ids are derived.

    Attributes:
        before: what is known of the stored item.
        after: the item as the transaction sees it; None if the transaction deleted it, or it never existed.
        write: what the commit will do; None if the item is only read.
        writer: of that write.
        condition: the callers' conditions.
        is_checked: whether the stored item must be the one that is known.
        pending: the actions of an update that was not evaluated yet.
        has_values: whether the transaction has changed values of the item.
        expected: the condition that an item which was not read has the unique values that its instance has noted.
        is_read: whether the transaction relies on the item beyond its own write; that stays.
        extents: where its writes take place, for locks of ranges; None if the instance shows it.
        came: the stored item, if it was read together with others, for the one that asks for it next.
    """

    extents: Sequence[LockMode] | None = None
    came: Image | Unread | None = UNREAD

    def __init__(
        self,
        item: GuardedMixin,
        key: Image,
        base: Image | Unread | None,
        reader: IsolatedReader,
        token: str,
    ) -> None:
        self.item: GuardedMixin = item
        self.key = key
        self.identity: ItemKey = ItemKey.of(self.table, key)
        self.base = base
        self.before: Known = versions.known_state(item)
        self._forget_change()
        self.expected: Condition | None = None
        self.is_read: bool = False
        self._row: LockRow | None = None
        self.reader = reader
        self._token = token
        self._first, self._given = item, self.before  # at the beginning
        self._version: int | None = self.before.version  # of the instance when the caller passed it
        self._is_key = False  # whether the caller passed the last instance only to name the item
        # The values of the instance, while it shows what the transaction sees and what its user has changed since.
        self._values: dict[str, Any] | None = None if isinstance(base, Unread) else item.attribute_values
        self._seen = dict(item.attribute_values)  # the same before its user has changed any
        # Instances that show uncommitted values, which a save of the instance alone would write. `refresh` replaces the
        # dict of values, so an instance with another dict shows nothing of it. All savepoints share this list.
        self._shown: list[tuple[GuardedMixin, dict[str, Any]]] = []

    def _forget_change(self) -> None:
        self.after = self.base
        self.write: Write | None = None
        self.writer: Writer | None = None
        self.condition: Condition | None = None
        self.is_checked: bool = False
        self.has_values: bool = False
        self.pending: Sequence[Action] = ()

    @property
    def model(self) -> type[GuardedMixin]:
        """The model of the item."""
        return type(self.item)

    @property
    def table(self) -> str:
        """The name of the item's table."""
        name: str = connection_of(self.item).table_name
        return name

    @property
    def row(self) -> LockRow | None:
        """The item as one that can carry an intent, if its model has a lock attribute; with its key as it was given."""
        if self._row is None or self._row.model is not self.model:
            self._row = lock_row_of_key(self.model, self.key)
        return self._row

    @property
    def stored(self) -> Image:
        """The stored item; empty if there is none, or it was not read."""
        return self.base if isinstance(self.base, dict) else {}

    @property
    def is_absent(self) -> bool:
        """Whether the item does not exist, as far as is known."""
        return self.base is None or (isinstance(self.base, Unread) and self.before == Known())

    @property
    def is_deleted(self) -> bool:
        """Whether the transaction sees no such item."""
        return self.after is None

    @property
    def is_locked_by_others(self) -> bool:
        """Whether it is written, and others were in the queue of its lock when it was read."""
        is_outside = self.writer is not None and self.writer.own is None
        return is_outside and self.row is not None and bool(self.row.state(self.stored).entries)

    @property
    def is_current(self) -> bool:
        """Whether the instance shows what the transaction sees, apart from changes by its user."""
        return self.item.attribute_values is self._values

    @property
    def is_unused(self) -> bool:
        """Whether the transaction neither writes the item nor relies on it, since the first operation failed."""
        return self.write is None and not self.is_read and isinstance(self.base, Unread)

    # Instances

    def take(self, item: GuardedMixin, *, replaces: bool) -> None:
        """Use the instance that the caller passes, which must be a copy of the same stored item.

        If another instance shows changes of the transaction, that instance is written, unless this one `replaces` it.

        Raises:
            StaleVersion: it is a copy of another state of the item, or the caller has assigned another version.
        """
        known, is_other = versions.known_state(item), item is not self.item
        is_made_anew = self.is_deleted and known == Known()
        if not is_other and not is_made_anew and known.version != self._version:
            known_here = f"the transaction knows the item in version {self.before.version}"
            why = f"was given version {known.version}, and {known_here}."
            raise versions.stale(item, TransactWriteError, why, self.before)
        self._is_key = is_other and known in (Known(), self._given) and known != self.before
        if self._is_key and not (is_made_anew or replaces):
            return  # the instance only names the item; `_operation` refuses it if the operation checks its version
        if is_other and not is_made_anew:
            self.compare(item, is_old=replaces and self.write is not None)
        if is_made_anew or not self.has_values or self.is_deleted:
            self.item, self._version, self._is_key = item, known.version, False

    def unsaved(self) -> list[str]:
        """Return which attributes of the stored item the user has assigned, if the transaction does not write it."""
        now, seen = self.item.attribute_values, self._seen
        if self.write is not None or not self.stored or not self.is_current or now == seen:
            return []
        return sorted(name for name in {*now, *seen} if now.get(name) != seen.get(name))

    def compare(self, item: GuardedMixin, *, is_old: bool = False) -> None:
        """Raise `StaleVersion` for an instance of another state of the item than the transaction knows."""
        if is_old or versions.known_state(item) != self.before:
            why = "is in the transaction already, as another copy that differs: one of them is old."
            raise versions.stale(item, TransactWriteError, why)

    def _show(self, image: Image, *, is_committed: bool) -> None:
        """Make the instance show an image; its version changes at the commit."""
        self._values = self.item.attribute_values = values_of(self.item, image)
        versions.read_in_part(self.item, None)
        self._seen = dict(self._values)
        if not is_committed:
            self._note_shown(self.item)

    def _note_shown(self, item: GuardedMixin) -> None:
        self._shown[:] = [each for each in self._shown if each[0] is not item] + [(item, item.attribute_values)]

    def _mark_shown_stale(self, *, but: GuardedMixin | None = None) -> None:
        """Mark the instances that show uncommitted values as stale, so that saving them is refused."""
        for item, values in self._shown:
            if item is not but and item.attribute_values is values:
                versions.mark_stale(item)

    def mark_stale(self, *, is_saved: bool) -> None:
        """Mark instances with changes of the rolled-back transaction as stale; with `is_saved` the written one too."""
        self._mark_shown_stale()
        if is_saved and self.write is not None:
            versions.mark_stale(self.item)

    def shown_image(self) -> Image | None:
        """Return the item as the transaction sees it, reading it if necessary; make the instance show it."""
        if isinstance(self.after, Unread):
            self.load()
            pending, self.after, self.pending = self.pending, self.base, ()
            if pending:
                self._evaluate(pending)
            elif isinstance(self.after, dict):
                self._show(self.after, is_committed=True)  # the instance may have only the key, or some attributes
        elif (
            isinstance(self.after, dict)
            and not self.is_current
            and versions.known_state(self.item).version == self._version
        ):
            # The instance was replaced or refreshed. With another version, old values could be saved under it.
            self._show(self.after, is_committed=not self.has_values)
        assert not isinstance(self.after, Unread)  # noqa: S101 - loaded
        return self.after

    def shows(self, condition: Condition | None) -> bool:
        """Tell whether a condition is true of the item as the transaction sees it."""
        return effects.holds(self.shown_image(), condition)

    def _evaluate(self, actions: Sequence[Action]) -> None:
        """Apply actions to the instance and to `after`."""
        current = self.shown_image()
        try:
            after = effects.updated(current, self.key, actions)
        except values_module.Refusal as refused:
            raise TransactWriteError(f"Failed to update item: {refused}", refused) from refused
        self.after = after
        self._show(after, is_committed=False)

    def load(self) -> None:
        """Read the stored item; `StaleVersion` if it is not the known one and that is checked."""
        if isinstance(self.base, Unread):
            base = self._read()
            seen = versions.known_of(self.model, base or {})
            if self.is_checked and not self.before.may_be(seen):
                raise self.refused(base)
            self.base = base
            if self.write is not None and not self.is_checked:
                self.before = seen  # a later operation that checks the version means this one

    def _read(self) -> Image | None:
        image, self.came = self.came, UNREAD
        if isinstance(image, Unread):
            image = self.reader.read(self.model, self.key)
        return expiry.unexpired(self.model, image)

    def refused(self, image: Image | None) -> Exception:
        """Return the error for an item that is not the one that was read."""
        cause = responses.condition_failed(TransactWriteError, "the item is not the one that was read", self.table)
        return error_of_refusal(self.final(), TransactWriteError, image, cause)

    def pin(self) -> None:
        """Turn a write without a version check into one of the item as it is stored: an intent needs a known item."""
        assert self.write is not None  # noqa: S101 - only writes are pinned
        was_unread = isinstance(self.base, Unread)
        if was_unread or self.write.operation is not UPDATE:
            self.base = self._read()
        if was_unread:
            self._keep_undeclared()
        self.before = versions.known_of(self.model, self.stored)
        self.is_checked = True
        if self.write.operation is UPDATE:
            self.shown_image()
        self._plan_again()

    def _keep_undeclared(self) -> None:
        """Keep undeclared attributes of an item that was read after a save that is sent as an update."""
        is_update = self.write is not None and self.write.operation is SAVE and self.write.attributes is None
        if is_update and isinstance(self.after, dict):
            self.after = undeclared(self.item, self.stored) | self.after

    def rely(self) -> None:
        """Rely on what was read; a write that was to overwrite any stored item now requires this one."""
        self.is_read = True
        if self.write is not None and not self.is_checked:
            self.pin()

    def check(self) -> None:
        """Rely on the item being the one that is known."""
        self.is_read = True
        if self.write is not None and not self.is_checked:
            self.is_checked = True
            self._plan_again()

    def require(self, condition: Condition | None) -> None:
        """Add a condition of the caller."""
        if condition is not None:
            effects.check(condition)
            self.condition = conditions.both(self.condition, condition)

    def make_optional(self) -> None:
        """Let the transaction continue without the write if its condition is false."""
        if self.write is not None:
            self.write = self.write.but(is_optional=True)

    @contextlib.contextmanager
    def _operation(self, condition: Condition | None, *, checks: bool) -> Iterator[None]:
        """Add the condition of an operation; restore the previous state if the operation fails."""
        if checks and self._is_key:  # the caller expects the instance to be the stored item
            self.compare(self.item, is_old=True)
        before = self._state(_CHANGE)
        try:
            self.require(condition)
            yield
        except BaseException:
            vars(self).update(before)
            raise

    def _state(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: vars(self)[name] for name in names}

    def save(self, condition: Condition | None, *, checks: bool) -> None:
        """Store the instance as it is now; `StaleVersion` if that would undo changes of the transaction."""
        if checks and self.has_values and not self.is_deleted and not self.is_current:
            why = "does not show what the transaction has done to the item: go on with the instance that its get"
            raise versions.stale(self.item, TransactWriteError, f"{why} returns.")
        with self._operation(condition, checks=False):
            self._know_deleted(checks=checks)
            extra: Image | None = None
            if not isinstance(self.base, Unread) and not isinstance(self.after, Unread):
                extra = undeclared(self.item, self.after or {})
            self._plan_save(checks=checks, extra=extra, replaces=True)
            self.pending, self.has_values = (), True

    def _know_deleted(self, *, checks: bool) -> None:
        """Read an item deleted by this transaction if an update will write it again: no old attribute must remain."""
        if self.is_deleted and (lock_attribute_of(self.model) is not None or not (checks or self.is_checked)):
            self.load()

    def update(self, actions: Sequence[Action], condition: Condition | None, *, checks: bool) -> None:
        """Apply actions to the item as the transaction sees it."""
        with self._operation(condition, checks=checks):
            self._new_writer().check_actions(actions)
            effects.check(*actions)
            self._check_if(checks)
            self._update(actions)
            self.has_values = True

    def _check_if(self, checks: bool) -> None:  # noqa: FBT001
        if not self.is_checked and (self.is_read or checks):
            self.is_checked = True

    def _update(self, actions: Sequence[Action]) -> None:
        before = self.write
        is_first = before is None or (before.operation is UPDATE and not self.has_values)
        if is_first and isinstance(self.after, Unread):
            self.pending = list(actions)  # evaluated here only if the caller reads the item; else by DynamoDB
            self._plan_update(list(actions))
            return
        if before is not None and not is_first:
            self._know_base(before, actions)
        self._evaluate(actions)
        if is_first:
            self._plan_update(list(actions))
        elif before is not None and before.operation is UPDATE:
            self._plan_update(self._changes())
        else:
            assert isinstance(self.after, dict)  # noqa: S101 - evaluated
            extra = undeclared(self.item, self.after)
            self._plan_save(checks=self.is_checked, extra=extra, replaces=False)

    def _know_base(self, before: Write, actions: Sequence[Action]) -> None:
        """Read the stored item and rely on it: the write planned next has absolute values."""
        if before.operation is UPDATE:
            if not self.is_checked:
                self.pin()
        elif before.operation is DELETE:
            self._know_deleted(checks=False)
        elif before.attributes is None and isinstance(self.base, Unread):
            if {conditions.changed_by(each) for each in actions} <= _declared(self.item):
                return
            if self.is_checked:
                self.load()
                self._keep_undeclared()
            else:
                self.pin()

    def delete(self, condition: Condition | None, *, checks: bool) -> None:
        """Delete the item."""
        with self._operation(condition, checks=checks):
            self._check_if(checks)
            if self.is_checked and self.is_absent:
                self.load()  # the stored item may have no version
            self.after = None
            if self.is_absent and self.is_checked:
                self.write = None  # the commit only checks that it is still absent
                self.is_read = True
            else:
                self._plan_delete()

    def touch(self, condition: Condition | None, *, checks: bool, creates: bool = False) -> None:
        """Increment the version."""
        with self._operation(condition, checks=checks):
            if not creates and self.write is None:
                self.require(conditions.exists(self.item))
            self._check_if(checks)
            if self.write is None:
                self._plan_update([conditions.nothing()])

    # Planning: several operations become one write

    def _new_writer(self) -> Writer:
        writer: Writer | None = writer_of(self.item, self.extents)
        if writer is None:
            raise ConfigurationError(f"{self.model.__name__} cannot take part in a transaction: it has no version.")
        writer.token = self._token
        return writer

    def note_lock(self) -> None:
        """Use the lock, acquired after the write was planned, for the write."""
        if self.write is not None:
            self.writer = self._new_writer()

    def _plan_save(self, *, checks: bool, extra: Image | None, replaces: bool) -> None:
        """Plan to store the instance as it is now; for `extra` and `replaces` see `complete_save`."""
        self._check_if(checks)
        writer = self._new_writer()
        with versions.planned_as(self.item, self.before):
            write = writer.plan_save(
                self.condition,
                checks_version=self.is_checked,
                error=TransactWriteError,
                stored=self.stored if self.is_checked else None,
            )
        write, after = complete_save(write, self.stored, extra, replaces=replaces)
        self.write, self.writer, self.after = write, writer, after
        self._values = self.item.attribute_values

    def _plan_update(self, actions: list[Action]) -> None:
        writer = self._new_writer()
        with versions.planned_as(self.item, self.before):
            write = writer.plan_update(actions, self.condition, checks_version=self.is_checked)
        self.write, self.writer = write, writer

    def _plan_delete(self) -> None:
        writer = self._new_writer()
        with versions.planned_as(self.item, self.before):
            write = writer.plan_delete(self.condition, checks_version=self.is_checked)
        self.write, self.writer = write, writer

    def _changes(self) -> list[Action]:
        """Return the actions that turn the stored item into the one that the transaction sees."""
        assert not isinstance(self.after, Unread)  # noqa: S101 - evaluated
        return changes(self.stored, self.after or {}, self.key)

    def _plan_again(self) -> None:
        """Plan the same write with a check of what is known."""
        assert self.write is not None  # noqa: S101 - asked for only then
        if self.write.operation is SAVE:
            with versions.planned_as(self.item, self.before):
                part = versions.part_of(self.item, is_checked=True, token=self._token)
            self.write = saved_again(self.write, part, self.condition)
        elif self.write.operation is DELETE:
            self._plan_delete()
        else:
            is_unknown = isinstance(self.after, Unread)
            self._plan_update([*self.pending] or ([conditions.nothing()] if is_unknown else self._changes()))

    def final(self) -> Write:
        """Return the write or check that DynamoDB will do, with all of its conditions."""
        check_key(self.item, self.key)
        write = self.write
        if write is None:
            with versions.planned_as(self.item, self.before):
                part = versions.part_of(self.item, is_checked=True)
            condition = self._strict(expiry.or_expired(self.model, part.condition()), part)
            return Write(self.item, CHECK, part, conditions.both(self.condition, condition))
        return write.but(
            condition=conditions.both(self._strict(write.condition, write.part), self.expected),
            claims=None,  # the rows are items of the transaction: see `TransactionItems.take_values`
            is_shown=self.is_checked and self.is_current,
            is_strict=True,
        )

    def _strict(self, condition: Condition | None, part: VersionPart) -> Condition | None:
        """Add a condition where the version alone is ambiguous: no item, no version, or no write id."""
        write_id = part.shape.write_id
        if not part.is_checked or write_id is None:
            return condition
        if self.before.version is not None:
            return condition if self.before.write_id else conditions.both(condition, write_id.does_not_exist())
        if isinstance(self.base, Unread):
            return condition
        path = Place(next(iter(self.key)))
        absent = expiry.or_expired(self.model, path.does_not_exist())
        return conditions.both(condition, absent if self.base is None else path.exists())

    def holds(self, image: Image | None) -> bool:
        """Tell whether an image is the item that was read, by the condition of its write."""
        return effects.holds(image, self.final().whole)

    # Savepoints

    def reset(self) -> None:
        """Forget all operations but the read."""
        self._mark_shown_stale(but=self._first if isinstance(self.base, dict) else None)
        self._forget_change()
        self.item = self._first
        if isinstance(self.base, dict):
            self._show(self.base, is_committed=True)
            versions.set_known(self.item, self.before)
        elif key_of(self.model, *key_values_of(self.item)) != self.key:  # a row that was here before it moved on
            self.item = self._first = self.model.from_raw_data(copy.deepcopy(self.key))
        self._version = versions.known_state(self.item).version

    def saved(self) -> SavedItem:
        """Return the present state."""
        item = self.item
        return SavedItem(
            self._state(_SAVED),
            copy.deepcopy((item.attribute_values, self._seen)),
            is_current=self.is_current,
            is_shown=any(each is item and item.attribute_values is shown for each, shown in self._shown),
            is_unread=isinstance(self.base, Unread),
        )

    def restore(self, saved: SavedItem) -> None:
        """Go back to a state. What was read since is still relied on."""
        vars(self).update(saved.state)
        item = self.item
        if saved.is_unread:
            self._keep_undeclared()
        if self.is_read:
            self.check()
        item.attribute_values, self._seen = copy.deepcopy(saved.values)
        self._values = item.attribute_values if saved.is_current else None
        if saved.is_shown:
            self._note_shown(item)
        self._mark_shown_stale(but=item)
