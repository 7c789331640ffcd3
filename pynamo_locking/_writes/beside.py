"""Sends the writes of an item whose lock is in another row."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.expressions.update import Update

from pynamo_locking._core.error_codes import ACTION_FAILED
from pynamo_locking._core.outcome import EntryEffect, Outcome
from pynamo_locking._core.sending import Next
from pynamo_locking._io import answers, dispatch, retries, runtime
from pynamo_locking._locks import cohorts, guards
from pynamo_locking._locks.held_entry import in_order
from pynamo_locking._locks.holding import left
from pynamo_locking._writes import outside
from pynamo_locking._writes.inside import Check, judged, settle_inside
from pynamo_locking._writes.refusals import refusal
from pynamo_locking._writes.write import action_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamo_locking._io.stored import Image
    from pynamo_locking._locks.held_entry import HeldEntry
    from pynamo_locking._writes.barrier import Barrier
    from pynamo_locking._writes.write import Write

_C = TypeVar("_C")


def row_guard(own: HeldEntry, number: int, kind: EntryEffect) -> dict[str, Any]:
    """Return the transaction's action on the lock row: check the held entry, and store the write's number or leave.

    A ConditionCheck costs the same but cannot store the number, so a late copy could overtake a later write.
    """
    if kind is EntryEffect.FINISH:
        actions = [*guards.leaving(own), *guards.following(own, cohorts.succession(own.caller, own.entry))]
    else:
        actions = [guards.counting(own, number)]
    names: dict[str, str] = {}
    values: dict[str, Any] = {}
    kwargs = {
        "TableName": own.row.table,
        "Key": own.row.key,
        "ConditionExpression": guards.standing(own, number).serialize(names, values),
        "UpdateExpression": Update(*actions).serialize(names, values),
        "ExpressionAttributeNames": {placeholder: name for name, placeholder in names.items()},
        "ExpressionAttributeValues": values,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    return {"Update": kwargs}


def beside(owns: Sequence[HeldEntry], write: Write, action: dict[str, Any], barriers: Sequence[Barrier] = ()) -> None:
    """Write an item whose lock is in another row: one transaction that also checks that row.

    Args:
        owns: the entries that the writer holds: of the item's own lock, then of a range, then of the table. The last
            write of an `edit` removes the first one.
        write: for errors.
        action: the write as a transaction's action, such as ``{"Put": {...}}``.
        barriers: of locks that the writer does not hold, and that must not be in the way.
    """
    with contextlib.ExitStack() as held:
        numbers = {own: held.enter_context(own.writing()) for own in in_order(owns)}
        checks = [Check(own, numbers[own], write.kind if own is owns[0] else EntryEffect.KEEP) for own in owns]
        items = [action, *(row_guard(*check) for check in checks)]
        if write.kind is EntryEffect.KEEP or not owns:
            _transact(write, checks, items, barriers)
            return
        with owns[0].going():
            _transact(write, checks, items, barriers)
        left(owns[0], None)


def _transact(write: Write, checks: Sequence[Check], items: list[dict[str, Any]], barriers: Sequence[Barrier]) -> None:
    connection, token = write.item._get_connection().connection, ""
    write_id = checks[0].own.write_id(checks[0].number) if checks else None

    def attempt(how: Next | None) -> dict[str, Any]:
        nonlocal token
        token = token if how is Next.REPEAT else runtime.current.token()
        rows = [] if write.claims is None else write.claims.actions()
        actions = [*items, *(barrier.request for barrier in barriers), *rows]
        kwargs = {"TransactItems": actions, "ClientRequestToken": token}
        return dispatch.dispatch(connection, "TransactWriteItems", kwargs)

    def settle(error: Exception, in_doubt: bool) -> dict[str, Any] | None:  # noqa: FBT001
        """Return {} if an earlier copy of the transaction was applied, None if it may be sent again; or raise."""
        item_reason, *row_reasons = answers.reasons_of(error)
        failed = _failed(checks, row_reasons[: len(checks)])
        if any(judged(check, image, in_doubt) is Outcome.APPLIED for check, image in failed):
            return {}
        for check, image in failed:
            settle_inside(check, write, image, error, in_doubt)
        if not checks and _was_applied(write, item_reason, error, in_doubt=in_doubt):
            return {}
        others = row_reasons[len(checks) :]
        if in_doubt and (_failed(others, others) or write.may_still_be_applied(item_reason.get("Item"))):
            raise write.unknown(error, write_id) from error
        if _is_let_through(write, barriers, others, error) and item_reason.get("Code") != ACTION_FAILED:
            return None
        if write.expects_other_values(item_reason.get("Item")):
            items[0] = action_of(write)
            return None
        if not checks and outside.is_cleared(write, item_reason.get("Item")):
            return None
        # Raise what a single write would have raised: callers look for the code of a failed condition.
        message, table = item_reason.get("Message", ""), write.item.Meta.table_name
        cause = answers.condition_failed(write.operation.error, message, table, request=error)
        raise refusal(write, write.operation.error, item_reason.get("Item"), cause) from error

    retries.send(attempt, settle, write.failed, lambda error: write.unknown(error, write_id))


def _is_let_through(
    write: Write, barriers: Sequence[Barrier], reasons: Sequence[Mapping[str, Any]], error: Exception
) -> bool:
    """Tell whether what was met in other rows is not in the way of another attempt; raise if it is."""
    met = _failed(barriers, reasons[: len(barriers)])
    for barrier, image in met:
        barrier.see(image, write.operation.error, error)
    rows = reasons[len(barriers) :]
    return bool(met) or (write.claims is not None and write.claims.see(rows, error))


def _failed(checked: Sequence[_C], reasons: Sequence[Mapping[str, Any]]) -> list[tuple[_C, Image | None]]:
    """Return which checks were not met, each with the image of its row."""
    pairs = zip(checked, reasons, strict=True)
    return [(each, reason.get("Item")) for each, reason in pairs if reason.get("Code") == ACTION_FAILED]


def _was_applied(write: Write, reason: Mapping[str, Any], error: Exception, *, in_doubt: bool) -> bool:
    """Tell whether an earlier copy of a refused write, which names no held entry, was applied; or raise."""
    if reason.get("Code") != ACTION_FAILED:
        return False
    outcome = write.judge(reason.get("Item"), repeated=in_doubt)
    if outcome is Outcome.UNKNOWN:
        raise write.unknown(error) from error
    return outcome is Outcome.APPLIED
