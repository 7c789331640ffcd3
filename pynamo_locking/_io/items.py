"""The three writes of an item, for the two places where its lock can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.constants import ITEM
from pynamodb.exceptions import TransactWriteError
from pynamodb.models import Model

from pynamo_locking._core.outcome import Kind
from pynamo_locking._io import guards, records, writes
from pynamo_locking._io.writes import DELETE, SAVE, UPDATE, Write
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.queue import LockState
    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.requests import Row

#: Where an item notes the lock document that a transaction's Put will have written.
_PUT_DOCUMENT = "_pynamo_locking_put_document"


class EmbeddedItem:
    """Writes an item that carries its own lock, inside and outside of it.

    Args:
        item: the model instance.
        lock: its lock attribute.
        row: the item as a lock's row.
        own: the entry under which it is written; None outside the lock.
    """

    def __init__(self, item: Model, lock: Attribute[Any], row: Row, own: OwnEntry | None) -> None:
        self.item = item
        self.lock = lock
        self.row = row
        self.own = own

    def save(self, condition: Condition | None, *, checks_version: bool, kind: Kind = Kind.KEEP) -> Any:
        """Set every declared attribute, remove those without a value, leave the lock alone."""
        write = self.planned_save(condition, checks_version=checks_version)
        write.kind = kind
        version = guards.version_attribute(self.item)
        check_copy(self.item, self.own)
        if version is not None and not checks_version:
            write.return_values = "UPDATED_NEW"
        data = self._send(write)
        self.item.update_local_version_attribute()
        if version is not None and not checks_version and version.attr_name in data.get("Attributes", {}):
            stored = version.deserialize(data["Attributes"][version.attr_name]["N"])
            setattr(self.item, str(self.item._version_attribute_name), stored)
        return data

    def planned_save(self, condition: Condition | None, *, checks_version: bool) -> Write:
        """Return the save without the lock's part."""
        checked = guards.both(condition, guards.version_condition(self.item, wanted=checks_version))
        kept = {self.row.attribute, self.row.ttl_attribute or self.row.attribute}
        actions = guards.save_actions(self.item, kept, checks_version=checks_version)
        return Write(self.item, SAVE, checked, actions)

    def update(self, actions: Sequence[Action], condition: Condition | None, *, checks_version: bool) -> Any:
        """Apply actions; the item is then what DynamoDB has stored."""
        check_actions(self.item, self.lock, actions)
        version = guards.version_attribute(self.item)
        counted = [*actions, *([] if version is None else [version.add(1)])]
        checked = guards.both(condition, guards.version_condition(self.item, wanted=checks_version))
        data = self._send(Write(self.item, UPDATE, checked, counted, return_values="ALL_NEW"))
        image = data["Attributes"]
        stored_class = self.item._get_discriminator_class(image)
        if stored_class and stored_class is not type(self.item):
            raise ValueError(f"Cannot update this item from the returned class: {stored_class.__name__}")
        self.item.deserialize(image)
        return data

    def delete(self, condition: Condition | None, *, checks_version: bool) -> Any:
        """Delete the item and its lock."""
        checked = guards.both(condition, guards.version_condition(self.item, wanted=checks_version))
        return self._send(Write(self.item, DELETE, checked, kind=Kind.DELETE))

    def _send(self, write: Write) -> dict[str, Any]:
        if self.own is None:
            return writes.outside(self.row, self.lock, write)
        return writes.inside(self.own, write)

    # For transactions, which are sent later

    def guard(self) -> tuple[Condition, list[Action]]:
        """Return the lock's condition and actions for an update in a transaction."""
        if self.own is None:
            return guards.unlocked(self.lock), []
        number = self.own.next_write()
        return guards.standing(self.own, number), [guards.counting(self.own, number)]

    def guard_of_delete(self) -> Condition:
        """Return the lock's condition for a delete in a transaction."""
        if self.own is None:
            return guards.unlocked(self.lock)
        self.own.may_delete = True
        return guards.standing(self.own, self.own.next_write())

    def guard_of_put(self, state: LockState) -> Condition:
        """Return the condition for a Put: it writes the whole lock document, so that must not have changed.

        Raises:
            ItemLocked: the loaded document shows somebody else in the queue.
            ConfigurationError: the item was loaded before the lock was taken.
        """
        if self.own is None:
            if state.entries:
                raise writes.locked_out(self.row, state, TransactWriteError)
            vars(self.item).pop(_PUT_DOCUMENT, None)
        elif state.raw is None or state.find(self.own.entry.id, self.own.entry.ticket) is None:
            raise ConfigurationError(
                f"this copy of {self.row.label} was loaded before the lock was taken. Use lock.item, or refresh() it."
            )
        else:
            vars(self.item)[_PUT_DOCUMENT] = records.with_write_counted(
                state.raw, self.own.entry.id, self.own.next_write()
            )
        return guards.unchanged(self.lock, state.raw)

    def complete_put(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Put the lock document into a Put whose condition is `guard_of_put`."""
        document = vars(self.item).get(_PUT_DOCUMENT)
        if document is not None:
            kwargs[ITEM][self.lock.attr_name] = {"M": document}
        return kwargs


def put_document(item: Model) -> LockState | None:
    """Return the lock document that a committed Put has stored, once."""
    document = vars(item).pop(_PUT_DOCUMENT, None)
    return None if document is None else records.state_of(document)


class GuardedItem:
    """Writes an item whose lock, which we hold, is a row of its own: one transaction each.

    Args:
        item: the model instance.
        own: the entry under which it is written.
    """

    def __init__(self, item: Model, own: OwnEntry) -> None:
        self.item = item
        self.own = own

    def save(self, condition: Condition | None, *, checks_version: bool, kind: Kind = Kind.KEEP) -> Any:
        """Put the item."""
        check_copy(self.item, self.own)
        action = self.put(condition, checks_version=checks_version)
        writes.beside(self.own, Write(self.item, SAVE, None, kind=kind), action)
        self.own.is_item_deleted = False
        self.item.update_local_version_attribute()
        return {}

    def put(self, condition: Condition | None, *, checks_version: bool) -> dict[str, Any]:
        """Return the Put of a transaction."""
        # The public builder, get_save_kwargs_from_instance, has no way to leave the version out.
        keys, kwargs = self.item._get_save_args(condition, add_version_condition=checks_version)
        kwargs["key"] = ITEM
        return {"Put": self.item._get_connection().get_operation_kwargs(*keys, **kwargs)}

    def update(self, actions: Sequence[Action], condition: Condition | None, *, checks_version: bool) -> Any:
        """Apply actions and load the item again: a transaction returns no values."""
        action = self.update_action(actions, condition, checks_version=checks_version)
        writes.beside(self.own, Write(self.item, UPDATE, None), action)
        self.item.refresh(consistent_read=True)
        return {"Attributes": self.item.serialize()}

    def update_action(
        self, actions: Sequence[Action], condition: Condition | None, *, checks_version: bool
    ) -> dict[str, Any]:
        """Return the Update of a transaction."""
        check_actions(self.item, None, actions)
        kwargs = Model.get_update_kwargs_from_instance(
            self.item, list(actions), condition, add_version_condition=checks_version
        )
        return {"Update": kwargs}

    def delete(self, condition: Condition | None, *, checks_version: bool) -> Any:
        """Delete the item; its lock stays."""
        writes.beside(
            self.own,
            Write(self.item, DELETE, None),
            self.delete_action(condition, checks_version=checks_version),
        )
        self.own.is_item_deleted = True
        return {}

    def delete_action(self, condition: Condition | None, *, checks_version: bool) -> dict[str, Any]:
        """Return the Delete of a transaction."""
        kwargs = Model.get_delete_kwargs_from_instance(self.item, condition, add_version_condition=checks_version)
        return {"Delete": kwargs}


def _path(action: Action) -> list[str]:
    """Return the path that an action changes, by its segments."""
    path: Any = action.values[0]  # a Path in every action there is
    segments: list[str] = path.path
    return segments


def check_copy(item: Model, own: OwnEntry | None) -> None:
    """Refuse to save a whole item that was read under an earlier lock: others may have changed it since."""
    if own is not None and writes.is_stale_copy(item, own):
        raise ConfigurationError(
            f"this copy of {own.row.label} was read under an earlier lock; saving it could undo what others wrote "
            f"meanwhile. Use lock.item, or refresh() it."
        )


def check_actions(item: Model, lock: Attribute[Any] | None, actions: Sequence[Action]) -> None:
    """Refuse what is no list of actions, and actions on the lock itself."""
    if not isinstance(actions, list) or not actions:
        raise TypeError("the value of `actions` is expected to be a non-empty list")
    for action in actions:
        if lock is not None and _path(action)[0] == lock.attr_name:
            raise ConfigurationError(
                f"{action!r} would change the lock of {type(item).__name__} behind its back; "
                f"use locked() or break_lock()."
            )
