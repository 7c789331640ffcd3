"""TransactWriteItems and TransactGetItems."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from tests.contract.helpers import (
    ALL_OLD,
    CANCELED,
    INVALID,
    MAY_RELEASE,
    REFUSED,
    RELEASE,
    Table,
    deviates,
    lock_map,
    names,
    plain_item,
    refused,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

NEW: Final = "attribute_not_exists(pk)"
THERE: Final = "attribute_exists(pk)"


def put(table: Table, pk: str, condition: str | None = None, /, **attributes: Any) -> dict[str, Any]:
    conditional = {} if condition is None else {"ConditionExpression": condition, **ALL_OLD}
    return {"Put": {"TableName": table.name, "Item": table.stored(pk, **attributes), **conditional}}


def add(table: Table, pk: str, condition: str | None = None, n: int = 1) -> dict[str, Any]:
    return {"Update": table.request(pk, update="ADD n :n", condition=condition, values={":n": n}, **ALL_OLD)}


def delete(table: Table, pk: str, condition: str) -> dict[str, Any]:
    return {"Delete": table.request(pk, condition=condition, **ALL_OLD)}


def check(table: Table, pk: str, condition: str, **arguments: Any) -> dict[str, Any]:
    return {"ConditionCheck": table.request(pk, condition=condition, **arguments, **ALL_OLD)}


def write(table: Table, actions: Iterable[dict[str, Any]], **options: Any) -> None:
    table.client.transact_write_items(TransactItems=list(actions), **options)


def test_all_or_nothing(table: Table) -> None:
    """One failed condition and nothing is written."""
    table.put("a")
    with refused(CANCELED) as refusal:
        write(table, [put(table, "b"), add(table, "c"), put(table, "a", NEW)])
    assert refusal.codes == ["None", "None", "ConditionalCheckFailed"]
    assert [table.get(pk) for pk in "bc"] == [None, None]
    write(table, [put(table, "b"), add(table, "c"), put(table, "d", NEW)])
    assert [table.get(pk) for pk in "bcd"] == [{"pk": "b"}, {"pk": "c", "n": 1}, {"pk": "d"}]


def test_reasons_stand_in_the_order_of_the_request(table: Table) -> None:
    """Each action kind brings the old image of its own item, at its own place."""
    for number, pk in enumerate("abcd"):
        table.put(pk, n=number)
    actions = [
        check(table, "d", NEW),
        put(table, "ok"),
        delete(table, "c", NEW),
        add(table, "b", NEW),
        put(table, "a", NEW),
        check(table, "missing", THERE),
    ]
    with refused(CANCELED) as refusal:
        write(table, actions)
    failed = "ConditionalCheckFailed"
    assert refusal.codes == [failed, "None", failed, failed, failed, failed]
    there = {pk: {"pk": pk, "n": number} for number, pk in enumerate("abcd")}
    assert refusal.images == [there["d"], None, there["c"], there["b"], there["a"], None]


def test_a_check_of_a_lock_guards_a_write_elsewhere(table: Table) -> None:
    """A guarded write of another item: check or release on the lock row, Put on the item."""
    table.put("lock-row", lock=lock_map(8, e1=0))
    guard = check(table, "lock-row", MAY_RELEASE, names=names())
    write(table, [guard, put(table, "x", balance=1)])
    leave = {"Update": table.request("lock-row", update=RELEASE, condition=MAY_RELEASE, names=names(), **ALL_OLD)}
    write(table, [leave, put(table, "x", balance=2)])
    assert table.get("lock-row") == {"pk": "lock-row", "lock": {**lock_map(8), "queue": {}}}
    with refused(CANCELED) as refusal:
        write(table, [guard, put(table, "x", balance=3)])
    assert refusal.codes == ["ConditionalCheckFailed", "None"]
    assert table.get("x") == {"pk": "x", "balance": 2}


def test_two_actions_on_one_item_are_invalid(table: Table) -> None:
    """Even a check beside a write: they have to be joined into one action."""
    table.put("a")
    for second in (check(table, "a", THERE), add(table, "a")):
        with refused(INVALID) as refusal:
            write(table, [add(table, "a"), second])
        assert "multiple operations on one item" in refusal.message, refusal.message


def test_one_hundred_actions_are_the_limit(table: Table) -> None:
    """100 actions pass, and 101 are invalid."""
    write(table, [add(table, f"k{number}") for number in range(100)])
    assert table.get("k99") == {"pk": "k99", "n": 1}
    with refused(INVALID) as refusal:
        write(table, [add(table, f"k{number}") for number in range(101)])
    assert "less than or equal to 100" in refusal.message, refusal.message


def test_the_same_token_applies_once(table: Table) -> None:
    """A resent transaction answers success and writes nothing."""
    token = uuid.uuid4().hex
    for _ in range(3):
        write(table, [add(table, "a")], ClientRequestToken=token)
    assert table.get() == {"pk": "a", "n": 1}


def test_the_same_token_with_other_content_is_refused(table: Table) -> None:
    """A token belongs to one request."""
    token = uuid.uuid4().hex
    write(table, [add(table, "a")], ClientRequestToken=token)
    with refused("IdempotentParameterMismatchException"):
        write(table, [add(table, "a", n=2)], ClientRequestToken=token)
    assert table.get() == {"pk": "a", "n": 1}


def test_a_token_is_not_used_up_by_a_cancelled_transaction(table: Table) -> None:
    """Only success is remembered: the same request may succeed later."""
    token = uuid.uuid4().hex
    actions = [add(table, "a", THERE)]
    with refused(CANCELED):
        write(table, actions, ClientRequestToken=token)
    table.put("a")
    write(table, actions, ClientRequestToken=token)
    assert table.get() == {"pk": "a", "n": 1}


def test_a_resent_success_does_not_look_at_its_conditions_again(table: Table) -> None:
    """The first attempt made the condition false; the second one with the same token is still a success."""
    token = uuid.uuid4().hex
    for _ in range(2):
        write(table, [put(table, "a", NEW)], ClientRequestToken=token)


def test_transactional_reads(table: Table) -> None:
    """TransactGetItems answers in the order asked; a missing item is an empty answer."""
    table.put("a", n=1, m=2)
    table.put("b", n=3)
    gets: list[Any] = [{"Get": {"TableName": table.name, "Key": table.key(pk)}} for pk in ("b", "missing", "a")]
    responses = table.client.transact_get_items(TransactItems=gets)["Responses"]
    found = [plain_item(response.get("Item", {})) for response in responses]
    assert found == [{"pk": "b", "n": 3}, {}, {"pk": "a", "n": 1, "m": 2}]


def test_a_check_needs_no_write(table: Table) -> None:
    """A ConditionCheck on an absent item does not create it."""
    for action in (add(table, "b"), delete(table, "c", NEW)):
        write(table, [check(table, "a", NEW), action])
        assert table.get("a") is None
    with refused(REFUSED):
        table.update("SET x = :one", THERE, values={":one": 1})


def test_two_tables(table: Table) -> None:
    """A check in one table guards a Put in another."""
    other = Table(table.engine)
    there = {"ConditionCheck": table.request(condition="attribute_exists(pk)")}
    put = {"Put": {"TableName": other.name, "Item": other.stored(balance=1)}}
    with refused(CANCELED) as refusal:
        write(table, [there, put])
    assert refusal.codes == ["ConditionalCheckFailed", "None"]
    table.put()
    write(table, [there, put])
    assert other.get() == {"pk": "a", "balance": 1}


def test_two_actions_on_one_item_are_invalid_before_any_condition(table: Table) -> None:
    """DynamoDB looks at the request first. DynamoDB Local evaluates conditions as it goes."""
    deviation = deviates(table.engine, "checks conditions before it looks for one item written twice")
    with refused(CANCELED if deviation else INVALID):
        write(table, [add(table, "a", THERE), add(table, "a")])


def test_an_empty_transaction_is_invalid(table: Table) -> None:
    """There is nothing that it could mean."""
    with refused(INVALID, unless=deviates(table.engine, "accepts an empty transaction")):
        write(table, [])


def test_four_megabytes_are_the_limit(table: Table) -> None:
    """The items of a transaction may have 4 MB together."""
    puts = [
        {"Put": {"TableName": table.name, "Item": table.stored(f"k{number}", text="x" * 399_000)}}
        for number in range(11)
    ]
    with refused(INVALID, unless=deviates(table.engine, "accepts transactions above 4 MB")) as refusal:
        write(table, puts)
    if not deviates(table.engine, "accepts transactions above 4 MB"):
        assert "4MB" in refusal.message
        assert table.get("k0") is None


def test_projections_of_transactional_reads(table: Table) -> None:
    """Only the attributes that were asked for come back."""
    table.put("a", n=1, m=2)
    projected: dict[str, Any] = {"m": 2}
    if deviates(table.engine, "ignores projections in TransactGetItems"):
        projected = {"pk": "a", "n": 1, "m": 2}
    elif deviates(table.engine, "adds the key to projections in TransactGetItems"):
        projected = {"pk": "a", "m": 2}
    get = {"Get": {"TableName": table.name, "Key": table.key(), "ProjectionExpression": "m"}}
    (response,) = table.client.transact_get_items(TransactItems=[get])["Responses"]
    assert plain_item(response["Item"]) == projected
