"""Sends the write of an item whose lock we hold: it names our entry.

It counts itself in the entry, and so recognises its own earlier copy.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.expressions.update import Update

from pynamo_locking._core.error_codes import ACTION_FAILED
from pynamo_locking._core.outcome import Kind, Outcome, judge
from pynamo_locking._core.sending import Next
from pynamo_locking._io import attempts, guards, local, runtime, sender, transport
from pynamo_locking._io.writes import refusal
from pynamo_locking.exceptions import ConfigurationError, LockingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pynamodb.models import Model

    from pynamo_locking._core.claims import Claim
    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.requests import Image, Row
    from pynamo_locking._io.writes import Write

#: Where an item that came out of a lock remembers the entry it was read under.
OWN_ENTRY: Final = "_pynamo_locking_own_entry"


def own_entry_of(item: Model, row: Row) -> OwnEntry | None:
    """Return the entry under which an item is written: the one it was read under, or the context's.

    Raises:
        LockLost: that entry is known to be gone.
    """
    own: OwnEntry | None = vars(item).get(OWN_ENTRY)
    if own is not None and own.row.identity != row.identity:
        own = None  # the item got another key since it was read
    if own is None or (own.possession.is_over and not own.possession.reason):
        own = local.held_in_context(row)
    return usable(own)


def taken_here(row: Row, claim: Claim, last: OwnEntry | None) -> OwnEntry | None:
    """Return the entry of this thread or task that covers a claim; `last` if it is one of several.

    Raises:
        ConfigurationError: one is in its way, behind which it would wait for ever.
    """
    party = runtime.current.party()
    mine = [own for own in local.all_held_in_context(row) if own.party == party]
    covering = [own for own in mine if own.entry.claim.covers(claim)]
    found = last if last in covering else next(iter(covering), None)
    in_the_way = next((own for own in mine if own.entry.claim.conflicts(claim)), None)
    if found is None and in_the_way is not None and in_the_way.possession.reason != "forked":
        raise ConfigurationError(
            f"{row.label} is held {in_the_way.entry.claim} here, and {claim} was asked for: a lock is not upgraded, "
            f"since two who try would wait for each other for ever. Take all of it from the start, or release it, "
            f"take it anew, and read again."
        )
    return found


def usable(own: OwnEntry | None) -> OwnEntry | None:
    """Return an entry that a write may name, None if it has been given back.

    Raises:
        LockLost: it is known to be gone.
        ConfigurationError: others hold the lock beside us, so it does not protect writes.
    """
    if own is None:
        return None
    if own.possession.reason:
        raise own.loss()
    if own.possession.is_over:
        return None
    own.check_alone()
    return own


class _Guard(NamedTuple):
    """The check of one of our entries by a write, and what the write does to it."""

    own: OwnEntry
    number: int
    kind: Kind


# Embedded locks


def inside(own: OwnEntry, write: Write) -> dict[str, Any]:
    """Write an item that carries the lock we hold.

    Raises:
        LockLost: our entry is gone and nothing was written.
        OutcomeUnknown: nothing tells whether it was written.
        PynamoDBException: another condition of the write failed, or DynamoDB refused it.
    """
    with own.writing() as number:
        if write.kind is Kind.KEEP:
            kwargs = write.kwargs(guards.standing(own, number), [guards.counting(own, number)])
            return _send(own, write, number, kwargs)
        finishes = write.kind is Kind.FINISH
        if finishes and local.has_waiters(own.row):
            write.return_values = "ALL_NEW"
        with own.going():
            kwargs = write.kwargs(guards.standing(own, number), guards.leaving(own))
            data = _send(own, write, number, kwargs)
        left(own, data.get("Attributes") if finishes else None)
        return data


def left(own: OwnEntry, image: Image | None) -> None:
    """Note that a write took our entry away with it, and tell who waits in this process."""
    own.end()
    local.tell_waiters(own.row, image)


def _send(own: OwnEntry, write: Write, number: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Send a guarded write; once more if nothing is known of it, since a second copy cannot hurt."""

    def settle(error: Exception, in_doubt: bool) -> dict[str, Any]:  # noqa: FBT001
        image = transport.image_of(error)
        _settle(_Guard(own, number, write.kind), write, image, error, in_doubt)
        return {} if image is None else {"Attributes": image}

    return sender.send(
        lambda _: write.dispatch(kwargs),
        settle,
        write.failed,
        lambda error: write.unknown(error, own.write_id(number)),
    )


