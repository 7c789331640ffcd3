"""The pure rules of transactions: what a header says of a mark, who may be wounded, which path is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynamo_locking._core.paths import (
    MOST_ACTIONS,
    MOST_BYTES,
    ROW_BYTES,
    CannotBeStaged,
    Member,
    Path,
    Plan,
    choose,
    keys_in_rows,
)
from pynamo_locking._core.transaction import GRACE_S, Fate, Header, State, fate, meet, reason_to_abort, shows_committed
from pynamo_locking._io import headers
from tests.unit.helpers import steady

LEASE = 10.0


def header(state: State = State.PENDING, **facts: object) -> Header:
    """A header of a transaction that began at 500 and whose lease ends at 1,000 s of the wall clock."""
    defaults: dict[str, object] = {"priority": "500", "lease_ms": 10_000, "until_ms": 1_000_000}
    return Header("id", state, **(defaults | facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, Fate.DROP),
        (State.PENDING, Fate.WAIT),
        (State.COMMITTED, Fate.FINISH),
        (State.FINISHED, Fate.DROP),
        (State.ABORTED, Fate.DROP),
    ],
)
def test_fate(state: State | None, expected: Fate) -> None:
    """Only a pending transaction is waited for, only a committed one is finished, and a missing one is over."""
    assert fate(None if state is None else header(state)) is expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, True),
        (State.PENDING, True),
        (State.COMMITTED, False),
        (State.FINISHED, True),
        (State.ABORTED, True),
    ],
)
def test_shows_committed(state: State | None, *, expected: bool) -> None:
    """Only what is committed and not in place makes the values beside a mark old ones; or an order that is fixed."""
    assert shows_committed(None if state is None else header(state)) is expected
    assert not shows_committed(header(is_early=True))


def test_states() -> None:
    """Committed is not final, finished is both, aborted is final alone."""
    assert {state for state in State if state.is_final} == {State.FINISHED, State.ABORTED}
    assert {state for state in State if state.is_committed} == {State.COMMITTED, State.FINISHED}
    assert header().lease == LEASE


def test_meetings_remember_the_first_sight_and_the_newest_beat() -> None:
    """An old beat, as of a late answer, does not count as a sign of life; a new one does."""
    first = meet(None, header(beat=3), 100.0)
    assert (first.first, first.sighting.beat, first.sighting.since) == (100.0, 3, 100.0)
    for beat in (2, 3):
        assert meet(first, header(beat=beat), 105.0) == first
    newer = meet(first, header(beat=4), 105.0)
    assert (newer.first, newer.sighting.beat, newer.sighting.since) == (100.0, 4, 105.0)


def reason(
    now: float, *, now_ms: int = 0, skew: float | None = None, priority: str | None = None, beat_at: float = 0.0
) -> str | None:
    """Of a transaction that was met at 0 and whose last beat was seen at `beat_at`."""
    meeting = meet(meet(None, header(beat=0), 0.0), header(beat=1), beat_at)
    return reason_to_abort(header(beat=1), meeting, now=now, now_ms=now_ms, max_clock_skew=skew, priority=priority)


def test_silence_of_a_whole_lease_is_death() -> None:
    """A beat that does not move for a lease, by the watcher's own clock, means expired; before that nothing does."""
    assert reason(LEASE * 0.99) is None
    assert reason(LEASE * 1.2) == "expired"
    assert reason(LEASE * 1.2, beat_at=5.0) is None
    assert reason(5.0 + LEASE * 1.2, beat_at=5.0) == "expired"


def test_the_stored_end_is_a_hint() -> None:
    """The stored end of the lease counts only if clocks are trusted, and with their skew."""
    assert reason(0.0, now_ms=10**9, skew=None) is None
    assert reason(0.0, now_ms=1_000_000, skew=5.0) is None
    assert reason(0.0, now_ms=1_004_000, skew=5.0) is None
    assert reason(0.0, now_ms=1_006_000, skew=5.0) == "expired"


