"""Every error a caller can catch.

::

    LockingError
    ├── Conflict                    the write was refused and nothing changed: .current
    │   ├── StaleVersion            the stored item is not the one that was read: .expected .actual
    │   ├── ItemLocked              another owner holds the item's lock: .holder .ticket
    │   ├── NotUnique               another item has a unique value: .fields .values .holder
    │   ├── TransactionConflict     other transactions kept the items busy: .reasons
    │   └── TransactionAborted      another process aborted this transaction: .reason
    ├── BatchError                  some writes of a guarded batch failed: .results says which
    ├── LockTimeout(TimeoutError)   not acquired; nothing held; .queue shows who was ahead
    ├── LockLost                    the lock is no longer held: .reason .ticket; stop writing
    ├── OutcomeUnknown              the write may have been applied: .write_id .resolve()
    ├── CallAbandoned               who made the call has died, and on_abandoned="raise": .key .owner; nothing was done
    ├── PayloadMismatch             the key was used for a call with another payload: .key; nothing was done
    ├── OverlapError                the interval is taken, at least in part: .rows .requested
    ├── ItemNotFound                the item to lock does not exist (also the model's DoesNotExist)
    ├── CorruptRow                  another program broke a stored row: .table .key .field .found
    ├── UnknownFormat               a newer release has stored a row: .table .key .found .known
    ├── InvalidInput(ValueError)    a key, an interval or a time that cannot be: from a client, who may be told
    └── ConfigurationError(ValueError)   wrong arguments, tables or settings; says what to do

The leaf decides what the caller may do: after `Conflict` and `LockTimeout` a retry is safe, after
`LockLost` nothing more may be written, after `OutcomeUnknown` `resolve()` it before you retry.

Errors raised by `save`, `update`, `delete` and `TransactWrite` are in addition PynamoDB's own
`PutError`, `UpdateError`, `DeleteError` or `TransactWriteError`, so that existing handlers catch them.
All of them pickle.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from typing_extensions import Self

from pynamo_locking._core.errors import ConfigurationError, InvalidInput, LockingError
from pynamo_locking._pynamodb import class_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.lock_queue import LockState
    from pynamo_locking._core.transactions import AbortReason
    from pynamo_locking._core.write_outcome import BatchResult, Resolution


__all__ = [
    "BatchError",
    "CallAbandoned",
    "ConfigurationError",
    "Conflict",
    "CorruptRow",
    "InvalidInput",
    "ItemLocked",
    "ItemNotFound",
    "LockLost",
    "LockTimeout",
    "LockingError",
    "NotUnique",
    "OutcomeUnknown",
    "OverlapError",
    "PayloadMismatch",
    "StaleVersion",
    "TransactionAborted",
    "TransactionConflict",
    "UnknownFormat",
]
_Error = TypeVar("_Error", bound="LockingError")
_Stored: TypeAlias = tuple[type[Any], dict[str, Any]]  # a model's class, and a stored item or its key


class Conflict(LockingError):
    """The write was refused and nothing changed; read again and retry if you still want to.

    If a condition of the caller was false, the error is a `Conflict` itself and none of its subclasses.

    Attributes:
        stored: the model's class, and the stored item as DynamoDB returned it with the refusal; None if there is no
            such item, or DynamoDB did not return it.
        refused_by: the model's class, and the key in DynamoDB's form, of the item that has refused; of several that
            have, the one that this error is about. None if DynamoDB did not say which.
    """

    stored: _Stored | None = None
    refused_by: _Stored | None = None

    @property
    def current(self) -> Any:
        """The stored item at the time of the refusal, as a model instance; None if there is none.

        DynamoDB returned it with the refusal, so it costs no request and is as consistent as the check.
        """
        return None if self.stored is None else as_model(*self.stored)


class StaleVersion(Conflict):
    """The stored item is not in the version that was read: another writer has changed or deleted it.

    Start again from `current`, which is the stored item.

    Example::

        account = Account.get("a-1")
        try:
            account.save()
        except StaleVersion as error:
            account = error.current  # as another writer has stored it

    Attributes:
        expected: the version of the local copy; None if the write was to create the item.
        actual: the stored version; None if there is no such item. If it equals `expected`,
            the item was deleted and created again, or the copy lacks what a transaction wrote.
    """

    expected: int | None = None
    actual: int | None = None


class ItemLocked(Conflict):
    """A write from outside the lock was refused, because another owner holds it.

    Attributes:
        holder: the owner label of the holder.
        ticket: the holder's ticket.
    """

    holder: str | None = None
    ticket: int | None = None


class NotUnique(Conflict):
    """A unique value belongs to another item (``Meta.unique``). A retry does not help before that item gives it up.

    Attributes:
        fields: the names of the attributes; several if their combination is unique.
        values: their values, in the same order.
        holder: the key of the item that has the value, by stored name, as DynamoDB keeps it (numbers are strings).
            None if that is not known.
    """

    fields: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()
    holder: dict[str, Any] | None = None


class TransactionConflict(Conflict):
    """Other transactions or writes of another Region kept the items busy, or DynamoDB throttled; nothing changed.

    The write was sent nine times, with pauses of full jitter, at most 9.1 s in total. A write of another Region is
    DynamoDB's ``ReplicatedWriteConflictException``, of global tables with strong consistency.

    Attributes:
        reasons: DynamoDB's code for each action, in the order in which the caller added them; None for an action
            that was not the reason. Empty for a single write.
    """

    reasons: tuple[str | None, ...] = ()


class TransactionAborted(Conflict):
    """A transaction of many items was aborted before it was decided; nothing changed, and a retry is safe.

    Attributes:
        reason: ``"preempted"`` (an older transaction needed an item), ``"lease_expired"`` (no renewal arrived for a
            whole lease) or ``"requested"`` (an operator called `recover`, or rolled it back).
    """

    reason: AbortReason = "lease_expired"


class BatchError(LockingError):
    """Some writes of a guarded batch were not applied, or it is not known whether they were.

    Attributes:
        results: one `BatchResult` for each write, in the order in which they were added.
    """

    results: tuple[BatchResult, ...] = ()


class LockTimeout(LockingError, TimeoutError):
    """The lock was not acquired in time. Nothing is held, and the caller's entry has left the queue.

    Example::

        try:
            with Account.locked("a-1", wait=0):
                print("has the lock")
        except LockTimeout as error:
            print("held by", error.queue.holders[0].owner if error.queue else "unknown")

    Attributes:
        queue: the queue at the last poll, or None if DynamoDB sent no response at all.
    """

    queue: LockState | None = None


class LockLost(LockingError):
    """The lock is no longer held. Stop writing: another owner may hold it by now.

    Attributes:
        reason: ``"evicted"``: no renewal arrived for a whole lease, an operator broke the lock, or another process has
            attached its token; of `LockableMixin.attach` also: the lock of the token was released, or detached again.
            ``"deleted"``: the item that carried the lock was deleted. ``"replaced"``: it was
            replaced by an item without a lock, as plain PynamoDB does at each save
            (:doc:`/reference/compatibility`). ``"max_hold"``: the lock was held for `max_hold`; other callers wait
            until the lease has ended, or the lock is released. ``"forked"``: this is a child process, and the lock
            stayed with its parent. ``"restored"``: this process was restored from a snapshot that was taken while it
            held the lock (:doc:`/how-to/use-in-lambda`). Of a `LeaderTerm` also ``"resigned"``, ``"failed"`` and
            ``"unanswered"``.
        ticket: the ticket that was lost.
    """

    reason: str = ""
    ticket: int | None = None


class Question(Protocol):
    """Finds out what became of a write."""

    def answer(self) -> Resolution: ...

    async def awaited(self) -> Resolution: ...


class OutcomeUnknown(LockingError):
    """No response tells whether the write was applied. `resolve` finds out, where that is possible.

    Example::

        account = Account.get("a-1")
        try:
            account.update([Account.balance.add(10)])
        except OutcomeUnknown as error:
            if error.resolve() == "not applied":
                account = Account.get("a-1")  # and again

    Attributes:
        write_id: names the write in the logs and in the stored entry.
    """

    write_id: str | None = None

    def __init__(self, message: str, *, question: Question | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self._question = question

    def resolve(self) -> Resolution:
        """Find out whether the write was applied. The answer is final, even if a copy of the request arrives later.

        While a copy may still arrive, the call first keeps it from being applied, before it returns ``"not applied"``:
        it gives the item another version and write id, as `touch` does, or records in the row of the transaction or key
        that this transaction was given up. So read the item again afterwards. For models without write ids, requests of
        a lock itself, and pickled errors the answer is ``"unknown"``. A second call repeats a definite answer.

        Returns:
            ``"applied"``: it was; other writes may have followed. Of a delete: the item is gone.
            ``"not applied"``: it was not, and never will be. The work can be done again, from a new read; with the same
            idempotency key, if it had one, since another transaction with the key may have done it.
            ``"unknown"``: it cannot be determined. If no response came, DynamoDB is busy, or the item is locked, a
            later call may tell. No call can if several other writes have followed, or if nothing keeps out a late copy:
            of a write that creates the item, or does not check the version.

        Raises:
            LockingError, PynamoDBException: DynamoDB refused a request for another reason.

        Cost: 1 consistent read; while a copy may still arrive 1 write more, and again 1 read and 1 write for each
        concurrent writer, twice at most. For a transaction the same for each item, until one tells; 1 write with a
        `record`, an `idempotency_key` or more than 100 actions.
        """
        return "unknown" if self._question is None else self._question.answer()

    async def aresolve(self) -> Resolution:
        """Find out what became of the write, awaited. See `resolve`."""
        return "unknown" if self._question is None else await self._question.awaited()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, _state_of(self)

    def __copy__(self) -> Self:
        make, arguments, _ = self.__reduce__()
        copied: Self = make(*arguments)
        vars(copied).update(vars(self))
        return copied


class PayloadMismatch(LockingError):
    """The result of a call is stored under this key, and the call had another payload; nothing was done.

    Attributes:
        key: of the call.
    """

    key: str = ""


class CallAbandoned(LockingError):
    """Whoever made the call with this key was not heard of for a lease, and has no result: ``on_abandoned="raise"``.

    Nothing was done, and no retry runs the call. The call may go on if its process, or this one, was only paused:
    settling it is refused then. A person finds out what became of its work, and settles it:
    `IdempotencyTable.settle`, `IdempotencyTable.forget`, or ``pynamo-locking calls settle``.

    Attributes:
        key: of the call.
        owner: label of who made it.
    """

    key: str = ""
    owner: str = ""


class OverlapError(LockingError):
    """A row was refused because its interval overlaps other rows. Nothing was written.

    Attributes:
        found: the model's class and the stored item of each of the `rows`.
        asked: the model's class and the image of `requested`.
    """

    found: tuple[_Stored, ...] = ()
    asked: _Stored | None = None

    @property
    def rows(self) -> list[Any]:
        """The overlapping rows, in order, as model instances: at most twenty of them.

        They are stored rows. If two rows of one call overlap, it is the second of the two, which is not stored.
        """
        return [as_model(model, image) for model, image in self.found]

    @property
    def requested(self) -> Any:
        """The row that was refused, as it would have been stored."""
        return None if self.asked is None else as_model(*self.asked)


class ItemNotFound(LockingError):
    """The item to lock does not exist. Also an instance of the model's own ``DoesNotExist``."""


