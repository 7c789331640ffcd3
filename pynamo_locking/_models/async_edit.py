"""The context manager of `aedit`, for tasks of asyncio."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Generic

from typing_extensions import TypeVar, override

from pynamo_locking._locks.async_lock import AsyncLock, leaving

if TYPE_CHECKING:
    from types import TracebackType

    from pynamo_locking._models.edit import Edit
    from pynamo_locking._models.writing import GuardedMixin

G = TypeVar("G", bound="GuardedMixin")


class AsyncEdit(contextlib.AbstractAsyncContextManager[G], Generic[G]):
    """The context manager of `LockableModel.aedit`."""

    def __init__(self, edit: Edit[G]) -> None:
        self._edit = edit
        self.lock: AsyncLock[G] = AsyncLock(edit.lock)

    @override
    async def __aenter__(self) -> G:
        await self.lock._enter()
        try:
            item = await self.lock.aitem()
            self._edit._note(item)
        except BaseException as error:
            await self.lock.__aexit__(type(error), error, error.__traceback__)
            raise
        return item

    @override
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await leaving(self.lock._lock, partial(self._edit.__exit__, kind, error, traceback), error)
