"""One TransactWriteItems: its actions, how it is sent, its refusal, and its effects on instances and locks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core.dynamodb import ACTION_FAILED, Answer, Next
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.write_outcome import EntryEffect, Outcome
from pynamo_locking._io import client, responses, runtime
from pynamo_locking._io.write_intents import Resolver, conflicts
from pynamo_locking._items import expiry, versions
from pynamo_locking._locks import fencing, held_lock
from pynamo_locking._locks.held_lock import HeldEntry
from pynamo_locking._writes import send
from pynamo_locking._writes.send import EmbeddedLockWriter, SeparateLockWriter
from pynamo_locking._writes.unique_rows import merged
from pynamo_locking._writes.write import (
    CHECK,
    DELETE,
    SAVE,
    UPDATE,
    Sent,
    action_of,
    error_of_refusal,
    locked_out,
    outcome_query_of,
)
from pynamo_locking.exceptions import (
    Conflict,
    ItemLocked,
    LockLost,
    OutcomeUnknown,
    StaleVersion,
    TransactionConflict,
    also,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pynamodb.connection import Connection

    from pynamo_locking._core.lock_queue import WriteIntent
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.responses import Reasons
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._writes.send import ForeignLockCheck, PlainWriter
    from pynamo_locking._writes.unique_rows import UniqueRows
    from pynamo_locking._writes.write import Write


# Sends a native transaction, and explains its refusal.


#: The kinds of actions and PynamoDB's arguments for them; PynamoDB sends them in this order.
_KINDS: Final = {
    "ConditionCheck": "condition_check_items",
    "Delete": "delete_items",
    "Put": "put_items",
    "Update": "update_items",
}


class TransactAction(NamedTuple):
    """One action of a transaction.

    Attributes:
        request: as DynamoDB takes it, such as ``{"Put": {...}}``.
        write: the write of a guarded model, if the action is one.
        row: the row of the lock that the action checks, if any.
        own: the held entry in that lock; None if the lock must be free.
        number: of the write in the held entry.
        barrier: what the action checks, if that is a lock that must not be in the way.
    """

    request: dict[str, Any]
    write: Write | None = None
    row: LockRow | None = None
    own: HeldEntry | None = None
    number: int = 0
    barrier: ForeignLockCheck | None = None

    def sent(self) -> Sent | None:
        """Return what is needed to find out later whether it was applied; None if its item would not show that."""
        if self.write is None or self.write.operation is CHECK:
            return None
        [kwargs] = self.request.values()
        return Sent.of(type(self.write.item), kwargs, self.write.part, is_delete=False)

    def is_ours(self, image: dict[str, Any] | None) -> bool:
        """Tell whether an image shows that this action was applied already."""
        if self.write is not None and self.write.judge(image, repeated=False) is Outcome.APPLIED:
            return True
        if self.row is None or self.own is None:
            return False
        mine = self.row.state(image).find(self.own.entry.id, self.own.entry.ticket)
        return mine is not None and mine.writes == self.number

    def refuse_newer(self, image: Image | None) -> None:
        """Refuse a row of ours of a newer format (`UnknownFormat`)."""
        if self.write is not None:
            versions.refuse_newer(type(self.write.item), image)

    def mark_in(self, image: dict[str, Any] | None) -> WriteIntent | None:
        """Return the mark of a transaction of many items that blocks this action."""
        return None if self.row is None else self.row.state(image).mark

    def explain(self, image: dict[str, Any] | None, cause: Exception) -> Exception:
        """Return why this action was refused, given the stored item."""
        if self.row is not None and "ConditionCheck" not in self.request:
            state = self.row.state(image)
            if self.own is None and state.entries:
                return locked_out(self.row, state, TransactWriteError, cause)
            if self.own is not None and state.find(self.own.entry.id, self.own.entry.ticket) is None:
                return self.own.absent_from(state)
        if self.write is not None:
            return error_of_refusal(self.write, TransactWriteError, image, cause)
        return also(Conflict, TransactWriteError)(
            f"a condition of the transaction was not met, and nothing was written: {cause}", cause=cause
        )


class NativeCommit:
    """One native transaction.

    Args:
        connection: of any of its models.
        actions: the caller's, in the caller's order.
        guards: the checks of lock rows, and other actions of this package.
        token: by which DynamoDB recognises a second copy for ten minutes.
        may_change_token: whether a refused transaction may be sent again under another token.
        options: other arguments of PynamoDB's `Connection.transact_write_items`.
        resolver: resolves marks of other transactions.

    Attributes:
        refusals: after a refusal, why each action was refused; None for an action that was not the reason.
    """

    def __init__(
        self,
        connection: Connection,
        actions: Sequence[TransactAction],
        guards: Sequence[TransactAction],
        token: str,
        *,
        may_change_token: bool,
        options: dict[str, Any],
        resolver: Resolver | None = None,
    ) -> None:
        self.resolver = resolver or Resolver()
        self.connection = connection
        self.actions = actions
        self.all = [*actions, *guards]
        self.token = token
        self.may_change_token = may_change_token
        self.options = options
        self.refusals: list[Exception | None] = []

    def send(self) -> dict[str, Any]:
        """Send the transaction until its outcome is known.

        Raises:
            LockLost, ItemLocked, StaleVersion, Conflict, TransactionConflict: it was refused.
            OutcomeUnknown: no response tells whether it was applied.
            TransactWriteError: DynamoDB refused it for another reason.
        """
        for action in self.all:  # once: copies with the same token must be equal
            expiry.date_now(action.request)
        return client.send(self._attempt, self._settle, self._failed, self._unknown)

    def _attempt(self, how: Next | None) -> dict[str, Any]:
        if self.may_change_token and how is Next.AGAIN:
            self.token = runtime.current.token()
        actions = {
            argument: [action.request[kind] for action in self.all if kind in action.request]
            for kind, argument in _KINDS.items()
        }
        return client.transact_write(self.connection, **actions, client_request_token=self.token, **self.options)

    def _reasons(self, error: Exception) -> Reasons:
        """Return why the transaction was cancelled, in the order of `all` instead of the order of the request."""
        sent = [action for kind in _KINDS for action in self.all if kind in action.request]
        reasons = dict(zip(map(id, sent), responses.reasons_of(error), strict=False))
        found = [reasons[id(action)] for action in self.all if id(action) in reasons]
        if found:
            responses.set_reasons(error, found[: len(self.actions)])
        return found

    def _settle(self, error: Exception, in_doubt: bool) -> dict[str, Any] | None:  # noqa: FBT001
        """Return {} if an earlier copy was applied (on engines that ignore tokens); None after marks were resolved."""
        reasons = enumerate(self._reasons(error))
        images = {i: reason.get("Item") for i, reason in reasons if reason.get("Code") == ACTION_FAILED}
        if self._resolve(images, error, in_doubt=in_doubt):
            return None
        if in_doubt and any(self.all[i].is_ours(image) for i, image in images.items()):
            return {}
        if not in_doubt and self._is_let_through(images, error):
            return None
        explained = {i: self.all[i].explain(image, error) for i, image in images.items()}
        self.refusals = [explained.get(i) for i in range(len(self.actions))]
        if explained and (not in_doubt or any(_is_final(self.all[i], why) for i, why in explained.items())):
            raise _gravest(explained.values()) from error
        raise (self._unknown if in_doubt else self._failed)(error) from error

    def _resolve(self, images: Mapping[int, Image | None], error: Exception, *, in_doubt: bool) -> bool:
        """Resolve marks; tell whether there were any, so that a retry may succeed."""
        with conflicts(TransactWriteError, error, self._unknown if in_doubt else None):
            for i, image in images.items():
                self.all[i].refuse_newer(image)
            found = [(self.all[i].row, self.all[i].mark_in(image)) for i, image in images.items()]
            marked = [(row, mark) for row, mark in found if row is not None and mark is not None]
            self.resolver.resolve(*marked)
        return bool(marked)

    def _is_let_through(self, images: Mapping[int, Image | None], error: Exception) -> bool:
        """Tell whether what refused the transaction is not in the way of another one; raise if a lock is.

        That are locks, and rows of unique values that are to be removed and that other items have.
        """
        met = [(barrier, image) for i, image in images.items() if (barrier := self.all[i].barrier) is not None]
        for barrier, image in met:
            barrier.see(image, TransactWriteError, error)
        spared = {i for i in images if (write := self.all[i].write) is not None and write.is_optional}
        if len(met) + len(spared) < max(1, len(images)) or not self.may_change_token:
            return False
        self.all = [action for i, action in enumerate(self.all) if i not in spared]
        self.token = runtime.current.token()  # since it is another request now
        return True

    def _failed(self, error: Exception) -> Exception:
        reasons = self._reasons(error)
        if responses.answer_in(error) is not Answer.CONFLICT:
            return TransactWriteError("Failed to write transaction items", responses.readable(error))
        codes = tuple(None if reason is None else reason.code for reason in responses.shown(reasons))
        return also(TransactionConflict, TransactWriteError)(
            f"other transactions kept the items of this one busy; nothing was written, and a retry is safe: {error}",
            reasons=codes[: len(self.actions)],
            cause=error,
        )

    def _unknown(self, error: Exception) -> OutcomeUnknown:
        sent = [each for each in map(TransactAction.sent, self.all) if each is not None]
        return also(OutcomeUnknown, TransactWriteError)(
            f"the transaction {self.token} may or may not have been applied: {error}. Read its items again before "
            f"you decide what to do. (For ten minutes DynamoDB recognises the same transaction of the same copies by "
            f"this client_request_token, except inside a lock and with items that expire.)",
            write_id=self.token,
            cause=error,
            question=outcome_query_of(sent),
        )


def _gravest(errors: Collection[Exception]) -> Exception:
    """Return the most severe error: a lost lock first, then a held lock, then the first error."""
    return next(error for kind in (LockLost, ItemLocked, Exception) for error in errors if isinstance(error, kind))


def _is_final(action: TransactAction, refusal: Exception) -> bool:
    """Tell whether the refusal of one copy proves that DynamoDB will never accept another one."""
    if isinstance(refusal, (StaleVersion, TransactionConflict)):  # the second one of a guard
        # An item may become absent again, and a version without a write id may come again.
        return action.write is not None and action.write.part.before.write_id is not None
    return isinstance(refusal, LockLost)


# The actions of one native transaction, and its effects on instances and locks once it is committed.


class TransactionActions:
    """Collects the actions of a native transaction.

    Attributes:
        actions: the caller's, by the key of their item, in the caller's order.
        rows: the held entries in lock rows that the transaction must also check.
        barriers: of locks that are not held and must not be in the way, by the identity of their row.
        guards: the checks of those rows, under `last_under_locks`.
        deleted_locks: the held entries in embedded locks of deleted items, which DynamoDB deletes with them.
    """

    def __init__(self) -> None:
        self.actions: dict[Any, TransactAction] = {}
        self.rows: list[HeldEntry] = []
        self.barriers: dict[Any, ForeignLockCheck] = {}
        self.guards: list[TransactAction] = []
        self._writers: dict[Any, PlainWriter] = {}
        self._written_items: dict[HeldEntry, bool] = {}  # items locked in another row; whether they are deleted
        self.deleted_locks: list[HeldEntry] = []

    def add_write(self, key: Any, writer: PlainWriter, write: Write) -> None:
        """Add the write of an item, with the check of its lock if this context holds it."""
        self.actions[key] = _action(writer, write, {})
        self._writers[key] = writer
        if isinstance(writer, EmbeddedLockWriter):
            if writer.own is not None and write.operation is DELETE:
                self.deleted_locks.append(writer.own)
        elif isinstance(writer, SeparateLockWriter):
            self._check_beside(writer)
            if writer.own is not None and write.operation in (SAVE, DELETE):
                self._written_items[writer.own] = write.operation is DELETE

    def _check_beside(self, writer: SeparateLockWriter) -> None:
        for new in self.unguarded(writer):
            if isinstance(new, HeldEntry):
                self.rows.append(new)
        for barrier in writer.barriers:
            self.barriers.setdefault(barrier.row.identity, barrier).join(barrier)

    @property
    def beside(self) -> list[HeldEntry | ForeignLockCheck]:
        """What the transaction checks in other rows than those of its items."""
        return [*self.rows, *self.barriers.values()]

    @property
    def size(self) -> int:
        """How many actions the transaction has, at most."""
        return len(self.actions) + len(self.beside) + sum(len(claims.rows) for claims in self.claims)

    def unguarded(self, writer: SeparateLockWriter) -> list[HeldEntry | ForeignLockCheck]:
        """Return what a writer has to check in rows that the transaction does not check yet."""
        held = {own.row.identity for own in (*self.rows, *writer.owns)}
        barred = {*self.barriers, *(barrier.row.identity for barrier in writer.barriers)}
        if held & barred:
            raise ConfigurationError(
                "one transaction cannot write inside and outside of a range that is locked here, if all writes are "
                "checked (Meta.enforce): lock one range that spans both."
            )
        owns = [own for own in writer.owns if not self.guards_row_of(own)]
        return [*owns, *(barrier for barrier in writer.barriers if barrier.row.identity not in self.barriers)]

    @contextlib.contextmanager
    def last_under_locks(self) -> Iterator[None]:
        """Renumber the writes under held locks, and keep other threads from writing under them until the block ends.

        Other writes may have been numbered since these were added, and DynamoDB refuses a write whose number is not
        the highest.
        """
        embedded = {key: action for key, action in self.actions.items() if action.own is not None}
        named = {*self.rows, *(action.own for action in embedded.values() if action.own is not None)}
        with contextlib.ExitStack() as held:
            numbers = {own: held.enter_context(own.writing()) for own in held_lock.in_order(named)}
            row_guards = [(own, send.check_of_lock_row(own, numbers[own], EntryEffect.KEEP)) for own in self.rows]
            self.guards = [TransactAction(guard, None, own.row, own, numbers[own]) for own, guard in row_guards]
            self.guards += [TransactAction(each.request, barrier=each) for each in self.barriers.values()]
            self.guards += self._rows_of_values()
            for key, before in embedded.items():
                assert before.write is not None  # noqa: S101 - only writes name an entry
                self.actions[key] = _with_key_of(before, _action(self._writers[key], before.write, numbers))
            yield

    @property
    def claims(self) -> list[UniqueRows]:
        """What the writes do to the rows of unique values."""
        writes = [action.write for action in self.actions.values()]
        return [write.claims for write in writes if write is not None and write.claims is not None]

    def _rows_of_values(self) -> list[TransactAction]:
        token = next((writer.token for writer in self._writers.values()), None)
        planned = [row.plan(TransactWriteError, token) for row in merged(self.claims)]
        return [TransactAction(writer.action(write), write, writer.row) for writer, write in planned]

    def guards_row_of(self, own: HeldEntry) -> bool:
        """Tell whether the transaction checks a lock row already; refuse a check of another range in that row."""
        found = next((each for each in self.rows if each.row.identity == own.row.identity), None)
        if found is not None and found is not own:
            raise ConfigurationError(
                f"one transaction cannot write under two separately locked ranges of {own.row.label}: lock one range "
                f"that spans both."
            )
        return found is not None

    def add_check(self, key: Any, write: Write, row: LockRow | None) -> None:
        """Add the check of an item, which must not carry the mark of another transaction."""
        guard = None if row is None else fencing.has_no_intent(row.attribute)
        self.actions[key] = TransactAction(action_of(write, guard), write, row)

    def before_commit(self) -> None:
        """Note that from now on DynamoDB may have deleted held locks with their items."""
        for own in self.deleted_locks:
            own.expect_delete(expected=True)

    def note_refusal(self, error: BaseException) -> None:
        """Note that the locks are not deleted, or, after an unknown outcome, that updated instances may be stale."""
        if isinstance(error, OutcomeUnknown):
            for key, writer in self._writers.items():
                write = self.actions[key].write
                if writer.is_locked and write is not None:
                    write.note_doubt()
            return
        for own in self.deleted_locks:
            own.expect_delete(expected=False)

    def note_commit(self) -> None:
        """Update the instances, and note deleted items, which `edit` must not save again."""
        for action in self.actions.values():
            if action.write is not None:
                note_applied(action.write)
        for own, is_deleted in self._written_items.items():
            own.is_item_deleted = is_deleted
        for own in self.deleted_locks:
            held_lock.note_left(own, None)


def _action(writer: PlainWriter, write: Write, numbers: Mapping[HeldEntry, int]) -> TransactAction:
    if not isinstance(writer, EmbeddedLockWriter):
        return TransactAction(writer.action(write), write)
    own = writer.own  # `last_under_locks` gives the final number
    number = 0 if own is None else numbers.get(own, own.last_write + 1)
    return TransactAction(writer.action(write, number), write, writer.row, writer.own, number)


def _with_key_of(before: TransactAction, action: TransactAction) -> TransactAction:
    """Keep the key that the action had when it was added: the caller may have changed the instance's key since."""
    for verb, kwargs in action.request.items():
        kwargs.update({part: before.request[verb][part] for part in ("Key", "Item") if part in kwargs})
    return action


def note_applied(write: Write) -> None:
    """Update an instance after a transaction has applied its write."""
    if write.operation not in (SAVE, UPDATE):
        return
    is_known = write.operation is SAVE and (write.part.is_checked or write.part.shape.version is None)
    write.note_stored()
    if not write.is_shown and (write.is_strict or not is_known):
        versions.mark_old(write.item, is_locked=held_lock.OWN_ENTRY in vars(write.item))
