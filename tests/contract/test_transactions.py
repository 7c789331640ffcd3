"""TransactWriteItems and TransactGetItems."""

from __future__ import annotations

from typing import Any

from tests.contract.helpers import CANCELED, INVALID, Table, deviates, plain_item, refused


def write(table: Table, *actions: dict[str, Any]) -> None:
    table.client.transact_write_items(TransactItems=list(actions))


def add(table: Table, condition: str | None = None) -> dict[str, Any]:
    return {"Update": table.request(update="ADD n :n", condition=condition, values={":n": 1})}


def test_two_tables(table: Table) -> None:
    """A check in one table guards a Put in another."""
    other = Table(table.engine)
    there = {"ConditionCheck": table.request(condition="attribute_exists(pk)")}
    put = {"Put": {"TableName": other.name, "Item": other.stored(balance=1)}}
    with refused(CANCELED) as refusal:
        write(table, there, put)
    assert refusal.codes == ["ConditionalCheckFailed", "None"]
    table.put()
    write(table, there, put)
    assert other.get() == {"pk": "a", "balance": 1}


def test_two_actions_on_one_item_are_invalid_before_any_condition(table: Table) -> None:
    """DynamoDB looks at the request first. DynamoDB Local evaluates conditions as it goes."""
    deviation = deviates(table.engine, "checks conditions before it looks for one item written twice")
    with refused(CANCELED if deviation else INVALID):
        write(table, add(table, "attribute_exists(pk)"), add(table))


def test_an_empty_transaction_is_invalid(table: Table) -> None:
    """There is nothing that it could mean."""
    with refused(INVALID, unless=deviates(table.engine, "accepts an empty transaction")):
        write(table)


def test_four_megabytes_are_the_limit(table: Table) -> None:
    """The items of a transaction may have 4 MB together."""
    puts = [
        {"Put": {"TableName": table.name, "Item": table.stored(f"k{number}", text="x" * 399_000)}}
        for number in range(11)
    ]
    with refused(INVALID, unless=deviates(table.engine, "accepts transactions above 4 MB")) as refusal:
        write(table, *puts)
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
