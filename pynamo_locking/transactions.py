"""PynamoDB's TransactWrite with the guards of locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pynamodb.exceptions import TransactWriteError
from pynamodb.transactions import TransactWrite as PynamoTransactWrite
from typing_extensions import override

from pynamo_locking._core.lease import backoff
from pynamo_locking._core.outcome import Kind
from pynamo_locking._io import runtime, transport, writes
from pynamo_locking._io.items import EmbeddedItem, GuardedItem
from pynamo_locking.exceptions import OutcomeUnknown, also
from pynamo_locking.guarded import GuardedMixin

if TYPE_CHECKING:
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.requests import Row


@dataclass(frozen=True)
class _Guarded:
    """An action that names a lock: ours if `own` is there, nobody's otherwise."""

    row: Row
    own: OwnEntry | None
    number: int


class TransactWrite(PynamoTransactWrite):
    """Up to 100 writes, all or none, each guarded by the lock of its item.

    Used like PynamoDB's class of this name, with lockable models and others mixed. Differences:
    a `save` of a model with an embedded lock is an Update that leaves the lock alone, a write of an
    item whose lock is held in a row of its own brings the check of that row along, and a lost answer
    is resolved with the transaction's own token.

    All of these come when the ``with`` block ends.

    Raises:
        ItemLocked: somebody else holds the lock of an item; also a `TransactWriteError`.
        LockLost: a lock of ours is gone; nothing was written.
        OutcomeUnknown: no answer tells whether it was applied; also a `TransactWriteError`.
        TransactWriteError: a version or a condition failed, or DynamoDB refused the transaction.

    Cost: 1 transactional write, two write units for each KB of each action.
    """

    def __init__(self, client_request_token: str | None = None, **options: Any) -> None:
        super().__init__(client_request_token or runtime.current.token(), **options)
        self._has_own_token = client_request_token is None
        self._guarded: dict[int, _Guarded] = {}
        self._deleted_items: list[OwnEntry] = []  # the lock stays, in its own row
        self._deleted_locks: list[OwnEntry] = []  # the lock goes with its item

    @override
    def save(
        self,
        model: Model,
        condition: Condition | None = None,
        return_values: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> None:
        """Save an item. See PynamoDB's `TransactWrite.save`; `add_version_condition` is new."""
        written = model._as_locked_item() if isinstance(model, GuardedMixin) else None
        if isinstance(written, EmbeddedItem):
            self._save_embedded(written, condition, checks_version=add_version_condition)
        elif isinstance(written, GuardedItem):
            put = written.put(condition, checks_version=add_version_condition)["Put"]
            self._put_items.append(_returning(put, return_values))
            self._guard_row(written)
        elif add_version_condition:
            super().save(model, condition, return_values)
            return
        else:
            keys, kwargs = model._get_save_args(condition, add_version_condition=False)
            kwargs["key"] = "Item"
            put = model._get_connection().get_operation_kwargs(*keys, **kwargs)
            self._put_items.append(_returning(put, return_values))
        self._models_for_version_attribute_update.append(model)

    def _save_embedded(self, written: EmbeddedItem, condition: Condition | None, *, checks_version: bool) -> None:
        guard, actions = written.guard()
        kwargs = written.planned_save(condition, checks_version=checks_version).kwargs(guard, actions)
        self._update_items.append(kwargs)
        self._note(kwargs, written)

    @override
    def update(
        self,
        model: Model,
        actions: list[Action],
        condition: Condition | None = None,
        return_values: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> None:
        """Update an item. See PynamoDB's `TransactWrite.update`."""
        written = model._as_locked_item() if isinstance(model, GuardedMixin) else None
        if isinstance(written, GuardedItem):
            action = written.update_action(actions, condition, checks_version=add_version_condition)
            self._update_items.append(_returning(action["Update"], return_values))
            self._guard_row(written)
            self._models_for_version_attribute_update.append(model)
            return
        super().update(model, actions, condition, return_values, add_version_condition=add_version_condition)
        if isinstance(written, EmbeddedItem):
            self._note(self._update_items[-1], written)

    @override
    def delete(self, model: Model, condition: Condition | None = None, *, add_version_condition: bool = True) -> None:
        """Delete an item. See PynamoDB's `TransactWrite.delete`."""
        written = model._as_locked_item() if isinstance(model, GuardedMixin) else None
        if isinstance(written, GuardedItem):
            action = written.delete_action(condition, checks_version=add_version_condition)
            self._delete_items.append(action["Delete"])
            self._guard_row(written)
            self._deleted_items.append(written.own)
            return
        super().delete(model, condition, add_version_condition=add_version_condition)
        if isinstance(written, EmbeddedItem):
            self._note(self._delete_items[-1], written)
            if written.own is not None:
                written.own.may_delete = False  # only from the commit on
                self._deleted_locks.append(written.own)

    def _guard_row(self, written: GuardedItem) -> None:
        """Add the check of the lock row."""
        number = written.own.next_write()
        kwargs = writes.row_guard(written.own, number, Kind.KEEP)["Update"]
        self._update_items.append(kwargs)
        self._guarded[id(kwargs)] = _Guarded(written.own.row, written.own, number)

    def _note(self, kwargs: dict[str, Any], written: EmbeddedItem) -> None:
        kwargs["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        number = 0 if written.own is None else written.own.last_write
        self._guarded[id(kwargs)] = _Guarded(written.row, written.own, number)

    @override
    def _commit(self) -> Any:
        for own in self._deleted_locks:
            own.may_delete = True
        repeated, conflicts = False, 0
        while True:
            try:
                data = super()._commit()
            except TransactWriteError as error:
                reasons = transport.reasons_of(error.cause)
                if self._has_own_token and transport.is_conflict(reasons) and conflicts < writes.CONFLICT_ATTEMPTS:
                    conflicts += 1  # a heartbeat on one of the items is enough
                    if not (repeated or transport.was_repeated(error.cause)):
                        self._client_request_token = runtime.current.token()
                    runtime.current.sleep(backoff(conflicts, runtime.current.jitter()))
                    continue
                in_doubt = repeated or transport.is_ambiguous(error.cause)
                if reasons and self._was_applied(reasons, repeated=in_doubt):
                    data = self._note_commit()
                elif reasons:
                    self._explain(reasons, error)
                elif not in_doubt:
                    raise
                elif repeated:
                    raise self._unknown(error) from error
                else:
                    repeated = True
                    continue
            self._note_deletions()
            return data

    def _note_deletions(self) -> None:
        """Deleted items have taken embedded locks with them, and `edit` must not save them again."""
        for own in self._deleted_items:
            own.is_item_deleted = True
        for own in self._deleted_locks:
            writes.left(own, None)

    def _refusals(self, reasons: list[dict[str, Any]]) -> list[tuple[_Guarded, Any]]:
        """Return the guarded actions whose condition failed, each with the image it failed on."""
        order = [
            *self._condition_check_items,
            *self._delete_items,
            *self._put_items,
            *self._update_items,
        ]
        return [
            (self._guarded[id(kwargs)], reason.get("Item"))
            for kwargs, reason in zip(order, reasons, strict=False)
            if reason.get("Code") == "ConditionalCheckFailed" and id(kwargs) in self._guarded
        ]

    def _was_applied(self, reasons: list[dict[str, Any]], *, repeated: bool) -> bool:
        """Tell whether an earlier copy of this transaction was applied, on engines without tokens."""
        for guarded, image in self._refusals(reasons) if repeated else ():
            if guarded.own is not None:
                entry = guarded.own.entry
                mine = guarded.row.state(image).find(entry.id, entry.ticket)
                if mine is not None and mine.writes == guarded.number:
                    return True
        return False

    def _note_commit(self) -> dict[str, Any]:
        for model in self._models_for_version_attribute_update:
            model.update_local_version_attribute()
        return {}

    def _explain(self, reasons: list[dict[str, Any]], error: TransactWriteError) -> NoReturn:
        """Raise what a failed guard means, or PynamoDB's own error for every other reason."""
        for deleted in self._deleted_locks:
            deleted.may_delete = False
        for guarded, image in self._refusals(reasons):
            state = guarded.row.state(image)
            own = guarded.own
            if own is None and state.entries:
                raise writes.locked_out(guarded.row, state, TransactWriteError, error.cause) from error
            if own is not None and state.find(own.entry.id, own.entry.ticket) is None:
                own.lose_to(state)
                raise own.loss() from error
        raise error

    def _unknown(self, error: TransactWriteError) -> OutcomeUnknown:
        token = str(self._client_request_token)
        return also(OutcomeUnknown, TransactWriteError)(
            f"the transaction {token} may or may not have been applied: {error.cause}. Read its items again "
            f"before you decide what to do, or send it again with the same client_request_token within 10 minutes.",
            write_id=token,
            cause=error.cause,
        )


def _returning(kwargs: dict[str, Any], return_values: str | None) -> dict[str, Any]:
    """Ask for the stored item if the action's condition fails."""
    if return_values is not None:
        kwargs["ReturnValuesOnConditionCheckFailure"] = return_values
    return kwargs
