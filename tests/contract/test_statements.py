"""BatchExecuteStatement: conditional writes of single items. Not on moto, which knows few statements."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.helpers import Table, plain_item, refused, wire

REFUSED = "ConditionalCheckFailed"
INSERT = "INSERT INTO \"{table}\" VALUE {{'pk': ?, 'n': ?}}"
UPDATE = 'UPDATE "{table}" SET "n" = ? WHERE "pk" = ? AND ("n" = ?)'
DELETE = 'DELETE FROM "{table}" WHERE "pk" = ? AND ("n" = ?) RETURNING ALL OLD *'
UPDATE_MISSING = 'UPDATE "{table}" SET "n" = ? WHERE "pk" = ? AND ("m" IS MISSING)'


def send(table: Table, *statements: tuple[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Each answer: what was returned, and the code of an error."""
    batch = [
        {"Statement": text.format(table=table.name), "Parameters": [wire(each) for each in values]}
        for text, values in statements
    ]
    answers = table.client.batch_execute_statement(Statements=batch)["Responses"]
    return [
        {
            **({"item": plain_item(answer["Item"])} if "Item" in answer else {}),
            **({"code": answer["Error"]["Code"]} if "Error" in answer else {}),
        }
        for answer in answers
    ]


def test_statements_stand_alone(concurrent_table: Table) -> None:
    """Of a batch, one is applied and one is refused, and the answer says which."""
    table = concurrent_table
    for pk in "ab":
        table.put(pk, n=0)
    assert send(table, (UPDATE, (1, "a", 5)), (UPDATE, (1, "b", 0))) == [{"code": REFUSED}, {}]
    assert [table.get(pk) for pk in "ab"] == [{"pk": "a", "n": 0}, {"pk": "b", "n": 1}]


def test_an_insert_replaces_nothing(concurrent_table: Table) -> None:
    """It makes a new item, and is refused where there is one."""
    table = concurrent_table
    table.put("a", n=0)
    assert send(table, (INSERT, ("a", 1)), (INSERT, ("b", 1))) == [{"code": "DuplicateItem"}, {}]
    assert [table.get(pk) for pk in "ab"] == [{"pk": "a", "n": 0}, {"pk": "b", "n": 1}]


def test_an_update_creates_nothing(concurrent_table: Table) -> None:
    """Otherwise than UpdateItem: of a missing item it is refused, even if its condition is true of none."""
    assert send(concurrent_table, (UPDATE_MISSING, (1, "a")), (INSERT, ("b", 1))) == [{"code": REFUSED}, {}]
    assert concurrent_table.get("a") is None


def test_a_delete_shows_what_it_has_deleted(concurrent_table: Table) -> None:
    """Of a missing item it is a success, which only the missing item in its answer tells."""
    table = concurrent_table
    for pk in "ab":
        table.put(pk, n=0)
    deleted, wrong, missing = send(table, (DELETE, ("a", 0)), (DELETE, ("b", 5)), (DELETE, ("c", 0)))
    assert (deleted, wrong, missing) == ({"item": {"pk": "a", "n": 0}}, {"code": REFUSED}, {})
    assert [table.get(pk) for pk in "ab"] == [None, {"pk": "b", "n": 0}]


@pytest.mark.parametrize("number", [25, 26])
def test_twenty_five_statements_are_the_limit(concurrent_table: Table, number: int) -> None:
    """One more is refused, and nothing is applied."""
    batch = [(INSERT, (f"k{place}", 1)) for place in range(number)]
    if number == 25:
        assert send(concurrent_table, *batch) == [{}] * 25
    else:
        with refused("ValidationException"):
            send(concurrent_table, *batch)
        assert concurrent_table.get("k0") is None
