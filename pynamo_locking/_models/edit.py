"""Read, change and save one item: under its lock (`edit`), or combined with other callers (`modify`).

The first caller leads: it reads the item, applies the functions of all callers in line, in the order in which they
came, and saves the item once. Callers that come meanwhile line up. When the leader knows the result of its own change,
the next caller leads. A change stays in line until its caller was told how it ended, so an interrupt of the leader, at
any place, leaves it to the next leader.

An idea of flat combining (Hendler, Incze, Shavit, Tzafrir: SPAA 2010).
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections import deque
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn

from pynamodb.exceptions import DoesNotExist, PutError, PynamoDBException
from typing_extensions import TypeVar

from pynamo_locking._core.dynamodb import INVALID
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import backoff
from pynamo_locking._core.write_outcome import EntryEffect
from pynamo_locking._io import concurrency, responses, runtime
from pynamo_locking._io.concurrency import Pause
from pynamo_locking._io.model_doors import lone_writer_of
from pynamo_locking._io.wakeups import Mailbox
from pynamo_locking._items import keys
from pynamo_locking._locks.held_lock import vain_retry
from pynamo_locking._locks.lock import handle_of, no_decorator
from pynamo_locking._models.writes import GuardedMixin, prepare_save
from pynamo_locking._pynamodb import hash_name_of, key_values_of, new_item, range_name_of, version_name_of
from pynamo_locking.exceptions import (
    ItemLocked,
    LockLost,
    NotUnique,
    OutcomeUnknown,
    StaleVersion,
    TransactionConflict,
    also,
    gave_up,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from pynamodb.models import Model

    from pynamo_locking._locks.lock import Lock
    from pynamo_locking.exceptions import Conflict


G = TypeVar("G", bound=GuardedMixin)

#: The most changes that one write makes.
MOST: Final = 1_000

#: How often a waiting caller checks whether there is a leader, in seconds: an interrupt may have come before it led.
_POLL_S: Final = 1.0

#: Whether a function of another caller may be running: it must not wait in a line itself.
_is_applying: ContextVar[bool] = ContextVar("pynamo_locking_is_applying", default=False)


class Caller(NamedTuple):
    """Who waits for a change: a thread, and the task of asyncio whose event loop it blocks, unless it is awaited."""

    thread_or_task: tuple[object, ...]
    is_awaited: bool = False

    def blocks(self, other: Caller) -> bool:
        """Tell whether the other one is a task that cannot go on while this one waits."""
        is_task = other.is_awaited and not self.is_awaited
        return is_task and other.thread_or_task[:2] == self.thread_or_task[:2]

    def vain_retry(self, conflict: Exception) -> ConfigurationError | None:
        """Return why it cannot wait for the lock that has refused its change; None if it can."""
        return None if self.is_awaited else vain_retry(conflict, self.thread_or_task)


@dataclass(eq=False)
class QueuedChange(Generic[G]):
    """One caller's change of one item; see `VersionedMixin.modify` for the options."""

    model: type[G]
    key: tuple[Any, Any]
    function: Callable[[G], object]
    attempts: int
    create: bool
    consistent_read: bool

    def __post_init__(self) -> None:
        self.refusals = 0
        self.mailbox = Mailbox()
        self.is_told = False
        self._context = copy_context()
        self.caller = Caller(runtime.current.thread_or_task())
        self._error: BaseException | None = None
        self._saved: G | None = None
        self._line_key = self.model, keys.ItemKey.of(self.model.Meta.table_name, keys.key_of(self.model, *self.key))
        self.line: CombiningQueue[G] = CombiningQueue(self.model, self.key)

    def apply(self, item: G) -> None:
        """Call the function with the context variables of its caller."""
        self._context.run(self._apply, item)

    def _apply(self, item: G) -> None:
        _is_applying.set(True)
        self.function(item)

    def tell(self, error: BaseException | None, saved: G | None = None) -> None:
        self._error, self._saved, self.is_told = error, saved, True
        self.mailbox.put(None)

    def result(self) -> G:
        """Return an instance of the caller's own, or raise."""
        if self._error is not None:
            raise self._error
        assert self._saved is not None  # noqa: S101 - no error
        return copy.deepcopy(self._saved)

    # In line

    def line_up(self) -> None:
        if _is_applying.get():
            raise ConfigurationError(
                f"a function that modify(combine=True) applies must not call it again, of {self.model.__name__} or of "
                f"another model: callers would wait for each other. Let it change its instance only."
            )
        with _mutex:
            self.line = _lines.setdefault(self._line_key, self.line)
            self.line.waiting.append(self)

    def leads(self) -> bool:
        """Tell whether it is the caller's turn to make an attempt for all in line."""
        with _mutex:
            leader = self.line.leader()
            if not self.line.is_led or (leader is not None and self.caller.blocks(leader.caller)):
                self.line.leader = weakref.ref(self)
            return self.line.leader() is self

    def leave(self) -> None:
        """Leave the line, wherever the caller is in it, and let the next one lead."""
        with _mutex:
            if self in self.line.waiting:
                self.line.waiting.remove(self)
            if self.line.leader() is self:
                self.line.leader = _no_leader
            following = None if self.line.is_led else next(iter(self.line.waiting), None)
            if not self.line.waiting and _lines.get(self._line_key) is self.line:
                del _lines[self._line_key]
        if following is not None:
            following.mailbox.put(None)