class CorruptRow(LockingError):
    """A stored row of this package is not as it was written, so it was not trusted. A retry does not help.

    The values of an item can still be read. The message says which attribute, and what to do. Nothing of this package
    repairs it: see :doc:`/how-to/operate`.

    Attributes:
        table: name of the table.
        key: of the row, in DynamoDB's form.
        field: the broken attribute of the row, or the broken part of the lock document, such as ``"queue"``.
        found: the stored value; ``"missing"`` if there is none.
    """

    table: str = ""
    key: dict[str, Any] | None = None
    field: str = ""
    found: str = ""


class UnknownFormat(LockingError):
    """A newer release of this package has stored a row, and this release does not know its format. Nothing was changed.

    The values of an item can still be read, but not in a transaction. Upgrade the package where the error was raised; a
    retry does not help before. See :doc:`/reference/item-format`.

    Attributes:
        table: name of the table.
        key: of the row, in DynamoDB's form.
        found: the stored number of the format.
        known: the newest format that this release knows.
    """

    table: str = ""
    key: dict[str, Any] | None = None
    found: int = 0
    known: int = 0


def as_model(model: type[Any], image: dict[str, Any]) -> Any:
    """Return a stored item as an instance of the class that its discriminator names, which may be a sibling."""
    return (class_of(model, image) or model).from_raw_data(copy.deepcopy(image))


