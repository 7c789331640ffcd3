"""Read, change and save one item under its lock, as a context manager."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Generic

from typing_extensions import TypeVar

from pynamo_locking._core.outcome import EntryEffect
from pynamo_locking._locks.instances import EditUndo
from pynamo_locking.exceptions import LockLost

if TYPE_CHECKING:
    from types import TracebackType

    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._models.writing import GuardedMixin

G = TypeVar("G", bound="GuardedMixin")


class Edit(Generic[G]):
    """The context manager of `LockableModel.edit`, for ``with`` and for ``async with``."""

    def __init__(self, lock: Lock[G]) -> None:
        self.lock = lock
        self._before: EditUndo | None = None

    def __enter__(self) -> G:
        takes = self.lock._takes
        try:
            self.lock._enter()
            item = self.lock.item
            self._note(item)
        except BaseException as error:
            if self.lock._takes > takes:
                self.lock._leave(error)
            raise
        return item

    async def __aenter__(self) -> G:
        await self.lock._aenter()
        try:
            item = await self.lock.aitem()
            self._note(item)
        except BaseException as error:
            await self.lock.__aexit__(type(error), error, error.__traceback__)
            raise
        return item

    def _note(self, item: G) -> None:
        """Note the state of the item, which an outer block needs if this block fails."""
        is_inner, copies = not self.lock._is_last_take, self.lock._must_have_taken().copies
        self._before = EditUndo(item, copies) if is_inner else None
        self._copies = copies
        copies.edits += 1

    def _take_back(self, error: BaseException) -> None:
        """Undo the unsaved changes of this block: an outer block must not save them either."""
        if self._before is None:
            self.lock._forget_item()
        else:
            self._before.restore(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.lock._aleave(partial(self._leave, error), error)

    def _leave(self, error: BaseException | None) -> None:
        self._copies.edits -= 1
        try:
            if error is None:
                self._save()
            else:
                self._take_back(error)
        except BaseException as failure:
            self._take_back(failure)
            self.lock._leave(failure)
            raise
        self.lock._leave(error)

    def _save(self) -> None:
        if self.lock._is_item_deleted:  # in the block, and perhaps the lock with it
            return
        kind = EntryEffect.FINISH if self.lock._is_last_take else EntryEffect.KEEP
        written = self.lock._item()._writer()
        assert written is not None  # noqa: S101 - the lock is held
        try:
            written.save(None, checks_version=True, kind=kind)
        except LockLost:
            if not self.lock._is_item_deleted:
                raise
