"""TransactWriteItems and TransactGetItems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.limits import MOST_ACTIONS
from pynamo_locking._expressions.refusals import Refusal, invalid
from pynamo_locking.testing._dynamodb.capacity import TRANSACTIONAL, Bill
from pynamo_locking.testing._dynamodb.items import (
    read_check,
    read_delete,
    read_projection,
    read_put,
    read_update,
    shown,
    size_of,
)
from pynamo_locking.testing._dynamodb.refusals import MISMATCH, cancelled, reason, unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pynamo_locking.testing._dynamodb.items import Change, Write
    from pynamo_locking.testing._dynamodb.tables import Store

_READ: Final[dict[str, Callable[[Store, Mapping[str, Any]], Write]]] = {
    "Put": read_put,
    "Update": read_update,
    "Delete": read_delete,
    "ConditionCheck": read_check,
}
_MOST_BYTES: Final = 4 * 1024 * 1024
_LONGEST_TOKEN: Final = 36
#: For how long a token is remembered.
_REMEMBERED_MS: Final = 10 * 60 * 1000


def transact_write_items(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a TransactWriteItems. Its token is remembered for some minutes from now."""
    writes, now_ms = read_writes(store, request["TransactItems"]), store.time_ms()
    if is_repeated(store, request, now_ms):
        return bill_of_repetition(writes, request)
    changes = _evaluate(writes)
    bill = Bill(request)
    for change in changes:
        bill.add(change.table.name, change.apply(TRANSACTIONAL))
    remember(store, request, now_ms)
    return bill.of_all()


def read_writes(store: Store, actions: Sequence[Mapping[str, Any]]) -> list[Write]:
    """Return the writes that a TransactWriteItems asks for."""
    _check_number(actions)
    writes = list["Write"]()
    for action in actions:
        if len(action) != 1:
            raise invalid("TransactItems can only contain one of Check, Put, Update or Delete")
        [(kind, arguments)] = action.items()
        writes.append(_READ[kind](store, arguments))
    _check_distinct([(write.table.name, write.key) for write in writes])
    return writes


def _check_distinct(places: list[tuple[str, Any]]) -> None:
    if len(set(places)) < len(places):
        raise invalid("Transaction request cannot include multiple operations on one item")


def _evaluate(writes: list[Write]) -> list[Change]:
    """Return what all writes change."""
    changes, reasons = list["Change"](), list[dict[str, Any]]()
    for write in writes:
        try:
            changes.append(write.evaluate())
            reasons.append(reason(None))
        except Refusal as error:
            reasons.append(reason(error))
    if len(changes) < len(writes):
        raise cancelled(reasons)
    check_size(changes)
    return changes


def check_size(changes: Iterable[Change]) -> None:
    """Refuse a transaction whose items are too large together."""
    _check_bytes(sum(size_of(change.new) for change in changes))


def _check_bytes(size: int) -> None:
    if size > _MOST_BYTES:
        raise invalid("Transaction size exceeds limit: the items of a transaction may have 4MB together")


def is_repeated(store: Store, request: Mapping[str, Any], now_ms: int) -> bool:
    """Tell whether a TransactWriteItems was served already, by its ClientRequestToken; and forget old tokens."""
    token = request.get("ClientRequestToken")
    if token is None:
        return False
    if not 1 <= len(token) <= _LONGEST_TOKEN:
        raise unfit("clientRequestToken", f"have length less than or equal to {_LONGEST_TOKEN}", token)
    for old, (time_ms, _) in list(store.tokens.items()):  # the oldest first
        if now_ms - time_ms < _REMEMBERED_MS:
            break
        del store.tokens[old]
    if token not in store.tokens:
        return False
    check_same(store.tokens[token][1], request)
    return True


def check_same(known: Any, request: Mapping[str, Any]) -> None:
    """Refuse a TransactWriteItems whose actions differ from the `fingerprint` of an earlier one with its token."""
    if known != fingerprint(request["TransactItems"]):
        raise Refusal(
            MISMATCH,
            "DynamoDB rejected the request because you retried a request with a different payload but with an "
            "idempotent token that was already used.",
        )


def remember(store: Store, request: Mapping[str, Any], now_ms: int) -> None:
    """Note that a TransactWriteItems has succeeded, if it has a token."""
    token = request.get("ClientRequestToken")
    if token is not None:
        store.tokens[token] = (now_ms, fingerprint(request["TransactItems"]))


def fingerprint(value: Any) -> Any:
    """Return a request in a form that compares by content and shares nothing that may change."""
    if isinstance(value, dict):
        return {key: fingerprint(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [fingerprint(inner) for inner in value]
    return bytes(value) if isinstance(value, bytearray) else value


def bill_of_repetition(writes: list[Write], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response to a request that was served already: it costs a read of the items."""
    bill = Bill(request)
    for write in writes:
        bill.add_read(write.table.name, size_of(write.table.primary.get(write.key)), TRANSACTIONAL)
    return bill.of_all()


def transact_get_items(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a TransactGetItems."""
    _check_number(request["TransactItems"])
    bill, responses, places, size = Bill(request), list[dict[str, Any]](), list[tuple[str, Any]](), 0
    for action in request["TransactItems"]:
        get = action["Get"]
        projection = read_projection(get)
        table = store.table(get["TableName"])
        key = table.key_of_request(get["Key"])
        places.append((table.name, key))
        record = table.primary.get(key)
        bill.add_read(table.name, size_of(record), TRANSACTIONAL)
        size += size_of(record)
        responses.append({} if record is None else {"Item": shown(record, projection)})
    _check_distinct(places)
    _check_bytes(size)
    return {"Responses": responses, **bill.of_all()}


def _check_number(actions: Sequence[Mapping[str, Any]]) -> None:
    relation = "greater than or equal to 1" if not actions else f"less than or equal to {MOST_ACTIONS}"
    if not 1 <= len(actions) <= MOST_ACTIONS:
        raise unfit("transactItems", f"have length {relation}")
