"""Acquisitions by one `Lock` object: counted so that an interrupt, wherever it comes, leaves none behind."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Generic

from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lease import Duration, seconds
from pynamo_locking._io import event_stream, loops, runtime
from pynamo_locking._locks import heartbeat, held_entry, holding, reports, tasks
from pynamo_locking._locks.acquisition import Acquisition
from pynamo_locking._locks.context import taken_here
from pynamo_locking._locks.target import M
from pynamo_locking.exceptions import CorruptRow, LockLost, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._locks.held_entry import HeldEntry
    from pynamo_locking._locks.options import LockOptions
    from pynamo_locking._locks.target import LockTarget

    Before = tuple[int, HeldEntry | None, int]

logger = logging.getLogger("pynamo_locking")


class Taker(Generic[M]):
    """The private part of `Lock`."""

    _blocks = 0  # `with` and `async with` statements that we are in
    _is_cut_short = False
    _is_awaited = False  # acquired with `async with` or `aacquire`

    def __init__(self, target: LockTarget[M], options: LockOptions, on_lost: Callable[[str], object] | None) -> None:
        self._target = target
        self._options = options
        self._on_lost = on_lost
        self._held: HeldEntry | None = None
        self._takes = 0
        self._given: M | None = None  # the instance that `item` has returned since
        self._acquiring = runtime.current.exclusive()
        self._attempt: Acquisition | None = None

    # Acquiring

    def _acquire(self, wait: Duration | None) -> None:
        options, before = self._options_for(wait), None
        try:
            self._begin()
            try:
                before = self._before(is_awaited=False)
                held = self._take_again(before)
                if held is None:
                    held = self._take(options)
                elif not held.remaining:
                    holding.renew(held)
                self._note_take(held, is_awaited=False)
            except BaseException:
                self._undo(before)
                before = None
                raise
            finally:
                self._acquiring.release()
        except BaseException:  # an interrupt that came after all that
            self._undo(before)
            raise

    async def _aacquire(self, wait: Duration | None) -> None:
        """As `_acquire`, but make requests in threads."""
        options, before = self._options_for(wait), None
        try:
            self._begin()
            try:
                before = self._before(is_awaited=True)
                held = self._take_again(before)
                if held is None:
                    held = await self._atake(options)
                elif not held.remaining:
                    await loops.to_the_end(partial(holding.renew, held))
                self._note_take(held, is_awaited=True)
            except BaseException:
                self._undo(before)
                before = None
                raise
            finally:
                self._acquiring.release()
        except BaseException:
            self._undo(before)
            raise

    def _options_for(self, wait: Duration | None) -> LockOptions:
        return self._options if wait is None else replace(self._options, wait=seconds(wait, "wait"))

    def _begin(self) -> None:
        if not self._acquiring.acquire(blocking=False):
            raise self._in_use()

    def _before(self, *, is_awaited: bool) -> Before:
        """Return the state to restore if the acquisition fails."""
        runtime.check_threads()
        if self._takes and self._is_awaited is not is_awaited:
            raise ConfigurationError(
                f"this Lock object holds {self._target.row.label}, which was acquired {self._way}. Acquire it so "
                f"again, or make another Lock object."
            )
        held = taken_here(self._target.row, self._options.claim, self._held)
        if self._takes and (held is None or held is not self._held):
            raise self._in_use()
        self._attempt = None
        return self._takes, held, 0 if held is None else held.depth

    def _take_again(self, before: Before) -> HeldEntry | None:
        """Acquire a lock that this thread or task holds already, or return None. Makes no request."""
        held = before[1]
        if held is None or (held.possession.is_copied and not self._takes):
            return None
        if held.possession.reason:
            raise held.loss()  # an outer block has lost it; acquiring it anew would hide that
        if not held.take_again():
            return None
        if self._on_lost is not None and self._on_lost not in held.on_lost:
            held.on_lost.append(self._on_lost)
        return held

    def _take(self, options: LockOptions) -> HeldEntry:
        attempt = self._attempt = Acquisition(self._target.row, options)
        if self._is_cut_short:
            attempt.cut_short()
        with self._reported(options):
            return self._hold(attempt.run())

    async def _atake(self, options: LockOptions) -> HeldEntry:
        party = runtime.current.party()
        attempt = self._attempt = Acquisition(self._target.row, options)
        with self._reported(options):
            held = await tasks.take(attempt.steps(), self._hold)
        held.party = party  # not the thread of the last request
        held_entry.remember(held)
        return held

    def _reported(self, options: LockOptions) -> contextlib.AbstractContextManager[None]:
        return reports.attempt(self._target.row, options) if event_stream.listeners else contextlib.nullcontext()

    def _hold(self, held: HeldEntry) -> HeldEntry:
        try:
            holding.refuse_expired(held, self._target)
            if self._on_lost is not None:
                held.on_lost.append(self._on_lost)
            if event_stream.listeners:
                reports.acquired(held)  # before any other event of it
            self._begin_heartbeat(held)
            held_entry.remember(held)
        except BaseException:
            held.release()
            raise
        return held

    def _begin_heartbeat(self, held: HeldEntry) -> None:
        if self._options.heartbeat and not held.has_heartbeat:
            held.needs_progress = self._options.heartbeat == "progress"
            heartbeat.heart.add(held)
            held.has_heartbeat = True

    def _note_take(self, held: HeldEntry, *, is_awaited: bool) -> None:
        self._begin_heartbeat(held)
        if not self._takes:
            self._given = None
        self._held, self._is_awaited = held, is_awaited
        self._takes += 1

    def _undo(self, before: Before | None) -> None:
        """Restore the state before a failed acquisition, however far it came; a thread removes what was granted."""
        if before is None:
            return
        self._takes, held, depth = before
        if held is not None:
            held.depth = depth
        granted = None if self._attempt is None else self._attempt.held
        if granted is not None and not granted.possession.is_over:
            granted.leave_behind()

    def _cut_short(self) -> None:
        """Let an `acquire` of another thread time out now, or as soon as it begins."""
        self._is_cut_short = True
        if self._attempt is not None:
            self._attempt.cut_short()

    def _in_use(self) -> ConfigurationError:
        return ConfigurationError(
            f"this Lock object is in use for {self._target.row.label} already: by another thread or task, by one whose "
            f"event loop was closed before it gave the lock back, or its item was deleted in the block. Make one Lock "
            f"object for each party, and release it before it is taken anew."
        )

    # Releasing

    def _give_back(self) -> None:
        held = self._must_have_taken()
        takes, depth, is_last = self._takes - 1, held.depth - 1, False
        try:
            self._takes = takes
            is_last = held.give_back()
            if is_last:
                held_entry.forget(held)
                if not held.possession.is_over:
                    held.release()
        except LockingError:
            raise
        except BaseException:  # an interrupt, which may have come before anything was done
            self._takes, held.depth = takes, depth
            if depth == 0:
                held.leave_behind()
            raise
        finally:
            if is_last:  # no caller can release it any more, so nothing may renew it
                held.end(is_confirmed=False)

    # Blocks

    def _enter(self, wait: Duration | None = None) -> None:
        takes = self._takes
        try:
            self._blocks += 1
            self._acquire(wait)
        except BaseException as error:
            self._blocks -= 1
            self._leave_above(takes, error)
            raise

    def _leave(self, error: BaseException | None = None, *, blocks: int = 1) -> None:
        """Release the lock at the end of a block, which ended with that error; `blocks` is 0 without a block."""
        takes = self._takes - 1
        try:
            self._give_back_after(error)
        except BaseException as failure:
            self._leave_above(takes, failure)
            raise
        finally:
            self._blocks -= blocks

    async def _aenter(self, wait: Duration | None = None) -> None:
        self._blocks += 1
        try:
            await self._aacquire(wait)
        except BaseException:
            self._blocks -= 1
            raise

    async def _aleave(self, leave: Callable[[], None], error: BaseException | None = None) -> None:
        """Call `leave`, which releases the lock, in a thread, and note that in this task's context."""
        held, is_last, left = self._held, False, [leave]

        def leave_once() -> None:
            while left:
                left.pop()()

        try:
            held = self._must_have_taken()
            is_last = self._is_last_take
            if isinstance(error, GeneratorExit) and not tasks.can_wait(held):
                if not held.possession.is_over:
                    tasks.leave_behind(leave, held)
            else:
                await loops.to_the_end(leave_once)
        except (Exception, loops.cancelled()):
            raise
        except BaseException:  # an interrupt, perhaps before a thread has begun
            if left:
                tasks.leave_behind(leave_once, held)
            raise
        finally:
            if held is not None and is_last:
                held_entry.forget(held)

    def _leave_above(self, takes: int, error: BaseException) -> None:
        """Release what an interrupt has kept from being released: more than so many acquisitions."""
        if self._takes > max(takes, 0):
            self._give_back_after(error)

    def _give_back_after(self, error: BaseException | None) -> None:
        try:
            self._give_back()
        except (LockLost, CorruptRow, UnknownFormat) as loss:
            if error is None:
                raise
            is_told = isinstance(error, LockLost) and isinstance(loss, LockLost) and error.ticket == loss.ticket
            if not is_told:
                logger.warning("%s (while leaving on %r)", loss, error)

    def __del__(self) -> None:
        """Release it for a block that never ended: an interrupt came first, or its event loop is closed."""
        held = self._held if self._blocks > 0 and self._takes else None
        if held is not None and not held.possession.is_over:
            held.depth -= self._takes
            if held.depth <= 0:
                held.leave_behind()

    # What is held

    def _must_have_taken(self) -> HeldEntry:
        if self._held is None or not self._takes:
            raise ConfigurationError(
                f"the lock {self._target.row.label} is not held by this Lock object; acquire it first."
            )
        return self._held

    def _taken_for(self, method: str, instead: str = "") -> HeldEntry:
        """Return our entry for a method that blocks; `instead` is what to write in a task.

        Raises:
            ConfigurationError: it would block the event loop of the task that has acquired the lock.
        """
        held = self._must_have_taken()
        if self._is_awaited and tasks.current() is not None:
            raise self._must_await(method, instead)
        return held

    def _must_await(self, method: str, instead: str = "") -> ConfigurationError:
        return ConfigurationError(
            f"the lock {self._target.row.label} was acquired {self._way}, and `lock.{method}` would block the event "
            f"loop: use `{instead or f'await lock.a{method}()'}`."
        )

    @property
    def _way(self) -> str:
        return "with `async with` or aacquire()" if self._is_awaited else "with `with` or acquire()"

    @property
    def _is_last_take(self) -> bool:
        """Whether the next release removes our entry, because the lock was acquired only once."""
        return self._must_have_taken().depth == 1

    @property
    def _is_item_deleted(self) -> bool:
        held = self._must_have_taken()
        return held.possession.is_over or held.is_item_deleted

    def _forget_item(self) -> None:
        """Let `item` be read anew the next time."""
        held = self._must_have_taken()
        held.copies.forget()
        held.image = self._given = None