def ask_by(error: OutcomeUnknown, question: Question) -> None:
    """Let `OutcomeUnknown.resolve` ask this question."""
    error._question = question  # noqa: SLF001 - in no caller's way


def add_context(error: BaseException, failure: BaseException) -> None:
    """Let a failure of what was done after an error be its context, and keep the earlier context behind it."""
    last = failure
    while last.__context__ not in (None, error):
        last = last.__context__
    last.__context__ = error.__context__  # instead of the error itself: a chain has an end
    error.__context__ = failure


#: Why a call ends that has waited for a lock.
WAIT_IS_OVER: Final = "when its `wait` was over (pass a longer one)"


def gave_up(error: Any, what: str, why: str) -> None:
    """Say in the message of the last error why there is no further attempt."""
    message = f"{what} gave up {why}: {error}"
    error.args = (message,)
    if hasattr(error, "msg"):  # PynamoDB's errors show their message there as well
        error.msg = message


def also(kind: type[_Error], pynamodb_error: type[Exception]) -> type[_Error]:
    """Return the class that is both `kind` and the given error of PynamoDB; logs call it by the name of `kind`."""
    key = (kind, pynamodb_error)
    if key not in _combined:
        namespace = {"__module__": __name__, "__doc__": kind.__doc__, "__reduce__": _reduce}
        _combined.setdefault(key, type(kind.__name__, key, namespace))  # another thread may have been faster
    return _combined[key]


_combined: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def _reduce(self: Exception) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    return _restore, (*type(self).__bases__, self.args), _state_of(self)


def _state_of(error: Exception) -> dict[str, Any]:
    """Return what of an error can be pickled: a question needs the connections of this process."""
    return {**vars(error), "_question": None} if isinstance(error, OutcomeUnknown) else vars(error)


def _restore(kind: type[LockingError], other: type[Exception], args: tuple[Any, ...]) -> LockingError:
    return also(kind, other)(*args)
