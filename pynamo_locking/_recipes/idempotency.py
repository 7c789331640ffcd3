"""Calls that may be made twice: what the first one has returned is kept, and returned again.

A key is the row of a `NamedLock`: a call in progress is an entry in its queue, so what holds for locks holds for calls.
The first request expects no row, the usual case, and the image of a refusal brings the kept result. Every later image
is checked for the result, also in a waiter, which then leaves the queue.

Inside a transaction there is no entry: the commit writes the row, and refuses the second of two transactions. A result
goes through the serializer before the first caller gets it, or the second caller would get another type.

An abandoned call is the dead entry itself: who must not repeat the call does not evict it. Who settles it evicts it in
the write that stores the result. Rejected: to settle it by a call that takes over its key, and frees it if it fails; an
entry that says that its process cannot outlive it, as for AWS Lambda: the reader's clock would have to be right.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import inspect
import json
import math
import sys
import weakref
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypeVar, cast, get_args

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import UpdateError
from typing_extensions import ParamSpec, Self, override

from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._core.lease import IDLE_TTL_S, Duration, lease_end_s, seconds
from pynamo_locking._core.lock_modes import WHOLE
from pynamo_locking._core.lock_queue import EntryOwnership, dead_among, eviction_traces
from pynamo_locking._core.row_keys import brief, plain, spelled
from pynamo_locking._io import lock_record, runtime
from pynamo_locking._io.stored_rows import Image, Place, Stored, known_format, number
from pynamo_locking._items import versions
from pynamo_locking._locks.context import entry_held_here
from pynamo_locking._locks.lock import Lock, handle_of
from pynamo_locking._locks.options import make_options
from pynamo_locking._models.attributes import VersionAttribute
from pynamo_locking._models.awaited import awaited_write
from pynamo_locking._models.edit import Edit
from pynamo_locking._models.writes import check_read_alone
from pynamo_locking._recipes.named_lock import NamedLock
from pynamo_locking._recipes.stored_errors import (
    Serializer,
    error_class_named,
    facts_of,
    made_again,
    name_of,
    why_not_again,
)
from pynamo_locking._transactions.async_transaction import AsyncTransaction, as_step
from pynamo_locking._transactions.begin import current_transaction
from pynamo_locking._transactions.transaction import Transaction
from pynamo_locking._transactions.transaction_doors import (
    check_writable,
    idempotency_key_of,
    is_committed,
    is_over,
    items_of,
)
from pynamo_locking._writes.write import locked_by
from pynamo_locking._writes.writer import Writer
from pynamo_locking.exceptions import CallAbandoned, Conflict, PayloadMismatch, also

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pynamodb.expressions.update import Action

    from pynamo_locking._core.lock_queue import QueueEntry
    from pynamo_locking._locks.options import LockOptions, LockTarget
    from pynamo_locking._transactions.transaction import Savepoint


#: What to do about a call whose process has died.
OnAbandoned = Literal["run", "raise"]

#: How long a result is kept: as long as idempotency keys of transactions.
KEEP_S: Final = 86_400.0

#: A century: times beyond it are not sure to fit into what DynamoDB and Python take for a time.
_LONGEST_KEEP_S: Final = 36_525 * 86_400.0

#: So many bytes of result fit into an item of DynamoDB, together with the lock and its waiters.
_LARGEST_RESULT: Final = 390_000


class LambdaContext(Protocol):
    """What AWS Lambda passes to a handler as its second argument."""

    def get_remaining_time_in_millis(self) -> int: ...


class IdempotencyTable(NamedLock):
    """The table of idempotency keys: for each key the stored result, or the lock of the call in progress.

    Subclass it, with a separate table. Rows are created and removed automatically.

    Example::

        class Calls(IdempotencyTable):
            class Meta:
                table_name = "calls"
                region = "eu-west-1"

        Calls.create_table()

    See `idempotent` for the guarantees. The write that stores the result removes the lock of the key. DynamoDB's TTL
    removes a row a day after its result has expired. Nothing depends on when that happens.
    """

    _kind: ClassVar[str] = "call"
    _has_format: ClassVar[bool] = True
    _reserved_names: ClassVar[frozenset[str]] = frozenset({"call", "settle", "forget", "asettle", "aforget"})

    result: UnicodeAttribute = UnicodeAttribute(null=True)
    error: UnicodeAttribute = UnicodeAttribute(null=True)
    payload_hash: UnicodeAttribute = UnicodeAttribute(null=True)
    kept_until_ms: NumberAttribute = NumberAttribute(null=True)
    version: VersionAttribute = VersionAttribute(null=True)

    @classmethod
    def call(  # noqa: PLR0913 - options
        cls,
        key: str,
        *,
        payload: object = None,
        expires_after: Duration = KEEP_S,
        wait: Duration | None = None,
        lease: Duration | None = None,
        heartbeat: bool | None = None,
        owner: str | None = None,
        lambda_context: LambdaContext | None = None,
        store_errors: tuple[type[Exception], ...] = (),
        serializer: Serializer = json,
        on_abandoned: OnAbandoned = "run",
    ) -> IdempotentCall:
        """Return a block that is one call, in a ``with`` or ``async with`` statement. `idempotent` makes one of a call.

        Example::

            with Calls.call("charge-17", payload={"amount": 30}) as call:
                if not call.is_repeated:
                    call.result = charge(30)
            assert call.result == "charged 30"

        Args:
            key: names the call among all that share the table; 2,048 bytes at most.
            payload: what the call is about, as JSON or bytes. Its SHA-256 is stored with the result, and a call with
                another one is refused. None compares nothing.
            expires_after: for how long the result counts, in seconds or as a timedelta. A day.
            wait: how long to wait for a call with this key that is in progress elsewhere; 0 refuses at once. That of
                ``Meta.lock_settings`` unless given, which is 60 s unless set.
            lease: how long a call in progress survives without a renewal; likewise.
            heartbeat: renew in the background; likewise True.
            owner: label for people, as in `LockableModel.locked`.
            lambda_context: the second argument of the Lambda handler that the call is made in. Then `lease` is what is
                left of the invocation, there is no heartbeat, and `wait` is at most half of what is left.
            store_errors: exceptions that are results, and their subclasses, as in an ``except`` clause: stored, and
                raised again by a repeat, with the same arguments and attributes, which are JSON unless `serializer`
                takes more: a tuple, or a key that is a number, is none. One that a repeat could not make equal is not
                stored, which raises `ConfigurationError`. The process of the repeat must have imported its class.
            serializer: has `dumps` to text and `loads`, as the module `json` has.
            on_abandoned: what to do if an earlier call did not end, and its lease has: it was killed, or is stuck.
                ``"run"`` makes the call again. ``"raise"`` raises `CallAbandoned` on entering, also in later calls, and
                outside of transactions only, until a person calls `settle` or `forget`, or DynamoDB's TTL removes the
                row: `expires_after` and a day after the end of the lease. All callers of a key give the same. Who died
                while it waited may count as well.

        Raises:
            ConfigurationError: for arguments that cannot work. No request has been made.
        """
        _check_key(key)
        kept = check_terms(expires_after, store_errors, serializer, on_abandoned)
        options = make_options(cls, wait=wait, lease=lease, heartbeat=heartbeat, owner=owner, settings=None)
        if lambda_context is not None:
            if lease is not None or heartbeat is not None:
                raise ConfigurationError("lambda_context sets the lease, without a heartbeat: leave both out.")
            left = lambda_context.get_remaining_time_in_millis() / 1000
            least = 3 * options.settings.worst_request
            lasts = min(max(left, least), options.settings.max_lease)
            options = options._replace(lease=lasts, heartbeat=False, wait=min(options.wait, max(0.0, left / 2)))
        target = cls._lock_target(key, None, options.settings)
        target = replace(target, row=replace(target.row, kept_s=IDLE_TTL_S + math.ceil(kept)))
        refuse = partial(_refuse_abandoned, cls.__name__, key) if on_abandoned == "raise" else None
        edit = _Ending(cls, target, options._replace(on_dead_holder=refuse))
        terms = _Terms(key, _hash_of(payload), kept, store_errors, serializer, on_abandoned)
        return IdempotentCall(cls(key), edit, terms)

    @classmethod
    def settle(
        cls,
        key: str,
        result: object,
        *,
        payload: object = None,
        expires_after: Duration = KEEP_S,
        serializer: Serializer = json,
    ) -> None:
        """Store the result of an abandoned call: a person has found out that its work was done.

        Callers get it as if the call had returned it. One write does that, so nobody makes the call meanwhile. If its
        process goes on after all, it gets `LockLost`.

        Args:
            key: of the call, with its prefix: `CallAbandoned.key`.
            result: what callers get.
            payload: what the call was about, as in `call`; `idempotent` makes a list of a `payload` that is not bytes.
                None compares nothing from then on.
            expires_after: for how long the result counts, in seconds or as a timedelta. A day.
            serializer: of the result.

        Raises:
            DoesNotExist: no call with that key is in progress or abandoned. Nothing was changed.
            ItemLocked: the call is in progress: its lease has not ended, or not for longer than ``max_clock_skew`` of
                ``Meta.lock_settings``; without that, than the lease. Nothing was changed.
            Conflict: the call has its result, or was renewed since it was read. Nothing was changed.
            OutcomeUnknown: no response tells whether the result was stored.
            ConfigurationError, InvalidInput: arguments that cannot work.

        Cost: 1 read and 1 write.
        """
        call = cls.call(key, payload=payload, expires_after=expires_after, serializer=serializer)
        call._encode(result)
        cls._remove_abandoned(call, call._actions_and_expiry())

    @classmethod
    def forget(cls, key: str) -> None:
        """Free the key of an abandoned call: a person has found out that it may be made again.

        Errors and cost are those of `settle`.
        """
        cls._remove_abandoned(cls.call(key), [])

    @awaited_write(settle)
    def asettle(self) -> None:
        """Store the result of an abandoned call, awaited. See `settle`."""

    @awaited_write(forget)
    def aforget(self) -> None:
        """Free the key of an abandoned call, awaited. See `forget`."""

    @classmethod
    def _remove_abandoned(cls, call: IdempotentCall, actions: list[Action]) -> None:
        """Evict the entry of a dead process, if it was not renewed, and write what callers are to find."""
        check_read_alone(cls, call.key, None)
        lock_row, settings = handle_of(call.lock).target.row, cls.lock_settings()
        row = cls.get(call.key, consistent_read=True)
        state = lock_record.trusted(lock_row, row.lock)
        if not state.entries:
            raise cls.DoesNotExist(f"no call {call.key!r:.80} is in progress or abandoned. Nothing was changed.")
        if _is_kept(row.kept_until_ms):
            raise also(Conflict, UpdateError)(f"the call {call.key!r:.80} has its result. Nothing was changed.")
        entry = state.entries[0]
        skew = entry.lease if settings.max_clock_skew is None else settings.max_clock_skew
        if not dead_among([entry], {}, 0.0, runtime.current.time_ms(), skew, settings.max_lease):
            advice = f"It may be in progress: wait until {skew:g} s after the end of its lease."
            raise locked_by(lock_row, entry, UpdateError, advice=advice)
        lock = lock_row.attribute
        place = Place(lock, lock_record.QUEUE, entry.id)
        is_same = place[lock_record.TICKET] == Stored(number(entry.ticket))
        is_same &= place[lock_record.FACTS][lock_record.BEAT] == Stored(number(entry.heartbeats))
        traces = eviction_traces([entry], state.evicted)
        evicts = [Place(lock, lock_record.EVICTED, str(slot)).set(Stored(number(traces[slot]))) for slot in traces]
        Writer(row).update([*actions, place.remove(), *evicts], is_same & known_format(lock), checks_version=True)


def _check_key(key: Any) -> None:
    if not isinstance(key, str) or not key:
        raise InvalidInput(f"the key of a call is a text that is not empty, not {key!r:.80}.")


def _refuse_abandoned(table: str, key: str, entry: QueueEntry) -> None:
    raise CallAbandoned(
        f"the call {key!r:.80} of {plain(entry.owner)} (ticket {entry.ticket}) has no result, and was not renewed for "
        f"a whole lease of {entry.lease:g} s. It is not known whether its work was done, so nothing was done now. Find "
        f"that out. Then store its result with {table}.settle(key, result), or let it run again with "
        f"{table}.forget(key); or use `pynamo-locking calls settle`.",
        key=key,
        owner=entry.owner,
    )


def check_terms(expires_after: Duration, store_errors: Any, serializer: Any, on_abandoned: Any) -> float:
    """Refuse what no call can have; return for how many seconds its result is kept."""
    kept = seconds(expires_after, "expires_after")
    if not 0 < kept <= _LONGEST_KEEP_S:
        raise ConfigurationError(f"expires_after must be above 0 and at most a hundred years, got {expires_after!r}.")
    if not (callable(getattr(serializer, "dumps", None)) and callable(getattr(serializer, "loads", None))):
        raise ConfigurationError(
            f"the serializer must have dumps and loads, as the module json has, not {serializer!r}."
        )
    if on_abandoned not in get_args(OnAbandoned):
        raise ConfigurationError(f'on_abandoned must be "run" or "raise", got {on_abandoned!r}.')
    is_tuple = isinstance(store_errors, tuple)
    if not (is_tuple and all(isinstance(kind, type) and issubclass(kind, Exception) for kind in store_errors)):
        raise ConfigurationError(f"store_errors must be a tuple of exception classes, not {store_errors!r}.")
    if len({name_of(kind) for kind in store_errors}) < len(set(store_errors)):
        raise ConfigurationError(
            f"store_errors has two exceptions of one name, by which a repeat knows them: {store_errors!r}."
        )
    return kept


def _is_kept(until_ms: float | None) -> bool:
    return until_ms is not None and until_ms > runtime.current.time_ms()


def _hash_of(payload: object) -> str | None:
    if payload is None:
        return None
    try:
        data = payload if isinstance(payload, bytes) else json.dumps(payload, sort_keys=True).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the payload of a call must be JSON or bytes, so that it can be compared: {error}. Pass what tells two "
            f"calls apart, such as an id and an amount."
        ) from error
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class _Terms:
    key: str
    payload_hash: str | None
    kept_s: float
    store_errors: tuple[type[Exception], ...]
    serializer: Serializer
    on_abandoned: OnAbandoned


class _Ending(Edit[IdempotencyTable]):
    """The edit of the row of a call; its save is left out if a transaction has stored the result."""

    by: Transaction | None = None
    is_undone: bool = False  # by a rollback of the transaction, also to a savepoint
    leaves_entry = False  # if nothing is stored: the work was done, or may have been

    answered: IdempotencyTable | None = None  # the row, if an earlier call has stored its result

    def __init__(self, table: type[IdempotencyTable], target: LockTarget[Any], options: LockOptions) -> None:
        super().__init__(Lock(target, options._replace(peek=self._peek), None))
        self._table = table

    def _peek(self, image: Image) -> Literal["stop"] | None:
        """End the wait for the lock once the result is there."""
        versions.refuse_newer(self._table, image)
        if self._table.kept_until_ms.attr_name in image:
            row = self._table.from_raw_data(image)
            if _is_kept(row.kept_until_ms):
                self.answered = row
                return "stop"
        return None

    @override
    def _begin(self) -> IdempotencyTable:
        return self.answered or super()._begin()

    @override
    async def _abegin(self) -> IdempotencyTable:
        return self.answered or await super()._abegin()

    def undo(self) -> None:
        self.is_undone = True

    @override
    def _take_back(self) -> None:
        super()._take_back()
        if self.leaves_entry:
            self._handle.held_entry().orphaned()

    @override
    def _save(self) -> None:
        if self.by is None:
            super()._save()
        elif self.is_undone or not is_committed(self.by):
            raise ConfigurationError(
                "the transaction with which call.complete() was to store the result is not committed: end it before "
                "the block of the call ends. Nothing was stored."
            )


class IdempotentCall:
    """One call that may be made twice, made by `IdempotencyTable.call`, for ``with`` and for ``async with``.

    A block that ends stores its `result`, in the write that releases the key's lock. A block that raises stores nothing
    (unless the exception is in `store_errors`), and the key is free again. With ``on_abandoned="raise"`` it is not free
    where the work may have been done: if the result was not stored, or if the block was left by an interrupt, a
    cancellation or `SystemExit`.

    Inside an open `transaction` (or `atransaction`) no lock is acquired. The row is read by the transaction, and the
    result is one action of its commit: effect and result are stored together, or neither. If the block raises, the
    transaction forgets the writes that were planned since the block began.

    Attributes:
        key: as given.
        is_repeated: whether the result was stored by an earlier call, so that nothing is to be done.
    """

    def __init__(self, row: IdempotencyTable, edit: _Ending, terms: _Terms) -> None:
        self.key: str = terms.key
        self.is_repeated: bool = False
        self._row = row
        self._terms = terms
        self._edit = edit
        self._in: Transaction | None = None
        self._before: Savepoint
        self._result: Any = None
        self._text: str | None = None

    @property
    def result(self) -> Any:
        """What the call returns. After the block it is what a repeat gets: what the serializer makes of the text."""
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if self.is_repeated:
            raise ConfigurationError(f"the call {self.key!r:.80} has its result already: check call.is_repeated first.")
        if self._edit.is_undone:  # another attempt has another result
            self._edit.by, self._edit.is_undone, self._text = None, False, None
        if self._text is not None:
            raise ConfigurationError(f"the call {self.key!r:.80} is complete: its result is given to the transaction.")
        self._result = value

    @property
    def lock(self) -> Lock[IdempotencyTable]:
        """The lock of the key: its `ticket` for other systems, its `add_check_to` for transactions.

        Raises:
            ConfigurationError: the call is part of a transaction, or repeated, and holds no lock.
        """
        if self._in is not None or self.is_repeated:
            why = "a repeated call" if self.is_repeated else "a call inside a transaction"
            raise ConfigurationError(f"{why} holds no lock.")
        return self._edit.lock

    def complete(self, result: object) -> None:
        """Store the result with the transaction that is open here, and that began inside the block of the call.

        The commit is refused if the lock of the key is lost by then. The block of the call must end after it. After a
        rollback it is called again, as by the next attempt of a `transactional` function.

        Raises:
            ConfigurationError: no transaction is open, or it is read only or has an `idempotency_key`; or the call is
                repeated, complete or itself in a transaction.

        Cost: one action of the commit. The end of the block costs 1 write, with or without it.
        """
        tx = current_transaction()
        if tx is None or self._in is not None:
            raise ConfigurationError(
                "call.complete() stores the result with a transaction that is opened inside the block of the call. "
                "Without one, assign call.result."
            )
        if idempotency_key_of(tx) is not None:
            raise ConfigurationError(
                "the transaction has an idempotency_key: were it committed before, it would not store the result. "
                "Leave the key out: the call has one."
            )
        check_writable(tx)
        self.result = result
        self._encode(result)
        tx.update(self._row, self._actions())
        items_of(tx).undo.append(self._edit.undo)
        self._edit.by = tx

    def __enter__(self) -> Self:
        tx = self._begin()
        return self._entered(self._edit.__enter__() if tx is None else self._enter_in(tx))

    async def __aenter__(self) -> Self:
        tx = self._begin()
        return self._entered(await (self._edit.__aenter__() if tx is None else as_step(partial(self._enter_in, tx))))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_repeated:
            return
        ending = self._conclude(error)
        if self._in is None:
            self._edit.__exit__(None if ending is None else type(ending), ending, traceback)
        else:
            self._leave_in(self._in, ending)
        if ending is not error and ending is not None:
            raise ending

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_repeated:
            return
        ending = self._conclude(error)
        if self._in is None:
            await self._edit.__aexit__(None if ending is None else type(ending), ending, traceback)
        else:
            await as_step(partial(self._leave_in, self._in, ending))
        if ending is not error and ending is not None:
            raise ending

    def _entered(self, row: IdempotencyTable) -> Self:
        if row is self._edit.answered:
            return self._repeat(row)
        self._row = row
        if self._terms.on_abandoned == "raise":
            handle_of(self._edit.lock).held_entry().note(EntryOwnership.kept)
        return self

    def _begin(self) -> Transaction | None:
        """Return the open transaction, of which the call will be a part; without one, refuse to wait for ourselves."""
        tx, row = current_transaction(), handle_of(self._edit.lock).target.row
        if entry_held_here(row, WHOLE, None) is not None:
            raise ConfigurationError(
                f"the call {self._terms.key!r:.80} is in progress in this very thread or task, and would wait for "
                f"itself."
            )
        if tx is not None and self._terms.store_errors:
            raise ConfigurationError(
                "a transaction that raises stores nothing, so it cannot store an exception of `store_errors`: catch it "
                "in the function, and return a value for it."
            )
        if tx is not None and self._terms.on_abandoned != "run":
            raise ConfigurationError(
                "a call in a transaction leaves no trace before the commit, by which one that was abandoned could be "
                'known: leave out on_abandoned="raise", or begin the transaction inside of the call.'
            )
        return tx

    def _enter_in(self, tx: Transaction) -> IdempotencyTable:
        row = tx.get_or_none(type(self._row), self._terms.key)
        if row is not None and _is_kept(row.kept_until_ms):
            self._edit.answered = row
            return row
        check_writable(tx)
        self._in, self._before = tx, tx.savepoint()
        return row or self._row

    def _leave_in(self, tx: Transaction, error: BaseException | None) -> None:
        if error is not None:
            if not is_over(tx):  # the caller may catch the error, and commit what it has done besides
                self._before.rollback()
            return
        tx.update(self._row, self._actions_and_expiry())

    def _repeat(self, row: IdempotencyTable) -> Self:
        self.is_repeated = True
        mine, stored = self._terms.payload_hash, row.payload_hash
        if mine and stored and mine != stored:
            raise PayloadMismatch(
                f"the key {self._terms.key!r:.80} was used for a call with another payload, whose result is stored. "
                f"Nothing was done. Another call needs a key of its own.",
                key=self._terms.key,
            )
        value = self._terms.serializer.loads(row.result or "")
        if row.error is None:
            self._result = value
            return self
        kind = error_class_named(row.error, self._terms.store_errors)
        if kind is None:
            raise ConfigurationError(
                f"the call {self._terms.key!r:.80} has ended with {brief(row.error)}, {value!r:.80}, and no class of "
                f"that name that this process has imported is in `store_errors`, or derives from one there."
            )
        raise made_again(kind, value)

    def _conclude(self, error: BaseException | None) -> BaseException | None:
        """Note the result, or a final exception, to be stored; return the exception with which nothing is stored."""
        is_free = isinstance(error, Exception) and not isinstance(error, self._terms.store_errors)
        self._edit.leaves_entry = self._terms.on_abandoned == "raise" and not is_free
        try:
            if error is None:
                self._encode(self._result)
            elif isinstance(error, self._terms.store_errors):
                self._encode_error(error)
            else:
                return error
        except BaseException as failure:  # noqa: BLE001 - it is raised once the block has ended
            return failure
        return None

    def _encode_error(self, error: Exception) -> None:
        """Note an exception that a repeat raises again; refuse one that it could not make equal to this one."""
        name = name_of(type(error))
        why = why_not_again(error, self._terms.store_errors, self._terms.serializer)
        if why:
            raise ConfigurationError(
                f"the call {self.key!r:.80} has ended with {name}, which is in `store_errors` and cannot be stored: "
                f"{why}. Raise one whose arguments and attributes are what the serializer takes, JSON unless set."
            ) from error
        self._encode(facts_of(error), name)

    def _encode(self, value: object, error: str | None = None) -> None:
        if self._text is not None:
            return
        text, terms = self._terms.serializer.dumps(value), self._terms
        if not isinstance(text, str):
            raise ConfigurationError(f"the serializer must make text, not {type(text).__name__}: let it decode bytes.")
        if len(text.encode()) > _LARGEST_RESULT:
            raise ConfigurationError(
                f"the result of the call {self.key!r:.80} is too large for an item of DynamoDB ({len(text)} "
                f"characters). It was not stored. Keep it elsewhere, and return where it is."
            )
        self._result, self._text = value if error else terms.serializer.loads(text), text
        row = self._row
        row.result, row.error, row.payload_hash = text, error, terms.payload_hash
        row.kept_until_ms = runtime.current.time_ms() + int(terms.kept_s * 1000)

    def _actions(self) -> list[Action]:
        """Return the result as actions of an update, which the row of the instance may be created by."""
        row, table = self._row, type(self._row)
        stored = {"result": row.result, "payload_hash": row.payload_hash, "kept_until_ms": row.kept_until_ms}
        actions: list[Action] = [table.error.remove()]
        for name, value in stored.items():
            attribute = getattr(table, name)
            actions.append(attribute.remove() if value is None else attribute.set(value))
        return actions

    def _actions_and_expiry(self) -> list[Action]:
        """Return these, and until when DynamoDB keeps the row, of a call that has no lease."""
        lasts = Stored(number(lease_end_s(runtime.current.time_ms(), self._terms.kept_s + IDLE_TTL_S)))
        return [*self._actions(), Place(type(self._row).expires.attr_name).set(lasts)]


_T = TypeVar("_T")
_P = ParamSpec("_P")


def idempotent(  # noqa: PLR0913 - options
    table: type[IdempotencyTable],
    *,
    key: str | Callable[..., object],
    payload: str | Callable[..., object] | None = None,
    key_prefix: str | None = None,
    expires_after: Duration = KEEP_S,
    wait: Duration | None = None,
    lease: Duration | None = None,
    heartbeat: bool | None = None,
    store_errors: tuple[type[Exception], ...] = (),
    serializer: Serializer = json,
    on_abandoned: OnAbandoned = "run",
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Run a function once for each idempotency key: a second call returns the stored result of the first.

    Example::

        @idempotent(Calls, key="order_id", payload="amount")
        def charge_order(order_id: str, amount: int) -> str:
            return charge(amount)

        assert charge_order("o-1", 20) == charge_order("o-1", 20) == "charged 20"

    The function may be a coroutine function. Every caller, the first one included, gets what the serializer makes of
    the stored text: a tuple becomes a list. A function that raises stores nothing, and its key is free again, unless
    the exception is in `store_errors`. If the result cannot be serialized, the call raises as well.

    Guaranteed under crashes, lost responses and pauses: of all calls with one key, one result is stored, and returned
    until `expires_after` has passed. While a call is in progress, other calls wait or are refused. A call that ends
    after another caller took over its key raises `LockLost`, and its result is not stored.

    Not guaranteed: that effects outside DynamoDB happen once. If the process dies after the effect and before the
    result is stored, the next call repeats the effect, unless `on_abandoned` is ``"raise"``; pass the key, or the
    ticket of `IdempotentCall.lock`, to a system that can refuse it. Changes of items are made once inside a
    `transaction`, for example with ``@transactional()`` above this decorator: the commit stores the items and the
    result, and no lock is acquired.

    Of a method, the name that begins its keys also has the class that it is called for, if that is a subclass: what one
    subclass has done is not done for another one. A static method is called for no class. Two classes that have one
    module and one qualified name, such as a function makes, are refused: give each its own ``__qualname__``. All
    instances of a class share its keys. If they are configured differently, such as for two accounts, let the key say
    so: ``key=lambda self, order_id: f"{self.account}/{order_id}"``.

    In a handler of AWS Lambda, an argument that has ``get_remaining_time_in_millis`` gives the `lease`: see
    ``lambda_context`` of `IdempotencyTable.call`.

    Args:
        table: where the results are kept.
        key: the name of the argument that is the key of the call, a text or a whole number; or a function of all
            arguments, defaults included, that returns it.
        payload: what else must be the same if a key comes again: the name of an argument, or a function of all
            arguments, whose value is JSON or bytes. None compares nothing.
        key_prefix: what the stored key begins with; the function's module and qualified name unless given. Give one to
            a function that may be renamed or moved: its keys would be forgotten. Functions that share a table and a
            qualified name would get each other's results, so give each a prefix: two programs' ``__main__.run``, two
            Lambda functions' ``app.handler``, a function that each call of another function defines.
        expires_after: for how long a result counts. This and the following arguments are those of
            `IdempotencyTable.call`.
        wait: how long to wait for a call that is in progress elsewhere; 0 refuses at once.
        lease: how long a call in progress survives without a renewal.
        heartbeat: renew in the background.
        store_errors: exceptions that are results, and their subclasses.
        serializer: of the result.
        on_abandoned: what to do if who made the call before was killed.

    Returns:
        A decorator. The function that it returns also raises the following.

    Raises:
        PayloadMismatch: the key was used with another payload. Nothing was done.
        LockTimeout: a call with this key is in progress elsewhere. Nothing was done.
        CallAbandoned: with ``on_abandoned="raise"``. Nothing was done.
        LockLost: the call took longer than its lease, and another call took over its key. Its effects stay.
        OutcomeUnknown: no response tells whether the result was stored. Another call tells.
        InvalidInput: the key is no text, or is empty or too long.
        ConfigurationError: the result is too large for an item; two classes have one name; or of the decorator: its
            arguments cannot work, or the function is `transactional`, which belongs above this decorator.

    Cost: 2 writes for the first call, 1 refused write for a repeat. Inside a transaction 1 read, and 1 action of its
    commit. A call whose key was freed or has expired takes 1 refused write more. Waiting costs as for `Lock`.

    Source: the decorator of Powertools for AWS Lambda; the record of draft-ietf-httpapi-idempotency-key-header.
    """
    _check_table(table)
    check_terms(expires_after, store_errors, serializer, on_abandoned)
    make_options(table, wait=wait, lease=lease, heartbeat=heartbeat, owner=None, settings=None)
    options: Any = {"expires_after": expires_after, "wait": wait, "lease": lease, "heartbeat": heartbeat}
    options |= {"store_errors": store_errors, "serializer": serializer, "on_abandoned": on_abandoned}

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        begin = _Beginning(table, function, key_prefix, key, payload, options)

        @functools.wraps(function)
        def run(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
            with begin(arguments, keywords) as call:
                if not call.is_repeated:
                    call.result = function(*arguments, **keywords)
            return cast("_T", call.result)

        @functools.wraps(function)
        async def arun(*arguments: _P.args, **keywords: _P.kwargs) -> Any:
            async with begin(arguments, keywords) as call:
                if not call.is_repeated:
                    call.result = await cast("Any", function(*arguments, **keywords))
            return call.result

        return cast("Callable[_P, _T]", arun) if inspect.iscoroutinefunction(function) else run

    return decorate


def _check_table(table: Any) -> None:
    if not (isinstance(table, type) and issubclass(table, IdempotencyTable)):
        raise ConfigurationError(f"the table of idempotent() is a subclass of IdempotencyTable, not {table!r}.")


#: The classes whose methods were called, by the table, by what the keys of the method begin with, and by their name.
_called_for: Final[weakref.WeakValueDictionary[tuple[type, str, str], type]] = weakref.WeakValueDictionary()


def _refuse_namesake(table: type, begin: str, its_class: type) -> None:
    """Refuse a class with the name of another one, whose results it would get.

    One that is found by its name has replaced the other one: its module was loaded again, or a cell of a notebook.
    """
    place = table, begin, _full_name(its_class)
    if _called_for.get(place) is not its_class and _is_found_by_name(its_class):
        _called_for[place] = its_class
    if _called_for.setdefault(place, its_class) is not its_class:
        gc.collect()  # a class refers to itself: one that nobody uses any more is there until then
        if _called_for.setdefault(place, its_class) is not its_class:
            raise ConfigurationError(
                f"there are two classes {_full_name(its_class)}, and each would get the results of the other one from "
                f"{begin}. Give each its own name: set the __qualname__ of the class."
            )


def _is_found_by_name(its_class: type) -> bool:
    found: Any = sys.modules.get(its_class.__module__)
    for part in its_class.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is its_class


def _full_name(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"


#: What `inspect.isroutine` takes for a function in some releases of Python.
_NO_FUNCTIONS: Final = classmethod, staticmethod, functools.partial, functools.partialmethod


class _Beginning:
    """Makes a call of the arguments of a function; refuses a function, or a name of an argument, that cannot work."""

    def __init__(
        self,
        table: type[IdempotencyTable],
        function: Callable[..., object],
        key_prefix: str | None,
        key: str | Callable[..., object],
        payload: str | Callable[..., object] | None,
        options: dict[str, Any],
    ) -> None:
        if not inspect.isroutine(function) or isinstance(function, _NO_FUNCTIONS):
            raise ConfigurationError(
                f"idempotent() is for functions, below @classmethod and @staticmethod, not for {function!r}."
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"{function.__qualname__} is a generator: it returns before it has run.")
        if hasattr(function, "_begins_transaction"):
            raise ConfigurationError(
                f"{function.__qualname__} commits before its result is stored, so after a crash in between it would do "
                f"its work again. Put @transactional() above @idempotent(...): then one commit stores both."
            )
        self._signature = inspect.signature(function)
        for what, each in (("key", key), ("payload", payload)):
            if isinstance(each, str) and each not in self._signature.parameters:
                raise ConfigurationError(
                    f"{function.__qualname__} has no argument {each!r}, which is to be the {what}."
                )
            if not isinstance(each, str) and not callable(each) and (each, what) != (None, "payload"):
                raise ConfigurationError(f"the {what} is the name of an argument, or a function, not {each!r}.")
        self._table = table
        if not (key_prefix is None or isinstance(key_prefix, str)):
            raise ConfigurationError(f"the key_prefix of {function.__qualname__} is a text, not {key_prefix!r:.80}.")
        self._function = function
        self._name = _full_name(function) if key_prefix is None else spelled(key_prefix)
        self._defined_in = _full_name(function).rpartition(".")[0]
        self._key = key
        self._payload = payload
        self._options = options

    def __call__(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> IdempotentCall:
        bound = self._signature.bind(*arguments, **keywords)
        bound.apply_defaults()

        def value_of(what: str | Callable[..., object]) -> object:
            return what(*bound.args, **bound.kwargs) if callable(what) else bound.arguments[what]

        key = value_of(self._key)
        if isinstance(key, bool) or not isinstance(key, (str, int)) or key == "":
            raise InvalidInput(f"the key of {self._name} must be a text or a whole number, not {key!r:.80}.")
        compared = None if self._payload is None else value_of(self._payload)
        if self._payload is not None and not isinstance(compared, bytes):
            compared = [compared]  # so that an argument that is None is compared as well
        options = self._options
        if options["lease"] is None and options["heartbeat"] is None:
            contexts = (each for each in bound.arguments.values() if hasattr(each, "get_remaining_time_in_millis"))
            options = {**options, "lambda_context": next(contexts, None)}
        return self._table.call(f"{self._begin_for(bound)}#{spelled(key)}", payload=compared, **options)

    def _begin_for(self, bound: inspect.BoundArguments) -> str:
        """Return what the key begins with: of a method, with the class that it is called for, unless the name has it.

        A method may be inherited, and what a subclass overrides decides what it does.
        """
        first, name = self._first_of(bound)
        its_class = first if isinstance(first, type) else type(first)
        is_method = self._is_method_of(its_class)
        if is_method is False or (is_method is None and name not in {"self", "cls"}):
            return self._name
        begin = self._name if _full_name(its_class) == self._defined_in else f"{self._name}[{_full_name(its_class)}]"
        if is_method:
            _refuse_namesake(self._table, begin, its_class)
        return begin

    def _first_of(self, bound: inspect.BoundArguments) -> tuple[object, str]:
        """Return what a method is called for, and the name of that argument."""
        if inspect.ismethod(self._function):  # it is no argument any more
            return self._function.__self__, "self"
        arguments = [*zip(bound.args, self._signature.parameters, strict=False), (None, "")]
        is_after_tx = isinstance(arguments[0][0], (Transaction, AsyncTransaction))  # `transactional` puts it first
        return arguments[1 if is_after_tx else 0]

    def _is_method_of(self, its_class: type) -> bool | None:
        """Tell whether a class has the function as a method; False for a static one, None if the class has it not."""
        function = inspect.unwrap(self._function)
        for base in inspect.getmro(its_class) + inspect.getmro(type(its_class)):
            member: Any = vars(base).get(function.__name__)
            if inspect.unwrap(member) is function:
                return not isinstance(member, staticmethod)
            if _full_name(base) == self._defined_in:  # below a decorator that hides it
                return True
        return None
