"""The requests of transactions, counted: against the plan, and against what the protocol needs."""

from __future__ import annotations

import pytest

from benchmarks.transaction_counts import KINDS, Record, Transactions, count


@pytest.fixture(autouse=True)
def _tables(dynoxide):
    dynoxide.bind(Transactions, Record)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 10, 99, 100])
def test_up_to_a_hundred_items_are_one_request(kind, n):
    """One write, or one native transaction, and not one request more."""
    counted = count(kind, n)
    assert counted.requests == counted.planned_requests == 1
    assert counted.refused == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "requests"), [(101, 8), (250, 306)])
def test_more_items_are_two_requests_each_but_for_ninety_nine(kind, n, requests):
    """Header, row of participants, marks, decision, finishes, and the header once more."""
    counted = count(kind, n)
    assert counted.requests == counted.planned_requests == counted.reference_requests == requests
    assert counted.refused == 0


@pytest.mark.parametrize("n", [10, 250])
def test_an_item_is_read_once(n):
    """`get` is one read an item; what is inserted is not read."""
    assert count("updates", n).reads == n
    assert count("inserts", n).reads == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 10, 100, 101, 250])
def test_the_plan_foretells_the_write_units(kind, n):
    """At most 2 % beside what DynamoDB charges."""
    counted = count(kind, n)
    assert counted.planned_write_units == pytest.approx(counted.write_units, rel=0.02)