class CombiningQueue(Generic[G]):
    """The callers of this process that wait for a change of one item.

    Their changes are `waiting`, in the order in which they came. `leader` returns the caller that makes the attempts.
    """

    def __init__(self, model: type[G], key: tuple[Any, Any]) -> None:
        self.waiting: deque[QueuedChange[G]] = deque()
        self.leader: Callable[[], QueuedChange[G] | None] = _no_leader
        self._model = model
        self._key = key
        self._attempting = runtime.current.exclusive()
        self._forks = runtime.forks
        self._in_doubt: Sequence[QueuedChange[G]] = ()  # a save with these changes may have been applied
        self._refusals = 0  # since the last write
        self._current: G | None = None  # the item that came with the first refusal
        self._most = MOST
        names = (hash_name_of(model), range_name_of(model), version_name_of(model))
        self._fixed = [name for name in names if name is not None]

    @property
    def is_led(self) -> bool:
        """Whether the leader will make attempts: not if an interrupt kept it from leaving."""
        leader = self.leader()
        return leader is not None and not leader.is_told

    def attempt(self) -> float:
        """Make one write for the callers in line; return the seconds to pause before the next attempt."""
        with self._attempting:  # by a thread whose task is gone, perhaps
            self._settle()  # what an interrupt has left
            with _mutex:
                taken = list(itertools.islice(self.waiting, self._most))
            try:
                return self._attempt(taken)
            except Exception as error:  # noqa: BLE001 - raised again in the callers
                self._most = MOST
                _tell_all(taken, error)
                return 0.0
            finally:
                self._settle()

    def _settle(self) -> None:
        """Tell the callers of a save that was interrupted, and let those leave that were told."""
        if self._in_doubt:
            unknown = also(OutcomeUnknown, PutError)(
                f"the save of {keys.label_of(self._model, self._key)} may or may not have been applied: the caller "
                f"that made it for several callers was interrupted. Read the item again before you decide what to do."
            )
            _tell_all(self._in_doubt, unknown)
            self._in_doubt = ()
        with _mutex:
            self.waiting = deque(change for change in self.waiting if not change.is_told)

    def _attempt(self, taken: Sequence[QueuedChange[G]]) -> float:
        item = self._apply(self._read(taken), taken)
        applied = [change for change in taken if not change.is_told]
        if item is None or not applied:
            return 0.0
        try:
            self._in_doubt = applied
            item.save()
        except (StaleVersion, ItemLocked, TransactionConflict) as conflict:
            self._in_doubt = ()
            return self._refused(applied, conflict)
        except Exception as error:
            self._in_doubt = ()
            if not _may_be_of_one(applied, error):
                raise
            self._most = len(applied) // 2
            return 0.0
        for change in applied:
            change.tell(None, item)
        self._refusals, self._most = 0, MOST
        return 0.0

    def _read(self, taken: Sequence[QueuedChange[G]]) -> G | None:
        current, self._current = self._current, None
        is_consistent = self._refusals > 0 or any(change.consistent_read for change in taken)
        try:
            return current or self._model.get(*self._key, consistent_read=is_consistent)
        except DoesNotExist:
            return None

    def _apply(self, item: G | None, taken: Sequence[QueuedChange[G]]) -> G | None:
        """Return the item with the changes of all functions that do not raise; tell the others what they raised."""
        for change in taken:
            try:
                item = self._changed(item, change)
            except KeyboardInterrupt:  # not of the function
                raise
            except BaseException as error:  # noqa: BLE001 - raised again in its caller
                change.tell(error)
            if self._forks != runtime.forks:
                raise ConfigurationError("a function has forked: its change is made by the parent process.")
        return item

    def _changed(self, item: G | None, change: QueuedChange[G]) -> G:
        """Return a copy of an item with one more change. No function keeps an instance that another one changes."""
        if item is None:
            if not change.create:
                raise self._model.DoesNotExist("There is no such item.")
            item = new_item(self._model, *self._key)
        mine = copy.deepcopy(item)
        change.apply(mine)
        if any(getattr(mine, name) != getattr(item, name) for name in self._fixed):
            raise ConfigurationError(
                f"a function of modify(combine=True) has saved its {self._model.__name__}, or changed the key or the "
                f"version. It may change other attributes only."
            )
        return copy.deepcopy(mine)

    def _refused(self, applied: Sequence[QueuedChange[G]], conflict: Conflict) -> float:
        """Note a refusal, tell those whose attempts are used up, and return the pause that `modify` makes."""
        for change in applied:
            change.refusals += 1
            hopeless = change.caller.vain_retry(conflict)
            if change.refusals == change.attempts:
                error = copy.copy(conflict)
                gave_up(error, "modify()", change.attempts)
                change.tell(error)
            elif hopeless is not None:
                change.tell(hopeless)
        self._refusals += 1
        if self._refusals == 1 and isinstance(conflict, StaleVersion):
            current = conflict.current
            if isinstance(current, self._model):  # another writer may have stored another class
                self._current = current
                return 0.0
        return backoff(self._refusals - 1, runtime.current.jitter())


