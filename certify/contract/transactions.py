"""Transactions."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from certify.contract.rows import (
    ALL_OLD,
    CANCELED,
    INVALID,
    MAY_RELEASE,
    REFUSED,
    RELEASE,
    holds,
    lock_map,
    names,
    same,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from certify.contract.rows import Rows


_NEW: Final = "attribute_not_exists(pk)"
_THERE: Final = "attribute_exists(pk)"


def _put(rows: Rows, pk: str, condition: str | None = None, /, **attributes: Any) -> dict[str, Any]:
    conditional = {} if condition is None else {"ConditionExpression": condition, **ALL_OLD}
    return {"Put": {"TableName": rows.name, "Item": rows.stored(pk, **attributes), **conditional}}


def _add(rows: Rows, pk: str, condition: str | None = None, n: int = 1) -> dict[str, Any]:
    return {"Update": rows.request(pk, update="ADD n :n", condition=condition, values={":n": n}, **ALL_OLD)}


def _delete(rows: Rows, pk: str, condition: str) -> dict[str, Any]:
    return {"Delete": rows.request(pk, condition=condition, **ALL_OLD)}


def _check(rows: Rows, pk: str, condition: str, **arguments: Any) -> dict[str, Any]:
    return {"ConditionCheck": rows.request(pk, condition=condition, **arguments, **ALL_OLD)}


def _write(rows: Rows, actions: Iterable[dict[str, Any]], **options: Any) -> None:
    rows.client.transact_write_items(TransactItems=list(actions), **options)


def all_or_nothing(rows: Rows) -> None:
    """One failed condition and nothing is written."""
    rows.put("a")
    with rows.refused(CANCELED) as refusal:
        _write(rows, [_put(rows, "b"), _add(rows, "c"), _put(rows, "a", _NEW)])
    same(refusal.codes, ["None", "None", "ConditionalCheckFailed"])
    same([rows.get(pk) for pk in "bc"], [None, None])
    _write(rows, [_put(rows, "b"), _add(rows, "c"), _put(rows, "d", _NEW)])
    same([rows.get(pk) for pk in "bcd"], [{"pk": "b"}, {"pk": "c", "n": 1}, {"pk": "d"}])


def reasons_stand_in_the_order_of_the_request(rows: Rows) -> None:
    """Each action kind brings the old image of its own item, at its own place."""
    for number, pk in enumerate("abcd"):
        rows.put(pk, n=number)
    actions = [
        _check(rows, "d", _NEW),
        _put(rows, "ok"),
        _delete(rows, "c", _NEW),
        _add(rows, "b", _NEW),
        _put(rows, "a", _NEW),
        _check(rows, "missing", _THERE),
    ]
    with rows.refused(CANCELED) as refusal:
        _write(rows, actions)
    failed = "ConditionalCheckFailed"
    same(refusal.codes, [failed, "None", failed, failed, failed, failed])
    there = {pk: {"pk": pk, "n": number} for number, pk in enumerate("abcd")}
    same(refusal.images, [there["d"], None, there["c"], there["b"], there["a"], None])


def a_check_of_a_lock_guards_a_write_elsewhere(rows: Rows) -> None:
    """A guarded write of another item: check or release on the lock row, Put on the item."""
    rows.put("lock-row", lock=lock_map(8, e1=0))
    guard = _check(rows, "lock-row", MAY_RELEASE, names=names())
    _write(rows, [guard, _put(rows, "x", balance=1)])
    leave = {"Update": rows.request("lock-row", update=RELEASE, condition=MAY_RELEASE, names=names(), **ALL_OLD)}
    _write(rows, [leave, _put(rows, "x", balance=2)])
    same(rows.get("lock-row"), {"pk": "lock-row", "lock": {**lock_map(8), "queue": {}}})
    with rows.refused(CANCELED) as refusal:
        _write(rows, [guard, _put(rows, "x", balance=3)])
    same(refusal.codes, ["ConditionalCheckFailed", "None"])
    same(rows.get("x"), {"pk": "x", "balance": 2})


def two_actions_on_one_item_are_invalid(rows: Rows) -> None:
    """Even a check beside a write: they have to be joined into one action."""
    rows.put("a")
    for second in (_check(rows, "a", _THERE), _add(rows, "a")):
        with rows.refused(INVALID) as refusal:
            _write(rows, [_add(rows, "a"), second])
        holds("multiple operations on one item" in refusal.message, refusal.message)


def one_hundred_actions_are_the_limit(rows: Rows) -> None:
    """100 actions pass, and 101 are invalid."""
    _write(rows, [_add(rows, f"k{number}") for number in range(100)])
    same(rows.get("k99"), {"pk": "k99", "n": 1})
    with rows.refused(INVALID) as refusal:
        _write(rows, [_add(rows, f"k{number}") for number in range(101)])
    holds("less than or equal to 100" in refusal.message, refusal.message)


def the_same_token_applies_once(rows: Rows) -> None:
    """A resent transaction answers success and writes nothing."""
    token = uuid.uuid4().hex
    for _ in range(3):
        _write(rows, [_add(rows, "a")], ClientRequestToken=token)
    same(rows.get(), {"pk": "a", "n": 1})


def the_same_token_with_other_content_is_refused(rows: Rows) -> None:
    """A token belongs to one request."""
    token = uuid.uuid4().hex
    _write(rows, [_add(rows, "a")], ClientRequestToken=token)
    with rows.refused("IdempotentParameterMismatchException"):
        _write(rows, [_add(rows, "a", n=2)], ClientRequestToken=token)
    same(rows.get(), {"pk": "a", "n": 1})


def a_token_is_not_used_up_by_a_cancelled_transaction(rows: Rows) -> None:
    """Only success is remembered: the same request may succeed later."""
    token = uuid.uuid4().hex
    actions = [_add(rows, "a", _THERE)]
    with rows.refused(CANCELED):
        _write(rows, actions, ClientRequestToken=token)
    rows.put("a")
    _write(rows, actions, ClientRequestToken=token)
    same(rows.get(), {"pk": "a", "n": 1})


def a_resent_success_does_not_look_at_its_conditions_again(rows: Rows) -> None:
    """The first attempt made the condition false; the second one with the same token is still a success."""
    token = uuid.uuid4().hex
    for _ in range(2):
        _write(rows, [_put(rows, "a", _NEW)], ClientRequestToken=token)


def transactional_reads(rows: Rows) -> None:
    """TransactGetItems answers in the order asked; a missing item is an empty answer."""
    rows.put("a", n=1, m=2)
    rows.put("b", n=3)
    gets: list[Any] = [{"Get": {"TableName": rows.name, "Key": rows.key(pk)}} for pk in ("b", "missing", "a")]
    responses = rows.client.transact_get_items(TransactItems=gets)["Responses"]
    found = [rows.plain(response.get("Item", {})) for response in responses]
    same(found, [{"pk": "b", "n": 3}, {}, {"pk": "a", "n": 1, "m": 2}])


def a_check_needs_no_write(rows: Rows) -> None:
    """A ConditionCheck on an absent item does not create it."""
    for action in (_add(rows, "b"), _delete(rows, "c", _NEW)):
        _write(rows, [_check(rows, "a", _NEW), action])
        same(rows.get("a"), None)
    with rows.refused(REFUSED):
        rows.update("SET x = :one", _THERE, values={":one": 1})
