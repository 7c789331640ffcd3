"""The requests of transactions, counted: as many as the protocol needs."""

from __future__ import annotations

import pytest

from benchmarks.transactions import KINDS, Record, Transactions, count
from tests.support.transaction_models import make_long_from


@pytest.fixture(autouse=True)
def _tables(dynoxide):
    dynoxide.bind(Transactions, Record)


@pytest.mark.parametrize("kind", KINDS)
def test_up_to_a_hundred_items_are_one_request(kind):
    """One write, or one native transaction, and not one request more."""
    for n in (1, 2, 10, 100):
        counted = count(kind, n)
        assert counted.requests == 1
        assert counted.refused == 0
        assert counted.write_units == (1 if n == 1 else 2 * n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "requests", "inserts"), [(101, 6, 6), (250, 18, 13)])
def test_more_items_are_two_requests_for_each_25_but_for_ninety_nine(kind, n, requests, inserts):
    """Header, row of participants, marks, decision, finishes, and the header once more; 99 placeholders together."""
    requests = inserts if kind == "inserts" else requests
    counted = count(kind, n)
    assert counted.requests == requests
    assert counted.refused == 0
    assert counted.write_units <= (3 if kind == "inserts" else 2.1) * n  # ghosts are made by native transactions


def test_without_statements_more_items_are_two_requests_each(monkeypatch):
    """As for an engine that refuses statements."""
    make_long_from(monkeypatch, 100, statements=1)
    counted = count("updates", 110)
    assert counted.requests == 4 + 2 * 11
    assert counted.refused == 0


def test_an_item_is_read_once():
    """`get` is one read an item; what is inserted is not read."""
    assert count("updates", 10).reads == 10
    assert count("inserts", 10).reads == 0