def combined(change: QueuedChange[G]) -> G:
    """Make a change together with those of other callers."""
    try:
        change.line_up()
        while not change.is_told:
            if change.leads():
                Pause(change.line.attempt()).sleep()
            else:
                change.mailbox.wait(_POLL_S)
    finally:
        change.leave()
    return change.result()


async def acombined(change: QueuedChange[G]) -> G:
    """Make a change together with those of other callers, while other tasks run."""
    change.caller = change.caller._replace(is_awaited=True)
    try:
        change.line_up()
        while not change.is_told:
            if change.leads():
                await concurrency.spend(Pause(await concurrency.to_the_end(change.line.attempt)))
            else:
                await concurrency.spend(Pause(_POLL_S, change.mailbox))
    finally:
        change.leave()
    return change.result()


def _tell_all(changes: Sequence[QueuedChange[Any]], error: Exception) -> None:
    """Tell an error to all callers that know nothing yet, to each its own."""
    untold = [change for change in changes if not change.is_told]
    for change in untold:
        change.tell(error if len(untold) == 1 else copy.copy(error))


def _may_be_of_one(applied: Sequence[QueuedChange[Any]], error: Exception) -> bool:
    """Tell whether nothing was saved, and the change of a single caller may be the reason."""
    is_of_dynamodb = isinstance(error, PynamoDBException) and responses.code_of(error.cause) != INVALID
    may_be = isinstance(error, NotUnique) or not (is_of_dynamodb or isinstance(error, OutcomeUnknown))
    return len(applied) > 1 and may_be


def _no_leader() -> None:
    return None


_lines: dict[Any, CombiningQueue[Any]] = {}
_mutex = runtime.current.mutex()


def _forget_after_fork() -> None:
    global _mutex  # noqa: PLW0603 - the parent may have held it at the moment of the fork
    _mutex = runtime.current.mutex()
    _lines.clear()


runtime.after_fork(_forget_after_fork)


class EditUndo:
    """The values of an instance when an inner block began. If the block saved it, they are an old version again."""

    def __init__(self, item: Model) -> None:
        self._item = item
        self._values = copy.deepcopy(item.attribute_values)

    def restore(self) -> None:
        self._item.attribute_values = self._values


class Edit(Generic[G]):
    """The context manager of `LockableModel.edit`, for ``with`` and for ``async with``."""

    def __init__(self, lock: Lock[G]) -> None:
        self.lock = lock
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
        prepare_save(item, "edit()")
        if key_values_of(item) != self._key:
            raise ConfigurationError(
                f"the key of {item!r:.80} was changed in edit(), which has locked {self._key!r:.80}; nothing was saved."
                f" An item keeps its key: save a new one, and delete this one."
            )
        written = lone_writer_of(item)
        assert written is not None  # noqa: S101 - the lock is held
        try:
            written.save(None, checks_version=True, kind=kind)
        except LockLost:
            if not self._handle.item_is_deleted:
                raise
