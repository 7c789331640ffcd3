"""Read, change and save one item under its lock: `edit`."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from typing_extensions import TypeVar

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import shortest_lease
from pynamo_locking._core.write_outcome import EntryEffect
from pynamo_locking._io.model_doors import lone_writer_of
from pynamo_locking._locks.acquire import current_task
from pynamo_locking._locks.context import holds_a_lock
from pynamo_locking._locks.lock import handle_of, no_decorator
from pynamo_locking._models.writes import GuardedMixin, prepare_save
from pynamo_locking._pynamodb import key_values_of
from pynamo_locking.exceptions import LockLost

if TYPE_CHECKING:
    from types import TracebackType

    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model

    from pynamo_locking._locks.lock import Lock


G = TypeVar("G", bound=GuardedMixin)


def may_queue(*, is_awaited: bool = False) -> bool:
    """Tell whether a retry of this caller may wait for a lock.

    Not if the caller holds one, since the order could be another one; nor if it blocks an event loop, since those
    before it in the queue may be tasks of that loop.
    """
    return not holds_a_lock() and (is_awaited or current_task() is None)


def retry_lock(model: Any, key: tuple[Any, Any], lease: float = 0.0, **options: Any) -> Lock[Any]:
    """Return the lock of an item for a retry. Its lease is short: if this process dies, all others wait for its end."""
    shortest = shortest_lease(model.lock_settings())
    lock: Lock[Any] = model.locked(*key, lease=max(lease, shortest), heartbeat=True, **options)
    return lock


class EditUndo:
    """The values of an instance when an inner block began. If the block saved it, they are an old version again."""

    def __init__(self, item: Model) -> None:
        self._item = item
        self._values = copy.deepcopy(item.attribute_values)

    def restore(self) -> None:
        self._item.attribute_values = self._values


class Edit(Generic[G]):
    """The context manager of `LockableModel.edit`, for ``with`` and for ``async with``.

    Args:
        lock: of the item.
        condition: must be true of the stored item when it is saved.
        way: what the caller has called, for messages.
    """

    def __init__(self, lock: Lock[G], condition: Condition | None = None, way: str = "edit()") -> None:
        self.lock = lock
        self._condition = condition
        self._way = way
        self._handle = handle_of(lock)
        self._before: EditUndo | None = None

    if not TYPE_CHECKING:  # to a type checker it cannot be called

        def __call__(self, *_: object) -> NoReturn:
            raise no_decorator("An edit")

    def __enter__(self) -> G:
        takes = self._handle.depth
        try:
            self._handle.begin_block()
            return self._begin()
        except BaseException as error:
            if self._handle.depth > takes:
                self._handle.end_block(error)
            raise

    async def __aenter__(self) -> G:
        await self._handle.abegin_block()
        try:
            return await self._abegin()
        except BaseException as error:
            await self.lock.__aexit__(type(error), error, error.__traceback__)
            raise

    def _begin(self) -> G:
        item = self.lock.item
        self._note(item)
        return item

    async def _abegin(self) -> G:
        item = await self.lock.aitem()
        self._note(item)
        return item

    def _note(self, item: G) -> None:
        """Note the state of the item, which an outer block needs if this block fails."""
        self._key = key_values_of(item)
        self._held = self._handle.held_entry()
        self._before = None if self._held.depth == 1 else EditUndo(item)
        self._held.item.edits += 1

    def _take_back(self) -> None:
        """Undo the unsaved changes of this block: an outer block must not save them either."""
        if self._before is None:
            self._handle.forget_item()
        else:
            self._before.restore()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.item.edits -= 1
        try:
            if error is None:
                self._save()
            else:
                self._take_back()
        except BaseException as failure:
            self._take_back()
            self._handle.end_block(failure)
            raise
        self._handle.end_block(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._handle.aend_block(partial(self.__exit__, kind, error, traceback), error)

    def _save(self) -> None:
        if self._handle.item_is_deleted:  # in the block, and perhaps the lock with it
            return
        kind = EntryEffect.FINISH if self._held.depth == 1 else EntryEffect.KEEP
        item = self._handle.current_item()
        prepare_save(item, self._way)
        if key_values_of(item) != self._key:
            raise ConfigurationError(
                f"the key of {item!r:.80} was changed in {self._way}, which has locked {self._key!r:.80}; nothing was "
                f"saved. An item keeps its key: save a new one, and delete this one."
            )
        written = lone_writer_of(item)
        assert written is not None  # noqa: S101 - the lock is held
        try:
            written.save(self._condition, checks_version=True, kind=kind)
        except LockLost:
            if not self._handle.item_is_deleted:
                raise
