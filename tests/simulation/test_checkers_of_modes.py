"""Each checker of locks that several hold at once accepts what is right and refuses what is wrong, in runs by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pynamo_locking._core.lock_modes import EXCLUSIVE, SHARED, WHOLE, LockMode, Mode
from pynamo_locking.exceptions import LockTimeout
from pynamo_locking_testing._engine.faults import Fault
from pynamo_locking_testing._engine.network import Change, Place
from tests.simulation.checkers.by_hand import LOCKED, History, grant, judged, judging, locked, log, refused
from tests.simulation.claims import are_rivals, queued_in, wished
from tests.simulation.history import Told

READER = LockMode(SHARED)
PERMIT = LockMode(EXCLUSIVE, 2)


def span(lower: int | None, upper: int | None, mode: Mode = EXCLUSIVE) -> LockMode:
    """Return a range of numbers."""
    return LockMode(mode, 1, *(None if end is None else ("N", str(end)) for end in (lower, upper)))


#: Pairs of claims, and whether both may be held at once.
PAIRS = [
    (WHOLE, WHOLE, False),
    (READER, READER, True),
    (READER, WHOLE, False),
    (PERMIT, PERMIT, True),
    (PERMIT, WHOLE, False),
    (PERMIT, LockMode(EXCLUSIVE, 3), True),
    (span(0, 5), span(5, 9), True),
    (span(0, 5), span(4, 9), False),
    (span(0, 5), span(4, 9, SHARED), False),
    (span(0, 5, SHARED), span(4, 9, SHARED), True),
    (span(None, 5), span(5, None), True),
    (span(None, 5), span(4, None), False),
    (span(9, 10), span(10, 11), True),
    (span(0, 5), WHOLE, False),
]


def name_of(claim: Any) -> str | None:
    """Return a claim as text, for the names of tests."""
    return str(claim) if isinstance(claim, LockMode) else None


@pytest.mark.parametrize(("first", "second", "is_right"), PAIRS, ids=name_of)
def test_one_holder_of_each_part(first: LockMode, second: LockMode, is_right: bool) -> None:
    """Two believers are fine if both may hold the lock at once, whichever of them came first."""
    for claims in ((first, second), (second, first)):
        history = History()
        for ticket, claim in enumerate(claims, start=1):
            grant(history, ticket, claim=claim)
        with judged("OneHolder", is_right):
            history.checked_by("OneHolder").on_step()


def test_one_holder_counts_permits() -> None:
    """Of a semaphore with two permits, a third believer is one too many."""
    history = History()
    for ticket in (1, 2):
        grant(history, ticket, claim=PERMIT)
    history.checked_by("OneHolder").on_step()
    grant(history, 3, claim=PERMIT)
    with refused("OneHolder"):
        history.checked_by("OneHolder").on_step()


@pytest.mark.parametrize(
    ("own", "ahead", "kind", "is_right"),
    [
        (WHOLE, None, "save", True),
        (READER, None, "save", False),
        (PERMIT, None, "save", False),
        (READER, None, "write beside", True),
        (READER, WHOLE, "write beside", False),
        (PERMIT, PERMIT, "write beside", True),
        (span(0, 5), span(5, 9), "save", True),
        (span(0, 5), span(4, 9, SHARED), "save", False),
    ],
)
def test_fence_for_modes(own: LockMode, ahead: LockMode | None, kind: str, is_right: bool) -> None:
    """Under a lock that others may have, too, only other items are written; and by no party before its turn."""
    history, checker = judging("Fence")
    queue = locked(*([1, 2] if ahead else [2]), e1=ahead or WHOLE, e2=own)
    history.images[LOCKED] = queue
    done = history.did(kind, LOCKED, at=(0, 1), ticket=2)
    with judged("Fence", is_right):
        history.wrote(checker, done, after={LOCKED: {**queue, **log(1)}})


@pytest.mark.parametrize(("at", "is_right"), [(0, True), (4, True), (5, False), (-1, False)])
def test_fence_for_items_in_ranges(at: int, is_right: bool) -> None:
    """A range protects the items in it; its end is none of them."""
    history = History()
    item = Place("slot", ("d", at))
    history.workload.row_of = lambda _: LOCKED
    history.images[LOCKED] = locked(1, e1=span(0, 5))
    done = history.did("save", item, at=(0, 1), ticket=1)
    with judged("Fence", is_right):
        history.wrote(history.checked_by("Fence"), done, after={item: log(1)})


@pytest.mark.parametrize(("at", "is_right"), [(4, False), (5, True)])
def test_fence_for_ranges_that_are_enforced(at: int, is_right: bool) -> None:
    """Who has no lock writes beside what others have locked, or wait for."""
    history = History()
    item = Place("shelf", ("d", at))
    history.workload.is_enforced = True
    history.workload.row_of = lambda _: LOCKED
    history.images[LOCKED] = locked(1, e1=span(0, 5))
    done = history.did("outside", item, at=(0, 1))
    with judged("Fence", is_right):
        history.wrote(history.checked_by("Fence"), done, after={item: log(1)})


@pytest.mark.parametrize("is_right", [True, False])
def test_fence_for_transactions_in_steps(is_right: bool) -> None:
    """The row counts as it was at the decision; its holder may have left before the item is written."""
    history, checker = judging("Fence")
    item = Place("device", ("d",))
    history.workload.row_of = lambda _: LOCKED
    history.network.is_pending = lambda place: place == LOCKED
    request: Any = SimpleNamespace(places=(item, LOCKED), purpose=history.did("save", item, at=(0, 1), ticket=1))
    history.images[LOCKED] = locked(*[1] * is_right, 2)
    checker.on_decided(request)
    history.images[LOCKED] = locked(*[1] * (not is_right), 2)
    with judged("Fence", is_right):
        checker.on_changes(request, [Change(item, None, log(1))])


@pytest.mark.parametrize(
    ("queue", "let_in", "is_right"),
    [
        ({1: READER, 2: WHOLE, 3: READER}, 1, True),
        ({1: READER, 2: WHOLE, 3: READER}, 3, False),
        ({1: READER, 2: READER}, 2, True),
        ({1: span(0, 2), 2: span(0, 9), 3: span(5, 6)}, 3, False),
        ({1: span(0, 2), 2: span(0, 5), 3: span(5, 6)}, 3, True),
        ({1: PERMIT, 2: PERMIT, 3: PERMIT}, 2, True),
        ({1: PERMIT, 2: PERMIT, 3: PERMIT}, 3, False),
    ],
    ids=["reader", "overtakes a writer", "readers", "overtakes a large range", "adjacent", "permit", "no permit left"],
)
def test_fifo_for_modes(queue: dict[int, LockMode], let_in: int, is_right: bool) -> None:
    """No party is let in before one that came earlier and wants some of the same, be it held or waited for."""
    history, checker = judging("Fifo")
    claims: dict[str, Any] = {f"e{ticket}": claim for ticket, claim in queue.items()}
    history.wrote(checker, None, after={LOCKED: locked(*queue, **claims)})
    grant(history, let_in, claim=queue[let_in])
    with judged("Fifo", is_right):
        checker.on_step()


def test_fifo_lets_permits_be_taken_in_any_order() -> None:
    """Two permits are free at once, and who hears of it first does not matter. Of other locks it does."""
    for claim, is_right in ((PERMIT, True), (WHOLE, False)):
        history, checker = judging("Fifo")
        history.wrote(checker, None, after={LOCKED: locked(1, 2, e1=claim, e2=claim)})
        history.images[LOCKED] = None
        for ticket in (2, 1):
            grant(history, ticket, claim=claim)
        with judged("Fifo", is_right):
            checker.on_step()


@pytest.mark.parametrize(
    ("ahead", "own", "steps", "told", "is_right"),
    [
        (READER, READER, (), Told.APPLIED, True),
        (READER, READER, ("look",), Told.APPLIED, False),
        (READER, READER, ("renew",), Told.APPLIED, False),
        (READER, READER, ("release",), Told.REFUSED, False),
        (READER, WHOLE, ("look", "renew"), Told.APPLIED, True),
        (WHOLE, READER, ("release",), Told.REFUSED, True),
        (span(0, 5), span(5, 9), ("look",), Told.APPLIED, False),
        (span(0, 5), span(4, 9), ("look",), Told.APPLIED, True),
    ],
)
def test_unhindered(ahead: LockMode, own: LockMode, steps: tuple[str, ...], told: Told, is_right: bool) -> None:
    """Who finds no rival in its way neither looks nor renews nor gives up; others do all of that."""
    for fault in ("", "lost request"):
        history, checker = judging("Unhindered")
        history.images[LOCKED] = locked(1, e1=ahead)
        error = LockTimeout("not in time") if told is Told.REFUSED else None
        done = history.did("acquire", LOCKED, at=(0, 9), told=told, error=error)
        history.trace.append(SimpleNamespace(step="look", purpose=str(done.kind), fault=""))
        history.wrote(checker, done, after={LOCKED: locked(1, 2, e1=ahead, e2=own)}, request="enter")
        purpose = f"acquire {done.number}"
        history.trace += [SimpleNamespace(step=step, purpose=purpose, fault=fault) for step in steps]
        with judged("Unhindered", is_right or bool(fault)):
            checker.at_end()


@pytest.mark.parametrize("excuse", ["pause", "removed", "late"])
def test_unhindered_excuses(excuse: str) -> None:
    """Who has stood still, or came by a second request, renews; and who was removed has to come again."""
    history, checker = judging("Unhindered")
    done = history.did("acquire", LOCKED, at=(0, 9))
    done.returned = None
    purpose = f"acquire {done.number}"
    if excuse == "late":
        history.trace.append(SimpleNamespace(step="enter", purpose=purpose, fault="lost request"))
    history.wrote(checker, done, after={LOCKED: locked(1)}, request="enter")
    if excuse == "pause":
        history.faults.happened[Fault.PAUSE_AFTER] = 1
    elif excuse == "removed":
        history.wrote(checker, None, after={LOCKED: locked()}, request="evict")
    history.trace.append(SimpleNamespace(step="renew", purpose=purpose, fault=""))
    checker.at_end()


def test_steady() -> None:
    """All that a holder sees is the same; unless another party was allowed to take the lock over."""
    history = History()
    given = grant(history, 1)
    done = history.did("steady", at=(0, 1), value=(given, [[1], [1]]))
    history.checked_by("Steady").at_end()
    done.value = (given, [[1], [1, 2]])
    with refused("Steady"):
        history.checked_by("Steady").at_end()
    history.broken.add((LOCKED, 1))
    history.checked_by("Steady").at_end()


def test_once_each() -> None:
    """A job is done by one; what is no job may be written as often as one likes."""
    for place, is_right in ((Place("register", ("job",)), False), (LOCKED, True)):
        history, checker = judging("OnceEach")
        history.wrote(checker, history.did("update", place, at=(0, 1)), after={place: log(1)})
        with judged("OnceEach", is_right):
            history.wrote(checker, history.did("update", place, at=(2, 3)), after={place: log(1, 2)})


def test_claims_are_read_as_they_are_stored() -> None:
    """The checkers read the queue by themselves: mode, permits and ends, numbers by value and texts as bytes."""
    texts = LockMode(SHARED, 1, ("S", "a"), None)
    image = locked(1, 2, 3, 4, e1=READER, e2=PERMIT, e3=span(9, 10), e4=texts)
    claims = [queued.claimed for queued in queued_in(image)]

    assert claims == [wished(claim) for claim in (READER, PERMIT, span(9, 10), texts)]
    assert [claim.is_shared for claim in claims] == [True, False, False, True]
    assert [claim.permits for claim in claims] == [1, 2, 1, 1]
    assert [claims[2].has(at) for at in (9, 10)] == [True, False]
    assert [are_rivals(claims[0], claim) for claim in claims] == [False, True, True, False]