def _settle(
    check: _Guard,
    write: Write,
    image: Image | None,
    error: Exception,
    repeated: bool,  # noqa: FBT001
) -> None:
    """Return if a refused write was applied by its earlier copy, raise what happened otherwise."""
    own = check.own
    try:
        outcome = _judged(check, image, repeated)
    except LockingError as reason:  # its lock document is broken, so nothing tells
        if repeated:
            raise write.unknown(error, own.write_id(check.number)) from reason
        raise
    if outcome is Outcome.APPLIED:
        return
    if outcome is Outcome.REJECTED:
        raise refusal(write, write.operation.error, image, error) from error
    state, is_removal = own.row.state(image), check.kind is not Kind.KEEP
    if outcome is Outcome.LOST:
        raise own.absent_from(state, is_removal=is_removal) from error
    if not is_removal:
        own.absent_from(state)
    raise write.unknown(error, own.write_id(check.number)) from error


def _judged(check: _Guard, image: Image | None, repeated: bool) -> Outcome:  # noqa: FBT001
    own, number, kind = check
    return judge(own.row.state(image), own.possession, number, kind=kind, repeated=repeated)


# Locks in a row of their own


def row_guard(own: OwnEntry, number: int, kind: Kind) -> dict[str, Any]:
    """Return the transaction's action on the lock row: check our entry, and count the write or leave.

    A ConditionCheck costs the same and cannot count, so a late copy could overtake a later write.
    """
    actions = guards.leaving(own) if kind is Kind.FINISH else [guards.counting(own, number)]
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


def beside(owns: Sequence[OwnEntry], write: Write, action: dict[str, Any]) -> None:
    """Write an item whose lock is another row: one transaction with the check of that row.

    Args:
        owns: our entries in the rows that the item is locked by: its own one, then that of a range. The first one ends
            with the write, if that is the last of an `edit`.
        write: what it is, for errors.
        action: the write as a transaction's action, such as ``{"Put": {...}}``.
    """
    with contextlib.ExitStack() as held:
        numbers = {own: held.enter_context(own.writing()) for own in in_order(owns)}
        checks = [_Guard(own, numbers[own], write.kind if own is owns[0] else Kind.KEEP) for own in owns]
        items = [action, *(row_guard(*check) for check in checks)]
        if write.kind is Kind.KEEP:
            _transact(write, checks, items)
            return
        with owns[0].going():
            _transact(write, checks, items)
        left(owns[0], None)


def in_order(owns: Iterable[OwnEntry]) -> list[OwnEntry]:
    """Return entries in the order in which everybody writes under several of them, so that nobody waits in a circle."""
    return sorted(owns, key=lambda own: own.entry.id)


def _transact(write: Write, checks: Sequence[_Guard], items: list[dict[str, Any]]) -> None:
    connection, token = write.item._get_connection().connection, ""

    def attempt(how: Next | None) -> dict[str, Any]:
        nonlocal token
        token = token if how is Next.REPEAT else runtime.current.token()
        kwargs = {"TransactItems": items, "ClientRequestToken": token}
        return attempts.dispatch(connection, "TransactWriteItems", kwargs)

    def settle(error: Exception, in_doubt: bool) -> dict[str, Any]:  # noqa: FBT001
        _settle_transaction(write, checks, transport.reasons_of(error), error, in_doubt)
        return {}

    sender.send(attempt, settle, write.failed, lambda error: write.unknown(error, _write_id(checks)))


def _write_id(checks: Sequence[_Guard]) -> str:
    return checks[0].own.write_id(checks[0].number)


def _settle_transaction(
    write: Write,
    checks: Sequence[_Guard],
    reasons: list[dict[str, Any]],
    error: Exception,
    repeated: bool,  # noqa: FBT001
) -> None:
    """Return if the transaction was applied by its earlier copy, raise what happened otherwise."""
    item_reason, *row_reasons = reasons
    failed = [
        (check, reason.get("Item"))
        for check, reason in zip(checks, row_reasons, strict=True)
        if reason.get("Code") == ACTION_FAILED
    ]
    if any(_judged(check, image, repeated) is Outcome.APPLIED for check, image in failed):
        return
    for check, image in failed:
        _settle(check, write, image, error, repeated)
    if repeated and write.may_still_be_applied(item_reason.get("Item")):
        raise write.unknown(error, _write_id(checks)) from error
    # What a single write would have raised: callers look for the code of a failed condition.
    message, table = item_reason.get("Message", ""), write.item.Meta.table_name
    cause = transport.condition_failed(write.operation.error, message, table, request=error)
    raise refusal(write, write.operation.error, item_reason.get("Item"), cause) from error
