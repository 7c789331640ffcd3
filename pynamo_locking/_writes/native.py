"""Sends a native transaction, and explains its refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core.error_codes import ACTION_FAILED, Answer
from pynamo_locking._core.outcome import Outcome
from pynamo_locking._core.sending import Next
from pynamo_locking._io import answers, dispatch, retries, runtime
from pynamo_locking._io.resolver import Resolver, conflicts
from pynamo_locking._items import expiry, versions
from pynamo_locking._writes.refusals import locked_out, refusal
from pynamo_locking._writes.resolving import Sent, question_of
from pynamo_locking._writes.write import CHECK
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
    from collections.abc import Collection, Mapping, Sequence

    from pynamodb.connection import Connection

    from pynamo_locking._core.queue import Mark
    from pynamo_locking._io.answers import Reasons
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image
    from pynamo_locking._locks.held_entry import HeldEntry
    from pynamo_locking._writes.barrier import Barrier
    from pynamo_locking._writes.write import Write

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
    barrier: Barrier | None = None

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

    def mark_in(self, image: dict[str, Any] | None) -> Mark | None:
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
            return refusal(self.write, TransactWriteError, image, cause)
        return also(Conflict, TransactWriteError)(
            f"a condition of the transaction was not met, and nothing was written: {cause}", cause=cause
        )


class Commit:
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
        return retries.send(self._attempt, self._settle, self._failed, self._unknown)

    def _attempt(self, how: Next | None) -> dict[str, Any]:
        if self.may_change_token and how is Next.AGAIN:
            self.token = runtime.current.token()
        actions = {
            argument: [action.request[kind] for action in self.all if kind in action.request]
            for kind, argument in _KINDS.items()
        }
        return dispatch.transact_write(self.connection, **actions, client_request_token=self.token, **self.options)

    def _reasons(self, error: Exception) -> Reasons:
        """Return why the transaction was cancelled, in the order of `all` instead of the order of the request."""
        sent = [action for kind in _KINDS for action in self.all if kind in action.request]
        reasons = dict(zip(map(id, sent), answers.reasons_of(error), strict=False))
        found = [reasons[id(action)] for action in self.all if id(action) in reasons]
        if found:
            answers.set_reasons(error, found[: len(self.actions)])
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
        if answers.answer_of(error) is not Answer.CONFLICT:
            return TransactWriteError("Failed to write transaction items", answers.readable(error))
        codes = tuple(None if reason is None else reason.code for reason in answers.shown(reasons))
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
            question=question_of(sent),
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
