"""How what a transaction does to one item is written: several operations are one write, with conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TransactWriteError
from pynamodb.expressions.operand import Path

from pynamo_locking._core.outcome import Known
from pynamo_locking._io import expiry, guards, versions
from pynamo_locking._io.changes import changes
from pynamo_locking._io.images import difference
from pynamo_locking._io.rows import key_of
from pynamo_locking._io.writes import CHECK, DELETE, SAVE, Write
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._io.items import FreeItem
    from pynamo_locking._io.requests import Image, Row
    from pynamo_locking.guarded import GuardedMixin


class Unread:
    """The stored item has not been read by the transaction."""


UNREAD: Final = Unread()


class Planned:
    """One item of a transaction, and the write that is planned for it.

    Args:
        item: the instance that everybody who asks the transaction gets.
        key: the item's key, in DynamoDB's form.
        base: the stored item; None if there is none.
        token: of the transaction; the write ids come from it.

    Attributes:
        before: what is known of the stored item.
        write: what is going to be done; None if the item is only read.
        after: the item as the transaction sees it; None if it is deleted, or was never there.
        condition: those of the callers.
        is_read: whether the transaction relies on it beyond its own write.
        is_checked: whether the stored item has to be the one that is known.
    """

    def __init__(self, item: GuardedMixin, key: Image, base: Image | Unread | None, token: str) -> None:
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
        self._values: dict[str, Any] | None = None if isinstance(base, Unread) else item.attribute_values
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
        self._check_key()
        return None if self.model._lock_attribute() is None else self.item._lock_row_of_item()

    @property
    def is_absent(self) -> bool:
        """Whether the item does not exist, as far as is known."""
        return self.base is None or (isinstance(self.base, Unread) and self.before == Known())

    @property
    def is_deleted(self) -> bool:
        """Whether there is no such item in the eyes of the transaction."""
        return self.after is None

    @property
    def is_current(self) -> bool:
        """Whether the instance shows what the transaction sees, and what its user has changed in it since."""
        return self.item.attribute_values is self._values

    def _check_key(self) -> None:
        """Refuse an instance whose key was changed: what was asked for would be done to another item."""
        key = key_of(self.model, *self.item._key_values())
        if key != self.key and difference(self.key, key) != ({}, []):
            raise ConfigurationError(
                f"the key of this {self.model.__name__} was changed after it was given to the transaction, which would "
                f"write another item: use an instance for each item. Nothing was written."
            )

    # Planning

    def _plan_save(self, *, checks: bool, extra: Image | None, replaces: bool) -> None:
        """Plan to store the instance as it is now.

        Args:
            checks: whether the stored version has to be the known one.
            extra: what is to be there besides, of attributes that are not declared; None for what is stored.
            replaces: whether a Put leaves nothing of that.
        """
        self.is_checked = self.is_checked or self.is_read or checks
        writer = self._new_writer()
        with versions.planned_as(self.item, self.before):
            write = writer.plan_save(self.condition, checks_version=self.is_checked, error=TransactWriteError)
        base = self.base if isinstance(self.base, dict) else {}
        kept: Image = {}
        if write.attributes is None:
            undeclared = self.undeclared(base)
            extra = undeclared if extra is None else extra
            more = [] if extra == undeclared else changes(undeclared, extra, ())
            write.actions = [*more, *write.actions]
            write_id = str(versions.shape_of(self.model).write_id_name)
            kept = {write_id: base[write_id]} if write_id in base else {}
        else:
            extra = {} if replaces or extra is None else extra
            write.attributes |= extra
        self.write = write
        self.after = kept | extra | self.item.serialize()
        self._values = self.item.attribute_values

    def undeclared(self, image: Image) -> Image:
        """Return what an image has besides the declared attributes and the write id."""
        declared = {attribute.attr_name for attribute in self.item.get_attributes().values()}
        ours = {*declared, versions.shape_of(self.model).write_id_name}
        return {name: value for name, value in image.items() if name not in ours}

    def _plan_update(self, actions: list[Action]) -> None:
        writer = self._new_writer()
        with versions.planned_as(self.item, self.before):
            self.write = writer.plan_update(actions, self.condition, checks_version=self.is_checked)

    def _plan_delete(self) -> None:
        writer = self._new_writer()
        with versions.planned_as(self.item, self.before):
            self.write = writer.plan_delete(self.condition, checks_version=self.is_checked)

    def _changes(self) -> list[Action]:
        """Return the actions that make the stored item what the transaction sees."""
        assert not isinstance(self.base, Unread)  # noqa: S101 - it was read to evaluate
        assert not isinstance(self.after, Unread)  # noqa: S101 - as above
        return changes(self.base, self.after or {}, self.key)

    def _new_writer(self) -> FreeItem:
        writer = self.item._writer()
        if writer is None:
            raise ConfigurationError(f"{self.model.__name__} cannot take part in a transaction: it has no version.")
        writer.token = self._token
        self.writer = writer
        return writer

    def note_lock(self) -> None:
        """Write the item under the lock that was taken after its write was planned."""
        if self.write is not None:
            self._new_writer()

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
        with versions.planned_as(self.item, self.before):
            part = versions.part_of(self.item, is_checked=True, token=self._token)
        condition = expiry.for_save(self.model, guards.both(self.condition, part.condition()))
        write = replace(old, part=part, condition=condition, return_values=None)
        if old.attributes is not None:
            write.attributes = dict(old.attributes)
            part.complete_put(write.attributes)
        else:
            write.actions = [*old.actions[: len(old.actions) - len(old.part.actions())], *part.actions()]
        return write

    # What it amounts to

    def final(self) -> Write:
        """Return what DynamoDB has to do or to check, with the conditions that make it safe.

        Raises:
            ConfigurationError: the instance has another key by now.
        """
        self._check_key()
        write = self.write
        if write is None:
            with versions.planned_as(self.item, self.before):
                part = versions.part_of(self.item, is_checked=True)
            known = expiry.for_save(self.model, part.condition())
            return Write(self.item, CHECK, part, guards.both(self.condition, self._strict(known, part.is_checked)))
        condition = self._strict(write.condition, write.part.is_checked)
        return replace(write, condition=condition, is_shown=self.is_checked and self.is_current, is_strict=True)

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
