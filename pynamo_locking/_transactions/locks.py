"""The queue locks of items that a transaction reads with ``for_update`` or ``for_share``, absent ones included."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io import runtime
from pynamo_locking._io.model_doors import lock_target_by_name
from pynamo_locking._io.runtime import logger
from pynamo_locking._items.keys import ItemKey, key_of, label_of
from pynamo_locking._locks.lock import Lock, handle_of
from pynamo_locking._locks.locked_all import in_order
from pynamo_locking._models.mixins import LockableMixin
from pynamo_locking._pynamodb import connection_of, key_values_of
from pynamo_locking.exceptions import ItemNotFound, LockLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.item import TransactionItem


@dataclass(frozen=True)
class Locking:
    """How a transaction locks what it reads; `shared` among readers.

    It `refuses_absent` items that cannot be locked if the caller would take them for locked.
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
    target, options = handle_of(lock).target, handle_of(lock).options
    model: type[LockableMixin] = target.model
    if target.is_elsewhere or target.row.may_create or getattr(model.Meta, "lock_table", None) is None:
        return None
    return Lock(lock_target_by_name(model, target.row.key, options.settings, target.read), options, None)


def shared_item(item: GuardedMixin) -> ConfigurationError:
    """Return the error for a write of an item that was locked with ``for_share``."""
    return ConfigurationError(
        f"{label_of(type(item), key_values_of(item))} was read with for_share=True, so others may share its "
        f"lock, and nothing may be written under it. There is no upgrade, since two transactions that tried would wait "
        f"for each other for ever: use for_update=True from the start."
    )


def _give_back(lock: Lock[Any]) -> None:
    handle = handle_of(lock)
    try:
        if handle.depth:
            handle.end_block()
    except LockLost as error:
        logger.warning("the lock %s was lost before its transaction released it: %s", handle.target.row.label, error)


class HeldLocks:
    """The locks that a transaction holds until its end. It waits for them until the deadline, by the monotonic clock.

    Attributes:
        held: the locks, in the order in which they were acquired.
        shared: the items that others may share, so that the transaction must not write them.
    """

    def __init__(self, deadline: Deadline, items: Mapping[ItemKey, TransactionItem], checked: set[ItemKey]) -> None:
        self._deadline = deadline
        self._items = items
        self._checked = checked  # the items that the commit checks under every isolation: shared ones too
        self.held: list[Lock[Any]] = []
        self.shared: set[ItemKey] = set()

    def left(self) -> float:
        """Return for how many seconds to wait for a lock."""
        return max(0.0, self._deadline.at - runtime.current.monotonic())

    def missing(
        self, model: type[GuardedMixin], values: Iterable[tuple[Any, Any]], locking: Locking
    ) -> Iterator[Lock[Any]]:
        """Yield the locks that the transaction has to acquire for some items, in one canonical order.

        The caller acquires each before it asks for the next one. An item that does not exist has no lock in it:
        then that of its name follows, and the item's again, which another process may have created meanwhile.
        """
        if not issubclass(model, LockableMixin):
            raise ConfigurationError(f"{model.__name__} has no lock for {locking}: derive it from LockableModel.")
        table = connection_of(model).table_name
        locks = {model.locked(*each, shared=locking.shared): ItemKey.of(table, key_of(model, *each)) for each in values}
        self._checked.update(locks.values() if locking.shared else ())
        for lock in in_order(locks):
            name = lock_of_name(lock)
            if self._holds(lock) or self._holds(name):
                continue
            yield lock
            if not handle_of(lock).depth and name is not None:
                yield name
                yield lock
            elif not handle_of(lock).depth and locking.refuses_absent:
                raise ConfigurationError(
                    f"there is no item {handle_of(lock).target.row.label}, and {locking} cannot lock it, since its "
                    f"lock would be in the item: name a subclass of NamedLock in Meta.lock_table of {model.__name__}, "
                    f"where the name of an absent item is locked."
                )
            handles = [handle_of(each) for each in (lock, name) if each is not None]
            if any(not each.held_entry().entry.lock_mode.may_write for each in handles if each.depth):
                self._share(locks[lock])

    def _share(self, identity: ItemKey) -> None:
        item = self._items.get(identity)
        if item is not None and item.plan.write is not None:
            raise shared_item(item.instance)
        self.shared.add(identity)

    def _holds(self, lock: Lock[Any] | None) -> bool:
        if lock is None:
            return False
        wanted, handles = handle_of(lock), map(handle_of, self.held)
        same = [each for each in handles if each.target.row.identity == wanted.target.row.identity]
        return any(each.options.lock_mode.covers(wanted.options.lock_mode) for each in same)

    def hold_if_there(self, lock: Lock[Any], *, share: float = 1.0) -> None:
        """Hold the lock of an item. If there is none, the read finds it absent, and the commit checks that."""
        with suppress(ItemNotFound):
            self.hold(lock, share=share)

    def hold(self, lock: Lock[Any], *, share: float = 1.0) -> None:
        """Acquire a lock, waiting for a share of what is left of `wait`; hold it until the end of the transaction."""
        handle_of(lock).begin_block(share * self.left())
        self.held.append(lock)

    def give_back(self) -> None:
        """Release what is held after the end of the transaction, whose outcome no longer depends on it."""
        with ExitStack() as last_first:
            for lock in self.held:
                last_first.callback(_give_back, lock)
