"""What a transaction knows of one item, and what it is going to do to it: several operations, one write."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pynamodb.exceptions import TransactWriteError
from pynamodb.expressions.operand import Path

from pynamo_locking._core.outcome import Known
from pynamo_locking._io import expiry, guards, images, transport, versions
from pynamo_locking._io.changes import changes
from pynamo_locking._io.items import check_actions
from pynamo_locking._io.writes import CHECK, DELETE, SAVE, UPDATE, Write, refusal
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._io.items import FreeItem
    from pynamo_locking._io.requests import Image, Row
    from pynamo_locking.guarded import GuardedMixin


class Unread:
    """The stored item has not been read by the transaction."""


UNREAD: Final = Unread()


class Entry:
    """One item of a transaction.

    All conditions are about the item as it is stored before the transaction, whatever was done to it in the
    meantime: DynamoDB checks them when the transaction is committed.

    Args:
        item: the instance that everybody who asks the transaction gets.
        key: the item's key, in DynamoDB's form.
        base: the stored item; None if there is none.
        read: reads the stored item, if it has to be known.
        token: of the transaction; the write ids come from it.

    Attributes:
        before: what is known of the stored item.
        write: what is going to be done; None if the item is only read.
        after: the item as the transaction sees it; None if it is deleted, or was never there.
        condition: those of the callers.
        is_read: whether the transaction relies on it beyond its own write.
        is_checked: whether the stored item has to be the one that is known.
    """

    def __init__(
        self,
        item: GuardedMixin,
        key: Image,
        base: Image | Unread | None,
        read: Callable[[Entry], Image | None],
        token: str,
    ) -> None:
        self.item: GuardedMixin = item
        self.key = key
        self.base = base
        self.before: Known = versions.known(item)
        self.write: Write | None = None
        self.writer: FreeItem | None = None
        self.after: Image | Unread | None = base
        self.condition: Condition | None = None
        self.is_read: bool = False
        self.is_checked: bool = False
        self._pending: list[Action] = []
        self._has_shown = False
        self._read = read
        self._token = token

    @property
    def model(self) -> type[GuardedMixin]:
        """The model of the item."""
        return type(self.item)

    @property
    def table(self) -> str:
        """The name of the item's table."""
        name: str = self.item._get_connection().table_name
        return name

    @property
    def row(self) -> Row | None:
        """The item as one that can carry a mark, if its model has a lock attribute."""
        return None if self.model._lock_attribute() is None else self.item._lock_row_of_item()

    @property
    def is_absent(self) -> bool:
        """Whether the item does not exist, as far as is known."""
        return self.base is None or (isinstance(self.base, Unread) and self.before == Known())

    @property
    def is_deleted(self) -> bool:
        """Whether there is no such item in the eyes of the transaction."""
        return self.after is None

    def take(self, item: GuardedMixin, *, replaces: bool) -> None:
        """Go on with the instance that somebody hands in, which has to be of the same stored item.

        Args:
            item: the instance.
            replaces: whether all of its values are going to be stored, over what was done to another instance.

        Raises:
            StaleVersion: it is another copy, and one of them is old.
        """
        if item is self.item:
            return
        is_made_anew = self.is_deleted and versions.known(item) == Known()
        if not is_made_anew:
            self.compare(item, is_old=replaces and self.write is not None)
        self.item = item

    def compare(self, item: GuardedMixin, *, is_old: bool = False) -> None:
        """Refuse an instance of another state of the item than the transaction knows.

        Raises:
            StaleVersion: it is.
        """
        if is_old or versions.known(item) != self.before:
            why = "is in the transaction already, as another copy that differs: one of them is old."
            raise versions.stale(item, TransactWriteError, why)

    def check(self) -> None:
        """Rely on the item being the one that is known."""
        self.is_read = True
        if self.write is not None and not self.is_checked:
            self.is_checked = True
            self._plan_again()

    def rely(self) -> None:
        """Rely on what was read; a write that was to happen whatever is stored is one of that item from now on."""
        self.is_read = True
        if self.write is not None and not self.is_checked:
            self.pin()

    def forsake(self, *, is_saved: bool) -> None:
        """Note that what was done here does not happen: to save an instance that shows it would do it all the same.

        Args:
            is_saved: whether that is meant for what the caller has put into the instance himself as well.
        """
        if self._has_shown or (is_saved and self.write is not None):
            versions.outdate(self.item, is_locked=True)

    def require(self, condition: Condition | None) -> None:
        """Note a condition of the caller's."""
        self.condition = guards.both(self.condition, condition)

    # Operations

    def save(self, condition: Condition | None, *, checks: bool) -> None:
        """Store the instance as it is now."""
        self.require(condition)
        self._plan_save(checks=checks)

    def _plan_save(self, *, checks: bool) -> None:
        self.is_checked = self.is_checked or self.is_read or checks
        writer = self._new_writer()
        with versions.posing(self.item, self.before):
            self.write = writer.plan_save(self.condition, checks_version=self.is_checked, error=TransactWriteError)
        base = {} if isinstance(self.base, Unread) or self.base is None else self.base
        kept = {name: base[name] for name in base if self.write.attributes is None}
        for attribute in self.item.get_attributes().values():
            kept.pop(attribute.attr_name, None)
        self.after = kept | self.item.serialize()

    def update(self, actions: Sequence[Action], condition: Condition | None, *, checks: bool) -> None:
        """Apply actions to the item as the transaction sees it."""
        self.require(condition)
        before, is_first = self.write, self.write is None
        check_actions(self.item, self._new_writer().protected, actions)
        self.is_checked = self.is_checked or self.is_read or checks
        if is_first and isinstance(self.after, Unread):
            self._pending = list(actions)  # evaluated if anybody asks; DynamoDB does it otherwise
            self._plan_update(self._pending)
            return
        self._evaluate(actions)
        if is_first:
            self._plan_update(list(actions))
        elif before is not None and before.operation is UPDATE:
            self._plan_update(self._changes())
        else:
            self._plan_save(checks=self.is_checked)

    def _plan_update(self, actions: list[Action]) -> None:
        writer = self._new_writer()
        with versions.posing(self.item, self.before):
            self.write = writer.plan_update(actions, self.condition, checks_version=self.is_checked)

    def _plan_delete(self) -> None:
        writer = self._new_writer()
        with versions.posing(self.item, self.before):
            self.write = writer.plan_delete(self.condition, checks_version=self.is_checked)

    def _evaluate(self, actions: Sequence[Action]) -> None:
        """Make the instance, and `after`, what they are after some actions."""
        current = self.look()
        keys = self.item._get_hash_range_key_serialized_values()
        kwargs = self.item._get_connection().get_operation_kwargs(keys[0], range_key=keys[1], actions=list(actions))
        try:
            self.after = images.updated(current, {**kwargs, "Key": self.key})
        except images.Refusal as refusal:
            raise TransactWriteError(f"Failed to update item: {refusal}", refusal) from refusal
        self._show(self.after)
        self._has_shown = True

    def _changes(self) -> list[Action]:
        """Return the actions that make the stored item what the transaction sees."""
        assert not isinstance(self.base, Unread)  # noqa: S101 - it was read to evaluate
        assert not isinstance(self.after, Unread)  # noqa: S101 - as above
        return changes(self.base, self.after or {}, self.key)

    def look(self) -> Image | None:
        """Return the item as the transaction sees it, reading the stored one if need be."""
        if isinstance(self.after, Unread):
            self.load()
            self.after = self.base
            pending, self._pending = self._pending, []
            if pending:
                self._evaluate(pending)
        assert not isinstance(self.after, Unread)  # noqa: S101 - loaded
        return self.after

    def load(self) -> None:
        """Read the stored item, which has to be the one that is known."""
        if isinstance(self.base, Unread):
            base = self._read(self)
            if self.is_checked and not self.before.may_be(versions.known_of(self.model, base or {})):
                cause = transport.condition_failed(TransactWriteError, "the item is not the one that was read")
                raise refusal(self.final(), TransactWriteError, base, cause)
            self.base = base

    def _show(self, image: Image) -> None:
        """Make the instance show an image, without a new version: it gets that when the transaction is committed."""
        fresh = self.model.from_raw_data(copy.deepcopy(image)).attribute_values
        name = str(self.item._version_attribute_name)
        fresh.pop(name, None)
        if name in self.item.attribute_values:
            fresh[name] = self.item.attribute_values[name]
        self.item.attribute_values = fresh

    def delete(self, condition: Condition | None, *, checks: bool) -> None:
        """Delete the item."""
        self.require(condition)
        self.is_checked = self.is_checked or self.is_read or checks
        self.after = None
        if self.is_absent and self.is_checked:
            self.write, self.is_read = None, True  # it only has to be absent still
        else:
            self._plan_delete()

    def touch(self, condition: Condition | None, *, checks: bool, creates: bool = False) -> None:
        """Count the version up."""
        self.require(condition)
        if not creates and self.write is None:
            self.require(self.item.get_attributes()[str(self.item._hash_keyname)].exists())
        self.is_checked = self.is_checked or self.is_read or checks
        if self.write is None:
            self._plan_update([guards.nothing()])

    def _new_writer(self) -> FreeItem:
        writer = self.item._writer()
        if writer is None:
            raise ConfigurationError(f"{self.model.__name__} cannot take part in a transaction: it has no version.")
        writer.token = self._token
        self.writer = writer
        return writer

    def reset(self) -> None:
        """Forget all operations but the read."""
        self.write = self.writer = self.condition = None
        self.after, self._pending, self.is_checked = self.base, [], False
        if isinstance(self.base, dict):
            self._show(self.base)

    # What it amounts to

    def final(self) -> Write:
        """Return what DynamoDB has to do or to check, with the conditions that make it safe."""
        write = self.write
        if write is None:
            with versions.posing(self.item, self.before):
                part = versions.part_of(self.item, is_checked=True)
            known = expiry.for_save(self.model, part.condition())
            return Write(self.item, CHECK, part, guards.both(self.condition, self._strict(known, part.is_checked)))
        is_shown = self.is_checked and not isinstance(self.after, Unread)
        condition = self._strict(write.condition, write.part.is_checked)
        return replace(write, condition=condition, is_shown=is_shown, is_strict=True)

    def pin(self) -> None:
        """Make a write without a check one of the item as it is stored, which is all that a mark can say."""
        assert self.write is not None  # noqa: S101 - only writes are pinned
        if isinstance(self.base, Unread) or self.write.operation is not UPDATE:
            self.base = self._read(self)
        self.before = versions.known_of(self.model, self.base or {})
        self.is_checked = True
        if self.write.operation is UPDATE:
            self.look()
        self._plan_again()

    def _plan_again(self) -> None:
        """Plan the same write with a check of what is known."""
        assert self.write is not None  # noqa: S101 - asked for only then
        if self.write.operation is SAVE:
            self.write = self._save_again(self.write)
        elif self.write.operation is DELETE:
            self._plan_delete()
        else:
            is_unknown = isinstance(self.after, Unread)
            self._plan_update(self._pending or ([guards.nothing()] if is_unknown else self._changes()))

    def _save_again(self, old: Write) -> Write:
        """Return a save of the values that were given when it was asked for."""
        with versions.posing(self.item, self.before):
            part = versions.part_of(self.item, is_checked=True, token=self._token)
        condition = expiry.for_save(self.model, guards.both(self.condition, part.condition()))
        write = replace(old, part=part, condition=condition, return_values=None)
        if old.attributes is not None:
            write.attributes = dict(old.attributes)
            part.complete_put(write.attributes)
        else:
            write.actions = [*old.actions[: len(old.actions) - len(old.part.actions())], *part.actions()]
        return write

    def _strict(self, condition: Condition | None, is_checked: bool) -> Condition | None:  # noqa: FBT001
        """Add what a version alone does not say: an item without a write id, or without a version, and no item."""
        shape = versions.shape_of(self.model)
        if not is_checked or shape.write_id is None:
            return condition
        if self.before.version is not None:
            return condition if self.before.write_id else guards.both(condition, shape.write_id.does_not_exist())
        path = Path([next(iter(self.key))])
        if isinstance(self.base, dict):
            return guards.both(condition, path.exists())
        is_certain = self.base is None and expiry.attribute_name(self.model) is None
        return guards.both(condition, path.does_not_exist()) if is_certain else condition