def test_a_lease_beyond_belief_counts_as_a_day() -> None:
    """By silence, and by the stored end: from the last renewal on."""
    poisoned = header(lease_ms=10**30, until_ms=10**30)  # renewed at 0
    day = 86_400

    def verdict(now: float, now_ms: int, skew: float | None) -> str | None:
        met = meet(None, poisoned, 0.0)
        return reason_to_abort(poisoned, met, now=now, now_ms=now_ms, max_clock_skew=skew, priority=None)

    assert verdict(day * 1.04, 0, None) is None
    assert verdict(day * 1.06, 0, None) == "expired"
    assert verdict(0.0, (day + 10) * 1000, 10.0) is None
    assert verdict(0.0, (day + 10) * 1000 + 1, 10.0) == "expired"


def test_the_older_one_wounds_after_the_grace() -> None:
    """Wound-wait: the older one waits for the grace, the younger one and whoever is no transaction for a lease."""
    assert reason(GRACE_S * 0.9, priority="400") is None
    assert reason(GRACE_S, priority="400") == "wounded"
    assert reason(GRACE_S, priority="400", beat_at=GRACE_S) == "wounded"  # signs of life do not help
    for priority in ("500", "600", None):
        assert reason(LEASE * 0.9, priority=priority) is None
        assert reason(LEASE * 1.2, priority=priority) == "expired"


@steady
@given(st.text("0123456789", min_size=3, max_size=3), st.text("0123456789", min_size=3, max_size=3))
def test_of_two_one_is_never_wounded(one: str, other: str) -> None:
    """Two transactions never wound each other, whatever their ages."""
    wounded = [
        reason_to_abort(
            header(priority=theirs),
            meet(None, header(), 0.0),
            now=1.0,
            now_ms=0,
            max_clock_skew=None,
            priority=mine,
        )
        for mine, theirs in ((one, other), (other, one))
    ]
    assert wounded.count("wounded") == (0 if one == other else 1)


# The path


def writes(count: int, **facts: object) -> list[Member]:
    return [Member(is_write=True, **{"size": 100, "before_size": 100, "key_size": 50, **facts}) for _ in range(count)]  # type: ignore[arg-type]


def reads(count: int, **facts: object) -> list[Member]:
    return [Member(is_write=False, **{"size": 100, "before_size": 100, "key_size": 50, **facts}) for _ in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("members", "extra", "path"),
    [
        ([], 0, Path.NOTHING),
        ([], 1, Path.NATIVE),
        (reads(1), 0, Path.READ),
        (reads(500), 0, Path.READ),
        (writes(1), 0, Path.SINGLE),
        (writes(1), 1, Path.NATIVE),
        (writes(1) + reads(1), 0, Path.NATIVE),
        (writes(MOST_ACTIONS), 0, Path.NATIVE),
        (writes(MOST_ACTIONS), 1, Path.LONG),
        (writes(MOST_ACTIONS + 1), 0, Path.LONG),
        (writes(50) + reads(50), 0, Path.NATIVE),
        (writes(50) + reads(51), 0, Path.LONG),
        (writes(12, size=390_000), 0, Path.LONG),
    ],
)
def test_path(members: list[Member], extra: int, path: Path) -> None:
    """The cheapest path that can hold it is taken."""
    assert choose(members, extra=extra).path is path


MEMBERS = st.lists(
    st.builds(
        Member,
        is_write=st.booleans(),
        is_absent=st.booleans(),
        can_be_marked=st.just(True),
        wants_direct=st.booleans(),
        size=st.integers(0, 400_000),
        before_size=st.integers(0, 400_000),
        key_size=st.integers(1, 2_000),
    ),
    max_size=260,
)


