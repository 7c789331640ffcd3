"""Sizes that DynamoDB refuses, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.helpers import INVALID, Table, deviates, refused, wire_item
from tests.support.parties import in_thread

KILOBYTE = 1024


def clauses(number: int, form: str = "#n{0} = :n{0}") -> dict[str, Any]:
    """An update of ``number`` SET clauses."""
    return {
        "expression": "SET " + ", ".join(form.format(place) for place in range(number)),
        "names": {f"#n{place}": f"n{place}" for place in range(number)},
        "values": {f":n{place}": place for place in range(number)},
    }


def test_an_item_has_400_kilobytes(table: Table) -> None:
    """An update may not make the item larger, and leaves it as it was."""
    table.put(text="x" * 395 * KILOBYTE)
    with refused(INVALID) as refusal:
        table.update("SET more = :more", values={":more": "x" * 6 * KILOBYTE})
    assert refusal.message == "Item size to update has exceeded the maximum allowed size"
    assert sorted(table.get() or {}) == ["pk", "text"]
    with refused(INVALID) as refusal:
        table.client.put_item(TableName=table.name, Item=wire_item({"pk": "a", "text": "x" * 401 * KILOBYTE}))
    assert refusal.message == "Item size has exceeded the maximum allowed size"
    with refused(INVALID, unless=not deviates(table.engine, "refuses items above 405,000 bytes")):
        table.put(text="x" * 399 * KILOBYTE)


def test_an_update_of_150_clauses(table: Table) -> None:
    """A wide model is saved by one UpdateItem.

    In a thread of its own: moto needs some six stack frames a clause, and Python has a thousand.
    """
    table.put()
    assert len(in_thread(lambda: table.update(**clauses(150)))) == 151


def test_an_update_expression_has_four_kilobytes(table: Table) -> None:
    """320 clauses ``#n319 = :n319`` are 4,582 characters: too long. It is the text that counts, not
    names and values.
    """
    table.put()
    if deviates(table.engine, "crashes on an update of 320 clauses"):
        with pytest.raises(RecursionError):
            table.update(**clauses(320))
        return
    assert len(clauses(320)["expression"]) > 4 * KILOBYTE > len(clauses(280)["expression"])
    with refused(INVALID) as refusal:
        table.update(**clauses(320))
    assert "Invalid UpdateExpression: Expression size has exceeded the maximum allowed size" in refusal.message
    assert len(table.update(**clauses(280))) == 281


def test_set_clauses_are_not_operators(table: Table) -> None:
    """320 clauses below 4 KB pass: 300 is the limit of operators, and ``=`` of SET is none."""
    table.put()
    update = clauses(320, "#n{0}=:n{0}")
    assert len(update["expression"]) < 4 * KILOBYTE
    if deviates(table.engine, "crashes on an update of 320 clauses"):
        with pytest.raises(RecursionError):
            table.update(**update)
    else:
        assert len(table.update(**update)) == 321


@pytest.mark.parametrize("number", [100, 150])
def test_a_condition_of_at_most_300_operators(table: Table, number: int) -> None:
    """150 comparisons and the 149 ``AND`` between them are 299 operators."""
    table.put()
    assert table.holds(" AND ".join(["#p=:a"] * number), names={"#p": "pk"}, values={":a": "a"})


def test_a_condition_of_more_than_300_operators(table: Table) -> None:
    """151 comparisons and 150 ``AND`` are one too many.

    Only DynamoDB Local, of the engines, knows this limit.
    """
    table.put()
    condition = " AND ".join(["#p=:a"] * 151)
    deviation = deviates(table.engine, "accepts conditions of more than 300 operators")
    with refused(INVALID, unless=deviation) as refusal:
        table.update("SET x = :a", condition, names={"#p": "pk"}, values={":a": "a"})
    if not deviation:
        assert "too many operators; operator count: 301" in refusal.message


def test_a_condition_has_four_kilobytes(table: Table) -> None:
    """The condition has a limit of its own."""
    table.put()
    condition = " AND ".join(
        f"attribute_not_exists(#name{number:03}.#name{number:03}.#name{number:03})" for number in range(90)
    )
    assert len(condition) > 4 * KILOBYTE
    with refused(INVALID, unless=deviates(table.engine, "accepts conditions above 4 KB")):
        table.update(
            "SET x = :x", condition, names={f"#name{number:03}": f"n{number}" for number in range(90)}, values={":x": 1}
        )


def test_a_sum_has_two_terms(table: Table) -> None:
    """``SET n = n + :a + :b`` is not in the grammar."""
    table.put(n=1)
    with refused(INVALID, unless=deviates(table.engine, "accepts a sum of three terms in SET")):
        table.update("SET n = n + :a + :b", values={":a": 1, ":b": 1})


def test_maps_are_at_most_32_levels_deep(table: Table) -> None:
    """33 levels are invalid."""
    value: Any = 1
    for _ in range(33):
        value = {"a": value}
    with refused(INVALID, unless=deviates(table.engine, "accepts maps 33 levels deep")):
        table.put(value=value)


def test_numbers_have_38_digits(table: Table) -> None:
    """The 39th is invalid, not rounded: a ticket or version never loses its last digit silently."""
    item = {"pk": {"S": "a"}, "n": {"N": "1" * 38}}
    table.client.put_item(TableName=table.name, Item=item)
    with refused(INVALID, unless=deviates(table.engine, "accepts numbers of 39 digits")):
        table.client.put_item(TableName=table.name, Item={**item, "n": {"N": "1" * 39}})
