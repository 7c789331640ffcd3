"""The queue locks of items that a transaction reads with ``for_update`` or ``for_share``, also of absent ones."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._locks.lock import Lock
from pynamo_locking.exceptions import LockLost

if TYPE_CHECKING:
    from pynamo_locking._models.lockable import LockableMixin
    from pynamo_locking._models.writing import GuardedMixin

logger: logging.Logger = logging.getLogger("pynamo_locking")


@dataclass(frozen=True)
class Locking:
    """How a transaction locks what it reads.

    Attributes:
        shared: among readers.
        refuses_absent: whether an absent item that cannot be locked is refused: the caller would take it for locked.
    """

    shared: bool
    refuses_absent: bool

    def __str__(self) -> str:
        return "for_share=True" if self.shared else "for_update=True"


def locking(*, for_update: bool, for_share: bool, refuses_absent: bool = True) -> Locking | None:
    """Return how to lock, None for not at all."""
    if for_update and for_share:
        raise ConfigurationError("for_update=True and for_share=True exclude each other: to write, use for_update.")
    return Locking(for_share, refuses_absent) if for_update or for_share else None


def lock_of_name(lock: Lock[Any]) -> Lock[Any] | None:
    """Return the lock of the name of an item, for the time in which there is no item to keep the lock in.

    None if the lock is kept elsewhere anyway, or if the model has no table for it.
    """
    model: type[LockableMixin] = lock._target.model
    if lock._target.is_elsewhere or lock._target.row.may_create or getattr(model.Meta, "lock_table", None) is None:
        return None
    options = lock._options
    return Lock(model._target_elsewhere(lock._target.row.key, options.settings, lock._target.read), options, None)


def no_lock_of_absent(lock: Lock[Any], wanted: Locking) -> ConfigurationError:
    """Return the error for an absent item whose lock would be in the item."""
    return ConfigurationError(
        f"there is no item {lock._target.row.label}, and {wanted} cannot lock it, since its lock would be in the item: "
        f"name a subclass of NamedLock in Meta.lock_table of {lock._target.model.__name__}, where the name of an "
        f"absent item is locked."
    )


def shared_item(item: GuardedMixin) -> ConfigurationError:
    """Return the error for a write of an item that was locked with ``for_share``."""
    key = ", ".join(repr(value) for value in item._key_values() if value is not None)
    return ConfigurationError(
        f"{type(item).__name__}({key}) was read with for_share=True, so other parties may share its lock, and nothing "
        f"may be written under it. There is no upgrade, since two transactions that tried would wait for each "
        f"other for ever: use for_update=True from the start."
    )


def give_back(lock: Lock[Any]) -> None:
    """Release a lock after the end of a transaction, whose outcome no longer depends on it."""
    try:
        lock._leave()
    except LockLost as error:
        logger.warning("the lock %s was lost before its transaction released it: %s", lock._target.row.label, error)