@steady
@given(MEMBERS, st.integers(0, 3))
def test_every_plan_does_everything_once_within_the_limits(members: list[Member], extra: int) -> None:
    """Each write is direct or staged, each read checked or validated, and the decision fits into one transaction."""
    plan = choose(members, extra=extra)
    if plan.path is Path.NOTHING:
        assert members == []
        return
    written = sorted((*plan.direct, *plan.staged))
    read = sorted((*plan.checked, *plan.validated))
    assert written == [i for i, member in enumerate(members) if member.is_write]
    assert read == [i for i, member in enumerate(members) if not member.is_write]
    if plan.path is Path.LONG:
        assert 1 + extra + len(plan.direct) + len(plan.checked) <= MOST_ACTIONS
        assert sum(members[i].size for i in plan.direct) <= MOST_BYTES
        assert set(plan.marked) >= set(plan.staged)
        # Reads that are validated before the decision need every written item to be marked first.
        assert not plan.validated or set(plan.marked) == set(written)
        assert plan.requests == 1 + plan.rows + len(plan.marked) + -(-len(plan.validated) // MOST_ACTIONS) + 1 + (
            len(plan.staged) + 1 if plan.staged else 0
        )
    elif plan.path is Path.NATIVE:
        assert len(members) + extra <= MOST_ACTIONS
        assert plan.staged == plan.validated == ()
        assert plan.requests == 1


def test_what_cannot_be_marked_is_direct() -> None:
    """Items without a place for a mark come first into the decision, then new ones, then large ones."""
    plan = choose([*writes(60), *writes(99, can_be_marked=False)])
    assert plan.direct == tuple(range(60, 159))
    plan = choose([*writes(60), *writes(60, is_absent=True), *writes(60, size=5000)])
    assert set(plan.direct) == {*range(60, 120), *range(120, 159)}


@pytest.mark.parametrize(
    "members",
    [
        writes(100, can_be_marked=False) + writes(1),
        writes(99, can_be_marked=False, size=50_000) + writes(2),
        writes(40, can_be_marked=False) + reads(60) + writes(60),
    ],
    ids=["too many", "too large", "beside too many reads"],
)
def test_what_cannot_be_staged_is_refused(members: list[Member]) -> None:
    """A transaction in which an item must be staged that cannot be is refused."""
    with pytest.raises(CannotBeStaged):
        choose(members)


def test_reads_inside_or_outside() -> None:
    """Few reads are checked by the decision; many are validated before it, and then every written item is marked."""
    inside, outside = choose(writes(80) + reads(49)), choose(writes(80) + reads(50))
    assert (len(inside.checked), len(inside.validated)) == (49, 0)
    assert (len(outside.checked), len(outside.validated)) == (0, 50)
    assert outside.marked == tuple(range(80))
    assert outside.staged == ()
    beside = choose(writes(39, can_be_marked=False) + reads(60) + writes(60))
    assert (len(beside.checked), len(beside.validated)) == (60, 0)


def test_costs_of_a_long_plan() -> None:
    """250 updates of small items: 99 are written by the decision, 151 staged, each marked and finished."""
    plan = choose(writes(250))
    assert (plan.requests, plan.rows) == (1 + 1 + 151 + 1 + 151 + 1, 1)
    keys = -(-151 * 50 // 1024)
    assert plan.write_units == 1 + keys + 151 + 2 * (1 + 99) + 151 + 1
    assert Plan(Path.NOTHING).marked == ()


@steady
@given(st.lists(st.integers(1, ROW_BYTES), max_size=60))
def test_keys_in_rows(sizes: list[int]) -> None:
    """Every key is in one row, in its order, and no row is larger than allowed."""
    rows = keys_in_rows(sizes)
    assert [i for row in rows for i in row] == list(range(len(sizes)))
    assert all(sum(sizes[i] for i in row) <= ROW_BYTES for row in rows)
    assert all(len(row) > 0 for row in rows)


def test_a_key_larger_than_a_row_has_one_of_its_own() -> None:
    """A size beyond the limit is not split, and does not make an empty row."""
    assert keys_in_rows([ROW_BYTES + 1]) == [range(1)]
    assert keys_in_rows([1, ROW_BYTES + 1, 1]) == [range(1), range(1, 2), range(2, 3)]
    assert keys_in_rows([]) == []


def test_a_header_that_does_not_say_may_have_checked_early():
    """It was written by somebody who did not know that it matters: nobody looks past it."""
    book, stored = headers.Book(None, "headers"), {}
    known = header()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headers, "ask", lambda _book, _operation, kwargs: stored.update(kwargs["Item"]))
        headers.begin(book, known)
    assert not headers.header_in(stored).is_early
    del stored[headers.EARLY]
    assert headers.header_in(stored).is_early
