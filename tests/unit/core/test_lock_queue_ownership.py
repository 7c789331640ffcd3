"""What is known of our entry: every state, every fact, every document without it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from pynamo_locking._core.lock_queue import FREE, EntryOwnership, HoldState, MissingEntry
from tests.unit.helpers import entry, queue

if TYPE_CHECKING:
    from collections.abc import Callable

TICKET, SINCE = 103, 100
SLOT = TICKET % 8
OTHERS = entry(104)

#: Documents without our entry, and what their traces say of it: evicted, not evicted, forgotten.
EVICTED, REMOVED, FORGOTTEN = "evicted", "removed by ourselves", "forgotten"
DOCUMENTS = {
    "a trace of us": (queue(OTHERS, since=SINCE, evicted={SLOT: TICKET}), EVICTED),
    "no trace": (queue(OTHERS, since=SINCE), REMOVED),
    "an older trace": (queue(OTHERS, since=SINCE, evicted={SLOT: TICKET - 8}), REMOVED),
    "a trace written over": (queue(OTHERS, since=SINCE, evicted={SLOT: TICKET + 8}), FORGOTTEN),
    "a younger document": (queue(OTHERS, since=104), FORGOTTEN),
    "a younger document, of a clock that is behind": (queue(OTHERS, since=99), FORGOTTEN),
    "no document": (FREE, FORGOTTEN),
}

HELD = EntryOwnership("id103", TICKET, SINCE)
STATES = [
    EntryOwnership("id103", TICKET, SINCE, *facts)
    for facts in itertools.product(
        HoldState, ("", "evicted", "deleted", "forked", "restored"), (0, 1, 2), (False, True)
    )
]

L, M, U = MissingEntry.LOST, MissingEntry.LEFT, MissingEntry.UNKNOWN

#: By what the document says: after another request; after a removal; each without and with others in doubt.
WHY = {
    EVICTED: {(False, False): L, (False, True): L, (True, False): L, (True, True): L},
    REMOVED: {(False, False): L, (False, True): M, (True, False): M, (True, True): M},
    FORGOTTEN: {(False, False): L, (False, True): U, (True, False): L, (True, True): U},
}


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("is_removal", [False, True], ids=["another request", "a removal"])
@pytest.mark.parametrize("in_doubt", [False, True], ids=["no doubt", "in doubt"])
def test_why_an_entry_is_absent(name: str, is_removal: bool, in_doubt: bool) -> None:
    """A loss is told only where nothing of ours can have removed the entry, or the trace proves it."""
    state, says = DOCUMENTS[name]
    assert HELD.why_absent(state, is_removal=is_removal, in_doubt=in_doubt) is WHY[says][is_removal, in_doubt]


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("is_removal", [False, True], ids=["another request", "a removal"])
def test_what_is_known_after_a_refusal(name: str, is_removal: bool) -> None:
    """Only what is held is lost; a transaction of ours that may have deleted the item comes first."""
    state, says = DOCUMENTS[name]
    is_another = state.since != SINCE
    for known in STATES:
        if is_removal and not known.removals:
            continue
        after = known.absent(state, is_removal=is_removal)
        others = known.removals - 1 if is_removal else known.removals
        if known.may_delete and is_another:
            assert after == known.ended()
        elif known.is_held and WHY[says][is_removal, others > 0] is L:
            assert after == known.lost("deleted" if is_another else "evicted")
            assert after.reason
        else:
            assert after == known


S = HoldState
IN_USE = {S.HELD, S.KEPT, S.DOWNGRADING}


@pytest.mark.parametrize("known", STATES, ids=str)
def test_each_fact_changes_what_it_is_about(known: EntryOwnership) -> None:
    """And nothing else: a loss stays known when the entry is given back, and the end is the end."""
    facts = (known.state, known.reason, known.removals, known.may_delete)
    state, reason, removals, may_delete = facts

    def now(after: EntryOwnership) -> tuple[object, ...]:
        assert (after.id, after.ticket, after.since) == ("id103", TICKET, SINCE)
        return after.state, after.reason, after.removals, after.may_delete

    assert known.is_over is (state not in IN_USE)
    assert known.is_held is (state in IN_USE and reason == "")
    assert known.is_copied is (reason in ("forked", "restored"))
    assert now(known.lost("news")) == ((state, "news", removals, may_delete) if known.is_held else facts)
    assert now(known.forked()) == (facts if known.is_over else (state, "forked", removals, may_delete))
    assert now(known.removing()) == (state, reason, removals + 1, may_delete)
    assert now(known.removing(-1)) == (state, reason, removals - 1, may_delete)
    assert now(known.deleting(expected=True)) == (state, reason, removals, True)
    assert now(known.deleting(expected=False)) == (state, reason, removals, False)


#: What each verb makes of each state; the others stay as they are. What is over stays over: the first end counts.
BECOMES = {
    EntryOwnership.ended: dict.fromkeys(IN_USE, S.ENDED),
    EntryOwnership.orphaned: {**dict.fromkeys(IN_USE, S.ORPHANED), S.KEPT: S.LEFT},
    EntryOwnership.detached: dict.fromkeys(IN_USE, S.DETACHED),
    EntryOwnership.kept: {S.HELD: S.KEPT},
    EntryOwnership.claimed: {S.KEPT: S.HELD},
    EntryOwnership.downgrading: {S.HELD: S.DOWNGRADING},
    EntryOwnership.downgraded: {S.DOWNGRADING: S.HELD},
}


@pytest.mark.parametrize("verb", BECOMES, ids=lambda verb: verb.__name__)
def test_a_verb_changes_the_state_only(verb: Callable[[EntryOwnership], EntryOwnership]) -> None:
    """Whether it is lost or not, and whatever requests are under way."""
    for known in STATES:
        assert verb(known) == known._replace(state=BECOMES[verb].get(known.state, known.state))


@pytest.mark.parametrize("state", HoldState)
def test_what_its_holder_keeps_for_another_stays(state: HoldState) -> None:
    """Also once its holder is gone, so that a second interrupt does not remove it."""
    known = EntryOwnership("id103", TICKET, SINCE, state)
    assert known.stays is (state in (S.KEPT, S.LEFT))
    assert known.orphaned().stays is known.stays


def test_a_refused_removal_leaves_no_doubt_behind() -> None:
    """One that was not answered does, whatever becomes of the next."""
    gone = queue(OTHERS, since=SINCE, evicted={SLOT: TICKET + 8})
    assert HELD.removing().removing(-1).absent(gone).reason == "evicted"
    unanswered = HELD.removing()
    assert unanswered.absent(gone).is_held
    assert unanswered.removing().absent(gone, is_removal=True).is_held
    assert unanswered.removing().removing(-1).absent(gone).is_held
