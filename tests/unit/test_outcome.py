"""What became of a refused write: the whole truth table."""

from __future__ import annotations

import itertools

import pytest

from pynamo_locking._core.outcome import Kind, Outcome, judge
from pynamo_locking._core.queue import FREE
from tests.unit.helpers import entry, queue

TICKET, NUMBER = 103, 4
SLOT = TICKET % 8
OTHERS = entry(104)

#: The images a write can be refused with, by what they show of our entry.
IMAGES = {
    "ours, an earlier write": queue(entry(TICKET, writes=NUMBER - 1)),
    "ours, this write": queue(entry(TICKET, writes=NUMBER)),
    "ours, a later write": queue(entry(TICKET, writes=NUMBER + 1)),
    "revived under another ticket": queue(entry(200, id=f"id{TICKET}", writes=NUMBER), since=100),
    "left, no trace": queue(OTHERS, since=100),
    "evicted": queue(OTHERS, since=100, evicted={SLOT: TICKET}),
    "an older eviction": queue(OTHERS, since=100, evicted={SLOT: TICKET - 8}),
    "trace overwritten": queue(OTHERS, since=100, evicted={SLOT: TICKET + 8}),
    "a younger document": queue(OTHERS, since=104),
    "no document": FREE,
}

A, R, L, U = Outcome.APPLIED, Outcome.REJECTED, Outcome.LOST, Outcome.UNKNOWN

#: For a request that was sent more than once: KEEP, FINISH, DELETE.
REPEATED = {
    "ours, an earlier write": (R, R, R),
    "ours, this write": (A, A, A),
    "ours, a later write": (R, R, R),
    "revived under another ticket": (U, A, U),
    "left, no trace": (U, A, U),
    "evicted": (U, L, U),
    "an older eviction": (U, A, U),
    "trace overwritten": (U, U, U),
    "a younger document": (U, U, U),
    "no document": (U, U, A),
}


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize(("column", "kind"), list(enumerate(Kind)), ids=[kind.value for kind in Kind])
def test_a_repeated_write(image, column, kind):
    """An earlier copy may have been applied; only what the image proves is said."""
    outcome = judge(IMAGES[image], f"id{TICKET}", TICKET, NUMBER, kind=kind, repeated=True)

    assert outcome is REPEATED[image][column]


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("kind", Kind)
def test_a_write_sent_once(image, kind):
    """It was not applied: rejected if our entry stands, lost if it does not. Never unknown."""
    outcome = judge(IMAGES[image], f"id{TICKET}", TICKET, NUMBER, kind=kind, repeated=False)

    assert outcome is (R if image.startswith("ours") else L)


def test_the_table_is_whole():
    """Every image stands in the table, and every outcome occurs."""
    assert REPEATED.keys() == IMAGES.keys()
    assert set(itertools.chain(*REPEATED.values())) == set(Outcome)
