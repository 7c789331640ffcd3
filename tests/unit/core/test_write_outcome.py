"""What became of a refused write: the whole truth table."""

from __future__ import annotations

import itertools

import pytest

from pynamo_locking._core.lock_queue import FREE, EntryOwnership
from pynamo_locking._core.write_outcome import (
    BatchResult,
    EntryEffect,
    Known,
    Outcome,
    incarnation,
    judge,
    judge_by_id,
    next_write_id,
)
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
    "a younger document, of a clock that is behind": queue(OTHERS, since=99),
    "an old copy of the document": queue(entry(101), since=100),
    "no document": FREE,
}

A, R, L, U = Outcome.APPLIED, Outcome.REJECTED, Outcome.LOST, Outcome.UNKNOWN

#: The first ticket of the document in which our entry was granted.
SINCE = 100
OURS = EntryOwnership(f"id{TICKET}", TICKET, SINCE)

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
    "a younger document, of a clock that is behind": (U, U, U),
    "an old copy of the document": (U, U, U),
    "no document": (U, U, A),
}


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize(("column", "kind"), list(enumerate(EntryEffect)), ids=[kind.value for kind in EntryEffect])
def test_a_repeated_write(image, column, kind):
    """An earlier copy may have been applied; only what the image proves is said."""
    outcome = judge(IMAGES[image], OURS, NUMBER, kind=kind, repeated=True)

    assert outcome is REPEATED[image][column]


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("kind", EntryEffect)
def test_a_write_sent_once(image, kind):
    """Never unknown: rejected if our entry stands, lost if it does not.

    But ours if its number stands there, or if it was to remove the entry and the document knows no other write did.
    Then something on the way has repeated it without telling us.
    """
    outcome = judge(IMAGES[image], OURS, NUMBER, kind=kind, repeated=False)

    is_ours = REPEATED[image][1] is A if kind is EntryEffect.FINISH else image == "ours, this write"
    assert outcome is (A if is_ours else R if image.startswith("ours") else L)


def test_the_table_is_whole():
    """Every image stands in the table, and every outcome occurs."""
    assert REPEATED.keys() == IMAGES.keys()
    assert set(itertools.chain(*REPEATED.values())) == set(Outcome)


# Items that carry write ids

BEFORE = Known(4, "L1-before")
MINE = "L1-mine"

#: The images that a write can be refused with: for a save or update, for a delete.
SEEN = {
    "no item": (None, U, A),
    "my own write": (Known(5, MINE), A, A),
    "my own write, and a stock update on top": (Known(6, MINE), A, A),
    "as it was read": (BEFORE, R, R),
    "as it was read, and a stock update on top": (Known(5, "L1-before"), R, R),
    "the next version of this life": (Known(5, "L1-other"), R, R),
    "a later version of this life": (Known(6, "L1-other"), U, U),
    "the next version of another life": (Known(5, "L2-other"), U, U),
    "the same version of another life": (Known(4, "L2-other"), U, U),
    "the next version, without an id": (Known(5), U, U),
    "neither version nor id": (Known(), U, U),
}


@pytest.mark.parametrize("kind", EntryEffect)
@pytest.mark.parametrize("seen", SEEN)
def test_a_repeated_write_that_has_an_id(seen, kind):
    """Only what the image proves is said."""
    image, write, delete = SEEN[seen]

    assert judge_by_id(image, BEFORE, [MINE], kind=kind, repeated=True) is (
        delete if kind is EntryEffect.DELETE else write
    )


@pytest.mark.parametrize("kind", EntryEffect)
@pytest.mark.parametrize("seen", SEEN)
def test_a_write_with_an_id_sent_once(seen, kind):
    """It is never unknown: it was refused, unless its id is there (a copy that botocore does not know of)."""
    image = SEEN[seen][0]
    is_mine = image is not None and image.write_id == MINE

    assert judge_by_id(image, BEFORE, [MINE], kind=kind, repeated=False) is (A if is_mine else R)


@pytest.mark.parametrize("seen", [None, Known(1), Known(5), Known(5, "L1-other"), Known(4, "L1-before")])
@pytest.mark.parametrize("before", [Known(), Known(4), Known(None, "L1-before")])
def test_what_is_not_known_proves_nothing(seen, before):
    """No id was read, or there is no version: a repeated write that is not found is unknown, or as it was read."""
    outcome = judge_by_id(seen, before, [MINE], kind=EntryEffect.KEEP, repeated=True)

    assert outcome in (U, R)
    assert outcome is U or seen.write_id == before.write_id is not None


def test_a_write_without_an_id():
    """Nothing is found by an id that does not exist: an image without one is not ours."""
    assert judge_by_id(Known(5), Known(4), [], kind=EntryEffect.KEEP, repeated=True) is U
    assert judge_by_id(Known(5), Known(4), [], kind=EntryEffect.KEEP, repeated=False) is R
    assert judge_by_id(None, Known(4), [], kind=EntryEffect.DELETE, repeated=True) is A


def test_the_life_is_handed_on():
    """An id is the life of the item and a token; without a life it begins one, of the token."""
    first = next_write_id(Known(), "0123456789abcdef")
    second = next_write_id(Known(1, first), "fedcba9876543210")

    assert (first, second) == ("01234567-0123456789abcdef", "01234567-fedcba9876543210")
    assert incarnation(first) == incarnation(second) == "01234567"
    assert next_write_id(Known(7), "0123456789abcdef") == first


@pytest.mark.parametrize("write_id", [None, ""])
def test_no_id_has_no_life(write_id):
    """Nor an empty one."""
    assert incarnation(write_id) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("L1-a", "L1-b", True),
        ("L1-a", "L1-a", True),
        ("L1-a", "L2-a", False),
        ("L1-a", None, False),
        (None, None, False),
        ("", "", False),
    ],
)
def test_the_same_life(one, other, same):
    """Two that are not known are not known to be the same."""
    assert Known(1, one).is_same_life(Known(9, other)) is same
    assert Known(9, other).is_same_life(Known(1, one)) is same


@pytest.mark.parametrize(
    ("read", "stored", "same", "gone"),
    [
        (Known(1, "a-1"), Known(1, "a-1"), True, False),
        (Known(1, "a-1"), Known(2, "a-2"), False, True),
        (Known(1, "a-1"), Known(1, "b-1"), False, True),
        (Known(1, "a-1"), Known(), False, True),
        (Known(1), Known(1, "a-1"), True, False),
        (Known(1), Known(2, "a-2"), False, False),
        (Known(), Known(), True, False),
        (Known(), Known(1, "a-1"), False, False),
    ],
)
def test_what_was_read(read, stored, same, gone):
    """It is compared as far as it is known, and is gone for good only if it had an id."""
    assert read.may_be(stored) is same
    assert read.is_gone_for_good(stored) is gone


def test_a_result_of_a_batch():
    """It is applied if there is no error."""
    assert BatchResult("item", "save").is_applied
    assert not BatchResult("item", "save", ValueError()).is_applied


def test_a_life_is_told_apart_by_nothing_but_its_name():
    """The version that follows the one that was read proves a refusal in one life only."""
    one, other = Known(1, next_write_id(Known(), "aaaaaaaa1")), Known(2, next_write_id(Known(), "bbbbbbbb1"))

    assert judge_by_id(other, one, [next_write_id(one, "cccccccc1")], kind=EntryEffect.KEEP, repeated=True) is U
